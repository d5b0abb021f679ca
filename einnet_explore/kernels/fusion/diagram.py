"""The stages of a fused kernel as a picture: what each reads, holds, reduces and writes, and where threads wait."""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.ir import Access, Const, Iterator, Scalar, map_accesses
from einnet_explore.kernels.fusion.flat import reads_of
from einnet_explore.kernels.fusion.operations import read_name
from einnet_explore.kernels.fusion.plan import Fused, argument
from einnet_explore.kernels.fusion.stages import Nest, Step
from einnet_explore.render.graph import Graph, GraphNode
from einnet_explore.render.text import scalar as said


def diagram(fused: Fused) -> Graph:
    """The graph of *fused*: memory, per stage its heads and nests, and an edge for everything that is read.

    Kinds are those of ``render.graph``: inputs and outputs in memory, a nest that reduces as a library operator, one
    that does not as an eOperator, values of a whole point of the grid as an expression; temporaries are views.
    """
    nodes = [GraphNode(t.name, "input", f"{t.name}\n{'×'.join(map(str, t.shape))}") for t in fused.inputs]
    edges: dict[tuple[str, str, str], None] = {}
    home: dict[str, str] = {t.name: t.name for t in fused.inputs}
    for n, stage in enumerate(fused.stages):
        parts: list[tuple[str, str, str, tuple[Step, ...]]] = []
        if stage.heads:
            parts.append((f"stage {n}", "expression", "", stage.heads))
        for k, nest in enumerate(stage.nests):
            name = f"stage {n} nest {k}" if len(stage.nests) > 1 else f"stage {n} nest"
            kind = "library" if any(s.reduce is not None for s in nest.steps) else "eOperator"
            parts.append((name, kind, _loops(nest), nest.steps))
        for name, kind, loops, steps in parts:
            lines = [name, *([loops] if loops else []), *(_said(fused, s) for s in steps)]
            nodes.append(GraphNode(name, kind, "\n".join(lines)))
            own = {s.name for s in steps}
            for step in steps:
                for access in reads_of(step.body):
                    source = read_name(access)
                    if source in home and source not in own:
                        edges[home[source], name, source if home[source] != source else ""] = None
            for step in steps:
                home[step.name] = name
                if step.stores:
                    home[step.name] = _memory(fused, step, name, nodes, edges)
    return Graph(tuple(nodes), tuple(edges))


def _memory(
    fused: Fused, step: Step, name: str, nodes: list[GraphNode], edges: dict[tuple[str, str, str], None]
) -> str:
    """The node of the memory that *step* writes; its edge from *name*."""
    space = fused.spaces[step.name]
    where = {"output": "output", "temporary": "temporary"}[space.kind]
    if space.beside is not None:
        where = f"in the memory of {space.beside}"
    elif space.slot is not None:
        where = f"temporary, slot {space.slot}"
    memory = f"{step.name} in memory"
    nodes.append(GraphNode(memory, "input" if space.kind == "output" else "view", f"{step.name}\n{where}"))
    edges[name, memory, ""] = None
    return memory


def _loops(nest: Nest) -> str:
    each = f"each {_names(nest.traversals)}" if nest.traversals else ""
    over = f"over {_names(nest.summations)}" if nest.summations else ""
    return ", ".join(filter(None, (each, over)))


def _names(axes: Iterable[Iterator]) -> str:
    return " ".join(f"{x.name}:{x.extent}" for x in axes)


def _said(fused: Fused, step: Step) -> str:
    return f"{step.name} {'=' if step.reduce is None else step.reduce + '='} {said(_plain(fused, step.body))}"


def _plain(fused: Fused, body: Scalar) -> Scalar:
    """*body* with its constants as numbers."""
    numbers = {argument(n): value for n, value in enumerate(fused.constants)}

    def number(access: Access) -> Scalar:
        value = numbers.get(access.source)  # type: ignore[arg-type]
        return access if value is None else Const(value)

    return map_accesses(body, number)


def summary(fused: Fused) -> str:
    """The plan in words: the grid, then a line a value."""
    lines = [f"grid: {_names(fused.grid) or 'one point'}; waits: {fused.barriers}; slots: {fused.slots}"]
    for n, stage in enumerate(fused.stages):
        lines.append(f"stage {n}" + (" (memory is seen by all afterwards)" if stage.barrier else ""))
        lines += [f"  {_said(fused, s)}" for s in stage.heads]
        for nest in stage.nests:
            lines.append(f"  {_loops(nest) or 'once'}:")
            lines += [f"    {_said(fused, s)}{' -> ' + _kept(fused, s) if s.stores else ''}" for s in nest.steps]
    return "\n".join(lines)


def _kept(fused: Fused, step: Step) -> str:
    space = fused.spaces[step.name]
    if space.beside is not None:
        return f"memory of {space.beside}"
    return "memory" if space.slot is None else f"slot {space.slot}"
