r"""Comparison of two scopes for all values of the size parameters.

The terms are those of ``equivalence.term_relation``, over a space whose ranges are polynomials.  They are compared as
integer sets of (sizes, output element, indices).  A product of parameters alone, as in a merged extent :math:`H W`, is
a further variable of the integer set; a proof holds for all its values.

If a parameter is multiplied by an iterator, the sets are not integer sets.  Then each point of one side's terms is
matched with a point of the other side that reads the same elements: the equations
:math:`\tau'(\vec x, \vec z) = \tau(\vec x, \vec y)` are solved for :math:`\vec z`, digit by digit, and z3 proves that
the solution satisfies every condition.  The solution is unique, so a term that can be matched with itself has one
point for each element.  Every z3 query has one form: whether a conjunction of polynomials ≥ 0 and of negated such
conjunctions has an integer solution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import import_module
from itertools import combinations
from math import isinf
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias

import islpy as isl

from einnet_explore.equivalence.assumptions import NO_ASSUMPTIONS, Assumptions
from einnet_explore.equivalence.commutation import order_factors
from einnet_explore.equivalence.integer_sets import bounded_context
from einnet_explore.equivalence.linear_space import Form, Undecided, form_key
from einnet_explore.equivalence.term_relation import Term, compared_terms
from einnet_explore.interpreter.numbers import INFINITE_SUFFIX, Number
from einnet_explore.ir import Box, Scope
from einnet_explore.parametric.parameters import FamilyParameters
from einnet_explore.parametric.size_polynomials import (
    add_forms,
    form_text,
    isl_expression,
    isl_name,
    product_rows,
    range_rows,
    smallest_point,
    symbol_text,
    symbols_in,
)
from einnet_explore.parametric.space import ParametricSpace

if TYPE_CHECKING:
    import z3

TermCollection: TypeAlias = Literal["multiset", "set"]
"""A multiset of terms with coefficients, which are added; or a set, of which the maximum or minimum is taken."""

Z3_RESOURCE_LIMIT = 4_000_000
"""Resource limit of one z3 query, in z3's machine-independent units."""


def uncovered_point(
    space: ParametricSpace, left: list[Term], right: list[Term], collection: TermCollection
) -> Solution | None:
    """Return a point of one side's terms that the other side lacks; None if both sides are equal.

    All terms have the same factors.
    """
    counted = collection == "multiset"
    left, right = (_add_coefficients(side) if counted else side for side in (left, right))
    for side in (left, right) if counted else ():
        for term in side:
            if _match_conditions(space, term, term) is None:
                raise Undecided("one term stands for several summation points, whose number is not known")
        for one, other in combinations(side, 2):
            _require_disjoint(space, one, other)
    for here, there in ((left, right), (right, left)):
        for term in here:
            ways = [
                rows
                for it in there
                if (it.coefficient == term.coefficient or not counted)
                and (rows := _match_conditions(space, term, it)) is not None
            ]
            if (found := _point_outside(space, term, ways)) is not None:
                return found
    return None


def _add_coefficients(terms: list[Term]) -> list[Term]:
    """Add the coefficients of terms that are otherwise equal."""
    total: dict[object, Term] = {}
    for term in terms:
        at = tuple((name, tuple(map(form_key, forms))) for name, forms in term.factors)
        same = (at, term.summed, frozenset(map(form_key, term.where)))
        old = total.get(same)
        total[same] = replace(term, coefficient=old.coefficient + term.coefficient) if old else term
    return [term for term in total.values() if term.coefficient]


def _point_outside(space: ParametricSpace, term: Term, ways: list[list[Form]]) -> Solution | None:
    """Return a point of *term* at which every conjunction of *ways* fails; None if there is none."""
    facts = _facts(space, term, ways)
    known = set(map(form_key, facts))
    open_ = [[row for row in rows if form_key(row) not in known and not _holds_by_ranges(space, row)] for rows in ways]
    if any(not rows for rows in open_):
        return None
    space.solvers.add("z3")
    return solve_with_z3(facts, open_)


def _holds_by_ranges(space: ParametricSpace, row: Form) -> bool:
    """Whether *row* holds by the ranges of its integers alone, without a solver."""
    try:
        return space.ground.is_nonnegative(space.span(row)[0])
    except Undecided:
        return False


def _require_disjoint(space: ParametricSpace, one: Term, other: Term) -> None:
    """Raise Undecided unless two terms are disjoint: no element and indices in common."""
    rows = _match_conditions(space, one, other)
    space.solvers.add("z3")
    if rows is None or solve_with_z3([*_facts(space, one, [rows]), *rows]) is not None:
        raise Undecided("two terms overlap where a parameter is multiplied")


