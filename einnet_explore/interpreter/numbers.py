"""Numbers of a comparison: rational ones, exact, and the infinities."""

from __future__ import annotations

from fractions import Fraction
from math import isinf
from typing import TypeAlias

Number: TypeAlias = "Fraction | float"

ENDLESS = "∞"
"""What the name of a factor ends with that may be infinite."""

_SIMPLE = 1 << 20


def rounded(k: Number) -> Number:
    """*k*, or the simple fraction within 1e-14 of it: constants that were folded in floating point are one value."""
    if isinf(k) or Fraction(k).denominator <= _SIMPLE:
        return k
    exact = Fraction(k)
    near = exact.limit_denominator(_SIMPLE)
    return near if abs(near - exact) <= abs(exact) / 10**14 else Fraction(f"{float(k):.11e}")
