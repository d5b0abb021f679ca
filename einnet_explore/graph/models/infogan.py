"""InfoGAN's generator (Chen et al. 2016; EinNet §8, Fig. 11): 228 numbers to 3 x 32 x 32."""

from __future__ import annotations

import onnx

from einnet_explore.graph.models.builder import Builder, EvaluationModel

LATENT = 228

_LAYERS = ((448, 2, 1, 0), (256, 4, 2, 1), (128, 4, 2, 1), (64, 4, 2, 1), (3, 4, 2, 1))
"""(output channels, kernel, stride, padding); Relu after each but the last, Tanh after that."""


def _write(batch: int) -> onnx.ModelProto:
    b = Builder("infogan", seed=11)
    x, c, side = "input", LATENT, 1
    for n, (f, kernel, stride, padding) in enumerate(_LAYERS):
        x = b.conv_transpose(x, c, f, kernel, stride, padding)
        x = b.node("Tanh" if n == len(_LAYERS) - 1 else "Relu", x)
        c, side = f, (side - 1) * stride - 2 * padding + kernel
    return b.model({"input": (batch, LATENT, 1, 1)}, x, (batch, c, side, side))


INFOGAN = EvaluationModel("infogan", "InfoGAN's generator, 228 numbers to 3 channels of 32 x 32", _write)
"""Without batch normalisation: the evaluation's chain is transposed convolutions and activations."""
