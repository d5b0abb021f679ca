r"""Polynomials of the sizes: values in programs (``Poly``), linear forms in proofs (``Form``), and integer sets.

A parameter :math:`C` with :math:`C \bmod m = r` is :math:`m u + r` for an unknown natural number :math:`u`, so
:math:`C / m` is a polynomial as well and quotients are not needed.

A form is linear over products with parameters: ``{"PW*y3": 1, "": -1}`` is :math:`W y_3 - 1`.  Integer sets have a
further variable for each product of parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TypeAlias

import islpy as isl

from einnet_explore.equivalence.integer_sets import bounded_context
from einnet_explore.equivalence.linear_space import Form, Undecided, accumulate_form


@dataclass(frozen=True, slots=True, order=True)
class Unknown:
    """The natural number *u* of a parameter: *parameter* = *modulus* · u + *residue*."""

    parameter: str
    modulus: int = 1
    residue: int = 0
    text: str = ""
    """The expression of an auxiliary parameter, as written."""

    @property
    def symbol(self) -> str:
        """The name in linear forms, distinct from all iterators."""
        return f"P{self.parameter}"

    def of(self, value: int) -> int:
        """Return the unknown of a parameter's *value*; raises ValueError for another residue."""
        if value % self.modulus != self.residue:
            raise ValueError(f"{self.parameter} = {value}: {value} % {self.modulus} is {value % self.modulus}")
        return value // self.modulus


Monomial: TypeAlias = "tuple[Unknown, ...]"


@dataclass(frozen=True, slots=True)
class Poly:
    """A polynomial that is not constant: sorted monomials with coefficients.  Build it with ``sum_of_monomials``.

    Polynomials have no order: it may depend on the sizes; ``FamilyParameters.is_nonnegative`` decides signs.
    """

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: SizePolynomial) -> SizePolynomial:
        return sum_of_monomials((*self.terms, *terms_of(other)))

    def __mul__(self, other: SizePolynomial) -> SizePolynomial:
        return sum_of_monomials(
            (tuple(sorted((*a, *b))), j * k) for a, j in self.terms for b, k in terms_of(other)
        )  # fmt: skip

    def __neg__(self) -> SizePolynomial:
        return self * -1

    def __sub__(self, other: SizePolynomial) -> SizePolynomial:
        return self + -other

    def __rsub__(self, other: int) -> SizePolynomial:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def _unordered(self, other: object) -> bool:
        raise Undecided(f"whether {self} is below {other} depends on the sizes")

    __lt__ = __le__ = __gt__ = __ge__ = _unordered

    def __str__(self) -> str:
        return polynomial_text(self)

    __repr__ = __str__

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the value at *sizes*."""
        return sum(k * prod(u.of(sizes[u.parameter]) for u in monomial) for monomial, k in self.terms)


SizePolynomial: TypeAlias = "int | Poly"


def sum_of_monomials(terms: Iterable[tuple[Monomial, int]]) -> SizePolynomial:
    """Add *terms*; a constant sum is a plain integer."""
    total: dict[Monomial, int] = {}
    for monomial, k in terms:
        total[monomial] = total.get(monomial, 0) + k
    kept = {m: k for m, k in total.items() if k}
    if not kept.keys() - {()}:
        return kept.get((), 0)
    return Poly(tuple(sorted(kept.items(), key=lambda t: (-len(t[0]), t[0]))))


def parameter_polynomial(name: str) -> SizePolynomial:
    """Return the parameter *name*, with modulus 1, as a polynomial."""
    return sum_of_monomials((((Unknown(name),), 1),))


def terms_of(n: SizePolynomial) -> tuple[tuple[Monomial, int], ...]:
    """Return the monomials of *n* with their coefficients."""
    return n.terms if isinstance(n, Poly) else (((), n),)


def polynomial_value(n: SizePolynomial, sizes: Mapping[str, int]) -> int:
    """Return the value of *n* at *sizes*."""
    return n.at(sizes) if isinstance(n, Poly) else n


def substitute_sizes(n: SizePolynomial, values: Mapping[str, SizePolynomial]) -> SizePolynomial:
    """Substitute *values* for the parameters of *n*, whose moduli are 1."""
    total: SizePolynomial = 0
    for monomial, k in terms_of(n):
        made: SizePolynomial = k
        for u in monomial:
            made = made * values[u.parameter]
        total = total + made
    return total


def parameters_in(n: SizePolynomial) -> set[str]:
    """Return the names of the parameters in *n*."""
    return {u.parameter for monomial, _ in terms_of(n) for u in monomial}


def polynomial_text(n: SizePolynomial, times: str = "*", over: str = "//") -> str:
    """Format *n* over the parameters: ``4*H*C``, ``C//4 + 1``."""
    out = ""
    for monomial, k in terms_of(n):
        scale = Fraction(k)
        atoms = []
        for u in monomial:
            if u.residue:
                atoms.append(f"(({u.parameter}-{u.residue}){over}{u.modulus})")
            else:
                scale /= u.modulus
                atoms.append(f"({u.text})" if u.text else u.parameter)
        factor = abs(scale.numerator)
        text = times.join([*([str(factor)] if factor != 1 or not atoms else []), *atoms])
        text += f"{over}{scale.denominator}" if scale.denominator != 1 else ""
        out += ("-" if scale < 0 else "+" if out else "") + text
    return out


