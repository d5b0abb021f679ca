r"""Banded row computations (sliding-window attention) in standard ONNX operators, as products of chunks of rows.

The `c` rows of a chunk together read :math:`c + W - 1` columns, so a band is a batch of dense products; row `r` of a
chunk uses `W` columns from `r` on.  They are extracted by reshaping the rows as if each had one more element,

.. math::  r\,(c + W - 1) + (r + w) = r\,(c + W) + w,

and inserted the same way (Beltagy et al. 2020, "sliding chunks").  A direct lowering gathers a window for every row and
needs `W` times the operand's memory; chunks of a quarter of a window need five times.

If every row reads every column, the band is one dense product; a softmax-weighted sum uses ``Softmax``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from einnet_explore.analysis.indices import substitute
from einnet_explore.analysis.online_softmax import OnlineSoftmax
from einnet_explore.analysis.row_nest import BandNode, ColumnNode, ReducedNode, RowNest, RowNode, RowProduct, node_name
from einnet_explore.ir import Access, Apply, Const, Iterator, Scalar, Scope, Tensor, factors, map_accesses, mul
from einnet_explore.onnx_export.value_grid import NodeBuilder

Lower = Callable[[Scope, Mapping[str, str]], str]
"""Function that lowers a scope without bands, given the values of its tensors."""


def write_row_nest(nest: RowNest, places: Mapping[str, str], body: NodeBuilder, lower: Lower) -> str:
    """Lower *nest* into *body* and return the name of its value."""
    return _Banded(nest, dict(places), body, lower).write()


def write_online_softmax(online: OnlineSoftmax, places: Mapping[str, str], body: NodeBuilder, lower: Lower) -> str:
    """Lower a softmax-weighted sum into *body* and return the name of its value."""
    return _Banded(online.nest, dict(places), body, lower, online if online.total is not None else None).write()


@dataclass
class _Banded:
    nest: RowNest
    places: dict[str, str]
    body: NodeBuilder
    lower: Lower
    weights: OnlineSoftmax | None = None
    """The softmax that weights the sum, if any."""

    @property
    def rows(self) -> int:
        """Rows of a chunk: a quarter of the columns of a row's window."""
        return min(self.nest.row.extent, max(1, self.nest.along.extent // 4))

    @property
    def chunks(self) -> int:
        """Number of chunks of rows, the last one padded."""
        return -(-self.nest.row.extent // self.rows)

    @property
    def span(self) -> int:
        """Number of columns that the rows of a chunk read."""
        return self.rows + self.nest.along.extent - 1

    @property
    def batches(self) -> int:
        """Product of the batch extents."""
        return prod(x.extent for x in self.nest.batch)

    def write(self) -> str:
        """Lower all nodes in order, the result, and the product with the band, if any."""
        nest = self.nest
        grid = (*nest.batch, nest.row, nest.along)
        for n, node in enumerate(nest.nodes):
            match node:
                case BandNode():
                    self.places[node_name(n)] = self._dense_band(node) if nest.dense else self._band(node)
                case ColumnNode(right):
                    read = substitute(right, {nest.column: nest.along if nest.dense else nest.row + nest.along})
                    self.places[node_name(n)] = self._scope(Scope(grid, (), read))
                case RowNode(body) if self.weights is None:
                    self.places[node_name(n)] = self._scope(Scope(grid, (), body))
                case ReducedNode(reduce, body) if self.weights is None:
                    self.places[node_name(n)] = self._scope(Scope(grid[:-1], (nest.along,), body, reduce))
        if nest.product is None:
            own = self._scope(Scope(grid, (), mul(nest.result, nest.scale)))
            return self._in_order(own, grid)
        if self.weights is None:
            rows, scale = self._scope(Scope(grid, (), nest.result)), nest.scale
        else:
            # Softmax has already divided by the sum of the exponentials.
            rows = self.body.emit("Softmax", self._scope(Scope(grid, (), self.weights.score)), axis=-1)
            scale = mul(*(map_accesses(f, self._replace_total) for f in factors(nest.scale) if f != self._divisor))
        own = self._dense_product(nest.product, rows) if nest.dense else self._product(nest.product, rows)
        grid = (*grid[:-1], nest.product.n)
        self.places["#"] = own
        made = Tensor("#", tuple(x.extent for x in grid))
        return self._in_order(self._scope(Scope(grid, (), mul(made[grid], scale))), grid)

    @property
    def _divisor(self) -> Scalar:
        """The reciprocal of the sum of the exponentials."""
        assert self.weights is not None and self.weights.total is not None
        return Apply("/", (Const(1), Tensor(node_name(self.weights.total), ())[()]))

    def _replace_total(self, access: Access) -> Scalar:
        assert self.weights is not None and self.weights.total is not None
        called = access.source.name if isinstance(access.source, Tensor) else ""
        return Const(1) if called == node_name(self.weights.total) else access

    def _dense_band(self, band: BandNode) -> str:
        """Return (batch, row, along): the product of every row with every column."""
        nest, depth = self.nest, prod(s.extent for s in band.sums)
        left = self._matrix(Scope((*nest.batch, nest.row, *band.sums), (), band.left), nest.row.extent, depth)
        body = substitute(band.right, {nest.column: nest.along})
        right = self._matrix(Scope((*nest.batch, nest.along, *band.sums), (), body), nest.along.extent, depth)
        dense = self.body.emit("MatMul", left, self.body.transpose(right, [0, 2, 1]))
        return self.body.reshape(dense, [0], [*(x.extent for x in nest.batch), nest.row.extent, nest.along.extent])

    def _dense_product(self, product: RowProduct, rows: str) -> str:
        """Return (batch, row, n): the rows times the matrix (along, n)."""
        nest, n = self.nest, product.n.extent
        left = self.body.reshape(rows, [0], [self.batches, nest.row.extent, nest.along.extent])
        body = substitute(product.right, {nest.column: nest.along})
        right = self._matrix(Scope((*nest.batch, nest.along, product.n), (), body), nest.along.extent, n)
        dense = self.body.emit("MatMul", left, right)
        return self.body.reshape(dense, [0], [*(x.extent for x in nest.batch), nest.row.extent, n])

    def _matrix(self, scope: Scope, rows: int, columns: int) -> str:
        shape = [x.extent for x in scope.traversals]
        return self.body.reshape(self._scope(scope), shape, [self.batches, rows, columns])

    def _in_order(self, value: str, grid: tuple[Iterator, ...]) -> str:
        return self.body.transpose(value, [grid.index(x) for x in self.nest.scope.traversals])

    def _scope(self, scope: Scope) -> str:
        """Lower *scope*, with nodes of the nest read as tensors over batch and row."""
        over = (*self.nest.batch, self.nest.row)

        def read_full_tensor(access: Access) -> Scalar:
            match access.source:
                case Tensor(called, shape) if called.startswith("#") and called != "#":
                    tensor = Tensor(called, (*(x.extent for x in over), *shape))
                    return tensor[(*over, *access.index)]
            return access

        body = map_accesses(scope.body, read_full_tensor)
        return self.lower(Scope(scope.traversals, scope.summations, body, scope.reduce), self.places)

    def _band(self, band: BandNode) -> str:
        """Return (batch, row, along): the products of the chunks, with each row's window extracted."""
        nest, body, depth = self.nest, self.body, prod(s.extent for s in band.sums)
        left = self._chunked_rows(self._scope(Scope((*nest.batch, nest.row, *band.sums), (), band.left)), depth)
        right = self._columns(Scope((*nest.batch, self._column, *band.sums), (), band.right), depth)
        dense = body.emit("MatMul", left, body.transpose(right, [0, 1, 3, 2]))
        chunk = [self.batches, self.chunks]
        flat = body.reshape(dense, [*chunk, self.rows, self.span], [*chunk, self.rows * self.span])
        longer = body.pad(flat, [(0, 0), (0, 0), (0, self.rows)], 0)
        skewed = body.reshape(longer, [0], [*chunk, self.rows, self.span + 1])
        shape = (*chunk, self.rows, self.span + 1)
        cut = body.slice(skewed, shape, [*((0, 1, n) for n in shape[:-1]), (0, 1, nest.along.extent)])
        return self._unchunked_rows(cut, nest.along.extent)

    def _product(self, product: RowProduct, rows: str) -> str:
        """Return (batch, row, n): the rows of every chunk, shifted to their columns, times the matrix (column, n)."""
        nest, body = self.nest, self.body
        chunk = [self.batches, self.chunks]
        chunks = self._chunked_rows(rows, nest.along.extent)
        longer = body.pad(chunks, [(0, 0), (0, 0), (0, 0), (0, self.span + 1 - nest.along.extent)], 0)
        flat = body.reshape(longer, [0], [*chunk, self.rows * (self.span + 1)])
        shape = (*chunk, self.rows * (self.span + 1))
        cut = body.slice(flat, shape, [(0, 1, shape[0]), (0, 1, shape[1]), (0, 1, self.rows * self.span)])
        dense = body.reshape(cut, [0], [*chunk, self.rows, self.span])
        right = self._columns(Scope((*nest.batch, self._column, product.n), (), product.right), product.n.extent)
        return self._unchunked_rows(body.emit("MatMul", dense, right), product.n.extent)

    @property
    def _column(self) -> Iterator:
        """Iterator over all columns that rows read."""
        return Iterator(self.nest.column.name, 0, self.nest.row.extent + self.nest.along.extent - 1)

    def _columns(self, scope: Scope, width: int) -> str:
        """Return (batch, chunk, column, *width*): the columns of *scope* that each chunk reads."""
        body, column = self.body, self._column
        value = self._scope(Scope(scope.traversals, (), substitute(scope.body, {self.nest.column: column})))
        shape = [self.batches, column.extent, width]
        value = body.reshape(value, [x.extent for x in scope.traversals], shape)
        more = self.chunks * self.rows + self.nest.along.extent - 1 - column.extent
        value = body.pad(value, [(0, 0), (0, more), (0, 0)], 0)
        table = self.rows * np.arange(self.chunks)[:, None] + np.arange(self.span)[None]
        return body.emit("Gather", value, body.constant(table), axis=1)

    def _chunked_rows(self, value: str, width: int) -> str:
        """Reshape (batch, row, *width*) to (batch, chunk, row in chunk, *width*)."""
        shape = [self.batches, self.nest.row.extent, width]
        more = self.chunks * self.rows - self.nest.row.extent
        padded = self.body.pad(self.body.reshape(value, [0], shape), [(0, 0), (0, more), (0, 0)], 0)
        return self.body.reshape(padded, [0], [self.batches, self.chunks, self.rows, width])

    def _unchunked_rows(self, value: str, width: int) -> str:
        """Invert ``_chunked_rows``, and restore the batch dimensions."""
        nest, shape = self.nest, (self.batches, self.chunks * self.rows, width)
        flat = self.body.reshape(value, [0], shape)
        cut = self.body.slice(flat, shape, [(0, 1, self.batches), (0, 1, nest.row.extent), (0, 1, width)])
        return self.body.reshape(cut, [0], [*(x.extent for x in nest.batch), nest.row.extent, width])
