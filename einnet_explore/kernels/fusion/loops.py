"""What fused kernels for CPUs and for GPUs are both written of: variables, values at one point, loops over axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from einnet_explore.ir import Iterator
from einnet_explore.kernels.fusion.flat import Flat
from einnet_explore.kernels.fusion.frame import Frame
from einnet_explore.kernels.fusion.stages import Nest, Step
from einnet_explore.kernels.source import I64, Declare, Expr, For, Literal, Statement, Type, Var

Body = Callable[[Frame], Iterable[Statement]]


@dataclass(frozen=True)
class Loops:
    """Writes the statements of *flat*; no two of its variables have one name."""

    flat: Flat
    _next: Callable[[], int] = field(default_factory=lambda: count().__next__, kw_only=True)

    def var(self, stem: str, kind: Type = I64) -> Var:
        """A new variable."""
        return Var(f":{stem} {self._next()}", kind)

    def values(
        self, frame: Frame, steps: Iterable[Step], kept: Callable[[Statement], Statement] = lambda store: store
    ) -> tuple[Frame, list[Statement]]:
        """Element-wise values, here, as variables, and in memory where they are to be *kept*."""
        out: list[Statement] = []
        for step in steps:
            var = self.var(step.name, frame.kind)
            out.append(Declare(var, frame.guarded(step, frame.scalar(step.body))))
            frame = frame.holding({step.name: var})
            if step.stores:
                out.append(kept(frame.store(step, var)))
        return frame, out

    def steps(self, frame: Frame, nest: Nest, join_to: Callable[[Step, Expr], Statement]) -> list[Statement]:
        """All steps of *nest* at one point; what is reduced goes to *join_to*."""
        out: list[Statement] = []
        for step in nest.steps:
            if step.reduce is None:
                frame, made = self.values(frame, (step,))
                out += made
            else:
                out.append(join_to(step, frame.scalar(step.body)))
        return out

    def loops(self, frame: Frame, axes: Iterable[Iterator], body: Body, simd: bool = False) -> list[Statement]:
        """*body* in loops over *axes*, as they are ordered, the last one innermost and, if asked for, in vectors."""
        among = frozenset(axes)
        left = [x for x in self.flat.order if x in among]
        if not left:
            return list(body(frame))
        x, *rest = left
        var = self.var(x.name, frame.wide)
        inner = self.loops(frame.standing(x, var), rest, body, simd)
        start, step = Literal(0, frame.wide), Literal(1, frame.wide)
        return [For(var, start, frame.extent(x), step, tuple(inner), simd=simd and not rest)]
