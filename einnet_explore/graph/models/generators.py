"""Image generators (EinNet §8): chains of transposed convolutions, Relu after each but the last, Tanh after that.

InfoGAN's (Chen et al. 2016; EinNet Fig. 11) makes 3 x 32 x 32 of 228 numbers, DCGAN's (Radford et al. 2016) 3 x 64 x 64
of 100.  Neither has batch normalisation here: the evaluation's chains are transposed convolutions and activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import onnx

from einnet_explore.graph.models.builder import HE, XAVIER, Builder, EvaluationModel

_INFOGAN = ((448, 2, 1, 0), (256, 4, 2, 1), (128, 4, 2, 1), (64, 4, 2, 1), (3, 4, 2, 1))
_DCGAN = ((512, 4, 1, 0), (256, 4, 2, 1), (128, 4, 2, 1), (64, 4, 2, 1), (3, 4, 2, 1))
"""(output channels, kernel, stride, padding) of each layer."""

_CALM = 0.25
"""The gain of the last layer: most of what reaches Tanh lies where it is nearly linear."""


def _write(
    name: str, seed: int, latent: int, layers: Sequence[tuple[int, int, int, int]], batch: int, _: int
) -> onnx.ModelProto:
    b = Builder(name, seed)
    x, c, side = "input", latent, 1
    for n, (f, kernel, stride, padding) in enumerate(layers):
        last = n == len(layers) - 1
        x = b.conv_transpose(x, c, f, kernel, stride, padding, gain=_CALM if last else HE if n else _first(kernel))
        x = b.node("Tanh" if last else "Relu", x)
        c, side = f, (side - 1) * stride - 2 * padding + kernel
    return b.model({"input": (batch, latent, 1, 1)}, x, (batch, c, side, side))


def _first(kernel: int) -> float:
    """The first layer's gain: its kernel lies once over the single pixel, so a result sums over c products only."""
    return XAVIER * kernel**2


INFOGAN = EvaluationModel(
    "infogan",
    "InfoGAN's generator, 228 numbers to 3 channels of 32 x 32",
    partial(_write, "infogan", 11, 228, _INFOGAN),
)
DCGAN = EvaluationModel(
    "dcgan", "DCGAN's generator, 100 numbers to 3 channels of 64 x 64", partial(_write, "dcgan", 12, 100, _DCGAN)
)
