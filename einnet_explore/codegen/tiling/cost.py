r"""A scope as a contraction with an epilogue, and the cost model and search of its tile sizes, after PlaidML.

.. math::  Y[\vec x] = g\Big(\vec x, \bigoplus_{\vec y} f(T[\tau(\vec x, \vec y)])\Big)

ReLU, bias and residual are in g: post-operations, fused into the kernel.  The cost model computes PlaidML's fields from
the flattened table alone:

.. math::
   \mathit{flops/byte} = \frac{to}{wg\,(il \cdot mr + mw)}, \qquad
   \mathit{score} = \min\!\Big(1, \frac{\mathit{flops/byte}}{goal}\Big) \min\!\Big(1, \frac{wg}{groups}\Big)
                    \min\!\Big(1, \frac{tu}{threads}\Big)

Source: PlaidML's automatic kernel generation (tile sizes), whose log ``TileCost.log`` prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from math import prod

from einnet_explore.analysis.flattening import FlattenedScope, flatten_scope
from einnet_explore.codegen.sum_of_products import SUM_RESULT, normalize_ranges, split_epilogue
from einnet_explore.codegen.tiling.shared_layout import (
    ThreadLayout,
    local_layout,
    merge_iterators,
    square_thread_layout,
    thread_layout,
    transaction_count,
)
from einnet_explore.ir import Access, Apply, Compare, Const, Scalar, Scope, Tensor, accesses


@dataclass(frozen=True)
class EpilogueContraction:
    """*core* reduces, over iterators that start at 0; *epilogue* reads ``SUM_RESULT`` for its value."""

    core: Scope
    epilogue: Scalar

    @cached_property
    def table(self) -> FlattenedScope:
        """The flattened core."""
        return flatten_scope(self.core)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are read, in order."""
        reads = (*accesses(self.core.body), *accesses(self.epilogue))
        return tuple(dict.fromkeys(a.source for a in reads if isinstance(a.source, Tensor) and a.source != SUM_RESULT))

    def problem(self, element: int = 4) -> TilingProblem:
        """Return the input of the cost model: a product and a sum at every point, and PlaidML's post-operations."""
        return TilingProblem(self.table, 2 + operation_count(self.epilogue), element)


def as_contraction(scope: Scope) -> EpilogueContraction:
    """Return *scope* as a contraction.

    Raises ValueError if it has a domain, or reads anything but tensors at addresses of degree one.
    """
    if scope.domain or not scope.traversals:
        raise ValueError(f"a scope with {len(scope.domain)} bounds and {len(scope.traversals)} traversals is not tiled")
    core, epilogue = normalize_ranges(*(split_epilogue(scope) or (scope, SUM_RESULT[()])))
    if core.domain:
        raise ValueError(f"a reduction with the domain {', '.join(map(repr, core.domain))} is not tiled")
    for access in (*accesses(core.body), *accesses(epilogue)):
        if not isinstance(access.source, Tensor):
            raise ValueError(f"{access!r} reads no tensor; a tiled kernel reads tensors only")
    made = EpilogueContraction(core, epilogue)
    _ = made.table
    return made


def operation_count(body: Scalar) -> int:
    """Return the operations of a scalar: a ReLU counts two, as in Tile, a comparison and a choice."""
    match body:
        case Apply(op, args):
            own = len(args) - 1 if op in ("+", "*") else 2 if op == "relu" else 1
            return own + sum(map(operation_count, args))
        case Access() | Const():
            return 0
        case Compare():
            return 1


@dataclass(frozen=True, slots=True)
class Hardware:
    """Resources of one work group and of the device; the defaults are those of PlaidML's document.

    *width*: bytes of one memory transaction. *memory*: bytes for a group's inputs, *registers*: bytes for its sums.
    *goal*: FLOPs a byte from which memory is no longer the bottleneck. *groups*: groups that fill the device.
    *square*: threads are spread over the result so that each holds a nearly square block, which minimises the elements
    read for each product. *stages*: tiles of inputs that are kept at a time, each of at most *memory* bytes: with two,
    the next one is copied asynchronously while the previous one is used.
    """

    threads: int = 256
    width: int = 32
    memory: int = 16384
    registers: int = 16384
    goal: float = 20
    groups: int = 20
    square: bool = False
    stages: int = 1

    def __post_init__(self) -> None:
        if self.threads < 1 or self.threads & (self.threads - 1):
            raise ValueError(f"{self.threads} threads, expected a power of two")
        if self.stages not in (1, 2):
            raise ValueError(f"{self.stages} stages, expected 1 or 2")
        least = min(self.width, self.memory, self.registers, self.goal, self.groups)
        if least <= 0:
            raise ValueError(f"{self!r}: expected positive numbers, found {least}")

    def spread_threads(self, table: FlattenedScope, tile: Sequence[int]) -> ThreadLayout:
        """Return the layout of the threads of a group over *tile*."""
        return (square_thread_layout if self.square else thread_layout)(table, tile, self.threads)


