r"""Comparison of two scopes by their term multisets, represented as integer sets.

.. math::  \vec x \mapsto \{\!\{ (T_1[\vec i_1] \cdots T_n[\vec i_n]) \cdot k \}\!\}

For every product of tensors the map from output elements and indices to the total coefficient is a finite union of
integer sets, one per coefficient; equal sets prove the scopes equal.  A summation point must be determined by its
output element and its term; otherwise its count is beyond integer sets, except for unused iterators, which multiply the
coefficient by their extent.

Terms common to both sides, up to the names of summed integers, are cancelled first, without sets: most steps of a
derivation leave most terms unchanged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import islpy as isl

from einnet_explore.equivalence.assumptions import NO_ASSUMPTIONS, Assumptions
from einnet_explore.equivalence.commutation import order_factors
from einnet_explore.equivalence.integer_sets import TermSets, bounded_context, lexical_minimum
from einnet_explore.equivalence.linear_space import Form, TermSpace, Undecided, form_value
from einnet_explore.equivalence.polynomial import may_be_infinite
from einnet_explore.equivalence.term_relation import Term, add_like_terms, compared_terms
from einnet_explore.interpreter.numbers import INFINITE_SUFFIX, Number
from einnet_explore.ir import Box, Scope


def cancel_common_terms(space: TermSpace, left: Iterable[Term], right: Iterable[Term]) -> tuple[list[Term], list[Term]]:
    """Cancel the terms common to both sides; return the remaining terms.

    Sides with possibly infinite terms are cancelled only if they are equal.
    """
    sides = list(left), list(right)
    if any(may_be_infinite(term.coefficient, term.factors) for side in sides for term in side):
        one, other = (Counter((term_key(space, term), term.coefficient) for term in side) for side in sides)
        return ([], []) if one == other else sides
    left_by, right_by = (_merged(space, side) for side in sides)
    number = space.given.number
    same = {
        k
        for k in left_by.keys() & right_by.keys()
        if left_by[k].coefficient == right_by[k].coefficient
        or number(left_by[k].coefficient) == number(right_by[k].coefficient)
    }
    return [t for k, t in left_by.items() if k not in same], [t for k, t in right_by.items() if k not in same]


def _merged(space: TermSpace, side: list[Term]) -> dict[Hashable, Term]:
    """Return the terms of one side by ``term_key``, with like terms added."""
    total: dict[Hashable, Term] = {}
    for term in add_like_terms(side):
        known = total.get(same := term_key(space, term))
        total[same] = replace(term, coefficient=known.coefficient + term.coefficient) if known else term
    return {same: term for same, term in total.items() if term.coefficient}


def same_term_sets(space: TermSpace, left: Iterable[Term], right: Iterable[Term]) -> bool:
    """Whether both sides have the same set of terms, for reductions by max and min."""
    return {term_key(space, term) for term in left} == {term_key(space, term) for term in right}


def term_key(space: TermSpace, term: Term) -> Hashable:
    """Return a key of *term* without its coefficient, invariant under renaming of summed integers.

    Summed integers are numbered in order of occurrence.  Equal keys imply equal terms; the converse may fail for ties.
    """
    return _Naming(space, term).key()


class _Naming:
    """Numbering of one term's summed integers, in order of occurrence."""

    def __init__(self, space: TermSpace, term: Term) -> None:
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
        """Return the identity of *v*: the number of a summed integer, the arguments of a quotient or an alias."""
        if v in self._summed:
            return self._numbers.setdefault(v, len(self._numbers))
        if v in self._space.quotients:
            e, d = self._space.quotients[v]
            return "/", self._form(e), d
        if v in self._space.aliases:
            return "in", self._form(self._space.aliases[v]), self._space.ranges[v]
        return v


TermMultiset: TypeAlias = "dict[Number, Any]"
TermSides: TypeAlias = "tuple[list[Term], list[Term]]"


_SCOPES = re.compile(r"(1\*)?\{\d+\}")
"""The names that proofs give to scopes inside functions, such as ``1*{0}`` in ``relu(1*{0})``."""


