"""The buffers of one kernel, and names for what is put into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import prod
from typing import Any

from tvm import tirx

from einnet_explore.backends.tiled.plan import Plan
from einnet_explore.ir import Iterator
from einnet_explore.kernels.layout import Address

Expr = Any
Statement = Any
At = Mapping[Iterator, Expr]


@dataclass(frozen=True, eq=False)
class Context:
    """A kernel while it is put together."""

    plan: Plan
    _next: Callable[[], int] = field(default_factory=lambda: count().__next__)

    @property
    def last(self) -> Iterator:
        """The traversal that runs along the lanes."""
        return self.plan.form.traversals[-1]

    @cached_property
    def raw(self) -> tuple[Expr, Expr]:
        """The operands as they are given: the one that is read in vectors, the other one."""
        plan = self.plan
        vector, other = (plan.form.operands[n].shape for n in (plan.tile.vector, 1 - plan.tile.vector))
        return buffer(vector, "a"), buffer((plan.packed,) if plan.other is None else other, "b")

    @cached_property
    def operands(self) -> tuple[Expr, Expr]:
        """Where the sums read them: there, or in copies; vectors may reach beyond the last row of a copy."""
        spare = 2 * self.plan.tile.lanes
        first, second = (
            buffer((layout.size + spare,), f"{raw.name}c") if layout is not None and layout.copied else raw
            for layout, raw in zip((self.plan.tile.layout, self.plan.other), self.raw, strict=True)
        )
        return first, second

    @cached_property
    def sides(self) -> Mapping[str, Expr]:
        """What the epilogue reads, by name."""
        return {t.name: buffer(t.shape, f"t{n}") for n, t in enumerate(self.plan.sides)}

    @cached_property
    def result(self) -> Expr:
        """What is written."""
        return buffer(tuple(x.extent for x in self.plan.form.outside), "y")

    def variable(self, stem: str) -> Expr:
        """A new integer."""
        return tirx.Var(f"{stem}{self._next()}", "int32")

    def accumulator(self) -> Expr:
        """A new buffer of one vector."""
        return buffer((self.plan.tile.lanes,), f"c{self._next()}")

    def let(self, out: list[Statement], value: Expr, lanes: int | None = None) -> Expr:
        """*value*, a vector, bound to a new name by a statement added to *out*."""
        name = tirx.Var(f"v{self._next()}", f"float32x{lanes or self.plan.tile.lanes}")
        out.append(tirx.Bind(name, value))
        return name

    def lanes(self, start: Expr | int) -> Expr:
        """The places of a vector from *start* on."""
        first = tirx.const(start, "int32") if isinstance(start, int) else start
        return tirx.Ramp(first, tirx.const(1, "int32"), self.plan.tile.lanes)


def buffer(shape: Sequence[int], name: str) -> Expr:
    """A flat buffer of so many elements."""
    return tirx.decl_buffer((max(1, prod(shape)),), "float32", name)


def sequence(statements: Sequence[Statement]) -> Statement:
    """*statements* one after the other; TVM does not nest sequences."""
    flat: list[Statement] = []
    for s in statements:
        flat += list(s.seq) if isinstance(s, tirx.SeqStmt) else [s]
    return tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]


def serial(x: Expr, extent: int, body: Statement) -> Statement:
    """A loop."""
    return tirx.For(x, 0, extent, tirx.ForKind.SERIAL, body)


def parallel(x: Expr, extent: int, body: Statement) -> Statement:
    """A loop whose steps threads share."""
    return tirx.For(x, 0, extent, tirx.ForKind.PARALLEL, body)


def vectorized(x: Expr, extent: int, body: Statement) -> Statement:
    """A loop that is one step of vectors."""
    return tirx.For(x, 0, extent, tirx.ForKind.VECTORIZED, body)


def flat(at: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The position of *at* in an array of *shape*."""
    total: Expr = tirx.const(0, "int32")
    for d, i in enumerate(at):
        total = total + i * prod(shape[d + 1 :])
    return total


def position(address: Address, env: At) -> Expr:
    """*address* where iterators stand for *env*."""
    total: Expr = tirx.const(0, "int32")
    for x, k in address[1].items():
        total = total + env[x] * k
    return total + address[0]
