"""The tiled kernel: clear, { load, sync, accumulate, sync }, roll up, post-operations, write.

A block computes one tile of the result.  Its threads load the tiles of the inputs together, one after the other, or the
next one while the previous one is used.  Then each of them adds to sums of its own.  Threads that share a result hold
partial sums, which are rolled up in shared memory.
Source: PlaidML's automatic kernel generation (threading, code generation).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import TypeAlias

from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.analysis.indices import guard
from einnet_explore.codegen.language.lowering import (
    affine_expression,
    lower_join,
    lower_scalar,
    memory_reader,
    result_array,
    tensor_name,
)
from einnet_explore.codegen.language.statements import (
    Barrier,
    Comment,
    Copy,
    Declare,
    If,
    Kernel,
    LocalArray,
    LoopHint,
    Statement,
    Store,
    counted_loop,
    where_all,
)
from einnet_explore.codegen.language.values import (
    F32,
    I32,
    I64,
    Array,
    Expr,
    LaunchIndex,
    Literal,
    Load,
    Select,
    Type,
    Var,
    call,
    literal,
)
from einnet_explore.codegen.sum_of_products import SUM_RESULT
from einnet_explore.codegen.tiling.cost import (
    EpilogueContraction,
    Hardware,
    TileCost,
    as_contraction,
    search_best_first,
    tile_cost,
)
from einnet_explore.codegen.tiling.shared_layout import ThreadLayout, TileInput
from einnet_explore.ir import REDUCTIONS, Access, Iterator, Scalar, Scope, Table, Tensor, accesses, map_accesses
from einnet_explore.ir.program import Program


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

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.contraction.tensors

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Every input's array in global memory."""
        return {t.name: Array(t.name, self.kind, prod(t.shape), const=True) for t in self.tensors}

    @cached_property
    def result(self) -> Array:
        core = self.contraction.core
        return result_array(self.memory, self.kind, core.shape)

    @cached_property
    def threads(self) -> ThreadLayout:
        return self.cost.hardware.spread_threads(self.contraction.table, self.cost.tile)

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
        """The position of a product in the tile.

        Along windows a thread's sums are neighbours, whose reads overlap; elsewhere, and along the smallest step,
        threads are neighbours.
        """
        out: list[Expr] = []
        for n, t in enumerate(self.cost.tile):
            if self.output(n):
                step = Var(self.name(n, "step")) if self.steps[n] > 1 else Literal(0, I32)
                strided = n == self.threads.order[0] or n not in self.windows
                steps = 1 if strided else self.steps[n]
                out.append(self.place[n] * steps + step * (self.threads.counts[n] if strided else 1))
            else:
                out.append(Var(self.name(n, "in")) if t > 1 else Literal(0, I32))
        return tuple(out)

    @cached_property
    def windows(self) -> frozenset[int]:
        """The rows that move along a window: rows of the result and summations that move together through an input."""
        groups = (g for i in self.inputs for g in i.layout.groups)
        rows = [[m.row for m in g.members] for g in groups]
        return frozenset(n for group in rows if len({self.output(n) for n in group}) == 2 for n in group)

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
        strides = row_major_strides(tuple(self.steps[n] for n in self.loops))
        return affine_expression(strides, [Var(self.name(n, "step")) for n in self.loops], 0, I32)


THREAD_INDEX = LaunchIndex("thread")


@dataclass(frozen=True)
class TileLoader(TileFrame):
    """The tiles of the inputs: their arrays, and their loads."""

    @cached_property
    def turning(self) -> int | None:
        """The row whose tiles alternate between two halves of an array, to overlap loads with arithmetic, or None."""
        hardware = self.cost.hardware
        if hardware.stages < 2 or self.kind.size not in (4, 8) or self.threads.threads == 1:
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
        place, value = i.loaded(number, base, self.memory[tensor_name(i.access.source)], self.kind, self.wide)
        threads, tile = self.threads.threads, self.tile(i)
        stores: tuple[Statement, ...] = (Store(tile, place, value),)
        if half is not None:
            stores = copy_async(tile, place + half * i.layout.size, value)
        start = THREAD_INDEX if threads > 1 else 0
        return counted_loop(number, i.layout.elements, *stores, start=start, step=threads)


