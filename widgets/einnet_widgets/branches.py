"""Derivation history of a session as plain values: the tree of its nodes, and the diff of two nodes."""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.cost import program_seconds
from einnet_explore.ir import show_path
from einnet_explore.session.session import Session
from einnet_explore.strategies.instantiation import nearest_distance
from einnet_explore.viz.tables import format_parameters
from einnet_widgets.look import Look, Shown, certified, formula


def history(session: Session, look: Look) -> Shown:
    """Return the tree of nodes, with branches indented below the node where they start."""
    known = session.known_certificates()
    way = set(session.way())
    nodes = []
    for n, depth in _order(session):
        steps = session.nodes[n].steps
        match = steps[-1].match if steps else None
        nodes.append(
            {
                "id": n,
                "parent": session.parents[n],
                "branch": depth,
                "step": len(steps),
                "way": n in way,
                "rule": match.title if match else "",
                "at": show_path(match.at) if match else "",
                "says": format_parameters(match) if match else "",
                "certificate": known[n].kind if n in known else None,
            }
        )
    return {"here": session.here, "nodes": nodes, "compare": compared(session, look)}


def compared(session: Session, look: Look) -> Shown | None:
    """Return the diff of the two nodes that are selected for comparison."""
    if look.compare is None:
        return None
    pair = session.compare(*look.compare)
    sides = [
        {
            **formula(program),
            "id": node,
            "marks": {kind: changed},
            "distance": nearest_distance(program, look.operators(session)),
            "seconds": program_seconds(program)[0],
        }
        for node, program, changed, kind in zip(
            look.compare, pair.programs, pair.changed_tokens, ("old", "new"), strict=True
        )
    ]
    certificate = {"kind": pair.certificate.kind, "says": certified(pair.certificate)}
    return {"a": sides[0], "b": sides[1], "same": pair.same, "certificate": certificate}


def _order(session: Session) -> Iterable[tuple[int, int]]:
    """Yield nodes with their branch depth, first children first."""
    below: dict[int, list[int]] = {}
    for n, parent in enumerate(session.parents):
        below.setdefault(parent, []).append(n)
    stack = [(0, 0)]
    while stack:
        n, depth = stack.pop()
        yield n, depth
        children = below.get(n, [])
        stack += [(child, depth + (k > 0)) for k, child in reversed(list(enumerate(children)))]
