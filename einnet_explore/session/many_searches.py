"""Independent searches over any executor; the reports equal those of one process."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, Protocol

from einnet_explore.cost import program_seconds
from einnet_explore.ir import Program
from einnet_explore.session.run import Run
from einnet_explore.strategies.options import Options
from einnet_explore.support.executors import ProcessExecutor, gather_results, submit_work


class Submits(Protocol):
    """An executor: a ``concurrent.futures.Executor`` or a client of ``dask.distributed``."""

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A future of ``work(*args)``: it has ``result()``."""


def run_searches(
    programs: Iterable[Program] | Mapping[str, Program],
    executor: Executor | Submits | None = None,
    *,
    target: str | Iterable[str] = (),
    limit: float | None = None,
    states: int | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """The reports (JSON of ``derive``) of a search of each of *programs*, in their order.

    *executor* runs them (processes of this machine by default): the reports are the same as if they were searched here
    in turn, but for the seconds in them, and but for *limit*, which cuts each search off by the clock; *states* cuts it
    off by its states, which is the same everywhere.  Of a mapping, the keys are the cases' names.  *options* are those
    of ``strategies.options.Options``.  Raises ValueError for options or targets that are unknown, and whatever a search
    raises.
    """
    named = dict(programs) if isinstance(programs, Mapping) else {str(n): p for n, p in enumerate(programs)}
    names = (target,) if isinstance(target, str) else tuple(target)
    check_options(named, names, options)
    asked = [(case, program, names, limit, options, states) for case, program in named.items()]
    if executor is not None:
        return gather_results(submit_work(executor, run_search, *each) for each in asked)
    with ProcessExecutor(len(os.sched_getaffinity(0))) as processes:
        return gather_results(submit_work(processes, run_search, *each) for each in asked)


def check_options(programs: Mapping[str, Program], target: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Say what is wrong with the options of searches of *programs* before anything starts: raises ValueError."""
    for program in list(programs.values())[:1]:
        Run(program, program_seconds, target=target, options=Options(**options))


def run_search(
    case: str,
    program: Program,
    target: tuple[str, ...],
    limit: float | None,
    options: Mapping[str, Any],
    states: int | None = None,
) -> dict[str, Any]:
    """Return the report of one search: plain values in and out, for use in another process."""
    run = Run(program, program_seconds, target=target, limit=limit, states=states, options=Options(**options))
    before = gc.get_threshold()
    # Expressions are trees that refer to nothing above them: looking for cycles among them costs a fifth of the time.
    gc.set_threshold(50_000, 20, 20)
    try:
        for _ in run:
            pass
        return run.report(case)
    finally:
        gc.set_threshold(*before)
