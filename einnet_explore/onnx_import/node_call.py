"""Canonical expression of one ONNX node: operands, attributes, builders of indices; and programs of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

from einnet_explore.analysis.equations import is_typed
from einnet_explore.ir import (
    ELEMENT_TYPES,
    Access,
    Apply,
    Box,
    Const,
    Equation,
    Index,
    IndexLike,
    IntegerRanges,
    Iterator,
    Overflow,
    Padding,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    as_index,
    element_type,
    map_accesses,
    tensors,
)
from einnet_explore.onnx_import.model import Array, Model, ModelNode, Shape
from einnet_explore.support.errors import Refused
from einnet_explore.syntax.printer import describe_overflow


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One node of a model, with the accessors that operator definitions use."""

    node: ModelNode
    model: Model
    attributes: frozenset[str] = frozenset()
    """The attributes that the definition supports; it may read no others."""

    @property
    def opset(self) -> int:
        """Version of the operator set that defines the node."""
        return self.model.opset

    def has(self, n: int) -> bool:
        """Return whether the optional input *n* is present."""
        return n < len(self.node.inputs) and bool(self.node.inputs[n])

    def shape(self, n: int) -> Shape:
        """Return the shape of input *n*."""
        return self.tensor(n).shape

    def tensor(self, n: int) -> Tensor:
        """Return input *n* as a tensor."""
        if not self.has(n):
            raise Refused(f"input {n} is omitted")
        return _tensor(self.node.inputs[n], self.model)

    def named(self, name: str) -> Tensor:
        """Return the value *name* of the model as a tensor."""
        return _tensor(name, self.model)

    @property
    def out(self) -> Tensor:
        """The first output."""
        return _tensor(self.node.outputs[0], self.model)

    def output(self, n: int) -> Tensor:
        """Return output *n* as a tensor."""
        return _tensor(self.node.outputs[n], self.model)

    def get(self, name: str, default: Any) -> Any:
        """Return attribute *name*; strings are decoded, lists become tuples.

        Raises LookupError for an attribute that the definition does not declare as supported (an error in the
        definition).
        """
        if name not in self.attributes:
            raise LookupError(f"the definition of {self.node.op} reads attribute {name}, which it does not declare")
        match self.node.attributes.get(name, default):
            case bytes() as text:
                return text.decode()
            case list() as items:
                return tuple(items)
            case value:
                return value

    def constant(self, n: int, what: str) -> Array:
        """Return the constant value of input *n*; refuse an input that is computed."""
        name = self.node.inputs[n]
        if name not in self.model.weights:
            raise Refused(f"{what} ({name}) is not known before the model runs")
        return self.model.weights[name]

    def integers(self, n: int, attribute: str, default: Shape | None = None) -> Shape | None:
        """Return a list of integers: input *n* in newer operator sets, *attribute* in older ones."""
        if self.has(n):
            return tuple(int(i) for i in self.constant(n, attribute).reshape(-1))
        found = self.get(attribute, default)
        return None if found is None else tuple(int(i) for i in found)

    def axis(self, axis: int, rank: int) -> int:
        """Return the non-negative form of *axis*."""
        if not -rank <= axis < rank:
            raise Refused(f"axis {axis} is outside [-{rank}, {rank})")
        return axis % rank

    @property
    def float_limits(self) -> np.finfo:
        """Numeric limits of the first output's type."""
        return np.finfo(self.model.dtype(self.node.outputs[0]))

    def operand(self, n: int, index: tuple[Index, ...]) -> Scalar:
        """Return input *n* broadcast to *index* by NumPy's rules; a weight of one element becomes a constant."""
        name = self.node.inputs[n]
        weight = self.model.weights.get(name)
        if weight is not None and weight.size == 1 and weight.dtype.kind == "f":
            return Const(float(weight.reshape(())))
        return broadcast(self.tensor(n), index)

    def weight(self, n: int, constants: Constants) -> Tensor:
        """Return the weight *n* of those that *constants* computes; refuse a model that has none of them."""
        return self.named(self.weights(constants)[n])

    def weights(self, constants: Constants) -> tuple[str, ...]:
        """Return the names of the weights that *constants* computes, empty where it computes none."""
        if not self.node.constants:
            constants(self)
            raise Refused("its matrices are no weights of the model, as they are in a model from load_model")
        return self.node.constants

    def intermediate_name(self, word: str) -> str:
        """Return a free name for an intermediate result of this node."""
        return f"{self.out.name}__{word}"

    def equation(self, scope: Scope, word: str = "") -> Equation:
        """Return the equation of the node's result, or of its intermediate result *word*; check shape, type and range.

        Elementwise integer arithmetic that may leave the result's type wraps, as ONNX's operators do.
        """
        if word:
            self._require_range(scope)
            return Equation(self.intermediate_name(word), scope)
        if scope.shape != self.out.shape:
            raise Refused(f"the expression has shape {scope.shape}, the model says {self.out.shape}")
        found, wanted = element_type(scope), self.out.dtype
        if found != wanted or self._overflow(scope) is not None:
            if not (ELEMENT_TYPES[found].is_integer and ELEMENT_TYPES[wanted].is_integer and not scope.summations):
                self._require_range(scope)
                raise Refused(f"the expression has elements of {found}, the model says {wanted}")
            scope = replace(scope, body=Apply(wanted, (scope.body,)))
            self._require_range(scope)
        return Equation(self.out.name, scope)

    def _overflow(self, scope: Scope) -> Overflow | None:
        return IntegerRanges().equation(self.out.name, scope) if is_typed(scope) else None

    def _require_range(self, scope: Scope) -> None:
        """Refuse a *scope* with an integer result that may be beyond its type."""
        if (overflow := self._overflow(scope)) is not None:
            raise Refused(describe_overflow(self.out.name, overflow))

    def require_single_output(self) -> None:
        """Refuse a node if its second or a later output is used."""
        if extra := self.node.results[1:]:
            raise Refused(f"further outputs ({', '.join(extra)}) are used")


