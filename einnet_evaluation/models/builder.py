"""Writing an ONNX graph layer by layer, with weights that are the same every time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

Pair: TypeAlias = "int | tuple[int, int]"

OPSET, IR = 21, 10
"""What every runtime at hand reads."""

HE, XAVIER = 2.0, 1.0
"""A weight's variance times its fan-in: the first keeps the scale of what a ReLU follows (He et al. 2015), the second
of what is not followed by one (Glorot and Bengio 2010)."""


@dataclass(frozen=True, slots=True)
class EvaluationModel:
    """A model that the evaluation names: *write* makes it at a batch size and a *size*.

    *size* is the published one and *counts* says of what (empty: the model has no other); others are multiples of
    *step*.
    """

    name: str
    title: str
    write: Callable[[int, int], onnx.ModelProto]
    size: int = 1
    counts: str = ""
    step: int = 1


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

    def normal(self, word: str, *shape: int, fan: int, gain: float = HE) -> str:
        """Gaussian weights of variance *gain*/*fan*."""
        return self.weight(word, self.random.standard_normal(shape, np.float32) * np.float32(sqrt(gain / fan)))

    def bias(self, word: str, f: int) -> str:
        """Small uniform numbers."""
        return self.weight(word, self.random.uniform(-0.1, 0.1, f))

    def conv(
        self,
        x: str,
        c: int,
        f: int,
        kernel: Pair,
        stride: int = 1,
        padding: Pair = 0,
        dilation: int = 1,
        gain: float = HE,
        bias: bool = False,
    ) -> str:
        """A convolution; a pair is (down, across)."""
        k, p = _pair(kernel), _pair(padding)
        reads = [x, self.normal("conv_weight", f, c, *k, fan=c * prod(k), gain=gain)]
        if bias:
            reads.append(self.bias("conv_bias", f))
        more = {"dilations": [dilation] * 2} if dilation > 1 else {}
        return self.node("Conv", *reads, kernel_shape=[*k], strides=[stride] * 2, pads=[*p, *p], **more)

    def conv_transpose(
        self,
        x: str,
        c: int,
        f: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        extra: int = 0,
        gain: float = HE,
        bias: bool = False,
    ) -> str:
        """A square transposed convolution; a result sums over about c·(kernel/stride)² products.

        *extra* rows and columns more are made at the end.
        """
        fan = max(1, round(c * (kernel / stride) ** 2))
        reads = [x, self.normal("deconv_weight", c, f, kernel, kernel, fan=fan, gain=gain)]
        if bias:
            reads.append(self.bias("deconv_bias", f))
        more = {"output_padding": [extra] * 2} if extra else {}
        return self.node(
            "ConvTranspose", *reads, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4, **more
        )

    def batch_norm(self, x: str, c: int, gain: float = 1.0) -> str:
        """Batch normalisation as a trained network has it: statistics near (0, 1), scales near *gain*."""
        draw = self.random.uniform
        scale, shift = draw(0.8, 1.2, c) * gain, draw(-0.1, 0.1, c)
        mean, variance = draw(-0.1, 0.1, c), draw(0.8, 1.2, c)
        values = {"scale": scale, "bias": shift, "mean": mean, "var": variance}
        named = (self.weight(f"bn_{word}", v) for word, v in values.items())
        return self.node("BatchNormalization", x, *named, epsilon=1e-5)

    def linear(self, x: str, c: int, f: int) -> str:
        """x·Wᵀ + b."""
        w = self.normal("fc_weight", f, c, fan=2 * c)
        return self.node("Gemm", x, w, self.bias("fc_bias", f), transB=1)

    def model(self, inputs: dict[str, tuple[int, ...]], output: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        """The finished model of one output, which is renamed to ``output``; it is the last node's."""
        if prod(shape) < 1 or output != self.nodes[-1].name:
            raise ValueError(f"output {output} of shape {shape}: expected the last node's, not empty")
        self.nodes[-1].output[0] = "output"
        return self.finished(inputs, {"output": shape})

    def finished(
        self, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]
    ) -> onnx.ModelProto:
        """The finished model, checked and with all shapes; *outputs* are names of results."""
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in outputs.items()],
            self.weights,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="einnet-explore"
        )
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def _pair(given: Pair) -> tuple[int, int]:
    return (given, given) if isinstance(given, int) else given
