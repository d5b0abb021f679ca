"""Limits: memory of this process, for searches and measurements, and processor time of searches.

Processor time makes a search independent of other work on the machine.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time

from einnet_explore.support.errors import Refused

SEARCH_FRACTION = 0.75
"""Fraction of the limit at which searches stop: proofs, measurement and output need the rest."""

MEMO_ENTRIES = 1 << 11
"""Results of a function that a search remembers: sixteen times as many take three times the memory of a search, and
save a twentieth of its time."""

STEPS_PER_CHECK = 16
"""Steps of a search between two looks at the memory: to look takes as long as a short step."""

MIN_ALARM_SECONDS = 1e-3
"""A timer that is set to 0 never rings."""

_STATM = Path("/proc/self/statm")

_malloc_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
_mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)


@dataclass(slots=True)
class MemoryLimit:
    """The *limit* in bytes (None: no limit), and whether it was *reached*, so that a search had to stop."""

    limit: int | None = None
    looks: int = 0
    reached: bool = False

    def full(self) -> bool:
        """Whether a search has to stop here; checks the memory every ``STEPS_PER_CHECK``-th time."""
        if self.limit is None:
            return False
        self.looks += 1
        if self.looks % STEPS_PER_CHECK or used_bytes() <= SEARCH_FRACTION * self.limit:
            return False
        self.reached = True
        return True

    def require(self, nbytes: int, what: str) -> None:
        """Raise Refused unless *nbytes* more fit, which *what* needs."""
        if self.limit is not None and (now := used_bytes()) + nbytes > self.limit:
            taken = f"{format_bytes(now)} of {format_bytes(self.limit)} of memory are taken"
            raise Refused(f"{what} needs {format_bytes(nbytes)}, {taken}")


MEMORY_LIMIT = MemoryLimit()
"""The limit of this process, shared by searches and measurements."""


@contextmanager
def interrupt_after(seconds: float, what: str) -> Generator[None]:
    """Raise TimeoutError in the body after *seconds*; only in the main thread, and where the system has such a timer.

    A limit inside another one ends with that one.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def refuse(*_: object) -> None:
        raise TimeoutError(f"{what} takes more than {seconds:.3g} s")

    start = perf_counter()
    handler = signal.signal(signal.SIGALRM, refuse)
    left, interval = signal.setitimer(signal.ITIMER_REAL, max(seconds, MIN_ALARM_SECONDS))
    if left and left < seconds:
        signal.setitimer(signal.ITIMER_REAL, left)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:  # an alarm of the caller goes on
            left -= perf_counter() - start
            signal.setitimer(signal.ITIMER_REAL, max(left, MIN_ALARM_SECONDS), interval)


COLLECTION_THRESHOLDS = (50_000, 20, 20)
"""Allocations after which Python looks for reference cycles, and collections of a generation before the next one."""


@contextmanager
def rare_collections() -> Generator[None]:
    """Look for reference cycles rarely in the body.

    Expressions are trees without back references: to look for cycles among them as often as Python does takes a fifth
    to two fifths of the time of a search.
    """
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def return_free_memory() -> None:
    """Return the memory that this process has freed to the system, which glibc keeps for later."""
    if _malloc_trim is not None:
        _malloc_trim(0)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""

RETURNED_BLOCK_BYTES = 1 << 20
"""Bytes of a block from which on ``large_blocks_returned`` has it returned to the system as soon as it is freed."""

USUAL_MMAP_BYTES = 32 << 20
"""The value that glibc gives ``M_MMAP_THRESHOLD`` by itself in a program that has freed blocks of that size."""

_ALLOCATOR_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
_returning_lock = threading.Lock()
_returning_bodies = 0


@contextmanager
def large_blocks_returned() -> Generator[None]:
    """Have glibc return blocks of ``RETURNED_BLOCK_BYTES`` or more to the system when they are freed in the body.

    Otherwise it keeps them for later: ONNX Runtime, which copies weights several times, then takes half as much again
    while it opens a session.  Afterwards glibc keeps blocks of less than ``USUAL_MMAP_BYTES``, as it does by itself
    after such a block was freed.  Nothing is changed where environment variables configure the allocator.
    """
    is_usual = _mallopt is not None and not any(name in os.environ for name in _ALLOCATOR_VARIABLES)
    if is_usual:
        _count_returning_body(1)
    try:
        yield
    finally:
        if is_usual:
            _count_returning_body(-1)


