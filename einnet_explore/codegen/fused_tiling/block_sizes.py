"""Blocks of a chain: its stages in the coordinates of one block, and block sizes by estimated cycles.

In a block, iterators are counted from its start and tensors are flat memory.  Cycles count the products, the data
between stages, and the weights.

A cut of the whole chain along the result's columns (the channels of a convolution) would recompute the stages before a
product for every block; a cut along the other traversals makes every block read all weights of the product.  In two
parts, one after the other with a barrier between them, each part is cut by what its blocks share: first the transformed
input, then the columns of the product and the stages after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from einnet_explore.analysis.fused_chain import Chain, Cut, Region, Stage, find_chain, range_inside
from einnet_explore.analysis.indices import substitute
from einnet_explore.codegen.language.lowering import flat_index, tensor_name
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.codegen.tvm.emission import VectorTile
from einnet_explore.ir import (
    Access,
    Bound,
    Index,
    IndexLike,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    factors,
    map_accesses,
)
from einnet_explore.support.errors import Refused


@dataclass(frozen=True)
class BlockStage:
    """A stage: for all *traversals*, *memory* at *place* is the sum of *body* over *sums*.

    Every access of *body* except those to tables has one index, a position in flat memory. *border* are boxes of
    positions with the padding *value*; *guards* restrict the values of a traversal for which the stage is computed.
    """

    memory: str
    traversals: tuple[Iterator, ...]
    sums: tuple[Iterator, ...]
    body: Scalar
    place: Index
    size: int
    value: float
    guards: Mapping[Iterator, Bound]
    border: tuple[tuple[Iterator, ...], ...]

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        """The reads without those of tables, each once."""
        return tuple(dict.fromkeys(a for a in accesses(self.body) if not isinstance(a.source, Table)))

    @property
    def last(self) -> Iterator:
        """The innermost traversal."""
        return self.traversals[-1]

    def over(self, traversals: tuple[Iterator, ...], to: Mapping[Iterator, IndexLike]) -> BlockStage:
        """Return the stage in loops over *traversals*, with other iterators replaced by *to*."""
        place = self.place.substitute(lambda x: to.get(x, x))
        return replace(self, traversals=traversals, body=substitute(self.body, to), place=place)


RESULT_MEMORY = "#result"
"""The memory that the last stage writes."""


def block_stages(chain: Chain, cuts: tuple[Cut, ...], memory: Callable[[Tensor], str]) -> tuple[BlockStage, ...]:
    """Return the stages of *chain* for one block of *cuts*; *memory* names the flat memory of a tensor."""
    regions = chain.regions(cuts)
    return tuple(block_stage(chain, stage, regions, memory) for stage in chain.stages)


def block_stage(
    chain: Chain, stage: Stage, regions: Mapping[str, Region], memory: Callable[[Tensor], str]
) -> BlockStage:
    """Return *stage* of *chain* for one block, which needs *regions*."""
    scope, region = stage.scope, regions[stage.name]
    last = stage is chain.result
    own, guards, border = _block_loops(chain, stage, region)
    to = {x: origin + y for x, origin, y in zip(scope.traversals, region.origin, own, strict=True)}

    def flat(access: Access) -> Access:
        match access.source:
            case Table():
                return access
            case Tensor(name) as t if name.startswith("#"):
                r = regions[name]
                return _flat_access(name, access.index, r.origin, r.extent)
            case Tensor() as t:
                return _flat_access(memory(t), access.index, tuple(as_index(lo) for lo, _ in t.box), t.shape)
        raise TypeError(f"{access!r} reads a scope")

    body = map_accesses(substitute(scope.body, to), flat)
    if last:
        name, at, shape = RESULT_MEMORY, tuple(to[x] - x.lo for x in scope.traversals), scope.shape
    else:
        name, at, shape = stage.name, tuple(map(as_index, own)), region.extent
    place = flat_index(at, shape)
    return BlockStage(name, tuple(own), scope.summations, body, place, prod(shape), scope.value, guards, tuple(border))


def _block_loops(
    chain: Chain, stage: Stage, region: Region
) -> tuple[list[Iterator], dict[Iterator, Bound], list[tuple[Iterator, ...]]]:
    """Return the traversals of a block of *region*, their guards, and the boxes of padding around them."""
    scope = stage.scope
    own: list[Iterator] = []
    guards: dict[Iterator, Bound] = {}
    border: list[tuple[Iterator, ...]] = []
    outside = {
        x
        for a in accesses(scope.body)
        if isinstance(a.source, Tensor) and not a.source.name.startswith("#")
        for i in a.index
        for x in i.iterators
    }
    padding = scope.padding or ((0, 0),) * len(scope.traversals)
    for d, (x, origin, extent) in enumerate(zip(scope.traversals, region.origin, region.extent, strict=True)):
        if not origin.terms:
            lo, hi = range_inside(x, origin, extent)
            y = Iterator(x.name, lo, max(lo, hi))
            for a, b in ((0, lo), (max(lo, hi), extent)):
                if a < b:
                    full = [Iterator(z.name, 0, n) for z, n in zip(scope.traversals, region.extent, strict=True)]
                    full[d] = Iterator(x.name, a, b)
                    border.append(tuple(full))
        else:
            y = Iterator(x.name, 0, extent)
            where = origin + y
            least, most = where.bounds
            if (least < x.lo or most >= x.hi) and (stage is chain.result or x in outside or any(padding[d])):
                guards[y] = Bound(where, x.lo, x.hi)
        own.append(y)
    return own, guards, border


def _flat_access(name: str, index: tuple[Index, ...], origin: tuple[Index, ...], shape: tuple[int, ...]) -> Access:
    place = flat_index(tuple(i - o for i, o in zip(index, origin, strict=True)), shape)
    return Access(Tensor(name, (prod(shape),)), (place,))


def collapse_loops(stage: BlockStage) -> BlockStage:
    """Collapse neighbouring traversals of *stage* whose positions are consecutive in every tensor."""
    n = 0
    while n + 1 < len(stage.traversals):
        outer, inner = stage.traversals[n : n + 2]
        places = (stage.place, *(i for a in accesses(stage.body) for i in a.index))
        plain = {outer, inner}.isdisjoint(stage.guards) and not (outer.lo or inner.lo) and not stage.border
        if plain and all(_is_consecutive(i, outer, inner) for i in places):
            both = Iterator(f"{outer.name}.{inner.name}", 0, outer.extent * inner.extent)
            to = {outer: both // inner.extent, inner: both % inner.extent}
            stage = stage.over((*stage.traversals[:n], both, *stage.traversals[n + 2 :]), to)
        else:
            n += 1
    return stage


def _is_consecutive(index: Index, outer: Iterator, inner: Iterator) -> bool:
    k = index.coefficient(inner)
    rest = index - as_index(inner) * k - as_index(outer) * (k * inner.extent)
    return outer not in rest.iterators and inner not in rest.iterators


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


def product_tile(stage: BlockStage, product: StageProduct, machine: Machine) -> VectorTile:
    """Return the tile in which *product*, which *stage* is, is computed."""
    return choose_vector_tile(product.count, stage.last.extent // machine.lanes, sum_length(stage), machine)


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


def sum_length(stage: BlockStage) -> int:
    """Return the number of products in a sum of *stage*."""
    return prod(y.extent for y in stage.sums)


def exceeds_cache(stage: BlockStage, product: StageProduct, machine: Machine) -> bool:
    """True if the columns read an input of more than half of the second-level cache."""
    return not is_stage_result(product.right) and _read_bytes(stage, product.right) > machine.l2 // 2


def is_stage_result(access: Access) -> bool:
    """True if *access* reads the result of a stage, of this part or of the one before."""
    return tensor_name(access.source).startswith("#") or is_earlier_result(access)


def is_earlier_result(access: Access) -> bool:
    """True if *access* reads the result of the part before."""
    return tensor_name(access.source).startswith("@#")


def _read_bytes(stage: BlockStage, access: Access) -> int:
    """Return the bytes that *access* reads in a block of *stage*."""
    moving = {x for i in access.index for x in i.iterators}
    return 4 * prod(x.extent for x in (*stage.traversals, *stage.sums) if x in moving)


@dataclass(frozen=True, slots=True)
class ChainPart:
    """A *chain* in blocks of *cuts*, whose result is stored as *memory*."""

    chain: Chain
    cuts: tuple[Cut, ...] = ()
    memory: str = RESULT_MEMORY

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return prod(cut.blocks for cut in self.cuts)

    @property
    def size(self) -> int:
        """Elements of the result."""
        return prod(self.chain.result.scope.shape)


def split_chain(chain: Chain) -> Iterable[tuple[ChainPart, ChainPart]]:
    """Split *chain* in two parts: the stages that compute the input of a product, and the product with later stages.

    The second part reads only the last stage of the first, which must compute something.
    """
    for n, stage in enumerate(chain.stages[:-1]):
        before, after = chain.stages[: n + 1], chain.stages[n + 1 :]
        earlier = {s.name for s in before} - {stage.name}
        readers = [s for s in after if stage.name in _read_names(s)]
        alone = not any(earlier & _read_names(s) for s in after)
        if stage.scope.padding or not alone or not any(s.product for s in readers):
            continue
        kept = replace(stage.tensor, name=f"@{stage.name}")
        yield (
            ChainPart(Chain(before), (), kept.name),
            ChainPart(Chain(tuple(_with_read(s, stage.name, kept) for s in after))),
        )


def _read_names(stage: Stage) -> set[str]:
    return {a.source.name for a in accesses(stage.scope.body) if isinstance(a.source, Tensor)}


def _with_read(stage: Stage, name: str, kept: Tensor) -> Stage:
    def redirect(access: Access) -> Scalar:
        match access.source:
            case Tensor(own) if own == name:
                return Access(kept, access.index)
        return access

    return replace(stage, scope=replace(stage.scope, body=map_accesses(stage.scope.body, redirect)))


MAX_REPEATED_WORK = 1.4
"""Factor by which neighbouring blocks may increase the work of all stages by computing the same elements."""

BLOCK_PERIODS = (*range(1, 17), 24, 32, 48, 64, 128, 256)
"""Periods of a block."""

BLOCKS_PER_THREAD = (1, 2, 3, 4, 6, 8, 12, 16)
"""Blocks of each of several threads."""

CACHE_SHARE = 0.75
"""Fraction of the second-level cache that two neighbouring stages may fill."""

WAKE_CYCLES = 10_000.0
"""Cycles to wake threads for a part and to synchronise them."""

L3_SLOWDOWN, MEMORY_SLOWDOWN = 2, 4
"""Slowdown of reads from the last cache and from memory, relative to the second-level cache."""


@lru_cache(256)
def tileable_chain(scope: Scope, machine: Machine) -> Chain | None:
    """Return *scope* as a chain with vector products and other stages around them, or None."""
    try:
        found = find_chain(scope)
    except Refused:
        return None
    if len(found.stages) == 1 or not any(s.product for s in found.stages):
        return None
    stages = zip(found.stages, block_stages(found, (), lambda tensor: tensor.name), strict=True)
    runs = (at.traversals and (not s.product or match_product(at, machine.lanes)) for s, at in stages)
    return found if all(runs) else None  # a stage of rank 0 has no traversal for vectors to run along


@lru_cache(256)
def choose_parts(chain: Chain, threads: int, machine: Machine) -> tuple[ChainPart, ...]:
    """Return *chain* in one part or in two, each by the cuts with the fewest cycles."""
    ways: list[tuple[ChainPart, ...]] = [(ChainPart(chain),)]
    if threads > 1:
        ways += split_chain(chain)
    found = [tuple(replace(p, cuts=choose_cuts(p.chain, threads, machine)) for p in way) for way in ways]
    return min(found, key=lambda way: sum(_chain_cycles(p.chain, p.cuts, threads, machine) for p in way))


@lru_cache(256)
def choose_cuts(chain: Chain, threads: int, machine: Machine) -> tuple[Cut, ...]:
    """Return the cuts with the fewest cycles: traversals in order, the last cut in blocks of any size.

    With several threads the vector dimension of products may be cut first, in at most one block a thread.
    """
    own = chain.cuts()
    fit = tuple(cut for cut in own if _keeps_vectors(chain, (cut,), machine))
    columns = (c for cut in own if threads > 1 and cut not in fit for c in _column_cuts(chain, cut, threads, machine))
    found = (c for first in ((), *columns) for c in _candidate_cuts(chain, first, fit, threads))
    return min(
        found, key=lambda cuts: (_chain_cycles(chain, cuts, threads, machine), -_tile_sums(chain, cuts, machine))
    )


def _tile_sums(chain: Chain, cuts: tuple[Cut, ...], machine: Machine) -> int:
    """Return the number of sums in the tiles of products: at equal cost, wide tiles read longer runs of memory."""
    stages = block_stages(chain, cuts, lambda tensor: tensor.name)
    found = ((s, product) for s in stages if (product := match_product(s, machine.lanes)) is not None)
    return sum(tile.rows * tile.vectors for tile in (product_tile(*each, machine) for each in found))


def _column_cuts(chain: Chain, cut: Cut, threads: int, machine: Machine) -> Iterable[tuple[Cut, ...]]:
    """Yield cuts of the traversal of *cut* into at most *threads* blocks that keep products vectorised."""
    x, period = cut.traversal, machine.lanes
    while 2 * period <= x.extent and not _keeps_vectors(chain, (chain.make_cut(x, period, 1),), machine):
        period *= 2
    periods = x.extent // period
    if x.extent % period == 0:
        for size in (n for n in range(1, periods) if periods % n == 0 and periods // n <= threads):
            if _keeps_vectors(chain, cuts := (chain.make_cut(x, period, size),), machine):
                yield cuts


def _keeps_vectors(chain: Chain, cuts: tuple[Cut, ...], machine: Machine) -> bool:
    """True if every product stays a vector product for a block of *cuts*."""
    regions = chain.regions(cuts)
    at = (block_stage(chain, s, regions, lambda tensor: tensor.name) for s in chain.stages if s.product)
    return all(match_product(stage, machine.lanes) for stage in at)


def _candidate_cuts(
    chain: Chain, first: tuple[Cut, ...], own: tuple[Cut, ...], threads: int
) -> Iterable[tuple[Cut, ...]]:
    """Yield *first*, followed by cuts of the traversals that *own* cuts, in their order."""
    yield first
    whole = _computed_points(chain, ())
    outer = first
    for cut in own:
        x = cut.traversal
        if x == chain.result.scope.traversals[-1] and x.extent % cut.period:
            continue  # vectors would lie across the result's border
        # What blocks of one period do again, larger ones may not; one thread has no use for these.
        least = (*outer, cut)
        often = _computed_points(chain, least) > MAX_REPEATED_WORK * whole
        if often and threads == 1:
            continue
        for size in _block_periods(cut.periods, threads):
            # Of the parts that an index counts in, a block may be one; one of several periods lies across them.
            shapes = ((cut.period, size), (cut.period * size, 1))
            for period, count in shapes if often and cut.periods % size == 0 else shapes[:1]:
                cuts = (*outer, chain.make_cut(x, period, count))
                if not often or _computed_points(chain, cuts) <= MAX_REPEATED_WORK * whole:
                    yield cuts
                    break
        outer = outer if often else least


def _block_periods(periods: int, threads: int) -> Iterable[int]:
    """Return periods of a block: fixed ones, or those that give every thread equally many blocks."""
    sizes = BLOCK_PERIODS if threads == 1 else {-(-periods // (n * threads)) for n in BLOCKS_PER_THREAD}
    return sorted(n for n in sizes if n < periods)


def _computed_points(chain: Chain, cuts: tuple[Cut, ...]) -> int:
    regions = chain.regions(cuts)
    return prod(c.blocks for c in cuts) * sum(regions[s.name].points for s in chain.stages)


def _chain_cycles(chain: Chain, cuts: tuple[Cut, ...], threads: int, machine: Machine) -> float:
    stages = tuple(map(collapse_loops, block_stages(chain, cuts, lambda tensor: tensor.name)))
    blocks = prod(c.blocks for c in cuts)
    rounds = -(-blocks // threads)
    sizes = {s.memory: 4 * s.size for s in stages[:-1]}
    total, before = WAKE_CYCLES if threads > 1 and blocks > 1 else 0.0, 0
    for stage in stages:
        made = sizes.get(stage.memory, 0)
        total += _stage_cycles(stage, rounds, machine)
        if made + before > CACHE_SHARE * machine.l2:
            total += rounds * 2 * made / (machine.l2_bytes / 2)
        before = made
    return total


def _stage_cycles(stage: BlockStage, rounds: int, machine: Machine) -> float:
    """Return the cycles of a stage for so many blocks: a product's tiles and loads, or the stage's vectors."""
    found = match_product(stage, machine.lanes)
    points = prod(x.extent for x in stage.traversals)
    if found is None:
        return rounds * points / machine.lanes * 2
    vectors, depth = stage.last.extent // machine.lanes, sum_length(stage)
    tile = product_tile(stage, found, machine)
    again = depth * points // (found.count * stage.last.extent)
    work = again * product_cycles(tile, found.count, vectors, depth, machine)
    if is_earlier_result(found.left):  # by other threads
        work += _read_bytes(stage, found.left) / (machine.l2_bytes / L3_SLOWDOWN)
    if not exceeds_cache(stage, found, machine):
        return rounds * work
    # The other layers of a model have used the last cache since: the first block reads from memory.
    size = _read_bytes(stage, found.right)
    first = size / (machine.l2_bytes / MEMORY_SLOWDOWN)
    others = size / (machine.l2_bytes / (L3_SLOWDOWN if 2 * size <= machine.l3 else MEMORY_SLOWDOWN))
    return max(work, first) + (rounds - 1) * max(work, others)
