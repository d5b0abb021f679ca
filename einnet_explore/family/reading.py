"""Families from text: ``param`` lines, and a program whose sizes are polynomials of them."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike

from einnet_explore.family.api import Family
from einnet_explore.family.parameters import Ground, OutsideError, Parameter
from einnet_explore.text.parametric import Template, parse_template
from einnet_explore.text.parser import text_of


def family(text: str, source: str = "<text>") -> Family:
    """The family that *text*, with its ``param`` lines, writes down.

    Raises TextError, with line and column, on a text that is none, on assumptions that no number fulfils, and where the
    program has no meaning at the least sizes that are assumed.
    """
    template = parse_template(text, source)
    made = Family(template, Ground(_parameters(template)))
    ground = made.ground
    for unknowns in (tuple(p.first for p in ground.parameters), tuple(p.first + 1 for p in ground.parameters)):
        sizes = ground.sizes(unknowns)
        try:
            ground.refuse(sizes)
        except OutsideError:
            continue
        template.at(sizes)
    return made


def load_family(path: str | PathLike[str]) -> Family:
    """The family in the file at *path*; raises OSError, and TextError as ``family`` does."""
    return family(text_of(path), str(path))


def _parameters(template: Template) -> tuple[Parameter, ...]:
    held: dict[str, Parameter] = {}
    for a in template.assumptions:
        p = held.get(a.name, Parameter(a.name))
        match a.op:
            case ">=":
                p = replace(p, least=max(1, a.number))
            case "<=":
                p = replace(p, most=a.number if p.most is None else min(p.most, a.number))
            case "%":
                both = p.also(a.modulus, a.number)
                if both is None:
                    guard = f"{a.name} % {p.modulus} == {p.residue}"
                    raise template.refuse(
                        a, f"found {a.name} % {a.modulus} == {a.number}, which no number with {guard} has"
                    )
                p = both
        if p.empty:
            raise template.refuse(a, f"found no number with {' and '.join(p.guards)}, expected at least one")
        held[a.name] = p
    return tuple(held.values())
