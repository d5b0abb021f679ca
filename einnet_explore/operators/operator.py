r"""Library operators as values: name, canonical expression with free attributes, how to call it (EinNet §5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Apply,
    Attribute,
    Const,
    Index,
    Instance,
    Iterator,
    Padding,
    Scalar,
    Scope,
    Table,
    Tensor,
    as_index,
)
from einnet_explore.operators.pattern import Dimension, Pattern, parse_pattern

Attributes: TypeAlias = Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """An ONNX node: its operands are the canonical ones reshaped to *shapes*, which is free."""

    op_type: str
    attributes: tuple[tuple[str, int | float | str | tuple[int, ...]], ...]
    shapes: tuple[tuple[int, ...], ...]
    permutations: tuple[tuple[int, ...] | None, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IteratorTable:
    """Table 2: the iterators by where they occur, and their coefficients.

    *groups* maps ``"YNY"`` (in input 1, not in input 2, in the output) to the iterators that occur so; *coefficients*
    holds, for each (iterator, operand), the coefficient in each dimension.
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...]
    coefficients: tuple[tuple[tuple[str, str], tuple[str, ...]], ...]

    def group(self, key: str) -> tuple[str, ...]:
        """Return the iterators with the occurrence *key*."""
        return dict(self.groups).get(key, ())

    def of(self, iterator: str) -> str:
        """Return the occurrence of *iterator*."""
        return next(key for key, names in self.groups if iterator in names)


@dataclass(frozen=True, slots=True)
class Operator:
    """A library operator.

    *expression* is its canonical expression (see ``pattern``).  *batched* is its name if the optional iterator is
    present.  Operands of a *strided* operator may have any strides whose last is 1.  *onnx* returns its ONNX node;
    without it, a kernel is generated from the canonical scope.
    """

    name: str
    expression: str
    batched: str = ""
    strided: bool = False
    onnx: Callable[[Attributes], OnnxNode | None] | None = None

    def __repr__(self) -> str:
        return f"<Operator {self.name}>"

    def __post_init__(self) -> None:
        """Raise ValueError if *expression* is no canonical expression."""
        parse_pattern(self.expression)

    @property
    def pattern(self) -> Pattern:
        """The parsed canonical expression."""
        return parse_pattern(self.expression)

    @property
    def table(self) -> IteratorTable:
        """The iterator mapping table, derived from the canonical expression."""
        return _table(self.expression)

    @property
    def names(self) -> tuple[str, ...]:
        """The operator's names."""
        return tuple(filter(None, (self.name, self.batched)))

    def instance(self, attributes: Attributes) -> Instance:
        """Return the call with *attributes*: extents by iterator name, then the attributes of the expression."""
        present = any(attributes.get(name, 1) != 1 for name in self.pattern.optional)
        return Instance(self.batched if present and self.batched else self.name, tuple(attributes.items()))

    def instantiate(self, attributes: Attributes, operands: Sequence[Tensor | Table | Scope] | None = None) -> Scope:
        """Return the canonical scope at *attributes*: the value of every equation that this operator runs.

        *operands* have the canonical shapes (by default, tensors with the operands' names). Raises ValueError for a
        missing attribute or another shape.
        """
        pattern = self.pattern
        numbers = self.numbers(attributes)
        present = [x for x in pattern.iterators if not self.absent(x, attributes)]
        own = {name: Iterator(name, 0, numbers[f"|{name}|"]) for name in present}
        reads = list[Scalar]()
        for p, operand in enumerate(pattern.operands):
            index, shape = self._read_index(self.dimensions(p, attributes), numbers, own)
            padding = self.padding(p, attributes)
            neutral = REDUCTIONS[pattern.reduce]
            source = operands[p] if operands else Tensor(operand.name, shape, padding, neutral)
            if source.shape != shape or any(lo for lo, _ in source.box):
                raise ValueError(f"{self.name}: operand {operand.name} has box {source.box}, expected shape {shape}")
            for d, ((lo, hi), (before, after)) in enumerate(
                zip(source.reach, padding or ((0, 0),) * len(shape), strict=True)
            ):
                if lo > -before or hi < shape[d] + after:
                    raise ValueError(
                        f"{self.name}: dimension {d} of {operand.name} is read in "
                        f"[{-before}, {shape[d] + after}), its reach is [{lo}, {hi})"
                    )
            if padding and source.value != neutral:
                raise ValueError(f"{self.name}: {operand.name} is {source.value:g} outside, expected {neutral:g}")
            reads.append(Access(source, index))
        body = reads[0] if len(reads) == 1 else Apply(pattern.op, tuple(reads))
        divisor = pattern.divisor.value(numbers)
        if divisor != 1:
            body = Apply("/", (body, Const(divisor)))
        return Scope(
            tuple(own[x] for x in pattern.traversals if x in own),
            tuple(own[x] for x in pattern.summations if x in own),
            body,
            pattern.reduce,
        )

    def numbers(self, attributes: Attributes) -> dict[str, int]:
        """Return attributes and extents (``|m|``) as numbers; raises ValueError if one is missing."""
        pattern = self.pattern
        wanted = (*(x for x in pattern.iterators if x not in pattern.optional), *pattern.attributes)
        missing = [x for x in wanted if x not in attributes]
        if missing:
            raise ValueError(f"{self.name}: attributes {', '.join(missing)} are missing, given {dict(attributes)}")
        known = {name: value for name, value in attributes.items() if isinstance(value, int)}
        return {**known, **{f"|{x}|": known.get(x, 1) for x in pattern.iterators}}

    def absent(self, iterator: str, attributes: Attributes) -> bool:
        """Whether *iterator* is optional and absent."""
        return iterator in self.pattern.optional and attributes.get(iterator, 1) == 1

    def dimensions(self, operand: int, attributes: Attributes) -> tuple[Dimension, ...]:
        """Return the operand's dimensions in memory order."""
        chosen = self.pattern.operands[operand]
        order = next((dims for flag, dims in chosen.variants if attributes.get(flag)), chosen.dimensions)
        return tuple(d for d in order if d.single is None or not self.absent(d.single, attributes))

    def padding(self, operand: int, attributes: Attributes) -> Padding:
        """Return how far outside its shape the operand is read; empty if nowhere."""
        dimensions = self.dimensions(operand, attributes)
        if all(d.single is not None for d in dimensions):
            return ()
        numbers = self.numbers(attributes)
        padding = tuple(_padding_beyond(d, numbers) for d in dimensions)
        return padding if any(map(any, padding)) else ()

    @staticmethod
    def _read_index(
        dimensions: tuple[Dimension, ...], numbers: Mapping[str, int], own: Mapping[str, Iterator]
    ) -> tuple[tuple[Index, ...], tuple[int, ...]]:
        index: list[Index] = []
        for d in dimensions:
            at = as_index(d.const.value(numbers))
            for name, k in d.terms:
                at = at + own[name] * k.value(numbers)
            index.append(at)
        return tuple(index), tuple(_extent(d, numbers) for d in dimensions)


