"""Programs whose operators linear algebra puts into another order, each at three sizes; runtimes keep their order.

``notebooks/13_across_operators.py`` derives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.zoo.parts import Kind, finished, integers
from einnet_evaluation.models.builder import XAVIER, Builder


def _row_sums(n: int, o: int, k: int) -> onnx.ModelProto:
    b = Builder("row_sums", seed=60)
    product = b.node("MatMul", "x", b.normal("weight", k, o, fan=k, gain=XAVIER))
    halves = b.node("Div", product, b.weight("two", np.array(2.0)))
    total = b.node("ReduceSum", halves, integers(b, "axis", 1), keepdims=0)
    return finished(b, {"x": (n, k)}, b.node("Mul", total, b.weight("scale", np.array(1.5))))


def _linear_attention(heads: int, length: int, depth: int) -> onnx.ModelProto:
    b = Builder("linear_attention", seed=61)
    scores = b.node("MatMul", "Q", b.node("Transpose", "K", perm=[0, 2, 1]))
    return finished(b, dict.fromkeys("QKV", (heads, length, depth)), b.node("MatMul", scores, "V"))


def _absorption(m: int, k: int, r: int) -> onnx.ModelProto:
    b = Builder("absorption", seed=62)
    query = b.node("MatMul", "x", b.normal("Wq", k, k, fan=k, gain=XAVIER))
    keys = b.node("MatMul", "c", b.normal("Wk", r, k, fan=r, gain=XAVIER))
    return finished(b, {"x": (1, k), "c": (m, r)}, b.node("MatMul", query, b.node("Transpose", keys, perm=[1, 0])))


def _pooled(c: int, f: int, side: int) -> onnx.ModelProto:
    b = Builder("pooled", seed=63)
    made = b.conv("x", c, f, 1, gain=XAVIER)
    return finished(b, {"x": (1, c, side, side)}, b.node("AveragePool", made, kernel_shape=[2] * 2, strides=[2] * 2))


def _mean(c: int, f: int, side: int) -> onnx.ModelProto:
    b = Builder("mean", seed=64)
    return finished(b, {"x": (1, c, side, side)}, b.node("GlobalAveragePool", b.conv("x", c, f, 3, padding=1)))


def _upsampled(c: int, f: int, side: int) -> onnx.ModelProto:
    b = Builder("upsampled", seed=65)
    scales = b.weight("scales", np.array([1, 1, 2, 2]))
    larger = b.node(
        "Resize", "x", "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    return finished(b, {"x": (1, c, side, side)}, b.conv(larger, c, f, 1, gain=XAVIER))


def _pairs(n: int, depth: int) -> onnx.ModelProto:
    b = Builder("pairs", seed=66)
    products = b.node("MatMul", "v", b.node("Transpose", "v", perm=[1, 0]))
    return finished(b, {"v": (n, depth)}, b.node("ReduceSum", products, keepdims=0))


def causal_attention(gated: bool, length: int, depth: int) -> onnx.ModelProto:
    """M(Q Kᵀ) V for the mask M of positions that are not later; *gated*: the scores fade by exp(L - Lᵀ)."""
    b = Builder("causal", seed=67)
    scores = b.node("MatMul", "Q", b.node("Transpose", "K", perm=[1, 0]))
    if gated:
        gates = b.node("Neg", b.node("Softplus", "G"))
        decay = b.node("CumSum", gates, integers(b, "axis", 0))
        column, row = (b.node("Unsqueeze", decay, integers(b, "axis", axis)) for axis in (1, 0))
        scores = b.node("Mul", b.node("Exp", b.node("Sub", column, row)), scores)
    b.weights.append(numpy_helper.from_array(np.tri(length, dtype=bool), "mask"))
    masked = b.node("Where", "mask", scores, b.weight("zero", np.array(0.0)))
    inputs: dict[str, tuple[int, ...]] = dict.fromkeys("QKV", (length, depth))
    return finished(b, inputs | ({"G": (length,)} if gated else {}), b.node("MatMul", masked, "V"))


def _kinds() -> Iterable[Kind]:
    shapes: tuple[tuple[str, str, Callable[..., onnx.ModelProto], tuple[tuple[int, ...], ...]], ...] = (
        ("rows", "sum of x Wᵀ / 2 over the outputs", _row_sums, ((128, 1024, 1024), (32, 2048, 512), (512,) * 3)),
        ("linear", "(Q Kᵀ) V", _linear_attention, ((8, 1024, 64), (4, 2048, 64), (16, 512, 32))),
        ("absorbed", "(x W)(c V)ᵀ", _absorption, ((2048, 512, 64), (4096, 1024, 64), (1024, 512, 128))),
        ("pooled", "average pool of a 1x1 convolution", _pooled, ((256, 128, 56), (512, 256, 28), (128, 64, 56))),
        ("mean", "mean of a 3x3 convolution", _mean, ((64, 64, 56), (128, 128, 28), (256, 256, 14))),
        ("upsampled", "1x1 convolution of an upsampling", _upsampled, ((64, 32, 28), (256, 64, 14), (128, 64, 28))),
        ("pairs", "sum of all ⟨v_i, v_j⟩", _pairs, ((2048, 32), (1024, 64), (4096, 16))),
        ("causal", "causal linear attention", partial(causal_attention, False), ((4096, 64), (2048, 64), (1024, 64))),
        ("gated", "gated linear attention", partial(causal_attention, True), ((4096, 64), (2048, 64), (1024, 64))),
    )
    for name, title, write, sizes in shapes:
        for size in sizes:
            told = "x".join(map(str, size))
            yield Kind(f"{name}_{told}", f"{title}, {told}", partial(write, *size))


ACROSS: tuple[Kind, ...] = tuple(_kinds())