@dataclass(frozen=True, slots=True)
class Witness:
    """An output element and a term of it with different counts in two scopes.

    *term* lists the factors with their coordinates.  *decisive*: the scopes are different functions, because the term
    is a product of tensor elements (values of function symbols might agree).
    """

    element: tuple[int, ...]
    term: tuple[tuple[str, tuple[int, ...]], ...]
    expected: Number
    found: Number
    decisive: bool

    def __str__(self) -> str:
        at = ", ".join(map(str, self.element))
        named = [(_SCOPES.sub("{…}", name.removesuffix(INFINITE_SUFFIX)), i) for name, i in self.term]
        term = " · ".join(f"{name}[{', '.join(map(str, i))}]" if i else name for name, i in named) or "1"
        return f"element [{at}]: {term} occurs {_times(self.expected)} before and {_times(self.found)} after"


def term_difference(before: Scope, after: Scope, region: Box, given: Assumptions = NO_ASSUMPTIONS) -> Witness | None:
    """Return a term with different counts in both scopes; None if they are proved equal on *region*.

    *given* names possibly infinite tensors and the axioms; without axioms functions are symbols and constants exact.
    Raises Undecided beyond the theory.
    """
    inner = replace(given, exponential=False)
    space = TermSpace(region, lambda a, b: provably_equal(a, b, inner), given)
    reduce, sides = compared_terms(space, before, after)
    try:
        return _Comparison(space, bounded_context(), reduce).difference(*sides)
    except isl.Error as error:
        raise Undecided(f"integer sets: {error}") from None


def provably_equal(before: Scope, after: Scope, given: Assumptions = NO_ASSUMPTIONS) -> bool:
    """Whether two scopes are provably equal on their reach."""
    return before == after or (before.reach == after.reach and _cached_proof(before, after, given))


@lru_cache(1 << 12)
def _cached_proof(before: Scope, after: Scope, given: Assumptions) -> bool:
    """Whether ``term_difference`` proves two scopes equal on their reach.

    Cached, since a function in many terms is compared in each of them.
    """
    try:
        return term_difference(before, after, before.reach, given) is None
    except Undecided:
        return False


