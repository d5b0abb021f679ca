"""The computation graph of a program: nodes and edges as values, and as DOT (eOperators red, as in Fig. 3 and 11)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from einnet_explore.ir import FLOAT32, VIEW, Program, tensors

NODE_COLOURS = {
    "input": "#eeeeee",
    "weight": "#e8e0f4",
    "library": "#cfe3f7",
    "eOperator": "#f7cfcf",
    "view": "#ffffff",
    "expression": "#fdf3cf",
    "layer": "#dcefe0",
}
"""Fill colour of each kind of node; the shape differs too, so that colour is never the only sign."""

NODE_SHAPES = {
    "input": "ellipse",
    "weight": "ellipse",
    "library": "box",
    "eOperator": "box",
    "view": "note",
    "expression": "component",
    "layer": "box3d",
}

MAX_LABEL_CHARACTERS = 32
"""Characters of a label's line: a convolution has more attributes than fit on one."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One tensor or one equation; *colour* fills it, that of its *kind* by default."""

    name: str
    kind: str
    label: str
    colour: str = ""

    @property
    def fill(self) -> str:
        """The colour that fills the node."""
        return self.colour or NODE_COLOURS[self.kind]


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in order and edges (from, to, label)."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Names of nodes, and groups, that Graphviz draws in a box with the *title*; *kind* is the class of the box."""

    title: str
    kind: str
    members: tuple[str | NodeGroup, ...]


def computation_graph(program: Program) -> Graph:
    """Return the graph of *program*, with an edge, labelled by its shape, for every tensor that an equation reads."""
    nodes = [GraphNode(t.name, "weight" if t.weight else "input", t.name) for t in program.inputs]
    edges: dict[tuple[str, str, str], None] = {}
    for equation in program.equations:
        for tensor in tensors(equation.scope):
            dtype = "" if tensor.dtype == FLOAT32 else f" {tensor.dtype}"
            edges[tensor.name, equation.name, "×".join(map(str, tensor.shape)) + dtype] = None
        match equation.via:
            case None:
                kind, label = "expression", equation.name
            case via if via.is_eoperator:
                kind, label = "eOperator", f"{equation.name}\neOperator"
            case via if via.operator == VIEW:
                kind, label = "view", f"{equation.name}\nview"
            case via:
                sizes = textwrap.fill(" ".join(f"{k}={v}" for k, v in via.attributes), MAX_LABEL_CHARACTERS)
                kind, label = "library", f"{equation.name}\n{via.operator}\n{sizes}"
        nodes.append(GraphNode(equation.name, kind, label))
    return Graph(tuple(nodes), tuple(edges))


def dot(program: Program, title: str = "") -> str:
    """Return the graph of *program* in Graphviz's language."""
    return dot_of(computation_graph(program), title)


def dot_of(drawn: Graph, title: str = "", groups: Iterable[NodeGroup] = ()) -> str:
    """Return *drawn* in Graphviz's language, with a box around the nodes of each group."""
    lines = [
        "digraph program {",
        '  graph [rankdir=TB, pad=0.1, fontname="Helvetica", labelloc=t, label=' + _quote(title) + "];",
        '  node [fontname="Helvetica", fontsize=11, style=filled];',
        '  edge [fontname="Helvetica", fontsize=9, color="#666666"];',
    ]
    for node in drawn.nodes:
        bold = ", penwidth=2" if node.kind == "eOperator" else ""
        lines.append(
            f"  {_quote(node.name)} [label={_quote(node.label)}, shape={NODE_SHAPES[node.kind]}, "
            f'fillcolor="{node.fill}", class="{node.kind}"{bold}];'
        )
    lines += [f"  {_quote(a)} -> {_quote(b)} [label={_quote(label)}];" for a, b, label in drawn.edges]
    lines += [line for group in groups for line in _cluster(group, "  ")]
    return "\n".join([*lines, "}"]) + "\n"


def _cluster(group: NodeGroup, indent: str) -> Iterable[str]:
    yield f"{indent}subgraph {_quote('cluster_' + group.title)} {{"
    yield (
        f'{indent}  label={_quote(group.title)}; class="{group.kind}"; fontname="Helvetica"; fontsize=10; labeljust=l; '
        'style="rounded,dashed"; color="#888888";'
    )
    for member in group.members:
        if isinstance(member, str):
            yield f"{indent}  {_quote(member)};"
        else:
            yield from _cluster(member, f"{indent}  ")
    yield f"{indent}}}"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
