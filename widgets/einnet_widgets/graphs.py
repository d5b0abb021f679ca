"""Content of the computation-graph panel; values known at compile time are in a cluster."""

from __future__ import annotations

from functools import lru_cache

import graphviz

from einnet_explore.analysis.equations import weight_only
from einnet_explore.ir import Program, read_path
from einnet_explore.syntax.computation_graph import NODE_COLOURS, computation_graph, dot
from einnet_explore.viz.graph_figures import graph_figure
from einnet_widgets.look import Shown

DRAWN = 50
"""Maximum number of drawn nodes; larger pictures exceed the size of an update."""


def graph(program: Program, at: str) -> Shown:
    """Return the graph of *program* as SVG, the paths of its nodes' expressions, and the node selected by *at*."""
    nodes = computation_graph(program).nodes
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
        "kinds": {kind: colour for kind, colour in NODE_COLOURS.items() if kind in kinds},
    }


@lru_cache(64)
def drawn(program: Program) -> tuple[str, str]:
    """Return the picture of *program*'s graph and its description, cached because Graphviz is slow."""
    figure = graph_figure(program)
    return clustered(program) or figure.svg, figure.says


def clustered(program: Program) -> str | None:
    """Return the graph with a cluster of compile-time values, None without Graphviz or such values."""
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
