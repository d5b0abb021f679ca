"""Arrays over the field of integers modulo the prime :math:`2^{31}-1`."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import isinf, isnan, prod

import numpy as np

from einnet_explore.algebra import parts
from einnet_explore.algebra.numbers import rounded
from einnet_explore.algebra.parts import Array, Part

PRIME = (1 << 31) - 1
LOW, HIGH = -1, PRIME
"""What stands for the infinities, which only maxima and minima may meet."""

_LIMB = 16
_CHUNK = 1 << 20
"""Products of limbs that a float sum holds exactly: 2³² · 2²⁰ < 2⁵³."""


def contract(a: Array, b: Array, axes: frozenset[int]) -> Array:
    """Σ over *axes* of a · b modulo ``PRIME``; residues are split into limbs, whose sums floats hold exactly."""
    own = [tuple(i for i in axes if y.shape[i] == 1 != x.shape[i]) for x, y in ((a, b), (b, a))]
    a, b = (x.sum(axis=over, keepdims=True) % PRIME if over else x for x, over in zip((a, b), own, strict=True))
    inner = [i for i in axes if a.shape[i] != 1]
    if not inner:
        return a * b % PRIME
    if prod(a.shape[i] for i in inner) > _CHUNK:
        i = max(inner, key=lambda i: a.shape[i])
        low, high = np.array_split(np.arange(a.shape[i]), 2)
        return (
            contract(a.take(low, i), b.take(low, i), axes) + contract(a.take(high, i), b.take(high, i), axes)
        ) % PRIME
    limbs = [[Part(x >> _LIMB, 1 << _LIMB), Part(x & ((1 << _LIMB) - 1), 1 << _LIMB)] for x in (a, b)]
    high_low, low_low = [[parts.contract(x, y, axes).array for y in limbs[1]] for x in limbs[0]]
    top, middle = high_low[0] % PRIME, (high_low[1] + low_low[0]) % PRIME
    return ((top << _LIMB) % PRIME * (1 << _LIMB) + (middle << _LIMB) + low_low[1]) % PRIME


def power(a: Array, n: int) -> Array:
    """aⁿ modulo ``PRIME``; 0 to the -1 counts as 0."""
    out = np.ones_like(a)
    for bit in f"{n:b}":
        out = out * out % PRIME
        out = out * a % PRIME if bit == "1" else out
    return out


def number(value: float | Fraction) -> int:
    """A constant as a residue: fractions, and floats that stand for simple ones, are quotients in the field."""
    if isnan(value):
        raise ValueError("a constant is not a number")
    if isinf(value):
        return HIGH if value > 0 else LOW
    exact = Fraction(rounded(Fraction(value)))
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def finite(values: Iterable[Array]) -> None:
    """Raise ValueError where an infinity would be calculated with."""
    for v in values:
        if v.size and (v.min() == LOW or v.max() == HIGH):
            raise ValueError("an infinity is calculated with modulo a prime")
