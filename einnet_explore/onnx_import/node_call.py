"""What a canonical expression of an ONNX operator is made from: one node's operands, attributes and index builders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from einnet_explore.ir import Access, Const, Equation, Index, IndexLike, Iterator, Scalar, Scope, Tensor, as_index
from einnet_explore.onnx_import.model import Array, Model, ModelNode, Shape
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One node of a model, with the questions that an operator's definition asks."""

    node: ModelNode
    model: Model
    attributes: frozenset[str] = frozenset()
    """Those that the definition knows: it may ask for no other."""

    @property
    def opset(self) -> int:
        """The version of the operator set that defines the node."""
        return self.model.opset

    def has(self, n: int) -> bool:
        """Whether the optional input *n* is given."""
        return n < len(self.node.inputs) and bool(self.node.inputs[n])

    def shape(self, n: int) -> Shape:
        """The shape of input *n*."""
        return self.tensor(n).shape

    def tensor(self, n: int) -> Tensor:
        """Input *n* as a tensor."""
        if not self.has(n):
            raise Refused(f"input {n} is left out")
        return _tensor(self.node.inputs[n], self.model)

    @property
    def out(self) -> Tensor:
        """The first output."""
        return _tensor(self.node.outputs[0], self.model)

    def output(self, n: int) -> Tensor:
        """Output *n*."""
        return _tensor(self.node.outputs[n], self.model)

    def get(self, name: str, default: Any) -> Any:
        """Attribute *name*; strings come decoded, lists as tuples.

        Raises LookupError where the definition does not name it among what it knows: a mistake in the definition.
        """
        if name not in self.attributes:
            raise LookupError(f"the definition of {self.node.op} asks for {name}, which it does not say it knows")
        match self.node.attributes.get(name, default):
            case bytes() as text:
                return text.decode()
            case list() as items:
                return tuple(items)
            case value:
                return value

    def constant(self, n: int, what: str) -> Array:
        """Input *n*, which must be known before the model runs."""
        name = self.node.inputs[n]
        if name not in self.model.weights:
            raise Refused(f"{what} ({name}) is not known before the model runs")
        return self.model.weights[name]

    def integers(self, n: int, attribute: str, default: Shape | None = None) -> Shape | None:
        """A list of integers that older operator sets hold in *attribute* and newer ones in input *n*."""
        if self.has(n):
            return tuple(int(i) for i in self.constant(n, attribute).reshape(-1))
        found = self.get(attribute, default)
        return None if found is None else tuple(int(i) for i in found)

    def axis(self, axis: int, rank: int) -> int:
        """*axis* counted from the front."""
        if not -rank <= axis < rank:
            raise Refused(f"axis {axis} is outside [-{rank}, {rank})")
        return axis % rank

    @property
    def numbers(self) -> np.finfo[Any]:
        """The limits of the first output's type."""
        return np.finfo(self.model.dtype(self.node.outputs[0]))

    def read(self, n: int, index: tuple[Index, ...]) -> Scalar:
        """Input *n* broadcast to *index* by NumPy's rules; a weight of one element becomes a number."""
        name = self.node.inputs[n]
        weight = self.model.weights.get(name)
        if weight is not None and weight.size == 1 and weight.dtype.kind == "f":
            return Const(float(weight.reshape(())))
        return broadcast(self.tensor(n), index)

    def inner(self, word: str) -> str:
        """A free name for an intermediate result of this node."""
        return f"{self.out.name}__{word}"

    def equation(self, scope: Scope, word: str = "") -> Equation:
        """*scope* as the node's result, or as its intermediate result *word*; the result's shape is checked."""
        if word:
            return Equation(self.inner(word), scope)
        if scope.shape != self.out.shape:
            raise Refused(f"the expression has shape {scope.shape}, the model says {self.out.shape}")
        return Equation(self.out.name, scope)

    def only_output(self) -> None:
        """Refuse a node whose further outputs are used."""
        if extra := self.node.results[1:]:
            raise Refused(f"further outputs ({', '.join(extra)}) are used")


Express: TypeAlias = "Callable[[NodeCall], Iterable[Equation]]"


@dataclass(frozen=True, slots=True)
class OnnxOperator:
    """An ONNX operator that is understood: its canonical expression, and what kind of work it is.

    *kind* is ``contraction`` (a sum of products of two operands), ``elementwise``, ``activation`` (elementwise and not
    linear), ``layout`` (moves elements only) or ``reduction``.  *integers* says that it means the same on integers.
    *attributes* are the names of those that the definition knows, those that change nothing among them: a node that
    has another, which is not at its default, is not understood.
    """

    name: str
    kind: str
    express: Express
    integers: bool = False
    attributes: str = ""


def extent_iterators(shape: Iterable[int], stem: str = "i") -> tuple[Iterator, ...]:
    """One iterator for each extent: ``i0, i1, …``."""
    return tuple(Iterator(f"{stem}{n}", 0, size) for n, size in enumerate(shape))


def as_indices(xs: Iterable[IndexLike]) -> tuple[Index, ...]:
    """*xs* as indices."""
    return tuple(as_index(x) for x in xs)


def broadcast(source: Tensor, index: tuple[Index, ...]) -> Access:
    """*source* at the last of *index*, at 0 where it has one element and the result may have more."""
    if len(source.shape) > len(index):
        raise Refused(f"{source.name} has {len(source.shape)} dimensions, the result has {len(index)}")
    last = index[len(index) - len(source.shape) :]
    at = (Index() if size == 1 and i.bounds[1] > 0 else i for size, i in zip(source.shape, last, strict=True))
    return access(source, *at)


def access(source: Tensor, *index: IndexLike, value: float = 0) -> Access:
    """source[index], with as much padding of *value* as the index reaches beyond the box."""
    at = as_indices(index)
    pads = []
    for i, (lo, hi) in zip(at, source.box, strict=True):
        first, last = i.bounds
        pads.append((max(0, lo - first), max(0, last - hi + 1)))
    if any(map(any, pads)):
        source = replace(source, padding=tuple(pads), value=value)
    return Access(source, at)


def row_major(index: Iterable[IndexLike], shape: Shape) -> Index:
    """The row-major address of *index* in *shape*."""
    address = Index()
    for i, size in zip(index, shape, strict=True):
        address = address * size + i
    return address


def row_major_digits(address: Index, shape: Shape) -> tuple[Index, ...]:
    """The row-major digits of *address* in *shape*: the inverse of ``flat``."""
    out = []
    for n, size in enumerate(shape):
        stride = prod(shape[n + 1 :])
        digit = address // stride
        out.append(digit % size if n else digit)
    return tuple(out)


def progression(values: Array, x: Iterator) -> Index | None:
    """The index a·x + b, or x//k + b, that gives *values* as *x* counts from 0; None where neither does."""
    found: list[int] = values.tolist()
    step = found[1] - found[0] if len(found) > 1 else 0
    if all(v == found[0] + step * n for n, v in enumerate(found)):
        return x * step + found[0]
    k = int(np.argmax(np.diff(values) != 0)) + 1
    return x // k + found[0] if all(v == n // k + found[0] for n, v in enumerate(found)) else None


def _tensor(name: str, model: Model) -> Tensor:
    if not model.known(name):
        raise Refused(f"the shape of {name} is not known before the model runs")
    return Tensor(model.identifiers[name], model.shape(name), weight=name in model.weights)
