"""Grid of iterator values over which an expression is evaluated, and the reads at its points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from einnet_explore.interpreter import exact_arrays
from einnet_explore.interpreter.exact_arrays import Array, Part
from einnet_explore.ir import (
    Access,
    Bound,
    Compare,
    Index,
    Iterator,
    Quotient,
    Remainder,
    Scope,
    Table,
    Tensor,
)


class IllegalRead(IndexError):
    """A read beyond the padding; the message names the read, its point and the source's reach."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Iterators, one axis each in this order, with the part of each range that is evaluated."""

    ranges: dict[Iterator, tuple[int, int]]

    def extent(self, x: Iterator) -> int:
        lo, hi = self.ranges[x]
        return max(0, hi - lo)

    def volume(self, over: Iterable[Iterator]) -> int:
        return prod(map(self.extent, over))

    def at(self, x: Iterator) -> Any:
        lo, hi = self.ranges[x]
        shape = [1] * len(self.ranges)
        shape[tuple(self.ranges).index(x)] = -1
        return np.arange(lo, max(lo, hi)).reshape(shape)

    def values(self, index: Index) -> Array:
        if _magnitude(index) >= 1 << 63:
            raise ValueError(f"index {index!r} is beyond 64 bits")
        out = np.asarray(index.evaluate(self.at), np.int64)
        return out if out.ndim else out.reshape((1,) * len(self.ranges))

    def span(self, index: Index) -> tuple[int, int]:
        """Return a closed interval around the index's values; exact for an affine index."""
        if not index.affine:
            return index.bounds
        lo = hi = index.const
        for x, k in index.terms:
            first, last = self.ranges[x][0], self.ranges[x][1] - 1  # type: ignore[index]
            lo, hi = lo + min(k * first, k * last), hi + max(k * first, k * last)
        return lo, hi

    def halves(self, x: Iterator) -> tuple[Grid, Grid]:
        lo, hi = self.ranges[x]
        middle = (lo + hi) // 2
        return Grid({**self.ranges, x: (lo, middle)}), Grid({**self.ranges, x: (middle, hi)})


@lru_cache(1 << 12)
def _magnitude(index: Index) -> int:
    """Return a bound on the magnitude of every intermediate result of *index*."""
    total = abs(index.const)
    for atom, k in index.terms:
        match atom:
            case Iterator(_, lo, hi):
                most = max(abs(lo), abs(hi))
            case Quotient(numerator, d) | Remainder(numerator, d):
                most = max(_magnitude(numerator), d)
        total += max(abs(k), abs(k) * most)
    return total


def gather_reads(access: Access, sources: Sequence[tuple[Part, Part]], grid: Grid, active: Array | None) -> list[Part]:
    """Read *access* from each pair of *sources*: the first array inside the source's box, the second outside.

    The results are broadcastable to the grid; *active* marks the points at which the read is made.  Raises
    IllegalRead beyond the padding.
    """
    source, index = access.source, access.index
    if len(index) != len(source.shape):
        raise ValueError(
            f"{_source_name(source)} has {len(source.shape)} dimensions and is read with {len(index)} indices"
        )
    own = {x for i in index for x in i.iterators}
    if not all(map(grid.extent, own)):
        ones = (1,) * len(grid.ranges)
        return [Part(here.array[:0].sum(keepdims=True).reshape(ones), here.size) for here, _ in sources]
    spans = [grid.span(i) for i in index]
    legal = all(a <= lo and hi < b for (lo, hi), (a, b) in zip(spans, source.reach, strict=True))
    if legal and all(i.affine for i in index):
        return [_strided_view(access, here, outside, spans, grid) for here, outside in sources]
    at = [grid.values(i) for i in index]
    if not legal:
        check_reads(access, at, grid, active)
    inside = np.ones((1,) * len(grid.ranges), bool)
    for values, (lo, hi), (first, last) in zip(at, source.box, spans, strict=True):
        if not (lo <= first and last < hi):
            inside = inside & (values >= lo) & (values < hi)
    local = tuple(np.clip(v - lo, 0, hi - lo - 1) for v, (lo, hi) in zip(at, source.box, strict=True))
    return [_inside(here, outside, local, inside) for here, outside in sources]


