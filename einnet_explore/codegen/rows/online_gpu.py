r"""Softmax-weighted sums in one pass over the columns, on a GPU (T. Dao et al., FlashAttention, 2022).

A block computes :math:`R` rows.  Its threads stand in :math:`R / s` rows of ``LANES``; each of them holds `s` rows and
every ``LANES``-th column.  For every block of :math:`C` columns, which in a band begin at the first row:

1. the right operand of the scores goes to shared memory, and the scores to registers; a score outside its row's
   window is :math:`-\infty`;
2. the threads of a row join their maxima, :math:`m'`, in shared memory; :math:`c = e^{m - m'}`;
3. :math:`p_w = e^{z_w - m'}` replaces the right operand; :math:`s \leftarrow c\,s + \sum_w p_w`, in parts a thread;
4. :math:`v \leftarrow c\,v + p\,V`, in registers.

Rows of a band are neighbours here, so that they share their columns: residues of a dilated window are a dimension of
the batch.  Operands are copied asynchronously, four elements at a time where they are neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from math import inf, prod
from operator import add

from einnet_explore.analysis.flattening import reads_packs
from einnet_explore.analysis.indices import substitute
from einnet_explore.analysis.online_softmax import LOWEST_SCORE, OnlineSoftmax
from einnet_explore.analysis.row_nest import (
    BandNode,
    ColumnNode,
    RowNest,
    RowProduct,
    node_name,
    read_nodes,
)
from einnet_explore.codegen.language.lowering import (
    lower_index,
    lower_join,
    lower_scalar,
    memory_reader,
    mixed_radix_split,
    result_address,
    result_array,
)
from einnet_explore.codegen.language.statements import (
    Assign,
    Barrier,
    Comment,
    Copy,
    Declare,
    If,
    Kernel,
    LocalArray,
    Statement,
    Store,
    counted_loop,
    unrolled,
)
from einnet_explore.codegen.language.values import (
    F32,
    I32,
    I64,
    Array,
    Expr,
    LaunchIndex,
    Literal,
    Type,
    Var,
    call,
    conjunction,
    literal,
    select,
)
from einnet_explore.codegen.tiling.kernel import copy_async
from einnet_explore.ir import Access, Iterator, Scalar, Tensor, accesses
from einnet_explore.support.errors import Refused

LANES = 8
"""Threads that share a row."""

PACK = 4
"""Elements of the widest transfer."""

SHARED_BYTES = 48 << 10
"""Shared memory of a block that needs no launch attribute."""

MAX_SUMS = 80
"""Scores and sums that a thread holds, at most: with the operands they fit 128 registers."""

MAX_COLUMNS = 64
"""Columns of a step, at most."""


@dataclass(frozen=True, slots=True)
class OnlineTile:
    """A block of *threads* rows of ``LANES`` threads; each has *steps* rows, and *columns* are taken at a time.

    *depth* and *width* are the products of a score and the values of a row, in whole transfers.
    """

    threads: int
    steps: int
    columns: int
    depth: int
    width: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.threads * self.steps

    @property
    def pitch(self) -> int:
        """Elements between rows of the scores' operands: odd in transfers, against bank conflicts."""
        return _odd(self.depth)

    @property
    def weights(self) -> int:
        """Elements between rows of the weights."""
        return _odd(self.columns)

    @property
    def shared(self) -> int:
        """Elements in shared memory: left, right or weights, values, and maxima of the threads of a row."""
        right = max(self.columns * self.pitch, self.rows * self.weights)
        return self.rows * (self.pitch + LANES) + right + self.columns * self.width

    @property
    def sums(self) -> int:
        """Scores and sums of a thread."""
        return self.steps * (self.columns + self.width) // LANES


