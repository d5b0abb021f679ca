"""Kernels: what every thread of a grid of blocks does, and what it is given."""

from __future__ import annotations

from math import prod

from einnet_explore.ir.node import Node, node
from einnet_explore.kernels.source.arrays import Array
from einnet_explore.kernels.source.statements import Local, Statement
from einnet_explore.kernels.source.types import KernelError
from einnet_explore.kernels.source.values import Var

MOST_THREADS = 1024


@node
class Kernel(Node):
    """What every thread of a grid of blocks does.

    *params* are arrays in global memory and scalars, in the order of the arguments.  *block* is fixed; *grid* is what
    a caller launches unless it says otherwise.  Raises KernelError where a block has too many threads.
    """

    name: str
    params: tuple[Array | Var, ...]
    body: tuple[Statement, ...]
    block: tuple[int, int, int] = (1, 1, 1)
    grid: tuple[int, int, int] = (1, 1, 1)

    def __post_init__(self) -> None:
        if min(*self.block, *self.grid) < 1 or prod(self.block) > MOST_THREADS:
            raise KernelError(
                f"kernel {self.name}: blocks of {self.block}, a grid of {self.grid}: expected positive numbers, and at "
                f"most {MOST_THREADS} threads a block"
            )
        for p in self.params:
            if isinstance(p, Array) and p.space != "global":
                raise KernelError(f"kernel {self.name}: parameter {p.name} is a {p.space} array")

    @property
    def threads(self) -> int:
        """Threads a block."""
        return prod(self.block)

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a block takes."""
        return sum(
            s.array.size * s.array.kind.size for s in self.body if isinstance(s, Local) and s.array.space == "shared"
        )
