r"""Where a measured program stands under the roofline: what it did a second, against what the device does at most.

.. math::  t \ge \max\left(\frac{\text{FLOPs}}{\text{peak}}, \frac{\text{bytes}}{\text{bandwidth}}\right)

The ceilings are measured on the device itself (a product that stays in its first caches, a triad over as many bytes as
the program touches) or were recorded there; they are not taken from a data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from einnet_explore.algebra.equations import weight_only
from einnet_explore.cost.work import Work, work
from einnet_explore.ir import VIEW, Program

SMALLEST, LARGEST = 1 << 18, 1 << 28
"""Bytes between which the triad's working set is chosen: less is all overhead, more is all memory anyway."""


@dataclass(frozen=True, slots=True)
class Roof:
    """At most so many floating-point operations a second, and bytes a second of a working set of this size."""

    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Position:
    """FLOP/s and bytes/s reached, each as a *part* of its ceiling too; *bound* is the ceiling that is nearer."""

    flops: float
    bandwidth: float
    flops_part: float
    bandwidth_part: float

    @property
    def bound(self) -> str:
        """``flops`` or ``bytes``."""
        return "flops" if self.flops_part > self.bandwidth_part else "bytes"

    @property
    def part(self) -> float:
        """The time that the nearer ceiling allows, over the time taken."""
        return max(self.flops_part, self.bandwidth_part)

    def __str__(self) -> str:
        return (
            f"{self.part:.0%} of the roof ({self.bound}): {self.flops / 1e9:.3g} GFLOP/s ({self.flops_part:.0%}), "
            f"{self.bandwidth / 1e9:.3g} GB/s ({self.bandwidth_part:.0%})"
        )


def program_work(program: Program) -> Work:
    """What is done when *program* is run: views do nothing, and what reads weights alone was done before."""
    constant = weight_only(program)
    run = [
        work(e.scope)
        for e in program.equations
        if e.name not in constant and not (e.via is not None and e.via.operator == VIEW)
    ]
    return Work(sum(w.flops for w in run), sum(w.read_bytes for w in run), sum(w.written_bytes for w in run))


def position(done: Work, seconds: float, roof: Roof) -> Position:
    """Where a program that does *done* in *seconds* stands under *roof*; raises ValueError for no time."""
    if not seconds > 0:
        raise ValueError(f"{seconds} s: expected a positive number of seconds")
    flops, bandwidth = done.flops / seconds, done.nbytes / seconds
    return Position(flops, bandwidth, flops / roof.flops, bandwidth / roof.bandwidth)


@cache
def cpu_roof(threads: int, nbytes: int) -> Roof:
    """The ceilings of this CPU for a working set of *nbytes*, measured now: about half a second."""
    from einnet_explore.backends.bandwidth import peak_flops, stream_bandwidth

    return Roof(peak_flops(threads), stream_bandwidth(threads, nbytes))


def working_set(nbytes: int) -> int:
    """*nbytes* as a power of two within bounds, so that few ceilings are measured."""
    return min(LARGEST, max(SMALLEST, 1 << max(0, nbytes - 1).bit_length()))
