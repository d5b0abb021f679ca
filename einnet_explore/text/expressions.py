"""From syntax trees to indices, scalars and scopes: one ``match`` each, one case a production."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lark import Token, Tree

from einnet_explore.ir import (
    FUNCTIONS,
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Index,
    Iterator,
    Padding,
    Scalar,
    Scope,
    Tensor,
    add,
    as_index,
    mul,
)
from einnet_explore.text.errors import Fault
from einnet_explore.text.reads import leaving

Node: TypeAlias = "Tree[Token] | Token"


@dataclass(frozen=True, slots=True)
class Names:
    """What names mean at a place: tensors, the scope's own iterators, and those of outer scopes (for the error)."""

    tensors: Mapping[str, Tensor]
    iterators: Mapping[str, Iterator] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()
    domain: tuple[Bound, ...] = ()
    checked: bool = True
    """Whether reads are checked: a branch of ``where`` may guard against illegal ones in ways not decided here."""


def scope_of(tree: Tree[Token], names: Names) -> Scope:
    """``{[traversals | domain] reduction body} pad [...]``; scopes are closed, so *names*' iterators become outer."""
    traversals, body, clauses = _children(tree)
    return closed(traversals, body, clauses, names)


def closed(head: Tree[Token], body: Node, clauses: Tree[Token], names: Names) -> Scope:
    """The scope of traversals *head*, right side *body* and the clauses *clauses*."""
    ranges, *bounds = _children(head)
    traversals = _iterators(ranges, ())
    outer = names.outer | names.iterators.keys()
    inside = Names(names.tensors, {x.name: x for x in traversals}, outer)
    domain = tuple(_bound(b, inside) for b in _children(bounds[0])) if bounds else ()
    reduce = "sum"
    summations: tuple[Iterator, ...] = ()
    match body:
        case Tree(data="reduction", children=[Token(value=reduce), Tree() as ranges, body]):
            summations = _iterators(ranges, traversals)
    own = {x.name: x for x in (*traversals, *summations)}
    scalar = scalar_of(body, replace(inside, iterators=own, domain=domain))
    padding, value, _ = clauses_of(_children(clauses), len(traversals), "the scope")
    return Scope(traversals, summations, scalar, reduce, domain, padding, value)


def scalar_of(tree: Node, names: Names) -> Scalar:
    """A body: products and sums are flattened, constants collected, as ``ir.mul`` and ``ir.add`` do."""
    match tree:
        case Tree(data="number"):
            return Const(number_of(tree))
        case Tree(data="plus", children=[a, b]):
            return add(scalar_of(a, names), scalar_of(b, names))
        case Tree(data="times", children=[a, b]):
            return mul(scalar_of(a, names), scalar_of(b, names))
        case Tree(data="minus", children=[a, b]):
            return Apply("-", (scalar_of(a, names), scalar_of(b, names)))
        case Tree(data="over", children=[a, b]):
            return Apply("/", (scalar_of(a, names), scalar_of(b, names)))
        case Tree(data="negative", children=[a]):
            inner = scalar_of(a, names)
            return Const(-inner.value) if isinstance(inner, Const) else Apply("neg", (inner,))
        case Tree(data="access", children=[Tree() as name, Tree() as indices]):
            return _read(_tensor(name, names), indices, names)
        case Tree(data="nested", children=[Tree() as scope, Tree() as indices]):
            return _read(scope_of(scope, names), indices, names)
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


def index_of(tree: Node, names: Names) -> Index:
    """An index in normal form; products and divisors must be integers once both sides are known."""
    match tree:
        case Tree(data="integer", children=[digits]):
            return as_index(integer(digits))
        case Tree(data="iterator", children=[Tree() as name]):
            return as_index(_iterator(name, names))
        case Tree(data="index_plus", children=[a, b]):
            return index_of(a, names) + index_of(b, names)
        case Tree(data="index_minus", children=[a, b]):
            return index_of(a, names) - index_of(b, names)
        case Tree(data="index_negative", children=[a]):
            return -index_of(a, names)
        case Tree(data="index_times", children=[a, b]):
            left, right = index_of(a, names), index_of(b, names)
            if left.terms and right.terms:
                raise Fault(tree, f"found the product of {left!r} and {right!r}, expected an integer factor")
            return left * right.const if not right.terms else right * left.const
        case Tree(data="index_over", children=[a, b]):
            return index_of(a, names) // _divisor(b, names)
        case Tree(data="index_modulo", children=[a, b]):
            return index_of(a, names) % _divisor(b, names)
    raise Fault(tree, f"found {tree}, expected an index")


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


