"""Networks for images: classification, segmentation, restoration, generation."""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.zoo.parts import Kind, convolved, excited, finished, integers
from einnet_evaluation.models.builder import XAVIER, Builder


def _mobilenet() -> onnx.ModelProto:
    b = Builder("mobilenet", seed=1)
    x, c = convolved(b, "x", 3, 16, 3, 2, act="Relu6"), 16
    for f, stride in ((24, 2), (24, 1), (32, 2)):
        y = convolved(b, x, c, 4 * c, 1, act="Relu6")
        y = convolved(b, y, 4 * c, 4 * c, 3, stride, groups=4 * c, act="Relu6")
        y = convolved(b, y, 4 * c, f, 1, act="", gain=XAVIER)
        x, c = (b.node("Add", x, y) if (c, stride) == (f, 1) else y), f
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    return finished(b, {"x": (1, 3, 96, 96)}, b.linear(x, c, 10))


def _efficientnet() -> onnx.ModelProto:
    b = Builder("efficientnet", seed=2)
    x = convolved(b, "x", 3, 24, 3, 2, act="Swish")
    for _ in range(2):
        y = convolved(b, x, 24, 96, 1, act="Swish")
        y = excited(b, convolved(b, y, 96, 96, 5, groups=96, act="Swish"), 96, 6)
        x = b.node("Add", x, convolved(b, y, 96, 24, 1, act="", gain=XAVIER))
    return finished(b, {"x": (1, 3, 56, 56)}, x)


def _resnext() -> onnx.ModelProto:
    b = Builder("resnext", seed=3)
    x = convolved(b, "x", 3, 64, 3)
    for _ in range(2):
        y = convolved(b, convolved(b, x, 64, 64, 1), 64, 64, 3, groups=16)
        x = b.node("Relu", b.node("Add", x, convolved(b, y, 64, 64, 1, act="", gain=XAVIER)))
    return finished(b, {"x": (1, 3, 28, 28)}, x)


def _inception() -> onnx.ModelProto:
    b = Builder("inception", seed=4)
    x, c = convolved(b, "x", 3, 48, 3), 48
    for _ in range(2):
        pooled = b.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
        branches = (
            convolved(b, x, c, 32, 1),
            convolved(b, convolved(b, x, c, 24, 1), 24, 32, 3),
            convolved(b, convolved(b, x, c, 8, 1), 8, 16, 5),
            convolved(b, pooled, c, 16, 1),
        )
        x, c = b.node("Concat", *branches, axis=1), 96
    return finished(b, {"x": (1, 3, 28, 28)}, x)


