"""A search as a directed graph in plain JSON: what the tree view draws, and what any other tool may read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from einnet_explore.ir import show_path
from einnet_explore.rules import Match
from einnet_explore.search.events import Pruned, State


def search_graph(states: Sequence[State], pruned: Iterable[Pruned] = (), costs: dict[int, float] | None = None) -> Any:
    """``{"nodes": […], "edges": […]}``: states, the moves between them, and merges.

    A node has ``id``, ``depth``, ``phase`` (``start``, ``explorative``, ``converging``), ``distance`` and ``seconds``
    (estimated, of candidates); an edge ``from``, ``to``, ``kind`` and its ``steps`` (rule and place).  An edge of kind
    ``move`` leads to a state's first discovery, so these alone are a tree; one of kind ``merge`` leads to the state
    that a pruned move would have reached again.  Equal merges are one edge with ``times``.
    """
    known = costs or {}
    nodes = [
        {"id": s.id, "depth": s.depth, "phase": s.phase, "distance": s.distance, "seconds": known.get(s.id)}
        for s in states
    ]
    edges = [_edge(s.parent, s.id, "move", s.matches) for s in states if s.id]
    merges: dict[object, dict[str, Any]] = {}
    for p in pruned:
        if p.twin is not None:
            edge = _edge(p.parent, p.twin, "merge", p.matches)
            same = merges.setdefault((p.parent, p.twin, tuple(map(tuple, edge["steps"]))), edge | {"times": 0})
            same["times"] += 1
    return {"nodes": nodes, "edges": [*edges, *merges.values()]}


def _edge(start: int, end: int, kind: str, matches: Iterable[Match[Any]]) -> dict[str, Any]:
    return {"from": start, "to": end, "kind": kind, "steps": [[m.rule.name, show_path(m.at)] for m in matches]}
