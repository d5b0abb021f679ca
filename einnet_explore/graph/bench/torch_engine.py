"""An ONNX model run by PyTorch, node by node, for benchmarks only.

PyTorch is no dependency: ``engines.check_engines`` says so where it is missing.  A node whose operator or attributes
are not known here is refused with its name; nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from einnet_explore.graph.contest import Arrays
from einnet_explore.graph.reading.model import Model, Node

Step: TypeAlias = "Callable[[Sequence[Any]], Any]"


def torch_call(model: Model, feeds: Arrays, threads: int) -> Callable[[], Arrays]:
    """A call that runs *model* on *feeds* in PyTorch; raises ValueError, with the node, where it cannot."""
    import torch

    torch.set_num_threads(threads)
    held = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in (*model.weights.items(), *feeds.items())}
    steps = [(node, _step(torch, model, node)) for node in model.nodes]
    outputs = [v.name for v in model.outputs]

    def call() -> Arrays:
        with torch.inference_mode():
            values = dict(held)
            for node, step in steps:
                values[node.outputs[0]] = step([values[name] if name else None for name in node.inputs])
            return {name: values[name].numpy() for name in outputs}

    return call


def _step(torch: Any, model: Model, node: Node) -> Step:
    at = node.attributes
    f = torch.nn.functional
    simple: Mapping[str, Step] = {
        "Add": lambda x: x[0] + x[1],
        "Sub": lambda x: x[0] - x[1],
        "Mul": lambda x: x[0] * x[1],
        "Div": lambda x: x[0] / x[1],
        "MatMul": lambda x: x[0] @ x[1],
        "Relu": lambda x: torch.relu(x[0]),
        "Tanh": lambda x: torch.tanh(x[0]),
        "Sigmoid": lambda x: torch.sigmoid(x[0]),
        "LeakyRelu": lambda x: f.leaky_relu(x[0], at.get("alpha", 0.01)),
        "HardSigmoid": lambda x: torch.clamp(at.get("alpha", 0.2) * x[0] + at.get("beta", 0.5), 0, 1),
        "GlobalAveragePool": lambda x: x[0].mean(tuple(range(2, x[0].dim())), keepdim=True),
        "Flatten": lambda x: x[0].flatten(at.get("axis", 1)),
        "Concat": lambda x: torch.cat(list(x), at["axis"]),
        "Transpose": lambda x: x[0].permute(at.get("perm", tuple(reversed(range(x[0].dim()))))),
        "BatchNormalization": lambda x: f.batch_norm(x[0], x[3], x[4], x[1], x[2], False, 0, at.get("epsilon", 1e-5)),
    }
    if not node.domain and node.op in simple and (node.op != "Flatten" or at.get("axis", 1) == 1):
        return simple[node.op]
    spatial = len(model.shape(node.inputs[0])) - 2 if model.known(node.inputs[0]) else 0
    pads = _pads(node, spatial)
    stride = at.get("strides", [1] * spatial)
    dilation, groups = at.get("dilations", [1] * spatial), at.get("group", 1)
    known = (
        not node.domain
        and pads is not None
        and not at.get("ceil_mode", 0)
        and not at.get("auto_pad", b"").strip(b"NOTSET")
    )
    match node.op:
        case "Conv" if known and spatial in (1, 2, 3):
            conv = getattr(f, f"conv{spatial}d")
            return lambda x: conv(x[0], x[1], x[2] if len(x) > 2 else None, stride, pads, dilation, groups)
        case "ConvTranspose" if known and spatial in (1, 2, 3) and "output_shape" not in at:
            conv = getattr(f, f"conv_transpose{spatial}d")
            extra = at.get("output_padding", [0] * spatial)
            return lambda x: conv(x[0], x[1], x[2] if len(x) > 2 else None, stride, pads, extra, groups, dilation)
        case "MaxPool" if known and len(node.results) == 1 and spatial in (1, 2, 3):
            pool = getattr(f, f"max_pool{spatial}d")
            return lambda x: pool(x[0], at["kernel_shape"], stride, pads, dilation)
        case "Gemm" if not node.domain:
            alpha, beta, left, right = (
                at.get("alpha", 1.0),
                at.get("beta", 1.0),
                at.get("transA", 0),
                at.get("transB", 0),
            )

            def gemm(x: Sequence[Any]) -> Any:
                product = alpha * ((x[0].T if left else x[0]) @ (x[1].T if right else x[1]))
                return product + beta * x[2] if len(x) > 2 and x[2] is not None else product

            return gemm
        case "Reshape" if not node.domain and model.known(node.outputs[0]):
            shape = model.shape(node.outputs[0])
            return lambda x: x[0].reshape(shape)
    raise ValueError(f"{model.path}: {node}: found an operator that the engine torch does not run, leave torch out")


def _pads(node: Node, spatial: int) -> list[int] | None:
    """Symmetric padding, or None where it is not."""
    pads = list(node.attributes.get("pads", [0] * (2 * spatial)))
    return pads[:spatial] if pads[:spatial] == pads[spatial:] else None
