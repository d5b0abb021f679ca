r"""Terms as points that correspond: every point of one side's terms is a point of the other's, the same element read.

Where a parameter is multiplied by an iterator, sets of terms are no integer sets.  Then the correspondence itself is
found: the equations :math:`\tau'(\vec x, \vec z) = \tau(\vec x, \vec y)` are solved for :math:`\vec z`, digit by digit,
and that the solution satisfies every condition is asked of z3.  What the solving uses are consequences of the
equations, so a term whose own points can be solved for stands for one point at each element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from einnet_explore.algebra.relation import Term
from einnet_explore.algebra.space import Beyond, Form, key
from einnet_explore.family.decide import assumptions, conditions, equal, meaning, unsatisfiable, used_in
from einnet_explore.family.forms import parts_of, plus
from einnet_explore.family.space import ParametricSpace


def uncovered(space: ParametricSpace, left: list[Term], right: list[Term], counted: bool) -> str | None:
    """None where both sides' terms (with the same factors) are the same; else a point of one that the other lacks."""
    left, right = (_gathered(side) if counted else side for side in (left, right))
    for side in (left, right) if counted else ():
        for term in side:
            if _solved(space, term, term) is None:
                raise Beyond("one term stands for several summation points, whose number is not known")
        for one, other in combinations(side, 2):
            _apart(space, one, other)
    for here, there in ((left, right), (right, left)):
        for term in here:
            ways = [
                rows
                for it in there
                if (it.coefficient == term.coefficient or not counted)
                and (rows := _solved(space, term, it)) is not None
            ]
            if (found := _outside(space, term, ways)) is not None:
                return found
    return None


def _gathered(terms: list[Term]) -> list[Term]:
    """*terms* with those that are the same but for their coefficients added up."""
    total: dict[object, Term] = {}
    for term in terms:
        at = tuple((name, tuple(map(key, forms))) for name, forms in term.factors)
        same = (at, term.summed, frozenset(map(key, term.where)))
        old = total.get(same)
        total[same] = replace(term, coefficient=old.coefficient + term.coefficient) if old else term
    return [term for term in total.values() if term.coefficient]


def _outside(space: ParametricSpace, term: Term, ways: list[list[Form]]) -> str | None:
    """None where at every point of *term* all of one of *ways* holds; else a point.  What is plain is not asked."""
    facts = _facts(space, term, ways)
    known = set(map(key, facts))
    open_ = [[row for row in rows if key(row) not in known and not _plain(space, row)] for rows in ways]
    if any(not rows for rows in open_):
        return None
    space.asked.add("z3")
    return unsatisfiable(facts, open_)


def _plain(space: ParametricSpace, row: Form) -> bool:
    """Whether *row* holds by the ranges of its integers alone."""
    try:
        return space.ground.surely(space.span(row)[0])
    except Beyond:
        return False


def _apart(space: ParametricSpace, one: Term, other: Term) -> None:
    """Raises Beyond unless two terms never stand for the same element and indices."""
    rows = _solved(space, one, other)
    space.asked.add("z3")
    if rows is None or unsatisfiable([*_facts(space, one, [rows]), *rows]) is not None:
        raise Beyond("two terms overlap where a parameter is multiplied")


def _forms(term: Term) -> list[Form]:
    return [form for _, at in term.factors for form in at]


def _facts(space: ParametricSpace, term: Term, others: Iterable[Sequence[Form]]) -> list[Form]:
    """What holds at a point of *term*, and what the quotients in *others* mean there."""
    used = used_in(space, (*_forms(term), *term.where))
    more = used_in(space, [row for rows in others for row in rows])
    rows = [*assumptions(space), *conditions(space, (*used, *term.summed), term.where)]
    return rows + [row for v in more if v not in used and v in space.divisions for row in meaning(space, v)]


def _solved(space: ParametricSpace, known: Term, term: Term) -> list[Form] | None:
    """What it means, at a point of *known*, that *term* has a point with the same indices; None if unsolved."""
    values = _Values(space, term)
    for form, target in zip(_forms(term), _forms(known), strict=True):
        values.equation(form, target)
    return values.rows(term) if values.solve() else None


class _Values:
    """The summed integers, quotients and aliases of a term, as far as they are known as forms of another point."""

    def __init__(self, space: ParametricSpace, term: Term) -> None:
        self.space = space
        fixed = {*space.coordinates}
        used = used_in(space, (*_forms(term), *term.where))
        self.names = dict.fromkeys(v for v in (*term.summed, *used) if v not in fixed)
        self.values: dict[str, Form] = {v: {v: 1, "": 0} for v in fixed}
        self.equations: list[tuple[Form, Form]] = []
        for t in self.names:
            if t in space.aliases:
                self.equations.append((plus(space.aliases[t], {t: 1, "": 0}, -1), {"": 0}))

    def equation(self, form: Form, target: Form) -> None:
        """Adds that *form* is *target*, which is known."""
        self.equations.append((form, target))

    def solve(self) -> bool:
        """Whether everything became known."""
        while any(v not in self.values for v in self.names):
            if not (self._quotient() or any(self._digit(form, target) for form, target in self.equations)):
                return False
        return True

    def rows(self, term: Term) -> list[Form]:
        """The conditions of *term* and the equations, at the solution."""
        out = [self.put(row) for row in conditions(self.space, self.names, term.where)]
        for form, target in self.equations:
            out += equal(self.put(form), target)
        return [row for row in out if any(k for v, k in row.items() if v) or row[""] < 0]

    def put(self, form: Form) -> Form:
        """*form* with what is known put in."""
        return substituted(self.space, form, self.values)

    def _quotient(self) -> bool:
        for q in self.names:
            if q not in self.values and q in self.space.divisions:
                e, d = self.space.divisions[q]
                if parts_of(e) <= self.values.keys():
                    self.values[q] = self.space.quotient(self.put(e), d)
                    return True
        return False

    def _digit(self, form: Form, target: Form) -> bool:
        """One unknown of an equation, where its coefficient exceeds what the other unknowns can add up to."""
        open_: dict[str, Form] = {}
        rest = target
        for name, k in form.items():
            parts = [part for part in name.split("*") if part]
            unknown = [part for part in parts if part not in self.values]
            if unknown:
                coefficient = "*".join(p for p in parts if p != unknown[0])
                open_.setdefault(unknown[0], {"": 0})[coefficient] = k
            else:
                rest = plus(rest, self.put({name: k, "": 0} if name else {"": k}), -1)
        space = self.space
        for v, by in open_.items():
            if len(open_) == 1 and by in ({"": 1}, {"": -1}):
                self.values[v] = plus({"": 0}, rest, by[""])
                return True
            low: Form = {"": 0}
            for u, factor in open_.items():
                if u != v:
                    low = plus(low, space.times(factor, {u: 1, "": 0}))
            if space.ground.surely(plus(by, {"": -1})) and space.digit(low, by):
                self.values[v] = space.quotient(rest, by)
                return True
        return False


def substituted(space: ParametricSpace, form: Form, values: Mapping[str, Form]) -> Form:
    """*form* with *values* of its integers put in, also inside products; the others stay."""
    out: Form = {"": 0}
    for name, k in form.items():
        made: Form = {"": k}
        for part in name.split("*") if name else ():
            made = space.times(made, values.get(part, {part: 1, "": 0}))
        out = plus(out, made)
    return out
