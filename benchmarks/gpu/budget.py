"""A strict time limit: kinds of work have shares, entries have parts of them, and omitted work is named."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import FrameType

SHARES: Mapping[str, float] = {
    "checks": 0.03, "ceilings": 0.01, "cases": 0.10, "models": 0.56, "compiled": 0.22, "profiles": 0.05, "parts": 0.03,
}  # fmt: skip
"""Of the limit; what a kind does not use the next ones have."""

LEAST = 3.0
"""Seconds that an entry has at least."""

SLACK = 3.0
"""An entry may take so many times the even part: few do."""


class TimeOver(BaseException):
    """An entry took longer than its share.  No Exception: nothing that handles mistakes may take it for one."""


class Budget:
    """*limit* seconds from now on, for *kinds* in this order."""

    def __init__(self, limit: float, kinds: Sequence[str]) -> None:
        self.limit, self.began = limit, perf_counter()
        self.ends: dict[str, float] = {}
        total = sum(SHARES[kind] for kind in kinds)
        so_far = 0.0
        for kind in kinds:
            so_far += SHARES[kind] / total
            self.ends[kind] = self.began + limit * so_far
        self.kind, self.left = kinds[0], 0

    def begin(self, kind: str, entries: int) -> None:
        """*kind* is next, with so many *entries*."""
        self.kind, self.left = kind, entries

    def refused(self, kind: str) -> str | None:
        """Return why no more of *kind* is started, None while there is time."""
        over = perf_counter() - self.ends[kind]
        if over < 0:
            return None
        share = SHARES[kind] / sum(SHARES[k] for k in self.ends)
        return f"the time for {kind} ({share * self.limit:.0f} of {self.limit:.0f} s) was over: run again to go on"

    @contextmanager
    def entry(self, interrupting: bool = False) -> Iterable[float]:  # type: ignore[misc]
        """Yield the time by which the entry should be done; with *interrupting*, TimeOver is raised in it at that time.

        Without timer signals (on Windows), it is not raised.
        """
        now = perf_counter()
        seconds = max(LEAST, SLACK * (self.ends[self.kind] - now) / max(1, self.left))
        seconds = min(seconds, max(LEAST, self.began + self.limit - now))
        self.left -= 1
        if not interrupting or not hasattr(signal, "setitimer"):
            yield now + seconds
            return

        def over(_number: int, _frame: FrameType | None) -> None:
            raise TimeOver(f"it took longer than its share of {seconds:.0f} s: run again to go on")

        before = signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield now + seconds
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
