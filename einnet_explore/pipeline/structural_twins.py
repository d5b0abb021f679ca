"""Values that two models compute by the same operators from the same operands, up to names and order of the nodes.

Each value gets a number: that of its operator, its attributes and the numbers of its operands, in order (hash-consing).
Values of both models with one number are equal whatever the operators compute, as long as they are functions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

import onnx

from einnet_explore.onnx_import.model import ModelNode, list_nodes
from einnet_explore.pipeline.subprogram import content_digest
from einnet_explore.runtime.arrays import Arrays

RANDOM_OPERATORS = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Operators that are no functions of their operands, or not in training."""


Graph: TypeAlias = "tuple[onnx.ModelProto, Arrays]"
"""A model and the elements of its weights, which it may declare only."""


def structural_twins(first: Graph, second: Graph, inputs: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    """Return the values of *second* that have the structure of a value of *first*, by the name of that value.

    *inputs* are the names of the inputs of *first*, and of those of *second* that correspond.  Nodes are sorted
    topologically.
    """
    numbers = dict[Hashable, int]()
    mine = _numbers_of(*first, {name: name for name in inputs}, numbers)
    theirs = _numbers_of(*second, {name: mine for mine, name in inputs.items()}, numbers)
    values = dict[int, list[str]]()
    for name, number in theirs.items():
        values.setdefault(number, []).append(name)
    return {name: values[number] for name, number in mine.items() if number in values}


def _numbers_of(
    model: onnx.ModelProto, weights: Arrays, inputs: Mapping[str, str], numbers: dict[Hashable, int]
) -> dict[str, int]:
    """Return the number of each value of *model*; *inputs* are keys of its inputs, *numbers* those known so far."""

    def number(key: Hashable) -> int:
        return numbers.setdefault(key, len(numbers))

    versions = {entry.domain: entry.version for entry in model.opset_import}
    functions = {(each.domain, each.name): each.SerializeToString(deterministic=True) for each in model.functions}
    found = {name: number(("input", key)) for name, key in inputs.items()}
    for name, array in weights.items():
        found[name] = number(content_digest({"": array}))
    for node in list_nodes(model.graph):
        has_subgraphs = any(a.HasField("g") or a.graphs for a in node.proto.attribute)
        if node.op in RANDOM_OPERATORS or has_subgraphs or any(name and name not in found for name in node.inputs):
            continue
        operands = tuple(found[name] if name else None for name in node.inputs)
        version = versions.get(node.domain, versions.get("ai.onnx"))
        key = call_key(node), version, functions.get((node.domain, node.op)), operands
        for n, name in enumerate(node.outputs):
            if name:
                found[name] = number((key, n))
    return found


def call_key(node: ModelNode) -> Hashable:
    """Return the operator and the attributes of *node*, and which operands and results it has."""
    attributes = sorted((a.name, a.SerializeToString(deterministic=True)) for a in node.proto.attribute)
    return node.op, node.domain, tuple(attributes), tuple(map(bool, node.inputs)), tuple(map(bool, node.outputs))