def _index_forms(term: Term) -> list[Form]:
    return [form for _, at in term.factors for form in at]


def _facts(space: ParametricSpace, term: Term, others: Iterable[Sequence[Form]]) -> list[Form]:
    """Return the conditions at a point of *term*, with the definitions of the quotients in *others*."""
    used = integers_in(space, (*_index_forms(term), *term.where))
    more = integers_in(space, [row for rows in others for row in rows])
    rows = [*assumption_rows(space), *condition_rows(space, (*used, *term.summed), term.where)]
    return rows + [row for v in more if v not in used and v in space.divisions for row in quotient_rows(space, v)]


def _match_conditions(space: ParametricSpace, known: Term, term: Term) -> list[Form] | None:
    """Return the conditions, at a point of *known*, for a point of *term* with the same indices; None if unsolved."""
    values = _Unification(space, term)
    for form, target in zip(_index_forms(term), _index_forms(known), strict=True):
        values.equation(form, target)
    return values.rows(term) if values.solve() else None


class _Unification:
    """Unifier: the summed integers, quotients and aliases of a term as forms over another term's point."""

    def __init__(self, space: ParametricSpace, term: Term) -> None:
        self.space = space
        fixed = {*space.coordinates}
        used = integers_in(space, (*_index_forms(term), *term.where))
        self.names = dict.fromkeys(v for v in (*term.summed, *used) if v not in fixed)
        self.values: dict[str, Form] = {v: {v: 1, "": 0} for v in fixed}
        self.equations: list[tuple[Form, Form]] = []
        for t in self.names:
            if t in space.aliases:
                self.equations.append((add_forms(space.aliases[t], {t: 1, "": 0}, -1), {"": 0}))

    def equation(self, form: Form, target: Form) -> None:
        """Add the equation *form* = *target*, where *target* is known."""
        self.equations.append((form, target))

    def solve(self) -> bool:
        """Solve the equations; return whether every integer is determined."""
        while any(v not in self.values for v in self.names):
            if not (self._quotient() or any(self._digit(form, target) for form, target in self.equations)):
                return False
        return True

    def rows(self, term: Term) -> list[Form]:
        """Return the conditions of *term* and the equations at the solution."""
        out = [self.substitute(row) for row in condition_rows(self.space, self.names, term.where)]
        for form, target in self.equations:
            out += equality_rows(self.substitute(form), target)
        return [row for row in out if any(k for v, k in row.items() if v) or row[""] < 0]

    def substitute(self, form: Form) -> Form:
        """Substitute the known values in *form*."""
        return substitute_values(self.space, form, self.values)

    def _quotient(self) -> bool:
        for q in self.names:
            if q not in self.values and q in self.space.divisions:
                e, d = self.space.divisions[q]
                if symbols_in(e) <= self.values.keys():
                    self.values[q] = self.space.quotient(self.substitute(e), d)
                    return True
        return False

    def _digit(self, form: Form, target: Form) -> bool:
        """Solve an equation for one unknown whose coefficient exceeds the sum of the other unknowns' terms."""
        open_: dict[str, Form] = {}
        rest = target
        for name, k in form.items():
            parts = [part for part in name.split("*") if part]
            unknown = [part for part in parts if part not in self.values]
            if unknown:
                coefficient = "*".join(p for p in parts if p != unknown[0])
                open_.setdefault(unknown[0], {"": 0})[coefficient] = k
            else:
                rest = add_forms(rest, self.substitute({name: k, "": 0} if name else {"": k}), -1)
        space = self.space
        for v, by in open_.items():
            if len(open_) == 1 and by in ({"": 1}, {"": -1}):
                self.values[v] = add_forms({"": 0}, rest, by[""])
                return True
            low: Form = {"": 0}
            for u, factor in open_.items():
                if u != v:
                    low = add_forms(low, space.times(factor, {u: 1, "": 0}))
            if space.ground.is_nonnegative(add_forms(by, {"": -1})) and space.digit(low, by):
                self.values[v] = space.quotient(rest, by)
                return True
        return False


def substitute_values(space: ParametricSpace, form: Form, values: Mapping[str, Form]) -> Form:
    """Substitute *values* for integers of *form*, also inside products."""
    out: Form = {"": 0}
    for name, k in form.items():
        made: Form = {"": k}
        for part in name.split("*") if name else ():
            made = space.times(made, values.get(part, {part: 1, "": 0}))
        out = add_forms(out, made)
    return out


