"""The tiled kernel: clear, { load, sync, accumulate, sync }, roll up, post-operations, write.

A block computes one tile of the result.  Its threads load the tiles of the inputs together, then each of them adds to
sums of its own.  Threads that share a result hold partial sums, which are rolled up in shared memory.  A device whose
memory is a cache gets no loads of tiles: its threads read where the elements are.
Source: PlaidML's automatic kernel generation (threading, code generation).
"""

from __future__ import annotations

from dataclasses import dataclass

from einnet_explore.ir import Scope, Tensor
from einnet_explore.ir.program import Program
from einnet_explore.kernels.source import (
    F32,
    Kernel,
    Type,
)
from einnet_explore.kernels.tiling.contraction import Contraction, contraction
from einnet_explore.kernels.tiling.cost import TileCost, tile_cost
from einnet_explore.kernels.tiling.hardware import Hardware
from einnet_explore.kernels.tiling.search import best_first
from einnet_explore.kernels.tiling.writing import Writer


@dataclass(frozen=True)
class Tiled:
    """A contraction cut into tiles, and its kernel: its parameters are *inputs*, in order, then the result."""

    contraction: Contraction
    cost: TileCost
    inputs: tuple[Tensor, ...]
    kernel: Kernel


def tiled(
    scope: Scope | Program,
    hardware: Hardware | None = None,
    tile: tuple[int, ...] | None = None,
    kind: Type = F32,
    name: str = "tiled",
) -> Tiled:
    """*scope*, or the one equation of a program, as a kernel on elements of *kind*.

    *tile* holds a size for every row of the flattened table; without it the best-first search chooses.
    Raises ValueError for what is no contraction of tensors, and for a tile that is not within the ranges or does not
    fit; KernelError for constants and functions that *kind* does not have.
    """
    hardware = hardware or Hardware()
    if isinstance(scope, Program):
        if len(scope.equations) != 1:
            raise ValueError(f"a program of {len(scope.equations)} equations, expected one; fuse them first")
        scope = scope.equations[0].scope
    found = contraction(scope)
    problem = found.problem(kind.size)
    cost = best_first(problem, hardware).chosen if tile is None else tile_cost(problem, tile, hardware)
    if cost.rejected:
        raise ValueError(
            f"tile size {list(cost.tile)} is {cost.rejected}: {cost.sm} bytes of inputs, {cost.out} of sums"
        )
    writer = Writer(found, cost, kind)
    return Tiled(found, cost, writer.tensors, writer.kernel(name))
