r"""Kernels for GPUs that move memory: one thread computes an element or a pack of the result.

.. math::  Y[\vec x] = \bigoplus_{\vec y} f(T[\tau(\vec x, \vec y)]), \qquad |\vec y| \text{ small}

Neighbouring threads go along the innermost dimension of the result, so that they write neighbouring elements
(``direct_copy``, four elements a thread where possible).  A read whose neighbours lie along another dimension goes
through a tile in shared memory (``tiled_copy``), loaded along that dimension and written along the innermost one.
Tiles are one element wider than they are long, so that columns lie in different banks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from einnet_explore.analysis.flattening import flat_address, row_major_strides
from einnet_explore.analysis.indices import guard, is_inside_box, substitute
from einnet_explore.codegen.language import (
    F32,
    I32,
    I64,
    Array,
    Assign,
    Barrier,
    Comment,
    Copy,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    LaunchIndex,
    Literal,
    LocalArray,
    Statement,
    Store,
    Type,
    Var,
    binary_operation,
    cast,
    conjunction,
    counted_loop,
    literal,
    lowering,
)
from einnet_explore.codegen.language.lowering import add_offset, element_address, result_array, tensor_name
from einnet_explore.codegen.language.statements import PACK_BYTES
from einnet_explore.ir import REDUCTIONS, Access, Iterator, Scalar, Scope, Table, Tensor, accesses, map_accesses
from einnet_explore.support.errors import Refused

COPY_THREADS = 256


def depends_on_any(access: Access, along: Iterable[Iterator]) -> bool:
    """True if the position of *access* depends on one of *along*."""
    moving_ones = {x for i in access.index for x in i.iterators}
    return any(x in moving_ones for x in along)


@dataclass(frozen=True)
class CopyFrame:
    """The kernel *name* of *scope* for elements of *kind*; *body* is the scope's, with nested scopes inlined."""

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
        """The dimension of neighbouring threads."""
        return self.axes[-1]

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        """All reads, each once."""
        return tuple(dict.fromkeys(accesses(self.body)))

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Every tensor's array, by name."""
        sources = [a.source for a in self.reads]
        return {tensor_name(s): Array(tensor_name(s), self.kind, prod(s.shape), const=True) for s in sources}

    @cached_property
    def result(self) -> Array:
        """The array that is written."""
        return result_array(self.memory, self.kind, self.scope.shape)

    @cached_property
    def wide(self) -> Type:
        """The type of positions: 64 bits if 32 are too few, including the end of the last block."""
        far = max(self.result.size, *(a.size for a in self.memory.values()), 0) + 8 * COPY_THREADS
        spans = [max(map(abs, i.bounds)) for a in self.reads for i in (flat_address(a), *a.index)]
        return I32 if max(far, *spans, 0) < 1 << 31 else I64

    def kernel(self, body: tuple[Statement, ...], threads: int, blocks: int) -> Kernel:
        """Return a kernel of so many *blocks*; raises Refused if they are too many."""
        if blocks >= 1 << 31:
            raise Refused(f"{self.name}: {blocks} blocks are more than a device takes")
        return Kernel(self.name, (*self.memory.values(), self.result), body, (threads, 1, 1), (blocks, 1, 1))

    def digits(
        self, number: Expr, axes: Iterable[Iterator], pack: int = 1
    ) -> tuple[dict[Iterator, Expr], list[Statement]]:
        """Split *number*, which counts the points of *axes* in packs along the innermost one, into iterator values."""
        at: dict[Iterator, Expr] = {x: Literal(x.lo, self.wide) for x in self.scope.traversals if x.extent == 1}
        out: list[Statement] = []
        todo = list(axes)
        while todo:
            x = todo.pop()
            extent, var = x.extent // pack, Var(f"{x.name} at", self.wide)
            out.append(Declare(var, (binary_operation("%", number, extent) if todo else number) * pack))
            at[x], number, pack = add_offset(var, x.lo), binary_operation("/", number, extent), 1
        return at, out

    def index(self, access: Access, at: Mapping[Iterator, Expr]) -> Expr:
        """Return the position in memory of *access*, which stays inside its source."""
        return lowering.lower_index(flat_address(access), at, self.wide)

    def address(self, at: Mapping[Iterator, Expr]) -> Expr:
        """Return the position of an element of the result."""
        index = tuple(x - x.lo for x in self.scope.traversals)
        return element_address(self.scope.shape, index, at, self.wide)

    def scalar(self, body: Scalar, at: Mapping[Iterator, Expr], held: Mapping[Access, Expr]) -> Expr:
        """Return *body* for iterators of the values *at*; reads in *held* are already loaded."""
        marks = {access: Tensor(f"#{n}", ()) for n, access in enumerate(held)}
        values = {marks[access].name: value for access, value in held.items()}
        marked = map_accesses(body, lambda access: marks[access][()] if access in marks else access)

        def load_source(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
            name = tensor_name(source)
            if name in values:
                return values[name]
            place: Expr = Literal(0, self.wide)
            for i, (lo, _), step in zip(where, source.box, row_major_strides(source.shape), strict=True):
                place = place + add_offset(i, -lo) * step
            return self.memory[name][place]

        return lowering.lower_scalar(marked, at, load_source, self.kind, self.wide)

    def value(
        self, at: Mapping[Iterator, Expr], held: Mapping[Access, Expr], store: Callable[[Expr], Statement]
    ) -> tuple[Statement, ...]:
        """Return statements that compute the value at one point, with its sums, and *store* it."""
        if not self.scope.summations:
            return (store(self.scalar(self.body, at, held)),)
        total, reduce = Var("total", self.kind), self.scope.reduce
        sums = {x: Var(f"{x.name} in", self.wide) for x in self.scope.summations}
        value = self.scalar(self.body, {**at, **{x: add_offset(var, x.lo) for x, var in sums.items()}}, held)
        inside: tuple[Statement, ...] = (Assign(total, lowering.lower_join(reduce, total, value)),)
        for x in reversed(self.scope.summations):
            zero, one = Literal(0, self.wide), Literal(1, self.wide)
            inside = (For(sums[x], zero, Literal(x.extent, self.wide), one, inside, unroll=True),)
        return (Declare(total, literal(REDUCTIONS[reduce], self.kind)), *inside, store(total))


def direct_copy(frame: CopyFrame) -> Kernel:
    """Return a kernel with a thread for a pack, or for several elements a block apart, to keep loads in flight."""
    size = PACK_BYTES // frame.kind.size
    packed = [a for a in frame.reads if _is_packable(frame, a, size)]
    pack = size if frame.inner.extent % size == 0 and (packed or not frame.reads) else 1
    each = 1 if pack > 1 else size
    points = frame.result.size // pack
    blocks = -(-points // (COPY_THREADS * each))
    turn, point = Var("turn"), Var("point", frame.wide)
    at, placed = frame.digits(point, frame.axes, pack)
    made = _pack(frame, at, packed, point) if pack > 1 else _single_element(frame, at, point)
    body: tuple[Statement, ...] = (*placed, *made)
    if points % (COPY_THREADS * each):
        body = (If(point.lt(points), body),)
    start = cast(frame.wide, LaunchIndex("block")) * (COPY_THREADS * each) + cast(frame.wide, LaunchIndex("thread"))
    if each == 1:
        return frame.kernel((Declare(point, start), *body), COPY_THREADS, blocks)
    apart = Declare(point, start + cast(frame.wide, turn) * COPY_THREADS)
    return frame.kernel((counted_loop(turn, each, apart, *body, hint="unroll"),), COPY_THREADS, blocks)


def _is_packable(frame: CopyFrame, access: Access, size: int) -> bool:
    """True if *size* neighbours of *access* are neighbours in memory, at a multiple of a pack."""
    place = flat_address(access)
    if not place.affine or place.coefficient(frame.inner) != 1 or frame.inner.extent % size:
        return False
    inside = is_inside_box(access.index, access.source.box)
    start = place.evaluate(lambda x: x.lo)
    others = (place.coefficient(x) for x in place.iterators if x != frame.inner)
    return inside and start % size == 0 and all(k % size == 0 for k in others)


def _single_element(frame: CopyFrame, at: Mapping[Iterator, Expr], point: Expr) -> Iterable[Statement]:
    return frame.value(at, {}, lambda value: Store(frame.result, point, value))


def _pack(frame: CopyFrame, at: Mapping[Iterator, Expr], packed: Iterable[Access], point: Expr) -> Iterable[Statement]:
    """Compute a pack of the result: packs are loaded whole, other reads element by element."""
    size, j = PACK_BYTES // frame.kind.size, Var("j")
    held: dict[Access, Expr] = {}
    for n, access in enumerate(a for a in packed if not depends_on_any(a, frame.scope.summations)):
        own = Array(f"pack {n}", frame.kind, size, "private", align=PACK_BYTES)
        held[access] = own[j]
        yield LocalArray(own)
        yield Copy(own, literal(0), frame.memory[tensor_name(access.source)], frame.index(access, at), size)
    made = Array("made", frame.kind, size, "private", align=PACK_BYTES)
    yield LocalArray(made)
    here = {**at, frame.inner: at[frame.inner] + cast(frame.wide, j)}
    yield counted_loop(j, size, *frame.value(here, held, lambda value: Store(made, j, value)), hint="unroll")
    yield Copy(frame.result, point * size, made, literal(0), size)


TILE_SIDE, TILE_ROWS = 32, 8
"""A tile has so many columns and rows; so many rows are moved at a time (``TILE_SIDE * TILE_ROWS`` threads)."""

MIN_TILE_EXTENT = 8
"""Shorter dimensions are not tiled."""


def tiled_reads(frame: CopyFrame) -> tuple[tuple[Access, ...], Iterator] | None:
    """Return the reads that go through tiles, and the dimension, not the innermost, along which they are contiguous.

    None if there are none.
    """
    if frame.scope.summations or frame.inner.extent < MIN_TILE_EXTENT:
        return None
    found: dict[Iterator, list[Access]] = {}
    for access in frame.reads:
        step = _address_step(access, frame.inner)
        if step is None or abs(step) <= 1:
            continue
        for x in frame.axes[:-1]:
            if x.extent >= MIN_TILE_EXTENT and abs(_address_step(access, x) or 0) == 1:
                found.setdefault(x, []).append(access)
    best = max(found, key=lambda x: len(found[x]), default=None)
    return None if best is None else (tuple(found[best]), best)


def _address_step(access: Access, x: Iterator) -> int | None:
    """Return the elements by which one step of *x* moves *access*; None if that varies."""
    place = flat_address(access)
    if not place.affine:
        return None if x in place.iterators else 0
    return place.coefficient(x)


def tiled_copy(frame: CopyFrame, reads: tuple[Access, ...], down: Iterator) -> Kernel:
    """Return a kernel that loads a tile of each of *reads* along *down* and writes along the innermost dimension."""
    across, wide = frame.inner, frame.wide
    rest = [x for x in frame.axes if x not in (across, down)]
    counts = {x: -(-x.extent // TILE_SIDE) for x in (across, down)}
    tiles = {a: Array(f"tile {n}", frame.kind, TILE_SIDE * (TILE_SIDE + 1), "shared") for n, a in enumerate(reads)}
    block: Expr = cast(wide, LaunchIndex("block"))
    body: list[Statement] = [LocalArray(t) for t in tiles.values()]
    base = {x: Var(f"{x.name} base", wide) for x in (across, down)}
    for x in (across, down):
        body.append(Declare(base[x], binary_operation("%", block, counts[x]) * TILE_SIDE))
        block = binary_operation("/", block, counts[x])
    outer = Var("outer", wide)
    at, placed = frame.digits(outer, rest)
    column, row, k = Var("column", wide), Var("row", wide), Var("k")
    body += [
        Declare(outer, block),
        *placed,
        Declare(column, cast(wide, LaunchIndex("thread") % TILE_SIDE)),
        Declare(row, cast(wide, LaunchIndex("thread") // TILE_SIDE)),
        Comment("load along the source"),
    ]
    lower = row + cast(wide, k) * TILE_ROWS

    def point(x: Expr, y: Expr) -> dict[Iterator, Expr]:
        """Return the indices where across is at *x* of the tile and down at *y*."""
        return {**at, across: add_offset(base[across] + x, across.lo), down: add_offset(base[down] + y, down.lo)}

    def inside(x: Expr, y: Expr, *made: Statement) -> Statement:
        """*made*, for all rows of this thread, where that is inside of the result."""
        pairs = ((across, base[across] + x), (down, base[down] + y))
        test = conjunction(*(place.lt(d.extent) for d, place in pairs if d.extent % TILE_SIDE))
        return counted_loop(k, TILE_SIDE // TILE_ROWS, *(made if test is None else (If(test, made),)), hint="unroll")

    there, here = point(lower, column), point(column, lower)
    loads = (Store(t, lower * (TILE_SIDE + 1) + column, frame.scalar(a, there, {})) for a, t in tiles.items())
    held: dict[Access, Expr] = {access: tile[column * (TILE_SIDE + 1) + lower] for access, tile in tiles.items()}
    store = Store(frame.result, frame.address(here), frame.scalar(frame.body, here, held))
    body += [
        inside(lower, column, *loads),
        Barrier(),
        Comment("write along the result"),
        inside(column, lower, store),
    ]
    return frame.kernel(tuple(body), TILE_SIDE * TILE_ROWS, prod(counts.values()) * prod(x.extent for x in rest))


MAX_SUM_TERMS = 64
"""Terms of a sum, at most: longer sums need more than one thread."""

MAX_PRODUCT_TERMS = 16
"""The same for products of several tensors, which are worth tiles."""


@dataclass(frozen=True)
class CopyKernel:
    """The kernel of a scope; its parameters are the tensors *inputs*, in order, then the result."""

    kernel: Kernel
    inputs: tuple[str, ...]


def copy_kernel(scope: Scope, name: str = "moved", kind: Type = F32) -> CopyKernel:
    """Return *scope* as a kernel that moves memory; scopes that it reads are inlined.

    Raises Refused if sums are long, if a sum is read, or if a source is a table.
    """
    body = _inline_nested(scope)
    terms = prod(x.extent for x in scope.summations)
    summed = [a for a in dict.fromkeys(accesses(body)) if depends_on_any(a, scope.summations)]
    most = MAX_SUM_TERMS if len(summed) < 2 else MAX_PRODUCT_TERMS
    if terms > most or not scope.shape or not prod(scope.shape):
        raise Refused(f"{name}: sums of {terms} terms over {list(scope.shape)}: expected at most {most}, not empty")
    frame = CopyFrame(scope, body, name, kind)
    down = tiled_reads(frame)
    return CopyKernel(direct_copy(frame) if down is None else tiled_copy(frame, *down), tuple(frame.memory))


def _inline_nested(scope: Scope) -> Scalar:
    """Return the body of *scope* with the scopes that it reads inlined and its domain as a condition."""

    def inline_scope(access: Access) -> Scalar:
        match access.source:
            case Tensor():
                return access
            case Scope() as inner if not inner.summations:
                at = dict(zip(inner.traversals, access.index, strict=True))
                return guard(access.index, inner.box, substitute(_inline_nested(inner), at), inner.value)
            case source:
                raise Refused(f"{source!r} is read at {access.index!r}: expected tensors and scopes without sums")

    if scope.summations and scope.domain:
        raise Refused(f"a sum with {len(scope.domain)} bounds is not moved")
    body = map_accesses(scope.body, inline_scope)
    if not scope.domain:
        return body
    return guard(tuple(b.index for b in scope.domain), tuple((b.lo, b.hi) for b in scope.domain), body, scope.value)
