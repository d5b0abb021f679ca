"""Interleaved timing: calls are sampled in turns, so that a slow spell of the machine affects all of them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles
from time import perf_counter, process_time, sleep
from typing import TypeAlias

import numpy as np

SPIN_SECONDS = 0.002
"""Seconds for which the threads of our sessions wait in a loop for more work: longer than any node that uses one."""

SETTLE_SECONDS = 0.005
"""Seconds after which an engine's waiting threads no longer spin: with ``SPIN_SECONDS``, up to 4 ms were seen."""

SETTLED_SAMPLES = 3
"""Samples in a row after a pause, where the pause takes longer than they do."""

SAMPLE_SECONDS = 0.001
"""Seconds of a sample of quick calls: less than a scheduler's time slice.  Where others want the cores,
samples of 5 ms were hit or missed as a whole, one engine's for a minute and then the other's."""

SECONDS_FACTOR = 1.0
"""Multiple of the seconds that rounds take at least; tests, for which any times do, lower it."""

WARM_CACHE_SECONDS = 0.02
"""Seconds of a call from which on reading its weights once from memory, not from a cache, is negligible."""

DISPLACED_CALLS = 5
"""Calls of a sample before each of which the caches are filled, which takes longer than many a call."""

LONG_CALL_SECONDS = 0.05
"""Seconds of a first call from which on one call is a sample, though a first call is slower."""

MAX_FIRST_RUN_RATIO = 4.0
"""A long first call that takes more than this multiple of the time to beat is not repeated: it also allocates."""

MIN_COMPUTE_SHARE = 0.1
"""A call that computes for less than this part of its time, and gave its core away, waits for something else."""

Sampler: TypeAlias = "Callable[[int], float]"
"""Seconds a call, over so many calls in a row."""

Enough: TypeAlias = "Callable[[Mapping[str, Sequence[float]]], bool]"
"""Return whether the samples of each call so far are enough, so that no more rounds are needed."""

NOTHING: Mapping[str, float] = {}


def stop_after(rounds: int, seconds: float) -> Enough:
    """A stopping rule: *rounds* rounds that took *seconds* in all are enough, since long calls are disturbed less."""

    def enough(samples: Mapping[str, Sequence[float]]) -> bool:
        return min(map(len, samples.values())) >= rounds and sum(map(sum, samples.values())) >= seconds

    return enough


def all_rounds(samples: Mapping[str, Sequence[float]]) -> bool:
    """The stopping rule of all rounds: samples are never enough."""
    return False


