"""Rows and columns in blocks, for one pass over the columns, and the operands over the columns, packed for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from einnet_explore.algebra.nest import Band, Column
from einnet_explore.algebra.online import Online
from einnet_explore.backends.rows.frame import ROWS, Expr, Frame, digits
from einnet_explore.backends.rows.tiles import Tile, tile_for
from einnet_explore.ir import Iterator, Scalar
from einnet_explore.kernels.machine import Machine

COLUMNS = 512
"""Columns of a block, at most."""


def block_of(online: Online, machine: Machine) -> tuple[int, int]:
    """(rows, columns) of a block: the values of its columns stay in the first cache, its scores in the second."""
    nest = online.nest
    assert nest.product is not None
    out = tile_for(nest.product.n.extent, machine.lanes)
    score = tile_for(2 * machine.lanes, machine.lanes)
    whole = max(out.rows, score.rows, machine.lanes)
    rows = min(ROWS, -(-nest.row.extent // whole) * whole)
    seen = nest.along.extent + (0 if nest.dense else rows - 1)
    columns = COLUMNS
    width = -(-nest.product.n.extent // out.width) * out.width
    while columns > score.width and (4 * columns * width > machine.l1 * 3 // 4 or columns >= 2 * seen):
        columns //= 2
    return rows, columns


@dataclass
class Blocks(Frame):
    """A kernel of *online* whose blocks have *rows* and *columns*: *tile* is of scores, *out* of the result."""

    online: Online
    rows: int = field(init=False)
    columns: int = field(init=False)
    tile: Tile = field(init=False)
    out: Tile = field(init=False)

    def __post_init__(self) -> None:
        nest = self.nest
        assert nest.product is not None
        self.rows, self.columns = block_of(self.online, self.machine)
        self.tile = tile_for(2 * self.lanes, self.lanes)
        self.n = nest.product.n
        self.out = tile_for(self.n.extent, self.lanes)
        self.width = -(-self.n.extent // self.out.width) * self.out.width
        seen = nest.along.extent + (0 if nest.dense else nest.row.extent - 1)
        self.blocks = -(-seen // self.columns)
        self.groups = -(-nest.row.extent // self.rows)

    def packed(self, band: Band, env: Mapping[Iterator, Expr]) -> Any:
        """The right operand of a band: tiles of columns, in each the summation, then the columns."""
        depth, width = prod(s.extent for s in band.sums), self.tile.width
        tiles = self.blocks * self.columns // width
        buffer = T.alloc_buffer((tiles * depth * width,))
        with T.serial(tiles) as tile, T.serial(width) as x:
            at = T.bind(tile * width + x)
            with T.serial(depth) as k:
                value = self._over_columns(band.right, {**env, **digits(band.sums, k)}, at)
                T.buffer_store(buffer, value, [(tile * depth + k) * width + x])
        return buffer

    def column(self, column: Column, env: Mapping[Iterator, Expr]) -> Any:
        """What depends on the column alone, a value for each."""
        buffer = T.alloc_buffer((self.blocks * self.columns,))
        with T.serial(self.blocks * self.columns) as u:
            T.buffer_store(buffer, self._over_columns(column.right, env, u), [u])
        return buffer

    def values(self, env: Mapping[Iterator, Expr]) -> Any:
        """The values, a row of n for every column, filled up to whole tiles and whole blocks with 0."""
        product = self.nest.product
        assert product is not None
        buffer = T.alloc_buffer((self.blocks * self.columns * self.width,))
        with T.serial(self.blocks * self.columns) as u:
            with T.serial(self.n.extent) as x:
                value = self._over_columns(product.right, {**env, self.n: x}, u)
                T.buffer_store(buffer, value, [u * self.width + x])
            if self.width > self.n.extent:
                with T.serial(self.width - self.n.extent) as x:
                    zero = tirx.const(0.0, "float32")
                    T.buffer_store(buffer, zero, [u * self.width + self.n.extent + x])
        return buffer

    def _over_columns(self, body: Scalar, env: Mapping[Iterator, Expr], u: Expr) -> Expr:
        """*body* at column *u*; 0 beyond the columns that are there."""
        column = self.nest.column
        value = self.scalar(body, {**env, column: u})
        if self.blocks * self.columns <= column.extent:
            return value
        return tirx.if_then_else(u < column.extent, value, tirx.const(0.0, "float32"))
