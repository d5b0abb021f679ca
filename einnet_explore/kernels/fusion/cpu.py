"""A fused kernel for a CPU: a block is a point of the grid, or a row of them where they lie side by side.

Everything that belongs to a point is done before the next, so that what one stage reads the next finds in a cache.
Rows are summed up in vectors of the arithmetic's own type, and rows together in double precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.ir import Iterator
from einnet_explore.kernels.fusion.flat import Flat
from einnet_explore.kernels.fusion.frame import Frame, join
from einnet_explore.kernels.fusion.lanes import LANES, Lanes, Row, least
from einnet_explore.kernels.fusion.stages import Nest, Step
from einnet_explore.kernels.places import FIRST
from einnet_explore.kernels.source import (
    I64,
    Array,
    Assign,
    Declare,
    Expr,
    For,
    Id,
    Kernel,
    Literal,
    Note,
    Statement,
    Type,
    Var,
    cast,
)

ROW = 4096
"""Elements that are summed up in single precision, at most."""


def cpu_kernel(flat: Flat, kind: Type) -> Kernel:
    """The kernel of *flat*: inputs, outputs, slots, ``FIRST``, sizes and strides, constants; see ``Frame``.

    It is launched over as many blocks as there are points (rows of them), counted from *first*.
    """
    frame = Frame(flat, kind, I64)
    first = Var(FIRST, I64)
    params: tuple[Array | Var, ...] = (
        *frame.arrays.values(),
        first,
        *frame.numbers,
    )
    return Kernel("fused", params, tuple(_Writer(flat).kernel(frame, first)))


def blocks(flat: Flat) -> int:
    """How many blocks the kernel of *flat* has."""
    if flat.lanes is None:
        return flat.points
    n = flat.extents[flat.lanes]
    return -(-n // LANES) * flat.points // n if n else 0


@dataclass(frozen=True)
class _Writer(Lanes):
    def kernel(self, frame: Frame, first: Var) -> Iterable[Statement]:
        """The point of the grid, then its stages."""
        lanes = self.flat.lanes
        point = self.var("point")
        yield Declare(point, cast(I64, Id("block")) + first)
        rest: Expr = point
        for x in reversed(self.flat.grid):
            size = frame.extent(x) if x != lanes else (frame.extent(x) + (LANES - 1)) // LANES
            place = self.var(f"at {x.name}")
            yield Declare(place, rest if x == self.flat.grid[0] else rest % size)
            rest = rest // size
            if x != lanes:
                frame = frame.standing(x, place)
                continue
            begin, number = self.var("begin"), self.var("count")
            yield Declare(begin, place * LANES)
            yield Declare(number, least(frame.extent(x) - begin, LANES))
            frame = replace(frame, spread=LANES)
            row = Row(x, begin, number)
        for n, stage in enumerate(self.flat.fused.stages):
            yield Note(f"stage {n}")
            if lanes is None:
                frame, made = self.values(frame, stage.heads)
                yield from made
                for nest in stage.nests:
                    frame, made = self._nest(frame, nest)
                    yield from made
            else:
                yield from self.head_row(frame, stage, n, row)
                for nest in stage.nests:
                    yield from self.row_nest(frame, nest, row)

    def _nest(self, frame: Frame, nest: Nest) -> tuple[Frame, list[Statement]]:
        """The loops of *nest*; gives a frame that holds what it reduced to one value."""
        loops = tuple(x for x in self.flat.order if x in nest.axes)
        reduced = [s for s in nest.steps if s.reduce is not None]
        if not reduced:
            return frame, self.loops(frame, loops, lambda f: self.values(f, nest.steps)[1], simd=True)
        outside = tuple(x for x in loops if x in nest.traversals)
        sums = tuple(x for x in loops if x in nest.summations)
        if outside and loops[-1] == outside[-1]:
            return frame, self.loops(frame, outside[:-1], lambda f: self._blocks(f, nest, outside[-1]))
        held: dict[str, Expr] = {}

        def body(f: Frame) -> list[Statement]:
            out, totals = self._summed(f, nest, sums, reduced)
            for step in reduced:
                var = self.var(step.name, f.kind)
                held[step.name] = var
                out.append(Declare(var, f.finished(step, totals[step.name])))
                if step.stores:
                    out.append(f.store(step, var))
            return out

        made = self.loops(frame, outside, body)
        return (frame if outside else frame.holding(held)), made

    def _summed(
        self, frame: Frame, nest: Nest, sums: tuple[Iterator, ...], reduced: list[Step]
    ) -> tuple[list[Statement], dict[str, Var]]:
        """Rows summed up in vectors, and their sums together."""
        totals, parts = ({s.name: self.var(f"{what} {s.name}", k) for s in reduced for k in [frame.total(s, wide)[0]]}
                         for what, wide in (("total", True), ("part", False)))  # fmt: skip
        out: list[Statement] = [Declare(totals[s.name], frame.total(s, True)[1]) for s in reduced]

        def row(f: Frame) -> list[Statement]:
            return self.steps(f, nest, lambda s, value: Assign(parts[s.name], join(s, parts[s.name], value)))

        def rows(f: Frame) -> list[Statement]:
            made: list[Statement] = [Declare(parts[s.name], f.total(s, False)[1]) for s in reduced]
            if sums:
                start, stop, var = self._chunk, self.var("stop"), self.var(sums[-1].name)
                made.append(Declare(stop, least(f.extent(sums[-1]), start + ROW)))
                inside = tuple(row(f.standing(sums[-1], var)))
                made.append(For(var, start, stop, Literal(1, I64), inside, simd=True))
            else:
                made += row(f)
            for s in reduced:
                total = totals[s.name]
                made.append(Assign(total, join(s, total, cast(total.type, parts[s.name]))))
            return made

        def chunks(f: Frame) -> list[Statement]:
            if not sums:
                return rows(f)
            end, step = f.extent(sums[-1]), Literal(ROW, I64)
            return [For(self._chunk, Literal(0, I64), end, step, tuple(rows(f)))]

        return out + self.loops(frame, sums[:-1], chunks), totals

    @property
    def _chunk(self) -> Var:
        return Var(":chunk", I64)

    def _blocks(self, frame: Frame, nest: Nest, lane: Iterator) -> list[Statement]:
        """*nest*, whose innermost axis is kept: so many results side by side, over all summations."""
        begin, number = self.var("begin"), self.var("count")
        row = Row(lane, begin, number)
        body: list[Statement] = [Declare(number, least(frame.extent(lane) - begin, LANES))]
        body += self.side_by_side(frame, nest, row, (), lambda f, at: f)
        return [For(begin, Literal(0, I64), frame.extent(lane), Literal(LANES, I64), tuple(body))]
