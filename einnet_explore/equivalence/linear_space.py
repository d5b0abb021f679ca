r"""Linear forms over named integers, and the term space in which two scopes are compared.

A quotient or remainder by *d* adds an integer ``q`` with ``0 <= e - d·q < d``, and a scope that may be read outside its
box adds names for its coordinates inside, so that every condition is linear.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations
from math import factorial, gcd, inf, isinf, prod
from typing import TypeAlias

from einnet_explore.analysis.indices import is_inside_box, iterators_of
from einnet_explore.equivalence.assumptions import NO_ASSUMPTIONS, Assumptions
from einnet_explore.interpreter.numbers import INFINITE_SUFFIX, Number
from einnet_explore.ir import (
    Access,
    Apply,
    Box,
    Const,
    Index,
    Iterator,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    add,
    as_index,
)

Form: TypeAlias = dict[str, int]
"""c + Σ kᵢ·vᵢ over named integers; the constant stands at ``""``.  As a condition it means ``form >= 0``."""

Factor: TypeAlias = "tuple[str, tuple[Form, ...]]"
Env: TypeAlias = "Mapping[Iterator, Form]"

MAX_NAMES = 900
"""Terms or cases of one scope up to which it is compared."""

MAX_ORDERS = 24


class Undecided(Exception):
    """The comparison is beyond the theory of term relations; the message gives the reason."""


class TermSpace:
    """The integers of one comparison: output coordinates, summed iterators and quotients, with their ranges."""

    def __init__(self, region: Box, same: Callable[[Scope, Scope], bool], given: Assumptions = NO_ASSUMPTIONS) -> None:
        self._same = same
        self.given = given
        self.ranges: dict[str, tuple[int, int]] = {}
        self.elements: dict[str, tuple[int, int]] = {}
        """The ranges of the elements of integer tensors, by factor name."""
        self.quotients: dict[str, tuple[Form, int]] = {}
        self.aliases: dict[str, Form] = {}
        self._ways: dict[str, list[tuple[Form, int]]] = {}
        """Dividend and divisor of each quotient."""
        self._quotient: dict[tuple[tuple[tuple[str, int], ...], int], str] = {}
        self._opaque: list[Scope] = []
        self._sums: list[str] = []
        self.named_sums = 0
        """How many summed integers have a name; less, and later names recur: for terms that are never multiplied."""
        self.point: tuple[Form, ...] = tuple({self.fresh("x", lo, hi - 1): 1, "": 0} for lo, hi in region)
        self.coordinates = tuple(self.ranges)

    def fresh(self, stem: str, lo: int, hi: int) -> str:
        """Name a new integer in the closed range [lo, hi]."""
        name = f"{stem}{len(self.ranges)}"
        self.ranges[name] = (lo, hi)
        return name

    def fresh_sum(self, lo: int, hi: int) -> str:
        """Name a summed integer in [lo, hi]: a new one, or one that was named before ``named_sums`` was set back."""
        rest = range(self.named_sums, len(self._sums))
        found = next((n for n in rest if self.ranges[self._sums[n]] == (lo, hi)), None)
        if found is None:
            found = len(self._sums)
            self._sums.append(self.fresh("y", lo, hi))
        self.named_sums = found + 1
        return self._sums[found]

    def means(self, v: str) -> bool:
        """Whether a quotient or an alias is a function of *v*."""
        return any(v in e for e, _ in self.quotients.values()) or any(v in e for e in self.aliases.values())

    def form(self, index: Index, env: Env) -> Form:
        """Return *index* as a linear form; a quotient or remainder by *d* adds ``q`` with ``0 <= e - d·q < d``."""
        out: Form = {"": index.const}
        for atom, k in index.terms:
            match atom:
                case Iterator():
                    accumulate_form(out, env[atom], k)
                case Quotient(numerator, d):
                    accumulate_form(out, self._divide(self.form(numerator, env), d), k)
                case Remainder(numerator, d):
                    e = self.form(numerator, env)
                    accumulate_form(out, e, k)
                    accumulate_form(out, self._divide(e, d), -k * d)
        return {v: k for v, k in out.items() if k or not v}

    def _divide(self, e: Form, d: int) -> Form:
        lo, hi = self.bounds(e)
        if lo // d == hi // d:
            return {"": lo // d}
        # d = g·d' and e = g·a + b with 0 <= b < g: the quotient is a / d'.
        for g in sorted({gcd(d, k) for v, k in e.items() if v} - {1}, reverse=True):
            low = {v: k for v, k in e.items() if k % g or not v}
            least, most = self.bounds(low)
            if least // g == most // g:
                high = {v: k // g for v, k in e.items() if v and k % g == 0} | {"": least // g}
                if g == d:
                    return high
                return self._divide(high, d // g)
        inner = next((v for v in e if v), "")
        if len(e) == 2 and e[inner] == 1 and inner in self.quotients:
            # (a // b + c) // d is (a + b·c) // (b·d): one name, which is known as both.
            a, b = self.quotients[inner]
            whole = self._divide({**a, "": a[""] + b * e[""]}, b * d)
            for v in whole:
                if v in self._ways and whole == {v: 1, "": 0} and (e, d) not in self._ways[v]:
                    self._ways[v].append((e, d))
            return whole
        known = (form_key(e), d)
        if known not in self._quotient:
            name = self.fresh("q", lo // d, hi // d)
            self._quotient[known] = name
            self.quotients[name] = (e, d)
            self._ways[name] = [(e, d)]
        return {self._quotient[known]: 1, "": 0}

    def enter(self, at: Iterable[Form], box: Box) -> tuple[Form, ...]:
        """Name the coordinates *at* with the ranges of *box*, for use inside the box only."""
        out = []
        for form, (lo, hi) in zip(at, box, strict=True):
            least, most = self.bounds(form)
            if lo <= least and most < hi:
                out.append(form)
                continue
            name = self.fresh("t", lo, hi - 1)
            self.aliases[name] = form
            out.append({name: 1, "": 0})
        return tuple(out)

    def bounds(self, form: Form) -> tuple[int, int]:
        """Return a closed interval around the values of *form*.

        A quotient q of e by d also bounds the remainder: e - d·q lies in [0, d).
        """
        lo = hi = form[""]
        quotients: list[tuple[str, int]] = []
        for v, k in form.items():
            if v:
                a, b = self.ranges[v]
                lo, hi = (lo + k * a, hi + k * b) if k > 0 else (lo + k * b, hi + k * a)
                if v in self._ways:
                    quotients.append((v, k))
        for q, c, (e, d) in [(v, k, way) for v, k in quotients for way in self._ways[v]]:
            if c % d == 0 and any(form.get(u, 0) * c < 0 for u in e if u):
                # form = m·(e - d·q) + the rest
                m = -c // d
                rest = subtract_forms(form, {u: m * k for u, k in {**e, q: -d}.items()})
                least, most = self.bounds(rest)
                lo, hi = max(lo, least + min(0, m * (d - 1))), min(hi, most + max(0, m * (d - 1)))
        return lo, hi

    def within(self, forms: Iterable[Form], box: Iterable[tuple[int, int | None]]) -> tuple[Form, ...] | None:
        """Return the conditions for *forms* in the half-open *box* that may fail; None if they cannot all hold.

        An upper end of None is unbounded.
        """
        rows: list[Form] = []
        for form, (lo, hi) in zip(forms, box, strict=True):
            least, most = self.bounds(form)
            if most < lo or (hi is not None and least >= hi):
                return None
            if least < lo:
                rows.append({**form, "": form[""] - lo})
            if hi is not None and most >= hi:
                rows.append({**{v: -k for v, k in form.items()}, "": hi - 1 - form[""]})
        return tuple(rows)

    def opaque(self, scope: Scope, at: tuple[Form, ...]) -> Factor:
        """Return ``scope[at]``, read inside a function, as a factor; equal scopes share a name.

        A scope with permuted traversals is the same function of permuted coordinates.  For a symmetric scope, the
        smallest equivalent coordinates are chosen.  Coordinates that are known, or make no difference, are left out.
        """
        scope, at = self._on_several_places(scope, at)
        for n, known in enumerate((*self._opaque, scope)):
            for order in islice(_orders(known, scope, at), MAX_ORDERS):
                if known == (turned := _permute_traversals(scope, order)) or self._same(known, turned):
                    self._opaque += [scope] * (n == len(self._opaque))
                    return f"{{{n}}}" + INFINITE_SUFFIX * self.given.endless(known), tuple(at[d] for d in order)
        raise Undecided("a scope is not equal to itself")

    def sum_of(self, parts: Sequence[tuple[Number, Factor]]) -> Factor | None:
        """Return a sum of multiples of ``opaque`` factors as one of them; None if it cannot be written as a scope."""
        forms = [form for _, (_, at) in parts for form in at]
        names = sorted({v for form in forms for v in form if v})
        if not self.ranges.keys() >= {*names}:
            return None  # their ranges depend on sizes
        xs = {v: Iterator(v, self.ranges[v][0], self.ranges[v][1] + 1) for v in names}
        terms = list[Scalar]()
        for k, (name, at) in parts:
            if not name.removeprefix("{").removesuffix("}").isdigit() or isinf(k) or float(k) != k:
                return None
            scope = self._opaque[int(name[1:-1])]
            index = tuple(sum((n * xs[v] for v, n in form.items() if v), Index((), form[""])) for form in at)
            if not is_inside_box(index, scope.reach):
                return None
            terms.append(Apply("*", (Const(float(k)), Access(scope, index))))
        return self.opaque(Scope(tuple(xs.values()), (), add(*terms)), tuple({v: 1, "": 0} for v in xs))

    def _on_several_places(self, scope: Scope, at: tuple[Form, ...]) -> tuple[Scope, tuple[Form, ...]]:
        """Return ``scope[at]`` as a function of those coordinates that have several values and on which it depends."""
        if not scope.domain and not any(map(any, scope.padding)):
            used = iterators_of(scope.body)
            read = [d for d, x in enumerate(scope.traversals) if x in used]
            if len(read) < len(at):
                scope = replace(scope, traversals=tuple(scope.traversals[d] for d in read), padding=())
                at = tuple(at[d] for d in read)
        if not self.ranges.keys() >= {v for form in at for v in form if v}:
            return scope, at  # their ranges depend on sizes
        ends = [self.bounds(form) for form in at]
        if all(lo != hi for lo, hi in ends):
            return scope, at
        free = [d for d, (lo, hi) in enumerate(ends) if lo != hi]
        xs = tuple(Iterator(f"x{d}", *scope.reach[d]) for d in free)
        index: list[Index] = [Index((), lo) for lo, _ in ends]
        for d, x in zip(free, xs, strict=True):
            index[d] = as_index(x)
        return Scope(xs, (), Access(scope, tuple(index))), tuple(at[d] for d in free)


def _orders(known: Scope, scope: Scope, at: tuple[Form, ...]) -> Iterable[tuple[int, ...]]:
    """Yield the orders of *scope*'s traversals with *known*'s reach, smallest coordinates *at* first."""
    if len(known.traversals) == len(scope.traversals):
        rank = len(scope.traversals)
        fitting = (
            order
            for order in permutations(range(rank))
            if all(known.reach[n] == scope.reach[d] for n, d in enumerate(order))
        )
        few = factorial(rank) <= MAX_ORDERS
        yield from sorted(fitting, key=lambda order: [form_key(at[d]) for d in order]) if few else fitting


def _permute_traversals(scope: Scope, order: tuple[int, ...]) -> Scope:
    padding = tuple(scope.padding[d] for d in order) if scope.padding else ()
    return replace(scope, traversals=tuple(scope.traversals[d] for d in order), padding=padding)


def common_reduction(before: Scope, after: Scope) -> str:
    """Return the reduction that decides the comparison of two scopes: that of the first reducing scope of each.

    A scope that reduces nothing fits every reduction.  Raises Undecided for two reductions.
    """
    kinds = tuple(dict.fromkeys((*_first_reduction(before), *_first_reduction(after))))
    if len(kinds) > 1:
        raise Undecided(f"reductions {' and '.join(kinds)} have no common form")
    return kinds[0] if kinds else "sum"


def _first_reduction(scope: Scope) -> Iterable[str]:
    """Yield the reduction of the first reducing scope at or below *scope*."""
    match scope:
        case Scope() if reduces(scope):
            yield scope.reduce
        case Scope(body=Access(Scope() as inner)):
            yield from _first_reduction(inner)


def reduces(scope: Scope) -> bool:
    """Whether *scope* combines several values; over one summation point every monoid is the identity."""
    return prod(y.extent for y in scope.summations) != 1


def scope_conditions(
    space: TermSpace, scope: Scope, at: tuple[Form, ...]
) -> tuple[dict[Iterator, Form], tuple[Form, ...] | None]:
    """Return the iterators' forms for *scope* read at *at*, and the conditions of its domain there."""
    inside = space.within(at, scope.box)
    env = dict(zip(scope.traversals, at if inside is None else space.enter(at, scope.box), strict=True))
    for bound in scope.domain:
        if not set(bound.index.iterators) <= set(scope.traversals):
            raise Undecided(f"the domain bound {bound!r} depends on more than traversals")
        rows = space.within((space.form(bound.index, env),), ((bound.lo, bound.hi),))
        inside = None if inside is None or rows is None else (*inside, *rows)
    return env, inside


