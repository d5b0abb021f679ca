"""Plan of a register-tiled contraction: loops, steps, constants packed in the order of reads, buffers of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import prod

import numpy as np
import numpy.typing as npt
from tvm import tirx

from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.codegen.register_tiles import (
    FlatAddress,
    OperandLayout,
    RegisterTile,
    Tap,
    in_place_layout,
    list_taps,
    padded_copy_layout,
)
from einnet_explore.codegen.sum_of_products import SUM_RESULT, SumOfProducts
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import Environment
from einnet_explore.ir import Iterator, Tensor, accesses

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BlockLoop:
    """A loop over *iterator* in *count* blocks of *size*; the last block ends with the iterator's range."""

    iterator: Iterator
    size: int

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.iterator.extent // self.size)

    @property
    def starts(self) -> Array:
        """The start of each block: the last one overlaps its predecessor if the size does not divide the extent."""
        return np.minimum(np.arange(self.count) * self.size, max(0, self.iterator.extent - self.size))


@dataclass(frozen=True)
class PackedRegion:
    """The part of a packed operand that one group of phases reads: *loops* outside, then taps, slots and lanes."""

    start: int
    loops: tuple[BlockLoop, ...]
    inside: int
    """Elements of one step."""

    @property
    def size(self) -> int:
        """Elements."""
        return prod(b.count for b in self.loops) * self.inside

    @property
    def strides(self) -> Mapping[Iterator, int]:
        """Elements from one block of each iterator to the next."""
        found: dict[Iterator, int] = {}
        step = self.inside
        for b in reversed(self.loops):
            found[b.iterator] = step
            step *= b.count
        return found


def vector_offsets(tile: RegisterTile, last: Iterator) -> tuple[int, ...]:
    """Return the offsets of a tile's vectors: the last one ends with the row if the tile is as wide as the row."""
    whole = tile.lanes * tile.vectors >= last.extent
    return tuple(
        min(n * tile.lanes, max(0, last.extent - tile.lanes)) if whole else n * tile.lanes for n in range(tile.vectors)
    )


def packed_regions(
    form: SumOfProducts, tile: RegisterTile, steps: Sequence[Sequence[Tap]], loops: Sequence[BlockLoop]
) -> tuple[PackedRegion, ...]:
    """Return consecutive regions, one for each group of phases."""
    other = form.moves(1 - tile.vector)
    mine = tuple(b for b in loops if b.iterator in other)
    lanes = tile.lanes * tile.vectors if form.traversals[-1] in other else 1
    found: list[PackedRegion] = []
    start = 0
    for group in steps:
        found.append(PackedRegion(start, mine, len(group) * tile.slots * lanes))
        start += found[-1].size
    return tuple(found)


def gather_positions(
    form: SumOfProducts, tile: RegisterTile, steps: Sequence[Sequence[Tap]], found: Sequence[PackedRegion]
) -> Array:
    """Return the tensor's position of every element of the packed operand; -1 is a zero outside the tensor."""
    tensor = form.operands[1 - tile.vector]
    last = form.traversals[-1]
    parts: list[Array] = []
    for group, region in zip(steps, found, strict=True):
        loops = {b.iterator: b for b in region.loops}
        inside = (len(group), tile.slots, *((tile.vectors, tile.lanes) if last in form.moves(1 - tile.vector) else ()))
        rank = len(region.loops) + len(inside)

        def along(values: Array, axis: int, rank: int = rank) -> Array:
            return values.reshape([-1 if d == axis else 1 for d in range(rank)])

        at: dict[Iterator, Array] = {b.iterator: along(b.starts, d) for d, b in enumerate(region.loops)}
        first = len(region.loops)
        if tile.slot is not None and tile.slot in loops:
            at[tile.slot] = at[tile.slot] + along(np.arange(tile.slots), first + 1)
        if len(inside) == 4:
            start = at.get(last, np.zeros([1] * rank, np.int64))
            lane = along(np.array(vector_offsets(tile, last)), first + 2) + along(np.arange(tile.lanes), first + 3)
            at[last] = np.minimum(start + lane, last.extent - 1)
        for y in tile.unrolled:
            at[y] = along(np.array([tap.known[y] for tap in group]), first)
        shape = (*(b.count for b in region.loops), *inside)
        parts.append(_positions(form, tile, group, at, shape, first, tensor.box).reshape(-1))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _positions(
    form: SumOfProducts,
    tile: RegisterTile,
    group: Sequence[Tap],
    at: Mapping[Iterator, Array],
    shape: tuple[int, ...],
    first: int,
    box: tuple[tuple[int, int], ...],
) -> Array:
    flat = np.zeros(shape, np.int64)
    valid = np.ones(shape, bool)
    stride = 1
    rank = len(shape)
    for d in reversed(range(len(box))):
        lo, hi = box[d]
        # Taps of different phases have indices of their own, so each dimension is put together tap by tap.
        rows = []
        for n, tap in enumerate(group):
            index = form.reads[tap.phase][1 - tile.vector][d]
            mine = {x: v.take([n], axis=first) if v.shape[first] > 1 else v for x, v in at.items()}
            value = np.asarray(index.evaluate(lambda x, mine=mine: mine[x]))  # type: ignore[misc]
            one = tuple(1 if axis == first else extent for axis, extent in enumerate(shape))
            rows.append(np.broadcast_to(value.reshape(value.shape or (1,) * rank), one))
        here = np.concatenate(rows, axis=first) if rows else flat
        valid &= (here >= lo) & (here < hi)
        flat += (here - lo) * stride
        stride *= hi - lo
    return np.where(valid, flat, -1)


