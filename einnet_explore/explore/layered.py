"""A layered layout of our own, for machines without Graphviz (Sugiyama, Tagawa and Toda 1981, in its simplest form).

Layers by longest path; edges over several layers get a bend in each; a layer is ordered by the mean place of its
neighbours; places are pulled towards neighbours as far as the order allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from einnet_explore.explore.picture import Box, Group, Look, Outline, Oval, Picture, Shape, Way, Words
from einnet_explore.explore.svg import width_of
from einnet_explore.render.graph import COLOURS, Graph, GraphNode

GAP, STEP, LINE = 28.0, 46.0, 14.0
SWEEPS = 8


@dataclass
class _Layout:
    """Cells of layers (nodes, and bends of long edges) with their widths, heights and places."""

    layers: list[list[str]]
    wide: dict[str, float]
    high: dict[str, float]
    above: dict[str, list[str]]
    below: dict[str, list[str]]
    x: dict[str, float] = field(default_factory=dict)
    y: dict[str, float] = field(default_factory=dict)


def layered(drawn: Graph, title: str = "") -> Picture:
    """*drawn* from top to bottom."""
    nodes = {node.name: node for node in drawn.nodes}
    layout, bends = _layers(nodes, drawn.edges)
    _order(layout)
    _place(layout)
    left = min((layout.x[c] - layout.wide[c] / 2 for c in layout.x), default=0) - GAP
    right = max((layout.x[c] + layout.wide[c] / 2 for c in layout.x), default=0) + GAP
    right = max(right, left + width_of(title, 14) + 2 * GAP)
    for cell in layout.x:
        layout.x[cell] -= left
    width = right - left
    height = max((layout.y[c] + layout.high[c] for c in layout.y), default=30.0) + GAP / 2
    heading = Words(width / 2, 20, title, 14, "middle")
    edges = (shape for n, edge in enumerate(drawn.edges) for shape in _edge(layout, edge, bends[n]))
    return Picture(width, height, (heading, *edges, *(_node(layout, node) for node in drawn.nodes)))


def _layers(nodes: Mapping[str, GraphNode], edges: Sequence[tuple[str, str, str]]) -> tuple[_Layout, list[list[str]]]:
    """Cells by layers, and for every edge the bends that it goes through."""
    rank = dict.fromkeys(nodes, 0)
    for _ in nodes:  # longest paths: graphs of programs have no cycles, so this settles
        for a, b, _label in edges:
            rank[b] = max(rank[b], rank[a] + 1)
    for name, node in nodes.items():  # what is only read stands just above its first reader
        readers = [rank[b] for a, b, _label in edges if a == name]
        if node.kind in ("input", "weight") and readers:
            rank[name] = min(readers) - 1
    lines = {name: node.label.split("\n") for name, node in nodes.items()}
    wide = {name: max(70.0, max(width_of(line, 11) for line in lines[name]) + 24) for name in nodes}
    high = {name: LINE * len(lines[name]) + 14 for name in nodes}
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
    for sweep in range(SWEEPS):
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
            at += layout.wide[cell] + GAP
        top += tall + STEP
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = layout.above if down else layout.below
        for layer in layout.layers if down else reversed(layout.layers):
            wanted = [mean([layout.x[m] for m in neighbours.get(c, [c])]) for c in layer]
            for cell, x in zip(layer, _apart(wanted, [layout.wide[c] for c in layer]), strict=True):
                layout.x[cell] = x


def _apart(wanted: Sequence[float], wide: Sequence[float]) -> Iterable[float]:
    """Places in this order that do not overlap, near *wanted*: between those pushed right and those pushed left."""
    from_left, from_right = list(wanted), list(wanted)
    for n in range(1, len(wanted)):
        room = (wide[n - 1] + wide[n]) / 2 + GAP
        from_left[n] = max(wanted[n], from_left[n - 1] + room)
    for n in range(len(wanted) - 2, -1, -1):
        room = (wide[n] + wide[n + 1]) / 2 + GAP
        from_right[n] = min(wanted[n], from_right[n + 1] - room)
    return [(a + b) / 2 for a, b in zip(from_left, from_right, strict=True)]


def _edge(layout: _Layout, edge: tuple[str, str, str], way: Sequence[str]) -> tuple[Shape, Shape]:
    a, b, label = edge
    points = [(layout.x[a], layout.y[a] + layout.high[a])]
    points += [(layout.x[bend], layout.y[bend]) for bend in way]
    points.append((layout.x[b], layout.y[b] - 1))
    (px, py), (x, y) = points[0], points[1]
    shape = Words(0.7 * px + 0.3 * x + 5, 0.6 * py + 0.4 * y + 3, label, 10, halo=3)
    return Way(tuple(points), Look(stroke="#666666"), arrow=True), shape


def _node(layout: _Layout, node: GraphNode) -> Group:
    wide, high = layout.wide[node.name], layout.high[node.name]
    x, y = layout.x[node.name] - wide / 2, layout.y[node.name]
    look = Look(COLOURS[node.kind], "black", 2 if node.kind == "eOperator" else 1)
    shapes: tuple[Shape, ...]
    match node.kind:
        case "input" | "weight":
            shapes = (Oval(x + wide / 2, y + high / 2, wide / 2, high / 2, look),)
        case "view":
            right, ear = x + wide, 9.0
            corners = ((x, y), (right - ear, y), (right, y + ear), (right, y + high), (x, y + high))
            fold = ((right - ear, y), (right - ear, y + ear), (right, y + ear))
            shapes = (Outline(corners, look), Outline(fold, Look(stroke="black")))
        case _:
            shapes = (Box(x, y, wide, high, look),)
    lines = (
        Words(x + wide / 2, y + 18 + LINE * n, line, 11, "middle") for n, line in enumerate(node.label.split("\n"))
    )
    return Group(f"node {node.kind}", node.name, (*shapes, *lines))
