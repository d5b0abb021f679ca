r"""From syntax trees to indices, scalars and scopes: one ``match`` each, one case per production.

Reads are checked: :math:`\exists x \in D:\ \tau(x) \notin [lo, hi)`.  Intervals decide for affine indices without a
domain.  Otherwise the box of iterators is halved until intervals decide, so the answer is exact unless that takes more
than ``MAX_CHECKED_POINTS`` halvings; then the read is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, product, zip_longest
from math import prod

from lark import Token, Tree

from einnet_explore.ir import (
    ELEMENT_TYPES,
    FLOAT32,
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
    Table,
    Tensor,
    add,
    as_index,
    mul,
)
from einnet_explore.ir.scalar_functions import FUNCTIONS
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax.trees import (
    SyntaxNode,
    child_trees,
    error_at,
    integer_literal,
    name_from_tree,
    number_from_tree,
    representable,
    signed_integer,
)


@dataclass(frozen=True, slots=True)
class Names:
    """The meaning of names at a place: tensors, the scope's own iterators, and those of outer scopes (for errors)."""

    tensors: Mapping[str, Tensor]
    iterators: Mapping[str, Iterator] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()
    domain: tuple[Bound, ...] = ()
    checked: bool = True
    """Whether reads are checked: a branch of ``where`` may guard against illegal ones in ways not decided here."""


def index_from_tree(tree: SyntaxNode, names: Names) -> Index:
    """Return an index in normal form; products and divisors must be integers once both sides are known."""
    match tree:
        case Tree(data="integer", children=[digits]):
            return as_index(integer_literal(digits))
        case Tree(data="iterator", children=[Token() as name]):
            return as_index(_iterator(name, names))
        case Tree(data="index_plus", children=[a, b]):
            return index_from_tree(a, names) + index_from_tree(b, names)
        case Tree(data="index_minus", children=[a, b]):
            return index_from_tree(a, names) - index_from_tree(b, names)
        case Tree(data="index_negative", children=[a]):
            return -index_from_tree(a, names)
        case Tree(data="index_times", children=[a, b]):
            left, right = index_from_tree(a, names), index_from_tree(b, names)
            if left.terms and right.terms:
                raise error_at(tree, f"found the product of {left!r} and {right!r}, expected an integer factor")
            return left * right.const if not right.terms else right * left.const
        case Tree(data="index_over", children=[a, b]):
            return index_from_tree(a, names) // _divisor(b, names)
        case Tree(data="index_modulo", children=[a, b]):
            return index_from_tree(a, names) % _divisor(b, names)
    raise error_at(tree, f"found {tree}, expected an index")


def ranges_from_tree(ranges: Tree[Token], taken: tuple[Iterator, ...]) -> tuple[Iterator, ...]:
    """Return iterators with their ranges; their names differ from one another and from those *taken*."""
    made = list(taken)
    for node in child_trees(ranges):
        name, *ends = node.children
        lo, hi = map(signed_integer, ends) if len(ends) == 2 else (0, signed_integer(ends[0]))
        x = Iterator(str(name), lo, hi)
        if hi <= lo:
            raise error_at(node, f"found the empty range [{lo}, {hi}) of {x.name}, expected at least one value")
        if any(x.name == y.name for y in made):
            raise error_at(node, f"found iterator {x.name} twice, expected another name")
        made.append(x)
    return tuple(made[len(taken) :])


def bound_from_tree(tree: Tree[Token], names: Names) -> Bound:
    """``lo <= index < hi``"""
    lo, index, hi = tree.children
    return Bound(index_from_tree(index, names), signed_integer(lo), signed_integer(hi))


def _iterator(node: Token, names: Names, size: int = 8) -> Iterator:
    """Return the iterator called *node*; *size* is the range that the error for an unknown one suggests."""
    name = str(node)
    if name in names.iterators:
        return names.iterators[name]
    own = ", ".join(names.iterators) or "no iterator, for there are none"
    if name in names.outer:
        raise error_at(node, f"found {name}, an iterator of an outer scope, expected the scope's own: {own}")
    raise error_at(node, f"found unknown iterator {name}, expected {own}, or sum[{name}:{size}] in front")


def _divisor(tree: SyntaxNode, names: Names) -> int:
    index = index_from_tree(tree, names)
    if index.terms:
        raise error_at(tree, f"found divisor {index!r}, expected an integer")
    if index.const <= 0:
        raise error_at(tree, f"found divisor {index.const}, expected a positive integer")
    return index.const


MAX_CHECKED_POINTS = 20_000