TileSizes = tuple[int, ...]


@dataclass(frozen=True)
class TilingProblem:
    """A flattened contraction, the operations at each of its points, and the bytes of an element.

    *operations* counts two for a multiply-add, and those after the sum: PlaidML counts them with every product.
    """

    table: FlattenedScope
    operations: int = 2
    element: int = 4

    def __hash__(self) -> int:
        return self._hash  # thousands of tile sizes are looked up by it

    @cached_property
    def _hash(self) -> int:
        return hash((self.table, self.operations, self.element))

    @property
    def products(self) -> int:
        """Points of the iteration space: multiply-accumulates."""
        return prod(self.table.ranges)


@dataclass(frozen=True)
class TileCost:
    """*tile*, a size for every row of the table, on *hardware*; bytes and counts are those of one group."""

    tile: TileSizes
    hardware: Hardware
    to: int
    """All operations."""
    wg: int
    """Work groups: tiles along the result."""
    il: int
    """Inner loops: tiles of inputs that a group loads in sequence."""
    sm: int
    """Bytes of inputs that are kept at a time."""
    out: int
    """Bytes of sums (``or`` in the log): every thread has its own."""
    mr: int
    """Bytes read in an inner loop, in whole transactions."""
    mw: int
    """Bytes written in the end."""
    op: int
    """Threads with work."""
    rp: int
    """Doublings of the threads that share a result and roll it up."""
    tu: int
    """Threads in use."""

    @property
    def rejected(self) -> str:
        """The reason why this size is impossible; empty if it is possible."""
        if self.sm > self.hardware.memory:
            return "over memory"
        return "over regs" if self.out > self.hardware.registers else ""

    @property
    def flops_per_byte(self) -> float:
        """Operations for each byte moved."""
        return self.to / (self.wg * (self.il * self.mr + self.mw))

    @property
    def occupancy(self) -> int:
        """Groups that count: at most as many as fill the device."""
        return min(self.wg, self.hardware.groups)

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Progress to the goal: FLOPs a byte, groups, threads; each at most 1."""
        h = self.hardware
        return min(self.flops_per_byte, h.goal) / h.goal, self.occupancy / h.groups, min(self.tu, h.threads) / h.threads

    @cached_property
    def score(self) -> float:
        """The product of the ratios; -1 for an impossible size."""
        return -1.0 if self.rejected else prod(self.ratios)

    def log(self) -> str:
        """Return PlaidML's log of the search for a size."""
        fields = {"to": self.to, "wg": self.wg, "il": self.il, "sm": self.sm, "or": self.out, "mr": self.mr}
        fields |= {"mw": self.mw, "op": self.op, "rp": self.rp, "tu": self.tu}
        said = " ".join(f"{k}={v}" for k, v in fields.items())
        lines = [f"Computing cost for tile size: {list(self.tile)}", f"  Compute score: {said}"]
        if self.rejected:
            return "\n".join((*lines, f"  {self.rejected}"))
        roof, occ, thread = self.ratios
        lines.append(f"  flops_per_byte={self.flops_per_byte:.6g} occupancy={self.occupancy}")
        lines.append(f"  roof_ratio={roof:.6g} occ_ratio={occ:.6g} thread_ratio={thread:.6g} score={self.score:.6g}")
        return "\n".join(lines)