def with_summations(
    space: TermSpace, scope: Scope, env: dict[Iterator, Form]
) -> tuple[dict[Iterator, Form], tuple[str, ...]]:
    """Add the summations' forms to *env*; return it and their names."""
    names = tuple(space.fresh_sum(y.lo, y.hi - 1) for y in scope.summations)
    return {**env, **{y: {name: 1, "": 0} for y, name in zip(scope.summations, names, strict=True)}}, names


def pinned_values(where: Iterable[Form], ranges: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return the integers that the conditions *where* fix to one value in their *ranges*."""
    ends: dict[str, tuple[float, float]] = {}
    for row in where:
        if len(row) == 2:  # one integer and the constant
            for v, k in row.items():
                if v and k in (1, -1):
                    lo, hi = ends[v] if v in ends else ranges.get(v, (-inf, inf))
                    ends[v] = (max(lo, -row[""]), hi) if k == 1 else (lo, min(hi, row[""]))
    return {v: int(lo) for v, (lo, hi) in ends.items() if lo == hi}


def complement(inside: tuple[Form, ...] | None) -> list[tuple[Form, ...]]:
    """Return disjoint conjunctions whose union is the complement of *inside*."""
    if inside is None:
        return [()]
    return [(*inside[:n], negate_condition(row)) for n, row in enumerate(inside)]


def form_value(form: Form, known: Mapping[str, int]) -> int:
    """Return the value of *form* for *known* integers."""
    return form[""] + sum(k * known[v] for v, k in form.items() if v)


def negate_condition(row: Form) -> Form:
    """Return the negation of the condition *row*."""
    return {**{v: -k for v, k in row.items()}, "": -row[""] - 1}


def tensor_factor(space: TermSpace, name: str) -> str:
    """Return the factor name of a tensor: its name, quoted if it is not an identifier, to keep symbols distinct.

    Possibly infinite tensors have a suffix.
    """
    return (name if name.isidentifier() else json.dumps(name)) + INFINITE_SUFFIX * (name in space.given.infinite)


def form_key(form: Form) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(form.items()))


def subtract_forms(a: Form, b: Form) -> Form:
    out = dict(a)
    accumulate_form(out, b, -1)
    return {v: k for v, k in out.items() if k or not v}


def accumulate_form(out: Form, form: Form, k: int) -> None:
    for v, c in form.items():
        out[v] = out.get(v, 0) + c * k
