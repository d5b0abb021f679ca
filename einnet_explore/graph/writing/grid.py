"""Arithmetic of values over iterators in standard ONNX operators: broadcast, reduced, contracted as ``MatMul``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from einnet_explore.graph.writing.body import Body
from einnet_explore.graph.writing.indices import Held
from einnet_explore.ir import Iterator


@dataclass(frozen=True)
class Grid:
    """Values over some of *iterators*, written into *body*."""

    body: Body
    iterators: tuple[Iterator, ...]

    def constant(self, value: float) -> Held:
        """A number."""
        return Held(self.body.number(value), ())

    def apply(self, op: str, *args: Held) -> Held:
        """The elementwise operator *op*, broadcast; in the order of the largest argument, if that has all iterators."""
        union = {x for a in args for x in a.over}
        widest = max(args, key=lambda a: prod(x.extent for x in a.over)).over
        over = widest if union <= set(widest) else tuple(x for x in self.iterators if x in union)
        return Held(self.body.emit(op, *(self.aligned(a, over) for a in args)), over)

    def aligned(self, held: Held, over: Sequence[Iterator]) -> str:
        """*held* with its dimensions where those of *over* are, counted from the last."""
        name = self._turned(held, [x for x in over if x in held.over])
        first = next((n for n, x in enumerate(over) if x in held.over), len(over))
        shape = [x.extent if x in held.over else 1 for x in over[first:]]
        return self.body.reshape(name, [x.extent for x in over if x in held.over], shape)

    def _turned(self, held: Held, over: Sequence[Iterator]) -> str:
        return self.body.transpose(held.name, [held.over.index(x) for x in over])

    def total(self, monoid: str, held: Held, gone: Sequence[Iterator]) -> Held:
        """*held* reduced over those of *gone* that it has."""
        axes = [n for n, x in enumerate(held.over) if x in gone]
        return Held(self.body.reduce(monoid, held.name, axes), tuple(x for x in held.over if x not in gone))

    def contract(self, a: Held, b: Held, done: Sequence[Iterator]) -> Held:
        """Σ over *done* of a·b: a batched matrix product where one has iterators of its own, else a product."""
        a = self.total("sum", a, [x for x in done if x not in b.over])
        b = self.total("sum", b, [x for x in done if x not in a.over])
        inner = [x for x in a.over if x in done]
        batch = [x for x in a.over if x in b.over and x not in inner]
        left = [x for x in a.over if x not in b.over]
        right = [x for x in b.over if x not in a.over]
        if not inner or not (left or right):
            return self.total("sum", self.apply("Mul", a, b), inner)
        name = self.body.emit("MatMul", self._matrix(a, batch, left, inner), self._matrix(b, batch, inner, right))
        over = (*batch, *left, *right)
        shape = _sizes(*([batch] if batch else []), left, right)
        return Held(self.body.reshape(name, shape, [x.extent for x in over]), over)

    def _matrix(self, held: Held, batch: list[Iterator], rows: list[Iterator], columns: list[Iterator]) -> str:
        order = [*batch, *rows, *columns]
        name = self._turned(held, order)
        return self.body.reshape(name, [x.extent for x in order], _sizes(*([batch] if batch else []), rows, columns))


def _sizes(*groups: Sequence[Iterator]) -> list[int]:
    return [prod(x.extent for x in group) for group in groups]
