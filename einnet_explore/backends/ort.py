"""Library operators as ONNX Runtime sessions of one node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.operators import OnnxNode

Array = npt.NDArray[Any]

OPSET, IR_VERSION = 21, 10


def bind(
    node: OnnxNode, operands: Sequence[Array], out: Array, threads: int = 1, constant: Collection[int] = ()
) -> Callable[[], object]:
    """A call that runs *node* on *operands* (canonical shapes, any strides) and writes *out*, which is packed.

    Operands numbered in *constant* never change: ONNX Runtime packs them once.
    """
    fixed = {
        p: np.ascontiguousarray(_turned(operands[p].reshape(node.shapes[p]), node.permutations[p])) for p in constant
    }
    made = session(_model(node, fixed), threads) if fixed else _node_session(node, threads)
    binding = made.io_binding()
    gathered: list[tuple[Array, Array]] = []
    for p, (array, shape) in enumerate(zip(operands, node.shapes, strict=True)):
        if p in fixed:
            continue
        packed = array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
        if packed is not array:
            gathered.append((packed, array))
        binding.bind_input(f"x{p}", "cpu", 0, np.float32, list(shape), packed.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, list(node.output), out.ctypes.data)
    held = (*operands, *(packed for packed, _ in gathered), out)  # the binding knows addresses only

    def call(held: tuple[Array, ...] = held) -> None:
        del held
        for packed, array in gathered:
            np.copyto(packed, array)
        made.run_with_iobinding(binding)

    return call


@cache
def _node_session(node: OnnxNode, threads: int) -> onnxruntime.InferenceSession:
    return session(_model(node, {}), threads)


def _model(node: OnnxNode, fixed: Mapping[int, Array]) -> onnx.ModelProto:
    inputs, nodes, names = [], [], []
    for p, (shape, order) in enumerate(zip(node.shapes, node.permutations, strict=True)):
        name = f"x{p}"
        if p not in fixed:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
            if order:
                nodes.append(helper.make_node("Transpose", [name], [f"t{p}"], perm=list(order)))
                name = f"t{p}"
        names.append(name)
    attributes: dict[str, Any] = dict(node.attributes)
    nodes.append(helper.make_node(node.op_type, names, ["y"], **attributes))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(node.output))
    weights = [numpy_helper.from_array(array, f"x{p}") for p, array in fixed.items()]
    graph = helper.make_graph(nodes, node.op_type, inputs, [output], initializer=weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _turned(array: Array, order: tuple[int, ...] | None) -> Array:
    return array.transpose(order) if order else array


def session(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    """*model* in ONNX Runtime with *threads* threads; spinning is off, so that other engines may share the cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
