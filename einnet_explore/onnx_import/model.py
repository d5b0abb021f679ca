"""ONNX model as an immutable value: ordered nodes, known shapes, weights, an identifier for every value.

Checks of graphs raise ModelError, which names the node, the value found and the value expected.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, MutableSequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import helper

from einnet_explore.ir import REDUCTIONS
from einnet_explore.ir.scalar_functions import FUNCTIONS
from einnet_explore.onnx_import.input_domains import Domains, InputDomain, parse_domain
from einnet_explore.runtime.onnx_weights import content_bytes, is_declared, with_elements

Array: TypeAlias = np.ndarray
Shape: TypeAlias = "tuple[int, ...]"
Declared: TypeAlias = "tuple[int | str | None, ...]"
"""The declared dimensions of an input: sizes, names of sizes, and None for other dynamic ones."""


M = TypeVar(
    "M",
    onnx.FunctionProto,
    onnx.ModelProto,
    onnx.NodeProto,
    onnx.SparseTensorProto,
    onnx.TensorProto,
    onnx.ValueInfoProto,
)


def copy_message(message: M) -> M:
    """Return a copy of a protocol buffer."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def replace_contents(field: MutableSequence[M], messages: Iterable[M]) -> None:
    """Replace the contents of a repeated *field* by copies of *messages*, which may be some of them."""
    copies = [copy_message(message) for message in messages]
    del field[:]
    field.extend(copies)


def walk_graphs(graph: onnx.GraphProto) -> Iterable[onnx.GraphProto]:
    """Yield *graph* and the subgraphs of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from walk_graphs(inner)


class ModelError(ValueError):
    """The model cannot be used; one line: ``FILE: node NAME (OpType): found …, expected …``."""


@dataclass(frozen=True, slots=True)
class ModelNode:
    """One ONNX node; *inputs* and *outputs* are value names, ``""`` for an omitted optional one.

    *name* is unique in the model.  *captured* are the outer values that the node's subgraphs read.  *constants* are
    weights that only its expression reads, such as the matrix of an interpolation along each axis.
    """

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: onnx.NodeProto
    captured: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that the node or its expression reads, without repetition."""
        return tuple(dict.fromkeys(name for name in (*self.inputs, *self.captured, *self.constants) if name))

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
    dtype: np.dtype | None


@dataclass(frozen=True, slots=True)
class Model:
    """A checked model with static inputs.

    *graph_proto* is normalised: local functions are inlined, ``Constant`` nodes are initialisers, nodes that depend on
    no input are folded, the opset is 21 if ONNX's converter succeeds, and the nodes have the order of *nodes*; it
    declares *weights*.  *original_proto* is the model as read, with the requested shapes and without 16-bit types: the
    reference for comparisons; it declares *original_weights*, which shares its arrays with *weights*.  *folded*
    are the nodes whose results became weights.  *dynamic* are the declared dimensions of the inputs that have dynamic
    ones, by name.  *stored* is the model with its 16-bit types, whose names are *narrow*; None if it has none.
    *domains* are those of random inputs.
    """

    path: str
    graph_proto: onnx.ModelProto
    original_proto: onnx.ModelProto
    inputs: tuple[ModelValue, ...]
    outputs: tuple[ModelValue, ...]
    nodes: tuple[ModelNode, ...]
    weights: Mapping[str, Array]
    original_weights: Mapping[str, Array]
    values: Mapping[str, ModelValue]
    identifiers: Mapping[str, str]
    folded: tuple[onnx.NodeProto, ...] = ()
    dynamic: Mapping[str, Declared] = field(default_factory=dict)
    narrow: tuple[str, ...] = ()
    stored: onnx.ModelProto | None = None
    domains: Mapping[str, InputDomain] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """Version of the default operator set of *graph_proto*."""
        return opset(self.graph_proto)

    @property
    def proto(self) -> onnx.ModelProto:
        """A copy of *graph_proto* with the elements of all weights."""
        return with_elements(self.graph_proto, self.weights)

    @property
    def original(self) -> onnx.ModelProto:
        """A copy of *original_proto* with the elements of all weights."""
        return with_elements(self.original_proto, self.original_weights)

    @property
    def is_large(self) -> bool:
        """Whether *original* exceeds the size limit of protobuf."""
        return content_bytes(self.original_proto, self.original_weights) > onnx.checker.MAXIMUM_PROTOBUF

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

    def dtype(self, name: str) -> np.dtype:
        """Return the NumPy dtype of value *name*; raise ModelError if it is not a tensor of numbers."""
        value = self.values.get(name)
        if value is None or value.dtype is None:
            raise ModelError(f"{self.path}: value {name}: found no element type, expected a tensor")
        return value.dtype

    def digest(self) -> str:
        """Return a digest of *original*, or of its nodes alone if it exceeds the size limit of protobuf."""
        if self.is_large:
            return hashlib.sha256(repr([(n.name, n.op, n.reads, n.results) for n in self.nodes]).encode()).hexdigest()
        found = hashlib.sha256(self.original_proto.SerializeToString(deterministic=True))
        for tensor in filter(is_declared, self.original_proto.graph.initializer):
            found.update(np.ascontiguousarray(self.original_weights[tensor.name]).data)
        return found.hexdigest()


