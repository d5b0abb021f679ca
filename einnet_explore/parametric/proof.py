"""Proofs of derivation steps for all sizes: shapes, reads and values of whole programs.

As in ``equivalence.certificate``: equations are aligned by name, an equation of only one program is inlined into its
readers, and a common equation remains a tensor as long as the proof succeeds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from einnet_explore.equivalence.assumptions import Assumptions, infinite_results
from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.equivalence.linear_space import Undecided, complement, scope_conditions, with_summations
from einnet_explore.equivalence.program_diff import differing_scopes, inline_equations
from einnet_explore.equivalence.reads import guarded_accesses
from einnet_explore.ir import Access, Box, Scope, Table, Tensor, scopes, tensors
from einnet_explore.parametric.comparison import Difference, FamilyProver
from einnet_explore.parametric.decision import find_solution_values
from einnet_explore.parametric.parameters import FamilyParameters, polynomial_form
from einnet_explore.parametric.schema import Schema
from einnet_explore.parametric.space import ParametricSpace

StepVerdictKind: TypeAlias = Literal["proved", "refuted", "unproved"]


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The verdict on a step at all allowed sizes.

    ``proved``, by *means* (``isl``, ``z3``, ``digits``; none for an identity); ``refuted``, with *sizes* at which it is
    wrong and the *certificate* there; or ``unproved``, with the reason *why*.
    """

    kind: StepVerdictKind
    means: tuple[str, ...] = ()
    why: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    certificate: Certificate | None = None

    def __str__(self) -> str:
        match self.kind:
            case "proved":
                return f"proved for all sizes ({', '.join(self.means) or 'at once'})" + (self.why and f", {self.why}")
            case "refuted":
                return f"refuted at {', '.join(f'{p} = {n}' for p, n in self.sizes)}: {self.certificate}"
            case _:
                return f"unproved: {self.why}"


def prove_step(ground: FamilyParameters, before: Schema, after: Schema) -> tuple[StepVerdict, tuple[int, ...]]:
    """Prove a step; return ``proved`` or ``unproved``, and the unknowns at which terms differ, if found."""
    prover = FamilyProver(ground, set())
    try:
        if wrong := _shape_fault(ground, before, after) or _read_fault(ground, before, after, prover):
            return StepVerdict("unproved", (), wrong), ()
    except Undecided as why:
        return StepVerdict("unproved", (), str(why)), ()
    given = infinite_results((before.equations, after.equations))
    found = _output_difference(before, after, prover, given)
    if found is None:
        return StepVerdict("proved", tuple(sorted(prover.means))), ()
    scopes_of = ([e.scope for e in p.equations] for p in (before, after))
    for more in given.axioms(*scopes_of):
        if _output_difference(before, after, prover, more) is None:
            return StepVerdict("proved", tuple(sorted(prover.means)), more.named), ()
    return StepVerdict("unproved", tuple(sorted(prover.means)), found.why), found.unknowns


def prove_legal(ground: FamilyParameters, schema: Schema) -> StepVerdict:
    """Prove that *schema* has no empty range, no negative size and no read beyond its reach, at all sizes."""
    prover = FamilyProver(ground, set())
    try:
        wrong = _shape_fault(ground, schema, schema) or _read_fault(
            ground, replace(schema, equations=()), schema, prover
        )
    except Undecided as why:
        wrong = str(why)
    if wrong:
        return StepVerdict("unproved", (), wrong)
    return StepVerdict("proved", tuple(sorted(prover.means)), "it reads nothing beyond its reach")


