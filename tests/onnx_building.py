"""Small ONNX models for tests, and their results in ONNX Runtime."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.ir import Program
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.model import Model
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble

Dims = Sequence[int | str | None]


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Dims],
    outputs: Sequence[str],
    weights: Mapping[str, Any] | None = None,
    opset: int = 21,
    ir: int = 10,
) -> onnx.ModelProto:
    """A float32 model; a ``str`` dimension is symbolic."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(d)) for n, d in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name or f"{op.lower()}_{outputs[0]}", **attributes)


def whole(model: Model) -> Program:
    """All nodes of *model* as one program."""
    equations = []
    for item in model.nodes:
        found = express(item, model)
        assert not isinstance(found, NotUnderstood), (str(item), found)
        equations += found
    return assemble(equations, tuple(model.identifiers[v.name] for v in model.outputs))


def run(proto: onnx.ModelProto, feed: Mapping[str, Any], every: bool = False) -> dict[str, Any]:
    """Return the results of ONNX Runtime without optimisations: *every* value, or the outputs."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    if every:
        have = {v.name for v in shown.graph.output}
        names = [name for item in shown.graph.node for name in item.output if name and name not in have]
        shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def integers(rng: np.random.Generator, *shape: int) -> Any:
    """Small integers as float32: sums of their products are exact."""
    return rng.integers(-4, 5, shape).astype(np.float32)