def name_of(tree: Node) -> str:
    """A name, or any text in double quotes."""
    match tree:
        case Tree(children=[Token(type="STRING") as token]):
            return string(token)
        case Tree(children=[token]):
            return str(token)
    raise Fault(tree, f"found {tree}, expected a name")


def string(token: Node) -> str:
    """The text between double quotes, with JSON's escapes."""
    try:
        return str(json.loads(str(token), strict=False))
    except json.JSONDecodeError as error:
        raise Fault(token, f"found {token}, expected a string: {error.msg}") from None


def integer(token: Node) -> int:
    """Digits as an integer."""
    try:
        return int(str(token))
    except ValueError:
        raise Fault(token, f"found {len(str(token))} digits, expected fewer") from None


def signed(tree: Node) -> int:
    """Digits with an optional sign."""
    match tree:
        case Tree(children=[digits]):
            return integer(digits)
        case Tree(children=[_, digits]):
            return -integer(digits)
    raise Fault(tree, f"found {tree}, expected an integer")


def number_of(tree: Tree[Token]) -> float:
    """An integer, a decimal number or ``inf``; integers stay exact."""
    match tree.children[0]:
        case Token(type="INT") as token:
            return integer(token)
        case token:
            return float(str(token))


def _read(source: Tensor | Scope, indices: Tree[Token], names: Names) -> Access:
    given = [(node, index_of(node, names)) for node in indices.children]
    what = source.name if isinstance(source, Tensor) else "the scope"
    if len(given) != len(source.box):
        raise Fault(indices, f"found {len(given)} indices of {what}, expected {len(source.box)}")
    for node, index, (lo, hi) in (
        zip(*zip(*given, strict=True), source.reach, strict=True) if given and names.checked else ()
    ):
        if (found := leaving(index, lo, hi, names.domain)) is not None:
            raise Fault(node, f"index {index!r} of {what} reaches {list(found)}, expected within [{lo}, {hi})")
    return Access(source, tuple(index for _, index in given))


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


def _iterator(node: Node, names: Names) -> Iterator:
    name = name_of(node)
    if name in names.iterators:
        return names.iterators[name]
    own = ", ".join(names.iterators) or "no iterator, for there are none"
    if name in names.outer:
        raise Fault(node, f"found {name}, an iterator of an outer scope, expected the scope's own: {own}")
    raise Fault(node, f"found unknown iterator {name}, expected {own}")


def _iterators(ranges: Tree[Token], taken: tuple[Iterator, ...]) -> tuple[Iterator, ...]:
    made = list(taken)
    for node in _children(ranges):
        name, *ends = node.children
        lo, hi = map(signed, ends) if len(ends) == 2 else (0, signed(ends[0]))
        x = Iterator(name_of(name), lo, hi)
        if hi <= lo:
            raise Fault(node, f"found the empty range [{lo}, {hi}) of {x.name}, expected at least one value")
        if any(x.name == y.name for y in made):
            raise Fault(node, f"found iterator {x.name} twice, expected another name")
        made.append(x)
    return tuple(made[len(taken) :])


def _bound(tree: Tree[Token], names: Names) -> Bound:
    lo, index, hi = tree.children
    bound = Bound(index_of(index, names), signed(lo), signed(hi))
    if bound.hi <= bound.lo:
        raise Fault(tree, f"found the empty bound {bound!r}, expected at least one value")
    return bound


def _edge(tree: Node) -> tuple[int, int]:
    match tree:
        case Tree(children=[both]):
            return integer(both), integer(both)
        case Tree(children=[before, after]):
            return integer(before), integer(after)
    raise Fault(tree, f"found {tree}, expected padding")


def _divisor(tree: Node, names: Names) -> int:
    index = index_of(tree, names)
    if index.terms:
        raise Fault(tree, f"found divisor {index!r}, expected an integer")
    if index.const <= 0:
        raise Fault(tree, f"found divisor {index.const}, expected a positive integer")
    return index.const


def _children(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]
