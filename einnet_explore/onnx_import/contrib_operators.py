"""Operators of ONNX Runtime's domain ``com.microsoft``, which its optimiser writes, as nodes of standard operators.

Definitions: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from einnet_explore.onnx_import.model import copy_message, replace_contents

CONTRIB_DOMAIN = "com.microsoft"

_CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


@dataclass(slots=True)
class _Expansion:
    """The standard *nodes* and *weights* that replace one node; values between them are numbered."""

    node: onnx.NodeProto
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    @property
    def attributes(self) -> dict[str, Any]:
        return {a.name: helper.get_attribute_value(a) for a in self.node.attribute}

    def input(self, n: int) -> str:
        """The name of input *n*; empty if it is omitted."""
        return self.node.input[n] if n < len(self.node.input) else ""

    def output(self, n: int) -> str:
        """The name of output *n*; empty if it is omitted."""
        return self.node.output[n] if n < len(self.node.output) else ""

    def constant(self, value: float) -> str:
        """Return the name of a new weight of rank 0."""
        name = f"{self.node.output[0]}/constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def add(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its first output."""
        name = output or f"{self.node.output[0]}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"{self.node.name}/{len(self.nodes)}", **attributes))
        return name

    def end(self, value: str, n: int = 0) -> None:
        """Make *value* the node's output *n*."""
        if self.output(n):
            self.add("Identity", value, output=self.output(n))


_Expand: TypeAlias = "Callable[[_Expansion], None]"


def expand_contrib_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return *proto* with the nodes of known operators of ``com.microsoft`` as standard ones; others stay."""
    out = copy_message(proto)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        expand = _EXPANSIONS.get(node.op_type) if node.domain == CONTRIB_DOMAIN else None
        if expand is None or any(a.name.startswith("transBatch") and a.i for a in node.attribute):
            nodes.append(node)
            continue
        expansion = _Expansion(node)
        expand(expansion)
        nodes += expansion.nodes
        out.graph.initializer.extend(expansion.weights)
    replace_contents(out.graph.node, nodes)
    if not any(node.domain == CONTRIB_DOMAIN for node in nodes):
        kept = [entry for entry in proto.opset_import if not entry.domain.startswith(CONTRIB_DOMAIN)]
        replace_contents(out.opset_import, kept)
    return out


def _activate(at: _Expansion, value: str, parameters: Iterable[float]) -> str:
    """Apply the activation that the attribute ``activation`` names, with its *parameters*."""
    name = at.attributes.get("activation", b"").decode()
    given = tuple(parameters)
    match name:
        case "":
            return value
        case "Clip":
            return at.add("Clip", value, *map(at.constant, given))
        case "LeakyRelu":
            return at.add(name, value, alpha=given[0] if given else 0.01)
        case "HardSigmoid":
            return at.add(name, value, alpha=given[0] if given else 0.2, beta=given[1] if len(given) > 1 else 0.5)
    return at.add(name, value)


def _fused_conv(at: _Expansion) -> None:
    attributes = {name: value for name, value in at.attributes.items() if name in _CONV_ATTRIBUTES}
    value = at.add("Conv", *(name for name in map(at.input, range(3)) if name), **attributes)
    if at.input(3):
        value = at.add("Add", value, at.input(3))
    at.end(_activate(at, value, at.attributes.get("activation_params", ())))


def _fused_gemm(at: _Expansion) -> None:
    attributes = {k: v for k, v in at.attributes.items() if k in ("alpha", "beta", "transA", "transB")}
    value = at.add("Gemm", *(name for name in map(at.input, range(3)) if name), **attributes)
    given = (at.attributes.get(f"activation_{word}") for word in ("alpha", "beta", "gamma"))
    at.end(_activate(at, value, (each for each in given if each is not None)))


def _fused_matmul(at: _Expansion) -> None:
    value = at.add("MatMul", *(_last_axes_swapped(at, n, "AB"[n]) for n in range(2)))
    alpha = at.attributes.get("alpha", 1.0)
    at.end(value if alpha == 1 else at.add("Mul", value, at.constant(alpha)))


def _last_axes_swapped(at: _Expansion, n: int, letter: str) -> str:
    if not at.attributes.get(f"trans{letter}", 0):
        return at.input(n)
    return at.add("Einsum", at.input(n), equation="...ij->...ji")


def _gelu(at: _Expansion, value: str) -> str:
    inside = at.add("Erf", at.add("Div", value, at.constant(sqrt(2))))
    return at.add("Mul", at.add("Mul", value, at.add("Add", inside, at.constant(1))), at.constant(0.5))


def _bias_gelu(at: _Expansion) -> None:
    at.end(_gelu(at, at.add("Add", at.input(0), at.input(1))))


def _fast_gelu(at: _Expansion) -> None:
    x = at.add("Add", at.input(0), at.input(1)) if at.input(1) else at.input(0)
    cube = at.add("Mul", at.add("Mul", at.add("Mul", x, x), x), at.constant(0.044715))
    inside = at.add("Tanh", at.add("Mul", at.add("Add", x, cube), at.constant(sqrt(2 / np.pi))))
    at.end(at.add("Mul", at.add("Mul", x, at.add("Add", inside, at.constant(1))), at.constant(0.5)))


def _quick_gelu(at: _Expansion) -> None:
    scaled = at.add("Mul", at.input(0), at.constant(at.attributes.get("alpha", 1.702)))
    at.end(at.add("Mul", at.input(0), at.add("Sigmoid", scaled)))


def _skip_layer_normalization(at: _Expansion) -> None:
    total = at.add("Add", at.input(0), at.input(1))
    if at.input(4):
        total = at.add("Add", total, at.input(4))
    affine = [name for name in (at.input(2), at.input(3)) if name]
    at.end(at.add("LayerNormalization", total, *affine, axis=-1, epsilon=at.attributes.get("epsilon", 1e-12)))
    at.end(total, 3)


_EXPANSIONS: Mapping[str, _Expand] = MappingProxyType(
    {
        "BiasGelu": _bias_gelu,
        "FastGelu": _fast_gelu,
        "FusedConv": _fused_conv,
        "FusedGemm": _fused_gemm,
        "FusedMatMul": _fused_matmul,
        "Gelu": lambda at: at.end(_gelu(at, at.input(0))),
        "QuickGelu": _quick_gelu,
        "SkipLayerNormalization": _skip_layer_normalization,
    }
)
