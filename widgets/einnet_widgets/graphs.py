"""The computation graph as the panel shows it: what is known at compile time lies in a cluster of its own."""

from __future__ import annotations

from functools import lru_cache

import graphviz

from einnet_explore.analysis.equations import weight_only
from einnet_explore.ir import Program, read_path
from einnet_explore.syntax.computation_graph import COLOURS, dot
from einnet_explore.syntax.computation_graph import graph as graph_of
from einnet_explore.viz.graph_figures import graph_figure
from einnet_widgets.look import Shown

DRAWN = 50
"""Nodes that the panel draws at most: the picture of more is larger than an update may be, and nobody could read it."""


def graph(program: Program, at: str) -> Shown:
    """*program*'s graph as SVG; *paths* lead from its nodes to their expressions, *at* is the node selected."""
    nodes = graph_of(program).nodes
    if len(nodes) > DRAWN:
        says = f"{len(nodes)} nodes: too many to be drawn here; session.graph() draws them all"
        return {"svg": "", "says": says, "paths": {}, "at": "", "kinds": {}}
    svg, says = drawn(program)
    kinds = {node.kind for node in nodes}
    n = read_path(at)[0] if at else -1
    return {
        "svg": svg,
        "says": says,
        "paths": {e.name: str(n) for n, e in enumerate(program.equations)},
        "at": program.equations[n].name if 0 <= n < len(program.equations) else "",
        "kinds": {kind: colour for kind, colour in COLOURS.items() if kind in kinds},
    }


@lru_cache(64)
def drawn(program: Program) -> tuple[str, str]:
    """The picture of *program*'s graph, and the graph in words; Graphviz is a process, and selecting must be quick."""
    figure = graph_figure(program)
    return clustered(program) or figure.svg, figure.says


def clustered(program: Program) -> str | None:
    """The graph with a cluster for what is evaluated at compile time; None where Graphviz is missing or nothing is."""
    constant = weight_only(program)
    if not constant:
        return None
    weights = [t.name for t in program.inputs if t.weight]
    inside = "; ".join(f'"{name}"' for name in (*weights, *sorted(constant)))
    cluster = (
        f'  subgraph cluster_constant {{ label="at compile time"; fontname="Helvetica"; fontsize=10; '
        f'style="rounded,dashed"; color="#888888"; {inside}; }}\n'
    )
    source = dot(program).rstrip().removesuffix("}") + cluster + "}\n"
    try:
        svg: str = graphviz.Source(source).pipe(format="svg", encoding="utf-8")
    except (graphviz.ExecutableNotFound, graphviz.CalledProcessError):
        return None
    return svg[svg.index("<svg") :].replace("<svg ", "<svg style='max-width:100%;height:auto' ", 1)
