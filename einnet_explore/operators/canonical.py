"""Whether an equation that says how it is run means just that."""

from __future__ import annotations

from collections.abc import Sequence

from einnet_explore.algebra.substitute import with_iterators
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Iterator, Scope, accesses
from einnet_explore.operators.layout import strides_of
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator


def canonical_matches(equation: Equation, operators: Sequence[Operator] = OPERATORS) -> str | None:
    """Why *equation* is not exactly what its ``via`` runs, or None if it is.

    A library call means its operator's canonical expression with the attributes put in; a view reads one tensor at an
    affine address inside its elements; an eOperator, and an equation not instantiated yet, may mean anything.  Names of
    iterators and padding of the result do not matter.
    """
    via = equation.via
    if via is None or via.operator == EOPERATOR:
        return None
    if via.operator == VIEW:
        strides = strides_of(equation.scope)
        return f"{equation.name}: {strides}" if isinstance(strides, str) else None
    operator = next((o for o in operators if via.operator in o.names), None)
    if operator is None:
        return f"{equation.name}: unknown operator {via.operator}, known are {', '.join(o.name for o in operators)}"
    if operator.instance(dict(via.attributes)).operator != via.operator:
        return f"{equation.name}: {operator.instance(dict(via.attributes))!r} is called {via.operator}"
    sources = [access.source for access in accesses(equation.scope.body)]
    wanted = len(operator.pattern.operands)
    if len(sources) != wanted:
        return f"{equation.name}: {via.operator} has {wanted} operands, the body reads {len(sources)}"
    try:
        expected = _plain(operator.instantiate(dict(via.attributes), sources))
    except ValueError as reason:
        return f"{equation.name}: {reason}"
    found = _plain(equation.scope)
    if found != expected:
        return f"{equation.name}: {via!r} means {expected!r}, found {found!r}"
    return None


def _plain(scope: Scope) -> Scope:
    """*scope* with iterators named by position, and nothing said of its surroundings."""
    own = (*scope.traversals, *scope.summations)
    named = with_iterators(scope, {x: Iterator(f"x{n}", x.lo, x.hi) for n, x in enumerate(own)})
    return Scope(named.traversals, named.summations, named.body, named.reduce, named.domain)