class _Comparison:
    """One comparison: a space, an isl context, and the reduction under which terms are gathered."""

    def __init__(self, space: TermSpace, ctx: Any, reduce: str) -> None:
        self.space, self.ctx, self.reduce = space, ctx, reduce
        self.idempotent = reduce in ("max", "min")
        self.sets = TermSets(space, ctx, counted=not self.idempotent)

    def difference(self, before: list[Term], after: list[Term]) -> Witness | None:
        left, right = _by_signature(before), _by_signature(after)
        names_of_all = dict.fromkeys((*left, *right))
        for names in names_of_all:
            sides = left.get(names, []), right.get(names, [])
            rest = self._rest(*sides)
            found = self._differ(names, rest, sides) if any(rest) else None
            if found is not None and found[2] == found[3]:
                # A difference only of what is left, in the last digits of constants that were folded in floating point.
                found = self._differ(names, sides, sides)
            if found is not None:
                element, term, expected, got = found
                return Witness(element, term, expected, got, self._decisive(names, names_of_all))
        return None

    def _rest(self, left: list[Term], right: list[Term]) -> TermSides:
        """Return the sides without common terms; for sets of values, all or nothing is cancelled."""
        if self.idempotent:
            return ([], []) if same_term_sets(self.space, left, right) else (left, right)
        return cancel_common_terms(self.space, left, right)

    def _differ(self, names: tuple[str, ...], rest: TermSides, sides: TermSides) -> Any:
        """Compare like ``_compare``, also up to commutation."""
        found = self._compare(names, rest, sides)
        if found is not None and len(set(names)) < len(names):
            return self._compare(names, *((order_factors(left), order_factors(right)) for left, right in (rest, sides)))
        return found

    def _decisive(self, names: tuple[str, ...], every: Iterable[tuple[str, ...]]) -> bool:
        """Whether terms of these *names* that differ make different functions; *every*: the names of all terms."""
        if self.reduce == "sum":
            return all(_is_tensor(name) for term in every for name in term)
        # A maximum over tensor elements and constants shows every element: it is the largest where it is large enough.
        plain = all(name.startswith("1*") and _is_tensor(name[2:]) for name in names)
        return self.idempotent and plain and all(_is_plain(name) for term in every for name in term)

    def _compare(self, names: tuple[str, ...], rest: TermSides, sides: TermSides) -> Any:
        """Return an element and a term with its counts in *sides*; None if both of *rest* are equal."""
        for left, right in zip(*map(self._pieces, rest), strict=True):
            for k in dict.fromkeys((*left, *right)):
                for one, other in ((left, right), (right, left)):
                    if k in one:
                        missing = one[k] if k not in other else one[k] - other[k]
                        if not missing.is_empty():
                            return self._witness(names, missing, sides)
        return None

    def _witness(self, names: tuple[str, ...], missing: Any, sides: TermSides) -> Any:
        values = lexical_minimum(missing)
        element, index = tuple(values[: len(self.space.coordinates)]), values[len(self.space.coordinates) :]
        at = isl.Set.from_point(missing.lexmin().sample_point())
        counts = [self._count(side, element, at) for side in sides]
        term = []
        for name, n in zip(names, self._sizes, strict=True):
            term.append((name, tuple(index[:n])))
            index = index[n:]
        return element, tuple(term), counts[0], counts[1]

    def _count(self, terms: list[Term], element: tuple[int, ...], at: Any) -> Number:
        """Count the *terms* of one side at the point *at* of output element *element*."""
        known = dict(zip(self.space.coordinates, element, strict=True))
        count: Number = Fraction(0)
        for term in add_like_terms(terms):
            if all(form_value(row, known) >= 0 for row in term.where if known.keys() >= row.keys() - {""}):
                coefficient, points = self.sets.of(term)
                if at.is_subset(points):
                    count = Fraction(1) if self.idempotent else count + coefficient
        return self.space.given.number(count)

    def _pieces(self, terms: list[Term]) -> tuple[TermMultiset, TermMultiset]:
        """Return a disjoint set of (output element, indices) per total coefficient, and the sets of each sign.

        The signs are recorded for possibly infinite terms only, for which they have to agree, too.
        """
        total: TermMultiset = {}
        signs: TermMultiset = {}
        for term in terms[:1]:
            self._sizes = tuple(len(at) for _, at in term.factors)
        if not self.idempotent:
            for term in (t for t in terms if any(name.endswith(INFINITE_SUFFIX) for name, _ in t.factors)):
                sign, (_, rest) = Fraction(1 if term.coefficient > 0 else -1), self.sets.of(term)
                signs[sign] = rest | signs[sign] if sign in signs else rest
        for term in add_like_terms(terms):
            coefficient, rest = self.sets.of(term)
            if self.idempotent:
                total[Fraction(1)] = rest | total[Fraction(1)] if total else rest
            elif coefficient:
                total = self._add(total, coefficient, rest)
        rounded: TermMultiset = {}
        for k, points in total.items():
            near = self.space.given.number(k)
            rounded[near] = rounded[near] | points if near in rounded else points
        return rounded, signs

    def _add(self, total: TermMultiset, coefficient: Number, piece: Any) -> TermMultiset:
        out: TermMultiset = {}

        def add_points(k: Number, s: Any) -> None:
            if k and not s.is_empty():
                out[k] = out[k] | s if k in out else s

        for k, s in total.items():
            common = s & piece
            if common.is_empty():
                add_points(k, s)
                continue
            add_points(k, s - common)
            add_points(k + coefficient, common)
            piece = piece - common
        add_points(coefficient, piece)
        return out


def _by_signature(terms: list[Term]) -> dict[tuple[str, ...], list[Term]]:
    out: dict[tuple[str, ...], list[Term]] = {}
    for term in terms:
        factors = tuple(sorted(term.factors, key=lambda f: f[0]))
        named = Term(term.coefficient, factors, term.summed, term.where)
        out.setdefault(tuple(name for name, _ in factors), []).append(named)
    return out


def _is_tensor(name: str) -> bool:
    return name.isidentifier() or (name.startswith('"') and not name.endswith(INFINITE_SUFFIX))


def _is_plain(name: str) -> bool:
    """Whether *name* is a tensor or a constant."""
    return (name.startswith("1*") and _is_tensor(name[2:])) or name.lstrip("-").replace("/", "").isdigit()


def _times(count: Number) -> str:
    # Constants are exact values of double precision, with large denominators.
    shown = float(count) if isinstance(count, Fraction) and count.denominator > 1 << 20 else count
    return f"{shown} time" + ("" if count == 1 else "s")