def with_domains(model: Model, domains: Domains) -> Model:
    """Return *model* with the *domains* of its inputs.

    Raises ValueError for an input that it does not have, and for numbers that are none of the input's type.
    """
    types = {value.name: value.dtype for value in model.inputs}
    found = {name: parse_domain(name, given) for name, given in domains.items()}
    for name, domain in found.items():
        if name not in types:
            raise ValueError(f"domain of {name}: found no such input, expected one of {', '.join(types)}")
        dtype = types[name]
        ends = domain.values or (domain.low, domain.high)
        if dtype is not None and dtype.kind != "f":
            least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if not all(n == int(n) and least <= n <= most for n in ends):
                raise ValueError(f"domain of {name}: found {domain}, expected integers from {least} to {most}")
    return replace(model, domains={**model.domains, **found})


ONNX_DOMAINS = ("", "ai.onnx")
"""The names of the domain of ONNX's own operators."""


def opset(proto: onnx.ModelProto) -> int:
    """Return the version of the default operator set of *proto*, 0 if the model names none."""
    return max((entry.version for entry in proto.opset_import if entry.domain in ONNX_DOMAINS), default=0)


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


def check_header(file: str, proto: onnx.ModelProto) -> None:
    """Raise ModelError unless *proto* is an ONNX model of a supported version."""
    if not proto.ir_version or not proto.HasField("graph"):
        raise ModelError(f"{file}: found no ONNX graph, expected an ONNX model")
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(f"{file}: found IR version {proto.ir_version}, expected at most {onnx.IR_VERSION}")
    version, newest = opset(proto), onnx.defs.onnx_opset_version()
    if not version and any(not node.domain for node in proto.graph.node):
        raise ModelError(f"{file}: found no opset import for the default domain, expected a version up to {newest}")
    if version > newest:
        raise ModelError(f"{file}: found opset {version}, expected at most {newest}")
    if not proto.graph.node:
        raise ModelError(f"{file}: found a graph without nodes, expected at least one")
    if not proto.graph.output:
        raise ModelError(f"{file}: found a graph without outputs, expected at least one")


def check_names(file: str, graph: onnx.GraphProto, nodes: Iterable[ModelNode]) -> None:
    """Raise ModelError if a name is defined twice, or read and never defined."""
    nodes = tuple(nodes)
    inputs = [v.name for v in graph.input]
    weights = [w.name for w in graph.initializer] + [w.values.name for w in graph.sparse_initializer]
    for kind, names in (("graph input", inputs), ("weight", weights), ("graph output", [v.name for v in graph.output])):
        if twice := next((name for n, name in enumerate(names) if name in names[:n]), None):
            raise ModelError(f"{file}: {kind} {twice}: found twice, expected one of that name")
    defined: dict[str, str] = {**dict.fromkeys(inputs, "a graph input"), **dict.fromkeys(weights, "a weight")}
    for node in nodes:
        for name in node.results:
            if name in defined:
                raise ModelError(
                    f"{file}: {node}: found output {name} which is also {defined[name]}, expected a new name"
                )
            defined[name] = f"an output of {node}"
    for node in nodes:
        for name in node.reads:
            if name not in defined:
                raise ModelError(
                    f"{file}: {node}: found input {name} that nothing computes, "
                    "expected a graph input, a weight or another node's output"
                )
    for value in graph.output:
        if value.name not in defined:
            raise ModelError(f"{file}: graph output {value.name}: found no node that computes it, expected one")


