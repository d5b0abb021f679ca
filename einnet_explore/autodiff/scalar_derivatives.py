r"""Derivatives of a body with respect to its reads.

.. math::  f(a_1, \dots, a_n) \quad\mapsto\quad \frac{\partial f}{\partial a_i}\ \text{for every read } a_i

by the chain rule, from the body down to its reads.  Subgradients at kinks:

===========================  ==============================================================
``relu`` at 0                0
``abs`` at 0                 0
``maximum``, ``minimum``     both arguments get one half where they are equal
max and min reductions       all that attain the extremum share equally (``differentiate``)
===========================  ==============================================================

The text form compares indices, not values; a power of zero does the latter: :math:`0^u` is 1 where :math:`u = 0` and
0 where :math:`u > 0`, so :math:`[x > 0] = 1 - 0^{relu(x)}`.  Source: Griewank and Walther, "Evaluating Derivatives",
for reverse accumulation; EinNet §3 for bodies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from einnet_explore.ir import Access, Apply, Compare, Const, Scalar, add, mul, terms
from einnet_explore.ir.scalar_functions import FUNCTIONS, SCALAR_FUNCTIONS

Condition = tuple[Compare, bool]
"""A comparison, and whether it has to hold (or fail)."""

ONE = Const(1)


@dataclass(frozen=True, slots=True)
class Partial:
    """The derivative with respect to one read: *factor* if all *conditions* are met, else 0."""

    access: Access
    factor: Scalar
    conditions: tuple[Condition, ...] = ()


def partials(body: Scalar) -> tuple[Partial, ...]:
    """Return the derivatives of *body* with respect to its reads; reads of one element are combined.

    Raises ValueError for an operator without a derivative.
    """
    total: dict[tuple[Access, tuple[Condition, ...]], list[Scalar]] = {}
    for part in _chain_rule(body, ONE, ()):
        total.setdefault((part.access, part.conditions), []).append(part.factor)
    return tuple(Partial(access, sum_terms(factors), where) for (access, where), factors in total.items())


def sum_terms(parts: Iterable[Scalar]) -> Scalar:
    """Add *parts*; equal ones are counted."""
    counted = Counter(term for part in parts for term in terms(part))
    return add(*(mul(Const(n), part) for part, n in counted.items()))


def _chain_rule(body: Scalar, above: Scalar, where: tuple[Condition, ...]) -> Iterable[Partial]:
    """Yield the derivative with respect to every read of *body*, given the derivative *above* of *body*."""
    match body:
        case Access():
            yield Partial(body, above, where)
        case Const() | Compare():
            pass
        case Apply("+", args):
            for arg in args:
                yield from _chain_rule(arg, above, where)
        case Apply("*", args):
            for n, arg in enumerate(args):
                yield from _chain_rule(arg, mul(above, *args[:n], *args[n + 1 :]), where)
        case Apply("where", (Compare() as condition, yes, no)):
            yield from _chain_rule(yes, above, (*where, (condition, True)))
            yield from _chain_rule(no, above, (*where, (condition, False)))
        case Apply(op, args):
            for arg, factor in zip(args, _derivatives(op, args), strict=True):
                if factor != Const(0):
                    yield from _chain_rule(arg, mul(above, factor), where)


def _derivatives(op: str, args: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Return the derivative of ``op(args)`` with respect to each argument."""
    function = SCALAR_FUNCTIONS.get(op)
    if function is None or function.derivative is None or len(args) != function.arity:
        known = ", ".join(
            ("+ - * / neg", *(name for name in FUNCTIONS if name == "where" or SCALAR_FUNCTIONS[name].derivative))
        )
        raise ValueError(f"operator {op} of {len(args)} arguments has no derivative here, expected one of {known}")
    return function.derivative(Apply(op, args), *args)
