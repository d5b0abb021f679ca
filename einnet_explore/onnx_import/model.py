"""ONNX model as an immutable value: ordered nodes, known shapes, weights, an identifier for every value."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from einnet_explore.ir import FUNCTIONS, REDUCTIONS

Array: TypeAlias = "NDArray[Any]"
Shape: TypeAlias = "tuple[int, ...]"


class ModelError(ValueError):
    """The model cannot be used; one line: ``FILE: node NAME (OpType): found …, expected …``."""


@dataclass(frozen=True, slots=True)
class ModelNode:
    """One ONNX node; *inputs* and *outputs* are value names, ``""`` for an omitted optional one.

    *name* is unique in the model.  *captured* are the outer values that the node's subgraphs read.
    """

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: onnx.NodeProto
    captured: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that the node reads, without repetition."""
        return tuple(dict.fromkeys(name for name in (*self.inputs, *self.captured) if name))

    @property
    def results(self) -> tuple[str, ...]:
        """The values that the node computes."""
        return tuple(name for name in self.outputs if name)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attribute values by name; strings are ``bytes``."""
        return {a.name: helper.get_attribute_value(a) for a in self.proto.attribute}

    def __str__(self) -> str:
        return f"node {self.name} ({self.op})"


@dataclass(frozen=True, slots=True)
class ModelValue:
    """Name, shape and NumPy dtype of a value of the graph; the shape is None if it is unknown before the model runs."""

    name: str
    shape: Shape | None
    dtype: np.dtype[Any] | None


@dataclass(frozen=True, slots=True)
class Model:
    """A checked model with static inputs.

    *proto* is normalised: local functions are inlined, ``Constant`` nodes are initialisers, nodes that depend on no
    input are folded, the opset is 21 if ONNX's converter succeeds, and the nodes have the order of *nodes*.  *original*
    is the model as read, with the requested shapes: the reference for comparisons.  *folded* are the nodes whose
    results became weights.
    """

    path: str
    proto: onnx.ModelProto
    original: onnx.ModelProto
    inputs: tuple[ModelValue, ...]
    outputs: tuple[ModelValue, ...]
    nodes: tuple[ModelNode, ...]
    weights: Mapping[str, Array]
    values: Mapping[str, ModelValue]
    identifiers: Mapping[str, str]
    folded: tuple[onnx.NodeProto, ...] = ()

    @property
    def opset(self) -> int:
        """Version of the default operator set of *proto*."""
        return opset(self.proto)

    def is_static(self, name: str) -> bool:
        """Return whether the shape and the element type of value *name* are known before the model runs."""
        value = self.values.get(name)
        return value is not None and value.shape is not None and value.dtype is not None

    def shape(self, name: str) -> Shape:
        """Return the shape of value *name*; raise ModelError if it is unknown before the model runs."""
        value = self.values.get(name)
        if value is None or value.shape is None:
            raise ModelError(f"{self.path}: value {name}: found no static shape, expected one")
        return value.shape

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the NumPy dtype of value *name*; raise ModelError if it is not a tensor of numbers."""
        value = self.values.get(name)
        if value is None or value.dtype is None:
            raise ModelError(f"{self.path}: value {name}: found no element type, expected a tensor")
        return value.dtype

    def digest(self) -> str:
        """Return a digest of *original*, or of its nodes alone if it exceeds the size limit of protobuf."""
        if self.original.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
            text = repr([(n.name, n.op, n.reads, n.results) for n in self.nodes]).encode()
        else:
            text = self.original.SerializeToString(deterministic=True)
        return hashlib.sha256(text).hexdigest()


def opset(proto: onnx.ModelProto) -> int:
    """Return the version of the default operator set of *proto*, 0 if the model names none."""
    return max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def list_nodes(graph: onnx.GraphProto) -> tuple[ModelNode, ...]:
    """Return the nodes of *graph* in its order with unique names; an unnamed node is named after its operator."""
    used: set[str] = set()
    out = []
    for proto in graph.node:
        stem = proto.name or proto.op_type
        name = stem if proto.name and stem not in used else _numbered(stem, used)
        used.add(name)
        out.append(
            ModelNode(
                name,
                proto.op_type,
                "" if proto.domain == "ai.onnx" else proto.domain,
                tuple(proto.input),
                tuple(proto.output),
                proto,
                tuple(dict.fromkeys(_captured(proto))),
            )
        )
    return tuple(out)


def make_identifiers(names: Iterable[str]) -> Mapping[str, str]:
    """Return a distinct identifier of the text form for every value name.

    No identifier contains two consecutive underscores or ends in one, so ``<identifier>__<word>`` is free for
    intermediate results.
    """
    out: dict[str, str] = {}
    used = set(_RESERVED)
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "v"
        stem = f"v{stem}" if stem[0].isdigit() else stem
        out[name] = stem if stem not in used else _numbered(f"{stem}_", used)
        used.add(out[name])
    return MappingProxyType(out)


_RESERVED = frozenset({*FUNCTIONS, *REDUCTIONS, "tensor", "pad", "value", "weight", "output", "inf", "nan", "via"})


def _numbered(stem: str, used: set[str]) -> str:
    return next(name for n in range(len(used) + 1) if (name := f"{stem}{n}") not in used)


def _captured(proto: onnx.NodeProto) -> Iterable[str]:
    for attribute in proto.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inner = {v.name for v in graph.input} | {w.name for w in graph.initializer}
            inner |= {w.values.name for w in graph.sparse_initializer}
            inner |= {name for node in graph.node for name in node.output}
            for node in graph.node:
                yield from (name for name in (*node.input, *_captured(node)) if name and name not in inner)
            yield from (v.name for v in graph.output if v.name not in inner)