def onnx_node(instance: Instance | None, operators: Iterable[Operator]) -> OnnxNode | None:
    """The ONNX node of a call of one of *operators*; None if no operator has its name, or if it has no node."""
    operator = next((o for o in operators if instance is not None and instance.operator in o.names), None)
    if instance is None or operator is None or operator.onnx is None:
        return None
    # Optional iterators that are absent may be left out of the attributes.
    return operator.onnx({**dict.fromkeys(operator.pattern.optional, 1), **dict(instance.attributes)})


def _padding_beyond(d: Dimension, numbers: Mapping[str, int]) -> tuple[int, int]:
    """Return how far an index reaches before and behind its dimension."""
    if d.single is not None:
        return 0, 0
    lo = hi = d.const.value(numbers)
    for name, k in d.terms:
        span = k.value(numbers) * (numbers[f"|{name}|"] - 1)
        lo, hi = lo + min(0, span), hi + max(0, span)
    return max(0, -lo), max(0, hi + 1 - _extent(d, numbers))


def _extent(d: Dimension, numbers: Mapping[str, int]) -> int:
    return d.extent.value(numbers) if d.extent else numbers[f"|{d.iterators[0]}|"]


@lru_cache(maxsize=256)
def _table(expression: str) -> IteratorTable:
    return iterator_table(parse_pattern(expression))


def iterator_table(pattern: Pattern) -> IteratorTable:
    """Return the iterator mapping table of a canonical expression."""
    groups: dict[str, list[str]] = {}
    for x in pattern.iterators:
        key = "".join("Y" if x in operand.iterators else "N" for operand in pattern.operands)
        groups.setdefault(key + ("Y" if x in pattern.traversals else "N"), []).append(x)
    coefficients = tuple(
        ((x, operand.name), tuple(repr(d.coefficient(x)) for d in operand.dimensions))
        for x in pattern.iterators
        for operand in pattern.operands
        if x in operand.iterators
    )
    return IteratorTable(tuple((key, tuple(names)) for key, names in groups.items()), coefficients)
