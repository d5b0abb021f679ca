"""``einnet-explore sweep``: many searches at once."""

from __future__ import annotations

import argparse
from typing import Any

from einnet_explore.cli.errors import NO, OK
from einnet_explore.cli.output import STDOUT, seconds, table, writable, write_json
from einnet_explore.executors import executor
from einnet_explore.explore.many import search_all
from einnet_explore.text import load_text


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when every case has a candidate (for the targets asked for), else 1."""
    programs = {case: load_text(case) for case in dict.fromkeys(arguments.cases)}
    writable(arguments.json)
    with executor(arguments.jobs, arguments.cluster) as where:
        reports = search_all(
            programs,
            where,
            target=arguments.target,
            limit=arguments.limit_seconds,
            states=arguments.limit_states,
            strategy=arguments.strategy,
            max_depth=arguments.max_depth,
        )
    if arguments.json:
        write_json(arguments.json, {"reports": reports})
    if arguments.json != STDOUT:
        head = ["case", "states", "seconds", "candidates", "estimate", "certificate", "library operators"]
        print(table([head, *map(_row, reports)]))
    return OK if all(_wanted(report) for report in reports) else NO


def _wanted(report: dict[str, Any]) -> bool:
    return any(c["operators"] or not report["target"] for c in report["candidates"])


def _row(report: dict[str, Any]) -> list[object]:
    counts = [report["case"], report["states"], f"{report['seconds']:.2f}", len(report["candidates"])]
    if report["best"] is None:
        return [*counts, "", "", "none"]
    best = report["candidates"][report["best"]]
    named = "; ".join(o["name"] for o in best["operators"])
    return [*counts, seconds(best["estimated_seconds"]), best["certificate"], named or "none"]