def find_read_outside(index: Index, lo: int, hi: int, domain: Sequence[Bound]) -> tuple[int, int] | None:
    """Return the closed interval that *index* reaches if it leaves ``[lo, hi)`` in *domain*, else None."""
    if lo <= index.bounds[0] and index.bounds[1] < hi:
        return None
    if index.affine and not domain:
        return index.bounds
    reach = _clip(index, domain)
    boxes = [(index, tuple(domain))]
    for _ in range(MAX_CHECKED_POINTS):
        if not boxes:
            return None
        here, bounds = boxes.pop()
        first, last = _clip(here, bounds)
        if last < first or (lo <= first and last < hi):
            continue
        if any(b.index.bounds[1] < b.lo or b.hi <= b.index.bounds[0] for b in bounds):
            continue
        wide = {x for x in chain(here.iterators, *(b.index.iterators for b in bounds)) if x.extent > 1}
        if not wide:
            return reach
        x = max(wide, key=lambda x: (x.extent, x.name))
        middle = x.lo + x.extent // 2
        for half in (Iterator(x.name, x.lo, middle), Iterator(x.name, middle, x.hi)):
            boxes.append(_narrow(here, bounds, x, half))
    return reach


def _clip(index: Index, domain: Sequence[Bound]) -> tuple[int, int]:
    """Return the interval of *index*, clipped by the bounds of the same index up to sign and offset."""
    lo, hi = index.bounds
    for b, sign in product(domain, (1, -1)):
        offset = index - b.index * sign
        if not offset.terms:
            ends = offset.const + b.lo * sign, offset.const + (b.hi - 1) * sign
            lo, hi = max(lo, min(ends)), min(hi, max(ends))
    return lo, hi


def _narrow(index: Index, bounds: tuple[Bound, ...], x: Iterator, half: Iterator) -> tuple[Index, tuple[Bound, ...]]:
    def to(y: Iterator) -> Iterator:
        return half if y == x else y

    return index.substitute(to), tuple(Bound(b.index.substitute(to), b.lo, b.hi) for b in bounds)


def scope_from_tree(tree: Tree[Token], names: Names) -> Scope:
    """``{[traversals | domain] reduction body} pad [...]``; scopes are closed, so *names*' iterators become outer."""
    traversals, body, clauses = child_trees(tree)
    return scope_from_clauses(traversals, body, clauses, names)


def scope_from_clauses(head: Tree[Token], body: SyntaxNode, clauses: Tree[Token], names: Names) -> Scope:
    """Return the scope with traversals *head*, right side *body* and clauses *clauses*."""
    ranges, *bounds = child_trees(head)
    traversals = ranges_from_tree(ranges, ())
    outer = names.outer | names.iterators.keys()
    inside = Names(names.tensors, {x.name: x for x in traversals}, outer)
    domain = tuple(bound_from_tree(b, inside) for b in child_trees(bounds[0])) if bounds else ()
    reduce = "sum"
    summations: tuple[Iterator, ...] = ()
    match body:
        case Tree(data="reduction", children=[Token(value=reduce), Tree() as ranges, body]):
            summations = ranges_from_tree(ranges, traversals)
    own = {x.name: x for x in (*traversals, *summations)}
    scalar = scalar_from_tree(body, replace(inside, iterators=own, domain=domain))
    padding, value, *_ = parse_clauses(child_trees(clauses), len(traversals), "the scope")
    return Scope(traversals, summations, scalar, reduce, domain, padding, value)


def scalar_from_tree(tree: SyntaxNode, names: Names) -> Scalar:
    """Return a body; products and sums are flattened, constants collected, as ``ir.mul`` and ``ir.add`` do."""
    match tree:
        case Tree(data="number"):
            return Const(number_from_tree(tree))
        case Tree(data="plus", children=[a, b]):
            return _refuse_overflow(tree, add(scalar_from_tree(a, names), scalar_from_tree(b, names)))
        case Tree(data="times", children=[a, b]):
            return _refuse_overflow(tree, mul(scalar_from_tree(a, names), scalar_from_tree(b, names)))
        case Tree(data="minus", children=[a, b]):
            return Apply("-", (scalar_from_tree(a, names), scalar_from_tree(b, names)))
        case Tree(data="over", children=[a, b]):
            return Apply("/", (scalar_from_tree(a, names), scalar_from_tree(b, names)))
        case Tree(data="negative", children=[a]):
            inner = scalar_from_tree(a, names)
            return Const(-inner.value) if isinstance(inner, Const) else Apply("neg", (inner,))
        case Tree(data="access", children=[name, _]):
            return _access_from_tree(_tensor(name, names), tree, names)
        case Tree(data="nested", children=[Tree() as scope, _]):
            return _access_from_tree(scope_from_tree(scope, names), tree, names)
        case Tree(data="looked_up", children=[Tree() as table, _]):
            return _access_from_tree(table_from_tree(table), tree, names)
        case Tree(data="call", children=[Token() as function, *args]):
            _check_arity(function, args)
            return Apply(str(function), tuple(scalar_from_tree(a, names) for a in args))
        case Tree(data="choice", children=[Tree(children=[left, Token() as op, right]), a, b]):
            condition = Compare(str(op), index_from_tree(left, names), index_from_tree(right, names))
            free = replace(names, checked=False)
            return Apply("where", (condition, scalar_from_tree(a, free), scalar_from_tree(b, free)))
        case Tree(data="reduction", children=[Token() as name, *_]):
            raise error_at(
                name,
                f"found {name} inside an expression, expected it in an equation or a scope of its own: "
                f"{{[...] {name}[...] ...}}[...]",
            )
    raise error_at(tree, f"found {tree}, expected an expression")


