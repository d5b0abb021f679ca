"""``einnet-explore bench``: paired measurement against other engines."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from einnet_evaluation.bench import run_benchmark
from einnet_evaluation.engines import check_engines
from einnet_evaluation.rivals import RIVALS
from einnet_explore.cli.output import (
    BAD_INPUT,
    INTERRUPTED,
    OK,
    STDOUT,
    check_writable,
    format_table,
    one_line,
    progress_bar,
    say,
    write_json,
)
from einnet_explore.cli.values import parse_shapes
from einnet_explore.support.limits import available_cores
from einnet_explore.support.wording import count_noun, format_seconds


def run_bench(arguments: argparse.Namespace) -> int:
    """Measure every case in turn, and print one table a case or write one JSON document of all.

    An interrupt ends the command with the cases measured so far.  A case that fails is reported and the others are
    still measured; the exit code is then 2, and no document is written if nothing was measured.
    """
    check_writable(json=arguments.json, reads=arguments.cases)
    measure = _benchmark(arguments)
    results: list[Mapping[str, Any]] = []
    failures: dict[str, str] = {}
    interrupted = False
    with progress_bar(len(arguments.cases), "cases") as bar:
        for case in arguments.cases:
            try:
                result = measure(case)
            except KeyboardInterrupt:
                say(f"interrupted: {len(results)} of {count_noun(len(arguments.cases), 'case')} measured")
                interrupted = True
                break
            except (ValueError, RuntimeError, OSError) as error:
                if arguments.debug:
                    raise
                failures[case] = one_line(error)
                say(f"error: {failures[case]}")
                continue
            results.append(result)
            bar.update()
            if arguments.json != STDOUT:
                print(_table(result))
    if arguments.json and (results or not failures):
        write_json(arguments.json, {"cases": results, "failures": failures})
    return INTERRUPTED if interrupted else BAD_INPUT if failures else OK


def _benchmark(arguments: argparse.Namespace) -> Callable[[str], Mapping[str, Any]]:
    """Return the measurement of one case; raises ValueError for bad shapes and an unknown or missing engine.

    With ``all``, missing engines are left out and reported.
    """
    against = tuple(name.strip() for name in arguments.against.split(",") if name.strip())
    for case in arguments.cases:
        check_engines(case, against)
    if missing := [why for name in against if name in RIVALS and (why := RIVALS[name].why_missing())]:
        raise ValueError("; ".join(missing))
    return partial(
        run_benchmark,
        against=against,
        device=arguments.device,
        threads=arguments.threads,
        rounds=arguments.rounds,
        shapes=parse_shapes(arguments.shape),
        budget=arguments.budget,
    )


def _table(result: Mapping[str, Any]) -> str:
    head = f"{result['case']}: {count_noun(result['threads'], 'thread')}, {count_noun(result['rounds'], 'round')}"
    if result["load"] > available_cores():
        head += f"; other programs ran (a load of {result['load']:.1f}): ratios may vary"
    rows: list[list[object]] = [["engine", "median", "iqr", "times ours", "error", "what it runs"]]
    for name, engine in result["engines"].items():
        error = f"{result['max_rel_error'][name]:.1e}"
        ratio = f"{result['ratios'][name]:.2f}"
        rows.append(
            [name, format_seconds(engine["seconds"]), format_seconds(engine["iqr"]), ratio, error, engine["says"]]
        )
    refused = [f"{name}: not measured: {why}" for name, why in result["refused"].items()]
    lines = [head, format_table(rows)]
    if result["best"]:
        lines.append(f"{result['speedup']:.2f} times as fast as the fastest rival on the original, {result['best']}")
    return "\n".join([*lines, *refused, ""])
