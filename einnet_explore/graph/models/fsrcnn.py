"""FSRCNN (Dong et al. 2016; EinNet §8): super-resolution, one channel of 32 x 32 to 128 x 128.

Feature extraction, shrinking, four mappings, expanding, a transposed convolution; PRelu after all but the last.
"""

from __future__ import annotations

import onnx

from einnet_explore.graph.models.builder import Builder, EvaluationModel

WIDE, NARROW, MAPPINGS, FACTOR = 56, 12, 4, 4
"""Channels of the features, channels of the mappings and how many there are, enlargement."""

SIDE = 32


def _layer(b: Builder, x: str, c: int, f: int, kernel: int) -> str:
    """conv + bias, then PRelu with a slope a channel; He's gain for what keeps a part *s* of the negative: 2/(1+s²)."""
    y = b.conv(x, c, f, kernel, 1, kernel // 2, bias=True)
    slopes = b.random.uniform(0.1, 0.3, (f, 1, 1))
    return b.node("PRelu", y, b.weight("slope", slopes))


def _write(batch: int, side: int) -> onnx.ModelProto:
    b = Builder("fsrcnn", seed=16)
    x = _layer(b, "input", 1, WIDE, 5)
    x = _layer(b, x, WIDE, NARROW, 1)
    for _ in range(MAPPINGS):
        x = _layer(b, x, NARROW, NARROW, 3)
    x = _layer(b, x, NARROW, WIDE, 1)
    kernel, padding, extra = 9, 3, 1
    x = b.conv_transpose(x, WIDE, 1, kernel, FACTOR, padding, extra, bias=True)
    large = (side - 1) * FACTOR - 2 * padding + kernel + extra
    return b.model({"input": (batch, 1, side, side)}, x, (batch, 1, large, large))


FSRCNN = EvaluationModel("fsrcnn", "FSRCNN, 1 channel of 32 x 32 to 128 x 128", _write, SIDE, "pixels a side")
