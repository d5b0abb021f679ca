"""The multiply-adds of one step of a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, product
from typing import Any

from tvm import tirx

from einnet_explore.backends.tiled.context import At, Context, Expr, Statement, position
from einnet_explore.ir import Index, Iterator
from einnet_explore.kernels.layout import Address, Layout
from einnet_explore.kernels.packing import offsets
from einnet_explore.kernels.tile import Tap


def step(context: Context, n: int, env: At, block: At, sums: Mapping[Any, Expr]) -> list[Statement]:
    """The multiply-adds of one step of the sum."""
    tile = context.plan.tile
    out: list[Statement] = []
    positions = list(product(range(tile.rows), range(tile.vectors)))
    group = list(enumerate(context.plan.steps[n]))
    for _, run in groupby(group, key=lambda item: item[1].offset):
        these = list(run)
        if len(positions) <= len(these) * tile.slots:
            vectors = {p: context.let(out, _vector(context, these[0][1], *p, env)) for p in positions}
            for (at, tap), j in product(these, range(tile.slots)):
                scalars = {p: _other(context, n, at, tap, j, p[1], env, block) for p in _distinct(context, positions)}
                held = {p: context.let(out, value) for p, value in scalars.items()}
                for p in positions:
                    _add(context, out, sums[tap.phase, *p, j], vectors[p], held[_shared(context, p)])
        else:
            others = {
                (at, j, p): context.let(out, _other(context, n, at, tap, j, p[1], env, block))
                for (at, tap), j, p in product(these, range(tile.slots), _distinct(context, positions))
            }
            for p in positions:
                vector = context.let(out, _vector(context, these[0][1], *p, env))
                for (at, tap), j in product(these, range(tile.slots)):
                    _add(context, out, sums[tap.phase, *p, j], vector, others[at, j, _shared(context, p)])
    return out


def _shared(context: Context, position: tuple[int, int]) -> tuple[int, int]:
    """The first position that reads the same of the other operand."""
    return (0, position[1]) if context.last in context.plan.form.moves(1 - context.plan.tile.vector) else (0, 0)


def _distinct(context: Context, positions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return list(dict.fromkeys(_shared(context, p) for p in positions))


def _add(context: Context, out: list[Statement], total: Expr, a: Expr, b: Expr) -> None:
    at = [context.lanes(0)]
    out.append(tirx.BufferStore(total, tirx.BufferLoad(total, at) + a * b, at))


def _vector(context: Context, tap: Tap, row: int, n: int, env: At) -> Expr:
    """The vector that *tap* reads in *row*."""
    tile = context.plan.tile
    found = address(tile.layout, context.plan.form.reads[tap.phase][tile.vector], tap.known)
    extra = offsets(tile, context.last)[n]
    extra += found[1].get(tile.row, 0) * row if tile.row is not None else 0
    return tirx.BufferLoad(context.operands[0], [context.lanes(position(found, env) + extra)])


def _other(
    context: Context,
    n: int,
    at: int,
    tap: Tap,
    slot: int,
    vector: int,
    env: At,
    block: At,
) -> Expr:
    """The other operand's value: a broadcast element, or a vector where it moves along too."""
    tile, layout = context.plan.tile, context.plan.other
    wide = context.last in context.plan.form.moves(1 - tile.vector)
    if layout is None:
        region = context.plan.regions[n]
        each = tile.vectors * tile.lanes if wide else 1
        place = tirx.const(region.start + (at * tile.slots + slot) * each + vector * tile.lanes * wide, "int32")
        for x, stride in region.strides.items():
            place = place + block.get(x, env[x]) * stride
    else:
        found = address(layout, context.plan.form.reads[tap.phase][1 - tile.vector], tap.known)
        extra = found[1].get(tile.slot, 0) * slot if tile.slot is not None else 0
        extra += offsets(tile, context.last)[vector] if wide else 0
        place = position(found, env) + extra
    if wide:
        return tirx.BufferLoad(context.operands[1], [context.lanes(place)])
    return tirx.Broadcast(tirx.BufferLoad(context.operands[1], [place]), tile.lanes)


def address(layout: Layout, where: tuple[Index, ...], known: Mapping[Iterator, int]) -> Address:
    """Where *layout* has *where*; the tile was chosen so that it is affine."""
    found = layout.address(where, known)
    assert found is not None
    return found
