r"""Softmax-weighted sums in one pass over blocks of columns: recognition, and the law that allows it.

.. math::
   Y[b,m,n] = \frac{\sum_w e^{z(b,m,w) - M}\, V[b,u,n]}{\sum_w e^{z(b,m,w) - M}}, \qquad M = \max_w z(b,m,w)

with :math:`u = w` (full attention) or :math:`u = m + w` (a band), and `z` an elementwise function of band products, of
column values and of reads at (b, m, w).

**The law.**  A list of pairs (z, x), scores and values, has the triple

.. math::
   h\big([(z_1, x_1), \dots]\big) = (m, s, v), \qquad
   m = \max_w z_w, \quad s = \sum_w e^{z_w - m}, \quad v = \sum_w e^{z_w - m}\, x_w,

and the answer :math:`v / s`.  Triples form a commutative monoid,

.. math::
   (m_1, s_1, v_1) \oplus (m_2, s_2, v_2)
   = \big(m,\; e^{m_1 - m} s_1 + e^{m_2 - m} s_2,\; e^{m_1 - m} v_1 + e^{m_2 - m} v_2\big), \quad m = \max(m_1, m_2),

with the neutral element :math:`(-\infty, 0, 0)`, and `h` is a homomorphism: :math:`h(a ⧺ b) = h(a) \oplus h(b)`.  So
columns can be processed block by block in one pass, without an array of the size of `z`.  The only property of the
exponential used is :math:`e^{a+b} = e^a e^b`, so every function with this law serves to check it: here
:math:`t \mapsto b^t` over the integers, with rational `b`, where all values are exact.

Sources: M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018; T. Dao et al., FlashAttention,
2022; R. Bird, An introduction to the theory of lists, 1987 (homomorphisms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import product
from typing import Generic, TypeVar

from einnet_explore.analysis.row_nest import (
    ReducedNode,
    RowNest,
    RowNode,
    match_dense_product,
    match_row_nest,
    node_name,
    read_nodes,
)
from einnet_explore.ir import Access, Apply, Scalar, Scope, Tensor, map_accesses
from einnet_explore.support.errors import Refused

LOWEST_SCORE = -3.4028234663852886e38
"""Lower than every score but −∞, and finite: the difference of two such is 0."""

M = TypeVar("M")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Monoid(Generic[M]):
    """A binary operation and its neutral element; ``check_laws`` verifies that it is a monoid."""

    name: str
    neutral: M
    combine: Callable[[M, M], M]

    def fold(self, values: Iterable[M]) -> M:
        """Combine *values* from the left."""
        return reduce(self.combine, values, self.neutral)


@dataclass(frozen=True, slots=True)
class Homomorphism(Generic[E, M]):
    """A function *whole* of lists into *monoid*, and its value *single* of one element."""

    monoid: Monoid[M]
    single: Callable[[E], M]
    whole: Callable[[Sequence[E]], M]

    def in_blocks(self, blocks: Iterable[Sequence[E]]) -> M:
        """Combine the values of the *blocks* of a list."""
        return self.monoid.fold(self.whole(block) for block in blocks)


@dataclass(frozen=True, slots=True)
class Triple:
    """(m, s, v); *largest* is None for −∞."""

    largest: int | None
    total: Fraction
    weighted: Fraction


Pair = tuple[int, Fraction]


@lru_cache(maxsize=16)
def softmax_homomorphism(base: Fraction = Fraction(2)) -> Homomorphism[Pair, Triple]:
    """Return the homomorphism of softmax-weighted sums with the exponential :math:`base^t`; *base* is positive.

    Raises ValueError for other bases, which violate the law.
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

    def triple_of(pairs: Sequence[Pair]) -> Triple:
        if not pairs:
            return neutral
        top = max(z for z, _ in pairs)
        powers = [power(z, top) for z, _ in pairs]
        weighted = sum((p * x for p, (_, x) in zip(powers, pairs, strict=True)), start=Fraction(0))
        return Triple(top, sum(powers, start=Fraction(0)), weighted)

    neutral = Triple(None, Fraction(0), Fraction(0))
    return Homomorphism(Monoid("softmax", neutral, combine), lambda e: Triple(e[0], Fraction(1), e[1]), triple_of)


def check_neutral(monoid: Monoid[M], values: Iterable[M]) -> None:
    """Raise Refused with the first of *values* that the neutral element changes."""
    for a in values:
        if monoid.combine(monoid.neutral, a) != a or monoid.combine(a, monoid.neutral) != a:
            raise Refused(f"{monoid.neutral} is not neutral for {a}")


def check_associative(monoid: Monoid[M], values: Sequence[M]) -> None:
    """Raise Refused with the first three of *values* that combine differently in the two orders."""
    for a, b, c in product(values, repeat=3):
        left, right = monoid.combine(monoid.combine(a, b), c), monoid.combine(a, monoid.combine(b, c))
        if left != right:
            raise Refused(f"({a} + {b}) + {c} is {left}, but {a} + ({b} + {c}) is {right}")


