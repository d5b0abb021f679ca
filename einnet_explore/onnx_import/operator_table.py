"""Canonical expressions of ONNX nodes (EinNet §3, §5.1): the table of operators, its lookup, and whole programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeAlias

import onnx
from onnx import helper

from einnet_explore.ir import (
    Access,
    Box,
    Equation,
    Iterator,
    Padding,
    Program,
    Scope,
    Table,
    Tensor,
    map_accesses,
    tensors,
)
from einnet_explore.onnx_import.attention import ATTENTION
from einnet_explore.onnx_import.contraction import CONTRACTIONS
from einnet_explore.onnx_import.elementwise import ELEMENTWISE, SELECTION
from einnet_explore.onnx_import.layout import LAYOUT
from einnet_explore.onnx_import.model import Model, ModelNode
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator
from einnet_explore.onnx_import.normalization import NORMALIZATION
from einnet_explore.onnx_import.reduction import REDUCTIONS_ONNX
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
    ELEMENTWISE, CONTRACTIONS, REDUCTIONS_ONNX, LAYOUT, RESIZE, NORMALIZATION, SELECTION, ATTENTION
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


PaddedWith: TypeAlias = "tuple[Padding, float]"
"""Padding of a tensor and its value."""


def assemble(equations: Iterable[Equation], outputs: tuple[str, ...]) -> Program:
    """Return the program of *equations*; its inputs are the tensors that no equation computes.

    All readers of a tensor share its widest padding.  If they expect different values in the padding (0 for a
    convolution, -inf for a maximum), readers of the rarer value read a scope that copies the tensor and is padded with
    that value.
    """
    equations = tuple(equations)
    made = {e.name: e.scope for e in equations}
    reads: dict[str, list[Tensor]] = {}
    for e in equations:
        for tensor in tensors(e.scope):
            reads.setdefault(tensor.name, []).append(tensor)
    common = {name: _common_padding(found) for name, found in reads.items()}
    out = []
    for e in equations:
        scope = _with_common_padding(e.scope, common)
        padding, value = common.get(e.name, ((), 0.0))
        out.append(replace(e, scope=replace(scope, padding=padding, value=value) if padding else scope))
    inputs = (replace(found[0], padding=common[name][0], value=common[name][1]) for name, found in reads.items())
    return Program(tuple(t for t in inputs if t.name not in made), tuple(out), outputs)


def _common_padding(found: list[Tensor]) -> PaddedWith:
    """The padding that most readers agree on: the widest of those with the commonest value."""
    padded = [t for t in found if t.padding]
    if not padded:
        return (), 0.0
    value = Counter(t.value for t in padded).most_common(1)[0][0]
    return _widest_padding(t.padding for t in padded if t.value == value), value


def _widest_padding(paddings: Iterable[Padding]) -> Padding:
    return tuple(
        (max(before for before, _ in dimension), max(after for _, after in dimension))
        for dimension in zip(*paddings, strict=True)
    )


def _with_common_padding(scope: Scope, common: Mapping[str, PaddedWith]) -> Scope:
    """Return *scope* with every tensor in its common padding, or read through a copy with another padding value."""

    def change(access: Access) -> Access:
        match access.source:
            case Table():
                return access
            case Scope() as inner:
                return Access(_with_common_padding(inner, common), access.index)
            case Tensor(name=name) as tensor:
                padding, value = common[name]
                shared = replace(tensor, padding=padding, value=value if padding else 0)
                if tensor.padding and tensor.value != value:
                    return Access(_padded_copy(shared, tensor.padding, tensor.value), access.index)
                return Access(shared, access.index)

    return replace(scope, body=map_accesses(scope.body, change))


def _padded_copy(tensor: Tensor, padding: Padding, value: float) -> Scope:
    box: Box = tensor.box
    xs = tuple(Iterator(f"i{n}", lo, hi) for n, (lo, hi) in enumerate(box))
    return Scope(xs, (), tensor[xs], padding=padding, value=value)
