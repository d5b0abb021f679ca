"""``einnet-explore show``: an expression, program or derivation as text, LaTeX, SVG or a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from einnet_explore.analysis.flattening import flatten_scope
from einnet_explore.cli.output import OK, check_width, check_writable, save_file, say
from einnet_explore.ir import Program, show_path
from einnet_explore.rules import Derivation
from einnet_explore.session.api import load
from einnet_explore.session.run import Run
from einnet_explore.session.session import Session
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.support.wording import printable
from einnet_explore.syntax import text
from einnet_explore.viz.figure import join_svgs
from einnet_explore.viz.graph_figures import graph_figure
from einnet_explore.viz.views import Formula, Steps, derivation_page


def run_show(arguments: argparse.Namespace) -> int:
    """Print or draw a case; a record with all its steps."""
    check_writable(arguments.svg, arguments.html, reads=[arguments.case])
    derivation = _derivation_of(load(arguments.case, arguments.rule))
    check_width(arguments.width, arguments.latex)
    title = printable(Path(arguments.case).stem)
    if arguments.svg:
        save_file(arguments.svg, _graphs(derivation, title))
    elif arguments.html:
        save_file(arguments.html, derivation_page(derivation, title))
    elif arguments.table:
        _tables(derivation.end)
    elif arguments.kernel:
        _kernels(derivation.end, arguments.kernel, arguments.dtype)
    elif arguments.latex:
        print((Steps(derivation) if derivation.steps else Formula(derivation.end)).latex(arguments.width))
    else:
        print(*map(_with_reason, [None, *_reasons(derivation)], map(text, _programs(derivation))), sep="\n", end="")
    return OK


def _graphs(derivation: Derivation, title: str) -> str:
    """Return the graph of a program, or those of both ends of a derivation next to each other."""
    if not derivation.steps:
        return graph_figure(derivation.start, title).svg
    ends = (("start", derivation.start), ("end", derivation.end))
    return join_svgs(graph_figure(program, f"{title}: {name}").svg for name, program in ends)


def _tables(program: Program) -> None:
    for n, equation in enumerate(program.equations):
        if n:
            print()
        print(f"{equation.name}:")
        try:
            print(flatten_scope(equation.scope, equation.name))
        except ValueError as reason:
            say(f"{equation.name} has no table: {reason}")


def _kernels(program: Program, dialect: str, dtype: str) -> None:
    from einnet_explore.viz.kernels import kernel_texts  # loads compilers, which the other forms do not need

    for kernel in kernel_texts(program, dialect, dtype):
        if kernel.text:
            print(kernel.text)
        else:
            say(f"no kernel for {kernel.why}")


def _derivation_of(case: Program | Derivation | Run | Session) -> Derivation:
    """Return the derivation of a record or session, the best of a search, or a program as one without steps."""
    match case:
        case Session():
            return case.derivation
        case Program():
            return Derivation(case)
        case Run(best=Candidate(derivation=derivation)) | (Derivation() as derivation):
            return derivation
        case _:
            raise ValueError("the search has found no candidate yet, so there is no derivation to show")


def _programs(derivation: Derivation) -> list[Program]:
    """Return E0, E1, …, En."""
    return [derivation.start, *(step.after for step in derivation.steps)]


def _reasons(derivation: Derivation) -> list[str]:
    """Return the rule and the path of each step."""
    return [f"{step.match.title} at {show_path(step.match.at)}" for step in derivation.steps]


def _with_reason(reason: str | None, shown: str) -> str:
    return shown if reason is None else f"# {reason}\n{shown}"
