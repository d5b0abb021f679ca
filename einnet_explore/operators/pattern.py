r"""Canonical expressions with free attributes, such as

``Y[n, f, h] = sum[c, r] X[n, c, sh*h + dh*r - ph : H] * K[f, c, r]``

* an index is Σ coefficient·iterator + constant, where coefficients and constants are polynomials of attributes;
  ``|r|`` is the extent of iterator ``r``;
* ``: H`` names the extent of a dimension whose index is composite (an iterator's own dimension has its extent);
* ``b?`` is an iterator that the operator can do without;
* ``A[m, k] or ta[k, m]`` is an operand that may lie in memory in either order, as the attribute ``ta`` says;
* ``where |w| == 2*W + 1`` ties attributes together.

Reads of composite dimensions may lie outside: there they give the neutral element of the reduction.
Source: EinNet §5.1; the operands of a canonical expression are the operator's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Σ coefficient·(product of attributes), sorted by product."""

    terms: tuple[tuple[tuple[str, ...], int], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every attribute that occurs, once."""
        return tuple(dict.fromkeys(name for product, _ in self.terms for name in product))

    def value(self, at: Mapping[str, int]) -> int:
        """The value where all attributes are known; raises KeyError with the name of an unknown one."""
        return sum(_product(k, (at[name] for name in product)) for product, k in self.terms)

    def solve(self, value: int, at: Mapping[str, int]) -> tuple[str, int] | None:
        """The only unknown attribute and what it must be for this to equal *value*; None if that is not decided.

        Raises ValueError where no integer does it.
        """
        unknown = [name for name in self.names if name not in at]
        if len(unknown) != 1:
            return None
        slope = rest = 0
        for product, k in self.terms:
            known = _product(k, (at[name] for name in product if name in at))
            match product.count(unknown[0]):
                case 0:
                    rest += known
                case 1:
                    slope += known
                case _:
                    return None
        if slope == 0:
            return None
        if (value - rest) % slope:
            raise ValueError(
                f"{self!r} = {value} has no integer solution for {unknown[0]} (slope {slope}, rest {rest})"
            )
        return unknown[0], (value - rest) // slope

    def __add__(self, other: Polynomial) -> Polynomial:
        return polynomial((*self.terms, *other.terms))

    def __mul__(self, other: Polynomial) -> Polynomial:
        return polynomial(((*p, *q), a * b) for p, a in self.terms for q, b in other.terms)

    def __repr__(self) -> str:
        text = "".join(
            f" {'-' if k < 0 else '+'} {'*'.join((*((str(abs(k)),) if abs(k) != 1 or not p else ()), *p))}"
            for p, k in self.terms
        )
        return text.removeprefix(" + ").strip() or "0"


ONE = Polynomial((((), 1),))


@dataclass(frozen=True)
class Dimension:
    """One index of an operand: Σ coefficient·iterator + *const*; *extent* is given where the index is composite."""

    terms: tuple[tuple[str, Polynomial], ...]
    const: Polynomial = Polynomial()
    extent: Polynomial | None = None

    @cached_property
    def single(self) -> str | None:
        """The iterator that this index is, if it is one."""
        if len(self.terms) == 1 and self.terms[0][1] == ONE and not self.const.terms and self.extent is None:
            return self.terms[0][0]
        return None

    @property
    def iterators(self) -> tuple[str, ...]:
        """The iterators of the index."""
        return tuple(name for name, _ in self.terms)

    def coefficient(self, iterator: str) -> Polynomial:
        """The factor of *iterator*."""
        return next((k for name, k in self.terms if name == iterator), Polynomial())

    def __repr__(self) -> str:
        parts = [name if k == ONE else f"({k!r})*{name}" for name, k in self.terms]
        return " + ".join((*parts, *((repr(self.const),) if self.const.terms else ())))


@dataclass(frozen=True)
class Operand:
    """One input: its dimensions in memory order, and other orders by the attribute that selects them."""

    name: str
    dimensions: tuple[Dimension, ...]
    variants: tuple[tuple[str, tuple[Dimension, ...]], ...] = ()

    @cached_property
    def iterators(self) -> frozenset[str]:
        """The iterators that occur."""
        return frozenset(self.names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The iterators that occur, in order of appearance."""
        return tuple(dict.fromkeys(name for d in self.dimensions for name in d.iterators))


@dataclass(frozen=True)
class Pattern:
    """A canonical expression.  *op* combines the operands (empty for one alone); *divisor* divides the result."""

    output: str
    traversals: tuple[str, ...]
    reduce: str
    summations: tuple[str, ...]
    op: str
    operands: tuple[Operand, ...]
    divisor: Polynomial
    optional: frozenset[str]
    conditions: tuple[tuple[Polynomial, Polynomial], ...]

    @cached_property
    def iterators(self) -> tuple[str, ...]:
        """Traversals, then summations."""
        return (*self.traversals, *self.summations)

    @cached_property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """(operand, dimension) of every composite index."""
        return tuple(
            (p, d)
            for p, operand in enumerate(self.operands)
            for d, dimension in enumerate(operand.dimensions)
            if dimension.single is None
        )

    @cached_property
    def composite(self) -> str:
        """The composite indices in words."""
        return ", ".join(repr(self.operands[p].dimensions[d]) for p, d in self.windows)

    @cached_property
    def merged(self) -> frozenset[str]:
        """The iterators that only have dimensions of their own: several iterators may be merged into one of these."""
        fixed = {name for p, d in self.windows for name in self.operands[p].dimensions[d].iterators}
        return frozenset(self.iterators) - fixed

    @cached_property
    def attributes(self) -> dict[str, int]:
        """Every free attribute and its least value: 1 for factors of iterators and extents, 0 for offsets."""
        least: dict[str, int] = {}
        for operand in self.operands:
            for dimension in operand.dimensions:
                for _, k in dimension.terms:
                    least.update((name, 1) for name in k.names)
                least.update((name, 1) for name in (dimension.extent or ONE).names)
                least.update((name, 0) for name in dimension.const.names if name not in least)
        return {name: lo for name, lo in least.items() if not name.startswith("|")}


def _product(start: int, values: Iterable[int]) -> int:
    for value in values:
        start *= value
    return start


def polynomial(terms: Iterable[tuple[tuple[str, ...], int]]) -> Polynomial:
    total: dict[tuple[str, ...], int] = {}
    for product, k in terms:
        key = tuple(sorted(product))
        total[key] = total.get(key, 0) + k
    return Polynomial(tuple(sorted((p, k) for p, k in total.items() if k)))