def _whole(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _odd(size: int) -> int:
    return PACK * (size // PACK | 1)


def online_tile(online: OnlineSoftmax, groups: int) -> OnlineTile:
    """Return the largest tile that fits; a smaller one if there are fewer than two blocks for each of *groups*.

    Raises Refused if there are too few rows, or if none fits.
    """
    nest = online.nest
    (_, band), product = _score_product(online), nest.product
    assert product is not None
    depth, width = prod(s.extent for s in band.sums), product.n.extent
    seen = nest.along.extent + (0 if nest.dense else nest.row.extent - 1)
    batch = prod(x.extent for x in nest.batch)
    fitting = list[OnlineTile]()
    for threads, steps in ((16, 4), (16, 2), (8, 2)):
        if 2 * nest.row.extent < threads * steps:
            continue
        for columns in range(min(MAX_COLUMNS, _whole(seen, LANES)), 0, -LANES):
            tile = OnlineTile(threads, steps, columns, _whole(depth, PACK), _whole(width, LANES * PACK))
            if 4 * tile.shared <= SHARED_BYTES and tile.sums <= MAX_SUMS:
                fitting.append(tile)
                break
    if not fitting:
        raise Refused(f"{nest.row.extent} rows of {depth} products and {width} values: no tile fits a block")
    full = (t for t in fitting if batch * -(-nest.row.extent // t.rows) >= 2 * groups)
    return next(full, fitting[-1])


def _score_product(online: OnlineSoftmax) -> tuple[str, BandNode]:
    """Return the product of the scores and its name; raises Refused if there is more than one."""
    nodes = ((node_name(n), online.nest.nodes[n]) for n in read_nodes(online.score))
    found = [(name, node) for name, node in nodes if isinstance(node, BandNode)]
    if len(found) != 1:
        raise Refused(f"a score has {len(found)} products, expected one")
    return found[0]


_THREAD = LaunchIndex("thread")
_FIRST, _SUM, _ROW, _PART, _AT, _TERM = (Var(f":{n}") for n in ("first", "sum", "row", "part", "column", "term"))
_LANE, _GROUP, _BASE = Var(":lane"), Var(":group"), Var(":base")
_ACROSS = _LANE + _AT * LANES
"""The column of a thread's score, in the step."""
_ZERO = Literal(0, I32)


@dataclass(frozen=True)
class OnlineWriter:
    """Writes the kernel of *online* in blocks of *tile*."""

    online: OnlineSoftmax
    tile: OnlineTile

    @cached_property
    def nest(self) -> RowNest:
        """The rows."""
        return self.online.nest

    @cached_property
    def product(self) -> RowProduct:
        """The product with the values."""
        assert self.nest.product is not None
        return self.nest.product

    @cached_property
    def band(self) -> BandNode:
        """The product of the scores."""
        return _score_product(self.online)[1]

    @cached_property
    def columns(self) -> dict[str, ColumnNode]:
        """What scores read of their column alone."""
        nodes = ((node_name(n), self.nest.nodes[n]) for n in read_nodes(self.online.score))
        return {name: node for name, node in nodes if isinstance(node, ColumnNode)}

    @cached_property
    def memory(self) -> dict[str, Array]:
        """The arrays of the tensors that are read."""
        columns = (node.right for node in self.columns.values())
        bodies = (self.band.left, self.band.right, *columns, self.online.score, self.product.right, self.nest.scale)
        found = [a.source for body in bodies for a in accesses(body)]
        read = {s.name: s for s in found if isinstance(s, Tensor) and not s.name.startswith("#")}
        return {name: Array(name, F32, prod(t.shape), const=True) for name, t in read.items()}

    @cached_property
    def result(self) -> Array:
        """The array of the result."""
        return result_array(self.memory, F32, self.nest.scope.shape)

    @cached_property
    def wide(self) -> Type:
        """The type of addresses, which exceed no array by more than its size."""
        return I32 if 2 * max(self.result.size, *(a.size for a in self.memory.values())) < 1 << 31 else I64

    @cached_property
    def blocks(self) -> int:
        """Blocks along the rows."""
        return -(-self.nest.row.extent // self.tile.rows)

    @cached_property
    def seen(self) -> int:
        """Columns that the rows of a block see, from the first one on."""
        return self.nest.along.extent + (0 if self.nest.dense else self.tile.rows - 1)

    @cached_property
    def row(self) -> Iterator:
        """The rows of all blocks."""
        return replace(self.nest.row, hi=self.blocks * self.tile.rows)

    @cached_property
    def column(self) -> Iterator:
        """The columns of all blocks."""
        begin = 0 if self.nest.dense else self.row.extent - self.tile.rows
        return replace(self.nest.column, hi=begin + _whole(self.seen, self.tile.columns))

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        t = self.tile
        shared = {
            "left": t.rows * t.pitch,
            "right": max(t.columns * t.pitch, t.rows * t.weights),
            "values": t.columns * t.width,
            "joined": t.rows * LANES,
        }
        own = {
            "scores": t.steps * self.across,
            "sums": t.steps * self.wide_steps * PACK,
            "largest": t.steps,
            "total": t.steps,
            "one": t.steps * PACK,
            "other": PACK,
            **{f"column {name[1:]}": self.across for name in self.columns},
        }
        return {
            **{name: Array(f":{name} tile", F32, size, "shared", align=4 * PACK) for name, size in shared.items()},
            **{name: Array(f":{name}", F32, size, "private", align=4 * PACK) for name, size in own.items()},
        }

    @property
    def across(self) -> int:
        """Scores of a thread in a row."""
        return self.tile.columns // LANES

    @property
    def wide_steps(self) -> int:
        """Transfers of the sums of a thread in a row."""
        return self.tile.width // (LANES * PACK)

    def kernel(self, name: str) -> Kernel:
        """Return the kernel *name*."""
        t, nest, band, a = self.tile, self.nest, self.band, self._arrays
        load_values = self._load("values", self.product.right, self.column, (self.product.n,), t.width, t.width)
        steps = (
            Barrier(),
            Comment("scores"),
            *self._load("right", band.right, self.column, band.sums, t.depth, t.pitch),
            *self._load_columns(),
            self._clear("scores", 0.0),
            Barrier(copies=True),
            *load_values,
            counted_loop(_SUM, t.depth // PACK, *self._multiply_scores()),
            *self._mask_scores(),
            Barrier(),
            Comment("weights"),
            *self._weigh(),
            Barrier(copies=True),
            Comment("sums"),
            counted_loop(_SUM, t.columns // PACK, *self._multiply_values()),
        )
        body = (
            *map(LocalArray, a.values()),
            *self._places(),
            *self._load("left", band.left, self.row, band.sums, t.depth, t.pitch),
            *(self._clear(*each) for each in (("sums", 0.0), ("total", 0.0), ("largest", LOWEST_SCORE))),
            counted_loop(_FIRST, self.seen, *steps, step=t.columns),
            Comment("result"),
            *self._write(),
        )
        grid = self.blocks * prod(x.extent for x in nest.batch)
        params = (*self.memory.values(), self.result)
        return Kernel(name, params, body, (LANES * t.threads, 1, 1), (grid, 1, 1))

    def _places(self) -> Iterable[Statement]:
        """Yield the block's part of the batch, its first row, and the thread's place in it."""
        yield Declare(_BASE, LaunchIndex("block") % self.blocks * self.tile.rows)
        for x, value in mixed_radix_split(self.nest.batch, LaunchIndex("block") // self.blocks).items():
            yield Declare(self._batch[x], value)
        yield Declare(_LANE, _THREAD % LANES)
        yield Declare(_GROUP, _THREAD // LANES)

    @cached_property
    def _batch(self) -> dict[Iterator, Var]:
        return {x: Var(f":batch {x.name}") for x in self.nest.batch}

    def _begin(self, along: Iterator) -> Expr:
        """Return the first of the rows, or of the columns of this step."""
        if along == self.row:
            return _BASE
        return _FIRST if self.nest.dense else _BASE + _FIRST

    @property
    def _own_row(self) -> Expr:
        """The row, in the block, of a thread's ``_ROW``."""
        return _GROUP + _ROW * self.tile.threads

    @property
    def _score(self) -> Expr:
        """The position of a score among those of the thread."""
        return _ROW * self.across + _AT

    def _lower(self, body: Scalar, at: Mapping[Iterator, Expr], nodes: Mapping[str, Expr] | None = None) -> Expr:
        read = memory_reader(self.memory, self.wide, nodes or {})
        return lower_scalar(body, {**self._batch, **at}, read, F32, self.wide)

    def _load(
        self, name: str, body: Scalar, along: Iterator, inner: tuple[Iterator, ...], width: int, pitch: int
    ) -> tuple[Statement, ...]:
        """Return the load of *body* over the block's rows or a step's columns, *width* elements each, some of *inner*.

        Elements after those of *inner* are 0.
        """
        tile = self._arrays[name]
        lines = self.tile.rows if along == self.row else self.tile.columns
        own = self.nest.row if along == self.row else self.nest.column
        body = substitute(body, {own: along})
        extent = prod(x.extent for x in inner)
        size = PACK if _are_neighbours(body, inner) else 1
        width //= size
        number, line, place = Var(":element"), Var(":line"), Var(":place")
        value = self._lower(body, {along: self._begin(along) + line, **mixed_radix_split(inner, place)})
        if extent < width * size:
            value = select(place.lt(extent), value, literal(0.0, F32))
        load = (
            Declare(line, number // width),
            Declare(place, number % width * size),
            *copy_async(tile, line * pitch + place, value, size),
        )
        return (counted_loop(number, lines * width, *load, start=_THREAD, step=LANES * self.tile.threads),)

    def _load_columns(self) -> Iterable[Statement]:
        for name, node in self.columns.items():
            body = substitute(node.right, {self.nest.column: self.column})
            value = self._lower(body, {self.column: self._begin(self.column) + _ACROSS})
            yield unrolled(_AT, self.across, Store(self._arrays[f"column {name[1:]}"], _AT, value))

    def _clear(self, name: str, value: float) -> Statement:
        array = self._arrays[name]
        return unrolled(_TERM, array.size, Store(array, _TERM, literal(value, F32)))

    def _each_row(self, *body: Statement) -> Statement:
        return unrolled(_ROW, self.tile.steps, *body)

    def _load_rows(self, tile: Array, pitch: int) -> Statement:
        """Return the loads of a transfer of *tile* for every row of the thread."""
        place = self._own_row * pitch + _SUM * PACK
        return self._each_row(Copy(self._arrays["one"], _ROW * PACK, tile, place, PACK))

    def _multiply_scores(self) -> Iterable[Statement]:
        """Yield the products of one transfer of the sum, for the scores of a thread."""
        a = self._arrays
        added = a["scores"][self._score] + a["one"][_ROW * PACK + _TERM] * a["other"][_TERM]
        load = Copy(a["other"], _ZERO, a["right"], _ACROSS * self.tile.pitch + _SUM * PACK, PACK)
        multiply = unrolled(_TERM, PACK, self._each_row(Store(a["scores"], self._score, added)))
        yield self._load_rows(a["left"], self.tile.pitch)
        yield unrolled(_AT, self.across, load, multiply)

    def _multiply_values(self) -> Iterable[Statement]:
        """Yield the products of one transfer of weights, for the sums of a thread."""
        a, width = self._arrays, self.wide_steps * PACK
        part = Var(":element")
        total = _ROW * width + _PART * PACK + part
        added = a["sums"][total] + a["one"][_ROW * PACK + _TERM] * a["other"][part]
        place = (_SUM * PACK + _TERM) * self.tile.width + (_PART * LANES + _LANE) * PACK
        load = Copy(a["other"], _ZERO, a["values"], place, PACK)
        multiply = unrolled(part, PACK, self._each_row(Store(a["sums"], total, added)))
        yield self._load_rows(a["right"], self.tile.weights)
        yield unrolled(_TERM, PACK, unrolled(_PART, self.wide_steps, load, multiply))

    def _mask_scores(self) -> Iterable[Statement]:
        """Yield the scores from their products, −∞ outside windows, and the joined maxima of the threads' columns."""
        a, nest, row = self._arrays, self.nest, self._own_row
        place = _FIRST + _ACROSS if nest.dense else _FIRST + _ACROSS - row
        own: Expr = a["scores"][self._score]
        nodes = {_score_product(self.online)[0]: own, **{n: a[f"column {n[1:]}"][_AT] for n in self.columns}}
        value = self._lower(self.online.score, {nest.row: _BASE + row, nest.along: place}, nodes)
        tests = [place.lt(nest.along.extent), (_BASE + row).lt(nest.row.extent)]
        inside = conjunction(*tests, *(() if nest.dense else (place.ge(0),)))
        assert inside is not None
        most = Var(":most", F32)
        masked = Store(a["scores"], self._score, select(inside, value, literal(-inf, F32)))
        yield self._each_row(
            Declare(most),
            Assign(most, a["largest"][_ROW]),
            unrolled(_AT, self.across, masked, Assign(most, lower_join("max", most, own))),
            Store(a["joined"], row * LANES + _LANE, most),
        )

    def _weigh(self) -> Iterable[Statement]:
        """Yield the new maxima, the weights in place of the right operand, and the rescaled sums."""
        a, width, row = self._arrays, self.wide_steps * PACK, self._own_row
        most, decay, weight = (Var(f":{n}", F32) for n in ("most", "decay", "weight"))
        yield self._each_row(
            Declare(most, reduce(partial(lower_join, "max"), self._parts_of_row())),
            Declare(decay, call("exp", a["largest"][_ROW] - most)),
            Store(a["largest"], _ROW, most),
            Store(a["total"], _ROW, a["total"][_ROW] * decay),
            unrolled(_TERM, width, self._scale_sum(decay)),
            unrolled(
                _AT,
                self.across,
                Declare(weight, call("exp", a["scores"][self._score] - most)),
                Store(a["total"], _ROW, a["total"][_ROW] + weight),
                Store(a["right"], row * self.tile.weights + _ACROSS, weight),
            ),
        )

    def _parts_of_row(self) -> list[Expr]:
        """Return what the threads of a row have joined of it."""
        return [self._arrays["joined"][self._own_row * LANES + n] for n in range(LANES)]

    def _scale_sum(self, factor: Expr) -> Statement:
        sums, place = self._arrays["sums"], _ROW * (self.wide_steps * PACK) + _TERM
        return Store(sums, place, sums[place] * factor)

    def _write(self) -> Iterable[Statement]:
        """Yield the totals of the rows, and the results."""
        a, nest, width = self._arrays, self.nest, self.wide_steps * PACK
        n, row = self.product.n, self._own_row
        yield self._each_row(Store(a["joined"], row * LANES + _LANE, a["total"][_ROW]))
        yield Barrier()
        whole, place = Var(":whole", F32), Var(":place")
        nodes = {} if self.online.total is None else {node_name(self.online.total): whole}
        scale = self._lower(nest.scale, {nest.row: _BASE + row}, nodes)
        size = PACK if n.extent % PACK == 0 else 1
        at = {**self._batch, nest.row: _BASE + row, n: place}
        where = lower_index(result_address(nest.scope), at, self.wide)
        part = _ZERO if size == PACK else _AT
        copy = Copy(self.result, where, a["sums"], _ROW * width + _PART * PACK + part, size)
        store: tuple[Statement, ...] = (
            Declare(place, (_PART * LANES + _LANE) * PACK + part),
            If(place.lt(n.extent), (copy,)),
        )
        if size == 1:
            store = (unrolled(_AT, PACK, *store),)
        yield self._each_row(
            Declare(whole, reduce(add, self._parts_of_row())),
            unrolled(_TERM, width, self._scale_sum(scale)),
            If((_BASE + row).lt(nest.row.extent), (unrolled(_PART, self.wide_steps, *store),)),
        )


def _are_neighbours(body: Scalar, inner: tuple[Iterator, ...]) -> bool:
    """True if *body* reads whole aligned transfers along *inner*, each inside its tensor or outside."""
    if not isinstance(body, Access) or not isinstance(body.source, Tensor) or len(inner) != 1:
        return False
    return reads_packs(body, inner[0], PACK)


def online_kernel(online: OnlineSoftmax, name: str, groups: int = 1, tile: OnlineTile | None = None) -> Kernel:
    """Return the kernel *name* of *online* in blocks of *tile*: its tensors, then the result.

    By default ``online_tile`` chooses the tile for *groups* multiprocessors.  Raises Refused if none fits, or if scores
    are no elementwise function of one product.
    """
    return OnlineWriter(online, tile or online_tile(online, groups)).kernel(name)
