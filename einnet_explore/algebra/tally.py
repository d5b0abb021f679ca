r"""Comparing two scopes term by term: the multisets of their terms as integer maps.

.. math::  \vec x \mapsto \{\!\{ (T_1[\vec i_1] \cdots T_n[\vec i_n]) \cdot k \}\!\}

For every product of tensors the map from output elements and indices to the total coefficient is a finite union of
integer sets, one a coefficient; both scopes compute the same if and only if these sets are equal (they always compute
the same if so).  A summation point must be determined by its output element and its term; where it is not, the count
is beyond integer sets, except for iterators that occur nowhere: those multiply by their extent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, permutations
from math import isinf
from typing import Any, TypeAlias

import islpy as isl

from einnet_explore.algebra.relation import (
    Beyond,
    Factor,
    Form,
    Number,
    Space,
    Term,
    choices_at,
    kind,
    rounded,
    terms_at,
)
from einnet_explore.ir import Box, Scope

Tally: TypeAlias = "dict[Number, Any]"

_OPERATIONS = 20_000_000
_NAMES_OF_TENSORS = frozenset("(+ ")


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
        term = " · ".join(f"{name}[{', '.join(map(str, i))}]" if i else name for name, i in self.term) or "1"
        return f"element [{at}]: {term} occurs {_times(self.expected)} before and {_times(self.found)} after"


def difference(before: Scope, after: Scope, region: Box) -> Witness | None:
    """None where both scopes are equal functions on *region*, else a term that is counted differently.

    Raises Beyond where the theory does not reach.
    """
    space = Space(region, same)
    reduce = _common(kind(before), kind(after))
    if reduce == "sum":
        sides = [terms_at(space, scope, space.point) for scope in (before, after)]
    else:
        sides = [choices_at(space, scope, space.point, reduce) for scope in (before, after)]
    ctx = isl.Context()
    ctx.set_max_operations(_OPERATIONS)
    try:
        return _Comparison(space, ctx, reduce in ("max", "min")).difference(sides[0], sides[1], decisive=reduce == "sum")
    except isl.Error as error:
        raise Beyond(f"integer sets: {error}") from None


def same(before: Scope, after: Scope) -> bool:
    """Whether two scopes are provably one function wherever they may be read."""
    try:
        return before == after or (before.reach == after.reach and difference(before, after, before.reach) is None)
    except Beyond:
        return False


def sample(space: Space, term: Term) -> tuple[int, ...] | None:
    """The output coordinates and indices of one point where *term* occurs; None when it occurs nowhere."""
    ctx = isl.Context()
    ctx.set_max_operations(_OPERATIONS)
    _, points = _Comparison(space, ctx, True).piece(term)
    return None if points.is_empty() else tuple(_coordinates(points))


def _coordinates(points: Any) -> list[int]:
    point = points.lexmin().sample_point()
    return [point.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(points.dim(isl.dim_type.set))]


def _common(before: str | None, after: str | None) -> str:
    """The reduction under which both are written; what does not reduce goes with either."""
    if before and after and before != after:
        raise Beyond(f"reductions {before} and {after} have no common form")
    return before or after or "sum"


class _Comparison:
    """One comparison: a space, an isl context, and whether reductions are idempotent (multiplicity is lost)."""

    def __init__(self, space: Space, ctx: Any, idempotent: bool) -> None:
        self.space, self.ctx, self.idempotent = space, ctx, idempotent

    def difference(self, before: list[Term], after: list[Term], decisive: bool) -> Witness | None:
        left, right = _by_signature(before), _by_signature(after)
        decisive = decisive and all(
            _NAMES_OF_TENSORS.isdisjoint(name) and not name.startswith("scope")
            for names in (*left, *right)
            for name in names
        )
        for names in dict.fromkeys((*left, *right)):
            sides = left.get(names, []), right.get(names, [])
            found = self._compare(names, *map(self._pieces, sides))
            if found is not None and len(set(names)) < len(names):
                found = self._compare(names, *(self._pieces(_ordered(side)) for side in sides))
            if found is not None:
                element, term, expected, got = found
                return Witness(element, term, expected, got, decisive)
        return None

    def _compare(self, names: tuple[str, ...], left: Tally, right: Tally) -> Any:
        for k in dict.fromkeys((*left, *right)):
            for one, other in ((left, right), (right, left)):
                if k in one:
                    missing = one[k] if k not in other else one[k] - other[k]
                    if not missing.is_empty():
                        return self._witness(names, missing, left, right)
        return None

    def _witness(self, names: tuple[str, ...], missing: Any, left: Tally, right: Tally) -> Any:
        values = _coordinates(missing)
        element, index = tuple(values[: len(self.space.coordinates)]), values[len(self.space.coordinates) :]
        at = isl.Set.from_point(missing.lexmin().sample_point())
        counts = [next((k for k, s in side.items() if at.is_subset(s)), Fraction(0)) for side in (left, right)]
        term = []
        for name, n in zip(names, self._sizes, strict=True):
            term.append((name, tuple(index[:n])))
            index = index[n:]
        return element, tuple(term), counts[0], counts[1]

    def _pieces(self, terms: list[Term]) -> Tally:
        """Disjoint sets of (output element, indices), one a total coefficient."""
        total: Tally = {}
        for term in terms:
            self._sizes = tuple(len(at) for _, at in term.factors)
            coefficient, rest = self.piece(term)
            if self.idempotent:
                total[Fraction(1)] = rest | total[Fraction(1)] if total else rest
            elif coefficient:
                total = _add(total, coefficient, rest)
        return total

    def piece(self, term: Term) -> tuple[Number, Any]:
        if not self.idempotent and isinf(term.coefficient):
            raise Beyond("an infinite constant is added")
        forms = [form for _, at in term.factors for form in at]
        used = self._used((*forms, *term.where))
        summed = [y for y in term.summed if y in used]
        count = Fraction(1)
        for y in term.summed:
            if y not in used:
                lo, hi = self.space.ranges[y]
                count *= max(0, hi - lo + 1)
        rows = self._rows(used, summed, term.where)
        if (
            not self.idempotent
            and self._undetermined(forms, used, summed)
            and not self._injective(forms, used, summed, rows)
        ):
            raise Beyond("one term stands for several summation points, whose number integer sets do not hold")
        # A coordinate that is just a summed iterator lends it its name: one existential less for isl to eliminate.
        named: list[str] = []
        for n, form in enumerate(forms):
            v = next((v for v in form if v), "")
            bare = len(form) == 2 and form[v] == 1 and not form[""] and v in summed and v not in named
            named.append(v if bare else f"i{n}")
            if not bare:
                rows.append(f"i{n} = {show(form)}")
        hidden = [v for v in used if v not in named and v not in self.space.coordinates]
        text = (
            f"{{ [{', '.join((*self.space.coordinates, *named))}] : {_exists(hidden)}{' and '.join(rows) or 'true'} }}"
        )
        return (term.coefficient if self.idempotent else term.coefficient * count), isl.Set(text, self.ctx)

    def _injective(self, forms: list[Form], used: list[str], summed: list[str], rows: list[str]) -> bool:
        hidden = [v for v in used if v not in summed and v not in self.space.coordinates]
        image = [f"i{n}" for n in range(len(forms))]
        rows = [*rows, *(f"{i} = {show(form)}" for i, form in zip(image, forms, strict=True))]
        x = self.space.coordinates
        text = f"[{', '.join((*x, *summed))}] -> [{', '.join((*(f'p{v}' for v in x), *image))}]"
        rows += (f"p{v} = {v}" for v in x)
        return bool(isl.Map(f"{{ {text} : {_exists(hidden)}{' and '.join(rows) or 'true'} }}", self.ctx).is_injective())

    def _rows(self, used: list[str], summed: list[str], where: Iterable[Form]) -> list[str]:
        """All conditions on the integers *used*: ranges, what quotients and aliases mean, and *where*."""
        ranged = (*self.space.coordinates, *summed, *(v for v in used if v in self.space.aliases))
        rows = [f"{lo} <= {v} <= {hi}" for v in ranged for lo, hi in (self.space.ranges[v],)]
        for v in used:
            if v in self.space.quotients:
                e, d = self.space.quotients[v]
                rows.append(f"0 <= {show({**e, v: -d})} < {d}")
            elif v in self.space.aliases:
                rows.append(f"{v} = {show(self.space.aliases[v])}")
        return rows + [f"{show(row)} >= 0" for row in where]

    def _used(self, forms: Iterable[Form]) -> list[str]:
        """The integers that *forms* depend on, also through quotients."""
        found: dict[str, None] = {}
        stack = [v for form in forms for v in form if v]
        while stack:
            v = stack.pop()
            if v not in found:
                found[v] = None
                stack += (u for u in self._meaning(v) if u)
        return list(found)

    def _meaning(self, v: str) -> Form:
        """What *v* is a function of: nothing for output coordinates and summed iterators."""
        if v in self.space.quotients:
            return self.space.quotients[v][0]
        return self.space.aliases.get(v, {})

    def _undetermined(self, forms: list[Form], used: list[str], summed: list[str]) -> list[str]:
        """The summed iterators that an output element and indices may leave open (none: they are determined)."""
        known = {"", *self.space.coordinates}
        forms = [*forms, *({**form, t: -1} for t, form in self.space.aliases.items() if t in used)]
        again = True
        while again and not known.issuperset(summed):
            again = False
            for q, (e, _) in self.space.quotients.items():
                if q not in known and known.issuperset(e):
                    known.add(q)
                    again = True
            for form in forms:
                open_ = [v for v in form if v not in known]
                if open_ and self._digits(form, open_):
                    known.update(open_)
                    again = True
        return [y for y in summed if y not in known]

    def _digits(self, form: Form, free: list[str]) -> bool:
        """Whether the value of *form* determines each of *free*: every coefficient exceeds what is below it."""
        below = 0
        for v in sorted(free, key=lambda v: abs(form[v])):
            if abs(form[v]) <= below:
                return False
            lo, hi = self.space.ranges[v]
            below += abs(form[v]) * (hi - lo)
        return True


def _by_signature(terms: list[Term]) -> dict[tuple[str, ...], list[Term]]:
    out: dict[tuple[str, ...], list[Term]] = {}
    for term in terms:
        factors = tuple(sorted(term.factors, key=lambda f: f[0]))
        named = Term(term.coefficient, factors, term.summed, term.where)
        out.setdefault(tuple(name for name, _ in factors), []).append(named)
    return out


def _ordered(terms: list[Term]) -> list[Term]:
    """Terms whose factors of one tensor stand in the lexical order of their indices: products commute.

    Every permutation of a term's factors becomes a piece, restricted to where it is the stably sorted one; the pieces
    partition the term.
    """
    return [piece for term in terms for piece in _sorted_pieces(term)]


def _sorted_pieces(term: Term) -> Iterable[Term]:
    names = [name for name, _ in term.factors]
    for order in permutations(range(len(names))):
        if [names[n] for n in order] != names:
            continue
        choices: list[tuple[Form, ...]] = [()]
        for a, b in pairwise(order):
            if names[a] == names[b]:
                pieces = list(_precedes(term.factors[a], term.factors[b], strictly=a > b))
                choices = [(*c, *p) for c in choices for p in pieces]
        factors = tuple(term.factors[n] for n in order)
        for extra in choices:
            yield Term(term.coefficient, factors, term.summed, (*term.where, *extra))


def _precedes(a: Factor, b: Factor, strictly: bool) -> Iterable[tuple[Form, ...]]:
    """Disjoint pieces of index(a) < index(b) in lexical order (or equal, unless *strictly*)."""
    equal: tuple[Form, ...] = ()
    for i, j in zip(a[1], b[1], strict=True):
        up = {v: j.get(v, 0) - i.get(v, 0) for v in {**i, **j}}
        yield (*equal, {**up, "": up[""] - 1})
        equal = (*equal, up, {v: -k for v, k in up.items()})
    if not strictly:
        yield equal


def _add(total: Tally, coefficient: Number, piece: Any) -> Tally:
    out: Tally = {}

    def put(k: Number, s: Any) -> None:
        if k and not s.is_empty():
            k = rounded(k)
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


def show(form: Form) -> str:
    """*form* in isl's notation."""
    return " + ".join(f"{k}{v}" if v else str(k) for v, k in form.items() if k or not v)


def _exists(names: list[str]) -> str:
    return f"exists {', '.join(names)} : " if names else ""


def _times(count: Number) -> str:
    return f"{count} time" + ("" if count == 1 else "s")
