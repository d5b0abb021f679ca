r"""The terms of a scope: what it computes, as piecewise polynomials over tensor elements.

For a scope in polynomial form, with its nested scopes substituted in,

.. math::  Y[\vec x] = \sum_i k_i \sum_{\vec y :\, C_i(\vec x, \vec y) \ge 0} \prod_j T_{ij}[\tau_{ij}(\vec x, \vec y)]

every *i* is one ``Term``.  Ranges, domains, boxes and paddings are all conditions ``C_i``: reads of padding that holds
0 vanish, others are terms of their own.  A function that is no polynomial is a symbol: ``relu(A[i])`` is the factor
``relu(A)`` at the index *i*, so that equal arguments give equal factors and nothing else is assumed of it.

Source: the term relations of the design (trust, 2); EinNet §3 for the meaning of scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, permutations, product
from math import gcd, inf, isinf, isnan, prod
from typing import TypeAlias

from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Apply,
    Box,
    Compare,
    Const,
    Index,
    Iterator,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Tensor,
)

Form: TypeAlias = dict[str, int]
"""c + Σ kᵢ·vᵢ over named integers; the constant stands at ``""``.  As a condition it means ``form >= 0``."""

Number: TypeAlias = "Fraction | float"
Factor: TypeAlias = "tuple[str, tuple[Form, ...]]"
Env: TypeAlias = "Mapping[Iterator, Form]"
Monomial: TypeAlias = "tuple[Number, tuple[Factor, ...]]"
Case: TypeAlias = "tuple[tuple[Form, ...], tuple[Monomial, ...]]"

_MOST = 512
_ORDERS = 24
_SIMPLE = 1 << 20


class Beyond(Exception):
    """The theory of term relations does not reach this scope; the message says why."""


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient · Π factors, summed over *summed* where every condition of *where* holds."""

    coefficient: Number
    factors: tuple[Factor, ...] = ()
    summed: tuple[str, ...] = ()
    where: tuple[Form, ...] = ()


