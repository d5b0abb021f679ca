r"""Sums of products of half-precision tensors on tensor cores, with any index maps, padding and epilogue.

.. math::  Y[b, m, n] = g\Big(\sum_k A[\alpha(b, m, k)]\, B[\beta(b, n, k)]\Big)

A block computes a tile of rows *m* and columns *n*.  Its threads gather tiles of both factors into shared memory, where
each row has its summation in order; out-of-range elements are zeros.  Each warp then adds products of fragments
(``FragmentProduct``) to sums in registers.  Eight neighbours are loaded at a time if an index map keeps them together.

If one traversal *x* moves both factors, and *B* by :math:`x + d\,w` only, as in a band of width *w*, rows of one
residue of *x* modulo *d* are a band: the tile's columns are places :math:`s = x / d + w`, and of the tile's elements
those inside the band are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from einnet_explore.analysis.flattening import flat_address, reads_packs
from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.analysis.products import TensorContraction
from einnet_explore.codegen.language.lowering import (
    lower_index,
    lower_scalar,
    memory_reader,
    mixed_radix_split,
    result_address,
    result_array,
)
from einnet_explore.codegen.language.statements import (
    FRAGMENT_COLUMNS,
    FRAGMENT_DEPTH,
    FRAGMENT_ROWS,
    PACK_BYTES,
    WARP_THREADS,
    Barrier,
    Comment,
    Copy,
    Declare,
    FragmentProduct,
    If,
    Kernel,
    LocalArray,
    Statement,
    Store,
    counted_loop,
    fragment_places,
    unrolled,
    where_all,
)
from einnet_explore.codegen.language.values import (
    F16,
    F32,
    I32,
    Array,
    Expr,
    LaunchIndex,
    Literal,
    Type,
    Var,
    cast,
    conjunction,
    literal,
    select,
)
from einnet_explore.codegen.sum_of_products import SUM_RESULT
from einnet_explore.codegen.tiling.cost import EpilogueContraction, as_contraction
from einnet_explore.ir import Access, Iterator, Scope, Tensor
from einnet_explore.support.errors import Refused

SIDE, DEPTH = 64, 32
"""Rows and columns of a block's tile, and the elements of the summation that are in shared memory at a time."""

WARPS = 2
"""Warps of a block along either side of its tile."""

WARP_SIDE = SIDE // WARPS

THREADS = WARPS * WARPS * WARP_THREADS

STRIDE = DEPTH + 8
"""Distance of rows in shared memory: the rows of a fragment are in different banks."""

PACK = PACK_BYTES // 2
"""Halves of a transfer."""

MIN_EXTENT = 8
"""Rows, columns and summands from which fragments are used."""

_THREAD = LaunchIndex("thread")
_ROW, _COLUMN, _RESIDUE, _WARP = (Var(f":{name}") for name in ("first row", "first column", "residue", "warp"))

IteratorPlaces = dict[Iterator, Expr]


def fragment_contraction(scope: Scope, name: str, kinds: Mapping[str, Type]) -> Kernel:
    """Return *scope* as a kernel: tensors, then the result, the tensor *name*; *kinds* has their types.

    Raises Refused for anything but a sum of products of two tensors of halves, and for small extents.
    """
    try:
        found = as_contraction(scope)
    except ValueError as error:
        raise Refused(str(error)) from None
    return _Writer(found, TensorContraction.of(found.core), kinds, name).kernel()


@dataclass(frozen=True)
class Band:
    """*x* moves both factors, the right one by *x* + *step* · *window* only."""

    x: Iterator
    window: Iterator
    step: int


