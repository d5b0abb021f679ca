"""CSRNet's back-end (Li et al. 2018; EinNet §8): six dilated convolutions on 512 channels of 14 x 14."""

from __future__ import annotations

import onnx

from einnet_explore.graph.models.builder import Builder, EvaluationModel

CHANNELS, SIDE, DILATION = 512, 14, 2

_LAYERS = (512, 512, 512, 256, 128, 64)
"""Output channels of the 3 x 3 convolutions; Relu after each."""


def _write(batch: int, side: int) -> onnx.ModelProto:
    b = Builder("csrnet", seed=15)
    x, c = "input", CHANNELS
    for f in _LAYERS:
        x = b.node("Relu", b.conv(x, c, f, 3, 1, DILATION, DILATION, bias=True))
        c = f
    return b.model({"input": (batch, CHANNELS, side, side)}, x, (batch, c, side, side))


CSRNET = EvaluationModel(
    "csrnet", "CSRNet's back-end, dilated convolutions on 512 channels of 14 x 14", _write, SIDE, "pixels a side"
)