@dataclass(frozen=True, slots=True)
class Difference:
    """A failed proof: the position at which terms differ, and the unknowns' values there if they are known."""

    why: str
    unknowns: tuple[int, ...] = ()


@dataclass(slots=True)
class FamilyProver:
    """Prover under assumptions; *means* collects the methods used: ``isl``, ``z3``, or ``digits`` without a solver."""

    ground: FamilyParameters
    means: set[str]

    def difference(
        self, before: Scope, after: Scope, region: Box, given: Assumptions = NO_ASSUMPTIONS
    ) -> Difference | None:
        """Return None if both scopes are proved equal on *region* at all sizes, else the difference.

        *given* names the tensors that may be infinite and the axioms.  Raises Undecided.
        """
        if before == after:
            return None
        inner = replace(given, exponential=False)
        space = ParametricSpace(self.ground, region, lambda a, b: self.same(a, b, inner), given)
        reduce, sides = compared_terms(space, before, after)
        collection: TermCollection = "set" if reduce in ("max", "min") else "multiset"
        if collection == "multiset" and _has_infinite_differences([*sides[0], *sides[1]]):
            raise Undecided("what may be infinite is taken from something")
        if collection == "multiset":
            sides = [[multiply_by_unused_extents(space, t) for t in side] for side in sides]
        one, other = map(group_by_factors, sides)
        for names in dict.fromkeys((*one, *other)):
            found = self._compare(space, one.get(names, []), other.get(names, []), collection)
            if found is not None:
                return Difference(
                    f"{' · '.join(names) or 'the constant term'} is counted differently at {found.why}", found.unknowns
                )
        return None

    def same(self, before: Scope, after: Scope, given: Assumptions = NO_ASSUMPTIONS) -> bool:
        """Whether two scopes are provably equal on their reach, at all sizes."""
        try:
            return before == after or (
                before.reach == after.reach and self.difference(before, after, before.reach, given) is None
            )
        except Undecided:
            return False

    def _compare(
        self, space: ParametricSpace, left: list[Term], right: list[Term], collection: TermCollection
    ) -> Difference | None:
        rows = [*assumption_rows(space), *(row for term in (*left, *right) for row in term_rows(space, term))]
        if has_parameter_products(space, rows):
            found = uncovered_point(space, left, right, collection)
            self.means |= space.solvers or {"digits"}
            return None if found is None else Difference(solution_text(found))
        self.means.add("isl")
        try:
            term_sets = _TermSets(space, size_names(space, rows), collection)
            found_at = term_sets.difference(left, right)
            names = [n for term in (*left, *right)[:1] for n, _ in term.factors]
            if found_at is not None and len(set(names)) < len(names):
                found_at = term_sets.difference(order_factors(left), order_factors(right))
            return found_at
        except isl.Error as error:
            raise Undecided(f"integer sets: {error}") from None


def _has_infinite_differences(terms: list[Term]) -> bool:
    """Whether possibly infinite terms have both signs, so that their sum may be NaN."""
    signs: dict[tuple[str, ...], set[bool]] = {}
    for term in terms:
        if any(name.endswith(INFINITE_SUFFIX) for name, _ in term.factors):
            names = tuple(sorted(name for name, _ in term.factors))
            signs.setdefault(names, set()).add(term.coefficient > 0)
    return any(len(found) > 1 for found in signs.values())


def multiply_by_unused_extents(space: ParametricSpace, term: Term) -> Term:
    """Multiply *term* by the extents of its unused summed integers: a number, or a factor without indices."""
    used = integers_in(space, (*_index_forms(term), *term.where))
    coefficient, factors = term.coefficient, term.factors
    if isinf(coefficient):
        raise Undecided("an infinite constant is added")
    for y in term.summed:
        if y not in used:
            lo, hi = space.limits[y]
            extent = add_forms(add_forms(hi, lo, -1), {"": 1})
            if not space.ground.is_nonnegative(extent):
                raise Undecided(f"whether the extent {form_text(extent)} is positive depends on the sizes")
            if set(extent) == {""}:
                coefficient = coefficient * extent[""]
            else:
                factors = (*factors, (f"|{form_text(dict(sorted(extent.items())))}|", ()))
    return Term(coefficient, factors, tuple(y for y in term.summed if y in used), term.where)


def group_by_factors(terms: Iterable[Term]) -> dict[tuple[str, ...], list[Term]]:
    """Group *terms* by the sorted names of their factors."""
    out: dict[tuple[str, ...], list[Term]] = {}
    for term in terms:
        factors = tuple(sorted(term.factors, key=lambda f: f[0]))
        out.setdefault(tuple(name for name, _ in factors), []).append(replace(term, factors=factors))
    return out


