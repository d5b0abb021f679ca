"""Layers of a computation graph: runs of equations between narrow places, nested, which a drawing can fold.

A cut of the equations, in order, is as wide as the number of results that are computed before and read after it.  A
layer is divided at its narrowest cuts, so that a network is divided at its residual blocks, a block at its chains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from einnet_explore.analysis.equations import constant_tensors
from einnet_explore.ir import Program
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax.computation_graph import Graph, GraphNode, NodeGroup, computation_graph

MAX_PARTS = 8
"""Maximum number of parts of a layer; of more narrowest cuts, some at even distances are taken."""

MAX_DEPTH = 6
"""Layers inside one another; those inside are divided into single equations."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Equations by name, in order, and the *parts* that the layer is divided into; a single equation has none."""

    names: tuple[str, ...]
    parts: tuple[Layer, ...] = ()

    @property
    def title(self) -> str:
        """The first and the last name; layers of one graph differ in it."""
        return " … ".join(dict.fromkeys((self.names[0], self.names[-1])))

    def inner(self) -> Iterable[Layer]:
        """Yield the layers inside this one that have parts, outer ones first."""
        for part in self.parts:
            if part.parts:
                yield part
                yield from part.inner()


def find_layers(drawn: Graph, names: Sequence[str]) -> Layer:
    """Return the equations *names* of *drawn*, in an order of computation, as a layer that is divided recursively."""
    place = {name: n for n, name in enumerate(names)}
    last = list(range(len(names)))
    for a, b, _label in drawn.edges:
        if a in place and b in place:
            last[place[a]] = max(last[place[a]], place[b])
    change = [0] * (len(names) + 1)
    for n, reader in enumerate(last):  # result n passes the cuts n + 1 to its last reader
        change[n + 1] += 1
        change[reader + 1] -= 1
    width = list(accumulate(change))

    def divide(start: int, stop: int, depth: int) -> Layer:
        cuts: Sequence[int] = range(start + 1, stop)
        if depth:
            narrowest = min(width[cut] for cut in cuts)
            cuts = [cut for cut in cuts if width[cut] == narrowest]
            if len(cuts) >= MAX_PARTS:
                cuts = [cuts[len(cuts) * n // MAX_PARTS] for n in range(1, MAX_PARTS)]
        ends = zip([start, *cuts], [*cuts, stop], strict=True)
        parts = (divide(a, b, depth - 1) if b - a > 1 else Layer((names[a],)) for a, b in ends)
        return Layer(tuple(names[start:stop]), tuple(parts))

    return divide(0, len(names), MAX_DEPTH) if len(names) > 1 else Layer(tuple(names))


def fold_layers(drawn: Graph, folded: Sequence[Layer], attached: Collection[str]) -> tuple[Graph, Mapping[str, str]]:
    """Return *drawn* with one node for each *folded* layer, and the title of the layer that each missing node is in.

    A layer takes those of the *attached* nodes (weights, and what reads weights only) that nothing else reads.
    """
    home = {name: layer.title for layer in folded for name in layer.names}
    titles = {layer.title: count_noun(len(layer.names), "equation") for layer in folded}
    readers: dict[str, list[str]] = {}
    for a, b, _label in drawn.edges:
        readers.setdefault(a, []).append(b)
    for node in reversed(drawn.nodes):  # a node comes after what it reads
        found = {home.get(name, name) for name in readers.get(node.name, ())}
        if node.name in attached and len(found) == 1 and found <= titles.keys():
            home[node.name] = found.pop()
    nodes = dict[str, GraphNode]()
    for node in drawn.nodes:
        title = home.get(node.name)
        if title is None:
            nodes[node.name] = node
        else:
            nodes.setdefault(title, GraphNode(title, "layer", f"{title}\n{titles[title]}"))
    edges = dict.fromkeys((home.get(a, a), home.get(b, b), label) for a, b, label in drawn.edges)
    return Graph(tuple(nodes.values()), tuple(edge for edge in edges if edge[0] != edge[1])), home


def layer_groups(whole: Layer, folded: Collection[Layer]) -> tuple[NodeGroup, ...]:
    """Return the layers inside *whole* that are not folded as groups of nodes."""
    return tuple(
        NodeGroup(part.title, "layer", _members(part, folded))
        for part in whole.parts
        if part.parts and part not in folded
    )


def _members(layer: Layer, folded: Collection[Layer]) -> tuple[str | NodeGroup, ...]:
    alone = (part.title for part in layer.parts if not part.parts or part in folded)
    return (*alone, *layer_groups(layer, folded))


def program_layers(program: Program) -> Layer:
    """Return the layers of the equations that run when *program* runs; those that read weights only are in none."""
    constant = constant_tensors(program)
    return find_layers(computation_graph(program), [e.name for e in program.equations if e.name not in constant])
