"""Work for the soak's own test: a module of its own, as each worker imports it."""

import os
import signal
from collections import Counter

from benchmarks.soak.outcome import Outcome


def crash(_: int, n: int) -> Outcome:
    """Item 1 is killed, item 2 raises, the others are counted."""
    if n == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if n == 2:
        raise ValueError("a mistake")
    return Outcome(Counter(items=1))
