"""Static shapes of models: shapes of dynamic inputs, shape inference, and constant folding.

Folding turns nodes that depend on no input, and computations of shapes, into weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from einnet_explore.onnx_import.model import (
    Array,
    Model,
    ModelError,
    ModelNode,
    ModelValue,
    Shape,
    copy_message,
    list_nodes,
    replace_contents,
)


def set_input_shapes(file: str, graph: onnx.GraphProto, shapes: Mapping[str, Shape]) -> None:
    """Set *shapes* of inputs of *graph*; inputs that share a named dimension need its size only once.

    Raises ModelError for an unknown name, another rank, a different static dimension, a size below 1, and a dimension
    that remains dynamic.
    """
    weights = {w.name for w in graph.initializer}
    inputs = {v.name: v for v in graph.input if v.name not in weights and v.type.HasField("tensor_type")}
    symbols: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise ModelError(f"{file}: --shape {name}: found no such input, expected one of {', '.join(inputs)}")
        _set_shape(file, inputs[name], tuple(shape), symbols)
    unknown = []
    for name, value in inputs.items():
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            unknown.append(f"all dimensions of {name} (--shape {name}=…)")
            continue
        for dim in tensor.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param][0]
        if open_ := [n for n, d in enumerate(tensor.shape.dim) if _size(d) is None]:
            names = ", ".join(f"{n} ({tensor.shape.dim[n].dim_param or 'unnamed'})" for n in open_)
            asked = ",".join("?" if (size := _size(d)) is None else str(size) for d in tensor.shape.dim)
            unknown.append(f"dimension {names} of {name} (--shape {name}={asked})")
    if unknown:
        raise ModelError(f"{file}: found dynamic shapes: {'; '.join(unknown)}; expected a number for each")


def _set_shape(file: str, value: onnx.ValueInfoProto, shape: Shape, symbols: dict[str, tuple[int, str]]) -> None:
    tensor = value.type.tensor_type
    where = f"{file}: --shape {value.name}={','.join(map(str, shape))}"
    if tensor.HasField("shape") and len(tensor.shape.dim) != len(shape):
        raise ModelError(f"{where}: found {len(shape)} dimensions, expected {len(tensor.shape.dim)}")
    if any(size < 1 for size in shape):
        raise ModelError(f"{where}: found a dimension of size {min(shape)}, expected at least 1")
    if not tensor.HasField("shape"):
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in shape)
    for n, (dim, size) in enumerate(zip(tensor.shape.dim, shape, strict=True)):
        known = _size(dim)
        if known is not None and known != size:
            raise ModelError(f"{where}: found {size} for dimension {n}, expected {known}, which the model fixes")
        symbol = dim.dim_param
        if symbol.isidentifier() and symbols.setdefault(symbol, (size, value.name))[0] != size:
            other, first = symbols[symbol]
            raise ModelError(f"{where}: found {size} for dimension {n} ({symbol}), expected {other} as in {first}")
        dim.dim_value = size


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    """Return the size of a dimension, None if it is dynamic (exporters also write -1)."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


_MISJUDGED = ("GroupNormalization", "MeanVarianceNormalization")
"""Operators whose shape ONNX's inference misses or, from operator set 13 on, rejects; the result has the shape of the
first input."""


def replace_misjudged_nodes(proto: onnx.ModelProto) -> None:
    """Replace nodes of *proto* that ONNX's inference misjudges by identities, for shape inference and checks only."""
    for node in proto.graph.node:
        if node.op_type in _MISJUDGED and node.domain in ("", "ai.onnx"):
            node.op_type = "Identity"
            del node.attribute[:], node.input[1:]