class Space:
    """The integers that one comparison speaks of: output coordinates, summed iterators and quotients, with ranges."""

    def __init__(self, region: Box, same: Callable[[Scope, Scope], bool]) -> None:
        self._same = same
        self.ranges: dict[str, tuple[int, int]] = {}
        self.quotients: dict[str, tuple[Form, int]] = {}
        self.aliases: dict[str, Form] = {}
        self._quotient: dict[tuple[tuple[tuple[str, int], ...], int], str] = {}
        self._opaque: list[Scope] = []
        self.point: tuple[Form, ...] = tuple({self.fresh("x", lo, hi - 1): 1, "": 0} for lo, hi in region)
        self.coordinates = tuple(self.ranges)

    def fresh(self, stem: str, lo: int, hi: int) -> str:
        """A new integer in the closed range [lo, hi]."""
        name = f"{stem}{len(self.ranges)}"
        self.ranges[name] = (lo, hi)
        return name

    def form(self, index: Index, env: Env) -> Form:
        """*index* as a linear form; a quotient or remainder by *d* brings in ``q`` with ``0 <= e - d·q < d``."""
        out: Form = {"": index.const}
        for atom, k in index.terms:
            match atom:
                case Iterator():
                    _accumulate(out, env[atom], k)
                case Quotient(numerator, d):
                    _accumulate(out, self._divide(self.form(numerator, env), d), k)
                case Remainder(numerator, d):
                    e = self.form(numerator, env)
                    _accumulate(out, e, k)
                    _accumulate(out, self._divide(e, d), -k * d)
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
        key = (_key(e), d)
        if key not in self._quotient:
            name = self.fresh("q", lo // d, hi // d)
            self._quotient[key] = name
            self.quotients[name] = (e, d)
        return {self._quotient[key]: 1, "": 0}

    def enter(self, at: Iterable[Form], box: Box) -> tuple[Form, ...]:
        """The coordinates *at* under names whose ranges are those of *box*, to be used only inside it."""
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
        """A closed interval that holds every value of *form*."""
        lo = hi = form[""]
        for v, k in form.items():
            if v:
                a, b = self.ranges[v]
                lo, hi = (lo + k * a, hi + k * b) if k > 0 else (lo + k * b, hi + k * a)
        return lo, hi

    def within(self, forms: Iterable[Form], box: Iterable[tuple[int, int]]) -> tuple[Form, ...] | None:
        """The conditions for *forms* to lie in the half-open *box* that may fail; None when they cannot all hold."""
        rows: list[Form] = []
        for form, (lo, hi) in zip(forms, box, strict=True):
            least, most = self.bounds(form)
            if most < lo or least >= hi:
                return None
            if least < lo:
                rows.append({**form, "": form[""] - lo})
            if most >= hi:
                rows.append({**{v: -k for v, k in form.items()}, "": hi - 1 - form[""]})
        return tuple(rows)

    def opaque(self, scope: Scope, at: tuple[Form, ...]) -> Factor:
        """``scope[at]``, read inside a function, as a factor; scopes that are one function share a name.

        A scope that only lists its traversals in another order is the same function of permuted coordinates.
        """
        for n, known in enumerate(self._opaque):
            for order in islice(_orders(known, scope), _ORDERS):
                if known == (turned := _permuted(scope, order)) or self._same(known, turned):
                    return f"scope{n}", tuple(at[d] for d in order)
        self._opaque.append(scope)
        return f"scope{len(self._opaque) - 1}", at


def _orders(known: Scope, scope: Scope) -> Iterable[tuple[int, ...]]:
    """The orders of *scope*'s traversals that give it *known*'s reach; its own order first."""
    if len(known.traversals) == len(scope.traversals):
        for order in permutations(range(len(scope.traversals))):
            if all(known.reach[n] == scope.reach[d] for n, d in enumerate(order)):
                yield order


def _permuted(scope: Scope, order: tuple[int, ...]) -> Scope:
    padding = tuple(scope.padding[d] for d in order) if scope.padding else ()
    return replace(scope, traversals=tuple(scope.traversals[d] for d in order), padding=padding)


def kind(scope: Scope) -> str | None:
    """The reduction that decides how *scope* is compared: that of the first scope below it that reduces, if any."""
    if reduces(scope):
        return scope.reduce
    match scope.body:
        case Access(Scope() as inner):
            return kind(inner)
    return None


def reduces(scope: Scope) -> bool:
    """Whether *scope* combines several values; over one summation point every monoid is the identity."""
    return prod(y.extent for y in scope.summations) != 1


def terms_at(space: Space, scope: Scope, at: tuple[Form, ...]) -> list[Term]:
    """The terms of ``scope[at]`` for a sum (or a scope that does not reduce).  Raises Beyond."""
    if reduces(scope) and scope.reduce != "sum":
        return _from_cases(_opaque_case(space, scope, at))
    env, inside = enter(space, scope, at)
    out = _from_cases(_constants(complement(inside), scope.value))
    if inside is not None:
        env, summed = point_of(space, scope, env)
        for term in _expand(space, scope.body, env):
            out.append(Term(term.coefficient, term.factors, (*summed, *term.summed), (*inside, *term.where)))
    return _capped(out)


def choices_at(space: Space, scope: Scope, at: tuple[Form, ...], reduce: str) -> list[Term]:
    """Like ``terms_at`` under max, min or prod: every value that is reduced, as one factor with coefficient 1."""
    env, inside = enter(space, scope, at)
    out: list[Term] = []
    if scope.value != REDUCTIONS[reduce]:
        out = [_choice(*case) for case in _constants(complement(inside), scope.value)]
    if inside is None:
        return out
    env, summed = point_of(space, scope, env)
    inner = _choose(space, scope.body, env, reduce)
    out += (replace(t, summed=(*summed, *t.summed), where=(*inside, *t.where)) for t in inner)
    return _capped(out)


def _choose(space: Space, scalar: Scalar, env: Env, reduce: str) -> list[Term]:
    match scalar:
        case Access(Scope() as source, index) if not reduces(source) or source.reduce == reduce:
            return choices_at(space, source, tuple(space.form(i, env) for i in index), reduce)
        case Apply(op, args) if op == _BINARY[reduce]:
            return [t for arg in args for t in _choose(space, arg, env, reduce)]
    neutral = REDUCTIONS[reduce]
    return [_choice(where, value) for where, value in _cases(space, scalar, env) if _constant(value) != neutral]


_BINARY = {"max": "maximum", "min": "minimum", "prod": "*"}


def enter(space: Space, scope: Scope, at: tuple[Form, ...]) -> tuple[dict[Iterator, Form], tuple[Form, ...] | None]:
    """The iterators' forms when *scope* is read at *at*, and the conditions for it to be computed there."""
    inside = space.within(at, scope.box)
    env = dict(zip(scope.traversals, at if inside is None else space.enter(at, scope.box), strict=True))
    for bound in scope.domain:
        if not set(bound.index.iterators) <= set(scope.traversals):
            raise Beyond(f"the domain bound {bound!r} depends on more than traversals")
        rows = space.within((space.form(bound.index, env),), ((bound.lo, bound.hi),))
        inside = None if inside is None or rows is None else (*inside, *rows)
    return env, inside


def point_of(space: Space, scope: Scope, env: dict[Iterator, Form]) -> tuple[dict[Iterator, Form], tuple[str, ...]]:
    """*env* with the summations' forms added, and their names."""
    names = tuple(space.fresh("y", y.lo, y.hi - 1) for y in scope.summations)
    return {**env, **{y: {name: 1, "": 0} for y, name in zip(scope.summations, names, strict=True)}}, names


def _expand(space: Space, scalar: Scalar, env: Env) -> list[Term]:
    match scalar:
        case Const(value):
            return [Term(_number(value))] if value else []
        case Access(Tensor() as source, index):
            return _from_cases(_read(space, source, tuple(space.form(i, env) for i in index)))
        case Access(Scope() as source, index):
            return terms_at(space, source, tuple(space.form(i, env) for i in index))
        case Apply("+", args):
            return [t for arg in args for t in _expand(space, arg, env)]
        case Apply("-", (a, b)):
            return [*_expand(space, a, env), *_scaled(_expand(space, b, env), Fraction(-1))]
        case Apply("neg", (a,)):
            return _scaled(_expand(space, a, env), Fraction(-1))
        case Apply("*", args):
            return _product([_expand(space, arg, env) for arg in args])
        case Apply("/", (a, Const(value))) if value:
            return _scaled(_expand(space, a, env), 1 / Fraction(value))
    return _from_cases(_cases(space, scalar, env))


def _scaled(terms: list[Term], by: Number) -> list[Term]:
    return [replace(t, coefficient=_times(t.coefficient, by)) for t in terms]


def _product(parts: list[list[Term]]) -> list[Term]:
    if prod(map(len, parts)) > _MOST:
        raise Beyond(f"the product has more than {_MOST} terms")
    return [
        Term(
            _times(*(t.coefficient for t in choice)),
            tuple(f for t in choice for f in t.factors),
            tuple(y for t in choice for y in t.summed),
            tuple(c for t in choice for c in t.where),
        )
        for choice in product(*parts)
    ]


def _read(space: Space, source: Tensor, at: tuple[Form, ...]) -> list[Case]:
    inside = space.within(at, source.box)
    out = _constants(complement(inside), source.value)
    if inside is not None:
        out.append((inside, ((Fraction(1), ((source.name, at),)),)))
    return out


def _constants(pieces: list[tuple[Form, ...]], value: float) -> list[Case]:
    return [(rows, ((_number(value), ()),) if value else ()) for rows in pieces]


def complement(inside: tuple[Form, ...] | None) -> list[tuple[Form, ...]]:
    """Disjoint conjunctions that together hold exactly where *inside* does not."""
    if inside is None:
        return [()]
    return [(*inside[:n], negated(row)) for n, row in enumerate(inside)]


def negated(row: Form) -> Form:
    """The condition that holds exactly where *row* does not."""
    return {**{v: -k for v, k in row.items()}, "": -row[""] - 1}


def _cases(space: Space, scalar: Scalar, env: Env) -> list[Case]:
    """*scalar* at one point, by cases: conditions that exclude one another, and a polynomial for each."""
    match scalar:
        case Const(value):
            return [((), ((_number(value), ()),) if value else ())]
        case Access(Tensor() as source, index):
            return _read(space, source, tuple(space.form(i, env) for i in index))
        case Access(Scope() as source, index):
            return _scope_cases(space, source, tuple(space.form(i, env) for i in index))
        case Apply("where", (Compare() as condition, a, b)):
            yes, no = decide(space, condition, env)
            chosen = ((yes, _cases(space, a, env)), (no, _cases(space, b, env)))
            return [((*rows, *where), value) for sides, cases in chosen for rows in sides for where, value in cases]
        case Apply(op, args):
            parts = [_cases(space, arg, env) for arg in args]
            if prod(map(len, parts)) > _MOST:
                raise Beyond(f"{op} has more than {_MOST} cases")
            return [
                (tuple(row for where, _ in choice for row in where), _apply(op, [value for _, value in choice]))
                for choice in product(*parts)
            ]
    raise Beyond(f"{scalar!r} is no number")


def _scope_cases(space: Space, scope: Scope, at: tuple[Form, ...]) -> list[Case]:
    if reduces(scope):
        return _opaque_case(space, scope, at)
    env, inside = enter(space, scope, at)
    out = _constants(complement(inside), scope.value)
    if inside is not None:
        env.update({y: {"": y.lo} for y in scope.summations})
        out += (((*inside, *where), value) for where, value in _cases(space, scope.body, env))
    return out


def _opaque_case(space: Space, scope: Scope, at: tuple[Form, ...]) -> list[Case]:
    return [((), ((Fraction(1), (space.opaque(scope, at),)),))]


def decide(space: Space, condition: Compare, env: Env) -> tuple[list[tuple[Form, ...]], list[tuple[Form, ...]]]:
    """The pieces where *condition* holds, and those where it does not."""
    left, right = space.form(condition.left, env), space.form(condition.right, env)
    less = space.within((_difference(right, left),), ((1, _FAR),))
    more = space.within((_difference(left, right),), ((1, _FAR),))
    below: list[tuple[Form, ...]] = [] if less is None else [less]
    above: list[tuple[Form, ...]] = [] if more is None else [more]
    equal = [(*a, *b) for a in complement(less) for b in complement(more)]
    holds = {"<": below, "<=": below + equal, ">": above, ">=": above + equal, "==": equal, "!=": below + above}
    fails = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
    return holds[condition.op], holds[fails[condition.op]]


_FAR = 1 << 62


def _apply(op: str, args: list[tuple[Monomial, ...]]) -> tuple[Monomial, ...]:
    match op, args:
        case "+", _:
            return _collect(m for arg in args for m in arg)
        case "-", [a, b]:
            return _collect((*a, *((_times(k, Fraction(-1)), f) for k, f in b)))
        case "neg", [a]:
            return tuple((_times(k, Fraction(-1)), f) for k, f in a)
        case "*", _:
            chosen = product(*args)
            return _collect((_times(*(k for k, _ in c)), tuple(f for _, fs in c for f in fs)) for c in chosen)
        case "/", [a, ((k, ()),)] if not isinf(k):
            return tuple((_times(c, 1 / Fraction(k)), f) for c, f in a)
    constants = [_constant(arg) for arg in args]
    if op in _FOLDED and None not in constants:
        value = _FOLDED[op](*(c for c in constants if c is not None))
        return ((value, ()),) if value else ()
    if op in ("maximum", "minimum"):
        neutral = -inf if op == "maximum" else inf
        for c, other in zip(constants, reversed(args), strict=True):
            if c == neutral:
                return other
    names, index = zip(*(_skeleton(arg) for arg in args), strict=True)
    return ((Fraction(1), ((f"{op}({', '.join(names)})", tuple(f for forms in index for f in forms)),)),)


_FOLDED: dict[str, Callable[..., Number]] = {
    "relu": lambda a: max(a, Fraction(0)),
    "abs": abs,
    "maximum": max,
    "minimum": min,
}


def _constant(value: tuple[Monomial, ...]) -> Number | None:
    match value:
        case ():
            return Fraction(0)
        case ((k, ()),):
            return k
    return None


def _collect(monomials: Iterable[Monomial]) -> tuple[Monomial, ...]:
    """Like monomials added up, in an order that depends on names first."""
    total: dict[tuple[object, ...], Monomial] = {}
    for k, factors in monomials:
        ordered = tuple(sorted(factors, key=_factor_key))
        key = tuple(map(_factor_key, ordered))
        old = total[key][0] if key in total else Fraction(0)
        total[key] = (_plus(old, k), ordered)
    kept = [(k, f) for k, f in total.values() if k]
    return tuple(sorted(kept, key=lambda m: ([n for n, _ in m[1]], m[0], [_factor_key(f) for f in m[1]])))


def _factor_key(factor: Factor) -> tuple[str, tuple[tuple[tuple[str, int], ...], ...]]:
    return factor[0], tuple(map(_key, factor[1]))


def _key(form: Form) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(form.items()))


