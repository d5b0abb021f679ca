"""Functions that a model defines itself, put in the place of their calls; how much that makes is counted beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

import onnx
from onnx import inliner

from einnet_explore.graph.reading.model import ModelError

Key: TypeAlias = "tuple[str, str, str]"

MOST_NODES = 1_000_000
"""Thirty functions of two calls each make a billion nodes of a file of a kilobyte."""


def inlined(file: str, proto: onnx.ModelProto, most: int = MOST_NODES) -> onnx.ModelProto:
    """*proto* without functions of its own.

    Raises ModelError where functions call one another in a circle, or come to more than *most* nodes, and where a node
    outside of functions refers to an attribute that only a function's call could give.
    """
    if proto.functions:
        proto = _without(file, proto, most)
    for node in _every(proto.graph.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise ModelError(
                    f"{file}: node {node.name} ({node.op_type}): found attribute {attribute.name} that refers to "
                    f"{attribute.ref_attr_name}, expected a value: the node is in no function"
                )
    return proto


def _without(file: str, proto: onnx.ModelProto, most: int) -> onnx.ModelProto:
    calls = {(f.domain, f.name, f.overload): _calls(f.node) for f in proto.functions}
    try:
        order = tuple(
            TopologicalSorter({key: called.keys() & calls.keys() for key, called in calls.items()}).static_order()
        )
    except CycleError as cycle:
        told = " <- ".join(f"{domain}.{name}" for domain, name, _ in cycle.args[1])
        raise ModelError(f"{file}: found functions that call one another in a circle, {told}, expected none") from None
    size: dict[Key, int] = {}
    for key in order:
        size[key] = _size(calls[key], size)
    if (found := _size(_calls(proto.graph.node), size)) > most:
        raise ModelError(f"{file}: found functions that come to {found:.3g} nodes, expected at most {most}")
    try:
        return inliner.inline_local_functions(proto)
    except (onnx.checker.ValidationError, RuntimeError) as error:
        raise ModelError(f"{file}: found functions that fit no call: {str(error).splitlines()[0]}") from None


def _size(calls: Counter[Key], known: dict[Key, int]) -> int:
    return sum(count * known.get(key, 1) for key, count in calls.items())


def _calls(nodes: Iterable[onnx.NodeProto]) -> Counter[Key]:
    """How often each operator or function is called by *nodes*, and by the graphs in them."""
    return Counter((node.domain, node.op_type, node.overload) for node in _every(nodes))


def every_node(proto: onnx.ModelProto) -> Iterable[onnx.NodeProto]:
    """The nodes of *proto*, of its functions, and of the graphs in all these."""
    return _every([*proto.graph.node, *(node for function in proto.functions for node in function.node)])


def _every(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    """*nodes* and those of the graphs in them."""
    waiting = list(nodes)
    while waiting:
        yield (node := waiting.pop())
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node
