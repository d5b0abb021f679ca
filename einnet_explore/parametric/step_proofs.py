"""Proofs of a step of a derivation at all sizes.

A step is proved for all sizes, refuted at some sizes, or unproved.  A proof covers shapes, reads and values of whole
programs, as in ``equivalence.certificate``: equations are aligned by name, an equation of only one program is inlined
into its readers, and a common equation remains a tensor as long as the proof succeeds.  ``check_operators`` compares an
equation with the view or operator call that implements it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from einnet_explore.equivalence.assumptions import Assumptions, assume_infinite_tensors, infinite_results
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.equivalence.linear_space import Form, Undecided, complement, scope_conditions, with_summations
from einnet_explore.equivalence.program_diff import differing_scopes, inline_equations
from einnet_explore.equivalence.reads import guarded_accesses
from einnet_explore.ir import (
    VIEW,
    Access,
    Box,
    Equation,
    Instance,
    Program,
    Scope,
    Table,
    Tensor,
    accesses,
    scopes,
    tensors,
)
from einnet_explore.operators.library import OPERATORS
from einnet_explore.parametric.comparison import Difference, FamilyProver, find_solution, solution_text
from einnet_explore.parametric.conjecture import sizes_text
from einnet_explore.parametric.parameters import FamilyParameters, polynomial_form
from einnet_explore.parametric.schema import Schema, canonical_scope, instantiate_schema
from einnet_explore.parametric.size_polynomials import add_forms, form_text
from einnet_explore.parametric.space import ParametricSpace
from einnet_explore.support.errors import Refused

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
                return f"proved for all sizes ({', '.join(self.means) or 'identity'})" + (self.why and f", {self.why}")
            case "refuted":
                return f"refuted at {sizes_text(dict(self.sizes))}: {self.certificate}"
            case _:
                return f"unproved: {self.why}"


def prove_step(ground: FamilyParameters, before: Schema, after: Schema) -> tuple[StepVerdict, tuple[int, ...]]:
    """Prove a step; return ``proved`` or ``unproved``, and the unknowns at which terms differ, if found."""
    prover = FamilyProver(ground, set())
    try:
        _check_shapes(ground, before, after)
        _check_reads(ground, before, after, prover)
    except (Refused, Undecided) as why:
        return StepVerdict("unproved", (), str(why)), ()
    given = infinite_results((before.equations, after.equations))
    found = _output_difference(before, after, prover, given)
    if found is None:
        return StepVerdict("proved", tuple(sorted(prover.means))), ()
    scopes_of = ([e.scope for e in p.equations] for p in (before, after))
    for more in given.axioms(*scopes_of):
        if more.rounding is None and _output_difference(before, after, prover, more) is None:
            return StepVerdict("proved", tuple(sorted(prover.means)), more.named), ()
    return StepVerdict("unproved", tuple(sorted(prover.means)), found.why), found.unknowns


def prove_legal(ground: FamilyParameters, schema: Schema) -> StepVerdict:
    """Prove that *schema* has no empty range, no negative size and no read beyond its reach, at all sizes."""
    prover = FamilyProver(ground, set())
    try:
        _check_shapes(ground, schema, schema)
        _check_reads(ground, replace(schema, equations=()), schema, prover)
    except (Refused, Undecided) as why:
        return StepVerdict("unproved", why=str(why))
    return StepVerdict("proved", tuple(sorted(prover.means)), "all its reads are legal")


def _check_shapes(ground: FamilyParameters, before: Schema, after: Schema) -> None:
    """Raise Refused if interfaces differ, a range may be empty, a padding negative, or a tensor is not defined."""
    if before.outputs != after.outputs:
        raise Refused(f"outputs are {', '.join(after.outputs)}, expected {', '.join(before.outputs)}")
    if strange := [t.name for t in after.inputs if t not in before.inputs]:
        raise Refused(f"input {strange[0]} is another one")
    for t in after.inputs:
        for n in t.shape:
            if not ground.is_nonnegative(polynomial_form(n - 1)):
                raise Refused(f"{t.name}: whether it has elements along a dimension of {n} depends on the sizes")
        for n in (n for pair in t.padding for n in pair):
            if not ground.is_nonnegative(polynomial_form(n)):
                raise Refused(f"{t.name}: whether the padding {n} is negative depends on the sizes")
    defined = {t.name: t for t in after.inputs}
    for equation in after.equations:
        for _, scope in scopes(equation.scope):
            for x in (*scope.traversals, *scope.summations):
                if not ground.is_nonnegative(polynomial_form(x.hi - x.lo - 1)):
                    raise Refused(
                        f"{equation.name}: whether the range [{x.lo}, {x.hi}) of {x.name} is empty depends on the sizes"
                    )
            for edge in (n for pair in scope.padding for n in pair):
                if not ground.is_nonnegative(polynomial_form(edge)):
                    raise Refused(f"{equation.name}: whether the padding {edge} is negative depends on the sizes")
        for t in tensors(equation.scope):
            source = defined.get(t.name)
            if source is None:
                raise Refused(f"{equation.name} reads {t.name}, which is no input and no earlier equation")
            if replace(source, weight=t.weight) != t:
                raise Refused(f"{equation.name} reads {t.name} with another shape or padding than it has")
        if equation.name in defined:
            raise Refused(f"{equation.name} is defined twice")
        defined[equation.name] = equation.tensor
    boxes = {e.name: e.scope.box for e in before.equations}
    for name in before.outputs:
        if name in boxes and (name not in defined or defined[name].box != boxes[name]):
            raise Refused(f"output {name} has another box")


def _check_reads(ground: FamilyParameters, before: Schema, after: Schema, prover: FamilyProver) -> None:
    """Raise Refused if an equation that is new in *after* may read beyond a source's reach, at some sizes."""
    for equation in after.equations:
        if equation not in before.equations:
            for _, scope in scopes(equation.scope):
                try:
                    _check_scope_reads(ground, scope, prover)
                except Refused as why:
                    raise Refused(f"{equation.name}: {why}") from None


