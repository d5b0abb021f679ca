"""Block sizes of a chain, by estimated cycles of its products, of the data between stages, and of its weights.

A cut of the whole chain along the result's columns (the channels of a convolution) would recompute the stages before a
product for every block; a cut along the other traversals makes every block read all weights of the product.  In two
parts, one after the other with a barrier between them, each part is cut by what its blocks share: first the transformed
input, then the columns of the product and the stages after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from einnet_explore.analysis.fused_chain import Chain, Cut, Stage, find_chain
from einnet_explore.codegen.fused_tiling.block_view import (
    RESULT_MEMORY,
    BlockStage,
    block_stage,
    block_stages,
    collapse_loops,
)
from einnet_explore.codegen.fused_tiling.product import (
    StageProduct,
    choose_vector_tile,
    column_bytes,
    exceeds_cache,
    is_earlier_result,
    match_product,
    product_cycles,
    sum_length,
)
from einnet_explore.codegen.machine import Machine
from einnet_explore.ir import Access, Scalar, Scope, Tensor, accesses, map_accesses
from einnet_explore.support.errors import Refused


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
    def read(access: Access) -> Scalar:
        match access.source:
            case Tensor(own) if own == name:
                return Access(kept, access.index)
        return access

    return replace(stage, scope=replace(stage.scope, body=map_accesses(stage.scope.body, read)))


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
    return min(found, key=lambda cuts: _chain_cycles(chain, cuts, threads, machine))


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
    tile = choose_vector_tile(found.count, vectors, depth, machine)
    again = depth * points // (found.count * stage.last.extent)
    work = again * product_cycles(tile, found.count, vectors, depth, machine)
    work += _left_bytes(stage, found) / (machine.l2_bytes / L3_SLOWDOWN)
    if not exceeds_cache(stage, found, machine):
        return rounds * work
    # The other layers of a model have used the last cache since: the first block reads from memory.
    size = column_bytes(stage, found)
    first = size / (machine.l2_bytes / MEMORY_SLOWDOWN)
    others = size / (machine.l2_bytes / (L3_SLOWDOWN if 2 * size <= machine.l3 else MEMORY_SLOWDOWN))
    return max(work, first) + (rounds - 1) * max(work, others)


def _left_bytes(stage: BlockStage, product: StageProduct) -> int:
    """Return the bytes of other threads' results that the rows of *product* read."""
    if not is_earlier_result(product.left):
        return 0
    moving = {x for i in product.left.index for x in i.iterators}
    return 4 * prod(x.extent for x in (*stage.traversals, *stage.sums) if x in moving)
