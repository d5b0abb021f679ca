"""Proofs that a model computes each element of a batch alone, by one function that does not depend on the batch.

The model is read at two numbers of elements.  Each of its values either has the elements in one dimension, or has no
such dimension.  The equations of all nodes are reduced to those of a single element (``analysis.batches``), which must
be the same at both numbers.  By induction over the equations, the outputs are then those of batches of one.

Operators without an expression are known by their definition in ONNX: elementwise ones, those that compute along one
other dimension, and lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from einnet_explore.analysis.batches import BatchAxis, element_scope, find_batch_axis
from einnet_explore.analysis.equations import lift_scopes, tensor_names
from einnet_explore.ir import Equation
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.model import Model, ModelNode, Shape
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble
from einnet_explore.support.errors import Refused

ELEMENTWISE = (
    "Abs", "Add", "And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike",
    "Ceil", "Clip", "DequantizeLinear", "Div", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
    "GreaterOrEqual", "HardSwish", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Mean",
    "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "QuantizeLinear", "Relu", "Round",
    "Sigmoid", "Sign", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor",
)  # fmt: skip
"""Operators whose elements depend on those of their inputs at the same place, by NumPy's rules of broadcasting."""

ALONG_ONE_AXIS = ("ArgMax", "ArgMin", "TopK")
"""Operators that compute along one dimension, in each place of the others alone."""


@dataclass(frozen=True, slots=True)
class Independence:
    """The dimension of a batch in each of the *inputs* that has one, and in each of the *outputs*."""

    inputs: Mapping[str, int]
    outputs: Mapping[str, BatchAxis | None]


BATCH_FIRST = (
    "AveragePool", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
    "GlobalLpPool", "GlobalMaxPool", "InstanceNormalization", "LRN", "LpPool", "MaxPool", "SpaceToDepth",
)  # fmt: skip
"""Operators on batches of images, whose first dimension is the batch."""


def prove_independence(models: tuple[Model, Model], axes: Mapping[str, int], counts: tuple[int, int]) -> Independence:
    """Prove that a model computes each element of a batch alone; *models* are that model for *counts* elements.

    *axes* has the dimension of the batch in each input that has one.  Raises Refused, with the node, if an element
    depends on others, on its place in the batch or on the number of elements.
    """
    proof = _Proof(models, counts)
    one, other = models
    for value in other.inputs:
        batch = proof.compare(value.name)
        if batch != (BatchAxis(axes[value.name]) if value.name in axes else None):
            raise Refused(f"input {value.name} has shapes {list(one.shape(value.name))} and {list(value.shape or ())}")
    if [(n.op, n.inputs, n.outputs) for n in one.nodes] != [(n.op, n.inputs, n.outputs) for n in other.nodes]:
        raise Refused(f"the model has other nodes for {counts[0]} than for {counts[1]} elements")
    for nodes in zip(one.nodes, other.nodes, strict=True):
        try:
            proof.check(*nodes)
        except Refused as why:
            raise Refused(f"{nodes[1]}: {why}") from None
    return Independence(dict(axes), {value.name: proof.compare(value.name) for value in other.outputs})


