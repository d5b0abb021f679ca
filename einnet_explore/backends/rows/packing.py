"""The operands over the columns, packed once: what computes them is evaluated there."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from einnet_explore.algebra.nest import Band, Product
from einnet_explore.backends.rows.frame import Expr, Frame, digits
from einnet_explore.backends.rows.tiles import Tile, tile_for


@dataclass
class Columns:
    """The right operand of a band, packed: tiles of columns, in each the summation, then the columns."""

    kernel: Frame
    band: Band
    tile: Tile = field(init=False)
    first: int = field(init=False)
    last: int = field(init=False)
    buffer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.tile = tile_for(2 * self.kernel.lanes, self.kernel.lanes)
        lo, hi = self.band.support
        self.first, self.last = lo // self.tile.width, -(-hi // self.tile.width)

    @property
    def depth(self) -> int:
        """How many products are summed."""
        return prod(s.extent for s in self.band.sums)

    @property
    def tiles(self) -> int:
        """Tiles that hold anything but 0."""
        return max(1, self.last - self.first)

    def pack(self) -> None:
        """Evaluate the operand into its buffer."""
        kernel, width = self.kernel, self.tile.width
        self.buffer = T.alloc_buffer((kernel.batches * self.tiles * self.depth * width,))
        with kernel.loop(kernel.batches * self.tiles) as at:
            env = kernel.over_batch(at // self.tiles)
            with T.serial(width) as x:
                env[kernel.nest.column] = (at % self.tiles + self.first) * width + x
                with T.serial(self.depth) as k:
                    value = kernel.scalar(self.band.right, {**env, **digits(self.band.sums, k)})
                    T.buffer_store(self.buffer, value, [(at * self.depth + k) * width + x])

    def at(self, batch: Expr, tile: Expr) -> Expr:
        """Where the packed *tile* starts."""
        return (batch * self.tiles + tile - self.first) * (self.depth * self.tile.width)


@dataclass
class Factor:
    """The factor of the last product, packed: a row of n for every column."""

    kernel: Frame
    product: Product
    tile: Tile = field(init=False)
    width: int = field(init=False)
    buffer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.tile = tile_for(self.product.n.extent, self.kernel.lanes)
        self.width = -(-self.product.n.extent // self.tile.width) * self.tile.width

    @property
    def columns(self) -> int:
        """Columns that hold anything but 0."""
        return max(1, self.product.support[1] - self.product.support[0])

    def pack(self) -> None:
        """Evaluate the factor into its buffer; it is filled up to whole tiles with 0."""
        kernel, n = self.kernel, self.product.n
        self.buffer = T.alloc_buffer((kernel.batches * self.columns * self.width,))
        with kernel.loop(kernel.batches) as batch, T.serial(self.columns) as u:
            env = {**kernel.over_batch(batch), kernel.nest.column: u + self.product.support[0]}
            start = (batch * self.columns + u) * self.width
            with T.serial(n.extent) as x:
                T.buffer_store(self.buffer, kernel.scalar(self.product.right, {**env, n: x}), [start + x])
            if self.width > n.extent:
                with T.serial(self.width - n.extent) as x:
                    T.buffer_store(self.buffer, tirx.const(0.0, "float32"), [start + n.extent + x])
