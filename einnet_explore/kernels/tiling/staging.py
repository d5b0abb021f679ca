"""One input's way through a tiled kernel: from memory to the block's shared tile, and from there to the sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from einnet_explore.algebra.flattening import Column, Flattened
from einnet_explore.ir import Access, Index, Iterator
from einnet_explore.kernels.source import Array, Expr, Literal, Type, binary, cast, conjunction, literal, select
from einnet_explore.kernels.source.walk import constant
from einnet_explore.kernels.tiling.layout import Group, LocalLayout, local_layout

Exprs = Sequence[Expr]


def linear(coefficients: Sequence[int], values: Exprs, const: int, wide: Type) -> Expr:
    """const + Σ coefficient · value, in *wide*."""
    total: Expr = Literal(0, wide)
    for k, value in zip(coefficients, values, strict=True):
        if k:
            part = cast(wide, value)
            total = total + part * k if k > 0 else total - part * -k
    return total + const if const >= 0 else total - -const


@dataclass(frozen=True)
class Input:
    """The read *access*, its *column* of the table, and the tile it is cut by; *rows* are the table's iterators.

    What is read is decided at the loads where it can be: a dimension's index has to go by whole groups of the layout,
    else elements at one address may lie inside its source for one product and outside for another.
    """

    access: Access
    column: Column
    table: Flattened
    tile: tuple[int, ...]
    rows: tuple[Iterator, ...]

    @cached_property
    def layout(self) -> LocalLayout:
        """How the tile lies in shared memory."""
        return local_layout(self.table, self.column, self.tile)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The least and the largest index of each dimension, over whole tiles, those that stick out too."""
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
        """The dimensions whose condition has to be asked for every product."""
        return tuple(d for d in self.leaving if self._by_groups(self.access.index[d]) is None)

    def along(self, index: Index) -> tuple[int, ...]:
        """The coefficient of every row in *index*."""
        return tuple(index.coefficient(x) for x in self.rows)

    def _by_groups(self, index: Index) -> tuple[int, ...] | None:
        """How far one position of every group moves *index*; None where its members disagree.

        Nor may it move with an iterator that leaves the address alone, as `h` does in ``B[c+h, -h]`` of width 1.
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

    def position(self, group: Group, within: Exprs) -> Expr:
        """Where in *group* the tile's point *within* lies."""
        steps = [m.step for m in group.members]
        return linear(steps, [within[m.row] for m in group.members], self._shift(group), within[0].type)

    def _shift(self, group: Group) -> int:
        return sum(-m.step * (self.tile[m.row] - 1) for m in group.members if m.step < 0)

    def local(self, within: Exprs) -> Expr:
        """Where in shared memory the tile's point *within* lies."""
        groups = self.layout.groups
        places = [self.position(g, within) for g in groups]
        return linear([g.local for g in groups], places, 0, within[0].type)

    def address(self, at: Exprs, wide: Type) -> Expr:
        """Where in memory the point *at* of the iteration space lies."""
        return linear(self.column.coefficients, at, self.column.offset, wide)

    def loaded(self, number: Expr, base: Exprs, memory: Array, kind: Type, wide: Type) -> tuple[Expr, Expr]:
        """(place in shared memory, value) of the element *number* of the tile at *base*: neighbours in memory first."""
        groups, rest = self.layout.groups, number
        places: dict[Group, Expr] = {}
        for group in sorted(groups, key=lambda g: g.stride):
            places[group] = binary("%", rest, group.extent) if len(places) + 1 < len(groups) else rest
            rest = binary("/", rest, group.extent)
        found = [places[g] for g in groups]
        start = self.column.offset - sum(g.stride * self._shift(g) for g in groups)
        address = linear((*self.column.coefficients, *(g.stride for g in groups)), (*base, *found), start, wide)
        tests = list[Expr]()
        for d in self.leaving:
            index, (lo, hi) = self.access.index[d], self.access.source.box[d]
            steps = self._by_groups(index)
            if steps is None:
                continue
            const = index.const - sum(q * self._shift(g) for q, g in zip(steps, groups, strict=True))
            value = linear((*self.along(index), *steps), (*base, *found), const, number.type)
            tests += [value.ge(lo), value.lt(hi)]
        if self.late:
            tests += [address.ge(0), address.lt(memory.size)]
        local = linear([g.local for g in groups], found, 0, number.type)
        beyond = literal(self.access.source.value, kind)
        value, test = self.element(memory, address, kind), conjunction(*tests)
        return local, value if test is None else select(test, value, beyond)

    def element(self, memory: Array, address: Expr, kind: Type) -> Expr:
        """The element at *address*; what is never inside, whatever the iterators are, is what lies outside."""
        known = constant(address)
        if known is not None and not 0 <= known < memory.size:
            return literal(self.access.source.value, kind)
        return cast(kind, memory[address])
