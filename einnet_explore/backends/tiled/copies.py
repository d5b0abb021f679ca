"""Padded copies of operands: rows moved in vectors, zeros around them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm import tirx

from einnet_explore.backends.tiled.context import Context, Expr, Statement, parallel, sequence, serial, vectorized
from einnet_explore.kernels.layout import Layout


def copy(context: Context, layout: Layout, source: Expr, target: Expr) -> Statement:
    """What lies inside the tensor's box, put where the layout has it, and zeros around it."""
    box, shape = layout.tensor.box, layout.tensor.shape
    *outer, last = zip(layout.axes, layout.strides, strict=True)
    axis, _ = last
    lo, hi = box[axis.dim]
    step = prod(shape[axis.dim + 1 :]) * axis.modulus
    loops = [(context.variable("i"), a, stride) for a, stride in outer if a.high]
    at: Expr = tirx.const(0, "int32")
    start: Expr = tirx.const(0, "int32")
    inside: list[Expr] = []
    for x, a, stride in loops:
        first, end = box[a.dim]
        at = at + x * stride
        start = start + (x + (a.lo - first)) * prod(shape[a.dim + 1 :])
        inside += [x >= first - a.lo] if a.lo < first else []
        inside += [x < end - a.lo] if a.lo + a.extent > end else []
    low = next((stride for a, stride in outer if not a.high), 0)
    rows: list[Statement] = []
    for q in range(axis.modulus):
        # Positions m·i + q, counted from the start of what is read, that lie in the box.
        begin = min(axis.extent, max(0, -((axis.lo + q - lo) // axis.modulus)))
        end = max(begin, min(axis.extent, -((axis.lo + q - hi) // axis.modulus)))
        here = at + q * low
        origin = start + (axis.lo + q - lo) * (step // axis.modulus)
        row = [
            *_fill(context, target, here, 0, begin),
            *_moved(context, target, here, source, origin, step, begin, end),
            *_fill(context, target, here, end, axis.extent),
        ]
        if inside:
            empty = sequence(_fill(context, target, here, 0, axis.extent))
            row = [tirx.IfThenElse(tirx.all(*inside), sequence(row), empty)]
        rows += row
    body = sequence(rows)
    shared = next((x for x, a, _ in loops if a.extent > 1), None) if context.plan.copy_shared(layout) else None
    for x, a, _ in reversed(loops):
        body = (parallel if x is shared else serial)(x, a.extent, body)
    return body


def _fill(context: Context, target: Expr, at: Expr, begin: int, end: int) -> list[Statement]:
    """Zeros from *begin* to *end*."""
    zero = tirx.const(0.0, "float32")
    return _chunks(context, begin, end, lambda i: tirx.BufferStore(target, zero, [at + i]))


def _moved(
    context: Context, target: Expr, at: Expr, source: Expr, origin: Expr, step: int, begin: int, end: int
) -> list[Statement]:
    """Elements *step* apart, one after the other."""
    return _chunks(
        context, begin, end, lambda i: tirx.BufferStore(target, tirx.BufferLoad(source, [origin + i * step]), [at + i])
    )


def _chunks(context: Context, begin: int, end: int, store: Callable[[Expr], Statement]) -> list[Statement]:
    """``store(i)`` for every i, in vectors; the last one may overlap the one before."""
    count, lanes = end - begin, context.plan.tile.lanes
    out: list[Statement] = []
    if count >= lanes:
        block, lane = context.variable("i"), context.variable("l")
        one = vectorized(lane, lanes, store(block * lanes + lane + begin))
        out.append(serial(block, count // lanes, one))
        begin = begin if count % lanes == 0 else end - lanes
        count = lanes if count % lanes else 0
    if count:
        lane = context.variable("l")
        out.append(vectorized(lane, count, store(lane + begin)))
    return out
