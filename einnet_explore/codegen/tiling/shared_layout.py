r"""Layout of a tile's inputs in shared memory, their loads, and the layout of a group's threads over the tile.

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
from functools import cached_property
from math import prod

from einnet_explore.analysis.flattening import AddressColumn, FlattenedScope
from einnet_explore.codegen.language.lowering import affine_expression
from einnet_explore.codegen.language.statements import integer_constant
from einnet_explore.codegen.language.values import (
    Array,
    Expr,
    Type,
    cast,
    conjunction,
    literal,
    select,
)
from einnet_explore.ir import Access, Index, Iterator
from einnet_explore.support.wording import align_right


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
        rows = [(g.name, str(g.extent), str(g.stride), str(g.local)) for g in self.groups]
        return align_right([("", "range", "global", "local"), *rows])


def merge_iterators(
    table: FlattenedScope, column: AddressColumn, tile: Sequence[int], apart: bool = False
) -> tuple[IteratorGroup, ...]:
    """Return the groups of *column* in a tile, by step; their local strides are still 0.

    *apart*: rows of different kinds are not merged, so that every element is inside its source or outside.
    """
    steps = sorted((abs(c), n) for n, c in enumerate(column.coefficients) if c and tile[n] > 1)
    out: list[IteratorGroup] = []
    for step, n in steps:
        name, sign = table.rows[n].name, 1 if column.coefficients[n] > 0 else -1
        last = out[-1] if out else None
        if last is not None and apart and column.kinds and column.kinds[n] != column.kinds[last.members[0].row]:
            last = None
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
    for group in sorted(merge_iterators(table, column, tile, apart=True), key=lambda g: (g.extent % 2 == 0, -g.extent)):
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


def thread_layout(table: FlattenedScope, tile: Sequence[int], threads: int) -> ThreadLayout:
    """Spread *threads* over *tile*: over the result by step, then over the summations."""
    return _complete_layout(table, tile, threads, [1] * len(tile))


def square_thread_layout(table: FlattenedScope, tile: Sequence[int], threads: int) -> ThreadLayout:
    """Spread *threads* over the largest extents of the result, after ``COALESCED_THREADS`` along the smallest step."""
    results = [n for n in _thread_order(table) if table.rows[n].output]
    return _complete_layout(table, tile, threads, _spread_square(results, tile, threads))


def _thread_order(table: FlattenedScope) -> list[int]:
    """Return the rows of the table, those of the result first, by step."""
    steps = table.output.coefficients
    return sorted(range(len(table.rows)), key=lambda n: (not table.rows[n].output, abs(steps[n]), n))


def _complete_layout(table: FlattenedScope, tile: Sequence[int], threads: int, counts: list[int]) -> ThreadLayout:
    """Spread the *threads* that *counts* leaves over the result by step, then over the summations."""
    order, left = _thread_order(table), threads // prod(counts)
    for n in (n for n in order if table.rows[n].output):
        left = _spread_along(counts, n, tile[n], left)
    outputs = prod(counts)
    left = min(threads, prod(tile)) // outputs  # no more than there are products
    for n in (n for n in order if not table.rows[n].output):
        left = _spread_along(counts, n, tile[n], left)
    return ThreadLayout(tuple(counts), tuple(order), outputs)


def _spread_square(results: Sequence[int], tile: Sequence[int], threads: int) -> list[int]:
    """Return threads along *results*: a row first, then always the row with the most values a thread."""
    counts = [1] * len(tile)
    left = _spread_along(counts, results[0], min(COALESCED_THREADS, tile[results[0]]), threads) if results else 1
    while left > 1:
        most = max(results, key=lambda n: -(-tile[n] // counts[n]))
        if counts[most] >= tile[most]:
            break
        counts[most] *= 2
        left //= 2
    return counts


def _spread_along(counts: list[int], n: int, enough: int, left: int) -> int:
    while counts[n] < enough and left > 1:
        counts[n] *= 2
        left //= 2
    return left


Exprs = Sequence[Expr]


@dataclass(frozen=True)
class TileInput:
    """The read *access*, its *column* of the table, and its tile; *rows* are the table's iterators.

    Bounds are tested at the loads where possible: the index of a dimension must move by whole groups of the layout,
    since otherwise elements at one address may be inside their source for one product and outside for another.
    """

    access: Access
    column: AddressColumn
    table: FlattenedScope
    tile: tuple[int, ...]
    rows: tuple[Iterator, ...]

    @cached_property
    def layout(self) -> LocalLayout:
        """The layout of the tile in shared memory."""
        return local_layout(self.table, self.column, self.tile)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The least and the largest index of each dimension, over whole tiles, even outside the result."""
        out = []
        for index in self.access.index:
            least = most = index.const
            for k, n, t in zip(self.along(index), self.table.ranges, self.tile, strict=True):
                last = -(-n // t) * t - 1
                least, most = least + min(0, k * last), most + max(0, k * last)
            out.append((least, most))
        return tuple(out)

    @cached_property
    def leaving(self) -> tuple[int, ...]:
        """The dimensions in which the tiles leave the source."""
        pairs = zip(self.spans, self.access.source.box, strict=True)
        return tuple(d for d, ((least, most), (lo, hi)) in enumerate(pairs) if least < lo or most >= hi)

    @cached_property
    def late(self) -> tuple[int, ...]:
        """The dimensions whose condition must be tested for every product."""
        return tuple(d for d in self.leaving if self._by_groups(self.access.index[d]) is None)

    def along(self, index: Index) -> tuple[int, ...]:
        """Return the coefficient of every row in *index*."""
        return tuple(index.coefficient(x) for x in self.rows)

    def _by_groups(self, index: Index) -> tuple[int, ...] | None:
        """Return the steps by which positions of the groups move *index*, or None if the members of a group disagree.

        Nor may it move with an iterator that does not move the address, like `h` in ``B[c+h, -h]`` of width 1.
        """
        along, out = self.along(index), list[int]()
        grouped = {m.row for group in self.layout.groups for m in group.members}
        if any(k and t > 1 and n not in grouped for n, (k, t) in enumerate(zip(along, self.tile, strict=True))):
            return None
        for group in self.layout.groups:
            found = {along[m.row] / m.step for m in group.members}
            if len(found) != 1 or not (q := found.pop()).is_integer():
                return None
            out.append(int(q))
        return tuple(out)

    def position(self, group: IteratorGroup, within: Exprs) -> Expr:
        """Return the position in *group* of the tile's point *within*."""
        steps = [m.step for m in group.members]
        return affine_expression(steps, [within[m.row] for m in group.members], self._shift(group), within[0].type)

    def _shift(self, group: IteratorGroup) -> int:
        return sum(-m.step * (self.tile[m.row] - 1) for m in group.members if m.step < 0)

    def local(self, within: Exprs) -> Expr:
        """Return the position in shared memory of the tile's point *within*."""
        groups = self.layout.groups
        places = [self.position(g, within) for g in groups]
        return affine_expression([g.local for g in groups], places, 0, within[0].type)

    def loaded(self, number: Expr, base: Exprs, memory: Array, kind: Type, wide: Type) -> tuple[Expr, Expr]:
        """Return (position in shared memory, value) of element *number* of the tile at *base*, in memory order."""
        groups, rest = self.layout.groups, number
        places: dict[IteratorGroup, Expr] = {}
        for group in sorted(groups, key=lambda g: g.stride):
            places[group] = rest % group.extent if len(places) + 1 < len(groups) else rest
            rest = rest // group.extent
        found = [places[g] for g in groups]
        start = self.column.offset - sum(g.stride * self._shift(g) for g in groups)
        address = affine_expression(
            (*self.column.coefficients, *(g.stride for g in groups)), (*base, *found), start, wide
        )
        tests = list[Expr]()
        for d in self.leaving:
            index, (lo, hi) = self.access.index[d], self.access.source.box[d]
            steps = self._by_groups(index)
            if steps is None:
                continue
            const = index.const - sum(q * self._shift(g) for q, g in zip(steps, groups, strict=True))
            value = affine_expression((*self.along(index), *steps), (*base, *found), const, number.type)
            tests += [value.ge(lo), value.lt(hi)]
        if self.late:
            tests += [address.ge(0), address.lt(memory.size)]
        local = affine_expression([g.local for g in groups], found, 0, number.type)
        beyond = literal(self.access.source.value, kind)
        value, test = self.element(memory, address, kind), conjunction(*tests)
        return local, value if test is None else select(test, value, beyond)

    def element(self, memory: Array, address: Expr, kind: Type) -> Expr:
        """Return the element at *address*; an address that is always outside gives the padding."""
        known = integer_constant(address)
        if known is not None and not 0 <= known < memory.size:
            return literal(self.access.source.value, kind)
        return cast(kind, memory[address])
