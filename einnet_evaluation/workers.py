"""Engine processes: engines are opened and sampled over a pipe, one at a time.

Spinning thread pools of several engines in one process compete for cores, so each engine has its own process and only
one runs at any time.
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
from einnet_explore.runtime.arrays import Arrays


@dataclass(frozen=True, slots=True)
class RemoteEngine:
    """Handle of an engine in another process."""

    worker: Worker = field(repr=False)
    number: int
    feeds: Arrays = field(repr=False)
    outputs: Arrays = field(repr=False)
    said: str
    details: Mapping[str, Any]

    def sample(self, repeats: int, warm: bool = True) -> float:
        """Return the total seconds of *repeats* runs."""
        seconds: float = self.worker.ask(self.number, repeats, warm)
        return seconds


class Worker:
    """A process for engines; leaving the context ends it.

    Its start takes some seconds: wait until all processes are ``ready`` before measuring in one of them.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # A new interpreter: forked children of a process with thread pools may hang, and ``multiprocessing`` by spawn
        # runs the caller's script again.
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        with theirs:
            # In a separate session, so that Ctrl-C reaches only the command, which then ends this process.
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL, start_new_session=True
            )
        self._pipe = Connection(ours.detach())

    def __enter__(self) -> Worker:
        return self

    def ready(self) -> None:
        """Wait for the process to start; raise RuntimeError if it died."""
        self._receive()

    def open(self, task: Task, feeds: Arrays | None) -> RemoteEngine:
        """Open the engine of *task*; raise ValueError for bad input, RuntimeError for other failures."""
        return RemoteEngine(self, *self.ask(task, feeds))

    def ask(self, *request: object) -> Any:
        """Send *request* and return the answer; raise it if it is an exception, RuntimeError if the process died."""
        with suppress(OSError):  # a dead process is reported by the answer
            self._pipe.send(request)
        answer = self._receive()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _receive(self) -> Any:
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
    """Serve requests over the socket with this file descriptor until it is closed."""
    _limit_memory(Path("/proc/meminfo"))
    pipe = Connection(int(descriptor))
    engines: list[Engine] = []
    try:
        pipe.send(None)
        while True:
            pipe.send(_answer(engines, *pipe.recv()))
    except (EOFError, OSError):
        return


def _limit_memory(meminfo: Path) -> None:
    """Limit this process to the free memory in *meminfo*, so that an engine that needs more is refused.

    Otherwise the system may kill any process when standard operators materialise every window of a convolution.
    """
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        most = 1024 * int(line.split()[1])
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


def _answer(engines: list[Engine], *request: Any) -> object:
    match request:
        case (Task() as task, feeds):
            try:
                engine = prepare(task, feeds)
            except (ValueError, LookupError, OSError) as error:
                if isinstance(error, OSError) and error.filename:
                    return OSError(error.errno, error.strerror, error.filename)
                # Not every exception can be pickled.
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
    raise TypeError(f"request {request}: expected a task and inputs, or a number, repeats and warm")


if __name__ == "__main__":
    _serve(sys.argv[1])
