"""What the statements of a tiled kernel speak of: rows, arrays, and where a block and a thread stand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from einnet_explore.ir import Iterator, Tensor, accesses
from einnet_explore.kernels.core import RESULT
from einnet_explore.kernels.source import (
    I32,
    I64,
    Array,
    Expr,
    Literal,
    Type,
    Var,
)
from einnet_explore.kernels.tiling.contraction import Contraction
from einnet_explore.kernels.tiling.cost import TileCost
from einnet_explore.kernels.tiling.staging import Input, linear
from einnet_explore.kernels.tiling.threads import ThreadLayout, thread_layout


@dataclass(frozen=True)
class Frame:
    """What *contraction* is in tiles of *cost*, for elements of *kind*: what its statements are about."""

    contraction: Contraction
    cost: TileCost
    kind: Type

    @cached_property
    def rows(self) -> tuple[Iterator, ...]:
        core = self.contraction.core
        return tuple(sorted((*core.traversals, *core.summations), key=lambda x: x.name))

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        table, reads = self.contraction.table, dict.fromkeys(accesses(self.contraction.core.body))
        pairs = zip(reads, table.inputs, strict=True)
        return tuple(Input(read, column, table, self.cost.tile, self.rows) for read, column in pairs)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        both = (*accesses(self.contraction.core.body), *accesses(self.contraction.epilogue))
        found: dict[str, Tensor] = {}
        for source in (a.source for a in both if a.source != RESULT):
            if isinstance(source, Tensor) and found.setdefault(source.name, source).shape != source.shape:
                raise ValueError(f"tensor {source.name} is read as {source.shape} and as {found[source.name].shape}")
        return tuple(found.values())

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Every input's array in global memory."""
        return {t.name: Array(t.name, self.kind, prod(t.shape), const=True) for t in self.tensors}

    @cached_property
    def result(self) -> Array:
        core = self.contraction.core
        name = next(n for k in range(len(self.memory) + 1) if (n := "O" if not k else f"O{k}") not in self.memory)
        return Array(name, self.kind, prod(core.shape))

    @cached_property
    def threads(self) -> ThreadLayout:
        hardware = self.cost.hardware
        return thread_layout(self.contraction.table, self.cost.tile, hardware.threads, hardware.square)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Sums along every row that a thread holds."""
        steps = self.threads.steps(self.cost.tile)
        return tuple(s if r.output else 1 for s, r in zip(steps, self.contraction.table.rows, strict=True))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Tiles along every row."""
        return tuple(-(-n // t) for n, t in zip(self.contraction.table.ranges, self.cost.tile, strict=True))

    @cached_property
    def wide(self) -> Type:
        """The type of addresses: 64 bits where 32 do not reach."""
        ends = [n * t for n, t in zip(self.counts, self.cost.tile, strict=True)]
        columns = self.contraction.table.columns
        far = max(sum(abs(k) * n for k, n in zip(c.coefficients, ends, strict=True)) + abs(c.offset) for c in columns)
        return I32 if max(far, *(a.size for a in self.memory.values()), 0) < 1 << 31 else I64

    def output(self, n: int) -> bool:
        return self.contraction.table.rows[n].output

    def name(self, n: int, what: str) -> str:
        return f"{self.rows[n].name}_{what}"

    @cached_property
    def base(self) -> tuple[Expr, ...]:
        """Where the tile begins: variables of the block, loops over the summations."""
        return tuple(Var(self.name(n, "base")) if c > 1 else Literal(0, I32) for n, c in enumerate(self.counts))

    @cached_property
    def place(self) -> tuple[Expr, ...]:
        """Where in the tile this thread begins."""
        return tuple(
            Var(self.name(n, "thread")) if c > 1 else Literal(0, I32) for n, c in enumerate(self.threads.counts)
        )

    @cached_property
    def within(self) -> tuple[Expr, ...]:
        """Where in the tile a product lies: what loops over the sums and over the summations go through."""
        out: list[Expr] = []
        for n, t in enumerate(self.cost.tile):
            if self.output(n):
                step = Var(self.name(n, "step")) if self.steps[n] > 1 else Literal(0, I32)
                out.append(self.place[n] + step * self.threads.counts[n])
            else:
                out.append(Var(self.name(n, "in")) if t > 1 else Literal(0, I32))
        return tuple(out)

    @cached_property
    def at(self) -> tuple[Expr, ...]:
        """The point of the iteration space."""
        return tuple(b + w for b, w in zip(self.base, self.within, strict=True))

    @cached_property
    def sums(self) -> Array:
        return Array("sums", self.kind, prod(self.steps), "private")

    @cached_property
    def loops(self) -> tuple[int, ...]:
        """The rows along which a thread holds several sums, outermost first: neighbours in memory inside."""
        return tuple(n for n in reversed(self.threads.order) if self.steps[n] > 1)

    @cached_property
    def sum_at(self) -> Expr:
        """The place of a sum among those of the thread."""
        held = [Var(self.name(n, "step")) for n in self.loops]
        strides = [prod(self.steps[n] for n in self.loops[k + 1 :]) for k in range(len(held))]
        return linear(strides, held, 0, I32)