def _refuse_overflow(tree: SyntaxNode, made: Scalar) -> Scalar:
    """Return *made*; raises TextError if its collected constants exceed floating point."""
    match made:
        case Const(value) | Apply("+" | "*", (Const(value), *_)) if not representable(value):
            raise error_at(tree, "found constants that make no number, expected one that floating point can hold")
    return made


def table_from_tree(tree: Tree[Token]) -> Table:
    """``table[2, 2](1, 0, -1/2, 1)``."""
    sizes, *entries = child_trees(tree)
    shape = tuple(integer_literal(size) for size in sizes.children)
    if 0 in shape:
        raise error_at(sizes, f"found shape {list(shape)} of a table, expected sizes of at least 1")
    if len(entries) != prod(shape):
        raise error_at(tree, f"found {len(entries)} entries, expected {prod(shape)} for shape {list(shape)}")
    return Table(shape, tuple(map(_rational, entries)))


def _rational(tree: Tree[Token]) -> Fraction:
    numerator, *denominator = tree.children
    below = integer_literal(denominator[0]) if denominator else 1
    if not below:
        raise error_at(tree, "found the denominator 0, expected a number")
    return Fraction(signed_integer(numerator), below)


def parse_clauses(clauses: Iterable[Tree[Token]], rank: int, of: str) -> tuple[Padding, float, bool, str]:
    """Return padding, its value, whether ``weight`` is present, and the type; each clause occurs at most once."""
    given: dict[str, Tree[Token]] = {}
    padding: Padding = ()
    value: float = 0
    dtype = FLOAT32
    for clause in clauses:
        if clause.data in given:
            raise error_at(
                clause, f"found {'a type' if clause.data == 'dtype' else clause.data} twice, expected it once"
            )
        given[clause.data] = clause
        match clause:
            case Tree(data="pad", children=edges):
                padding = tuple(_edge(e) for e in edges)
                if len(padding) != rank:
                    raise error_at(
                        clause, f"found padding for {len(padding)} dimensions, expected {rank}: the rank of {of}"
                    )
            case Tree(data="value", children=[*sign, Tree() as digits]):
                value = -number_from_tree(digits) if sign else number_from_tree(digits)
            case Tree(data="dtype", children=[Token() as name]):
                dtype = str(name)
    kind = ELEMENT_TYPES[dtype]
    if kind.is_integer and not (kind.low <= value <= kind.high and value == int(value)):
        what = f"expected an integer from {kind.low} to {kind.high}, for {of} is {dtype}"
        raise error_at(given["value"], f"found the padding value {value:g}, {what}")
    return (padding if any(map(any, padding)) else ()), value, "weight" in given, dtype


def _access_from_tree(source: Tensor | Table | Scope, tree: Tree[Token], names: Names) -> Access:
    sizes = zip_longest(child_trees(tree)[-1].children, source.shape)
    given = [(node, _index_along(node, names, size or 8)) for node, size in sizes if node is not None]
    what = _describe_source(source)
    if len(given) != len(source.box):
        indices = count_noun(len(given), "index", "indices")
        raise error_at(tree, f"found {indices} of {what}, expected {len(source.box)}")
    for (node, index), (lo, hi) in zip(given, source.reach, strict=True):
        if names.checked and (found := find_read_outside(index, lo, hi, names.domain)) is not None:
            raise error_at(node, f"index {index!r} of {what} reaches {list(found)}, expected within [{lo}, {hi})")
    return Access(source, tuple(index for _, index in given))


def _index_along(tree: SyntaxNode, names: Names, size: int) -> Index:
    """Return the index along a dimension of *size* elements, which the error for an unknown iterator suggests."""
    match tree:
        case Tree(data="iterator", children=[Token() as name]):
            return as_index(_iterator(name, names, size))
    return index_from_tree(tree, names)


def _describe_source(source: Tensor | Table | Scope) -> str:
    match source:
        case Tensor(name):
            return name
        case Table():
            return "the table"
        case Scope():
            return "the scope"


def _check_arity(function: Token, args: list[SyntaxNode]) -> None:
    arity = FUNCTIONS.get(str(function))
    if arity is None:
        raise error_at(function, f"found function {function}, expected one of {', '.join(FUNCTIONS)}")
    if len(args) != arity:
        raise error_at(function, f"found {len(args)} arguments of {function}, expected {arity}")


def _tensor(node: SyntaxNode, names: Names) -> Tensor:
    name = name_from_tree(node)
    if name not in names.tensors:
        known = ", ".join(names.tensors) or "a tensor declared before"
        raise error_at(node, f"found unknown tensor {name}, expected {known}")
    return names.tensors[name]


def _edge(tree: SyntaxNode) -> tuple[int, int]:
    match tree:
        case Tree(children=[both]):
            return integer_literal(both), integer_literal(both)
        case Tree(children=[before, after]):
            return integer_literal(before), integer_literal(after)
    raise error_at(tree, f"found {tree}, expected padding")
