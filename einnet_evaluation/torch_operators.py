"""ONNX operators as PyTorch calls, for the benchmarks' engines ``torch`` and ``torch.compile``.

Calls are those of a hand-written PyTorch model: library functions, with shapes as constants.  A node with an unknown
operator or attribute is refused by name; nothing is approximated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from einnet_explore.onnx_import.model import Model, ModelNode

Step: TypeAlias = "Callable[..., Any]"
"""The node's result, or a tuple of them, from its operands; one that is left out is None."""

Made: TypeAlias = "Step | None"


def spatial_step(torch: Any, model: Model, node: ModelNode, spatial: int) -> Made:
    """Translate *node* with *spatial* dimensions to PyTorch; return None if its operator is unknown."""
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


def _resize(torch: Any, model: Model, node: ModelNode, spatial: int) -> Made:
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


def step(torch: Any, model: Model, node: ModelNode) -> Step:
    """Translate *node* to PyTorch; raise ValueError, with the node, if its operator is unknown."""
    spatial = len(model.shape(node.inputs[0])) - 2 if node.inputs and model.is_static(node.inputs[0]) else 0
    made: Made = None
    if not node.domain:
        made = (
            _pointwise(torch, node)
            or _shaping(torch, model, node)
            or _products(torch, model, node)
            or _reducing(torch, model, node)
            or (spatial_step(torch, model, node, spatial) if 1 <= spatial <= 3 else None)
        )
    if made is None:
        raise ValueError(f"{model.path}: {node}: found an operator that the engine torch does not run, leave torch out")
    return made


def _pointwise(torch: Any, node: ModelNode) -> Made:
    at = node.attributes
    f = torch.nn.functional
    if node.op == "Clip" and len(node.inputs) > 1:
        return lambda x, low=None, high=None: torch.clamp(x, low, high)
    if node.op == "Gelu":
        approximate = at.get("approximate", b"none").decode()
        return lambda x: f.gelu(x, approximate=approximate)
    if node.op in ("LeakyRelu", "Elu"):
        default = 0.01 if node.op == "LeakyRelu" else 1.0
        alpha, call = at.get("alpha", default), f.leaky_relu if node.op == "LeakyRelu" else f.elu
        return lambda x: call(x, alpha)
    if node.op == "HardSigmoid":
        slope, shift = at.get("alpha", 0.2), at.get("beta", 0.5)
        return lambda x: torch.clamp(slope * x + shift, 0, 1)
    known: Mapping[str, Step] = {
        "Add": operator.add,
        "Sub": operator.sub,
        "Mul": operator.mul,
        "Div": operator.truediv,
        "Pow": torch.pow,
        "Max": lambda *x: _folded(torch.maximum, x),
        "Min": lambda *x: _folded(torch.minimum, x),
        "Sum": lambda *x: _folded(operator.add, x),
        "And": torch.logical_and,
        "Or": torch.logical_or,
        "Not": torch.logical_not,
        "Equal": torch.eq,
        "Less": torch.lt,
        "LessOrEqual": torch.le,
        "Greater": torch.gt,
        "GreaterOrEqual": torch.ge,
        "Where": torch.where,
        "Relu": torch.relu,
        "Tanh": torch.tanh,
        "Sigmoid": torch.sigmoid,
        "Exp": torch.exp,
        "Log": torch.log,
        "Sqrt": torch.sqrt,
        "Abs": torch.abs,
        "Neg": torch.neg,
        "Erf": torch.erf,
        "Reciprocal": torch.reciprocal,
        "Softplus": f.softplus,
        "HardSwish": f.hardswish,
        "Identity": lambda x: x,
        "Dropout": lambda x, *_: x,
        "PRelu": lambda x, slope: _prelu(torch, x, slope),
    }
    return known.get(node.op)


