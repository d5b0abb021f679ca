"""Canonical expressions of ONNX nodes (EinNet §3, §5.1): the table of supported operators, and its lookup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import onnx
from onnx import helper

from einnet_explore.ir import Equation
from einnet_explore.onnx_import.attention import ATTENTION
from einnet_explore.onnx_import.contraction import CONTRACTIONS
from einnet_explore.onnx_import.elementwise import ELEMENTWISE, SELECTION
from einnet_explore.onnx_import.layout import LAYOUT, RESIZE
from einnet_explore.onnx_import.model import Model, ModelNode
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator
from einnet_explore.onnx_import.normalization import NORMALIZATION
from einnet_explore.onnx_import.reduction import REDUCTIONS_ONNX
from einnet_explore.support.errors import Refused

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
    """A node without a canonical expression, and the reason."""

    reason: str


_EXECUTION_HINTS = frozenset(("consumed_inputs",))
"""Attributes of operator set 1 that control the execution of a node, not its result."""


def unsupported_attributes(node: ModelNode, opset: int, known: frozenset[str]) -> tuple[str, ...]:
    """Return the attributes of *node* that are not in *known* and not at their default in operator set *opset*."""
    others = {name: value for name, value in node.attributes.items() if name not in known | _EXECUTION_HINTS}
    if not others:
        return ()
    try:
        declared = onnx.defs.get_schema(node.op, opset, node.domain).attributes
    except onnx.defs.SchemaError:  # an operator set that this version of onnx does not know
        return tuple(sorted(others))
    return tuple(
        sorted(name for name, value in others.items() if name not in declared or value != _default(declared[name]))
    )


def _default(declared: onnx.defs.OpSchema.Attribute) -> Any:
    value = declared.default_value
    return helper.get_attribute_value(value) if value.type else None


def express(
    node: ModelNode, model: Model, operators: Mapping[str, OnnxOperator] = OPERATORS_ONNX
) -> tuple[Equation, ...] | NotUnderstood:
    """Return the equations of *node* over tensors named by ``model.identifiers``; the last one is its last output.

    Weights are tensors flagged ``weight``, except weights of one element, which are constants.  A tensor is padded as
    far as the equations read beyond it.
    """
    operator = operators.get(node.op) if not node.domain else None
    if operator is None:
        where = f"{node.domain}.{node.op}" if node.domain else node.op
        return NotUnderstood(f"operator {where} has no canonical expression")
    value = model.values.get(node.results[0]) if node.results else None
    dtype = value.dtype if value else None
    if dtype is None or dtype.kind not in ("fiu" if operator.integers else "f"):
        return NotUnderstood(f"elements are {dtype}, not real numbers")
    known = frozenset(operator.attributes.split())
    if new := unsupported_attributes(node, model.opset, known):
        return NotUnderstood(f"attribute {', '.join(new)} is not supported")
    try:
        return tuple(operator.express(NodeCall(node, model, known)))
    except Refused as why:
        return NotUnderstood(str(why))
    except (ArithmeticError, ValueError, IndexError) as error:  # malformed attributes that ONNX's checker accepts
        return NotUnderstood(f"its attributes are malformed: {str(error).splitlines()[0]}")
