"""Verdicts on steps: proved for all sizes, refuted at some sizes, or unproved."""

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
"""Sizes of a parameter, from the smallest, at which an unproved step is tested."""


@dataclass(frozen=True, slots=True)
class FamilyProof:
    """The verdicts on the steps of a derivation at all sizes that *ground* allows."""

    ground: FamilyParameters
    rules: tuple[str, ...]
    verdicts: tuple[StepVerdict, ...]

    @property
    def kind(self) -> str:
        """``proved`` if all steps are proved, ``refuted`` if one is refuted, else ``unproved``."""
        kinds = {v.kind for v in self.verdicts}
        return next((kind for kind in ("refuted", "unproved") if kind in kinds), "proved")

    @property
    def means(self) -> tuple[str, ...]:
        """The methods used: ``isl``, ``z3``, ``digits``."""
        return tuple(sorted({m for v in self.verdicts for m in v.means}))

    def table(self) -> TextTable:
        """Return a table with one row per step."""
        rows = ((str(n), rule, str(v)) for n, (rule, v) in enumerate(zip(self.rules, self.verdicts, strict=True)))
        return TextTable(("", "step", "for all sizes"), tuple(rows), str(self))

    def __str__(self) -> str:
        return f"{self.kind} for {', '.join(self.ground.guards)}"

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


def judge_step(ground: FamilyParameters, before: Schema, after: Schema) -> StepVerdict:
    """Prove that *after* equals *before* at all sizes, or search for sizes at which it does not.

    A refuted step has a false certificate at single sizes.
    """
    found, unknowns = prove_step(ground, before, after)
    if found.kind == "proved":
        return found
    for sizes in _suspect_sizes(ground, unknowns):
        certificate = _certify_at(before, after, sizes)
        if certificate is not None and certificate.kind == "false":
            return replace(
                found, kind="refuted", sizes=tuple(ground.declared_sizes(sizes).items()), certificate=certificate
            )
    return found


def _suspect_sizes(ground: FamilyParameters, unknowns: tuple[int, ...]) -> Iterable[dict[str, int]]:
    """Yield test sizes: those at which terms differed, the smallest ones, and slightly larger ones."""
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
    """Certify a step at *sizes*; None if the first program is invalid there."""
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
    """Return an empty range or a negative padding of *program*; None if there is none."""
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
    """Raise the minimum sizes, up to *enough*, until the step is proved; None if it is not.

    The parameters are minimised one after another.
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