def infer_static_shapes(file: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return *proto* with inferred shapes; raise ModelError for contradictory shapes."""
    bare = copy_message(proto)
    del bare.graph.value_info[:]
    _open_outputs(bare.graph)
    strict = all(node.domain in ("", "ai.onnx") for node in bare.graph.node)
    replace_misjudged_nodes(bare)
    message = ""
    # Data propagation rejects some valid shapes, and materialises all numbers of a Range.
    ranges = any(node.op_type == "Range" for node in bare.graph.node)
    for data_prop in (False,) if ranges else (True, False):
        try:
            shaped = shape_inference.infer_shapes(bare, check_type=strict, strict_mode=strict, data_prop=data_prop)
            replace_contents(shaped.graph.node, proto.graph.node)
            return shaped if strict else _infer_by_runtime(shaped)
        except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
            message = str(error)
    raise ModelError(f"{file}: found shapes that do not fit: {_describe_inference_error(proto, message)}")


def _infer_by_runtime(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return *proto* with the shapes that ONNX Runtime infers, which supports non-standard operators."""
    values = graph_values(proto.graph)
    unknown = [name for node in proto.graph.node for name in node.output if name and values[name].shape is None]
    if not unknown or proto.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        return proto
    shown = copy_message(proto)
    have = {v.name for v in proto.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in unknown if name not in have)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # ONNX Runtime's exceptions share no base; running the model will report the failure
        return proto
    for found in session.get_outputs():
        # An unknown rank is reported like the rank of a scalar.
        static = bool(found.shape) and all(isinstance(size, int) and size >= 0 for size in found.shape)
        if found.name in unknown and static and found.type in _TENSORS:
            info = helper.make_tensor_value_info(found.name, _TENSORS[found.type], found.shape)
            _set_value_info(proto.graph, info)
    return proto


def _set_value_info(graph: onnx.GraphProto, info: onnx.ValueInfoProto) -> None:
    """Set the type information of a value of *graph* to *info*."""
    known = next((v for v in (*graph.output, *graph.value_info) if v.name == info.name), None)
    (known or graph.value_info.add()).CopyFrom(info)


_TENSORS: Mapping[str, int] = MappingProxyType(
    {
        "tensor(float)": onnx.TensorProto.FLOAT,
        "tensor(double)": onnx.TensorProto.DOUBLE,
        "tensor(float16)": onnx.TensorProto.FLOAT16,
        "tensor(int64)": onnx.TensorProto.INT64,
        "tensor(int32)": onnx.TensorProto.INT32,
        "tensor(bool)": onnx.TensorProto.BOOL,
    }
)
"""ONNX Runtime's names of the supported element types."""


def _open_outputs(graph: onnx.GraphProto) -> None:
    """Drop the declared shapes of outputs, except of outputs that are also inputs or weights.

    ONNX's inference trusts the declaration of an output, and without one it would not infer the readers of the input.
    """
    types = {v.name: v.type for v in graph.input}
    for weight in graph.initializer:
        types[weight.name] = helper.make_tensor_type_proto(weight.data_type, list(weight.dims))
    for value in graph.output:
        if value.name in types:
            value.type.CopyFrom(types[value.name])
        else:
            value.type.tensor_type.ClearField("shape")


def _describe_inference_error(proto: onnx.ModelProto, message: str) -> str:
    # ONNX writes "(op_type:Conv, node name: c1): [ShapeInferenceError] …", one line a node.
    line = next((line for line in message.splitlines() if "op_type:" in line or "Error]" in line), message)
    message = line.rsplit("Error]", 1)[-1].strip(" :.") or line
    for node in list_nodes(proto.graph):
        if node.proto.name and f"node name: {node.proto.name})" in line:
            return f"{node}: {message}"
    return line.strip()


def graph_values(graph: onnx.GraphProto) -> dict[str, ModelValue]:
    """Return every value of *graph* with its shape and dtype, as far as they are known."""
    out = {name: ModelValue(name, None, None) for node in graph.node for name in node.output if name}
    for info in (*graph.value_info, *graph.output, *graph.input):
        out[info.name] = _value(info)
    for weight in graph.initializer:
        out[weight.name] = ModelValue(weight.name, tuple(weight.dims), _dtype(weight.data_type))
    return out


def _value(info: onnx.ValueInfoProto) -> ModelValue:
    if not info.type.HasField("tensor_type"):
        return ModelValue(info.name, None, None)
    tensor = info.type.tensor_type
    sizes = [_size(d) for d in tensor.shape.dim] if tensor.HasField("shape") else [None]
    shape = tuple(s for s in sizes if s is not None)
    return ModelValue(info.name, shape if len(shape) == len(sizes) else None, _dtype(tensor.elem_type))


def _dtype(code: int) -> np.dtype | None:
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except KeyError:
        return None


_MAX_SHAPE_ELEMENTS = 4096
"""Larger integer results are data, not shape computations."""

_MAX_ARRAY_ELEMENTS = 1 << 60
"""Limit of NumPy arrays, broadcast ones included."""

_FROM_SIZES = ("ConstantOfShape", "EyeLike", "OneHot", "Range")
"""Operators that may compute floating-point numbers from sizes alone: initial states, positions."""


MAX_FOLDED_BYTES = 1 << 30
"""Limit of a model's weights with the folded ones: a protocol buffer is smaller than 2 GiB, and inference copies it."""

_NOT_FOLDED = ("Bernoulli", "DequantizeLinear", "Dropout", "Multinomial", "QuantizeLinear", "Random")
"""Name prefixes of random operators, and of operators by which ONNX Runtime recognises integer kernels."""

_Foldable: TypeAlias = "Callable[[ModelNode, Sequence[ModelValue]], bool]"


def fold_shape_computations(file: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infer shapes, and fold small integer or boolean results, as of ``Shape → Gather → Concat`` chains."""
    return _fold(file, proto, _computes_shape)[0]


def fold_constants(file: str, proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[onnx.NodeProto, ...]]:
    """Fold every node of *proto* that depends on weights only; return the model and the removed nodes.

    Nodes that draw random numbers, quantise, compute a graph output or an infinity, or exceed ``MAX_FOLDED_BYTES`` are
    not folded.
    """
    free = MAX_FOLDED_BYTES - sum(_nbytes(w) for w in proto.graph.initializer)

    def fits(node: ModelNode, results: Sequence[ModelValue]) -> bool:
        nonlocal free
        needed = sum(prod(v.shape or ()) * v.dtype.itemsize for v in results if v.dtype is not None)
        if not 0 < needed <= free or any(v.dtype is None or v.dtype.kind not in "iubf" for v in results):
            return _computes_shape(node, results)
        free -= needed
        return True

    folded, gone = _fold(file, proto, fits)
    read = {name for node in list_nodes(folded.graph) for name in node.reads}
    made = {name for node in gone for name in node.output}
    weights = folded.graph.initializer
    replace_contents(weights, [w for w in weights if w.name in read or w.name not in made])
    return folded, gone


def restore_folded_nodes(model: Model) -> onnx.ModelProto:
    """Return a copy of the model for a file, with the nodes of every folded weight that is larger than their inputs.

    The caller drops nodes that no output needs.
    """
    out = copy_message(model.proto)
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
    replace_contents(graph.initializer, [w for w in graph.initializer if w.name not in made])
    replace_contents(graph.node, [*(model.folded[n] for n in sorted(restored)), *graph.node])
    return out


def _fold(file: str, proto: onnx.ModelProto, foldable: _Foldable) -> tuple[onnx.ModelProto, tuple[onnx.NodeProto, ...]]:
    proto = infer_static_shapes(file, proto)
    gone: list[onnx.NodeProto] = []
    while found := _fold_once(proto, foldable):
        gone += found
        proto = infer_static_shapes(file, proto)
    return proto, tuple(gone)


def _fold_once(proto: onnx.ModelProto, foldable: _Foldable) -> list[onnx.NodeProto]:
    """Fold every node whose inputs are known; return the removed nodes."""
    graph = proto.graph
    values = graph_values(graph)
    known = {w.name: w for w in graph.initializer}
    outputs = {v.name for v in graph.output}
    kept, gone = [], []
    for node in list_nodes(graph):
        results = None if outputs & {*node.results} else _results(node, values, known, proto, foldable)
        if results is None:
            kept.append(node.proto)
            continue
        gone.append(copy_message(node.proto))
        for name, array in zip(node.results, results, strict=True):
            known[name] = numpy_helper.from_array(array, name)
            graph.initializer.append(known[name])
    if gone:
        replace_contents(graph.node, kept)
    return gone


def _computes_shape(node: ModelNode, results: Sequence[ModelValue]) -> bool:
    kinds = "iubf" if node.op in _FROM_SIZES else "iub"
    return (
        all(v.dtype is not None and v.dtype.kind in kinds for v in results)
        and sum(prod(v.shape or ()) for v in results) <= _MAX_SHAPE_ELEMENTS
    )


def _results(
    node: ModelNode,
    values: Mapping[str, ModelValue],
    known: Mapping[str, onnx.TensorProto],
    proto: onnx.ModelProto,
    foldable: _Foldable,
) -> list[Array] | None:
    """Return the results of *node*, None if an input is unknown or the node must not be folded."""
    made = [v for name in node.results if (v := values.get(name)) is not None and v.shape is not None]
    if node.domain or node.captured or len(made) < len(node.results):
        return None
    if any(a.HasField("g") or a.graphs for a in node.proto.attribute):  # subgraphs may take unbounded time and memory
        return None
    if node.op in ("Shape", "Size"):
        source = values.get(node.inputs[0])
        if source is None or source.shape is None or prod(source.shape) > _MAX_ARRAY_ELEMENTS:
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
        return _evaluate_by_reference(single, feed)
    found = _evaluate_by_runtime(single, feed)
    return found if found is not None and all(np.isfinite(a).all() for a in found) else None


def _evaluate_by_reference(single: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array] | None:
    try:
        return [np.asarray(a) for a in ReferenceEvaluator(single).run(None, dict(feed))]
    except Exception:  # the evaluator may raise anything; the node is not folded
        return None


def _evaluate_by_runtime(single: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array] | None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(single.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(a) for a in session.run(None, dict(feed))]
    except Exception:  # ONNX Runtime's exceptions share no base; the node is not folded
        return None


def _nbytes(weight: onnx.TensorProto) -> int:
    """Return the bytes of *weight* as raw data."""
    return int(prod(weight.dims) * helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize)
