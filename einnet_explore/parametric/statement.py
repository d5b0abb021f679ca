"""The literal schema of a text with ``param`` lines: its polynomials as written, without simplification.

A claim for all sizes is about this schema.  The parser simplifies the programs at single sizes, so the schema
interpolated from them is compared with the literal one, like every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lark import Token, Tree

from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.ir import (
    Access,
    Apply,
    Atom,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
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
    mul,
)
from einnet_explore.parametric.parameters import FamilyParameters
from einnet_explore.parametric.schema import Schema
from einnet_explore.parametric.size_polynomials import (
    Poly,
    SizePolynomial,
    Unknown,
    divide_by_monomial,
    sum_of_monomials,
)
from einnet_explore.syntax.expressions import table_from_tree
from einnet_explore.syntax.literals import Node, child_trees, integer_literal, name_from_tree, number_from_tree
from einnet_explore.syntax.parametric_text import Template
from einnet_explore.syntax.parser import unread_equations


def literal_schema(template: Template, ground: FamilyParameters) -> Schema:
    """Return the schema of *template*, which has been parsed without error at some sizes.

    Raises Undecided for a quotient of sizes that may not be whole.
    """
    sizes = ground.values
    inputs: dict[str, Tensor] = {}
    equations: dict[str, Equation] = {}
    outputs: list[str] = []
    for node in child_trees(template.tree):
        held = {**inputs, **{name: e.tensor for name, e in equations.items()}}
        match node:
            case Tree(data="declaration", children=[name, Tree() as extents, *clauses]):
                made = _tensor(name_from_tree(name), extents, [c for c in clauses if isinstance(c, Tree)], sizes)
                inputs[made.name] = made
            case Tree(data="equation", children=[name, Tree() as head, body, Tree() as clauses, *_]):
                scope = _SchemaReader(sizes, held).scope(head, body, clauses)
                equations[name_from_tree(name)] = Equation(name_from_tree(name), scope)
            case Tree(data="output", children=names):
                outputs += map(name_from_tree, names)
    every = tuple(equations.values())
    return Program(tuple(inputs.values()), every, tuple(outputs) or unread_equations(every))


def parse_polynomial(it: Node, names: Iterable[str]) -> SizePolynomial:
    """Return *it* as a polynomial of parameters by name; raises Undecided if it is none."""
    return _SchemaReader({name: sum_of_monomials((((Unknown(name),), 1),)) for name in names}, {}).size(it)


def _tensor(name: str, extents: Tree[Token], clauses: list[Tree[Token]], sizes: Mapping[str, SizePolynomial]) -> Tensor:
    reading = _SchemaReader(sizes, {})
    padding, value = reading.clauses(clauses)
    weight = any(c.data == "weight" for c in clauses)
    return Tensor(name, tuple(map(reading.size, extents.children)), padding, value, weight)


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    """Environment of names: parameters and tensors."""

    sizes: Mapping[str, SizePolynomial]
    tensors: Mapping[str, Tensor]

    def scope(self, head: Tree[Token], body: Node, clauses: Tree[Token]) -> Scope:
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

    def scalar(self, it: Node, own: Mapping[str, Iterator]) -> Scalar:
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

    def access(self, source: Tensor | Table | Scope, at: Node, own: Mapping[str, Iterator]) -> Access:
        assert isinstance(at, Tree)
        return Access(source, tuple(self.index(i, own) for i in at.children))

    def size(self, it: Node) -> int:
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

    def index(self, it: Node, own: Mapping[str, Iterator]) -> Index:
        match it:
            case Tree(data="integer", children=[digits]):
                return Index((), integer_literal(digits))
            case Tree(data="iterator", children=[name]):
                if str(name) in own:
                    return Index(((own[str(name)], 1),))
                return _constant_index(self.sizes[str(name)])
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
                return _divide(self.index(a, own), self.index(b, own).const, op == "index_over")
        raise AssertionError(f"{it} has been read before")


def _constant_index(n: SizePolynomial) -> Index:
    return Index((), n)  # type: ignore[arg-type]


def _add_scaled(a: Index, b: Index, k: int) -> Index:
    """Return a + k·b with like terms collected, without other simplification."""
    total: dict[Atom, int] = dict(a.terms)
    for atom, c in b.terms:
        total[atom] = total.get(atom, 0) + c * k
    return Index(tuple((atom, c) for atom, c in total.items() if c), a.const + b.const * k)


def _divide(a: Index, d: int, quotient: bool) -> Index:
    if not a.terms:  # a quotient of sizes has to be whole
        if quotient and (n := divide_by_monomial(a.const, d)) is not None:
            return _constant_index(n)
        if isinstance(a.const, int) and isinstance(d, int):
            return Index((), a.const // d if quotient else a.const % d)
    if not isinstance(d, Poly) and d == 1:
        return a if quotient else Index()
    return Index(((Quotient(a, d) if quotient else Remainder(a, d), 1),))