def _densenet() -> onnx.ModelProto:
    b = Builder("densenet", seed=5)
    x, c = b.conv("x", 3, 24, 3, padding=1), 24
    for _ in range(3):
        y = convolved(b, b.node("Relu", b.batch_norm(x, c)), c, 48, 1)
        x, c = b.node("Concat", x, b.conv(y, 48, 12, 3, padding=1), axis=1), c + 12
    x = b.node("AveragePool", b.conv(x, c, c // 2, 1), kernel_shape=[2, 2], strides=[2, 2])
    return finished(b, {"x": (1, 3, 28, 28)}, x)


def _unet() -> onnx.ModelProto:
    b = Builder("unet", seed=6)
    first = convolved(b, convolved(b, "x", 3, 16, 3), 16, 16, 3)
    second = convolved(b, b.node("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2]), 16, 32, 3)
    third = convolved(b, b.node("MaxPool", second, kernel_shape=[2, 2], strides=[2, 2]), 32, 64, 3)
    up = b.conv_transpose(third, 64, 32, 2, 2, bias=True)
    y = convolved(b, b.node("Concat", up, second, axis=1), 64, 32, 3)
    larger = b.node("Resize", y, "", b.weight("scales", np.array([1, 1, 2, 2])), mode="nearest")
    y = convolved(b, b.node("Concat", larger, first, axis=1), 48, 16, 3)
    return finished(b, {"x": (1, 3, 64, 64)}, b.conv(y, 16, 2, 1, gain=XAVIER, bias=True))


def _aspp() -> onnx.ModelProto:
    b = Builder("aspp", seed=7)
    x = convolved(b, "x", 3, 64, 3, 2)
    branches = [b.node("Relu", b.conv(x, 64, 32, 1, bias=True))]
    branches += [b.node("Relu", b.conv(x, 64, 32, 3, 1, d, d, bias=True)) for d in (2, 4, 6)]
    x = convolved(b, b.node("Concat", *branches, axis=1), 128, 32, 1)
    x = b.node("Resize", x, "", b.weight("scales", np.array([1, 1, 2, 2])), mode="linear")
    return finished(b, {"x": (1, 3, 64, 64)}, b.conv(x, 32, 5, 1, gain=XAVIER, bias=True))


def _super_resolution() -> onnx.ModelProto:
    b = Builder("super_resolution", seed=8)
    x = b.node("Tanh", b.conv("x", 1, 32, 5, padding=2, gain=XAVIER, bias=True))
    x = b.node("Tanh", b.conv(x, 32, 16, 3, padding=1, gain=XAVIER, bias=True))
    x = b.conv(x, 16, 9, 3, padding=1, gain=XAVIER, bias=True)
    return finished(b, {"x": (1, 1, 40, 40)}, b.node("DepthToSpace", x, blocksize=3, mode="CRD"))


def _style() -> onnx.ModelProto:
    b = Builder("style", seed=9)

    def layer(x: str, c: int, f: int, kernel: int, stride: int = 1) -> str:
        p = kernel // 2
        x = b.conv(b.node("Pad", x, integers(b, "pads", 0, 0, p, p, 0, 0, p, p), mode="reflect"), c, f, kernel, stride)
        return b.node("InstanceNormalization", x, b.weight("scale", np.ones(f)), b.bias("shift", f))

    x = b.node("Relu", layer(b.node("Relu", layer("x", 3, 16, 9)), 16, 32, 3, 2))
    x = b.node("Add", x, layer(b.node("Relu", layer(x, 32, 32, 3)), 32, 32, 3))
    x = b.node("Resize", x, "", b.weight("scales", np.array([1, 1, 2, 2])), mode="nearest")
    x = b.node("Relu", layer(x, 32, 16, 3))
    return finished(b, {"x": (1, 3, 64, 64)}, b.conv(x, 16, 3, 9, padding=4, gain=XAVIER, bias=True))


def _autoencoder() -> onnx.ModelProto:
    b = Builder("autoencoder", seed=10)
    x = b.node("Relu", b.conv("x", 1, 16, 3, 2, 1, bias=True))
    x = b.conv(b.node("Relu", b.conv(x, 16, 32, 3, 2, 1, bias=True)), 32, 64, 7, bias=True)
    x = b.node("Relu", b.conv_transpose(x, 64, 32, 7, bias=True))
    x = b.node("Relu", b.conv_transpose(x, 32, 16, 3, 2, 1, 1, bias=True))
    return finished(b, {"x": (1, 1, 28, 28)}, b.node("Sigmoid", b.conv_transpose(x, 16, 1, 3, 2, 1, 1, bias=True)))


def _diffusion() -> onnx.ModelProto:
    b = Builder("diffusion", seed=11)
    x = b.conv("x", 4, 32, 3, padding=1, bias=True)
    for _ in range(2):
        y = b.node("GroupNormalization", x, b.weight("scale", np.ones(32)), b.bias("shift", 32), num_groups=8)
        y = b.conv(b.node("Mul", y, b.node("Sigmoid", y)), 32, 32, 3, padding=1, gain=XAVIER, bias=True)
        x = b.node("Add", x, y)
    return finished(b, {"x": (1, 4, 32, 32)}, x)


IMAGES: tuple[Kind, ...] = (
    Kind("mobilenet", "MobileNet v2: depthwise, ReLU6, residual", _mobilenet),
    Kind("efficientnet", "EfficientNet: MBConv, squeeze and excitation, Swish", _efficientnet),
    Kind("resnext", "ResNeXt: grouped 3x3", _resnext),
    Kind("inception", "Inception: four branches, concatenated", _inception),
    Kind("densenet", "DenseNet: concatenations that grow", _densenet),
    Kind("unet", "U-Net: transposed, nearest, skips", _unet),
    Kind("aspp", "DeepLab: dilated branches, bilinear Resize", _aspp),
    Kind("super_resolution", "ESPCN: pixel shuffle", _super_resolution),
    Kind("style", "style transfer: reflected Pad, InstanceNorm", _style),
    Kind("autoencoder", "autoencoder: transposed convolutions", _autoencoder),
    Kind("diffusion", "diffusion block: GroupNorm, SiLU", _diffusion),
)