def _inside(here: Part, outside: Part, local: tuple[Array, ...], inside: Array) -> Part:
    if not here.array.size:
        return outside
    found = Part(here.array[local] if local else here.array, here.size)
    return found if inside.all() else exact_arrays.select_entries(inside, found, outside)


def _strided_view(access: Access, source_part: Part, value: Part, spans: list[tuple[int, int]], grid: Grid) -> Part:
    """Return an affine read as a strided view of the source, extended by the padding that is read."""
    source, array, size = access.source, source_part.array, source_part.size
    pads = [
        (max(0, lo - first), max(0, last - hi + 1)) for (lo, hi), (first, last) in zip(source.box, spans, strict=True)
    ]
    if any(map(any, pads)):
        (array, outside), size = exact_arrays.common_dtype((source_part, value))
        array = _extended(array, pads, outside.item())
    start = [0] * len(pads)
    strides = dict.fromkeys(grid.ranges, 0)
    for d, (index, (lo, _), (before, _)) in enumerate(zip(access.index, source.box, pads, strict=True)):
        start[d] = index.const - lo + before
        for x, k in index.terms:
            start[d] += k * grid.ranges[x][0]  # type: ignore[index]
            strides[x] += k * array.strides[d]  # type: ignore[index]
    own = {x for i in access.index for x in i.iterators}
    shape = tuple(grid.extent(x) if x in own else 1 for x in grid.ranges)
    first = array[tuple(slice(n, None) for n in start)]
    return Part(as_strided(first, shape, tuple(strides.values()), writeable=False), size)


def _extended(array: Array, pads: list[tuple[int, int]], value: float) -> Array:
    # np.pad would put NumPy integers, which overflow, among Python ones
    out = np.full([n + a + b for n, (a, b) in zip(array.shape, pads, strict=True)], value, array.dtype)
    out[tuple(slice(a, a + n) for n, (a, _) in zip(array.shape, pads, strict=True))] = array
    return out


def check_reads(access: Access, at: list[Array], grid: Grid, active: Array | None) -> None:
    """Raise IllegalRead if a read at an active point leaves the source's reach."""
    beyond: Any = False
    for values, (lo, hi) in zip(at, access.source.reach, strict=True):
        beyond = beyond | (values < lo) | (values >= hi)
    if active is not None:
        beyond = beyond & active
    if not np.any(beyond):
        return
    where = np.unravel_index(int(np.argmax(beyond)), np.shape(beyond))
    point = {x: grid.ranges[x][0] + int(n) for x, n in zip(grid.ranges, where, strict=True)}
    reads = [i.evaluate(lambda x: point[x]) for i in access.index]
    point_text = ", ".join(f"{x.name}={point[x]}" for x in dict.fromkeys(x for i in access.index for x in i.iterators))
    reach = " × ".join(f"[{lo}, {hi})" for lo, hi in access.source.reach)
    indices = ", ".join(map(repr, access.index))
    raise IllegalRead(
        f"{_source_name(access.source)}[{indices}] at {point_text} reads {reads}, outside its reach {reach}"
    )


def inside_domain(domain: tuple[Bound, ...], grid: Grid) -> Array:
    """Mark the points of the grid inside *domain*."""
    inside = np.ones((1,) * len(grid.ranges), bool)
    for bound in domain:
        values = grid.values(bound.index)
        inside = inside & (values >= bound.lo) & (values < bound.hi)
    return inside


def condition_mask(condition: Compare, grid: Grid) -> Array:
    left, right = grid.values(condition.left), grid.values(condition.right)
    match condition.op:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case "==":
            return np.equal(left, right)
        case "!=":
            return np.not_equal(left, right)
    raise ValueError(f"comparison {condition.op!r}: expected one of < <= > >= == !=")


def branch_masks(condition: Compare, grid: Grid, active: Array | None) -> tuple[Array, Array, Array]:
    """Return the masks of *condition* and of the points at which its two branches read."""
    taken = condition_mask(condition, grid)
    return (taken, taken, ~taken) if active is None else (taken, active & taken, active & ~taken)


def _source_name(source: Tensor | Table | Scope) -> str:
    match source:
        case Tensor(name=name):
            return name
        case Table():
            return "the table"
        case Scope(traversals=traversals):
            return "the scope over " + (", ".join(x.name for x in traversals) or "nothing")
