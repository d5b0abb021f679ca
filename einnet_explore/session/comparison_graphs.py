"""The graphs of two models side by side, with equal values in one colour and number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einnet_explore.onnx_import.model import Model
from einnet_explore.syntax.computation_graph import Graph, GraphNode
from einnet_explore.viz.graph_figures import DIFFERENT_COLOUR, draw_graph

EQUAL_COLOURS = ("#cfe3f7", "#d5efd5", "#fdf3cf", "#e8e0f4", "#fbe3cd", "#d3eeee", "#f3d9e8", "#e6e6b8")
"""Fill colours of equal values, in turn; numbers tell apart values of one colour."""

UNKNOWN, INPUT = "#ffffff", "#eeeeee"


def side_by_side(
    models: tuple[Model, Model], equal: Sequence[tuple[str, str]], marked: tuple[str, str], meaning: str
) -> str:
    """Return both graphs as HTML: *equal* are values of both that are equal, *marked* nodes with this *meaning*."""
    numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for n, (first, second) in enumerate(equal, 1):  # a value may be equal to several
        known = numbers[0].get(first) or numbers[1].get(second) or n
        numbers[0][first] = numbers[1][second] = known
    figures = (
        f"<figure>{draw_graph(model_graph(model, own, node), title).svg}</figure>"
        for model, own, node, title in zip(models, numbers, marked, ("first model", "second model"), strict=True)
    )
    legend = f"Proved equal: same number and colour. White: not proved.{f' Red: {meaning}.' if any(marked) else ''}"
    return f"<p>{legend}</p><div class='pair halves'>{''.join(figures)}</div>"


def _colour(number: int) -> str:
    return EQUAL_COLOURS[number % len(EQUAL_COLOURS)]


def model_graph(model: Model, numbers: Mapping[str, int], differs: str = "") -> Graph:
    """Return the nodes of *model* and what each reads; results have their *numbers*, *differs* is a node."""
    makers = {value: node.name for node in model.nodes for value in node.results}
    makers |= {value.name: f"input {value.name}" for value in model.inputs}
    nodes = [
        GraphNode(makers[name], "input", f"{name}\n= {numbers[name]}", _colour(numbers[name]))
        if name in numbers
        else GraphNode(makers[name], "input", name, INPUT)
        for name in (value.name for value in model.inputs)
    ]
    edges = dict[tuple[str, str, str], None]()
    for node in model.nodes:
        found = [numbers[name] for name in node.results if name in numbers]
        colour = _colour(found[0]) if found else UNKNOWN
        label = "\n".join([node.name, node.op, *(f"= {n}" for n in found)])
        nodes.append(GraphNode(node.name, "library", label, DIFFERENT_COLOUR if node.name == differs else colour))
        edges |= {(makers[name], node.name, ""): None for name in node.reads if name in makers}
    return Graph(tuple(nodes), tuple(edges))