MIN_PARALLEL_FLOPS = 1 << 20
"""Operations from which on threads share the tiles."""

MIN_PARALLEL_COPY_ELEMENTS = 1 << 16
"""Elements from which on threads share a copy."""


@dataclass(frozen=True)
class ContractionPlan:
    """A contraction, its tile, the layout of the other operand (None: a packed constant), and the number of threads."""

    form: SumOfProducts
    tile: RegisterTile
    other: OperandLayout | None
    threads: int

    @property
    def shared(self) -> bool:
        """True if several threads run the kernel, or a part of it."""
        return self.threads > 1 and (self.tiles_shared or any(map(self.copy_shared, (self.tile.layout, self.other))))

    @property
    def tiles_shared(self) -> bool:
        """True if several threads compute the tiles."""
        return self.threads > 1 and self.form.flops >= MIN_PARALLEL_FLOPS

    def copy_shared(self, layout: OperandLayout | None) -> bool:
        """True if several threads copy an operand into *layout*."""
        return self.threads > 1 and layout is not None and layout.copied and layout.size >= MIN_PARALLEL_COPY_ELEMENTS

    @cached_property
    def steps(self) -> tuple[tuple[Tap, ...], ...]:
        """The products of one step, by group of phases."""
        tile = self.tile
        return tuple(tuple(list_taps(self.form, tile.vector, tile.layout, g, tile.unrolled)) for g in tile.groups)

    @cached_property
    def blocks(self) -> tuple[BlockLoop, ...]:
        """The loops outside the sums, outermost first."""
        form, tile = self.form, self.tile
        sizes: dict[Iterator | None, int] = {tile.row: tile.rows, tile.slot: tile.slots}
        last = form.traversals[-1]
        sizes[last] = tile.lanes * tile.vectors
        loops = [BlockLoop(x, sizes.get(x, 1)) for x in form.traversals]
        mine, other = form.moves(tile.vector), form.moves(1 - tile.vector)
        rank = {(True, True): 0, (True, False): 2, (False, True): 1 if tile.slots_outside else 3, (False, False): 0}
        return tuple(sorted(loops, key=lambda b: rank[b.iterator in mine, b.iterator in other]))

    @cached_property
    def sums(self) -> tuple[Iterator, ...]:
        """The summations that are loops."""
        return tuple(y for y in self.form.summations if y not in self.tile.unrolled)

    @cached_property
    def regions(self) -> tuple[PackedRegion, ...]:
        """The parts of the packed operand."""
        loops = [b for b in self.blocks if b.count > 1 or b.iterator == self.tile.slot]
        return packed_regions(self.form, self.tile, self.steps, (*loops, *(BlockLoop(y, 1) for y in self.sums)))

    @cached_property
    def sides(self) -> tuple[Tensor, ...]:
        """The tensors that the epilogue reads."""
        reads = [a.source for a in accesses(self.form.epilogue) if a.source != SUM_RESULT]
        return tuple({t.name: t for t in reads if isinstance(t, Tensor)}.values())

    @property
    def packed(self) -> int:
        """The elements of the packed operand; one, never read, if all its products are zero."""
        return max(1, sum(r.size for r in self.regions))


def plan_contraction(form: SumOfProducts, tile: RegisterTile, threads: int) -> ContractionPlan | None:
    """Return the plan of *tile* without packed operands, or None."""
    last = form.traversals[-1]
    along = last if last in form.moves(1 - tile.vector) else None
    # A copy has spare elements, which vectors wider than the rows read.
    wide = along is not None and tile.lanes > last.extent
    other = None if wide else in_place_layout(form, 1 - tile.vector, along)
    other = other or padded_copy_layout(form, 1 - tile.vector, along)
    return None if other is None else ContractionPlan(form, tile, other, threads)


