"""Whether two scopes of polynomial sizes are one function for every value of the parameters.

The terms are those of ``algebra.relation``, over a space whose ranges are polynomials.  They are compared as integer
sets of (sizes, output element, indices), or point by point where a parameter is multiplied by an iterator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isinf
from typing import Any

import islpy as isl

from einnet_explore.algebra.commute import ordered
from einnet_explore.algebra.given import PLAIN, Given
from einnet_explore.algebra.numbers import ENDLESS, Number
from einnet_explore.algebra.polynomial import cancelled
from einnet_explore.algebra.relation import Term, choices_at, terms_at
from einnet_explore.algebra.sets import context
from einnet_explore.algebra.space import Beyond, Form, kind
from einnet_explore.family.cover import uncovered
from einnet_explore.family.decide import assumptions, conditions, multiplied, size_names, used_in
from einnet_explore.family.forms import plus, show
from einnet_explore.family.parameters import Ground
from einnet_explore.family.region import coordinates, dimension, linear, relaxed
from einnet_explore.family.space import ParametricSpace
from einnet_explore.ir import Box, Scope


@dataclass(frozen=True, slots=True)
class Differs:
    """That a proof failed: where the terms differ, and the unknowns' values there if they are known."""

    why: str
    unknowns: tuple[int, ...] = ()


@dataclass(slots=True)
class Prover:
    """What is assumed, and which means were needed so far: ``isl``, ``z3``, or ``digits`` where none was asked."""

    ground: Ground
    means: set[str]

    def difference(self, before: Scope, after: Scope, region: Box, given: Given = PLAIN) -> Differs | None:
        """None where both scopes are equal functions on *region* at all sizes, else why that is not proved.

        *given* says what may be infinite, and which axioms may be used.  Raises Beyond where the theory does not reach.
        """
        if before == after:
            return None
        inner = replace(given, exponential=False)
        space = ParametricSpace(self.ground, region, lambda a, b: self.same(a, b, inner), given)
        kinds = {k for k in (kind(before), kind(after)) if k}
        if len(kinds) > 1:
            raise Beyond(f"reductions {' and '.join(sorted(kinds))} have no common form")
        reduce = min(kinds, default="sum")
        if reduce == "sum":
            sides = [terms_at(space, scope, space.point) for scope in (before, after)]
            if given.exponential:
                sides = [[replace(t, factors=cancelled(t.factors)) for t in side] for side in sides]
        else:
            sides = [choices_at(space, scope, space.point, reduce) for scope in (before, after)]
        counts = reduce not in ("max", "min")
        if counts and _cancelling([*sides[0], *sides[1]]):
            raise Beyond("what may be infinite is taken from something")
        left, right = ([counted(space, t) if counts else t for t in side] for side in sides)
        one, other = by_signature(left), by_signature(right)
        for names in dict.fromkeys((*one, *other)):
            found = self._compare(space, one.get(names, []), other.get(names, []), counts)
            if found is not None:
                return Differs(
                    f"{' · '.join(names) or 'the constant term'} is counted differently at {found.why}", found.unknowns
                )
        return None

    def same(self, before: Scope, after: Scope, given: Given = PLAIN) -> bool:
        """Whether two scopes are provably one function wherever they may be read, at all sizes."""
        try:
            return before == after or (
                before.reach == after.reach and self.difference(before, after, before.reach, given) is None
            )
        except Beyond:
            return False

    def _compare(self, space: ParametricSpace, left: list[Term], right: list[Term], counts: bool) -> Differs | None:
        rows = [*assumptions(space), *(row for term in (*left, *right) for row in rows_of(space, term))]
        if multiplied(space, rows):
            found = uncovered(space, left, right, counts)
            self.means |= space.asked or {"digits"}
            return None if found is None else Differs(found)
        self.means.add("isl")
        try:
            tallies = _Tallies(space, size_names(space, rows), counts)
            found_at = tallies.difference(left, right)
            names = [n for term in (*left, *right)[:1] for n, _ in term.factors]
            if found_at is not None and len(set(names)) < len(names):
                found_at = tallies.difference(ordered(left), ordered(right))
            return found_at
        except isl.Error as error:
            raise Beyond(f"integer sets: {error}") from None


def _cancelling(terms: list[Term]) -> bool:
    """Whether what may be infinite is added and subtracted: then it may be no number."""
    signs: dict[tuple[str, ...], set[bool]] = {}
    for term in terms:
        if any(name.endswith(ENDLESS) for name, _ in term.factors):
            names = tuple(sorted(name for name, _ in term.factors))
            signs.setdefault(names, set()).add(term.coefficient > 0)
    return any(len(found) > 1 for found in signs.values())


