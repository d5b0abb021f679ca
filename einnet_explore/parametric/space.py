r"""Term space of a comparison for all sizes: linear forms over products with parameters.

``{"PW*y3": 1, "x0": 1, "PW": -1}`` is :math:`W y_3 + x_0 - W`.  Forms have plain integer coefficients, so terms are
built as at one size; only ranges, quotients and conditions are decided here, for all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd

from einnet_explore.equivalence.assumptions import NO_ASSUMPTIONS, Assumptions
from einnet_explore.equivalence.linear_space import Env, Form, TermSpace, Undecided, accumulate_form, form_key
from einnet_explore.ir import Box, Index, Iterator, Quotient, Remainder, Scope
from einnet_explore.parametric.parameters import FamilyParameters, polynomial_form
from einnet_explore.parametric.size_polynomials import (
    add_forms,
    divide_form,
    divide_with_remainder,
    drop_zeros,
    form_text,
)


class ParametricSpace(TermSpace):
    """Output coordinates, summed iterators and quotients, with ranges that depend on the parameters.

    The parameters are the first coordinates of an output element, so sets of terms cover all sizes.
    """

    def __init__(
        self,
        ground: FamilyParameters,
        region: Box,
        same: Callable[[Scope, Scope], bool],
        given: Assumptions = NO_ASSUMPTIONS,
    ) -> None:
        super().__init__((), same, given)
        self.ground = ground
        self.symbols = tuple(p.unknown.symbol for p in ground.parameters)
        self.limits: dict[str, tuple[Form, Form]] = {}
        self.divisions: dict[str, tuple[Form, Form]] = {}
        self.also: dict[str, list[tuple[Form, Form]]] = {}
        """Further divisions with the same quotient."""
        self.multiplied: set[str] = set()
        self.solvers: set[str] = set()
        """The solvers used: ``isl``, ``z3``."""
        self.point = tuple({self.fresh("x", lo, hi - 1): 1, "": 0} for lo, hi in region)
        self.coordinates = (*self.symbols, *self.limits)

    def fresh(self, stem: str, lo: int, hi: int) -> str:
        """Name a new integer in the closed range [lo, hi], whose ends may be polynomials."""
        return self._add_integer(stem, polynomial_form(lo), polynomial_form(hi))

    def _add_integer(self, stem: str, lo: Form, hi: Form) -> str:
        name = f"{stem}{len(self.limits)}"
        self.limits[name] = (lo, hi)
        return name

    def means(self, v: str) -> bool:
        """Whether a product, quotient or alias depends on *v*."""
        made = (e for pair in self.divisions.values() for e in pair)
        return v in self.multiplied or any(v in e for e in made) or any(v in e for e in self.aliases.values())

    def times(self, a: Form, b: Form) -> Form:
        """Multiply; raises Undecided for a product of two integers that are not parameters."""
        out: Form = {"": 0}
        for one, j in a.items():
            for other, k in b.items():
                parts = sorted(part for part in (*one.split("*"), *other.split("*")) if part)
                free = [part for part in parts if part not in self.symbols]
                if len(free) > 1:
                    raise Undecided(f"{' and '.join(free)} are multiplied")
                if free and len(parts) > 1:
                    self.multiplied.update(free)
                out["*".join(parts)] = out.get("*".join(parts), 0) + j * k
        return {v: k for v, k in out.items() if k or not v}

    def form(self, index: Index, env: Env) -> Form:
        """Return *index* as a form; a quotient or remainder by *d* adds an integer ``q`` with ``0 <= e - d·q < d``."""
        out = polynomial_form(index.const)
        for atom, k in index.terms:
            match atom:
                case Iterator(name):
                    if atom not in env:
                        raise Undecided(f"{name} is no iterator of the scope that reads at {index}")
                    made = env[atom]
                case Quotient(numerator, d):
                    made = self.quotient(self.form(numerator, env), polynomial_form(d))
                case Remainder(numerator, d):
                    e, by = self.form(numerator, env), polynomial_form(d)
                    made = add_forms(e, self.times(by, self.quotient(e, by)), -1)
            accumulate_form(out, self.times(polynomial_form(k), made), 1)
        return drop_zeros(out)

    def quotient(self, e: Form, d: Form) -> Form:
        """Return ⌊e / d⌋ without the digits that cancel; *d* is at least 1.  Raises Undecided."""
        if not self.ground.is_nonnegative(add_forms(d, {"": -1})):
            raise Undecided(f"whether the divisor {form_text(d)} is positive depends on the sizes")
        if d == {"": 1}:
            return e
        for g in (d, *self._factors(e, d)):
            rest = divide_form(d, g)
            high, low = self._split(e, g)
            if rest is not None and self.digit(low, g):
                return high if rest == {"": 1} else self.quotient(high, rest)
        high, low = self._split(e, d)
        if any(high.values()):
            return add_forms(high, self.quotient(low, d))
        match [(v, k) for v, k in e.items() if v]:
            case [(v, 1)] if v in self.divisions:  # (a / b + c) / d is (a + b·c) / (b·d)
                a, b = self.divisions[v]
                found = self.quotient(add_forms(a, self.times(b, {"": e[""]})), self.times(b, d))
                for name in (name for name in found if name in self.divisions and found == {name: 1, "": 0}):
                    self.also.setdefault(name, []).append((e, d))
                return found
        known = (form_key(e), form_key(d))
        for name, (of, by) in self.divisions.items():
            if (form_key(of), form_key(by)) == known:
                return {name: 1, "": 0}
        name = self._add_integer("q", *self._ends(e, d))
        self.divisions[name] = (e, d)
        return {name: 1, "": 0}

    def _ends(self, e: Form, d: Form) -> tuple[Form, Form]:
        """Return a closed interval around ⌊e / d⌋.  Raises Undecided if signs depend on the sizes."""
        surely, ends = self.ground.is_nonnegative, list[Form]()
        for end, sign in zip(self.span(e), (1, -1), strict=True):
            high, low = self._split(end, d)
            below = add_forms(high, {"": -1}), add_forms(low, d)
            if found := next((h for h, rest in ((high, low), below) if self.digit(rest, d)), None):
                ends.append(found)
            elif surely(end):
                ends.append({"": 0} if sign == 1 else end)  # 0 <= end / d <= end
            elif surely(add_forms({"": -1}, end, -1)):
                ends.append(end if sign == 1 else {"": -1})  # end <= end / d < 0
            else:
                raise Undecided(f"the sign of {form_text(end)} depends on the sizes")
        return ends[0], ends[1]

    def digit(self, low: Form, g: Form) -> bool:
        """Whether 0 ≤ low < g for all sizes."""
        least, most = self.span(low)
        return self.ground.is_nonnegative(least) and self.ground.is_nonnegative(
            add_forms(add_forms(g, most, -1), {"": -1})
        )

    def _split(self, e: Form, g: Form) -> tuple[Form, Form]:
        """Return (high, low) with e = g·high + low: multiples of g in *high*; the constant part by long division."""
        high, low = Form({"": 0}), Form({"": 0})
        for v, part in self._group(e).items():
            whole = divide_form(part, g) if v else None
            if v and whole is not None:
                accumulate_form(high, self.times(whole, {v: 1}), 1)
            elif v:
                accumulate_form(low, self.times(part, {v: 1}), 1)
            else:
                times, rest = divide_with_remainder(part, g)
                accumulate_form(high, times, 1)
                accumulate_form(low, rest, 1)
        return drop_zeros(high), drop_zeros(low)

    def _group(self, e: Form) -> dict[str, Form]:
        """Group by the integer that is no parameter: its coefficient as a form over parameters; the rest at ``""``."""
        out: dict[str, Form] = {"": {"": 0}}
        for name, k in e.items():
            parts = [part for part in name.split("*") if part]
            free = "".join(part for part in parts if part not in self.symbols)
            out.setdefault(free, {"": 0})["*".join(p for p in parts if p != free)] = k
        return out

    def _factors(self, e: Form, d: Form) -> Iterable[Form]:
        """Yield divisors of *d* that a quotient of *e* may be divided by first: coefficients, common factors."""
        for v, by in self._group(e).items():
            part = {"": gcd(by[""], d[""])} if set(by) == set(d) == {""} else by
            if (
                v
                and part != {"": 1}
                and divide_form(d, part) is not None
                and self.ground.is_nonnegative(add_forms(part, {"": -1}))
            ):
                yield part

    def enter(self, at: Iterable[Form], box: Box) -> tuple[Form, ...]:
        """Name the coordinates *at* with the ranges of *box*, for use inside the box only."""
        out = []
        for form, (lo, hi) in zip(at, box, strict=True):
            if self.within((form,), ((lo, hi),)) == ():
                out.append(form)
                continue
            name = self.fresh("t", lo, hi - 1)
            self.aliases[name] = form
            out.append({name: 1, "": 0})
        return tuple(out)

    def span(self, form: Form) -> tuple[Form, Form]:
        """Return a closed interval, over the parameters, around the values of *form*."""
        lo, hi = Form({"": 0}), Form({"": 0})
        grouped = self._group(form)
        for v in (v for v in grouped if v in self.divisions):
            for e, d in (self.divisions[v], *self.also.get(v, ())):
                # the remainder e - d·v is in [0, d), its parts need not be
                times = divide_form(add_forms({"": 0}, grouped[v], -1), d)
                if times is not None and self.ground.is_nonnegative(times):
                    others = add_forms(form, self.times(times, add_forms(e, self.times(d, {v: 1, "": 0}), -1)), -1)
                    if len(self._group(others)) < len(grouped):
                        least, most = self.span(others)
                        return least, add_forms(most, self.times(times, add_forms(d, {"": -1})))
        for v, part in grouped.items():
            if not v:
                ends = part, part
            elif self.ground.is_nonnegative(part):
                ends = self.times(part, self.limits[v][0]), self.times(part, self.limits[v][1])
            elif self.ground.is_nonnegative(add_forms({"": 0}, part, -1)):
                ends = self.times(part, self.limits[v][1]), self.times(part, self.limits[v][0])
            else:
                raise Undecided(f"the sign of {form_text(part)} depends on the sizes")
            accumulate_form(lo, ends[0], 1)
            accumulate_form(hi, ends[1], 1)
        return drop_zeros(lo), drop_zeros(hi)

    def within(self, forms: Iterable[Form], box: Iterable[tuple[int, int | None]]) -> tuple[Form, ...] | None:
        """Return the conditions for *forms* in the half-open *box* that may fail; None if they cannot all hold."""
        surely = self.ground.is_nonnegative
        rows: list[Form] = []
        for form, (lo, hi) in zip(forms, box, strict=True):
            least, most = self.span(form)
            first, end = polynomial_form(lo), None if hi is None else polynomial_form(hi)
            if surely(add_forms(add_forms(first, most, -1), {"": -1})) or (end and surely(add_forms(least, end, -1))):
                return None
            if not surely(add_forms(least, first, -1)):
                rows.append(add_forms(form, first, -1))
            if end and not surely(add_forms(add_forms(end, most, -1), {"": -1})):
                rows.append(add_forms(add_forms(end, form, -1), {"": -1}))
        return tuple(rows)
