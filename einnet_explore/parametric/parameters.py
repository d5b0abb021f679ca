"""Size parameters and the assumptions on them: on one, ``H >= 3``, ``C % 4 == 0``, and on several, ``W >= K``, ``H ==
W``.

An equation between parameters, or a remainder by a product, eliminates one parameter: ``H == W`` replaces W by H, and
``C % (2*G) == 0`` replaces C by the product of 2·G and a new natural number.  An inequality is a form that is ≥ 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

from einnet_explore.equivalence.linear_space import Form, Undecided
from einnet_explore.parametric.size_polynomials import (
    Ranges,
    SizePolynomial,
    Unknown,
    has_positive_coefficients,
    least_point,
    polynomial_text,
    polynomial_value,
    substitute_sizes,
    sum_of_monomials,
    terms_of,
)
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Parameter:
    """A free size n with *least* ≤ n (≤ *most*) and n ≡ *residue* modulo *modulus*."""

    name: str
    least: int = 1
    most: int | None = None
    modulus: int = 1
    residue: int = 0
    text: str = ""
    """The expression of an auxiliary parameter, the quotient of another parameter, as written."""

    @property
    def unknown(self) -> Unknown:
        """The natural number that determines the parameter."""
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
        """The assumptions on this parameter, as conditions in the text form."""
        found = [f"{self.name} >= {self.least}"]
        found += [f"{self.name} <= {self.most}"] if self.most is not None else []
        return (*found, *([f"{self.name} % {self.modulus} == {self.residue}"] if self.modulus > 1 else []))

    def refuse(self, n: int) -> None:
        """Raise Refused if *n* is not a value of this parameter."""
        if n < self.least:
            raise Refused(f"{self.name} = {n} breaks the guard {self.name} >= {self.least}")
        if self.most is not None and n > self.most:
            raise Refused(f"{self.name} = {n} breaks the guard {self.name} <= {self.most}")
        if n % self.modulus != self.residue:
            guard = f"{self.name} % {self.modulus} == {self.residue}"
            raise Refused(f"{self.name} = {n} breaks the guard {guard}: {n} % {self.modulus} is {n % self.modulus}")

    def with_congruence(self, modulus: int, residue: int) -> Parameter | None:
        """Add n ≡ *residue* modulo *modulus*; return None if no number satisfies both congruences."""
        both = self.modulus * modulus // gcd(self.modulus, modulus)
        for n in range(both):
            if n % self.modulus == self.residue and n % modulus == residue:
                return replace(self, modulus=both, residue=n)
        return None

    @property
    def empty(self) -> bool:
        """Whether the parameter has no value."""
        return self.last is not None and self.last < self.first


@dataclass(frozen=True, slots=True)
class Inequality:
    """The assumption *gap* ≥ 0, a polynomial of parameters by name; *guard* is its text."""

    guard: str
    gap: SizePolynomial


@dataclass(frozen=True, slots=True)
class TiedParameter:
    """A parameter equal to *value*, a polynomial of other parameters by name; *guard* is the assumption's text.

    A multiple of *divisor* depends on *quotient*, an auxiliary parameter that users do not set.
    """

    name: str
    value: SizePolynomial
    guard: str
    quotient: str = ""
    divisor: SizePolynomial = 1


@dataclass(frozen=True, slots=True)
class FamilyParameters:
    """All parameters of a family, with the assumptions that proofs use.

    *parameters* are free, *tied* are polynomials of these, *names* are the declared parameters in order.
    """

    parameters: tuple[Parameter, ...]
    tied: tuple[TiedParameter, ...] = ()
    relations: tuple[Inequality, ...] = ()
    declared: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that users set."""
        return self.declared or tuple(p.name for p in self.parameters)

    @property
    def guards(self) -> tuple[str, ...]:
        """All assumptions, in the text form."""
        alone = [guard for p in self.parameters if not p.text for guard in p.guards]
        firsts = {p.name: p.least for p in self.parameters if p.text}
        tied = [t.guard for t in self.tied]
        tied += [
            f"{t.name} >= {n}*({polynomial_text(t.divisor)})" for t in self.tied if (n := firsts.get(t.quotient, 1)) > 1
        ]
        return (*alone, *tied, *(r.guard for r in self.relations))

    @property
    def values(self) -> dict[str, SizePolynomial]:
        """Every parameter as a polynomial of the free parameters' unknowns."""
        out = {p.name: p.value for p in self.parameters}
        waiting = list(self.tied)
        while waiting:  # a tied parameter may depend on another tied one
            ready = [t for t in waiting if all(u.parameter in out for m, _ in terms_of(t.value) for u in m)]
            out |= {t.name: substitute_sizes(t.value, out) for t in ready}
            waiting = [t for t in waiting if t not in ready]
        return out

    @property
    def rows(self) -> tuple[Form, ...]:
        """The assumptions on several parameters, as forms that are ≥ 0."""
        return _relation_rows(self) if self.relations else ()

    @property
    def ranges(self) -> Ranges:
        """The least and the largest value of every unknown, by its symbol."""
        return {p.unknown.symbol: (p.first, p.last) for p in self.parameters}

    def refuse(self, sizes: Mapping[str, int]) -> None:
        """Raise Refused unless *sizes* sets exactly the declared parameters and fulfils the assumptions."""
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
        given = self.with_quotients(sizes)
        for t in self.tied:
            if (n := polynomial_value(t.value, given)) != sizes[t.name]:
                raise Refused(f"{t.name} = {sizes[t.name]} breaks the guard {t.guard}: it has to be {n}")
        for p in self.parameters:
            p.refuse(given[p.name])
        for r in self.relations:
            if polynomial_value(r.gap, given) < 0:
                at = ", ".join(f"{name} = {sizes[name]}" for name in names)
                raise Refused(f"{at} breaks the guard {r.guard}")

    def with_quotients(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return *sizes* with the auxiliary quotients added."""
        return {
            **sizes,
            **{t.quotient: sizes[t.name] // polynomial_value(t.divisor, sizes) for t in self.tied if t.quotient},
        }

    def declared_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Restrict *sizes* to the declared parameters."""
        return {name: sizes[name] for name in self.names}

    def with_tied(self, free: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of the *free* parameters and the tied ones."""
        values = self.values
        return {**free, **{t.name: polynomial_value(values[t.name], free) for t in self.tied}}

    def sizes(self, unknowns: Iterable[int]) -> dict[str, int]:
        """Return all parameters for given values of the unknowns."""
        free = {p.name: p.modulus * u + p.residue for p, u in zip(self.parameters, unknowns, strict=True)}
        return self.with_tied(free) if self.tied else free

    def corner(self, more: int = 0) -> tuple[int, ...] | None:
        """Return the first allowed unknowns, each at least *more* above its minimum; None if none are found."""
        firsts = tuple(p.first + more for p in self.parameters)
        if not self.relations:
            return firsts
        ranges = {p.unknown.symbol: (first, p.last) for p, first in zip(self.parameters, firsts, strict=True)}
        return least_point(ranges, self.rows)

    def is_nonnegative(self, form: Form) -> bool:
        """Whether *form*, over the parameters' symbols, is provably ≥ 0.

        Sufficient: all coefficients over n - least are ≥ 0, or no allowed sizes make the form negative.  ``False`` does
        not mean that the form can be negative.
        """
        first = {p.unknown.symbol: p.first for p in self.parameters}
        if any(part not in first for name in form if name for part in name.split("*")):
            return False
        return has_positive_coefficients(form, first) or (
            bool(self.relations) and _follows_from_relations(self, tuple(sorted(form.items())))
        )


@lru_cache(1 << 10)
def _relation_rows(ground: FamilyParameters) -> tuple[Form, ...]:
    values = ground.values
    return tuple(polynomial_form(substitute_sizes(r.gap, values)) for r in ground.relations)


@lru_cache(1 << 14)
def _follows_from_relations(ground: FamilyParameters, form: tuple[tuple[str, int], ...]) -> bool:
    """Whether no allowed sizes make *form* negative."""
    wrong = {v: -k for v, k in form} | {"": -dict(form).get("", 0) - 1}
    try:
        return least_point(ground.ranges, (*ground.rows, wrong)) is None
    except Undecided:
        return False


def polynomial_form(n: SizePolynomial) -> Form:
    """Return *n* as a form over the parameters' symbols."""
    out: Form = {"": 0}
    for monomial, k in terms_of(n):
        out["*".join(u.symbol for u in monomial)] = k
    return out