def settle_seconds(threads: int) -> float:
    """Seconds between engines of *threads* threads each: waiting threads of one must not take the other's cores."""
    return SETTLE_SECONDS if threads > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a call: the median of *n* samples, the interquartile range, and the samples themselves."""

    median: float
    iqr: float
    n: int
    samples: tuple[float, ...] = field(default=(), repr=False)

    @property
    def low(self) -> float:
        """The lower quartile: other work on the machine only adds time."""
        return quantiles(self.samples, n=4)[0] if len(self.samples) > 1 else self.median


def times_faster(before: Timing, after: Timing) -> float:
    """The speedup of *after* over *before*, both from one ``time_calls``: the median over its rounds.

    The two samples of a round are taken one after the other, so a slow spell of the machine affects both.
    """
    return median(one / other for one, other in zip(before.samples, after.samples, strict=True))


def time_calls(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    min_seconds: float = 0.2,
    settle: float = 0,
    warm: Mapping[str, float] = NOTHING,
    enough: Enough = all_rounds,
    displace: Callable[[], object] | Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Timing]:
    """Return the ``Timing`` of each of *calls*, by name, in seconds; they are measured in turns.

    The order of the calls rotates from round to round, and each sample repeats its call for a millisecond.  There are
    at least *rounds* rounds that take at least *min_seconds* for every call, with pauses, unless *enough* stops
    earlier.  Before one or a few samples of a call *settle* seconds pass: an engine's waiting threads spin for a while,
    and would take the next one's cores.  *warm* has the seconds of calls that were made just now.  *displace*, which
    may fill the caches with something else, is called before each timed call and does not count; samples then have
    five calls at most.  Calls may have one each, by name.
    Raises ValueError for no rounds.
    """
    before = displace if isinstance(displace, Mapping) else dict.fromkeys(calls, displace)
    samplers = {name: partial(sample_seconds, call, displace=before[name]) for name, call in calls.items()}
    return time_samplers(samplers, rounds, min_seconds, settle, warm, enough)


def time_samplers(
    samplers: Mapping[str, Sampler],
    rounds: int = 15,
    min_seconds: float = 0.2,
    settle: float = 0,
    warm: Mapping[str, float] = NOTHING,
    enough: Enough = all_rounds,
) -> dict[str, Timing]:
    """``time_calls`` of samplers that report their own times, for example from another process."""
    if rounds < 1:
        raise ValueError(f"rounds {rounds}: expected at least 1")
    names, min_seconds = list(samplers), min_seconds * SECONDS_FACTOR
    long = {name: seconds for name, seconds in warm.items() if seconds > LONG_CALL_SECONDS}
    once = {name: long.get(name) or _once(sampler) for name, sampler in samplers.items()}
    repeats = {name: _repeats(seconds, min_seconds / rounds) for name, seconds in once.items()}
    in_a_row = SETTLED_SAMPLES if settle > max(once.values()) else 1
    samples: dict[str, list[float]] = {name: [] for name in names}
    spent, turn = 0.0, 0
    while turn < rounds or spent < min_seconds * len(names):
        for n in range(len(names)):
            name = names[(turn + n) % len(names)]
            if settle:
                sleep(settle)
            taken = [samplers[name](repeats[name]) for _ in range(in_a_row)]
            samples[name] += taken
            spent += sum(taken) * repeats[name] + settle
        turn += in_a_row
        if enough(samples):
            break
    return {name: _timing(samples[name]) for name in names}


def displacing_read(nbytes: int) -> Callable[[], object]:
    """Return a call that reads *nbytes* of memory of its own, which takes the place of other data in the caches."""
    return partial(np.max, np.ones(nbytes // np.float32().nbytes, np.float32))


def sample_seconds(call: Callable[[], object], repeats: int, displace: Callable[[], object] | None = None) -> float:
    """Mean seconds of *repeats* calls in a row, after a first one that fills the caches.

    A single call that takes longer than ``WARM_CACHE_SECONDS`` counts as it is.  If *displace* is given, it is called
    before each of them and does not count; there are ``DISPLACED_CALLS`` at most, and their median is returned, since a
    thread that sleeps meanwhile may be woken on a core that is in use, and then waits for milliseconds.
    """
    first = own_seconds(call, 1)
    if repeats == 1 and first > WARM_CACHE_SECONDS:
        return first
    if displace is None:
        return own_seconds(call, repeats) / repeats
    taken = []
    for _ in range(min(repeats, DISPLACED_CALLS)):
        displace()
        taken.append(own_seconds(call, 1))
    return median(taken)


def own_seconds(call: Callable[[], object], repeats: int) -> float:
    """Seconds of *repeats* calls by the clock, without the time that other processes had the cores.

    For one thread that is the processor's time, for several the clock's, whichever is less.  A call that hardly
    computes and gave the core away waits, for example for a device, and counts by the clock.  One that lost the core,
    which takes ten times as long as many a call, does not.
    """
    waits, start, worked = _count_waits(), perf_counter(), process_time()
    for _ in range(repeats):
        call()
    worked, clock = process_time() - worked, perf_counter() - start
    is_waiting = worked <= MIN_COMPUTE_SHARE * clock and _count_waits() != waits
    return clock if is_waiting else min(worked, clock)


def _count_waits() -> int:
    """Return how often this process gave a core away by itself."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _once(sampler: Sampler) -> float:
    seconds = sampler(1)
    # Otherwise it was a first call, which may allocate and wake threads.
    return sampler(1) if WARM_CACHE_SECONDS < seconds <= LONG_CALL_SECONDS else seconds


def _repeats(once: float, seconds: float) -> int:
    return max(1, int(min(seconds, SAMPLE_SECONDS) / max(once, 1e-7)))


def _timing(samples: list[float]) -> Timing:
    low, high = (quantiles(samples, n=4)[i] for i in (0, 2)) if len(samples) > 1 else (samples[0], samples[0])
    return Timing(median(samples), high - low, len(samples), tuple(samples))
