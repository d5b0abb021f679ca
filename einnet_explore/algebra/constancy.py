r"""Constant propagation through padding (EinNet §4.1, boundary tightening).

A body is *constant outside* some bounds: wherever one of them is violated, its value is one known number.

.. math::  \neg(lo \le i < hi) \;\Rightarrow\; f = c

A read outside a source's box is its padding's constant; a product is 0 where one factor is; a sum is constant where
every term is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from einnet_explore.algebra.regions import never
from einnet_explore.algebra.substitute import holds, substitute_domain
from einnet_explore.ir import Access, Apply, Bound, Const, Iterator, Quotient, Scalar, Scope, Tensor, accesses, as_index


@dataclass(frozen=True, slots=True)
class Constancy:
    """The value is *value* wherever one of *bounds* is violated; everywhere if *bounds* is None."""

    bounds: tuple[Bound, ...] | None
    value: float


_UNARY: dict[str, Callable[[float], float]] = {
    "neg": lambda v: -v,
    "relu": lambda v: max(v, 0),
    "tanh": math.tanh,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "abs": abs,
    "erf": math.erf,
    "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
}
_BINARY: dict[str, Callable[[float, float], float]] = {"-": lambda a, b: a - b, "maximum": max, "minimum": min}


def constancy(body: Scalar) -> Constancy | None:
    """Where *body* is known to be constant; None if nothing is known."""
    match body:
        case Const(value):
            return Constancy(None, value)
        case Access(Tensor() as source, index):
            outside = tuple(Bound(i, lo, hi) for i, (lo, hi) in zip(index, source.box, strict=True))
            return Constancy(tuple(b for b in outside if not holds(b)), source.value)
        case Access(Scope() as source, index):
            outside = tuple(Bound(i, lo, hi) for i, (lo, hi) in zip(index, source.box, strict=True))
            inside = substitute_domain(source.domain, dict(zip(source.traversals, index, strict=True)))
            return Constancy(tuple(b for b in (*outside, *inside) if not holds(b)), source.value)
        case Apply("*", args):
            # 0 times a padding of -inf is no number: then nothing is known of the product.
            finite = all(math.isfinite(a.source.value) for a in accesses(body))
            return _product([constancy(a) for a in args]) if finite else None
        case Apply("+", args):
            return _together([constancy(a) for a in args], lambda *v: sum(v))
        case Apply("where", (_, a, b)):
            pair = [constancy(a), constancy(b)]
            return _together(pair, lambda v, w: v if v == w else math.nan)
        case Apply(op, args) if op in _UNARY:
            return _together([constancy(a) for a in args], _UNARY[op])
        case Apply(op, args) if op in _BINARY:
            return _together([constancy(a) for a in args], _BINARY[op])
        case _:
            return None


def reduced(scope: Scope, value: float) -> float:
    """What the reduction of *scope* yields where its body is *value* at every point."""
    count = math.prod(y.extent for y in scope.summations)
    match scope.reduce:
        case "sum":
            return value * count if value else 0
        case "prod":
            return value**count
        case _:
            return value


def narrowed(bound: Bound, x: Iterator) -> tuple[int, int] | None:
    """The half-open range of *x* outside which *bound* is violated whatever other iterators do; None if unknown."""
    while (inner := _opened(bound)) is not None:
        bound = inner
    k = bound.index.coefficient(x)
    rest = bound.index - as_index(x) * k
    if not k or x in rest.iterators:
        return None
    lo, hi = rest.bounds
    if k > 0:
        return -((hi - bound.lo) // k), (bound.hi - 1 - lo) // k + 1
    return -((bound.hi - 1 - lo) // -k), (hi - bound.lo) // -k + 1


def constant_region(scope: Scope, value: float) -> bool:
    """Whether the body of *scope* is *value* over the whole of its iterators' ranges."""
    known = constancy(scope.body)
    if known is None or known.value != value:
        return False
    return known.bounds is None or any(map(never, known.bounds))


def _opened(bound: Bound) -> Bound | None:
    """``lo <= e // d + c < hi`` as a bound of e."""
    match bound.index.terms:
        case ((Quotient(numerator, d), 1),):
            c = bound.index.const
            return Bound(numerator, (bound.lo - c) * d, (bound.hi - c) * d)
    return None


def _product(parts: list[Constancy | None]) -> Constancy | None:
    zeros = [p for p in parts if p is not None and p.value == 0]
    if not zeros:
        return _together(parts, lambda *v: math.prod(v))
    if any(p.bounds is None for p in zeros):
        return Constancy(None, 0)
    return Constancy(tuple(dict.fromkeys(b for p in zeros for b in p.bounds or ())), 0)


def _together(parts: list[Constancy | None], combine: Callable[..., float]) -> Constancy | None:
    """Constant where every part is: the bounds that all parts share."""
    if any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    value = combine(*(p.value for p in known))
    if math.isnan(value):
        return None
    bounded = [p.bounds for p in known if p.bounds is not None]
    if not bounded:
        return Constancy(None, value)
    return Constancy(tuple(b for b in bounded[0] if all(b in other for other in bounded)), value)
