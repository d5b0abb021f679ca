r"""Kernels of nests: blocks of rows, whose band is a dense product cut to the band.

For rows :math:`m_0 \le m < m_0 + R` the columns `u = m + w` are :math:`R + W - 1` neighbours: ``left`` times ``right``
is a dense product of ``R`` rows and so many columns, of which every row uses `W`, one further than the row above.  Rows
are then worked on one by one, while they are in the cache, and laid out along `u` again for the product with a band.
Operands are packed once, by columns: what computes them is evaluated there, and what lies outside them is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from einnet_explore.algebra.nest import Band, Column, Nest, Row
from einnet_explore.backends.rows import frame
from einnet_explore.backends.rows.frame import ROWS, Expr, Frame, digits
from einnet_explore.backends.rows.packing import Columns, Factor
from einnet_explore.backends.rows.passes import OneRow
from einnet_explore.backends.rows.tiles import fill, multiply, over, put, store, tile_for, vector
from einnet_explore.ir import Iterator
from einnet_explore.kernels.machine import Machine


def function(nest: Nest, inputs: Mapping[str, tuple[int, ...]], threads: int, machine: Machine) -> Any:
    """The PrimFunc that computes *nest* from *inputs* (shapes by name, in the order of its parameters)."""
    return frame.function(nest, inputs, lambda places, result: _Kernel(nest, places, result, threads, machine).write())


def rows_of(nest: Nest, machine: Machine) -> int:
    """Rows of a block: what they need takes no more than half of the second-level cache, but whole tiles there are."""
    wide = sum(isinstance(n, Band) for n in nest.nodes) + bool(nest.product)
    rows, tile = ROWS, tile_for(nest.product.n.extent if nest.product else 2 * machine.lanes, machine.lanes).rows
    while rows > max(8, tile) and 4 * rows * (nest.along.extent + rows) * wide > machine.l2 // 2:
        rows //= 2
    return rows


@dataclass
class _Kernel(Frame):
    @property
    def rows(self) -> int:
        """Rows of a block."""
        return rows_of(self.nest, self.machine)

    def write(self) -> None:
        """All statements: operands packed, then every block of rows."""
        bands = {n: Columns(self, node) for n, node in enumerate(self.nest.nodes) if isinstance(node, Band)}
        columns = {n: self._column(node) for n, node in enumerate(self.nest.nodes) if isinstance(node, Column)}
        product = Factor(self, self.nest.product) if self.nest.product else None
        for band in bands.values():
            band.pack()
        if product:
            product.pack()
        blocks = -(-self.nest.row.extent // self.rows)
        with self.loop(self.batches * blocks) as at:
            batch = T.bind(at // blocks)
            first = T.bind(at % blocks * self.rows)
            _Block(self, bands, columns, product, batch, first).write()

    def _column(self, node: Column) -> Any:
        """What depends on the column alone, a value for each."""
        extent = self.nest.column.extent
        buffer = T.alloc_buffer((self.batches * extent,))
        with self.loop(self.batches) as batch, T.serial(extent) as u:
            value = self.scalar(node.right, {**self.over_batch(batch), self.nest.column: u})
            T.buffer_store(buffer, value, [batch * extent + u])
        return buffer


@dataclass
class _Block:
    """One block of rows."""

    kernel: _Kernel
    bands: Mapping[int, Columns]
    columns: Mapping[int, Any]
    product: Factor | None
    batch: Expr
    first: Expr

    def write(self) -> None:
        """Band products, row by row what is done with them, the product."""
        kernel, nest = self.kernel, self.kernel.nest
        count = T.bind(tirx.min(kernel.rows, nest.row.extent - self.first))
        env = kernel.over_batch(self.batch)
        skewed = {n: self._band(columns, env, count) for n, columns in self.bands.items()}
        span = -(-(kernel.rows + nest.along.extent) // kernel.lanes) * kernel.lanes
        held = T.alloc_buffer((kernel.rows * span,)) if self.product else None
        scales = T.alloc_buffer((kernel.rows,))
        kept = [n for n, node in enumerate(nest.nodes) if isinstance(node, Row)]
        # -1 is the result before it is scaled: only the whole row tells by what.
        buffers = {n: T.alloc_buffer((nest.along.extent,)) for n in (*kept, *(() if self.product else (-1,)))}
        with T.serial(count) as r:
            here = {**env, nest.row: self.first + r}
            if held is not None:
                fill(held, 0.0, span, kernel.lanes, r * span)
            starts = {n: (buffer, start(r)) for n, (buffer, start) in skewed.items()}
            at = self.batch * nest.column.extent + self.first + r
            starts |= {n: (buffer, at) for n, buffer in self.columns.items()}
            OneRow(kernel, here, starts, buffers).write(held, r * span + r, scales, r)
        if self.product is not None:
            self._multiply(self.product, held, span, scales, env, count)

    def _band(self, columns: Columns, env: Mapping[Iterator, Expr], count: Expr) -> tuple[Any, Callable[..., Expr]]:
        """(buffer, where a row's values start in it): the dense product of the block."""
        kernel, tile, depth = self.kernel, columns.tile, columns.depth
        along = kernel.nest.along.extent
        left = T.alloc_buffer((kernel.rows * depth,))
        with T.serial(count) as r, T.serial(depth) as k:
            here = {**env, kernel.nest.row: self.first + r, **digits(columns.band.sums, k)}
            T.buffer_store(left, kernel.scalar(columns.band.left, here), [r * depth + k])
        tiles = -(-(tile.width - 1 + kernel.rows + along - 1) // tile.width)
        span = tiles * tile.width
        out = T.alloc_buffer((kernel.rows * span,))
        lowest = T.bind(self.first // tile.width)
        with T.serial(tiles) as t, T.serial(kernel.rows // tile.rows) as rt:
            start = columns.at(self.batch, lowest + t)
            inside = tirx.all(lowest + t >= columns.first, lowest + t < columns.last)
            with T.If(inside):
                with T.Then():
                    base = T.bind(start)
                    sums = multiply(
                        tile,
                        over(depth),
                        lambda row, k: left[(rt * tile.rows + row) * depth + k],
                        lambda k, x: vector(columns.buffer, base + k * tile.width + x, tile.lanes),
                    )
                    put(tile, sums, out, lambda row, x: (rt * tile.rows + row) * span + t * tile.width + x)
                with T.Else(), T.serial(tile.rows) as row, T.serial(tile.vectors) as x:
                    zero = tirx.Broadcast(tirx.const(0.0, "float32"), tile.lanes)
                    to = (rt * tile.rows + row) * span + t * tile.width + x * tile.lanes
                    store(out, zero, to, tile.lanes)
        offset = self.first - lowest * tile.width
        return out, lambda r: r * span + offset + r

    def _multiply(
        self, factor: Factor, held: Any, span: int, scales: Any, env: Mapping[Iterator, Expr], count: Expr
    ) -> None:
        """The rows that are *held* times the columns' rows of n, scaled and written."""
        kernel, nest, tile, n = self.kernel, self.kernel.nest, factor.tile, factor.product.n
        lo, hi = factor.product.support
        begin = T.bind(tirx.max(self.first, lo))
        end = T.bind(tirx.min(self.first + kernel.rows + nest.along.extent - 1, hi))
        base = T.bind((self.batch * factor.columns - lo) * factor.width)
        with T.serial(kernel.rows // tile.rows) as rt, T.serial(factor.width // tile.width) as nt:
            sums = multiply(
                tile,
                over(tirx.max(end - begin, 0), begin),
                lambda row, u: held[(rt * tile.rows + row) * span + u - self.first],
                lambda u, x: vector(factor.buffer, base + u * factor.width + nt * tile.width + x, tile.lanes),
            )
            for row, total in enumerate(sums):
                r = rt * tile.rows + row
                width = tile.width if n.extent == factor.width else tirx.min(tile.width, n.extent - nt * tile.width)
                with T.If(r < count), T.Then(), T.serial(width) as x:
                    at = {**env, nest.row: self.first + r, n: nt * tile.width + x}
                    T.buffer_store(kernel.result, total[x] * scales[r], [at[y] for y in nest.scope.traversals])
