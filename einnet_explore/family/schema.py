"""Schemas: programs whose integers are polynomials, found from the same program at several sizes.

A schema is an ordinary ``Program`` value with a ``Poly`` where an integer depends on the sizes.  Nothing but this
package reads it: indices are not simplified, ranges are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, cast

from einnet_explore.family.whole import Whole, value_at
from einnet_explore.ir import (
    Access,
    Apply,
    Atom,
    Attribute,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
    Instance,
    Iterator,
    Padding,
    Program,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    as_index,
)

Schema: TypeAlias = Program
Change: TypeAlias = "Callable[[int], Any]"


def mapped(program: Program, change: Change, index: Callable[[Index], Index] | None = None) -> Program:
    """*program* with every integer *n* that is part of a shape, range, index or attribute replaced by ``change(n)``.

    Integers are visited in one fixed order.  *index* maps whole indices in place of their integers.
    """
    return _Mapping(change, index).program(program)


def integers(program: Program) -> tuple[Program, tuple[int, ...]]:
    """What remains of *program* without its integers, and these in order."""
    found: list[int] = []

    def take(n: int) -> int:
        found.append(n)
        return 0

    return mapped(program, take), tuple(found)


def with_integers(program: Program, values: tuple[Whole, ...]) -> Schema:
    """*program* with *values*, as many as it has integers, in place of its own."""
    rest = iter(values)
    return mapped(program, lambda _: next(rest))


def instantiated(schema: Schema, sizes: Mapping[str, int]) -> Program:
    """The ordinary program of *schema* at *sizes*: indices are brought into their normal form there."""

    def change(n: Whole) -> int:
        return value_at(n, sizes)

    def index(it: Index) -> Index:
        out = as_index(change(it.const))
        for atom, k in it.terms:
            match atom:
                case Iterator(name, lo, hi):
                    made = as_index(Iterator(name, change(lo), change(hi)))
                case Quotient(numerator, d):
                    made = index(numerator) // change(d)
                case Remainder(numerator, d):
                    made = index(numerator) % change(d)
            out = out + made * change(k)
        return out

    return mapped(schema, change, index)


class _Mapping:
    """One pass over a program."""

    def __init__(self, change: Change, index: Callable[[Index], Index] | None) -> None:
        self.change, self.whole_index = change, index

    def program(self, it: Program) -> Program:
        return Program(tuple(map(self.tensor, it.inputs)), tuple(map(self.equation, it.equations)), it.outputs)

    def equation(self, it: Equation) -> Equation:
        via = None if it.via is None else self.instance(it.via)
        return Equation(it.name, self.scope(it.scope), via)

    def instance(self, it: Instance) -> Instance:
        return Instance(it.operator, tuple((name, self.attribute(value)) for name, value in it.attributes))

    def attribute(self, value: Attribute) -> Attribute:
        match value:
            case str():
                return value
            case tuple():
                return tuple(self.change(n) for n in value)
        return cast("int", self.change(value))

    def tensor(self, it: Tensor) -> Tensor:
        shape = tuple(map(self.change, it.shape))
        return replace(it, shape=shape, padding=self.padding(it.padding), origin=tuple(map(self.change, it.origin)))

    def padding(self, it: Padding) -> Padding:
        return tuple((self.change(a), self.change(b)) for a, b in it)

    def iterator(self, it: Iterator) -> Iterator:
        return Iterator(it.name, self.change(it.lo), self.change(it.hi))

    def scope(self, it: Scope) -> Scope:
        return Scope(
            tuple(map(self.iterator, it.traversals)),
            tuple(map(self.iterator, it.summations)),
            self.scalar(it.body),
            it.reduce,
            tuple(Bound(self.index(b.index), self.change(b.lo), self.change(b.hi)) for b in it.domain),
            self.padding(it.padding),
            it.value,
        )

    def scalar(self, it: Scalar) -> Scalar:
        match it:
            case Access(source, index):
                return Access(self.source(source), tuple(map(self.index, index)))
            case Apply(op, args):
                return Apply(op, tuple(map(self.scalar, args)))
            case Compare(op, left, right):
                return Compare(op, self.index(left), self.index(right))
            case Const():
                return it

    def source(self, it: Tensor | Table | Scope) -> Tensor | Table | Scope:
        match it:
            case Tensor():
                return self.tensor(it)
            case Scope():
                return self.scope(it)
            case Table():
                return it

    def index(self, it: Index) -> Index:
        if self.whole_index is not None:
            return self.whole_index(it)
        return Index(tuple((self.atom(a), self.change(k)) for a, k in it.terms), self.change(it.const))

    def atom(self, it: Atom) -> Atom:
        match it:
            case Iterator():
                return self.iterator(it)
            case Quotient(numerator, d):
                return Quotient(self.index(numerator), self.change(d))
            case Remainder(numerator, d):
                return Remainder(self.index(numerator), self.change(d))
