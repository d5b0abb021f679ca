"""Schedules of one stage, chosen by the structure of its body.

| template | body | schedule |
|---|---|---|
| rows | no reduction, innermost iterator runs along memory | phases unrolled, borders cut off, vectors |
| tile | no reduction, a read runs along memory in another iterator | tiles, vector reads |
| turn | the same, where tiles fit | two stages: rows along that iterator, tiles transposed in registers |
| outer | reduction, innermost iterator runs along memory | summations outside the vectorised row |
| inner | reduction, a summation runs along memory | partial sums in lanes (rfactor) |
| plain | anything else | as written |

Inner loops are left to LLVM's vectoriser where it does as well: it deals with remainders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, lcm, prod
from typing import Any

from tvm.s_tir import Schedule

from einnet_explore.backends.prepare import points, step
from einnet_explore.backends.transpose import transposing
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    accesses,
    as_index,
)

VERSION = 3
"""Part of the key of compiled kernels: to be raised when a template changes."""

LANES = 16
PHASES = 8
ROW = 4 * LANES
PARALLEL_POINTS = 1 << 15
"""A stage that evaluates its body less often is not worth waking threads for."""


def templates(scope: Scope) -> tuple[str, ...]:
    """The templates that fit *scope*, the one to expect most of first; ``plain`` always comes last."""
    if not scope.traversals or points(scope) == 0:
        return ("plain",)
    reads = tuple(a for a in accesses(scope.body) if a.index)
    if scope.summations:
        last = scope.traversals[-1]
        along = [s for s in scope.summations if _lanes(s) and reads and _runs_along(reads, s)]
        if reads and _runs_along(reads, last) and last.extent >= 4:
            return ("outer", *(("inner",) if along else ()), "plain")
        return ("inner", "outer", "plain") if along else ("outer", "plain")
    if turned(scope) is not None:
        return ("turn", "tile", "rows", "plain")
    return ("tile", "rows", "plain") if _tile_of(scope) else ("rows", "plain")


def turned(scope: Scope) -> Scope | None:
    """*scope* as a transposed view of a scope whose innermost iterator runs along memory; None where no tile fits."""
    n = _along(scope)
    if n is None or scope.summations:
        return None
    x, last = scope.traversals[n], scope.traversals[-1]
    inner = (*scope.traversals[:n], *scope.traversals[n + 1 :], x)
    side = gcd(x.extent, last.extent, LANES)
    guarded = any(x in i.iterators and (i.bounds[0] < lo or i.bounds[1] >= hi) for i, lo, hi in _guards(scope.body))
    if side < LANES // 4 or guarded:
        return None
    return replace(scope, body=replace(scope, traversals=inner, padding=())[tuple(as_index(y) for y in inner)])


def apply(template: str, schedule: Schedule, block: str, scope: Scope, threads: int) -> None:
    """Schedule *block*, the stage of *scope*, by *template*."""
    stage = _Stage(schedule, block, scope, threads if points(scope) >= PARALLEL_POINTS else 1)
    match template:
        case "rows":
            _rows(stage)
        case "tile":
            _tile(stage)
        case "outer":
            _outer(stage)
        case "inner":
            _inner(stage)
        case "turn":
            _turn(stage)
        case "plain":
            stage.parallel(len(scope.traversals))
        case _:
            raise ValueError(f"template {template!r} is none of rows, tile, turn, outer, inner, plain")


@dataclass(frozen=True)
class _Stage:
    schedule: Schedule
    name: str
    scope: Scope
    threads: int

    @property
    def block(self) -> Any:
        return self.schedule.get_sblock(self.name)

    @property
    def loops(self) -> list[Any]:
        return list(self.schedule.get_loops(self.block))

    def parallel(self, free: int) -> None:
        """Run the outermost of the *free* leading loops in parallel: as few of them as keep every thread busy."""
        if self.threads == 1 or free < 1:
            return
        loops, extents = self.loops[:free], [x.extent for x in self.scope.traversals]
        n = next((n for n in range(1, free + 1) if prod(extents[:n]) >= 4 * self.threads), free)
        self.schedule.parallel(self.schedule.fuse(*loops[:n]) if n > 1 else loops[0])


def _runs_along(reads: Iterable[Access], x: Iterator) -> bool:
    return all(abs(step(a, x)) <= 1 for a in reads)


def _lanes(s: Iterator) -> int:
    return next((n for n in (LANES, LANES // 2, LANES // 4) if s.extent % n == 0), 0)


def _rows(stage: _Stage) -> None:
    schedule, scope = stage.schedule, stage.scope
    plans = [(n, _period(scope, x), *_borders(scope, x, _period(scope, x))) for n, x in enumerate(scope.traversals)]
    # The innermost iterator that something hangs on: guards outside it are tested once a row.
    n, period, before, after = next((p for p in reversed(plans) if p[1] > 1 or any(p[2:])), plans[-1])
    loops = stage.loops
    row = loops[n]
    if prod(x.extent for x in scope.traversals[n + 1 :]) < LANES:
        for inner in loops[n + 1 :]:
            schedule.unroll(inner)
    if period > 1:
        row, phase = schedule.split(row, [None, period])
        schedule.unroll(phase)
    stage.parallel(n)
    if before or after:
        parts = [*([before] if before else []), None, *([after] if after else [])]
        schedule.loop_partition(row, parts, preserve_unit_iters=True)


def _period(scope: Scope, x: Iterator) -> int:
    """The number of phases after which every ``//`` and ``%`` of *x* repeats (1: there are none, or too many)."""
    period = lcm(*(d // gcd(d, k) for index in _indices(scope.body) for d, k in _digits(index, x)), 1)
    return period if period <= PHASES and x.extent % period == 0 and x.extent > period else 1


def _digits(index: Index, x: Iterator) -> Iterable[tuple[int, int]]:
    for atom, _ in index.terms:
        match atom:
            case Quotient(numerator, d) | Remainder(numerator, d):
                if x in numerator.iterators:
                    yield d, numerator.coefficient(x) or 1
                    yield from _digits(numerator, x)


def _borders(scope: Scope, last: Iterator, period: int) -> tuple[int, int]:
    """(before, after): at the ends of a row so many steps have guards of their own; none hangs on x between."""
    rows = last.extent // period
    x = Iterator(last.name, 0, rows)
    cuts: set[int] = set()
    for phase in range(period):
        for index, lo, hi in _guards(scope.body):
            at = as_index(x) * period + phase + last.lo
            moved = index.substitute(partial(_replaced, last, at))
            k = moved.coefficient(x)
            if k and not (moved - as_index(x) * k).terms:
                edges = ((lo - moved.const), (hi - moved.const))
                cuts |= {-(-e // k) for e in edges} if k > 0 else {(e // k) + 1 for e in edges}
    inside = sorted(c for c in cuts if 0 < c < rows)
    before = max((c for c in inside if 2 * c <= rows), default=0)
    after = rows - min((c for c in inside if 2 * c > rows), default=rows)
    return (before, after) if before + after < rows else (0, 0)


def _replaced(old: Iterator, new: Index, x: Iterator) -> Index:
    return new if x == old else as_index(x)


def _guards(body: Scalar) -> Iterable[tuple[Index, int, int]]:
    """(index, lo, hi) of everything that is tested while *body* is evaluated."""
    match body:
        case Access(source, index):
            yield from ((i, lo, hi) for i, (lo, hi) in zip(index, source.box, strict=True))
        case Compare(_, left, right):
            yield left - right, 0, 1
        case Apply(args=args):
            for arg in args:
                yield from _guards(arg)
        case Const():
            pass


def _indices(body: Scalar) -> Iterable[Index]:
    for access in accesses(body):
        yield from access.index


def _along(scope: Scope) -> int | None:
    """The position of the traversal along which the largest read runs in memory, where the innermost one does not."""
    reads = max(accesses(scope.body), key=lambda a: prod(a.source.shape), default=None)
    if reads is None or not scope.traversals or _runs_along((reads,), scope.traversals[-1]):
        return None
    return next((n for n, x in enumerate(scope.traversals[:-1]) if x.extent > 1 and abs(step(reads, x)) == 1), None)


def _tile_of(scope: Scope) -> tuple[int, int, int] | None:
    """(position of the iterator along memory, its tile, the tile of the innermost one) of the largest read."""
    n = _along(scope)
    if n is None:
        return None
    along, across = (_divisor(y.extent) for y in (scope.traversals[n], scope.traversals[-1]))
    return (n, along, across) if min(along, across) > 1 else None


def _turn(stage: _Stage) -> None:
    """Tiles of the stage that the view reads are computed where they are needed, then transposed."""
    schedule, traversals = stage.schedule, stage.scope.traversals
    (read,) = accesses(stage.scope.body)
    n = next(n for n, y in enumerate(traversals) if y == read.index[-1].single)
    side = gcd(traversals[n].extent, traversals[-1].extent, LANES)
    (rows,) = schedule.get_producers(stage.block)
    loops = stage.loops
    vectors, lane = schedule.split(loops[n], [None, side])
    tiles, row = schedule.split(loops[-1], [None, side])
    # The longer of the two goes innermost: its end of memory is walked through page by page.
    pair = (vectors, tiles) if traversals[-1].extent >= traversals[n].extent else (tiles, vectors)
    outer = [*loops[:n], *loops[n + 1 : -1], *pair]
    schedule.reorder(*outer, lane, row)
    schedule.compute_at(rows, outer[-1])
    inside = schedule.get_loops(rows)
    schedule.vectorize(inside[-1])
    schedule.unroll(inside[-2])
    schedule.tensorize(lane, transposing(side, len(traversals) - 2 - n))
    if stage.threads > 1 and len(outer) > 1:
        schedule.parallel(schedule.fuse(*outer[:-1]))


def _divisor(extent: int) -> int:
    return max(n for n in range(1, LANES + 1) if extent % n == 0)


def _tile(stage: _Stage) -> None:
    found = _tile_of(stage.scope)
    if found is None:
        return
    n, along, across = found
    schedule, loops = stage.schedule, stage.loops
    vectors, lane = schedule.split(loops[n], [None, along])
    rows, row = schedule.split(loops[-1], [None, across])
    outer = [*loops[:n], vectors, *loops[n + 1 : -1], rows]
    schedule.reorder(*outer, row, lane)
    schedule.vectorize(lane)
    schedule.unroll(row)
    if stage.threads > 1:
        schedule.parallel(schedule.fuse(*outer[: max(1, len(outer) - 1)]))


def _outer(stage: _Stage) -> None:
    schedule, count = stage.schedule, len(stage.scope.traversals)
    loops = stage.loops
    free, row, sums = loops[: count - 1], loops[count - 1], loops[count:]
    extent = stage.scope.traversals[-1].extent
    if extent > ROW and extent % ROW == 0:
        outside, row = schedule.split(row, [None, ROW])
        schedule.reorder(*free, outside, *sums, row)
    else:
        schedule.reorder(*free, *sums, row)
    schedule.decompose_reduction(stage.block, sums[0])
    stage.parallel(count - 1)


def _inner(stage: _Stage) -> None:
    schedule, scope = stage.schedule, stage.scope
    count, loops = len(scope.traversals), stage.loops
    reads = tuple(a for a in accesses(scope.body) if a.index)
    at = next(n for n, s in enumerate(scope.summations) if _lanes(s) and _runs_along(reads, s))
    chunks, lane = schedule.split(loops[count + at], [None, _lanes(scope.summations[at])])
    rest = [s for n, s in enumerate(loops[count:]) if n != at]
    schedule.reorder(*loops[:count], *rest, chunks, lane)
    block = stage.block
    lanes = schedule.rfactor(lane, 0)
    schedule.reverse_compute_at(block, schedule.get_loops(lanes)[count - 1])
    schedule.vectorize(schedule.get_loops(lanes)[-1])
    start = schedule.decompose_reduction(lanes, schedule.get_loops(lanes)[count])
    schedule.vectorize(schedule.get_loops(start)[-1])
    last = schedule.get_loops(block)[-1]
    schedule.unroll(last)
    schedule.decompose_reduction(block, last)
    if stage.threads > 1:
        outermost = schedule.get_loops(lanes)[:count]
        extents = [x.extent for x in scope.traversals]
        n = next((n for n in range(1, count + 1) if prod(extents[:n]) >= 4 * stage.threads), count)
        schedule.parallel(schedule.fuse(*outermost[:n]) if n > 1 else outermost[0])
