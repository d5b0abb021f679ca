"""Looking for a tile size: best-first as PlaidML does, or every size there is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from einnet_explore.kernels.tiling.cost import Problem, Tile, TileCost, tile_cost
from einnet_explore.kernels.tiling.hardware import Hardware


@dataclass(frozen=True)
class TileSearch:
    """Every size that was *visited*, in that order, rejected ones too, and the one that was *chosen*."""

    visited: tuple[TileCost, ...]
    chosen: TileCost

    @property
    def ties(self) -> int:
        """How many of the visited are as good as the chosen one."""
        return sum(c.score == self.chosen.score for c in self.visited)


def best_first(problem: Problem, hardware: Hardware) -> TileSearch:
    """From 1 in every direction, the best size so far is doubled in each; equal scores: the larger size in order.

    It ends where the size that is up next is as good as any, and every doubling of it has been looked at.  The last
    visited of the best sizes is chosen.  Raises ValueError where not even single elements fit.
    """
    first = _started(problem, hardware)
    seen, visited = {first.tile}, [first]
    best = first.score
    heap = [_ranked(first)]
    while heap:
        *_, cost = heappop(heap)
        unseen = [t for t in _doublings(problem, cost.tile) if t not in seen]
        if not unseen and cost.score >= best:
            break
        for tile in unseen:
            found = tile_cost(problem, tile, hardware)
            seen.add(tile)
            visited.append(found)
            best = max(best, found.score)
            if not found.rejected:
                heappush(heap, _ranked(found))
    return TileSearch(tuple(visited), next(c for c in reversed(visited) if c.score == best))


def exhaustive(problem: Problem, hardware: Hardware) -> TileSearch:
    """Every size that doublings come to; rejected ones are not doubled, as nothing larger fits either.

    Of equal scores the one with most FLOPs a byte is chosen, then with fewest bytes of inputs kept, then the first in
    order.  Raises ValueError where not even single elements fit.
    """
    first = _started(problem, hardware)
    found, todo = {first.tile: first}, [first]
    while todo:
        for tile in _doublings(problem, todo.pop().tile):
            if tile not in found:
                found[tile] = cost = tile_cost(problem, tile, hardware)
                if not cost.rejected:
                    todo.append(cost)
    good = (c for c in found.values() if not c.rejected)
    chosen = min(good, key=lambda c: (-c.score, -c.flops_per_byte, c.sm, c.tile))
    return TileSearch(tuple(found.values()), chosen)


def _started(problem: Problem, hardware: Hardware) -> TileCost:
    if 0 in problem.table.ranges:
        raise ValueError(f"ranges {list(problem.table.ranges)}: there is nothing to cut into tiles")
    first = tile_cost(problem, (1,) * len(problem.table.rows), hardware)
    if first.rejected:
        raise ValueError(
            f"single elements are {first.rejected}: they take {first.sm} bytes of inputs and {first.out} of sums, "
            f"there are {hardware.memory} and {hardware.registers}"
        )
    return first


def _doublings(problem: Problem, tile: Tile) -> Iterable[Tile]:
    for n, (t, most) in enumerate(zip(tile, problem.table.ranges, strict=True)):
        if t < most:
            yield (*tile[:n], min(2 * t, most), *tile[n + 1 :])


def _ranked(cost: TileCost) -> tuple[float, tuple[int, ...], TileCost]:
    return -cost.score, tuple(-t for t in cost.tile), cost
