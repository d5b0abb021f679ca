"""Register-tiled contractions as TVM statements: sums in registers, operands in vectors.

A plan has the loops, the steps, and the constants packed in the order of reads.  Its kernel copies operands into padded
layouts, loops over tiles, sums the products of each, applies the epilogue, and interleaves the phases of a row in its
stores.

Every sum is a buffer of one vector on the stack, which LLVM keeps in a register (TVM 0.27 allocates a buffer of 1 KB
and more, or one of "local" scope, on the heap in every call).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby, product
from math import prod

import numpy as np
import numpy.typing as npt

from einnet_explore.analysis.counts import ELEMENT_BYTES
from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.codegen.register_tiles import (
    LINE_ELEMENTS,
    FlatAddress,
    OperandLayout,
    RegisterTile,
    Tap,
    in_place_layout,
    list_taps,
    padded_copy_layout,
)
from einnet_explore.codegen.sum_of_products import SUM_RESULT, Phase, SumOfProducts
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import (
    PREFETCH_DISTANCE,
    Environment,
    load_vector,
    prefetch_line,
    store_vector,
    tvm_expression,
    tvm_function,
    tvm_index,
)
from einnet_explore.ir import Index, Iterator, Scope, Table, Tensor, accesses
from einnet_explore.support.lazy_modules import LazyModule

tirx, T = LazyModule("tvm.tirx"), LazyModule("tvm.tirx.script.builder.ir")

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
    form: SumOfProducts, tile: RegisterTile, operand: int, steps: Sequence[Sequence[Tap]], loops: Sequence[BlockLoop]
) -> tuple[PackedRegion, ...]:
    """Return consecutive regions of *operand*, one for each group of phases."""
    mine = tuple(b for b in loops if b.iterator in form.moves(operand))
    lanes = tile.lanes * tile.vectors if form.traversals[-1] in form.moves(operand) else 1
    found: list[PackedRegion] = []
    start = 0
    for group in steps:
        found.append(PackedRegion(start, mine, len(group) * tile.lines(operand) * lanes))
        start += found[-1].size
    return tuple(found)


BLOCK_ELEMENTS = 1 << 18
"""Elements of a packed operand whose positions are in memory at once, about: they take several times their space."""


def gather_positions(
    form: SumOfProducts,
    tile: RegisterTile,
    operand: int,
    steps: Sequence[Sequence[Tap]],
    found: Sequence[PackedRegion],
) -> Iterable[Array]:
    """Yield the tensor's position of every element of the packed *operand*, in blocks; -1 is a zero outside it."""
    last = form.traversals[-1]
    line = tile.row if operand == tile.vector else tile.slot
    for group, region in zip(steps, found, strict=True):
        outside, is_wide = len(region.loops), last in form.moves(operand)
        lanes = (np.array(vector_offsets(tile, last)), np.arange(tile.lanes)) if is_wide else ()
        inner = np.arange(tile.lines(operand)), *lanes
        rest = len(group) * prod(map(len, inner))
        for starts in _blocks([np.array(b.starts) for b in region.loops], rest) if group else ():
            grid = np.ix_(*starts, *inner)
            at: dict[Iterator, Array] = dict(zip((b.iterator for b in region.loops), grid, strict=False))
            if line is not None and line in at:
                at[line] = at[line] + grid[outside]
            if is_wide:
                at[last] = np.minimum(at.get(last, 0) + grid[-2] + grid[-1], last.extent - 1)
            shape = np.broadcast_shapes(*(axis.shape for axis in grid))
            taps = [
                _positions(form.operands[operand], form.reads[tap.phase][operand], {**at, **tap.known}, shape)
                for tap in group
            ]
            yield np.stack(taps, axis=outside).reshape(-1)


