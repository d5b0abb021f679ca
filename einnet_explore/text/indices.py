"""From syntax trees to iterators, indices and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lark import Token, Tree

from einnet_explore.ir import Bound, Index, Iterator, Tensor, as_index
from einnet_explore.text.errors import Fault
from einnet_explore.text.literals import Node, children, integer, signed


@dataclass(frozen=True, slots=True)
class Names:
    """What names mean at a place: tensors, the scope's own iterators, and those of outer scopes (for the error)."""

    tensors: Mapping[str, Tensor]
    iterators: Mapping[str, Iterator] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()
    domain: tuple[Bound, ...] = ()
    checked: bool = True
    """Whether reads are checked: a branch of ``where`` may guard against illegal ones in ways not decided here."""


def index_of(tree: Node, names: Names) -> Index:
    """An index in normal form; products and divisors must be integers once both sides are known."""
    match tree:
        case Tree(data="integer", children=[digits]):
            return as_index(integer(digits))
        case Tree(data="iterator", children=[Token() as name]):
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


def ranges_of(ranges: Tree[Token], taken: tuple[Iterator, ...]) -> tuple[Iterator, ...]:
    """Iterators with their ranges; their names differ from one another and from those *taken*."""
    made = list(taken)
    for node in children(ranges):
        name, *ends = node.children
        lo, hi = map(signed, ends) if len(ends) == 2 else (0, signed(ends[0]))
        x = Iterator(str(name), lo, hi)
        if hi <= lo:
            raise Fault(node, f"found the empty range [{lo}, {hi}) of {x.name}, expected at least one value")
        if any(x.name == y.name for y in made):
            raise Fault(node, f"found iterator {x.name} twice, expected another name")
        made.append(x)
    return tuple(made[len(taken) :])


def bound_of(tree: Tree[Token], names: Names) -> Bound:
    """``lo <= index < hi``"""
    lo, index, hi = tree.children
    return Bound(index_of(index, names), signed(lo), signed(hi))


def _iterator(node: Token, names: Names) -> Iterator:
    name = str(node)
    if name in names.iterators:
        return names.iterators[name]
    own = ", ".join(names.iterators) or "no iterator, for there are none"
    if name in names.outer:
        raise Fault(node, f"found {name}, an iterator of an outer scope, expected the scope's own: {own}")
    raise Fault(node, f"found unknown iterator {name}, expected {own}")


def _divisor(tree: Node, names: Names) -> int:
    index = index_of(tree, names)
    if index.terms:
        raise Fault(tree, f"found divisor {index!r}, expected an integer")
    if index.const <= 0:
        raise Fault(tree, f"found divisor {index.const}, expected a positive integer")
    return index.const
