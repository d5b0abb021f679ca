"""Schemas: programs whose integers are size polynomials, and their text and LaTeX forms.

A schema is a ``Program`` value with a ``Poly`` for each integer that depends on the sizes.  Only this package reads
schemas: indices are not simplified, ranges are not compared.  They are printed by the usual printers, which receive
integers that print as polynomials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from einnet_explore import syntax
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
from einnet_explore.parametric.parameters import FamilyParameters
from einnet_explore.parametric.size_polynomials import Poly, SizePolynomial, polynomial_text, polynomial_value
from einnet_explore.syntax.latex_printer import Dialect

Schema: TypeAlias = Program
IntegerMap: TypeAlias = "Callable[[int], Any]"


def map_integers(program: Program, change: IntegerMap, index: Callable[[Index], Index] | None = None) -> Program:
    """Replace every integer *n* in a shape, range, index or attribute by ``change(n)``, in a fixed order.

    *index* maps whole indices instead of their integers.
    """
    return _IntegerMapping(change, index).program(program)


def split_integers(program: Program) -> tuple[Program, tuple[int, ...]]:
    """Split *program* into its skeleton, with 0 for every integer, and its integers in order."""
    found: list[int] = []

    def take(n: int) -> int:
        found.append(n)
        return 0

    return map_integers(program, take), tuple(found)


def with_integers(program: Program, values: tuple[SizePolynomial, ...]) -> Schema:
    """Replace the integers of *program* by *values*, in order."""
    rest = iter(values)
    return map_integers(program, lambda _: next(rest))


def instantiate_schema(schema: Schema, sizes: Mapping[str, int]) -> Program:
    """Return the program of *schema* at *sizes*, with indices in normal form."""

    def change(n: SizePolynomial) -> int:
        return polynomial_value(n, sizes)

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

    return map_integers(schema, change, index)


class _IntegerMapping:
    """One traversal of a program that maps its integers."""

    def __init__(self, change: IntegerMap, index: Callable[[Index], Index] | None) -> None:
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


class PrintedPolynomial(int):
    """A polynomial for the printers: an integer with the polynomial's sign, not 0 or 1, that prints as the
    polynomial."""

    held: Poly
    style: tuple[str, str]
    role: str

    def __new__(cls, held: Poly, style: tuple[str, str], role: str = "") -> PrintedPolynomial:
        made = super().__new__(cls, -2 if held.terms[0][1] < 0 else 2)
        made.held, made.style, made.role = held, style, role
        return made

    def __str__(self) -> str:
        text = polynomial_text(self.held, *self.style)
        loose = len(self.held.terms) > 1 if self.role == "factor" else not text.isidentifier()
        return f"({text})" if self.role and loose else text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return ("" if self < 0 or spec != "+d" else "+") + str(self)

    def __abs__(self) -> Any:
        return self._with_value(-self.held) if self < 0 else self

    def __sub__(self, other: int) -> Any:
        return self._with_value(self.held - (other.held if isinstance(other, PrintedPolynomial) else other))

    def __add__(self, other: int) -> Any:
        return self._with_value(self.held + (other.held if isinstance(other, PrintedPolynomial) else other))

    def __rsub__(self, other: int) -> Any:
        return self._with_value(-self.held + other)

    __radd__ = __add__

    def _with_value(self, n: SizePolynomial) -> int:
        return PrintedPolynomial(n, self.style, self.role) if isinstance(n, Poly) else n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrintedPolynomial) and other.held == self.held

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.held)


TEXT_OPERATORS, LATEX_OPERATORS = ("*", "//"), (r"\,", "/")


def schema_text(ground: FamilyParameters, schema: Schema) -> str:
    """Print *schema* in the text form, its ``param`` line first; ``ee.family`` reads it."""
    printed = _with_printed_integers(schema, TEXT_OPERATORS)
    # equations are printed without ``via``, which is appended with polynomial attributes
    bare = replace(printed, equations=tuple(replace(e, via=None) for e in printed.equations))
    lines = syntax.text(bare).splitlines()
    first = len(bare.inputs)
    for n, equation in enumerate(printed.equations):
        if equation.via is not None:
            lines[first + n] += f" via {_call_text(equation.via)}"
    guards = ", ".join(ground.guards)
    return "\n".join([*([f"param {guards}"] if guards else []), *lines, ""])


def schema_latex(schema: Schema, dialect: Dialect = "amsmath") -> str:
    """Print *schema* in LaTeX."""
    return syntax.latex(_with_printed_integers(schema, LATEX_OPERATORS), dialect, ranges="full")


def schema_align(schemas: Sequence[Schema], reasons: Sequence[str]) -> str:
    """Print *schemas* and the steps between them as an ``align*`` block."""
    return syntax.align([_with_printed_integers(schema, LATEX_OPERATORS) for schema in schemas], reasons)


def _call_text(via: Instance) -> str:
    return f"{via.operator}({', '.join(f'{name}={_attribute_text(value)}' for name, value in via.attributes)})"


def _attribute_text(value: Attribute) -> str:
    match value:
        case str():
            return f'"{value}"'
        case tuple():
            return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
    return str(value)


def _with_printed_integers(schema: Schema, style: tuple[str, str]) -> Program:
    def change(n: SizePolynomial) -> int:
        return PrintedPolynomial(n, style) if isinstance(n, Poly) else n

    def part(n: SizePolynomial, role: str) -> int:
        return PrintedPolynomial(n, style, role) if isinstance(n, Poly) else n

    def index(it: Index) -> Index:
        return Index(tuple((_atom(a), part(k, "factor")) for a, k in it.terms), change(it.const))

    def _atom(it: Iterator | Quotient | Remainder) -> Iterator | Quotient | Remainder:
        match it:
            case Iterator(name, lo, hi):
                return Iterator(name, change(lo), change(hi))
            case Quotient(numerator, d):
                return Quotient(index(numerator), part(d, "divisor"))
            case Remainder(numerator, d):
                return Remainder(index(numerator), part(d, "divisor"))

    return map_integers(schema, change, index)