def _blocks(axes: Sequence[Array], rest: int) -> Iterable[Sequence[Array]]:
    """Yield parts of *axes*, in order, each with about ``BLOCK_ELEMENTS`` elements if every point has *rest*."""
    size = rest * prod(map(len, axes))
    if not axes or size <= BLOCK_ELEMENTS:
        yield axes
        return
    first, *others = axes
    step = max(1, BLOCK_ELEMENTS * len(first) // size)
    for n in range(0, len(first), step):
        for part in _blocks(others, rest) if step == 1 else (others,):
            yield (first[n : n + step], *part)


def _positions(
    tensor: Tensor, where: tuple[Index, ...], at: Mapping[Iterator, Array | int], shape: tuple[int, ...]
) -> Array:
    """Return the positions of *where* in *tensor* for iterators of the values *at*; -1 outside."""
    flat, valid = np.zeros(shape, np.int64), np.ones(shape, bool)
    for index, (lo, hi), stride in zip(where, tensor.box, row_major_strides(tensor.shape), strict=True):
        here = np.asarray(index.evaluate(lambda x: at[x]))  # type: ignore[arg-type, return-value]
        valid &= (here >= lo) & (here < hi)
        flat += (here - lo) * stride
    return np.where(valid, flat, -1)


MIN_PARALLEL_FLOPS = 1 << 20
"""Operations from which on threads share the tiles."""

MIN_PARALLEL_COPY_ELEMENTS = 1 << 16
"""Elements from which on threads share a copy."""


MIN_FAR_BYTES = 1 << 15
"""Bytes of a packed operand from which on it is prefetched: between two calls other weights displace it."""

MAX_PANEL_BYTES = 1 << 18
"""Bytes of a packed operand, about, that tiles read together: they and the next ones stay in the second-level cache."""

MIN_SPARSE_READS = 4
"""Reads of every element of the other operand from which on those between which others lie are copied."""

MAX_PACKED_RATIO = 1.5
"""Elements of packed vectors, at most, over those of the operand: windows that overlap would be stored repeatedly."""


@dataclass(frozen=True)
class ContractionPlan:
    """A contraction, its tile, the layout of the other operand (None: a packed constant), and the number of threads.

    The operand that is read in vectors may be a packed constant instead.
    """

    form: SumOfProducts
    tile: RegisterTile
    other: OperandLayout | None
    threads: int
    has_packed_vectors: bool = False

    @property
    def packed_operand(self) -> int | None:
        """The number of the operand that is a packed constant, if one is."""
        if self.has_packed_vectors:
            return self.tile.vector
        return 1 - self.tile.vector if self.other is None else None

    @property
    def copies(self) -> tuple[OperandLayout | None, OperandLayout | None]:
        """The layouts into which a call copies the operand of the vectors, and the other one; None without a copy."""
        vectors = None if self.has_packed_vectors or not self.tile.layout.copied else self.tile.layout
        return vectors, self.other if self.other is not None and self.other.copied else None

    @property
    def shared(self) -> bool:
        """True if several threads run the kernel, or a part of it."""
        return self.threads > 1 and (self.tiles_shared or any(map(self.copy_shared, self.copies)))

    @property
    def tiles_shared(self) -> bool:
        """True if several threads compute the tiles."""
        return self.threads > 1 and self.form.flops >= MIN_PARALLEL_FLOPS

    def copy_shared(self, layout: OperandLayout | None) -> bool:
        """True if several threads copy an operand into *layout*."""
        return self.threads > 1 and layout is not None and layout.size >= MIN_PARALLEL_COPY_ELEMENTS

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
        if self.packed_operand is None:
            return ()
        loops = [b for b in self.blocks if b.count > 1 or b.iterator in (self.tile.slot, self.tile.row)]
        every = (*loops, *(BlockLoop(y, 1) for y in self.sums))
        return packed_regions(self.form, self.tile, self.packed_operand, self.steps, every)

    @cached_property
    def sides(self) -> tuple[Tensor, ...]:
        """The tensors that the epilogue reads."""
        return tuple({t.name: t for t, _ in self._side_reads}.values())

    @property
    def _side_reads(self) -> tuple[tuple[Tensor, tuple[Index, ...]], ...]:
        reads = dict.fromkeys((a.source, a.index) for a in accesses(self.form.epilogue) if a.source != SUM_RESULT)
        return tuple((source, index) for source, index in reads if isinstance(source, Tensor))

    @cached_property
    def far_sides(self) -> tuple[tuple[Tensor, tuple[Index, ...]], ...]:
        """The large inputs of the epilogue that are read along the rows of the result; none with phases."""
        form = self.form
        if any(p > 1 for p in form.periods):
            return ()
        return tuple(
            (source, index)
            for source, index in self._side_reads
            if prod(source.shape) * ELEMENT_BYTES >= MIN_FAR_BYTES and index[-1].coefficient(form.outside[-1]) == 1
        )

    @property
    def is_far(self) -> bool:
        """True if the packed operand is read from beyond the first-level cache."""
        return self.packed_operand is not None and self.packed * ELEMENT_BYTES >= MIN_FAR_BYTES

    @cached_property
    def sharing(self) -> tuple[BlockLoop, ...]:
        """The innermost loops outside the sums, if the packed operand does not move along them: its readers."""
        packed = self.packed_operand
        if packed is None or self.tile.slots_outside == (packed == self.tile.vector):
            return ()
        mine, other = self.form.moves(packed), self.form.moves(1 - packed)
        return tuple(b for b in self.blocks if b.iterator in other - mine)

    @cached_property
    def sum_blocks(self) -> int:
        """Blocks of the outermost loop of the sum; all tiles that share packed elements compute one before the next.

        More than one if these elements would displace one another, and the other operand, from the second-level cache.
        Partial sums stay in a buffer, so that the order of additions does not change.
        """
        if not self.sharing or not self.sums or len(self.tile.groups) > 1:
            return 1
        first, readers = self.sums[0], prod(b.count for b in self.sharing)
        (region,), packed = self.regions, self.packed_operand
        assert packed is not None
        mine = [y for y in self.sums if y in self.form.moves(packed)]
        panel = region.inside * prod(y.extent for y in mine) * ELEMENT_BYTES
        least = -(-panel // MAX_PANEL_BYTES)
        if least == 1 or first not in mine or readers == 1 or self.partial_sums * ELEMENT_BYTES > MAX_PANEL_BYTES:
            return 1
        return next((n for n in range(least, 2 * least + 1) if first.extent % n == 0), 1)

    @property
    def partial_sums(self) -> int:
        """Elements of the partial sums of the tiles that share packed elements."""
        return prod(b.count for b in self.sharing) * self.tile.sums * self.tile.lanes

    @cached_property
    def prefetch_stride(self) -> int:
        """Elements of the packed operand that a step prefetches, 0 if they are near: of what the next tiles read.

        The tiles that read the same elements share this work evenly, so that memory is busy all the time.  A tile that
        reads its elements alone prefetches what it reads itself, a fixed distance ahead.
        """
        if not self.is_far:
            return 0
        return -(-max(region.inside for region in self.regions) // prod(b.count for b in self.sharing))

    @property
    def packed(self) -> int:
        """The elements of the packed operand; one, never read, if all its products are zero."""
        return max(1, sum(r.size for r in self.regions))


def plan_contraction(
    form: SumOfProducts, tile: RegisterTile, threads: int, constant: Collection[str] = ()
) -> ContractionPlan | None:
    """Return the plan of *tile*, where an operand in *constant* is packed if it is not much larger then, or None."""
    if form.operands[1 - tile.vector].name in constant:
        return ContractionPlan(form, tile, None, threads)
    last = form.traversals[-1]
    along = last if last in form.moves(1 - tile.vector) else None
    # A copy has spare elements, which vectors wider than the rows read.
    wide = along is not None and tile.lanes > last.extent
    other = None if wide else in_place_layout(form, 1 - tile.vector, along)
    copy = padded_copy_layout(form, 1 - tile.vector, along)
    if other is None or (copy is not None and _is_read_sparsely(form, tile, copy)):
        other = copy
    if other is None:
        return None
    plan, vectors = ContractionPlan(form, tile, other, threads), form.operands[tile.vector]
    packed = replace(plan, has_packed_vectors=True)
    if vectors.name not in constant or packed.packed > MAX_PACKED_RATIO * prod(vectors.shape):
        return plan
    return replace(packed, tile=replace(tile, slots_outside=False)) if packed.is_far else packed


def _is_read_sparsely(form: SumOfProducts, tile: RegisterTile, copy: OperandLayout) -> bool:
    """True if tiles often read elements that are in *copy*, and none between them."""
    sizes = {form.traversals[-1]: tile.lanes * tile.vectors, tile.row: tile.rows}
    readers = (x for x in form.traversals if x not in form.moves(1 - tile.vector))
    times = prod(-(-x.extent // sizes.get(x, 1)) for x in readers)
    return times >= MIN_SPARSE_READS and any(axis.modulus > 1 for axis in copy.axes)


@dataclass(frozen=True)
class _PartialSums:
    """The *buffer* of the partial sums, a tile after the other, and the number of the *block* of the sum."""

    buffer: TvmObject
    block: TvmObject


@dataclass(frozen=True)
class _Writer:
    """Writes the kernel of *plan* from *operands* (the one that is read in vectors, the other one) and *sides*."""

    plan: ContractionPlan
    operands: tuple[TvmObject, TvmObject]
    sides: Mapping[str, TvmObject]
    result: TvmObject

    @property
    def last(self) -> Iterator:
        """The traversal along the lanes."""
        return self.plan.form.traversals[-1]

    @property
    def tile(self) -> RegisterTile:
        return self.plan.tile

    @cached_property
    def is_wide(self) -> bool:
        """True if the other operand moves along the lanes, too."""
        return self.last in self.plan.form.moves(1 - self.tile.vector)

    def copied(self) -> _Writer:
        """Write the copies of operands, and return the writer that reads them."""
        first, second = map(self._copied, self.plan.copies, self.operands)
        return replace(self, operands=(first, second))

    def _copied(self, layout: OperandLayout | None, source: TvmObject) -> TvmObject:
        """Copy the elements inside the tensor's box into *layout*, with zeros around them, if it is a copy."""
        if layout is None:
            return source
        target = T.alloc_buffer((layout.size + 2 * self.tile.lanes,))  # vectors may extend past the last row
        box, shape = layout.tensor.box, layout.tensor.shape
        *outer, (axis, _) = zip(layout.axes, layout.strides, strict=True)
        lo, hi = box[axis.dim]
        step = prod(shape[axis.dim + 1 :]) * axis.modulus
        at = start = tirx.const(0, "int32")
        tests: list[TvmObject] = []
        shared = self.plan.copy_shared(layout)
        with ExitStack() as inside:
            for a, stride in outer:
                if not a.high:
                    continue
                x = inside.enter_context((T.parallel if shared and a.extent > 1 else T.serial)(a.extent))
                shared = shared and a.extent == 1
                first, end = box[a.dim]
                at = at + x * stride
                start = start + (x * a.modulus + (a.lo - first)) * prod(shape[a.dim + 1 :])
                tests += [x * a.modulus >= first - a.lo] if a.lo < first else []
                tests += [x * a.modulus < end - a.lo] if a.lo + (a.extent - 1) * a.modulus >= end else []
            low, remainders = next(((stride, a.extent) for a, stride in outer if not a.high), (0, 1))
            for q in range(remainders):
                # Positions m·i + q, counted from the start of what is read, that lie in the box.
                begin = min(axis.extent, max(0, -((axis.lo + q - lo) // axis.modulus)))
                end = max(begin, min(axis.extent, -((axis.lo + q - hi) // axis.modulus)))
                here = at + q * low
                origin = start + (axis.lo + q - lo) * (step // axis.modulus)
                copy = partial(_copy_element, target, here, source, origin, step)
                zero = partial(_clear_element, target, here)
                chunks = ((zero, 0, begin), (copy, begin, end), (zero, end, axis.extent))
                if not tests:
                    self._vector_chunks(*chunks)
                    continue
                with T.If(tirx.all(*tests)):
                    with T.Then():
                        self._vector_chunks(*chunks)
                    with T.Else():
                        self._vector_chunks((zero, 0, axis.extent))
        return target

    def _vector_chunks(self, *chunks: tuple[Callable[[TvmObject], None], int, int]) -> None:
        """Run ``store(i)`` for every i in each range, in vectors; the last one may overlap its predecessor."""
        lanes = self.tile.lanes
        for store, first, end in chunks:
            begin, count = first, end - first
            if count >= lanes:
                with T.serial(count // lanes) as block, T.vectorized(lanes) as lane:
                    store(block * lanes + lane + begin)
                begin, count = (end, 0) if count % lanes == 0 else (end - lanes, lanes)
            if count:
                with T.vectorized(count) as lane:
                    store(lane + begin)

    def tiles(self) -> None:
        """Write the loops over tiles."""
        plan = self.plan
        loops = [b for b in plan.blocks if b.count > 1]
        inner = [b for b in loops if b in plan.sharing] if plan.sum_blocks > 1 else []
        outer = loops[: len(loops) - len(inner)]
        counts = [b.count for b in outer]
        shared = 0
        if plan.tiles_shared:
            wanted = TILES_PER_THREAD * plan.threads
            shared = next((n for n in range(1, len(outer) + 1) if prod(counts[:n]) >= wanted), len(outer))
        with ExitStack() as inside:
            block: dict[Iterator, TvmObject] = {}
            if shared:
                one = inside.enter_context(T.parallel(prod(counts[:shared])))
                for n, b in enumerate(outer[:shared]):
                    digit = tirx.truncmod(tirx.truncdiv(one, prod(counts[n + 1 : shared])), b.count)
                    block[b.iterator] = T.bind(digit)
            block |= {b.iterator: inside.enter_context(T.serial(b.count)) for b in outer[shared:]}
            partial_sums = None
            if plan.sum_blocks > 1:
                buffer = T.alloc_buffer((plan.partial_sums,))
                partial_sums = _PartialSums(buffer, inside.enter_context(T.serial(plan.sum_blocks)))
            block |= {b.iterator: inside.enter_context(T.serial(b.count)) for b in inner}
            env: dict[Iterator, TvmObject] = {}
            for b in plan.blocks:
                at = block.get(b.iterator, tirx.const(0, "int32"))
                if b.count > 1 and b.size > 1:
                    whole = b.iterator.extent % b.size == 0
                    at = T.bind(at * b.size if whole else tirx.min(at * b.size, b.iterator.extent - b.size))
                env[b.iterator] = at
            for n in range(len(self.tile.groups)):
                # A loop of one step: buffers of several groups get scopes of their own.
                with T.serial(1) if len(self.tile.groups) > 1 else nullcontext():
                    self._phase_group(n, env, block, partial_sums)

    def _phase_group(self, n: int, env: Environment, block: Environment, partial_sums: _PartialSums | None) -> None:
        """Write one tile of the phases of group *n*: clear, sum, store; with *partial_sums*, one block of the sum."""
        tile, plan, steps = self.tile, self.plan, self.plan.steps[n]
        phases = tuple(dict.fromkeys((*(tap.phase for tap in steps), *tile.groups[n])))
        keys = product(phases, range(tile.rows), range(tile.vectors), range(tile.slots))
        sums = {key: T.alloc_buffer((tile.lanes,)) for key in keys}
        if partial_sums is None:
            self._clear(sums)
        else:
            places = [(self._sharing_tile(block) * len(sums) + k) * tile.lanes for k in range(len(sums))]
            with T.If(partial_sums.block == 0):
                with T.Then():
                    self._clear(sums)
                with T.Else():
                    for total, at in zip(sums.values(), places, strict=True):
                        store_vector(total, load_vector(partial_sums.buffer, at, tile.lanes), 0, tile.lanes)
        if steps:  # otherwise all that is read lies outside of its tensor
            with ExitStack() as inside:
                extents = {y: y.extent // (plan.sum_blocks if y == plan.sums[0] else 1) for y in plan.sums}
                inner = {y: inside.enter_context(T.serial(extent)) for y, extent in extents.items()}
                start = dict.fromkeys(plan.sums, tirx.const(0, "int32"))
                if partial_sums is not None:
                    start[plan.sums[0]] = partial_sums.block * extents[plan.sums[0]]
                self._prefetch_packed(n, {**env, **start, **block}, block, extents, inner)
                self._prefetch_sides(env, extents, inner)
                self._multiply_add(n, {**env, **{y: start[y] + inner[y] for y in inner}}, block, sums)
        if partial_sums is None:
            self._write_sums(env, sums, phases)
            return
        with T.If(partial_sums.block == plan.sum_blocks - 1):
            with T.Then():
                self._write_sums(env, sums, phases)
            with T.Else():
                for total, at in zip(sums.values(), places, strict=True):
                    store_vector(partial_sums.buffer, load_vector(total, 0, tile.lanes), at, tile.lanes)

    def _clear(self, sums: Mapping[TvmObject, TvmObject]) -> None:
        """Write zeros to *sums*."""
        lanes = self.tile.lanes
        for total in sums.values():
            store_vector(total, tirx.Broadcast(tirx.const(0.0, "float32"), lanes), 0, lanes)

    def _sharing_tile(self, block: Environment) -> TvmObject:
        """Return the number of the tile among those that read the same packed elements."""
        loops = self.plan.sharing
        at = [block.get(b.iterator, tirx.const(0, "int32")) for b in loops]
        return _row_major_position(at, [b.count for b in loops])

    def _prefetch_packed(
        self, n: int, env: Environment, block: Environment, extents: Mapping[Iterator, int], step: Environment
    ) -> None:
        """Prefetch this step's share of what the next tiles read of the packed operand, or this one, alone: it follows.

        In *env* the sum is where its loops over *extents* begin; *step* is relative to that.
        """
        plan, stride, packed = self.plan, self.plan.prefetch_stride, self.plan.packed_operand
        if packed is None or not stride:
            return
        region, sums = plan.regions[n], [y for y in plan.sums if y in plan.form.moves(packed)]
        steps = prod(extents[y] for y in sums)
        ahead = region.inside * steps if plan.sharing else PREFETCH_DISTANCE
        following = _flat_position((region.start + ahead, dict(region.strides)), env)
        done = _row_major_position([step[y] for y in sums], [extents[y] for y in sums])
        at = (self._sharing_tile(block) * steps + done) * stride
        memory = self.operands[packed != plan.tile.vector]
        for line in range(0, stride, LINE_ELEMENTS):
            T.evaluate(prefetch_line(memory, following + at + line, cache=2 if plan.sharing else 1))

    def _prefetch_sides(self, env: Environment, extents: Mapping[Iterator, int], step: Environment) -> None:
        """Prefetch this *step*'s share of the lines that the tile's epilogue reads: they are far in a model."""
        tile, form, steps = self.tile, self.plan.form, prod(extents.values())
        lines = tile.rows * tile.slots
        done = _row_major_position(list(step.values()), list(extents.values()))
        for share in range(-(-lines // steps) if self.plan.far_sides else 0):
            line = tirx.truncdiv(done * lines, steps) + share
            moved = {tile.row: tirx.truncdiv(line, tile.slots), tile.slot: tirx.truncmod(line, tile.slots)}
            for n in range(tile.vectors):
                to = {**moved, self.last: vector_offsets(tile, self.last)[n]}
                outside = [env[x] + to.get(x, 0) for x in form.traversals]
                at = dict(zip(form.outside, outside, strict=True))
                for source, index in self.plan.far_sides:
                    place = _row_major_position([tvm_index(i, at) for i in index], source.shape)
                    T.evaluate(prefetch_line(self.sides[source.name], place))

    def _multiply_add(self, n: int, env: Environment, block: Environment, sums: Mapping[TvmObject, TvmObject]) -> None:
        """Write the multiply-adds of one step of the sum."""
        tile = self.tile
        positions = list(product(range(tile.rows), range(tile.vectors)))
        shared = {p: (0, p[1] if self.is_wide else 0) for p in positions}  # the first one with the same other element
        other = partial(self._other_operand, n, env if self.plan.other is not None else {**env, **block})

        def accumulate(total: TvmObject, a: TvmObject, b: TvmObject) -> None:
            store_vector(total, load_vector(total, 0, tile.lanes) + a * b, 0, tile.lanes)

        for _, run in groupby(enumerate(self.plan.steps[n]), key=lambda item: item[1].offset):
            these = list(run)
            each = list(product(these, range(tile.slots)))
            vector = partial(
                self._vector_operand, n, {**env, **block} if self.plan.has_packed_vectors else env, *these[0]
            )
            vectors = {p: T.bind(vector(*p)) for p in positions}
            for (at, tap), j in each:
                held = {p: T.bind(other(at, tap, j, p[1])) for p in dict.fromkeys(shared.values())}
                for p in positions:
                    accumulate(sums[tap.phase, *p, j], vectors[p], held[shared[p]])

    def _vector_operand(self, group: int, env: Environment, at: int, tap: Tap, row: int, n: int) -> TvmObject:
        """Return the vector that *tap*, number *at* of its *group*, reads in *row*."""
        tile = self.tile
        if self.plan.has_packed_vectors:
            region = self.plan.regions[group]
            start = region.start + ((at * tile.rows + row) * tile.vectors + n) * tile.lanes
            return load_vector(self.operands[0], _flat_position((start, dict(region.strides)), env), tile.lanes)
        found = _affine_address(tile.layout, self.plan.form.reads[tap.phase][tile.vector], tap.known)
        extra = vector_offsets(tile, self.last)[n]
        extra += found[1].get(tile.row, 0) * row if tile.row is not None else 0
        return load_vector(self.operands[0], _flat_position(found, env) + extra, tile.lanes)

    def _other_operand(self, n: int, env: Environment, at: int, tap: Tap, slot: int, vector: int) -> TvmObject:
        """Return the other operand's value: a broadcast element, or a vector if it moves along the lanes too."""
        tile, layout = self.tile, self.plan.other
        if layout is None:
            region = self.plan.regions[n]
            each = tile.vectors * tile.lanes if self.is_wide else 1
            start = region.start + (at * tile.slots + slot) * each + vector * tile.lanes * self.is_wide
            place = _flat_position((start, dict(region.strides)), env)
        else:
            found = _affine_address(layout, self.plan.form.reads[tap.phase][1 - tile.vector], tap.known)
            extra = found[1].get(tile.slot, 0) * slot if tile.slot is not None else 0
            extra += vector_offsets(tile, self.last)[vector] if self.is_wide else 0
            place = _flat_position(found, env) + extra
        if self.is_wide:
            return load_vector(self.operands[1], place, tile.lanes)
        return tirx.Broadcast(self.operands[1][place], tile.lanes)

    def _write_sums(self, env: Environment, sums: Mapping[TvmObject, TvmObject], phases: tuple[Phase, ...]) -> None:
        """Write the epilogue of every sum, and the stores."""
        form, tile = self.plan.form, self.tile
        wide = form.periods[-1]
        lanes = min(tile.lanes, self.last.extent)
        starts = dict.fromkeys(phase[:-1] for phase in phases)
        for start, row, n, slot in product(starts, range(tile.rows), range(tile.vectors), range(tile.slots)):
            moved = dict(env)
            for x, k in ((tile.row, row), (tile.slot, slot), (self.last, vector_offsets(tile, self.last)[n])):
                if x is not None:
                    moved[x] = moved[x] + k
            parts = [sums[(*start, q), row, n, slot] for q in range(wide)]
            outside = [moved[x] * p + q for x, p, q in zip(form.traversals, form.periods, (*start, 0), strict=True)]
            position = _row_major_position(outside, tuple(x.extent for x in form.outside))
            for q, part in enumerate(parts):
                if wide > 1 and form.epilogue == SUM_RESULT[()]:
                    continue
                with T.vectorized(lanes) as lane:
                    at = [*outside[:-1], outside[-1] + lane * wide + q]
                    value = self._epilogue_value(part[lane], at)
                    T.buffer_store(*((self.result, value, [position + lane]) if wide == 1 else (part, value, [lane])))
            if wide > 1:
                self._interleave_phases(parts, lanes, position)

    def _epilogue_value(self, total: TvmObject, at: Sequence[TvmObject]) -> TvmObject:
        """Return the epilogue at one element."""

        def read(source: Tensor | Table | Scope) -> Callable[..., TvmObject]:
            if source == SUM_RESULT:
                return lambda: total
            if not isinstance(source, Tensor):
                raise TypeError(f"{source!r} is no tensor")
            return lambda *where: self.sides[source.name][_row_major_position(where, source.shape)]

        return tvm_expression(self.plan.form.epilogue, dict(zip(self.plan.form.outside, at, strict=True)), read)

    def _interleave_phases(self, parts: Sequence[TvmObject], lanes: int, position: TvmObject) -> None:
        """Interleave the phases of a row: in registers if their number is a power of two."""
        wide, width = len(parts), self.tile.lanes
        if wide & (wide - 1):
            for q, part in enumerate(parts):
                if lanes == width:
                    place = tirx.Ramp(position + q, wide, width)
                    T.buffer_store(self.result, load_vector(part, 0, width), [place])
                    continue
                with T.serial(lanes) as lane:
                    T.buffer_store(self.result, part[lane], [position + lane * wide + q])
            return
        values = [load_vector(part, 0, width) for part in parts]
        while len(values) > 1:
            half = len(values) // 2
            order = [at for lane in range(width) for at in (lane, width + lane)]
            order = order[: lanes * wide] if half == 1 else order
            chosen = [tirx.const(i, "int32") for i in order]
            pairs = zip(values[:half], values[half:], strict=True)
            values, width = [T.bind(tirx.Shuffle([a, b], chosen)) for a, b in pairs], 2 * width
        store_vector(self.result, values[0], position, lanes * wide)


def _row_major_position(at: Sequence[TvmObject], shape: Sequence[int]) -> TvmObject:
    """Return the position of *at* in an array of *shape*."""
    steps = zip(at, row_major_strides(tuple(shape)), strict=True)
    return sum((i * step for i, step in steps), tirx.const(0, "int32"))


def _flat_position(address: FlatAddress, env: Environment) -> TvmObject:
    """Return *address* for iterators of the values *env*."""
    const, terms = address
    return sum((env[x] * k for x, k in terms.items()), tirx.const(0, "int32")) + const


def _affine_address(layout: OperandLayout, where: tuple[Index, ...], known: Mapping[Iterator, int]) -> FlatAddress:
    """Return the position of *where* in *layout*; the choice of the tile guarantees that it is affine."""
    found = layout.address(where, known)
    assert found is not None
    return found


def _clear_element(target: TvmObject, at: TvmObject, i: TvmObject) -> None:
    T.buffer_store(target, tirx.const(0.0, "float32"), [at + i])


def _copy_element(
    target: TvmObject, at: TvmObject, source: TvmObject, origin: TvmObject, step: int, i: TvmObject
) -> None:
    """Copy element *i* of elements that are *step* apart."""
    T.buffer_store(target, source[origin + i * step], [at + i])


TILES_PER_THREAD = 8
"""Tiles of a thread, at least."""


def contraction_function(plan: ContractionPlan) -> TvmObject:
    """Return the PrimFunc of *plan*: vector operand, other operand (packed or not), the epilogue's tensors, result."""
    vector, other = (prod(plan.form.operands[n].shape) for n in (plan.tile.vector, 1 - plan.tile.vector))
    sizes = {"vector": vector, "other": other}
    if plan.packed_operand is not None:
        sizes["vector" if plan.has_packed_vectors else "other"] = plan.packed
    sizes |= {f"side {t.name}": prod(t.shape) for t in plan.sides}

    def write(places: Mapping[str, TvmObject], result: TvmObject) -> None:
        first, second, *_ = places.values()
        sides = {t.name: places[f"side {t.name}"] for t in plan.sides}
        _Writer(plan, (first, second), sides, result).copied().tiles()

    shapes = {name: (max(1, size),) for name, size in sizes.items()}
    return tvm_function(shapes, (prod(x.extent for x in plan.form.outside),), write)
