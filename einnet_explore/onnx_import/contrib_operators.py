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

from einnet_explore.onnx_import.model import Array, copy_message, opset, replace_contents

CONTRIB_DOMAIN = "com.microsoft"

_CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


class _KeptError(Exception):
    """A node stays as it is."""


@dataclass(slots=True)
class _Expansion:
    """The standard *nodes* and *weights* that replace one node of *model*; values between them are numbered."""

    node: onnx.NodeProto
    model: _GraphFacts
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
        """Return the name of a new weight of rank 0, of the type of the node's real weights or of the model."""
        return self._weight(np.array(value, self.model.real_type(self.node)))

    def _weight(self, array: Array) -> str:
        name = self.model.new_name(f"{self.node.output[0]}/constant{len(self.weights)}")
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its first output."""
        name = output or self.model.new_name(f"{self.node.output[0]}/{len(self.nodes)}")
        self.nodes.append(helper.make_node(op, inputs, [name], f"{self.node.name}/{len(self.nodes)}", **attributes))
        return name

    def mean(self, value: str, axes: tuple[int, ...]) -> str:
        """Add the mean of *value* over *axes*, which stay with extent 1."""
        if self.model.opset < _REDUCTION_AXES_ARE_INPUTS_SINCE:
            return self.add("ReduceMean", value, axes=axes, keepdims=1)
        return self.add("ReduceMean", value, self._weight(np.array(axes, np.int64)), keepdims=1)

    def end(self, value: str, n: int = 0) -> None:
        """Make *value* the node's output *n*."""
        if self.output(n):
            self.add("Identity", value, output=self.output(n))


_Expand: TypeAlias = "Callable[[_Expansion], None]"

_LAYER_NORMALIZATION_SINCE = 17
"""The operator set that adds LayerNormalization; ONNX Runtime has it in all."""

_REDUCTION_AXES_ARE_INPUTS_SINCE = 18


class _GraphFacts:
    """Operator set, names, ranks and element types of a model."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        graph = proto.graph
        self.opset = opset(proto)
        self._weights = {weight.name: weight for weight in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.input)}
        self._taken = {*self._weights, *self._makers, *self._types}
        every = (*(t.elem_type for t in self._types.values()), *(w.data_type for w in graph.initializer))
        self._real = {kind for kind in every if kind in _REAL}

    def new_name(self, name: str) -> str:
        """Return *name*, lengthened if the model has it."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def real_type(self, node: onnx.NodeProto) -> np.dtype[Any]:
        """Return the element type of the real weights of *node*, otherwise of the model.

        Raises _KeptError if it has several.
        """
        own = {self._weights[name].data_type for name in node.input if name in self._weights} & {*_REAL}
        kinds = own or self._real or {onnx.TensorProto.FLOAT}
        if len(kinds) > 1:
            raise _KeptError
        (kind,) = kinds
        return helper.tensor_dtype_to_np_dtype(kind)

    def rank(self, name: str) -> int | None:
        """Return the rank of the value *name* if it is declared, or evident from the node that makes it."""
        if name in self._weights:
            return len(self._weights[name].dims)
        if (known := self._types.get(name)) is not None and known.HasField("shape"):
            return len(known.shape.dim)
        match self._makers.get(name):
            case onnx.NodeProto(op_type="Transpose", attribute=[perm]):
                return len(perm.ints)
            case onnx.NodeProto(op_type="Reshape", input=[_, shape]) if shape in self._weights:
                return int(self._weights[shape].dims[0])
        return None


_REAL = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def expand_contrib_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return *proto* with the nodes of known operators of ``com.microsoft`` as standard ones; others stay."""
    out = _expand(proto, CONTRIB_DOMAIN, _EXPANSIONS)
    if out is not proto and not any(node.domain == CONTRIB_DOMAIN for node in out.graph.node):
        kept = [entry for entry in proto.opset_import if not entry.domain.startswith(CONTRIB_DOMAIN)]
        replace_contents(out.opset_import, kept)
    return out


def expand_unregistered_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return *proto* with standard nodes in place of normalisations that its operator set lacks.

    ONNX Runtime's optimiser writes ``LayerNormalization`` in operator sets before 17, and in all of them
    ``SimplifiedLayerNormalization``, which no operator set has.  Nodes with further outputs stay.
    """
    return _expand(proto, "", _UNREGISTERED if opset(proto) < _LAYER_NORMALIZATION_SINCE else _NEVER_REGISTERED)


