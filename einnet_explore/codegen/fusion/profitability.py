r"""Cost model of fusion: one fused kernel, which may have a tiny grid, compared with one kernel for each operation.

.. math::  t_{fused} = l + \frac{b_0}{B\,u} + \frac{b_{again}}{B'\,u} + w\,s, \qquad
           t_{apart} = \sum_o \left( l + \frac{b_o}{B} \right), \qquad u = \min(1, blocks / units)

Repeated reads of a grid point come from a cache if the data of all active points fit there.  Kernels of single
reductions can share one sum among all units; a fused one has a block a point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from einnet_explore.codegen.fusion.frame import FusedLayout
from einnet_explore.codegen.fusion.gpu import FUSED_THREADS, gpu_blocks
from einnet_explore.codegen.fusion.operations import read_name
from einnet_explore.codegen.fusion.plan import FusedKernel, FusedStep
from einnet_explore.ir import Iterator, accesses
from einnet_explore.support.wording import count_noun


@dataclass(frozen=True)
class FusionTarget:
    """A device with *units* that run a block each.

    Bytes a second from *memory* and from the *cache* (*cache_bytes* in all); seconds for a *launch* and for a *wait* of
    a block's threads at a barrier.
    """

    name: str
    units: int
    memory: float
    cache: float
    cache_bytes: int
    launch: float
    wait: float


A100_TARGET = FusionTarget("A100", 108, 1.5e12, 4.5e12, 40 << 20, 4e-6, 1e-6)
CPU_CORE_TARGET = FusionTarget("a CPU core", 1, 2.0e10, 8.0e10, 1 << 20, 2e-6, 0.0)
"""Round numbers from data sheets; the final decision is measured."""


@dataclass(frozen=True)
class FusionEstimate:
    """Seconds of the fused kernel and of separate ones, and the blocks of the fused one, on *target*."""

    fused: float
    apart: float
    blocks: int
    target: FusionTarget

    @property
    def pays(self) -> bool:
        """True if the fused kernel is expected to be faster."""
        return self.fused < self.apart

    def __str__(self) -> str:
        said = "fuse" if self.pays else "do not fuse"
        blocks, units = count_noun(self.blocks, "block"), count_noun(self.target.units, "unit")
        times = f"{self.fused * 1e6:.0f} µs fused, {self.apart * 1e6:.0f} µs unfused"
        return f"{self.target.name}: {blocks} on {units}, {times}: {said}"


def estimate_fusion(flat: FusedLayout, target: FusionTarget, itemsize: int = 4) -> FusionEstimate:
    """Return both estimates for *flat* on *target*, for elements of *itemsize* bytes."""
    fused = flat.fused
    blocks = gpu_blocks(flat, FUSED_THREADS) if target.units > 1 else flat.points
    used = min(1.0, blocks / target.units) or 1.0
    first, again = (n * itemsize for n in _memory_traffic(fused, flat.sizes))
    working = min(first, first * target.units / max(1, blocks))
    rate = target.cache if working <= target.cache_bytes else target.memory
    waits = fused.barriers * target.wait * max(1.0, blocks / target.units / 8)
    one = target.launch + first / (target.memory * used) + again / (rate * used) + waits
    return FusionEstimate(one, _unfused_seconds(fused, flat.sizes, target, itemsize), blocks, target)


def _memory_traffic(fused: FusedKernel, sizes: Mapping[Iterator, int]) -> tuple[int, int]:
    """Return (elements read and written at least once, elements that later nests read again)."""
    largest: dict[str, int] = {}
    again = 0
    for stage in fused.stages:
        for steps in (stage.heads, *(nest.steps for nest in stage.nests)):
            for name, size in _touched_elements(fused, sizes, steps).items():
                again += size if name in largest else 0
                largest[name] = max(size, largest.get(name, 0))
    return sum(n for name, n in largest.items() if fused.spaces[name].kind in ("input", "output")), again


def _touched_elements(fused: FusedKernel, sizes: Mapping[Iterator, int], steps: Iterable[FusedStep]) -> dict[str, int]:
    """Return the elements of each memory that *steps* read or write, each once."""
    out: dict[str, int] = {}
    for step in steps:
        uses = [(read_name(a), {x for i in a.index for x in i.iterators}) for a in accesses(step.body)]
        if step.stores:
            uses.append((step.name, set(fused.known[step.name].scope.traversals)))
        for name, axes in uses:
            space = fused.spaces.get(name)
            if space is not None and space.kind != "register":
                memory = space.beside or name
                out[memory] = max(prod(sizes[x] for x in axes), out.get(memory, 0))
    return out


def _unfused_seconds(fused: FusedKernel, sizes: Mapping[Iterator, int], target: FusionTarget, itemsize: int) -> float:
    seconds = 0.0
    for operation in fused.operations:
        elements = prod(sizes[x] for x in operation.scope.traversals)
        elements += sum(prod(sizes[x] for x in {x for i in a.index for x in i.iterators}) for a in operation.reads)
        seconds += target.launch + elements * itemsize / target.memory
    return seconds
