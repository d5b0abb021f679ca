"""What must hold of an ONNX graph before anything is done with it; every failure names the node and what was found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
import onnx

from einnet_explore.onnx_import.model import Array, ModelError, ModelNode, ModelValue, opset


def check_header(file: str, proto: onnx.ModelProto) -> None:
    """Raise ModelError unless *proto* is an ONNX model of a version that can be read."""
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
    """Raise ModelError where a name is given twice, or read and never given."""
    nodes = tuple(nodes)
    inputs = [v.name for v in graph.input]
    weights = [w.name for w in graph.initializer] + [w.values.name for w in graph.sparse_initializer]
    for kind, names in (("graph input", inputs), ("weight", weights), ("graph output", [v.name for v in graph.output])):
        if twice := next((name for n, name in enumerate(names) if name in names[:n]), None):
            raise ModelError(f"{file}: {kind} {twice}: found twice, expected one of that name")
    given: dict[str, str] = {**dict.fromkeys(inputs, "a graph input"), **dict.fromkeys(weights, "a weight")}
    for node in nodes:
        for name in node.results:
            if name in given:
                raise ModelError(
                    f"{file}: {node}: found output {name} which is also {given[name]}, expected a new name"
                )
            given[name] = f"an output of {node}"
    for node in nodes:
        for name in node.reads:
            if name not in given:
                raise ModelError(
                    f"{file}: {node}: found input {name} that nothing computes, "
                    "expected a graph input, a weight or another node's output"
                )
    for value in graph.output:
        if value.name not in given:
            raise ModelError(f"{file}: graph output {value.name}: found no node that computes it, expected one")


def topological_order(file: str, nodes: tuple[ModelNode, ...]) -> tuple[ModelNode, ...]:
    """*nodes* in topological order, as near to the given order as possible; raises ModelError on a cycle."""
    maker = {name: n for n, node in enumerate(nodes) for name in node.results}
    before = [sorted({maker[name] for name in node.reads if name in maker}) for node in nodes]
    done: set[int] = set()
    order: list[int] = []
    for first in range(len(nodes)):
        # Depth first with a stack of its own: graphs are deeper than Python's.
        path = [first] if first not in done else []
        while path:
            waiting = next((n for n in before[path[-1]] if n not in done), None)
            if waiting is None:
                done.add(path[-1])
                order.append(path.pop())
            elif waiting in path:
                cycle = [*path[path.index(waiting) :], waiting]
                told = " <- ".join(nodes[n].name for n in cycle)
                raise ModelError(f"{file}: {nodes[waiting]}: found a cycle {told}, expected an acyclic graph")
            else:
                path.append(waiting)
    return tuple(nodes[n] for n in order)


_PRODUCTS = ("Conv", "ConvTranspose", "Div", "Einsum", "Gemm", "MatMul", "Mul", "PRelu")
_MULTIPLY = frozenset((*_PRODUCTS, "BatchNormalization", "InstanceNormalization", "LayerNormalization"))
_MAY_BE_EMPTY = frozenset(("Resize", "Upsample"))


def check_weights(file: str, nodes: Iterable[ModelNode], weights: Mapping[str, Array]) -> None:
    """Raise ModelError on a NaN, on an infinity that something multiplies, and on an empty weight, where it is used.

    Masks and limits may be infinite: what adds, selects or compares can bear that.  A weight that nothing reads is
    no part of what the model computes.
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
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(file: str, values: Iterable[ModelValue], most: int | None = None) -> None:
    """Raise ModelError, before anything is allocated, where one value alone takes more than *most* bytes.

    None: what this machine has.
    """
    limit = machine_memory() if most is None else most
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
    """Raise ModelError where an input or a computed tensor of real numbers has no elements."""
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