def _check_scope_reads(ground: FamilyParameters, scope: Scope, prover: FamilyProver) -> None:
    space = ParametricSpace(ground, scope.box, lambda a, b: False)
    env, inside = scope_conditions(space, scope, space.point)
    if inside is None:
        return
    env, _ = with_summations(space, scope, env)
    for access, guards in guarded_accesses(space, scope.body, env, inside):
        if len(access.index) != len(access.source.shape):
            raise Refused(f"{access!r} has {len(access.index)} indices, expected {len(access.source.shape)}")
        at = tuple(space.form(i, env) for i in access.index)
        for beyond in complement(space.within(at, access.source.reach)):
            found = find_solution(space, (*guards, *beyond))
            prover.means |= space.solvers
            if found is not None:
                raise Refused(f"{_source_text(access)} may be read outside its reach, at {solution_text(found)}")


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


def check_operators(ground: FamilyParameters, schema: Schema) -> None:
    """Raise Refused, with the reason, unless every equation is proved equal to its implementation."""
    for equation in schema.equations:
        via = equation.via
        if via is None or via.is_eoperator:
            continue
        try:
            if via.operator == VIEW:
                _check_view(ground, equation.scope, via)
            else:
                _check_call(ground, equation, via)
        except (Undecided, ValueError) as why:
            raise Refused(f"{equation.name} via {via.operator}: {why}") from None


def _check_view(ground: FamilyParameters, scope: Scope, via: Instance) -> None:
    """Compare a view's address with its offset and the stride of each traversal."""
    match scope:
        case Scope(traversals=own, summations=(), domain=(), body=Access(Tensor(shape=shape), index)):
            pass
        case _:
            raise Refused("a view reads one tensor, and nothing else")
    space = ParametricSpace(ground, scope.box, lambda a, b: False)
    # a traversal of extent 1 has no stride
    env = {x: polynomial_form(x.lo) if x.extent == 1 else point for x, point in zip(own, space.point, strict=True)}
    address: Form = {"": 0}
    stride: Form = {"": 1}
    for i, extent in zip(reversed(index), reversed(shape), strict=True):
        address = add_forms(address, space.times(space.form(i, env), stride))
        stride = space.times(stride, polynomial_form(extent))
    named = dict(via.attributes)
    offset, strides = named.get("offset"), named.get("strides")
    if isinstance(offset, str | tuple | None) or not isinstance(strides, tuple) or len(strides) != len(own):
        raise Refused(f"the view has offset {offset} and strides {strides}, expected {len(own)} strides")
    expected = polynomial_form(offset)
    for x, n in zip(own, strides, strict=True):
        expected = add_forms(expected, space.times(polynomial_form(n), add_forms(env[x], polynomial_form(x.lo), -1)))
    if address != expected:
        raise Refused(f"the view's address is {form_text(expected)}, the equation reads at {form_text(address)}")


