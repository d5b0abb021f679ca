"""What kernels that move memory are written of: arrays, places, and the value at one point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from einnet_explore.algebra.flatten import flat_address, row_major
from einnet_explore.ir import REDUCTIONS, Access, Iterator, Scalar, Scope, Table, Tensor, accesses, map_accesses
from einnet_explore.kernels.places import name_of, place_in, plus
from einnet_explore.kernels.source import (
    I32,
    I64,
    Array,
    Assign,
    Declare,
    Expr,
    For,
    Kernel,
    KernelError,
    Literal,
    Statement,
    Type,
    Var,
    binary,
    literal,
    lowering,
)

THREADS = 256


def moves(access: Access, along: Iterable[Iterator]) -> bool:
    """Whether *access* reads something else as one of *along* goes on."""
    moving_ones = {x for i in access.index for x in i.iterators}
    return any(x in moving_ones for x in along)


@dataclass(frozen=True)
class Frame:
    """The kernel *name* of *scope* in numbers of *kind*; *body* is the scope's, with everything put in."""

    scope: Scope
    body: Scalar
    name: str
    kind: Type

    @cached_property
    def axes(self) -> tuple[Iterator, ...]:
        """The traversals of more than one value."""
        return tuple(x for x in self.scope.traversals if x.extent > 1) or self.scope.traversals[-1:]

    @property
    def inner(self) -> Iterator:
        """The dimension that threads go along."""
        return self.axes[-1]

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        """Everything that is read, once."""
        return tuple(dict.fromkeys(accesses(self.body)))

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Every tensor's array, by name."""
        sources = [a.source for a in self.reads]
        return {name_of(s): Array(name_of(s), self.kind, prod(s.shape), const=True) for s in sources}

    @cached_property
    def result(self) -> Array:
        """The array that is written."""
        name = next(n for k in range(len(self.memory) + 1) if (n := "O" if not k else f"O{k}") not in self.memory)
        return Array(name, self.kind, prod(self.scope.shape))

    @cached_property
    def wide(self) -> Type:
        """The type of places: 64 bits where 32 do not reach, the ends of the last block included."""
        far = max(self.result.size, *(a.size for a in self.memory.values()), 0) + 8 * THREADS
        spans = [max(map(abs, i.bounds)) for a in self.reads for i in (flat_address(a), *a.index)]
        return I32 if max(far, *spans, 0) < 1 << 31 else I64

    def kernel(self, body: tuple[Statement, ...], threads: int, blocks: int) -> Kernel:
        """*body* in so many *blocks*; raises KernelError where they are too many."""
        if blocks >= 1 << 31:
            raise KernelError(f"{self.name}: {blocks} blocks are more than a device takes")
        return Kernel(self.name, (*self.memory.values(), self.result), body, (threads, 1, 1), (blocks, 1, 1))

    def digits(
        self, number: Expr, axes: Iterable[Iterator], pack: int = 1
    ) -> tuple[dict[Iterator, Expr], list[Statement]]:
        """What iterators stand for where *number* counts the points of *axes*, in packs along the innermost one."""
        at: dict[Iterator, Expr] = {x: Literal(x.lo, self.wide) for x in self.scope.traversals if x.extent == 1}
        out: list[Statement] = []
        todo = list(axes)
        while todo:
            x = todo.pop()
            extent, var = x.extent // pack, Var(f"{x.name} at", self.wide)
            out.append(Declare(var, (binary("%", number, extent) if todo else number) * pack))
            at[x], number, pack = plus(var, x.lo), binary("/", number, extent), 1
        return at, out

    def index(self, access: Access, at: Mapping[Iterator, Expr]) -> Expr:
        """The place in memory of *access*, which stays inside."""
        return lowering.index(flat_address(access), at, self.wide)

    def address(self, at: Mapping[Iterator, Expr]) -> Expr:
        """The place of an element of the result."""
        index = tuple(x - x.lo for x in self.scope.traversals)
        return place_in(self.scope.shape, index, at, self.wide)

    def scalar(self, body: Scalar, at: Mapping[Iterator, Expr], held: Mapping[Access, Expr]) -> Expr:
        """*body* where iterators stand for *at*; reads in *held* have been made."""
        marks = {access: Tensor(f"#{n}", ()) for n, access in enumerate(held)}
        values = {marks[access].name: value for access, value in held.items()}
        marked = map_accesses(body, lambda access: marks[access][()] if access in marks else access)

        def read(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
            name = name_of(source)
            if name in values:
                return values[name]
            place: Expr = Literal(0, self.wide)
            for i, (lo, _), step in zip(where, source.box, row_major(source.shape), strict=True):
                place = place + plus(i, -lo) * step
            return self.memory[name][place]

        return lowering.scalar(marked, at, read, self.kind, self.wide)

    def value(
        self, at: Mapping[Iterator, Expr], held: Mapping[Access, Expr], store: Callable[[Expr], Statement]
    ) -> tuple[Statement, ...]:
        """The value at one point, summed up by this thread, given to *store*."""
        if not self.scope.summations:
            return (store(self.scalar(self.body, at, held)),)
        total, reduce = Var("total", self.kind), self.scope.reduce
        sums = {x: Var(f"{x.name} in", self.wide) for x in self.scope.summations}
        value = self.scalar(self.body, {**at, **{x: plus(var, x.lo) for x, var in sums.items()}}, held)
        inside: tuple[Statement, ...] = (Assign(total, lowering.joined(reduce, total, value)),)
        for x in reversed(self.scope.summations):
            zero, one = Literal(0, self.wide), Literal(1, self.wide)
            inside = (For(sums[x], zero, Literal(x.extent, self.wide), one, inside, unroll=True),)
        return (Declare(total, literal(REDUCTIONS[reduce], self.kind)), *inside, store(total))