def _expand(proto: onnx.ModelProto, domain: str, expansions: Mapping[str, _Expand]) -> onnx.ModelProto:
    """Return *proto* with the nodes of *domain* that *expansions* have as standard ones; itself if it has none."""
    if not any(node.domain == domain and node.op_type in expansions for node in proto.graph.node):
        return proto
    out, model = copy_message(proto), _GraphFacts(proto)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        expand = expansions.get(node.op_type) if node.domain == domain else None
        expansion = _Expansion(node, model)
        try:
            if expand is None or any(a.name.startswith("transBatch") and a.i for a in node.attribute):
                raise _KeptError
            expand(expansion)
        except _KeptError:
            nodes.append(node)
            continue
        nodes += expansion.nodes
        out.graph.initializer.extend(expansion.weights)
    replace_contents(out.graph.node, nodes)
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
    name = at.input(n)
    if not at.attributes.get(f"trans{letter}", 0):
        return name
    rank = at.model.rank(name)
    if rank is None:
        return at.add("Einsum", name, equation="...ij->...ji")
    return at.add("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2]) if rank > 1 else name


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
    total = _sum(at, at.input(0), at.input(1), at.input(4))
    epsilon = at.attributes.get("epsilon", 1e-12)
    if at.model.opset < _LAYER_NORMALIZATION_SINCE:
        at.end(_normalized(at, total, (-1,), epsilon, at.input(2), at.input(3)))
    else:
        affine = [name for name in (at.input(2), at.input(3)) if name]
        at.end(at.add("LayerNormalization", total, *affine, axis=-1, epsilon=epsilon))
    at.end(total, 3)


def _skip_simplified_layer_normalization(at: _Expansion) -> None:
    total = _sum(at, at.input(0), at.input(1), at.input(3))
    at.end(_scaled_by_norm(at, total, (-1,), at.attributes.get("epsilon", 1e-12), at.input(2)))
    at.end(total, 3)


def _sum(at: _Expansion, first: str, *others: str) -> str:
    for other in others:
        first = at.add("Add", first, other) if other else first
    return first


def _layer_normalization(at: _Expansion) -> None:
    _require_one_output(at)
    epsilon = at.attributes.get("epsilon", 1e-5)
    at.end(_normalized(at, at.input(0), _last_axes(at), epsilon, at.input(1), at.input(2)))


def _simplified_layer_normalization(at: _Expansion) -> None:
    _require_one_output(at)
    at.end(_scaled_by_norm(at, at.input(0), _last_axes(at), at.attributes.get("epsilon", 1e-5), at.input(1)))


def _require_one_output(at: _Expansion) -> None:
    if any(at.node.output[1:]):
        raise _KeptError


def _last_axes(at: _Expansion) -> tuple[int, ...]:
    """Return the axes from the attribute ``axis`` on, counted from the last one."""
    axis = at.attributes.get("axis", -1)
    if axis >= 0:
        rank = at.model.rank(at.input(0))
        if rank is None:
            raise _KeptError
        axis -= rank
    return tuple(range(axis, 0))


def _normalized(at: _Expansion, x: str, axes: tuple[int, ...], epsilon: float, scale: str, bias: str) -> str:
    """Add a normalisation to mean 0 and variance 1 over *axes*, as exporters write it before operator set 17."""
    centred = at.add("Sub", x, at.mean(x, axes))
    out = _scaled_by_norm(at, centred, axes, epsilon, scale)
    return at.add("Add", out, bias) if bias else out


def _scaled_by_norm(at: _Expansion, x: str, axes: tuple[int, ...], epsilon: float, scale: str) -> str:
    """Add a division of *x* by the root of its mean square over *axes*, and a product with *scale*."""
    square = at.mean(at.add("Pow", x, at.constant(2)), axes)
    root = at.add("Sqrt", at.add("Add", square, at.constant(epsilon)))
    return at.add("Mul", at.add("Div", x, root), scale)


_NEVER_REGISTERED: Mapping[str, _Expand] = MappingProxyType(
    {"SimplifiedLayerNormalization": _simplified_layer_normalization}
)
"""Operators that no operator set has, but ONNX Runtime in the standard domain."""

_UNREGISTERED: Mapping[str, _Expand] = MappingProxyType(
    {**_NEVER_REGISTERED, "LayerNormalization": _layer_normalization}
)
"""Those, and operators that ONNX Runtime has in earlier operator sets than ONNX."""

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
        "SkipSimplifiedLayerNormalization": _skip_simplified_layer_normalization,
    }
)