def copy_async(tile: Array, place: Expr, value: Expr, size: int = 1) -> tuple[Statement, ...]:
    """Store *value* at *place*: an element of memory asynchronously, a constant, or a choice between these.

    *size*: the same for as many neighbours, where both ends are multiples of it.
    """
    match value:
        case Load(array, index) if array.space == "global" and array.kind == tile.kind:
            return (Copy(tile, place, array, index, size, asynchronous=True),)
        case Select(condition, yes, no):
            return (If(condition, copy_async(tile, place, yes, size), copy_async(tile, place, no, size)),)
    return tuple(Store(tile, place + n, value) for n in range(size))


MAX_UNROLLED_SUMS = 64
"""Loops over at most so many sums are unrolled, so that the sums are registers."""

MAX_UNROLLED_STEPS = 32
"""Steps of the innermost loops over summations that are unrolled, at most: reads of neighbouring sums are shared."""

RowTests: TypeAlias = "tuple[tuple[int, Expr], ...]"
"""Conditions, each with its row of the table."""


@dataclass(frozen=True)
class TiledKernelWriter(TileLoader):
    """Assembles the kernel."""

    def kernel(self, name: str) -> Kernel:
        """Return the kernel *name*."""
        shared = [LocalArray(self.tile(i)) for i in self.inputs]
        if self.threads.lanes > 1:
            shared.append(LocalArray(self._rolled))
        body: list[Statement] = [*shared, LocalArray(self.sums), *self._declare_positions(), Comment("clear")]
        body += self._for_each_sum(self._hints, Store(self.sums, self.sum_at, self._neutral))
        body += self._load_in_sequence() if self.turning is None else self._load_ahead(self.turning)
        if self.threads.lanes > 1:
            body += [Comment("roll up"), *self._roll_up()]
        body += [Comment("post-operations and write"), *self._write()]
        grid = prod(c for n, c in enumerate(self.counts) if self.output(n))
        params = (*self.memory.values(), self.result)
        return Kernel(name, params, tuple(body), (self.threads.threads, 1, 1), (grid, 1, 1))

    def _load_in_sequence(self) -> list[Statement]:
        """Return the loads of tiles, then their products, for every tile along the summations."""
        sync = [Barrier()] if self.threads.threads > 1 else []
        body: list[Statement] = []
        for i in self.inputs:
            body += [Comment(f"load {i.column.name}"), self.load(i)]
        body += [*sync, Comment("accumulate"), *self._accumulate(), *sync]
        for n in reversed(range(len(self.rows))):
            if not self.output(n) and isinstance(base := self.base[n], Var):
                body = [counted_loop(base, self.rows[n].extent, *body, step=self.cost.tile[n])]
        return body

    def _load_ahead(self, row: int) -> list[Statement]:
        """Return loops with two alternating tiles of every input: one barrier a tile also frees the previous one."""
        base, step, end = self.base[row], self.cost.tile[row], self.rows[row].extent
        assert isinstance(base, Var)
        zero = Literal(0, I32)
        first = (self.load(i, {row: zero}, zero) for i in self.inputs)
        later = base + step
        then = tuple(self.load(i, {row: later}, (base // step + 1) % 2) for i in self.inputs)
        inner = (Barrier(copies=True), If(later.lt(end), then), Comment("accumulate"), *self._accumulate())
        return [Comment("load the first tiles"), *first, counted_loop(base, end, *inner, step=step)]

    @cached_property
    def _rolled(self) -> Array:
        return Array("rolled", self.kind, self.threads.threads, "shared")

    @cached_property
    def _neutral(self) -> Expr:
        value = REDUCTIONS[self.contraction.core.reduce]
        if value in (inf, -inf) and self.kind.integer:
            return Literal(self.kind.bounds[value > 0], self.kind)
        return literal(value, self.kind)

    def _join(self, a: Expr, b: Expr) -> Expr:
        return lower_join(self.contraction.core.reduce, a, b)

    def _declare_positions(self) -> Iterable[Statement]:
        """Yield this block's tile and this thread's position in it, the smallest steps of the result first."""
        rest: Expr = LaunchIndex("block")
        for n in self.threads.order:
            if self.output(n) and isinstance(base := self.base[n], Var):
                yield Declare(base, rest % self.counts[n] * self.cost.tile[n])
                rest = rest // self.counts[n]
        rest = THREAD_INDEX
        for n in self.threads.order:
            if isinstance(place := self.place[n], Var):
                yield Declare(place, rest % self.threads.counts[n])
                rest = rest // self.threads.counts[n]

    @cached_property
    def _hints(self) -> Mapping[int, LoopHint]:
        """The hints of loops over sums: few sums are registers, and a single thread has vectors of sums."""
        hints: dict[int, LoopHint] = dict.fromkeys(self.loops, "unroll") if self.sums.size <= MAX_UNROLLED_SUMS else {}
        return hints | dict.fromkeys(self.loops[-1:], "simd") if self.threads.threads == 1 else hints

    def _for_each_sum(
        self, hints: Mapping[int, LoopHint], *body: Statement, tests: RowTests = ()
    ) -> tuple[Statement, ...]:
        """Return *body* for every sum of this thread for which *tests* hold, each tested as far outside as possible."""
        for n in reversed(self.loops):
            body = where_all((t for row, t in tests if row == n), *body)
            body = (counted_loop(Var(self.name(n, "step")), self.steps[n], *body, hint=hints.get(n)),)
        return where_all((t for row, t in tests if row not in self.loops), *body)

    def _accumulate(self) -> tuple[Statement, ...]:
        product = lower_scalar(
            self._mark_reads(), dict(zip(self.rows, self.at, strict=True)), self._read, self.kind, self.wide
        )
        added = Store(self.sums, self.sum_at, self._join(self.sums[self.sum_at], product))
        body = self._for_each_sum(self._hints, added, tests=tuple(self._in_tile()))
        left = MAX_UNROLLED_STEPS
        for n in reversed(range(len(self.rows))):
            t, count = self.cost.tile[n], self.threads.counts[n]
            if self.output(n) or t == 1:
                continue
            extent = self.rows[n].extent
            stop: Expr = Literal(t, I32)
            if extent % t:  # the last tile is a smaller one
                stop = call("minimum", stop, Literal(extent, I32) - self.base[n])
            trips = -(-t // count)
            whole = extent % t == 0 and isinstance(self.place[n], Literal)
            hint: LoopHint | None = "unroll" if whole and n in self.windows and trips <= left else None
            left = left // trips if hint else 0
            inner = Var(self.name(n, "in"))
            body = (counted_loop(inner, stop, *body, start=self.place[n], step=count, hint=hint),)
        return body

    def _in_tile(self) -> Iterable[tuple[int, Expr]]:
        """Yield, by row, the condition that a sum lies in the tile: threads are spread in powers of two."""
        for n, t in enumerate(self.cost.tile):
            if self.output(n) and self.steps[n] * self.threads.counts[n] > t:
                yield n, self.within[n].lt(t)

    def _in_result(self) -> Iterable[tuple[int, Expr]]:
        """Yield, by row, the condition that a sum lies in the result: the last tiles may exceed it."""
        for n, t in enumerate(self.cost.tile):
            if self.output(n) and self.rows[n].extent % t:
                yield n, self.at[n].lt(self.rows[n].extent)

    def _mark_reads(self) -> Scalar:
        """Return the body with reads replaced by elements of tiles, under the conditions that loads cannot test."""
        inputs = {i.access: n for n, i in enumerate(self.inputs)}

        def mark(access: Access) -> Scalar:
            late, box = self.inputs[inputs[access]].late, access.source.box
            read = Tensor(f"#{inputs[access]}", ())[()]
            return guard(tuple(access.index[d] for d in late), tuple(box[d] for d in late), read, access.source.value)

        return map_accesses(self.contraction.core.body, mark)

    def _read(self, source: Tensor | Table | Scope, _: tuple[Expr, ...]) -> Expr:
        i = self.inputs[int(tensor_name(source)[1:])]
        return self.tile(i)[i.local(self.within) + self.half(i)]

    def _roll_up(self) -> tuple[Statement, ...]:
        """Add partial sums, one of every thread at a time, in halves; then those of the first lane are complete."""
        outputs, lanes = self.threads.outputs, self.threads.lanes
        rolled = self._rolled
        own = rolled[THREAD_INDEX]
        body: list[Statement] = [Store(rolled, THREAD_INDEX, self.sums[self.sum_at]), Barrier()]
        while lanes > 1:
            lanes //= 2
            other = rolled[THREAD_INDEX + lanes * outputs]
            body += [
                If(THREAD_INDEX.lt(lanes * outputs), (Store(rolled, THREAD_INDEX, self._join(own, other)),)),
                Barrier(),
            ]
        body.append(If(THREAD_INDEX.lt(outputs), (Store(self.sums, self.sum_at, own),)))
        return self._for_each_sum({}, *body)

    def _write(self) -> tuple[Statement, ...]:
        at = dict(zip(self.rows, self.at, strict=True))
        read = memory_reader(self.memory, self.wide, {SUM_RESULT.name: self.sums[self.sum_at]})
        value = lower_scalar(self.contraction.epilogue, at, read, self.kind, self.wide)
        where = affine_expression(self.contraction.table.output.coefficients, self.at, 0, self.wide)
        written = self._for_each_sum(
            self._hints, Store(self.result, where, value), tests=(*self._in_tile(), *self._in_result())
        )
        return where_all([THREAD_INDEX.lt(self.threads.outputs)] if self.threads.lanes > 1 else (), *written)


@dataclass(frozen=True)
class TiledKernel:
    """A tiled contraction and its kernel, whose parameters are *inputs*, in order, then the result."""

    contraction: EpilogueContraction
    cost: TileCost
    inputs: tuple[Tensor, ...]
    kernel: Kernel


def tile_contraction(
    scope: Scope | Program,
    hardware: Hardware | None = None,
    tile: tuple[int, ...] | None = None,
    kind: Type = F32,
    name: str = "tiled",
) -> TiledKernel:
    """Return *scope*, or the only equation of a program, as a tiled kernel on elements of *kind*.

    *tile* holds a size for every row of the flattened table; by default the best-first search chooses. Raises
    ValueError if it is not a contraction of tensors, and for a tile that exceeds the ranges or does not fit; Refused
    for constants and functions that *kind* lacks.
    """
    hardware = hardware or Hardware()
    if isinstance(scope, Program):
        if len(scope.equations) != 1:
            raise ValueError(f"a program of {len(scope.equations)} equations, expected one; fuse them first")
        scope = scope.equations[0].scope
    found = as_contraction(scope)
    problem = found.problem(kind.size)
    cost = search_best_first(problem, hardware).chosen if tile is None else tile_cost(problem, tile, hardware)
    if cost.rejected:
        raise ValueError(
            f"tile size {list(cost.tile)} is {cost.rejected}: {cost.sm} bytes of inputs, {cost.out} of sums"
        )
    writer = TiledKernelWriter(found, cost, kind)
    return TiledKernel(found, cost, writer.tensors, writer.kernel(name))
