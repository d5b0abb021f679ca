"""Joining of adjacent derived subprograms into one program, so that fusion and layouts cross their old borders.

Two are adjacent if one reads the other's result or both read one value.  They are joined if no path between them leads
through a third node, so that every program stays convex, and if they agree on the padding of the tensors that they
share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import networkx as nx

from einnet_explore.analysis.equations import union_padding
from einnet_explore.ir import Equation, Program, Scope, Tensor, map_tensors, tensors
from einnet_explore.onnx_import.model import Model


@dataclass(frozen=True, slots=True)
class Piece:
    """A program that replaces *nodes*; *names* maps its inputs (weights too) and outputs to values of the model."""

    nodes: tuple[str, ...]
    program: Program
    names: Mapping[str, str]

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads, without weights."""
        return tuple(self.names[t.name] for t in self.program.inputs if not t.weight)

    @property
    def makes(self) -> tuple[str, ...]:
        """The values that it computes."""
        return tuple(self.names[name] for name in self.program.outputs)


def join_adjacent(model: Model, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Join adjacent *pieces*, which are in an executable order, as far as possible."""
    graph = _graph(model, pieces)
    members: dict[int, tuple[int, ...]] = {n: (n,) for n in range(len(pieces))}
    made: dict[tuple[int, ...], Piece] = {(n,): piece for n, piece in enumerate(pieces)}
    for one, other in _adjacent(pieces):
        a, b = members[one], members[other]
        if a == b or not _convex(graph, a[0], b[0]):
            continue
        both = tuple(sorted((*a, *b)))
        if (piece := join_programs(model, [pieces[n] for n in both])) is not None:
            made[both] = piece
            nx.contracted_nodes(graph, both[0], (b if both[0] == a[0] else a)[0], self_loops=False, copy=False)
            members |= dict.fromkeys(both, both)
    return tuple(made[key] for key in dict.fromkeys(members.values()))


def _graph(model: Model, pieces: Sequence[Piece]) -> nx.DiGraph:
    """Return the graph of the model with every piece as one vertex, its number."""
    unit: dict[str, int | str] = {node.name: node.name for node in model.nodes}
    unit |= {name: n for n, piece in enumerate(pieces) for name in piece.nodes}
    maker = {value: unit[node.name] for node in model.nodes for value in node.results}
    graph = nx.DiGraph()
    graph.add_nodes_from(unit.values())
    for node in model.nodes:
        before = {maker[value] for value in node.reads if value in maker}
        graph.add_edges_from((b, unit[node.name]) for b in before - {unit[node.name]})
    return graph


def _adjacent(pieces: Sequence[Piece]) -> Iterable[tuple[int, int]]:
    """Yield the numbers of adjacent pieces: first producer and consumer, then consumers of one value."""
    makers = {value: n for n, piece in enumerate(pieces) for value in piece.makes}
    readers: dict[str, list[int]] = {}
    for n, piece in enumerate(pieces):
        for value in piece.reads:
            readers.setdefault(value, []).append(n)
    yield from ((makers[value], n) for value, found in readers.items() if value in makers for n in found)
    yield from ((found[0], n) for found in readers.values() for n in found[1:])


def _convex(graph: nx.DiGraph, a: int, b: int) -> bool:
    """Whether no path between two vertices leads over a third."""
    for source, target in ((a, b), (b, a)):
        others = set(graph.successors(source)) - {target}
        if any(nx.has_path(graph, third, target) for third in others):
            return False
    return True


def join_programs(model: Model, pieces: Sequence[Piece]) -> Piece | None:
    """Join *pieces*, in an executable order: shared values are named as in the model, other names are made unique.

    Returns None if readers of one value expect different padding constants.
    """
    nodes = tuple(name for piece in pieces for name in piece.nodes)
    inside = set(nodes)
    if (shared := _shared(model, pieces)) is None:
        return None
    equations: list[Equation] = []
    for piece in pieces:
        own = {e.name for e in piece.program.equations} | {t.name for t in piece.program.inputs}
        stem = model.identifiers[piece.makes[0]]
        # No identifier of the model has two underscores in a row.
        called = {
            name: model.identifiers[piece.names[name]] if name in piece.names else f"{stem}__{name}" for name in own
        }
        equations.extend(_renamed(e, called, shared) for e in piece.program.equations)
    made = {e.name for e in equations}
    read = {value for node in model.nodes if node.name not in inside for value in node.reads}
    read |= {value.name for value in model.outputs}
    values = {model.identifiers[value]: value for piece in pieces for value in piece.names.values()}
    outputs = tuple(model.identifiers[value] for piece in pieces for value in piece.makes if value in read)
    used = dict.fromkeys(t.name for e in equations for t in tensors(e.scope) if t.name not in made)
    program = Program(tuple(shared[name] for name in used), tuple(equations), outputs)
    names = {name: values[name] for name in (*used, *outputs)}
    return Piece(nodes, program, names)


def _shared(model: Model, pieces: Sequence[Piece]) -> dict[str, Tensor] | None:
    """Return every value that crosses a border as one tensor; None if padding constants differ."""
    found: dict[str, Tensor] = {}
    for piece in pieces:
        made = {e.name: e for e in piece.program.equations}
        border = [*piece.program.inputs, *(made[name].tensor for name in piece.program.outputs if name in made)]
        for tensor in border:
            new = replace(tensor, name=model.identifiers[piece.names[tensor.name]])
            old = found.setdefault(new.name, new)
            if old.padding and new.padding and old.value != new.value:
                return None
            if tensor.name in made and (domain := made[tensor.name].scope).domain and domain.value != old.value:
                return None
            value = old.value if old.padding else new.value
            found[new.name] = replace(old, padding=union_padding(old.padding, new.padding), value=value)
    return found


def _renamed(e: Equation, called: Mapping[str, str], shared: Mapping[str, Tensor]) -> Equation:
    name = called[e.name]
    scope = _reading(e.scope, called, shared)
    if name in shared:
        scope = replace(scope, padding=shared[name].padding, value=shared[name].value)
    return Equation(name, scope, e.via)


def _reading(scope: Scope, called: Mapping[str, str], shared: Mapping[str, Tensor]) -> Scope:
    def change(tensor: Tensor) -> Tensor:
        new = called[tensor.name]
        return shared.get(new, replace(tensor, name=new))

    return map_tensors(scope, change)
