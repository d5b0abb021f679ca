"""Fused kernels for a CPU: a block is a point of the grid, or a row of points that are neighbours in memory.

A point is completed before the next one begins, so that a stage finds the results of earlier ones in a cache.  Rows are
summed in vectors of the arithmetic's own type, and the rows' sums in double precision.  In a row of points, each vector
lane computes one point, and values are arrays with one element for each point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import prod

from einnet_explore.codegen.fusion.frame import EmissionState, FusedLayout, LoopWriter, join_values
from einnet_explore.codegen.fusion.operations import read_name
from einnet_explore.codegen.fusion.plan import FusedNest, FusedStage, FusedStep
from einnet_explore.codegen.language.guards import split_at_guards
from einnet_explore.codegen.language.lowering import FIRST_BLOCK, mixed_radix_split
from einnet_explore.codegen.language.statements import (
    TILE_SIDES,
    Assign,
    Comment,
    Declare,
    Kernel,
    LocalArray,
    LoopHint,
    Statement,
    Store,
    StoreTransposed,
    counted_loop,
)
from einnet_explore.codegen.language.values import (
    F32,
    I64,
    Array,
    Expr,
    LaunchIndex,
    Literal,
    Type,
    Var,
    cast,
    minimum,
    select,
)
from einnet_explore.codegen.preparation import MIN_ROW_SUM
from einnet_explore.ir import Iterator, accesses

ROW_POINTS, WIDE_ROW_POINTS = 256, 1024
"""Points of the grid, or traversal values, that are computed together: by several threads, and by one.

