"""Register-tiled contractions as TVM statements: sums in registers, operands in vectors.

A plan has the loops, the steps, and the constants packed in the order of reads.  Its kernel copies operands into padded
layouts, loops over tiles, sums the products of each, applies the epilogue, and interleaves the phases of a row in its
stores.

Every sum is a buffer of one vector on the stack, which LLVM keeps in a register (TVM 0.27 allocates a buffer of 1 KB
and more, or one of "local" scope, on the heap in every call).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count, groupby, product
from math import prod

import numpy as np
import numpy.typing as npt

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
from einnet_explore.codegen.sum_of_products import SUM_RESULT, Phase, SumOfProducts
from einnet_explore.codegen.tvm import TvmObject, emission
from einnet_explore.codegen.tvm.emission import Environment
from einnet_explore.ir import Access, Index, Iterator, Tensor, accesses
from einnet_explore.support.lazy_modules import LazyModule

tirx = LazyModule("tvm.tirx")

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


def copy_operand(context: ContractionContext, layout: OperandLayout, source: TvmObject, target: TvmObject) -> TvmObject:
    """Copy the elements inside the tensor's box into the layout, with zeros around them."""
    box, shape = layout.tensor.box, layout.tensor.shape
    *outer, last = zip(layout.axes, layout.strides, strict=True)
    axis, _ = last
    lo, hi = box[axis.dim]
    step = prod(shape[axis.dim + 1 :]) * axis.modulus
    loops = [(context.variable("i"), a, stride) for a, stride in outer if a.high]
    at: TvmObject = tirx.const(0, "int32")
    start: TvmObject = tirx.const(0, "int32")
    inside: list[TvmObject] = []
    for x, a, stride in loops:
        first, end = box[a.dim]
        at = at + x * stride
        start = start + (x + (a.lo - first)) * prod(shape[a.dim + 1 :])
        inside += [x >= first - a.lo] if a.lo < first else []
        inside += [x < end - a.lo] if a.lo + a.extent > end else []
    low = next((stride for a, stride in outer if not a.high), 0)
    rows: list[TvmObject] = []
    for q in range(axis.modulus):
        # Positions m·i + q, counted from the start of what is read, that lie in the box.
        begin = min(axis.extent, max(0, -((axis.lo + q - lo) // axis.modulus)))
        end = max(begin, min(axis.extent, -((axis.lo + q - hi) // axis.modulus)))
        here = at + q * low
        origin = start + (axis.lo + q - lo) * (step // axis.modulus)
        row = [
            *_fill_zeros(context, target, here, 0, begin),
            *_vector_chunks(context, begin, end, partial(_copy_element, target, here, source, origin, step)),
            *_fill_zeros(context, target, here, end, axis.extent),
        ]
        if inside:
            empty = statement_sequence(_fill_zeros(context, target, here, 0, axis.extent))
            row = [tirx.IfThenElse(tirx.all(*inside), statement_sequence(row), empty)]
        rows += row
    body = statement_sequence(rows)
    shared = next((x for x, a, _ in loops if a.extent > 1), None) if context.plan.copy_shared(layout) else None
    for x, a, _ in reversed(loops):
        body = (parallel_loop if x is shared else serial_loop)(x, a.extent, body)
    return body


def _fill_zeros(context: ContractionContext, target: TvmObject, at: TvmObject, begin: int, end: int) -> list[TvmObject]:
    """Store zeros from *begin* to *end*."""
    zero = tirx.const(0.0, "float32")
    return _vector_chunks(context, begin, end, lambda i: tirx.BufferStore(target, zero, [at + i]))


def _copy_element(
    target: TvmObject, at: TvmObject, source: TvmObject, origin: TvmObject, step: int, i: TvmObject
) -> TvmObject:
    """Copy element *i* of elements that are *step* apart."""
    return tirx.BufferStore(target, tirx.BufferLoad(source, [origin + i * step]), [at + i])


def _vector_chunks(
    context: ContractionContext, begin: int, end: int, store: Callable[[TvmObject], TvmObject]
) -> list[TvmObject]:
    """Run ``store(i)`` for every i, in vectors; the last one may overlap its predecessor."""
    count, lanes = end - begin, context.plan.tile.lanes
    out: list[TvmObject] = []
    if count >= lanes:
        block, lane = context.variable("i"), context.variable("l")
        one = vector_loop(lane, lanes, store(block * lanes + lane + begin))
        out.append(serial_loop(block, count // lanes, one))
        begin = begin if count % lanes == 0 else end - lanes
        count = lanes if count % lanes else 0
    if count:
        lane = context.variable("l")
        out.append(vector_loop(lane, count, store(lane + begin)))
    return out


def multiply_add_step(
    context: ContractionContext, n: int, env: Environment, block: Environment, sums: Mapping[TvmObject, TvmObject]
) -> list[TvmObject]:
    """Return the multiply-adds of one step of the sum."""
    tile = context.plan.tile
    out: list[TvmObject] = []
    positions = list(product(range(tile.rows), range(tile.vectors)))
    group = list(enumerate(context.plan.steps[n]))
    other_env = env if context.plan.other is not None else {**env, **block}
    for _, run in groupby(group, key=lambda item: item[1].offset):
        these = list(run)
        if len(positions) <= len(these) * tile.slots:
            vectors = {p: context.let(out, _vector_operand(context, these[0][1], *p, env)) for p in positions}
            for (at, tap), j in product(these, range(tile.slots)):
                scalars = {
                    p: _other_operand(context, n, at, tap, j, p[1], other_env)
                    for p in _distinct_positions(context, positions)
                }
                held = {p: context.let(out, value) for p, value in scalars.items()}
                for p in positions:
                    _accumulate(context, out, sums[tap.phase, *p, j], vectors[p], held[_shared_position(context, p)])
        else:
            others = {
                (at, j, p): context.let(out, _other_operand(context, n, at, tap, j, p[1], other_env))
                for (at, tap), j, p in product(these, range(tile.slots), _distinct_positions(context, positions))
            }
            for p in positions:
                vector = context.let(out, _vector_operand(context, these[0][1], *p, env))
                for (at, tap), j in product(these, range(tile.slots)):
                    _accumulate(
                        context, out, sums[tap.phase, *p, j], vector, others[at, j, _shared_position(context, p)]
                    )
    return out


def _shared_position(context: ContractionContext, position: tuple[int, int]) -> tuple[int, int]:
    """Return the first position with the same element of the other operand."""
    return (0, position[1]) if context.last in context.plan.form.moves(1 - context.plan.tile.vector) else (0, 0)


def _distinct_positions(context: ContractionContext, positions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return list(dict.fromkeys(_shared_position(context, p) for p in positions))


def _accumulate(
    context: ContractionContext, out: list[TvmObject], total: TvmObject, a: TvmObject, b: TvmObject
) -> None:
    at = [context.lanes(0)]
    out.append(tirx.BufferStore(total, tirx.BufferLoad(total, at) + a * b, at))


def _vector_operand(context: ContractionContext, tap: Tap, row: int, n: int, env: Environment) -> TvmObject:
    """Return the vector that *tap* reads in *row*."""
    tile = context.plan.tile
    found = affine_address(tile.layout, context.plan.form.reads[tap.phase][tile.vector], tap.known)
    extra = vector_offsets(tile, context.last)[n]
    extra += found[1].get(tile.row, 0) * row if tile.row is not None else 0
    return tirx.BufferLoad(context.operands[0], [context.lanes(flat_position(found, env) + extra)])


def _other_operand(
    context: ContractionContext,
    n: int,
    at: int,
    tap: Tap,
    slot: int,
    vector: int,
    env: Environment,
) -> TvmObject:
    """Return the other operand's value: a broadcast element, or a vector if it moves along the lanes too."""
    tile, layout = context.plan.tile, context.plan.other
    wide = context.last in context.plan.form.moves(1 - tile.vector)
    if layout is None:
        region = context.plan.regions[n]
        each = tile.vectors * tile.lanes if wide else 1
        place = tirx.const(region.start + (at * tile.slots + slot) * each + vector * tile.lanes * wide, "int32")
        for x, stride in region.strides.items():
            place = place + env[x] * stride
    else:
        found = affine_address(layout, context.plan.form.reads[tap.phase][1 - tile.vector], tap.known)
        extra = found[1].get(tile.slot, 0) * slot if tile.slot is not None else 0
        extra += vector_offsets(tile, context.last)[vector] if wide else 0
        place = flat_position(found, env) + extra
    if wide:
        return tirx.BufferLoad(context.operands[1], [context.lanes(place)])
    return tirx.Broadcast(tirx.BufferLoad(context.operands[1], [place]), tile.lanes)


def affine_address(layout: OperandLayout, where: tuple[Index, ...], known: Mapping[Iterator, int]) -> FlatAddress:
    """Return the position of *where* in *layout*; the choice of the tile guarantees that it is affine."""
    found = layout.address(where, known)
    assert found is not None
    return found


def write_sums(
    context: ContractionContext, env: Environment, sums: Mapping[TvmObject, TvmObject], phases: tuple[Phase, ...]
) -> list[TvmObject]:
    """Return the epilogue of every sum, and the stores."""
    form, tile = context.plan.form, context.plan.tile
    wide = form.periods[-1]
    out: list[TvmObject] = []
    lanes = min(tile.lanes, context.last.extent)
    starts = dict.fromkeys(phase[:-1] for phase in phases)
    for start, row, n, slot in product(starts, range(tile.rows), range(tile.vectors), range(tile.slots)):
        moved = dict(env)
        for x, k in ((tile.row, row), (tile.slot, slot), (context.last, vector_offsets(tile, context.last)[n])):
            if x is not None:
                moved[x] = moved[x] + k
        parts = [sums[(*start, q), row, n, slot] for q in range(wide)]
        outside = [moved[x] * p + q for x, p, q in zip(form.traversals, form.periods, (*start, 0), strict=True)]
        position = row_major_position(outside, tuple(x.extent for x in form.outside))
        for q, part in enumerate(parts):
            lane = context.variable("l")
            at = [*outside[:-1], outside[-1] + lane * wide + q]
            value = _epilogue_value(context, part, lane, at)
            if wide == 1:
                store = tirx.BufferStore(context.result, value, [position + lane])
            elif form.epilogue != SUM_RESULT[()]:
                store = tirx.BufferStore(part, value, [lane])
            else:
                continue
            out.append(vector_loop(lane, lanes, store))
        if wide > 1:
            out += _interleave_phases(context, parts, lanes, position)
    return out


def _epilogue_value(
    context: ContractionContext, part: TvmObject, lane: TvmObject, at: Sequence[TvmObject]
) -> TvmObject:
    """Return the epilogue at one element."""
    form = context.plan.form
    if form.epilogue == SUM_RESULT[()]:
        return tirx.BufferLoad(part, [lane])
    places: dict[str, TvmObject] = {"": lambda: tirx.BufferLoad(part, [lane])}
    for access in accesses(form.epilogue):
        if access.source != SUM_RESULT:
            places[_tensor_source(access).name] = _side_reader(context, access)
    stages = emission.StageBuilder(places, {}, {})
    return stages.scalar(form.epilogue, dict(zip(form.outside, at, strict=True)))


def _side_reader(context: ContractionContext, access: Access) -> TvmObject:
    source = _tensor_source(access)
    return lambda *at: tirx.BufferLoad(context.sides[source.name], [row_major_position(at, source.shape)])


def _interleave_phases(
    context: ContractionContext, parts: Sequence[TvmObject], lanes: int, position: TvmObject
) -> list[TvmObject]:
    """Interleave the phases of a row: in registers if their number is a power of two."""
    wide = len(parts)
    out: list[TvmObject] = []
    values = [tirx.BufferLoad(part, [context.lanes(0)]) for part in parts]
    if wide & (wide - 1):
        places = [tirx.Ramp(position + q, wide, context.plan.tile.lanes) for q in range(wide)]
        if lanes == context.plan.tile.lanes:
            return [tirx.BufferStore(context.result, v, [at]) for v, at in zip(values, places, strict=True)]
        for q, part in enumerate(parts):
            lane = context.variable("l")
            store = tirx.BufferStore(context.result, tirx.BufferLoad(part, [lane]), [position + lane * wide + q])
            out.append(serial_loop(lane, lanes, store))
        return out
    width = context.plan.tile.lanes
    while len(values) > 1:
        half = len(values) // 2
        order = [at for lane in range(width) for at in (lane, width + lane)]
        if half == 1:
            order = order[: lanes * wide]
        woven = []
        for a, b in zip(values[:half], values[half:], strict=True):
            value = tirx.Shuffle([a, b], [tirx.const(i, "int32") for i in order])
            woven.append(context.let(out, value, len(order)))
        values, width = woven, 2 * width
    out.append(tirx.BufferStore(context.result, values[0], [tirx.Ramp(position, 1, lanes * wide)]))
    return out


def _tensor_source(access: Access) -> Tensor:
    if not isinstance(access.source, Tensor):
        raise TypeError(f"{access!r} reads a scope")
    return access.source


TILES_PER_THREAD = 8
"""Tiles of a thread, at least."""


def contraction_function(plan: ContractionPlan) -> TvmObject:
    """Return the PrimFunc of *plan*: vector operand, other operand (packed or not), the epilogue's tensors, result."""
    context = ContractionContext(plan)
    copies: list[TvmObject] = []
    for layout, source, target in zip((plan.tile.layout, plan.other), context.raw, context.operands, strict=True):
        if layout is not None and layout.copied:
            copies += [tirx.AllocBuffer(target), copy_operand(context, layout, source, target)]
    parameters = [*context.raw, *context.sides.values(), context.result]
    made = tirx.PrimFunc(parameters, statement_sequence([*copies, _tile_loops(context)]))
    return made.with_attr({"global_symbol": "main", "tir.noalias": True, "s_tir": True})


def _tile_loops(context: ContractionContext) -> TvmObject:
    """Return the loops over tiles."""
    loops = [b for b in context.plan.blocks if b.count > 1]
    variables = [context.variable("o") for _ in loops]
    block = dict(zip((b.iterator for b in loops), variables, strict=True))
    starts: list[TvmObject] = []
    env: dict[Iterator, TvmObject] = {}
    for b in context.plan.blocks:
        if b.count == 1:
            env[b.iterator] = tirx.const(0, "int32")
        elif b.size == 1:
            env[b.iterator] = block[b.iterator]
        else:
            env[b.iterator] = start = context.variable("s")
            at = block[b.iterator] * b.size
            whole = b.iterator.extent % b.size == 0
            starts.append(tirx.Bind(start, at if whole else tirx.min(at, b.iterator.extent - b.size)))
    parts = [_phase_group(context, n, env, block) for n in range(len(context.plan.tile.groups))]
    body = statement_sequence([*starts, *parts])
    counts = [b.count for b in loops]
    shared = 0
    if context.plan.tiles_shared:
        wanted = TILES_PER_THREAD * context.plan.threads
        shared = next((n for n in range(1, len(loops) + 1) if prod(counts[:n]) >= wanted), len(loops))
    for x, extent in reversed(list(zip(variables[shared:], counts[shared:], strict=True))):
        body = serial_loop(x, extent, body)
    if shared:
        one = context.variable("p")
        digits = [
            tirx.Bind(x, tirx.truncmod(tirx.truncdiv(one, prod(counts[n + 1 : shared])), counts[n]))
            for n, x in enumerate(variables[:shared])
        ]
        body = parallel_loop(one, prod(counts[:shared]), statement_sequence([*digits, body]))
    return body


def _phase_group(context: ContractionContext, n: int, env: Environment, block: Environment) -> TvmObject:
    """Return one tile of the phases of group *n*: clear, sum, store."""
    tile = context.plan.tile
    phases = dict.fromkeys(tap.phase for tap in context.plan.steps[n])
    phases |= dict.fromkeys(tile.groups[n])
    keys = list(product(phases, range(tile.rows), range(tile.vectors), range(tile.slots)))
    sums = {key: context.accumulator() for key in keys}
    zero = tirx.Broadcast(tirx.const(0.0, "float32"), tile.lanes)
    clear = [tirx.BufferStore(b, zero, [context.lanes(0)]) for b in sums.values()]
    inner = dict(env) | {y: context.variable("k") for y in context.plan.sums}
    added = multiply_add_step(
        context, n, inner, block, sums
    )  # nothing where all that is read lies outside of its tensor
    for y in reversed(context.plan.sums if added else ()):
        added = [serial_loop(inner[y], y.extent, statement_sequence(added))]
    allocate = [tirx.AllocBuffer(b) for b in sums.values()]
    whole = statement_sequence([*allocate, *clear, *added, *write_sums(context, env, sums, tuple(phases))])
    # A loop of one step: buffers of several groups get scopes of their own.
    return serial_loop(context.variable("g"), 1, whole) if len(tile.groups) > 1 else whole
