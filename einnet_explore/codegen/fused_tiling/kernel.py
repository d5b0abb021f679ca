r"""Kernels of chains in blocks: products in register tiles, transpose tiles, vectors of unrolled sums.

A stage that sums products is written as rows of one factor times vectors of the other:

.. math::  M[b, \rho, k] = \sum_c X[b, \rho, c]\; L[b, k, c]

A stage that reads along another traversal than it writes is transposed tile by tile.  Of any other stage,

.. math::  y_p = \sum_i U[p, i]\, x_i \quad \text{for every } p

is computed for a vector of neighbours at a time: the `x_i` are loaded once for all `p`, entries of `U` are immediates,
and zero entries cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

from einnet_explore.analysis.indices import substitute
from einnet_explore.codegen.fused_tiling.block_sizes import (
    MAX_UNROLLED_TERMS,
    RESULT_MEMORY,
    STAGE_SUM,
    BlockStage,
    ChainPart,
    Slide,
    StageProduct,
    TileTranspose,
    address_steps,
    block_stages,
    collapse_loops,
    far_vectors,
    is_far,
    is_stage_result,
    is_vector_sum,
    match_product,
    match_transpose,
    panel_width,
    product_tile,
    sum_blocks,
)
from einnet_explore.codegen.language.dialects import transpose_rows
from einnet_explore.codegen.language.lowering import mixed_radix_split, tensor_name
from einnet_explore.codegen.preparation import expand_table
from einnet_explore.codegen.register_tiles import LINE_ELEMENTS, Machine
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import (
    PREFETCH_DISTANCE,
    Environment,
    VectorTile,
    load_vector,
    multiply_tile,
    prefetch_line,
    store_tile,
    store_vector,
    tvm_constant,
    tvm_expression,
    tvm_function,
    tvm_index,
)
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Index,
    IndexLike,
    Iterator,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    add,
    as_index,
    factors,
    map_accesses,
)
from einnet_explore.support.lazy_modules import LazyModule

tirx, T = LazyModule("tvm.tirx"), LazyModule("tvm.tirx.script.builder.ir")


PREFETCHED_ELEMENTS = 4 * LINE_ELEMENTS
"""Elements by which rows of an input that are read together, or of the result, are prefetched: four lines.

Processors recognise a few of such streams, not one for each channel.
"""


@dataclass(frozen=True)
class BlockWriter:
    """Flat *memory* by name, on *machine*; *block* holds the coordinates of the block."""

    memory: Mapping[str, TvmObject]
    machine: Machine
    block: Environment
    is_first: TvmObject | None = None
    """Whether the block is the first one."""

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
                read[name] = self.memory[tensor_name(access.source)][self.at(access.index[0], env)]
            return Tensor(name, ())[()]

        def element(source: Tensor | Table | Scope) -> Callable[..., TvmObject]:
            assert isinstance(source, Tensor)
            return lambda: read[source.name]

        return tvm_expression(map_accesses(body, load_access), {**self.block, **env}, element)

    def stored(
        self, stage: BlockStage, total: Scalar, env: Environment, given: Mapping[Access, TvmObject]
    ) -> TvmObject:
        """Return what *stage* stores for the sum *total*; accesses in *given* are already loaded."""
        summed = self.value(total, env, given)
        return summed if stage.epilogue is None else self.value(stage.epilogue, env, {STAGE_SUM: summed})

    def holds(self, guard: Bound, env: Environment) -> TvmObject:
        """Return the condition that *guard* admits its loop's value."""
        at = self.at(guard.index, env)
        return tirx.all(at >= guard.lo, at < guard.hi)

    def loops(
        self,
        over: Iterable[Iterator],
        guards: Mapping[Iterator, Bound],
        inside: ExitStack,
        slide: Slide | None = None,
    ) -> dict[Iterator, TvmObject]:
        """Enter loops over *over* into *inside*, each with the condition of its guard.

        The loop along *slide* leaves out what the block before has computed.
        """
        env: dict[Iterator, TvmObject] = {}
        for x in over:
            if slide is not None and x == slide.traversal:
                kept = tirx.Select(self.is_first, tirx.const(0, "int32"), tirx.const(slide.kept, "int32"))
                start = T.bind(kept)
                env[x] = inside.enter_context(T.serial(x.extent - start)) + start
            elif x.extent == 1:
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
            env = self._one_loop(tuple(outer), inside) if short else self.loops(outer, {}, inside)
            env |= self.loops((chunk,), {}, inside)
            first = env[chunk] * width + last.lo
            with T.vectorized(width) as lane:
                at = self.at(place, {**env, last: first + lane})
                T.buffer_store(self.memory[memory], tvm_constant(value), [at])

    @staticmethod
    def _one_loop(over: tuple[Iterator, ...], inside: ExitStack) -> dict[Iterator, TvmObject]:
        """Enter one loop over all of *over* into *inside*.

        LLVM unrolls nested loops of a few iterations, which takes minutes.
        """
        turns = prod(x.extent for x in over)
        left = inside.enter_context(T.serial(turns)) if turns > 1 else tirx.const(0, "int32")
        return {x: value + x.lo for x, value in mixed_radix_split(over, left).items()}


