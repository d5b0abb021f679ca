"""Schedules of one stage, chosen by the structure of its body: strides, phases, guards, tiles.

| template | body | schedule |
|---|---|---|
| rows | no reduction, innermost iterator runs along memory | phases unrolled, borders split off, vectors |
| tile | no reduction, a read runs along memory in another iterator | tiles, vector reads |
| turn | the same, where tiles fit | two stages: rows along that iterator, transpose tiles in registers |
| combine | coefficients that depend on other iterators | these unrolled around each vector, which is loaded once |
| outer | reduction, innermost iterator runs along memory | summations outside the vectorised row |
| inner | reduction, a summation runs along memory | partial sums in lanes (rfactor) |
| plain | anything else | as written |

Inner loops are left to LLVM's vectoriser where its code is as fast, since it also handles remainders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, prod

from einnet_explore.analysis.indices import is_inside_box, period
from einnet_explore.codegen.preparation import address_step, evaluation_count
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import transpose_intrinsic
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Remainder,
    Scalar,
    Scope,
    accesses,
    as_index,
)

MAX_LANES = 16
"""Elements of the widest vector register in use."""

MAX_PHASES = 8
"""Rows with more phases than this are not split."""


def moved_elements(scope: Scope) -> int:
    """Return the number of elements read and written; a view of a scope counts that scope's reads."""
    reads = sum(len(tuple(accesses(a.source.body))) if isinstance(a.source, Scope) else 1 for a in accesses(scope.body))
    return evaluation_count(scope) * (1 + reads)


def schedule_templates(scope: Scope) -> tuple[str, ...]:
    """Return the templates that fit *scope*, the most promising first; ``plain`` is always last."""
    if not scope.traversals or evaluation_count(scope) == 0:
        return ("plain",)
    reads = tuple(a for a in accesses(scope.body) if a.index)
    if not scope.summations and case_traversals(scope):
        return ("combine", "rows", "plain")
    if scope.summations:
        last = scope.traversals[-1]
        along = [s for s in scope.summations if vector_lanes(s) and reads and is_contiguous_along(reads, s)]
        if reads and is_contiguous_along(reads, last) and last.extent >= 4:
            return ("outer", *(("inner",) if along else ()), "plain")
        return ("inner", "outer", "plain") if along else ("outer", "plain")
    if transposed_view(scope) is not None:
        return ("turn", "tile", "rows", "plain")
    return ("tile", "rows", "plain") if transpose_tile(scope) else ("rows", "plain")


