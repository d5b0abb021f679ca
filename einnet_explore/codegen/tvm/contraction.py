"""Register-tiled contractions as TVM statements: sums in registers, operands in vectors.

Every sum is a buffer of one vector on the stack, which LLVM keeps in a register (TVM 0.27 allocates a buffer of 1 KB
and more, or one of "local" scope, on the heap in every call). A kernel copies operands into padded layouts, loops over
tiles, sums the products of each, applies the epilogue, and interleaves the phases of a row in its stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from math import prod

from tvm import tirx

from einnet_explore.codegen.register_tiles import FlatAddress, OperandLayout, Tap
from einnet_explore.codegen.sum_of_products import SUM_RESULT, Phase
from einnet_explore.codegen.tvm import TvmObject, emission
from einnet_explore.codegen.tvm.contraction_plan import (
    ContractionContext,
    ContractionPlan,
    flat_position,
    parallel_loop,
    row_major_position,
    serial_loop,
    statement_sequence,
    vector_loop,
    vector_offsets,
)
from einnet_explore.codegen.tvm.emission import Environment
from einnet_explore.ir import Access, Index, Iterator, Tensor, accesses


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
    stages = emission.StageBuilder(places, "float32", {}, {})
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
