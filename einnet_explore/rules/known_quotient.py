r"""Known quotient: factors that are known at compile time are divided by a known divisor, term by term, and back.

.. math::  \frac{\sum_i k_i\, x_i}{s} = \sum_i \frac{k_i}{s}\, x_i

Known are constants and what reads weights only.  The quotient of both is then computed once, and an element takes a
product in place of a quotient: the scale of a requantisation is :math:`s_x s_w / s_y`, as runtimes compute it.
"""

from __future__ import annotations

from einnet_explore.analysis.products import reads_weights
from einnet_explore.ir import Apply, Scalar, add, factors, mul, terms
from einnet_explore.rules.base import function_rule
from einnet_explore.support.errors import Refused


def _apart(body: Apply) -> Scalar:
    """Return (k·x + …)/s as (k/s)·x + …."""
    match body:
        case Apply("/", (total, divisor)) if reads_weights(divisor):
            split = [_split(term) for term in terms(total)]
            if all(known for known, _ in split) and any(rest for _, rest in split):
                return add(*(mul(Apply("/", (mul(*known), divisor)), *rest) for known, rest in split))
    raise Refused(f"{body!r} is no quotient of products, of known and other factors, by a known divisor")


def _split(term: Scalar) -> tuple[list[Scalar], list[Scalar]]:
    """Return the factors of *term* that are known, and the others."""
    known = [part for part in factors(term) if reads_weights(part)]
    return known, [part for part in factors(term) if not reads_weights(part)]


def _together(body: Apply) -> Scalar:
    """Return (k/s)·x + … as (k·x + …)/s."""
    products, divisors = [], []
    for term in terms(body):
        for part in factors(term):
            match part:
                case Apply("/", (known, divisor)) if reads_weights(part) and part is not body:
                    products.append(mul(known, *(other for other in factors(term) if other is not part)))
                    divisors.append(divisor)
                    break
    if products and len(products) == len(terms(body)) and all(d == divisors[0] for d in divisors):
        return Apply("/", (add(*products), divisors[0]))
    raise Refused(f"{body!r} has no product of a known quotient and other factors in each term, by one divisor")


KNOWN_QUOTIENT = function_rule(
    "known_quotient", r"\frac{\sum_i k_i\, x_i}{s} = \sum_i \frac{k_i}{s}\, x_i", _apart, _together
)
