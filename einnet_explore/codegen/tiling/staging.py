"""Inputs of a tiled kernel: from memory to the block's tile in shared memory, and from there to the sums.

Tiles are loaded one after the other, or the next one while the previous one is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from einnet_explore.analysis.flattening import AddressColumn, FlattenedScope
from einnet_explore.codegen.language import (
    I32,
    I64,
    Array,
    Copy,
    Expr,
    For,
    If,
    LaunchIndex,
    Literal,
    Load,
    Statement,
    Store,
    Type,
    Var,
    binary_operation,
    cast,
    conjunction,
    literal,
    select,
)
from einnet_explore.codegen.language.statements import integer_constant
from einnet_explore.codegen.language.values import Select
from einnet_explore.codegen.sum_of_products import SUM_RESULT
from einnet_explore.codegen.tiling.contraction import EpilogueContraction
from einnet_explore.codegen.tiling.cost import TileCost
from einnet_explore.codegen.tiling.shared_layout import (
    IteratorGroup,
    LocalLayout,
    ThreadLayout,
    local_layout,
    thread_layout,
)
from einnet_explore.ir import Access, Index, Iterator, Tensor, accesses

Exprs = Sequence[Expr]


def affine_expression(coefficients: Sequence[int], values: Exprs, const: int, wide: Type) -> Expr:
    """Return const + Σ coefficient · value, in *wide*."""
    total: Expr = Literal(0, wide)
    for k, value in zip(coefficients, values, strict=True):
        if k:
            part = cast(wide, value)
            total = total + part * k if k > 0 else total - part * -k
    return total + const if const >= 0 else total - -const


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

    def address(self, at: Exprs, wide: Type) -> Expr:
        """Return the position in memory of the point *at* of the iteration space."""
        return affine_expression(self.column.coefficients, at, self.column.offset, wide)

    def loaded(self, number: Expr, base: Exprs, memory: Array, kind: Type, wide: Type) -> tuple[Expr, Expr]:
        """Return (position in shared memory, value) of element *number* of the tile at *base*, in memory order."""
        groups, rest = self.layout.groups, number
        places: dict[IteratorGroup, Expr] = {}
        for group in sorted(groups, key=lambda g: g.stride):
            places[group] = binary_operation("%", rest, group.extent) if len(places) + 1 < len(groups) else rest
            rest = binary_operation("/", rest, group.extent)
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


@dataclass(frozen=True)
class TileFrame:
    """*contraction* in tiles of *cost*, for elements of *kind*: the names and positions in its statements."""

    contraction: EpilogueContraction
    cost: TileCost
    kind: Type

    @cached_property
    def rows(self) -> tuple[Iterator, ...]:
        core = self.contraction.core
        return tuple(sorted((*core.traversals, *core.summations), key=lambda x: x.name))

    @cached_property
    def inputs(self) -> tuple[TileInput, ...]:
        table, reads = self.contraction.table, dict.fromkeys(accesses(self.contraction.core.body))
        pairs = zip(reads, table.inputs, strict=True)
        return tuple(TileInput(read, column, table, self.cost.tile, self.rows) for read, column in pairs)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        both = (*accesses(self.contraction.core.body), *accesses(self.contraction.epilogue))
        found: dict[str, Tensor] = {}
        for source in (a.source for a in both if a.source != SUM_RESULT):
            if isinstance(source, Tensor) and found.setdefault(source.name, source).shape != source.shape:
                raise ValueError(f"tensor {source.name} is read as {source.shape} and as {found[source.name].shape}")
        return tuple(found.values())

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Every input's array in global memory."""
        return {t.name: Array(t.name, self.kind, prod(t.shape), const=True) for t in self.tensors}

    @cached_property
    def result(self) -> Array:
        core = self.contraction.core
        name = next(n for k in range(len(self.memory) + 1) if (n := "O" if not k else f"O{k}") not in self.memory)
        return Array(name, self.kind, prod(core.shape))

    @cached_property
    def threads(self) -> ThreadLayout:
        hardware = self.cost.hardware
        return thread_layout(self.contraction.table, self.cost.tile, hardware.threads, hardware.square)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Sums of a thread along every row."""
        steps = self.threads.steps(self.cost.tile)
        return tuple(s if r.output else 1 for s, r in zip(steps, self.contraction.table.rows, strict=True))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Tiles along every row."""
        return tuple(-(-n // t) for n, t in zip(self.contraction.table.ranges, self.cost.tile, strict=True))

    @cached_property
    def wide(self) -> Type:
        """The type of addresses: 64 bits if 32 are too few."""
        ends = [n * t for n, t in zip(self.counts, self.cost.tile, strict=True)]
        columns = self.contraction.table.columns
        far = max(sum(abs(k) * n for k, n in zip(c.coefficients, ends, strict=True)) + abs(c.offset) for c in columns)
        return I32 if max(far, *(a.size for a in self.memory.values()), 0) < 1 << 31 else I64

    def output(self, n: int) -> bool:
        return self.contraction.table.rows[n].output

    def name(self, n: int, what: str) -> str:
        return f"{self.rows[n].name}_{what}"

    @cached_property
    def base(self) -> tuple[Expr, ...]:
        """The begin of the tile: variables of the block, loops over the summations."""
        return tuple(Var(self.name(n, "base")) if c > 1 else Literal(0, I32) for n, c in enumerate(self.counts))

    @cached_property
    def place(self) -> tuple[Expr, ...]:
        """The begin of this thread in the tile."""
        return tuple(
            Var(self.name(n, "thread")) if c > 1 else Literal(0, I32) for n, c in enumerate(self.threads.counts)
        )

    @cached_property
    def within(self) -> tuple[Expr, ...]:
        """The position of a product in the tile."""
        out: list[Expr] = []
        for n, t in enumerate(self.cost.tile):
            if self.output(n):
                step = Var(self.name(n, "step")) if self.steps[n] > 1 else Literal(0, I32)
                out.append(self.place[n] + step * self.threads.counts[n])
            else:
                out.append(Var(self.name(n, "in")) if t > 1 else Literal(0, I32))
        return tuple(out)

    @cached_property
    def at(self) -> tuple[Expr, ...]:
        """The point of the iteration space."""
        return tuple(b + w for b, w in zip(self.base, self.within, strict=True))

    @cached_property
    def sums(self) -> Array:
        return Array("sums", self.kind, prod(self.steps), "private")

    @cached_property
    def loops(self) -> tuple[int, ...]:
        """The rows along which a thread holds several sums, outermost first: neighbours in memory innermost."""
        return tuple(n for n in reversed(self.threads.order) if self.steps[n] > 1)

    @cached_property
    def sum_at(self) -> Expr:
        """The position of a sum among those of the thread."""
        held = [Var(self.name(n, "step")) for n in self.loops]
        strides = [prod(self.steps[n] for n in self.loops[k + 1 :]) for k in range(len(held))]
        return affine_expression(strides, held, 0, I32)


THREAD_INDEX = LaunchIndex("thread")


@dataclass(frozen=True)
class TileLoader(TileFrame):
    """The tiles of the inputs: their arrays, and their loads."""

    @cached_property
    def turning(self) -> int | None:
        """The row whose tiles alternate between two halves of an array, to overlap loads with arithmetic, or None."""
        hardware = self.cost.hardware
        if not hardware.managed or hardware.stages < 2 or self.kind.size not in (4, 8) or self.threads.threads == 1:
            return None
        rows = [n for n, c in enumerate(self.counts) if c > 1 and not self.output(n)]
        return rows[0] if len(rows) == 1 else None

    def tile(self, i: TileInput) -> Array:
        """Return the array of the tile of *i*, or of two alternating ones."""
        size = i.layout.size if self.turning is None else 2 * i.layout.size
        return Array(f"{i.column.name}_tile", self.kind, size, "shared")

    def half(self, i: TileInput) -> Expr:
        """Return the begin of the current tile in its array."""
        if self.turning is None:
            return Literal(0, I32)
        return self.base[self.turning] // self.cost.tile[self.turning] % 2 * i.layout.size

    def load(self, i: TileInput, later: Mapping[int, Expr] | None = None, half: Expr | None = None) -> Statement:
        """Return the load of the tile of *i*, into a *half* of its array if it has two.

        *later* replaces rows of the base.
        """
        number = Var(f"{i.column.name}_element")
        base = [(later or {}).get(n, b) for n, b in enumerate(self.base)]
        place, value = i.loaded(number, base, self.source(i.access), self.kind, self.wide)
        step = Literal(self.threads.threads, I32)
        end = Literal(i.layout.elements, I32)
        start: Expr = THREAD_INDEX if self.threads.threads > 1 else Literal(0, I32)
        if half is None:
            return For(number, start, end, step, (Store(self.tile(i), place, value),))
        return For(number, start, end, step, _async_copy(self.tile(i), place + half * i.layout.size, value))

    def source(self, access: Access) -> Array:
        """Return the array in memory that *access* reads."""
        assert isinstance(access.source, Tensor)
        return self.memory[access.source.name]


def _async_copy(tile: Array, place: Expr, value: Expr) -> tuple[Statement, ...]:
    """Store *value* at *place*: an element of memory asynchronously, a constant, or a choice between these."""
    match value:
        case Load(array, index) if array.space == "global" and array.kind == tile.kind:
            return (Copy(tile, place, array, index, 1, asynchronous=True),)
        case Select(condition, yes, no):
            return (If(condition, _async_copy(tile, place, yes), _async_copy(tile, place, no)),)
    return (Store(tile, place, value),)