def topological_order(file: str, nodes: tuple[ModelNode, ...]) -> tuple[ModelNode, ...]:
    """Sort *nodes* topologically with few changes of their order; raise ModelError for a cycle."""
    maker = {name: n for n, node in enumerate(nodes) for name in node.results}
    before = [sorted({maker[name] for name in node.reads if name in maker}) for node in nodes]
    done: set[int] = set()
    order: list[int] = []
    for first in range(len(nodes)):
        # Depth-first search with an explicit stack: graphs are deeper than Python's recursion limit.
        path = [first] if first not in done else []
        while path:
            waiting = next((n for n in before[path[-1]] if n not in done), None)
            if waiting is None:
                done.add(path[-1])
                order.append(path.pop())
            elif waiting in path:
                cycle = [*path[path.index(waiting) :], waiting]
                names = " <- ".join(nodes[n].name for n in cycle)
                raise ModelError(f"{file}: {nodes[waiting]}: found a cycle {names}, expected an acyclic graph")
            else:
                path.append(waiting)
    return tuple(nodes[n] for n in order)


_PRODUCTS = ("Conv", "ConvTranspose", "Div", "Einsum", "Gemm", "MatMul", "Mul", "PRelu")
_MULTIPLY = frozenset((*_PRODUCTS, "BatchNormalization", "InstanceNormalization", "LayerNormalization"))
_MAY_BE_EMPTY = frozenset(("Resize", "Upsample"))


def check_weights(file: str, nodes: Iterable[ModelNode], weights: Mapping[str, Array]) -> None:
    """Raise ModelError for a weight that is read and contains NaN, has no elements, or is multiplied and infinite.

    Masks and limits may be infinite, since nodes that add, select or compare handle infinities.  Unread weights are not
    checked.
    """
    readers: dict[str, list[ModelNode]] = {}
    for node in nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    for name, array in weights.items():
        using = readers.get(name)
        if not using or array.dtype.kind != "f":
            continue
        where = f"{file}: {using[0]}: weight {name}"
        if not array.size and any(node.op not in _MAY_BE_EMPTY for node in using):
            raise ModelError(f"{where}: found shape {array.shape}, expected no dimension of size 0")
        if n := int(np.isnan(array).sum()):
            raise ModelError(f"{where}: found NaN in {n} of {array.size} elements, expected finite numbers")
        if n := int(np.isinf(array).sum()):
            bad = next((node for node in using if node.op in _MULTIPLY), None)
            if bad is not None:
                raise ModelError(
                    f"{file}: {bad}: weight {name}: found an infinity in {n} of {array.size} elements, "
                    "expected finite numbers"
                )


def machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(file: str, values: Iterable[ModelValue], max_bytes: int | None = None) -> None:
    """Raise ModelError if a single value needs more than *max_bytes* (default: this machine's memory)."""
    limit = machine_memory() if max_bytes is None else max_bytes
    for value in values:
        if value.shape is None or value.dtype is None:
            continue
        size = prod(value.shape) * value.dtype.itemsize
        if size > limit:
            raise ModelError(
                f"{file}: value {value.name}: found shape {_dims(value)}, {size / 2**30:,.1f} GiB, "
                f"expected at most the {limit / 2**30:,.1f} GiB of memory here"
            )


def check_sizes(
    file: str, inputs: Iterable[ModelValue], nodes: Iterable[ModelNode], values: Mapping[str, ModelValue]
) -> None:
    """Raise ModelError if an input or a computed floating-point tensor has no elements."""
    for value in inputs:
        if value.shape is not None and 0 in value.shape:
            raise ModelError(f"{file}: input {value.name}: found shape {_dims(value)}, expected no dimension of size 0")
    for node in nodes:
        for name in node.results:
            value = values[name]
            if value.shape is not None and 0 in value.shape and value.dtype is not None and value.dtype.kind == "f":
                raise ModelError(
                    f"{file}: {node}: found output {name} of shape {_dims(value)}, expected no dimension of size 0"
                )


def _dims(value: ModelValue) -> str:
    return "x".join(map(str, value.shape or ()))