def _folded(call: Step, values: Sequence[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = call(total, value)
    return total


def _prelu(torch: Any, x: Any, slope: Any) -> Any:
    # PyTorch's own takes a slope for all or one a channel.
    if slope.numel() == 1 or (
        x.dim() > 1 and slope.numel() == x.shape[1] == slope.shape[max(0, slope.dim() - x.dim() + 1)]
    ):
        return torch.nn.functional.prelu(x, slope.reshape(-1))
    return torch.where(x > 0, x, slope * x)


def _shaping(torch: Any, model: Model, node: ModelNode) -> Made:
    at = node.attributes
    fixed = _constants(model, node)
    match node.op:
        case "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" if model.is_static(node.outputs[0]):
            shape = model.shape(node.outputs[0])
            return lambda x, *_: x.reshape(shape)
        case "Expand" if model.is_static(node.outputs[0]):
            shape = model.shape(node.outputs[0])
            return lambda x, *_: x.expand(shape)
        case "Transpose" if model.is_static(node.inputs[0]):
            order = tuple(at.get("perm", reversed(range(len(model.shape(node.inputs[0]))))))
            return lambda x: x.permute(order)
        case "Concat":
            along = at["axis"]
            return lambda *x: torch.cat(x, along)
        case "Split" if all(model.is_static(name) for name in node.results):
            along = at.get("axis", 0)
            sizes = [model.shape(name)[along] for name in node.results]
            return lambda x, *_: torch.split(x, sizes, along)
        case "Tile" if len(fixed) > 1 and fixed[1] is not None:
            times = tuple(fixed[1].tolist())
            return lambda x, *_: x.repeat(times)
        case "Slice" if all(array is not None for array in fixed[1:]) and model.is_static(node.inputs[0]):
            return _slice(model, node, [a for a in fixed[1:] if a is not None])
        case "Gather" if len(fixed) > 1:
            return _gather(torch, at.get("axis", 0), fixed[1])
        case "GatherElements":
            along = at.get("axis", 0)
            return lambda x, places: torch.gather(x, along, places)
        case "Pad" if len(fixed) > 1 and fixed[1] is not None and len(node.inputs) < 4:
            return _pad(torch, model, node, fixed)
        case "Cast" if model.is_static(node.outputs[0]):
            dtype = getattr(torch, {"bool": "bool"}.get(name := model.dtype(node.outputs[0]).name, name))
            return lambda x: x.to(dtype)
    return None


def _constants(model: Model, node: ModelNode) -> list[np.ndarray[Any, Any] | None]:
    return [model.weights.get(name) for name in node.inputs]


def _slice(model: Model, node: ModelNode, given: Sequence[np.ndarray[Any, Any]]) -> Made:
    shape = model.shape(node.inputs[0])
    starts, ends = given[0].tolist(), given[1].tolist()
    axes = given[2].tolist() if len(given) > 2 else range(len(starts))
    steps = given[3].tolist() if len(given) > 3 else [1] * len(starts)
    if any(s < 1 for s in steps):
        return None
    cut = [slice(None)] * len(shape)
    for start, end, along, by in zip(starts, ends, axes, steps, strict=True):
        cut[along] = slice(*slice(start, end, by).indices(shape[along]))
    at = tuple(cut)
    return lambda x, *_: x[at]


def _gather(torch: Any, along: int, places: np.ndarray[Any, Any] | None) -> Made:
    if places is not None and places.ndim == 0:
        one = int(places)
        return lambda x, _: x.select(along, one)

    positive = places is not None and bool((places >= 0).all())

    def gather(x: Any, at: Any) -> Any:
        ahead = along % x.dim()
        # Negative places count from the end in ONNX only.
        given = at if positive else torch.where(at < 0, at + x.shape[ahead], at)
        taken = torch.index_select(x, ahead, given.reshape(-1))
        return taken.reshape(*x.shape[:ahead], *at.shape, *x.shape[ahead + 1 :])

    return gather


def _pad(torch: Any, model: Model, node: ModelNode, fixed: Sequence[np.ndarray[Any, Any] | None]) -> Made:
    assert fixed[1] is not None
    rank, amounts = len(model.shape(node.inputs[0])), fixed[1].tolist()
    value = (
        0.0 if len(fixed) < 3 or not node.inputs[2] else None if fixed[2] is None else float(fixed[2].reshape(-1)[0])
    )
    if value is None or node.attributes.get("mode", b"constant") != b"constant":
        return None
    pads = [n for d in reversed(range(rank)) for n in (amounts[d], amounts[rank + d])]
    return lambda x, *_: torch.nn.functional.pad(x, pads, value=value)


def _products(torch: Any, model: Model, node: ModelNode) -> Made:
    at = node.attributes
    match node.op:
        case "MatMul":
            return torch.matmul  # type: ignore[no-any-return]
        case "Einsum":
            equation = at["equation"].decode()
            return lambda *x: torch.einsum(equation, *x)
        case "Gemm":
            alpha, beta, left, right = (
                at.get(k, v) for k, v in (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))
            )

            def gemm(a: Any, b: Any, c: Any = None) -> Any:
                a, b = a.T if left else a, b.T if right else b
                if c is None:
                    return alpha * (a @ b) if alpha != 1 else a @ b
                return torch.addmm(c, a, b, beta=beta, alpha=alpha)

            return gemm
    return None


def _reducing(torch: Any, model: Model, node: ModelNode) -> Made:
    at = node.attributes
    f = torch.nn.functional
    fixed = _constants(model, node)
    reductions = {"ReduceSum": torch.sum, "ReduceMean": torch.mean, "ReduceMax": torch.amax, "ReduceMin": torch.amin}
    match node.op:
        case "Softmax":
            along = at.get("axis", -1)
            return lambda x: torch.softmax(x, along)
        case "LogSoftmax":
            along = at.get("axis", -1)
            return lambda x: torch.log_softmax(x, along)
        case "LayerNormalization" if len(node.results) == 1 and model.is_static(node.inputs[0]):
            shape, epsilon = model.shape(node.inputs[0])[at.get("axis", -1) :], at.get("epsilon", 1e-5)
            return lambda x, scale, shift=None: f.layer_norm(x, shape, scale, shift, epsilon)
        case "BatchNormalization" if not at.get("training_mode", 0):
            epsilon = at.get("epsilon", 1e-5)
            return lambda x, scale, shift, mean, variance: f.batch_norm(
                x, mean, variance, scale, shift, False, 0, epsilon
            )
        case "InstanceNormalization":
            epsilon = at.get("epsilon", 1e-5)
            return lambda x, scale, shift: f.instance_norm(x, None, None, scale, shift, True, 0, epsilon)
        case op if (
            op in reductions and (len(node.inputs) < 2 or fixed[1] is not None) and model.is_static(node.inputs[0])
        ):
            reduce, kept = reductions[op], bool(at.get("keepdims", 1))
            axes = fixed[1].tolist() if len(fixed) > 1 and fixed[1] is not None else list(at.get("axes", ()))
            if not axes:
                axes = [] if at.get("noop_with_empty_axes", 0) else list(range(len(model.shape(node.inputs[0]))))
            return (lambda x, *_: reduce(x, axes, keepdim=kept)) if axes else (lambda x, *_: x)
    return None