Long rows read memory in longer pieces, and are fewer blocks to share.
"""


def row_length(threads: int) -> int:
    """Return the number of points that are computed together by one of *threads*."""
    return WIDE_ROW_POINTS if threads == 1 else ROW_POINTS


CHUNK_ROWS = 128
"""Rows that are summed in single precision, at most."""

MIN_BLOCKS_PER_THREAD = 8
"""Blocks of a thread from which on each may be longer."""

ROWS_TOGETHER = 4
"""Rows that are added between a load and a store of their sums."""

MIN_SINGLE_ROW_SUM = 32
"""Elements of a row in memory that are worth a sum in vectors if rows are summed one by one."""

CHUNK_ELEMENTS = 4096
"""Elements that are summed in single precision, at most."""


def sum_along_memory(flat: FusedLayout, lanes: int) -> FusedLayout:
    """Return *flat* with a summation innermost if reads run along it and are far apart for neighbouring points.

    If a point is nothing but reductions in float32, vectors of at most *lanes* are added for several points together.
    """
    joined = _with_joined_points(_with_sum_innermost(flat, MIN_ROW_SUM), lanes)
    return joined if joined.joined else _with_sum_innermost(flat, MIN_SINGLE_ROW_SUM)


def sweep_rows(flat: FusedLayout, threads: int) -> FusedLayout:
    """Return *flat* with short rows of points that one block computes one after the other."""
    if len(flat.grid) < 2 or flat.grid[-1] != flat.lanes or flat.extents[flat.grid[-1]] > ROW_POINTS:
        return flat
    left = prod(flat.extents[x] for x in flat.grid[:-2])
    return replace(flat, swept=flat.grid[-2]) if threads == 1 or left >= MIN_BLOCKS_PER_THREAD * threads else flat


def _with_joined_points(flat: FusedLayout, lanes: int) -> FusedLayout:
    nests = flat.fused.nests
    sums = [x for x in flat.order if any(x in nest.summations for nest in nests)]
    typed = {kind for types in flat.fused.types.values() for kind in (types.stored, types.computed)} - {F32}
    if flat.lanes is not None or not flat.grid or not sums or typed or flat.fused.slots:
        return flat
    if any(nest.traversals or any(s.reduce is None for s in nest.steps) for nest in nests):
        return flat
    number, length = flat.extents[flat.grid[-1]], flat.extents[sums[-1]]
    if prod(flat.extents[x] for x in sums) > CHUNK_ELEMENTS:
        return flat
    most = lanes // max(len(nest.steps) for nest in nests)  # all vectors stay in registers
    sides = [side for side in TILE_SIDES if side <= min(most, number, length)]
    whole = [side for side in sides if length % side == 0]
    return replace(flat, joined=max(whole or sides, default=0))


def _with_sum_innermost(flat: FusedLayout, least: int) -> FusedLayout:
    x, inputs = flat.lanes, {t.name for t in flat.fused.inputs}
    for nest in flat.fused.nests if x is not None else ():
        for access in (a for step in nest.steps for a in accesses(step.body) if read_name(a) in inputs):
            steps = zip(access.index, flat.strides[read_name(access)], strict=True)
            along = next((i.single for i, step in steps if step == 1), None)
            apart = any(x in i.iterators for i in access.index if i.single != along)
            if along in nest.summations and apart and flat.extents[along] >= least:
                return replace(flat, order=(*(y for y in flat.order if y != along), along))
    return flat


@dataclass(frozen=True)
class PointRow:
    """*number* values of *axis* from *begin* on, computed together; *held* adds the values of a lane to a state."""

    axis: Iterator
    begin: Expr
    number: Expr
    held: Callable[[EmissionState, Expr], EmissionState] = lambda frame, _: frame

    def at(self, frame: EmissionState, lane: Expr) -> EmissionState:
        """Return the state of *lane*."""
        return self.held(frame.standing(self.axis, self.begin + lane), lane)

    def loop(
        self, writer: LoopWriter, frame: EmissionState, body: Callable[[EmissionState, Expr], list[Statement]]
    ) -> tuple[Statement, ...]:
        """Return loops of *body* over lanes, which are split where guards end."""
        lane = writer.var("lane")
        inside = tuple(body(self.at(frame, lane), lane))
        hint: LoopHint = "vector" if isinstance(self.number, Literal) else "simd"
        loop = counted_loop(lane, self.number, *inside, hint=hint)
        return split_at_guards(loop, writer.var("first"), writer.var("last"))


@dataclass(frozen=True)
class CpuWriter(LoopWriter):
    """Writes nests for a point, or for a row of *row_points*; *rows* holds, by name, the values of a row of points."""

    row_points: int = ROW_POINTS
    rows: dict[str, Array] = field(default_factory=dict)

    def row_nest(self, frame: EmissionState, nest: FusedNest, row: PointRow) -> list[Statement]:
        """Write *nest* for a row of points of the grid."""
        row = self._with_rows(row, self.rows)
        loops = self.flat.in_order(nest.axes)
        if all(s.reduce is None for s in nest.steps):
            return self.loops(frame, loops, lambda f: row.loop(self, f, lambda g, _: self.values(g, nest.steps)[1]))
        outside = tuple(x for x in loops if x in nest.traversals)
        keep = () if outside else tuple(s.name for s in nest.steps if s.reduce is not None)
        out: list[Statement] = []
        for name in keep:
            self.rows[name] = self._row(frame, f":row {name} {self._next()}", name)
            out.append(LocalArray(self.rows[name]))
        if self.flat.joined:
            return out + self._reduce_joined_points(frame, nest, row, keep)
        return out + self.loops(frame, outside, lambda f: self.reduce_by_lane(f, nest, row, keep))

    def _with_rows(self, row: PointRow, rows: Mapping[str, Array]) -> PointRow:
        """Return *row* with the values in *rows* and its elements of the slots."""

        def held(frame: EmissionState, lane: Expr) -> EmissionState:
            base: Mapping[int, Expr] = dict.fromkeys(range(self.flat.fused.slots), lane)
            return replace(frame.holding({name: array[lane] for name, array in rows.items()}), base=base)

        return replace(row, held=held)

    def _reduce_joined_points(
        self, frame: EmissionState, nest: FusedNest, row: PointRow, keep: tuple[str, ...]
    ) -> list[Statement]:
        """Write the reductions of *nest*: a vector for each point of *row*, and then the rows of all these vectors."""
        side = self.flat.joined
        sums = self.flat.in_order(nest.summations)
        whole = self.flat.extents[sums[-1]] // side * side
        tiles, columns = (
            {
                s.name: Array(f":{what} {s.name} {self._next()}", F32, side * side, "private", align=4 * side)
                for s in nest.steps
            }
            for what in ("part", "column")
        )
        point, lane, last = self.var("point"), self.var("lane"), self.var(sums[-1].name)

        def vectors(f: EmissionState, along: Expr, number: int) -> Statement:
            """Join a vector of each point, of which only *number* elements count."""
            here = row.at(f.standing(sums[-1], along + lane), point)

            def to(step: FusedStep, value: Expr) -> Statement:
                array = tiles[step.name]
                place = point * side + lane
                counted = value if number == side else select(lane.lt(number), value, frame.total(step)[1])
                return Store(array, place, join_values(step, array[place], counted))

            return each_point(*self.steps(here, nest, to))

        def each_point(*body: Statement) -> Statement:
            return counted_loop(point, side, counted_loop(lane, side, *body, hint="vector"), hint="unroll")

        def pieces(f: EmissionState) -> list[Statement]:
            rest = self.flat.extents[sums[-1]] - whole
            ends = [vectors(f, Literal(whole, I64), rest)] if rest else []
            return [*ends, counted_loop(last, whole, vectors(f, last, side), step=side)]

        out: list[Statement] = [LocalArray(array) for array in (*tiles.values(), *columns.values())]
        out.append(each_point(*(Store(tiles[s.name], point * side + lane, frame.total(s)[1]) for s in nest.steps)))
        out += self.loops(frame, sums[:-1], pieces)
        out += (StoreTransposed(columns[n], Literal(0, I64), side, tile, side) for n, tile in tiles.items())
        parts: dict[FusedStep, list[Expr]] = {
            s: [columns[s.name][lane + n * side] for n in range(side)] for s in nest.steps
        }
        totals = ((s, reduce(partial(join_values, s), each)) for s, each in parts.items())
        return [*out, counted_loop(lane, side, *self._finish(row.at(frame, lane), totals, lane, keep), hint="vector")]

    def _finish(
        self, frame: EmissionState, totals: Iterable[tuple[FusedStep, Expr]], lane: Expr, keep: tuple[str, ...]
    ) -> list[Statement]:
        """Return the complete reductions of a lane, stored in memory, and in their rows those in *keep*."""
        values, made = self.finish(frame, totals)
        return [*made, *(Store(self.rows[name], lane, var) for name, var in values.items() if name in keep)]

    def reduce_by_lane(
        self, frame: EmissionState, nest: FusedNest, row: PointRow, keep: tuple[str, ...]
    ) -> list[Statement]:
        """Write the reductions of *nest*, one in each lane of *row*; values in *keep* are stored in rows.

        They are joined in their own type for ``CHUNK_ROWS`` rows, then with the totals, which may be wider.
        """
        reduced = [s for s in nest.steps if s.reduce is not None]
        sums = self.flat.in_order(nest.summations)
        totals = self._lane_arrays("total", reduced, frame.wide_total)
        parts = self._lane_arrays("part", reduced, frame.total) if sums else {}

        def clear(f: EmissionState, lane: Expr) -> list[Statement]:
            return [Store(totals[s.name], lane, f.wide_total(s)[1]) for s in reduced]

        def clear_parts(f: EmissionState, lane: Expr) -> list[Statement]:
            return [Store(parts[s.name], lane, f.total(s)[1]) for s in reduced]

        def join(f: EmissionState, lane: Expr, arrays: Mapping[str, Array]) -> list[Statement]:
            return self.steps(
                f, nest, lambda s, v: Store(arrays[s.name], lane, join_values(s, arrays[s.name][lane], v))
            )

        def add_parts(f: EmissionState, lane: Expr) -> list[Statement]:
            joined = ((s, totals[s.name], parts[s.name]) for s in reduced)
            return [Store(t, lane, join_values(s, t[lane], p[lane])) for s, t, p in joined]

        def chunks(f: EmissionState) -> list[Statement]:
            last = sums[-1]
            chunk, stop, whole, var = map(self.var, ("chunk", "stop", "whole", last.name))

            def rows(begin: Expr, end: Expr, together: int) -> Statement:
                """Return the sums of rows, *together* of them for each time that the sums are loaded and stored."""

                def add_rows(g: EmissionState, lane: Expr) -> list[Statement]:
                    return [s for n in range(together) for s in join(g.standing(last, var + n), lane, parts)]

                return counted_loop(var, end, *row.loop(self, f, add_rows), start=begin, step=together)

            body = (
                Declare(stop, minimum(f.extent(last), chunk + CHUNK_ROWS)),
                *row.loop(self, f, clear_parts),
                Declare(whole, stop - (stop - chunk) % ROWS_TOGETHER),
                rows(chunk, whole, ROWS_TOGETHER),
                rows(whole, stop, 1),
                *row.loop(self, f, add_parts),
            )
            return [counted_loop(chunk, f.extent(last), *body, step=CHUNK_ROWS)]

        def finish(f: EmissionState, lane: Expr) -> list[Statement]:
            return self._finish(f, ((s, totals[s.name][lane]) for s in reduced), lane, keep)

        return [
            *map(LocalArray, (*totals.values(), *parts.values())),
            *row.loop(self, frame, clear),
            *(
                self.loops(frame, sums[:-1], chunks)
                if sums
                else row.loop(self, frame, lambda f, lane: join(f, lane, totals))
            ),
            *row.loop(self, frame, finish),
        ]

    def _lane_arrays(
        self, what: str, steps: Iterable[FusedStep], kind: Callable[[FusedStep], tuple[Type, Expr]]
    ) -> dict[str, Array]:
        """Return an array of *kind* with an element for each point of a row, for each of *steps*, by name."""
        return {
            s.name: Array(f":{what} {s.name} {self._next()}", kind(s)[0], self.row_points, "private", align=64)
            for s in steps
        }

    def _row(self, frame: EmissionState, name: str, value: str) -> Array:
        return Array(name, frame.kind_of(value), self.row_points, "private", align=64)

    def head_row(self, frame: EmissionState, stage: FusedStage, n: int, row: PointRow) -> list[Statement]:
        """Write the heads of *stage* for a row of points; values that later loops read are stored in rows."""
        if not stage.heads:
            return []
        after = [s for nest in stage.nests for s in nest.steps]
        after += [s for later in self.flat.fused.stages[n + 1 :] for s in later.steps]
        read = {read_name(a) for s in after for a in accesses(s.body)}
        known = dict(self.rows)
        out: list[Statement] = []
        for step in stage.heads:
            if step.name in read:
                self.rows[step.name] = self._row(frame, f":row {step.name}", step.name)
                out.append(LocalArray(self.rows[step.name]))

        def body(f: EmissionState, lane: Expr) -> list[Statement]:
            f, made = self.values(f, stage.heads)
            kept = [(self.rows[s.name], f.values[s.name]) for s in stage.heads if s.name in read]
            return [*made, *(Store(held, lane, cast(held.kind, value)) for held, value in kept)]

        return [*out, *self._with_rows(row, known).loop(self, frame, body)]

    def kernel(self, frame: EmissionState, first: Var) -> Iterable[Statement]:
        """Yield the coordinates of the grid point, then its stages."""
        lanes = self.flat.together
        point = self.var("point")
        yield Declare(point, cast(I64, LaunchIndex("block")) + first)
        row: PointRow | None = None

        def number_of(x: Iterator) -> Expr:
            return (frame.extent(x) + (self.row_points - 1)) // self.row_points if x == lanes else frame.extent(x)

        counted = [x for x in self.flat.grid if x != self.flat.swept]
        for x, digit in mixed_radix_split(counted, point, number_of).items():
            place = self.var(f"at {x.name}")
            yield Declare(place, digit)
            if x != lanes:
                frame = frame.standing(x, place)
                continue
            begin, number = self.var("begin"), self.var("count")
            if self.flat.joined:  # the last points are computed twice where they are no whole number of rows
                yield Declare(begin, minimum(place * self.row_points, frame.extent(x) - self.row_points))
                row = PointRow(x, begin, Literal(self.row_points, I64))
            else:
                yield Declare(begin, place * self.row_points)
                yield Declare(number, minimum(frame.extent(x) - begin, self.row_points))
                row = PointRow(x, begin, number)
            frame = replace(frame, spread=self.row_points)
        if self.flat.swept is None:
            yield from self._stages(frame, row)
        else:
            yield from self.loops(frame, (self.flat.swept,), lambda f: self._stages(f, row))

    def _stages(self, frame: EmissionState, row: PointRow | None) -> Iterable[Statement]:
        """Yield the stages of a point of the grid, or of a *row* of points."""
        for n, stage in enumerate(self.flat.fused.stages):
            yield Comment(f"stage {n}")
            if row is None:
                frame, made = self.values(frame, stage.heads)
                yield from made
                for nest in stage.nests:
                    frame, made = self._nest(frame, nest)
                    yield from made
            else:
                yield from self.head_row(frame, stage, n, row)
                for nest in stage.nests:
                    yield from self.row_nest(frame, nest, row)

    def _nest(self, frame: EmissionState, nest: FusedNest) -> tuple[EmissionState, list[Statement]]:
        """Return the loops of *nest*, and a state that holds the values that it reduces to scalars."""
        loops = self.flat.in_order(nest.axes)
        reduced = [s for s in nest.steps if s.reduce is not None]
        if not reduced:
            return frame, self.loops(frame, loops, lambda f: self.values(f, nest.steps)[1], hint="simd")
        outside = tuple(x for x in loops if x in nest.traversals)
        sums = tuple(x for x in loops if x in nest.summations)
        if outside and loops[-1] == outside[-1]:
            return frame, self.loops(frame, outside[:-1], lambda f: self._blocks(f, nest, outside[-1]))
        held: dict[str, Expr] = {}

        def body(f: EmissionState) -> list[Statement]:
            out, totals = self._sum_rows(f, nest, sums, reduced)
            values, made = self.finish(f, [(step, totals[step.name]) for step in reduced])
            held.update(values)
            return out + made

        made = self.loops(frame, outside, body)
        return (frame if outside else frame.holding(held)), made

    def _sum_rows(
        self, frame: EmissionState, nest: FusedNest, sums: tuple[Iterator, ...], reduced: list[FusedStep]
    ) -> tuple[list[Statement], dict[str, Var]]:
        """Sum rows in vectors, then their sums."""
        totals, parts = ({s.name: self.var(f"{what} {s.name}", k) for s in reduced for k in [total(s)[0]]}
                         for what, total in (("total", frame.wide_total), ("part", frame.total)))  # fmt: skip
        out: list[Statement] = [Declare(totals[s.name], frame.wide_total(s)[1]) for s in reduced]

        def row(f: EmissionState) -> list[Statement]:
            return self.steps(f, nest, lambda s, value: Assign(parts[s.name], join_values(s, parts[s.name], value)))

        def rows(f: EmissionState) -> list[Statement]:
            made: list[Statement] = [Declare(parts[s.name], f.total(s)[1]) for s in reduced]
            if sums:
                start, stop, var = self._chunk, self.var("stop"), self.var(sums[-1].name)
                made.append(Declare(stop, minimum(f.extent(sums[-1]), start + CHUNK_ELEMENTS)))
                made.append(counted_loop(var, stop, *row(f.standing(sums[-1], var)), start=start, hint="simd"))
            else:
                made += row(f)
            for s in reduced:
                total = totals[s.name]
                made.append(Assign(total, join_values(s, total, parts[s.name])))
            return made

        def chunks(f: EmissionState) -> list[Statement]:
            if not sums:
                return rows(f)
            return [counted_loop(self._chunk, f.extent(sums[-1]), *rows(f), step=CHUNK_ELEMENTS)]

        return out + self.loops(frame, sums[:-1], chunks), totals

    @property
    def _chunk(self) -> Var:
        return Var(":chunk", I64)

    def _blocks(self, frame: EmissionState, nest: FusedNest, lane: Iterator) -> list[Statement]:
        """Write *nest*, whose innermost axis is kept: so many results together, over all summations."""
        begin, number = self.var("begin"), self.var("count")
        row = PointRow(lane, begin, number)
        body: list[Statement] = [Declare(number, minimum(frame.extent(lane) - begin, self.row_points))]
        body += self.reduce_by_lane(frame, nest, row, ())
        return [counted_loop(begin, frame.extent(lane), *body, step=self.row_points)]


def cpu_kernel(flat: FusedLayout, kind: Type, row_points: int = ROW_POINTS) -> Kernel:
    """Return the kernel of *flat*: inputs, outputs, slots, ``FIRST_BLOCK``, sizes and strides, constants.

    Its launch has as many blocks as points (or rows of *row_points*), counted from the first block.
    """
    row_points = flat.joined or row_points
    frame = EmissionState(flat, kind, I64)
    first = Var(FIRST_BLOCK, I64)
    params: tuple[Array | Var, ...] = (*frame.arrays.values(), first, *frame.numbers)
    return Kernel("fused", params, tuple(CpuWriter(flat, row_points).kernel(frame, first)))


def cpu_blocks(flat: FusedLayout, row_points: int = ROW_POINTS) -> int:
    """Return the number of blocks of the kernel of *flat*."""
    blocks = {x: flat.extents[x] for x in flat.grid if x != flat.swept}
    if flat.together is not None:
        blocks[flat.together] = -(-blocks[flat.together] // (flat.joined or row_points))
    return prod(blocks.values())