def counted(space: ParametricSpace, term: Term) -> Term:
    """*term* times the extents of summed integers that occur nowhere: a number, or a factor without indices."""
    used = used_in(space, rows_of(space, term, bare=True))
    coefficient, factors = term.coefficient, term.factors
    if isinf(coefficient):
        raise Beyond("an infinite constant is added")
    for y in term.summed:
        if y not in used:
            lo, hi = space.limits[y]
            extent = plus(plus(hi, lo, -1), {"": 1})
            if not space.ground.surely(extent):
                raise Beyond(f"whether the extent {show(extent)} is positive depends on the sizes")
            if set(extent) == {""}:
                coefficient = coefficient * extent[""]
            else:
                factors = (*factors, (f"|{show(dict(sorted(extent.items())))}|", ()))
    return Term(coefficient, factors, tuple(y for y in term.summed if y in used), term.where)


def by_signature(terms: Iterable[Term]) -> dict[tuple[str, ...], list[Term]]:
    """*terms* by the names of their factors, which are put in order."""
    out: dict[tuple[str, ...], list[Term]] = {}
    for term in terms:
        factors = tuple(sorted(term.factors, key=lambda f: f[0]))
        out.setdefault(tuple(name for name, _ in factors), []).append(replace(term, factors=factors))
    return out


def rows_of(space: ParametricSpace, term: Term, bare: bool = False) -> list[Form]:
    """The conditions and indices of *term*; not *bare*: with all that its integers are made of."""
    forms = [*(form for _, at in term.factors for form in at), *term.where]
    return forms if bare else [*forms, *conditions(space, (*used_in(space, forms), *term.summed), ())]


class _Tallies:
    """Terms as disjoint sets of (sizes, output element, indices), one a total coefficient."""

    def __init__(self, space: ParametricSpace, sizes: tuple[str, ...], counts: bool) -> None:
        self.space, self.sizes, self.counts, self.context = space, sizes, counts, context()
        self.head = (*sizes, *(x for x in space.coordinates if x not in space.symbols))

    def difference(self, left: list[Term], right: list[Term]) -> Differs | None:
        one, other = self._total(left), self._total(right)
        for k in dict.fromkeys((*one, *other)):
            for a, b in ((one, other), (other, one)):
                missing = a[k] - b[k] if k in a and k in b else a.get(k)
                if missing is not None and not missing.is_empty():
                    values = coordinates(missing)
                    n = len(self.space.symbols)
                    x = values[len(self.sizes) : len(self.head)]
                    return Differs(f"element {x}, indices {values[len(self.head) :]}", tuple(values[:n]))
        return None

    def _total(self, terms: list[Term]) -> dict[Number, Any]:
        total: dict[Number, Any] = {}
        for term in terms:
            k, piece = self.space.given.number(term.coefficient) if self.counts else Fraction(1), self._points(term)
            if not k:
                continue
            found: dict[Number, Any] = {}

            def put(c: Number, points: Any, found: dict[Number, Any] = found) -> None:
                if c and not points.is_empty():
                    found[c] = found[c] | points if c in found else points

            for c, old in total.items():
                put(c, old - piece)
                put(self.space.given.number(c + k) if self.counts else c, old & piece)
                piece = piece - old
            put(k, piece)
            total = found
        return total

    def _points(self, term: Term) -> Any:
        """Where *term* occurs; raises Beyond where several summation points stand for one place."""
        space = self.space
        forms = [form for _, at in term.factors for form in at]
        used = used_in(space, (*forms, *term.where))
        rows = [*assumptions(space), *relaxed(space.ground.ranges, self.sizes)]
        rows += conditions(space, (*used, *term.summed), term.where)
        image = [f"i{n}" for n in range(len(forms))]
        said = [
            *(f"{linear(row)} >= 0" for row in rows),
            *(f"{i} = {linear(f)}" for i, f in zip(image, forms, strict=True)),
        ]
        hidden = [v for v in dict.fromkeys((*used, *term.summed)) if v not in self.head]
        place = ", ".join(map(dimension, (*self.head, *image)))
        bare = {v for form in forms for v in form if v and len(form) == 2}
        if self.counts and (summed := [y for y in term.summed if y not in bare]):
            others = [v for v in hidden if v not in summed]
            condition = f"{_exists(others)}{' and '.join(said)}"
            points = isl.Map(f"{{ [{place}] -> [{', '.join(summed)}] : {condition} }}", self.context)
            if not points.is_single_valued():
                raise Beyond("one term stands for several summation points, whose number integer sets do not hold")
        return isl.Set(f"{{ [{place}] : {_exists(hidden)}{' and '.join(said)} }}", self.context)


def _exists(names: list[str]) -> str:
    return f"exists {', '.join(names)} : " if names else ""
