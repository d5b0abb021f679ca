"""Parameters and what is assumed of them: of one, ``H >= 3``, ``C % 4 == 0``, and of several, ``W >= K``, ``H == W``.

Of several parameters an equation, or a remainder by a product, takes one away: ``H == W`` leaves W what H is, and
``C % (2*G) == 0`` makes C the product of 2·G and a new natural number.  An inequality is a form that is ≥ 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

from einnet_explore.equivalence.linear_space import Form, Undecided
from einnet_explore.parametric.linear_forms import has_positive_coefficients
from einnet_explore.parametric.size_polynomials import (
    SizePolynomial,
    Unknown,
    polynomial_text,
    polynomial_value,
    substitute_sizes,
    sum_of_monomials,
    terms_of,
)
from einnet_explore.parametric.size_region import Ranges, least_point
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Parameter:
    """A size that is not fixed: *least* ≤ n (≤ *most*), n ≡ *residue* modulo *modulus*."""

    name: str
    least: int = 1
    most: int | None = None
    modulus: int = 1
    residue: int = 0
    text: str = ""
    """Of a quotient that stands for what another parameter is divided by: how that is written."""

    @property
    def unknown(self) -> Unknown:
        """The natural number that the parameter is made of."""
        return Unknown(self.name, self.modulus, self.residue, self.text)

    @property
    def value(self) -> SizePolynomial:
        """The parameter as a polynomial."""
        return sum_of_monomials((((self.unknown,), self.modulus), ((), self.residue)))

    @property
    def first(self) -> int:
        """The smallest value of the unknown."""
        return -((self.residue - self.least) // self.modulus)

    @property
    def last(self) -> int | None:
        """The largest value of the unknown, if there is one."""
        return None if self.most is None else (self.most - self.residue) // self.modulus

    @property
    def guards(self) -> tuple[str, ...]:
        """What is assumed, one condition each."""
        found = [f"{self.name} >= {self.least}"]
        found += [f"{self.name} <= {self.most}"] if self.most is not None else []
        return (*found, *([f"{self.name} % {self.modulus} == {self.residue}"] if self.modulus > 1 else []))

    def refuse(self, n: int) -> None:
        """Raises Refused where *n* is none of the values."""
        if n < self.least:
            raise Refused(f"{self.name} = {n} breaks the guard {self.name} >= {self.least}")
        if self.most is not None and n > self.most:
            raise Refused(f"{self.name} = {n} breaks the guard {self.name} <= {self.most}")
        if n % self.modulus != self.residue:
            guard = f"{self.name} % {self.modulus} == {self.residue}"
            raise Refused(f"{self.name} = {n} breaks the guard {guard}: {n} % {self.modulus} is {n % self.modulus}")

    def also(self, modulus: int, residue: int) -> Parameter | None:
        """With n ≡ *residue* modulo *modulus* besides; None where no number is both."""
        both = self.modulus * modulus // gcd(self.modulus, modulus)
        for n in range(both):
            if n % self.modulus == self.residue and n % modulus == residue:
                return replace(self, modulus=both, residue=n)
        return None

    @property
    def empty(self) -> bool:
        """Whether no number is assumed possible."""
        return self.last is not None and self.last < self.first


@dataclass(frozen=True, slots=True)
class Inequality:
    """That *gap*, a polynomial of parameters by their names, is ≥ 0; *guard* says it."""

    guard: str
    gap: SizePolynomial


@dataclass(frozen=True, slots=True)
class TiedParameter:
    """A parameter that is *value*, a polynomial of others by their names; *guard* says so.

    Where it is a multiple of *divisor* one of these is *quotient*, a parameter that nobody gives a value.
    """

    name: str
    value: SizePolynomial
    guard: str
    quotient: str = ""
    divisor: SizePolynomial = 1


@dataclass(frozen=True, slots=True)
class FamilyParameters:
    """All parameters of a family: what proofs may take for granted.

    *parameters* are free, *tied* are polynomials of these; *names*: all that have been declared, in order.
    """

    parameters: tuple[Parameter, ...]
    tied: tuple[TiedParameter, ...] = ()
    relations: tuple[Inequality, ...] = ()
    declared: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that sizes are given for."""
        return self.declared or tuple(p.name for p in self.parameters)

    @property
    def guards(self) -> tuple[str, ...]:
        """Every assumption."""
        alone = [guard for p in self.parameters if not p.text for guard in p.guards]
        firsts = {p.name: p.least for p in self.parameters if p.text}
        tied = [t.guard for t in self.tied]
        tied += [
            f"{t.name} >= {n}*({polynomial_text(t.divisor)})" for t in self.tied if (n := firsts.get(t.quotient, 1)) > 1
        ]
        return (*alone, *tied, *(r.guard for r in self.relations))

    @property
    def values(self) -> dict[str, SizePolynomial]:
        """Every parameter as a polynomial of the free ones' unknowns."""
        out = {p.name: p.value for p in self.parameters}
        waiting = list(self.tied)
        while waiting:  # one that is tied may have been what others are tied to
            ready = [t for t in waiting if all(u.parameter in out for m, _ in terms_of(t.value) for u in m)]
            out |= {t.name: substitute_sizes(t.value, out) for t in ready}
            waiting = [t for t in waiting if t not in ready]
        return out

    @property
    def rows(self) -> tuple[Form, ...]:
        """What is assumed of several parameters, as forms that are ≥ 0."""
        return _relation_rows(self) if self.relations else ()

    @property
    def ranges(self) -> Ranges:
        """The least and the largest value of every unknown, by its symbol."""
        return {p.unknown.symbol: (p.first, p.last) for p in self.parameters}

    def refuse(self, sizes: Mapping[str, int]) -> None:
        """Raises Refused unless *sizes* gives each parameter, and nothing else, a value that is assumed."""
        names, inner = self.names, {t.quotient for t in self.tied}
        more = [n for n in sizes if n not in names and n not in inner]
        if (missing := [n for n in names if n not in sizes]) or more:
            wrong = f"no value of {missing[0]}" if missing else f"a value of {more[0]}"
            raise Refused(f"{wrong} is given, expected those of {', '.join(names) or 'nothing'}")
        for t in self.tied:
            divisor = polynomial_value(t.divisor, sizes)
            if t.quotient and (divisor < 1 or sizes[t.name] % divisor):
                raise Refused(
                    f"{t.name} = {sizes[t.name]} breaks the guard {t.guard}: {polynomial_text(t.divisor)} is {divisor}"
                )
        given = self.full(sizes)
        for t in self.tied:
            if (n := polynomial_value(t.value, given)) != sizes[t.name]:
                raise Refused(f"{t.name} = {sizes[t.name]} breaks the guard {t.guard}: it has to be {n}")
        for p in self.parameters:
            p.refuse(given[p.name])
        for r in self.relations:
            if polynomial_value(r.gap, given) < 0:
                at = ", ".join(f"{name} = {sizes[name]}" for name in names)
                raise Refused(f"{at} breaks the guard {r.guard}")

    def full(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """*sizes* with what the quotients are there."""
        return {
            **sizes,
            **{t.quotient: sizes[t.name] // polynomial_value(t.divisor, sizes) for t in self.tied if t.quotient},
        }

    def given(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """*sizes* of the parameters that have been declared."""
        return {name: sizes[name] for name in self.names}

    def completed(self, free: Mapping[str, int]) -> dict[str, int]:
        """*free* parameters' sizes with those of the tied ones."""
        held = self.values
        return {**free, **{t.name: polynomial_value(held[t.name], free) for t in self.tied}}

    def sizes(self, unknowns: Iterable[int]) -> dict[str, int]:
        """The parameters where the unknowns have these values."""
        free = {p.name: p.modulus * u + p.residue for p, u in zip(self.parameters, unknowns, strict=True)}
        return self.completed(free) if self.tied else free

    def corner(self, more: int = 0) -> tuple[int, ...] | None:
        """The first unknowns that are assumed, each at least *more* above its least; None where none are found."""
        firsts = tuple(p.first + more for p in self.parameters)
        if not self.relations:
            return firsts
        ranges = {p.unknown.symbol: (first, p.last) for p, first in zip(self.parameters, firsts, strict=True)}
        return least_point(ranges, self.rows)

    def surely(self, form: Form) -> bool:
        """Whether *form*, over the parameters' symbols, is certainly ≥ 0.

        Every coefficient over n - least is, or what is assumed of several parameters leaves no sizes where it is not.
        With ``False`` nothing is said.
        """
        first = {p.unknown.symbol: p.first for p in self.parameters}
        if any(part not in first for name in form if name for part in name.split("*")):
            return False
        return has_positive_coefficients(form, first) or (
            bool(self.relations) and _follows_from_relations(self, tuple(sorted(form.items())))
        )


@lru_cache(1 << 10)
def _relation_rows(ground: FamilyParameters) -> tuple[Form, ...]:
    held = ground.values
    return tuple(polynomial_form(substitute_sizes(r.gap, held)) for r in ground.relations)


@lru_cache(1 << 14)
def _follows_from_relations(ground: FamilyParameters, form: tuple[tuple[str, int], ...]) -> bool:
    """Whether no sizes that are assumed make *form* negative."""
    wrong = {v: -k for v, k in form} | {"": -dict(form).get("", 0) - 1}
    try:
        return least_point(ground.ranges, (*ground.rows, wrong)) is None
    except Undecided:
        return False


def polynomial_form(n: SizePolynomial) -> Form:
    """*n* as a form over the parameters' symbols."""
    out: Form = {"": 0}
    for monomial, k in terms_of(n):
        out["*".join(u.symbol for u in monomial)] = k
    return out
