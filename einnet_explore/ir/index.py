r"""Index arithmetic: quasi-affine functions of iterators, always in one normal form.

.. math::  c + \sum_i k_i\, a_i, \qquad k_i \neq 0,\ a_1 < a_2 < \dots

where an atom :math:`a_i` is an iterator, a quotient :math:`\lfloor e/d \rfloor` or a remainder
:math:`e \bmod d`.  Building an index simplifies it with the iterators' ranges at hand, so that equal functions
built in different orders are equal values:

* :math:`(d\,a + b)/d = a` and :math:`(d\,a + b) \bmod d = b` for :math:`0 \le b < d`;
* :math:`d\,(e/d) + e \bmod d = e`, and :math:`e - d\,(e/d) = e \bmod d`;
* :math:`(e/a)/b = e/(ab)`, common factors leave quotients and remainders.

Source: EinNet §3 (index operators ``+ - * / %``); division rounds down and the remainder lies in ``[0, d)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import gcd
from typing import TypeAlias

from einnet_explore.ir.node import Node, Shared, node
from einnet_explore.support.limits import MEMO_ENTRIES


class _Arithmetic(Node, metaclass=Shared):
    """``+ - * // %`` of indices, shared by atoms and sums."""

    __slots__ = ()

    def __add__(self, other: IndexLike) -> Index:
        a = as_index(self)  # type: ignore[arg-type]
        if other.__class__ is int:
            return Index(a.terms, a.const + other) if other else a
        b = as_index(other)
        return _sum((*a.terms, *b.terms), a.const + b.const)

    def __radd__(self, other: IndexLike) -> Index:
        return as_index(other) + self

    def __mul__(self, k: int) -> Index:
        a = as_index(self)  # type: ignore[arg-type]
        if k == 1:
            return a
        return Index(tuple([(x, c * k) for x, c in a.terms]), a.const * k) if k else Index()

    def __rmul__(self, k: int) -> Index:
        return self * k

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: IndexLike) -> Index:
        a = as_index(self)  # type: ignore[arg-type]
        if other.__class__ is int:
            return Index(a.terms, a.const - other) if other else a
        b = as_index(other)
        return _sum((*a.terms, *[(x, -k) for x, k in b.terms]), a.const - b.const)

    def __rsub__(self, other: IndexLike) -> Index:
        return as_index(other) - self

    def __floordiv__(self, d: int) -> Index:
        return _divide(as_index(self), d)[0]  # type: ignore[arg-type]

    def __mod__(self, d: int) -> Index:
        return _divide(as_index(self), d)[1]  # type: ignore[arg-type]


@node
class Iterator(_Arithmetic):
    r"""An iterator :math:`x` with its iteration space :math:`[lo, hi)`."""

    name: str
    lo: int
    hi: int

    @property
    def extent(self) -> int:
        """Number of values: ``hi - lo``."""
        return self.hi - self.lo

    def __repr__(self) -> str:
        return self.name


@node
class Quotient(_Arithmetic):
    """floor(numerator / divisor), divisor > 1."""

    numerator: Index
    divisor: int

    def __repr__(self) -> str:
        return f"{_operand(self.numerator)} // {self.divisor}"


@node
class Remainder(_Arithmetic):
    """numerator mod divisor, in [0, divisor), divisor > 1."""

    numerator: Index
    divisor: int

    def __repr__(self) -> str:
        return f"{_operand(self.numerator)} % {self.divisor}"


