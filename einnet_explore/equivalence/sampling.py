r"""Exact evaluation of two scopes on random integers, as a whole or in slices: evidence without a proof.

Functions over the reals are replaced by fixed integer polynomials (``exp`` → x² + 3x + 5 and so on): scopes that are
equal for every interpretation of the functions stay equal, no value saturates, and arithmetic stays exact.  A slice
restricts the traversals of the root to a window, and those of nested scopes to the elements that the window reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from einnet_explore.analysis.substitution import with_iterators
from einnet_explore.interpreter.evaluation import IllegalRead, evaluate
from einnet_explore.ir import (
    REAL_FUNCTIONS,
    Access,
    Apply,
    Box,
    Compare,
    Const,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    add,
    map_accesses,
    mul,
    scopes,
    tensors,
)


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Number of compared output elements, the first difference (index, expected, found), or an error."""

    elements: int
    differs: tuple[tuple[int, ...], float, float] | None = None
    error: str | None = None


def grid_points(scope: Scope) -> int:
    """Count the grid points of *scope* and its nested scopes, each distinct scope once."""
    distinct = dict.fromkeys(s for _, s in scopes(scope))
    return sum(prod(x.extent for x in (*s.traversals, *s.summations)) for s in distinct)


def compare_on_samples(
    before: Scope,
    after: Scope,
    budget: int,
    seed: int,
    element: tuple[int, ...] | None = None,
    indices: tuple[tuple[int, ...], ...] = (),
) -> SampleResult:
    """Evaluate both scopes (of one box) on the same random integers, up to 16 times within *budget* grid points.

    If one evaluation exceeds the budget, slices are evaluated: at both corners, at random, and around *element*, an
    output element that the term comparison suspects.  *indices* are suspected coordinates in tensors: some inputs have
    a peak there, to expose a wrong maximum; some have one sign, to expose a maximum with a constant.
    """
    once = grid_points(before) + grid_points(after)
    rounds = range(max(4, min(16, budget // max(1, once))))
    seen: set[Box] = set()
    for n in rounds:
        random = np.random.default_rng((seed, n))
        window = before.box if once <= budget else _window(before, after, budget, random, n, element)
        pair = [s if window == before.box else slice_scope(s, window) for s in (before, after)]
        given = random_inputs(pair[0], pair[1], random, 1000 if n % 2 else 4)
        if sign := {3: -1, 6: 1, 7: -1}.get(n % 8):
            given = {name: np.asarray(sign * np.abs(array)) for name, array in given.items()}
        if n % 4 != 0:
            _put_peak(given, indices, 100_000 if n % 4 < 3 else -100_000)
        differs = _first_difference(pair[0], pair[1], window, given, n == 0)
        if differs is not None:
            return SampleResult(_covered_elements({*seen, window}), *differs)
        seen.add(window)
    return SampleResult(_covered_elements(seen))


def _first_difference(
    before: Scope, after: Scope, window: Box, given: dict[str, Any], first: bool
) -> tuple[tuple[tuple[int, ...], float, float] | None, str | None] | None:
    """Return the first difference, or the evaluation's error; None if all elements agree.

    Real functions are evaluated as they are in the *first* evaluation, and if their replacements differ.
    """
    pair = (before, after)
    real = any(map(_is_real, pair))
    try:
        left, right = (evaluate(interpret_reals(s), given) for s in pair)
        if real and (first or not np.array_equal(left, right)):
            # An identity of a real function may hold where its stand-in differs, and the other way round.
            scaled = {name: a / (1 + np.abs(a).max(initial=0)) + 1 for name, a in given.items()}
            left, right = (evaluate(s, scaled, np.float64) for s in pair)
        else:
            real = False
    except (IllegalRead, OverflowError, ValueError) as error:
        return None, str(error)
    agree = np.isclose(left, right, rtol=1e-9, atol=1e-9, equal_nan=True) if real else left == right
    if np.all(agree):
        return None
    at = np.unravel_index(int(np.argmin(agree)), left.shape)
    element = tuple(int(i) + lo for i, (lo, _) in zip(at, window, strict=True))
    return (element, _as_float(left[at]), _as_float(right[at])), None


def random_inputs(before: Scope, after: Scope, random: np.random.Generator, most: int) -> dict[str, Any]:
    """Draw random integers in [-most, most] for every tensor that either scope reads."""
    read = dict.fromkeys((*tensors(before), *tensors(after)))
    return {t.name: np.asarray(random.integers(-most, most + 1, t.shape)) for t in read}


def _put_peak(given: dict[str, Any], indices: tuple[tuple[int, ...], ...], value: int) -> None:
    """Write *value* at all coordinates of *indices*, or parts of them, that lie in a tensor."""
    for array in given.values():
        for index in indices:
            for n in range(len(index) - array.ndim + 1):
                part = index[n : n + array.ndim]
                if all(0 <= i < extent for i, extent in zip(part, array.shape, strict=True)):
                    array[part] = value


def _covered_elements(windows: set[Box]) -> int:
    """Count the elements of the distinct windows."""
    return sum(prod(hi - lo for lo, hi in window) for window in windows)


def slice_scope(scope: Scope, window: Box) -> Scope:
    """Restrict *scope* to *window*; its reach stays the same."""
    to = {x: Iterator(x.name, lo, hi) for x, (lo, hi) in zip(scope.traversals, window, strict=True)}
    small = with_iterators(scope, to)
    reach = tuple((lo - a, b - hi) for (lo, hi), (a, b) in zip(window, scope.reach, strict=True))

    def narrow(access: Access) -> Scalar:
        match access.source:
            case Tensor() | Table():
                return access
            case Scope(box=box) as inner:
                read = (i.bounds for i in access.index)
                spans = [(max(lo, a), min(hi, b + 1)) for (lo, hi), (a, b) in zip(box, read, strict=True)]
                used = tuple(
                    s if s[0] < s[1] else (lo, min(lo + 1, hi)) for s, (lo, hi) in zip(spans, box, strict=True)
                )
                return Access(slice_scope(inner, used), access.index)

    return replace(small, body=map_accesses(small.body, narrow), padding=reach)


def interpret_reals(scope: Scope) -> Scope:
    """Replace every function over the reals by a fixed integer polynomial."""
    return replace(scope, body=_interpret_scalar(scope.body))


def _interpret_scalar(body: Scalar) -> Scalar:
    match body:
        case Access(Scope() as source, index):
            return Access(interpret_reals(source), index)
        case Apply("pow", (a, Const(value))) if value >= 0 and value == int(value):
            return Apply("pow", (_interpret_scalar(a), Const(value)))
        case Apply("/", (a, Const(0))):
            return Apply("/", (_interpret_scalar(a), Const(0)))
        case Apply(op, args) if op in REAL_FUNCTIONS:
            k = 3 + 2 * REAL_FUNCTIONS.index(op)
            first, *rest = map(_interpret_scalar, args)
            return add(
                mul(first, *(add(b, Const(k)) for b in rest), *(() if rest else (first,))),
                mul(Const(k), first),
                Const(k + 2),
            )
        case Apply(op, args):
            return Apply(op, tuple(map(_interpret_scalar, args)))
        case Access() | Const() | Compare():
            return body


def _is_real(scope: Scope) -> bool:
    return any(_has_real(s.body) for _, s in scopes(scope))


def _has_real(body: Scalar) -> bool:
    match body:
        case Apply(op, args):
            return op in REAL_FUNCTIONS or any(map(_has_real, args))
        case Access() | Const() | Compare():
            return False


def _window(
    before: Scope, after: Scope, budget: int, random: np.random.Generator, n: int, element: tuple[int, ...] | None
) -> Box:
    """Choose the *n*-th window within *budget*: at the low corner, the high corner, around *element*, then at
    random."""
    box = list(before.box)
    while any(hi - lo > 1 for lo, hi in box):
        if grid_points(slice_scope(before, tuple(box))) + grid_points(slice_scope(after, tuple(box))) <= budget:
            break
        d = max(range(len(box)), key=lambda d: box[d][1] - box[d][0])
        lo, hi = box[d]
        size = (hi - lo + 1) // 2
        at = int(random.integers(lo, hi - size + 1))
        near = at if element is None else max(lo, min(hi - size, element[d] - size // 2))
        start = (lo, hi - size, near, at)[n % 4]
        box[d] = (start, start + size)
    return tuple(box)


def _as_float(value: Any) -> float:
    return value.item() if hasattr(value, "item") else value  # type: ignore[no-any-return]
