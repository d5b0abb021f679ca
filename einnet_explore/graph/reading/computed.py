"""Constant folding: nodes that depend on no input become weights, shape computations among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeAlias, TypeVar

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from einnet_explore.graph.reading.model import Array, Model, Node, Value, nodes_of
from einnet_explore.graph.reading.shapes import infer, values_of

_SMALL = 4096
"""A shape computation handles lists of dimensions; whatever has more elements is data."""

_COUNTED = 1 << 60
"""NumPy has no array of more elements, not even of one that is repeated; such a value is refused as it is."""

_FROM_SIZES = ("ConstantOfShape", "EyeLike", "OneHot", "Range")
"""Operators that make real numbers too from sizes alone: states that begin at zero, positions."""


MAX_FOLDED_BYTES = 1 << 30
"""Bytes of a model's weights, folded ones included: a protocol buffer holds less than 2 GiB, inference copies it."""

_NOT_FOLDED = ("Bernoulli", "DequantizeLinear", "Dropout", "Multinomial", "QuantizeLinear", "Random")
"""Beginnings of operators that draw random numbers, and of those by which ONNX Runtime recognises integer kernels."""

_P = TypeVar("_P", onnx.ModelProto, onnx.NodeProto, onnx.TensorProto)
_Foldable: TypeAlias = "Callable[[Node, Sequence[Value]], bool]"


def fold(file: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infer shapes, and turn every small integer or boolean result that is known beforehand into a weight.

    ``Shape → Gather → Concat → Reshape`` chains go this way.
    """
    return _folded(file, proto, _computes_shape)[0]


def fold_constants(file: str, proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[onnx.NodeProto, ...]]:
    """Fold every node of *proto* that depends on weights only; return the model and the nodes that it no longer has.

    A node stays where it draws random numbers, quantises, has a graph output or an infinite result, or where the
    weights would take more than ``MAX_FOLDED_BYTES``.
    """
    free = MAX_FOLDED_BYTES - sum(_nbytes(w) for w in proto.graph.initializer)

    def fits(node: Node, results: Sequence[Value]) -> bool:
        nonlocal free
        needed = sum(prod(v.shape or ()) * v.dtype.itemsize for v in results if v.dtype is not None)
        if not 0 < needed <= free or any(v.dtype is None or v.dtype.kind not in "iubf" for v in results):
            return _computes_shape(node, results)
        free -= needed
        return True

    folded, gone = _folded(file, proto, fits)
    read = {name for node in nodes_of(folded.graph) for name in node.reads}
    made = {name for node in gone for name in node.output}
    kept = [_copy(w) for w in folded.graph.initializer if w.name in read or w.name not in made]
    del folded.graph.initializer[:]
    folded.graph.initializer.extend(kept)
    return folded, gone


def unfolded(model: Model) -> onnx.ModelProto:
    """A copy of the model's graph for a file: the nodes of a folded weight that is larger than what they read are back.

    Nodes that no output needs any more are for the caller to drop.
    """
    out = _copy(model.proto)
    graph = out.graph
    maker = {name: n for n, node in enumerate(model.folded) for name in node.output if name}
    sizes = {w.name: _nbytes(w) for w in graph.initializer}
    restored: set[int] = set()
    for name in [name for name in sizes if name in maker]:
        nodes, sources, waiting = set[int](), set[str](), [name]
        while waiting:
            if (at := maker.get(source := waiting.pop())) is None:
                sources.add(source)
            elif at not in nodes:
                nodes.add(at)
                waiting += [i for i in model.folded[at].input if i]
        if sources <= sizes.keys() and sum(sizes[source] for source in sources) < sizes[name]:
            restored |= nodes
    made = {name for n in restored for name in model.folded[n].output}
    kept = [_copy(w) for w in graph.initializer if w.name not in made]
    nodes_in_order = [*(model.folded[n] for n in sorted(restored)), *map(_copy, graph.node)]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes_in_order)
    return out


def _folded(
    file: str, proto: onnx.ModelProto, foldable: _Foldable
) -> tuple[onnx.ModelProto, tuple[onnx.NodeProto, ...]]:
    proto = infer(file, proto)
    gone: list[onnx.NodeProto] = []
    while found := _fold_once(proto, foldable):
        gone += found
        proto = infer(file, proto)
    return proto, tuple(gone)


def _fold_once(proto: onnx.ModelProto, foldable: _Foldable) -> list[onnx.NodeProto]:
    """Fold what can be folded now; return the nodes, which *proto* no longer has."""
    graph = proto.graph
    values = values_of(graph)
    known = {w.name: w for w in graph.initializer}
    outputs = {v.name for v in graph.output}
    kept, gone = [], []
    for node in nodes_of(graph):
        results = None if outputs & {*node.results} else _results(node, values, known, proto, foldable)
        if results is None:
            kept.append(_copy(node.proto))
            continue
        gone.append(_copy(node.proto))
        for name, array in zip(node.results, results, strict=True):
            known[name] = numpy_helper.from_array(array, name)
            graph.initializer.append(known[name])
    if gone:
        del graph.node[:]
        graph.node.extend(kept)
    return gone


def _computes_shape(node: Node, results: Sequence[Value]) -> bool:
    kinds = "iubf" if node.op in _FROM_SIZES else "iub"
    return (
        all(v.dtype is not None and v.dtype.kind in kinds for v in results)
        and sum(prod(v.shape or ()) for v in results) <= _SMALL
    )


def _results(
    node: Node,
    values: Mapping[str, Value],
    known: Mapping[str, onnx.TensorProto],
    proto: onnx.ModelProto,
    foldable: _Foldable,
) -> list[Array] | None:
    """The results of *node*; None where its inputs are not known, or it is to stay."""
    made = [v for name in node.results if (v := values.get(name)) is not None and v.shape is not None]
    if node.domain or node.captured or len(made) < len(node.results):
        return None
    if any(a.HasField("g") or a.graphs for a in node.proto.attribute):  # its small result may take any time and memory
        return None
    if node.op in ("Shape", "Size"):
        source = values.get(node.inputs[0])
        if source is None or source.shape is None or prod(source.shape) > _COUNTED:
            return None
        feed: dict[str, Array] = {node.inputs[0]: np.broadcast_to(np.float32(0), source.shape)}
    elif node.reads and all(name in known for name in node.reads) and not node.op.startswith(_NOT_FOLDED):
        feed = {}
    else:
        return None
    if not foldable(node, made):
        return None
    feed = feed or {name: numpy_helper.to_array(known[name]) for name in node.reads}
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feed.items()
    ]
    wanted = [onnx.ValueInfoProto(name=name) for name in node.results]
    graph = helper.make_graph([node.proto], "fold", types, wanted)
    single = helper.make_model(graph, opset_imports=list(proto.opset_import), ir_version=proto.ir_version)
    if _computes_shape(node, made):
        return _by_reference(single, feed)
    found = _by_runtime(single, feed)
    return found if found is not None and all(np.isfinite(a).all() for a in found) else None


def _by_reference(single: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array] | None:
    try:
        return [np.asarray(a) for a in ReferenceEvaluator(single).run(None, dict(feed))]
    except Exception:  # whatever the evaluator cannot do stays a node
        return None


def _by_runtime(single: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array] | None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(single.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(a) for a in session.run(None, dict(feed))]
    except Exception:  # it has a class for every kind of failure; such a node stays
        return None


def _nbytes(weight: onnx.TensorProto) -> int:
    """The size in a file, as raw data."""
    return int(prod(weight.dims) * helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize)


def _copy(message: _P) -> _P:
    made = type(message)()
    made.CopyFrom(message)
    return made
