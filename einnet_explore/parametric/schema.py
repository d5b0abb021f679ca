"""Schemas: programs whose integers are size polynomials; read from text, printed as text and LaTeX.

A schema is a ``Program`` value with a ``Poly`` for each integer that depends on the sizes.  Only this package reads
schemas: indices are not simplified, ranges are not compared.  They are printed by the usual printers, which receive
integers that print as polynomials.

A claim for all sizes is about the literal schema of a text with ``param`` lines, without simplification.  The parser
simplifies the programs at single sizes, so the schema interpolated from them is compared with the literal one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lark import Token, Tree

from einnet_explore import syntax
from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.ir import (
    FLOAT32,
    REDUCTIONS,
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
    add,
    as_index,
    mul,
)
from einnet_explore.operators.operator import Operator
from einnet_explore.parametric.parameters import FamilyParameters
from einnet_explore.parametric.size_polynomials import (
    Poly,
    SizePolynomial,
    divide_by_monomial,
    parameter_polynomial,
    polynomial_text,
    polynomial_value,
)
from einnet_explore.support.errors import Refused
from einnet_explore.syntax.expressions import table_from_tree
from einnet_explore.syntax.parametric_text import Template
from einnet_explore.syntax.parser import unread_equations
from einnet_explore.syntax.trees import SyntaxNode, child_trees, integer_literal, name_from_tree, number_from_tree

Schema: TypeAlias = Program
IntegerMap: TypeAlias = "Callable[[int], int]"


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
    return map_integers(program, lambda _: as_schema_integer(next(rest)))


def as_schema_integer(n: SizePolynomial) -> int:
    """Return *n* for the place of an integer in a schema."""
    return n  # type: ignore[return-value]


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
        return self.change(value)

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

    polynomial: Poly
    style: tuple[str, str]
    role: str

    def __new__(cls, polynomial: Poly, style: tuple[str, str], role: str = "") -> PrintedPolynomial:
        made = super().__new__(cls, -2 if polynomial.terms[0][1] < 0 else 2)
        made.polynomial, made.style, made.role = polynomial, style, role
        return made

    def __str__(self) -> str:
        text = polynomial_text(self.polynomial, *self.style)
        loose = len(self.polynomial.terms) > 1 if self.role == "factor" else not text.isidentifier()
        return f"({text})" if self.role and loose else text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return ("" if self < 0 or spec != "+d" else "+") + str(self)

    def __abs__(self) -> int:
        return self._with_value(-self.polynomial) if self < 0 else self

    def __sub__(self, other: int) -> int:
        return self._with_value(self.polynomial - (other.polynomial if isinstance(other, PrintedPolynomial) else other))

    def __add__(self, other: int) -> int:
        return self._with_value(self.polynomial + (other.polynomial if isinstance(other, PrintedPolynomial) else other))

    def __rsub__(self, other: int) -> int:
        return self._with_value(-self.polynomial + other)

    __radd__ = __add__

    def _with_value(self, n: SizePolynomial) -> int:
        return PrintedPolynomial(n, self.style, self.role) if isinstance(n, Poly) else n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrintedPolynomial) and other.polynomial == self.polynomial

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.polynomial)


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


def schema_latex(schema: Schema) -> str:
    """Print *schema* in LaTeX."""
    return syntax.latex(_with_printed_integers(schema, LATEX_OPERATORS), ranges="full")


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


def literal_schema(template: Template, ground: FamilyParameters) -> Schema:
    """Return the schema of *template*, which has been parsed without error at some sizes.

    Raises Undecided for a quotient of sizes that may not be whole.
    """
    sizes = ground.values
    inputs: dict[str, Tensor] = {}
    equations: dict[str, Equation] = {}
    outputs: list[str] = []
    for node in child_trees(template.tree):
        tensors = {**inputs, **{name: e.tensor for name, e in equations.items()}}
        match node:
            case Tree(data="declaration", children=[name, Tree() as extents, *clauses]):
                made = _tensor(name_from_tree(name), extents, [c for c in clauses if isinstance(c, Tree)], sizes)
                inputs[made.name] = made
            case Tree(data="equation", children=[name, Tree() as head, body, Tree() as clauses, *_]):
                scope = _SchemaReader(sizes, tensors).scope(head, body, clauses)
                equations[name_from_tree(name)] = Equation(name_from_tree(name), scope)
            case Tree(data="output", children=names):
                outputs += map(name_from_tree, names)
    every = tuple(equations.values())
    return Program(tuple(inputs.values()), every, tuple(outputs) or unread_equations(every))


def parse_polynomial(it: SyntaxNode, names: Iterable[str]) -> SizePolynomial:
    """Return *it* as a polynomial of parameters by name; raises Undecided if it is none."""
    return _SchemaReader({name: parameter_polynomial(name) for name in names}, {}).size(it)


def _tensor(name: str, extents: Tree[Token], clauses: list[Tree[Token]], sizes: Mapping[str, SizePolynomial]) -> Tensor:
    reading = _SchemaReader(sizes, {})
    padding, value = reading.clauses(clauses)
    weight = any(c.data == "weight" for c in clauses)
    dtype = next((str(c.children[0]) for c in clauses if c.data == "dtype"), FLOAT32)
    return Tensor(name, tuple(map(reading.size, extents.children)), padding, value, weight, dtype=dtype)


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    """Environment of names: parameters and tensors."""

    sizes: Mapping[str, SizePolynomial]
    tensors: Mapping[str, Tensor]

    def scope(self, head: Tree[Token], body: SyntaxNode, clauses: Tree[Token]) -> Scope:
        ranges, *bounds = child_trees(head)
        traversals = self.iterators(ranges)
        reduce, summations = "sum", tuple[Iterator, ...]()
        match body:
            case Tree(data="reduction", children=[Token(value=reduce), Tree() as over, body]):
                summations = self.iterators(over)
        outer = {x.name: x for x in traversals}
        own = outer | {x.name: x for x in summations}
        domain = tuple(self.bound(b, outer) for b in child_trees(bounds[0])) if bounds else ()
        padding, value = self.clauses(child_trees(clauses))
        return Scope(traversals, summations, self.scalar(body, own), reduce, domain, padding, value)

    def iterators(self, ranges: Tree[Token]) -> tuple[Iterator, ...]:
        out = []
        for node in child_trees(ranges):
            name, *ends = node.children
            lo, hi = map(self.size, ends) if len(ends) == 2 else (0, self.size(ends[0]))
            out.append(Iterator(str(name), lo, hi))
        return tuple(out)

    def bound(self, node: Tree[Token], own: Mapping[str, Iterator]) -> Bound:
        lo, index, hi = node.children
        return Bound(self.index(index, own), self.size(lo), self.size(hi))

    def clauses(self, clauses: Iterable[Tree[Token]]) -> tuple[Padding, float]:
        padding: Padding = ()
        value: float = 0
        for clause in clauses:
            match clause:
                case Tree(data="pad", children=edges):
                    ends = [[self.size(n) for n in edge.children] for edge in edges if isinstance(edge, Tree)]
                    padding = tuple((e[0], e[-1]) for e in ends)
                case Tree(data="value", children=[*sign, Tree() as digits]):
                    value = -number_from_tree(digits) if sign else number_from_tree(digits)
        return (padding if any(map(any, padding)) else ()), value

    def scalar(self, it: SyntaxNode, own: Mapping[str, Iterator]) -> Scalar:
        match it:
            case Tree(data="number"):
                return Const(number_from_tree(it))
            case Tree(data="plus" | "times" as op, children=[a, b]):
                return (add if op == "plus" else mul)(self.scalar(a, own), self.scalar(b, own))
            case Tree(data="minus" | "over" as op, children=[a, b]):
                return Apply("-" if op == "minus" else "/", (self.scalar(a, own), self.scalar(b, own)))
            case Tree(data="negative", children=[a]):
                inner = self.scalar(a, own)
                return Const(-inner.value) if isinstance(inner, Const) else Apply("neg", (inner,))
            case Tree(data="access", children=[name, at]):
                return self.access(self.tensors[name_from_tree(name)], at, own)
            case Tree(data="nested", children=[Tree(children=[Tree() as head, body, Tree() as clauses]), at]):
                return self.access(self.scope(head, body, clauses), at, own)
            case Tree(data="looked_up", children=[Tree() as table, at]):
                return self.access(table_from_tree(table), at, own)
            case Tree(data="call", children=[Token() as function, *args]):
                return Apply(str(function), tuple(self.scalar(a, own) for a in args))
            case Tree(data="choice", children=[Tree(children=[left, Token() as op, right]), a, b]):
                condition = Compare(str(op), self.index(left, own), self.index(right, own))
                return Apply("where", (condition, self.scalar(a, own), self.scalar(b, own)))
        raise AssertionError(f"{it} has been read before")

    def access(self, source: Tensor | Table | Scope, at: SyntaxNode, own: Mapping[str, Iterator]) -> Access:
        assert isinstance(at, Tree)
        return Access(source, tuple(self.index(i, own) for i in at.children))

    def size(self, it: SyntaxNode) -> int:
        """Return a size: an integer, or a polynomial in an integer's place."""
        match it:
            case Token():
                return integer_literal(it)
            case Tree(data="signed", children=[inner]):
                return self.size(inner)
        found = self.index(it, {})
        if found.terms:
            raise Undecided("a size is divided by what need not divide it")
        return found.const

    def index(self, it: SyntaxNode, own: Mapping[str, Iterator]) -> Index:
        match it:
            case Tree(data="integer", children=[digits]):
                return Index((), integer_literal(digits))
            case Tree(data="iterator", children=[name]):
                if str(name) in own:
                    return Index(((own[str(name)], 1),))
                return Index((), as_schema_integer(self.sizes[str(name)]))
            case Tree(data="index_plus" | "index_minus" as op, children=[a, b]):
                return _add_scaled(self.index(a, own), self.index(b, own), 1 if op == "index_plus" else -1)
            case Tree(data="index_negative", children=[a]):
                return _add_scaled(Index(), self.index(a, own), -1)
            case Tree(data="index_times", children=[a, b]):
                left, right = self.index(a, own), self.index(b, own)
                return (
                    _add_scaled(Index(), right, left.const)
                    if not left.terms
                    else _add_scaled(Index(), left, right.const)
                )
            case Tree(data="index_over" | "index_modulo" as op, children=[a, b]):
                kind = Quotient if op == "index_over" else Remainder
                return _divide(kind, self.index(a, own), self.index(b, own).const)
        raise AssertionError(f"{it} has been read before")


