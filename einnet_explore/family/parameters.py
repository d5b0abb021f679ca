"""Parameters and what is assumed of them: one at a time, ``H >= 3``, ``H <= 512``, ``C % 4 == 0``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd

from einnet_explore.algebra.space import Form
from einnet_explore.family.whole import Unknown, Whole, terms_of, whole


class OutsideError(ValueError):
    """Sizes outside the assumptions; the message names the guard that failed, and the numbers."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A size that is not fixed: *least* ≤ n (≤ *most*), n ≡ *residue* modulo *modulus*."""

    name: str
    least: int = 1
    most: int | None = None
    modulus: int = 1
    residue: int = 0

    @property
    def unknown(self) -> Unknown:
        """The natural number that the parameter is made of."""
        return Unknown(self.name, self.modulus, self.residue)

    @property
    def value(self) -> Whole:
        """The parameter as a polynomial."""
        return whole((((self.unknown,), self.modulus), ((), self.residue)))

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
        """Raises OutsideError where *n* is none of the values."""
        if n < self.least:
            raise OutsideError(f"{self.name} = {n} breaks the guard {self.name} >= {self.least}")
        if self.most is not None and n > self.most:
            raise OutsideError(f"{self.name} = {n} breaks the guard {self.name} <= {self.most}")
        if n % self.modulus != self.residue:
            guard = f"{self.name} % {self.modulus} == {self.residue}"
            raise OutsideError(
                f"{self.name} = {n} breaks the guard {guard}: {n} % {self.modulus} is {n % self.modulus}"
            )

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
class Ground:
    """All parameters of a family: what proofs may take for granted."""

    parameters: tuple[Parameter, ...]

    @property
    def guards(self) -> tuple[str, ...]:
        """Every assumption."""
        return tuple(guard for p in self.parameters for guard in p.guards)

    def refuse(self, sizes: Mapping[str, int]) -> None:
        """Raises OutsideError unless *sizes* gives each parameter, and nothing else, a value that is assumed."""
        names = [p.name for p in self.parameters]
        if (missing := [n for n in names if n not in sizes]) or (more := [n for n in sizes if n not in names]):
            wrong = f"no value of {missing[0]}" if missing else f"a value of {more[0]}"
            raise OutsideError(f"{wrong} is given, expected those of {', '.join(names) or 'nothing'}")
        for p in self.parameters:
            p.refuse(sizes[p.name])

    def sizes(self, unknowns: Iterable[int]) -> dict[str, int]:
        """The parameters where the unknowns have these values."""
        return {p.name: p.modulus * u + p.residue for p, u in zip(self.parameters, unknowns, strict=True)}

    def surely(self, form: Form) -> bool:
        """Whether *form*, over the parameters' symbols, is certainly ≥ 0: every coefficient over n - least is.

        With ``False`` nothing is said.
        """
        first = {p.unknown.symbol: p.first for p in self.parameters}
        shifted: dict[tuple[str, ...], int] = {}
        for name, k in form.items():
            parts: dict[tuple[str, ...], int] = {(): k}
            for symbol in name.split("*") if name else ():
                if symbol not in first:
                    return False
                grown: dict[tuple[str, ...], int] = {}
                for monomial, c in parts.items():
                    for to, by in ((tuple(sorted((*monomial, symbol))), 1), (monomial, first[symbol])):
                        grown[to] = grown.get(to, 0) + c * by
                parts = grown
            for monomial, c in parts.items():
                shifted[monomial] = shifted.get(monomial, 0) + c
        return all(c >= 0 for c in shifted.values())


def form_of(n: Whole) -> Form:
    """*n* as a form over the parameters' symbols."""
    out: Form = {"": 0}
    for monomial, k in terms_of(n):
        out["*".join(u.symbol for u in monomial)] = k
    return out
