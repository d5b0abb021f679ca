"""The meaning of expressions, point by point in plain Python: slow, obvious, and independent of the evaluator."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import isfinite, prod
from typing import Any

import numpy as np

from einnet_explore.ir import Access, Apply, Compare, Const, Index, Iterator, Quotient, Remainder, Scalar, Scope, Tensor

Point = Mapping[Iterator, int]

COMPARE = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
APPLY = {
    "+": lambda *v: sum(v),
    "*": lambda *v: prod(v),
    "-": lambda a, b: a - b,
    "neg": lambda a: -a,
    "relu": lambda a: max(a, 0),
    "abs": abs,
    "maximum": max,
    "minimum": min,
}
REDUCE = {
    "sum": sum,
    "prod": prod,
    "max": lambda v: max(v, default=float("-inf")),
    "min": lambda v: min(v, default=float("inf")),
}


class Beyond(Exception):
    """A read outside a source's reach."""


def index_at(index: Index, point: Point) -> int:
    total = index.const
    for atom, k in index.terms:
        match atom:
            case Iterator():
                total += k * point[atom]
            case Quotient(numerator, d):
                total += k * (index_at(numerator, point) // d)
            case Remainder(numerator, d):
                total += k * (index_at(numerator, point) % d)
    return total


def points(iterators: tuple[Iterator, ...]) -> Any:
    for values in itertools.product(*(range(x.lo, x.hi) for x in iterators)):
        yield dict(zip(iterators, values, strict=True))


def body_at(body: Scalar, point: Point, inputs: Mapping[str, Any], known: dict[Scope, Any]) -> Any:
    match body:
        case Const(value):
            return int(value) if isfinite(value) and value == int(value) else value
        case Access(source, index):
            where = [index_at(i, point) for i in index]
            if any(not lo <= i < hi for i, (lo, hi) in zip(where, source.reach, strict=True)):
                raise Beyond(where)
            if any(not lo <= i < hi for i, (lo, hi) in zip(where, source.box, strict=True)):
                return source.value
            if isinstance(source, Tensor):
                held = np.asarray(inputs[source.name])
            else:
                held = known[source] = known[source] if source in known else pointwise(source, inputs, known)
            value = held[tuple(i - lo for i, (lo, _) in zip(where, source.box, strict=True))]
            return value.item() if isinstance(value, np.generic) else value
        case Apply("where", (Compare(op, left, right), yes, no)):
            taken = COMPARE[op](index_at(left, point), index_at(right, point))
            return body_at(yes if taken else no, point, inputs, known)
        case Apply(op, args):
            return APPLY[op](*(body_at(a, point, inputs, known) for a in args))
    raise AssertionError(body)


def pointwise(scope: Scope, inputs: Mapping[str, Any], known: dict[Scope, Any] | None = None) -> Any:
    """The scope's value as an array of Python numbers."""
    known = {} if known is None else known
    out = np.empty(scope.shape, object)
    for point in points(scope.traversals):
        at = tuple(point[x] - x.lo for x in scope.traversals)
        if all(b.lo <= index_at(b.index, point) < b.hi for b in scope.domain):
            each = [body_at(scope.body, {**point, **rest}, inputs, known) for rest in points(scope.summations)]
            out[at] = REDUCE[scope.reduce](each)
        else:
            out[at] = scope.value
    return out
