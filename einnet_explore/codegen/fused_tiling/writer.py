r"""The text of a block's stages: loops and scalars, transpose tiles, products in register tiles.

A stage that reads along another traversal than it writes is transposed tile by tile.  A stage that sums products is
written as rows of one factor times vectors of the other:

.. math::  M[b, \rho, k] = \sum_c X[b, \rho, c]\; L[b, k, c]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from einnet_explore.codegen.fused_tiling.block_sizes import (
    BlockStage,
    LoopGuard,
    StageProduct,
    _source_name,
    choose_vector_tile,
    exceeds_cache,
    sum_length,
)
from einnet_explore.codegen.language.dialects import TILE_SIDES, transpose_rows
from einnet_explore.codegen.machine import Machine
from einnet_explore.codegen.rows.frame import VectorTile, load_vector, multiply_tile, store_tile, store_vector
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import Environment, tvm_constant, tvm_expression, tvm_index
from einnet_explore.ir import Access, Const, Index, Iterator, Scalar, Scope, Table, Tensor, as_index, map_accesses


@dataclass(frozen=True)
class BlockWriter:
    """Flat *memory* by name, on *machine*; *block* holds the coordinates of the block."""

    memory: Mapping[str, TvmObject]
    machine: Machine
    block: Environment

    def at(self, index: Index, env: Environment) -> TvmObject:
        """Return *index* for iterators of the values *env* or of the block's coordinates."""
        return tvm_index(index, {**self.block, **env})

    def value(self, body: Scalar, env: Environment, given: Mapping[Access, TvmObject] | None = None) -> TvmObject:
        """Return *body* for iterators of the values *env*; accesses in *given* are already loaded."""
        read: dict[str, TvmObject] = {}

        def load_access(access: Access) -> Access:
            name = f"@{len(read)}"
            if given and access in given:
                read[name] = given[access]
            else:
                assert isinstance(access.source, Tensor)
                read[name] = self.memory[access.source.name][self.at(access.index[0], env)]
            return Tensor(name, ())[()]

        def element(source: Tensor | Table | Scope) -> Callable[..., TvmObject]:
            assert isinstance(source, Tensor)
            return lambda: read[source.name]

        return tvm_expression(map_accesses(body, load_access), {**self.block, **env}, element, "float32")

    def holds(self, guard: LoopGuard, env: Environment) -> TvmObject:
        """Return the condition that *guard* admits its loop's value."""
        at = self.at(guard.index, env)
        return tirx.all(at >= guard.lo, at < guard.hi)

    def loops(
        self, over: Iterable[Iterator], guards: Mapping[Iterator, LoopGuard], inside: ExitStack
    ) -> dict[Iterator, TvmObject]:
        """Enter loops over *over* into *inside*, each with the condition of its guard."""
        env: dict[Iterator, TvmObject] = {}
        for x in over:
            if x.extent == 1:
                env[x] = tirx.const(x.lo, "int32")
            else:
                count = inside.enter_context(T.serial(x.extent))
                env[x] = count + x.lo if x.lo else count
            if x in guards:
                inside.enter_context(T.If(self.holds(guards[x], env)))
                inside.enter_context(T.Then())
        return env

    def fill(self, memory: str, over: tuple[Iterator, ...], place: Index, value: float) -> None:
        """Store *value* at every *place*, which is consecutive along the last of *over*."""
        *outer, last = over
        lanes = self.machine.lanes
        short = last.extent < lanes
        if short or not (last.extent % lanes or last.lo):
            width = min(last.extent, lanes)
            chunk = Iterator(last.name, 0, last.extent // width)
        else:
            chunk, width = replace(last, lo=0, hi=last.extent), 1
        with ExitStack() as inside:
            env = self._one_loop(outer, inside) if short else self.loops(outer, {}, inside)
            env |= self.loops((chunk,), {}, inside)
            first = env[chunk] * width + last.lo
            with T.vectorized(width) as lane:
                at = self.at(place, {**env, last: first + lane})
                T.buffer_store(self.memory[memory], tvm_constant(value, "float32"), [at])

    @staticmethod
    def _one_loop(over: Sequence[Iterator], inside: ExitStack) -> dict[Iterator, TvmObject]:
        """Enter one loop over all of *over* into *inside*.

        LLVM unrolls nested loops of a few iterations, which takes minutes.
        """
        turns = prod(x.extent for x in over)
        left = inside.enter_context(T.serial(turns)) if turns > 1 else tirx.const(0, "int32")
        env: dict[Iterator, TvmObject] = {}
        for x in reversed(over):
            env[x] = left % x.extent + x.lo
            left = left // x.extent
        return env


def address_steps(body: Scalar | Index, x: Iterator) -> frozenset[int | None]:
    """Return the steps of the addresses of *body* along *x*; None stands for uneven steps."""
    if isinstance(body, Index):
        k = body.coefficient(x)
        return frozenset({None if x in (body - x * k).iterators else k})
    out: set[int | None] = set()

    def see(access: Access) -> Scalar:
        for i in access.index:
            out.update(address_steps(i, x))
        return Const(0)

    map_accesses(body, see)
    return frozenset(out)


@dataclass(frozen=True, slots=True)
class TileTranspose:
    """*reads* run along *across* where the stage runs along its last traversal; tiles have *side* rows and lanes."""

    reads: tuple[Access, ...]
    across: Iterator
    side: int


def match_transpose(stage: BlockStage, lanes: int) -> TileTranspose | None:
    """Return the transposition of the reads of *stage*, or None if there is none or no tile fits."""
    last = stage.last
    if stage.sums or address_steps(stage.place, last) != {1} or last in stage.guards:
        return None
    turned = tuple(a for a in stage.reads if not address_steps(a, last) <= {0, 1})
    across = [x for x in stage.traversals[:-1] if turned and all(address_steps(a, x) == {1} for a in turned)]
    if len(across) != 1 or across[0] in stage.guards:
        return None
    (x,) = across
    side = next((s for s in TILE_SIDES if s <= lanes and s <= x.extent and s <= last.extent), None)
    return None if side is None else TileTranspose(turned, x, side)


def write_transposed(writer: BlockWriter, stage: BlockStage, turn: TileTranspose) -> None:
    """Write tile by tile; the last tiles end with the range and overlap their predecessors if needed."""
    last, across, side = stage.last, turn.across, turn.side
    tiles = Iterator("@tiles", 0, -(-last.extent // side))
    vectors = Iterator("@vectors", 0, -(-across.extent // side))
    outer = tuple(x for x in stage.traversals if x not in (last, across))
    with ExitStack() as inside:
        env = writer.loops((*outer, vectors, tiles), stage.guards, inside)
        for x, number in ((last, tiles), (across, vectors)):
            start: TvmObject = env[number] * side
            env[x] = T.bind((start if x.extent % side == 0 else tirx.min(start, x.extent - side)) + x.lo)
        columns = {read: _transposed_tile(writer, read, turn, last, env) for read in turn.reads}
        for j in range(side):
            here = {**env, across: env[across] + j}
            at = writer.at(stage.place, here)
            if len(turn.reads) == 1 and stage.body == turn.reads[0]:
                store_vector(writer.memory[stage.memory], columns[turn.reads[0]][j], at, side)
                continue
            held = {}
            for read, column in columns.items():
                held[read] = T.alloc_buffer((side,))
                store_vector(held[read], column[j], 0, side)
            with T.vectorized(side) as lane:
                given = {read: buffer[lane] for read, buffer in held.items()}
                value = writer.value(stage.body, {**here, last: env[last] + lane}, given)
                T.buffer_store(writer.memory[stage.memory], value, [at + lane])


def _transposed_tile(
    writer: BlockWriter, read: Access, turn: TileTranspose, last: Iterator, env: dict[Iterator, TvmObject]
) -> list[TvmObject]:
    memory = writer.memory[read.source.name]  # type: ignore[union-attr]
    rows = [
        T.bind(load_vector(memory, writer.at(read.index[0], {**env, last: env[last] + i}), turn.side))
        for i in range(turn.side)
    ]
    return transpose_rows(
        rows, lambda a, b, lanes: T.bind(tirx.Shuffle([a, b], [tirx.const(n, "int32") for n in lanes]))
    )


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

    def tile_index(index: Index, row: int, x: int) -> Index:
        to = dict(zip(product.rows, _digits(begin + row, product.rows), strict=True))
        to[stage.last] = as_index(across) * tile.width + x
        return index.substitute(lambda y: to.get(y, y))

    def loop(body: Callable[[TvmObject], None]) -> None:
        with ExitStack() as inside:
            sums.update(writer.loops(stage.sums, {}, inside))
            following = writer.at(tile_index(right.index[0], 0, 0), {**here, **sums, across: here[across] + 1})
            for more in asked:
                T.evaluate(prefetch_line(writer.memory[_source_name(right)], following + more))
            body(None)

    sums: dict[Iterator, TvmObject] = {}
    left, right = product.left, product.right

    def scalar(row: int, _: TvmObject) -> TvmObject:
        return writer.memory[_source_name(left)][writer.at(tile_index(left.index[0], row, 0), {**here, **sums})]

    def lane(_: TvmObject, x: int) -> TvmObject:
        return load_vector(
            writer.memory[_source_name(right)],
            writer.at(tile_index(right.index[0], 0, x), {**here, **sums}),
            tile.lanes,
        )

    totals = multiply_tile(tile, loop, scalar, lane)
    store_tile(
        tile, totals, writer.memory[stage.memory], lambda row, x: writer.at(tile_index(stage.place, row, x), here)
    )


def prefetch_line(buffer: TvmObject, at: TvmObject) -> TvmObject:
    """Prefetch the line of element *at* of *buffer* into the second-level cache; beyond its end this has no effect."""
    address = T.address_of(buffer[at])
    read, second, data = (tirx.const(n, "int32") for n in (0, 2, 1))
    return tirx.call_intrin("void", "tirx.prefetch", address, read, second, data)


def _digits(number: Index, group: tuple[Iterator, ...]) -> list[Index]:
    out: list[Index] = []
    for x in reversed(group):
        out.insert(0, number % x.extent)
        number = number // x.extent
    return out
