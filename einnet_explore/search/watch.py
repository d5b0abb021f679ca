"""How long a search has taken: by the processor's time, so that a busy machine does not make it find less."""

from __future__ import annotations

from time import perf_counter, thread_time

STARVED = 3.0
"""How many times as long as it works a search may take by the clock: past that the clock counts."""


class Watch:
    """The seconds that this thread has worked since it was made, or a third of those that passed, if that is more."""

    __slots__ = ("_clock", "_worked")

    def __init__(self) -> None:
        self._clock, self._worked = perf_counter(), thread_time()

    @property
    def seconds(self) -> float:
        """Seconds since then."""
        return max(thread_time() - self._worked, (perf_counter() - self._clock) / STARVED)
