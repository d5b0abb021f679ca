"""Times of device work by events, over copies in rotation, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from statistics import median

from einnet_explore.backends.cuda_device import device, package

PAST_L2 = 4
"""So many times the L2's size is what inputs in rotation take together."""

Call = Callable[[], object]


def seconds(calls: Sequence[Call], samples: int = 15, least: float = 1e-3) -> list[float]:
    """Seconds a call by events, one for each of *samples*; *calls* do the same on different memory, in rotation.

    A sample repeats them for at least *least* seconds, so that what events cost does not count.
    """
    cp = package()
    start, end = cp.cuda.Event(), cp.cuda.Event()
    turn = cycle(calls)

    def sample(repeats: int) -> float:
        start.record()
        for _ in range(repeats):
            next(turn)()
        end.record()
        end.synchronize()
        return float(cp.cuda.get_elapsed_time(start, end)) * 1e-3 / repeats

    for call in calls:
        call()
    once = max(sample(len(calls)), 1e-7)
    repeats = max(1, min(1000, int(least / once) + 1))
    sample(repeats)
    return [sample(repeats) for _ in range(samples)]


def quick(call: Call) -> float:
    """Seconds of a call, roughly: what is enough to choose among algorithms of a library."""
    return median(seconds([call], samples=3, least=2e-4))


def rotations(nbytes: int, memory: float = 0.25) -> int:
    """How many copies of *nbytes* together are past the L2; at most the part *memory* of the device's."""
    held = device()
    wanted = -(-PAST_L2 * held.l2_bytes // max(1, nbytes))
    return max(1, min(wanted, 64, int(memory * held.memory_bytes / max(1, nbytes))))


def timed(calls: Mapping[str, Sequence[Call]], rounds: int = 5) -> dict[str, list[float]]:
    """Seconds of each, in interleaved rounds: a clock that changes meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, turn in calls.items():
            found[name].append(median(seconds(turn, samples=3)))
    return found
