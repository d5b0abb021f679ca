"""Signals, sequences, volumes and graphs; models in few bits; models with control flow."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.zoo.parts import Kind, finished, integers
from einnet_evaluation.models.builder import XAVIER, Builder


def _along(b: Builder, x: str, c: int, f: int, kernel: int, dilation: int = 1) -> str:
    """A causal convolution along time."""
    k = b.normal("weight", f, c, kernel, fan=c * kernel, gain=XAVIER)
    pads = [dilation * (kernel - 1), 0]
    return b.node("Conv", x, k, b.bias("bias", f), kernel_shape=[kernel], dilations=[dilation], pads=pads)


def _wavenet() -> onnx.ModelProto:
    b = Builder("wavenet", seed=40)
    x, skips = _along(b, "x", 1, 32, 1), []
    for d in (1, 2, 4):
        z = b.node("Mul", b.node("Tanh", _along(b, x, 32, 32, 2, d)), b.node("Sigmoid", _along(b, x, 32, 32, 2, d)))
        skips.append(_along(b, z, 32, 32, 1))
        if d < 4:
            x = b.node("Add", x, _along(b, z, 32, 32, 1))
    return finished(b, {"x": (1, 1, 1024)}, _along(b, b.node("Relu", b.node("Sum", *skips)), 32, 16, 1))


def _video() -> onnx.ModelProto:
    b = Builder("video", seed=41)
    x = "x"
    for c, f in ((1, 8), (8, 16)):
        k = b.normal("weight", f, c, 3, 3, 3, fan=c * 27)
        x = b.node("Relu", b.node("Conv", x, k, b.bias("bias", f), kernel_shape=[3] * 3, pads=[1] * 6))
        x = b.node("MaxPool", x, kernel_shape=[2] * 3, strides=[2] * 3)
    return finished(b, {"x": (1, 1, 12, 24, 24)}, b.linear(b.node("Flatten", b.node("GlobalAveragePool", x)), 16, 4))


def _recurrent() -> onnx.ModelProto:
    """A GRU written out: cells of matrix products, four steps."""
    b = Builder("recurrent", seed=42)
    w, r = (b.normal(word, c, 288, fan=c, gain=XAVIER) for word, c in (("w", 64), ("r", 96)))
    h = b.node("ConstantOfShape", integers(b, "shape", 2, 96))
    one, thirds = b.weight("one", np.array(1.0)), integers(b, "thirds", 96, 96, 96)

    def gates(x: str, weight: str) -> list[str]:
        names = [f"gate_{len(b.nodes)}_{n}" for n in range(3)]
        product = b.node("MatMul", x, weight)
        b.nodes.append(helper.make_node("Split", [product, thirds], names, f"Split_{len(b.nodes)}", axis=1))
        return names

    for step in range(4):
        x = b.node("Gather", "x", _index(b, step), axis=0)
        (xr, xz, xn), (hr, hz, hn) = gates(x, w), gates(h, r)
        z = b.node("Sigmoid", b.node("Add", xz, hz))
        reset = b.node("Sigmoid", b.node("Add", xr, hr))
        n = b.node("Tanh", b.node("Add", xn, b.node("Mul", reset, hn)))
        h = b.node("Add", b.node("Mul", b.node("Sub", one, z), n), b.node("Mul", z, h))
    return finished(b, {"x": (4, 2, 64)}, h)


def _index(b: Builder, number: int) -> str:
    name = f"index_{len(b.weights)}"
    b.weights.append(numpy_helper.from_array(np.array(number, np.int64), name))
    return name


def _lstm() -> onnx.ModelProto:
    b = Builder("lstm", seed=43)
    w, r = (b.normal(word, 1, 256, 64, fan=64, gain=XAVIER) for word in "wr")
    b.nodes.append(helper.make_node("LSTM", ["x", w, r], ["all", "last"], "LSTM_0", hidden_size=64))
    return finished(b, {"x": (20, 1, 64)}, b.linear(b.node("Squeeze", "last", integers(b, "axes", 0)), 64, 10))


def _variational() -> onnx.ModelProto:
    b = Builder("variational", seed=44)
    h = b.node("Relu", b.linear("x", 784, 256))
    mean, log = b.linear(h, 256, 16), b.linear(h, 256, 16)
    z = b.node("Add", mean, b.node("Mul", "e", b.node("Exp", b.node("Mul", log, b.weight("half", np.array(0.5))))))
    y = b.node("Sigmoid", b.linear(b.node("Relu", b.linear(z, 16, 256)), 256, 784))
    return finished(b, {"x": (4, 784), "e": (4, 16)}, y, mean, log)


def _graph() -> onnx.ModelProto:
    """Message passing: rows gathered along edges, added up at their ends."""
    b = Builder("graph", seed=45)
    source, target = (integers(b, word, *b.random.integers(0, 50, 200)) for word in ("source", "target"))
    ends = b.node("Unsqueeze", target, integers(b, "axes", 1))
    x = "x"
    for _ in range(2):
        y = b.node("Gather", b.node("Relu", b.linear(x, 32, 32)), source, axis=0)
        x = b.node("Add", x, b.node("ScatterND", b.weight("zeros", np.zeros((50, 32))), ends, y, reduction="add"))
    return finished(b, {"x": (50, 32)}, b.linear(x, 32, 8))


def _quantised() -> onnx.ModelProto:
    b = Builder("quantised", seed=46)
    scale, zero = b.weight("scale", np.array(0.05)), "zero"
    b.weights.append(numpy_helper.from_array(np.array(0, np.int8), zero))
    x = "x"
    for n, (c, f) in enumerate(((8, 16), (16, 16))):
        b.weights.append(numpy_helper.from_array(b.random.integers(-99, 99, (f, c, 3, 3)).astype(np.int8), f"q_{n}"))
        w = b.node("DequantizeLinear", f"q_{n}", b.weight("step", np.array(0.002)), zero)
        x = b.node("DequantizeLinear", b.node("QuantizeLinear", x, scale, zero), scale, zero)
        x = b.node("Relu", b.node("Conv", x, w, kernel_shape=[3, 3], pads=[1] * 4))
    return finished(b, {"x": (1, 8, 24, 24)}, x)


def _loop() -> onnx.ModelProto:
    b = Builder("loop", seed=47)
    inside = [
        helper.make_node("MatMul", ["h", "w"], ["product"]),
        helper.make_node("Tanh", ["product"], ["next"]),
        helper.make_node("Identity", ["going"], ["on"]),
    ]
    state = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 32)) for name in ("h", "next")]
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, ()) for name in ("going", "on")]
    count = helper.make_tensor_value_info("count", TensorProto.INT64, ())
    body = helper.make_graph(inside, "body", [count, flags[0], state[0]], [flags[1], state[1]])
    b.weights.append(numpy_helper.from_array(b.random.standard_normal((32, 32)).astype(np.float32) / 6, "w"))
    b.weights.append(numpy_helper.from_array(np.array(True), "going_on"))
    x = b.node("Loop", _index(b, 5), "going_on", b.linear("x", 16, 32), body=body)
    return finished(b, {"x": (4, 16)}, b.linear(x, 32, 8))


OTHERS: tuple[Kind, ...] = (
    Kind("wavenet", "WaveNet: dilated causal 1-D, gates", _wavenet),
    Kind("video", "3-D convolutions", _video),
    Kind("recurrent", "GRU written out as cells", _recurrent),
    Kind("lstm", "the LSTM operator", _lstm),
    Kind("variational", "variational autoencoder, three outputs", _variational),
    Kind("graph", "graph network: Gather, ScatterND", _graph),
    Kind("quantised", "quantised by QDQ pairs", _quantised),
    Kind("loop", "a Loop between two layers", _loop),
)