def _skeleton(value: tuple[Monomial, ...]) -> tuple[str, tuple[Form, ...]]:
    """A polynomial as the name of a function of tensor elements, and where these elements lie."""
    names = " + ".join("*".join((str(rounded(k)), *(name for name, _ in factors))) for k, factors in value)
    return names or "0", tuple(form for _, factors in value for _, at in factors for form in at)


def _choice(where: tuple[Form, ...], value: tuple[Monomial, ...]) -> Term:
    return Term(Fraction(1), (_skeleton(value),), where=where)


def _from_cases(cases: list[Case]) -> list[Term]:
    return [Term(k, factors, where=where) for where, value in cases for k, factors in value]


def _capped(terms: list[Term]) -> list[Term]:
    if len(terms) > _MOST:
        raise Beyond(f"the scope has more than {_MOST} kinds of terms")
    return terms


def _number(value: float) -> Number:
    if isnan(value):
        raise Beyond("a constant is not a number")
    return value if isinf(value) else Fraction(value)


def rounded(k: Number) -> Number:
    """*k*, or the simple fraction within 1e-14 of it: constants that were folded in floating point are one value."""
    if isinf(k) or Fraction(k).denominator <= _SIMPLE:
        return k
    exact = Fraction(k)
    near = exact.limit_denominator(_SIMPLE)
    return near if abs(near - exact) <= abs(exact) / 10**14 else Fraction(f"{float(k):.11e}")


def _plus(a: Number, b: Number) -> Number:
    if isinf(a) or isinf(b):
        raise Beyond("an infinite constant is added")
    return a + b


def _times(*numbers: Number) -> Number:
    if len(numbers) > 1 and any(map(isinf, numbers)):
        raise Beyond("an infinite constant is multiplied")
    return prod(numbers, start=Fraction(1)) if len(numbers) > 1 else numbers[0]


def _difference(a: Form, b: Form) -> Form:
    out = dict(a)
    _accumulate(out, b, -1)
    return {v: k for v, k in out.items() if k or not v}


def _accumulate(out: Form, form: Form, k: int) -> None:
    for v, c in form.items():
        out[v] = out.get(v, 0) + c * k
