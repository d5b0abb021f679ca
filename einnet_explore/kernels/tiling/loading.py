"""How a tiled kernel's inputs come into shared memory: tile after tile, or the next one while one is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from einnet_explore.ir import Access, Tensor
from einnet_explore.kernels.source import I32, Array, Copy, Expr, For, Id, If, Literal, Load, Statement, Store, Var
from einnet_explore.kernels.source.calls import Select
from einnet_explore.kernels.tiling.frame import Frame
from einnet_explore.kernels.tiling.staging import Input

THREAD = Id("thread")


@dataclass(frozen=True)
class Loading(Frame):
    """The tiles of the inputs: their arrays, and what puts them there."""

    @cached_property
    def turning(self) -> int | None:
        """The one row along which tiles of inputs come in turns, where the next one is to come while one is used."""
        hardware = self.cost.hardware
        if not hardware.managed or hardware.stages < 2 or self.kind.size not in (4, 8) or self.threads.threads == 1:
            return None
        rows = [n for n, c in enumerate(self.counts) if c > 1 and not self.output(n)]
        return rows[0] if len(rows) == 1 else None

    def tile(self, i: Input) -> Array:
        """The array of the tile of *i*, or of two of them in turns."""
        size = i.layout.size if self.turning is None else 2 * i.layout.size
        return Array(f"{i.column.name}_tile", self.kind, size, "shared")

    def half(self, i: Input) -> Expr:
        """Where in its array the tile that is used now begins."""
        if self.turning is None:
            return Literal(0, I32)
        return self.base[self.turning] // self.cost.tile[self.turning] % 2 * i.layout.size

    def load(self, i: Input, later: Mapping[int, Expr] | None = None, half: Expr | None = None) -> Statement:
        """The tile of *i*, into the *half* of its array if it has two; where rows in *later* are instead of here."""
        number = Var(f"{i.column.name}_element")
        base = [(later or {}).get(n, b) for n, b in enumerate(self.base)]
        place, value = i.loaded(number, base, self.source(i.access), self.kind, self.wide)
        step = Literal(self.threads.threads, I32)
        end = Literal(i.layout.elements, I32)
        start: Expr = THREAD if self.threads.threads > 1 else Literal(0, I32)
        if half is None:
            return For(number, start, end, step, (Store(self.tile(i), place, value),))
        return For(number, start, end, step, _copied(self.tile(i), place + half * i.layout.size, value))

    def source(self, access: Access) -> Array:
        """The array in memory that *access* reads."""
        assert isinstance(access.source, Tensor)
        return self.memory[access.source.name]


def _copied(tile: Array, place: Expr, value: Expr) -> tuple[Statement, ...]:
    """*value* put at *place*: an element of memory past the registers, a constant, or one where a condition holds."""
    match value:
        case Load(array, index) if array.space == "global" and array.kind == tile.kind:
            return (Copy(tile, place, array, index, 1, asynchronous=True),)
        case Select(condition, yes, no):
            return (If(condition, _copied(tile, place, yes), _copied(tile, place, no)),)
    return (Store(tile, place, value),)
