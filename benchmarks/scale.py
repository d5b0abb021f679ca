"""Compare a search-bound job in one process, in local processes and on a local cluster: seconds, speedup, reports.

``python -m benchmarks.scale [--items N] [--workers N] [--rounds N] [--no-cluster]``

The job is one search for each of many different convolutions, those of a residual network and similar ones.  The modes
take turns; each starts its own workers, and the time includes their start and imports.  On a busy machine wall time is
unreliable, so processor times are printed too.  *critical* is the largest processor time of any worker since its
start, plus that of the calling process; the speedup by it is the speedup on an idle machine, apart from contention
between cores.  The command fails if the reports differ in anything but seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import einnet_explore as ee
from einnet_explore.cli.output import format_table
from einnet_explore.ir import Program
from einnet_explore.session.run import run_search
from einnet_explore.support.executors import ProcessExecutor, SerialExecutor, gather_results, submit_work

STATES = 400


def job() -> dict[str, Program]:
    """Return convolutions of every stage and kind, the largest first, as a scheduler would order them."""
    stages = ((56, 64), (28, 128), (14, 256), (7, 512))
    made = {}
    for window in ((5, 5), (3, 3), (3, 1), (1, 7)):
        for size, channels in stages:
            for filters in (channels, channels // 2):
                name = f"conv {window[0]}x{window[1]} {size}x{size} {channels}-{filters}"
                made[name] = ee.ops.conv2d(
                    N=1, H=size, W=size, C=channels, F=filters, R=window[0], S=window[1], padding="same"
                )
    return made


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of one mode: wall seconds, total and critical processor seconds, and the reports."""

    wall: float
    total: float
    critical: float
    reports: Sequence[Mapping[str, Any]]


def timed(case: str, program: Program) -> tuple[int, float, dict[str, Any]]:
    """Run one search; also return its process and that process's processor time since it started."""
    report = run_search(case, program, (), None, {}, STATES)
    return os.getpid(), time.process_time(), report


def timeless(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return *report* without measured times."""
    first = report["first_found"]
    return {**report, "seconds": None, "first_found": first and first["states"]}


def once(opened: Callable[[], AbstractContextManager[Any]], programs: Mapping[str, Program]) -> Ran:
    """Run the job on the executor that *opened* returns; the time includes its start and end."""
    began, own = time.perf_counter(), time.process_time()
    with opened() as executor:
        answers = gather_results(submit_work(executor, timed, case, program) for case, program in programs.items())
        wall = time.perf_counter() - began
    here = time.process_time() - own
    workers: dict[int, float] = {}
    for pid, spent, _ in answers:
        if pid != os.getpid():
            workers[pid] = max(workers.get(pid, 0.0), spent)
    critical = here + max(workers.values(), default=0.0)
    return Ran(wall, here + sum(workers.values()), critical, [timeless(report) for _, _, report in answers])


@contextmanager
def local_cluster(workers: int) -> Any:
    """Return a client of a scheduler and *workers* processes on this machine."""
    import distributed

    with (
        distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def main(argv: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--items", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-cluster", action="store_true")
    given = parser.parse_args(argv)
    programs = dict(list(job().items())[: given.items])
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "here": SerialExecutor,
        "1 process": lambda: ProcessExecutor(1),
        f"{given.workers} processes": lambda: ProcessExecutor(given.workers),
    }
    if not given.no_cluster:
        ways |= {
            "cluster of 1": lambda: local_cluster(1),
            f"cluster of {given.workers}": lambda: local_cluster(given.workers),
        }
    found: dict[str, list[Ran]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, opened in ways.items():
            found[name].append(once(opened, programs))
    first = found["here"][0].reports
    rows: list[list[object]] = [["", "wall s", "speed-up", "processor s", "critical s", "speed-up by it", "reports"]]
    for name, runs in found.items():
        one = found.get("cluster of 1" if "cluster" in name else "1 process", runs)
        wall = statistics.median(a.wall / b.wall for a, b in zip(one, runs, strict=True))
        path = statistics.median(a.critical / b.critical for a, b in zip(one, runs, strict=True))
        same = all(run.reports == first for run in runs)
        middle = sorted(runs, key=lambda run: run.wall)[len(runs) // 2]
        numbers = (middle.wall, wall, middle.total, middle.critical, path)
        rows.append([name, *(f"{n:.2f}" for n in numbers), "the same" if same else "DIFFERENT"])
    print(f"{len(programs)} searches of at most {STATES} states; speed-ups over one worker of the same kind")
    print(format_table(rows))
    if any(run.reports != first for runs in found.values() for run in runs):
        sys.exit("error: reports differ from those of one process")


if __name__ == "__main__":
    main(sys.argv[1:])