def write_transposed(writer: BlockWriter, stage: BlockStage, turn: TileTranspose) -> None:
    """Write tile by tile; the last tiles end with the range and overlap their predecessors if needed."""
    last, across, side = stage.last, turn.across, turn.side
    tiles = Iterator("@tiles", 0, -(-last.extent // side))
    vectors = Iterator("@vectors", 0, -(-across.extent // side))
    outer = tuple(x for x in stage.traversals if x not in (last, across))
    with ExitStack() as inside:
        env = writer.loops((*outer, vectors, tiles), stage.guards, inside, stage.slide)
        for x, number in ((last, tiles), (across, vectors)):
            start: TvmObject = env[number] * side
            env[x] = T.bind((start if x.extent % side == 0 else tirx.min(start, x.extent - side)) + x.lo)
        columns = {read: _transposed_tile(writer, read, turn, last, env) for read in turn.reads}
        for j in range(side):
            here = {**env, across: env[across] + j}
            at = writer.at(stage.place, here)
            if stage.memory == RESULT_MEMORY:
                T.evaluate(prefetch_line(writer.memory[stage.memory], at + PREFETCHED_ELEMENTS, written=True))
                for read in far_vectors(stage, turn):
                    place = writer.at(read.index[0], here)
                    T.evaluate(prefetch_line(writer.memory[tensor_name(read.source)], place + PREFETCHED_ELEMENTS))
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
    memory = writer.memory[tensor_name(read.source)]
    places = [writer.at(read.index[0], {**env, last: env[last] + i}) for i in range(turn.side)]
    if not is_stage_result(read):
        for at in places:
            T.evaluate(prefetch_line(memory, at + PREFETCHED_ELEMENTS))
    rows = [T.bind(load_vector(memory, at, turn.side)) for at in places]
    return transpose_rows(
        rows, lambda a, b, lanes: T.bind(tirx.Shuffle([a, b], [tirx.const(n, "int32") for n in lanes]))
    )


def write_product(writer: BlockWriter, stage: BlockStage, product: StageProduct) -> None:
    """Write all tiles, with columns outside rows: the data of columns stay in the first-level cache.

    If they exceed it, the outermost loop of the sum is divided into blocks, and all tiles of rows compute one block
    before the next.  Partial sums stay in a buffer, so that the order of additions does not change.

    Columns from beyond the caches are prefetched one block, or one tile of columns, ahead, spread over the tiles of
    rows, so that memory is busy all the time.  So are rows of an input if the terms of a sum are far apart in it.
    """
    tile = product_tile(stage, product, writer.machine)
    others = tuple(x for x in product.columns if x != stage.last)
    across = Iterator("@across", 0, stage.last.extent // tile.width)
    whole, rest = divmod(product.count, tile.rows)
    blocks = sum_blocks(stage, product, tile, writer.machine)
    kept = T.alloc_buffer((product.count * tile.width,)) if blocks > 1 else None
    with ExitStack() as inside:
        env = writer.loops((*product.batch, *others, across), stage.guards, inside, stage.slide)
        block = inside.enter_context(T.serial(blocks)) if blocks > 1 else tirx.const(0, "int32")
        write = _ProductTiles(writer, stage, product, env, across, blocks, block, kept).write
        readers = whole or 1
        if whole:
            with T.serial(whole) as down:
                write(tile, down * tile.rows, down, readers)
        if rest:
            write(replace(tile, rows=rest), whole * tile.rows, None if whole else tirx.const(0, "int32"), readers)


@dataclass(frozen=True, slots=True)
class _ProductTiles:
    """The tiles of *product*, inside loops whose iterators have the values *env*; *across* numbers tiles of columns.

    They sum one of *blocks* of the outermost loop of the sum, the one of number *block*.
    """

    writer: BlockWriter
    stage: BlockStage
    product: StageProduct
    env: dict[Iterator, TvmObject]
    across: Iterator
    blocks: int
    block: TvmObject
    kept: TvmObject | None
    """Partial sums of all tiles with the same columns."""

    def write(self, tile: VectorTile, first: TvmObject, number: TvmObject | None, readers: int) -> None:
        """Write the *tile* whose first row is *first*.

        It has the *number*, or none, among *readers* of the same columns, which prefetch the next ones together.
        """
        writer, left, right = self.writer, self.product.left, self.product.right
        begin = Iterator("@first", 0, self.product.count)
        here = {**self.env, begin: first}
        outermost, *inner = self.stage.sums
        length = outermost.extent // self.blocks
        loops = (replace(outermost, hi=outermost.lo + length), *inner)
        sums, widths = dict[Iterator, TvmObject](), dict(tile.columns)
        a, b = (writer.memory[tensor_name(access.source)] for access in (left, right))
        is_left_strided = not is_stage_result(left) and address_steps(left.index[0], self.stage.sums[-1]) != {1}

        def at(index: Index, row: int, x: int) -> TvmObject:
            return writer.at(index.substitute(lambda y: place(row, x).get(y, y)), {**here, **sums})

        @lru_cache(None)
        def place(row: int, x: int) -> Mapping[Iterator, IndexLike]:
            to = mixed_radix_split(self.product.rows, begin + row)
            moved = {y: value + y.lo for y, value in to.items()}
            return {**moved, self.stage.last: as_index(self.across) * tile.width + x}

        def loop(body: Callable[[TvmObject], None]) -> None:
            with ExitStack() as inside:
                env = writer.loops(loops, {}, inside)
                step = _position(loops, env)
                sums.update(zip(self.stage.sums, env.values(), strict=True))
                sums[outermost] = sums[outermost] + self.block * length
                if is_left_strided:
                    T.evaluate(prefetch_line(a, at(left.index[0], 0, 0) + PREFETCHED_ELEMENTS))
                if number is not None:
                    self._prefetch(tile, number, step, sums, readers)
                body(None)

        def partial_sums(row: int, x: int) -> TvmObject:
            before = load_vector(self.kept, (first + row) * tile.width + x, widths[x])
            return tirx.Select(self.block == 0, tirx.Broadcast(tvm_constant(0), widths[x]), before)

        totals = multiply_tile(
            tile,
            loop,
            lambda row, _: a[at(left.index[0], row, 0)],
            lambda _, x: load_vector(b, at(right.index[0], 0, x), widths[x]),
            None if self.kept is None else partial_sums,
        )

        def store() -> None:
            epilogue, memory = self.stage.epilogue, writer.memory[self.stage.memory]
            if epilogue is None:
                store_tile(tile, totals, memory, lambda row, x: at(self.stage.place, row, x))
                return
            for row, total in enumerate(totals):
                for x, lanes in tile.columns:
                    to, lane_of = place(row, x), lane_iterator(lanes)
                    moved = substitute(epilogue, {**to, self.stage.last: to[self.stage.last] + lane_of})
                    with T.vectorized(lanes) as lane:
                        value = writer.value(moved, {**here, lane_of: lane}, {STAGE_SUM: total[x + lane]})
                        T.buffer_store(memory, value, [at(self.stage.place, row, x) + lane])

        if self.kept is None:
            store()
            return
        with T.If(self.block == self.blocks - 1):
            with T.Then():
                store()
            with T.Else():
                store_tile(tile, totals, self.kept, lambda row, x: (first + row) * tile.width + x)

    def _prefetch(self, tile: VectorTile, number: TvmObject, step: TvmObject, sums: Environment, readers: int) -> None:
        """Prefetch in *step*, of *sums*, of tile *number* a share of what the next block, or next columns, read.

        Of panels that a single tile reads, it is what comes a fixed distance later: they need not fit a cache.
        """
        stage, right = self.stage, self.product.right
        if not is_far(self.product, self.writer.machine):
            return
        memory, outermost = self.writer.memory[tensor_name(right.source)], stage.sums[0]
        length = outermost.extent // self.blocks
        following, width = self.block + 1, panel_width(stage, right, tile)
        is_stream = readers == 1 and self.blocks == 1 and width is not None
        columns = self.env[self.across] + (0 if is_stream else tirx.truncdiv(following, self.blocks))
        start = tirx.truncmod(following, self.blocks) * length + outermost.lo
        unit = width or LINE_ELEMENTS
        part = Iterator("@part", 0, -(-tile.width // unit))
        index = right.index[0].substitute(
            lambda y: as_index(self.across) * tile.width + as_index(part) * unit if y == stage.last else y
        )

        def place(env: Environment, of: TvmObject) -> TvmObject:
            return self.writer.at(index, {**self.env, **env, self.across: columns, part: of})

        if width is None:
            share = -(-part.extent // readers)
            here = {**sums, outermost: sums[outermost] - self.block * length + start - outermost.lo}
            for n in range(share):
                line = tirx.min(number * share + n, part.extent - 1)
                T.evaluate(prefetch_line(memory, place(here, line)))
            return
        begin = {y: tirx.const(y.lo, "int32") for y in stage.sums} | {outermost: start}
        steps = length * prod(y.extent for y in stage.sums[1:])
        stride = -(-width // readers)
        for panel in range(part.extent):
            at = place(begin, tirx.const(panel, "int32")) + (number * steps + step) * stride
            at += PREFETCH_DISTANCE if is_stream else 0
            for n in range(0, stride, LINE_ELEMENTS):
                T.evaluate(prefetch_line(memory, at + n))


def _position(over: Sequence[Iterator], env: Environment) -> TvmObject:
    """Return the number of the iteration of loops *over* in which their iterators have the values *env*."""
    position: TvmObject = tirx.const(0, "int32")
    for x in over:
        position = position * x.extent + (env[x] - x.lo)
    return position


NEIGHBOURS = range(8, 3, -1)
"""Neighbours whose sums are computed together, since they have operands in common; the first that divides is taken."""


def write_vector_sums(writer: BlockWriter, stage: BlockStage) -> None:
    """Write sums of products of vectors: each sum is unrolled, for neighbours along a traversal before the last.

    Vectors that several of them read are loaded once.  Chunks of the last traversal are innermost, as in memory, unless
    the operands of one iteration of the outer loops exceed the first-level cache: then they are outermost, and what
    iterations have in common stays in that cache.
    """
    sides = [x for x in stage.traversals[:-1] if x.extent > 1 and x not in stage.single]
    across = sides[-1] if sides else Iterator("@alone", 0, 1)
    outer = tuple(x for x in stage.traversals[:-1] if x != across)
    count = next((n for n in NEIGHBOURS if across.extent % n == 0), min(NEIGHBOURS[0], across.extent))
    whole, rest = divmod(across.extent, count)
    groups = [group for group in ((0, whole, count), (whole * count, min(rest, 1), rest)) if group[1]]
    is_chunk_outermost = operand_bytes(stage, outer) > writer.machine.l1
    for first, chunks, width in _vector_chunks(stage.last, writer.machine.lanes):
        chunk = Iterator("@chunk", 0, chunks)
        start = as_index(chunk) * width + (stage.last.lo + first)
        with ExitStack() as inside:
            env = writer.loops((chunk,), {}, inside) if is_chunk_outermost else {}
            env |= writer.loops(outer, stage.guards, inside, stage.slide)
            for begin, number, size in groups:
                group = Iterator("@group", 0, number)
                places = [as_index(group) * count + (across.lo + begin + n) for n in range(size)]
                with ExitStack() as loops:
                    here = {**env, **writer.loops((group,) if is_chunk_outermost else (group, chunk), {}, loops)}
                    _write_neighbours(writer, stage, [{across: at, stage.last: start} for at in places], here, width)


def operand_bytes(stage: BlockStage, outer: tuple[Iterator, ...]) -> int:
    """Return the bytes between the first and the last element that a sum reads in one iteration of *outer*, at most."""
    fixed = {x: as_index(x.lo) for x in outer}
    spans = (a.index[0].substitute(lambda x: fixed.get(x, x)).bounds for a in accesses(stage.body))
    return 4 * max(most - least + 1 for least, most in spans)


def _write_neighbours(
    writer: BlockWriter, stage: BlockStage, places: Sequence[Mapping[Iterator, Index]], env: Environment, width: int
) -> None:
    """Write a vector of *width* elements of *stage* at each of *places*."""
    vectors: dict[tuple[str, Index], TvmObject] = {}

    def load(factor: Scalar, to: Mapping[Iterator, Index]) -> TvmObject:
        assert isinstance(factor, Access)
        name, at = tensor_name(factor.source), factor.index[0].substitute(lambda x: to.get(x, x))
        if (name, at) not in vectors:
            vectors[name, at] = T.bind(load_vector(writer.memory[name], writer.at(at, env), width))
        return vectors[name, at]

    totals: list[TvmObject] = []
    for values in product(*(range(y.lo, y.hi) for y in stage.sums)):
        term = {y: as_index(n) for y, n in zip(stage.sums, values, strict=True)}
        for n, place in enumerate(places):
            left, right = (load(factor, {**term, **place}) for factor in factors(stage.body))
            if n == len(totals):
                totals.append(T.alloc_buffer((width,)))
                store_vector(totals[n], left * right, 0, width)
            else:
                store_vector(totals[n], load_vector(totals[n], 0, width) + left * right, 0, width)
    lane_of = lane_iterator(width)
    for total, place in zip(totals, places, strict=True):
        moved = {**place, stage.last: place[stage.last] + lane_of}
        at = stage.place.substitute(lambda x, to=moved: to.get(x, x))  # type: ignore[misc]
        with T.vectorized(width) as lane:
            here = {**env, lane_of: lane}
            value = total[lane]
            if stage.epilogue is not None:
                value = writer.value(substitute(stage.epilogue, moved), here, {STAGE_SUM: value})
            T.buffer_store(writer.memory[stage.memory], value, [writer.at(at, here)])


MAX_CASES = 64
"""Cases of a vector that are unrolled, at most."""


def split_cases(stage: BlockStage) -> tuple[BlockStage, tuple[Iterator, ...]]:
    """Split *stage* so that every traversal whose value, or remainder, indexes a table has a loop of its own.

    Return the stage and those loops, which must be unrolled.
    """
    cases: list[Iterator] = []
    for x, period in _table_periods(stage):
        if prod(c.extent for c in cases) * period > MAX_CASES or x in stage.guards:
            continue
        if period == x.extent:
            cases.append(x)
            continue
        if x.extent % period or x.lo:
            continue
        outer, case = Iterator(f"{x.name}o", 0, x.extent // period), Iterator(f"{x.name}i", 0, period)
        to = {x: as_index(outer) * period + case}
        n = stage.traversals.index(x)
        stage = stage.over((*stage.traversals[:n], outer, case, *stage.traversals[n + 1 :]), to)
        cases.append(case)
    return stage, tuple(cases)


def _table_periods(stage: BlockStage) -> Iterable[tuple[Iterator, int]]:
    found: dict[Iterator, int] = {}
    for access in accesses(stage.body):
        if isinstance(access.source, Table):
            for index in access.index:
                match index.terms:
                    case ((Iterator() as x, 1),) if x in stage.traversals[:-1]:
                        found[x] = x.extent
                    case ((Remainder(numerator, d), 1),) if numerator.single in stage.traversals[:-1]:
                        assert numerator.single is not None
                        found.setdefault(numerator.single, d)
    return found.items()


def unrolled_body(stage: BlockStage, case: Mapping[Iterator, int]) -> Scalar | None:
    """Return the body for one *case* of the unrolled iterators with its sums unrolled; None for too many terms."""
    if prod(y.extent for y in stage.sums) > MAX_UNROLLED_TERMS:
        return None
    fixed: Mapping[Iterator, Index] = {x: as_index(n) for x, n in case.items()}
    values = product(*(range(y.lo, y.hi) for y in stage.sums))
    bodies = []
    for at in values:
        to = {**fixed, **{y: as_index(n) for y, n in zip(stage.sums, at, strict=True)}}
        bodies.append(simplify_products(map_accesses(substitute(stage.body, to), expand_table)))
    return add(*bodies) if stage.sums else bodies[0]


def simplify_products(body: Scalar) -> Scalar:
    """Fold products with 0 and 1 in *body*."""
    match body:
        case Apply("*", args):
            args = tuple(map(simplify_products, args))
            scale = prod(a.value for a in args if isinstance(a, Const))
            rest = tuple(a for a in args if not isinstance(a, Const))
            if scale == 0 or not rest:
                return Const(scale)
            kept = rest if scale == 1 else (Const(scale), *rest)
            return kept[0] if len(kept) == 1 else Apply("*", kept)
        case Apply(op, args):
            return Apply(op, tuple(a if isinstance(a, Compare) else simplify_products(a) for a in args))
    return body


def chain_function(parts: Sequence[ChainPart], inputs: Mapping[str, int], threads: int, machine: Machine) -> TvmObject:
    """Return the PrimFunc that computes *parts* in order from *inputs*: flat arrays, their sizes by name.

    Each of the *threads* computes its own blocks of every part.
    """

    def write(places: Mapping[str, TvmObject], result: TvmObject) -> None:
        memory = {**places, RESULT_MEMORY: result}
        for part in parts[:-1]:
            memory[part.memory] = T.alloc_buffer((part.size + machine.lanes,))
        for part in parts:
            _write_part(part, {**memory, RESULT_MEMORY: memory[part.memory]}, threads, machine)

    shapes = {name: (max(1, size),) for name, size in inputs.items()}
    return tvm_function(shapes, (parts[-1].size,), write)


def share_memory(stages: Sequence[BlockStage]) -> tuple[dict[str, int], list[int]]:
    """Return the number of the buffer of every stage but the last by name, and the elements of each buffer.

    A stage takes the largest buffer whose stage no later one reads.  What slides stays from block to block, in a buffer
    of its own.
    """
    last_reader = {tensor_name(a.source): n for n, stage in enumerate(stages) for a in stage.reads}
    buffers: dict[str, int] = {}
    sizes: list[int] = []
    users: dict[int, int] = {}  # until which stage a buffer is in use
    for n, stage in enumerate(stages[:-1]):
        free = [b for b, until in users.items() if until < n and stage.slide is None]
        buffer = max(free, key=lambda b: sizes[b], default=len(sizes))
        if buffer == len(sizes):
            sizes.append(0)
        sizes[buffer] = max(sizes[buffer], stage.size)
        users[buffer] = last_reader.get(stage.memory, n) if stage.slide is None else len(stages)
        buffers[stage.memory] = buffer
    return buffers, sizes


def _write_part(part: ChainPart, memory: Mapping[str, TvmObject], threads: int, machine: Machine) -> None:
    """Write all blocks of *part*, which computes the result in *memory*."""
    cuts, blocks = part.cuts, part.blocks
    stages = tuple(map(collapse_loops, block_stages(part.chain, cuts, lambda tensor: tensor.name, threads)))
    shared = threads > 1 and blocks > 1
    buffers, sizes = share_memory(stages)

    def allocate() -> dict[str, TvmObject]:
        held = [T.alloc_buffer((size + machine.lanes,)) for size in sizes]
        return {name: held[buffer] for name, buffer in buffers.items()}

    kept = {} if shared else allocate()  # what slides stays from block to block
    with T.parallel(blocks) if shared else T.serial(blocks) as number:
        block: dict[Iterator, TvmObject] = {}
        for n, cut in enumerate(cuts):
            # The number counts the blocks of the last cut first.
            turn = number // prod(c.blocks for c in cuts[n + 1 :]) % cut.blocks * cut.size
            whole = cut.periods % cut.size == 0
            block[cut.at] = T.bind(turn if whole else tirx.min(turn, cut.periods - cut.size))
        own = allocate() if shared else kept
        writer = BlockWriter({**memory, **own}, machine, block, number == 0)
        for stage in stages:
            _write_stage(writer, stage)


def _write_stage(writer: BlockWriter, stage: BlockStage) -> None:
    if stage.memory != RESULT_MEMORY:
        _write_padding(writer, stage)
    if (product_ := match_product(stage, writer.machine.lanes)) is not None:
        write_product(writer, stage, product_)
    elif is_vector_sum(stage, writer.machine.lanes):
        write_vector_sums(writer, stage)
    elif (turn := match_transpose(stage, writer.machine.lanes)) is not None:
        write_transposed(writer, stage, turn)
    else:
        _write_vectors(writer, stage)


def _write_padding(writer: BlockWriter, stage: BlockStage) -> None:
    """Fill the border around the stage's box, and the whole box if a guard excludes some of it.

    A stage that slides moves the elements that it keeps, and fills those that its guard excludes.
    """
    if stage.slide is not None:
        _move_kept(writer, stage, stage.slide)
    for box in stage.border:
        writer.fill(stage.memory, box.traversals, box.place, stage.value)
    if stage.slide is not None:
        x = stage.slide.traversal
        with ExitStack() as inside:
            env = writer.loops((x,), {}, inside, stage.slide)
            if x in stage.guards:
                inside.enter_context(T.If(tirx.Not(writer.holds(stage.guards[x], env))))
                inside.enter_context(T.Then())
                length = stage.size // x.extent
                fill_buffer_from(writer, stage, env[x] * length, length)
        return
    for x, guard in stage.guards.items():
        ends = ({x: tirx.const(n, "int32")} for n in (0, x.extent - 1))
        with T.If(tirx.any(*(tirx.Not(writer.holds(guard, end)) for end in ends))), T.Then():
            writer.fill(stage.memory, stage.traversals, stage.place, stage.value)


def fill_buffer_from(writer: BlockWriter, stage: BlockStage, start: TvmObject, length: int) -> None:
    """Store the padding value of *stage* into *length* elements of its memory from *start* on."""
    element = Iterator("@element", 0, length)
    begin = Iterator("@begin", 0, stage.size)
    inner = replace(writer, block={**writer.block, begin: start})
    inner.fill(stage.memory, (element,), as_index(begin) + element, stage.value)


def _move_kept(writer: BlockWriter, stage: BlockStage, slide: Slide) -> None:
    """Move the elements that the block before has computed to where this block reads them."""
    length = stage.size // slide.traversal.extent
    memory, lanes = writer.memory[stage.memory], writer.machine.lanes
    whole, rest = divmod(slide.kept * length, lanes)
    with T.If(tirx.Not(writer.is_first)), T.Then():
        for first, count, width in ((0, whole, lanes), (whole * lanes, rest, 1)):
            if count:
                with T.serial(count) as n, T.vectorized(width) as lane:
                    at = n * width + first + lane
                    T.buffer_store(memory, memory[at + slide.step * length], [at])


def _write_vectors(writer: BlockWriter, stage: BlockStage) -> None:
    """Write vectors along the last traversal, with all cases of the coefficients together."""
    stage, cases = split_cases(stage)
    last, lanes = stage.last, writer.machine.lanes
    outer = tuple(x for x in stage.traversals[:-1] if x not in cases)
    if last in stage.guards:  # a vector might lie across the border: one by one
        with ExitStack() as inside:
            _write_cases(writer, stage, cases, writer.loops((*outer, last), stage.guards, inside, stage.slide), 1)
        return
    for first, count, width in _vector_chunks(last, lanes):
        # Written with the chunk's number, an index tells where its neighbours are neighbours in memory.
        chunk = Iterator("@chunk", 0, count)
        to = {last: as_index(chunk) * width + lane_iterator(width) + (last.lo + first)}
        with ExitStack() as inside:
            _write_cases(
                writer,
                stage.over(stage.traversals, to),
                cases,
                writer.loops((*outer, chunk), stage.guards, inside, stage.slide),
                width,
            )


def lane_iterator(width: int) -> Iterator:
    """Return the iterator of the elements of a vector of *width*."""
    return Iterator("@lane", 0, width)


MAX_SHARED_VECTORS = 16
"""Vectors that several cases read and that are loaded once, at most: half of the registers."""


def _write_cases(
    writer: BlockWriter, stage: BlockStage, cases: tuple[Iterator, ...], env: Environment, width: int
) -> None:
    """Write a vector of *width* elements for each of *cases*; vectors that several of them read are loaded once."""
    every = [dict(zip(cases, values, strict=True)) for values in product(*(range(x.lo, x.hi) for x in cases))]
    bodies = [unrolled_body(stage, case) for case in every]
    held = {}
    for access in shared_vectors(bodies, lane_iterator(width)) if width > 1 else ():
        at = writer.at(access.index[0], {**env, lane_iterator(width): tirx.const(0, "int32")})
        held[access] = T.alloc_buffer((width,))
        store_vector(held[access], load_vector(writer.memory[tensor_name(access.source)], at, width), 0, width)
    for case, body in zip(every, bodies, strict=True):
        here = {**env, **{x: tirx.const(n, "int32") for x, n in case.items()}}
        _write_vector(writer, stage, body, here, width, held)


def shared_vectors(bodies: Sequence[Scalar | None], lane: Iterator) -> tuple[Access, ...]:
    """Return the accesses along *lane* that several of *bodies* read; none if these are too many for registers."""
    if None in bodies:
        return ()
    reads = Counter(access for body in bodies if body is not None for access in dict.fromkeys(accesses(body)))
    found = [
        access
        for access, times in reads.items()
        if times > 1 and isinstance(access.source, Tensor) and address_steps(access.index[0], lane) == {1}
    ]
    return tuple(found) if len(found) <= MAX_SHARED_VECTORS else ()


def _vector_chunks(last: Iterator, lanes: int) -> list[tuple[int, int, int]]:
    """Return (first, count, width) of the vectors along *last*: whole vectors, then the rest."""
    whole, rest = divmod(last.extent, lanes)
    return [(first, n, width) for first, n, width in ((0, whole, lanes), (whole * lanes, 1, rest)) if n * width]


def _write_vector(
    writer: BlockWriter,
    stage: BlockStage,
    body: Scalar | None,
    env: dict[Iterator, TvmObject],
    width: int,
    held: Mapping[Access, TvmObject],
) -> None:
    """Write the vector *body* of *stage*, or its sum in a loop if there is none; buffers of *held* reads are loaded."""
    memory = writer.memory[stage.memory]
    if body is not None:
        with T.vectorized(width) as lane:
            here = {**env, lane_iterator(width): lane}
            loaded = {access: buffer[lane] for access, buffer in held.items()}
            T.buffer_store(memory, writer.stored(stage, body, here, loaded), [writer.at(stage.place, here)])
        return
    total = T.alloc_buffer((width,))
    with T.vectorized(width) as lane:
        T.buffer_store(total, tirx.const(0.0, "float32"), [lane])
    with ExitStack() as inside:
        sums = writer.loops(stage.sums, {}, inside)
        with T.vectorized(width) as lane:
            here = {**env, **sums, lane_iterator(width): lane}
            T.buffer_store(total, total[lane] + writer.value(stage.body, here), [lane])
    with T.vectorized(width) as lane:
        here = {**env, lane_iterator(width): lane}
        summed = total[lane] if stage.epilogue is None else writer.value(stage.epilogue, here, {STAGE_SUM: total[lane]})
        T.buffer_store(memory, summed, [writer.at(stage.place, here)])
