"""What becomes of finished sums: the epilogue, and the stores; phases are woven into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from tvm import tirx

from einnet_explore.backends import emit
from einnet_explore.backends.tiled.context import At, Context, Expr, Statement, flat, serial, vectorized
from einnet_explore.ir import Access, Tensor, accesses
from einnet_explore.kernels.core import RESULT
from einnet_explore.kernels.form import Phase
from einnet_explore.kernels.packing import offsets


def write(context: Context, env: At, sums: Mapping[Any, Expr], phases: tuple[Phase, ...]) -> list[Statement]:
    """The epilogue of every sum, and the stores."""
    form, tile = context.plan.form, context.plan.tile
    wide = form.periods[-1]
    out: list[Statement] = []
    lanes = min(tile.lanes, context.last.extent)
    starts = dict.fromkeys(phase[:-1] for phase in phases)
    for start, row, n, slot in product(starts, range(tile.rows), range(tile.vectors), range(tile.slots)):
        moved = dict(env)
        for x, k in ((tile.row, row), (tile.slot, slot), (context.last, offsets(tile, context.last)[n])):
            if x is not None:
                moved[x] = moved[x] + k
        parts = [sums[(*start, q), row, n, slot] for q in range(wide)]
        outside = [moved[x] * p + q for x, p, q in zip(form.traversals, form.periods, (*start, 0), strict=True)]
        position = flat(outside, tuple(x.extent for x in form.outside))
        for q, part in enumerate(parts):
            lane = context.variable("l")
            at = [*outside[:-1], outside[-1] + lane * wide + q]
            value = _finished(context, part, lane, at)
            if wide == 1:
                store = tirx.BufferStore(context.result, value, [position + lane])
            elif form.epilogue != RESULT[()]:
                store = tirx.BufferStore(part, value, [lane])
            else:
                continue
            out.append(vectorized(lane, lanes, store))
        if wide > 1:
            out += _woven(context, parts, lanes, position)
    return out


def _finished(context: Context, part: Expr, lane: Expr, at: Sequence[Expr]) -> Expr:
    """The epilogue at one element."""
    form = context.plan.form
    if form.epilogue == RESULT[()]:
        return tirx.BufferLoad(part, [lane])
    places: dict[str, Any] = {"": lambda: tirx.BufferLoad(part, [lane])}
    for access in accesses(form.epilogue):
        if access.source != RESULT:
            places[_source(access).name] = _side(context, access)
    stages = emit.Stages(places, "float32", {}, {})
    return stages.scalar(form.epilogue, dict(zip(form.outside, at, strict=True)))


def _side(context: Context, access: Access) -> Any:
    source = _source(access)
    return lambda *at: tirx.BufferLoad(context.sides[source.name], [flat(at, source.shape)])


def _woven(context: Context, parts: Sequence[Expr], lanes: int, position: Expr) -> list[Statement]:
    """The phases of a row side by side: woven in registers if there are 2, 4, 8 … of them."""
    wide = len(parts)
    out: list[Statement] = []
    values = [tirx.BufferLoad(part, [context.lanes(0)]) for part in parts]
    if wide & (wide - 1):
        places = [tirx.Ramp(position + q, wide, context.plan.tile.lanes) for q in range(wide)]
        if lanes == context.plan.tile.lanes:
            return [tirx.BufferStore(context.result, v, [at]) for v, at in zip(values, places, strict=True)]
        for q, part in enumerate(parts):
            lane = context.variable("l")
            store = tirx.BufferStore(context.result, tirx.BufferLoad(part, [lane]), [position + lane * wide + q])
            out.append(serial(lane, lanes, store))
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


def _source(access: Access) -> Tensor:
    if not isinstance(access.source, Tensor):
        raise TypeError(f"{access!r} reads a scope")
    return access.source
