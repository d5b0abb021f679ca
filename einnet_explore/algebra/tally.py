r"""Comparing two scopes term by term: the multisets of their terms as integer maps.

.. math::  \vec x \mapsto \{\!\{ (T_1[\vec i_1] \cdots T_n[\vec i_n]) \cdot k \}\!\}

For every product of tensors the map from output elements and indices to the total coefficient is a finite union of
integer sets, one a coefficient; both scopes compute the same if and only if these sets are equal (they always compute
the same if so).  A summation point must be determined by its output element and its term; where it is not, the count
is beyond integer sets, except for iterators that occur nowhere: those multiply by their extent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import islpy as isl

from einnet_explore.algebra.cancelling import alike, gathered, uncommon
from einnet_explore.algebra.commute import ordered
from einnet_explore.algebra.given import PLAIN, Given
from einnet_explore.algebra.numbers import ENDLESS, Number
from einnet_explore.algebra.polynomial import cancelled
from einnet_explore.algebra.relation import Term, choices_at, terms_at
from einnet_explore.algebra.sets import Sets, context, coordinates
from einnet_explore.algebra.space import Beyond, Space, kind, value_at
from einnet_explore.ir import Box, Scope

Tally: TypeAlias = "dict[Number, Any]"
Sides: TypeAlias = "tuple[list[Term], list[Term]]"


@dataclass(frozen=True, slots=True)
class Witness:
    """An output element and a term of it that two scopes count differently.

    *term* holds the factors with their coordinates.  *decisive*: scopes that differ so compute different functions,
    because the term is a product of tensor elements (and not of symbols for functions, whose values may agree).
    """

    element: tuple[int, ...]
    term: tuple[tuple[str, tuple[int, ...]], ...]
    expected: Number
    found: Number
    decisive: bool

    def __str__(self) -> str:
        at = ", ".join(map(str, self.element))
        named = [(name.removesuffix(ENDLESS), i) for name, i in self.term]
        term = " · ".join(f"{name}[{', '.join(map(str, i))}]" if i else name for name, i in named) or "1"
        return f"element [{at}]: {term} occurs {_times(self.expected)} before and {_times(self.found)} after"


def difference(before: Scope, after: Scope, region: Box, given: Given = PLAIN) -> Witness | None:
    """None where both scopes are equal functions on *region*, else a term that is counted differently.

    *given* says what may be infinite, and which axioms may be used; without them functions are symbols and constants
    exact.  Raises Beyond where the theory does not reach.
    """
    inner = replace(given, exponential=False)
    space = Space(region, lambda a, b: same(a, b, inner), given)
    reduce = _common(kind(before), kind(after))
    if reduce == "sum":
        sides = [terms_at(space, scope, space.point) for scope in (before, after)]
        if given.exponential:
            sides = [[replace(t, factors=cancelled(t.factors)) for t in side] for side in sides]
    else:
        sides = [choices_at(space, scope, space.point, reduce) for scope in (before, after)]
    try:
        return _Comparison(space, context(), reduce).difference(*sides)
    except isl.Error as error:
        raise Beyond(f"integer sets: {error}") from None


def same(before: Scope, after: Scope, given: Given = PLAIN) -> bool:
    """Whether two scopes are provably one function wherever they may be read."""
    return before == after or (before.reach == after.reach and _proved(before, after, given))


@lru_cache(1 << 12)
def _proved(before: Scope, after: Scope, given: Given) -> bool:
    """Whether ``difference`` proves two scopes equal wherever they may be read.

    Remembered: a function read in many terms is asked about in each, also in those of a scope read inside another.
    """
    try:
        return difference(before, after, before.reach, given) is None
    except Beyond:
        return False


def _common(before: str | None, after: str | None) -> str:
    """The reduction under which both are written; what does not reduce goes with either."""
    if before and after and before != after:
        raise Beyond(f"reductions {before} and {after} have no common form")
    return before or after or "sum"


class _Comparison:
    """One comparison: a space, an isl context, and the reduction under which terms are gathered."""

    def __init__(self, space: Space, ctx: Any, reduce: str) -> None:
        self.space, self.ctx, self.reduce = space, ctx, reduce
        self.idempotent = reduce in ("max", "min")
        self.sets = Sets(space, ctx, counted=not self.idempotent)

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

    def _rest(self, left: list[Term], right: list[Term]) -> Sides:
        """What has to be compared: the sides without what both have, which for sets of values is all or nothing."""
        if self.idempotent:
            return ([], []) if alike(self.space, left, right) else (left, right)
        return uncommon(self.space, left, right)

    def _differ(self, names: tuple[str, ...], rest: Sides, sides: Sides) -> Any:
        """As ``_compare``; products commute."""
        found = self._compare(names, rest, sides)
        if found is not None and len(set(names)) < len(names):
            return self._compare(names, *((ordered(left), ordered(right)) for left, right in (rest, sides)))
        return found

    def _decisive(self, names: tuple[str, ...], every: Iterable[tuple[str, ...]]) -> bool:
        """Whether terms of these *names* that differ make different functions; *every*: the names of all terms."""
        if self.reduce == "sum":
            return all(_is_tensor(name) for term in every for name in term)
        # A maximum over tensor elements and constants shows every element: it is the largest where it is large enough.
        plain = all(name.startswith("1*") and _is_tensor(name[2:]) for name in names)
        return self.idempotent and plain and all(_is_plain(name) for term in every for name in term)

    def _compare(self, names: tuple[str, ...], rest: Sides, sides: Sides) -> Any:
        """None where both of *rest* are equal, else an element and a term with how often it is in each of *sides*."""
        for left, right in zip(*map(self._pieces, rest), strict=True):
            for k in dict.fromkeys((*left, *right)):
                for one, other in ((left, right), (right, left)):
                    if k in one:
                        missing = one[k] if k not in other else one[k] - other[k]
                        if not missing.is_empty():
                            return self._witness(names, missing, sides)
        return None

    def _witness(self, names: tuple[str, ...], missing: Any, sides: Sides) -> Any:
        values = coordinates(missing)
        element, index = tuple(values[: len(self.space.coordinates)]), values[len(self.space.coordinates) :]
        at = isl.Set.from_point(missing.lexmin().sample_point())
        counts = [self._count(side, element, at) for side in sides]
        term = []
        for name, n in zip(names, self._sizes, strict=True):
            term.append((name, tuple(index[:n])))
            index = index[n:]
        return element, tuple(term), counts[0], counts[1]

    def _count(self, terms: list[Term], element: tuple[int, ...], at: Any) -> Number:
        """How often the *terms* of one side occur at the point *at*, whose output element is *element*."""
        known = dict(zip(self.space.coordinates, element, strict=True))
        count: Number = Fraction(0)
        for term in gathered(terms):
            if all(value_at(row, known) >= 0 for row in term.where if known.keys() >= row.keys() - {""}):
                coefficient, points = self.sets.of(term)
                if at.is_subset(points):
                    count = Fraction(1) if self.idempotent else count + coefficient
        return self.space.given.number(count)

    def _pieces(self, terms: list[Term]) -> tuple[Tally, Tally]:
        """Disjoint sets of (output element, indices), one a total coefficient; and where terms are added or subtracted.

        The latter for what may be infinite only: there it has to be the same, too.
        """
        total: Tally = {}
        signs: Tally = {}
        for term in terms[:1]:
            self._sizes = tuple(len(at) for _, at in term.factors)
        if not self.idempotent:
            for term in (t for t in terms if any(name.endswith(ENDLESS) for name, _ in t.factors)):
                sign, (_, rest) = Fraction(1 if term.coefficient > 0 else -1), self.sets.of(term)
                signs[sign] = rest | signs[sign] if sign in signs else rest
        for term in gathered(terms):
            coefficient, rest = self.sets.of(term)
            if self.idempotent:
                total[Fraction(1)] = rest | total[Fraction(1)] if total else rest
            elif coefficient:
                total = self._add(total, coefficient, rest)
        return total, signs

    def _add(self, total: Tally, coefficient: Number, piece: Any) -> Tally:
        out: Tally = {}

        def put(k: Number, s: Any) -> None:
            if k and not s.is_empty():
                k = self.space.given.number(k)
                out[k] = out[k] | s if k in out else s

        for k, s in total.items():
            common = s & piece
            if common.is_empty():
                put(k, s)
                continue
            put(k, s - common)
            put(k + coefficient, common)
            piece = piece - common
        put(coefficient, piece)
        return out


def _by_signature(terms: list[Term]) -> dict[tuple[str, ...], list[Term]]:
    out: dict[tuple[str, ...], list[Term]] = {}
    for term in terms:
        factors = tuple(sorted(term.factors, key=lambda f: f[0]))
        named = Term(term.coefficient, factors, term.summed, term.where)
        out.setdefault(tuple(name for name, _ in factors), []).append(named)
    return out


def _is_tensor(name: str) -> bool:
    return name.isidentifier() or (name.startswith('"') and not name.endswith(ENDLESS))


def _is_plain(name: str) -> bool:
    """Whether *name* is that of a tensor's elements or of a constant."""
    return (name.startswith("1*") and _is_tensor(name[2:])) or name.lstrip("-").replace("/", "").isdigit()


def _times(count: Number) -> str:
    return f"{count} time" + ("" if count == 1 else "s")
