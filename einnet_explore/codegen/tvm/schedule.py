"""Schedules of one stage, chosen by the structure of its body.

| template | body | schedule |
|---|---|---|
| rows | no reduction, innermost iterator runs along memory | phases unrolled, borders split off, vectors |
| tile | no reduction, a read runs along memory in another iterator | tiles, vector reads |
| turn | the same, where tiles fit | two stages: rows along that iterator, transpose tiles in registers |
| combine | coefficients that depend on other iterators | these unrolled around each vector, which is loaded once |
| outer | reduction, innermost iterator runs along memory | summations outside the vectorised row |
| inner | reduction, a summation runs along memory | partial sums in lanes (rfactor) |
| plain | anything else | as written |

Inner loops are left to LLVM's vectoriser where it does as well: it handles remainders. Transpose tiles are a TVM
tensor intrinsic of ``codegen.language.dialects.transpose_rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import gcd, prod

import tvm
from tvm.s_tir import Schedule, TensorIntrin

from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.codegen.body_structure import (
    MAX_LANES,
    case_traversals,
    guard_borders,
    is_contiguous_along,
    moved_elements,
    phase_period,
    transpose_tile,
    vector_lanes,
)
from einnet_explore.codegen.language.dialects import transpose_rows
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.ir import Access, Iterator, Scope, accesses, as_index


@lru_cache(256)
def transpose_intrinsic(side: int, gap: int, between: int) -> str:
    """Return the name of the intrinsic B[j, 0 × *gap*, i] = A[i, 0 × *between*, j] for tiles of *side*² float32.

    *side* is 4, 8 or 16.
    """
    name = f"einnet_explore.transpose.{side}.{gap}.{between}"
    moves, last = _transpose_statements(side, between)
    stores = "".join(f"        B.vstore([{_indices(i, gap, 0)}], {row})\n" for i, row in enumerate(last))
    a_shape, b_shape = ((side, *[1] * n, side) for n in (between, gap))
    a_strides, b_strides = (
        [*(f"{letter}{n}" for n in range(len(shape) - 1)), "1"] for letter, shape in (("r", a_shape), ("s", b_shape))
    )
    head = f"""    with T.sblock("root"):
        T.reads(A[{_ranges(a_shape)}])
        T.writes(B[{_ranges(b_shape)}])
"""
    meaning = f"""
@T.prim_func(s_tir=True)
def meaning(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, {a_shape}, "float32", offset_factor=1)
    B = T.match_buffer(b, {b_shape}, "float32", offset_factor=1)
{head}        for i, j in T.grid({side}, {side}):
            with T.sblock("element"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[{_indices("vi", gap, "vj")}] = A[{_indices("vj", between, "vi")}]
"""
    variables = "".join(f"    {s} = T.int32()\n" for s in (*a_strides[:-1], *b_strides[:-1]))
    done = f"""
@T.prim_func(s_tir=True)
def done(a: T.handle, b: T.handle) -> None:
{variables}    A = T.match_buffer(a, {a_shape}, "float32", offset_factor=1, strides=[{", ".join(a_strides)}])
    B = T.match_buffer(b, {b_shape}, "float32", offset_factor=1, strides=[{", ".join(b_strides)}])
{head}{moves}{stores}"""
    TensorIntrin.register(name, tvm.script.from_source(meaning), tvm.script.from_source(done), override=True)
    return name


def _indices(first: object, zeros: int, last: object) -> str:
    return ", ".join(map(str, (first, *[0] * zeros, last)))


def _ranges(shape: tuple[int, ...]) -> str:
    return ", ".join(f"0:{n}" for n in shape)


def _transpose_statements(side: int, between: int) -> tuple[str, list[str]]:
    """Return (statements, names of the transposed rows)."""
    lines: list[str] = []
    numbers = count()

    def let(value: str) -> str:
        name = f"v{next(numbers)}"
        # Not an assignment: that would be a buffer on the heap.
        lines.append(f"        {name}: T.let = {value}\n")
        return name

    rows = [let(f'A.vload([{_indices(i, between, 0)}], "float32x{side}")') for i in range(side)]
    done = transpose_rows(rows, lambda a, b, lanes: let(f"T.Shuffle([{a}, {b}], {lanes})"))
    return "".join(lines), done


MAX_ROW_ELEMENTS = 4 * MAX_LANES
PARTS_PER_THREAD = 4
"""Parts of the work of a thread, at least."""
MIN_PARALLEL_ELEMENTS = 1 << 18
"""A stage that moves fewer elements runs on one thread: waking threads takes as long as moving a megabyte."""

SCALAR_SLOWDOWN = MAX_LANES // 4
"""Slowdown of a stage without vectors; fewer threads do not make up for it."""


def apply_template(template: str, schedule: Schedule, block: str, scope: Scope, threads: int) -> None:
    """Schedule *block*, the stage of *scope*, by *template*."""
    stage = _ScheduledStage(schedule, block, scope, threads if moved_elements(scope) >= MIN_PARALLEL_ELEMENTS else 1)
    if template not in _TEMPLATES:
        raise ValueError(f"template {template!r} is none of {', '.join(_TEMPLATES)}")
    _TEMPLATES[template](stage)


@dataclass(frozen=True)
class _ScheduledStage:
    schedule: Schedule
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
