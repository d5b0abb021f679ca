"""Static shapes of models: shapes of dynamic inputs, and shape inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import prod
from types import MappingProxyType

import numpy as np
import onnx
import onnxruntime
from onnx import helper, shape_inference

from einnet_explore.onnx_import.model import (
    ONNX_DOMAINS,
    Declared,
    ModelError,
    ModelValue,
    Shape,
    copy_message,
    list_nodes,
    replace_contents,
)
from einnet_explore.runtime.arrays import Arrays
from einnet_explore.runtime.onnx_fragment import ONNXRUNTIME_ERRORS
from einnet_explore.runtime.onnx_weights import NO_WEIGHTS, is_declared, open_lent


def set_input_shapes(file: str, graph: onnx.GraphProto, shapes: Mapping[str, Shape]) -> dict[str, Declared]:
    """Set *shapes* of inputs of *graph*, and return the declared dimensions of the inputs that have dynamic ones.

    Inputs that share a named dimension need its size only once.  Raises ModelError for an unknown name, another rank, a
    different static dimension, a size below 1, and a dimension that remains dynamic.
    """
    inputs, declared = _inputs(graph), declared_dimensions(graph)
    symbols: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise ModelError(f"{file}: shape {name}: found no such input, expected one of {', '.join(inputs)}")
        _set_shape(file, inputs[name], tuple(shape), symbols)
    unknown = []
    for name, value in inputs.items():
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            unknown.append(f"all dimensions of {name} ({_spellings(name, '…')})")
            continue
        for dim in tensor.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param][0]
        if open_ := [n for n, d in enumerate(tensor.shape.dim) if _size(d) is None]:
            names = " and ".join(f"{n} ({tensor.shape.dim[n].dim_param or 'unnamed'})" for n in open_)
            asked = ",".join("?" if (size := _size(d)) is None else str(size) for d in tensor.shape.dim)
            unknown.append(f"dimension {names} of {name} ({_spellings(name, asked)})")
    if unknown:
        raise ModelError(
            f"{file}: found dynamic shapes: {'; '.join(unknown)}; expected a size for each (optimize also takes "
            "ranges, such as 1..8; equal has --all-sizes)"
        )
    ranks = {name: len(value.type.tensor_type.shape.dim) for name, value in inputs.items()}
    dims = {name: found if found is not None else (None,) * ranks[name] for name, found in declared.items()}
    return {name: found for name, found in dims.items() if not all(isinstance(d, int) for d in found)}


def _inputs(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the inputs of *graph* that are tensors and no weights, by name."""
    weights = {w.name for w in graph.initializer}
    return {v.name: v for v in graph.input if v.name not in weights and v.type.HasField("tensor_type")}


def declared_dimensions(graph: onnx.GraphProto) -> dict[str, Declared | None]:
    """Return the declared dimensions of each input of *graph*, None where not even their number is declared."""
    return {name: _declared(value) for name, value in _inputs(graph).items()}


def _declared(value: onnx.ValueInfoProto) -> Declared | None:
    """Return the declared dimensions of an input, None if it does not even declare how many there are."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_param or None if (size := _size(d)) is None else size for d in tensor.shape.dim)


def _spellings(name: str, sizes: str) -> str:
    """Return how the sizes of an input are given in Python and on the command line."""
    return f"--shape {name}={sizes} or shapes={{{name!r}: ({sizes.replace(',', ', ')})}}"


def _set_shape(file: str, value: onnx.ValueInfoProto, shape: Shape, symbols: dict[str, tuple[int, str]]) -> None:
    tensor = value.type.tensor_type
    where = f"{file}: shape {value.name}={','.join(map(str, shape))}"
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
    """Replace nodes of *proto* that ONNX's inference misjudges by others, for shape inference and checks only."""
    for node in proto.graph.node:
        if node.domain not in ONNX_DOMAINS:
            continue
        if node.op_type in _MISJUDGED:
            node.op_type = "Identity"
            del node.attribute[:], node.input[1:]
        elif node.op_type == "STFT" and not any(a.name == "onesided" for a in node.attribute):
            node.attribute.append(helper.make_attribute("onesided", 1))  # inference takes the default for 0


