"""Canonical expressions of ONNX nodes (EinNet §3, §5.1): the table of operators that are understood, and its reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from einnet_explore.graph.reading.attention import ATTENTION
from einnet_explore.graph.reading.call import Call, OnnxOperator, Unclear
from einnet_explore.graph.reading.contraction import CONTRACTIONS
from einnet_explore.graph.reading.elementwise import ELEMENTWISE
from einnet_explore.graph.reading.layout import LAYOUT
from einnet_explore.graph.reading.masks import SELECTION
from einnet_explore.graph.reading.model import Model, Node
from einnet_explore.graph.reading.normalization import NORMALIZATION
from einnet_explore.graph.reading.reduction import REDUCTIONS_ONNX
from einnet_explore.graph.reading.resize import RESIZE
from einnet_explore.ir import Equation

OPERATORS_ONNX: Mapping[str, OnnxOperator] = MappingProxyType(
    {
        operator.name: operator
        for group in (ELEMENTWISE, CONTRACTIONS, REDUCTIONS_ONNX, LAYOUT, RESIZE, NORMALIZATION, SELECTION, ATTENTION)
        for operator in group
    }
)
"""Every ONNX operator with a canonical expression, by name."""


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A node that stays as it is, and why."""

    reason: str


def express(
    node: Node, model: Model, operators: Mapping[str, OnnxOperator] = OPERATORS_ONNX
) -> tuple[Equation, ...] | NotUnderstood:
    """What *node* computes, as equations over tensors named by ``model.identifiers``; the last is its (last) output.

    Weights are tensors flagged ``weight``; those of one element are numbers.  Reads beyond a tensor give it padding.
    """
    operator = operators.get(node.op) if not node.domain else None
    if operator is None:
        where = f"{node.domain}.{node.op}" if node.domain else node.op
        return NotUnderstood(f"operator {where} has no canonical expression")
    value = model.values.get(node.results[0]) if node.results else None
    dtype = value.dtype if value else None
    if dtype is None or dtype.kind not in ("fiu" if operator.integers else "f"):
        return NotUnderstood(f"elements are {dtype}, not real numbers")
    try:
        return tuple(operator.express(Call(node, model)))
    except Unclear as why:
        return NotUnderstood(str(why))