@dataclass(frozen=True)
class _Writer:
    contraction: EpilogueContraction
    product: TensorContraction
    kinds: Mapping[str, Type]
    name: str

    def __post_init__(self) -> None:
        product = self.product
        for access in (product.left, product.right):
            source = access.source
            if not isinstance(source, Tensor) or self.kinds[source.name] != F16 or source.value:
                raise Refused(f"a factor is {access!r}, expected a tensor of halves, padded by zeros if at all")
        if loose := set(product.scope.traversals) - {*product.batch, *product.m, *product.n}:
            raise Refused(f"{', '.join(x.name for x in loose)} move no factor")
        if least := [n for n in (self.rows, self.columns, self.depth) if n < MIN_EXTENT]:
            raise Refused(f"a product with an extent of {least[0]}, expected at least {MIN_EXTENT}")
        work = self.batches * (self.rows + SIDE) * (self.columns + SIDE)
        if max(work, *(prod(t.shape) for t in self.tensors)) >= 1 << 30:
            raise Refused("a product of more than 2^30 elements")

    @cached_property
    def band(self) -> Band | None:
        """The band that the right factor is read along; the left one then has no rows of its own."""
        if self.product.m or len(self.product.n) != 1:
            return None
        (window,) = self.product.n
        for x in self.product.batch:
            steps = {(i.coefficient(x), i.coefficient(window)) for i in self.product.right.index if i.affine}
            if len(steps - {(0, 0)}) == 1 and all(i.affine for i in self.product.right.index):
                ((by_x, by_window),) = steps - {(0, 0)}
                if by_x > 0 and by_window > 0 and by_window % by_x == 0:
                    return Band(x, window, by_window // by_x)
        return None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.contraction.tensors

    @cached_property
    def memory(self) -> dict[str, Array]:
        return {t.name: Array(t.name, self.kinds[t.name], prod(t.shape), const=True) for t in self.tensors}

    @cached_property
    def result(self) -> Array:
        return result_array(self.memory, self.kinds[self.name], self.product.scope.shape)

    @cached_property
    def k(self) -> tuple[Iterator, ...]:
        """The summations; that which moves along the memory of a factor comes last."""
        near = {x for access in (self.product.right, self.product.left) for x in _nearest(access)}
        return tuple(sorted(self.product.k, key=lambda x: x in near))

    @cached_property
    def batch(self) -> tuple[Iterator, ...]:
        return tuple(x for x in self.product.batch if self.band is None or x != self.band.x)

    @property
    def batches(self) -> int:
        return _size(self.batch) * (self.band.step if self.band else 1)

    @property
    def rows(self) -> int:
        return -(-self.band.x.extent // self.band.step) if self.band else _size(self.product.m)

    @property
    def columns(self) -> int:
        """Columns for a tile of rows; those of a band are counted from its first row."""
        return self.band.window.extent + SIDE - 1 if self.band else _size(self.product.n)

    @property
    def depth(self) -> int:
        return _size(self.k)

    def kernel(self) -> Kernel:
        """Return the kernel."""
        sums = Array("sums", F32, WARP_SIDE * WARP_SIDE // WARP_THREADS, "private")
        tiles = [Array(f"{side}_tile", F16, SIDE * STRIDE, "shared", align=PACK_BYTES) for side in ("left", "right")]
        left, right = tiles
        n, start = Var(":sum"), Var(":depth")
        loads = [s for side, tile in enumerate(tiles) for s in self._load(tile, side == 0, start)]
        steps = (*loads, Barrier(), self._multiply(sums, left, right), Barrier())
        counts = -(-self.rows // SIDE), -(-self.columns // SIDE)
        body = (
            *(LocalArray(array) for array in (left, right, sums)),
            *self._places(counts),
            Comment("clear"),
            unrolled(n, sums.size, Store(sums, n, literal(0.0, F32))),
            counted_loop(start, self.depth, *steps, step=DEPTH),
            Comment("post-operations and write"),
            self._write(sums),
        )
        grid = (counts[0] * counts[1] * self.batches, 1, 1)
        return Kernel(self.name, (*self.memory.values(), self.result), body, (THREADS, 1, 1), grid)

    def _places(self, counts: tuple[int, int]) -> Iterable[Statement]:
        """Yield the place of this block's tile, and the number of this thread's warp."""
        rest: Expr = LaunchIndex("block")
        for place, count in ((_COLUMN, counts[1]), (_ROW, counts[0])):
            yield Declare(place, rest % count * SIDE)
            rest = rest // count
        if self.band:
            yield Declare(_RESIDUE, rest % self.band.step)
            rest = rest // self.band.step
        for x, value in mixed_radix_split(self.batch, rest).items():
            yield Declare(_batch_place(x), value)
        yield Declare(_WARP, _THREAD // WARP_THREADS)

    def _at_row(self, row: Expr) -> tuple[IteratorPlaces, list[Expr]]:
        """Return the iterators' values at *row* of the left factor, and the conditions under which it is there."""
        at: IteratorPlaces = {x: _batch_place(x) for x in self.batch}
        if self.band:
            x = row * self.band.step + _RESIDUE
            whole = self.band.x.extent % (self.band.step * SIDE) == 0
            return at | {self.band.x: x}, [] if whole else [x.lt(self.band.x.extent)]
        return at | mixed_radix_split(self.product.m, row), [row.lt(self.rows)] if self.rows % SIDE else []

    def _at_column(self, column: Expr) -> tuple[IteratorPlaces, list[Expr]]:
        """Return the iterators' values at *column* of the right factor, and the conditions under which it is there."""
        at: IteratorPlaces = {x: _batch_place(x) for x in self.batch}
        if self.band:  # the place x / step + window, for the first x of the residue
            return at | {self.band.x: _RESIDUE, self.band.window: _ROW + column}, []
        return at | mixed_radix_split(self.product.n, column), [column.lt(self.columns)] if self.columns % SIDE else []

    def _at_sum(self, row: Expr, column: Expr) -> tuple[IteratorPlaces, list[Expr]]:
        """Return the iterators' values at an element of the product, and the conditions under which it is stored."""
        at, tests = self._at_row(row)
        if not self.band:
            more, others = self._at_column(column)
            return at | more, tests + others
        window = _ROW + column - row
        inside = [window.ge(0), window.lt(self.band.window.extent)]
        return at | {self.band.window: window}, tests + inside

    def _load(self, tile: Array, is_left: bool, start: Expr) -> Iterable[Statement]:
        """Yield the load of a tile of a factor: its rows, each with its part of the summation from *start* on."""
        access = self.product.left if is_left else self.product.right
        assert isinstance(access.source, Tensor)
        along = self._pack_axis(access, is_left)
        width, height = (PACK, 1) if along == "depth" else (1, PACK) if along == "rows" else (1, 1)
        number, row, deep = (Var(f"{tile.name}:{what}") for what in ("element", "row", "depth"))
        # Neighbouring threads load neighbours in memory.
        is_inner = along == "depth" or (not along and self.k[-1:] == _nearest(access))
        inner = DEPTH // width if is_inner else SIDE // height
        slow, fast = number // inner, number % inner
        place = (_ROW if is_left else _COLUMN) + row
        at, tests = self._at_row(place) if is_left else self._at_column(place)
        at |= mixed_radix_split(self.k, start + deep)
        tests += [(start + deep).lt(self.depth)] if self.depth % DEPTH else []
        test = conjunction(*tests, *self._in_box(access, at, is_left))
        address = lower_index(flat_address(access), at)
        memory, target = self.memory[access.source.name], row * STRIDE + deep
        body: list[Statement] = [
            Declare(row, (slow if is_inner else fast) * height),
            Declare(deep, (fast if is_inner else slow) * width),
        ]
        if along:
            body += _move_pack(tile, target, memory, address, test, 1 if along == "depth" else STRIDE)
        else:
            value = cast(F32, memory[address])
            body.append(Store(tile, target, value if test is None else select(test, value, literal(0.0, F32))))
        count = SIDE // height * (DEPTH // width)
        yield Comment(f"load {tile.name.replace('_', ' ')}")
        yield counted_loop(number, count, *body, start=_THREAD, step=THREADS)

    def _pack_axis(self, access: Access, is_left: bool) -> str:
        """Return where packs of neighbours lie at multiples of their size: along "depth", along "rows", or nowhere."""
        near = _nearest(access)
        rows = () if self.band else self.product.m if is_left else self.product.n
        label = next((label for label, axes in (("depth", self.k), ("rows", rows)) if near and near == axes[-1:]), "")
        return label if label and reads_packs(access, near[0], PACK) else ""

    def _in_box(self, access: Access, at: IteratorPlaces, is_left: bool) -> Iterable[Expr]:
        """Yield the conditions under which *access* is inside its tensor; the columns of a band may be anywhere."""
        for i, (lo, hi) in zip(access.index, access.source.box, strict=True):
            moves = self.band is not None and not is_left and self.band.window in i.iterators
            if moves or not is_inside_box((i,), ((lo, hi),)):
                value = lower_index(i, at)
                yield value.ge(lo)
                yield value.lt(hi)

    def _multiply(self, sums: Array, left: Array, right: Array) -> Statement:
        """Return the products of all fragments of this warp."""
        step, i, j = Var(":step"), Var(":i"), Var(":j")
        first = _WARP % WARPS * WARP_SIDE + i * FRAGMENT_ROWS
        second = _WARP // WARPS * WARP_SIDE + j * FRAGMENT_COLUMNS
        deep = step * FRAGMENT_DEPTH
        added = FragmentProduct(
            sums, _sum_place(i, j), left, first * STRIDE + deep, STRIDE, right, second * STRIDE + deep, STRIDE
        )
        body: Statement = added
        extents = WARP_SIDE // FRAGMENT_COLUMNS, WARP_SIDE // FRAGMENT_ROWS, DEPTH // FRAGMENT_DEPTH
        for var, extent in zip((j, i, step), extents, strict=True):
            body = unrolled(var, extent, body)
        return body

    def _write(self, sums: Array) -> Statement:
        """Return the stores of this thread's elements, after the post-operations."""
        i, j = Var(":i"), Var(":j")
        body: list[Statement] = []
        for n, (down, across) in enumerate(fragment_places(_THREAD % WARP_THREADS)):
            row = _ROW + _WARP % WARPS * WARP_SIDE + i * FRAGMENT_ROWS + down
            column = _COLUMN + _WARP // WARPS * WARP_SIDE + j * FRAGMENT_COLUMNS + across
            at, tests = self._at_sum(row, column)
            read = memory_reader(self.memory, I32, {SUM_RESULT.name: sums[_sum_place(i, j) + n]})
            value = lower_scalar(self.contraction.epilogue, at, read, F32)
            body += where_all(tests, Store(self.result, lower_index(result_address(self.product.scope), at), value))
        inner = unrolled(j, WARP_SIDE // FRAGMENT_COLUMNS, *body)
        return unrolled(i, WARP_SIDE // FRAGMENT_ROWS, inner)


def _sum_place(i: Expr, j: Expr) -> Expr:
    return (i * (WARP_SIDE // FRAGMENT_COLUMNS) + j) * 4


def _size(axes: Sequence[Iterator]) -> int:
    return prod(x.extent for x in axes)


def _batch_place(x: Iterator) -> Var:
    return Var(f"{x.name}:batch")


def _nearest(access: Access) -> tuple[Iterator, ...]:
    """Return the iterator that moves *access* along memory, if there is one."""
    flat = flat_address(access)
    return tuple(x for x in flat.iterators if flat.affine and abs(flat.coefficient(x)) == 1)[:1]


def _move_pack(
    tile: Array, target: Expr, memory: Array, address: Expr, test: Expr | None, stride: int
) -> Iterable[Statement]:
    """Yield the load of neighbours from *memory* into *tile*, *stride* apart there; zeros where *test* fails."""
    near = Array(f"{tile.name}:pack", F16, PACK, "private", align=PACK_BYTES)
    n = Var(f"{tile.name}:number")
    copy = Copy(near, Literal(0, I32), memory, address, PACK)
    zeros = unrolled(n, PACK, Store(near, n, literal(0.0, F32)))
    yield LocalArray(near)
    yield copy if test is None else If(test, (copy,), (zeros,))
    if stride == 1:
        yield Copy(tile, target, near, Literal(0, I32), PACK)
    else:
        yield unrolled(n, PACK, Store(tile, target + n * stride, cast(F32, near[n])))
