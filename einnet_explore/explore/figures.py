"""Figures as SVG: computation graphs and search trees.

Graphs are laid out by Graphviz where its ``dot`` is installed, and by a small layered layout of our own where it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import graphviz
import networkx as nx

from einnet_explore.ir import Program
from einnet_explore.render.graph import COLOURS, Graph, dot, graph
from einnet_explore.search.events import State

FONT = "font-family='Helvetica, Arial, sans-serif'"


@dataclass(frozen=True, slots=True)
class Figure:
    """An SVG picture; notebooks show it, ``save`` writes it."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": "(figure)"}


def graph_figure(program: Program, title: str = "") -> Figure:
    """The computation graph of *program*."""
    try:
        return Figure(_graphviz(dot(program, title)))
    except (graphviz.ExecutableNotFound, graphviz.CalledProcessError):
        return Figure(layered(graph(program), title))


def _graphviz(source: str) -> str:
    drawn: str = graphviz.Source(source).pipe(format="svg", encoding="utf-8")
    return drawn[drawn.index("<svg") :]


def layered(drawn: Graph, title: str = "") -> str:
    """*drawn* in layers by longest path, as SVG; needs nothing but networkx."""
    net: nx.DiGraph[str] = nx.DiGraph([(a, b) for a, b, _ in drawn.edges])
    net.add_nodes_from(node.name for node in drawn.nodes)
    wide, high, gap = 150, 56, 40
    place: dict[str, tuple[int, int]] = {}
    layers = [sorted(layer, key=[n.name for n in drawn.nodes].index) for layer in nx.topological_generations(net)]
    width = max(len(layer) for layer in layers) * (wide + gap) + gap if layers else wide
    for y, layer in enumerate(layers):
        left = (width - len(layer) * (wide + gap) + gap) // 2
        for x, name in enumerate(layer):
            place[name] = (left + x * (wide + gap), 30 + y * (high + gap))
    height = 30 + len(layers) * (high + gap)
    parts = [_open(width, height), f"<text x='{width // 2}' y='18' text-anchor='middle' {FONT}>{escape(title)}</text>"]
    for a, b, label in drawn.edges:
        (ax, ay), (bx, by) = place[a], place[b]
        x1, y1, x2, y2 = ax + wide // 2, ay + high, bx + wide // 2, by
        parts.append(f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='#666' marker-end='url(#arrow)'/>")
        parts.append(
            f"<text x='{(x1 + x2) // 2 + 4}' y='{(y1 + y2) // 2}' font-size='9' {FONT}>{escape(label)}</text>"
        )
    for node in drawn.nodes:
        x, y = place[node.name]
        dash = " stroke-dasharray='4 3'" if node.kind in ("view", "weight") else ""
        thick = 2 if node.kind == "eOperator" else 1
        parts.append(
            f"<rect x='{x}' y='{y}' width='{wide}' height='{high}' rx='{20 if node.kind in ('input', 'weight') else 3}' "
            f"fill='{COLOURS[node.kind]}' stroke='#333' stroke-width='{thick}'{dash}/>"
        )
        for n, line in enumerate(node.label.split("\n")):
            parts.append(
                f"<text x='{x + wide // 2}' y='{y + 18 + 14 * n}' text-anchor='middle' font-size='11' {FONT}>"
                f"{escape(line)}</text>"
            )
    return "".join([*parts, "</svg>"])


def tree_figure(states: Sequence[State], best: int | None = None, limit: int = 400) -> Figure:
    """The search tree: one dot a state, a row a depth, the way to *best* drawn thick; candidates are squares.

    At most *limit* states are drawn, the first ones and the way to *best*; the caption says how many were left out.
    """
    path: set[int] = set()
    here = best
    while here:
        path.add(here)
        here = states[here].parent
    shown = [s for s in states if s.id < limit or s.id in path]
    rank: dict[int, int] = {}
    for s in shown:
        rank[s.id] = rank[s.parent] + 1 if s.id else 0
    rows: dict[int, list[State]] = {}
    for s in shown:
        rows.setdefault(rank[s.id], []).append(s)
    width, step = 900, 80
    place: dict[int, tuple[float, float]] = {}
    for r, row in rows.items():
        ordered = sorted(row, key=lambda s: (place.get(s.parent, (0.0, 0.0))[0], s.id))
        for n, s in enumerate(ordered):
            place[s.id] = ((n + 0.5) * width / len(row), 30.0 + r * step)
    height = 40 + step * len(rows)
    parts = [_open(width, height)]
    for s in shown:
        if s.id:
            (ax, ay), (bx, by) = place[s.parent], place[s.id]
            on = s.id in path
            parts.append(
                f"<line x1='{ax:.1f}' y1='{ay:.1f}' x2='{bx:.1f}' y2='{by:.1f}' "
                f"stroke='{'#c0392b' if on else '#bbbbbb'}' stroke-width='{2.5 if on else 0.7}'/>"
            )
    for s in shown:
        x, y = place[s.id]
        says = escape(", ".join(m.rule.name for m in s.matches) or "start")
        tip = f"<title>state {s.id}, depth {s.depth}, distance {s.distance}: {says}</title>"
        colour = "#c0392b" if s.id in path else "#2e6da4"
        if s.phase == "converging":
            parts.append(f"<rect x='{x - 4:.1f}' y='{y - 4:.1f}' width='8' height='8' fill='{colour}'>{tip}</rect>")
        else:
            parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'>{tip}</circle>")
    said = f"{len(shown)} of {len(states)} states; squares are candidates, the best one's path is thick"
    parts.append(f"<text x='8' y='{height - 6}' font-size='11' {FONT}>{said}</text></svg>")
    return Figure("".join(parts))


def _open(width: float, height: float) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}'>"
        "<defs><marker id='arrow' viewBox='0 0 8 8' refX='8' refY='4' markerWidth='8' markerHeight='8' orient='auto'>"
        "<path d='M0,0 L8,4 L0,8 z' fill='#666'/></marker></defs>"
        f"<rect width='{width}' height='{height}' fill='white'/>"
    )
