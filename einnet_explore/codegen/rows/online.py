r"""Softmax-weighted sums in one pass over the columns, block by block (T. Dao et al., FlashAttention, 2022).

A block of `R` rows keeps for each row the triple :math:`(m, s, v)` of an online softmax: the largest score so
far, the sum of the exponentials relative to it, and the weighted sum of the values.  For each block of `C` columns:

1. scores: a dense product in registers, restricted to the band if there is one, and their maximum, :math:`m'`;
2. :math:`c = e^{m - m'}`, :math:`p_w = e^{z_w - m'}`, :math:`s \leftarrow c\,s + \sum_w p_w`;
3. :math:`v \leftarrow c\,v + p\,V`, a dense product whose sums start from :math:`c\,v`.

The operands over the columns are packed once for each element of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from einnet_explore.analysis.online_softmax import LOWEST_SCORE, OnlineSoftmax
from einnet_explore.analysis.row_nest import BandNode, ColumnNode, node_name
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.codegen.rows.kernel import MAX_BLOCK_ROWS, NodeReader, RowKernel, band_depth
from einnet_explore.codegen.tvm import TvmObject, emission
from einnet_explore.codegen.tvm.emission import (
    Environment,
    count_steps,
    fill_buffer,
    fold_vector,
    hide_condition,
    load_vector,
    multiply_tile,
    store_tile,
    store_vector,
    tvm_function,
    vector_tile,
)
from einnet_explore.ir import Iterator, Scalar, Tensor, accesses
from einnet_explore.support.lazy_modules import LazyModule

tirx, T = LazyModule("tvm.tirx"), LazyModule("tvm.tirx.script.builder.ir")

MAX_BLOCK_COLUMNS = 512
"""Columns of a block, at most."""


def online_block(online: OnlineSoftmax, machine: Machine) -> tuple[int, int]:
    """Return (rows, columns) of a block: values fit the first-level cache, scores the second-level one.

    If every row sees every column, blocks have as equal numbers of columns as whole tiles allow.
    """
    nest = online.nest
    assert nest.product is not None
    out = vector_tile(nest.product.n.extent, machine.lanes)
    score = vector_tile(2 * machine.lanes, machine.lanes)
    whole = max(out.rows, score.rows, machine.lanes)
    rows = min(MAX_BLOCK_ROWS, -(-nest.row.extent // whole) * whole)
    seen = nest.along.extent + (0 if nest.dense else rows - 1)
    columns = MAX_BLOCK_COLUMNS
    width = -(-nest.product.n.extent // out.width) * out.width
    while columns > score.width and (4 * columns * width > machine.l1 * 3 // 4 or columns >= 2 * seen):
        columns //= 2
    if nest.dense:
        columns = -(-seen // (-(-seen // columns) * score.width)) * score.width
    return rows, columns


def online_function(
    online: OnlineSoftmax, inputs: Mapping[str, tuple[int, ...]], threads: int, machine: Machine
) -> TvmObject:
    """Return the PrimFunc that computes *online* from *inputs* (shapes by name, in the order of its parameters)."""
    nest, (rows, columns) = online.nest, online_block(online, machine)
    return tvm_function(
        inputs,
        nest.scope.shape,
        lambda places, result: _OnlineKernel(
            nest, places, result, threads, machine, rows, online=online, columns=columns
        ).write(),
    )


def is_one_pass_faster(online: OnlineSoftmax, machine: Machine) -> bool:
    """True if one pass is faster: every row sees every column, or a window exceeds the second-level cache."""
    nest = online.nest
    return nest.dense or 4 * MAX_BLOCK_ROWS * nest.along.extent > machine.l2


@dataclass
class _OnlineKernel(RowKernel):
    """A kernel of *online* in blocks of *rows* and *columns*."""

    online: OnlineSoftmax
    columns: int

    @property
    def blocks(self) -> int:
        """Blocks of columns."""
        nest = self.nest
        seen = nest.along.extent + (0 if nest.dense else nest.row.extent - 1)
        return -(-seen // self.columns)

    def write(self) -> None:
        """For each element of the batch, pack the operands, then write every block of rows."""
        nest, every = self.nest, range(self.blocks * self.columns)
        groups, end = -(-nest.row.extent // self.rows), nest.along.extent if nest.dense else len(every)
        tiles = range(-(-end // self.tile.width))
        inside = self.threads > 1 and groups >= 4 * self.threads
        with T.serial(self.batches) if inside else self.loop(self.batches) as batch:
            env = self.over_batch(batch)
            packed, columns = dict[int, TvmObject](), dict[int, TvmObject]()
            for n, node in enumerate(nest.nodes):
                match node:
                    case BandNode():
                        packed[n] = self.pack_band(node, tiles, env, end)
                    case ColumnNode(right):
                        columns[n] = self.pack_columns(right, every, env)
            values = self.pack_columns(self.product.right, range(end), env, self.product.n, self.width)
            with self.loop(groups) if inside else T.serial(groups) as group:
                _OnlineBlock(self, env, packed, columns, values, T.bind(group * self.rows)).write()


def _no_score() -> TvmObject:
    return tirx.const(float("-inf"), "float32")


@dataclass(frozen=True, slots=True)
class _ScoredRow:
    """Row *row* and its scores from *start* on: those of the columns from *begin* on, at *offset* in the row."""

    row: TvmObject
    start: TvmObject
    begin: TvmObject
    offset: TvmObject
    most: TvmObject
    """The maximum of each lane."""


@dataclass
class _OnlineBlock:
    """One block of rows: its triples, updated by each block of columns."""

    kernel: _OnlineKernel
    env: Environment
    packed: Mapping[int, TvmObject]
    columns: Mapping[int, TvmObject]
    values: TvmObject
    first: TvmObject

    def write(self) -> None:
        """Initialise the triples, update them by every block of columns, store the scaled sums."""
        kernel, nest = self.kernel, self.kernel.nest
        lanes, extent = kernel.lanes, nest.row.extent
        whole = extent % kernel.rows == 0
        self.rows: TvmObject = kernel.rows if whole else T.bind(tirx.min(extent - self.first, kernel.rows))
        bands = {n: band for n, band in enumerate(nest.nodes) if isinstance(band, BandNode)}
        self.left = {n: kernel.pack_left(band, self.env, self.first) for n, band in bands.items()}
        self.scores = {n: T.alloc_buffer((kernel.rows * kernel.columns,)) for n in self.left}
        self.powers = (
            next(iter(self.scores.values())) if self.scores else T.alloc_buffer((kernel.rows * kernel.columns,))
        )
        self.most, self.total, self.again = (T.alloc_buffer((max(kernel.rows, lanes),)) for _ in range(3))
        self.held = T.alloc_buffer((kernel.rows * kernel.width,))
        fill_buffer(self.most, LOWEST_SCORE, kernel.rows, lanes)
        fill_buffer(self.total, 0.0, kernel.rows, lanes)
        fill_buffer(self.held, 0.0, kernel.rows * kernel.width, lanes)
        if nest.dense:
            begin: TvmObject = 0
            count: TvmObject = kernel.blocks
        else:
            begin = T.bind(self.first // kernel.columns)
            last = tirx.min(self.first + kernel.rows, nest.row.extent) + nest.along.extent - 2
            count = T.bind(last // kernel.columns - begin + 1)
        with T.serial(count) as j:
            self._update(T.bind((begin + j) * kernel.columns))
        self._write_result()

    def _update(self, begin: TvmObject) -> None:
        """Update the triples by the columns from *begin* on."""
        kernel, nest, lanes = self.kernel, self.kernel.nest, self.kernel.lanes
        count: TvmObject = kernel.columns
        if nest.dense and nest.along.extent % kernel.columns:
            count = min(kernel.columns, nest.along.extent)
            if kernel.blocks > 1:
                count = T.bind(tirx.min(nest.along.extent - begin, kernel.columns))
        for n, node in enumerate(nest.nodes):
            if isinstance(node, BandNode):
                self._scores(n, band_depth(node), begin, count)
        largest = T.alloc_buffer((max(kernel.rows, lanes),))
        with T.serial(self.rows) as r:
            self._largest(largest, r, begin, count)
        with T.serial(kernel.rows // lanes) as c, T.vectorized(lanes) as x:
            r = c * lanes + x
            T.buffer_store(self.again, emission.tvm_operator("exp", (self.most[r] - largest[r],)), [r])
        with T.serial(kernel.rows // lanes) as c:
            store_vector(self.most, load_vector(largest, c * lanes, lanes), c * lanes, lanes)
        with T.serial(self.rows) as r:
            self._powers(r, count)
        self._add_weighted_values(begin, count)

    def _scores(self, n: int, depth: int, begin: TvmObject, count: TvmObject) -> None:
        kernel, width = self.kernel, self.kernel.tile.width
        whole = count // width
        # The rest of the last block is half a tile or less, or a tile.
        rest = kernel.nest.along.extent % width if kernel.nest.dense else 0
        for tiles, start, columns in ((whole, 0, width), ((count + width - 1) // width - whole, whole, rest)):
            if columns:
                with T.serial(tiles) as at:
                    t = T.bind(at + start)
                    base = T.bind((begin // width + t) * (depth * width))
                    out = self.scores[n], kernel.columns, t
                    vectors = -(-columns // kernel.lanes)
                    kernel.multiply_band(self.left[n], self.packed[n], base, depth, *out, self.rows, vectors)

    def _largest(self, largest: TvmObject, r: TvmObject, begin: TvmObject, count: TvmObject) -> None:
        """Store *count* scores of row *r* and the maximum of these and all before."""
        kernel, nest, lanes = self.kernel, self.kernel.nest, self.kernel.lanes
        row = T.bind(tirx.min(self.first + r, nest.row.extent - 1))
        start = T.bind(r * kernel.columns)
        most = T.alloc_buffer((lanes,))
        store_vector(most, tirx.Broadcast(tirx.const(LOWEST_SCORE, "float32"), lanes), 0, lanes)
        line = _ScoredRow(row, start, begin, begin if nest.dense else T.bind(begin - row), most)
        if nest.dense:
            with T.serial(count // lanes) as c:
                self._store_scores(line, c, edge=False)
            if nest.along.extent % lanes:  # the last vector of the last block
                with T.serial((count + lanes - 1) // lanes - count // lanes):
                    self._store_scores(line, count // lanes, edge=True)
        else:
            with T.serial(kernel.columns // lanes) as c:
                self._store_band_scores(line, c)
        found = fold_vector(most, lanes, "max")
        T.buffer_store(largest, tirx.max(self.most[r], found), [r])

    def _store_band_scores(self, line: _ScoredRow, c: TvmObject) -> None:
        """Store the scores of vector *c* of *line*, −∞ for columns outside the row's band."""
        nest, lanes = self.kernel.nest, self.kernel.lanes
        if nest.along not in _read_iterators(self.kernel.online.score):  # then nothing is read beyond the row
            self._store_scores(line, c, edge=True)
            return
        place = line.offset + c * lanes
        with T.If(tirx.all(place >= 0, place + lanes <= nest.along.extent)):
            with T.Then():
                self._store_scores(line, c, edge=False)
            with T.Else(), T.If(tirx.all(place + lanes > 0, place < nest.along.extent)):
                with T.Then():
                    self._store_scores(line, c, edge=True)
                with T.Else():
                    outside = tirx.Broadcast(_no_score(), lanes)
                    store_vector(self.powers, outside, line.start + c * lanes, lanes)

    def _store_scores(self, line: _ScoredRow, c: TvmObject, edge: bool) -> None:
        """Store the scores of vector *c* of *line*; at an *edge*, −∞ for columns outside the row."""
        extent, lanes = self.kernel.nest.along.extent, self.kernel.lanes
        with T.vectorized(lanes) as x:
            at = c * lanes + x
            place = line.offset + at
            value = self._score(line, at, tirx.max(tirx.min(place, extent - 1), 0) if edge else place)
            if edge:
                value = tirx.Select(hide_condition(tirx.all(place >= 0, place < extent)), value, _no_score())
            T.buffer_store(self.powers, value, [line.start + at])
            T.buffer_store(line.most, tirx.max(line.most[x], self.powers[line.start + at]), [x])

    def _score(self, line: _ScoredRow, at: TvmObject, inside: TvmObject) -> TvmObject:
        """Return the score at column *at* of the block, which is *inside* in the row."""
        kernel, nest = self.kernel, self.kernel.nest
        readers: dict[str, NodeReader] = {
            node_name(n): _element_reader(b, line.start + at) for n, b in self.scores.items()
        }
        readers |= {node_name(n): _element_reader(b, line.begin + at) for n, b in self.columns.items()}
        return kernel.scalar(kernel.online.score, {**self.env, nest.row: line.row, nest.along: inside}, readers)

    def _powers(self, r: TvmObject, count: TvmObject) -> None:
        """Store the *count* exponentials of row *r* and add them to their sum."""
        kernel, lanes = self.kernel, self.kernel.lanes
        start = T.bind(r * kernel.columns)
        sums = T.alloc_buffer((lanes,))
        store_vector(sums, tirx.Broadcast(tirx.const(0.0, "float32"), lanes), 0, lanes)
        with T.serial((count + lanes - 1) // lanes) as c, T.vectorized(lanes) as x:
            at = start + c * lanes + x
            power = emission.tvm_operator("exp", (self.powers[at] - self.most[r],))
            T.buffer_store(self.powers, power, [at])
            T.buffer_store(sums, sums[x] + self.powers[at], [x])
        found = fold_vector(sums, lanes, "sum")
        T.buffer_store(self.total, self.total[r] * self.again[r] + found, [r])

    def _add_weighted_values(self, begin: TvmObject, count: TvmObject) -> None:
        kernel, tile = self.kernel, self.kernel.out
        with T.serial(kernel.width // tile.width) as nt, T.serial((self.rows + tile.rows - 1) // tile.rows) as rt:

            def place(row: int, x: int) -> TvmObject:
                return (rt * tile.rows + row) * kernel.width + nt * tile.width + x

            sums = multiply_tile(
                tile,
                count_steps(count),
                lambda row, u: self.powers[(rt * tile.rows + row) * kernel.columns + u],
                lambda u, x: load_vector(self.values, (begin + u) * kernel.width + nt * tile.width + x, tile.lanes),
                lambda row, x: (
                    load_vector(self.held, place(row, x), tile.lanes)
                    * tirx.Broadcast(self.again[rt * tile.rows + row], tile.lanes)
                ),
            )
            store_tile(tile, sums, self.held, place)

    def _write_result(self) -> None:
        kernel, nest = self.kernel, self.kernel.nest
        with T.serial(self.rows) as r:
            env = {**self.env, nest.row: self.first + r}
            total = kernel.online.total
            readers: dict[str, NodeReader] = {} if total is None else {node_name(total): lambda: self.total[r]}
            scale = T.alloc_buffer((1,))
            T.buffer_store(scale, kernel.scalar(nest.scale, env, readers), [0])
            with T.serial(kernel.product.n.extent) as x:
                at = {**env, kernel.product.n: x}
                value = self.held[r * kernel.width + x] * scale[0]
                T.buffer_store(kernel.result, value, [at[y] for y in nest.scope.traversals])


def _read_iterators(score: Scalar) -> frozenset[Iterator]:
    """Return the iterators by which *score* reads tensors; nodes lie in buffers of whole blocks."""
    indices = (a.index for a in accesses(score) if isinstance(a.source, Tensor) and not a.source.name.startswith("#"))
    return frozenset(x for index in indices for i in index for x in i.iterators)


def _element_reader(buffer: TvmObject, at: TvmObject) -> NodeReader:
    return lambda *_: buffer[at]
