r"""Additivity: the sum of a sum is the sum of the sums, with products multiplied out.

.. math::
   \mathop{L}_{\vec x} \sum_{\vec y} g\, (f_1 + f_2)
   \;\mapsto\;
   \mathop{L}_{\vec x} \Big\{ \mathop{L} \sum_{\vec y} g\, f_1 \Big\} + \Big\{ \mathop{L} \sum_{\vec y} g\, f_2 \Big\}

Without a summation, a product with a sum is multiplied out.  Each sum has the traversals that it depends on, so
:math:`Q (K + b)^T` is :math:`Q K^T` and a column, and the shift of a normalisation is a product of weights.  Sums that
are multiplied out may be larger than their product and cancel: the level is ``approximate``.
"""

from __future__ import annotations

from dataclasses import replace

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import has_finite_padding, quotient_factors
from einnet_explore.ir import Apply, Const, Path, Program, Scalar, Scope, add, mul
from einnet_explore.rules.base import place_rule
from einnet_explore.support.errors import Refused


def rewrite(program: Program, at: Path) -> Program:
    """Apply the law to the first factor that is a sum; refuses another reduction, a domain and infinite paddings."""
    scope = program.scope_at(at)
    if scope.summations and scope.reduce != "sum":
        raise Refused(f"the scope reduces by {scope.reduce}, expected a sum or no reduction")
    if scope.summations and scope.domain:
        raise Refused(f"the scope has a domain, where the inner sums would be read: {scope.domain[0]!r}")
    if not has_finite_padding(scope.body):
        raise Refused("additivity needs finite paddings: 0 times infinity is undefined")
    parts = quotient_factors(scope.body)
    for n, part in enumerate(parts):
        if len(found := _terms(part)) > 1:
            if len(parts) == 1 and not scope.summations:
                break
            products = (mul(*parts[:n], term, *parts[n + 1 :]) for term in found)
            sums = (_summed(scope, product) if scope.summations else product for product in products)
            return program.replace_at(at, replace(scope, summations=(), body=add(*sums)))
    raise Refused("no factor of the body is a sum of terms")


def _terms(body: Scalar) -> tuple[Scalar, ...]:
    match body:
        case Apply("+", args):
            return tuple(term for arg in args for term in _terms(arg))
        case Apply("-", (a, b)):
            return (*_terms(a), *(mul(Const(-1), term) for term in _terms(b)))
        case Apply("neg", (a,)):
            return tuple(mul(Const(-1), term) for term in _terms(a))
    return (body,)


def _summed(scope: Scope, body: Scalar) -> Scalar:
    kept = tuple(x for x in scope.traversals if x in iterators_of(body))
    return Scope(kept, scope.summations, body)[kept]


ADDITIVITY = place_rule(
    "additivity",
    r"\mathop{L}_{\vec x} \sum_{\vec y} g (f_1 + f_2) \mapsto"
    r" \mathop{L}_{\vec x} \{\mathop{L} \sum_{\vec y} g f_1\} + \{\mathop{L} \sum_{\vec y} g f_2\}",
    rewrite,
    "a factor of its sum is a sum of terms",
)