def _count_returning_body(change: int) -> None:
    """Count bodies of ``large_blocks_returned`` in all threads; the first and the last one set the allocator."""
    global _returning_bodies
    assert _mallopt is not None
    with _returning_lock:
        before, _returning_bodies = _returning_bodies, _returning_bodies + change
        if before == 0:
            _mallopt(M_MMAP_THRESHOLD, RETURNED_BLOCK_BYTES)
        elif _returning_bodies == 0:
            _mallopt(M_MMAP_THRESHOLD, USUAL_MMAP_BYTES)
            _mallopt(M_TRIM_THRESHOLD, 2 * USUAL_MMAP_BYTES)


def _forget_returning_bodies() -> None:
    """Count no body in a fork, where no other thread of its parent ends one, or gives its lock back."""
    global _returning_lock, _returning_bodies
    _returning_lock, _returning_bodies = threading.Lock(), 0


os.register_at_fork(after_in_child=_forget_returning_bodies)


@dataclass(slots=True)
class MemoryWatch:
    """Whether memory ran *short* in one task, so that its outcome holds for this process's limit only."""

    short: bool = False

    def full(self) -> bool:
        """Whether a search has to stop here; checks the memory every ``STEPS_PER_CHECK``-th time."""
        if MEMORY_LIMIT.full():
            self.short = True
            return True
        return False

    def stopped(self) -> None:
        """Record that a search in another process, with this limit, had to stop."""
        self.short = MEMORY_LIMIT.reached = True

    def require(self, nbytes: int, what: str) -> None:
        """Raise Refused unless *nbytes* more fit, which *what* needs."""
        try:
            MEMORY_LIMIT.require(nbytes, what)
        except Refused:
            self.short = True
            raise


@contextmanager
def limit_memory(nbytes: int | None) -> Generator[MemoryLimit, None, None]:
    """Limit this process to *nbytes* of memory inside the block (None: no limit).

    Raises ValueError if the libraries already use so much that no search could begin.
    """
    if nbytes is not None and (now := used_bytes()) > SEARCH_FRACTION * nbytes:
        least = f"expected over {format_bytes(now / SEARCH_FRACTION)}"
        raise ValueError(
            f"memory {format_bytes(nbytes)}: {format_bytes(now)} are taken before a search begins, {least}"
        )
    before, MEMORY_LIMIT.limit, MEMORY_LIMIT.reached = MEMORY_LIMIT.limit, nbytes, False
    try:
        yield MEMORY_LIMIT
    finally:
        MEMORY_LIMIT.limit = before


def used_bytes() -> int:
    """Return the memory that this process uses now; if the system does not report it, the peak so far."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_bytes(text: str) -> int:
    """Parse ``512M``, ``2G``, ``1500000000`` as bytes; raises ValueError unless it is a size of at least 1 MiB."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    bare = text.strip().upper().removesuffix("B").removesuffix("I")
    number, unit = (bare[:-1], bare[-1]) if bare[-1:] in units and bare[-1:] else (bare, "")
    try:
        found = int(float(number) * units[unit])
    except (ValueError, OverflowError):
        found = 0
    if found < units["M"]:
        raise ValueError(f"memory {text!r}: expected a size of at least 1M, such as 512M or 2G")
    return found


def format_bytes(nbytes: float) -> str:
    """Format bytes as ``512 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.3g} {unit}" if nbytes < 100 else f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.3g} GiB"


STARVATION_FACTOR = 3.0
"""How many times as long as it works a search may take by the clock: past that the clock counts."""


class WorkClock:
    """The seconds that this thread has worked since it was made, or a third of the elapsed time if that is more."""

    __slots__ = ("_clock", "_worked")

    def __init__(self) -> None:
        self._clock, self._worked = perf_counter(), thread_time()

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        return max(thread_time() - self._worked, (perf_counter() - self._clock) / STARVATION_FACTOR)
