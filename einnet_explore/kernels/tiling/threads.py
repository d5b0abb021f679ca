"""How the threads of a group share the iterators of a tile: in powers of two, neighbours in memory first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from einnet_explore.algebra.flattening import Flattened


@dataclass(frozen=True, slots=True)
class ThreadLayout:
    """Threads along every row of the table; *order* is that in which a thread's number is taken apart, fastest first.

    Threads along summations hold partial sums of the same results, which are rolled up at the end.
    """

    counts: tuple[int, ...]
    order: tuple[int, ...]
    outputs: int
    """Threads along the result."""

    @property
    def threads(self) -> int:
        """All threads that work."""
        return prod(self.counts)

    @property
    def lanes(self) -> int:
        """Threads that share one result."""
        return self.threads // self.outputs

    def steps(self, tile: Sequence[int]) -> tuple[int, ...]:
        """How many values of each row a thread goes through."""
        return tuple(-(-t // n) for t, n in zip(tile, self.counts, strict=True))


ROW = 16
"""Neighbouring threads along the result's smallest step, at least: what they write is whole transactions."""


def thread_layout(table: Flattened, tile: Sequence[int], threads: int, square: bool = False) -> ThreadLayout:
    """*threads* spread over *tile*: over the result by step, as long as it lasts, then over the summations.

    *square*: over the result by what is left of it, after ``ROW`` of them along the smallest step.
    """
    counts = [1] * len(tile)
    order = sorted(range(len(tile)), key=lambda n: (not table.rows[n].output, abs(table.output.coefficients[n]), n))
    left = threads
    results = [n for n in order if table.rows[n].output]
    if square and results:
        left = _squared(counts, results, tile, left)
    for n in results:
        left = _doubled(counts, n, tile[n], left)
    outputs = prod(counts)
    left = min(threads, prod(tile)) // outputs  # no more than there are products
    for n in (n for n in order if not table.rows[n].output):
        left = _doubled(counts, n, tile[n], left)
    return ThreadLayout(tuple(counts), tuple(order), outputs)


def _squared(counts: list[int], results: Sequence[int], tile: Sequence[int], left: int) -> int:
    """Threads along *results*: a row first, then always where a thread still has most."""
    first = results[0]
    while counts[first] < min(ROW, tile[first]) and left > 1:
        counts[first] *= 2
        left //= 2
    while left > 1:
        most = max(results, key=lambda n: -(-tile[n] // counts[n]))
        if counts[most] >= tile[most]:
            break
        counts[most] *= 2
        left //= 2
    return left


def _doubled(counts: list[int], n: int, enough: int, left: int) -> int:
    while counts[n] < enough and left > 1:
        counts[n] *= 2
        left //= 2
    return left
