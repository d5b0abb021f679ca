"""Figures of computation graphs and search trees, and the search graph as JSON.

Graphviz lays out graphs if its ``dot`` is installed and the graph is small; otherwise a built-in layered layout does
(Sugiyama, Tagawa and Toda 1981, simplified): layers by longest path; an edge across several layers bends in each; a
layer is ordered by the mean position of its neighbours; positions move towards neighbours as far as the order allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import chain, zip_longest
from statistics import mean

import graphviz

from einnet_explore.analysis.equations import constant_tensors
from einnet_explore.ir import Program, show_path
from einnet_explore.rules import Match
from einnet_explore.strategies.events import Pruned, State
from einnet_explore.support.json_values import JsonObject
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax.computation_graph import Graph, GraphNode, NodeGroup, computation_graph, dot_of
from einnet_explore.viz.figure import (
    Curve,
    Ellipse,
    Figure,
    Picture,
    Point,
    Polyline,
    Rectangle,
    Shape,
    ShapeGroup,
    ShapeStyle,
    TextLine,
    figure_from_picture,
    replace_illegal_characters,
    text_width,
)
from einnet_explore.viz.graph_layers import fold_layers, program_layers

_GAP_PIXELS, _LAYER_PIXELS, _LINE_PIXELS = 28.0, 46.0, 14.0
_ORDERING_SWEEPS = 8


@dataclass
class _Layout:
    """Cells of layers (nodes, and bends of long edges) with their widths, heights and positions."""

    layers: list[list[str]]
    wide: dict[str, float]
    high: dict[str, float]
    above: dict[str, list[str]]
    below: dict[str, list[str]]
    x: dict[str, float] = field(default_factory=dict)
    y: dict[str, float] = field(default_factory=dict)


def layout_graph(drawn: Graph, title: str = "") -> Picture:
    """Lay out *drawn* from top to bottom."""
    return align_graphs((drawn,), (title,))[0]


def align_graphs(graphs: Sequence[Graph], titles: Sequence[str]) -> tuple[Picture, ...]:
    """Lay out *graphs* from top to bottom; nodes of one name have one position and size in all of them.

    These are the positions of their union, the supergraph of Diehl and Görg (2002).  If that has a cycle, as when two
    graphs compute equal names in opposite orders, each graph has its own layout.
    """
    whole = _union(graphs)
    if len(graphs) > 1 and _is_cyclic(whole):
        return tuple(map(layout_graph, graphs, titles))
    layout, bends = _layers({node.name: node for node in whole.nodes}, whole.edges)
    _order(layout)
    _place(layout)
    left = min((layout.x[c] - layout.wide[c] / 2 for c in layout.x), default=0) - _GAP_PIXELS
    right = max((layout.x[c] + layout.wide[c] / 2 for c in layout.x), default=0) + _GAP_PIXELS
    right = max(right, left + max(text_width(title, 14) for title in titles) + 2 * _GAP_PIXELS)
    for cell in layout.x:
        layout.x[cell] -= left
    height = max((layout.y[c] + layout.high[c] for c in layout.y), default=30.0) + _GAP_PIXELS / 2
    ways = dict(zip(whole.edges, bends, strict=True))
    return tuple(
        _picture(layout, graph, ways, title, (right - left, height))
        for graph, title in zip(graphs, titles, strict=True)
    )


def _picture(
    layout: _Layout,
    drawn: Graph,
    ways: Mapping[tuple[str, str, str], Sequence[str]],
    title: str,
    size: tuple[float, float],
) -> Picture:
    heading = TextLine(size[0] / 2, 20, title, 14, "middle")
    edges = [_edge(layout, edge, ways[edge]) for edge in drawn.edges]
    lines = [line for line, _ in edges]
    # Labels come after all lines.  One label is enough for equal ones on the same side below a node.
    starts = [a for a, _b, _label in drawn.edges]
    labels = {(a, label.text, label.anchor): label for a, (_, label) in zip(starts, edges, strict=True)}.values()
    return Picture(*size, (heading, *lines, *labels, *(_node(layout, node) for node in drawn.nodes)))


def _union(graphs: Sequence[Graph]) -> Graph:
    """Return the nodes and edges of all *graphs*; a label has the longest lines of the labels of its name."""
    nodes = dict[str, GraphNode]()
    for node in chain.from_iterable(graph.nodes for graph in graphs):
        known = nodes.get(node.name, node)
        rows = zip_longest(known.label.split("\n"), node.label.split("\n"), fillvalue="")
        nodes[node.name] = replace(known, label="\n".join(max(pair, key=len) for pair in rows))
    return Graph(tuple(nodes.values()), tuple(dict.fromkeys(chain.from_iterable(graph.edges for graph in graphs))))


def _is_cyclic(drawn: Graph) -> bool:
    order = TopologicalSorter[str]()
    for a, b, _label in drawn.edges:
        order.add(b, a)
    try:
        order.prepare()
    except CycleError:
        return True
    return False


def _layers(nodes: Mapping[str, GraphNode], edges: Sequence[tuple[str, str, str]]) -> tuple[_Layout, list[list[str]]]:
    """Return the cells by layer, and the bends of every edge."""
    rank = dict.fromkeys(nodes, 0)
    for _ in nodes:  # longest paths: graphs of programs are acyclic, so this converges
        for a, b, _label in edges:
            rank[b] = max(rank[b], rank[a] + 1)
    for name, node in nodes.items():  # an input is just above its first reader
        readers = [rank[b] for a, b, _label in edges if a == name]
        if node.kind in ("input", "weight") and readers:
            rank[name] = min(readers) - 1
    lines = {name: node.label.split("\n") for name, node in nodes.items()}
    wide = {name: max(70.0, max(text_width(line, 11) for line in lines[name]) + 24) for name in nodes}
    high = {name: _LINE_PIXELS * len(lines[name]) + 14 for name in nodes}
    layout = _Layout([[] for _ in range(max(rank.values(), default=0) + 1)], wide, high, {}, {})
    for name in nodes:
        layout.layers[rank[name]].append(name)
    bends: list[list[str]] = []
    for n, (a, b, _label) in enumerate(edges):
        way = [f"\0{n}.{layer}" for layer in range(rank[a] + 1, rank[b])]
        for layer, bend in enumerate(way, rank[a] + 1):
            layout.layers[layer].append(bend)
            wide[bend], high[bend] = 8.0, 0.0
        for upper, lower in zip([a, *way], [*way, b], strict=True):
            layout.below.setdefault(upper, []).append(lower)
            layout.above.setdefault(lower, []).append(upper)
        bends.append(way)
    return layout, bends


def _order(layout: _Layout) -> None:
    for sweep in range(_ORDERING_SWEEPS):
        down = sweep % 2 == 0
        neighbours = layout.above if down else layout.below
        for layer in layout.layers if down else reversed(layout.layers):
            spot = {cell: n for row in layout.layers for n, cell in enumerate(row)}
            old = dict(spot)
            layer.sort(key=lambda c: mean([spot[m] for m in neighbours[c]]) if c in neighbours else old[c])


def _place(layout: _Layout) -> None:
    top = 32.0
    for layer in layout.layers:
        tall = max((layout.high[c] for c in layer), default=0.0)
        at = 0.0
        for cell in layer:
            layout.x[cell] = at + layout.wide[cell] / 2
            layout.y[cell] = top + (tall - layout.high[cell]) / 2
            at += layout.wide[cell] + _GAP_PIXELS
        top += tall + _LAYER_PIXELS
    for sweep in range(_ORDERING_SWEEPS):
        down = sweep % 2 == 0
        neighbours = layout.above if down else layout.below
        for layer in layout.layers if down else reversed(layout.layers):
            wanted = [mean([layout.x[m] for m in neighbours.get(c, [c])]) for c in layer]
            for cell, x in zip(layer, _separate(wanted, [layout.wide[c] for c in layer]), strict=True):
                layout.x[cell] = x


def _separate(wanted: Sequence[float], wide: Sequence[float]) -> Iterable[float]:
    """Return non-overlapping positions near *wanted*: the mean of pushing all cells right and pushing all left."""
    from_left, from_right = list(wanted), list(wanted)
    for n in range(1, len(wanted)):
        spacing = (wide[n - 1] + wide[n]) / 2 + _GAP_PIXELS
        from_left[n] = max(wanted[n], from_left[n - 1] + spacing)
    for n in range(len(wanted) - 2, -1, -1):
        spacing = (wide[n] + wide[n + 1]) / 2 + _GAP_PIXELS
        from_right[n] = min(wanted[n], from_right[n + 1] - spacing)
    return [(a + b) / 2 for a, b in zip(from_left, from_right, strict=True)]


def _edge(layout: _Layout, edge: tuple[str, str, str], way: Sequence[str]) -> tuple[Shape, TextLine]:
    a, b, label = edge
    points = [(layout.x[a], layout.y[a] + layout.high[a])]
    points += [(layout.x[bend], layout.y[bend]) for bend in way]
    points.append((layout.x[b], layout.y[b] - 1))
    (px, py), (x, y) = points[0], points[1]
    away, anchor = (-5, "end") if x > px + 1 else (5, "start")  # on the side to which the curve does not turn
    shape = TextLine(px + away, 0.7 * py + 0.3 * y + 3, label, 10, anchor, halo=3)
    return Curve(tuple(points), ShapeStyle(stroke="#666666"), arrow=True), shape


def _node(layout: _Layout, node: GraphNode) -> ShapeGroup:
    wide, high = layout.wide[node.name], layout.high[node.name]
    x, y = layout.x[node.name] - wide / 2, layout.y[node.name]
    look = ShapeStyle(node.fill, "black", 2 if node.kind == "eOperator" else 1)
    shapes: tuple[Shape, ...]
    match node.kind:
        case "input" | "weight":
            shapes = (Ellipse(x + wide / 2, y + high / 2, wide / 2, high / 2, look),)
        case "view":
            right, ear = x + wide, 9.0
            corners = ((x, y), (right - ear, y), (right, y + ear), (right, y + high), (x, y + high))
            fold = ((right - ear, y), (right - ear, y + ear), (right, y + ear))
            shapes = (Polyline(corners, look), Polyline(fold, ShapeStyle(stroke="black")))
        case _:
            shapes = (Rectangle(x, y, wide, high, look),)
    rows = node.label.split("\n")
    top = y + (high - _LINE_PIXELS * len(rows)) / 2 + 11
    lines = (TextLine(x + wide / 2, top + _LINE_PIXELS * n, line, 11, "middle") for n, line in enumerate(rows))
    return ShapeGroup(f"node {node.kind}", node.name, (*shapes, *lines))


DIFFERENT_COLOUR = "#f29b9b"
"""Fill colour of nodes that only one of two graphs has."""

MAX_GRAPHVIZ_NODES = 60
"""Graphviz may take minutes for larger graphs in which many nodes read one tensor."""

_PATH_COLOUR, _STATE_COLOUR, _CANDIDATE_COLOUR = "#c0392b", "#2e6da4", "#e0a526"
_TREE_PIXELS, _TREE_ROW_PIXELS = 840.0, 60.0
"""Size of a tree; JupyterLab has 860 pixels for pictures next to its file browser on a screen of 1280."""


def graph_figure(program: Program, title: str = "", folded: bool = False) -> Figure:
    """Return the figure of the computation graph of *program*; *folded*: with one node for each of its layers."""
    drawn = computation_graph(program)
    if folded:
        layers = [part for part in program_layers(program).parts if part.parts]
        drawn, _ = fold_layers(drawn, layers, constant_tensors(program))
    return draw_graph(drawn, title)


def draw_graph(drawn: Graph, title: str = "", groups: Sequence[NodeGroup] = ()) -> Figure:
    """Return the figure of a graph, by Graphviz or the built-in layout, which draws no groups."""
    own = layout_graph(drawn, title)
    if len(drawn.nodes) > MAX_GRAPHVIZ_NODES:
        return figure_from_picture(own, _description(drawn, title))
    try:
        return Figure(_graphviz(dot_of(drawn, title, groups)), _description(drawn, title), own)
    except (graphviz.ExecutableNotFound, graphviz.CalledProcessError):
        return figure_from_picture(own, _description(drawn, title))


def _graphviz(source: str) -> str:
    drawn = replace_illegal_characters(graphviz.Source(source).pipe(format="svg", encoding="utf-8"))
    return drawn[drawn.index("<svg") :].replace("<svg ", "<svg style='max-width:100%;height:auto' ", 1)


def _description(drawn: Graph, title: str) -> str:
    """Describe the graph as text, for readers who do not see the picture."""
    lines = [title or "computation graph"]
    for node in drawn.nodes:
        reads = ", ".join(f"{a} {label}" for a, b, label in drawn.edges if b == node.name)
        kind = " ".join(node.label.split("\n")[1:]) or node.kind
        lines.append(f"  {node.name}: {kind}" + (f", reads {reads}" if reads else ""))
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node of a tree: *parent* is -1 at the root; *label* is drawn on the chosen path; *tip* is the tooltip."""

    id: int
    parent: int
    label: str
    tip: str
    candidate: bool = False


