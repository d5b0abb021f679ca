r"""Kernels of row nests: a band is a dense product of a block of rows, restricted to the band.

For rows :math:`m_0 \le m < m_0 + R` the columns `u = m + w` are :math:`R + W - 1` neighbours: ``left`` times ``right``
is a dense product of ``R`` rows and so many columns, of which every row uses `W`, shifted by one from the row above.
Rows are then computed one by one, in passes, a pass for every reduction on which later values depend, and laid out
along `u` again for the product with a band. Operands over the columns are packed once: they are evaluated there, with
zeros outside.  ``codegen.rows.online`` shares the frame of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.analysis.indices import box_tests, substitute
from einnet_explore.analysis.row_nest import (
    BandNode,
    ColumnNode,
    ReducedNode,
    RowNest,
    RowNode,
    RowProduct,
    node_name,
    read_nodes,
)
from einnet_explore.codegen.language.dialects import transpose_rows
from einnet_explore.codegen.language.lowering import mixed_radix_split
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import (
    Environment,
    VectorTile,
    count_steps,
    fill_buffer,
    fold_vector,
    load_vector,
    multiply_tile,
    store_tile,
    store_vector,
    tvm_constant,
    tvm_expression,
    tvm_function,
    tvm_index,
    tvm_join,
    vector_tile,
)
from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Const,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
)
from einnet_explore.support.lazy_modules import LazyModule

tirx, T = LazyModule("tvm.tirx"), LazyModule("tvm.tirx.script.builder.ir")

NodeReader = Callable[..., TvmObject]

VectorReader: TypeAlias = Callable[[TvmObject, TvmObject], TvmObject]
"""The vector of a row of a matrix from a column on."""

RowReader: TypeAlias = Callable[[TvmObject], Callable[..., TvmObject]]
"""The elements of a row of a matrix, by their place, or as many neighbours as a second argument says."""

MAX_BLOCK_ROWS = 64
"""Rows of a block, at most."""

MAX_ROW_VECTORS = 4
"""Vectors of a row that are computed together, at most."""


@dataclass
class RowKernel:
    """A kernel of *nest* in blocks of *rows* that reads the buffers *places* and writes *result*."""

    nest: RowNest
    places: Mapping[str, TvmObject]
    result: TvmObject
    threads: int
    machine: Machine
    rows: int

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.machine.lanes

    @property
    def tile(self) -> VectorTile:
        """A tile of a band's product."""
        return vector_tile(2 * self.lanes, self.machine)

    @property
    def batches(self) -> int:
        """Elements of the batch."""
        return prod(x.extent for x in self.nest.batch)

    @property
    def product(self) -> RowProduct:
        """The last product."""
        assert self.nest.product is not None
        return self.nest.product

    @property
    def out(self) -> VectorTile:
        """A tile of the last product."""
        return vector_tile(self.product.n.extent, self.machine)

    @property
    def width(self) -> int:
        """Columns of the last product, in whole tiles."""
        return -(-self.product.n.extent // self.out.width) * self.out.width

    def loop(self, extent: int) -> AbstractContextManager[TvmObject]:
        """Return a loop, parallel if there are several threads."""
        return T.parallel(extent) if self.threads > 1 else T.serial(extent)  # type: ignore[no-any-return]

    def over_batch(self, batch: TvmObject) -> dict[Iterator, TvmObject]:
        """Return the iterators of the batch for its flat index."""
        return mixed_radix_split(self.nest.batch, batch)

    def scalar(self, body: Scalar, env: Environment, nodes: Mapping[str, NodeReader] | None = None) -> TvmObject:
        """Return *body* for iterators of the values *env*; *nodes* read the values of nodes."""

        def node_reader(source: Tensor | Table | Scope) -> NodeReader:
            match source:
                case Tensor(called) if nodes and called in nodes:
                    return nodes[called]
                case Tensor(called):
                    return lambda *at: self.places[called][at]
            raise TypeError(f"{source!r} is no tensor")

        return tvm_expression(body, env, node_reader)

    def pack_band(
        self, band: BandNode, tiles: range, env: Environment | None = None, end: int | None = None
    ) -> TvmObject:
        """Pack the right operand of *band* over *tiles* of columns: inside each the summation, then the columns.

        The buffer has a part for every element of the batch, or only that of *env*.  Columns from *end* on are read by
        nobody.
        """
        depth, width = band_depth(band), self.tile.width
        batches = self.batches if env is None else 1
        buffer = T.alloc_buffer((batches * len(tiles) * depth * width,))
        with (self.loop if env is None else T.serial)(batches * len(tiles)) as at:
            here = self.over_batch(at // len(tiles)) if env is None else env
            first = T.bind((at % len(tiles) + tiles.start) * width)
            if end is not None and self._pack_in_vectors(band, here, first, end, buffer, at * depth * width):
                return buffer
            with T.serial(width) as x:
                u = T.bind(first + x)
                with T.serial(depth) as k:
                    point = {**here, **mixed_radix_split(band.sums, k)}
                    value = self.at_column(band.right, point, u, tiles.stop * width)
                    T.buffer_store(buffer, value, [(at * depth + k) * width + x])
        return buffer

    def _pack_in_vectors(
        self, band: BandNode, env: Environment, first: TvmObject, end: int, buffer: TvmObject, start: TvmObject
    ) -> bool:
        """Pack the tile of columns from *first* on to *start* if memory runs along the columns, or along the sum."""
        body, column = self._before(band.right, end), replace(self.nest.column, hi=min(end, self.nest.column.hi))
        if len(band.sums) != 1 or column.extent != end:
            return False
        (k,), lanes, width = band.sums, self.lanes, self.tile.width
        if self._is_along_memory(body, column):
            with T.serial(k.extent) as depth, T.serial(width // lanes) as part:
                begin, to = T.bind(first + part * lanes), start + depth * width + part * lanes

                def store(x: TvmObject) -> None:
                    T.buffer_store(buffer, self.scalar(body, {**env, k: depth, column: begin + x}), [to + x])

                with T.If(begin + lanes <= end):
                    with T.Then(), T.vectorized(lanes) as lane:
                        store(lane)
                    with T.Else():
                        store_vector(buffer, tirx.Broadcast(tvm_constant(0), lanes), to, lanes)
                        with T.serial(tirx.max(end - begin, 0)) as x:
                            store(x)
            return True
        if not isinstance(body, Access) or k.extent % lanes or not self._is_along_memory(body, k):
            return False
        self._transpose_columns(body, k, {**env}, (column, first), (buffer, start))
        return True

    def _is_along_memory(self, body: Scalar, x: Iterator) -> bool:
        """Whether *body* reads neighbours for neighbours of *x*, without tests."""
        for access in accesses(body):
            if not isinstance(access.source, Tensor) or box_tests(access.index, access.source.box) != ():
                return False
            *others, last = access.index or (as_index(0),)
            rest = last - x if last.coefficient(x) == 1 else last
            if any(x in i.iterators for i in (*others, rest)):
                return False
        return any(x in i.iterators for a in accesses(body) for i in a.index)

    def stride(self, body: Scalar, x: Iterator) -> int | None:
        """Return the elements of memory between reads for neighbours of *x*; None if *body* is no read, or tested."""
        if not isinstance(body, Access) or not isinstance(body.source, Tensor):
            return None
        if box_tests(body.index, body.source.box) != ():
            return None
        if any(x in (i - as_index(x) * i.coefficient(x)).iterators for i in body.index):
            return None
        steps = zip(body.index, row_major_strides(body.source.shape), strict=True)
        return sum(i.coefficient(x) * step for i, step in steps)

    def load_along(self, body: Scalar, env: Environment, lanes: int = 1) -> TvmObject:
        """Return *lanes* neighbours in memory from the read *body* on, a tensor's element for *env*."""
        assert isinstance(body, Access) and isinstance(body.source, Tensor)
        at = [tvm_index(i - lo, env) for i, (lo, _) in zip(body.index, body.source.box, strict=True)]
        return self.places[body.source.name].vload(at, f"float32x{lanes}" if lanes > 1 else "float32")

    def _store_along(self, x: Iterator, body: Scalar, store: Callable[[TvmObject], None]) -> None:
        """Run ``store(i)`` for every i of *x*, in vectors if *body* is along memory."""
        if x.extent % self.lanes == 0 and self._is_along_memory(body, x):
            with T.serial(x.extent // self.lanes) as chunk, T.vectorized(self.lanes) as lane:
                store(chunk * self.lanes + lane)
            return
        with T.serial(x.extent) as at:
            store(at)

    def _transpose_columns(
        self,
        read: Access,
        k: Iterator,
        env: dict[Iterator, TvmObject],
        columns: tuple[Iterator, TvmObject],
        to: tuple[TvmObject, TvmObject],
    ) -> None:
        """Write a tile of *columns* (all, and the first one of the tile) of *read* in vectors of the sum *k*."""
        (column, first), (buffer, start), lanes, width = columns, to, self.lanes, self.tile.width
        with T.serial(width // lanes) as part, T.serial(k.extent // lanes) as chunk:
            begin = T.bind(first + part * lanes)
            rows = []
            for n in range(lanes):
                point = {**env, k: chunk * lanes, column: tirx.min(begin + n, column.extent - 1)}
                rows.append(T.bind(self.load_along(read, point, lanes)))
            turned = transpose_rows(
                rows, lambda a, b, order: T.bind(tirx.Shuffle([a, b], [tirx.const(n, "int32") for n in order]))
            )
            for n, row in enumerate(turned):
                store_vector(buffer, row, start + (chunk * lanes + n) * width + part * lanes, lanes)

    def pack_columns(
        self, body: Scalar, columns: range, env: Environment | None = None, n: Iterator | None = None, width: int = 1
    ) -> TvmObject:
        """Evaluate *body* at *columns*: one value for each, or a row of *n*, padded to *width* with zeros.

        The buffer has a part for every element of the batch, or only that of *env*.
        """
        batches = self.batches if env is None else 1
        buffer = T.alloc_buffer((batches * len(columns) * width,))
        with (self.loop if env is None else T.serial)(batches) as batch, T.serial(len(columns)) as c:
            here = self.over_batch(batch) if env is None else env
            u, start = c + columns.start, (batch * len(columns) + c) * width
            if n is None:
                T.buffer_store(buffer, self.at_column(body, here, u, columns.stop), [start])
                return buffer

            def store(x: TvmObject) -> None:
                T.buffer_store(buffer, self.at_column(body, {**here, n: x}, u, columns.stop), [start + x])

            self._store_along(n, self._before(body, columns.stop), store)
            if width > n.extent:
                with T.serial(width - n.extent) as x:
                    T.buffer_store(buffer, tvm_constant(0), [start + n.extent + x])
        return buffer

    def at_column(self, body: Scalar, env: Environment, u: TvmObject, end: int) -> TvmObject:
        """Return *body* at column *u* before *end*; 0 after the last column."""
        column = self.nest.column
        if end < column.extent:
            body, column = self._before(body, end), replace(column, hi=end)
        value = self.scalar(body, {**env, column: u})
        return value if end <= column.extent else tirx.if_then_else(u < column.extent, value, tvm_constant(0))

    def _before(self, body: Scalar, end: int) -> Scalar:
        """Return *body* over the columns before *end* only, where fewer tests are needed."""
        column = self.nest.column
        return substitute(body, {column: replace(column, hi=min(end, column.hi))})

    def pack_left(self, band: BandNode, env: Environment, first: TvmObject) -> TvmObject:
        """Pack the left operand for a block's rows; those beyond the last row repeat it, and are discarded."""
        depth, x = band_depth(band), self.nest.row
        buffer = T.alloc_buffer((self.rows * depth,))
        with T.serial(self.rows) as r:
            row = T.bind(tirx.min(first + r, x.extent - 1))

            def store(k: TvmObject) -> None:
                value = self.scalar(band.left, {**env, x: row, **mixed_radix_split(band.sums, k)})
                T.buffer_store(buffer, value, [r * depth + k])

            self._store_along(band.sums[0] if len(band.sums) == 1 else Iterator("@sums", 0, depth), band.left, store)
        return buffer

    def read_left(self, band: BandNode, env: Environment, first: TvmObject) -> RowReader:
        """Return the reader of the left operand of a block's rows, in place if they are contiguous.

        Rows beyond the last one repeat it, and are discarded.
        """
        depth, x = band_depth(band), self.nest.row
        if len(band.sums) == 1 and self.stride(band.left, x) == depth and self.stride(band.left, band.sums[0]) == 1:
            (k,) = band.sums

            def in_place(r: TvmObject) -> Callable[..., TvmObject]:
                row = T.bind(tirx.min(first + r, x.extent - 1))
                return lambda at, lanes=1: self.load_along(band.left, {**env, x: row, k: at}, lanes)

            return in_place
        packed = self.pack_left(band, env, first)
        return lambda r: (
            lambda k, lanes=1: load_vector(packed, r * depth + k, lanes) if lanes > 1 else packed[r * depth + k]
        )

    def multiply_band(
        self,
        left: RowReader,
        right: TvmObject,
        base: TvmObject,
        depth: int,
        out: TvmObject,
        span: int,
        t: TvmObject,
        rows: TvmObject,
        vectors: int = 2,
        is_read: Callable[[TvmObject], TvmObject] | None = None,
    ) -> None:
        """Multiply *rows* of a block by a tile of columns, packed from *base* on, into tile *t* of rows of *span*.

        Only the first *vectors* of each row of the tile are computed, and only tiles of rows from *r* on for which
        *is_read* (r).
        """
        tile, width = replace(self.tile, vectors=vectors), self.tile.width
        with T.serial((rows + tile.rows - 1) // tile.rows) as rt, ExitStack() as inside:
            if is_read is not None:
                inside.enter_context(T.If(is_read(rt * tile.rows)))
                inside.enter_context(T.Then())
            each = [left(rt * tile.rows + row) for row in range(tile.rows)]
            sums = multiply_tile(
                tile,
                count_steps(depth),
                lambda row, k: each[row](k),
                lambda k, x: load_vector(right, base + k * width + x, tile.lanes),
            )
            store_tile(tile, sums, out, lambda row, x: (rt * tile.rows + row) * span + t * width + x)


def band_depth(band: BandNode) -> int:
    """Return the number of products in a sum of *band*."""
    return prod(s.extent for s in band.sums)


_RowStep: TypeAlias = tuple[Callable[[TvmObject], TvmObject], Callable[[TvmObject, TvmObject, TvmObject], None]]
"""A value by its position in the row, and its use."""


@dataclass
class RowWriter:
    """One row: *skewed* holds the starts of its bands' and columns' values, *buffers* its other nodes."""

    kernel: RowKernel
    env: Environment
    skewed: Mapping[int, tuple[TvmObject, TvmObject]]
    buffers: Mapping[int, TvmObject]
    readers: dict[str, NodeReader] = field(default_factory=dict)

    def write(self, held: TvmObject, at: TvmObject, scales: TvmObject, r: TvmObject) -> None:
        """Compute the row into *held* from *at* on and its scale into *scales*, or both into the result."""
        nest = self.kernel.nest
        for n, (buffer, start) in self.skewed.items():
            self.readers[node_name(n)] = _read_from(buffer, T.bind(start))
        passes = _assign_passes(nest)
        last = _first_pass(nest, nest.result, passes)
        for turn in range(max((*passes.values(), last)) + 1):
            final = [(self._value(nest.result), self._last(held, at))] if turn == last else []
            self._pass([n for n, p in passes.items() if p == turn], final)
        T.buffer_store(scales, self.kernel.scalar(nest.scale, self.env, self.readers), [r])
        if held is None and not self._unscaled:
            # Not in place: vectors overlap where rows end.
            self._along(lambda w, _: self._put(self.buffers[-1][w] * scales[r], w))

    def _last(self, held: TvmObject, at: TvmObject) -> Callable[[TvmObject, TvmObject, TvmObject], None]:
        """Return the use of the row's values before scaling."""
        if held is not None:
            return _store_from(held, at)
        return (lambda value, w, _: self._put(value, w)) if self._unscaled else _store_from(self.buffers[-1], 0)

    @property
    def _unscaled(self) -> bool:
        return self.kernel.nest.scale == Const(1)

    def _put(self, value: TvmObject, w: TvmObject) -> None:
        T.buffer_store(self.kernel.result, value, self._where(w))

    def _where(self, w: TvmObject) -> list[TvmObject]:
        nest = self.kernel.nest
        return [w if x == nest.along else self.env[x] for x in nest.scope.traversals]

    def _pass(self, numbers: Iterable[int], final: list[_RowStep]) -> None:
        """Compute the nodes *numbers* in one pass over the row, then the *final* steps."""
        nest = self.kernel.nest
        steps: list[_RowStep] = []
        sums: list[tuple[int, TvmObject]] = []
        for n in numbers:
            match nest.nodes[n]:
                case RowNode(body):
                    steps.append((self._value(body), _store_from(self.buffers[n], 0)))
                    self.readers[node_name(n)] = _read_from(self.buffers[n], 0)
                case ReducedNode(reduce, body):
                    total = T.alloc_buffer((self._lanes,))
                    neutral = tvm_constant(REDUCTIONS[reduce])
                    store_vector(total, tirx.Broadcast(neutral, self._lanes), 0, self._lanes)
                    steps.append((self._value(body), _accumulate_into(total, reduce, neutral)))
                    sums.append((n, total))

        def step(w: TvmObject, fresh: TvmObject) -> None:
            for value, use in (*steps, *final):
                use(value(w), w, fresh)

        self._along(step)
        for n, total in sums:
            self._total(n, total)

    @property
    def _lanes(self) -> int:
        """Elements that are computed together: several vectors, as far as no more elements are computed in all.

        A reduction in one vector would wait for its last sum each time.
        """
        extent = self.kernel.nest.along.extent
        lanes = MAX_ROW_VECTORS * self.kernel.lanes
        while lanes > extent or (lanes > self.kernel.lanes and -extent % lanes >= self.kernel.lanes):
            lanes //= 2
        return lanes

    def _value(self, body: Scalar) -> Callable[[TvmObject], TvmObject]:
        return lambda w: self.kernel.scalar(body, {**self.env, self.kernel.nest.along: w}, self.readers)

    def _along(self, step: Callable[[TvmObject, TvmObject], None]) -> None:
        """Write vectors of the row; the last one ends with the row and overlaps its predecessor if needed."""
        extent, lanes = self.kernel.nest.along.extent, self._lanes
        with T.serial(extent // lanes) as c, T.vectorized(lanes) as x:
            step(c * lanes + x, (x, None))
        if rest := extent % lanes:
            with T.vectorized(lanes) as x:
                step(extent - lanes + x, (x, x >= lanes - rest))

    def _total(self, n: int, lanes: TvmObject) -> None:
        node = self.kernel.nest.nodes[n]
        assert isinstance(node, ReducedNode)
        total = T.alloc_buffer((1,))
        T.buffer_store(total, fold_vector(lanes, self._lanes, node.reduce) if self._lanes > 1 else lanes[0], [0])
        self.readers[node_name(n)] = lambda: total[0]


def _read_from(buffer: TvmObject, start: TvmObject) -> NodeReader:
    return lambda w: buffer[start + w]


def _store_from(buffer: TvmObject, start: TvmObject) -> Callable[[TvmObject, TvmObject, TvmObject], None]:
    return lambda value, w, _: T.buffer_store(buffer, value, [start + w])


def _accumulate_into(
    total: TvmObject, reduce: str, neutral: TvmObject
) -> Callable[[TvmObject, TvmObject, TvmObject], None]:
    def add(value: TvmObject, w: TvmObject, lane: TvmObject) -> None:
        del w
        x, fresh = lane
        counted = value if fresh is None else tirx.Select(fresh, value, neutral)
        T.buffer_store(total, tvm_join(reduce, total[x], counted), [x])

    return add


def _assign_passes(nest: RowNest) -> dict[int, int]:
    """Return the pass of every node except bands: after those of the reductions that it reads."""
    out: dict[int, int] = {}
    for n, node in enumerate(nest.nodes):
        match node:
            case RowNode(body) | ReducedNode(_, body):
                out[n] = _first_pass(nest, body, out)
    return out


def _first_pass(nest: RowNest, body: Scalar, passes: Mapping[int, int]) -> int:
    """Return the first pass in which *body* can be computed."""
    waits = ((passes[n], isinstance(nest.nodes[n], ReducedNode)) for n in read_nodes(body) if n in passes)
    return max((turn + wait for turn, wait in waits), default=0)


def nest_function(nest: RowNest, inputs: Mapping[str, tuple[int, ...]], threads: int, machine: Machine) -> TvmObject:
    """Return the PrimFunc that computes *nest* from *inputs* (shapes by name, in the order of its parameters)."""
    return tvm_function(
        inputs,
        nest.scope.shape,
        lambda places, result: _NestKernel(nest, places, result, threads, machine, block_rows(nest, machine)).write(),
    )


def block_rows(nest: RowNest, machine: Machine) -> int:
    """Return the rows of a block: at most half of the second-level cache, but whole tiles."""
    wide = sum(isinstance(n, BandNode) for n in nest.nodes) + bool(nest.product)
    rows, tile = (
        MAX_BLOCK_ROWS,
        vector_tile(nest.product.n.extent if nest.product else 2 * machine.lanes, machine).rows,
    )
    while rows > max(8, tile) and 4 * rows * (nest.along.extent + rows) * wide > machine.l2 // 2:
        rows //= 2
    return rows


@dataclass
class _NestKernel(RowKernel):
    def write(self) -> None:
        """Pack the operands, then write every block of rows."""
        nest = self.nest
        bands = {n: node for n, node in enumerate(nest.nodes) if isinstance(node, BandNode)}
        packed = {n: self.pack_band(band, self.tiles(band)) for n, band in bands.items()}
        columns = {
            n: self.pack_columns(node.right, range(nest.column.extent))
            for n, node in enumerate(nest.nodes)
            if isinstance(node, ColumnNode)
        }
        factor = None
        if nest.product:
            factor = self.pack_columns(self.product.right, self.factor_columns, None, self.product.n, self.width)
        blocks = -(-nest.row.extent // self.rows)
        with self.loop(self.batches * blocks) as at:
            batch = T.bind(at // blocks)
            first = T.bind(at % blocks * self.rows)
            _RowBlock(self, bands, packed, columns, factor, batch, first).write()

    def tiles(self, band: BandNode) -> range:
        """Return the tiles of columns of *band* with nonzero elements, or one."""
        (lo, hi), width = band.support, self.tile.width
        return range(lo // width, max(lo // width + 1, -(-hi // width)))

    @property
    def factor_columns(self) -> range:
        """The columns in which the factor of the last product has nonzero elements, or one."""
        lo, hi = self.product.support
        return range(lo, max(lo + 1, hi))


@dataclass
class _RowBlock:
    """One block of rows; *packed* holds the right operands of *bands*, *factor* that of the last product."""

    kernel: _NestKernel
    bands: Mapping[int, BandNode]
    packed: Mapping[int, TvmObject]
    columns: Mapping[int, TvmObject]
    factor: TvmObject
    batch: TvmObject
    first: TvmObject

    def write(self) -> None:
        """Write the band products, the rows, the last product."""
        kernel, nest = self.kernel, self.kernel.nest
        count = T.bind(tirx.min(kernel.rows, nest.row.extent - self.first))
        env = kernel.over_batch(self.batch)
        skewed = {n: self._band(band, self.packed[n], env) for n, band in self.bands.items()}
        span = -(-(kernel.rows + nest.along.extent) // kernel.lanes) * kernel.lanes
        held = T.alloc_buffer((kernel.rows * span,)) if nest.product else None
        scales = T.alloc_buffer((kernel.rows,))
        kept = [n for n, node in enumerate(nest.nodes) if isinstance(node, RowNode)]
        # -1 is the result before it is scaled: only the whole row tells by what.
        buffers = {n: T.alloc_buffer((nest.along.extent,)) for n in (*kept, *(() if nest.product else (-1,)))}
        with T.serial(count) as r:
            here = {**env, nest.row: self.first + r}
            if held is not None:
                fill_buffer(held, 0.0, span, kernel.lanes, r * span)
            starts = {n: (buffer, start(r)) for n, (buffer, start) in skewed.items()}
            at = self.batch * nest.column.extent + self.first + r
            starts |= {n: (buffer, at) for n, buffer in self.columns.items()}
            RowWriter(kernel, here, starts, buffers).write(held, r * span + r, scales, r)
        if nest.product:
            self._multiply(held, span, scales, env, count)

    def _band(
        self, band: BandNode, right: TvmObject, env: Environment
    ) -> tuple[TvmObject, Callable[[TvmObject], TvmObject]]:
        """Return (buffer, start of a row's values in it) of the block's dense product."""
        kernel, tile, depth = self.kernel, self.kernel.tile, band_depth(band)
        left, inside = kernel.read_left(band, env, self.first), kernel.tiles(band)
        tiles = -(-(tile.width - 1 + kernel.rows + kernel.nest.along.extent - 1) // tile.width)
        span = tiles * tile.width
        out = T.alloc_buffer((kernel.rows * span,))
        lowest = T.bind(self.first // tile.width)
        with T.serial(tiles) as t, T.If(tirx.all(lowest + t >= inside.start, lowest + t < inside.stop)):
            with T.Then():
                base = (self.batch * len(inside) + lowest + t - inside.start) * (depth * tile.width)
                kernel.multiply_band(left, right, T.bind(base), depth, out, span, t, kernel.rows)
            with T.Else(), T.serial(kernel.rows) as row:
                fill_buffer(out, 0.0, tile.width, tile.lanes, row * span + t * tile.width)
        offset = self.first - lowest * tile.width
        return out, lambda r: r * span + offset + r

    def _multiply(self, held: TvmObject, span: int, scales: TvmObject, env: Environment, count: TvmObject) -> None:
        """Multiply the rows in *held* by the columns' rows of n, scale and store them."""
        kernel, nest, tile, n = self.kernel, self.kernel.nest, self.kernel.out, self.kernel.product.n
        lo, hi = kernel.product.support
        begin = T.bind(tirx.max(self.first, lo))
        end = T.bind(tirx.min(self.first + kernel.rows + nest.along.extent - 1, hi))
        base = T.bind((self.batch * len(kernel.factor_columns) - lo) * kernel.width)
        with T.serial(kernel.rows // tile.rows) as rt, T.serial(kernel.width // tile.width) as nt:
            sums = multiply_tile(
                tile,
                count_steps(tirx.max(end - begin, 0), begin),
                lambda row, u: held[(rt * tile.rows + row) * span + u - self.first],
                lambda u, x: load_vector(self.factor, base + u * kernel.width + nt * tile.width + x, tile.lanes),
            )
            for row, total in enumerate(sums):
                r = rt * tile.rows + row
                width = tile.width if n.extent == kernel.width else tirx.min(tile.width, n.extent - nt * tile.width)
                with T.If(r < count), T.Then(), T.serial(width) as x:
                    at = {**env, nest.row: self.first + r, n: nt * tile.width + x}
                    T.buffer_store(kernel.result, total[x] * scales[r], [at[y] for y in nest.scope.traversals])
