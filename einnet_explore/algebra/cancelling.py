"""Terms that stand on both sides of a comparison, whatever their summed integers are called.

Two terms with the same factors, conditions and sums contribute the same to every element, so they need no sets: what
is left of both sides is equal exactly if the sides are.  Most steps of a derivation leave most terms as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from math import isinf
from typing import Any

from einnet_explore.algebra.numbers import rounded
from einnet_explore.algebra.polynomial import endless
from einnet_explore.algebra.relation import Term
from einnet_explore.algebra.space import Form, Space


def uncommon(space: Space, left: Iterable[Term], right: Iterable[Term]) -> tuple[list[Term], list[Term]]:
    """What is left of both sides where terms that both have are taken away.

    What may be infinite is no number that could be taken away: such sides are returned as they are, or are the same.
    """
    sides = list(left), list(right)
    if any(endless(term.coefficient, term.factors) for side in sides for term in side):
        one, other = (Counter((known_by(space, term), term.coefficient) for term in side) for side in sides)
        return ([], []) if one == other else sides
    left_by, right_by = (_merged(space, side) for side in sides)
    rounds = space.given.rounds
    same = {k for k in left_by.keys() & right_by.keys() if _one_number(left_by[k], right_by[k], rounds)}
    return [t for k, t in left_by.items() if k not in same], [t for k, t in right_by.items() if k not in same]


def _merged(space: Space, side: list[Term]) -> dict[Hashable, Term]:
    """The terms of one *side* by what they are known by, those that are alike but for their coefficients added up."""
    total: dict[Hashable, Term] = {}
    for term in gathered(side):
        known = total.get(same := known_by(space, term))
        total[same] = replace(term, coefficient=known.coefficient + term.coefficient) if known else term
    return {same: term for same, term in total.items() if term.coefficient}


def _one_number(a: Term, b: Term, rounds: bool) -> bool:
    if rounds:
        return rounded(a.coefficient) == rounded(b.coefficient)
    return a.coefficient == b.coefficient


def gathered(terms: Sequence[Term]) -> list[Term]:
    """*terms* with those that differ in their coefficients only added up, and without those that are cancelled.

    The products of a bilinear algorithm mostly cancel: their sets need not be made for that.
    """
    out: dict[Any, Term] = {}
    seen: dict[int, Hashable] = {}  # most forms are shared by many terms

    def known_as(form: Form) -> Hashable:
        if id(form) not in seen:
            seen[id(form)] = frozenset(form.items())
        return seen[id(form)]

    for term in terms:
        factors = tuple([(name, tuple([known_as(form) for form in at])) for name, at in term.factors])
        where = frozenset([known_as(row) for row in term.where])
        same = factors, frozenset(term.summed), where, isinf(term.coefficient) and term.coefficient
        known = out.get(same)
        out[same] = replace(term, coefficient=known.coefficient + term.coefficient) if known else term
    return [term for term in out.values() if term.coefficient]


def alike(space: Space, left: Iterable[Term], right: Iterable[Term]) -> bool:
    """Whether both sides have the same terms, no matter how often: as sets of values that are reduced they are one."""
    return {known_by(space, term) for term in left} == {known_by(space, term) for term in right}


def known_by(space: Space, term: Term) -> Hashable:
    """*term* but for its coefficient: equal for terms that differ in names of summed integers only.

    Summed integers are numbered as they are met; where an order of equals was chosen otherwise, two such terms may get
    different keys, never the other way round.
    """
    return _Naming(space, term).key()


class _Naming:
    """The numbers of one term's summed integers, given as they are met."""

    def __init__(self, space: Space, term: Term) -> None:
        self._space, self._term = space, term
        self._numbers: dict[str, int] = {}
        self._summed = frozenset(term.summed)

    def key(self) -> Hashable:
        factors = tuple([(name, tuple([self._form(form) for form in at])) for name, at in self._term.factors])
        where = frozenset([self._form(row) for row in self._term.where])
        ranges = self._space.ranges
        unused = sorted(ranges[y] for y in self._term.summed if y not in self._numbers)
        return factors, where, tuple([ranges[y] for y in self._numbers]), tuple(unused)

    def _form(self, form: Form) -> Hashable:
        return frozenset([(self._integer(v), k) for v, k in form.items()])

    def _integer(self, v: str) -> Hashable:
        """What *v* is: a summed integer its number, a quotient or an alias what it is a function of."""
        if v in self._summed:
            return self._numbers.setdefault(v, len(self._numbers))
        if v in self._space.quotients:
            e, d = self._space.quotients[v]
            return "/", self._form(e), d
        if v in self._space.aliases:
            return "in", self._form(self._space.aliases[v]), self._space.ranges[v]
        return v
