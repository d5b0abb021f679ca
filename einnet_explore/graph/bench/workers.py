"""An engine in a process of its own: asked for samples over a pipe, one at a time."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection
from types import TracebackType

from einnet_explore.graph.bench.engines import Task, prepare
from einnet_explore.graph.contest import Arrays


class Worker:
    """What ``engines.prepare`` gives, in another process; leaving the context ends that process."""

    feeds: Arrays
    outputs: Arrays
    said: str

    def __init__(self, task: Task, feeds: Arrays | None) -> None:
        # Forked children of a process with thread pools may hang: begin afresh.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, task, feeds), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._end()
            raise RuntimeError(f"the engine's process ended with code {self._process.exitcode}") from None
        except BaseException:
            self._end()
            raise
        if isinstance(answer, Exception):
            self._end()
            raise answer
        self.feeds, self.outputs, self.said = answer
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def sample(self, repeats: int) -> float:
        """Seconds that *repeats* runs take together."""
        self._pipe.send(repeats)
        seconds: float = self._pipe.recv()
        return seconds

    def _end(self) -> None:
        self._pipe.close()
        self._process.join(1)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, task: Task, feeds: Arrays | None) -> None:
    # Ctrl-C is for the command, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        engine = prepare(task, feeds)
    except Exception as error:
        # Not every exception survives a pipe; what it says does.
        plain = (
            ValueError(str(error))
            if isinstance(error, ValueError | LookupError | OSError)
            else RuntimeError(f"{type(error).__name__}: {error}")
        )
        pipe.send(plain)
        return
    pipe.send((engine.feeds, engine.outputs, engine.said))
    try:
        while True:
            pipe.send(engine.sample(pipe.recv()))
    except (EOFError, OSError):
        return
