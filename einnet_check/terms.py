r"""Terms of a scope as families of values: a polynomial at every summation point that fulfils the conditions.

A non-polynomial function is an uninterpreted factor at the indices of its reads; a reduced scope inside one is a factor
shared with the scopes proved equal to it.  A reduction and a scalar are both lists of families: those of a reduction
are reduced together, those of a scalar are disjoint cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from itertools import chain, compress, islice, pairwise, permutations, product
from math import gcd, inf, isqrt, prod
from typing import Any, NamedTuple, TypeAlias

from einnet_check.sizes import Beyond, Size, Symbol, floor, form_of, natural, quotient_range
from einnet_check.text import (
    CASTS,
    COMPARISONS,
    FINITE,
    INTEGERS,
    SIGNIFICANDS,
    Box,
    Expr,
    Number,
    Read,
    Scope,
    Table,
    Tensor,
    infinite,
    mapped,
    reads,
    walk,
)

Form: TypeAlias = "dict[str, int]"
"""c + Σ k·v over integers and quotients *v*; c stands at ``""``.  As a condition it means ``form >= 0``."""
Rows: TypeAlias = "tuple[Form, ...]"
Factors: TypeAlias = "tuple[tuple[str, Rows], ...]"
Polynomial: TypeAlias = "tuple[tuple[Number, Factors], ...]"

Axioms: TypeAlias = "frozenset[str]"
EXPONENTIAL = "with the axiom exp(a + b) = exp(a) exp(b), a and b finite"
ROUNDED = "up to rounding of constants to 12 digits, without a bound on the error"
OPERANDS = "with operands of products rounded to bfloat16"
FACTORED = "sums inside functions without the factors that all their terms have"
NONE: Axioms = frozenset()
"""The axioms that a proof may need, and then names; that of factors is a theorem."""

MOST, WORK = 3000, 2_000_000
POWER = 8
"""The largest power that is written as a product."""
BENDS = 17
"""The most kinks of a piecewise linear function of one argument, and one more."""
CONDITIONS, SELECTED = 3, 12
"""The most conditions and monomials of a polynomial in which conditions are replaced."""
REPLACED = 120
"""The most letters of the functions, in such a polynomial, in which a factor is replaced."""
LETTERS = str.maketrans("-*+", "ntp")
"""Letters for the signs of a size in the name of an integer."""
NEUTRAL: dict[str, Number] = {"sum": Fraction(0), "prod": Fraction(1), "max": -inf, "min": inf}
BINARY = {"sum": "+", "max": "maximum", "min": "minimum", "prod": "*"}
OVER = {"sum": "*", "max": "+", "min": "+"}
"""The operation that distributes over a reduction: max f + max g is max (f + g)."""


FLIPPED = {"max": "min", "min": "max"}
INCREASING = frozenset(["relu", "tanh", "sigmoid", "exp", "erf", "round"])
"""Increasing on all real numbers: max f(x) is f(max x)."""
AT_ZERO = {"exp": Fraction(1), "sigmoid": Fraction(1, 2)} | dict.fromkeys(["tanh", "erf", "sqrt", "abs"], Fraction(0))
DEGREE = dict.fromkeys(["relu", "abs", "maximum", "minimum"], 2) | {"sqrt": 1, "rsqrt": -1}
"""f(k·x, k·y) is k^(degree/2) · f(x, y) for k > 0."""
CONDITION = "less(0, "
"""The first letters of a condition 0 < g, a factor that is 1 or 0."""
TOTAL = frozenset(["exp", "e^", "relu", "abs", "erf", "sin", "cos", "less", "maximum", "minimum", "round"])
"""Functions that have a value for all numbers."""
POSITIVE = ("relu(", "abs(", "exp(", "e^(")
"""The first letters of functions that are nowhere negative."""


class Family(NamedTuple):
    """*value* for every value of *summed* where all of *where* is at least 0."""

    where: Rows
    value: Polynomial
    summed: tuple[str, ...] = ()


def plus(a: Form, b: Form, k: int = 1) -> Form:
    """a + k·b."""
    out = {v: a.get(v, 0) + k * b.get(v, 0) for v in {**a, **b}}
    return {v: c for v, c in out.items() if c or not v}


def name(form: Form) -> str:
    """*form* as isl reads it; one text for one form."""
    return " + ".join(f"{k}*{v}" if v else str(k) for v, k in sorted(form.items()))


def simple(k: Fraction) -> Fraction:
    """*k*, or the fraction within 1e-14 of it, or its first twelve digits: one for constants that rounding made two."""
    near = k.limit_denominator(1 << 20)
    digits = Context(prec=12, Emax=MAX_EMAX, Emin=MIN_EMIN)
    return near if abs(near - k) <= abs(k) / 10**14 else Fraction(digits.divide(*map(Decimal, k.as_integer_ratio())))


def constant(k: Number) -> Polynomial:
    return ((k, ()),) if k else ()


def element(of: str, at: Rows) -> Polynomial:
    return ((Fraction(1), ((of, at),)),)


SPREAD = "what may be infinite is multiplied by a sum or by 0, added to another, or less itself"
"""Where it is infinite that may be no number, and elsewhere it is one: no symbol stands for both."""


def unbounded(k: Number, factors: Factors) -> bool:
    """Whether a monomial may be infinite; inputs, and what functions give, are taken to be finite."""
    return isinstance(k, float) or any(of.endswith("∞") for of, _ in factors)


def reduces(scope: Scope) -> bool:
    """Whether *scope* combines several values."""
    return prod(hi - lo for _, lo, hi in scope.sums) != 1


def complement(rows: Rows | None) -> list[Rows]:
    """Disjoint conjunctions that hold exactly where *rows* (None: never) do not all hold."""
    return [()] if rows is None else [(*rows[:n], plus({"": -1}, row, -1)) for n, row in enumerate(rows)]


def within(at: Iterable[Form], box: Box) -> list[Form]:
    """The conditions for *at* to lie in *box*."""
    ends = ((i, form_of(lo), form_of(hi - 1)) for i, (lo, hi) in zip(at, box, strict=True))
    return [f for i, first, last in ends for f in (plus(i, first, -1), plus(last, i, -1))]


class Space:
    """The integers of one comparison, with their ranges, and the scopes that stand for functions in it."""

    def __init__(self, box: Box, same: Callable[[Scope, Scope], bool], axioms: Axioms = NONE) -> None:
        self.same, self.opaque, self.count, self.axioms, self.work = same, list[Scope](), 0, axioms, 0
        self.range: dict[str, tuple[Any, Any]] = {}
        self.arguments: dict[str, list[Polynomial]] = {}
        """What functions, by name, were applied to, at some places: at others only the indices differ."""
        self.integers: dict[str, tuple[int, int]] = {}
        """The ranges of elements that are integers."""
        self.inside: dict[str, frozenset[str]] = {"": frozenset()}
        self.x = tuple(self.fresh("x", lo, hi) for lo, hi in box)
        self.point: Rows = tuple({x: 1, "": 0} for x in self.x)

    def spend(self, work: int) -> None:
        """Count *work*; raises Beyond where it is too much: what is compared may grow exponentially with its text."""
        self.work += work
        if self.work > WORK:
            raise Beyond(f"it takes more than {WORK} steps")

    def number(self, k: Number) -> Fraction:
        """A coefficient; raises Beyond where it is infinite."""
        if isinstance(k, float):
            raise Beyond("an infinite constant is added or multiplied")
        return simple(k) if ROUNDED in self.axioms else k

    def fresh(self, stem: str, lo: Any, hi: Any) -> str:
        """A new integer in [lo, hi)."""
        made, self.count = f"{stem}{self.count}_{lo}_{hi}".translate(LETTERS), self.count + 1
        self.range[made], self.inside[made] = (lo, hi - 1), frozenset([made])
        return made

    def used(self, forms: Iterable[Form]) -> frozenset[str]:
        """The integers of *forms*, also those inside quotients."""
        return frozenset(u for form in forms for v in form for u in ([v] if isinstance(v, Symbol) else self.inside[v]))

    def bounds(self, form: Form) -> tuple[Any, Any]:
        """A closed interval that holds every value of *form*; its ends may depend on the sizes."""
        low: Any = form[""]
        high: Any = low
        for v, k in form.items():
            if v:
                ends = (Size(((v.of, 1),)),) * 2 if isinstance(v, Symbol) else self.range[v]
                low, high = low + k * ends[k < 0], high + k * ends[k > 0]
        return low, high

    def form(self, index: Expr, env: Mapping[str, Form]) -> Form:
        """*index* at the point *env*."""
        match index:
            case str():
                return env[index]
            case Size():
                return form_of(index)
            case Fraction(denominator=1):
                return {"": int(index)}
            case ("+", a, b):
                return plus(self.form(a, env), self.form(b, env))
            case ("*", Fraction(denominator=1) as k, a) | ("*", a, Fraction(denominator=1) as k):
                return plus({"": 0}, self.form(a, env), int(k))
            case ("/" | "//" | "%" as op, a, Fraction(denominator=1) as d) if d > 0:
                e = self.form(a, env)
                return plus(e, self.quotient(e, int(d)), -int(d)) if op == "%" else self.quotient(e, int(d))
        raise Beyond(f"{index!r} is no index")

    def quotient(self, e: Form, d: int) -> Form:
        """⌊e / d⌋, with the digits that leave it by themselves taken out."""
        lo, hi = self.bounds(e)
        if (known := floor(lo, d)) is not None and known == floor(hi, d):
            return form_of(known)
        for g in sorted({gcd(d, k) for v, k in e.items() if v} - {1}, reverse=True):
            low = {v: k for v, k in e.items() if k % g or not v}
            least, most = self.bounds(low)
            if (known := floor(least, g)) is not None and known == floor(most, g):  # e = g·high + low, 0 <= low < g
                high = plus({v: k // g for v, k in e.items() if v and k % g == 0} | {"": 0}, form_of(known))
                return high if g == d else self.quotient(high, d // g)
        made = f"floor(({name(e)})/{d})"
        self.range[made] = quotient_range(lo, hi, d)
        self.inside[made] = self.used([e])
        return {made: 1, "": 0}

    def holds(self, forms: Iterable[Form]) -> Rows | None:
        """Return the *forms* that may be negative; None if one of them always is."""
        ends = [(form, *self.bounds(form)) for form in forms]
        if any(natural(-1 - most) for *_, most in ends):
            return None
        return tuple(form for form, least, _ in ends if not natural(least))

    def enter(self, scope: Scope, at: Rows) -> tuple[dict[str, Form], Rows | None]:
        """The traversals of *scope* read at *at*, and the conditions for it to be computed there."""
        env = {x: form for (x, _, _), form in zip(scope.own, at, strict=True)}
        return env, self.holds((*within(at, scope.box), *(self.form(index, env) for index in scope.domain)))

    def points(self, scope: Scope, env: dict[str, Form]) -> Iterable[tuple[dict[str, Form], tuple[str, ...]]]:
        """*env* with the summations; one of a single value or that a table is indexed by is written out.

        Names recur from value to value (a name tells its range), so that what the values give can be added up.
        """
        tables = tabulated(scope)
        listed = [(y, lo, hi) for y, lo, hi in scope.sums if hi - lo == 1 or y in tables]
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

    def families(self, e: Expr, env: Mapping[str, Form], reduce: str = "") -> list[Family]:
        """The scalar *e* at one point under *reduce*: sums and products are multiplied out; else by cases."""
        self.spend(1)
        match e:
            case Fraction() | float():
                return self.settled([Family((), constant(e))], reduce)
            case Read(source, index):
                return self.read(source, tuple(self.form(i, env) for i in index), reduce)
            case ("where", index, yes, no):
                gap = self.form(index, env)
                ways = ((self.holds([gap]), yes), (self.holds([plus({"": -1}, gap, -1)]), no))
                taken = ((rows, f) for rows, arg in ways if rows is not None for f in self.families(arg, env, reduce))
                return [f._replace(where=(*rows, *f.where)) for rows, f in taken]
            case (op, a, b) if op == BINARY.get(reduce):
                one, other = (self.families(arg, env, reduce) for arg in (a, b))
                for arg, found, bound in ((a, one, b), (b, other, a)):
                    limit = constant(bound) if isinstance(bound, Fraction) and found and not infinite(arg) else None
                    if limit is not None and all(self.unchanged(op, [f.value, limit]) is not None for f in found):
                        return found
                return one + other
            case ("*", _, _) if reduce == "sum" and selects(e):
                return self.settled(self.families(e, env), reduce)
            case ("/", a, b) if reduce == "sum" and a != 1:
                return self.families(("*", a, ("/", Fraction(1), b)), env, reduce)
            case (str(), *_) if infinite(e) and (read := opened(e, reduce)):
                return self.entered(e, read, env, reduce)
            case (str() as op, *args):
                inner = reduce if op == OVER.get(reduce) else ""
                if (under := passed(e, reduce)) and not infinite(e):
                    each = [self.families(a, env, "" if isinstance(a, Fraction) else under) for a in args]
                    return self.settled((self.joined(op, one, reduce) for one in product(*each)), reduce)
                parts = [self.families(arg, env, inner) for arg in args]
                wild = [any(unbounded(*m) for f in part for m in f.value) for part in parts]
                if inner and any(wild):
                    parts = [part or [Family((), constant(NEUTRAL[inner]))] for part in parts]
                    sums = (adds(e) and w for e, w in zip(args, wild[::-1], strict=True))
                    if all(wild) if op == "+" else any(sums):
                        raise Beyond(SPREAD)
                sizes = [sum(len(f.value) for f in part) if inner else len(part) for part in parts]
                if prod(sizes) > (64 if inner else 1) * MOST:
                    raise Beyond(f"{op} has {' times '.join(map(str, sizes))} {'terms' if inner else 'cases'}")
                return self.settled((self.joined(op, each, inner) for each in product(*parts)), reduce)
        raise Beyond(f"{e!r} is no number")

    def entered(self, e: Expr, read: Read, env: Mapping[str, Form], reduce: str) -> list[Family]:
        """The function *e* of the maximum or minimum that it reads, at each point of that; it may be infinite."""
        source = read.source
        own, rows = self.enter(source, tuple(self.form(i, env) for i in read.at))
        if rows != ():
            raise Beyond("a maximum or minimum inside a function is read outside its box")
        body = mapped(e, lambda _: source.body)
        places = self.points(source, own)
        every = (f._replace(summed=(*ys, *f.summed)) for at, ys in places for f in self.families(body, at))
        return self.settled(every, reduce)

    def joined(self, op: str, parts: tuple[Family, ...], reduce: str) -> Family:
        """*op* of one family of each operand."""
        if reduce in ("max", "min") and any(isinstance(k, float) for p in parts for k, _ in p.value):
            raise Beyond("an infinite constant is added or multiplied")  # its sum with a neutral value is no number
        value = self.applied("e^" if op == "exp" and EXPONENTIAL in self.axioms else op, [p.value for p in parts])
        return Family(tuple(r for p in parts for r in p.where), value, tuple(y for p in parts for y in p.summed))

    def settled(self, families: Iterable[Family], reduce: str) -> list[Family]:
        """*families* without those that add nothing; those that are added up over the same points are one."""
        if not reduce:
            return list(families)
        alike: dict[Any, list[Family]] = {}
        for f in families:
            of: Any = len(alike) if reduce != "sum" else (frozenset(f.summed), frozenset(map(name, f.where)))
            alike.setdefault(of, []).append(f)
        total = (
            fs[0] if len(fs) == 1 else fs[-1]._replace(value=self.applied("+", [f.value for f in fs]))
            for fs in alike.values()
        )
        found = [f for f in total if f.value != constant(NEUTRAL[reduce])]
        if sum(len(f.value) for f in found) > MOST:
            raise Beyond(f"a scope has more than {MOST} kinds of terms")
        return found

    def read(self, source: Any, at: Rows, reduce: str = "") -> list[Family]:
        """``source[at]``: what lies inside the box, and the value of the padding outside."""
        if isinstance(source, Table):
            self.spend(len(source.entries))
            entries = dict(zip(product(*(range(*ends) for ends in source.box)), source.entries, strict=True))
            spans = zip(map(self.bounds, at), source.box, strict=True)
            places = product(*(range(max(lo, least), min(hi, most + 1)) for (least, most), (lo, hi) in spans))
            pieces = ((self.holds(within(at, tuple((n, n + 1) for n in i))), entries[i]) for i in places)
            return self.settled((Family(rows, constant(k)) for rows, k in pieces if rows is not None), reduce)
        inner: list[Family] = []
        if isinstance(source, Tensor):
            of = json.dumps(source.name) + "∞" * source.infinite
            if source.dtype in INTEGERS:
                self.integers[of] = INTEGERS[source.dtype]
            rows, inner = self.holds(within(at, source.box)), [Family((), element(of, at))]
        elif reduces(source) and source.reduce != reduce:
            sums = summands(source) if FACTORED in self.axioms and not infinite(source.body) else [source]
            if len(sums) > 1:
                each = product(*(self.read(part, at) for part in sums))
                return [self.joined("+", (Family((), ()), *one), "") for one in each]
            common, rest = parted(source, EXPONENTIAL in self.axioms, FACTORED in self.axioms)
            symbol = Family((), element(*self.symbol(rest, at)))
            known = {x: form for (x, _, _), form in zip(source.own, at, strict=True)}
            return [self.joined("*", (f, symbol), reduce) for f in self.families(multiplied(common), known)]
        else:
            env, rows = self.enter(source, at)
            for known, summed in self.points(source, env) if rows is not None else ():
                found = self.families(source.body, known, reduce)
                inner += [f._replace(summed=(*summed, *f.summed)) for f in found]
        outside = [Family(w, constant(source.value)) for w in complement(rows)]
        every = (f._replace(where=(*(rows or ()), *f.where)) for f in (inner if rows is not None else ()))
        return self.settled((*outside, *every), reduce)

    def symbol(self, scope: Scope, at: Rows) -> tuple[str, Rows]:
        """``scope[at]`` as a factor; scopes proved equal, up to the order of traversals, share a name.

        The name tells whether values may be infinite.  Of orders that give one value the least *at* is taken.  Where
        *scope* is one value for all of a coordinate, that is left out.
        """
        scope, at = depending(scope, at)
        ends = [self.bounds(form) for form in at]
        at = tuple(
            {"": low} if isinstance(low, int) and low == high else form
            for form, (low, high) in zip(at, ends, strict=True)
        )
        if any(len(form) == 1 for form in at):  # at known places it is a function of the other coordinates only
            named = [Fraction(form[""]) if len(form) == 1 else f"x{d}" for d, form in enumerate(at)]
            free = [d for d, x in enumerate(named) if isinstance(x, str)]
            reach, at = tuple(scope.reach[d] for d in free), tuple(at[d] for d in free)
            own = tuple((f"x{d}", lo, hi) for d, (lo, hi) in zip(free, reach, strict=True))
            scope = Scope(own, (), Read(scope, tuple(named)), "sum", (), reach, Fraction(0))
        for n, known in enumerate((*self.opaque, scope)):
            orders: Iterable[tuple[int, ...]] = permutations(range(len(at)))
            if len(at) <= 4:
                orders = sorted(orders, key=lambda order: [name(at[d]) for d in order])
            for order in islice(orders, 24 * (len(at) == len(known.own))):
                own, reach = tuple(scope.own[d] for d in order), tuple(scope.reach[d] for d in order)
                turned = replace(scope, own=own, reach=reach)
                if (turned.reach, turned.box) == (known.reach, known.box) and self.same(known, turned):
                    self.opaque += [scope] * (n == len(self.opaque))
                    return f"{{{n}}}" + "∞" * infinite(Read(known, ())), tuple(at[d] for d in order)
        raise Beyond("a scope is not equal to itself")

    def applied(self, op: str, args: list[Polynomial]) -> Polynomial:
        """*op* of polynomials: sums and products multiplied out, anything else a factor of its own."""
        if (kept := self.unchanged(op, args)) is not None:
            return kept
        if FACTORED in self.axioms and op not in ("+", "*", "e^"):
            args = [self.gathered(arg) for arg in args]
        match op, args:
            case (("*" | "/"), [((float() as a, ()),), ((Fraction() as k, ()),)]):
                return constant(a if k > 0 else -a)
            case "*", [((Fraction() as k, ()),), ((float() as a, ()),)]:
                return constant(a if k > 0 else -a)
            case "round", [((float(), ()),) as a]:
                return a
            case (("maximum" | "minimum"), [() | ((_, ()),) as a, () | ((_, ()),) as b]):
                return constant((max if op == "maximum" else min)(p[0][0] if p else Fraction(0) for p in (a, b)))
            case "+", _:
                return self.conditioned(collected(m for a in args for m in a))
            case "*", [a, b]:
                scales = any(not fs for p in (a, b) if len(p) == 1 for _, fs in p)
                self.spend((1 if scales else 300) * len(a) * len(b))  # each may become a set, of some 200 kB
                if any(len(p) != 1 and any(unbounded(*m) for m in q) for p, q in ((a, b), (b, a))):
                    raise Beyond(SPREAD)
                return self.conditioned(collected((k * m, f + g) for (k, f), (m, g) in product(a, b)))
            case "/", [a, ((Fraction() as k, ()),)]:
                return tuple((c / k, f) for c, f in a)
            case "/", [a, b] if a != constant(Fraction(1)):
                return self.applied("*", [a, self.applied("/", [constant(Fraction(1)), b])])
            case "exp" | "e^", [((k, ()),)] if k == -inf:
                return ()
            case "exp", [a] if (chosen := self.unmasked(a)) is not None:
                return chosen
            case "e^", [a]:  # the axiom: of a sum it is the product of those of its terms
                parts = [self.skeleton((m,)) for m in a]
                self.arguments |= {f"e^({of})": [(m,)] for (of, _), m in zip(parts, a, strict=True)}
                return collected([(Fraction(1), tuple((f"e^({of})", at) for of, at in parts))])
            case (("maximum" | "minimum"), [a, b]) if (least := constant(-inf if op == "maximum" else inf)) in (a, b):
                return b if a == least else a
            case (("maximum" | "minimum"), [a, b]) if () in (a, b):
                sign = 1 if op == "maximum" else -1
                positive = self.applied("relu", [tuple((sign * k, f) for k, f in a or b)])
                return tuple((sign * k, f) for k, f in positive)
            case "relu", [() | ((_, ()),) as a]:
                return a if a and a[0][0] > 0 else ()
            case _, [()] if op in AT_ZERO:
                return constant(AT_ZERO[op])
            case "/", [_, ((1, ((of, at),)),)] if of.startswith("e^(") and "∞" not in of:
                return element(opposite(of), at)
            case "/", [one, b] if not any(unbounded(*m) for m in b) and (found := common(b))[0] not in ([], [b]):
                return self.product(self.applied(op, [one, p]) for p in (*found[0], found[1]))
            case "abs", [((k, factors),)] if len(factors) > (k == 1):
                sizes = (self.applied(op, [((Fraction(1), (f,)),)]) for f in factors)
                return self.product([constant(-k if k < 0 else k), *sizes])
            case "less_equal", [a, b] if not any(unbounded(*m) for m in (*a, *b)):
                return collected((*constant(Fraction(1)), *negative(self.applied("less", [b, a]))))
            case "less", [a, b] if not any(unbounded(*m) for m in (*a, *b)):
                gap = collected((*b, *negative(a)))
                if not any(fs for _, fs in gap):
                    return constant(Fraction(1)) if gap and gap[0][0] > 0 else ()
                size = max(Fraction(k) if k > 0 else -Fraction(k) for k, _ in gap)
                if a or size != 1:
                    return self.applied(op, [(), tuple((k / size, fs) for k, fs in gap)])
            case "bool", [a] if truth(a):
                return a
            case "select", [p, a, b] if len(q := collected((*constant(Fraction(1)), *negative(p)))) == 1 < len(p) and (
                [self.integers.get(of) for of, _ in q[0][1]] == [(0, 1)] and q[0][0] == 1
            ):
                return self.applied(op, [q, b, a])
            case "select", [p, a, b] if (masked := self.masked(p, a, b)) is not None:
                return masked
            case _, [a] if (bent := self.negative_part(op, a)) is not None:
                return bent
            case (("relu" | "abs" | "maximum" | "minimum" | "select"), _) if (
                sums := self.positive_parts(op, args)
            ) is not None:
                return sums
            case "log", [((1, ()), (1, factors))] if (turned := self.softplus(factors)) is not None:
                shift, raised = turned
                return collected((*shift, *self.applied(op, [collected((*constant(Fraction(1)), *raised))])))
            case "log", [a] if not any(unbounded(*m) for m in a) and (powers := self.powers(a)):
                rest = a
                for taken, _ in powers:
                    rest = collected((k, without(fs, taken)) for k, fs in rest)
                return collected(chain(*(c for _, c in powers), self.applied(op, [rest])))
            case "rsqrt", [a]:
                return self.applied("/", [constant(Fraction(1)), self.applied("sqrt", [a])])
            case "sigmoid", [a]:
                e = self.applied("e^" if EXPONENTIAL in self.axioms else "exp", [tuple((-k, f) for k, f in a)])
                return self.applied("/", [constant(Fraction(1)), self.applied("+", [constant(Fraction(1)), e])])
            case "tanh", [a]:  # 2 sigmoid(2 a) - 1
                twice = self.applied("sigmoid", [tuple((2 * k, f) for k, f in a)])
                return self.applied("+", [tuple((2 * k, f) for k, f in twice), constant(Fraction(-1))])
            case "pow", [a, ((Fraction(denominator=1) as k, ()),)] if abs(k) <= POWER:
                made = self.product(a for _ in range(abs(int(k))))
                return made if k > 0 else self.applied("/", [constant(Fraction(1)), made])
            case "pow", [_, ()]:
                return constant(Fraction(1))
            case "pow", [a, ((k, ()),)] if abs(k) == Fraction(1, 2):
                return self.applied("sqrt" if k > 0 else "rsqrt", [a])
        power, args = scaled(op, args)
        parts = [self.skeleton(arg) for arg in args]
        of = f"{op}({', '.join(of for of, _ in parts)})"
        endless = not args[1] if op == "/" else "∞" in of and op not in FINITE
        self.arguments[of + "∞" * endless] = args
        if op in COMPARISONS:
            self.integers[of] = 0, 1
        return ((power, ((of + "∞" * endless, tuple(f for _, at in parts for f in at)),)),)

    def gathered(self, value: Polynomial) -> Polynomial:
        """*value*, an operand of a function, with a multiple of one sum for sums that have equal other factors."""
        if any(unbounded(*m) for m in value):
            return value
        alike: dict[Any, list[tuple[Number, Factors]]] = {}
        for k, fs in value:
            sums = [f for f in fs if f[0].startswith("{")]
            others = [(of, tuple(map(name, at))) for of, at in fs if (of, at) not in sums]
            alike.setdefault(tuple(others) if len(sums) == 1 else (k, len(alike)), []).append((k, fs))
        out = list[tuple[Number, Factors]]()
        for group in alike.values():
            first = group[0][0]
            parts = [(k / first, *(f for f in fs if f[0].startswith("{"))) for k, fs in group]
            whole = self.total(parts) if len(group) > 1 else None
            rest = tuple(f for f in group[0][1] if not f[0].startswith("{"))
            out += group if whole is None else [(first, (*rest, whole))]
        return collected(out)

    def total(self, parts: list[Any]) -> tuple[str, Rows] | None:
        """The sum of multiples of scopes, each at its place, as one scope at a place; None where sizes are unknown."""
        forms = [form for _, (_, at) in parts for form in at]
        used = sorted({v for form in forms for v in form if v})
        if any(isinstance(v, Symbol) or not all(isinstance(end, int) for end in self.range[v]) for v in used):
            return None
        to = {v: f"x{n}" for n, v in enumerate(used)}
        whole: Expr = Fraction(0)
        for k, (of, at) in parts:
            source, index = self.opaque[int(of.strip("{}"))], list[Expr]()
            for form, (lo, hi) in zip(at, source.reach, strict=True):
                least, most = self.bounds(form)
                if not lo <= least <= most < hi:
                    return None
                place: Expr = Fraction(form[""])
                for v, n in form.items():
                    place = ("+", place, ("*", Fraction(n), to[v])) if v else place
                index.append(place)
            whole = ("+", whole, ("*", k, Read(source, tuple(index))))
        own = tuple((to[v], self.range[v][0], self.range[v][1] + 1) for v in used)
        scope = Scope(own, (), whole, "sum", (), tuple((lo, hi) for _, lo, hi in own), Fraction(0))
        return self.symbol(scope, tuple({v: 1, "": 0} for v in used))

    def unchanged(self, op: str, args: list[Polynomial]) -> Polynomial | None:
        """The operand that a rounding, a clamp or a cast is, since it is an integer within the bounds; None if not."""
        ends: tuple[Number, Number] = INTEGERS.get(op, (-inf, inf))
        if op in SIGNIFICANDS:
            ends = -(1 << SIGNIFICANDS[op]), 1 << SIGNIFICANDS[op]
        low, high = ends
        match op, args:
            case "relu", [a]:
                low = 0
            case "maximum", ([a, () | ((_, ()),) as b] | [() | ((_, ()),) as b, a]):
                low = b[0][0] if b else 0
            case "minimum", ([a, () | ((_, ()),) as b] | [() | ((_, ()),) as b, a]):
                high = b[0][0] if b else 0
            case _, [a] if op == "round" or op in CASTS:
                pass
            case _:
                return None
        least = most = 0
        for k, of in a:
            span = (1, 1) if not of else self.integers.get(of[0][0]) if len(of) == 1 else None
            if span is None or isinstance(k, float) or k.denominator != 1:
                return None
            first, last = sorted(int(k) * end for end in span)
            least, most = least + first, most + last
        return a if low <= least and most <= high else None

    def positive_parts(self, op: str, args: list[Polynomial]) -> Polynomial | None:
        """*op* as a sum of positive parts, relu(-a) as relu(a) - a; None where it stays, or may be infinite."""
        if any(unbounded(*m) for p in args for m in p):
            return None
        match op, args:
            case "relu", [a]:
                if all(k > 0 and all(of.startswith(POSITIVE) for of, _ in factors) for k, factors in a):
                    return a
                if (bent := self.bent(a)) is not None:
                    return bent
                return collected((*a, *self.applied(op, [negative(a)]))) if leading(a) < 0 else None
            case "select", [condition, a, b] if truth(condition) and len(a) + len(b) <= SELECTED:
                gap = self.applied("*", [condition, collected((*a, *negative(b)))])
                return self.applied("+", [b, gap])
            case "abs", [a]:
                return self.positive_parts("maximum", [a, negative(a)])
            case "maximum", [a, b]:
                rest = collected((*b, *negative(a)))
                return collected((*a, *self.applied("relu", [rest]))) if leading(rest) else None
            case "minimum", [a, b]:
                found = self.positive_parts("maximum", [negative(a), negative(b)])
                return None if found is None else negative(found)
        return None

    def operands(self, op: str, factors: Factors) -> list[Polynomial] | None:
        """The operands of the only one of *factors*, which is *op* of them; None where it is not."""
        of, at = factors[0] if len(factors) == 1 else ("", ())
        if not of.startswith(f"{op}(") or of not in self.arguments:
            return None
        forms = iter(at)
        return [
            collected((k, tuple((n, tuple(next(forms) for _ in rows)) for n, rows in fs)) for k, fs in value)
            for value in self.arguments[of]
        ]

    def powers(self, value: Polynomial) -> list[tuple[Factors, Polynomial]]:
        """The factors e^c of all monomials, each with c: the logarithm of e^c·p is c + log p."""
        shared = [p[0][1] for p in common(value)[0]]
        found = ((fs, self.operands("exp", fs) or self.operands("e^", fs)) for fs in shared)
        return [(fs, c[0]) for fs, c in found if c]

    def softplus(self, factors: Factors) -> tuple[Polynomial, Polynomial] | None:
        """c and e^q for which log(1 + e^p) is c + log(1 + e^q), where *factors* are e^p; None for others.

        Of p = -|y| it is log(1 + e^y) - relu(y), of another p whose sign is negative p + log(1 + e^-p).
        """
        ops = [next((op for op in ("exp", "e^") if of.startswith(f"{op}(")), "") for of, _ in factors]
        found = [self.operands(op, (factor,)) for op, factor in zip(ops, factors, strict=True) if op]
        if len(found) < len(factors) or len({*ops}) > 1 or any("∞" in of for of, _ in factors):
            return None
        whole = collected(m for arguments in found for p in arguments or () for m in p)
        if None in found:
            return None
        for k, own in whole:
            inner = self.operands("relu", own) if k < 0 else None
            if inner is not None:
                half = -Fraction(k) / 2
                y = collected((half * c, fs) for c, fs in inner[0])
                if collected(m for m in whole if m != (k, own)) == y:
                    return ((-half, own),), self.applied(ops[0], [y])
        return (whole, self.applied(ops[0], [negative(whole)])) if leading(whole) < 0 else None

    def masked(self, condition: Polynomial, a: Polynomial, b: Polynomial) -> Polynomial | None:
        """*a* or *b*, of which one is an infinite constant, as the other plus a choice of 0 or infinity; else None."""
        for end, other in ((a, b), (b, a)):
            wild = any(unbounded(*m) for m in (*condition, *other))
            if other and not wild and end and not end[0][1] and isinstance(end[0][0], float):
                ends: list[Polynomial] = [() if p == other else p for p in (a, b)]
                return collected((*other, *self.applied("select", [condition, *ends])))
        return None

    def unmasked(self, value: Polynomial) -> Polynomial | None:
        """e^(r + m), where m is 0 or minus infinity by a condition, is e^r or 0 by it; None for others."""
        masks = [m for m in value if unbounded(*m)]
        if len(masks) != 1 or masks[0][0] <= 0:
            return None
        found = self.operands("select", masks[0][1])
        if found is None or sorted(map(len, found[1:])) != [0, 1] or any(unbounded(*m) for m in found[0]):
            return None
        if constant(-inf) not in found:
            return None
        power = self.applied("exp", [tuple(m for m in value if m not in masks)])
        return self.applied("select", [found[0], *(() if p else power for p in found[1:])])

    def conditioned(self, value: Polynomial) -> Polynomial:
        """*value* with positive parts in place of conditions 0 < g, which are 1 or 0.

        Where 0 < g, g·q is relu(g)·q, and f(g) with f(0) = 0 is f(relu(g)); elsewhere both are 0.
        """
        found = {of + str(at): (of, at) for _, fs in value for of, at in fs if of.startswith(CONDITION)}
        if len(found) > CONDITIONS or len(value) > SELECTED:
            return value
        for factor in found.values():
            rest = [(k, fs) for k, fs in value if factor not in fs]
            held = collected((k, tuple(f for f in fs if f != factor)) for k, fs in value if factor in fs)
            ends = self.operands("less", (factor,))
            if ends is None or any(unbounded(*m) for m in (*held, *ends[1])):
                continue
            if (changed := self.positive(held, ends[1])) is not None:
                return self.applied("+", [collected(rest), changed])
            value = collected([*rest, *((k, (*fs, factor)) for k, fs in held)])
        return value

    def positive(self, value: Polynomial, gap: Polynomial) -> Polynomial | None:
        """*value* where *gap* is positive, else 0, in terms of relu(gap); None where that is not found."""
        if not value:
            return ()
        part = self.applied("relu", [gap])
        if (ratio := quotient(value, gap)) is not None:
            return self.product([ratio, part])
        if sum(len(of) for _, fs in (*value, *gap) for of, _ in fs) > REPLACED:
            return None
        for k, fs in gap:
            rest = collected(m for m in gap if m != (k, fs))
            if len(fs) == 1 and not any(fs[0][0] in of for _, others in rest for of, _ in others):
                # gap = k·x + rest, so that x is (gap - rest) / k
                zero, above = (tuple((c / k, f) for c, f in collected((*end, *negative(rest)))) for end in ((), part))
                if self.replaced(value, fs[0], zero) == ():
                    return self.replaced(value, fs[0], above)
        return None

    def replaced(self, value: Polynomial, factor: tuple[str, Rows], by: Polynomial) -> Polynomial | None:
        """*value* with *by* in place of *factor*; None where a function of it may have no value there."""
        out: Polynomial = ()
        for k, fs in value:
            parts = [constant(k)]
            for of, at in fs:
                if (of, at) == factor:
                    parts.append(by)
                elif factor[0] in of and not of.startswith("{"):
                    op = of.partition("(")[0]
                    args = self.operands(op, ((of, at),))
                    inner = [self.replaced(arg, factor, by) for arg in args or ()]
                    new = [arg for arg in inner if arg is not None]
                    if not inner or len(new) < len(inner):
                        return None
                    if op not in TOTAL and new != args and not (op == "/" and above_zero(new[1])):
                        return None
                    parts.append(self.applied(op, new))
                else:
                    parts.append(element(of, at))
            out = self.applied("+", [out, self.product(parts)])
        return out

    def negative_part(self, op: str, value: Polynomial) -> Polynomial | None:
        """f(k·(g - relu(g)) + t) = f(k·g + t) + f(t) - f(k·relu(g) + t) for numbers t; None for other values."""
        if op not in TOTAL or op in ("relu", "abs") or any(unbounded(*m) for m in value):
            return None
        for k, fs in value:
            inner = self.operands("relu", fs)
            if inner is not None:
                steep = tuple((-k * c, of) for c, of in inner[0])
                rest = collected([*(m for m in value if m != (k, fs)), *negative(steep)])
                if not any(of for _, of in rest):
                    low, none, high = (self.applied(op, [collected((*end, *rest))]) for end in (steep, (), ((-k, fs),)))
                    return collected((*low, *none, *negative(high)))
        return None

    def bent(self, value: Polynomial) -> Polynomial | None:
        """relu of a piecewise linear function of one y, which has such parts: s·y + c + Σ k·relu(y - t)."""
        base, lines = Fraction(0), list[Polynomial]()
        parts, rest, y = list[tuple[Fraction, Polynomial]](), list[tuple[Number, Factors]](), constant(0)
        for k, factors in value:
            if (inner := self.operands("relu", factors)) is not None:
                parts.append((Fraction(k), inner[0]))
                lines.append(tuple(m for m in inner[0] if m[1]))
                y = y or tuple((c / lines[0][0][0], fs) for c, fs in lines[0])
            elif factors:
                rest.append((k, factors))
            else:
                base = Fraction(k)
        found = [quotient(line, y) for line in (tuple(rest), *lines)] if y else [None]
        if len(found) > BENDS or any(p is None or any(fs for _, fs in p) for p in found):
            return None
        steep, *steps = (Fraction(p[0][0]) if p else Fraction(0) for p in found if p is not None)
        starts = [sum((Fraction(k) for k, fs in line if not fs), Fraction(0)) for _, line in parts]
        if not all(steps):
            return None

        def at(x: Fraction) -> Fraction:
            bends = zip(parts, steps, starts, strict=True)
            return base + steep * x + sum(k * max(m * x + c, Fraction(0)) for (k, _), m, c in bends)

        ends = sorted({-c / m for m, c in zip(steps, starts, strict=True)})
        grid = [ends[0] - 1, *ends, ends[-1] + 1]
        for low, high in pairwise(grid):
            rise = (at(high) - at(low)) / (high - low)
            zero = low - at(low) / rise if rise else low
            if (zero >= low or low == grid[0]) and (zero <= high or high == grid[-1]):
                ends.append(zero)
        ends = sorted(set(ends))
        grid = [ends[0] - 1, *ends, ends[-1] + 1]
        tall = [max(at(x), Fraction(0)) for x in grid]
        slopes = [(q - p) / (h - x) for (x, h), (p, q) in zip(pairwise(grid), pairwise(tall), strict=True)]
        total = [*((slopes[0] * k, fs) for k, fs in y), *constant(tall[1] - slopes[0] * ends[0])]
        for end, (before, after) in zip(ends, pairwise(slopes), strict=True):
            if before != after:
                part = self.applied("relu", [collected((*y, *constant(-end)))])
                total += ((k * (after - before), fs) for k, fs in part)
        return collected(total)

    def product(self, parts: Iterable[Polynomial]) -> Polynomial:
        """The product of *parts*."""
        value = constant(Fraction(1))
        for part in parts:
            value = self.applied("*", [value, part])
        return value

    def skeleton(self, value: Polynomial) -> tuple[str, Rows]:
        """A polynomial as a function of elements, by its text, and where these elements lie."""
        numbers = (str(k if k in (inf, -inf) else self.number(k)).replace("inf", "∞") for k, _ in value)
        text = " + ".join("*".join((k, *(n for n, _ in fs))) for k, (_, fs) in zip(numbers, value, strict=True))
        return text or "0", tuple(form for _, fs in value for _, at in fs for form in at)


def truth(value: Polynomial) -> bool:
    """Whether *value* is a condition, a product of conditions, or 1 less a condition: 1 or 0."""
    match value:
        case ((k, factors),) if factors and k == 1:
            return all(of.startswith(CONDITION) for of, _ in factors)
        case ((one, ()), (k, (factor,))) if (one, k) == (1, -1):
            return factor[0].startswith(CONDITION)
    return False


def above_zero(value: Polynomial) -> bool:
    """Whether *value* is a sum of what is nowhere negative, and of a positive number or an exponential."""
    exponentials = ("exp(", "e^(")
    return all(k > 0 and all(of.startswith(POSITIVE) for of, _ in fs) for k, fs in value) and any(
        all(of.startswith(exponentials) and "∞" not in of for of, _ in fs) for _, fs in value
    )


def selects(e: Expr) -> bool:
    """Whether a condition on values is an operand of the sums and products that *e* is made of."""
    match e:
        case Read(Scope(sums=(), domain=()) as scope, _) if scope.reach == scope.box:
            return selects(scope.body)
        case ("less" | "less_equal" | "select" | "bool", *_):
            return True
        case (op, *args) if op in ("+", "*", "/") or op in CASTS:
            return any(map(selects, args))
    return False


def negative(value: Polynomial) -> Polynomial:
    return tuple((-k, factors) for k, factors in value)


def leading(value: Polynomial) -> int:
    """The sign of the coefficients of the last names; 0 if they have both, since names of places may differ."""
    last = max(([of for of, _ in factors] for _, factors in value), default=[])
    signs = {k > 0 for k, factors in value if [of for of, _ in factors] == last}
    return (1 if True in signs else -1) if len(signs) == 1 else 0


def quotient(value: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """The polynomial whose product with *divisor* is *value*; of a sum only a number is found; None without."""
    if not divisor:
        return None
    if len(divisor) > 1 and value:
        ratio = Fraction(value[0][0]) / Fraction(divisor[0][0])
        return constant(ratio) if value == collected((ratio * m, fs) for m, fs in divisor) else None
    out = list[tuple[Number, Factors]]()
    for k, factors in value:
        rest = list(factors)
        for factor in divisor[0][1]:
            if factor not in rest:
                return None
            rest.remove(factor)
        out.append((Fraction(k) / Fraction(divisor[0][0]), tuple(rest)))
    return collected(out)


def without(factors: Factors, taken: Factors) -> Factors:
    """*factors* without those *taken*, once each."""
    rest = list(factors)
    for factor in taken:
        rest.remove(factor)
    return tuple(rest)


def common(value: Polynomial) -> tuple[list[Polynomial], Polynomial]:
    """The factors that all monomials have, and *value* without them."""
    rest, shared = [(k, list(factors)) for k, factors in value], list[Polynomial]()
    for factor in value[0][1] if value else ():
        if all(factor in factors for _, factors in rest):
            shared.append(((Fraction(1), (factor,)),))
            for _, factors in rest:
                factors.remove(factor)
    return shared, collected((k, tuple(factors)) for k, factors in rest)


def scaled(op: str, args: list[Polynomial]) -> tuple[Fraction, list[Polynomial]]:
    """k^degree and *args* / k, where k is their largest coefficient; 1 and *args* where that is no known number."""
    sizes: list[Number] = [-k if k < 0 else k for arg in args for k, _ in arg]
    largest: Number = max(sizes, default=inf)
    if op not in DEGREE or not isinstance(largest, Fraction):
        return Fraction(1), args
    root = Fraction(isqrt(largest.numerator), isqrt(largest.denominator))
    if DEGREE[op] != 2 and root * root != largest:
        return Fraction(1), args
    divided = [tuple((k / largest, f) for k, f in arg) for arg in args]
    return largest if DEGREE[op] == 2 else root ** DEGREE[op], divided


def passed(e: Any, reduce: str) -> str:
    """The reduction under which *e* may be read instead of *reduce*: that by which it is a monotone function."""
    match e if reduce in FLIPPED else None:
        case (op, _) | (op, _, _) if op in (*INCREASING, "maximum", "minimum"):
            return reduce
        case ("*", Fraction() as k, _) | ("*" | "/", _, Fraction() as k) if k:
            return reduce if k > 0 else FLIPPED[reduce]
        case (op, a) if (
            op in INTEGERS and whole(a) and INTEGERS[op][0] <= limits(a)[0] <= limits(a)[1] <= INTEGERS[op][1]
        ):
            return reduce
    return ""


def opened(e: Any, reduce: str) -> Read | None:
    """The read, by *reduce*, of which *e* is a function of the kind of ``passed``, with constants; None without."""
    match e:
        case Read(Scope() as source) if reduces(source) and source.reduce == reduce:
            return e
        case ("+", Fraction(), a) | ("+", a, Fraction()):
            return opened(a, reduce)
        case (_, *args) if under := passed(e, reduce):
            others = [a for a in args if not isinstance(a, Fraction)]
            return opened(others[0], under) if len(others) == 1 else None
    return None


def whole(e: Any) -> bool:
    """Whether *e* is rounded, or a sum or clamp of what is."""
    match e:
        case Fraction():
            return e.denominator == 1
        case ("round", _):
            return True
        case ("+" | "maximum" | "minimum" | "relu", *args):
            return all(map(whole, args))
    return False


def limits(e: Any) -> tuple[Number, Number]:
    """Bounds of *e*: those that constants in its maxima and minima are."""
    match e:
        case Fraction():
            return e, e
        case ("relu", a):
            return limits(("maximum", a, Fraction(0)))
        case ("maximum" | "minimum" as op, a, b):
            pick = max if op == "maximum" else min
            (p, q), (r, s) = limits(a), limits(b)
            return pick(p, r), pick(q, s)
    return -inf, inf


def adds(e: Expr) -> bool:
    """Whether *e* may be the sum of several terms."""
    match e:
        case Read(source):
            return isinstance(source, Scope) and (reduces(source) or adds(source.body))
        case ("where", _, *args) | ("*" | "/", *args):
            return any(map(adds, args))
    return isinstance(e, tuple) and e[0] == "+"


def parted(scope: Scope, exponential: bool, factored: bool) -> tuple[tuple[Expr, ...], Scope]:
    """The finite factors of a sum of products that are one for all points; and the rest.

    If *exponential*, e^(a + c) has the factor e^c; if *factored*, other factors count.
    """
    outside, inside, fixed = list[Expr](), list[Expr](), factored and not infinite(scope.body)
    for factor in factors(scope.body):
        match factor:
            case ("exp", argument) if exponential:
                for term in terms(argument, factored):
                    moves = infinite(term) or any(y in names(term) for y, _, _ in scope.sums)
                    (inside if moves else outside).append(("exp", term))
            case _:
                moves = not fixed or any(y in names(factor) for y, _, _ in scope.sums)
                (inside if moves else outside).append(factor)
    if scope.reduce != "sum" or scope.domain or scope.reach != scope.box or not outside:
        return (), scope
    return tuple(outside), replace(scope, body=multiplied(inside))


def multiplied(parts: Iterable[Expr]) -> Expr:
    out: Expr = Fraction(1)
    for part in parts:
        out = ("*", out, part)
    return out


def factors(e: Expr) -> Iterable[Expr]:
    """The factors of *e*; what a scope that reduces nothing is at a place is one as well."""
    match e:
        case ("*", a, b):
            yield from (*factors(a), *factors(b))
        case Read(Scope(sums=(), domain=()) as scope, at) if scope.reach == scope.box:
            yield from factors(put(scope.body, {x: i for (x, _, _), i in zip(scope.own, at, strict=True)}))
        case _:
            yield e


def terms(e: Expr, summed: bool = False) -> Iterable[Expr]:
    """The terms of *e*; what a scope that reduces nothing is at a place is a sum of terms as well.

    If *summed*, a finite sum of several terms is several sums.
    """
    match e:
        case ("+", a, b):
            yield from (*terms(a, summed), *terms(b, summed))
        case ("*", Fraction() as k, a):
            yield from (("*", k, term) for term in terms(a, summed))
        case Read(Scope(sums=(), domain=()) as scope, at) if scope.reach == scope.box:
            yield from terms(put(scope.body, {x: i for (x, _, _), i in zip(scope.own, at, strict=True)}), summed)
        case Read(Scope(sums=(_, *_), domain=()) as scope, at) if summed and not infinite(scope.body):
            for each in summands(scope):
                yield Read(*depending(each, at))
        case _:
            yield e


SUMMANDS = 8
"""The most terms that are summed one by one."""


def summands(scope: Scope) -> list[Scope]:
    """The sums of the terms of *scope* alone, which is their sum; *scope* itself if it has one term, or many."""
    if scope.reduce != "sum" or scope.domain or scope.reach != scope.box:
        return [scope]
    parts = [list(terms(factor)) for factor in factors(scope.body)]
    if not 1 < prod(map(len, parts)) <= SUMMANDS:
        return [scope]
    return [replace(scope, body=multiplied(one)) for one in product(*parts)]


def depending(scope: Scope, at: tuple[Any, ...]) -> tuple[Scope, tuple[Any, ...]]:
    """``scope[at]`` without the coordinates that make no difference."""
    if scope.domain or scope.reach != scope.box:
        return scope, at
    used = names(scope.body)
    read = [x in used for x, _, _ in scope.own]
    own, reach, places = (tuple(compress(every, read)) for every in (scope.own, scope.reach, at))
    return replace(scope, own=own, reach=reach), places


def names(e: Expr) -> set[str]:
    """The iterators of *e*."""
    match e:
        case str():
            return {e}
        case Read(_, at):
            return {x for i in at for x in names(i)}
        case (str(), *args):
            return {x for arg in args for x in names(arg)}
    return set()


def put(e: Expr, to: Mapping[str, Expr]) -> Expr:
    """*e* with other indices for its iterators."""
    match e:
        case str():
            return to.get(e, e)
        case Read(source, at):
            return Read(source, tuple(put(i, to) for i in at))
        case (str() as op, *args):
            return (op, *(put(arg, to) for arg in args))
    return e


def tabulated(scope: Scope) -> set[str]:
    """The iterators of *scope* by which it, or a scope inside it, indexes a table."""
    found = set[str]()
    for source, indices in reads(scope.body):
        inner = tabulated(source) if isinstance(source, Scope) else set()
        own = [x for x, _, _ in source.own] if isinstance(source, Scope) else [""] * len(indices)
        for x, index in zip(own, indices, strict=True):
            if x in inner or isinstance(source, Table):
                found |= {i for i in walk(index) if isinstance(i, str)}
    return found


def opposite(of: str) -> str:
    """The name of 1 / *of*, which names the exponential of one term."""
    return f"e^({of[4:]}" if of.startswith("e^(-") else f"e^(-{of[3:]}"


def cancelled(factors: Factors) -> Factors:
    """*factors* without pairs e^a · e^-a for finite a, which is 1 by the axiom."""
    kept: list[tuple[str, Rows]] = []
    for of, at in factors:
        inverse = opposite(of), at
        if of.startswith("e^(") and "∞" not in of and inverse in kept:
            kept.remove(inverse)
        else:
            kept.append((of, at))
    return tuple(kept)


def collected(monomials: Iterable[tuple[Number, Factors]]) -> Polynomial:
    """Like monomials added up, in an order that depends on names first."""
    total: dict[Any, tuple[Number, Factors]] = {}
    for k, factors in monomials:
        sorted_ = tuple(sorted(cancelled(factors), key=lambda f: (f[0], *map(name, f[1]))))
        of = tuple(n for n, _ in sorted_), tuple(tuple(map(name, at)) for _, at in sorted_)
        old = total[of][0] if of in total else 0
        new = k + old
        if str(new) == "nan" or (k * old < 0 and unbounded(0, factors)):
            raise Beyond(SPREAD)
        total[of] = new, sorted_
    return tuple(m for _, m in sorted((([*of[0], str(m[0])], of), m) for of, m in total.items() if m[0]))
