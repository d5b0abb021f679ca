r"""Kernels that move memory: each element of the result is read, or computed of a few elements.

.. math::  Y[\vec x] = \bigoplus_{\vec y} f(T[\tau(\vec x, \vec y)]), \qquad |\vec y| \text{ small}

For GPUs, neighbouring threads go along the innermost dimension of the result, so that they write neighbouring elements
(``direct_copy``, four elements a thread where possible).  A read whose neighbours lie along another dimension goes
through a tile in shared memory (``tiled_copy``), loaded along that dimension and written along the innermost one.
Tiles are one element wider than they are long, so that columns lie in different banks.

For CPUs, a result along another dimension than the largest tensor that is read is written through tiles in vector
registers (``transpose_kernel``).  A tile has as many values of both dimensions as a vector has lanes.  If a range is
not a multiple of the tile, its last tile overlaps its predecessor.  Other results are written by ranges and phases
(``regions_kernel``): inside each, a read is always inside or always outside its tensor, and the sums of contiguous
reads that remain are vectorised by compilers.  Rows that fill no vector, with conditions, are counted by one traversal:
vectors of several rows, with masks.  Each element is gathered, so each read of the scope is one load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import count, product
from math import prod

from einnet_explore.analysis.flattening import flat_address, reads_packs, row_major_strides
from einnet_explore.analysis.indices import fresh_name, guard, is_inside_box, iterators_of, substitute
from einnet_explore.codegen.language.lowering import (
    FIRST_BLOCK,
    add_offset,
    lower_comparison,
    lower_flat,
    lower_index,
    lower_join,
    lower_scalar,
    memory_reader,
    mixed_radix_split,
    result_address,
    result_array,
    tensor_name,
)
from einnet_explore.codegen.language.statements import (
    PACK_BYTES,
    TILE_SIDES,
    Assign,
    Barrier,
    Comment,
    Copy,
    Declare,
    If,
    Kernel,
    LocalArray,
    LoopHint,
    Prefetch,
    Statement,
    Store,
    StoreTransposed,
    counted_loop,
    replace_expressions,
    unrolled,
    where_all,
)
from einnet_explore.codegen.language.values import (
    F32,
    I32,
    I64,
    Array,
    Expr,
    LaunchIndex,
    Literal,
    Select,
    Type,
    Var,
    binary_operation,
    cast,
    conjunction,
    literal,
    minimum,
    select,
)
from einnet_explore.codegen.preparation import (
    VECTOR_LANES,
    PolyphaseCut,
    address_step,
    assume,
    case_traversals,
    conditions_in,
    cut_traversal,
    fold_decided,
    inline_nested,
    order_traversals,
)
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Apply,
    Compare,
    Index,
    Iterator,
    Scalar,
    Scope,
    Tensor,
    accesses,
    as_index,
    map_accesses,
    tensors,
    walk_scalar,
)
from einnet_explore.support.errors import Refused

COPY_THREADS = 256


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
        self, number: Expr, axes: Sequence[Iterator], pack: int = 1
    ) -> tuple[dict[Iterator, Expr], list[Statement]]:
        """Split *number*, which counts the points of *axes* in packs along the innermost one, into iterator values."""
        at: dict[Iterator, Expr] = {x: Literal(x.lo, self.wide) for x in self.scope.traversals if x.extent == 1}
        packs = {x: pack if x == axes[-1] else 1 for x in axes}
        out: list[Statement] = []
        for x, digit in mixed_radix_split(axes, number, lambda x: x.extent // packs[x]).items():
            out.append(Declare(var := Var(f"{x.name} at", self.wide), digit * packs[x]))
            at[x] = add_offset(var, x.lo)
        return at, out

    def scalar(self, body: Scalar, at: Mapping[Iterator, Expr], held: Mapping[Access, Expr]) -> Expr:
        """Return *body* for iterators of the values *at*; reads in *held* are already loaded."""
        marks = {access: Tensor(f"#{n}", ()) for n, access in enumerate(held)}
        values = {marks[access].name: value for access, value in held.items()}
        marked = map_accesses(body, lambda access: marks[access][()] if access in marks else access)

        return lower_scalar(marked, at, memory_reader(self.memory, self.wide, values), self.kind, self.wide)

    def value(
        self, at: Mapping[Iterator, Expr], held: Mapping[Access, Expr], store: Callable[[Expr], Statement]
    ) -> tuple[Statement, ...]:
        """Return statements that compute the value at one point, with its sums, and *store* it."""
        if not self.scope.summations:
            return (store(self.scalar(self.body, at, held)),)
        total, reduce = Var("total", self.kind), self.scope.reduce
        sums = {x: Var(f"{x.name} in", self.wide) for x in self.scope.summations}
        value = self.scalar(self.body, {**at, **{x: add_offset(var, x.lo) for x, var in sums.items()}}, held)
        inside: tuple[Statement, ...] = (Assign(total, lower_join(reduce, total, value)),)
        for x in reversed(self.scope.summations):
            inside = (unrolled(sums[x], x.extent, *inside),)
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
    if pack > 1:
        made = tuple(_pack(frame, at, packed, point))
    else:
        made = frame.value(at, {}, lambda value: Store(frame.result, point, value))
    is_whole = points % (COPY_THREADS * each) == 0
    body = where_all(() if is_whole else (point.lt(points),), *placed, *made)
    start = cast(frame.wide, LaunchIndex("block")) * (COPY_THREADS * each) + cast(frame.wide, LaunchIndex("thread"))
    if each == 1:
        return frame.kernel((Declare(point, start), *body), COPY_THREADS, blocks)
    apart = Declare(point, start + cast(frame.wide, turn) * COPY_THREADS)
    return frame.kernel((unrolled(turn, each, apart, *body),), COPY_THREADS, blocks)


def _is_packable(frame: CopyFrame, access: Access, size: int) -> bool:
    """True if *size* neighbours of *access* are neighbours in memory, at a multiple of a pack."""
    inside = flat_address(access).affine and is_inside_box(access.index, access.source.box)
    return inside and reads_packs(access, frame.inner, size)


def _pack(frame: CopyFrame, at: Mapping[Iterator, Expr], packed: Iterable[Access], point: Expr) -> Iterable[Statement]:
    """Compute a pack of the result: packs are loaded whole, other reads element by element."""
    size, j = PACK_BYTES // frame.kind.size, Var("j")
    held: dict[Access, Expr] = {}
    for n, access in enumerate(a for a in packed if iterators_of(a).isdisjoint(frame.scope.summations)):
        own = Array(f"pack {n}", frame.kind, size, "private", align=PACK_BYTES)
        held[access] = own[j]
        yield LocalArray(own)
        place = lower_index(flat_address(access), at, frame.wide)
        yield Copy(own, literal(0), frame.memory[tensor_name(access.source)], place, size)
    made = Array("made", frame.kind, size, "private", align=PACK_BYTES)
    yield LocalArray(made)
    here = {**at, frame.inner: at[frame.inner] + cast(frame.wide, j)}
    yield unrolled(j, size, *frame.value(here, held, lambda value: Store(made, j, value)))
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
        place = flat_address(access)
        if place.affine and abs(place.coefficient(frame.inner)) > 1:
            for x in frame.axes[:-1]:
                if x.extent >= MIN_TILE_EXTENT and abs(place.coefficient(x)) == 1:
                    found.setdefault(x, []).append(access)
    best = max(found, key=lambda x: len(found[x]), default=None)
    return None if best is None else (tuple(found[best]), best)


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
        body.append(Declare(base[x], block % counts[x] * TILE_SIDE))
        block = block // counts[x]
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
        places = ((across, base[across] + x), (down, base[down] + y))
        tests = (place.lt(axis.extent) for axis, place in places if axis.extent % TILE_SIDE)
        return unrolled(k, TILE_SIDE // TILE_ROWS, *where_all(tests, *made))

    there, here = point(lower, column), point(column, lower)
    loads = (Store(t, lower * (TILE_SIDE + 1) + column, frame.scalar(a, there, {})) for a, t in tiles.items())
    held: dict[Access, Expr] = {access: tile[column * (TILE_SIDE + 1) + lower] for access, tile in tiles.items()}
    place = lower_index(result_address(frame.scope), here, wide)
    store = Store(frame.result, place, frame.scalar(frame.body, here, held))
    body += [inside(lower, column, *loads), Barrier(), Comment("write along the result"), inside(column, lower, store)]
    return frame.kernel(tuple(body), TILE_SIDE * TILE_ROWS, prod(counts.values()) * prod(x.extent for x in rest))


MAX_SUM_TERMS = 64
"""Terms of a sum, at most: longer sums need more than one thread."""

MAX_PRODUCT_TERMS = 16
"""The same for products of several tensors, which are worth tiles."""


def copy_kernel(scope: Scope, name: str = "moved", kind: Type = F32) -> Kernel:
    """Return *scope* as a kernel that moves memory: tensors, then the result; scopes that it reads are inlined.

    Raises Refused if sums are long, if a sum is read, or if a source is a table.
    """
    body = inline_nested(scope)
    terms = prod(x.extent for x in scope.summations)
    summed = [a for a in dict.fromkeys(accesses(body)) if not iterators_of(a).isdisjoint(scope.summations)]
    most = MAX_SUM_TERMS if len(summed) < 2 else MAX_PRODUCT_TERMS
    if terms > most or not scope.shape or not prod(scope.shape):
        raise Refused(f"{name}: sums of {terms} terms over {list(scope.shape)}: expected at most {most}, not empty")
    frame = CopyFrame(scope, body, name, kind)
    down = tiled_reads(frame)
    return direct_copy(frame) if down is None else tiled_copy(frame, *down)


SAME_PAGE_BYTES = 512
"""Distance between rows of the result up to which lines are written one by one, each in another row of one page.