def _add_scaled(a: Index, b: Index, k: int) -> Index:
    """Return a + k·b with like terms collected, without other simplification."""
    total: dict[Atom, int] = dict(a.terms)
    for atom, c in b.terms:
        total[atom] = total.get(atom, 0) + c * k
    return Index(tuple((atom, c) for atom, c in total.items() if c), a.const + b.const * k)


def _divide(kind: type[Quotient | Remainder], a: Index, d: int) -> Index:
    """Return the quotient or the remainder of *a* by *d*."""
    if not a.terms:  # a quotient of sizes has to be whole
        if kind is Quotient and (n := divide_by_monomial(a.const, d)) is not None:
            return Index((), as_schema_integer(n))
        if isinstance(a.const, int) and isinstance(d, int):
            return Index((), a.const // d if kind is Quotient else a.const % d)
    if not isinstance(d, Poly) and d == 1:
        return a if kind is Quotient else Index()
    return Index(((kind(a, d), 1),))


def canonical_scope(operator: Operator, via: Instance, operands: Sequence[Tensor | Table | Scope]) -> Scope:
    """Return the operator's canonical scope over *operands*, as a schema; raises Refused if they do not fit."""
    pattern, attributes = operator.pattern, dict(via.attributes)
    if len(operands) != len(pattern.operands):
        raise Refused(f"it takes {len(pattern.operands)} operands, the equation reads {len(operands)}")
    numbers = {name: n for name, n in attributes.items() if not isinstance(n, str | tuple)}
    numbers |= {f"|{x}|": numbers.get(x, 1) for x in pattern.iterators}
    own = {x: Iterator(x, 0, numbers[f"|{x}|"]) for x in pattern.iterators if not operator.absent(x, attributes)}
    reads: list[Scalar] = []
    for p, source in enumerate(operands):
        dimensions = operator.dimensions(p, attributes)
        shape = tuple(d.extent.value(numbers) if d.extent else own[d.iterators[0]].extent for d in dimensions)
        if source.shape != shape or any(lo for lo, _ in source.box):
            name = pattern.operands[p].name
            raise Refused(f"its operand {name} has shape {shape}, the equation reads {source.shape} in {source.box}")
        if source.padding and source.value != REDUCTIONS[pattern.reduce]:
            raise Refused(f"its operand {pattern.operands[p].name} is {source.value:g} outside")
        index = tuple(
            Index(tuple((own[x], k.value(numbers)) for x, k in d.terms if k.value(numbers)), d.const.value(numbers))
            for d in dimensions
        )
        reads.append(Access(source, index))
    body = reads[0] if len(reads) == 1 else Apply(pattern.op, tuple(reads))
    if (divisor := pattern.divisor.value(numbers)) != 1:
        body = Apply("/", (body, Const(divisor)))
    chosen = [tuple(own[x] for x in names if x in own) for names in (pattern.traversals, pattern.summations)]
    return Scope(chosen[0], chosen[1], body, pattern.reduce)