def tree_figure(states: Sequence[State], to: int | None = None, limit: int = 240) -> Figure:
    """Return the figure of the search tree with a row for each depth; the path *to* a state is thick.

    Squares are candidates.  The first *limit* states and those on the path are drawn; the caption has the total.
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
    return draw_tree(nodes, to, f"{some}{count_noun(len(states), 'state')}; squares are candidates{way}")


def draw_tree(nodes: Sequence[TreeNode], chosen: int | None, caption: str) -> Figure:
    """Draw a tree of *nodes* (parents before children); the path to *chosen* is thick, red and labelled."""
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
    radius = min(6.0, max(1.6, (_TREE_PIXELS - 60) / leaves / 2.4))
    height = 56 + _TREE_ROW_PIXELS * max(depth.values(), default=0)
    at = {node.id: (x[node.id], 22 + _TREE_ROW_PIXELS * depth[node.id]) for node in nodes}
    shapes: list[Shape] = []
    for on in (False, True):  # the chosen path is drawn last, on top
        look = ShapeStyle(stroke=_PATH_COLOUR, thick=2.5) if on else ShapeStyle(stroke="#bbbbbb", thick=0.8)
        for node in nodes:
            if node.parent >= 0 and (node.id in path) == on:
                shapes.append(Curve((at[node.parent], at[node.id]), look))
        for node in nodes:
            if (node.id in path) == on:
                colour = _PATH_COLOUR if on else _CANDIDATE_COLOUR if node.candidate else _STATE_COLOUR
                shapes.append(_dot(at[node.id], node, radius + on, colour))
    rows: dict[float, list[float]] = {}
    for across, down in at.values():
        rows.setdefault(down, []).append(across)
    shapes += [_label(at[n.id], n.label, radius, rows[at[n.id][1]]) for n in nodes if n.id in path]
    shapes.append(TextLine(8, height - 8, caption, 12))
    return figure_from_picture(Picture(_TREE_PIXELS, height, tuple(shapes)), f"tree: {caption}")


def _spread(nodes: Sequence[TreeNode], below: dict[int, list[TreeNode]]) -> dict[int, float]:
    """Place leaves side by side in depth-first order, and parents above the middle of their children."""
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
    return {node.id: 30 + (_TREE_PIXELS - 60) * slot[node.id] / max(1, free) for node in nodes}


def _dot(at: Point, node: TreeNode, radius: float, colour: str) -> Shape:
    x, y = at
    look = ShapeStyle(colour)
    if node.candidate:
        return Rectangle(x - radius, y - radius, 2 * radius, 2 * radius, look, node.tip)
    return Ellipse(x, y, radius, radius, look, node.tip)


def _label(at: Point, label: str, radius: float, row: Sequence[float]) -> Shape:
    """Return the label next to its node, or above its *row* if it would hide another node."""
    wide = radius + 6 + text_width(label, 12)
    right = at[0] + wide < _TREE_PIXELS
    x, anchor = (at[0] + radius + 6, "start") if right else (at[0] - radius - 6, "end")
    low, high = (at[0], at[0] + wide + radius) if right else (at[0] - wide - radius, at[0])
    hides = any(low < other < high for other in row)
    return TextLine(x, at[1] - radius - 6 if hides else at[1] + 4, label, 12, anchor, halo=4)


def search_graph(
    states: Sequence[State], pruned: Iterable[Pruned] = (), costs: dict[int, float] | None = None
) -> JsonObject:
    """Return the search in the node-link form of networkx: states as nodes, the moves between them and merges as edges.

    A node has ``id``, ``depth``, ``phase`` (``start``, ``explorative``, ``converging``), ``distance`` and ``seconds``
    (estimated, of candidates); an edge ``source``, ``target``, ``kind`` and its ``steps`` (rule and place).  Edges of
    kind ``move`` lead to the first discovery of a state and form a tree; an edge of kind ``merge`` leads to the state
    that a pruned move would have reached again.  Equal merges are one edge with ``times``.
    """
    known = costs or {}
    nodes = [
        {"id": s.id, "depth": s.depth, "phase": s.phase, "distance": s.distance, "seconds": known.get(s.id)}
        for s in states
    ]
    moves = [_edge_json(s.parent, s.id, "move", _rules_and_places(s.matches)) for s in states if s.id]
    times = Counter((p.parent, p.twin, _rules_and_places(p.matches)) for p in pruned if p.twin is not None)
    merges = [_edge_json(start, end, "merge", steps) | {"times": n} for (start, end, steps), n in times.items()]
    return {"directed": True, "multigraph": True, "graph": {}, "nodes": nodes, "edges": [*moves, *merges]}


def _edge_json(start: int, end: int, kind: str, steps: Iterable[tuple[str, str]]) -> JsonObject:
    return {"source": start, "target": end, "kind": kind, "steps": list(map(list, steps))}


def _rules_and_places(matches: Iterable[Match[object]]) -> tuple[tuple[str, str], ...]:
    return tuple((m.title, show_path(m.at)) for m in matches)
