"""Models that store numbers in 16 bits, computed in float32.

Every float16 or bfloat16 value becomes a float32 one of the same elements, so no intermediate result is rounded to 16
bits, or overflows in them.  Expressions and kernels then apply as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.onnx_import.model import copy_message, replace_contents, walk_graphs

NARROW: Mapping[int, str] = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
"""Types of 16 bits by their code."""

_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "softmax_precision")
"""Attributes of standard operators that name an element type."""

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Operators of other domains may not be defined for float32."""

_BIT_OPERATORS = ("BitCast",)
"""Operators whose results depend on how numbers are stored."""


def narrow_types(proto: onnx.ModelProto) -> frozenset[str]:
    """Return the names of the 16-bit types that the weights, inputs, outputs and nodes of *proto* have."""
    graphs = list(walk_graphs(proto.graph))
    values = (v.type.tensor_type.elem_type for graph in graphs for v in (*graph.input, *graph.output))
    weights = (tensor.data_type for graph in graphs for tensor in _tensors(graph))
    named = (attribute.i for graph in graphs for attribute in _type_attributes(graph))
    return frozenset(NARROW[code] for codes in (values, weights, named) for code in codes if code in NARROW)


def widen(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return *proto* with its 16-bit types as float32.

    Inputs and outputs of float16 stay and are converted in the model; those of bfloat16 become float32, since ONNX
    Runtime takes no arrays of it, and outputs are rounded to it.  A model that is converted at its border only, that
    has operators that may not be defined for float32, or that would exceed the size of a file is returned as it is.
    """
    if not _has_wide_form(proto) or _is_wide(proto):
        return proto
    out = copy_message(proto)
    for graph in walk_graphs(out.graph):
        for value in (*graph.value_info, *(() if graph is out.graph else (*graph.input, *graph.output))):
            _widen_type(value)
        for tensor in _tensors(graph):
            if tensor.data_type in NARROW:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
        for attribute in _type_attributes(graph):
            attribute.i = TensorProto.FLOAT
    _convert_inputs(out.graph)
    _convert_outputs(out.graph)
    return out


def _has_wide_form(proto: onnx.ModelProto) -> bool:
    graphs = list(walk_graphs(proto.graph))
    nodes = [node for graph in graphs for node in graph.node]
    size = proto.ByteSize() + sum(len(t.raw_data) for t in proto.graph.initializer if t.data_type in NARROW)
    return (
        all(node.domain in _DOMAINS and node.op_type not in _BIT_OPERATORS for node in nodes)
        and not any(sparse.values.data_type in NARROW for graph in graphs for sparse in graph.sparse_initializer)
        and size <= onnx.checker.MAXIMUM_PROTOBUF
    )


def _is_wide(proto: onnx.ModelProto) -> bool:
    """Return whether numbers are narrow only between conversions of inputs, of outputs, and back and forth."""
    graphs = list(walk_graphs(proto.graph))
    if any(t.data_type in NARROW for graph in graphs for t in _tensors(graph)):
        return False
    inner = (value for graph in graphs[1:] for value in (*graph.input, *graph.output))
    if any(value.type.tensor_type.elem_type in NARROW for value in inner):
        return False
    narrow = {v.name for v in proto.graph.input if v.type.tensor_type.elem_type in NARROW}
    narrow |= {node.output[0] for graph in graphs for node in graph.node for _ in _narrow_attributes(node)}
    widening = [node for graph in graphs for node in graph.node if not narrow.isdisjoint(node.input)]
    makers = [node for graph in graphs for node in graph.node if not narrow.isdisjoint(node.output)]
    return all(node.op_type == "Cast" for node in makers) and all(
        node.op_type == "Cast" and not any(True for _ in _narrow_attributes(node)) for node in widening
    )


def _type_attributes(graph: onnx.GraphProto) -> Iterable[onnx.AttributeProto]:
    for node in graph.node:
        yield from _narrow_attributes(node)


def _narrow_attributes(node: onnx.NodeProto) -> Iterable[onnx.AttributeProto]:
    """Yield the attributes of *node* that name a 16-bit type."""
    return (a for a in node.attribute if a.name in _TYPE_ATTRIBUTES and a.i in NARROW)


def _tensors(graph: onnx.GraphProto) -> Iterable[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (*((attribute.t,) if attribute.HasField("t") else ()), *attribute.tensors)


def _widen_type(value: onnx.ValueInfoProto) -> None:
    if value.type.tensor_type.elem_type in NARROW:
        value.type.tensor_type.elem_type = TensorProto.FLOAT


def _convert_inputs(graph: onnx.GraphProto) -> None:
    """Convert inputs of float16, and declare those of bfloat16 as float32."""
    weights = {tensor.name for tensor in graph.initializer}
    casts = list[onnx.NodeProto]()
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16 and value.name not in weights:
            wide = _rename_reads(graph, value.name)
            casts.append(helper.make_node("Cast", [value.name], [wide], f"{wide}/cast", to=TensorProto.FLOAT))
        else:
            _widen_type(value)
    replace_contents(graph.node, [*casts, *graph.node])


def _convert_outputs(graph: onnx.GraphProto) -> None:
    """Convert outputs to float16, and round those of bfloat16, which are declared as float32."""
    made = {name: (node, n) for node in graph.node for n, name in enumerate(node.output)}
    given = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    for value in graph.output:
        kind = value.type.tensor_type.elem_type
        if kind not in NARROW:
            continue
        if value.name not in made:  # an input or a weight
            value.type.tensor_type.elem_type = given.get(value.name, TensorProto.FLOAT)
            continue
        wide = _rename_reads(graph, value.name)
        node, n = made[value.name]
        node.output[n] = wide
        narrow = value.name if kind == TensorProto.FLOAT16 else f"{wide}/rounded"
        graph.node.append(helper.make_node("Cast", [wide], [narrow], f"{wide}/cast", to=kind))
        if narrow != value.name:
            graph.node.append(helper.make_node("Cast", [narrow], [value.name], f"{narrow}/cast", to=TensorProto.FLOAT))
            _widen_type(value)


def _rename_reads(graph: onnx.GraphProto, name: str) -> str:
    """Return a new name, which nodes read in place of *name*, those of subgraphs included."""
    inner = list(walk_graphs(graph))
    taken = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    taken |= {value for each in inner for node in each.node for value in (*node.input, *node.output)}
    wide = f"{name}/float32"
    while wide in taken:
        wide += "_"
    for each in inner:
        for node in each.node:
            for n, read in enumerate(node.input):
                if read == name:
                    node.input[n] = wide
        for value in each.output if each is not graph else ():
            if value.name == name:
                value.name = wide
    return wide
