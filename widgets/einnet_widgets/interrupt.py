"""Interrupting the kernel stops searches that run in threads, also while no cell runs.

An idle kernel ignores the signal and a busy one gives it to the main thread, so a search in a thread would go on.  The
kernel puts its own handler back after every message: ours is installed from its event loop, between two messages.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import suppress
from types import FrameType
from weakref import WeakSet

from einnet_explore.session.run import Run

_runs: WeakSet[Run] = WeakSet()
_before: list[object] = []


def stop_when_interrupted(run: Run) -> None:
    """Have an interrupt stop *run*; without a kernel's event loop this does nothing."""
    _runs.add(run)
    if _before or threading.current_thread() is not threading.main_thread():
        return
    with suppress(RuntimeError):
        asyncio.get_running_loop().call_soon(_install)


def _install() -> None:
    if not _before:
        _before.append(signal.signal(signal.SIGINT, _interrupted))


def _interrupted(number: int, frame: FrameType | None) -> None:
    for run in tuple(_runs):
        run.stop()
    before = _before[0]
    if callable(before):
        before(number, frame)
