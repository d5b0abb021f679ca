"""Sizes that depend on parameters: integer polynomials, which stand where programs at one size have integers.

A parameter is m·u + r for a natural number u, where its remainder r modulo m is known.  What is decided holds for all
sizes: a size is at least 0 if no coefficient is negative once every u is counted from its smallest value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import NamedTuple, TypeAlias


class Beyond(ValueError):
    """The comparison is beyond the theory of terms; the message gives the reason."""


class Unknown(NamedTuple):
    """The number *n* of the parameters, at least *first*, at most *last* if there is such a limit."""

    n: int
    first: int
    last: int | None = None


Monomial: TypeAlias = "tuple[Unknown, ...]"


class Symbol(str):
    """The name of a product of unknowns in a form and in isl, where it is a parameter of its own."""

    __slots__ = ("of",)
    of: Monomial

    def __new__(cls, of: Monomial) -> Symbol:
        made = super().__new__(cls, "".join(f"P{u.n}" for u in of))
        made.of = of
        return made


@dataclass(frozen=True, slots=True)
class Size:
    """The sum of *terms*, products of unknowns with coefficients, at least one of which has an unknown."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: int | Size) -> int | Size:
        return total((*self.terms, *terms_of(other)))

    def __mul__(self, other: int | Size) -> int | Size:
        pairs = ((a, j, b, k) for a, j in self.terms for b, k in terms_of(other))
        return total((tuple(sorted((*a, *b))), j * k) for a, j, b, k in pairs)

    def __floordiv__(self, d: int) -> int | Size:
        if (found := floor(self, d)) is None:
            raise Beyond(f"whether {d} divides {self} depends on the sizes")
        return found

    def __mod__(self, d: int) -> int | Size:
        return self - d * (self // d)

    def __neg__(self) -> int | Size:
        return self * -1

    def __sub__(self, other: int | Size) -> int | Size:
        return self + -other

    def __rsub__(self, other: int) -> int | Size:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def unordered(self, other: object) -> bool:
        raise Beyond(f"whether {self} is below {other} depends on the sizes")

    __lt__ = __le__ = __gt__ = __ge__ = unordered

    def __str__(self) -> str:
        return "+".join(f"{k}*{Symbol(of)}" if of else str(k) for of, k in self.terms)


def total(terms: Iterable[tuple[Monomial, int]]) -> int | Size:
    """The sum of *terms*, an integer if it has no unknowns."""
    out: dict[Monomial, int] = {}
    for of, k in terms:
        out[of] = out.get(of, 0) + k
    kept = tuple(sorted((of, k) for of, k in out.items() if k))
    return Size(kept) if any(of for of, _ in kept) else out.get((), 0)


def terms_of(n: int | Size) -> tuple[tuple[Monomial, int], ...]:
    return n.terms if isinstance(n, Size) else (((), n),)


def floor(n: int | Size, d: int) -> int | Size | None:
    """⌊n / d⌋ for all sizes; None if that is no polynomial."""
    if isinstance(n, int):
        return n // d
    whole = all(k % d == 0 for of, k in n.terms if of)
    return total((of, k // d) for of, k in n.terms) if whole else None


def quotient_range(lo: int | Size, hi: int | Size, d: int) -> tuple[int | Size, int | Size]:
    """A closed interval that holds ⌊n / d⌋ for all n from *lo* to *hi*."""
    least, most = floor(lo, d), floor(hi, d)
    if (least is None and not natural(lo)) or (most is None and not natural(hi)):
        raise Beyond(f"whether {lo} or {hi} is negative depends on the sizes")
    return least or 0, hi if most is None else most


def natural(n: int | Size) -> bool:
    """Whether *n* is at least 0 for all sizes, provably."""
    if isinstance(n, int):
        return n >= 0
    above: dict[Monomial, int] = {}
    for of, k in n.terms:  # Π (first + more), multiplied out
        for chosen in (c for m in range(len(of) + 1) for c in combinations(range(len(of)), m)):
            more = tuple(of[i] for i in chosen)
            above[more] = above.get(more, 0) + k * prod(u.first for i, u in enumerate(of) if i not in chosen)
    return all(k >= 0 for k in above.values())


def form_of(n: int | Size) -> dict[str, int]:
    """*n* as a form: a sum over symbols, with the constant at ``""``."""
    return {"": 0} | {Symbol(of) if of else "": k for of, k in terms_of(n)}


def facts(symbols: Iterable[Symbol]) -> tuple[set[Symbol], list[str]]:
    """The parameters of isl that *symbols* need, and what is known of them: (a - a₀)(b - b₀) >= 0 of a product a·b."""
    every = {*symbols}
    every |= {Symbol((u,)) for symbol in every for u in symbol.of}
    rows = [f"{symbol} >= {prod(u.first for u in symbol.of)}" for symbol in every]
    alone = [symbol for symbol in every if len(symbol.of) == 1]
    rows += [f"{symbol} <= {symbol.of[0].last}" for symbol in alone if symbol.of[0].last is not None]
    for symbol in every:
        if len(symbol.of) == 2:
            a, b = symbol.of
            rows.append(f"{symbol} - {b.first}*{Symbol((a,))} - {a.first}*{Symbol((b,))} + {a.first * b.first} >= 0")
    return every, rows


def parameter(n: int, guards: Iterable[tuple[str, int, int]]) -> int | Size:
    """The parameter number *n* with *guards*: ``(">=", least, 0)``, ``("<=", most, 0)``, ``("%", modulus, remainder)``.

    Raises ValueError for several remainders, and where no number is left.
    """
    least, modulus, rest, most = 1, 1, 0, list[int]()
    for op, a, b in guards:
        if op == ">=":
            least = max(least, a)
        elif op == "<=":
            most.append(a)
        elif modulus == 1 and 0 <= b < a:
            modulus, rest = a, b
        else:
            raise ValueError("expected one remainder of a parameter")
    first, last = -((rest - least) // modulus), (min(most) - rest) // modulus if most else None
    if last is not None and last < first:
        raise ValueError("expected a size that fulfils all assumptions")
    return total((((Unknown(n, first, last),), modulus), ((), rest)))
