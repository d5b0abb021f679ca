"""Verdicts on steps: proved for all sizes, or refuted at sizes at which they are wrong, or neither."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.ir import Program, scopes
from einnet_explore.parametric.parameters import FamilyParameters, Parameter
from einnet_explore.parametric.proof import StepVerdict, prove_step
from einnet_explore.parametric.schema import Schema, instantiate_schema
from einnet_explore.support.errors import Refused
from einnet_explore.viz.tables import TextTable

TRIED_SIZES = 3
"""How many sizes of a parameter, from the least on, are tried where there is no proof."""


@dataclass(frozen=True, slots=True)
class FamilyProof:
    """The verdicts on the steps of a derivation at all sizes that *ground* allows, one a step."""

    ground: FamilyParameters
    rules: tuple[str, ...]
    verdicts: tuple[StepVerdict, ...]

    @property
    def kind(self) -> str:
        """``proved`` if all steps are, ``refuted`` if one is, else ``unproved``."""
        kinds = {v.kind for v in self.verdicts}
        return next((kind for kind in ("refuted", "unproved") if kind in kinds), "proved")

    @property
    def means(self) -> tuple[str, ...]:
        """What was needed: ``isl``, ``z3``, ``digits``."""
        return tuple(sorted({m for v in self.verdicts for m in v.means}))

    def table(self) -> TextTable:
        """One row a step."""
        rows = ((str(n), rule, str(v)) for n, (rule, v) in enumerate(zip(self.rules, self.verdicts, strict=True)))
        return TextTable(("", "step", "for all sizes"), tuple(rows), str(self))

    def __str__(self) -> str:
        return f"{self.kind} for {', '.join(self.ground.guards)}"

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


def judge_step(ground: FamilyParameters, before: Schema, after: Schema) -> StepVerdict:
    """Whether *after* computes what *before* does, at all sizes; where no proof is found, sizes at which it does not.

    What is called refuted has a certificate of the ordinary kind that is false.
    """
    found, unknowns = prove_step(ground, before, after)
    if found.kind == "proved":
        return found
    for sizes in _suspect_sizes(ground, unknowns):
        certificate = _certify_at(before, after, sizes)
        if certificate is not None and not certificate.ok:
            return replace(found, kind="refuted", sizes=tuple(ground.given(sizes).items()), certificate=certificate)
    return found


def _suspect_sizes(ground: FamilyParameters, unknowns: tuple[int, ...]) -> Iterable[dict[str, int]]:
    """Sizes at which a step may be wrong: where terms differed, the least ones, a little more of one of them."""
    first = ground.corner() or tuple(p.first for p in ground.parameters)
    tried = [unknowns] if unknowns else []
    tried.append(first)
    for more in range(1, TRIED_SIZES):
        tried.append(tuple(u + more for u in first))
        tried += [tuple(u + more * (n == i) for i, u in enumerate(first)) for n in range(len(first))]
    for us in dict.fromkeys(tried):
        sizes = ground.sizes(us)
        try:
            ground.refuse(sizes)
        except Refused:
            continue
        yield sizes


def _certify_at(before: Schema, after: Schema, sizes: dict[str, int]) -> Certificate | None:
    """The ordinary certificate of a step at *sizes*; None where the first program does not exist there."""
    try:
        one = instantiate_schema(before, sizes)
    except ValueError:
        return None
    if _empty_range(one):
        return None
    try:
        other = instantiate_schema(after, sizes)
    except ValueError as why:
        return Certificate("false", "structure", counterexample=str(why))
    if (wrong := _empty_range(other)) is not None:
        return Certificate("false", "structure", counterexample=wrong)
    try:
        return certify(one, other)
    except Undecided:
        return None


def _empty_range(program: Program) -> str | None:
    """A range of *program* without elements, or a negative padding."""
    for equation in program.equations:
        for _, scope in scopes(equation.scope):
            for x in (*scope.traversals, *scope.summations):
                if x.hi <= x.lo:
                    return f"{equation.name}: the range [{x.lo}, {x.hi}) of {x.name} is empty"
            if any(n < 0 for pair in scope.padding for n in pair):
                return f"{equation.name}: the padding {scope.padding} is negative"
    return None


def raise_least_sizes(
    ground: FamilyParameters, enough: Iterable[int], before: Schema, after: Schema
) -> FamilyParameters | None:
    """*ground* with least sizes, up to *enough* of them, from which on the step is proved; None where there are none.

    Each parameter's is the smallest with the others as they are then.
    """
    raised = [replace(p, least=max(p.least, n)) for p, n in zip(ground.parameters, enough, strict=True)]
    if prove_step(replace(ground, parameters=tuple(raised)), before, after)[0].kind != "proved":
        return None
    for n, p in enumerate(ground.parameters):
        low, high = p.least, raised[n].least
        while low < high:
            middle = (low + high) // 2
            if (
                prove_step(replace(ground, parameters=_with_least(raised, n, middle)), before, after)[0].kind
                == "proved"
            ):
                high = middle
            else:
                low = middle + 1
        raised[n] = replace(raised[n], least=high)
    return replace(ground, parameters=tuple(raised))


def _with_least(parameters: list[Parameter], n: int, least: int) -> tuple[Parameter, ...]:
    return (*parameters[:n], replace(parameters[n], least=least), *parameters[n + 1 :])