@dataclass(frozen=True, eq=False)
class ContractionContext:
    """Buffers and fresh names of a kernel under construction."""

    plan: ContractionPlan
    _next: Callable[[], int] = field(default_factory=lambda: count().__next__)

    @property
    def last(self) -> Iterator:
        """The traversal along the lanes."""
        return self.plan.form.traversals[-1]

    @cached_property
    def raw(self) -> tuple[TvmObject, TvmObject]:
        """The operands as parameters: the one that is read in vectors, the other one."""
        plan = self.plan
        vector, other = (plan.form.operands[n].shape for n in (plan.tile.vector, 1 - plan.tile.vector))
        return flat_buffer(vector, "a"), flat_buffer((plan.packed,) if plan.other is None else other, "b")

    @cached_property
    def operands(self) -> tuple[TvmObject, TvmObject]:
        """The operands or their copies; vectors may extend past the last row of a copy."""
        spare = 2 * self.plan.tile.lanes
        first, second = (
            flat_buffer((layout.size + spare,), f"{raw.name}c") if layout is not None and layout.copied else raw
            for layout, raw in zip((self.plan.tile.layout, self.plan.other), self.raw, strict=True)
        )
        return first, second

    @cached_property
    def sides(self) -> Mapping[str, TvmObject]:
        """The buffers that the epilogue reads, by name."""
        return {t.name: flat_buffer(t.shape, f"t{n}") for n, t in enumerate(self.plan.sides)}

    @cached_property
    def result(self) -> TvmObject:
        """The result's buffer."""
        return flat_buffer(tuple(x.extent for x in self.plan.form.outside), "y")

    def variable(self, stem: str) -> TvmObject:
        """Return a new integer."""
        return tirx.Var(f"{stem}{self._next()}", "int32")

    def accumulator(self) -> TvmObject:
        """Return a new buffer of one vector."""
        return flat_buffer((self.plan.tile.lanes,), f"c{self._next()}")

    def let(self, out: list[TvmObject], value: TvmObject, lanes: int | None = None) -> TvmObject:
        """Bind the vector *value* to a new name by a statement appended to *out*."""
        name = tirx.Var(f"v{self._next()}", f"float32x{lanes or self.plan.tile.lanes}")
        out.append(tirx.Bind(name, value))
        return name

    def lanes(self, start: TvmObject | int) -> TvmObject:
        """Return the positions of a vector from *start* on."""
        first = tirx.const(start, "int32") if isinstance(start, int) else start
        return tirx.Ramp(first, tirx.const(1, "int32"), self.plan.tile.lanes)


def flat_buffer(shape: Sequence[int], name: str) -> TvmObject:
    """Return a flat buffer for *shape*."""
    return tirx.decl_buffer((max(1, prod(shape)),), "float32", name)


def statement_sequence(statements: Sequence[TvmObject]) -> TvmObject:
    """Return *statements* in order; TVM does not nest sequences."""
    flat: list[TvmObject] = []
    for s in statements:
        flat += list(s.seq) if isinstance(s, tirx.SeqStmt) else [s]
    return tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]


def serial_loop(x: TvmObject, extent: int, body: TvmObject) -> TvmObject:
    """A loop."""
    return tirx.For(x, 0, extent, tirx.ForKind.SERIAL, body)


def parallel_loop(x: TvmObject, extent: int, body: TvmObject) -> TvmObject:
    """A loop whose iterations threads share."""
    return tirx.For(x, 0, extent, tirx.ForKind.PARALLEL, body)


def vector_loop(x: TvmObject, extent: int, body: TvmObject) -> TvmObject:
    """A loop that is one vector."""
    return tirx.For(x, 0, extent, tirx.ForKind.VECTORIZED, body)


def row_major_position(at: Sequence[TvmObject], shape: Sequence[int]) -> TvmObject:
    """Return the position of *at* in an array of *shape*."""
    steps = zip(at, row_major_strides(tuple(shape)), strict=True)
    return sum((i * step for i, step in steps), tirx.const(0, "int32"))


def flat_position(address: FlatAddress, env: Environment) -> TvmObject:
    """Return *address* for iterators of the values *env*."""
    const, terms = address
    return sum((env[x] * k for x, k in terms.items()), tirx.const(0, "int32")) + const
