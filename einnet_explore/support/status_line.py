"""A line that says how far long work is: in the output of a notebook's cell, or on a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeAlias

PERIOD_SECONDS = 1.0
"""Time between two updates: measurements go on meanwhile."""

Writer: TypeAlias = "Callable[[str], None]"


@contextmanager
def status_line(text: Callable[[], str]) -> Generator[None]:
    """Show *text*, called every second in a thread, while the block runs; show nothing where no one looks on.

    In a cell, the last text stays; on a terminal, the line is cleared.
    """
    write = _cell_writer() or _terminal_writer()
    if write is None:
        yield
        return
    ended = threading.Event()

    def update(write: Writer = write) -> None:
        write(text())
        while not ended.wait(PERIOD_SECONDS):
            write(text())

    # The context knows the cell to which output belongs.
    thread = threading.Thread(target=copy_context().run, args=(update,), name="einnet-status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        write("" if sys.stderr.isatty() else text())


def _cell_writer() -> Writer | None:
    """Return a function that replaces a text in the running cell's output; None outside of a notebook's kernel."""
    notebook = sys.modules.get("IPython")  # the package works without it
    shell = notebook.get_ipython() if notebook is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    shown = notebook.display.display({"text/plain": ""}, raw=True, display_id=True) if notebook is not None else None
    return lambda text: shown.update({"text/plain": text}, raw=True) if shown is not None else None


def _terminal_writer() -> Writer | None:
    """Return a function that replaces the last line of a terminal; None if standard error is none."""
    if not sys.stderr.isatty():
        return None
    return lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