def _check_call(ground: FamilyParameters, equation: Equation, via: Instance) -> None:
    """Compare a call with its operator's canonical expression."""
    operator = next((o for o in OPERATORS if via.operator in o.names), None)
    if operator is None:
        raise Refused("no operator of that name is known")
    operands = [access.source for access in accesses(equation.scope.body)]
    canonical = canonical_scope(operator, via, operands)
    if canonical.box != equation.scope.box:
        raise Refused(f"its result has the box {canonical.box}, the equation {equation.scope.box}")
    given = assume_infinite_tensors(equation.scope)
    found = FamilyProver(ground, set()).difference(canonical, equation.scope, equation.scope.box, given)
    if found is not None:
        raise Refused(found.why)


TRIED_SIZES = 3
"""Sizes of a parameter, from the smallest, at which an unproved step is tested."""


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
    """Yield test sizes, small ones first: the smallest, slightly larger ones, and those at which terms differed."""
    first = ground.corner() or tuple(p.first for p in ground.parameters)
    tried = [unknowns] if unknowns else []
    tried.append(first)
    for more in range(1, TRIED_SIZES):
        tried.append(tuple(u + more for u in first))
        tried += [tuple(u + more * (n == i) for i, u in enumerate(first)) for n in range(len(first))]
    for us in sorted(dict.fromkeys(tried), key=sum):
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
        _check_ranges(one)
    except ValueError:
        return None
    try:
        other = instantiate_schema(after, sizes)
        _check_ranges(other)
    except ValueError as why:
        return Certificate("false", "structure", counterexample=str(why))
    try:
        return certify(one, other)
    except Undecided:
        return None


def _check_ranges(program: Program) -> None:
    """Raise Refused for an empty range or a negative padding."""
    for equation in program.equations:
        for _, scope in scopes(equation.scope):
            for x in (*scope.traversals, *scope.summations):
                if x.hi <= x.lo:
                    raise Refused(f"{equation.name}: the range [{x.lo}, {x.hi}) of {x.name} is empty")
            if any(n < 0 for pair in scope.padding for n in pair):
                raise Refused(f"{equation.name}: the padding {scope.padding} is negative")


def with_least_sizes(
    ground: FamilyParameters, found: Mapping[str, int], steps: Iterable[tuple[Schema, Schema]]
) -> FamilyParameters:
    """Raise the minimum sizes, up to those *found*, until each of *steps* is proved that can be."""
    enough = [found[p.name] for p in ground.parameters]
    for before, after in steps:
        if prove_step(ground, before, after)[0].kind != "proved":
            ground = raise_least_sizes(ground, enough, before, after) or ground
    return ground


def raise_least_sizes(
    ground: FamilyParameters, enough: Iterable[int], before: Schema, after: Schema
) -> FamilyParameters | None:
    """Raise the minimum sizes, up to *enough*, until the step is proved; None if it is not.

    The parameters are minimised one after another.
    """

    def at_least(sizes: Iterable[int]) -> FamilyParameters:
        parameters = (replace(p, least=least) for p, least in zip(ground.parameters, sizes, strict=True))
        return replace(ground, parameters=tuple(parameters))

    def is_proved(sizes: Iterable[int]) -> bool:
        return prove_step(at_least(sizes), before, after)[0].kind == "proved"

    least = [max(p.least, n) for p, n in zip(ground.parameters, enough, strict=True)]
    if not is_proved(least):
        return None
    for n, p in enumerate(ground.parameters):
        low, high = p.least, least[n]
        while low < high:
            middle = (low + high) // 2
            if is_proved([*least[:n], middle, *least[n + 1 :]]):
                high = middle
            else:
                low = middle + 1
        least[n] = high
    return at_least(least)
