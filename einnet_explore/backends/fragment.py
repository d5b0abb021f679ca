"""Programs as pieces of ONNX graphs in which kernels are nodes too (``hosted``): what one session runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.backends import hosted
from einnet_explore.backends.measure import SPIN

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

OPSET, IR_VERSION = 21, 10


@dataclass
class Writer:
    """What has been written: *nodes* in order and the *weights* that they read, by value name.

    *names* gives the values of tensors that others know; all other values begin with *prefix*.  Tensors in *constants*
    become weights where they are read.
    """

    names: Mapping[str, str]
    shapes: Mapping[str, Shape]
    constants: Mapping[str, Array]
    prefix: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._new = count()

    def value(self, tensor: str) -> str:
        """The value of *tensor* in its own shape."""
        return self.shaped(tensor, self.shapes[tensor])

    def shaped(self, tensor: str, shape: Shape) -> str:
        """The value of *tensor* seen in *shape*, which has as many elements."""
        name = self.names.get(tensor, f"{self.prefix}{tensor}")
        if tensor in self.constants:
            seen = f"{self.prefix}{tensor} {'x'.join(map(str, shape))}"
            self.weights[seen] = np.ascontiguousarray(self.constants[tensor]).reshape(shape)
            return seen
        return name if shape == self.shapes[tensor] else self.reshape(name, shape)

    def add(self, op: str, values: Sequence[str], makes: str | None = None, **attributes: Any) -> str:
        """A node of *op* on *values*; it makes the tensor *makes*, or a value of its own whose name is returned."""
        target = self.made(makes)
        self.nodes.append(helper.make_node(op, list(values), [target], **attributes))
        return target

    def put(self, node: onnx.NodeProto | None) -> bool:
        """Add *node*; False where there is none."""
        if node is not None:
            self.nodes.append(node)
        return node is not None

    def weight(self, tensor: str, array: Array) -> str:
        """The value of *array*, which is made of *tensor*."""
        seen = f"{self.prefix}{tensor} {'x'.join(map(str, array.shape))} {next(self._new)}"
        self.weights[seen] = array
        return seen

    def reshape(self, value: str, shape: Shape, makes: str | None = None) -> str:
        """*value* in *shape*: free in ONNX Runtime."""
        sizes = f"{self.prefix}shape {'x'.join(map(str, shape))}"
        self.weights[sizes] = np.array(shape, np.int64)
        # Else 0 means the size that is there; operator sets before 14 do not have the attribute.
        zero = {"allowzero": 1} if 0 in shape else {}
        return self.add("Reshape", [value, sizes], makes, **zero)

    def made(self, tensor: str | None) -> str:
        """The value that a node makes for *tensor*: a new one for None."""
        if tensor is None:
            return f"{self.prefix}{next(self._new)}"
        return self.names.get(tensor, f"{self.prefix}{tensor}")

    def model(self, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
        """What has been written as a model that reads and gives these tensors."""

        def infos(tensors: Sequence[str]) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(self.made(t), TensorProto.FLOAT, list(self.shapes[t])) for t in tensors
            ]

        graph = helper.make_graph(
            self.nodes, "program", infos(inputs), infos(outputs), [tensor_of(n, a) for n, a in self.weights.items()]
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET), *imports(self.nodes)], ir_version=IR_VERSION
        )


def tensor_of(name: str, array: Array) -> onnx.TensorProto:
    """*array* as a weight."""
    return numpy_helper.from_array(array, name)


def imports(nodes: Iterable[onnx.NodeProto]) -> list[onnx.OperatorSetIdProto]:
    """What a model of *nodes* has to import besides ONNX's operators."""
    return [helper.make_opsetid(hosted.DOMAIN, 1)] if any(node.domain == hosted.DOMAIN for node in nodes) else []


def session_options(threads: int, spinning: bool, kernels: bool) -> onnxruntime.SessionOptions:
    """The options of a session with *threads* threads, which wait in loops if *spinning*, and *kernels* in its graph.

    Threads that wait in a loop take the cores from whatever else runs on the machine between two calls, by default for
    32 ms: here for ``measure.SPIN``, which is longer than what lies between two nodes that use them.
    """
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = threads
    made.inter_op_num_threads = 1
    made.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    made.log_severity_level = 4  # what fails raises with the same words
    if not spinning:
        made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made.add_session_config_entry("session.intra_op.spin_duration_us", str(int(SPIN * 1e6)))
    if kernels:
        hosted.register(made)
    return made


def session(model: onnx.ModelProto, threads: int, spinning: bool = True) -> onnxruntime.InferenceSession:
    """*model*, which may hold kernels, in ONNX Runtime."""
    options = session_options(threads, spinning, bool(imports(model.graph.node)))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
