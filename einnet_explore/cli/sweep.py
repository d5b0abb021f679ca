"""``einnet-explore sweep``: searches from many cases."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from einnet_explore.cli.output import (
    BAD_INPUT,
    INTERRUPTED,
    NO,
    OK,
    STDOUT,
    check_writable,
    format_table,
    one_line,
    say,
    write_json,
)
from einnet_explore.ir import Program
from einnet_explore.session.run import check_options, run_search
from einnet_explore.support.executors import WorkExecutor, executor, submit_work
from einnet_explore.support.wording import count_noun, format_seconds
from einnet_explore.syntax import load_text

Report = dict[str, Any]


def run_sweep(arguments: argparse.Namespace) -> int:
    """Return exit code 0 if every case has a candidate (with the target operators), else 1.

    After an interrupt the finished searches are reported.  A search that fails is reported and the others still run;
    the exit code is then 2, and no document is written if no search finished.
    """
    check_writable(json=arguments.json, reads=arguments.cases)
    reports: dict[str, Report] = {}
    failures: dict[str, Exception] = {}
    programs = _programs(arguments, failures)
    interrupted = False
    try:
        with executor(arguments.jobs, arguments.cluster) as where:
            _search(arguments, programs, where, reports, failures)
    except KeyboardInterrupt:
        say(f"interrupted: {len(reports)} of {count_noun(len(programs), 'search', 'searches')} done")
        interrupted = True
    done = [reports[case] for case in programs if case in reports]
    if arguments.json and (done or not failures):
        messages = {case: one_line(problem) for case, problem in failures.items()}
        write_json(arguments.json, {"reports": done, "failures": messages})
    if done and arguments.json != STDOUT:
        head = ["case", "states", "seconds", "candidates", "estimate", "certificate", "library operators"]
        print(format_table([head, *map(_row, done)]))
    if interrupted or failures:
        return INTERRUPTED if interrupted else BAD_INPUT
    return OK if all(map(_wanted, done)) else NO


def _programs(arguments: argparse.Namespace, failures: dict[str, Exception]) -> dict[str, Program]:
    """Return the programs of all readable cases; report the errors of the others."""
    programs: dict[str, Program] = {}
    for case in dict.fromkeys(arguments.cases):
        try:
            programs[case] = load_text(case)
        except (OSError, ValueError) as problem:
            _fail(arguments, failures, case, problem)
    return programs


def _fail(arguments: argparse.Namespace, failures: dict[str, Exception], case: str, problem: Exception) -> None:
    """Report that *case* failed; under ``--debug`` raise its error."""
    if arguments.debug:
        raise problem
    failures[case] = problem
    why = one_line(problem)
    say(f"error: {why if why.startswith(case) else f'{case}: {why}'}")


def _search(
    arguments: argparse.Namespace,
    programs: Mapping[str, Program],
    where: WorkExecutor,
    reports: dict[str, Report],
    failures: dict[str, Exception],
) -> None:
    """Fill *reports* and *failures* by case; after an interrupt *reports* has all finished searches."""
    targets, options = tuple(arguments.target), {"strategy": arguments.strategy, "max_depth": arguments.max_depth}
    check_options(programs, targets, options)
    limits = arguments.budget, options, arguments.limit_states
    futures: dict[str, Any] = {}
    try:
        for case, program in programs.items():
            futures[case] = submit_work(where, run_search, case, program, targets, *limits)
        for case, future in futures.items():
            problem = future.exception()
            if problem is None:
                reports[case] = future.result()
            elif isinstance(problem, Exception):
                _fail(arguments, failures, case, problem)
            else:  # a terminal sends Ctrl-C to the worker processes too
                raise problem
    except KeyboardInterrupt:
        for case, future in futures.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                reports[case] = future.result()
        raise


def _wanted(report: Report) -> bool:
    return any(c["operators"] or not report["target"] for c in report["candidates"])


def _row(report: Report) -> list[object]:
    counts = [report["case"], report["states"], f"{report['seconds']:.2f}", len(report["candidates"])]
    if report["best"] is None:
        return [*counts, "", "", "none"]
    best = report["candidates"][report["best"]]
    named = "; ".join(o["name"] for o in best["operators"])
    return [*counts, format_seconds(best["estimated_seconds"]), best["certificate"], named or "none"]
