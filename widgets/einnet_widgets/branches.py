"""Derivation history of a session as plain values: the tree of its nodes, and the verdict on two nodes."""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.ir import show_path
from einnet_explore.session.session import Session
from einnet_explore.viz.tables import format_parameters
from einnet_widgets.look import Look, Shown, certified


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
                "certificate": known[n].kind if n in known else session.claims[n].kind if n in session.claims else None,
                "claimed": n in session.claims,
                "pins": [name for name, node in session.pins.items() if node == n],
                "note": session.notes.get(n, ""),
            }
        )
    chosen = list(look.compare or ())
    return {"here": session.here, "nodes": nodes, "chosen": chosen, "compare": compared(session, look)}


def compared(session: Session, look: Look) -> Shown | None:
    """Return the verdict on the first two nodes that are selected for comparison."""
    if look.compare is None:
        return None
    a, b, *_ = look.compare
    pair = session.compare(a, b)
    certificate = {"kind": pair.certificate.kind, "says": certified(pair.certificate)}
    return {"a": {"id": a}, "b": {"id": b}, "same": pair.same, "certificate": certificate}


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