def term_rows(space: ParametricSpace, term: Term) -> list[Form]:
    """Return the indices and conditions of *term*, with the conditions of all its integers."""
    forms = [*_index_forms(term), *term.where]
    return [*forms, *condition_rows(space, (*integers_in(space, forms), *term.summed), ())]


class _TermSets:
    """Integer sets of terms: for each total coefficient, a disjoint set of (sizes, output element, indices)."""

    def __init__(self, space: ParametricSpace, sizes: tuple[str, ...], collection: TermCollection) -> None:
        self.space, self.sizes, self.context = space, sizes, bounded_context()
        self.counts = collection == "multiset"
        self.head = (*sizes, *(x for x in space.coordinates if x not in space.symbols))

    def difference(self, left: list[Term], right: list[Term]) -> Difference | None:
        one, other = self._total(left), self._total(right)
        for k in dict.fromkeys((*one, *other)):
            for a, b in ((one, other), (other, one)):
                missing = a[k] - b[k] if k in a and k in b else a.get(k)
                if missing is not None and not missing.is_empty():
                    values = smallest_point(missing)
                    n = len(self.space.symbols)
                    x = values[len(self.sizes) : len(self.head)]
                    return Difference(f"element {x}, indices {values[len(self.head) :]}", tuple(values[:n]))
        return None

    def _total(self, terms: list[Term]) -> dict[Number, isl.Set]:
        total: dict[Number, isl.Set] = {}
        for term in terms:
            k, piece = term.coefficient if self.counts else Fraction(1), self._points(term)
            if not k:
                continue
            found: dict[Number, isl.Set] = {}

            def add_points(c: Number, points: isl.Set, found: dict[Number, isl.Set] = found) -> None:
                if c and not points.is_empty():
                    found[c] = found[c] | points if c in found else points

            for c, old in total.items():
                add_points(c, old - piece)
                add_points(c + k if self.counts else c, old & piece)
                piece = piece - old
            add_points(k, piece)
            total = found
        return total

    def _points(self, term: Term) -> isl.Set:
        """Return the set at which *term* occurs; raises Undecided if several summation points coincide."""
        space = self.space
        forms = _index_forms(term)
        used = integers_in(space, (*forms, *term.where))
        rows = [*assumption_rows(space), *product_rows(space.ground.ranges, self.sizes)]
        rows += condition_rows(space, (*used, *term.summed), term.where)
        image = [f"i{n}" for n in range(len(forms))]
        conditions = [
            *(f"{isl_expression(row)} >= 0" for row in rows),
            *(f"{i} = {isl_expression(f)}" for i, f in zip(image, forms, strict=True)),
        ]
        hidden = [v for v in dict.fromkeys((*used, *term.summed)) if v not in self.head]
        place = ", ".join(map(isl_name, (*self.head, *image)))
        bare = {v for form in forms for v in form if v and len(form) == 2}
        if self.counts and (summed := [y for y in term.summed if y not in bare]):
            others = [v for v in hidden if v not in summed]
            condition = f"{_quantifier(others)}{' and '.join(conditions)}"
            points = isl.Map(f"{{ [{place}] -> [{', '.join(summed)}] : {condition} }}", self.context)
            if not points.is_single_valued():
                raise Undecided("one term stands for several summation points, whose number integer sets do not hold")
        return isl.Set(f"{{ [{place}] : {_quantifier(hidden)}{' and '.join(conditions)} }}", self.context)


def _quantifier(names: list[str]) -> str:
    return f"exists {', '.join(names)} : " if names else ""


def integers_in(space: ParametricSpace, forms: Iterable[Form]) -> list[str]:
    """Return every integer in *forms*, also through quotients and aliases."""
    found: dict[str, None] = {}
    stack = [v for form in forms for v in sorted(symbols_in(form))]
    while stack:
        v = stack.pop()
        if v not in found:
            found[v] = None
            made = (*space.divisions.get(v, ()), space.aliases.get(v, {}))
            stack += (u for form in made for u in sorted(symbols_in(form)))
    return list(found)


def assumption_rows(space: ParametricSpace) -> list[Form]:
    """Return the assumptions on the parameters, as forms that are ≥ 0."""
    return [*range_rows(space.ground.ranges), *space.ground.rows]


def condition_rows(space: ParametricSpace, used: Iterable[str], where: Iterable[Form]) -> list[Form]:
    """Return the conditions on output coordinates and the integers *used*: ranges, definitions, and *where*."""
    rows = [*where]
    named = dict.fromkeys((*space.coordinates, *used))
    for v in named:
        if v in space.divisions:
            rows += quotient_rows(space, v)
        elif v in space.limits:
            lo, hi = space.limits[v]
            rows += [add_forms({v: 1, "": 0}, lo, -1), add_forms(hi, {v: 1, "": 0}, -1)]
            rows += equality_rows({v: 1, "": 0}, space.aliases[v]) if v in space.aliases else ()
    return rows


