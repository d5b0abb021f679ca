"""Convolutions, pools and resizing as PyTorch calls, for the benchmarks' engines ``torch`` and ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from einnet_explore.graph.reading.model import Model, Node

Step: TypeAlias = "Callable[..., Any]"
"""The node's result, or a tuple of them, from its operands; one that is left out is None."""

Made: TypeAlias = "Step | None"


def spatial_step(torch: Any, model: Model, node: Node, spatial: int) -> Made:
    """What *node*, on so many *spatial* dimensions, is in PyTorch; None where it is not known here."""
    at = node.attributes
    f = torch.nn.functional
    every = tuple(range(2, spatial + 2))
    match node.op:
        case "GlobalAveragePool":
            return lambda x: x.mean(every, keepdim=True)
        case "GlobalMaxPool":
            return lambda x: x.amax(every, keepdim=True)
        case "Resize":
            return _resize(torch, model, node, spatial)
        case "DepthToSpace" if at.get("mode", b"DCR") == b"CRD":
            factor = at["blocksize"]
            return lambda x: f.pixel_shuffle(x, factor)
    if at.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or at.get("ceil_mode", 0) or len(node.results) > 1:
        return None
    pads = tuple(at.get("pads", (0,) * (2 * spatial)))
    low, high = pads[:spatial], pads[spatial:]
    stride, dilation = at.get("strides", [1] * spatial), at.get("dilations", [1] * spatial)
    groups, kernel = at.get("group", 1), at.get("kernel_shape")
    around = [n for d in reversed(range(spatial)) for n in (low[d], high[d])]
    match node.op:
        case "Conv":
            conv = getattr(f, f"conv{spatial}d")
            if low == high:
                return lambda x, w, b=None: conv(x, w, b, stride, low, dilation, groups)
            return lambda x, w, b=None: conv(f.pad(x, around), w, b, stride, 0, dilation, groups)
        case "ConvTranspose" if low == high and "output_shape" not in at:
            transposed = getattr(f, f"conv_transpose{spatial}d")
            extra = at.get("output_padding", [0] * spatial)
            return lambda x, w, b=None: transposed(x, w, b, stride, low, extra, groups, dilation)
        case "MaxPool" if low == high:
            pool = getattr(f, f"max_pool{spatial}d")
            return lambda x: pool(x, kernel, stride, low, dilation)
        case "AveragePool" if low == high and set(dilation) == {1}:
            pool, inclusive = getattr(f, f"avg_pool{spatial}d"), bool(at.get("count_include_pad", 0))
            return lambda x: pool(x, kernel, stride, low, count_include_pad=inclusive)
    return None


def _resize(torch: Any, model: Model, node: Node, spatial: int) -> Made:
    at = node.attributes
    shape, out = model.shape(node.inputs[0]), model.shape(node.outputs[0])
    grows = all(o % i == 0 for i, o in zip(shape[2:], out[2:], strict=True))
    mode = at.get("mode", b"nearest"), at.get("coordinate_transformation_mode", b"half_pixel")
    size = out[2:]
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[spatial]
    interpolate = torch.nn.functional.interpolate
    if shape[:2] != out[:2] or at.get("antialias", 0):
        return None
    match mode:
        case (b"linear", b"half_pixel" | b"pytorch_half_pixel"):
            return lambda x, *_: interpolate(x, size=size, mode=linear, align_corners=False)
        case (b"linear", b"align_corners"):
            return lambda x, *_: interpolate(x, size=size, mode=linear, align_corners=True)
        case (b"nearest", b"asymmetric") if grows and at.get("nearest_mode", b"round_prefer_floor") == b"floor":
            return lambda x, *_: interpolate(x, size=size, mode="nearest")
        case (b"nearest", b"half_pixel") if grows:
            return lambda x, *_: interpolate(x, size=size, mode="nearest-exact")
    return None