def case_traversals(scope: Scope) -> tuple[tuple[int, int], ...]:
    """Return (position, period) of the traversals whose value, or remainder, selects between constants.

    Empty if the innermost traversal does, or if its extent has no vector.
    """
    last = scope.traversals[-1]
    if last.extent % (MAX_LANES // 2) or not all(abs(address_step(a, last)) <= 1 for a in accesses(scope.body)):
        return ()
    found: dict[int, int] = {}
    for index in _choices(scope.body):
        match index.terms:
            case ((Iterator() as x, 1),) if x.extent <= MAX_PHASES:
                found[scope.traversals.index(x)] = x.extent
            case ((Remainder(numerator, d), 1),) if d <= MAX_PHASES and (along := numerator.single) is not None:
                found[scope.traversals.index(along)] = d
    return () if len(scope.traversals) - 1 in found else tuple(sorted(found.items()))


def _choices(body: Scalar) -> Iterable[Index]:
    """Yield the indices of ``where(index == n, ...)`` between constants."""
    match body:
        case Apply("where", (Compare("==", left, right), Const() | Apply("where"), Const() | Apply("where"))):
            yield left if not right.terms else right
        case Apply(args=args):
            for arg in args:
                yield from _choices(arg)


def transposed_view(scope: Scope) -> Scope | None:
    """Return *scope* as a transposed view of a scope that runs along memory innermost, or None if no tile fits."""
    n = _along(scope)
    if n is None or scope.summations:
        return None
    x, last = scope.traversals[n], scope.traversals[-1]
    inner = (*scope.traversals[:n], *scope.traversals[n + 1 :], x)
    side = gcd(x.extent, last.extent, MAX_LANES)
    guarded = any(x in i.iterators and (i.bounds[0] < lo or i.bounds[1] >= hi) for i, lo, hi in _guards(scope.body))
    if side < MAX_LANES // 4 or guarded:
        return None
    return replace(scope, body=replace(scope, traversals=inner, padding=())[tuple(as_index(y) for y in inner)])


def is_contiguous_along(reads: Iterable[Access], x: Iterator) -> bool:
    """True if a step of *x* moves every read by at most one element."""
    return all(abs(address_step(a, x)) <= 1 for a in reads)


def vector_lanes(s: Iterator) -> int:
    """Return the widest vector that divides the extent of *s*, or 0."""
    return next((n for n in (MAX_LANES, MAX_LANES // 2, MAX_LANES // 4) if s.extent % n == 0), 0)


def phase_period(scope: Scope, x: Iterator) -> int:
    """Return the number of phases after which every ``//`` and ``%`` of *x* repeats; 1 for none or too many."""
    found = period(_indices(scope.body), x)
    return found if found <= MAX_PHASES and x.extent % found == 0 and x.extent > found else 1


def guard_borders(scope: Scope, last: Iterator, period: int) -> tuple[int, int]:
    """Return (before, after): numbers of steps at the ends of a row that need guards."""
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
    """Yield (index, lo, hi) of every test in the evaluation of *body*."""
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
    """Return the position of the traversal, not the innermost, that runs along memory in the largest read, or None."""
    reads = max(accesses(scope.body), key=lambda a: prod(a.source.shape), default=None)
    if reads is None or not scope.traversals or is_contiguous_along((reads,), scope.traversals[-1]):
        return None
    return next(
        (n for n, x in enumerate(scope.traversals[:-1]) if x.extent > 1 and abs(address_step(reads, x)) == 1), None
    )


def transpose_tile(scope: Scope) -> tuple[int, int, int] | None:
    """Return (position of the iterator along memory, its tile, the innermost traversal's tile) or None."""
    n = _along(scope)
    if n is None:
        return None
    along, across = (_divisor(y.extent) for y in (scope.traversals[n], scope.traversals[-1]))
    return (n, along, across) if min(along, across) > 1 else None


def _divisor(extent: int) -> int:
    return max(n for n in range(1, MAX_LANES + 1) if extent % n == 0)


MAX_ROW_ELEMENTS = 4 * MAX_LANES


PARTS_PER_THREAD = 4
"""Parts of the work of a thread, at least."""


MIN_PARALLEL_ELEMENTS = 1 << 18
"""A stage that moves fewer elements runs on one thread: waking threads takes as long as moving a megabyte."""


SCALAR_SLOWDOWN = MAX_LANES // 4
"""Slowdown of a stage without vectors; fewer threads do not make up for it."""


def apply_template(template: str, schedule: TvmObject, block: str, scope: Scope, threads: int) -> None:
    """Schedule *block*, the stage of *scope*, by *template*."""
    stage = _ScheduledStage(schedule, block, scope, threads if moved_elements(scope) >= MIN_PARALLEL_ELEMENTS else 1)
    if template not in _TEMPLATES:
        raise ValueError(f"template {template!r} is none of {', '.join(_TEMPLATES)}")
    _TEMPLATES[template](stage)


@dataclass(frozen=True)
class _ScheduledStage:
    schedule: TvmObject
    name: str
    scope: Scope
    threads: int

    @property
    def block(self) -> TvmObject:
        return self.schedule.get_sblock(self.name)

    @property
    def loops(self) -> list[TvmObject]:
        return list(self.schedule.get_loops(self.block))

    def parallel(self, free: int) -> None:
        """Run the outermost of the *free* leading loops in parallel."""
        _parallel(self, self.loops[:free], [x.extent for x in self.scope.traversals])


def _rows(stage: _ScheduledStage) -> None:
    schedule, scope = stage.schedule, stage.scope
    plans = [
        (n, phase_period(scope, x), *guard_borders(scope, x, phase_period(scope, x)))
        for n, x in enumerate(scope.traversals)
    ]
    # The innermost iterator that something hangs on: guards outside it are tested once a row.
    n, period, before, after = next((p for p in reversed(plans) if p[1] > 1 or any(p[2:])), plans[-1])
    loops = stage.loops
    row = loops[n]
    if prod(x.extent for x in scope.traversals[n + 1 :]) < MAX_LANES:
        for inner in loops[n + 1 : -1]:
            schedule.unroll(inner)
        if n + 1 < len(loops):
            # A vector even of three: LLVM, left to the row, would gather lanes of neighbouring steps.
            schedule.vectorize(loops[-1])
    if period > 1:
        row, phase = schedule.split(row, [None, period])
        schedule.unroll(phase)
    # In a parallel task LLVM does not know pointers apart, and writes interleaved phases one by one.
    interleaved = period > 1 and n == len(loops) - 1
    shared = stage.threads > (SCALAR_SLOWDOWN if interleaved else 1)
    if shared:
        stage.parallel(n)
    if n == 0 and shared and not (before or after):
        chunks = _chunk_count(scope.traversals[0].extent // period, stage.threads)
        schedule.parallel(schedule.split(row, [chunks, None])[0])
    if before or after:
        parts = [*([before] if before else []), None, *([after] if after else [])]
        schedule.loop_partition(row, parts, preserve_unit_iters=True)


def _chunk_count(extent: int, threads: int) -> int:
    """Return the number of equal parts that keeps every thread busy; unequal parts cost a test for each element."""
    few, many = PARTS_PER_THREAD * threads, PARTS_PER_THREAD * PARTS_PER_THREAD * threads
    return next((n for n in range(few, many) if extent % n == 0), few)


def _transpose(stage: _ScheduledStage) -> None:
    """Compute tiles of the viewed stage where they are needed, then transpose them."""
    schedule, traversals = stage.schedule, stage.scope.traversals
    (read,) = accesses(stage.scope.body)
    n = next(n for n, y in enumerate(traversals) if y == read.index[-1].single)
    side = gcd(traversals[n].extent, traversals[-1].extent, MAX_LANES)
    (rows,) = schedule.get_producers(stage.block)
    loops = stage.loops
    vectors, lane = schedule.split(loops[n], [None, side])
    tiles, row = schedule.split(loops[-1], [None, side])
    # The longer of the two goes innermost: its end of memory is walked through page by page.
    pair = (vectors, tiles) if traversals[-1].extent >= traversals[n].extent else (tiles, vectors)
    outer = [*loops[:n], *loops[n + 1 : -1], *pair]
    gap = len(traversals) - 2 - n
    between = _dimensions_between(read, traversals[n], traversals[-1])
    # Rows are computed in the widest vectors, also where the tiles are smaller.
    width = gcd(traversals[n].extent, MAX_LANES) if between is None else side
    outside, several = schedule.split(vectors, [None, width // side])
    outer = [outside if loop is vectors else loop for loop in outer]
    schedule.reorder(*outer, several, lane, row)
    schedule.unroll(several)
    if between is None:
        schedule.compute_at(rows, outer[-1])
        inside = schedule.get_loops(rows)
        schedule.vectorize(inside[-1])
        schedule.unroll(inside[-2])
    else:
        schedule.compute_inline(rows)
    schedule.tensorize(lane, transpose_intrinsic(side, gap, between or 0))
    free = [traversals[m].extent for m in range(len(traversals) - 1) if m != n]
    first = traversals[n].extent // width if pair[0] is vectors else traversals[-1].extent // side
    _parallel(stage, outer[:-1], [*free, first])


def _dimensions_between(read: Access, along: Iterator, across: Iterator) -> int | None:
    """Return the dimensions between the two that tiles span if *read* views contiguous elements, else None."""
    match read.source:
        case Scope(body=Access(source, index)) if index:
            if not is_inside_box(index, source.box):
                return None
            spans = [d for d, i in enumerate(index) if across in i.iterators or along in i.iterators]
            if len(spans) == 2 and spans[1] == len(index) - 1:
                row, lane = (index[d] - as_index(y) for d, y in zip(spans, (across, along), strict=True))
                if not {along, across} & {*row.iterators, *lane.iterators}:
                    return spans[1] - spans[0] - 1
    return None


def _tile(stage: _ScheduledStage) -> None:
    found = transpose_tile(stage.scope)
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
    extents = [x.extent for x in stage.scope.traversals]
    extents[n] //= along
    _parallel(stage, outer[:-1], extents)


def _combine(stage: _ScheduledStage) -> None:
    """Compute every case of a vector's coefficients together, so that their operands are loaded once."""
    schedule, scope = stage.schedule, stage.scope
    cases = dict(case_traversals(scope))
    loops = stage.loops
    width = gcd(scope.traversals[-1].extent, MAX_LANES)
    chunk, lane = schedule.split(loops[-1], [None, width])
    outer, phases, extents = [], [], []
    for n, (loop, x) in enumerate(zip(loops[:-1], scope.traversals, strict=False)):
        if n in cases and cases[n] == x.extent:
            phases.append(loop)
        elif n in cases:
            rest, phase = schedule.split(loop, [None, cases[n]])
            outer.append(rest)
            extents.append(-(-x.extent // cases[n]))
            phases.append(phase)
        else:
            outer.append(loop)
            extents.append(x.extent)
    schedule.reorder(*outer, chunk, *phases, lane)
    for phase in phases:
        schedule.unroll(phase)
    schedule.vectorize(lane)
    _parallel(stage, outer, extents)


def _outer(stage: _ScheduledStage) -> None:
    schedule, count = stage.schedule, len(stage.scope.traversals)
    loops = stage.loops
    free, row, sums = loops[: count - 1], loops[count - 1], loops[count:]
    extent = stage.scope.traversals[-1].extent
    extents = [x.extent for x in stage.scope.traversals[:-1]]
    if extent > MAX_ROW_ELEMENTS and extent % MAX_ROW_ELEMENTS == 0:
        outside, row = schedule.split(row, [None, MAX_ROW_ELEMENTS])
        free, extents = [*free, outside], [*extents, extent // MAX_ROW_ELEMENTS]
    schedule.reorder(*free, *sums, row)
    # In this order: TVM takes no stage apart inside which it has to find the loop to run in parallel.
    _parallel(stage, free, extents)
    schedule.decompose_reduction(stage.block, sums[0])


def _inner(stage: _ScheduledStage) -> None:
    schedule, scope = stage.schedule, stage.scope
    count, loops = len(scope.traversals), stage.loops
    reads = tuple(a for a in accesses(scope.body) if a.index)
    at = next(n for n, s in enumerate(scope.summations) if vector_lanes(s) and is_contiguous_along(reads, s))
    chunks, lane = schedule.split(loops[count + at], [None, vector_lanes(scope.summations[at])])
    rest = [s for n, s in enumerate(loops[count:]) if n != at]
    schedule.reorder(*loops[:count], *rest, chunks, lane)
    block = stage.block
    lanes = schedule.rfactor(lane, 0)
    schedule.reverse_compute_at(block, schedule.get_loops(lanes)[count - 1])
    outer = schedule.get_loops(lanes)[:count]
    _parallel(stage, outer, [x.extent for x in scope.traversals])
    inside = schedule.get_loops(lanes)
    schedule.vectorize(inside[-1])
    start = schedule.decompose_reduction(lanes, inside[-2 - len(rest)])
    schedule.vectorize(schedule.get_loops(start)[-1])
    last = schedule.get_loops(block)[-1]
    schedule.unroll(last)
    schedule.decompose_reduction(block, last)


def _parallel(stage: _ScheduledStage, loops: list[TvmObject], extents: list[int]) -> None:
    """Run the outermost of *loops* in parallel: as few of them as keep every thread busy."""
    if stage.threads == 1 or not loops:
        return
    n = next((n for n in range(1, len(loops) + 1) if prod(extents[:n]) >= PARTS_PER_THREAD * stage.threads), len(loops))
    stage.schedule.parallel(stage.schedule.fuse(*loops[:n]) if n > 1 else loops[0])


def _plain(stage: _ScheduledStage) -> None:
    stage.parallel(len(stage.scope.traversals))


_TEMPLATES: Mapping[str, Callable[[_ScheduledStage], None]] = {
    "rows": _rows,
    "combine": _combine,
    "tile": _tile,
    "turn": _transpose,
    "outer": _outer,
    "inner": _inner,
    "plain": _plain,
}
