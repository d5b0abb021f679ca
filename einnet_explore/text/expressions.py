"""From syntax trees to scalars and scopes: one ``match`` each, one case a production."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from math import prod

from lark import Token, Tree

from einnet_explore.ir import (
    FUNCTIONS,
    Access,
    Apply,
    Compare,
    Const,
    Iterator,
    Padding,
    Scalar,
    Scope,
    Table,
    Tensor,
    add,
    mul,
)
from einnet_explore.text.errors import Fault
from einnet_explore.text.indices import Names, bound_of, index_of, ranges_of
from einnet_explore.text.literals import Node, children, integer, name_of, number_of, representable, signed
from einnet_explore.text.reads import leaving


def scope_of(tree: Tree[Token], names: Names) -> Scope:
    """``{[traversals | domain] reduction body} pad [...]``; scopes are closed, so *names*' iterators become outer."""
    traversals, body, clauses = children(tree)
    return closed(traversals, body, clauses, names)


def closed(head: Tree[Token], body: Node, clauses: Tree[Token], names: Names) -> Scope:
    """The scope of traversals *head*, right side *body* and the clauses *clauses*."""
    ranges, *bounds = children(head)
    traversals = ranges_of(ranges, ())
    outer = names.outer | names.iterators.keys()
    inside = Names(names.tensors, {x.name: x for x in traversals}, outer)
    domain = tuple(bound_of(b, inside) for b in children(bounds[0])) if bounds else ()
    reduce = "sum"
    summations: tuple[Iterator, ...] = ()
    match body:
        case Tree(data="reduction", children=[Token(value=reduce), Tree() as ranges, body]):
            summations = ranges_of(ranges, traversals)
    own = {x.name: x for x in (*traversals, *summations)}
    scalar = scalar_of(body, replace(inside, iterators=own, domain=domain))
    padding, value, _ = clauses_of(children(clauses), len(traversals), "the scope")
    return Scope(traversals, summations, scalar, reduce, domain, padding, value)


def scalar_of(tree: Node, names: Names) -> Scalar:
    """A body: products and sums are flattened, constants collected, as ``ir.mul`` and ``ir.add`` do."""
    match tree:
        case Tree(data="number"):
            return Const(number_of(tree))
        case Tree(data="plus", children=[a, b]):
            return _joined(tree, add(scalar_of(a, names), scalar_of(b, names)))
        case Tree(data="times", children=[a, b]):
            return _joined(tree, mul(scalar_of(a, names), scalar_of(b, names)))
        case Tree(data="minus", children=[a, b]):
            return Apply("-", (scalar_of(a, names), scalar_of(b, names)))
        case Tree(data="over", children=[a, b]):
            return Apply("/", (scalar_of(a, names), scalar_of(b, names)))
        case Tree(data="negative", children=[a]):
            inner = scalar_of(a, names)
            return Const(-inner.value) if isinstance(inner, Const) else Apply("neg", (inner,))
        case Tree(data="access", children=[name, _]):
            return _read(_tensor(name, names), tree, names)
        case Tree(data="nested", children=[Tree() as scope, _]):
            return _read(scope_of(scope, names), tree, names)
        case Tree(data="looked_up", children=[Tree() as table, _]):
            return _read(table_of(table), tree, names)
        case Tree(data="call", children=[Token() as function, *args]):
            _call(function, args)
            return Apply(str(function), tuple(scalar_of(a, names) for a in args))
        case Tree(data="choice", children=[Tree(children=[left, Token() as op, right]), a, b]):
            condition = Compare(str(op), index_of(left, names), index_of(right, names))
            free = replace(names, checked=False)
            return Apply("where", (condition, scalar_of(a, free), scalar_of(b, free)))
        case Tree(data="reduction", children=[Token() as name, *_]):
            raise Fault(
                name, f"found {name} inside an expression, expected it in a scope of its own: {{[...] {name}[...] ...}}"
            )
    raise Fault(tree, f"found {tree}, expected an expression")


