"""``einnet-explore show``: an expression, program or derivation as text, LaTeX, SVG or a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from einnet_explore.cli.errors import OK
from einnet_explore.explore import records
from einnet_explore.explore.figures import graph_figure
from einnet_explore.storage import write_atomically
from einnet_explore.explore.page import derivation_page
from einnet_explore.ir import Program, show_path
from einnet_explore.render import latex, text
from einnet_explore.render.latex import align
from einnet_explore.rules import Derivation
from einnet_explore.text import load_text


def run(arguments: argparse.Namespace) -> int:
    """Print or draw; a record is shown with all its steps."""
    derivation = load(arguments.case)
    if arguments.svg:
        write_atomically(arguments.svg, graph_figure(derivation.end, Path(arguments.case).stem).svg)
    elif arguments.html:
        write_atomically(arguments.html, derivation_page(derivation, Path(arguments.case).stem))
    elif arguments.latex:
        print(align(programs(derivation), reasons(derivation)) if derivation.steps else latex(derivation.end))
    else:
        print(*map(_said, [None, *reasons(derivation)], map(text, programs(derivation))), sep="\n")
    return OK


def load(path: str) -> Derivation:
    """A ``.ein`` case as a derivation without steps, or a record's derivation."""
    if path.endswith(".json"):
        return records.from_record(records.load(path))
    return Derivation(load_text(path))


def programs(derivation: Derivation) -> list[Program]:
    """E0, E1, …, En."""
    return [derivation.start, *(step.after for step in derivation.steps)]


def reasons(derivation: Derivation) -> list[str]:
    """What was done at each step: the rule and the place."""
    return [f"{step.match.rule.name} at {show_path(step.match.at)}" for step in derivation.steps]


def _said(reason: str | None, shown: str) -> str:
    return shown if reason is None else f"# {reason}\n{shown}"
