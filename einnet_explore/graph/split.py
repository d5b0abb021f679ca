"""Splitting a model into subprograms (EinNet §6.3, Algorithm 1).

A subprogram holds at most one contraction, so that non-linear activations always lie between two of them: an activation
ends what derivation may look across.  Around its contraction it takes the cheap neighbours (bias, normalisation,
residual addition, the activation itself and its gate), so that they can become one epilogue.  Runs of at least two
cheap nodes that no contraction takes are subprograms of their own.  All else stays as it is.

Every subprogram is convex, and all of them together are too: with each as one node, the graph is still acyclic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from math import prod

import numpy as np

from einnet_explore.graph.reading.assemble import assemble
from einnet_explore.graph.reading.model import Model, Node
from einnet_explore.graph.reading.operators import OPERATORS_ONNX, NotUnderstood, express
from einnet_explore.ir import Equation, Program

CHEAP = ("elementwise", "activation", "layout")
"""The kinds that join a neighbour."""


@dataclass(frozen=True, slots=True)
class Subprogram:
    """Nodes that other code may replace as one.

    *inputs* and *outputs* are value names of the model, in the order of ``program.inputs`` (weights among them,
    flagged) and ``program.outputs``; the program calls them by the model's identifiers.
    """

    nodes: tuple[str, ...]
    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A node that no subprogram holds, and why."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Split:
    """A model as subprograms, in an order in which they can run, and the nodes that stay as they are."""

    subprograms: tuple[Subprogram, ...]
    skipped: tuple[Skipped, ...]


def split(model: Model) -> tuple[Subprogram, ...]:
    """The subprograms of *model*."""
    return partition(model).subprograms


def partition(model: Model) -> Split:
    """The subprograms of *model* and, for every other node, why it is in none."""
    understood: dict[int, tuple[Equation, ...]] = {}
    skipped: dict[int, str] = {}
    for n, node in enumerate(model.nodes):
        match _eligible(node, model):
            case NotUnderstood(reason):
                skipped[n] = reason
            case equations:
                understood[n] = equations
    units = _Units(model, understood)
    _around_contractions(units)
    _chains(units)
    readers: dict[str, set[int]] = {}
    for n, node in enumerate(model.nodes):
        for name in node.reads:
            readers.setdefault(name, set()).add(n)
    groups = [group for group in units.groups() if _worth(group, model, understood)]
    inside = {n for group in groups for n in group}
    for n in understood:
        if n not in inside:
            skipped[n] = f"{model.nodes[n].op} alone is no subprogram"
    return Split(
        tuple(_subprogram(group, units, readers) for group in groups),
        tuple(Skipped(model.nodes[n].name, why) for n, why in sorted(skipped.items())),
    )


def kind(node: Node) -> str:
    """The kind of work of an understood node."""
    return OPERATORS_ONNX[node.op].kind


def _eligible(node: Node, model: Model) -> tuple[Equation, ...] | NotUnderstood:
    """The equations of a node whose tensors are all float32, as subprograms compute."""
    found = express(node, model)
    if isinstance(found, NotUnderstood):
        return found
    for name in node.results:
        if model.dtype(name) != np.float32:
            return NotUnderstood(f"elements are {model.dtype(name)}, subprograms compute float32")
    return found


@dataclass(slots=True)
class _Units:
    """The nodes of a model in disjoint groups; a group goes by one of its members."""

    model: Model
    understood: Mapping[int, tuple[Equation, ...]]
    of: list[int] = field(init=False)
    members: dict[int, set[int]] = field(init=False)
    before: list[set[int]] = field(init=False)
    after: list[set[int]] = field(init=False)
    readers: dict[int, set[int]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.model.nodes
        maker = {name: n for n, node in enumerate(nodes) for name in node.results}
        self.of = list(range(len(nodes)))
        self.members = {n: {n} for n in self.of}
        self.before = [{maker[name] for name in node.reads if name in maker} for node in nodes]
        self.after = [set() for _ in nodes]
        for n, sources in enumerate(self.before):
            for source in sources:
                self.after[source].add(n)
        self.readers = {n: set(found) for n, found in enumerate(self.after)}

    def kind(self, n: int) -> str:
        """The kind of work of node *n*; empty where it is not understood."""
        return kind(self.model.nodes[n]) if n in self.understood else ""

    def free(self, n: int) -> bool:
        """Whether node *n* is cheap and in no group yet."""
        return self.kind(n) in CHEAP and len(self.members[self.of[n]]) == 1

    def size(self, n: int) -> int:
        """How many elements node *n* computes."""
        return sum(prod(self.model.shape(name)) for name in self.model.nodes[n].results)

    def join(self, source: int, reader: int) -> bool:
        """Put the groups of *source* and of its *reader* together, unless a path between them visits a third.

        With every group as one node the graph stays acyclic, so a path back from the reader need not be looked for.
        """
        a, b = self.of[source], self.of[reader]
        if a == b:
            return True
        if self._leads_around(a, b):
            return False
        for n in self.members[b]:
            self.of[n] = a
        self.members[a] |= self.members.pop(b)
        self.readers[a] = {self.of[g] for g in self.readers[a] | self.readers.pop(b)} - {a}
        return True

    def _leads_around(self, a: int, b: int) -> bool:
        """Whether a path from group *a* to group *b* visits another group."""
        waiting = self._readers(a) - {b}
        seen = set(waiting)
        while waiting:
            here = self._readers(waiting.pop())
            if b in here:
                return True
            waiting |= here - seen
            seen |= here
        return False

    def _readers(self, group: int) -> set[int]:
        # Groups joined since are still called by their old names here.
        return {self.of[g] for g in self.readers[group]} - {group}

    def groups(self) -> Iterable[tuple[int, ...]]:
        """The groups in an order in which they can run."""
        left = {g: {self.of[m] for n in ns for m in self.before[n]} - {g} for g, ns in self.members.items()}
        order = TopologicalSorter({g: left[g] for g in sorted(left, key=lambda g: min(self.members[g]))})
        return tuple(tuple(sorted(self.members[g])) for g in order.static_order())


def _around_contractions(units: _Units) -> None:
    """Each contraction takes the cheap nodes that read what it has so far, and the re-indexing in front of it.

    A node with a larger result is left out: a small product that scales a large tensor has no part in its cost.
    """
    for n in units.understood:
        if units.kind(n) != "contraction":
            continue
        for source in units.before[n]:
            if units.kind(source) == "layout" and units.free(source) and units.after[source] == {n}:
                units.join(source, n)
        frontier = sorted(units.after[n])
        while frontier:
            m = frontier.pop(0)
            fits = units.free(m) and units.size(m) <= units.size(n) and _closes(m, n, units)
            if fits and units.join(n, m):
                frontier = sorted({*frontier, *units.after[m]})


def _closes(m: int, n: int, units: _Units) -> bool:
    """Whether what node *m* reads of the group of *n* is read by that group alone once cheap readers have joined it.

    Otherwise the value is written in any case.  A gate (``x·sigmoid(x)``) reads a value and what became of it.
    """
    group = units.members[units.of[n]] | {m}
    open_ = units.before[m] & group
    return all(reader in group or units.free(reader) for source in open_ for reader in units.after[source])


def _chains(units: _Units) -> None:
    """Cheap nodes and reductions left over join those that they read, where no others do."""
    left = [n for n in units.understood if units.free(n) or units.kind(n) == "reduction"]
    rest = set(left)
    for n in left:
        for source in sorted(units.before[n] & rest):
            if units.after[source] <= rest:
                units.join(source, n)


def _worth(group: tuple[int, ...], model: Model, understood: Mapping[int, tuple[Equation, ...]]) -> bool:
    if not all(n in understood for n in group):
        return False
    return len(group) > 1 or kind(model.nodes[group[0]]) == "contraction"


def _subprogram(group: tuple[int, ...], units: _Units, readers: Mapping[str, set[int]]) -> Subprogram:
    model, inside = units.model, set(group)
    seen = {value.name for value in model.outputs}
    nodes = [model.nodes[n] for n in group]
    made = (name for node in nodes for name in node.results)
    outputs = tuple(name for name in made if name in seen or not readers.get(name, inside) <= inside)
    equations = tuple(equation for n in group for equation in units.understood[n])
    program = assemble(equations, tuple(model.identifiers[name] for name in outputs))
    called = {model.identifiers[name]: name for node in nodes for name in node.reads}
    inputs = tuple(called[t.name] for t in program.inputs)
    return Subprogram(tuple(node.name for node in nodes), program, inputs, outputs)
