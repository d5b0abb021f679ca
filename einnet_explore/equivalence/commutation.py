"""Normal form of terms under commutation: factors of one tensor in the order of their indices."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise, permutations, product
from math import factorial, prod

from einnet_explore.equivalence.linear_space import Factor, Form, Undecided
from einnet_explore.equivalence.term_relation import Term

MAX_PIECES = 2000
"""Pieces of terms up to which factors are ordered: four factors of one tensor of rank 2 have about 400."""

TOO_MANY = f"the factors of one tensor have more than {MAX_PIECES} orders"


def order_factors(terms: list[Term]) -> list[Term]:
    """Sort the factors of one tensor by their indices, in lexical order.

    Every permutation of a term's factors becomes a piece, restricted to where it is the stably sorted one; the pieces
    partition the term.  Raises Undecided for more than ``MAX_PIECES``.
    """
    pieces: list[Term] = []
    for term in terms:
        for piece in _sorted_pieces(term):
            if len(pieces) == MAX_PIECES:
                raise Undecided(TOO_MANY)
            pieces.append(piece)
    return pieces


def _sorted_pieces(term: Term) -> Iterable[Term]:
    names = [name for name, _ in term.factors]
    groups = [list(same) for _, same in groupby(range(len(names)), names.__getitem__)]
    if prod(factorial(len(same)) for same in groups) > MAX_PIECES:
        raise Undecided(TOO_MANY)
    for chosen in product(*map(permutations, groups)):
        order = [n for group in chosen for n in group]
        choices: list[tuple[Form, ...]] = [()]
        for a, b in pairwise(order):
            if names[a] == names[b]:
                before, equal = _order_pieces(term.factors[a], term.factors[b])
                pieces = before if a > b else (*before, equal)
                choices = [(*c, *p) for c in choices for p in pieces]
        factors = tuple(term.factors[n] for n in order)
        for extra in choices:
            yield Term(term.coefficient, factors, term.summed, (*term.where, *extra))


def _order_pieces(a: Factor, b: Factor) -> tuple[tuple[tuple[Form, ...], ...], tuple[Form, ...]]:
    """Return disjoint pieces of index(a) < index(b) in lexical order, and the piece in which they are equal."""
    before: list[tuple[Form, ...]] = []
    equal: tuple[Form, ...] = ()
    for i, j in zip(a[1], b[1], strict=True):
        up = {v: j.get(v, 0) - i.get(v, 0) for v in {**i, **j}}
        before.append((*equal, {**up, "": up[""] - 1}))
        equal = (*equal, up, {v: -k for v, k in up.items()})
    return tuple(before), equal
