r"""Polynomial interpolation in Newton's form on a simplex of points.

.. math::  f(b + k) = \sum_{|j| \le D} \Delta^j f(b) \prod_i \binom{k_i}{j_i}

A polynomial of total degree *D* is determined by its values at the :math:`\binom{n + D}{D}` points
:math:`b + k,\ |k| \le D`; further points test whether it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import comb, factorial, prod

from einnet_explore.parametric.parameters import FamilyParameters
from einnet_explore.parametric.size_polynomials import Monomial, SizePolynomial, polynomial_value, sum_of_monomials
from einnet_explore.support.errors import Refused

MAX_DEGREE = 4
"""Degree of an integer in the sizes: the stride of a five-dimensional tensor."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """Sample points of the sizes, and polynomials of total degree *degree* through values at them."""

    ground: FamilyParameters
    base: tuple[int, ...]
    degree: int

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """The points, as offsets from *base*."""
        every = product(range(self.degree + 1), repeat=len(self.base))
        return tuple(sorted((k for k in every if sum(k) <= self.degree), key=lambda k: (sum(k), k)))

    @property
    def tests(self) -> tuple[tuple[int, ...], ...]:
        """Test points: one further in every direction, one far away, one with different distances."""
        n = len(self.base)
        return (
            *(tuple(self.degree + 1 if i == j else 0 for j in range(n)) for i in range(n)),
            tuple(self.degree + 3 + 2 * j for j in range(n)),
            tuple(2 * n + 1 - j for j in range(n)),
        )

    def sizes(self, offset: tuple[int, ...]) -> dict[str, int]:
        """Return the parameters at a point."""
        return self.ground.sizes(b + k for b, k in zip(self.base, offset, strict=True))

    def fit(self, value: Callable[[tuple[int, ...]], int]) -> SizePolynomial:
        """Return the polynomial with *value* at every point; raises Refused if there is none."""
        total: dict[Monomial, Fraction] = {}
        for j in self.offsets:
            ways = product(*(range(i + 1) for i in j))
            difference = sum(
                (-1) ** (sum(j) - sum(k)) * prod(comb(a, b) for a, b in zip(j, k, strict=True)) * value(k) for k in ways
            )
            if difference:
                for monomial, c in self._newton(j).items():
                    total[monomial] = total.get(monomial, Fraction(0)) + difference * c
        if odd := next((c for c in total.values() if c.denominator != 1), None):
            raise Refused(f"an integer has the coefficient {odd}, expected whole ones")
        found = sum_of_monomials((m, int(c)) for m, c in total.items())
        for k in self.tests:
            if (guess := polynomial_value(found, self.sizes(k))) != value(k):
                raise Refused(
                    f"at {sizes_text(self.sizes(k))} an integer is {value(k)}, "
                    f"a polynomial of degree {self.degree} gives {guess}"
                )
        return found

    def _newton(self, j: tuple[int, ...]) -> dict[Monomial, Fraction]:
        """Expand Πᵢ binom(uᵢ - bᵢ, jᵢ)."""
        out: dict[Monomial, Fraction] = {(): Fraction(1, prod(map(factorial, j)))}
        for parameter, b, n in zip(self.ground.parameters, self.base, j, strict=True):
            for step in range(n):
                grown: dict[Monomial, Fraction] = {}
                for monomial, c in out.items():
                    for to, by in ((tuple(sorted((*monomial, parameter.unknown))), 1), (monomial, -b - step)):
                        grown[to] = grown.get(to, Fraction(0)) + c * by
                out = grown
        return out


def sizes_text(sizes: Mapping[str, int]) -> str:
    """``H = 3, W = 5``"""
    return ", ".join(f"{name} = {n}" for name, n in sizes.items())
