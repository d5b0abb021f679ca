"""A thread for every pack of the result, along its innermost dimension: four elements at a time where that can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from einnet_explore.algebra.flatten import flat_address
from einnet_explore.ir import Access, Iterator
from einnet_explore.kernels.moving.frame import THREADS, Frame, moves
from einnet_explore.kernels.places import name_of
from einnet_explore.kernels.source import (
    Array,
    Copy,
    Declare,
    Expr,
    Id,
    If,
    Kernel,
    Local,
    Statement,
    Store,
    Var,
    cast,
    counted,
    literal,
)
from einnet_explore.kernels.source.statements import PACK_BYTES


def straight(frame: Frame) -> Kernel:
    """A thread for every pack, or for several elements a block apart, so that enough is on its way."""
    size = PACK_BYTES // frame.kind.size
    packed = [a for a in frame.reads if _packs(frame, a, size)]
    pack = size if frame.inner.extent % size == 0 and (packed or not frame.reads) else 1
    each = 1 if pack > 1 else size
    points = frame.result.size // pack
    blocks = -(-points // (THREADS * each))
    turn, point = Var("turn"), Var("point", frame.wide)
    at, placed = frame.digits(point, frame.axes, pack)
    made = _pack(frame, at, packed, point) if pack > 1 else _one(frame, at, point)
    body: tuple[Statement, ...] = (*placed, *made)
    if points % (THREADS * each):
        body = (If(point.lt(points), body),)
    start = cast(frame.wide, Id("block")) * (THREADS * each) + cast(frame.wide, Id("thread"))
    if each == 1:
        return frame.kernel((Declare(point, start), *body), THREADS, blocks)
    apart = Declare(point, start + cast(frame.wide, turn) * THREADS)
    return frame.kernel((counted(turn, each, apart, *body, unroll=True),), THREADS, blocks)


def _packs(frame: Frame, access: Access, size: int) -> bool:
    """Whether *size* neighbours of *access* are so many neighbours in memory, at a multiple of a pack."""
    place = flat_address(access)
    if not place.affine or place.coefficient(frame.inner) != 1 or frame.inner.extent % size:
        return False
    pairs = zip(access.index, access.source.box, strict=True)
    inside = all(lo <= i.bounds[0] and i.bounds[1] < hi for i, (lo, hi) in pairs)
    start = place.evaluate(lambda x: x.lo)
    others = (place.coefficient(x) for x in place.iterators if x != frame.inner)
    return inside and start % size == 0 and all(k % size == 0 for k in others)


def _one(frame: Frame, at: Mapping[Iterator, Expr], point: Expr) -> Iterable[Statement]:
    return frame.value(at, {}, lambda value: Store(frame.result, point, value))


def _pack(frame: Frame, at: Mapping[Iterator, Expr], packed: Iterable[Access], point: Expr) -> Iterable[Statement]:
    """A pack of the result: packs are fetched whole, other reads one by one."""
    size, j = PACK_BYTES // frame.kind.size, Var("j")
    held: dict[Access, Expr] = {}
    for n, access in enumerate(a for a in packed if not moves(a, frame.scope.summations)):
        own = Array(f"pack {n}", frame.kind, size, "private", align=PACK_BYTES)
        held[access] = own[j]
        yield Local(own)
        yield Copy(own, literal(0), frame.memory[name_of(access.source)], frame.index(access, at), size)
    made = Array("made", frame.kind, size, "private", align=PACK_BYTES)
    yield Local(made)
    here = {**at, frame.inner: at[frame.inner] + cast(frame.wide, j)}
    yield counted(j, size, *frame.value(here, held, lambda value: Store(made, j, value)), unroll=True)
    yield Copy(frame.result, point * size, made, literal(0), size)
