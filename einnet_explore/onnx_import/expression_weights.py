"""Weights of expressions, such as the matrices of interpolations and Fourier transforms, as weights of their model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from einnet_explore.onnx_import.model import Array, Model, ModelNode, ModelValue, copy_message, make_identifiers
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator
from einnet_explore.runtime.onnx_weights import weight_proto
from einnet_explore.support.errors import Refused


def with_expression_weights(model: Model, operators: Iterable[OnnxOperator]) -> Model:
    """Return *model* with the constants of nodes of *operators* as weights, equal ones once, which their nodes name."""
    known = {operator.name: operator for operator in operators}
    weights: dict[str, Array] = {}
    nodes = tuple(_with_constants(node, known.get(node.op), model, weights) for node in model.nodes)
    if nodes == model.nodes:
        return model
    proto = copy_message(model.graph_proto)
    proto.graph.initializer.extend(weight_proto(name, array) for name, array in weights.items())
    values = {**model.values, **{name: ModelValue(name, a.shape, a.dtype) for name, a in weights.items()}}
    return replace(
        model,
        graph_proto=proto,
        nodes=nodes,
        weights=MappingProxyType({**model.weights, **weights}),
        values=MappingProxyType(values),
        identifiers=make_identifiers(values),
    )


def _with_constants(
    node: ModelNode, operator: OnnxOperator | None, model: Model, weights: dict[str, Array]
) -> ModelNode:
    """Return *node* with the names of its constants, which are added to *weights*; unchanged if it has none."""
    if operator is None or operator.constants is None or node.domain:
        return node
    try:
        found = operator.constants(NodeCall(node, model, frozenset(operator.attributes.split())))
    except (Refused, ArithmeticError, ValueError, IndexError):  # the expression is refused with this reason
        return node
    names = []
    for n, array in enumerate(found):
        name = "" if array is None else _name(array, f"{node.outputs[0]}_axis{n}", model, weights)
        if array is not None:
            weights[name] = array
        names.append(name)
    return replace(node, constants=tuple(names))


def _name(array: Array, new: str, model: Model, weights: dict[str, Array]) -> str:
    """Return the name of an equal array of *weights*, or *new*, lengthened if the model has it."""
    for name, known in weights.items():
        if known.dtype == array.dtype and np.array_equal(known, array):
            return name
    while new in model.values:
        new += "_"
    return new