@node
class Index(_Arithmetic):
    """c + Σ kᵢ·atomᵢ in normal form.  Build it with ``as_index`` and arithmetic, not by hand."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    @property
    def bounds(self) -> tuple[int, int]:
        """The closed interval that holds every value over the iterators' ranges (exact for affine indices)."""
        try:
            return self._memo  # type: ignore[attr-defined, no-any-return]
        except AttributeError:
            lo = hi = self.const
            for atom, k in self.terms:
                a, b = _atom_bounds(atom)
                lo, hi = lo + min(k * a, k * b), hi + max(k * a, k * b)
            object.__setattr__(self, "_memo", (lo, hi))
            return lo, hi

    @property
    def single(self) -> Iterator | None:
        """The iterator this index is, if it is one with coefficient 1 and no offset."""
        match self:
            case Index(((Iterator() as x, 1),), 0):
                return x
        return None

    @property
    def affine(self) -> bool:
        """Whether only iterators occur (no quotient, no remainder)."""
        return all(isinstance(atom, Iterator) for atom, _ in self.terms)

    def coefficient(self, x: Iterator) -> int:
        """The factor of *x* at the top level of the sum (0 if it does not occur there)."""
        for atom, k in self.terms:
            if atom == x:
                return k
        return 0

    @property
    def iterators(self) -> tuple[Iterator, ...]:
        """Every iterator that occurs, also inside quotients and remainders, once, in order of appearance."""
        try:
            return self._own  # type: ignore[attr-defined, no-any-return]
        except AttributeError:
            found = tuple(dict.fromkeys(_iterators(self)))
            object.__setattr__(self, "_own", found)
            return found

    def substitute(self, to: Callable[[Iterator], IndexLike]) -> Index:
        """Replace every iterator at once, simplifying with the new iterators' ranges."""
        return _substitute(self, tuple([as_index(to(x)) for x in self.iterators]))

    @property
    def divisions(self) -> Iterable[Quotient | Remainder]:
        """Every quotient and remainder that occurs, those inside others after them."""
        for atom, _ in self.terms:
            if not isinstance(atom, Iterator):
                yield atom
                yield from atom.numerator.divisions

    def lift(self, d: int) -> int:
        """Return how many times *d* must be added so that the index is never negative, and truncation rounds down."""
        return max(0, -(self.bounds[0] // d))

    def evaluate(self, at: Callable[[Iterator], int]) -> int:
        """The value at one point; works elementwise when *at* returns integer arrays."""
        total = self.const
        for atom, k in self.terms:
            match atom:
                case Iterator():
                    total = total + k * at(atom)
                case Quotient(numerator, d):
                    total = total + k * (numerator.evaluate(at) // d)
                case Remainder(numerator, d):
                    total = total + k * (numerator.evaluate(at) % d)
        return total

    def __repr__(self) -> str:
        parts = [_term(atom, k) for atom, k in self.terms]
        if self.const or not parts:
            parts.append(f"{self.const:+d}")
        text = "".join(parts)
        return text[1:] if text.startswith("+") else text


Atom: TypeAlias = Iterator | Quotient | Remainder
IndexLike: TypeAlias = Index | Iterator | Quotient | Remainder | int


def as_index(x: IndexLike) -> Index:
    """*x* as an index."""
    kind = x.__class__
    if kind is Index:
        return x  # type: ignore[return-value]
    if kind is int:
        return Index((), x)  # type: ignore[arg-type]
    match x:
        case Iterator() | Quotient() | Remainder():
            try:
                return x._memo  # type: ignore[union-attr, no-any-return]
            except AttributeError:
                made = Index(((x, 1),))
                object.__setattr__(x, "_memo", made)
                return made
        case _:
            return Index((), int(x))  # type: ignore[arg-type]


@lru_cache(MEMO_ENTRIES)
def _substitute(index: Index, new: tuple[Index, ...]) -> Index:
    """Replace the iterators of *index*, in the order of ``iterators``, by *new*."""
    to = dict(zip(index.iterators, new, strict=True))
    out: list[tuple[Atom, int]] = []
    const = index.const
    for atom, k in index.terms:
        match atom:
            case Iterator():
                part = to[atom]
            case Quotient(numerator, d):
                part = numerator.substitute(to.__getitem__) // d
            case Remainder(numerator, d):
                part = numerator.substitute(to.__getitem__) % d
        out.extend([(a, c * k) for a, c in part.terms])
        const += part.const * k
    return _sum(tuple(out), const)


def _iterators(index: Index) -> Iterable[Iterator]:
    for atom, _ in index.terms:
        if isinstance(atom, Iterator):
            yield atom
        else:
            yield from _iterators(atom.numerator)


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    match atom:
        case Iterator(_, lo, hi):
            return lo, max(lo, hi - 1)
        case Quotient(numerator, d):
            lo, hi = numerator.bounds
            return lo // d, hi // d
        case Remainder(numerator, d):
            lo, hi = numerator.bounds
            return (lo % d, hi % d) if lo // d == hi // d else (0, d - 1)


def _order(atom: Atom) -> tuple[object, ...]:
    """A total order of atoms that does not depend on hashing."""
    match atom:
        case Iterator(name, lo, hi):
            return (0, name, lo, hi)
        case Quotient(numerator, d):
            kind = 1
        case Remainder(numerator, d):
            kind = 2
    return (kind, d, numerator.const, tuple((_order(a), k) for a, k in numerator.terms))


@lru_cache(MEMO_ENTRIES)
def _sum(terms: tuple[tuple[Atom, int], ...], const: int) -> Index:
    if len(terms) < 2 and (not terms or (terms[0][0].__class__ is Iterator and terms[0][1])):
        return Index(terms, const)
    total: dict[Atom, int] = {}
    digits = False
    for atom, k in terms:
        total[atom] = total.get(atom, 0) + k
        digits = digits or atom.__class__ is not Iterator
    kept = {a: k for a, k in total.items() if k}
    while digits:
        digits = False
        for rewrite in (_recombine, _fold):
            if (found := rewrite(kept)) is not None:
                kept, extra = found
                const += extra
                digits = True
                break
    if len(kept) > 1:
        return Index(tuple(sorted(kept.items(), key=lambda t: _order(t[0]))), const)
    return Index(tuple(kept.items()), const)


Digits: TypeAlias = "tuple[dict[Atom, int], int] | None"


def _recombine(total: dict[Atom, int]) -> Digits:
    """k·(e mod d) + k·d·(e/d) becomes k·e."""
    for atom, k in total.items():
        if isinstance(atom, Remainder):
            twin = _divide(atom.numerator, atom.divisor)[0]
            if twin.terms and all(total.get(q, 0) == k * atom.divisor * c for q, c in twin.terms):
                spent = {atom: -k, **{q: -k * atom.divisor * c for q, c in twin.terms}}
                return _merged(total, spent, atom.numerator, k, -k * atom.divisor * twin.const)
    return None


def _fold(total: dict[Atom, int]) -> Digits:
    """k·e - k·d·(e/d) becomes k·(e mod d), where all of e is there."""
    for atom, kq in total.items():
        if isinstance(atom, Quotient) and kq % atom.divisor == 0:
            k = -kq // atom.divisor
            e = atom.numerator
            if e.terms and all(total.get(a, 0) == k * c for a, c in e.terms):
                spent = {atom: -kq, **{a: -k * c for a, c in e.terms}}
                return _merged(total, spent, _divide(e, atom.divisor)[1], k, -k * e.const)
    return None


def _merged(total: dict[Atom, int], spent: dict[Atom, int], new: Index, k: int, const: int) -> Digits:
    out = dict(total)
    for atom, c in (*spent.items(), *((a, c * k) for a, c in new.terms)):
        out[atom] = out.get(atom, 0) + c
    return {a: c for a, c in out.items() if c}, const + k * new.const


@lru_cache(MEMO_ENTRIES)
def _divide(index: Index, d: int) -> tuple[Index, Index]:
    """(index // d, index % d), each in normal form; *d* is a positive integer."""
    if d <= 0:
        raise ValueError(f"an index is divided by {d}, expected a positive integer")
    lo, hi = index.bounds
    if d == 1:
        return index, Index()
    if lo // d == hi // d:
        return Index((), lo // d), index - (lo // d) * d
    whole = Index(tuple((a, k // d) for a, k in index.terms if k % d == 0), index.const // d)
    rest = Index(tuple((a, k) for a, k in index.terms if k % d), index.const % d)
    # k·(e mod a) ≡ k·e modulo d when d divides k·a, at the price of k·a·(e/a) in the quotient.
    for atom, k in rest.terms:
        if isinstance(atom, Remainder) and k * atom.divisor % d == 0:
            opened = rest - atom * k + atom.numerator * k
            borrowed = (atom.numerator // atom.divisor) * (k * atom.divisor // d)
            q, r = _divide(opened, d)
            return whole + q - borrowed, r
    q, r = _digits(rest, d)
    return whole + q, r


def _digits(rest: Index, d: int) -> tuple[Index, Index]:
    lo, hi = rest.bounds
    if lo // d == hi // d:
        return Index((), lo // d), rest - (lo // d) * d
    if len(rest.terms) == 1 and isinstance(rest.terms[0][0], Quotient) and rest.terms[0][1] == 1:
        inner = rest.terms[0][0]
        q, _ = _divide(inner.numerator + rest.const * inner.divisor, inner.divisor * d)
        return q, as_index(Remainder(rest, d))
    # n·a + b with 0 ≤ b < n and n | d leaves as (a / (d/n), n·(a mod d/n) + b).
    for n in sorted({gcd(d, k) for _, k in rest.terms} - {1}, reverse=True):
        high = Index(tuple((a, k // n) for a, k in rest.terms if k % n == 0))
        low = Index(tuple((a, k) for a, k in rest.terms if k % n), rest.const)
        low_lo, low_hi = low.bounds
        if high.terms and low_lo // n == low_hi // n:
            carry = low_lo // n
            q, r = _divide(high + carry, d // n)
            return q, r * n + (low - carry * n)
    # Signs: (e - k·x) mod d and (e + (d-k)·x) mod d are one value; coefficients are kept in [0, d).
    borrowed_terms = tuple((a, k // d) for a, k in rest.terms if k // d)
    if borrowed_terms:
        # New coefficients may let digits recombine: 2·(e/2) - 2·(e mod 2) is 2·(e/2) + e mod 2, that is e, modulo 3.
        turned = _sum(tuple([(a, k % d) for a, k in rest.terms]), rest.const)
        q, r = _divide(turned, d)
        return q + Index(borrowed_terms), r
    return as_index(Quotient(rest, d)), as_index(Remainder(rest, d))


def _operand(index: Index) -> str:
    text = repr(index)
    return text if index.single or (not index.terms and index.const >= 0) else f"({text})"


def _term(atom: Atom, k: int) -> str:
    text = repr(atom)
    sign = "-" if k < 0 else "+"
    if abs(k) != 1:
        text = f"{abs(k)}*{text}" if isinstance(atom, Iterator) else f"{abs(k)}*({text})"
    elif not isinstance(atom, Iterator) and sign == "-":
        text = f"({text})"
    return f"{sign}{text}"
