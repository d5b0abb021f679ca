r"""The monoid behind a softmax-weighted sum, and the law that lets its columns be met in any blocks.

A list of pairs (z, x), scores and values, has the triple

.. math::
   h\big([(z_1, x_1), \dots]\big) = (m, s, v), \qquad
   m = \max_w z_w, \quad s = \sum_w e^{z_w - m}, \quad v = \sum_w e^{z_w - m}\, x_w,

and the answer :math:`v / s`.  Triples form a commutative monoid,

.. math::
   (m_1, s_1, v_1) \oplus (m_2, s_2, v_2)
   = \big(m,\; e^{m_1 - m} s_1 + e^{m_2 - m} s_2,\; e^{m_1 - m} v_1 + e^{m_2 - m} v_2\big), \quad m = \max(m_1, m_2),

with the neutral element :math:`(-\infty, 0, 0)`, and `h` is a homomorphism: :math:`h(a ⧺ b) = h(a) \oplus h(b)`.  Of
the exponential nothing is needed but :math:`e^{a+b} = e^a e^b`, so every function with this law serves to check it:
here :math:`t \mapsto b^t` over the integers, with rational `b`, where all values are exact.

Sources: M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018; R. Bird, An introduction to the
theory of lists, 1987 (homomorphisms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce
from itertools import product
from typing import Generic, TypeVar

M = TypeVar("M")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Monoid(Generic[M]):
    """A binary operation and its neutral element, which are to be associative and neutral: ``broken`` tells."""

    name: str
    neutral: M
    combine: Callable[[M, M], M]

    def fold(self, values: Iterable[M]) -> M:
        """All of *values*, combined from the left."""
        return reduce(self.combine, values, self.neutral)


@dataclass(frozen=True, slots=True)
class Homomorphism(Generic[E, M]):
    """What a list is *whole*, and the *monoid* in which its parts are to be combined: *single* is of one element."""

    monoid: Monoid[M]
    single: Callable[[E], M]
    whole: Callable[[Sequence[E]], M]

    def in_blocks(self, blocks: Iterable[Sequence[E]]) -> M:
        """The whole of a list cut into *blocks*, from those of the blocks."""
        return self.monoid.fold(self.whole(block) for block in blocks)


@dataclass(frozen=True, slots=True)
class Triple:
    """(m, s, v); *largest* is None for −∞."""

    largest: int | None
    total: Fraction
    weighted: Fraction


Pair = tuple[int, Fraction]


@cache
def softmax_homomorphism(base: Fraction = Fraction(2)) -> Homomorphism[Pair, Triple]:
    """The homomorphism of softmax-weighted sums where the exponential is :math:`base^t`; *base* is positive.

    Raises ValueError for a base for which that is no function with the law.
    """
    if base <= 0:
        raise ValueError(f"base {base}: expected a positive number, so that no power is 0")

    def power(a: int | None, largest: int) -> Fraction:
        return Fraction(0) if a is None else base ** (a - largest)

    def combine(a: Triple, b: Triple) -> Triple:
        here = [t.largest for t in (a, b) if t.largest is not None]
        if not here:
            return Triple(None, a.total + b.total, a.weighted + b.weighted)
        top = max(here)
        one, other = power(a.largest, top), power(b.largest, top)
        return Triple(top, one * a.total + other * b.total, one * a.weighted + other * b.weighted)

    def whole(pairs: Sequence[Pair]) -> Triple:
        if not pairs:
            return neutral
        top = max(z for z, _ in pairs)
        powers = [power(z, top) for z, _ in pairs]
        weighted = sum((p * x for p, (_, x) in zip(powers, pairs, strict=True)), start=Fraction(0))
        return Triple(top, sum(powers, start=Fraction(0)), weighted)

    neutral = Triple(None, Fraction(0), Fraction(0))
    return Homomorphism(Monoid("softmax", neutral, combine), lambda e: Triple(e[0], Fraction(1), e[1]), whole)


def not_neutral(monoid: Monoid[M], values: Iterable[M]) -> str | None:
    """The first of *values* that the neutral element changes; None where there is none."""
    for a in values:
        if monoid.combine(monoid.neutral, a) != a or monoid.combine(a, monoid.neutral) != a:
            return f"{monoid.neutral} is not neutral for {a}"
    return None


def not_associative(monoid: Monoid[M], values: Sequence[M]) -> str | None:
    """The first three of *values* that combine differently in the two orders; None where there are none."""
    for a, b, c in product(values, repeat=3):
        left, right = monoid.combine(monoid.combine(a, b), c), monoid.combine(a, monoid.combine(b, c))
        if left != right:
            return f"({a} + {b}) + {c} is {left}, but {a} + ({b} + {c}) is {right}"
    return None


def not_homomorphic(law: Homomorphism[E, M], lists: Sequence[Sequence[E]]) -> str | None:
    """The first two of *lists* whose whole is not that of their wholes, or an element that is no whole; else None."""
    for one in lists:
        for e in one:
            if law.single(e) != law.whole([e]):
                return f"{e} by itself is {law.whole([e])}, expected {law.single(e)}"
    for one, other in product(lists, repeat=2):
        found, expected = law.monoid.combine(law.whole(one), law.whole(other)), law.whole([*one, *other])
        if found != expected:
            return f"{one} and {other} combine to {found}, the whole is {expected}"
    return None


def find_violated_law(law: Homomorphism[E, M], lists: Sequence[Sequence[E]]) -> str | None:
    """What of the laws fails on *lists*, exactly: None where they hold, and blocks may be combined in any brackets."""
    values = [law.whole(one) for one in lists]
    return not_neutral(law.monoid, values) or not_associative(law.monoid, values) or not_homomorphic(law, lists)


LISTS: Sequence[Sequence[Pair]] = (
    (),
    ((0, Fraction(1)),),
    ((3, Fraction(-2)), (-1, Fraction(1, 3))),
    ((-4, Fraction(5)), (2, Fraction(7)), (2, Fraction(-1, 2))),
    ((9, Fraction(0)), (-9, Fraction(11, 4)), (1, Fraction(1))),
)
"""Lists on which the law is checked exactly: the empty one, equal scores, and maxima on either side."""

BASES = (Fraction(2), Fraction(3, 5))


@cache
def softmax_is_broken() -> str | None:
    """What of the law fails on ``LISTS``, exactly; None where it holds."""
    return next(
        (why for base in BASES if (why := find_violated_law(softmax_homomorphism(base), LISTS)) is not None), None
    )
