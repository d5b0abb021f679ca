"""``einnet-explore optimize``: the main job."""

from __future__ import annotations

import argparse
import sys
from html import escape

from einnet_explore.storage import write_atomically
from einnet_explore.cli.errors import INTERRUPTED, NO, OK
from einnet_explore.cli.output import progress, table, write_json
from einnet_explore.explore.figures import graph_figure
from einnet_explore.explore.page import page
from einnet_explore.graph.contest import AGREEMENT
from einnet_explore.graph.optimise import Optimiser, read, settings
from einnet_explore.graph.optimised import Optimised


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0: done; 1: the optimised model does not agree; 130: interrupted, with what was found so far saved."""
    chosen = settings(arguments.device, arguments.threads, arguments.max_depth)
    work = Optimiser(read(arguments.model, shapes(arguments.shape)), chosen, arguments.budget)
    try:
        with progress(len(work.split.subprograms), "subprograms") as bar:
            for step in work.run():
                bar.update()
                bar.set_postfix(kept=sum(p.kept for p in work.parts), states=step.part.outcome.states)
    except KeyboardInterrupt:
        work.interrupted = True
    fast = work.result()
    report = fast.report()
    if arguments.output:
        fast.save(arguments.output)
    if arguments.html:
        write_atomically(arguments.html, report_page(fast))
    if arguments.json:
        write_json(arguments.json, report)
    if arguments.json != "-":
        print(table(fast.rows()))
        print(fast.summary())
    if work.interrupted:
        saved = f", saved {arguments.output}" if arguments.output else ""
        print(f"interrupted after {len(work.parts)} of {len(work.split.subprograms)} subprograms{saved}", file=sys.stderr)
        return INTERRUPTED
    return OK if report["max_rel_error"] <= AGREEMENT else NO


def shapes(given: list[str]) -> dict[str, tuple[int, ...]]:
    """``NAME=1,3,224,224`` as names and shapes; raises ValueError on anything else."""
    out: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, equals, sizes = text.rpartition("=")
        parts = sizes.replace("x", ",").split(",")
        if not equals or not all(p.strip().isdigit() for p in parts):
            raise ValueError(f"--shape {text}: expected NAME=1,3,224,224")
        out[name] = tuple(map(int, parts))
    return out


def report_page(fast: Optimised) -> str:
    """The report as one page: the table, then the graphs of every kept subprogram before and after."""
    parts = [fast._repr_html_()]
    for name, before, after in fast.graphs():
        parts.append(f"<h2>{escape(name)}</h2><h3>before</h3>{graph_figure(before).svg}<h3>after</h3>{graph_figure(after).svg}")
    return page(f"optimised: {fast.model.path}", parts)
