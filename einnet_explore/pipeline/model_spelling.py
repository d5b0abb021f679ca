"""Normal spelling of a model: what exporters write as parts of one operator becomes that operator.

* Nodes of one operator, on the same operands but for weights, whose results are concatenated, become one node with
  concatenated weights.
* Element-wise nodes on concatenations of the same parts become nodes on the parts, with one concatenation behind them.
* A node that pads joins its only reader, if that is an operator with padding.
* A vector that is added before a softmax which does not depend on it is dropped, such as the bias of the keys.

Nothing is assumed of the operators: each candidate is a small model, and it counts if it is proved equal to the nodes
that it replaces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise, product
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from einnet_explore.onnx_import.elementwise import ELEMENTWISE
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model, ModelNode, copy_message, walk_graphs
from einnet_explore.pipeline.reading_memory import ReadingMemory
from einnet_explore.pipeline.value_proofs import open_sweep
from einnet_explore.rules import CANCELLATION
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.onnx_weights import weight_proto
from einnet_explore.strategies.rounding_levels import Level, allowed_rules

ELEMENTWISE_OPERATORS = frozenset(operator.name for operator in ELEMENTWISE if operator.kind != "layout")
"""Operators whose results are computed element by element from operands that broadcast."""

MAX_JOINED_NODES = 12
"""Element-wise nodes behind concatenations that become nodes on their parts, at most."""

MAX_PASSES = 4
"""Passes over a model, in each of which a node is replaced once at most."""


@dataclass(frozen=True, slots=True)
class _Replacement:
    """New *nodes* in place of *old* ones, of both of which the last one computes the same value, and new weights.

    Nodes that are *kept* make operands of them.
    """

    old: tuple[ModelNode, ...]
    nodes: tuple[onnx.NodeProto, ...]
    weights: Mapping[str, Array] = field(default_factory=dict)
    kept: tuple[ModelNode, ...] = ()


def with_normal_spelling(model: Model, numerics: Level = "approximate", memory: ReadingMemory | None = None) -> Model:
    """Return *model* with parts of operators joined, as far as *numerics* admits; ``original`` stays.

    *memory* has the replacements that earlier runs could not prove.
    """
    proved, memory = dict[str, bool](), memory or ReadingMemory()
    for _ in range(MAX_PASSES):
        found, taken = list[_Replacement](), set[str]()
        shifts = _without_shifts(model) if allowed_rules((CANCELLATION,), numerics) else ()
        for each in (*_joined_parts(model), *_joined_concatenations(model), *_joined_paddings(model), *shifts):
            names = {node.name for node in each.old}
            if taken.isdisjoint(names) and _is_proved(model, each, proved, memory):
                found.append(each)
                taken.update(names)
        if not found:
            return model
        weights = {name: array for each in found for name, array in each.weights.items()}
        made = load_model(_with_replacements(model, found, weights), arrays={**model.weights, **weights})
        folded = (*model.folded, *made.folded)
        model = replace(
            made,
            path=model.path,
            original_proto=model.original_proto,
            original_weights=model.original_weights,
            folded=folded,
            dynamic=model.dynamic,
            narrow=model.narrow,
            domains=model.domains,
            stored=model.stored,
        )
    return model


def _readers(model: Model) -> Mapping[str, list[ModelNode]]:
    """Return the nodes that read each value; an output of the model has one more."""
    found: dict[str, list[ModelNode]] = {}
    for node in model.nodes:
        for name in node.reads:
            found.setdefault(name, []).append(node)
    for value in model.outputs:
        found.setdefault(value.name, []).append(model.nodes[-1])
    return found


def _joined_parts(model: Model) -> Iterable[_Replacement]:
    """Yield one node for the parts of each concatenation, with weights concatenated along each axis that fits."""
    makers, readers = {name: node for node in model.nodes for name in node.results}, _readers(model)
    for last in model.nodes:
        parts = [makers[name] for name in last.inputs if name in makers]
        if last.op != "Concat" or len({part.name for part in parts}) < max(2, len(last.inputs)):
            continue
        alone = all(len(part.results) == 1 and len(readers[part.results[0]]) == 1 for part in parts)
        if not alone or len({_call(part) for part in parts}) > 1 or len({len(part.inputs) for part in parts}) > 1:
            continue
        operands = list(zip(*(part.inputs for part in parts), strict=True))
        ways = [_concatenations(model, names) for names in operands]
        for n, arrays in enumerate(product(*ways)):
            weights = {f"{last.name}/joined_{n}_{p}": array for p, array in enumerate(arrays) if array is not None}
            if weights:
                name = f"{last.name}/joined_{n}_"
                inputs = [names[0] if f"{name}{p}" not in weights else f"{name}{p}" for p, names in enumerate(operands)]
                node = copy_message(parts[0].proto)
                del node.input[:], node.output[:]
                node.input.extend(inputs)
                node.output.extend(last.outputs)
                node.name = last.name
                yield _Replacement((*parts, last), (node,), weights)


def _call(node: ModelNode) -> tuple[object, ...]:
    attributes = sorted((a.name, a.SerializeToString(deterministic=True)) for a in node.proto.attribute)
    return node.op, node.domain, tuple(attributes)


def _concatenations(model: Model, names: tuple[str, ...]) -> list[Array | None]:
    """Return the arrays that the weights called *names* may be in one node; None for one operand of all parts."""
    if len(set(names)) == 1:
        return [None]
    if not all(name in model.weights for name in names):
        return []
    arrays = [model.weights[name] for name in names]
    axes = [
        axis
        for axis in range(arrays[0].ndim)
        if len({(*a.shape[:axis], *a.shape[axis + 1 :]) for a in arrays}) == 1 and len({a.ndim for a in arrays}) == 1
    ]
    return [np.concatenate(arrays, axis) for axis in axes]


Places: TypeAlias = "tuple[int, tuple[tuple[int, int], ...]]"
"""An axis, counted from the last one, and where each part begins and ends along it."""


def _joined_concatenations(model: Model) -> Iterable[_Replacement]:
    """Yield element-wise nodes on concatenations of the same parts as nodes on these parts and one concatenation.

    A value that nodes cut into the parts counts as their concatenation.
    """
    makers, readers = {name: node for node in model.nodes for name in node.results}, _readers(model)
    cuts, order = dict(_cuts(model)), {node.name: n for n, node in enumerate(model.nodes)}
    for last in (node for node in reversed(model.nodes) if node.op in ELEMENTWISE_OPERATORS):
        work, joins, waiting = list[ModelNode](), list[ModelNode](), [last]
        while waiting and len(work) < MAX_JOINED_NODES:
            node = waiting.pop()
            if node.op in ELEMENTWISE_OPERATORS:
                work.append(node)
                waiting += [makers[name] for name in node.reads if name in makers and len(readers[name]) == 1]
            elif node.op == "Concat":
                joins.append(node)
        places = {_places(model, node) for node in joins}
        found = places.pop() if len(places) == 1 else None
        made = _work_on_parts(model, work[::-1], joins, found, cuts) if found is not None else None
        if made is not None and all(order[node.name] < order[last.name] for node in made.kept):
            yield made


def _work_on_parts(
    model: Model,
    work: Sequence[ModelNode],
    joins: Sequence[ModelNode],
    places: Places,
    cuts: Mapping[tuple[str, int, tuple[int, int]], tuple[str, ModelNode]],
) -> _Replacement | None:
    """Return *work* on the parts at *places* of its operands, and their concatenation.

    Operands are made by *joins* or *cuts*, are cut weights, or have no such axis.  None if others occur, or only one
    operand has parts.
    """
    (axis, spans), last = places, work[-1]
    names = {name: [f"{last.name}/{n} {name}" for n in range(len(spans))] for node in work for name in node.results}
    if any(not model.is_static(name) or _extent(model, name, axis) != spans[-1][1] for name in names):
        return None
    parts = {join.results[0]: join.inputs for join in joins}
    weights, kept, joined = dict[str, Array](), dict[str, ModelNode](), len(parts)
    for name in (name for node in work for name in node.inputs if name not in names):
        if not name or (model.is_static(name) and _extent(model, name, axis) == 1):
            names[name] = [name] * len(spans)
        elif name in parts:
            names[name] = [*parts[name]]
        elif name in model.weights:
            names[name] = [f"{last.name}/{n} {name}" for n in range(len(spans))]
            weights |= {
                part: model.weights[name].take(range(*span), axis)
                for part, span in zip(names[name], spans, strict=True)
            }
        elif all((name, axis, span) in cuts for span in spans):
            names[name] = [cuts[name, axis, span][0] for span in spans]
            kept |= {node.name: node for _, node in (cuts[name, axis, span] for span in spans)}
            joined += 1
        else:
            return None
    if joined < 2:
        return None
    nodes = list[onnx.NodeProto]()
    for n in range(len(spans)):
        for node in work:
            part = copy_message(node.proto)
            part.name = f"{last.name}/{n} {node.name}"
            part.input[:], part.output[:] = ([names[name][n] for name in each] for each in (node.inputs, node.outputs))
            nodes.append(part)
    join = helper.make_node("Concat", names[last.results[0]], last.results, name=last.name, axis=axis)
    return _Replacement((*joins, *work), (*nodes, join), weights, tuple(kept.values()))


def _extent(model: Model, name: str, axis: int) -> int:
    """Return the extent of value *name* along *axis*, counted from the last one; 1 if it has no such axis."""
    shape = model.shape(name)
    return shape[axis] if len(shape) >= -axis else 1


def _places(model: Model, node: ModelNode) -> Places | None:
    """Return the places of the parts that *node*, a Concat or Split, joins or cuts; None if shapes are unknown."""
    parts, whole = (node.inputs, node.outputs) if node.op == "Concat" else (node.outputs, node.inputs)
    if not all(map(model.is_static, (whole[0], *parts))):
        return None
    axis = node.attributes.get("axis", 0)
    axis -= len(model.shape(whole[0])) if axis >= 0 else 0
    return axis, tuple(pairwise((0, *accumulate(model.shape(name)[axis] for name in parts))))


def _cuts(model: Model) -> Iterable[tuple[tuple[str, int, tuple[int, int]], tuple[str, ModelNode]]]:
    """Yield each value that is cut along one axis, the axis, counted from the last one, and a place; the part there."""
    for node in model.nodes:
        source = node.inputs[0] if node.inputs else ""
        if node.op == "Split" and (found := _places(model, node)) is not None:
            yield from (((source, found[0], n), (part, node)) for n, part in zip(found[1], node.outputs, strict=True))
        elif node.op == "Slice" and model.is_static(source) and all(n in model.weights for n in node.inputs[1:] if n):
            lists = [model.weights[name].tolist() if name else [] for name in (*node.inputs[1:], "", "")]
            start, stop, axes, steps = lists[:4]
            if len(start) == 1 and steps in ([], [1]):
                shape = model.shape(source)
                axis = axes[0] % len(shape) if axes else 0
                lo, hi, _ = slice(start[0], stop[0]).indices(shape[axis])
                yield (source, axis - len(shape), (lo, hi)), (node.outputs[0], node)


def _joined_paddings(model: Model) -> Iterable[_Replacement]:
    """Yield the only reader of each constant padding of zeros with this padding as its own."""
    readers = _readers(model)
    for pad in model.nodes:
        found = readers.get(pad.outputs[0], []) if pad.op == "Pad" else []
        amounts = model.weights.get(pad.inputs[1]) if len(pad.inputs) > 1 else None
        if len(found) != 1 or amounts is None or len(pad.inputs) > 3 or "pads" not in _attributes(found[0]):
            continue
        (reader,) = found
        rank = len(amounts) // 2
        given = {a.name: helper.get_attribute_value(a) for a in reader.proto.attribute}
        before = given.get("pads", [0] * 2 * (rank - 2))
        spatial = [*amounts[2:rank], *amounts[rank + 2 :]]
        if rank < 3 or given.get("auto_pad", b"NOTSET") != b"NOTSET" or min(spatial) < 0 or len(before) != len(spatial):
            continue
        node = copy_message(reader.proto)
        others = [a for a in node.attribute if a.name != "pads"]
        del node.attribute[:]
        pads = [int(a + b) for a, b in zip(before, spatial, strict=True)]
        node.attribute.extend([*others, helper.make_attribute("pads", pads)])
        inputs = [pad.inputs[0] if name == pad.outputs[0] else name for name in reader.inputs]
        del node.input[:]
        node.input.extend(inputs)
        yield _Replacement((pad, reader), (node,))


BEFORE_SOFTMAX = ("MatMul", "Mul", "Div", "Add", "Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze")
"""Operators through which a vector that is added is followed to a softmax."""


def _without_shifts(model: Model) -> Iterable[_Replacement]:
    """Yield the nodes from each vector of weights that is added up to the softmax behind it, without the vector."""
    makers, readers = {name: node for node in model.nodes for name in node.results}, _readers(model)
    waiting: list[tuple[ModelNode, ...]] = [(node,) for node in model.nodes if node.op == "Softmax"]
    while waiting:
        path = waiting.pop()
        for name in dict.fromkeys(path[0].inputs):
            node = makers.get(name)
            if node is None or len(readers[name]) != 1 or len(node.results) != 1:
                continue
            if (nodes := _without_shift(model, node, path)) is not None:
                yield _Replacement((node, *path), nodes)
            weighted = node.op == "MatMul" and not model.weights.keys().isdisjoint(node.inputs)
            if node.op in BEFORE_SOFTMAX and not weighted:
                waiting.append((node, *path))


def _without_shift(model: Model, node: ModelNode, path: tuple[ModelNode, ...]) -> tuple[onnx.NodeProto, ...] | None:
    """Return *node* and *path* after it without the vector of weights that *node* adds; None if it adds none."""
    vectors = {name for name in node.inputs if name in model.weights and _is_vector(model.weights[name])}
    first, *rest = (copy_message(each.proto) for each in path)
    match node.op, [name for name in node.inputs if name not in vectors]:
        case "Add", [operand] if model.shape(operand) == model.shape(node.results[0]):
            inputs = [operand if name == node.results[0] else name for name in first.input]
            del first.input[:]
            first.input.extend(inputs)
            return first, *rest
        case "Gemm" | "Conv", _ if len(node.inputs) == 3 and node.inputs[2] in vectors:
            plain = copy_message(node.proto)
            del plain.input[2:]
            return plain, first, *rest
    return None


def _is_vector(array: Array) -> bool:
    return array.size == max(array.shape, default=1) > 1


def _attributes(node: ModelNode) -> Iterable[str]:
    """Return the names of the attributes that the operator of *node* may have."""
    return onnx.defs.get_schema(node.op).attributes if not node.domain and onnx.defs.has(node.op) else ()


def _is_proved(model: Model, new: _Replacement, proved: dict[str, bool], memory: ReadingMemory) -> bool:
    """Return whether the new node is proved equal to the old ones, as two small models.

    *proved* are the verdicts so far on models that differ in names only: equal layers are proved once.
    """
    (output,) = new.old[-1].results
    every = (*new.kept, *new.old)
    made = {name for node in every for name in node.results}
    read = dict.fromkeys(name for node in every for name in node.reads if name not in made)
    inputs = [name for name in read if name not in model.weights]
    if not all(model.is_static(name) for name in (*inputs, output)):
        return False
    weights = {name: model.weights[name] for name in read if name in model.weights}
    one, other = (
        _small_model(model, nodes, inputs, output, {**weights, **new.weights})
        for nodes in ([node.proto for node in every], [*(node.proto for node in new.kept), *new.nodes])
    )
    key = _digest_without_names(one, other)
    if key not in proved:
        proved[key] = memory.is_proved("is one spelling", key, partial(_are_equal, one, other, output))
    return proved[key]


def _are_equal(one: onnx.ModelProto, other: onnx.ModelProto, output: str) -> bool:
    """Return whether *output* of two models is proved equal."""
    try:
        sweep = open_sweep(load_model(one), load_model(other))
        if output not in sweep.candidates(output):
            return False
        for _ in sweep.run():
            pass
        return sweep.are_equal(output, output)
    except ValueError:
        return False


def _digest_without_names(*models: onnx.ModelProto) -> str:
    """Digest the nodes and weights of *models*, and the types of their inputs; names count if there are subgraphs."""
    digest, numbers = hashlib.blake2b(digest_size=20), {"": ""}
    for graph in (model.graph for model in models):
        messages = [*map(copy_message, graph.input), *map(copy_message, graph.initializer)]
        for message in messages:
            message.name = numbers.setdefault(message.name, f"{len(numbers)}")
        for node in map(copy_message, graph.node):
            node.name = ""
            for names in (node.input, node.output):
                names[:] = [numbers.setdefault(name, f"{len(numbers)}") for name in names]
            messages.append(node)
        if len([*walk_graphs(graph)]) > 1:
            messages.append(onnx.StringStringEntryProto(value=repr(numbers)))
        for message in messages:
            digest.update(message.SerializeToString(deterministic=True))
    return digest.hexdigest()


def _small_model(
    model: Model, nodes: list[onnx.NodeProto], inputs: list[str], output: str, weights: Mapping[str, Array]
) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(model.dtype(name)), model.shape(name))
        for name in (*inputs, output)
    ]
    read = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items() if name in read]
    graph = helper.make_graph(nodes, "part", values[:-1], values[-1:], tensors)
    return helper.make_model(
        graph, opset_imports=model.graph_proto.opset_import, ir_version=model.graph_proto.ir_version
    )


def _with_replacements(model: Model, found: Iterable[_Replacement], weights: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the model with new nodes in place of old ones, at the place of the last of them.

    It declares its own weights, and the new ones.
    """
    proto = copy_message(model.graph_proto)
    new = {each.old[-1].name: each for each in found}
    gone = {node.name for each in new.values() for node in each.old}
    nodes = list[onnx.NodeProto]()
    for node in proto.graph.node:
        nodes.extend(new[node.name].nodes if node.name in new else [node] if node.name not in gone else [])
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(weight_proto(name, array) for name, array in weights.items())
    read = {name for node in nodes for name in node.input} | {value.name for value in proto.graph.output}
    kept = [weight for weight in proto.graph.initializer if weight.name in read]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return proto
