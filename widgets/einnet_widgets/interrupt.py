"""Interrupting the kernel stops searches that run in threads, whatever the kernel is doing.

An idle kernel ignores the signal, and one that runs a cell or answers a widget gives it to the main thread, so a search
in a thread would go on.  A kernel changes its handler with every message: ours is put around each of them.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from weakref import WeakSet

from IPython import get_ipython

from einnet_explore.session.run import Run

_runs: WeakSet[Run] = WeakSet()


def stop_when_interrupted(run: Run) -> None:
    """Have an interrupt stop *run*; without an event loop, as a kernel has one, this does nothing."""
    _runs.add(run)
    if threading.current_thread() is not threading.main_thread():
        return
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        _put_around_handler()
        _follow_kernel()


def _follow_kernel() -> None:
    """Put our handler around those that a Jupyter kernel sets before and after a message, and inside a cell."""
    shell = get_ipython()
    kernel = getattr(shell, "kernel", None)
    if shell is None or kernel is None or _put_around_handler in shell.events.callbacks["pre_execute"]:
        return
    shell.events.register("pre_execute", _put_around_handler)
    for name in ("pre_handler_hook", "post_handler_hook"):
        setattr(kernel, name, partial(_then_put_around, getattr(kernel, name)))


def _then_put_around(hook: Callable[[], None]) -> None:
    hook()
    _put_around_handler()


def _put_around_handler() -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not (isinstance(handler, partial) and handler.func is _interrupted):
        signal.signal(signal.SIGINT, partial(_interrupted, handler))


def _interrupted(handler: object, number: int, frame: FrameType | None) -> None:
    for run in tuple(_runs):
        run.stop()
    if callable(handler):
        handler(number, frame)
