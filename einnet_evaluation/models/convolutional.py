"""Convolutional evaluation models (EinNet §8): ResNet-18, CSRNet's back-end, FSRCNN, generators of InfoGAN and DCGAN.

* ResNet-18 (He et al. 2015) at its published resolution, 1000 classes.  Conv, BatchNormalization and Relu are separate
  nodes, as exporters write them.
* CSRNet's back-end (Li et al. 2018): six dilated convolutions on 512 channels of 14 x 14.
* FSRCNN (Dong et al. 2016): super-resolution of one channel from 32 x 32 to 128 x 128.  Feature extraction, shrinking,
  four mappings, expanding, a transposed convolution; PRelu after all but the last.
* Generators: chains of transposed convolutions, Relu after each but the last, Tanh after that.  InfoGAN's (Chen et al.
  2016; EinNet Fig. 11) turns 228 numbers into 3 x 32 x 32, DCGAN's (Radford et al. 2016) 100 numbers into 3 x 64 x 64.
  Neither has batch normalisation here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import onnx

from einnet_evaluation.models.builder import HE, XAVIER, Builder, EvaluationModel

RESNET_SIDE = 2**5 * 7
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


def _write_resnet(batch: int, side: int) -> onnx.ModelProto:
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
    "resnet18", "ResNet-18, 3 channels of 224 x 224, 1000 classes", _write_resnet, RESNET_SIDE, "pixels a side"
)
"""Batch normalisation is kept as nodes, as exporters in training-faithful mode leave it."""


CHANNELS, CSRNET_SIDE, DILATION = 512, 14, 2

_LAYERS = (512, 512, 512, 256, 128, 64)
"""Output channels of the 3 x 3 convolutions; Relu after each."""


def _write_csrnet(batch: int, side: int) -> onnx.ModelProto:
    b = Builder("csrnet", seed=15)
    x, c = "input", CHANNELS
    for f in _LAYERS:
        x = b.node("Relu", b.conv(x, c, f, 3, 1, DILATION, DILATION, bias=True))
        c = f
    return b.model({"input": (batch, CHANNELS, side, side)}, x, (batch, c, side, side))


CSRNET = EvaluationModel(
    "csrnet",
    "CSRNet's back-end, dilated convolutions on 512 channels of 14 x 14",
    _write_csrnet,
    CSRNET_SIDE,
    "pixels a side",
)


WIDE, NARROW, MAPPINGS, FACTOR = 56, 12, 4, 4
"""Channels of the features, channels of the mappings and how many there are, enlargement."""

FSRCNN_SIDE = 32


def _layer(b: Builder, x: str, c: int, f: int, kernel: int) -> str:
    """conv + bias, then PRelu with a slope a channel; He's gain for what keeps a part *s* of the negative: 2/(1+s²)."""
    y = b.conv(x, c, f, kernel, 1, kernel // 2, bias=True)
    slopes = b.random.uniform(0.1, 0.3, (f, 1, 1))
    return b.node("PRelu", y, b.weight("slope", slopes))


def _write_fsrcnn(batch: int, side: int) -> onnx.ModelProto:
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


FSRCNN = EvaluationModel(
    "fsrcnn", "FSRCNN, 1 channel of 32 x 32 to 128 x 128", _write_fsrcnn, FSRCNN_SIDE, "pixels a side"
)


_INFOGAN = ((448, 2, 1, 0), (256, 4, 2, 1), (128, 4, 2, 1), (64, 4, 2, 1), (3, 4, 2, 1))
_DCGAN = ((512, 4, 1, 0), (256, 4, 2, 1), (128, 4, 2, 1), (64, 4, 2, 1), (3, 4, 2, 1))
"""(output channels, kernel, stride, padding) of each layer."""

_CALM = 0.25
"""The gain of the last layer: most of what reaches Tanh lies where it is nearly linear."""


def _write_generator(
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
    partial(_write_generator, "infogan", 11, 228, _INFOGAN),
)
DCGAN = EvaluationModel(
    "dcgan",
    "DCGAN's generator, 100 numbers to 3 channels of 64 x 64",
    partial(_write_generator, "dcgan", 12, 100, _DCGAN),
)
