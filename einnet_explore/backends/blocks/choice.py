"""How a chain is cut: by the estimated cycles of its products, of what stands between stages, and of its weights."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod

from einnet_explore.algebra.chain import Chain, Cut, Unfit, chain
from einnet_explore.backends.blocks.local import Local, joined, locals_of
from einnet_explore.backends.blocks.product import beyond, columns_bytes, cycles, depth_of, product_of, tile_of
from einnet_explore.ir import Scope
from einnet_explore.kernels.machine import Machine

REPEATED = 1.4
"""Work of all stages together may grow by so much where neighbouring blocks need the same."""

SIZES = (*range(1, 17), 24, 32, 48, 64, 128, 256)
"""Periods of a block."""

PART = 0.75
"""The part of the second-level cache that two neighbouring stages may fill."""

LAST, MEMORY = 2, 4
"""How many times as long as from the second-level cache reading takes from the last one, and from memory."""


@lru_cache(256)
def blocked(scope: Scope, machine: Machine) -> Chain | None:
    """*scope* as a chain with products in vectors in it and something before or after them; None where it is none."""
    try:
        found = chain(scope)
    except Unfit:
        return None
    if len(found.stages) == 1 or not any(s.product for s in found.stages):
        return None
    stages = zip(found.stages, locals_of(found, (), lambda tensor: tensor.name), strict=True)
    runs = (at.traversals and (not s.product or product_of(at, machine.lanes)) for s, at in stages)
    return found if all(runs) else None  # a stage of rank 0 has no traversal for vectors to run along


@lru_cache(256)
def cuts_of(chain: Chain, threads: int, machine: Machine) -> tuple[Cut, ...]:
    """The cuts with the fewest cycles: traversals in their order, the last one that is cut in blocks of any size."""
    return min(_candidates(chain), key=lambda cuts: _cycles(chain, cuts, threads, machine))


def _candidates(chain: Chain) -> Iterable[tuple[Cut, ...]]:
    yield ()
    whole = _points(chain, ())
    outer: tuple[Cut, ...] = ()
    for cut in chain.cuts():
        x = cut.traversal
        uneven = x == chain.result.scope.traversals[-1] and x.extent % cut.period
        if uneven or _points(chain, (*outer, cut)) > REPEATED * whole:  # vectors would lie across the result's border
            continue
        for size in (n for n in SIZES if n < cut.periods):
            yield (*outer, chain.cut(cut.traversal, cut.period, size))
        outer = (*outer, cut)


def _points(chain: Chain, cuts: tuple[Cut, ...]) -> int:
    regions = chain.regions(cuts)
    return prod(c.blocks for c in cuts) * sum(regions[s.name].points for s in chain.stages)


def _cycles(chain: Chain, cuts: tuple[Cut, ...], threads: int, machine: Machine) -> float:
    stages = tuple(map(joined, locals_of(chain, cuts, lambda tensor: tensor.name)))
    rounds = -(-prod(c.blocks for c in cuts) // threads)
    sizes = {s.memory: 4 * s.size for s in stages[:-1]}
    total, before = 0.0, 0
    for stage in stages:
        made = sizes.get(stage.memory, 0)
        total += _of(stage, rounds, machine)
        if made + before > PART * machine.l2:
            total += rounds * 2 * made / (machine.l2_bytes / 2)
        before = made
    return total


def _of(stage: Local, rounds: int, machine: Machine) -> float:
    """Cycles of one stage of so many blocks: a product's tiles, or reading its other factor; else its vectors."""
    found = product_of(stage, machine.lanes)
    points = prod(x.extent for x in stage.traversals)
    if found is None:
        return rounds * points / machine.lanes * 2
    vectors, depth = stage.last.extent // machine.lanes, depth_of(stage)
    tile = tile_of(found.count, vectors, depth, machine)
    again = depth * points // (found.count * stage.last.extent)
    work = again * cycles(tile, found.count, vectors, depth, machine)
    if not beyond(stage, found, machine):
        return rounds * work
    # The other layers of a model have used the last cache since: the first block reads from memory.
    size = columns_bytes(stage, found)
    first = size / (machine.l2_bytes / MEMORY)
    others = size / (machine.l2_bytes / (LAST if 2 * size <= machine.l3 else MEMORY))
    return max(work, first) + (rounds - 1) * max(work, others)