Express: TypeAlias = "Callable[[NodeCall], Iterable[Equation]]"

Constants: TypeAlias = "Callable[[NodeCall], Sequence[Array | None]]"
"""Weights of an expression, None where it has none; raises what an expression raises."""


@dataclass(frozen=True, slots=True)
class OnnxOperator:
    """A supported ONNX operator: its canonical expression and its kind.

    *kind* is ``contraction`` (a sum of products of two operands), ``elementwise``, ``activation`` (elementwise and not
    linear), ``layout`` (moves elements only) or ``reduction``.  *integers*: the expression is valid for integers too.
    *attributes* are the names of the supported attributes, those without effect included; a node with any other
    attribute that is not at its default has no expression.  *constants* computes weights that the expression reads
    besides the operands.
    """

    name: str
    kind: str
    express: Express
    integers: bool = False
    attributes: str = ""
    constants: Constants | None = None


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


def extent_iterators(shape: Iterable[int], stem: str = "i") -> tuple[Iterator, ...]:
    """Return one iterator for each extent: ``i0, i1, …``."""
    return tuple(Iterator(f"{stem}{n}", 0, size) for n, size in enumerate(shape))


def as_indices(xs: Iterable[IndexLike]) -> tuple[Index, ...]:
    """Convert *xs* to indices."""
    return tuple(as_index(x) for x in xs)


def broadcast(source: Tensor, index: tuple[Index, ...]) -> Access:
    """Access *source* at the last of *index*, at 0 in dimensions of extent 1 that are broadcast."""
    if len(source.shape) > len(index):
        raise Refused(f"{source.name} has {len(source.shape)} dimensions, the result has {len(index)}")
    last = index[len(index) - len(source.shape) :]
    at = (Index() if size == 1 and i.bounds[1] > 0 else i for size, i in zip(source.shape, last, strict=True))
    return access(source, *at)


def access(source: Tensor, *index: IndexLike, value: float = 0) -> Access:
    """Access ``source[index]``, padded with *value* as far as the index exceeds the bounds."""
    at = as_indices(index)
    pads = []
    for i, (lo, hi) in zip(at, source.box, strict=True):
        first, last = i.bounds
        pads.append((max(0, lo - first), max(0, last - hi + 1)))
    if any(map(any, pads)):
        source = replace(source, padding=tuple(pads), value=value)
    return Access(source, at)


def ravel_index(index: Iterable[IndexLike], shape: Shape) -> Index:
    """Return the row-major address of *index* in *shape*."""
    address = Index()
    for i, size in zip(index, shape, strict=True):
        address = address * size + i
    return address


def unravel_index(address: Index, shape: Shape) -> tuple[Index, ...]:
    """Return the index of the row-major *address* in *shape*: the inverse of ``ravel_index``."""
    out = []
    for n, size in enumerate(shape):
        stride = prod(shape[n + 1 :])
        digit = address // stride
        out.append(digit % size if n else digit)
    return tuple(out)


def _tensor(name: str, model: Model) -> Tensor:
    if not model.is_static(name):
        raise Refused(f"the shape of {name} is not known before the model runs")
    kind = str(model.dtype(name))
    if kind not in ELEMENT_TYPES:
        raise Refused(f"{name} has elements of {kind}, expected one of {', '.join(ELEMENT_TYPES)}")
    return Tensor(model.identifiers[name], model.shape(name), weight=name in model.weights, dtype=kind)


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
