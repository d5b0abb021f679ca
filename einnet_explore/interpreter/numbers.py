"""Numbers in comparisons: exact rationals and the infinities."""

from __future__ import annotations

from fractions import Fraction
from math import isinf
from typing import TypeAlias

Number: TypeAlias = "Fraction | float"

INFINITE_SUFFIX = "∞"
"""Suffix of the names of factors that may be infinite."""

_SIMPLE = 1 << 20


def simplest_fraction(k: Number) -> Number:
    """Return the simple fraction within 1e-14 of *k*, else *k*; constants folded in floating point compare equal."""
    if isinf(k) or Fraction(k).denominator <= _SIMPLE:
        return k
    exact = Fraction(k)
    near = exact.limit_denominator(_SIMPLE)
    return near if abs(near - exact) <= abs(exact) / 10**14 else Fraction(f"{float(k):.11e}")
