r"""Known quotient: factors that are known at compile time are divided by a known divisor, and back.

.. math::  \frac{k\, x}{s} = \frac{k}{s}\, x

Known are constants and what reads weights only.  The quotient of both is then computed once, and an element takes a
product in place of a quotient: the scale of a requantisation is :math:`s_x s_w / s_y`, as runtimes compute it.
"""

from __future__ import annotations

from einnet_explore.analysis.products import reads_weights
from einnet_explore.ir import Apply, Scalar, factors, mul
from einnet_explore.rules.base import function_rule
from einnet_explore.support.errors import Refused


def _apart(body: Apply) -> Scalar:
    """Return (k·x)/s as (k/s)·x."""
    match body:
        case Apply("/", (product, divisor)) if reads_weights(divisor):
            known = [part for part in factors(product) if reads_weights(part)]
            rest = [part for part in factors(product) if not reads_weights(part)]
            if known and rest:
                return mul(Apply("/", (mul(*known), divisor)), *rest)
    raise Refused(f"{body!r} is no quotient of a product, of known and other factors, by a known divisor")


def _together(body: Apply) -> Scalar:
    """Return (k/s)·x as (k·x)/s."""
    for part in factors(body):
        match part:
            case Apply("/", (known, divisor)) if reads_weights(part) and part is not body:
                return Apply("/", (mul(known, *(other for other in factors(body) if other is not part)), divisor))
    raise Refused(f"{body!r} is no product of a known quotient and other factors")


KNOWN_QUOTIENT = function_rule("known_quotient", r"\frac{k\, x}{s} = \frac{k}{s}\, x", _apart, _together)