def _joined(tree: Node, made: Scalar) -> Scalar:
    """*made*, whose constants were put together in front, as long as they are a number still."""
    match made:
        case Const(value) | Apply("+" | "*", (Const(value), *_)) if not representable(value):
            raise Fault(tree, "found constants that make no number, expected one that floating point can hold")
    return made


def table_of(tree: Tree[Token]) -> Table:
    """``table[2, 2](1, 0, -1/2, 1)``."""
    sizes, *entries = children(tree)
    shape = tuple(integer(size) for size in sizes.children)
    if 0 in shape:
        raise Fault(sizes, f"found shape {list(shape)} of a table, expected sizes of at least 1")
    if len(entries) != prod(shape):
        raise Fault(tree, f"found {len(entries)} entries, expected {prod(shape)} for shape {list(shape)}")
    return Table(shape, tuple(map(_rational, entries)))


def _rational(tree: Tree[Token]) -> Fraction:
    numerator, *denominator = tree.children
    below = integer(denominator[0]) if denominator else 1
    if not below:
        raise Fault(tree, "found the denominator 0, expected a number")
    return Fraction(signed(numerator), below)


def clauses_of(clauses: Iterable[Tree[Token]], rank: int, of: str) -> tuple[Padding, float, bool]:
    """Padding, the value read there, and whether ``weight`` stands there; each is given at most once."""
    given: dict[str, Tree[Token]] = {}
    padding: Padding = ()
    value: float = 0
    for clause in clauses:
        if clause.data in given:
            raise Fault(clause, f"found {clause.data} twice, expected it once")
        given[clause.data] = clause
        match clause:
            case Tree(data="pad", children=edges):
                padding = tuple(_edge(e) for e in edges)
                if len(padding) != rank:
                    raise Fault(
                        clause, f"found padding for {len(padding)} dimensions, expected {rank}: the rank of {of}"
                    )
            case Tree(data="value", children=[*sign, Tree() as digits]):
                value = -number_of(digits) if sign else number_of(digits)
    return (padding if any(map(any, padding)) else ()), value, "weight" in given


def _read(source: Tensor | Table | Scope, tree: Tree[Token], names: Names) -> Access:
    given = [(node, index_of(node, names)) for node in children(tree)[-1].children]
    what = _called(source)
    if len(given) != len(source.box):
        raise Fault(tree, f"found {len(given)} indices of {what}, expected {len(source.box)}")
    for (node, index), (lo, hi) in zip(given, source.reach, strict=True):
        if names.checked and (found := leaving(index, lo, hi, names.domain)) is not None:
            raise Fault(node, f"index {index!r} of {what} reaches {list(found)}, expected within [{lo}, {hi})")
    return Access(source, tuple(index for _, index in given))


def _called(source: Tensor | Table | Scope) -> str:
    match source:
        case Tensor(name):
            return name
        case Table():
            return "the table"
        case Scope():
            return "the scope"


def _call(function: Token, args: list[Node]) -> None:
    arity = FUNCTIONS.get(str(function))
    if arity is None:
        raise Fault(function, f"found function {function}, expected one of {', '.join(FUNCTIONS)}")
    if len(args) != arity:
        raise Fault(function, f"found {len(args)} arguments of {function}, expected {arity}")


def _tensor(node: Node, names: Names) -> Tensor:
    name = name_of(node)
    if name not in names.tensors:
        known = ", ".join(names.tensors) or "a tensor declared before"
        raise Fault(node, f"found unknown tensor {name}, expected {known}")
    return names.tensors[name]


def _edge(tree: Node) -> tuple[int, int]:
    match tree:
        case Tree(children=[both]):
            return integer(both), integer(both)
        case Tree(children=[before, after]):
            return integer(before), integer(after)
    raise Fault(tree, f"found {tree}, expected padding")