def divide_by_monomial(a: SizePolynomial, d: SizePolynomial) -> SizePolynomial | None:
    """Divide *a* by *d*, one monomial that divides every monomial of *a*; None if it does not."""
    if len(terms_of(d)) != 1:
        return None
    ((below, k),) = terms_of(d)
    out: list[tuple[Monomial, int]] = []
    for monomial, c in terms_of(a):
        rest = list(monomial)
        for u in below:
            if u not in rest:
                return None
            rest.remove(u)
        if c % k:
            return None
        out.append((tuple(rest), c // k))
    return sum_of_monomials(out)


def drop_zeros(form: Form) -> Form:
    """Remove names with coefficient 0."""
    return {"": form.get("", 0), **{v: k for v, k in form.items() if v and k}}


def add_forms(a: Form, b: Form, k: int = 1) -> Form:
    """Return a + k·b."""
    out = dict(a)
    accumulate_form(out, b, k)
    return drop_zeros(out)


def divide_form(a: Form, d: Form) -> Form | None:
    """Divide polynomials of parameters; None unless the quotient has integer coefficients and no remainder."""
    times, rest = divide_with_remainder(a, d)
    return times if not any(rest.values()) else None


def divide_with_remainder(a: Form, d: Form) -> tuple[Form, Form]:
    """Return (times, rest) with a = d·times + rest, by polynomial long division."""
    lead, k = leading_monomial(d)
    times, rest, left = Form({"": 0}), Form({"": 0}), drop_zeros(a)
    while any(left.values()):
        name, c = leading_monomial(left)
        if not divides_monomial(lead, name) or c // k == 0 or (name and c % k):
            accumulate_form(rest, {name: c}, 1)
            left = drop_zeros({**left, name: 0})
            continue
        over = divide_monomial(name, lead)
        accumulate_form(times, {over: c // k}, 1)
        for part, by in d.items():
            accumulate_form(
                left, {"*".join(sorted(p for p in (*over.split("*"), *part.split("*")) if p)): by}, -(c // k)
            )
        left = drop_zeros(left)
    return drop_zeros(times), drop_zeros(rest)


def leading_monomial(form: Form) -> tuple[str, int]:
    """Return the leading monomial and its coefficient."""
    occurring = [(v, k) for v, k in form.items() if k]
    return max(occurring, key=lambda t: _degree(t[0])) if occurring else ("", 0)


def _degree(name: str) -> tuple[int, tuple[str, ...]]:
    """Sort key of a monomial order, invariant under multiplication."""
    parts = _symbols(name)
    return len(parts), parts


def _symbols(name: str) -> tuple[str, ...]:
    return tuple(name.split("*")) if name else ()


def divides_monomial(lead: str, name: str) -> bool:
    """Whether the monomial *name* is a multiple of *lead*."""
    return Counter(_symbols(lead)) <= Counter(_symbols(name))


def divide_monomial(name: str, lead: str) -> str:
    """Divide the monomial *name* by *lead*; raises ValueError if *lead* does not divide it."""
    parts = list(_symbols(name))
    for symbol in _symbols(lead):
        parts.remove(symbol)
    return "*".join(parts)


def symbols_in(form: Form) -> set[str]:
    """Return the symbols in the monomials of *form*."""
    return {part for name in form for part in name.split("*") if part}


def form_text(form: Form) -> str:
    """Format *form* for messages."""
    words = (f"{k}" if not v else symbol_text(v) if k == 1 else f"{k}*{symbol_text(v)}" for v, k in form.items() if k)
    return " + ".join(words) or "0"


def symbol_text(name: str) -> str:
    """Format a monomial for messages, with the parameters' own names."""
    return "*".join(part.removeprefix("P") for part in name.split("*"))


def has_positive_coefficients(form: Form, first: Mapping[str, int]) -> bool:
    """Whether no coefficient of *form* is negative after shifting each symbol by its *first* value."""
    shifted: dict[tuple[str, ...], int] = {}
    for name, k in form.items():
        parts: dict[tuple[str, ...], int] = {(): k}
        for symbol in name.split("*") if name else ():
            grown: dict[tuple[str, ...], int] = {}
            for monomial, c in parts.items():
                for to, by in ((tuple(sorted((*monomial, symbol))), 1), (monomial, first[symbol])):
                    grown[to] = grown.get(to, 0) + c * by
            parts = grown
        for monomial, c in parts.items():
            shifted[monomial] = shifted.get(monomial, 0) + c
    return all(c >= 0 for c in shifted.values())


Ranges: TypeAlias = "Mapping[str, tuple[int, int | None]]"
"""The smallest and the largest value (or None) of every symbol."""


def isl_expression(form: Form) -> str:
    """Return *form* in isl's notation."""
    return " + ".join(f"{k}{isl_name(v)}" if v else str(k) for v, k in form.items() if k or not v)


def isl_name(name: str) -> str:
    """Return a variable name for isl, unique for each product."""
    return "M" + "".join(f"{len(part)}{part}" for part in name.split("*")) if "*" in name else name


def range_rows(ranges: Ranges) -> list[Form]:
    """Return the ranges as forms that are ≥ 0."""
    rows: list[Form] = []
    for v, (first, last) in ranges.items():
        rows.append({v: 1, "": -first})
        rows += [{v: -1, "": last}] if last is not None else []
    return rows


def product_rows(ranges: Ranges, names: Iterable[str]) -> list[Form]:
    """Bound the variables that stand for products of parameters: (a - a₀)(b - b₀) ≥ 0."""
    rows: list[Form] = []
    for name in names:
        if name.count("*") == 1:
            a, b = name.split("*")
            row: Form = {name: 1, "": ranges[a][0] * ranges[b][0]}
            for v, k in ((a, ranges[b][0]), (b, ranges[a][0])):
                row[v] = row.get(v, 0) - k
            rows.append(row)
        elif "*" in name:
            rows.append({name: 1, "": 0})
    return rows


def least_point(ranges: Ranges, rows: Iterable[Form]) -> tuple[int, ...] | None:
    """Return the lexicographically first values with all *rows* ≥ 0; None if there are none.

    A product of symbols is relaxed to any number that its factors' ranges allow.  Raises Undecided.
    """
    conditions = [*range_rows(ranges), *rows]
    names = (*ranges, *sorted({v for row in conditions for v in row if "*" in v}))
    conditions += product_rows(ranges, names)
    text = " and ".join(f"{isl_expression(row)} >= 0" for row in conditions) or "true"
    try:
        found = isl.Set(f"{{ [{', '.join(map(isl_name, names))}] : {text} }}", bounded_context())
        return None if found.is_empty() else tuple(smallest_point(found)[: len(ranges)])
    except isl.Error as error:
        raise Undecided(f"integer sets: {error}") from None


def smallest_point(points: isl.Set) -> list[int]:
    """Return the lexicographically first point of a nonempty set."""
    point = points.lexmin().sample_point()
    return [point.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(points.dim(isl.dim_type.set))]
