"""Figures as SVG: computation graphs and trees.

Graphs are laid out by Graphviz where its ``dot`` is installed, and by a small layered layout of our own elsewhere and
where they are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import graphviz

from einnet_explore.explore.figure import Figure, of_picture
from einnet_explore.explore.layered import layered
from einnet_explore.explore.picture import Box, Look, Oval, Picture, Point, Shape, Way, Words
from einnet_explore.explore.svg import legal, width_of
from einnet_explore.ir import Program
from einnet_explore.printable import counted
from einnet_explore.render.graph import Graph, dot_of, graph
from einnet_explore.search.events import State

LARGEST = 60
"""Nodes up to which Graphviz is asked: beyond, with tensors that many nodes read, it may take minutes."""

ON, OFF, FOUND = "#c0392b", "#2e6da4", "#e0a526"
WIDTH, ROW = 840.0, 60.0
"""Of a tree: JupyterLab shows pictures as they are, and beside its files a page of 1280 pixels has 860 for them."""


def graph_figure(program: Program, title: str = "") -> Figure:
    """The computation graph of *program*."""
    return drawn_figure(graph(program), title)


def drawn_figure(drawn: Graph, title: str = "") -> Figure:
    """A graph of nodes and edges."""
    own = layered(drawn, title)
    if len(drawn.nodes) > LARGEST:
        return of_picture(own, _says(drawn, title))
    try:
        return Figure(_graphviz(dot_of(drawn, title)), _says(drawn, title), own)
    except (graphviz.ExecutableNotFound, graphviz.CalledProcessError):
        return of_picture(own, _says(drawn, title))


def _graphviz(source: str) -> str:
    drawn = legal(graphviz.Source(source).pipe(format="svg", encoding="utf-8"))
    return drawn[drawn.index("<svg") :].replace("<svg ", "<svg style='max-width:100%;height:auto' ", 1)


def _says(drawn: Graph, title: str) -> str:
    """The graph in words, for those who do not see the picture."""
    lines = [title or "computation graph"]
    for node in drawn.nodes:
        reads = ", ".join(f"{a} {label}" for a, b, label in drawn.edges if b == node.name)
        kind = " ".join(node.label.split("\n")[1:]) or node.kind
        lines.append(f"  {node.name}: {kind}" + (f", reads {reads}" if reads else ""))
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node of a tree: *parent* is -1 at the root; *label* is drawn on the way to the chosen node, *tip* pops up."""

    id: int
    parent: int
    label: str
    tip: str
    candidate: bool = False


def tree_figure(states: Sequence[State], to: int | None = None, limit: int = 240) -> Figure:
    """The search tree: a row a depth, the way *to* a state drawn thick; squares are candidates.

    About *limit* states are drawn, the first ones and those on the way; the caption says how many there are.
    """
    path: set[int] = set()
    here = to or 0
    while here:
        path.add(here)
        here = states[here].parent
    shown = [s for s in states if s.id < limit or s.id in path]
    nodes = [
        TreeNode(
            s.id,
            s.parent if s.id else -1,
            s.matches[0].rule.name if s.matches else "start",
            f"state {s.id}, depth {s.depth}"
            + ("" if s.distance is None else f", distance {s.distance}")
            + "".join(f"\n{m.rule.name} at {'.'.join(map(str, m.at))}" for m in s.matches),
            s.phase == "converging",
        )
        for s in shown
    ]
    some = f"{len(shown)} of " if len(shown) < len(states) else ""
    way = "" if to is None else f"; the way to state {to} is thick"
    return draw_tree(nodes, to, f"{some}{counted(len(states), 'state')}; squares are candidates{way}")


def draw_tree(nodes: Sequence[TreeNode], chosen: int | None, caption: str) -> Figure:
    """*nodes* (parents before children) from top to bottom; the way to *chosen* is thick, red and labelled."""
    below: dict[int, list[TreeNode]] = {}
    known = {node.id: node for node in nodes}
    depth: dict[int, int] = {}
    for node in nodes:
        below.setdefault(node.parent, []).append(node)
        depth[node.id] = depth.get(node.parent, -1) + 1
    path: set[int] = set()
    here = -1 if chosen is None else chosen
    while here >= 0:
        path.add(here)
        here = known[here].parent
    x = _spread(nodes, below)
    leaves = max(1, sum(node.id not in below for node in nodes))
    radius = min(6.0, max(1.6, (WIDTH - 60) / leaves / 2.4))
    height = 56 + ROW * max(depth.values(), default=0)
    at = {node.id: (x[node.id], 22 + ROW * depth[node.id]) for node in nodes}
    shapes: list[Shape] = []
    for on in (False, True):  # the chosen way lies above the rest
        look = Look(stroke=ON, thick=2.5) if on else Look(stroke="#bbbbbb", thick=0.8)
        for node in nodes:
            if node.parent >= 0 and (node.id in path) == on:
                shapes.append(Way((at[node.parent], at[node.id]), look))
        shapes += [_dot(at[node.id], node, radius + on, on) for node in nodes if (node.id in path) == on]
    rows: dict[float, list[float]] = {}
    for across, down in at.values():
        rows.setdefault(down, []).append(across)
    shapes += [_label(at[n.id], n.label, radius, rows[at[n.id][1]]) for n in nodes if n.id in path]
    shapes.append(Words(8, height - 8, caption, 12))
    return of_picture(Picture(WIDTH, height, tuple(shapes)), f"tree: {caption}")


def _spread(nodes: Sequence[TreeNode], below: dict[int, list[TreeNode]]) -> dict[int, float]:
    """Leaves side by side in the order of a walk, parents above the middle of their children."""
    slot: dict[int, float] = {}
    stack = [(node, False) for node in reversed(below.get(-1, []))]
    free = 0
    while stack:
        node, done = stack.pop()
        children = below.get(node.id, [])
        if not children:
            slot[node.id] = free + 0.5
            free += 1
        elif done:
            slot[node.id] = (slot[children[0].id] + slot[children[-1].id]) / 2
        else:
            stack.append((node, True))
            stack += [(child, False) for child in reversed(children)]
    return {node.id: 30 + (WIDTH - 60) * slot[node.id] / max(1, free) for node in nodes}


def _dot(at: Point, node: TreeNode, radius: float, on: bool) -> Shape:
    x, y = at
    look = Look(ON if on else FOUND if node.candidate else OFF)
    if node.candidate:
        return Box(x - radius, y - radius, 2 * radius, 2 * radius, look, node.tip)
    return Oval(x, y, radius, radius, look, node.tip)


def _label(at: Point, label: str, radius: float, row: Sequence[float]) -> Shape:
    """Beside its node, or above its *row* where it would hide another node of that."""
    wide = radius + 6 + width_of(label, 12)
    right = at[0] + wide < WIDTH
    x, anchor = (at[0] + radius + 6, "start") if right else (at[0] - radius - 6, "end")
    low, high = (at[0], at[0] + wide + radius) if right else (at[0] - wide - radius, at[0])
    hides = any(low < other < high for other in row)
    return Words(x, at[1] - radius - 6 if hides else at[1] + 4, label, 12, anchor, halo=4)


__all__ = ["Figure", "TreeNode", "draw_tree", "drawn_figure", "graph_figure", "tree_figure"]
