"""Through shared memory: loaded along one dimension, written along the other.

A tile is one element wider than it is long, so that its columns lie in different banks.
"""

from __future__ import annotations

from math import prod

from einnet_explore.algebra.flatten import flat_address
from einnet_explore.ir import Access, Iterator
from einnet_explore.kernels.moving.frame import Frame
from einnet_explore.kernels.places import plus
from einnet_explore.kernels.source import (
    Array,
    Barrier,
    Declare,
    Expr,
    Id,
    If,
    Kernel,
    Local,
    Note,
    Statement,
    Store,
    Var,
    binary,
    cast,
    conjunction,
    counted,
)

SIDE, ROWS = 32, 8
"""A tile is so wide and long; so many rows of it are moved at a time (``SIDE * ROWS`` threads)."""

LEAST = 8
"""A dimension that is shorter is not worth a tile."""


def turned(frame: Frame) -> tuple[tuple[Access, ...], Iterator] | None:
    """The reads that go through tiles, and the dimension, not the innermost, along which they lie in memory.

    None where there are none.
    """
    if frame.scope.summations or frame.inner.extent < LEAST:
        return None
    found: dict[Iterator, list[Access]] = {}
    for access in frame.reads:
        step = _along(access, frame.inner)
        if step is None or abs(step) <= 1:
            continue
        for x in frame.axes[:-1]:
            if x.extent >= LEAST and abs(_along(access, x) or 0) == 1:
                found.setdefault(x, []).append(access)
    best = max(found, key=lambda x: len(found[x]), default=None)
    return None if best is None else (tuple(found[best]), best)


def _along(access: Access, x: Iterator) -> int | None:
    """Elements that one step of *x* moves the place of *access*; None where that is not always the same."""
    place = flat_address(access)
    if not place.affine:
        return None if x in place.iterators else 0
    return place.coefficient(x)


def tiled(frame: Frame, reads: tuple[Access, ...], down: Iterator) -> Kernel:
    """A block moves a tile of each of *reads*: loaded along *down*, written along the innermost dimension."""
    across, wide = frame.inner, frame.wide
    rest = [x for x in frame.axes if x not in (across, down)]
    counts = {x: -(-x.extent // SIDE) for x in (across, down)}
    tiles = {a: Array(f"tile {n}", frame.kind, SIDE * (SIDE + 1), "shared") for n, a in enumerate(reads)}
    block: Expr = cast(wide, Id("block"))
    body: list[Statement] = [Local(t) for t in tiles.values()]
    base = {x: Var(f"{x.name} base", wide) for x in (across, down)}
    for x in (across, down):
        body.append(Declare(base[x], binary("%", block, counts[x]) * SIDE))
        block = binary("/", block, counts[x])
    outer = Var("outer", wide)
    at, placed = frame.digits(outer, rest)
    column, row, k = Var("column", wide), Var("row", wide), Var("k")
    body += [
        Declare(outer, block),
        *placed,
        Declare(column, cast(wide, Id("thread") % SIDE)),
        Declare(row, cast(wide, Id("thread") // SIDE)),
        Note("load along the source"),
    ]
    lower = row + cast(wide, k) * ROWS

    def point(x: Expr, y: Expr) -> dict[Iterator, Expr]:
        """Where across is at *x* of the tile and down at *y*."""
        return {**at, across: plus(base[across] + x, across.lo), down: plus(base[down] + y, down.lo)}

    def inside(x: Expr, y: Expr, *made: Statement) -> Statement:
        """*made*, for all rows of this thread, where that is inside of the result."""
        pairs = ((across, base[across] + x), (down, base[down] + y))
        test = conjunction(*(place.lt(d.extent) for d, place in pairs if d.extent % SIDE))
        return counted(k, SIDE // ROWS, *(made if test is None else (If(test, made),)), unroll=True)

    there, here = point(lower, column), point(column, lower)
    loads = (Store(t, lower * (SIDE + 1) + column, frame.scalar(a, there, {})) for a, t in tiles.items())
    held: dict[Access, Expr] = {access: tile[column * (SIDE + 1) + lower] for access, tile in tiles.items()}
    store = Store(frame.result, frame.address(here), frame.scalar(frame.body, here, held))
    body += [
        inside(lower, column, *loads),
        Barrier(),
        Note("write along the result"),
        inside(column, lower, store),
    ]
    return frame.kernel(tuple(body), SIDE * ROWS, prod(counts.values()) * prod(x.extent for x in rest))
