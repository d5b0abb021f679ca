"""Shape computations, folded away: what of a model's small whole numbers is known once the shapes are."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from einnet_explore.graph.reading.model import Array, Node, Value, nodes_of
from einnet_explore.graph.reading.shapes import infer, values_of

_SMALL = 4096
"""A shape computation handles lists of dimensions; whatever has more elements is data."""

_COUNTED = 1 << 60
"""NumPy has no array of more elements, not even of one that is repeated; such a value is refused as it is."""

_FROM_SIZES = ("ConstantOfShape", "EyeLike", "OneHot", "Range")
"""Operators that make real numbers too from sizes alone: states that begin at zero, positions."""


def fold(file: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    """*proto* with shapes inferred, and every small integer or boolean result that is known beforehand as a weight.

    ``Shape → Gather → Concat → Reshape`` chains go this way.  Real-valued weight expressions are left to the optimiser.
    """
    proto = infer(file, proto)
    while _fold_once(proto):
        proto = infer(file, proto)
    return proto


def _fold_once(proto: onnx.ModelProto) -> bool:
    graph = proto.graph
    values = values_of(graph)
    known = {w.name: w for w in graph.initializer}
    kept = []
    for node in nodes_of(graph):
        results = _folded(node, values, known, proto)
        if results is None:
            kept.append(node.proto)
            continue
        for name, array in zip(node.outputs, results, strict=False):
            known[name] = numpy_helper.from_array(array, name)
            graph.initializer.append(known[name])
    changed = len(kept) < len(graph.node)
    if changed:
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)
    return changed


def _folded(
    node: Node, values: Mapping[str, Value], known: Mapping[str, onnx.TensorProto], proto: onnx.ModelProto
) -> list[Array] | None:
    """What *node* computes, if it is a shape computation whose inputs are known."""
    made = [values.get(name) for name in node.results]
    if node.domain or node.captured or any(name in {v.name for v in proto.graph.output} for name in node.results):
        return None
    kinds = "iubf" if node.op in _FROM_SIZES else "iub"
    if any(v is None or v.shape is None or v.dtype is None or v.dtype.kind not in kinds for v in made):
        return None
    if sum(prod(v.shape) for v in made if v is not None and v.shape is not None) > _SMALL:
        return None
    if any(a.HasField("g") or a.graphs for a in node.proto.attribute):  # its small result may take any time and memory
        return None
    if node.op in ("Shape", "Size"):
        source = values.get(node.inputs[0])
        if source is None or source.shape is None or prod(source.shape) > _COUNTED:
            return None
        feed: dict[str, Array] = {node.inputs[0]: np.broadcast_to(np.float32(0), source.shape)}
    elif node.reads and all(name in known for name in node.reads) and not node.op.startswith(("Random", "Bernoulli")):
        feed = {name: numpy_helper.to_array(known[name]) for name in node.reads}
    else:
        return None
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feed.items()
    ]
    wanted = [onnx.ValueInfoProto(name=name) for name in node.results]
    graph = helper.make_graph([node.proto], "fold", types, wanted)
    single = helper.make_model(graph, opset_imports=list(proto.opset_import), ir_version=proto.ir_version)
    try:
        found = list(ReferenceEvaluator(single).run(None, feed))
    except Exception:  # whatever the evaluator cannot do stays a node
        return None
    return [np.asarray(a) for a in found]
