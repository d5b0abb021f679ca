"""Common parts of the zoo: a kind by name, and layers of several models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from einnet_evaluation.models.builder import HE, XAVIER, Builder


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model: its name, what it stands for, and what makes it."""

    name: str
    title: str
    write: Callable[[], onnx.ModelProto]


def integers(b: Builder, word: str, *numbers: int) -> str:
    """A list of 64-bit integers, as shapes and axes are."""
    name = f"{word}_{len(b.weights)}"
    b.weights.append(onnx.numpy_helper.from_array(np.array(numbers, np.int64), name))
    return name


def convolved(
    b: Builder,
    x: str,
    c: int,
    f: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    act: str = "Relu",
    gain: float = HE,
) -> str:
    """A square convolution that keeps the sides, batch normalisation, and *act* (empty: none; Swish as x·σ(x))."""
    k = b.normal("conv_weight", f, c // groups, kernel, kernel, fan=c // groups * kernel**2, gain=gain)
    pads = [dilation * (kernel // 2)] * 4
    more = {"strides": [stride] * 2, "dilations": [dilation] * 2, "group": groups, "pads": pads}
    x = b.batch_norm(b.node("Conv", x, k, kernel_shape=[kernel] * 2, **more), f)
    match act:
        case "":
            return x
        case "Swish":
            return b.node("Mul", x, b.node("Sigmoid", x))
        case "Relu6":
            return b.node("Clip", x, b.weight("low", np.array(0.0)), b.weight("high", np.array(6.0)))
    return b.node(act, x)


def excited(b: Builder, x: str, c: int, narrow: int) -> str:
    """Squeeze and excitation (Hu et al. 2018): channels scaled by what their means say."""
    y = b.node("GlobalAveragePool", x)
    y = b.node("Relu", b.conv(y, c, narrow, 1, bias=True))
    y = b.node("Sigmoid", b.conv(y, narrow, c, 1, gain=XAVIER, bias=True))
    return b.node("Mul", x, y)


def dense(b: Builder, x: str, c: int, f: int) -> str:
    """x·W + b over the last dimension, as transformers are exported."""
    return b.node("Add", b.node("MatMul", x, b.normal("weight", c, f, fan=c, gain=XAVIER)), b.bias("bias", f))


def layer_norm(b: Builder, x: str, c: int) -> str:
    """Layer normalisation of the last dimension."""
    scale, shift = b.weight("ln_scale", b.random.uniform(0.8, 1.2, c)), b.bias("ln_shift", c)
    return b.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)


def gelu(b: Builder, x: str) -> str:
    """GELU as exporters write it: x·½·(1 + erf(x/√2))."""
    inner = b.node("Erf", b.node("Div", x, b.weight("root", np.array(2**0.5))))
    half = b.node("Mul", x, b.weight("half", np.array(0.5)))
    return b.node("Mul", half, b.node("Add", inner, b.weight("one", np.array(1.0))))


def finished(b: Builder, inputs: dict[str, tuple[int, ...]], *outputs: str) -> onnx.ModelProto:
    """The model with these *outputs*, whose shapes are inferred."""
    known = onnx.shape_inference.infer_shapes(b.finished(inputs, {}))
    found = {v.name: v for v in known.graph.value_info}
    known.graph.output.extend(found[name] for name in outputs)
    kept = [v for v in known.graph.value_info if v.name not in outputs]
    del known.graph.value_info[:]
    known.graph.value_info.extend(kept)
    return known
