"""Content of the comparison panel: the chosen nodes side by side, each compared with the first."""

from __future__ import annotations

from einnet_explore.session.candidate_benchmark import CandidateMeasurements
from einnet_explore.session.session import Session
from einnet_widgets.graphs import DRAWN
from einnet_widgets.look import Look, Shown, certified, formula, library_calls


def compare(session: Session, look: Look, measured: CandidateMeasurements | None) -> Shown:
    """Return the chosen nodes with what each does not share with the first: tokens, equations, costs and steps."""
    if look.compare is None:
        return {"sides": []}
    first, *others = look.compare
    pairs = [session.compare(first, other) for other in others]
    sides = []
    for n, node in enumerate(look.compare):
        pair, k = pairs[max(0, n - 1)], min(n, 1)
        program = pair.programs[k]
        name = "start" if node == 0 else f"node {node}"
        held = measured if measured is not None and measured.programs.get(name) == program else None
        sides.append(
            {
                **formula(program),
                "id": node,
                "marks": {("old", "new")[k]: pair.changed_tokens[k]},
                "svg": pair.graphs()[k] if len(program.inputs) + len(program.equations) <= DRAWN else "",
                "distance": pair.distances[k],
                "seconds": pair.seconds[k],
                "measured": held and held.median(name),
                "numerics": pair.levels[k],
                "calls": library_calls(program),
                "same": n > 0 and pair.same,
                "certificate": {"kind": pair.certificate.kind, "says": certified(pair.certificate)} if n else None,
                "steps": list(pair.steps) if n else [],
            }
        )
    return {"sides": sides}
