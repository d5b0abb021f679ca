"""Normal spelling of a model: what exporters write as parts of one operator becomes that operator.

* Nodes of one operator, on the same operands but for weights, whose results are concatenated, become one node with
  concatenated weights.
* A node that pads joins its only reader, if that is an operator with padding.

Nothing is assumed of the operators: each candidate is a small model, and it counts if it is proved equal to the nodes
that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import onnx
from onnx import helper, numpy_helper

from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model, ModelNode, copy_message
from einnet_explore.pipeline.value_proofs import open_sweep
from einnet_explore.runtime.arrays import Array

MAX_PASSES = 4
"""Passes over a model, in each of which a node is replaced once at most."""


@dataclass(frozen=True, slots=True)
class _Replacement:
    """A *node* in place of *old* ones, the last of which computes the same value, and its new weights."""

    old: tuple[ModelNode, ...]
    node: onnx.NodeProto
    weights: Mapping[str, Array] = field(default_factory=dict)


def with_normal_spelling(model: Model) -> Model:
    """Return *model* with parts of operators joined; ``original`` stays."""
    for _ in range(MAX_PASSES):
        found, taken = list[_Replacement](), set[str]()
        for each in (*_joined_parts(model), *_joined_paddings(model)):
            names = {node.name for node in each.old}
            if taken.isdisjoint(names) and _is_proved(model, each):
                found.append(each)
                taken |= names
        if not found:
            return model
        made = load_model(_with_replacements(model, found))
        folded = (*model.folded, *made.folded)
        model = replace(
            made, path=model.path, original=model.original, folded=folded, narrow=model.narrow, stored=model.stored
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
                yield _Replacement((*parts, last), node, weights)


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
        yield _Replacement((pad, reader), node)


def _attributes(node: ModelNode) -> Iterable[str]:
    """Return the names of the attributes that the operator of *node* may have."""
    return onnx.defs.get_schema(node.op).attributes if not node.domain and onnx.defs.has(node.op) else ()


def _is_proved(model: Model, new: _Replacement) -> bool:
    """Return whether the new node is proved equal to the old ones, as two small models."""
    (output,) = new.old[-1].results
    made = {name for node in new.old for name in node.results}
    read = dict.fromkeys(name for node in new.old for name in node.reads if name not in made)
    inputs = [name for name in read if name not in model.weights]
    if not all(model.is_static(name) for name in (*inputs, output)):
        return False
    weights = {name: model.weights[name] for name in read if name in model.weights}
    one, other = (
        _small_model(model, nodes, inputs, output, {**weights, **new.weights})
        for nodes in ([node.proto for node in new.old], [new.node])
    )
    try:
        sweep = open_sweep(load_model(one), load_model(other))
        for _ in sweep.run():
            pass
    except ValueError:
        return False
    return sweep.are_equal(output, output)


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
    return helper.make_model(graph, opset_imports=model.proto.opset_import, ir_version=model.proto.ir_version)


def _with_replacements(model: Model, found: Iterable[_Replacement]) -> onnx.ModelProto:
    """Return the model with new nodes in place of old ones, at the place of the last of them."""
    proto = copy_message(model.proto)
    new = {each.old[-1].name: each for each in found}
    gone = {node.name for each in new.values() for node in each.old}
    nodes = [new[n.name].node if n.name in new else n for n in proto.graph.node if n.name in new or n.name not in gone]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    for each in new.values():
        proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in each.weights.items())
    read = {name for node in nodes for name in node.input} | {value.name for value in proto.graph.output}
    kept = [weight for weight in proto.graph.initializer if weight.name in read]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return proto
