"""Engines in processes of their own: opened and asked for samples over a pipe, one at a time.

Engines whose thread pools wait in loops take the cores from one another within a process, so each has its own, and
only one of them runs at any time.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from einnet_evaluation.engines import Engine, Task, prepare
from einnet_explore.runtime.outputs import Arrays


@dataclass(frozen=True, slots=True)
class RemoteEngine:
    """What ``engines.prepare`` gives, in another process."""

    worker: Worker = field(repr=False)
    number: int
    feeds: Arrays = field(repr=False)
    outputs: Arrays = field(repr=False)
    said: str
    details: Mapping[str, Any]

    def sample(self, repeats: int, warm: bool = True) -> float:
        """Seconds that *repeats* runs take together."""
        seconds: float = self.worker.ask(self.number, repeats, warm)
        return seconds


class Worker:
    """A process that engines are opened in; leaving the context ends it.

    It starts at once and takes some seconds: wait until all are ``ready`` before one of them measures.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # A fresh interpreter: forked children of a process with thread pools may hang, and what ``multiprocessing``
        # spawns runs the caller's script again.
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        with theirs:
            # In a session of its own: Ctrl-C is for the command, which then ends this.
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL, start_new_session=True
            )
        self._pipe = Connection(ours.detach())

    def __enter__(self) -> Worker:
        return self

    def ready(self) -> None:
        """Wait until it can be asked; raises RuntimeError where it died."""
        self._heard()

    def open(self, task: Task, feeds: Arrays | None) -> RemoteEngine:
        """The engine of *task*; ValueError says what is wrong with it, RuntimeError that it failed otherwise."""
        return RemoteEngine(self, *self.ask(task, feeds))

    def ask(self, *what: object) -> Any:
        """The answer to *what*; raises it if it is an exception, and RuntimeError where the process died."""
        with suppress(OSError):  # where it died, that is heard
            self._pipe.send(what)
        answer = self._heard()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _heard(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.wait()
            raise RuntimeError(f"the engine's process ended with code {self._process.returncode}") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        if kind is not None:
            self._process.kill()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _serve(descriptor: str) -> None:
    """Serve over the socket of that number until it is closed."""
    _bounded(Path("/proc/meminfo"))
    pipe = Connection(int(descriptor))
    engines: list[Engine] = []
    try:
        pipe.send(None)
        while True:
            pipe.send(_answer(engines, *pipe.recv()))
    except (EOFError, OSError):
        return


def _bounded(told: Path) -> None:
    """Take no more memory than was free at the start, as *told* by the system: an engine is refused in place of that.

    Standard operators write out every window of a convolution, and what the system then ends need not be this process.
    """
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in told.read_text().splitlines() if line.startswith("MemAvailable:"))
        most = 1024 * int(line.split()[1])
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


def _answer(engines: list[Engine], *asked: Any) -> object:
    match asked:
        case (Task() as task, feeds):
            try:
                engine = prepare(task, feeds)
            except (ValueError, LookupError, OSError) as error:
                # Not every exception survives a pipe; what it says does.
                return ValueError(str(error))
            except Exception as error:
                return RuntimeError(f"{type(error).__name__}: {error}")
            engines.append(engine)
            return len(engines) - 1, engine.feeds, engine.outputs, engine.said, engine.details
        case (number, repeats, warm):
            try:
                return engines[number].sample(repeats, warm)
            except Exception as error:
                return RuntimeError(f"{type(error).__name__}: {error}")
    raise TypeError(f"asked {asked}: expected a task and inputs, or a number, repeats and warm")


if __name__ == "__main__":
    _serve(sys.argv[1])
