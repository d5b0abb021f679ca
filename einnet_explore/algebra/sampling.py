r"""Exact evaluation of two scopes on random integers, whole or in slices: evidence where no proof is in reach.

Functions over the reals become fixed integer polynomials first (``exp`` → x² + 3x + 5 and so on): scopes that are equal
whatever a function means stay equal, no value saturates, and arithmetic stays exact.  A slice restricts the
traversals of the root to a window, and those of nested scopes to what the window reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from einnet_explore.algebra.evaluate import IllegalRead, evaluate
from einnet_explore.algebra.substitute import with_iterators
from einnet_explore.ir import (
    Access,
    Apply,
    Box,
    Compare,
    Const,
    Iterator,
    Scalar,
    Scope,
    Tensor,
    add,
    map_accesses,
    mul,
    scopes,
    tensors,
)

_REAL = ("tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "erf", "pow", "/")


@dataclass(frozen=True, slots=True)
class Sample:
    """How many output elements were compared, and the first that differs: where, expected, found."""

    elements: int
    differs: tuple[tuple[int, ...], float, float] | None
    whole: bool
    error: str | None = None


def cost(scope: Scope) -> int:
    """The points of all grids of *scope* and the scopes below it, each distinct scope once."""
    distinct = dict.fromkeys(s for _, s in scopes(scope))
    return sum(prod(x.extent for x in (*s.traversals, *s.summations)) for s in distinct)


def compare(before: Scope, after: Scope, budget: int, seed: int) -> Sample:
    """Evaluate both scopes (of one box) on the same random integers; in three slices where they cost over *budget*."""
    whole = cost(before) + cost(after) <= budget
    windows = (
        [before.box]
        if whole
        else [_window(before, after, budget, np.random.default_rng((seed, n)), n) for n in range(3)]
    )
    elements, real = 0, False
    for n, window in enumerate(windows):
        pair = [s if whole else sliced(s, window) for s in (before, after)]
        given = inputs(pair[0], pair[1], np.random.default_rng((seed, n)))
        try:
            left, right = (evaluate(interpreted(s), given) for s in pair)
            if not np.array_equal(left, right) and any(map(_is_real, pair)):
                # An identity of a real function may hold where its stand-in differs.
                scaled = {name: a / (1 + np.abs(a).max(initial=0)) + 1 for name, a in given.items()}
                left, right = (evaluate(s, scaled, np.float64) for s in pair)
                real = True
        except (IllegalRead, ValueError) as error:
            return Sample(elements, None, whole, str(error))
        agree = np.isclose(left, right, rtol=1e-9, atol=1e-9, equal_nan=True) if real else left == right
        elements += left.size
        if not np.all(agree):
            at = np.unravel_index(int(np.argmin(agree)), left.shape)
            element = tuple(int(i) + lo for i, (lo, _) in zip(at, window, strict=True))
            return Sample(elements, (element, _plain(left[at]), _plain(right[at])), whole)
    return Sample(elements, None, whole)


def inputs(before: Scope, after: Scope, random: np.random.Generator) -> dict[str, Any]:
    """Small random integers for every tensor that either scope reads."""
    read = dict.fromkeys((*tensors(before), *tensors(after)))
    return {t.name: random.integers(-4, 5, t.shape) for t in read}


def sliced(scope: Scope, window: Box) -> Scope:
    """*scope* computed in *window* only; it may be read as far as before, and is meant to be read only there."""
    to = {x: Iterator(x.name, lo, hi) for x, (lo, hi) in zip(scope.traversals, window, strict=True)}
    small = with_iterators(scope, to)
    reach = tuple((lo - a, b - hi) for (lo, hi), (a, b) in zip(window, scope.reach, strict=True))

    def narrow(access: Access) -> Scalar:
        match access.source:
            case Tensor():
                return access
            case Scope(box=box) as inner:
                read = (i.bounds for i in access.index)
                spans = [(max(lo, a), min(hi, b + 1)) for (lo, hi), (a, b) in zip(box, read, strict=True)]
                used = tuple(
                    s if s[0] < s[1] else (lo, min(lo + 1, hi)) for s, (lo, hi) in zip(spans, box, strict=True)
                )
                return Access(sliced(inner, used), access.index)

    return replace(small, body=map_accesses(small.body, narrow), padding=reach)


def interpreted(scope: Scope) -> Scope:
    """*scope* with every function over the reals replaced by a fixed integer polynomial."""
    return replace(scope, body=_interpreted(scope.body))


def _interpreted(body: Scalar) -> Scalar:
    match body:
        case Access(Scope() as source, index):
            return Access(interpreted(source), index)
        case Apply("pow", (a, Const(value))) if value >= 0 and value == int(value):
            return Apply("pow", (_interpreted(a), Const(value)))
        case Apply(op, args) if op in _REAL:
            k = 3 + 2 * _REAL.index(op)
            first, *rest = map(_interpreted, args)
            return add(
                mul(first, *(add(b, Const(k)) for b in rest), *(() if rest else (first,))),
                mul(Const(k), first),
                Const(k + 2),
            )
        case Apply(op, args):
            return Apply(op, tuple(map(_interpreted, args)))
        case Access() | Const() | Compare():
            return body


def _is_real(scope: Scope) -> bool:
    return any(_has_real(s.body) for _, s in scopes(scope))


def _has_real(body: Scalar) -> bool:
    match body:
        case Apply(op, args):
            return op in _REAL or any(map(_has_real, args))
        case Access() | Const() | Compare():
            return False


def _window(before: Scope, after: Scope, budget: int, random: np.random.Generator, number: int) -> Box:
    """A window that both scopes fill within *budget*: the first at the low corner, the second at the high one."""
    box = list(before.box)
    while any(hi - lo > 1 for lo, hi in box):
        if cost(sliced(before, tuple(box))) + cost(sliced(after, tuple(box))) <= budget:
            break
        d = max(range(len(box)), key=lambda d: box[d][1] - box[d][0])
        lo, hi = box[d]
        size = (hi - lo + 1) // 2
        start = (lo, hi - size, int(random.integers(lo, hi - size + 1)))[number]
        box[d] = (start, start + size)
    return tuple(box)


def _plain(value: Any) -> float:
    return value.item() if hasattr(value, "item") else value  # type: ignore[no-any-return]
