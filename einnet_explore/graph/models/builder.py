"""Writing an ONNX graph layer by layer, with weights that are the same every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET, IR = 21, 10
"""What every runtime at hand reads."""


@dataclass(frozen=True, slots=True)
class EvaluationModel:
    """A model that the evaluation names: *write* makes it at a batch size."""

    name: str
    title: str
    write: Callable[[int], onnx.ModelProto]


@dataclass(slots=True)
class Builder:
    """A graph in the making.  Every layer takes value names and returns the name of its result."""

    name: str
    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.Generator(np.random.PCG64(self.seed))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """One node of operator *op*; its name and its result's are ``Op_number``."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def weight(self, word: str, values: np.ndarray[Any, Any]) -> str:
        """A float32 initialiser."""
        name = f"{word}_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def normal(self, word: str, *shape: int, fan: int) -> str:
        """Gaussian weights of variance 2/*fan*: a ReLU network keeps its activations' scale (He et al. 2015)."""
        return self.weight(word, self.random.standard_normal(shape, np.float32) * np.float32(sqrt(2 / fan)))

    def conv(self, x: str, c: int, f: int, kernel: int, stride: int = 1, padding: int = 0) -> str:
        """A square convolution without bias."""
        k = self.normal("conv_weight", f, c, kernel, kernel, fan=c * kernel * kernel)
        return self.node("Conv", x, k, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)

    def conv_transpose(self, x: str, c: int, f: int, kernel: int, stride: int = 1, padding: int = 0) -> str:
        """A square transposed convolution without bias; a result sums over c·(kernel/stride)² products."""
        k = self.normal("deconv_weight", c, f, kernel, kernel, fan=max(1, c * (kernel // stride) ** 2))
        return self.node("ConvTranspose", x, k, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)

    def batch_norm(self, x: str, c: int) -> str:
        """Batch normalisation as a trained network has it: statistics near (0, 1), scales near 1."""
        draw = self.random.uniform
        scale, shift = draw(0.8, 1.2, c), draw(-0.1, 0.1, c)
        mean, variance = draw(-0.1, 0.1, c), draw(0.8, 1.2, c)
        values = {"scale": scale, "bias": shift, "mean": mean, "var": variance}
        named = (self.weight(f"bn_{word}", v) for word, v in values.items())
        return self.node("BatchNormalization", x, *named, epsilon=1e-5)

    def linear(self, x: str, c: int, f: int) -> str:
        """x·Wᵀ + b."""
        w = self.normal("fc_weight", f, c, fan=2 * c)
        return self.node("Gemm", x, w, self.weight("fc_bias", self.random.uniform(-0.1, 0.1, f)), transB=1)

    def model(self, inputs: dict[str, tuple[int, ...]], output: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        """The finished model, checked and with all shapes; *output* is renamed to ``output``."""
        self.nodes[-1].output[0] = "output"
        if prod(shape) < 1 or output != self.nodes[-1].name:
            raise ValueError(f"output {output} of shape {shape}: expected the last node's, not empty")
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, shape)],
            self.weights,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="einnet-explore"
        )
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