def infer_static_shapes(file: str, proto: onnx.ModelProto, arrays: Arrays = NO_WEIGHTS) -> onnx.ModelProto:
    """Return *proto*, which declares the weights *arrays*, with inferred shapes.

    Raises ModelError for contradictory shapes.
    """
    bare = _without_large_weights(proto)
    _open_outputs(bare.graph)
    strict = all(node.domain in ONNX_DOMAINS for node in bare.graph.node)
    replace_misjudged_nodes(bare)
    message = ""
    # Data propagation rejects some valid shapes, and materialises all numbers of a Range.
    ranges = any(node.op_type == "Range" for node in bare.graph.node)
    for data_prop in (False,) if ranges else (True, False):
        try:
            shaped = shape_inference.infer_shapes(bare, check_type=strict, strict_mode=strict, data_prop=data_prop)
            whole = copy_message(proto)
            replace_contents(whole.graph.value_info, shaped.graph.value_info)
            replace_contents(whole.graph.output, shaped.graph.output)
            return whole if strict else _infer_by_runtime(whole, arrays)
        except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
            message = str(error)
    raise ModelError(f"{file}: found shapes that do not fit: {_describe_inference_error(proto, message, bare)}")


MAX_KNOWN_ELEMENTS = 1024
"""Elements of real weights up to which shape inference sees them: sizes and scales are short."""


def _without_large_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of *proto* without shapes of values and without the elements of large real weights.

    ONNX's inference writes and reads the whole model.
    """
    bare = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = bare.graph
    graph.name = proto.graph.name
    for mine, theirs in (
        (graph.node, proto.graph.node), (graph.input, proto.graph.input), (graph.output, proto.graph.output),
        (graph.sparse_initializer, proto.graph.sparse_initializer),
    ):  # fmt: skip
        mine.extend(theirs)
    for weight in proto.graph.initializer:
        if is_declared(weight) or (weight.data_type in _REAL and prod(weight.dims) > MAX_KNOWN_ELEMENTS):
            graph.initializer.add(name=weight.name, data_type=weight.data_type, dims=weight.dims)
        else:
            graph.initializer.append(weight)
    return bare


_REAL = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def _infer_by_runtime(proto: onnx.ModelProto, arrays: Arrays) -> onnx.ModelProto:
    """Return *proto*, which declares *arrays*, with the shapes of ONNX Runtime, which has non-standard operators."""
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
        session = open_lent(shown, options, arrays)
    except ONNXRUNTIME_ERRORS:  # running the model will report the failure
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


def _describe_inference_error(proto: onnx.ModelProto, message: str, bare: onnx.ModelProto) -> str:
    # ONNX writes "(op_type:Conv, node name: c1): [ShapeInferenceError] …", one line a node.
    line = next((line for line in message.splitlines() if "op_type:" in line or "Error]" in line), message)
    message = line.rsplit("Error]", 1)[-1].strip(" :.") or line
    for node in list_nodes(proto.graph):
        if node.proto.name and f"node name: {node.proto.name})" in line:
            return f"{node}: {message}{_describe_inputs(bare, node.inputs)}"
    return line.strip()


def _describe_inputs(proto: onnx.ModelProto, names: Iterable[str]) -> str:
    """Return the known shapes of the values *names*, after a semicolon; empty if no shape is known."""
    with suppress(shape_inference.InferenceError, RuntimeError, ValueError):
        proto = shape_inference.infer_shapes(proto)
    values = graph_values(proto.graph)
    known = [f"{name} {list(values[name].shape or ())}" for name in names if name in values and values[name].shape]
    return f"; its inputs are {', '.join(known)}" if known else ""


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