def _shape_fault(ground: FamilyParameters, before: Schema, after: Schema) -> str | None:
    """Return a mismatch of the programs' interfaces, a possibly empty range or a missing input; else None."""
    if before.outputs != after.outputs:
        return f"outputs are {', '.join(after.outputs)}, expected {', '.join(before.outputs)}"
    if strange := [t.name for t in after.inputs if t not in before.inputs]:
        return f"input {strange[0]} is another one"
    for t in after.inputs:
        for n in t.shape:
            if not ground.is_nonnegative(polynomial_form(n - 1)):
                return f"{t.name}: whether it has elements along a dimension of {n} depends on the sizes"
        for n in (n for pair in t.padding for n in pair):
            if not ground.is_nonnegative(polynomial_form(n)):
                return f"{t.name}: whether the padding {n} is negative depends on the sizes"
    held = {t.name: t for t in after.inputs}
    for equation in after.equations:
        for _, scope in scopes(equation.scope):
            for x in (*scope.traversals, *scope.summations):
                if not ground.is_nonnegative(polynomial_form(x.hi - x.lo - 1)):
                    return (
                        f"{equation.name}: whether the range [{x.lo}, {x.hi}) of {x.name} is empty depends on the sizes"
                    )
            for edge in (n for pair in scope.padding for n in pair):
                if not ground.is_nonnegative(polynomial_form(edge)):
                    return f"{equation.name}: whether the padding {edge} is negative depends on the sizes"
        for t in tensors(equation.scope):
            source = held.get(t.name)
            if source is None:
                return f"{equation.name} reads {t.name}, which is no input and no earlier equation"
            if replace(source, weight=t.weight) != t:
                return f"{equation.name} reads {t.name} with another shape or padding than it has"
        if equation.name in held:
            return f"{equation.name} is defined twice"
        held[equation.name] = equation.tensor
    boxes = {e.name: e.scope.box for e in before.equations}
    for name in before.outputs:
        if name in boxes and (name not in held or held[name].box != boxes[name]):
            return f"output {name} has another box"
    return None


def _read_fault(ground: FamilyParameters, before: Schema, after: Schema, prover: FamilyProver) -> str | None:
    """Return a read beyond the reach, at some sizes, of an equation that is new in *after*; else None."""
    for equation in after.equations:
        if equation not in before.equations:
            for _, scope in scopes(equation.scope):
                if (found := _read_outside_reach(ground, scope, prover)) is not None:
                    return f"{equation.name}: {found}"
    return None


def _read_outside_reach(ground: FamilyParameters, scope: Scope, prover: FamilyProver) -> str | None:
    space = ParametricSpace(ground, scope.box, lambda a, b: False)
    env, inside = scope_conditions(space, scope, space.point)
    if inside is None:
        return None
    env, _ = with_summations(space, scope, env)
    for access, guards in guarded_accesses(space, scope.body, env, inside):
        if len(access.index) != len(access.source.shape):
            return f"{access!r} has {len(access.index)} indices, expected {len(access.source.shape)}"
        at = tuple(space.form(i, env) for i in access.index)
        for beyond in complement(space.within(at, access.source.reach)):
            found = find_solution_values(space, (*guards, *beyond))
            prover.means |= space.asked
            if found is not None:
                return f"{_source_text(access)} may be read outside its reach, at {found}"
    return None


def _source_text(access: Access) -> str:
    match access.source:
        case Tensor(name):
            return name
        case Table():
            return "a table"
        case _:
            return "a scope"


def _output_difference(before: Schema, after: Schema, prover: FamilyProver, given: Assumptions) -> Difference | None:
    boxes = {e.name: e.scope.box for e in before.equations}
    others = {e.name: e.scope.box for e in after.equations}
    kept = {n for n, box in boxes.items() if box == others.get(n)}
    if strange := [n for n in before.outputs if n in boxes and n not in kept]:
        return Difference(f"output {strange[0]} has another box")
    while True:
        left, right = inline_equations(before, kept), inline_equations(after, kept)
        for name in (n for n in boxes if n in kept):
            try:
                why = _scope_difference(prover, left[name], right[name], left[name].box, given)
            except Undecided as beyond:
                why = Difference(str(beyond))
            if why is not None:
                break
        else:
            return None
        one, other = ({t.name for t in tensors(side[name])} & kept for side in (left, right))
        opened = (one ^ other) or (one | other if name in before.outputs else {name})
        if not opened:
            return replace(why, why=f"{name}: {why.why}")
        kept -= opened


def _scope_difference(
    prover: FamilyProver, before: Scope, after: Scope, region: Box, given: Assumptions
) -> Difference | None:
    """Compare two scopes on *region*, the smallest differing sub-scopes first; None if they are equal."""
    if before == after:
        return None
    if inner := differing_scopes(before, after):
        try:
            if all(a.reach == b.reach and _scope_difference(prover, a, b, a.reach, given) is None for _, a, b in inner):
                return None
        except Undecided:
            pass
    return prover.difference(before, after, region, given)