@dataclass(slots=True)
class _Proof:
    """The dimension of the batch in each value of *models* so far."""

    models: tuple[Model, Model]
    counts: tuple[int, int]
    batches: dict[str, BatchAxis | None] = field(default_factory=dict)

    def compare(self, name: str) -> BatchAxis | None:
        """Return the dimension of the batch in value *name*, and remember it."""
        if name not in self.batches:
            found = find_batch_axis(self.models[0].shape(name), self.models[1].shape(name), self.counts, name)
            if name in self.models[1].weights:
                self._check_weight(name, found)
            self.batches[name] = found
        return self.batches[name]

    def check(self, one: ModelNode, other: ModelNode) -> None:
        """Check a node as it is in both models; raises Refused."""
        both = tuple(_flat_equations(node, model) for node, model in zip((one, other), self.models, strict=True))
        if not (both[0] and both[1]):
            self._check_operator(one, other)
            return
        if [each.name for each in both[0]] != [each.name for each in both[1]]:
            raise Refused("it has other equations for another number of elements")
        used = {name for each in both[1] for name in (each.name, *tensor_names(each.scope))}
        names = {self.models[1].identifiers[name]: name for name in (*other.reads, *other.results)}
        found = {tensor: self.compare(name) for tensor, name in names.items() if tensor in used}
        for mine, theirs in zip(*both, strict=True):
            name = theirs.name
            if name not in found:
                found[name] = find_batch_axis(mine.scope.shape, theirs.scope.shape, self.counts, name)
            single = [
                element_scope(each.scope, found[name], found, count, name)
                for each, count in zip((mine, theirs), self.counts, strict=True)
            ]
            if single[0] != single[1]:
                raise Refused(
                    f"an element of {name} is {single[0]} if there are {self.counts[0]}, {single[1]} if there are "
                    f"{self.counts[1]}"
                )

    def _check_weight(self, name: str, batch: BatchAxis | None) -> None:
        """Raise Refused unless weight *name* is the same in both models, or for each element of the batch."""
        arrays = [model.weights[name] for model in self.models]
        if batch is None:
            is_same = np.array_equal(arrays[0], arrays[1])
        else:
            rows = [np.moveaxis(a, batch.axis, 0).reshape(n, -1) for a, n in zip(arrays, self.counts, strict=True)]
            is_same = all((array == rows[0][0]).all() for array in rows)
        if not is_same:
            raise Refused(f"weight {name} depends on the number of elements")

    def _check_operator(self, one: ModelNode, other: ModelNode) -> None:
        """Check a node without expression by the definition of its operator; raises Refused."""
        if one.proto.attribute != other.proto.attribute:
            raise Refused("its attributes depend on the number of elements")
        given = [self.compare(name) if name else None for name in other.inputs]
        if other.captured or (other.domain and any(given)):
            raise Refused("it has no expression")
        made = [self.compare(name) for name in other.results]
        if not any(given) and not any(made):
            return
        shapes = [self.models[1].shape(name) if name else () for name in other.inputs]
        if other.op not in _OPERATORS or not made:
            raise Refused("it has no expression")
        expected = _OPERATORS[other.op](other, shapes, given)
        if expected is None or any(batch != expected for batch in made):
            raise Refused("its elements depend on one another, or on their place")


def _flat_equations(node: ModelNode, model: Model) -> tuple[Equation, ...]:
    """Return the equations of *node* without nested scopes; none if it has no expression."""
    match express(node, model):
        case NotUnderstood():
            return ()
        case found:
            return lift_scopes(assemble(found, tuple(e.name for e in found))).equations


Batches: TypeAlias = "Sequence[BatchAxis | None]"


def _elementwise(_: ModelNode, shapes: Sequence[Shape], given: Batches) -> BatchAxis | None:
    """The dimension of the batch, counted from the last one, is the same in all inputs that have one."""
    rank = max(map(len, shapes))
    placed = {
        BatchAxis(batch.axis + rank - len(shape), batch.step)
        for shape, batch in zip(shapes, given, strict=True)
        if batch is not None
    }
    return placed.pop() if len(placed) == 1 else None


def _along_axis(node: ModelNode, shapes: Sequence[Shape], given: Batches) -> BatchAxis | None:
    """The batch stays where it is, if it is not in the dimension of the operator."""
    batch, *others = given
    axis = int(node.attributes.get("axis", 0 if node.op.startswith("Arg") else -1)) % len(shapes[0])
    if batch is None or any(others) or axis == batch.axis:
        return None
    gone = not node.attributes.get("keepdims", 1) and axis < batch.axis
    return BatchAxis(batch.axis - gone, batch.step)


def _batch_first(node: ModelNode, shapes: Sequence[Shape], given: Batches) -> BatchAxis | None:
    """The batch is the first dimension of the first input, no other input has one, and no indices are returned."""
    return given[0] if given[0] == BatchAxis(0) and not any(given[1:]) and len(node.results) == 1 else None


def _gather(node: ModelNode, shapes: Sequence[Shape], given: Batches) -> BatchAxis | None:
    """Rows of a tensor without batch: the batch is that of the indices."""
    data, indices = given
    if data is not None or indices is None:
        return None
    axis = int(node.attributes.get("axis", 0)) % len(shapes[0])
    return BatchAxis(axis + indices.axis, indices.step)


def _gather_elements(node: ModelNode, shapes: Sequence[Shape], given: Batches) -> BatchAxis | None:
    """Each row is looked up in the row of the same place."""
    axis = int(node.attributes.get("axis", 0)) % len(shapes[0])
    return given[0] if given[0] == given[1] and given[0] and given[0].axis != axis else None


_OPERATORS: Mapping[str, Callable[[ModelNode, Sequence[Shape], Batches], BatchAxis | None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(ALONG_ONE_AXIS, _along_axis),
    **dict.fromkeys(BATCH_FIRST, _batch_first),
    "Gather": _gather,
    "GatherElements": _gather_elements,
}
"""The dimension of the batch in the results of operators, from those in the inputs; None if they mix elements."""
