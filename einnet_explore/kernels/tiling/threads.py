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

    @property
    def rollups(self) -> int:
        """Doublings of the threads that share a result."""
        return self.lanes.bit_length() - 1

    def steps(self, tile: Sequence[int]) -> tuple[int, ...]:
        """How many values of each row a thread goes through."""
        return tuple(-(-t // n) for t, n in zip(tile, self.counts, strict=True))


def thread_layout(table: Flattened, tile: Sequence[int], threads: int) -> ThreadLayout:
    """*threads* spread over *tile*: over the result by step, as long as it lasts, then over the summations."""
    counts = [1] * len(tile)
    order = sorted(range(len(tile)), key=lambda n: (not table.rows[n].output, abs(table.output.coefficients[n]), n))
    left = threads
    for n in (n for n in order if table.rows[n].output):
        left = _doubled(counts, n, tile[n], left)
    outputs = prod(counts)
    left = min(threads, prod(tile)) // outputs  # no more than there are products
    for n in (n for n in order if not table.rows[n].output):
        left = _doubled(counts, n, tile[n], left)
    return ThreadLayout(tuple(counts), tuple(order), outputs)


def _doubled(counts: list[int], n: int, enough: int, left: int) -> int:
    while counts[n] < enough and left > 1:
        counts[n] *= 2
        left //= 2
    return left
