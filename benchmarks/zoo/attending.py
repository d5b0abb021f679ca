"""Networks with attention or mixing: transformers for text and images, and their successors."""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.zoo.parts import Kind, dense, finished, gelu, integers, layer_norm
from einnet_evaluation.models.builder import XAVIER, Builder


def _heads(b: Builder, x: str, tokens: int, heads: int, width: int, order: tuple[int, ...] = (0, 2, 1, 3)) -> str:
    apart = b.node("Reshape", x, integers(b, "shape", -1, tokens, heads, width // heads))
    return b.node("Transpose", apart, perm=[*order])


def _attention(b: Builder, x: str, tokens: int, heads: int, width: int, mask: str = "") -> str:
    """Multi-head attention; *mask* is "", or where attention may be (True), known beforehand."""
    q, v = (_heads(b, dense(b, x, width, width), tokens, heads, width) for _ in range(2))
    k = _heads(b, dense(b, x, width, width), tokens, heads, width, (0, 2, 3, 1))
    s = b.node("Mul", b.node("MatMul", q, k), b.weight("scale", np.array((width // heads) ** -0.5)))
    if mask:
        s = b.node("Where", mask, s, b.weight("never", np.array(-1e9)))
    y = b.node("Transpose", b.node("MatMul", b.node("Softmax", s, axis=-1), v), perm=[0, 2, 1, 3])
    return dense(b, b.node("Reshape", y, integers(b, "shape", -1, tokens, width)), width, width)


def _block(b: Builder, x: str, tokens: int, heads: int, width: int, mask: str = "") -> str:
    x = b.node("Add", x, _attention(b, layer_norm(b, x, width), tokens, heads, width, mask))
    y = gelu(b, dense(b, layer_norm(b, x, width), width, 4 * width))
    return b.node("Add", x, dense(b, y, 4 * width, width))


def _causal() -> onnx.ModelProto:
    b = Builder("causal", seed=20)
    mask = np.tril(np.ones((64, 64), bool))
    b.weights.append(onnx.numpy_helper.from_array(mask, "mask"))
    return finished(b, {"x": (1, 64, 128)}, _block(b, "x", 64, 4, 128, "mask"))


def _patches(b: Builder, side: int, f: int) -> str:
    y = b.conv("x", 3, f, side, side, gain=XAVIER, bias=True)
    return b.node("Transpose", b.node("Reshape", y, integers(b, "shape", 1, f, -1)), perm=[0, 2, 1])


def _vit() -> onnx.ModelProto:
    b = Builder("vit", seed=21)
    x = b.node("Concat", b.weight("class", b.random.standard_normal((1, 1, 96))), _patches(b, 8, 96), axis=1)
    x = b.node("Add", x, b.weight("positions", b.random.standard_normal((1, 65, 96)) * 0.1))
    x = _block(b, x, 65, 3, 96)
    x = b.node("Gather", layer_norm(b, x, 96), _index(b, 0), axis=1)
    return finished(b, {"x": (1, 3, 64, 64)}, b.linear(x, 96, 10))


def _index(b: Builder, number: int) -> str:
    """A 64-bit integer of rank 0, as an index that takes its dimension away."""
    name = f"index_{len(b.weights)}"
    b.weights.append(onnx.numpy_helper.from_array(np.array(number, np.int64), name))
    return name


def _swin() -> onnx.ModelProto:
    """Attention inside shifted 4x4 windows (Liu et al. 2021)."""
    b = Builder("swin", seed=22)

    def rolled(x: str, first: int) -> str:
        for axis in (1, 2):
            at, end = (integers(b, "start", first), integers(b, "end", 16))
            tail = b.node("Slice", x, at, end, integers(b, "axis", axis))
            head = b.node("Slice", x, integers(b, "start", 0), at, integers(b, "axis", axis))
            x = b.node("Concat", tail, head, axis=axis)
        return x

    y = rolled(layer_norm(b, "x", 48), 2)
    y = b.node("Transpose", b.node("Reshape", y, integers(b, "shape", 1, 4, 4, 4, 4, 48)), perm=[0, 1, 3, 2, 4, 5])
    y = _attention(b, b.node("Reshape", y, integers(b, "shape", 16, 16, 48)), 16, 3, 48)
    y = b.node("Transpose", b.node("Reshape", y, integers(b, "shape", 1, 4, 4, 4, 4, 48)), perm=[0, 1, 3, 2, 4, 5])
    y = rolled(b.node("Reshape", y, integers(b, "shape", 1, 16, 16, 48)), 14)
    return finished(b, {"x": (1, 16, 16, 48)}, b.node("Add", "x", y))


def _mixer() -> onnx.ModelProto:
    b = Builder("mixer", seed=23)
    x = _patches(b, 8, 96)
    y = b.node("Transpose", layer_norm(b, x, 96), perm=[0, 2, 1])
    y = b.node("Transpose", dense(b, gelu(b, dense(b, y, 64, 128)), 128, 64), perm=[0, 2, 1])
    x = b.node("Add", x, y)
    y = dense(b, gelu(b, dense(b, layer_norm(b, x, 96), 96, 192)), 192, 96)
    x = b.node("ReduceMean", b.node("Add", x, y), integers(b, "axes", 1), keepdims=0)
    return finished(b, {"x": (1, 3, 64, 64)}, b.linear(x, 96, 10))


def _convnext() -> onnx.ModelProto:
    b = Builder("convnext", seed=24)
    x = b.conv("x", 3, 48, 4, 4, gain=XAVIER, bias=True)
    for _ in range(2):
        k = b.normal("depthwise", 48, 1, 7, 7, fan=49, gain=XAVIER)
        y = b.node("Conv", x, k, b.bias("bias", 48), kernel_shape=[7, 7], pads=[3] * 4, group=48)
        y = layer_norm(b, b.node("Transpose", y, perm=[0, 2, 3, 1]), 48)
        y = dense(b, gelu(b, dense(b, y, 48, 192)), 192, 48)
        y = b.node("Mul", y, b.weight("gamma", b.random.uniform(0.5, 1, 48)))
        x = b.node("Add", x, b.node("Transpose", y, perm=[0, 3, 1, 2]))
    return finished(b, {"x": (1, 3, 64, 64)}, x)


def _bilinear() -> onnx.ModelProto:
    b = Builder("bilinear", seed=25)
    w = b.normal("weight", 4, 32, 32, fan=32 * 32, gain=XAVIER)
    s = b.node("Softmax", b.node("Einsum", "q", w, "k", equation="bid,hde,bje->bhij"), axis=-1)
    y = b.node("Einsum", s, "v", equation="bhij,bjd->bihd")
    return finished(b, dict.fromkeys("qkv", (1, 40, 32)), y)


ATTENDING: tuple[Kind, ...] = (
    Kind("causal", "GPT block: causal mask by Where, GELU by erf", _causal),
    Kind("vit", "ViT: patches, class token, a block", _vit),
    Kind("swin", "Swin: attention in shifted windows", _swin),
    Kind("mixer", "MLP-Mixer", _mixer),
    Kind("convnext", "ConvNeXt: depthwise 7x7, LayerNorm, GELU", _convnext),
    Kind("bilinear", "bilinear attention by Einsum", _bilinear),
)
