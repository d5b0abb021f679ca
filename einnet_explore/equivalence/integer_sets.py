"""Integer sets of terms: the output elements and indices at which a term occurs."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import isinf
from typing import Any, TypeAlias

import islpy as isl

from einnet_explore.equivalence.linear_space import (
    Form,
    TermSpace,
    Undecided,
    accumulate_form,
    pinned_values,
    subtract_forms,
)
from einnet_explore.equivalence.term_relation import Term
from einnet_explore.interpreter.numbers import Number

Span: TypeAlias = "frozenset[tuple[str, int]]"
Condition: TypeAlias = "tuple[bool, Form]"
"""A form that is 0, or else one that is at least 0."""
Names: TypeAlias = "tuple[str, ...]"

_OPERATIONS = 20_000_000


def bounded_context() -> Any:
    """Return an isl context with an operation limit, beyond which it raises isl.Error."""
    ctx = isl.Context()
    ctx.set_max_operations(_OPERATIONS)
    return ctx


class TermSets:
    """Integer sets of the terms in one space.  *counted*: occurrences are counted, not only located."""

    def __init__(self, space: TermSpace, ctx: Any, *, counted: bool) -> None:
        self.space, self.ctx, self.counted = space, ctx, counted

    def of(self, term: Term) -> tuple[Number, Any]:
        """Return the coefficient of *term* and its set of (output element, indices).

        Unused summed iterators multiply the coefficient by their extent.  Raises Undecided if the number of summation
        points per element of the set is not constant.
        """
        if self.counted and isinf(term.coefficient):
            raise Undecided("an infinite constant is added")
        met: set[str] = set()
        forms = [self._opened(form, met) for _, at in term.factors for form in at]
        where = [self._opened(row, met) for row in term.where]
        used = self._used((*forms, *where), met)
        where += self._within(met)
        summed = [y for y in term.summed if y in used]
        count = Fraction(1)
        for y in term.summed:
            if y not in used:
                lo, hi = self.space.ranges[y]
                count *= max(0, hi - lo + 1)
        rows = self._rows(used, summed, where)
        fixed = pinned_values(where, self.space.ranges)
        open_ = [y for y in summed if y not in fixed]
        if self.counted and self._undetermined(forms, used, open_) and not self._injective(forms, used, summed, rows):
            raise Undecided("one term stands for several summation points, whose number integer sets do not hold")
        # A coordinate that is just a summed iterator lends it its name: one existential less for isl to eliminate.
        named: list[str] = []
        for n, form in enumerate(forms):
            v = next((v for v in form if v), "")
            bare = len(form) == 2 and form[v] == 1 and not form[""] and v in summed and v not in named
            named.append(v if bare else f"i{n}")
            if not bare:
                rows.append((True, subtract_forms({f"i{n}": 1, "": 0}, form)))
        hidden = [v for v in used if v not in named and v not in self.space.coordinates]
        points = isl.Set.from_basic_set(self._where(rows, (), (*self.space.coordinates, *named), hidden))
        return (term.coefficient * count if self.counted else term.coefficient), points

    def _injective(self, forms: list[Form], used: list[str], summed: list[str], rows: list[Condition]) -> bool:
        """Whether no two summation points of one output element have the same indices."""
        hidden = [v for v in used if v not in summed and v not in self.space.coordinates]
        x = self.space.coordinates
        image = {f"i{n}": form for n, form in enumerate(forms)} | {f"p{v}": {v: 1, "": 0} for v in x}
        rows = [*rows, *((True, subtract_forms({i: 1, "": 0}, form)) for i, form in image.items())]
        return bool(isl.Map.from_basic_map(self._where(rows, (*x, *summed), tuple(image), hidden)).is_injective())

    def _where(self, rows: list[Condition], domain: Names, names: Names, hidden: Iterable[str]) -> Any:
        """Return the basic set of *names* with *rows*, where *hidden* integers are existentially quantified.

        With a *domain* it is a basic map.  It is built from constraints, four times as fast as from text.
        """
        out = (*names, *hidden)
        kind = isl.dim_type.out if domain else isl.dim_type.set
        places = {v: (kind, n) for n, v in enumerate(out)} | {v: (isl.dim_type.in_, n) for n, v in enumerate(domain)}
        if domain:
            space = isl.Space.alloc(self.ctx, 0, len(domain), len(out))
        else:
            space = isl.Space.set_alloc(self.ctx, 0, len(out))
        found: Any = (isl.BasicMap if domain else isl.BasicSet).universe(space)
        local = isl.LocalSpace.from_space(space)
        for equal, row in rows:
            made = (isl.Constraint.alloc_equality if equal else isl.Constraint.alloc_inequality)(local)
            for v, k in row.items():
                made = made.set_coefficient_val(*places[v], k) if v else made.set_constant_val(k)
            found = found.add_constraint(made)
        return found.project_out(kind, len(names), len(out) - len(names))

    def _rows(self, used: list[str], summed: list[str], where: Iterable[Form]) -> list[Condition]:
        """Return the tightest conditions on the integers *used*: ranges, definitions of quotients, and *where*."""
        least: dict[Span, tuple[int, Form]] = {}
        for v in (*self.space.coordinates, *summed):
            lo, hi = self.space.ranges[v]
            _tighten(least, {v: 1, "": -lo})
            _tighten(least, {v: -1, "": hi})
        for row in where:
            _tighten(least, row)
        for v in used:
            if v in self.space.quotients:
                e, d = self._quotient(v, set())
                remainder = {**e, v: -d}
                _tighten(least, remainder)
                _tighten(least, {**{u: -k for u, k in remainder.items()}, "": d - 1 - e[""]})
        return list(_conditions(least))

    def _opened(self, form: Form, met: set[str]) -> Form:
        """Substitute every alias in *form*; add the aliases' names to *met*."""
        if self.space.aliases.keys().isdisjoint(form):
            return form
        out: Form = {"": 0}
        for v, k in form.items():
            if v in self.space.aliases:
                met.add(v)
                accumulate_form(out, self._opened(self.space.aliases[v], met), k)
            else:
                accumulate_form(out, {v: 1}, k)
        return {v: k for v, k in out.items() if k or not v}

    def _within(self, met: set[str]) -> list[Form]:
        """Return the conditions for the values of the aliases *met* to lie in their ranges."""
        out: list[Form] = []
        for t in sorted(met):
            (lo, hi), form = self.space.ranges[t], self._opened(self.space.aliases[t], met)
            out.append({**form, "": form[""] - lo})
            out.append({**{v: -k for v, k in form.items()}, "": hi - form[""]})
        return out

    def _used(self, forms: Iterable[Form], met: set[str]) -> list[str]:
        """Return the integers that *forms* depend on, also through quotients; add their aliases to *met*."""
        found: dict[str, None] = {}
        stack = [v for form in forms for v in form if v]
        while stack:
            v = stack.pop()
            if v not in found:
                found[v] = None
                if v in self.space.quotients:
                    stack += (u for u in self._quotient(v, met)[0] if u)
        return list(found)

    def _quotient(self, v: str, met: set[str]) -> tuple[Form, int]:
        """Return dividend and divisor of the quotient *v*, without aliases."""
        e, d = self.space.quotients[v]
        return self._opened(e, met), d

    def _undetermined(self, forms: list[Form], used: list[str], summed: list[str]) -> list[str]:
        """Return the summed iterators that an output element and indices may not determine."""
        known = {"", *self.space.coordinates}
        quotients = {q: self._quotient(q, set())[0] for q in self.space.quotients if q in used}
        again = True
        while again and not known.issuperset(summed):
            again = False
            for q, e in quotients.items():
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
        """Whether the value of *form* determines each of *free*, as mixed-radix digits."""
        below = 0
        for v in sorted(free, key=lambda v: abs(form[v])):
            if abs(form[v]) <= below:
                return False
            lo, hi = self.space.ranges[v]
            below += abs(form[v]) * (hi - lo)
        return True


def sample_term_point(space: TermSpace, term: Term) -> tuple[int, ...] | None:
    """Return the output coordinates and indices of one point of *term*; None if it has none."""
    _, points = TermSets(space, bounded_context(), counted=False).of(term)
    return None if points.is_empty() else tuple(lexical_minimum(points))


def lexical_minimum(points: Any) -> list[int]:
    """Return the lexicographically smallest point of a nonempty set."""
    point = points.lexmin().sample_point()
    return [point.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(points.dim(isl.dim_type.set))]


def _tighten(least: dict[Span, tuple[int, Form]], row: Form) -> None:
    """Add the condition *row*, c + f >= 0; keep the smallest c for each f."""
    span = frozenset([(v, k) for v, k in row.items() if v and k])
    if span not in least or row[""] < least[span][0]:
        least[span] = row[""], row


def _conditions(least: dict[Span, tuple[int, Form]]) -> Iterable[Condition]:
    """Yield the conditions, with one equality for a form whose bounds coincide."""
    done: set[Span] = set()
    for span, (c, row) in least.items():
        if span not in done:
            turned = frozenset([(v, -k) for v, k in span])
            equal = span != turned and turned in least and least[turned][0] == -c
            done |= {turned} if equal else set()
            yield equal, row
