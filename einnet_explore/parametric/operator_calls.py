"""Proof, for all sizes, that an equation equals the view or operator call that implements it."""

from __future__ import annotations

from collections.abc import Sequence

from einnet_explore.equivalence.assumptions import assume_infinite_tensors
from einnet_explore.equivalence.linear_space import Form, Undecided
from einnet_explore.ir import (
    REDUCTIONS,
    VIEW,
    Access,
    Apply,
    Const,
    Equation,
    Index,
    Instance,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
)
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.parametric.comparison import FamilyProver
from einnet_explore.parametric.linear_forms import add_forms
from einnet_explore.parametric.parameters import FamilyParameters, polynomial_form
from einnet_explore.parametric.schema import Schema
from einnet_explore.parametric.space import ParametricSpace


def operator_mismatch(ground: FamilyParameters, schema: Schema) -> str | None:
    """Return why an equation is not proved equal to its implementation; None if all are."""
    for equation in schema.equations:
        via = equation.via
        if via is None or via.is_eoperator:
            continue
        try:
            why = (
                _view_difference(ground, equation.scope, via)
                if via.operator == VIEW
                else _call_difference(ground, equation, via)
            )
        except (Undecided, ValueError) as reason:
            why = str(reason)
        if why is not None:
            return f"{equation.name} via {via.operator}: {why}"
    return None


def _view_difference(ground: FamilyParameters, scope: Scope, via: Instance) -> str | None:
    """Compare a view's address with its offset and the stride of each traversal."""
    match scope:
        case Scope(traversals=own, summations=(), domain=(), body=Access(Tensor(shape=shape), index)):
            pass
        case _:
            return "a view reads one tensor, and nothing else"
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
        return "a view has an offset and a stride for each traversal"
    expected = polynomial_form(offset)
    for x, n in zip(own, strides, strict=True):
        expected = add_forms(expected, space.times(polynomial_form(n), add_forms(env[x], polynomial_form(x.lo), -1)))
    return None if address == expected else "the address is another one"


def _call_difference(ground: FamilyParameters, equation: Equation, via: Instance) -> str | None:
    """Compare a call with its operator's canonical expression."""
    operator = next((o for o in OPERATORS if via.operator in o.names), None)
    if operator is None:
        return "no operator of that name is known"
    operands = [access.source for access in accesses(equation.scope.body)]
    canonical = _canonical_scope(operator, via, operands)
    if isinstance(canonical, str):
        return canonical
    if canonical.box != equation.scope.box:
        return "it has another shape"
    given = assume_infinite_tensors(equation.scope)
    found = FamilyProver(ground, set()).difference(canonical, equation.scope, equation.scope.box, given)
    return None if found is None else found.why


def _canonical_scope(operator: Operator, via: Instance, operands: Sequence[Tensor | Table | Scope]) -> Scope | str:
    """Return the operator's canonical scope over *operands*, as a schema; or the mismatch."""
    pattern, attributes = operator.pattern, dict(via.attributes)
    if len(operands) != len(pattern.operands):
        return f"it takes {len(pattern.operands)} operands, the equation reads {len(operands)}"
    numbers = {name: n for name, n in attributes.items() if not isinstance(n, str | tuple)}
    numbers |= {f"|{x}|": numbers.get(x, 1) for x in pattern.iterators}
    own = {x: Iterator(x, 0, numbers[f"|{x}|"]) for x in pattern.iterators if not operator.absent(x, attributes)}
    reads: list[Scalar] = []
    for p, source in enumerate(operands):
        dimensions = operator.dimensions(p, attributes)
        shape = tuple(d.extent.value(numbers) if d.extent else own[d.iterators[0]].extent for d in dimensions)
        if source.shape != shape or any(lo for lo, _ in source.box):
            return f"its operand {pattern.operands[p].name} has another shape"
        if source.padding and source.value != REDUCTIONS[pattern.reduce]:
            return f"its operand {pattern.operands[p].name} is {source.value:g} outside"
        index = tuple(
            Index(tuple((own[x], k.value(numbers)) for x, k in d.terms if k.value(numbers)), d.const.value(numbers))
            for d in dimensions
        )
        reads.append(Access(source, index))
    body = reads[0] if len(reads) == 1 else Apply(pattern.op, tuple(reads))
    if (divisor := pattern.divisor.value(numbers)) != 1:
        body = Apply("/", (body, Const(divisor)))
    chosen = [tuple(own[x] for x in names if x in own) for names in (pattern.traversals, pattern.summations)]
    return Scope(chosen[0], chosen[1], body, pattern.reduce)
