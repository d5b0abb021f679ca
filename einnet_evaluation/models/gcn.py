"""GCN (Peng et al. 2017, "Large kernel matters"; EinNet §8, Fig. 15): semantic segmentation, 21 classes.

The encoder is ResNet-50-GCN: a stem, two stages of common bottlenecks, two stages whose bottlenecks are separable
pairs; each stage has a head (a pair of kernel 11 down to the classes) and a boundary refinement, and the decoder adds
them up from the coarsest, doubling the resolution each time.
"""

from __future__ import annotations

import numpy as np
import onnx

from einnet_evaluation.models.builder import XAVIER, Builder, EvaluationModel

CLASSES, HEAD, SIDE = 21, 11, 224

_COMMON = ((64, 256, 3, 1), (128, 512, 4, 2))
"""(inner channels, channels, blocks, stride of the first) of the stages of common bottlenecks."""

_SEPARABLE = ((5, 85, 1024, 6), (7, 128, 2048, 6))
"""(kernel, inner channels, channels, blocks) of the stages of separable bottlenecks; the first has stride 2."""

_BRANCH = 0.3
"""The scale of a block's branch beside its skip: nineteen sums keep the activations' scale."""


def _pair(b: Builder, x: str, c: int, f: int, k: int, stride: int = 1, bias: bool = False) -> str:
    """conv_1k(conv_k1(x)) + conv_k1(conv_1k(x)): a k x k window in linear time, no activation inside.

    Each way gives half of the sum's variance.
    """
    down, across = (k, 1), (1, k)
    ways = []
    for first, second in ((down, across), (across, down)):
        y = b.conv(x, c, f, first, stride, _same(first), gain=XAVIER, bias=bias)
        ways.append(b.conv(y, f, f, second, 1, _same(second), gain=XAVIER / 2, bias=bias))
    return b.node("Add", *ways)


def _same(kernel: tuple[int, int]) -> tuple[int, int]:
    return kernel[0] // 2, kernel[1] // 2


def _block(b: Builder, x: str, y: str, c: int, inner: int, f: int, stride: int) -> str:
    """relu(x' + bn(conv_1x1(y))) where x' is x, projected if the shape changes."""
    y = b.batch_norm(b.conv(y, inner, f, 1), f, _BRANCH)
    skip = x if stride == 1 and c == f else b.batch_norm(b.conv(x, c, f, 1, stride, gain=XAVIER), f)
    return b.node("Relu", b.node("Add", y, skip))


def _common(b: Builder, x: str, c: int, inner: int, f: int, stride: int) -> str:
    """The bottleneck of ResNet-50: 1 x 1, 3 x 3, 1 x 1."""
    y = b.node("Relu", b.batch_norm(b.conv(x, c, inner, 1, stride), inner))
    y = b.node("Relu", b.batch_norm(b.conv(y, inner, inner, 3, 1, 1), inner))
    return _block(b, x, y, c, inner, f, stride)


def _separable(b: Builder, x: str, c: int, inner: int, f: int, k: int, stride: int) -> str:
    """The bottleneck of ResNet-50-GCN: a separable pair, 1 x 1."""
    y = b.node("Relu", b.batch_norm(_pair(b, x, c, inner, k, stride), inner))
    return _block(b, x, y, c, inner, f, stride)


def _encoder(b: Builder) -> list[tuple[str, int]]:
    """The features of the four stages with their channels, finest first."""
    c = _COMMON[0][0]
    x = b.node("Relu", b.batch_norm(b.conv("input", 3, c, 7, 2, 3), c))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    found = []
    for inner, f, blocks, stride in _COMMON:
        for n in range(blocks):
            x, c = _common(b, x, c, inner, f, 1 if n else stride), f
        found.append((x, c))
    for k, inner, f, blocks in _SEPARABLE:
        for n in range(blocks):
            x, c = _separable(b, x, c, inner, f, k, 1 if n else 2), f
        found.append((x, c))
    return found


def _head(b: Builder, x: str, c: int) -> str:
    return _pair(b, x, c, CLASSES, HEAD, bias=True)


def _refine(b: Builder, x: str) -> str:
    """x + conv(relu(conv(x))), both 3 x 3."""
    y = b.node("Relu", b.conv(x, CLASSES, CLASSES, 3, 1, 1, bias=True))
    return b.node("Add", x, b.conv(y, CLASSES, CLASSES, 3, 1, 1, gain=XAVIER / 4, bias=True))


def _double(b: Builder, x: str, scales: str) -> str:
    return b.node("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")


def _write(batch: int, side: int) -> onnx.ModelProto:
    b = Builder("gcn", seed=17)
    scores = [_refine(b, _head(b, x, c)) for x, c in _encoder(b)]
    scales = b.weight("scales", np.array([1, 1, 2, 2]))
    x = scores.pop()
    for finer in reversed(scores):
        x = _refine(b, b.node("Add", _double(b, x, scales), finer))
    for _ in range(2):  # to the resolution of the stem, and of the image
        x = _refine(b, _double(b, x, scales))
    return b.model({"input": (batch, 3, side, side)}, x, (batch, CLASSES, side, side))


def _write_heads(batch: int, side: int) -> onnx.ModelProto:
    b = Builder("gcn-heads", seed=19)
    channels = [f for _, f, *_ in _COMMON] + [f for _, _, f, _ in _SEPARABLE]
    sides = [side // 4 // 2**n for n in range(len(channels))]
    inputs = {f"features_{c}": (batch, c, s, s) for c, s in zip(channels, sides, strict=True)}
    outputs = {_head(b, name, shape[1]): (batch, CLASSES, *shape[2:]) for name, shape in inputs.items()}
    return b.finished(inputs, outputs)


GCN = EvaluationModel("gcn", "GCN, 3 channels of 224 x 224, 21 classes a pixel", _write, SIDE, "pixels a side", 32)
GCN_HEADS = EvaluationModel(
    "gcn-heads", "GCN's four heads alone, on the features of the stages", _write_heads, SIDE, "pixels a side", 32
)
