r"""Supports: for one iterator, the interval outside which an expression is certainly one known constant.

.. math::  x \notin [lo, hi) \;\Rightarrow\; f(\dots, x, \dots) = c \quad\text{whatever the other iterators are}

Padding is where constants come from: a read outside a box, or outside a nested scope's domain, is that source's value.
A product is 0 outside the intersection of its factors' supports, a sum is constant outside their hull, functions map
the constant.  Source: EinNet §4.1 (boundary relaxing and tightening by constant propagation).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, isnan, prod

import numpy as np

from einnet_explore.algebra import parts
from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Index,
    Iterator,
    Quotient,
    Scalar,
    Scope,
    Tensor,
)

PARTIAL = frozenset(("/", "log", "pow", "rsqrt", "sqrt"))
"""Operators that may leave the finite numbers, where 0 times their result need not be 0."""


@dataclass(frozen=True, slots=True)
class Support:
    """Outside ``[lo, hi)`` the expression is *constant*; an empty interval (hi <= lo): it is constant everywhere."""

    lo: int
    hi: int
    constant: float

    @property
    def empty(self) -> bool:
        """Whether the expression is constant everywhere."""
        return self.hi <= self.lo


def support(scope: Scope, x: Iterator) -> Support:
    """The smallest interval found within *x*'s range outside which *scope* is one constant.

    For a traversal the constant is that of the reduced value; for a summation that of the body, which may be left
    out of the reduction where it is the monoid's neutral element (``neutral_outside``).

    Raises ValueError if *x* is not an iterator of *scope*.
    """
    found = within(scope.body, x)
    if x in scope.summations:
        return found
    if x not in scope.traversals:
        raise ValueError(f"{x} is no iterator of the scope over {', '.join(t.name for t in scope.traversals)}")
    found = Support(found.lo, found.hi, reduced(scope, found.constant))
    if not scope.domain:
        return found
    lo, hi = _all((narrowed(b, x) for b in scope.domain), x)
    if found.constant == scope.value:
        return _clip(max(found.lo, lo), min(found.hi, hi), scope.value, x)
    # Outside the body's support the value is one constant inside the domain and another outside it.
    return _clip(lo, hi, scope.value, x)


def zero_outside(body: Scalar, x: Iterator, lo: int, hi: int) -> bool:
    """Whether *body* is certainly 0 at every x of its range outside ``[lo, hi)``."""
    found = within(body, x)
    return found.constant == 0 and (found.empty or (lo <= found.lo and found.hi <= hi))


def neutral_outside(scope: Scope, y: Iterator, lo: int, hi: int) -> bool:
    """Whether the summation *y* may be restricted to ``[lo, hi)`` without a change of the result."""
    found = within(scope.body, y)
    return found.constant == REDUCTIONS[scope.reduce] and (found.empty or (lo <= found.lo and found.hi <= hi))


def reduced(scope: Scope, constant: float) -> float:
    """What *scope* yields at a point where its body is *constant* for all summations."""
    count = prod(max(0, y.extent) for y in scope.summations)
    if not count:
        return REDUCTIONS[scope.reduce]
    match scope.reduce:
        case "sum":
            return constant * count if constant else 0
        case "prod":
            return _apply("pow", constant, count)
        case _:
            return constant


@lru_cache(1 << 14)
def within(body: Scalar, x: Iterator) -> Support:
    """The support of *body* in *x*; the whole range of *x* where nothing better is known."""
    match body:
        case Const(value):
            return Support(x.lo, x.lo, value)
        case Access():
            return _read(body, x)
        case Apply("*", args):
            return _product(args, x)
        case Apply("where", (Compare() as condition, yes, no)):
            return _where(condition, yes, no, x)
        case Apply(op, args):
            each = [within(a, x) for a in args]
            return _hull(each, _apply(op, *(s.constant for s in each)), x)
        case Compare():
            raise ValueError(f"comparison {body!r} outside the condition of where")


def narrowed(bound: Bound, x: Iterator) -> tuple[int, int]:
    """The interval of *x* outside which *bound* is violated whatever the other iterators are."""
    index, lo, hi = bound.index, bound.lo, bound.hi - 1
    least, most = index.bounds
    if hi < lo or most < lo or hi < least:
        return x.lo, x.lo
    first, last = x.lo, x.hi - 1
    for atom, k in index.terms:
        rest_lo, rest_hi = (index - atom * k).bounds
        low, high = (lo - rest_hi, hi - rest_lo) if k > 0 else (rest_lo - hi, rest_hi - lo)
        low, high = -(-low // abs(k)), high // abs(k)
        match atom:
            case Iterator() if atom == x:
                first, last = max(first, low), min(last, high)
            case Quotient(numerator, d) if x in numerator.iterators:
                a, b = narrowed(Bound(numerator, low * d, (high + 1) * d), x)
                first, last = max(first, a), min(last, b - 1)
    return first, last + 1


def _read(access: Access, x: Iterator) -> Support:
    source = access.source
    bounds = [Bound(i, lo, hi) for i, (lo, hi) in zip(access.index, source.box, strict=True)]
    match source:
        case Tensor():
            return _clip(*_all((narrowed(b, x) for b in bounds), x), source.value, x)
        case Scope():
            return _nested(source, access.index, bounds, x)


def _nested(source: Scope, index: tuple[Index, ...], bounds: list[Bound], x: Iterator) -> Support:
    inner = [support(source, t) for t in source.traversals]
    narrow = [s for s, t in zip(inner, source.traversals, strict=True) if (s.lo, s.hi) != (t.lo, t.hi)]
    constant = source.value
    if narrow and not source.domain and all(b.lo <= b.index.bounds[0] and b.index.bounds[1] < b.hi for b in bounds):
        constant = narrow[0].constant  # no read leaves the box: the source's own value does not matter
    to = dict(zip(source.traversals, index, strict=True))
    bounds = [
        *bounds,
        *(Bound(b.index.substitute(lambda t: to.get(t, t)), b.lo, b.hi) for b in source.domain),
        *(Bound(i, s.lo, s.hi) for i, s in zip(index, inner, strict=True) if s.constant == constant),
    ]
    return _clip(*_all((narrowed(b, x) for b in bounds), x), constant, x)


def _product(args: tuple[Scalar, ...], x: Iterator) -> Support:
    each = [within(a, x) for a in args]
    zeros = [s for s in each if s.constant == 0]
    if zeros and all(map(_finite, args)):
        return _clip(max(s.lo for s in zeros), min(s.hi for s in zeros), 0, x)
    return _hull(each, _apply("*", *(s.constant for s in each)), x)


def _where(condition: Compare, yes: Scalar, no: Scalar, x: Iterator) -> Support:
    then, other = within(yes, x), within(no, x)
    holds = _clip(*_where_holds(condition, x), 0, x)
    fails = _clip(*_where_holds(_negated(condition), x), 0, x)
    # Where the condition cannot hold the value is the other branch's, and the other way round.
    found = [_hull([holds, other], other.constant, x), _hull([fails, then], then.constant, x)]
    if then.constant == other.constant:
        both = [_both(then, holds, x), _both(other, fails, x)]
        found.append(_hull(both, then.constant, x))
    return min(found, key=lambda s: s.hi - s.lo)


def _where_holds(condition: Compare, x: Iterator) -> tuple[int, int]:
    difference = condition.left - condition.right
    lo, hi = difference.bounds
    match condition.op:
        case "<":
            hi = min(hi, -1)
        case "<=":
            hi = min(hi, 0)
        case ">":
            lo = max(lo, 1)
        case ">=":
            lo = max(lo, 0)
        case "==":
            lo, hi = max(lo, 0), min(hi, 0)
    return narrowed(Bound(difference, lo, hi + 1), x)


_OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


def _negated(condition: Compare) -> Compare:
    return Compare(_OPPOSITE[condition.op], condition.left, condition.right)


def _all(intervals: Iterable[tuple[int, int]], x: Iterator) -> tuple[int, int]:
    lo, hi = x.lo, x.hi
    for a, b in intervals:
        lo, hi = max(lo, a), min(hi, b)
    return lo, hi


def _clip(lo: int, hi: int, constant: float, x: Iterator) -> Support:
    lo, hi = max(lo, x.lo), min(hi, x.hi)
    return Support(lo, hi, constant) if lo < hi else Support(x.lo, x.lo, constant)


def _both(a: Support, b: Support, x: Iterator) -> Support:
    return _clip(max(a.lo, b.lo), min(a.hi, b.hi), a.constant, x)


def _hull(each: list[Support], constant: float, x: Iterator) -> Support:
    if isnan(constant):
        return Support(x.lo, x.hi, 0)
    some = [s for s in each if not s.empty]
    if not some:
        return Support(x.lo, x.lo, constant)
    return Support(min(s.lo for s in some), max(s.hi for s in some), constant)


def _apply(op: str, *constants: float) -> float:
    with np.errstate(all="ignore"):
        value = parts.apply(op, [parts.number(c, None) for c in constants]).array.item()
    return value if isinstance(value, int) else float(value)


def _finite(body: Scalar) -> bool:
    """Whether *body* is finite at finite inputs, so that 0 times it is 0."""
    match body:
        case Const(value):
            return isfinite(value)
        case Access():
            return _finite_source(body.source)
        case Apply(op, args):
            return op not in PARTIAL and all(map(_finite, args))
        case Compare():
            return True


def _finite_source(source: Tensor | Scope) -> bool:
    match source:
        case Tensor(value=value):
            return isfinite(value)
        case Scope():
            empty = any(y.extent <= 0 for y in source.summations) and not isfinite(REDUCTIONS[source.reduce])
            return isfinite(source.value) and not empty and _finite(source.body)