Beyond it rows are written from end to end.
"""

STREAMED_LINES = 4
"""Neighbouring lines that are streamed together: fewer leave pages of memory half written when they are closed."""

MAX_ROW_TESTS = 4
"""Conditions on a row of a tile of which every combination is written out, at most."""

MAX_UNROLLED_ROW_READS = 2
"""Reads of the rows of a tile that are unrolled, at most."""

BLOCK_TILES, STREAMED_BLOCK_TILES = 64, 256
"""Tiles of a block, and of one that streams: enough to amortise its start and its end."""


def transpose_kernel(scope: Scope, result: str, machine: Machine) -> tuple[Kernel, int]:
    """Return (the kernel that computes *scope* into *result*, its blocks): tensors, the result, ``FIRST_BLOCK``.

    A result of more than half of the last cache bypasses it. Raises Refused for reductions, for reads of scopes and
    tables, if no tile fits, and if there is nothing to transpose.
    """
    _require_tensors(scope)
    scope = replace(scope, body=map_accesses(scope.body, _guard_read))
    if not any(accesses(scope.body)):
        raise Refused("the scope reads nothing: expected reads of tensors")
    along = _dimension_in_memory(_largest_read(scope), scope.traversals[:-1])
    if along is None or _is_contiguous(_largest_read(scope), scope.traversals[-1], machine.lanes):
        raise Refused("the result is written as it is read, or nothing runs along memory: expected another dimension")
    scope = _merge_last(scope, along, machine.lanes)
    reads, last = tuple(accesses(scope.body)), scope.traversals[-1]
    cases = case_traversals(scope)
    if along in cases:
        raise Refused(f"coefficients depend on {along.name}, along which memory is read")
    if (pieces := prod(x.extent for x in cases) * len(reads)) > MAX_PIECE_READS:
        raise Refused(f"{pieces} reads for all cases: expected {MAX_PIECE_READS} at most")
    if any(along in d.numerator.iterators for a in reads for d in flat_address(a).divisions):
        raise Refused(f"{along.name}, along which memory is read, is divided")
    if any(flat_address(a).coefficient(along) not in (0, 1) for a in reads):
        raise Refused(f"a read takes steps along {along.name} that are longer than 1")
    sides = [n for n in TILE_SIDES if n <= min(last.extent, machine.lanes)]
    side = next((n for n in sides if n <= along.extent), None)
    if side is None:
        raise Refused(f"{along.extent} x {last.extent} elements: expected {TILE_SIDES[-1]} x {TILE_SIDES[-1]} and more")
    if along.extent % side and not any(last in d.numerator.iterators for a in reads for d in flat_address(a).divisions):
        side = min((n for n in sides if n > along.extent), default=side)
    return _TransposeWriter(scope, result, _largest_read(scope), along, side, machine, cases).kernel()


def _largest_read(scope: Scope) -> Access:
    return max(accesses(scope.body), key=lambda a: prod(a.source.shape))


def _dimension_in_memory(access: Access, axes: Iterable[Iterator]) -> Iterator | None:
    """Return the one of *axes* along which *access* reads neighbours, or None."""
    place = flat_address(access)
    return next((x for x in axes if x.extent > 1 and place.coefficient(x) == 1), None)


def _is_contiguous(access: Access, x: Iterator, number: int) -> bool:
    """True if *number* steps of *x* and more go along memory, or nowhere."""
    divided = any(x in d.numerator.iterators and d.divisor < number for d in flat_address(access).divisions)
    return not divided and abs(address_step(access, x)) <= 1


def _merge_last(scope: Scope, along: Iterator | None, lanes: int) -> Scope:
    """Return *scope* with its last traversals, without *along*, counted by one iterator if the last fills no tile."""
    *outer, x, y = scope.traversals
    if y.extent >= lanes or x == along or not outer:
        return scope
    both = Iterator(fresh_name(y.name, {z.name for z in scope.traversals}), 0, x.extent * y.extent)
    body = substitute(scope.body, {x: as_index(both) // y.extent + x.lo, y: as_index(both) % y.extent + y.lo})
    return _merge_last(replace(scope, traversals=(*outer, both), body=body, padding=()), along, lanes)


def _require_tensors(scope: Scope) -> None:
    """Raise Refused if *scope* reduces, or reads other scopes."""
    if scope.summations or scope.domain or any(not isinstance(a.source, Tensor) for a in accesses(scope.body)):
        raise Refused("the scope reduces, or reads other scopes: expected reads of tensors only")


def _cpu_inputs(scope: Scope) -> dict[str, Array]:
    return {t.name: Array(t.name, F32, const=True, noalias=True) for t in tensors(scope)}


@dataclass(frozen=True)
class _TransposeWriter:
    scope: Scope
    result: str
    largest: Access
    along: Iterator
    side: int
    machine: Machine
    cases: tuple[Iterator, ...]
    """Traversals that are unrolled for each tile."""

    @cached_property
    def last(self) -> Iterator:
        return self.scope.traversals[-1]

    @cached_property
    def memory(self) -> dict[str, Array]:
        return _cpu_inputs(self.scope)

    @cached_property
    def out(self) -> Array:
        return Array(self.result, F32)

    @cached_property
    def step(self) -> int:
        """Elements from one row of the result to the next."""
        return dict(zip(self.scope.traversals, row_major_strides(self.scope.shape), strict=True))[self.along]

    @cached_property
    def streamed(self) -> bool:
        """True if the result bypasses the caches, since it and its operands would be evicted anyway."""
        return 2 * self.elements * F32.size > self.machine.l3 and self.step % self.side == 0

    @property
    def prefetched(self) -> bool:
        """True if the operands and the result take a good part of the last cache."""
        return 4 * self.elements * F32.size > self.machine.l3

    @cached_property
    def elements(self) -> int:
        """Elements of the result and of all operands."""
        return prod(self.scope.shape) + sum(prod(t.shape) for t in tensors(self.scope))

    @cached_property
    def across(self) -> int:
        """Elements along a row of the result that are written together."""
        return min(STREAMED_LINES if self.streamed else 1, self.last.extent // self.side) * self.side

    @cached_property
    def bands(self) -> tuple[Iterator, Iterator]:
        """(the iterator that is cut into bands, the iterator along which a band runs)."""
        near = self.step * F32.size <= SAME_PAGE_BYTES
        return (self.last, self.along) if near else (self.along, self.last)

    def wide(self, x: Iterator) -> int:
        """Return the elements of *x* in a tile, or in the tiles that are written together."""
        return self.across if x == self.last else self.side

    def kernel(self) -> tuple[Kernel, int]:
        """Return the kernel and its number of blocks."""
        band, run = self.bands
        steps = -(-run.extent // self.wide(run))
        each = max(1, (STREAMED_BLOCK_TILES if self.streamed else BLOCK_TILES) * self.side // self.across)
        rest = [x for x in self.scope.traversals if x not in (band, run, *self.cases) and x.extent > 1]
        bands = band.extent // self.wide(band) if self.few_rows else -(-band.extent // self.wide(band))
        counts = {**{x: x.extent for x in rest}, band: bands, run: -(-steps // each)}
        first, block = Var(FIRST_BLOCK, I64), Var(":block", I64)
        body: list[Statement] = [Declare(block, cast(I64, LaunchIndex("block")) + first)]
        digits: dict[Iterator, Expr] = {}
        left: Expr = block
        for n, (x, number) in reversed(tuple(enumerate(counts.items()))):
            own = Var(f":digit {n}", I64)
            body.append(Declare(own, left % number))
            digits[x], left = own, left // number
        at: dict[Iterator, Expr] = {x: Literal(x.lo, I64) for x in self.scope.traversals if x.extent == 1}
        at |= {x: add_offset(digits[x], x.lo) for x in rest}
        here = {x: Var(f":{which}", I64) for x, which in ((band, "band"), (run, "run"))}
        at |= {x: add_offset(v, x.lo) for x, v in here.items()}
        start, stop, step = Var(":start", I64), Var(":stop", I64), Var(":step", I64)
        body.append(Declare(here[band], self._begin(band, digits[band])))
        body.append(Declare(start, digits[run] * each))
        body.append(Declare(stop, minimum(start + each, steps)))
        inner: list[Statement] = [Declare(here[run], self._begin(run, step))]
        cases = tuple(product(*(range(x.lo, x.hi) for x in self.cases)))
        for n, (more, values) in enumerate(product(range(0, self.across, self.side), cases)):
            case = dict(zip(self.cases, values, strict=True))
            scalar = fold_decided(substitute(self.scope.body, {x: as_index(value) for x, value in case.items()}))
            fixed = {x: Literal(value, I64) for x, value in case.items()}
            place = {**at, self.last: at[self.last] + more, **fixed}
            inner += self._tile(scalar, place, f":tile {n}")
            if self.few_rows:
                inner.append(If(digits[band].ge(bands - 1), (self._few(scalar, place, bands * self.side),)))
        body.append(counted_loop(step, stop, *inner, start=start))
        return Kernel("turned", (*self.memory.values(), self.out, first), tuple(body)), prod(counts.values())

    @property
    def few_rows(self) -> int:
        """Rows of the result after the last whole tile that are computed element by element, since they are few."""
        number, banded = self.along.extent % self.side, self.bands[0] == self.along and not self.streamed
        return number if banded and number <= self.side // 4 and self.along.extent > self.side else 0

    def _few(self, body: Scalar, at: Mapping[Iterator, Expr], first: int) -> Statement:
        """Return the loops over the rows of the result from *first* on, in the columns of a tile."""
        i, j = Var(":i", I64), Var(":j", I64)
        here = {**at, self.last: at[self.last] + i, self.along: add_offset(j + first, self.along.lo)}
        store = Store(self.out, lower_index(result_address(self.scope), here, I64), lower_flat(body, here, self.memory))
        return counted_loop(j, self.few_rows, counted_loop(i, self.side, store, hint="simd"))

    def _begin(self, x: Iterator, number: Expr) -> Expr:
        """Return the begin of step *number* along *x*; the last step ends where *x* does."""
        at = number * self.wide(x)
        exact = x.extent % self.wide(x) == 0 or x.extent < self.wide(x) or (x == self.along and self.few_rows)
        return at if exact else minimum(at, x.extent - self.wide(x))

    def _tile(self, body: Scalar, at: Mapping[Iterator, Expr], name: str) -> Iterable[Statement]:
        """Yield one tile: rows along the source, transposed into the result, and a prefetch of the next one."""
        side, run = self.side, self.bands[1]
        tile = Array(name, F32, side * side, "private", align=F32.size * side)
        i = Var(":i", I64)
        row, column = {**at, self.last: at[self.last] + i}, {**at, self.along: at[self.along] + i}
        # Compilers address rows by constants from a place that is computed once.
        places = {a: Var(f"{name} place {n}", I64) for n, a in enumerate(dict.fromkeys(accesses(body)))}
        yield from (Declare(place, self._read(a, at)) for a, place in places.items())
        rows = {a: self._row_place(a, place, i, row) for a, place in places.items()}
        number = min(side, self.along.extent)
        fill = tuple(self._row(body, tile, row, rows, i, side))
        yield LocalArray(tile)
        if self.prefetched and run == self.last and not self.streamed:
            ahead = lower_index(result_address(self.scope), {**column, run: column[run] + self.across}, I64)
            yield unrolled(i, side, Prefetch(self.out, ahead, True))
        elif self.prefetched:
            there = self._read(self.largest, {**row, run: row[run] + self.wide(run)})
            fill = (Prefetch(self.memory[tensor_name(self.largest.source)], there), *fill)
        # Copied rows stay in registers; rows of several reads take longer than their way through memory.
        hint: LoopHint | None = "unroll" if len(places) <= MAX_UNROLLED_ROW_READS else None
        loop = counted_loop(i, side, *fill, hint=hint)
        if number < side:  # elements beyond the row are read where there are any, and not stored
            ends = {a: place + (side - 1) * flat_address(a).coefficient(self.last) for a, place in places.items()}
            fits = conjunction(
                *(b.ge(0) for b in places.values()), *(e.lt(prod(a.source.shape) - side + 1) for a, e in ends.items())
            )
            assert fits is not None
            short = counted_loop(i, side, *self._row(body, tile, row, rows, i, number), hint=hint)
            yield If(fits, (loop,), (short,))
        else:
            yield loop
        to = lower_index(result_address(self.scope), at, I64)
        yield StoreTransposed(self.out, to, self.step, tile, side, self.streamed, number % side)

    def _row_place(self, access: Access, first: Expr, i: Var, at: Mapping[Iterator, Expr]) -> Expr:
        """Return the position of *access* in row *i* of a tile, from that in its *first* row if steps are equal."""
        place = flat_address(access)
        divided = any(self.last in d.numerator.iterators for d in place.divisions)
        return self._read(access, at) if divided else first + i * place.coefficient(self.last)

    def _row(
        self, body: Scalar, tile: Array, at: Mapping[Iterator, Expr], rows: Mapping[Access, Expr], i: Var, number: int
    ) -> Iterable[Statement]:
        """Yield *number* elements of row *i* of the tile: copied, or computed of reads that begin at *rows*."""
        if isinstance(body, Access) and flat_address(body).coefficient(self.along):
            yield Copy(tile, i * self.side, self.memory[tensor_name(body.source)], rows[body], number)
            return
        chosen = (part.args[0] for part in walk_scalar(body) if isinstance(part, Apply) and part.op == "where")
        tests = [t for t in dict.fromkeys(chosen) if isinstance(t, Compare) and self.along not in iterators_of(t)]
        if not tests:
            yield self._values(body, tile, at, rows, i, number)
            return
        together = tests if len(tests) > MAX_ROW_TESTS else tests[:1]
        condition = conjunction(*(lower_comparison(t, at, I64) for t in together))
        assert condition is not None
        inside = self._row(fold_decided(assume(body, together)), tile, at, rows, i, number)
        if len(together) > 1:
            outside: Iterable[Statement] = (self._values(body, tile, at, rows, i, number),)
        else:
            outside = self._row(fold_decided(assume(body, together, False)), tile, at, rows, i, number)
        yield If(condition, tuple(inside), tuple(outside))

    def _values(
        self, body: Scalar, tile: Array, at: Mapping[Iterator, Expr], rows: Mapping[Access, Expr], i: Var, number: int
    ) -> Statement:
        """Return the loop that computes *number* elements of row *i* of the tile of reads that begin at *rows*."""
        j, lane = Var(":j", I64), Iterator(":lane", 0, self.side)
        begins = {a: Iterator(f":row {n}", 0, MAX_ADDRESSES) for n, a in enumerate(rows)}

        def read_row(a: Access) -> Access:
            step = flat_address(a).coefficient(self.along)
            return _at_address(a, as_index(begins[a]) + as_index(lane) * step)

        values = {**at, self.along: at[self.along] + j, lane: j, **{begin: rows[a] for a, begin in begins.items()}}
        value = lower_flat(map_accesses(body, read_row), values, self.memory)
        return counted_loop(j, number, Store(tile, i * self.side + j, value), hint="vector")

    def _read(self, access: Access, at: Mapping[Iterator, Expr]) -> Expr:
        return lower_index(flat_address(access), at, I64)


MAX_ADDRESSES = 1 << 62
"""More elements than any tensor has."""

MAX_PIECE_READS = 400
"""Reads in all pieces of a kernel, at most."""


def regions_kernel(scope: Scope, result: str) -> tuple[Kernel, int]:
    """Return (the kernel that computes *scope* into *result*, its blocks): tensors, the result, ``FIRST_BLOCK``.

    Raises Refused for reductions, reads of scopes and tables, phases of several traversals, and if there is nothing to
    cut or too much.
    """
    _require_tensors(scope)
    if not scope.traversals or prod(scope.shape) == 0:
        raise Refused("the scope has no traversals or no elements")
    masked = _masked_rows(scope)
    scope = masked or scope
    body = map_accesses(scope.body, _guard_read)
    order, turned = (scope.traversals, ()) if masked else order_traversals(scope)
    reads = sum(1 for _ in accesses(body))
    # Conditions of traversals that are not cut are decided in each row.
    for joint, among in ((False, order[:-1]),) if masked else ((True, order), (False, order), (True, order[-1:])):
        cuts = tuple(cut_traversal(x, body, joint) if x in among else _uncut(x) for x in order)
        pieces = prod(sum(len(tuple(c.phases(r))) for r in c.ranges) for c in cuts) * prod(x.extent for x in turned)
        if pieces * reads <= MAX_PIECE_READS:
            break
    if (pieces == 1 and not masked) or pieces * reads > MAX_PIECE_READS:
        raise Refused(f"{pieces} pieces of {reads} reads: expected 2 and more, {MAX_PIECE_READS} reads in all")
    read = _cpu_inputs(scope)
    writer = _RegionWriter(scope, cuts, turned, read, Array(result, F32))
    first, block = Var(FIRST_BLOCK, I64), Var(":block", I64)
    inside = (Declare(block, cast(I64, LaunchIndex("block")) + first), *writer.block(body, block))
    return Kernel("regions", (*read.values(), writer.result, first), inside), writer.blocks


def _uncut(x: Iterator) -> PolyphaseCut:
    return PolyphaseCut(x, 1, 0, ((x.lo, x.hi),))


def _masked_rows(scope: Scope) -> Scope | None:
    """Return *scope* with its last traversals, which fill no vector, as one with conditions; None if it has no such.

    Memory runs along that one: compilers load and store vectors of several rows, with masks for the conditions.
    """
    last = scope.traversals[-1]
    tests = {x for t in conditions_in(map_accesses(scope.body, _guard_read)) for x in (t.left - t.right).iterators}
    if len(scope.traversals) < 2 or last.extent >= VECTOR_LANES or last not in tests:
        return None
    merged = _merge_last(scope, None, VECTOR_LANES)
    both = merged.traversals[-1]
    places = [flat_address(a) for a in accesses(merged.body)]
    rests = [place - both * place.coefficient(both) for place in places]
    contiguous = all(place.coefficient(both) in (0, 1) for place in places) and both.extent >= VECTOR_LANES
    return merged if contiguous and not any(both in rest.iterators for rest in rests) else None


def _guard_read(access: Access) -> Scalar:
    """Return a read with explicit conditions."""
    return guard(access.index, access.source.box, access, access.source.value)


@dataclass(frozen=True)
class _RegionWriter:
    scope: Scope
    cuts: tuple[PolyphaseCut, ...]
    turned: tuple[Iterator, ...]
    read: Mapping[str, Array]
    result: Array
    rows: count[int] = field(default_factory=count)
    """Numbers for short rows: several may stand in one block."""

    @property
    def blocks(self) -> int:
        """One for every `u` of the outermost traversal, or one if the innermost is the only one."""
        return self.cuts[0].extent if len(self.cuts) > 1 else 1

    def block(self, body: Scalar, block: Var) -> Iterable[Statement]:
        """Yield the statements of a block."""
        if len(self.cuts) == 1:
            yield from self._loops(body, 0, {}, {})
            return
        outermost = self.cuts[0]
        u = Var(":u 0", I64)
        yield Declare(u, add_offset(block, outermost.first))
        first, last = outermost.ranges[0][0], outermost.ranges[-1][1]
        for lo, hi in outermost.ranges:
            tests = (*([u.ge(lo)] if lo > first else []), *([u.lt(hi)] if hi < last else []))
            yield from where_all(tests, *self._phases(body, 0, (lo, hi), u, {}, {}))

    def _loops(
        self, body: Scalar, depth: int, at: Mapping[Iterator, Expr], where: Mapping[Iterator, Index]
    ) -> list[Statement]:
        """Return the loops from traversal number *depth* on; *where* holds the values of the outer ones."""
        if depth == len(self.cuts):
            values = product(*(range(x.lo, x.hi) for x in self.turned))
            each = (dict(zip(self.turned, map(as_index, v), strict=True)) for v in values)
            return [self._store(fold_decided(substitute(body, to)), at, {**where, **to}) for to in each]
        body = fold_decided(body)
        u, is_last, out = Var(f":u {depth}", I64), depth + 1 == len(self.cuts), list[Statement]()
        for lo, hi in self.cuts[depth].ranges:
            if inside := self._phases(body, depth, (lo, hi), u, at, where):
                for begin, end in _vector_ranges(lo, hi) if is_last else ((lo, hi),):
                    out.append(counted_loop(u, end, *inside, start=begin, hint="simd" if is_last else None))
        return out

    def _phases(
        self,
        body: Scalar,
        depth: int,
        between: tuple[int, int],
        u: Expr,
        at: Mapping[Iterator, Expr],
        where: Mapping[Iterator, Index],
    ) -> list[Statement]:
        """Return the body of the loop over traversal number *depth* for `u` *between* two cuts."""
        x = self.cuts[depth].x
        phases = tuple(self.cuts[depth].phases(between))
        if self._short and depth + 2 == len(self.cuts):
            return list(self._rows(body, x, phases, {**at, **{iterator: u for iterator, _ in phases}}, where))
        return [
            s
            for iterator, value in phases
            for s in self._loops(substitute(body, {x: value}), depth + 1, {**at, iterator: u}, {**where, x: value})
        ]

    @property
    def _short(self) -> bool:
        """True if the innermost traversal, in one piece, fills no vector."""
        last = self.cuts[-1]
        return not self.turned and last.period == len(last.ranges) == 1 and last.x.extent < VECTOR_LANES

    def _rows(
        self,
        body: Scalar,
        x: Iterator,
        phases: Sequence[tuple[Iterator, Index]],
        at: Mapping[Iterator, Expr],
        where: Mapping[Iterator, Index],
    ) -> Iterable[Statement]:
        """Yield short rows, one for each of the *phases* of *x*; rows consecutive in all tensors are joined."""
        last = self.cuts[-1].x
        todo = [(value, fold_decided(substitute(body, {x: value}))) for _, value in phases]
        while todo:
            value, first = todo[0]
            here = [
                v == value + n
                and _with_addresses(b) == _with_addresses(substitute(first, {last: last + n * last.extent}))
                for n, (v, b) in enumerate(todo)
            ]
            joined = next((n for n, continued in enumerate(here) if not continued), len(todo))
            todo = todo[joined:]
            yield from self._row(first, joined * last.extent, at, {**where, x: value})

    def _row(
        self, body: Scalar, width: int, at: Mapping[Iterator, Expr], where: Mapping[Iterator, Index]
    ) -> Iterable[Statement]:
        """Yield *width* neighbours as one vector, which may read and compute more elements than it stores."""
        last = self.cuts[-1].x
        lanes = next((n for n in sorted(TILE_SIDES) if n >= width), 0)
        v = Var(":v", I64)
        longer = Iterator(f"{last.name}'", last.lo, last.lo + max(lanes, width))
        body = substitute(body, {last: longer})
        inside = all(
            lo >= 0 and hi < prod(a.source.shape) for a in accesses(body) for lo, hi in (flat_address(a).bounds,)
        )
        if not lanes or not inside or any(conditions_in(body)):
            store = self._store(body, {**at, longer: v}, {**where, last: as_index(longer)})
            yield counted_loop(v, last.lo + width, store, start=last.lo, hint="simd")
            return
        yield from self._prefetch_next_row(body, {**at, longer: Literal(last.lo, I64)})
        row = Array(f":row {next(self.rows)}", F32, lanes, "private", align=lanes * F32.size)
        yield LocalArray(row)
        yield counted_loop(
            v, lanes, Store(row, v, lower_flat(body, {**at, longer: add_offset(v, last.lo)}, self.read)), hint="vector"
        )
        index = {x: where.get(x, x.lo) for x in self.scope.traversals}
        yield Copy(self.result, lower_index(result_address(self.scope, index), at, I64), row, Literal(0, I64), width)

    def _prefetch_next_row(self, body: Scalar, at: Mapping[Iterator, Expr]) -> Iterable[Statement]:
        """Prefetch the reads of the next row of rows: hardware does not predict short rows that lie apart."""
        if len(self.cuts) < 3:
            return
        rows = f"{self.cuts[-3].x.name}'"
        for access in dict.fromkeys(accesses(body)):
            place = flat_address(access)
            step = sum(k for y, k in place.terms if isinstance(y, Iterator) and y.name == rows)
            if step:
                yield Prefetch(self.read[tensor_name(access.source)], lower_index(place + step, at, I64))

    def _store(self, body: Scalar, at: Mapping[Iterator, Expr], where: Mapping[Iterator, Index]) -> Store:
        value = replace_expressions(lower_flat(body, at, self.read), _join_conditions)
        return Store(self.result, lower_index(result_address(self.scope, where), at, I64), value)


def _join_conditions(value: Expr) -> Expr | None:
    """Return nested choices with one alternative as one choice by a bitwise test, of which GCC makes a mask."""
    tests, yes = list[Expr](), value
    while isinstance(yes, Select) and isinstance(value, Select) and yes.no == value.no:
        tests.append(cast(I32, yes.condition))
        yes = yes.yes
    if len(tests) < 2 or not isinstance(value, Select):
        return None
    every = reduce(lambda a, b: binary_operation("&", a, b), tests)
    return select(every.ne(0), replace_expressions(yes, _join_conditions), value.no)


def _with_addresses(body: Scalar) -> Scalar:
    """Return *body* with flat positions for indices."""
    return map_accesses(body, lambda a: _at_address(a, flat_address(a)))


def _at_address(access: Access, address: Index) -> Access:
    """Return a read of the source of *access* as flat memory, at *address*."""
    return Access(Tensor(tensor_name(access.source), (MAX_ADDRESSES,)), (address,))


def _vector_ranges(lo: int, hi: int) -> tuple[tuple[int, int], ...]:
    """Split the range into whole vectors: the last one overlaps its predecessor if needed."""
    rest = (hi - lo) % VECTOR_LANES
    return ((lo, hi),) if hi - lo <= VECTOR_LANES or not rest else ((lo, hi - rest), (hi - VECTOR_LANES, hi))
