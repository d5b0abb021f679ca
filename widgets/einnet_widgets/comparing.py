"""Content of the comparison panel: the chosen nodes side by side, each compared with the first."""

from __future__ import annotations

from einnet_explore.ir import VIEW, Program
from einnet_explore.session.candidate_benchmark import CandidateMeasurements
from einnet_explore.session.comparison import compared_graphs
from einnet_explore.session.session import Session
from einnet_explore.strategies.rounding_levels import LEVEL_WORDS
from einnet_explore.support.errors import Refused
from einnet_widgets.graphs import DRAWN
from einnet_widgets.look import Look, Shown, certified, formula, library_calls, measured_name


def compare(session: Session, look: Look, measured: CandidateMeasurements | None) -> Shown:
    """Return the chosen nodes with what each does not share with the first: tokens, equations, costs and steps."""
    if look.compare is None:
        return {"sides": []}
    first, *others = look.compare
    pairs = [session.compare(first, other) for other in others]
    programs = [pairs[0].programs[0], *(pair.programs[1] for pair in pairs)]
    names = [session.name(node) for node in look.compare]
    drawn = max(len(program.inputs) + len(program.equations) for program in programs) <= DRAWN
    graphs = compared_graphs(programs, names) if drawn else ("",) * len(names)
    sides = []
    for n, (node, program, name, svg) in enumerate(zip(look.compare, programs, names, graphs, strict=True)):
        pair, k = pairs[max(0, n - 1)], min(n, 1)
        key = measured_name(node)
        held = measured if measured is not None and measured.programs.get(key) == program else None
        sides.append(
            {
                **formula(program),
                "id": node,
                "name": name,
                "marks": {("old", "new")[k]: pair.changed_tokens[k]},
                "svg": svg,
                "distance": pair.distances[k],
                "seconds": pair.seconds[k],
                "measured": held and held.median(key),
                "numerics": LEVEL_WORDS.get(pair.levels[k], ""),
                "calls": library_calls(program),
                "same": n > 0 and pair.same,
                "certificate": {"kind": pair.certificate.kind, "says": certified(pair.certificate)} if n else None,
                "steps": list(pair.steps) if n else [],
                "follows": first in session.way(node),
            }
        )
    return {"sides": sides}


def kernels(program: Program) -> list[Shown]:
    """Return the generated kernel of each equation in C, or why there is none, in the order of the equations."""
    from einnet_explore.viz.kernels import kernel_texts  # imports the compilers

    try:
        texts = kernel_texts(program, "c")
    except Refused as reason:
        return [{"text": "", "why": str(reason)} for _ in program.equations]
    shown = []
    for equation, kernel in zip(program.equations, texts, strict=True):
        via = equation.via
        if via is not None and (via.is_library_call or via.operator == VIEW):
            shown.append(
                {"text": "", "why": "nothing to run" if via.operator == VIEW else f"the library's {via.operator}"}
            )
        else:
            shown.append({"text": kernel.text, "why": kernel.why})
    return shown
