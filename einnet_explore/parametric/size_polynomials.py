r"""Size polynomials: integer polynomials of unknown natural numbers.

A parameter :math:`C` with :math:`C \bmod m = r` is :math:`m u + r` for an unknown :math:`u`, so :math:`C / m` is a
polynomial as well and quotients are not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TypeAlias

from einnet_explore.equivalence.linear_space import Undecided


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
