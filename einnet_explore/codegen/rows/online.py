r"""Softmax-weighted sums in one pass over the columns, block by block (T. Dao et al., FlashAttention, 2022).

A block of `R` rows keeps for each row the triple :math:`(m, s, v)` of an online softmax: the largest score so
far, the sum of the exponentials relative to it, and the weighted sum of the values.  For each block of `C` columns:

1. scores: a dense product in registers, restricted to the band if there is one, and their maximum, :math:`m'`;
2. :math:`c = e^{m - m'}`, :math:`p_w = e^{z_w - m'}`, :math:`s \leftarrow c\,s + \sum_w p_w`;
3. :math:`v \leftarrow c\,v + p\,V`, a dense product whose sums start from :math:`c\,v`.

The operands over the columns are packed once for each element of the batch.

Tiles of columns that are hidden from all rows of a group, as by a causal mask, are skipped
(``codegen.rows.hidden_columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from math import lcm, prod

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.online_softmax import LOWEST_SCORE, OnlineSoftmax
from einnet_explore.analysis.row_nest import BandNode, ColumnNode, node_name
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.codegen.rows.hidden_columns import (
    MAX_NORM_PRODUCT,
    MAX_VALUE_NORM,
    HiddenColumns,
    hiding_term,
)
from einnet_explore.codegen.rows.kernel import MAX_BLOCK_ROWS, NodeReader, RowKernel, VectorReader, band_depth
from einnet_explore.codegen.tvm import TvmObject, emission
from einnet_explore.codegen.tvm.emission import (
    Environment,
    VectorTile,
    count_steps,
    fill_buffer,
    fold_vector,
    hide_condition,
    load_vector,
    multiply_tile,
    store_tile,
    store_vector,
    tvm_constant,
    tvm_function,
    vector_tile,
)
from einnet_explore.ir import Iterator, Scalar, Tensor, accesses
from einnet_explore.support.lazy_modules import LazyModule

tirx, T = LazyModule("tvm.tirx"), LazyModule("tvm.tirx.script.builder.ir")

MAX_BLOCK_COLUMNS = 512
"""Columns of a block, at most."""


def online_block(online: OnlineSoftmax, machine: Machine) -> tuple[int, int]:
    """Return (rows, columns) of a block: scores fit the second-level cache, and values the first-level one.

    If every row sees every column, values fit the second-level cache too: they are read one after the other, and fewer
    blocks update fewer triples.  Blocks then have as equal numbers of columns as whole tiles allow.
    """
    nest = online.nest
    assert nest.product is not None
    out = vector_tile(nest.product.n.extent, machine)
    score = vector_tile(2 * machine.lanes, machine)
    whole = max(out.rows, score.rows, machine.lanes)
    rows = min(MAX_BLOCK_ROWS, -(-nest.row.extent // whole) * whole)
    seen = nest.along.extent + (0 if nest.dense else rows - 1)
    columns = MAX_BLOCK_COLUMNS
    width = -(-nest.product.n.extent // out.width) * out.width
    limit = machine.l2 // 4 if nest.dense else machine.l1 * 3 // 4
    while columns > score.width and (4 * columns * width > limit or columns >= 2 * seen):
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

    @property
    def tile(self) -> VectorTile:
        """A tile of a band's product."""
        return self._with_equal_rows(super().tile)

    @property
    def out(self) -> VectorTile:
        """A tile of the last product."""
        return self._with_equal_rows(super().out)

    def _with_equal_rows(self, tile: VectorTile) -> VectorTile:
        """Return *tile* with as few rows as a single block needs, in as many tiles."""
        extent = self.nest.row.extent
        return replace(tile, rows=-(-extent // -(-extent // tile.rows))) if extent <= self.rows else tile

    @property
    def is_whole(self) -> bool:
        """True if one block has all columns of every row."""
        return self.nest.dense and self.blocks == 1

    @property
    def batches_with_equal_bands(self) -> int:
        """Elements of the batch in a row for which the packed operands are the same, as of heads that share keys."""
        read = {x for node in self.nest.nodes if isinstance(node, BandNode) for x in iterators_of(node.right)}
        return prod(x.extent for x in takewhile(lambda x: x not in read, reversed(self.nest.batch)))

    @cached_property
    def hidden(self) -> HiddenColumns | None:
        """The columns that a term of the scores hides; None if they are not skipped."""
        nest, term = self.nest, hiding_term(self.online)
        depths = (band_depth(node) for node in nest.nodes if isinstance(node, BandNode))
        if term is None or nest.along.extent < self.lanes or any(depth % self.lanes for depth in depths):
            return None
        return HiddenColumns(self, term, lcm(self.tile.rows, self.out.rows), self.rows)

    def read_values(self, columns: range, env: Environment) -> VectorReader:
        """Return the reader (column, start) of vectors of the values, in place if all of them are contiguous."""
        n, width, lanes = self.product.n, self.width, self.lanes
        body = self._before(self.product.right, columns.stop)
        column = replace(self.nest.column, hi=min(columns.stop, self.nest.column.hi))
        if self.nest.dense and width == n.extent == self.stride(body, column) and self.stride(body, n) == 1:
            return lambda u, x: self.load_along(body, {**env, column: u, n: x}, lanes)
        packed = self.pack_columns(self.product.right, columns, env, n, width)
        return lambda u, x: load_vector(packed, u * width + x, lanes)

    def write(self) -> None:
        """For each element of the batch, pack the operands, then write every block of rows."""
        nest, every = self.nest, range(self.blocks * self.columns)
        groups, end = -(-nest.row.extent // self.rows), nest.along.extent if nest.dense else len(every)
        tiles = range(-(-end // self.tile.width))
        inside = self.threads > 1 and groups >= 4 * self.threads
        shared = self.batches_with_equal_bands if self.threads == 1 else 1
        ends = None if self.hidden is None else self.hidden.write_ends()
        with T.serial(self.batches // shared) if inside else self.loop(self.batches // shared) as batch:
            first = self.over_batch(batch * shared)
            bands = {
                n: self.pack_band(node, tiles, first, end)
                for n, node in enumerate(nest.nodes)
                if isinstance(node, BandNode)
            }
            norms = None if ends is None else self._band_norms(ends, first, bands)
            with nullcontext(0) if shared == 1 else T.serial(shared) as part:
                env = first if shared == 1 else self.over_batch(T.bind(batch * shared + part))
                columns = {
                    n: self.pack_columns(node.right, every, env)
                    for n, node in enumerate(nest.nodes)
                    if isinstance(node, ColumnNode)
                }
                values = self.read_values(range(end), env)
                if norms is not None:
                    self._add_value_norm(ends, env, values, norms)
                with self.loop(groups) if inside else T.serial(groups) as group:
                    block = _OnlineBlock(self, env, bands, columns, values, T.bind(group * self.rows))
                    block.write(ends, norms)

    def _band_norms(self, ends: TvmObject, env: Environment, packed: Mapping[int, TvmObject]) -> TvmObject:
        """Return the sums of squares of the *packed* operands, and a place for the values', if columns are hidden."""
        assert self.hidden is not None
        norms = T.alloc_buffer((len(packed) + 1,))
        with T.If(self.hidden.is_any(ends, env)), T.Then():
            for place, (n, operand) in enumerate(packed.items()):
                node = self.nest.nodes[n]
                assert isinstance(node, BandNode)
                T.buffer_store(norms, self.hidden.band_norm(node, operand), [place])
        return norms

    def _add_value_norm(self, ends: TvmObject, env: Environment, values: VectorReader, norms: TvmObject) -> None:
        """Store the sum of squares of the *values* behind those of the packed operands."""
        assert self.hidden is not None
        with T.If(self.hidden.is_any(ends, env)), T.Then():
            T.buffer_store(norms, self.hidden.value_norm(values), [norms.shape[0] - 1])


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
    values: VectorReader
    first: TvmObject

    def write(self, ends: TvmObject | None, norms: TvmObject | None) -> None:
        """Initialise the triples, update them by every block of columns, store the scaled sums.

        Columns from the *ends* of the groups of rows on are skipped if *norms* allow that.
        """
        kernel, nest = self.kernel, self.kernel.nest
        lanes, extent = kernel.lanes, nest.row.extent
        self.rows: TvmObject = min(extent, kernel.rows)
        if extent % self.rows:
            self.rows = T.bind(tirx.min(extent - self.first, kernel.rows))
        bands = {n: band for n, band in enumerate(nest.nodes) if isinstance(band, BandNode)}
        self.left = {n: kernel.read_left(band, self.env, self.first) for n, band in bands.items()}
        self.ends = None if ends is None else self._choose_ends(ends, norms, bands)
        self.scores = {n: T.alloc_buffer((kernel.rows * kernel.columns,)) for n in self.left}
        self.powers = (
            next(iter(self.scores.values())) if self.scores else T.alloc_buffer((kernel.rows * kernel.columns,))
        )
        self.most, self.total = (T.alloc_buffer((max(kernel.rows, lanes),)) for _ in range(2))
        if kernel.is_whole:
            self._compute()
            return
        self.again = T.alloc_buffer((max(kernel.rows, lanes),))
        self.held = T.alloc_buffer((kernel.rows * kernel.width,))
        fill_buffer(self.most, LOWEST_SCORE, kernel.rows, lanes)
        fill_buffer(self.total, 0.0, kernel.rows, lanes)
        fill_buffer(self.held, 0.0, kernel.rows * kernel.width, lanes)
        if nest.dense:
            begin: TvmObject = 0
            count: TvmObject = kernel.blocks if self.ends is None else self._seen_blocks(self.ends)
        else:
            begin = T.bind(self.first // kernel.columns)
            last = tirx.min(self.first + kernel.rows, nest.row.extent) + nest.along.extent - 2
            count = T.bind(last // kernel.columns - begin + 1)
        with T.serial(count) as j:
            self._update(T.bind((begin + j) * kernel.columns))
        self._write_result()

    def _choose_ends(self, ends: TvmObject, norms: TvmObject, bands: Mapping[int, BandNode]) -> TvmObject:
        """Return the ends of the columns that the groups of rows read."""
        hidden, extent = self.kernel.hidden, self.kernel.nest.along.extent
        assert hidden is not None
        chosen = T.alloc_buffer((hidden.groups,), "int32")
        with T.serial(hidden.groups) as group:
            T.buffer_store(chosen, extent, [group])
        with T.If(hidden.is_any(ends, self.env, self.first)), T.Then():
            tests = [norms[len(bands)] < tvm_constant(MAX_VALUE_NORM)]
            for place, (n, band) in enumerate(bands.items()):
                norm = hidden.row_norm(band, self.left[n], self.rows)
                tests.append(norm * norms[place] < tvm_constant(MAX_NORM_PRODUCT))
            start = T.bind(hidden.start(self.env, self.first))
            with T.If(tirx.all(*tests)), T.Then(), T.serial(hidden.groups) as group:
                T.buffer_store(chosen, ends[start + group], [group])
        return chosen

    def _seen_blocks(self, ends: TvmObject) -> TvmObject:
        """Return the blocks of columns that a row reads."""
        kernel, hidden = self.kernel, self.kernel.hidden
        assert hidden is not None
        last = T.alloc_buffer((1,), "int32")
        T.buffer_store(last, 0, [0])
        with T.serial(hidden.groups) as group:
            T.buffer_store(last, tirx.max(last[0], ends[group]), [0])
        return T.bind((last[0] + kernel.columns - 1) // kernel.columns)

    def _seen(self, r: TvmObject, begin: TvmObject, count: TvmObject, multiple: int = 1) -> TvmObject:
        """Return how many of *count* columns from *begin* on row *r* reads, up to a *multiple* of columns."""
        if self.ends is None:
            return count
        assert self.kernel.hidden is not None
        seen = tirx.max(self.ends[r // self.kernel.hidden.group] - begin, 0)
        whole = seen if multiple == 1 else (seen + multiple - 1) // multiple * multiple
        return T.bind(tirx.min(whole, count))

    def _compute(self) -> None:
        """Compute the rows from all columns at once: there are no triples to update."""
        kernel, tile, extent = self.kernel, self.kernel.out, self.kernel.nest.along.extent
        self._all_scores(0, extent)
        scales = T.alloc_buffer((kernel.rows,))
        with T.serial(self.rows) as r:
            self._largest(self.most, r, 0, extent)
        with T.serial(self.rows) as r:
            T.buffer_store(self.total, self._powers(r, self._seen(r, 0, extent, kernel.lanes)), [r])
            T.buffer_store(scales, self._scale(r), [r])

        def store(rt: TvmObject, nt: TvmObject, sums: list[TvmObject]) -> None:
            for row, total in enumerate(sums):
                r = T.bind(rt * tile.rows + row)
                with nullcontext() if is_full else T.If(r < self.rows), nullcontext() if is_full else T.Then():
                    scale = T.bind(scales[r])
                    for x, lanes in tile.columns:
                        first = nt * tile.width + x
                        self._store_result(r, first, lanes, _scaled_reader(total, x, scale))

        is_full = isinstance(self.rows, int) and self.rows % tile.rows == 0
        self._multiply_values(0, extent, None, store)

    def _update(self, begin: TvmObject) -> None:
        """Update the triples by the columns from *begin* on."""
        kernel, nest, lanes = self.kernel, self.kernel.nest, self.kernel.lanes
        count: TvmObject = kernel.columns
        if nest.dense and nest.along.extent % kernel.columns:
            count = min(kernel.columns, nest.along.extent)
            if kernel.blocks > 1:
                count = T.bind(tirx.min(nest.along.extent - begin, kernel.columns))
        self._all_scores(begin, count)
        largest = T.alloc_buffer((max(kernel.rows, lanes),))
        with T.serial(self.rows) as r:
            self._largest(largest, r, begin, count)
        with T.serial(kernel.rows // lanes) as c, T.vectorized(lanes) as x:
            r = c * lanes + x
            T.buffer_store(self.again, emission.tvm_operator("exp", (self.most[r] - largest[r],)), [r])
        with T.serial(kernel.rows // lanes) as c:
            store_vector(self.most, load_vector(largest, c * lanes, lanes), c * lanes, lanes)
        with T.serial(self.rows) as r:
            found = self._powers(r, self._seen(r, begin, count, lanes))
            T.buffer_store(self.total, self.total[r] * self.again[r] + found, [r])
        self._add_weighted_values(begin, count)

    def _all_scores(self, begin: TvmObject, count: TvmObject) -> None:
        """Compute the products of all bands for the *count* columns from *begin* on."""
        for n, node in enumerate(self.kernel.nest.nodes):
            if isinstance(node, BandNode):
                self._scores(n, band_depth(node), begin, count)

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
                    is_read = None if self.ends is None else self._reader_of(begin + t * width)
                    kernel.multiply_band(self.left[n], self.packed[n], base, depth, *out, self.rows, vectors, is_read)

    def _reader_of(self, column: TvmObject) -> Callable[[TvmObject], TvmObject]:
        """Return the test whether a row reads *column*."""
        return lambda r: self._seen(r, column, 1) > 0

    def _largest(self, largest: TvmObject, r: TvmObject, begin: TvmObject, count: TvmObject) -> None:
        """Store *count* scores of row *r* and the maximum of these and all before."""
        kernel, nest, lanes = self.kernel, self.kernel.nest, self.kernel.lanes
        row = T.bind(tirx.min(self.first + r, nest.row.extent - 1))
        start = T.bind(r * kernel.columns)
        count = self._seen(r, begin, count, lanes)
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
        T.buffer_store(largest, found if kernel.is_whole else tirx.max(self.most[r], found), [r])

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

    def _powers(self, r: TvmObject, count: TvmObject) -> TvmObject:
        """Store the *count* exponentials of row *r* and return their sum."""
        kernel, lanes = self.kernel, self.kernel.lanes
        start = T.bind(r * kernel.columns)
        sums = T.alloc_buffer((lanes,))
        store_vector(sums, tirx.Broadcast(tirx.const(0.0, "float32"), lanes), 0, lanes)
        with T.serial((count + lanes - 1) // lanes) as c, T.vectorized(lanes) as x:
            at = start + c * lanes + x
            power = emission.tvm_operator("exp", (self.powers[at] - self.most[r],))
            T.buffer_store(self.powers, power, [at])
            T.buffer_store(sums, sums[x] + self.powers[at], [x])
        return fold_vector(sums, lanes, "sum")

    def _add_weighted_values(self, begin: TvmObject, count: TvmObject) -> None:
        kernel, tile = self.kernel, self.kernel.out

        def place(rt: TvmObject, nt: TvmObject, row: int, x: int) -> TvmObject:
            return (rt * tile.rows + row) * kernel.width + nt * tile.width + x

        def held(rt: TvmObject, nt: TvmObject, row: int, x: int) -> TvmObject:
            again = tirx.Broadcast(self.again[rt * tile.rows + row], tile.lanes)
            return load_vector(self.held, place(rt, nt, row, x), tile.lanes) * again

        def store(rt: TvmObject, nt: TvmObject, sums: list[TvmObject]) -> None:
            store_tile(tile, sums, self.held, lambda row, x: place(rt, nt, row, x))

        self._multiply_values(begin, count, held, store)

    def _multiply_values(
        self,
        begin: TvmObject,
        count: TvmObject,
        start: Callable[[TvmObject, TvmObject, int, int], TvmObject] | None,
        store: Callable[[TvmObject, TvmObject, list[TvmObject]], None],
    ) -> None:
        """Multiply the exponentials by *count* rows of values from *begin* on, in tiles (of rows, of columns).

        Sums start at 0, or at the vectors *start* (tile, row, column).
        """
        kernel, tile = self.kernel, self.kernel.out
        with T.serial(kernel.width // tile.width) as nt, T.serial((self.rows + tile.rows - 1) // tile.rows) as rt:
            sums = multiply_tile(
                tile,
                count_steps(self._seen(rt * tile.rows, begin, count)),
                lambda row, u: self.powers[(rt * tile.rows + row) * kernel.columns + u],
                lambda u, x: self.values(begin + u, nt * tile.width + x),
                None if start is None else lambda row, x: start(rt, nt, row, x),
            )
            store(rt, nt, sums)

    def _scale(self, r: TvmObject) -> TvmObject:
        """Return the scale of row *r*, which may read the sum of its exponentials."""
        kernel, total = self.kernel, self.kernel.online.total
        readers: dict[str, NodeReader] = {} if total is None else {node_name(total): lambda: self.total[r]}
        return kernel.scalar(kernel.nest.scale, {**self.env, kernel.nest.row: self.first + r}, readers)

    def _store_result(
        self, r: TvmObject, start: TvmObject, lanes: int, value: Callable[[TvmObject], TvmObject]
    ) -> None:
        """Store ``value(lane)`` into the columns of row *r* among the *lanes* from *start* on."""
        nest, n = self.kernel.nest, self.kernel.product.n

        def put(lane: TvmObject) -> None:
            at = {**self.env, nest.row: self.first + r, n: start + lane}
            T.buffer_store(self.kernel.result, value(lane), [at[y] for y in nest.scope.traversals])

        if n.extent % lanes == 0:
            with T.If(start < n.extent), T.Then(), T.vectorized(lanes) as lane:
                put(lane)
        else:
            with T.serial(tirx.max(tirx.min(n.extent - start, lanes), 0)) as lane:
                put(lane)

    def _write_result(self) -> None:
        kernel, lanes = self.kernel, self.kernel.lanes
        with T.serial(self.rows) as r:
            scale = T.alloc_buffer((1,))
            T.buffer_store(scale, self._scale(r), [0])
            with T.serial(kernel.width // lanes) as c:
                start = T.bind(r * kernel.width + c * lanes)
                self._store_result(r, c * lanes, lanes, _scaled_reader(self.held, start, scale[0]))


def _read_iterators(score: Scalar) -> frozenset[Iterator]:
    """Return the iterators by which *score* reads tensors; nodes lie in buffers of whole blocks."""
    indices = (a.index for a in accesses(score) if isinstance(a.source, Tensor) and not a.source.name.startswith("#"))
    return frozenset(x for index in indices for i in index for x in i.iterators)


def _scaled_reader(sums: TvmObject, start: TvmObject, scale: TvmObject) -> Callable[[TvmObject], TvmObject]:
    return lambda lane: sums[start + lane] * scale


def _element_reader(buffer: TvmObject, at: TvmObject) -> NodeReader:
    return lambda *_: buffer[at]
