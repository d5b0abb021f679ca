"""Slices of a scope: the windows of its elements in which it is evaluated, and several samples as one scope."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from einnet_explore.analysis.indices import with_iterators
from einnet_explore.ir import Access, Box, Iterator, Scalar, Scope, Table, Tensor, as_index, map_accesses, scopes


def grid_points(scope: Scope) -> int:
    """Count the grid points of *scope* and its nested scopes, each distinct scope once."""
    distinct = dict.fromkeys(s for _, s in scopes(scope))
    return sum(prod(x.extent for x in (*s.traversals, *s.summations)) for s in distinct)


def covered_elements(windows: set[Box]) -> int:
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


def choose_window(
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


_SAMPLE = "sample "
"""The name of the iterator over samples, which no parsed program has."""


def with_samples(scope: Scope, count: int) -> Scope:
    """Return *count* samples of *scope* as one scope: a leading dimension of all tensors, scopes and results."""
    sample = Iterator(_SAMPLE, 0, count)

    def add_dimension(access: Access) -> Scalar:
        match access.source:
            case Table():
                return access
            case Tensor() as source:
                origin = (0, *source.origin) if source.origin else ()
                wider: Tensor | Scope = replace(
                    source, shape=(count, *source.shape), padding=_pad(source.padding), origin=origin
                )
            case Scope() as source:
                wider = with_samples(source, count)
        return Access(wider, (as_index(sample), *access.index))

    return replace(
        scope,
        traversals=(sample, *scope.traversals),
        body=map_accesses(scope.body, add_dimension),
        padding=_pad(scope.padding),
    )


def _pad(padding: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return ((0, 0), *padding) if padding else ()
