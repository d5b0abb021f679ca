r"""Layout of a tile's inputs in shared memory, and of a group's threads over the tile.

Two iterators of one tensor merge if the larger step is a multiple of the smaller one and lands inside the range of the
smaller one, or right after it:

.. math::  c_2 = q\, c_1,\ q \le t_1 \;\Rightarrow\; \text{one of range } t_1 + q\,(t_2 - 1) \text{ and step } c_1

Merged iterators get strides of their own, odd ranges first, then large before small; an even running stride is rounded
up to an odd one, against bank conflicts.  Threads are spread in powers of two, along neighbours in memory first.
Source: PlaidML's automatic kernel generation (memory layout).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from einnet_explore.analysis.flattening import AddressColumn, FlattenedScope


@dataclass(frozen=True, slots=True)
class GroupedIterator:
    """The iterator of table row *row* in a group: one step of it is *step* positions, backwards if negative."""

    row: int
    step: int


@dataclass(frozen=True, slots=True)
class IteratorGroup:
    """Iterators that move together: *extent* positions, *stride* elements apart in memory and *local* in the tile."""

    name: str
    extent: int
    stride: int
    local: int
    members: tuple[GroupedIterator, ...]


@dataclass(frozen=True, slots=True)
class LocalLayout:
    """The groups of a tensor's tile, merged ones first; *size* elements of shared memory, padding included."""

    groups: tuple[IteratorGroup, ...]
    size: int

    @property
    def elements(self) -> int:
        """The number of elements that are loaded."""
        return prod(g.extent for g in self.groups)

    def __repr__(self) -> str:
        rows = [("", "range", "global", "local")]
        rows += [(g.name, str(g.extent), str(g.stride), str(g.local)) for g in self.groups]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in rows)


def merge_iterators(table: FlattenedScope, column: AddressColumn, tile: Sequence[int]) -> tuple[IteratorGroup, ...]:
    """Return the groups of *column* in a tile, by step; their local strides are still 0."""
    steps = sorted((abs(c), n) for n, c in enumerate(column.coefficients) if c and tile[n] > 1)
    out: list[IteratorGroup] = []
    for step, n in steps:
        name, sign = table.rows[n].name, 1 if column.coefficients[n] > 0 else -1
        last = out[-1] if out else None
        if last is not None and step % last.stride == 0 and step // last.stride <= last.extent:
            ratio = step // last.stride
            out[-1] = replace(
                last,
                name=f"{last.name}_{name}",
                extent=last.extent + ratio * (tile[n] - 1),
                members=(*last.members, GroupedIterator(n, sign * ratio)),
            )
        else:
            out.append(IteratorGroup(name, tile[n], step, 0, (GroupedIterator(n, sign),)))
    return tuple(out)


def local_layout(table: FlattenedScope, column: AddressColumn, tile: Sequence[int]) -> LocalLayout:
    """Return the layout in shared memory of the elements that a tile reads of *column*."""
    size, placed = 1, list[IteratorGroup]()
    for group in sorted(merge_iterators(table, column, tile), key=lambda g: (g.extent % 2 == 0, -g.extent)):
        stride = size | 1
        placed.append(replace(group, local=stride))
        size = stride * group.extent
    return LocalLayout(tuple(sorted(placed, key=lambda g: (len(g.members) == 1, g.members[0].row))), size)


def transaction_count(groups: Sequence[IteratorGroup], width: int, element: int) -> int:
    """Return the transactions of *width* bytes to read or write *groups*: neighbours share one."""
    if not groups:
        return 1
    first, *rest = sorted(groups, key=lambda g: g.stride)
    span = ((first.extent - 1) * first.stride + 1) * element
    return min(first.extent, -(-span // width)) * prod(g.extent for g in rest)


@dataclass(frozen=True, slots=True)
class ThreadLayout:
    """Threads along every row of the table; a thread's number is a mixed-radix number of *order*, fastest first.

    Threads along summations hold partial sums of the same results, which are rolled up at the end.
    """

    counts: tuple[int, ...]
    order: tuple[int, ...]
    outputs: int
    """Threads along the result."""

    @property
    def threads(self) -> int:
        """All active threads."""
        return prod(self.counts)

    @property
    def lanes(self) -> int:
        """Threads that share one result."""
        return self.threads // self.outputs

    def steps(self, tile: Sequence[int]) -> tuple[int, ...]:
        """Return the values of each row for one thread."""
        return tuple(-(-t // n) for t, n in zip(tile, self.counts, strict=True))


COALESCED_THREADS = 16
"""Neighbouring threads along the result's smallest step, at least: they write whole transactions."""


def thread_layout(table: FlattenedScope, tile: Sequence[int], threads: int, square: bool = False) -> ThreadLayout:
    """Spread *threads* over *tile*: over the result by step, then over the summations.

    *square*: over the largest remaining extents of the result, after ``COALESCED_THREADS`` along the smallest step.
    """
    counts = [1] * len(tile)
    order = sorted(range(len(tile)), key=lambda n: (not table.rows[n].output, abs(table.output.coefficients[n]), n))
    left = threads
    results = [n for n in order if table.rows[n].output]
    if square and results:
        left = _spread_square(counts, results, tile, left)
    for n in results:
        left = _spread_along(counts, n, tile[n], left)
    outputs = prod(counts)
    left = min(threads, prod(tile)) // outputs  # no more than there are products
    for n in (n for n in order if not table.rows[n].output):
        left = _spread_along(counts, n, tile[n], left)
    return ThreadLayout(tuple(counts), tuple(order), outputs)


def _spread_square(counts: list[int], results: Sequence[int], tile: Sequence[int], left: int) -> int:
    """Spread threads along *results*: a row first, then always the row with the most values a thread."""
    first = results[0]
    while counts[first] < min(COALESCED_THREADS, tile[first]) and left > 1:
        counts[first] *= 2
        left //= 2
    while left > 1:
        most = max(results, key=lambda n: -(-tile[n] // counts[n]))
        if counts[most] >= tile[most]:
            break
        counts[most] *= 2
        left //= 2
    return left


def _spread_along(counts: list[int], n: int, enough: int, left: int) -> int:
    while counts[n] < enough and left > 1:
        counts[n] *= 2
        left //= 2
    return left
