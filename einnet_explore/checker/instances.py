"""Whether an instantiated equation means what its operator computes."""

from __future__ import annotations

from einnet_explore.algebra.flatten import flat_address
from einnet_explore.algebra.given import of_tensors
from einnet_explore.algebra.space import Beyond
from einnet_explore.algebra.tally import difference
from einnet_explore.ir import EOPERATOR, VIEW, Access, Attribute, Equation, Index, Instance, Scope, Tensor, accesses
from einnet_explore.operators import OPERATORS, Operator


def wrong_instance(equation: Equation, operators: tuple[Operator, ...] = OPERATORS) -> str | None:
    """Why *equation* is not what its instance runs; None where it is (or where nothing runs it yet).

    An operator's equation must be its canonical expression, with its attributes, of the tensors that the equation
    reads; a view must read one tensor, inside its box, at an address that is affine in the traversals.
    """
    via = equation.via
    if via is None or via.operator == EOPERATOR:
        return None
    if via.operator == VIEW:
        return _no_view(equation.scope, via)
    return _no_call(equation.scope, via, operators)


def _no_view(scope: Scope, via: Instance) -> str | None:
    match scope:
        case Scope(summations=(), domain=(), body=Access(source=Tensor() as source) as access):
            for d, (index, (lo, hi)) in enumerate(zip(access.index, source.box, strict=True)):
                least, most = index.bounds
                if least < lo or most >= hi:
                    read = f"dimension {d} of {source.name} in [{least}, {most}]"
                    return f"a view reads {read}, its elements lie in [{lo}, {hi})"
            address = flat_address(access)
            return _other_address(scope, address, via) if address.affine else f"address {address!r} is not affine"
    return "a view reads one tensor, at every point of its box, and nothing else"


def _other_address(scope: Scope, address: Index, via: Instance) -> str | None:
    """What the view's offset and strides, where it names them, have to do with *address*; one element has no stride."""
    named = dict(via.attributes)
    found: dict[str, Attribute] = {
        "offset": address.evaluate(lambda x: x.lo),
        "strides": tuple(address.coefficient(x) for x in scope.traversals),
    }
    strides = named.get("strides")
    if isinstance(strides, tuple) and len(strides) == len(scope.traversals):
        found["strides"] = tuple(
            address.coefficient(x) if x.extent > 1 else said for x, said in zip(scope.traversals, strides, strict=True)
        )
    wrong = [name for name in found if name in named and named[name] != found[name]]
    return f"a view with {wrong[0]} {named[wrong[0]]}, the address has {found[wrong[0]]}" if wrong else None


def _no_call(scope: Scope, via: Instance, operators: tuple[Operator, ...]) -> str | None:
    operator = next((o for o in operators if via.operator in o.names), None)
    if operator is None:
        return f"unknown operator {via.operator}, expected one of {', '.join(n for o in operators for n in o.names)}"
    operands = [access.source for access in accesses(scope.body)]
    if not all(isinstance(source, Tensor) for source in operands):
        return f"{via.operator} reads tensors, the equation reads a scope"
    expected = len(operator.pattern.operands)
    if len(operands) != expected:
        return f"{via.operator} takes {expected} operands, the equation reads {len(operands)}"
    try:
        canonical = operator.instantiate(dict(via.attributes), operands)
    except ValueError as error:
        return str(error)
    if canonical == scope:
        return None
    if canonical.box != scope.box:
        return f"{via!r} has shape {canonical.shape}, the equation {scope.shape}"
    try:
        witness = difference(canonical, scope, scope.box, of_tensors(scope))
    except Beyond as beyond:
        return f"{via!r} could not be compared with the equation: {beyond}"
    return None if witness is None else f"{via!r} is another expression: {witness}"
