r"""What a scope computes: a multiset of terms ``coefficient · Π T[i]``, one for every point that is summed.

A function that is no polynomial is a factor of its own, at the indices of all that it reads, so that nothing is assumed
of it; a reduced scope inside one is a factor that it shares with the scopes proved equal to it.  Under max, min and
prod every value that is reduced is a term with one factor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import islice, permutations, product
from math import gcd, inf, isfinite, prod
from typing import Any, NamedTuple, TypeAlias

from einnet_check.text import Box, Expr, Number, Read, Scope, Table, Tensor, infinite, reads, walk

Form: TypeAlias = "dict[str, int]"
"""c + Σ k·v over integers and quotients *v*; c stands at ``""``.  As a condition it means ``form >= 0``."""
Rows: TypeAlias = "tuple[Form, ...]"
Factors: TypeAlias = "tuple[tuple[str, Rows], ...]"
Polynomial: TypeAlias = "tuple[tuple[Number, Factors], ...]"
Cases: TypeAlias = "list[tuple[Rows, Polynomial]]"

ONE: Polynomial = ((Fraction(1), ()),)
MOST = 3000
NEUTRAL: dict[str, Number] = {"sum": Fraction(0), "prod": Fraction(1), "max": -inf, "min": inf}
BINARY = {"sum": "+", "max": "maximum", "min": "minimum", "prod": "*"}
OVER = {"sum": "*", "max": "+", "min": "+"}
"""What distributes over a reduction."""


class Beyond(ValueError):
    """The theory does not reach this comparison; the message says why."""


class Term(NamedTuple):
    """coefficient · Π factors, once for every value of *summed* where all of *where* is at least 0."""

    coefficient: Number
    factors: Factors
    summed: tuple[str, ...] = ()
    where: Rows = ()
    value: Polynomial = ()
    """What its one factor stands for, under max, min and prod."""


def plus(a: Form, b: Form, k: int = 1) -> Form:
    """a + k·b."""
    out = {v: a.get(v, 0) + k * b.get(v, 0) for v in {**a, **b}}
    return {v: c for v, c in out.items() if c or not v}


def name(form: Form) -> str:
    """*form* as isl reads it; one text for one form."""
    return " + ".join(f"{k}*{v}" if v else str(k) for v, k in sorted(form.items()))


def simple(k: Number) -> Fraction:
    """*k*, or the fraction within 1e-14 of it: constants that were folded in floating point are one value."""
    if not isfinite(k):
        raise Beyond("an infinite constant is added or multiplied")
    exact = Fraction(k)
    near = exact.limit_denominator(1 << 20)
    return near if abs(near - exact) <= abs(exact) / 10**14 else Fraction(f"{float(k):.11e}")


def constant(k: Number) -> Polynomial:
    return ((k, ()),) if k else ()


def element(of: str, at: Rows) -> Polynomial:
    return ((Fraction(1), ((of, at),)),)


def reduces(scope: Scope) -> bool:
    """Whether *scope* combines several values."""
    return prod(hi - lo for _, lo, hi in scope.sums) != 1


def complement(rows: Rows | None) -> list[Rows]:
    """Disjoint conjunctions that hold exactly where *rows* (None: never) do not all hold."""
    return [()] if rows is None else [(*rows[:n], plus({"": -1}, row, -1)) for n, row in enumerate(rows)]


class Space:
    """The integers of one comparison, with their ranges, and the scopes that stand for functions in it."""

    def __init__(self, box: Box, same: Callable[[Scope, Scope], bool], exponential: bool = False) -> None:
        self.same, self.opaque, self.count, self.exponential = same, list[Scope](), 0, exponential
        self.range: dict[str, tuple[int, int]] = {}
        self.inside: dict[str, frozenset[str]] = {"": frozenset()}
        self.x = tuple(self.fresh("x", lo, hi) for lo, hi in box)
        self.point: Rows = tuple({x: 1, "": 0} for x in self.x)

    def fresh(self, stem: str, lo: int, hi: int) -> str:
        """A new integer in [lo, hi)."""
        made, self.count = f"{stem}{self.count}_{lo}_{hi}".replace("-", "n"), self.count + 1
        self.range[made], self.inside[made] = (lo, hi - 1), frozenset([made])
        return made

    def bounds(self, form: Form) -> tuple[int, int]:
        """A closed interval that holds every value of *form*."""
        ends = [sorted((k * self.range[v][0], k * self.range[v][1])) for v, k in form.items() if v]
        return form[""] + sum(a for a, _ in ends), form[""] + sum(b for _, b in ends)

    def form(self, index: Expr, env: Mapping[str, Form]) -> Form:
        """*index* at the point *env*."""
        match index:
            case str():
                return env[index]
            case Fraction(denominator=1):
                return {"": int(index)}
            case ("+", a, b):
                return plus(self.form(a, env), self.form(b, env))
            case ("*", Fraction(denominator=1) as k, a) | ("*", a, Fraction(denominator=1) as k):
                return plus({"": 0}, self.form(a, env), int(k))
            case ("/" | "//", a, Fraction(denominator=1) as d) if d > 0:
                return self.quotient(self.form(a, env), int(d))
            case ("%", a, Fraction(denominator=1) as d) if d > 0:
                e = self.form(a, env)
                return plus(e, self.quotient(e, int(d)), -int(d))
        raise Beyond(f"{index!r} is no index")

    def quotient(self, e: Form, d: int) -> Form:
        """⌊e / d⌋, with the digits that leave it by themselves taken out."""
        lo, hi = self.bounds(e)
        if lo // d == hi // d:
            return {"": lo // d}
        for g in sorted({gcd(d, k) for v, k in e.items() if v} - {1}, reverse=True):
            low = {v: k for v, k in e.items() if k % g or not v}
            least, most = self.bounds(low)
            if least // g == most // g:  # e = g·high + low with 0 <= low < g
                high = {v: k // g for v, k in e.items() if v and k % g == 0} | {"": least // g}
                return high if g == d else self.quotient(high, d // g)
        made = f"floor(({name(e)})/{d})"
        self.range[made] = lo // d, hi // d
        self.inside[made] = frozenset[str]().union(*(self.inside[v] for v in e))
        return {made: 1, "": 0}

    def within(self, forms: Iterable[Form], box: Iterable[tuple[float, float]]) -> Rows | None:
        """The conditions for *forms* to lie in the half-open *box* that may fail; None if they cannot all hold."""
        rows: list[Form] = []
        for form, (lo, hi) in zip(forms, box, strict=True):
            least, most = self.bounds(form)
            if most < lo or least >= hi:
                return None
            rows += [plus(form, {"": -int(lo)})] if least < lo else []
            rows += [plus({"": int(hi) - 1}, form, -1)] if most >= hi else []
        return tuple(rows)

    def enter(self, scope: Scope, at: Rows) -> tuple[dict[str, Form], Rows | None]:
        """The traversals of *scope* read at *at*, and the conditions for it to be computed there."""
        env = {x: form for (x, _, _), form in zip(scope.own, at, strict=True)}
        domain = [self.form(index, env) for index, _, _ in scope.domain]
        return env, self.within((*at, *domain), (*scope.box, *((lo, hi) for _, lo, hi in scope.domain)))

    def points(self, scope: Scope, env: dict[str, Form]) -> Iterable[tuple[dict[str, Form], tuple[str, ...]]]:
        """*env* with the summations; one that a table is indexed by is written out, value by value.

        Names recur from value to value (a name tells its range), so that what the values give can be added up.
        """
        listed = [y for y in scope.sums if y[0] in tabulated(scope)]
        others = {y: self.fresh("y", lo, hi) for y, lo, hi in scope.sums if (y, lo, hi) not in listed}
        if prod(hi - lo for _, lo, hi in listed) > MOST:
            raise Beyond(f"tables are indexed by more than {MOST} points of a sum")
        first = last = self.count
        for values in product(*(range(lo, hi) for _, lo, hi in listed)):
            self.count = first
            known = {y: {"": v} for (y, _, _), v in zip(listed, values, strict=True)}
            yield {**env, **{y: {v: 1, "": 0} for y, v in others.items()}, **known}, tuple(others.values())
            last = max(last, self.count)
        self.count = last

    def decided(self, condition: Any, env: Mapping[str, Form]) -> tuple[list[Rows], list[Rows]]:
        """The pieces where ``(op, left, right)`` holds, and those where it does not."""
        op, gap = condition[0], plus(self.form(condition[1], env), self.form(condition[2], env), -1)
        less, more = self.within([gap], [(-inf, 0)]), self.within([gap], [(1, inf)])
        below, above = ([] if rows is None else [rows] for rows in (less, more))
        equal = [(*a, *b) for a in complement(less) for b in complement(more)]
        of = {"<": below, ">": above, "==": equal, "<=": below + equal, ">=": equal + above, "!=": below + above}
        return of[op], of[{"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}[op]]

    def cases(self, e: Expr, env: Mapping[str, Form]) -> Cases:
        """The scalar *e* at one point, by cases that exclude one another: a polynomial in each."""
        match e:
            case Fraction() | float():
                return [((), constant(e))]
            case Read(source, index):
                return self.read(source, tuple(self.form(i, env) for i in index))
            case ("where", condition, yes, no):
                pairs = zip(self.decided(condition, env), (yes, no), strict=True)
                return [((*r, *w), v) for pieces, arg in pairs for r in pieces for w, v in self.cases(arg, env)]
            case (str() as op, *args):
                op = "e^" if op == "exp" and self.exponential else op
                parts = [self.cases(arg, env) for arg in args]
                if prod(map(len, parts)) > MOST:
                    raise Beyond(f"{op} has more than {MOST} cases")
                return [(tuple(r for w, _ in c for r in w), applied(op, [v for _, v in c])) for c in product(*parts)]
        raise Beyond(f"{e!r} is no number")

    def read(self, source: Any, at: Rows) -> Cases:
        """``source[at]``: what lies inside the box, and the value of the padding outside."""
        if isinstance(source, Table):
            entries = dict(zip(product(*(range(*ends) for ends in source.box)), source.entries, strict=True))
            spans = zip(map(self.bounds, at), source.box, strict=True)
            places = product(*(range(max(lo, least), min(hi, most + 1)) for (least, most), (lo, hi) in spans))
            pieces = ((self.within(at, [(n, n + 1) for n in i]), entries[i]) for i in places)
            return [(rows, constant(k)) for rows, k in pieces if rows is not None]
        inner: Cases
        if isinstance(source, Tensor):
            rows, inner = self.within(at, source.box), [((), element(json.dumps(source.name), at))]
        elif reduces(source):
            return [((), element(*self.symbol(source, at)))]
        else:
            env, rows = self.enter(source, at)
            inner = self.cases(source.body, env | {y: {"": lo} for y, lo, _ in source.sums}) if rows is not None else []
        outside = [(w, constant(source.value)) for w in complement(rows)]
        return outside if rows is None else outside + [((*rows, *w), v) for w, v in inner]

    def symbol(self, scope: Scope, at: Rows) -> tuple[str, Rows]:
        """``scope[at]`` as a factor; scopes proved equal, up to the order of traversals, share a name."""
        if any(len(form) == 1 for form in at):  # at known places it is a function of the other coordinates only
            named = [Fraction(form[""]) if len(form) == 1 else f"x{d}" for d, form in enumerate(at)]
            free = [d for d, x in enumerate(named) if isinstance(x, str)]
            reach, at = tuple(scope.reach[d] for d in free), tuple(at[d] for d in free)
            own = tuple((f"x{d}", lo, hi) for d, (lo, hi) in zip(free, reach, strict=True))
            scope = Scope(own, (), Read(scope, tuple(named)), "sum", (), reach, Fraction(0))
        for n, known in enumerate(self.opaque):
            for order in islice(permutations(range(len(at))), 24 * (len(at) == len(known.own))):
                own, reach = tuple(scope.own[d] for d in order), tuple(scope.reach[d] for d in order)
                turned = replace(scope, own=own, reach=reach)
                if (turned.reach, turned.box) == (known.reach, known.box) and self.same(known, turned):
                    return symbol(n, known), tuple(at[d] for d in order)
        self.opaque.append(scope)
        return symbol(len(self.opaque) - 1, scope), at

    def terms(self, scope: Scope, at: Rows, reduce: str) -> list[Term]:
        """The terms of ``scope[at]`` under *reduce*."""
        if reduces(scope) and scope.reduce != reduce:
            return single(self.read(scope, at), reduce)
        env, rows = self.enter(scope, at)
        found = single([(w, constant(scope.value)) for w in complement(rows)], reduce)
        if rows is None:
            return found
        for inner, summed in self.points(scope, env):
            for t in self.expanded(scope.body, inner, reduce):
                found.append(t._replace(summed=(*summed, *t.summed), where=(*rows, *t.where)))
        return merged(found)

    def expanded(self, e: Expr, env: Mapping[str, Form], reduce: str) -> list[Term]:
        """The terms of the scalar *e*: sums and products are multiplied out."""
        match e:
            case Read(Scope() as source, index) if not reduces(source) or source.reduce == reduce:
                return self.terms(source, tuple(self.form(i, env) for i in index), reduce)
            case (op, a, b) if op == BINARY[reduce]:
                return self.expanded(a, env, reduce) + self.expanded(b, env, reduce)
            case ("/", a, b) if reduce == "sum" and a != 1:
                return self.expanded(("*", a, ("/", Fraction(1), b)), env, reduce)
            case (op, a, b) if op == OVER.get(reduce):
                left, right = self.expanded(a, env, reduce), self.expanded(b, env, reduce)
                if len(left) * len(right) > 64 * MOST:
                    raise Beyond(f"a product has {len(left)} times {len(right)} terms")
                return merged(joined(s, t, reduce) for s, t in product(left, right))
        return single(self.cases(e, env), reduce)


def joined(s: Term, t: Term, reduce: str) -> Term:
    """Of products the product, of values that are reduced the sum: max f + max g is max (f + g)."""
    summed, where = s.summed + t.summed, s.where + t.where
    if reduce == "sum":
        return Term(s.coefficient * t.coefficient, s.factors + t.factors, summed, where)
    if any(k == -NEUTRAL[reduce] for k, _ in (*s.value, *t.value)):  # its sum with a neutral value is no number
        raise Beyond("an infinite constant is added or multiplied")
    value = applied("+", [s.value, t.value])
    return Term(Fraction(1), (skeleton(value),), summed, where, value)


def symbol(number: int, scope: Scope) -> str:
    """The name of a scope that is a factor; it tells whether its values may be infinite."""
    return f"{{{number}}}" + "∞" * infinite(scope)


def single(found: Cases, reduce: str) -> list[Term]:
    """A value by cases as terms."""
    if reduce == "sum":
        return [Term(k, factors, (), w) for w, v in found for k, factors in v]
    return [Term(Fraction(1), (skeleton(v),), (), w, v) for w, v in found if v != constant(NEUTRAL[reduce])]


def tabulated(scope: Scope) -> set[str]:
    """The iterators of *scope* by which it, or a scope inside it, indexes a table."""
    found = set[str]()
    for source, indices in reads(scope.body):
        inner = tabulated(source) if isinstance(source, Scope) else set()
        own = [x for x, _, _ in source.own] if isinstance(source, Scope) else [""] * len(indices)
        for x, index in zip(own, indices, strict=True):
            found |= (
                {i for i in walk(index) if isinstance(i, str)} if x in inner or isinstance(source, Table) else set()
            )
    return found


def merged(terms: Iterable[Term]) -> list[Term]:
    """Families that differ in nothing but the coefficient are one; those with 0 are none."""
    total: dict[Any, Term] = {}
    for t in (t._replace(factors=cancelled(t.factors)) for t in terms):
        of = tuple((n, *map(name, at)) for n, at in t.factors), frozenset(t.summed), frozenset(map(name, t.where))
        total[of] = t._replace(coefficient=t.coefficient + (total[of].coefficient if of in total else 0))
    if len(total) > MOST:
        raise Beyond(f"a scope has more than {MOST} kinds of terms")
    return [t for t in total.values() if t.coefficient]


def applied(op: str, args: list[Polynomial]) -> Polynomial:
    """*op* of polynomials: sums and products multiplied out, anything else a factor of its own."""
    match op, args:
        case "+", [a, b]:
            return collected((*a, *b))
        case "*", [a, b]:
            return collected((k * m, f + g) for (k, f), (m, g) in product(a, b))
        case "/", [a, ((Fraction() as k, ()),)]:
            return tuple((c / k, f) for c, f in a)
        case "/", [a, b] if a != ONE:
            return applied("*", [a, applied("/", [ONE, b])])
        case "e^", [a]:  # the axiom: of a sum it is the product of those of its terms
            return collected([(Fraction(1), tuple((f"e^({of})", at) for of, at in (skeleton((m,)) for m in a)))])
        case (("maximum" | "minimum"), [a, b]) if (neutral := constant(-inf if op == "maximum" else inf)) in (a, b):
            return b if a == neutral else a
        case "relu", [() | ((_, ()),) as a]:
            return a if a and a[0][0] > 0 else ()
    parts = [skeleton(arg) for arg in args]
    return element(f"{op}({', '.join(of for of, _ in parts)})", tuple(f for _, at in parts for f in at))


def cancelled(factors: Factors) -> Factors:
    """*factors* without pairs e^a · e^-a for finite a, which is 1 by the axiom."""
    kept: list[tuple[str, Rows]] = []
    for of, at in factors:
        opposite = f"e^({of[4:]}" if of.startswith("e^(-") else f"e^(-{of[3:]}", at
        if of.startswith("e^(") and "∞" not in of and opposite in kept:
            kept.remove(opposite)
        else:
            kept.append((of, at))
    return tuple(kept)


def collected(monomials: Iterable[tuple[Number, Factors]]) -> Polynomial:
    """Like monomials added up, in an order that depends on names first."""
    total: dict[Any, tuple[Number, Factors]] = {}
    for k, factors in monomials:
        sorted_ = tuple(sorted(cancelled(factors), key=lambda f: (f[0], *map(name, f[1]))))
        of = tuple(n for n, _ in sorted_), tuple(tuple(map(name, at)) for _, at in sorted_)
        total[of] = k + (total[of][0] if of in total else 0), sorted_
    return tuple(m for _, m in sorted((([*of[0], str(m[0])], of), m) for of, m in total.items() if m[0]))


def skeleton(value: Polynomial) -> tuple[str, Rows]:
    """A polynomial as a function of elements, by its text, and where these elements lie."""
    numbers = (str(k if k in (inf, -inf) else simple(k)).replace("inf", "∞") for k, _ in value)
    text = " + ".join("*".join((k, *(n for n, _ in fs))) for k, (_, fs) in zip(numbers, value, strict=True))
    return text or "0", tuple(form for _, fs in value for _, at in fs for form in at)
