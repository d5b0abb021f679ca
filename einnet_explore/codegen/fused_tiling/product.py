r"""A stage that sums products, in register tiles: rows of one factor times vectors of the other.

.. math::  M[b, \rho, k] = \sum_c X[b, \rho, c]\; L[b, k, c]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from einnet_explore.codegen.fused_tiling.block_view import BlockStage
from einnet_explore.codegen.fused_tiling.writer import BlockWriter
from einnet_explore.codegen.machine import Machine
from einnet_explore.codegen.rows.vector_products import VectorTile, load_vector, multiply_tile, store_tile
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.ir import Access, Index, Iterator, Scalar, Tensor, as_index, factors

LOAD_COST = 1.2
"""Cost of a load relative to its issue, on average over first-level cache misses."""


@dataclass(frozen=True, slots=True)
class StageProduct:
    """*left* moves with *rows*, *right* with *columns*, the last of which runs along memory, both with *batch*."""

    left: Access
    right: Access
    batch: tuple[Iterator, ...]
    rows: tuple[Iterator, ...]
    columns: tuple[Iterator, ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return prod(x.extent for x in self.rows)


def match_product(stage: BlockStage, lanes: int) -> StageProduct | None:
    """Return *stage* as a product vectorised along its last traversal, or None."""
    parts = factors(stage.body)
    if len(parts) != 2 or not stage.sums or stage.guards or stage.last.extent % lanes or stage.last.lo:
        return None
    for left, right in (parts, parts[::-1]):
        if _is_tensor_read(left) and _is_tensor_read(right):
            assert isinstance(left, Access) and isinstance(right, Access)
            mine, other = ({x for i in a.index for x in i.iterators} for a in (left, right))
            if stage.last in mine or not _is_vector_aligned(right.index[0], stage.last, lanes):
                continue
            if not _is_vector_aligned(stage.place, stage.last, lanes):
                continue
            rows = tuple(x for x in stage.traversals if x not in other and x.extent > 1)
            if any(x.lo for x in rows):
                continue
            columns = tuple(x for x in stage.traversals if x not in mine and x in other)
            batch = tuple(x for x in stage.traversals if x not in rows and x not in columns)
            return StageProduct(left, right, batch, rows, columns)
    return None


def _is_tensor_read(factor: Scalar) -> bool:
    return isinstance(factor, Access) and isinstance(factor.source, Tensor)


def _is_vector_aligned(index: Index, x: Iterator, lanes: int) -> bool:
    """True if aligned groups of *lanes* neighbours along *x* are neighbours at *index*."""
    chunk, lane = Iterator("@chunk", 0, x.extent // lanes), Iterator("@lane", 0, lanes)
    at = index.substitute(lambda y: as_index(chunk) * lanes + lane if y == x else y)
    return at.coefficient(lane) == 1 and lane not in (at - lane).iterators


def choose_vector_tile(rows: int, vectors: int, depth: int, machine: Machine) -> VectorTile:
    """Return the tile of fewest cycles for so many rows and vectors, summed over *depth*.

    Ties prefer a tile that divides the rows, has more sums, and loads less.
    """
    fitting = (
        VectorTile(r, v, machine.lanes)
        for v in range(1, 5)
        if vectors % v == 0
        for r in range(1, min(rows, machine.registers) + 1)
        if r * v + v + 1 <= machine.registers
    )

    def key(tile: VectorTile) -> tuple[float, bool, int, int]:
        count = tile.rows * tile.vectors
        return (
            product_cycles(tile, rows, vectors, depth, machine),
            bool(rows % tile.rows),
            -count,
            tile.rows + tile.vectors,
        )

    return min(fitting, key=key)


def product_cycles(tile: VectorTile, rows: int, vectors: int, depth: int, machine: Machine) -> float:
    """Return the cycles of a product of *rows* by *vectors*, for each of *depth*.

    They count multiply-adds, loads, the latency of sums, and columns that each tile reads from the second-level cache.
    """
    line = 4 * tile.width
    columns = line / machine.l2_bytes if depth * line > machine.l1 // 2 else 0

    def one(r: int) -> float:
        work, loads = r * tile.vectors / machine.fma_per_cycle, (r + tile.vectors) / machine.loads_per_cycle
        return max(work, LOAD_COST * loads, LOAD_COST * columns, machine.latency) if r else 0

    return vectors / tile.vectors * (rows // tile.rows * one(tile.rows) + one(rows % tile.rows))


def write_product(writer: BlockWriter, stage: BlockStage, product: StageProduct) -> None:
    """Write all tiles, with columns outside rows: the data of columns stay in the first-level cache.

    Columns from beyond the caches are prefetched one tile of columns ahead, spread over the tiles of rows, so that
    memory is busy all the time.
    """
    lanes = writer.machine.lanes
    tile = choose_vector_tile(product.count, stage.last.extent // lanes, sum_length(stage), writer.machine)
    others = tuple(x for x in product.columns if x != stage.last)
    across = Iterator("@across", 0, stage.last.extent // tile.width)
    whole, rest = divmod(product.count, tile.rows)
    ahead = -(-tile.vectors // max(1, whole)) if exceeds_cache(stage, product, writer.machine) else 0
    with ExitStack() as inside:
        env = writer.loops((*product.batch, *others, across), {}, inside)
        if whole:
            with T.serial(whole) as down:
                asked = [tirx.min(down * ahead + v, tile.vectors - 1) * lanes for v in range(ahead)]
                _write_tile(writer, stage, product, tile, env, across, down * tile.rows, asked)
        if rest:
            asked = [] if whole else [v * lanes for v in range(ahead)]
            _write_tile(
                writer, stage, product, VectorTile(rest, tile.vectors, lanes), env, across, whole * tile.rows, asked
            )


def sum_length(stage: BlockStage) -> int:
    """Return the number of products in a sum of *stage*."""
    return prod(y.extent for y in stage.sums)


def exceeds_cache(stage: BlockStage, product: StageProduct, machine: Machine) -> bool:
    """True if the columns read an input of more than half of the second-level cache."""
    return not is_stage_result(product.right) and column_bytes(stage, product) > machine.l2 // 2


def is_stage_result(access: Access) -> bool:
    """True if *access* reads the result of a stage, of this part or of the one before."""
    return _source_name(access).startswith("#") or is_earlier_result(access)


def is_earlier_result(access: Access) -> bool:
    """True if *access* reads the result of the part before."""
    return _source_name(access).startswith("@#")


def column_bytes(stage: BlockStage, product: StageProduct) -> int:
    """Return the bytes that the columns of *product* read in a block."""
    moving = {x for i in product.right.index for x in i.iterators}
    return 4 * prod(x.extent for x in (*stage.traversals, *stage.sums) if x in moving)


def _write_tile(
    writer: BlockWriter,
    stage: BlockStage,
    product: StageProduct,
    tile: VectorTile,
    env: dict[Iterator, TvmObject],
    across: Iterator,
    first: TvmObject,
    asked: Sequence[TvmObject],
) -> None:
    begin = Iterator("@first", 0, product.count)
    here = {**env, begin: first}

    def moved(index: Index, row: int, x: int) -> Index:
        to = dict(zip(product.rows, _digits(begin + row, product.rows), strict=True))
        to[stage.last] = as_index(across) * tile.width + x
        return index.substitute(lambda y: to.get(y, y))

    def loop(body: Callable[[TvmObject], None]) -> None:
        with ExitStack() as inside:
            sums.update(writer.loops(stage.sums, {}, inside))
            following = writer.at(moved(right.index[0], 0, 0), {**here, **sums, across: here[across] + 1})
            for more in asked:
                T.evaluate(prefetch_line(writer.memory[_source_name(right)], following + more))
            body(None)

    sums: dict[Iterator, TvmObject] = {}
    left, right = product.left, product.right

    def scalar(row: int, _: TvmObject) -> TvmObject:
        return writer.memory[_source_name(left)][writer.at(moved(left.index[0], row, 0), {**here, **sums})]

    def lane(_: TvmObject, x: int) -> TvmObject:
        return load_vector(
            writer.memory[_source_name(right)], writer.at(moved(right.index[0], 0, x), {**here, **sums}), tile.lanes
        )

    totals = multiply_tile(tile, loop, scalar, lane)
    store_tile(tile, totals, writer.memory[stage.memory], lambda row, x: writer.at(moved(stage.place, row, x), here))


def prefetch_line(buffer: TvmObject, at: TvmObject) -> TvmObject:
    """Prefetch the line of element *at* of *buffer* into the second-level cache; beyond its end this has no effect."""
    address = T.address_of(buffer[at])
    read, second, data = (tirx.const(n, "int32") for n in (0, 2, 1))
    return tirx.call_intrin("void", "tirx.prefetch", address, read, second, data)


def _source_name(access: Access) -> str:
    return access.source.name  # type: ignore[union-attr]


def _digits(number: Index, group: tuple[Iterator, ...]) -> list[Index]:
    out: list[Index] = []
    for x in reversed(group):
        out.insert(0, number % x.extent)
        number = number // x.extent
    return out
