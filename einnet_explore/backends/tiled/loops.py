"""The loops over tiles, and the function around them."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from tvm import tirx

from einnet_explore.backends.tiled.context import (
    At,
    Context,
    Expr,
    Statement,
    parallel,
    sequence,
    serial,
)
from einnet_explore.backends.tiled.copies import copy
from einnet_explore.backends.tiled.plan import Plan
from einnet_explore.backends.tiled.steps import step
from einnet_explore.backends.tiled.writing import write
from einnet_explore.ir import Iterator

SHARES = 8
"""So many tiles, at least, a thread."""


def function(plan: Plan) -> Any:
    """The PrimFunc of *plan*: vector operand, other operand (packed or not), the epilogue's tensors, result."""
    context = Context(plan)
    copies: list[Statement] = []
    for layout, source, target in zip((plan.tile.layout, plan.other), context.raw, context.operands, strict=True):
        if layout is not None and layout.copied:
            copies += [tirx.AllocBuffer(target), copy(context, layout, source, target)]
    parameters = [*context.raw, *context.sides.values(), context.result]
    made = tirx.PrimFunc(parameters, sequence([*copies, _tiles(context)]))
    return made.with_attr({"global_symbol": "main", "tir.noalias": True, "s_tir": True})


def _tiles(context: Context) -> Statement:
    """The loops over tiles."""
    loops = [b for b in context.plan.blocks if b.count > 1]
    variables = [context.variable("o") for _ in loops]
    block = dict(zip((b.iterator for b in loops), variables, strict=True))
    starts: list[Statement] = []
    env: dict[Iterator, Expr] = {}
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
    parts = [_group(context, n, env, block) for n in range(len(context.plan.tile.groups))]
    body = sequence([*starts, *parts])
    counts = [b.count for b in loops]
    shared = 0
    if context.plan.tiles_shared:
        wanted = SHARES * context.plan.threads
        shared = next((n for n in range(1, len(loops) + 1) if prod(counts[:n]) >= wanted), len(loops))
    for x, extent in reversed(list(zip(variables[shared:], counts[shared:], strict=True))):
        body = serial(x, extent, body)
    if shared:
        one = context.variable("p")
        digits = [
            tirx.Bind(x, tirx.truncmod(tirx.truncdiv(one, prod(counts[n + 1 : shared])), counts[n]))
            for n, x in enumerate(variables[:shared])
        ]
        body = parallel(one, prod(counts[:shared]), sequence([*digits, body]))
    return body


def _group(context: Context, n: int, env: At, block: At) -> Statement:
    """One tile of the phases of group *n*: clear, sum, write."""
    tile = context.plan.tile
    phases = dict.fromkeys(tap.phase for tap in context.plan.steps[n])
    phases |= dict.fromkeys(tile.groups[n])
    keys = list(product(phases, range(tile.rows), range(tile.vectors), range(tile.slots)))
    sums = {key: context.accumulator() for key in keys}
    zero = tirx.Broadcast(tirx.const(0.0, "float32"), tile.lanes)
    clear = [tirx.BufferStore(b, zero, [context.lanes(0)]) for b in sums.values()]
    inner = dict(env) | {y: context.variable("k") for y in context.plan.sums}
    added = step(context, n, inner, block, sums)  # nothing where all that is read lies outside of its tensor
    for y in reversed(context.plan.sums if added else ()):
        added = [serial(inner[y], y.extent, sequence(added))]
    allocate = [tirx.AllocBuffer(b) for b in sums.values()]
    whole = sequence([*allocate, *clear, *added, *write(context, env, sums, tuple(phases))])
    # A loop of one step: buffers of several groups get scopes of their own.
    return serial(context.variable("g"), 1, whole) if len(tile.groups) > 1 else whole
