"""Items in separate processes: a crash or a hang is a finding about its item, and the next item runs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from benchmarks.soak.outcome import Outcome
from einnet_explore.support.executors import submit_work

Work: TypeAlias = Callable[[int, int], Outcome]
"""Item number n of a seed, both given."""

RENEWED = 200
"""Items after which a worker makes way for a new one: compiled kernels are never unloaded."""


class Worker:
    """A process that does items of *work*, renewed when it dies, hangs or has done many."""

    def __init__(self, work: Work, seed: int, limit: float) -> None:
        self.work, self.seed, self.limit = work, seed, limit
        self._process: Any = None
        self._done = 0

    def run(self, item: int) -> Outcome:
        """Run item number *item* and return its outcome."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self.work, self.seed), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send(item)
            if not self._pipe.poll(self.limit):
                return self._lost(f"hang: nothing after {self.limit:.0f} seconds")
            outcome: Outcome = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            return self._lost(f"crash: the process ended with {self._process.exitcode}")
        self._done += 1
        if self._done == RENEWED:
            self.close()
        return outcome

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process, self._done = None, 0

    def _lost(self, why: str) -> Outcome:
        self.close()
        return Outcome(findings=[why])


class Elsewhere:
    """Items on an executor, such as a cluster's client; *limit* also counts what an item waits there."""

    def __init__(self, executor: Any, work: Work, seed: int, limit: float) -> None:
        self.executor, self.work, self.seed, self.limit = executor, work, seed, limit

    def run(self, item: int) -> Outcome:
        """Run item number *item* and return its outcome."""
        future = submit_work(self.executor, self.work, self.seed, item)
        try:
            outcome: Outcome = future.result(timeout=self.limit)
        except TimeoutError:
            future.cancel()
            return Outcome(findings=[f"hang: nothing after {self.limit:.0f} seconds"])
        except Exception as error:
            return Outcome(findings=[f"crash: {type(error).__name__}: {error}"])
        return outcome

    def close(self) -> None:
        """The executor is another's."""


def _serve(pipe: Connection, work: Work, seed: int) -> None:
    while True:
        try:
            item = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            outcome = work(seed, item)
        except KeyboardInterrupt:
            return
        except Exception as error:
            outcome = Outcome()
            outcome.found("traceback", error, _last(error))
        try:
            pipe.send(outcome)
        except OSError:
            return  # who asked has gone


def _last(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
