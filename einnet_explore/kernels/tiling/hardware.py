"""A device as the numbers that a tile's cost depends on."""

from __future__ import annotations

from dataclasses import dataclass

from einnet_explore.kernels.machine import Machine


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one work group has, and what it takes to be busy; the defaults are those of PlaidML's document.

    *width*: bytes of one memory transaction.  *memory*: bytes that a group keeps of its inputs, *registers*: bytes of
    its sums.  *goal*: FLOPs a byte from which memory is no longer what is waited for.  *groups*: as many make the whole
    device busy.  *managed*: the program itself puts inputs into *memory*; else it is a cache that holds lines.
    *square*: threads are spread over the result so that each holds a block that is as square as can be: the nearer to a
    square, the fewer elements are read for every product.  *stages*: tiles of inputs that are kept at a time, each of
    at most *memory* bytes: with two, the next one comes while the one before is used, past the registers.
    """

    threads: int = 256
    width: int = 32
    memory: int = 16384
    registers: int = 16384
    goal: float = 20
    groups: int = 20
    managed: bool = True
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


def processor(machine: Machine, cores: int = 1) -> Hardware:
    """A CPU as such a device: a group is a core, its sums are in vector registers, its inputs in the L1 cache.

    Two operations a lane and multiply-add against what the second-level cache delivers are the goal.
    """
    return Hardware(
        threads=1,
        width=machine.lanes * 4,
        memory=machine.l1,
        registers=machine.registers * machine.lanes * 4,
        goal=2 * machine.fma_per_cycle * machine.lanes / machine.l2_bytes,
        groups=cores,
        managed=False,
    )
