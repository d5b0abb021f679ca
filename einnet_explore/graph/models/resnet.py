"""ResNet-18 (He et al. 2015) at its published resolution, 1000 classes.

Conv, BatchNormalization and Relu are separate nodes, as exporters write them.
"""

from __future__ import annotations

import onnx

from einnet_explore.graph.models.builder import Builder, EvaluationModel

SIDE = 2**5 * 7
"""Five halvings down to the 7 x 7 that the head averages."""

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""(channels, stride of the first block) of the four stages, two blocks each."""

_BRANCH = 0.5
"""The scale of a block's branch beside its skip: eight sums add up to a variance of about 1.25⁸, not 2⁸."""


def _block(b: Builder, x: str, c: int, f: int, stride: int) -> str:
    """relu(x' + bn(conv(relu(bn(conv(x)))))) where x' is x, projected if the shape changes."""
    y = b.node("Relu", b.batch_norm(b.conv(x, c, f, 3, stride, 1), f))
    y = b.batch_norm(b.conv(y, f, f, 3, 1, 1), f, _BRANCH)
    skip = x if stride == 1 and c == f else b.batch_norm(b.conv(x, c, f, 1, stride), f)
    return b.node("Relu", b.node("Add", y, skip))


def _write(batch: int, side: int) -> onnx.ModelProto:
    b = Builder("resnet18", seed=18)
    c = _STAGES[0][0]
    x = b.node("Relu", b.batch_norm(b.conv("input", 3, c, 7, 2, 3), c))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for f, stride in _STAGES:
        x = _block(b, x, c, f, stride)
        x = _block(b, x, f, f, 1)
        c = f
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    return b.model({"input": (batch, 3, side, side)}, b.linear(x, c, 1000), (batch, 1000))


RESNET18 = EvaluationModel(
    "resnet18", "ResNet-18, 3 channels of 224 x 224, 1000 classes", _write, SIDE, "pixels a side"
)
"""Batch normalisation is kept as nodes, as exporters in training-faithful mode leave it."""
