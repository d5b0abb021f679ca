"""Splitting a model into subprograms (EinNet §6.3, Algorithm 1).

A subprogram begins with one contraction, so that non-linear activations always lie between two of them: an activation
ends what derivation may look across.  Around its contraction it takes the cheap neighbours (bias, normalisation,
residual addition, the activation itself and its gate), so that they can become one epilogue.  Runs of at least two
cheap nodes that no contraction takes are subprograms of their own.  All else stays as it is.

Contractions beside one another may become one (``graph/beside.py``), so their subprograms are joined: siblings, which
read one value in a way that sibling merging accepts, and what follows them in parallel with equal sizes and without an
activation in between.  A joined subprogram knows its parts.

Every subprogram is convex, and all of them together are too: with each as one node, the graph is still acyclic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from einnet_explore.graph.beside import join_parallel, join_siblings
from einnet_explore.graph.reading.assemble import assemble
from einnet_explore.graph.reading.model import Model, Node
from einnet_explore.graph.reading.operators import NotUnderstood, express
from einnet_explore.graph.rows import join_rows
from einnet_explore.graph.units import Units, kind
from einnet_explore.ir import Equation, Program


@dataclass(frozen=True, slots=True)
class Subprogram:
    """Nodes that other code may replace as one.

    *inputs* and *outputs* are value names of the model, in the order of ``program.inputs`` (weights among them,
    flagged) and ``program.outputs``; the program calls them by the model's identifiers.  *parts* are the subprograms
    that were joined into it, in an order in which they can run; none where it is one from the start.
    """

    nodes: tuple[str, ...]
    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parts: tuple[Subprogram, ...] = ()


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


def partition(model: Model, beside: bool = True) -> Split:
    """The subprograms of *model* and, for every other node, why it is in none.

    *beside*: subprograms whose contractions may become one are joined.
    """
    understood: dict[int, tuple[Equation, ...]] = {}
    skipped: dict[int, str] = {}
    used = _used(model)
    for n, node in enumerate(model.nodes):
        if n not in used:
            skipped[n] = "no output depends on it"
            continue
        match _eligible(node, model):
            case NotUnderstood(reason):
                skipped[n] = reason
            case equations:
                understood[n] = equations
    units = Units(model, understood)
    join_rows(units)
    _around_contractions(units)
    single = tuple(units.groups())
    if beside:
        join_siblings(units)
        join_parallel(units)
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
        tuple(replace(_subprogram(g, units, readers), parts=_parts(g, single, units, readers)) for g in groups),
        tuple(Skipped(model.nodes[n].name, why) for n, why in sorted(skipped.items())),
    )


def _used(model: Model) -> set[int]:
    """The nodes that outputs depend on; the others are left to ONNX Runtime, which drops them."""
    needed = {value.name for value in model.outputs}
    found: set[int] = set()
    for n in reversed(range(len(model.nodes))):
        if not needed.isdisjoint(model.nodes[n].results):
            found.add(n)
            needed.update(model.nodes[n].reads)
    return found


def _eligible(node: Node, model: Model) -> tuple[Equation, ...] | NotUnderstood:
    """The equations of a node whose tensors are all float32, as subprograms compute."""
    found = express(node, model)
    if isinstance(found, NotUnderstood):
        return found
    for name in node.results:
        if model.dtype(name) != np.float32:
            return NotUnderstood(f"elements are {model.dtype(name)}, subprograms compute float32")
    return found


def _around_contractions(units: Units) -> None:
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


def _closes(m: int, n: int, units: Units) -> bool:
    """Whether what node *m* reads of the group of *n* is read by that group alone once cheap readers have joined it.

    Otherwise the value is written in any case.  A gate (``x·sigmoid(x)``) reads a value and what became of it.
    """
    group = units.members[units.of[n]] | {m}
    open_ = units.before[m] & group
    return all(reader in group or units.free(reader) for source in open_ for reader in units.after[source])


def _chains(units: Units) -> None:
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
    # A normalisation is several equations by itself.
    several = kind(model.nodes[group[0]]) == "reduction" and len(understood[group[0]]) > 1
    return len(group) > 1 or several or kind(model.nodes[group[0]]) == "contraction"


def _parts(
    group: tuple[int, ...], single: tuple[tuple[int, ...], ...], units: Units, readers: Mapping[str, set[int]]
) -> tuple[Subprogram, ...]:
    """What the contractions in *group* had around them before they were joined."""
    inside = set(group)
    held = [part for part in single if set(part) <= inside and any(units.kind(n) == "contraction" for n in part)]
    return tuple(_subprogram(part, units, readers) for part in held) if len(held) > 1 else ()


def _subprogram(group: tuple[int, ...], units: Units, readers: Mapping[str, set[int]]) -> Subprogram:
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
