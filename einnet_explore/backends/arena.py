"""Buffers that are never needed at the same time lie in the same place: memory planned with reuse.

Each buffer is live from the step that writes it to the last that reads it.  They are laid out by size, the largest
first, each in the smallest gap that it fits in between those it shares time with (*greedy by size*: Y. Pisarchyk and
J. Lee, Efficient Memory Management for Deep Neural Net Inference, 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from einnet_explore.backends.arrays import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Buffer:
    """*size* bytes that are written at step *first* and read up to step *last*."""

    size: int
    first: int
    last: int

    def meets(self, other: Buffer) -> bool:
        """Whether some step needs both; a step's results never lie on what it reads."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Arena:
    """Where each buffer begins, how many bytes there are in all, and how many there would be without reuse."""

    offsets: Mapping[str, int]
    size: int
    separate: int


def arrange(buffers: Mapping[str, Buffer]) -> Arena:
    """The arena of *buffers*: those that meet do not overlap, and each begins at a multiple of ``ALIGNMENT``."""
    room = {name: -(-b.size // ALIGNMENT) * ALIGNMENT for name, b in buffers.items()}
    offsets: dict[str, int] = {}
    for name in sorted(buffers, key=lambda n: (-room[n], buffers[n].first)):
        taken = sorted((offsets[n], offsets[n] + room[n]) for n in offsets if buffers[n].meets(buffers[name]))
        best, least, free = 0, None, 0
        for begin, end in taken:
            gap = begin - free
            if gap >= room[name] and (least is None or gap < least):
                best, least = free, gap
            free = max(free, end)
        offsets[name] = free if least is None else best
    size = max((offsets[name] + room[name] for name in offsets), default=0)
    return Arena(offsets, size, sum(room.values()))
