"""A strict time limit: every entry has one of its own, and omitted work is named."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from time import perf_counter
from types import FrameType

ENTRY_SECONDS: Mapping[str, float] = {
    "checks": 5, "ceilings": 5, "cases": 10, "parts": 5, "models": 20, "compiled": 40, "profiles": 3,
}  # fmt: skip
"""Seconds after which an entry of a kind begins nothing new; a compiler is interrupted then."""

MIN_ENTRY_SECONDS = 3.0
"""With less left no entry is begun."""


OVER = "the time of this entry was over"


class TimeOver(BaseException):
    """A compiler took longer than its entry has.  No Exception: nothing that handles mistakes may take it for one."""


class Budget:
    """*limit* seconds from now on."""

    def __init__(self, limit: float) -> None:
        self.limit, self.end = limit, perf_counter() + limit

    def refused(self) -> str | None:
        """Return why no more is started, None while there is time."""
        if self.end - perf_counter() >= MIN_ENTRY_SECONDS:
            return None
        return f"the time ({self.limit:.0f} s) was over: run again to go on"

    def until(self, kind: str) -> float:
        """Return the time by which an entry of *kind* that begins now should be done."""
        return min(perf_counter() + ENTRY_SECONDS[kind], self.end)


@contextmanager
def interrupted_at(until: float) -> Iterable[None]:  # type: ignore[misc]
    """Raise TimeOver inside at the time *until*.  Without timer signals (on Windows), it is not raised."""
    if not hasattr(signal, "setitimer") or until == float("inf"):
        yield
        return

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TimeOver(f"{OVER}: interrupted")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, until - perf_counter()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
