"""Families from text: ``param`` lines, and a program whose sizes are polynomials of them."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from einnet_explore.family.api import Family
from einnet_explore.family.assumed import ground_of
from einnet_explore.family.parameters import OutsideError
from einnet_explore.text import TextError
from einnet_explore.text.parametric import parse_template
from einnet_explore.text.parser import text_of


def family(text: str, source: str = "<text>", *, assume: Sequence[str] = ()) -> Family:
    """The family that *text*, with its ``param`` lines, writes down; *assume*: what more is assumed, as in such a line.

    Raises TextError, with line and column, on a text that is none, on assumptions that no sizes fulfil (it names the
    one with which there are none left), on one of *assume* that is none or speaks of a parameter that *text* has not,
    and where the program has no meaning at the least sizes that are assumed.
    """
    first = text.count("\n") + 2
    lines = [text, *(f"param {' '.join(one.split())}" for one in assume)]
    try:
        known = parse_template(text, source).names
        template = parse_template("\n".join(lines), source)
        for a in template.assumptions:
            if odd := [name for name in a.names if name not in known]:
                raise template.refuse(a, f"found unknown parameter {odd[0]}, expected one of {', '.join(known)}")
        made = Family(template, ground_of(template))
    except TextError as error:
        if error.line < first:
            raise
        shown = f"assumption {assume[error.line - first]!r}"
        raise TextError(shown, 1, max(1, error.column - len("param ")), error.message) from None
    ground = made.ground
    for unknowns in filter(None, (ground.corner(), ground.corner(1))):
        sizes = ground.sizes(unknowns)
        try:
            ground.refuse(ground.given(sizes))
        except OutsideError:
            continue
        made.written(sizes)
    return made


def load_family(path: str | PathLike[str], *, assume: Sequence[str] = ()) -> Family:
    """The family in the file at *path*; raises OSError, and TextError as ``family`` does."""
    return family(text_of(path), str(path), assume=assume)