def check_homomorphic(law: Homomorphism[E, M], lists: Sequence[Sequence[E]]) -> None:
    """Raise Refused with the first two of *lists* that do not combine to their whole, or such an element."""
    for one in lists:
        for e in one:
            if law.single(e) != law.whole([e]):
                raise Refused(f"{e} by itself is {law.whole([e])}, expected {law.single(e)}")
    for one, other in product(lists, repeat=2):
        found, expected = law.monoid.combine(law.whole(one), law.whole(other)), law.whole([*one, *other])
        if found != expected:
            raise Refused(f"{one} and {other} combine to {found}, the whole is {expected}")


def check_laws(law: Homomorphism[E, M], lists: Sequence[Sequence[E]]) -> None:
    """Raise Refused unless the laws hold on *lists*, exactly; then blocks may be combined in any grouping."""
    values = [law.whole(one) for one in lists]
    check_neutral(law.monoid, values)
    check_associative(law.monoid, values)
    check_homomorphic(law, lists)


LISTS: Sequence[Sequence[Pair]] = (
    (),
    ((0, Fraction(1)),),
    ((3, Fraction(-2)), (-1, Fraction(1, 3))),
    ((-4, Fraction(5)), (2, Fraction(7)), (2, Fraction(-1, 2))),
    ((9, Fraction(0)), (-9, Fraction(11, 4)), (1, Fraction(1))),
)
"""Lists on which the law is checked exactly: the empty one, equal scores, and maxima on either side."""

BASES = (Fraction(2), Fraction(3, 5))


@lru_cache(maxsize=1)
def check_softmax_laws() -> None:
    """Raise Refused unless the laws hold on ``LISTS``, exactly."""
    for base in BASES:
        check_laws(softmax_homomorphism(base), LISTS)


@dataclass(frozen=True)
class OnlineSoftmax:
    r"""The rows of *nest* with the score `z`; node number *total* is :math:`\sum_w e^{z - M}`."""

    nest: RowNest
    score: Scalar
    total: int | None


def row_work(scope: Scope) -> OnlineSoftmax | RowNest | None:
    """Match *scope* as a softmax-weighted sum, else as other work on rows; None if it is neither."""
    found = match_row_nest(scope)
    try:
        return _match_weighted_sum(scope, found)
    except Refused:
        return found


def match_online_softmax(scope: Scope) -> OnlineSoftmax:
    """Match *scope* as a softmax-weighted sum; raises Refused with the missing part."""
    return _match_weighted_sum(scope, match_row_nest(scope))


def _match_weighted_sum(scope: Scope, rows: RowNest | None) -> OnlineSoftmax:
    found = match_dense_product(scope) if rows is None or rows.product is None else rows
    if found is None or found.product is None:
        raise Refused("no row values, of a band or of every column, are summed with a matrix over the columns")
    match _inline_rows(found, found.result):
        case Apply("exp", (Apply("-", (score, Access(Tensor(called), ()))),)) if called.startswith("#"):
            return _check_reductions(found, score, called)
    raise Refused("the summed value is no exponential of the difference to a maximum")


def _check_reductions(nest: RowNest, score: Scalar, called: str) -> OnlineSoftmax:
    reductions = {node_name(n): node for n, node in enumerate(nest.nodes) if isinstance(node, ReducedNode)}
    largest = reductions.pop(called, None)
    if largest is None or largest.reduce != "max" or _inline_rows(nest, largest.body) != score:
        raise Refused(f"{called} is not the largest of what the exponential is of")
    if any(n in (called, *reductions) for n in _names(score)):
        raise Refused("the argument of the exponential depends on another reduction")
    if called in _names(nest.scale):
        raise Refused("the result is scaled by the maximum, so it depends on rounding only")
    power = _inline_rows(nest, nest.result)
    for other, node in reductions.items():
        if node.reduce != "sum" or _inline_rows(nest, node.body) != power:
            raise Refused(f"{other} is not the sum of the exponentials")
    if len(reductions) > 1:
        raise Refused(f"{len(reductions)} sums are taken, expected one")
    return OnlineSoftmax(nest, score, next((int(n[1:]) for n in reductions), None))


def _names(body: Scalar) -> Iterable[str]:
    return tuple(node_name(n) for n in read_nodes(body))


def _inline_rows(nest: RowNest, body: Scalar) -> Scalar:
    """Replace the rows that *body* reads by their expressions."""

    def inline(access: Access) -> Scalar:
        match access.source:
            case Tensor(called) if called.startswith("#"):
                node = nest.nodes[int(called[1:])]
                return _inline_rows(nest, node.body) if isinstance(node, RowNode) else access
        return access

    return map_accesses(body, inline)
