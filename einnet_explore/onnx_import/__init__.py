"""ONNX models as canonical expressions (EinNet §3, §5.1): the table of operators, and its lookup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from types import MappingProxyType

from einnet_explore.ir import Equation
from einnet_explore.onnx_import.attention import ATTENTION
from einnet_explore.onnx_import.contraction import CONTRACTIONS
from einnet_explore.onnx_import.elementwise import CONDITIONS, ELEMENTWISE, SELECTION
from einnet_explore.onnx_import.fourier import FOURIER
from einnet_explore.onnx_import.layout import LAYOUT
from einnet_explore.onnx_import.model import Model, ModelNode
from einnet_explore.onnx_import.node_call import NodeCall, NotUnderstood, OnnxOperator, unsupported_attributes
from einnet_explore.onnx_import.quantization import QUANTIZATION
from einnet_explore.onnx_import.reduction import NORMALIZATION, REDUCTIONS_ONNX
from einnet_explore.onnx_import.resizing import RESIZE
from einnet_explore.support.errors import Refused


def operators_by_name(*groups: Iterable[OnnxOperator]) -> Mapping[str, OnnxOperator]:
    """Return the operators of *groups* by name; raises ValueError if two have one name."""
    found: dict[str, OnnxOperator] = {}
    for operator in chain(*groups):
        if found.setdefault(operator.name, operator) is not operator:
            raise ValueError(
                f"ONNX operator {operator.name} has two entries, expected one: each scalar function has one"
            )
    return MappingProxyType(found)


OPERATORS_ONNX = operators_by_name(
    ELEMENTWISE,
    CONTRACTIONS,
    FOURIER,
    REDUCTIONS_ONNX,
    LAYOUT,
    RESIZE,
    NORMALIZATION,
    SELECTION,
    ATTENTION,
    QUANTIZATION,
)
"""Every ONNX operator with a canonical expression, by name."""

OPERATORS_OF_PROOFS: Mapping[str, OnnxOperator] = MappingProxyType({**OPERATORS_ONNX, **operators_by_name(CONDITIONS)})
"""Those, and comparisons of values, which proofs have expressions of and subprograms do not compute."""


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
    if dtype is None or dtype.kind not in ("fiub" if operator.integers else "f"):
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
