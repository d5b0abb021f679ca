"""``einnet-explore reproduce``: tables and figures of the paper's evaluation, from our engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from einnet_explore.cli.errors import INTERRUPTED, OK
from einnet_explore.cli.output import save, say
from einnet_explore.explore.plots import plot
from einnet_explore.explore.reproduce import QUICK, Effort, Lab, needed, sheets


def run(arguments: argparse.Namespace) -> int:
    """Search, print the tables, and write CSV, Markdown and SVG files where ``--out`` is given."""
    base = QUICK if arguments.quick else Effort()
    effort = Effort(arguments.max_depth or base.max_depth, arguments.limit_seconds or base.limit, base.measure)
    if arguments.out:
        Path(arguments.out).mkdir(parents=True, exist_ok=True)
    wanted = tuple(dict.fromkeys(arguments.experiments))
    lab = Lab(effort, say)
    interrupted = False
    try:
        lab.run(variant for experiment in wanted for variant in needed(experiment))
    except KeyboardInterrupt:
        interrupted = True
    for experiment in wanted:
        made = sheets(experiment, lab.results, measure=effort.measure and not interrupted)
        if any(sheet.rows for sheet in made):
            text = "\n".join(sheet.markdown() for sheet in made)
            print(text)
            if arguments.out:
                save(str(Path(arguments.out) / f"{experiment}.md"), text)
                for sheet in made:
                    save(str(Path(arguments.out) / f"{sheet.name}.csv"), sheet.csv())
                try:
                    save(str(Path(arguments.out) / f"{experiment}.svg"), plot(made).svg + "\n")
                except ValueError as missing:
                    say(f"{experiment}.svg: not written: {missing}")
    if interrupted:
        say(f"interrupted: the tables are of the {len(lab.results)} searches that were done")
        return INTERRUPTED
    return OK
