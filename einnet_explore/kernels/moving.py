r"""Kernels for GPUs that move memory: every element of the result by one thread, neighbours by neighbouring threads.

.. math::  Y[\vec x] = \bigoplus_{\vec y} f(T[\tau(\vec x, \vec y)]), \qquad |\vec y| \text{ small}

Memory is fast where neighbouring threads touch neighbouring elements.  They go along the innermost dimension of the
result, four elements at a time (128 bits) where that can be.  A read whose neighbours lie along another dimension is
loaded along that one, into a tile of shared memory that is one element wider than it is long, so that columns lie in
different banks, and is read from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from einnet_explore.algebra.flatten import flat_address, row_major
from einnet_explore.algebra.guarding import guard
from einnet_explore.algebra.substitute import substitute
from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Index,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    map_accesses,
)
from einnet_explore.kernels.source import (
    F32,
    I32,
    I64,
    Array,
    Assign,
    Barrier,
    Copy,
    Declare,
    Expr,
    For,
    Id,
    If,
    Kernel,
    KernelError,
    Literal,
    Local,
    Note,
    Statement,
    Store,
    Type,
    Var,
    binary,
    call,
    cast,
    conjunction,
    counted,
    literal,
)
from einnet_explore.kernels.source.lowering import index as lowered
from einnet_explore.kernels.source.lowering import scalar
from einnet_explore.kernels.source.statements import PACK_BYTES

THREADS = 256
SIDE, ROWS = 32, 8
"""A tile is so wide and long; so many rows of it are moved at a time (``SIDE * ROWS`` threads)."""

TERMS = 64
"""Terms of a sum, at most: more are worth more than one thread."""

PRODUCTS = 16
"""The same where several tensors are multiplied: those are worth tiles."""

LEAST = 8
"""A dimension that is shorter is not worth a tile."""

_THREAD = Id("thread")


@dataclass(frozen=True)
class Moved:
    """The kernel of a scope: its parameters are the tensors called *inputs*, in order, then the result."""

    kernel: Kernel
    inputs: tuple[str, ...]


def moving(scope: Scope, name: str = "moved", kind: Type = F32) -> Moved:
    """*scope* as a kernel that moves memory; scopes that it reads are put in.

    Raises KernelError, with what was found, where sums are long, a sum is read, or a source is a table.
    """
    body = _flat(scope)
    terms = prod(x.extent for x in scope.summations)
    summed = [a for a in dict.fromkeys(accesses(body)) if _moves(a, scope.summations)]
    most = TERMS if len(summed) < 2 else PRODUCTS
    if terms > most or not scope.shape or not prod(scope.shape):
        raise KernelError(f"{name}: sums of {terms} terms over {list(scope.shape)}: expected at most {most}, not empty")
    writer = _Writer(scope, body, name, kind)
    return Moved(writer.tiled() if writer.turned else writer.straight(), tuple(writer.memory))


def _flat(scope: Scope) -> Scalar:
    """The body of *scope*, with the scopes that it reads put in and its domain as a condition."""

    def put(access: Access) -> Scalar:
        match access.source:
            case Tensor():
                return access
            case Scope() as inner if not inner.summations:
                at = dict(zip(inner.traversals, access.index, strict=True))
                return guard(access.index, inner.box, substitute(_flat(inner), at), inner.value)
            case source:
                raise KernelError(f"{source!r} is read at {access.index!r}: expected tensors and scopes without sums")

    if scope.summations and scope.domain:
        raise KernelError(f"a sum with {len(scope.domain)} bounds is not moved")
    body = map_accesses(scope.body, put)
    if not scope.domain:
        return body
    return guard(tuple(b.index for b in scope.domain), tuple((b.lo, b.hi) for b in scope.domain), body, scope.value)


def _moves(access: Access, along: Iterable[Iterator]) -> bool:
    moving_ones = {x for i in access.index for x in i.iterators}
    return any(x in moving_ones for x in along)


@dataclass(frozen=True)
class _Writer:
    """*body* is the scope's, with everything put in; ``inner`` is the dimension that threads go along."""

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
        return self.axes[-1]

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        return tuple(dict.fromkeys(accesses(self.body)))

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Every tensor's array, by name."""
        found: dict[str, Array] = {}
        for source in (a.source for a in self.reads):
            assert isinstance(source, Tensor)
            found[source.name] = Array(source.name, self.kind, prod(source.shape), const=True)
        return found

    @cached_property
    def result(self) -> Array:
        name = next(n for k in range(len(self.memory) + 1) if (n := "O" if not k else f"O{k}") not in self.memory)
        return Array(name, self.kind, prod(self.scope.shape))

    @cached_property
    def wide(self) -> Type:
        """The type of places: 64 bits where 32 do not reach, the ends of the last block included."""
        far = max(self.result.size, *(a.size for a in self.memory.values()), 0) + 8 * THREADS
        spans = [max(map(abs, i.bounds)) for a in self.reads for i in (flat_address(a), *a.index)]
        return I32 if max(far, *spans, 0) < 1 << 31 else I64

    def along(self, access: Access, x: Iterator) -> int | None:
        """Elements that one step of *x* moves the place of *access*; None where that is not always the same."""
        place = flat_address(access)
        if not place.affine:
            return None if x in place.iterators else 0
        return place.coefficient(x)

    @cached_property
    def turned(self) -> tuple[Access, ...]:
        """The reads that go through tiles: neighbours in memory lie along one dimension, which is not the result's."""
        if self.scope.summations or self.inner.extent < LEAST:
            return ()
        found: dict[Iterator, list[Access]] = {}
        for access in self.reads:
            step = self.along(access, self.inner)
            if step is None or abs(step) <= 1:
                continue
            for x in self.axes[:-1]:
                if x.extent >= LEAST and abs(self.along(access, x) or 0) == 1:
                    found.setdefault(x, []).append(access)
        best = max(found, key=lambda x: len(found[x]), default=None)
        return tuple(found[best]) if best is not None else ()

    @cached_property
    def other(self) -> Iterator:
        """The dimension along which the turned reads are loaded."""
        return next(x for x in self.axes[:-1] if all(abs(self.along(a, x) or 0) == 1 for a in self.turned))

    # --- along the result

    def straight(self) -> Kernel:
        """A thread for every pack, or for several elements a block apart, so that enough is on its way."""
        packed = [a for a in self.reads if self._packs(a)]
        size = PACK_BYTES // self.kind.size
        pack = size if self.inner.extent % size == 0 and (packed or not self.reads) else 1
        each = 1 if pack > 1 else size
        points = self.result.size // pack
        blocks = -(-points // (THREADS * each))
        turn, point = Var("turn"), Var("point", self.wide)
        at, placed = self._digits(point, [*self.axes[:-1], self.inner], {self.inner: pack})
        body = (*placed, *(self._pack(at, packed, point) if pack > 1 else self._one(at, point)))
        if points % (THREADS * each):
            body = (If(point.lt(points), body),)
        start = cast(self.wide, Id("block")) * (THREADS * each) + cast(self.wide, _THREAD)
        if each == 1:
            return self._kernel((Declare(point, start), *body), (THREADS, 1, 1), blocks)
        one = (Declare(point, start + cast(self.wide, turn) * THREADS), *body)
        return self._kernel((counted(turn, each, *one, unroll=True),), (THREADS, 1, 1), blocks)

    def _packs(self, access: Access) -> bool:
        """Whether four neighbours of *access* are four neighbours in memory, at a multiple of a pack."""
        size, place = PACK_BYTES // self.kind.size, flat_address(access)
        if not place.affine or place.coefficient(self.inner) != 1 or self.inner.extent % size:
            return False
        pairs = zip(access.index, access.source.box, strict=True)
        inside = all(lo <= i.bounds[0] and i.bounds[1] < hi for i, (lo, hi) in pairs)
        start = place.evaluate(lambda x: x.lo)
        others = (place.coefficient(x) for x in place.iterators if x != self.inner)
        assert isinstance(access.source, Tensor)
        return inside and start % size == 0 and all(k % size == 0 for k in others)

    def _pack(self, at: Mapping[Iterator, Expr], packed: Iterable[Access], point: Expr) -> Iterable[Statement]:
        """A pack of the result: packs are fetched whole, other reads one by one."""
        size = PACK_BYTES // self.kind.size
        once = [a for a in packed if not _moves(a, self.scope.summations)]
        held: dict[Access, Array] = {}
        for n, access in enumerate(once):
            held[access] = own = Array(f"pack {n}", self.kind, size, "private", align=PACK_BYTES)
            assert isinstance(access.source, Tensor)
            yield Local(own)
            yield Copy(
                own, literal(0), self.memory[access.source.name], lowered(flat_address(access), at, self.wide), size
            )
        made = Array("made", self.kind, size, "private", align=PACK_BYTES)
        yield Local(made)
        j = Var("j")
        here = {**at, self.inner: at[self.inner] + cast(self.wide, j)}
        yield counted(j, size, *self._value(here, held, j, lambda value: Store(made, j, value)), unroll=True)
        yield Copy(self.result, point * size, made, literal(0), size)

    def _one(self, at: Mapping[Iterator, Expr], point: Expr) -> Iterable[Statement]:
        return self._value(at, {}, literal(0), lambda value: Store(self.result, point, value))

    # --- through tiles

    def tiled(self) -> Kernel:
        """A block moves a tile: loaded along one dimension, written along the other."""
        across, down = self.inner, self.other
        rest = [x for x in self.axes if x not in (across, down)]
        counts = {x: -(-x.extent // SIDE) for x in (across, down)}
        tiles = {a: Array(f"tile {n}", self.kind, SIDE * (SIDE + 1), "shared") for n, a in enumerate(self.turned)}
        block: Expr = cast(self.wide, Id("block"))
        body: list[Statement] = [Local(t) for t in tiles.values()]
        base = {x: Var(f"{x.name} base", self.wide) for x in (across, down)}
        for x in (across, down):
            body.append(Declare(base[x], binary("%", block, counts[x]) * SIDE))
            block = binary("/", block, counts[x])
        outer = Var("outer", self.wide)
        body.append(Declare(outer, block))
        at, placed = self._digits(outer, rest, {})
        body += placed
        column, row, k = Var("column", self.wide), Var("row", self.wide), Var("k")
        body += [
            Declare(column, cast(self.wide, _THREAD % SIDE)),
            Declare(row, cast(self.wide, _THREAD // SIDE)),
            Note("load along the source"),
        ]
        lower = row + cast(self.wide, k) * ROWS

        def point(x: Expr, y: Expr) -> dict[Iterator, Expr]:
            """Where across is at *x* of the tile and down at *y*."""
            return {**at, across: self._from(across, base[across] + x), down: self._from(down, base[down] + y)}

        def inside(x: Expr, y: Expr, made: tuple[Statement, ...]) -> tuple[Statement, ...]:
            pairs = ((across, base[across] + x), (down, base[down] + y))
            test = conjunction(*(place.lt(d.extent) for d, place in pairs if d.extent % SIDE))
            return made if test is None else (If(test, made),)

        loads = tuple(
            Store(tile, lower * (SIDE + 1) + column, self._lowered(access, point(lower, column), {}))
            for access, tile in tiles.items()
        )
        body.append(counted(k, SIDE // ROWS, *inside(lower, column, loads), unroll=True))
        body += [Barrier(), Note("write along the result")]
        here = point(column, lower)
        place = self._address(here)
        held = {access: tile[column * (SIDE + 1) + lower] for access, tile in tiles.items()}
        store = Store(self.result, place, self._lowered(self.body, here, held))
        body.append(counted(k, SIDE // ROWS, *inside(column, lower, (store,)), unroll=True))
        blocks = prod(counts.values()) * prod(x.extent for x in rest)
        return self._kernel(tuple(body), (SIDE * ROWS, 1, 1), blocks)

    # --- both

    def _kernel(self, body: tuple[Statement, ...], block: tuple[int, int, int], blocks: int) -> Kernel:
        if blocks >= 1 << 31:
            raise KernelError(f"{self.name}: {blocks} blocks are more than a device takes")
        return Kernel(self.name, (*self.memory.values(), self.result), body, block, (blocks, 1, 1))

    def _digits(
        self, number: Expr, axes: Iterable[Iterator], packs: Mapping[Iterator, int]
    ) -> tuple[dict[Iterator, Expr], list[Statement]]:
        """What iterators stand for where *number* counts the points of *axes*, innermost fastest."""
        at: dict[Iterator, Expr] = {x: Literal(x.lo, self.wide) for x in self.scope.traversals if x.extent == 1}
        out: list[Statement] = []
        rest, todo = number, list(axes)
        while todo:
            x = todo.pop()
            pack = packs.get(x, 1)
            extent = x.extent // pack
            var = Var(f"{x.name} at", self.wide)
            out.append(Declare(var, (binary("%", rest, extent) if todo else rest) * pack))
            at[x] = self._from(x, var)
            rest = binary("/", rest, extent)
        return at, out

    @staticmethod
    def _from(x: Iterator, place: Expr) -> Expr:
        return place + x.lo if x.lo >= 0 else place - -x.lo

    def _address(self, at: Mapping[Iterator, Expr]) -> Expr:
        total: Index = Index()
        for x, step in zip(self.scope.traversals, row_major(self.scope.shape), strict=True):
            total = total + (x - x.lo) * step
        return lowered(total, at, self.wide)

    def _lowered(self, body: Scalar, at: Mapping[Iterator, Expr], held: Mapping[Access, Expr]) -> Expr:
        """*body* where iterators stand for *at*; reads in *held* have been made."""
        marks = {access: Tensor(f"#{n}", ()) for n, access in enumerate(held)}
        values = {marks[access].name: value for access, value in held.items()}
        marked = map_accesses(body, lambda access: marks[access][()] if access in marks else access)

        def read(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
            assert isinstance(source, Tensor)
            if source.name in values:
                return values[source.name]
            place: Expr = Literal(0, self.wide)
            for i, (lo, _), step in zip(where, source.box, row_major(source.shape), strict=True):
                place = place + (i - lo if lo >= 0 else i + -lo) * step
            return self.memory[source.name][place]

        return scalar(marked, at, read, self.kind, self.wide)

    def _value(
        self, at: Mapping[Iterator, Expr], held: Mapping[Access, Array], j: Expr, store: Callable[[Expr], Statement]
    ) -> tuple[Statement, ...]:
        """The value at one point, summed up by this thread, given to *store*."""
        own = {access: array[j] for access, array in held.items()}
        if not self.scope.summations:
            return (store(self._lowered(self.body, at, own)),)
        total = Var("total", self.kind)
        inside: tuple[Statement, ...] = ()
        sums = {x: Var(f"{x.name} in", self.wide) for x in self.scope.summations}
        value = self._lowered(self.body, {**at, **{x: self._from(x, var) for x, var in sums.items()}}, own)
        inside = (Assign(total, self._joined(total, value)),)
        for x in reversed(self.scope.summations):
            zero, one = Literal(0, self.wide), Literal(1, self.wide)
            inside = (For(sums[x], zero, Literal(x.extent, self.wide), one, inside, unroll=True),)
        return (Declare(total, literal(REDUCTIONS[self.scope.reduce], self.kind)), *inside, store(total))

    def _joined(self, a: Expr, b: Expr) -> Expr:
        match self.scope.reduce:
            case "sum":
                return a + b
            case "prod":
                return a * b
            case "max":
                return call("maximum", a, b)
            case _:
                return call("minimum", a, b)
