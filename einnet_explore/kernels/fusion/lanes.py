"""Points side by side on a CPU: one a lane of a vector, over all that is summed; what is kept of them lies in rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from einnet_explore.ir import Iterator
from einnet_explore.kernels.fusion.flat import reads_of
from einnet_explore.kernels.fusion.frame import Frame, join
from einnet_explore.kernels.fusion.loops import Loops
from einnet_explore.kernels.fusion.operations import read_name
from einnet_explore.kernels.fusion.stages import Nest, Stage, Step
from einnet_explore.kernels.source import I64, Array, Declare, Expr, For, Literal, Local, Statement, Store, cast, select

LANES = 256
"""Points of the grid, or traversals, that go side by side."""


@dataclass(frozen=True)
class Row:
    """Values of *axis* from *begin* on, *number* of them, that go side by side."""

    axis: Iterator
    begin: Expr
    number: Expr

    def loop(
        self,
        writer: Loops,
        frame: Frame,
        at_lane: Callable[[Frame, Expr], Frame],
        body: Callable[[Frame, Expr], list[Statement]],
    ) -> Statement:
        """*body* for each lane."""
        lane = writer.var("lane")
        here = at_lane(frame.standing(self.axis, self.begin + lane), lane)
        return For(lane, Literal(0, I64), self.number, Literal(1, I64), tuple(body(here, lane)), simd=True)


@dataclass(frozen=True)
class Lanes(Loops):
    """Writes nests for rows of points; *rows* holds, by name, what a row of points has made so far."""

    rows: dict[str, Array] = field(default_factory=dict)

    def row_nest(self, frame: Frame, nest: Nest, row: Row) -> list[Statement]:
        """*nest* for a row of points of the grid."""

        def at_lane(f: Frame, lane: Expr) -> Frame:
            return replace(f.holding({n: array[lane] for n, array in self.rows.items()}), base=self._lane(lane))

        loops = tuple(x for x in self.flat.order if x in nest.axes)
        if all(s.reduce is None for s in nest.steps):
            steps = nest.steps
            return self.loops(
                frame, loops, lambda f: [row.loop(self, f, at_lane, lambda g, _: self.values(g, steps)[1])]
            )
        outside = tuple(x for x in loops if x in nest.traversals)
        keep = () if outside else tuple(s.name for s in nest.steps if s.reduce is not None)
        out: list[Statement] = []
        for name in keep:
            self.rows[name] = Array(f":row {name} {self._next()}", frame.kind, LANES, "private", align=64)
            out.append(Local(self.rows[name]))
        return out + self.loops(frame, outside, lambda f: self.side_by_side(f, nest, row, keep, at_lane))

    def side_by_side(
        self, frame: Frame, nest: Nest, row: Row, keep: tuple[str, ...], at_lane: Callable[[Frame, Expr], Frame]
    ) -> list[Statement]:
        """Reductions of *nest*, one a lane of *row*; those in *keep* go to rows."""
        reduced = [s for s in nest.steps if s.reduce is not None]
        totals = {
            s.name: Array(f":total {s.name} {self._next()}", frame.total(s, True)[0], LANES, "private", align=64)
            for s in reduced
        }
        out: list[Statement] = [Local(a) for a in totals.values()]

        def clear(f: Frame, lane: Expr) -> list[Statement]:
            return [Store(totals[s.name], lane, f.total(s, True)[1]) for s in reduced]

        def add(f: Frame, lane: Expr) -> list[Statement]:
            def to(step: Step, value: Expr) -> Statement:
                array = totals[step.name]
                return Store(array, lane, join(step, array[lane], cast(array.kind, value)))

            return self.steps(f, nest, to)

        def finish(f: Frame, lane: Expr) -> list[Statement]:
            made: list[Statement] = []
            for s in reduced:
                var = self.var(s.name, f.kind)
                made.append(Declare(var, f.finished(s, totals[s.name][lane])))
                made += [Store(self.rows[s.name], lane, var)] if s.name in keep else []
                made += [f.store(s, var)] if s.stores else []
            return made

        sums = tuple(x for x in self.flat.order if x in nest.summations)
        out.append(row.loop(self, frame, at_lane, clear))
        out += self.loops(frame, sums, lambda f: [row.loop(self, f, at_lane, add)])
        out.append(row.loop(self, frame, at_lane, finish))
        return out

    def _lane(self, lane: Expr) -> Mapping[int, Expr]:
        return dict.fromkeys(range(self.flat.fused.slots), lane)

    def head_row(self, frame: Frame, stage: Stage, n: int, row: Row) -> list[Statement]:
        """The heads of *stage* for a row of points; what is read outside of this loop goes to rows."""
        if not stage.heads:
            return []
        after = [s for nest in stage.nests for s in nest.steps]
        after += [s for later in self.flat.fused.stages[n + 1 :] for s in later.steps]
        read = {read_name(a) for s in after for a in reads_of(s.body)}
        known = dict(self.rows)
        out: list[Statement] = []
        for step in stage.heads:
            if step.name in read:
                self.rows[step.name] = Array(f":row {step.name}", frame.kind, LANES, "private", align=64)
                out.append(Local(self.rows[step.name]))

        def at_lane(f: Frame, lane: Expr) -> Frame:
            return replace(f.holding({m: array[lane] for m, array in known.items()}), base=self._lane(lane))

        def body(f: Frame, lane: Expr) -> list[Statement]:
            f, made = self.values(f, stage.heads)
            kept = (s.name for s in stage.heads if s.name in read)
            return [*made, *(Store(self.rows[m], lane, f.values[m]) for m in kept)]

        return [*out, row.loop(self, frame, at_lane, body)]


def least(a: Expr, b: Expr | int) -> Expr:
    other = b if isinstance(b, Expr) else Literal(b, I64)
    return select(a.lt(other), a, other)
