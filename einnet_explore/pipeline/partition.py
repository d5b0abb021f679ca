"""Partition of a model into subprograms (EinNet §6.3, Algorithm 1).

A subprogram begins with one contraction, so non-linear activations always lie between two subprograms: derivation does
not look across an activation.  The contraction takes its cheap neighbours (bias, normalisation, residual addition, the
activation and its gate), which can become one epilogue.  Runs of at least two cheap nodes that no contraction takes
are subprograms of their own.  All other nodes stay as they are.

Every subprogram is convex, and so are all together: with each as one node the graph stays acyclic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from einnet_explore.analysis.access_structure import windows
from einnet_explore.ir import Equation, accesses, tensors
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.model import Model, ModelNode
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble
from einnet_explore.pipeline.folded_weights import find_masks, with_conditions
from einnet_explore.pipeline.joins import (
    join_around_contractions,
    join_chains,
    join_chains_through_cache,
    join_conversions,
    join_operands,
    join_parallel,
    join_products,
    join_rows,
    join_siblings,
    join_through_cache,
)
from einnet_explore.pipeline.node_groups import NodeGroups, work_kind
from einnet_explore.pipeline.reading_memory import ReadingMemory
from einnet_explore.pipeline.subprogram import Subprogram


@dataclass(frozen=True, slots=True)
class Skipped:
    """A node in no subprogram, or in no region of sums of products, and why."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Split:
    """A model's subprograms, in an executable order, and the nodes that stay as they are."""

    subprograms: tuple[Subprogram, ...]
    skipped: tuple[Skipped, ...]
    region_ends: tuple[Skipped, ...]
    """Nodes before which a region of sums of products ends, and why."""


def partition(model: Model, memory: ReadingMemory | None = None, through_cache: bool = True) -> Split:
    """The subprograms of *model* and, for every other node, why it is in none; *memory* has answers of earlier runs.

    If *through_cache*, contractions are joined that one kernel in blocks, which this processor runs, computes.
    """
    understood: dict[int, tuple[Equation, ...]] = {}
    skipped: dict[int, str] = {}
    used = _used_nodes(model)
    masks = find_masks({model.identifiers[name]: array for name, array in model.weights.items()})
    for n, node in enumerate(model.nodes):
        if n not in used:
            skipped[n] = "no output depends on it"
            continue
        match _typed_equations(node, model):
            case NotUnderstood(reason):
                skipped[n] = reason
            case equations:
                understood[n] = tuple(replace(e, scope=with_conditions(e.scope, masks)) for e in equations)
    units = NodeGroups(model, understood, memory or ReadingMemory())
    join_conversions(units)
    join_rows(units)
    ends = join_products(units)
    join_around_contractions(units)
    single = tuple(units.groups())
    chains = single
    if through_cache:
        join_through_cache(units)
        chains = tuple(units.groups())
        join_chains_through_cache(units)
    join_siblings(units)
    join_parallel(units)
    join_chains(units)
    if through_cache:
        join_operands(units)
    readers: dict[str, set[int]] = {}
    for n, node in enumerate(model.nodes):
        for name in node.reads:
            readers.setdefault(name, set()).add(n)
    units.memory.save()
    groups = [group for group in units.groups() if _is_worthwhile(group, model, understood)]
    inside = {n for group in groups for n in group}
    for n in understood:
        if n not in inside:
            skipped[n] = f"{model.nodes[n].op} alone is no subprogram"
    return Split(
        tuple(replace(_subprogram(g, units, readers), parts=_parts(g, single, chains, units, readers)) for g in groups),
        _name_nodes(model, skipped),
        _name_nodes(model, ends),
    )


def _name_nodes(model: Model, reasons: Mapping[int, str]) -> tuple[Skipped, ...]:
    return tuple(Skipped(model.nodes[n].name, why) for n, why in sorted(reasons.items()))


def _used_nodes(model: Model) -> set[int]:
    """Return the nodes that outputs depend on; ONNX Runtime drops the others."""
    needed = {value.name for value in model.outputs}
    found: set[int] = set()
    for n in reversed(range(len(model.nodes))):
        if not needed.isdisjoint(model.nodes[n].results):
            found.add(n)
            needed.update(model.nodes[n].reads)
    return found


KERNEL_TYPES = ("float16", "float32", "float64", "int8", "uint8", "int32")
"""Element types of values that generated kernels read and write."""


def _typed_equations(node: ModelNode, model: Model) -> tuple[Equation, ...] | NotUnderstood:
    """Return the equations of a node whose operands and results all have types of kernels."""
    found = express(node, model)
    if isinstance(found, NotUnderstood):
        return found
    values = {model.identifiers[name] for name in (*node.reads, *node.results)}
    for tensor in (t for e in found for t in (e.tensor, *tensors(e.scope)) if t.name in values):
        if tensor.dtype not in KERNEL_TYPES:
            return NotUnderstood(f"elements are {tensor.dtype}, subprograms have {', '.join(KERNEL_TYPES)}")
    return found


def _is_worthwhile(group: tuple[int, ...], model: Model, understood: Mapping[int, tuple[Equation, ...]]) -> bool:
    if not all(n in understood for n in group):
        return False
    kind, equations = work_kind(model.nodes[group[0]]), understood[group[0]]
    # A normalisation is several equations by itself; windows of a pooling overlap, so a kernel loads elements once.
    several = kind == "reduction" and (len(equations) > 1 or any(map(_has_short_windows, equations)))
    return len(group) > 1 or several or kind == "contraction"


def _has_short_windows(equation: Equation) -> bool:
    """True if *equation* reduces windows shorter than the traversal along which they slide; prefixes are not."""
    scope = equation.scope
    sliding = windows(scope)
    pairs = ((x, y) for a in accesses(scope.body) for i in a.index for x in i.iterators for y in i.iterators)
    return any(x in scope.traversals and y in sliding and y.extent < x.extent for x, y in pairs)


def _parts(
    group: tuple[int, ...],
    single: Iterable[tuple[int, ...]],
    chains: Iterable[tuple[int, ...]],
    units: NodeGroups,
    readers: Mapping[str, set[int]],
) -> tuple[Subprogram, ...]:
    """Return the subprograms of the contractions in *group* before they were joined with others.

    If several chains of contractions were joined, the parts are these chains.
    """
    inside = set(group)

    def contractions(part: tuple[int, ...]) -> int:
        return sum(units.kind(n) == "contraction" for n in part)

    joined = [part for part in chains if set(part) <= inside and contractions(part)]
    several = sum(contractions(part) > 1 for part in joined) > 1
    held = joined if several else [part for part in single if set(part) <= inside and contractions(part)]
    return tuple(_subprogram(part, units, readers) for part in held) if held != [group] else ()


def _subprogram(group: tuple[int, ...], units: NodeGroups, readers: Mapping[str, set[int]]) -> Subprogram:
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