def tile_cost(problem: TilingProblem, tile: Sequence[int], hardware: Hardware) -> TileCost:
    """Return the cost of *tile*, one size for every row of the table.

    Raises ValueError if a size is below 1 or exceeds the range of its row.
    """
    table = problem.table
    if len(tile) != len(table.rows) or not all(1 <= t <= n for t, n in zip(tile, table.ranges, strict=True)):
        raise ValueError(f"tile size {list(tile)}: expected one for each of the ranges {list(table.ranges)}, within it")
    counts = [-(-n // t) for n, t in zip(table.ranges, tile, strict=True)]
    wg = prod(c for c, r in zip(counts, table.rows, strict=True) if r.output)
    inputs = [_column_bytes(problem, n, _column_tile(table, n, tile), hardware) for n in range(1, len(table.columns))]
    outputs, sums = _thread_counts(problem, _result_tile(table, tile), hardware)
    op = min(hardware.threads, prod(tile))
    return TileCost(
        tuple(tile),
        hardware,
        problem.products * problem.operations,
        wg,
        prod(counts) // wg,
        sum(kept for kept, _ in inputs),
        hardware.threads * sums * problem.element,
        sum(read for _, read in inputs),
        _column_bytes(problem, 0, _column_tile(table, 0, tile), hardware)[1],
        op,
        max(0, (op // outputs).bit_length() - 1),
        max(op, outputs),
    )


def _column_tile(table: FlattenedScope, column: int, tile: Sequence[int]) -> TileSizes:
    """Return *tile* for the rows that move *column*, 1 elsewhere: the column's cost depends on those only."""
    moving = table.moving[column]
    return tuple(t if n in moving else 1 for n, t in enumerate(tile))


def _result_tile(table: FlattenedScope, tile: Sequence[int]) -> TileSizes:
    return tuple(t if r.output else 1 for t, r in zip(tile, table.rows, strict=True))


@lru_cache(1 << 16)
def _column_bytes(problem: TilingProblem, column: int, tile: TileSizes, hardware: Hardware) -> tuple[int, int]:
    """(bytes kept, bytes in transactions) of a column."""
    table = problem.table
    lines = transaction_count(merge_iterators(table, table.columns[column], tile), hardware.width, problem.element)
    kept = local_layout(table, table.columns[column], tile).size * problem.element
    return kept, lines * hardware.width


@lru_cache(1 << 14)
def _thread_counts(problem: TilingProblem, results: TileSizes, hardware: Hardware) -> tuple[int, int]:
    """(threads along the result, sums that each holds)."""
    layout = hardware.spread_threads(problem.table, results)
    return layout.outputs, prod(layout.steps(results))


@dataclass(frozen=True)
class TileSearch:
    """All *visited* sizes in order, rejected ones included, and the *chosen* one."""

    visited: tuple[TileCost, ...]
    chosen: TileCost

    @property
    def ties(self) -> int:
        """The number of visited sizes with the chosen one's score."""
        return sum(c.score == self.chosen.score for c in self.visited)


def search_best_first(problem: TilingProblem, hardware: Hardware) -> TileSearch:
    """Start from 1 in every direction and double the best size so far in each; ties prefer the larger size.

    The search ends when the next size has the best score and all its doublings have been visited. The last visited of
    the best sizes is chosen. Raises ValueError if not even single elements fit.
    """
    first = _smallest_tile(problem, hardware)
    seen, visited = {first.tile}, [first]
    best = first.score
    heap = [_heap_entry(first)]
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
                heappush(heap, _heap_entry(found))
    return TileSearch(tuple(visited), next(c for c in reversed(visited) if c.score == best))


def _smallest_tile(problem: TilingProblem, hardware: Hardware) -> TileCost:
    if 0 in problem.table.ranges:
        raise ValueError(f"ranges {list(problem.table.ranges)}: there is nothing to cut into tiles")
    first = tile_cost(problem, (1,) * len(problem.table.rows), hardware)
    if first.rejected:
        raise ValueError(
            f"single elements are {first.rejected}: they take {first.sm} bytes of inputs and {first.out} of sums, "
            f"there are {hardware.memory} and {hardware.registers}"
        )
    return first


def _doublings(problem: TilingProblem, tile: TileSizes) -> Iterable[TileSizes]:
    for n, (t, most) in enumerate(zip(tile, problem.table.ranges, strict=True)):
        if t < most:
            yield (*tile[:n], min(2 * t, most), *tile[n + 1 :])


def _heap_entry(cost: TileCost) -> tuple[float, tuple[int, ...], TileCost]:
    return -cost.score, tuple(-t for t in cost.tile), cost