def quotient_rows(space: ParametricSpace, q: str) -> list[Form]:
    """Return the conditions that define the quotient *q*."""
    e, d = space.divisions[q]
    rest = add_forms(e, space.times(d, {q: 1, "": 0}), -1)
    return [rest, add_forms(add_forms(d, rest, -1), {"": -1})]


def equality_rows(a: Form, b: Form) -> list[Form]:
    """Return the conditions for two forms to be equal."""
    return [add_forms(a, b, -1), add_forms(b, a, -1)]


def has_parameter_products(space: ParametricSpace, rows: Iterable[Form]) -> bool:
    """Whether a parameter is multiplied by an integer that is no parameter."""
    names = (name.split("*") for row in rows for name in row if "*" in name)
    return any(part not in space.symbols for parts in names for part in parts)


def size_names(space: ParametricSpace, rows: Iterable[Form]) -> tuple[str, ...]:
    """Return the size variables of an integer set: the parameters, and the products of parameters in *rows*."""
    found = {name for row in rows for name in row if "*" in name}
    return (*space.symbols, *sorted(found))


Solution: TypeAlias = "dict[str, int]"
"""Values of integers, by the name of the integer or of a product."""


def solution_text(solution: Solution) -> str:
    """Format *solution* for messages: ``H = 3, x0 = 2``."""
    return ", ".join(f"{symbol_text(v)} = {n}" for v, n in solution.items())


def find_solution(space: ParametricSpace, where: Sequence[Form]) -> Solution | None:
    """Return values that may fulfil *where*; None if no sizes fulfil all conditions.  Raises Undecided."""
    if any(_never_holds(space, row) for row in where):
        return None
    rows = [*assumption_rows(space), *condition_rows(space, integers_in(space, where), where)]
    if has_parameter_products(space, rows):
        space.solvers.add("z3")
        return solve_with_z3(rows)
    space.solvers.add("isl")
    sizes = size_names(space, rows)
    rows += product_rows(space.ground.ranges, sizes)
    names = dict.fromkeys((*sizes, *(v for row in rows for v in row if v)))
    dims = ", ".join(map(isl_name, names))
    try:
        found = isl.Set(
            f"{{ [{dims}] : {' and '.join(f'{isl_expression(row)} >= 0' for row in rows)} }}", bounded_context()
        )
        if found.is_empty():
            return None
        return dict(zip(names, smallest_point(found), strict=True))
    except isl.Error as error:
        raise Undecided(f"integer sets: {error}") from None


def _never_holds(space: ParametricSpace, row: Form) -> bool:
    try:
        return space.ground.is_nonnegative(add_forms({"": -1}, space.span(row)[1], -1))
    except Undecided:
        return False


def solve_with_z3(rows: Sequence[Form], never: Sequence[Sequence[Form]] = ()) -> Solution | None:
    """Return a solution of *rows* at which every conjunction of *never* fails; None if z3 proves there is none.

    Raises Undecided if z3 is not installed or gives up.
    """
    solver = load_z3()
    numbers: dict[str, z3.ArithRef] = {}

    def value(form: Form) -> z3.ArithRef:
        total: z3.ArithRef = solver.IntVal(form.get("", 0))
        for name, k in form.items():
            if name:
                made: z3.ArithRef = solver.IntVal(k)
                for part in name.split("*"):
                    made = made * numbers.setdefault(part, solver.Int(part))
                total = total + made
        return total

    query = solver.Solver()
    query.set("rlimit", Z3_RESOURCE_LIMIT)
    query.add(*(value(row) >= 0 for row in rows))
    for conjunction in never:
        query.add(solver.Or(*(value(row) < 0 for row in conjunction)) if conjunction else solver.BoolVal(False))
    answer = query.check()
    if answer == solver.unsat:
        return None
    if answer == solver.unknown:
        raise Undecided(f"z3 gives up: {query.reason_unknown()}")
    model = query.model()
    return {v: model.eval(n, model_completion=True).as_long() for v, n in sorted(numbers.items())}


def load_z3() -> ModuleType:
    """Return the module z3; raises Undecided if it is not installed."""
    try:
        return import_module("z3")
    except ImportError:
        why = "products are beyond integer sets, and z3 is not installed (pip install '.[proofs]')"
        raise Undecided(why) from None
