r"""Polynomial form: a scalar is written as a sum of products of reads and functions, and their reciprocals.

.. math::
   \frac{a\,(b - c)}{2} = \tfrac12\, a\, b - \tfrac12\, a\, c, \qquad
   \frac{a}{b\,c} = a\, \frac1b\, \frac1c, \qquad
   \max(a, 0) = \mathrm{relu}(a), \qquad \min(a, 0) = -\mathrm{relu}(-a), \qquad a^2 = a\, a

Products are multiplied out, like terms are added, and functions with several names get one of them.  Two spellings of
one polynomial have one form, so that a derivation from both meets there.  The equations hold for all finite numbers;
sums have other terms, which may cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import product
from math import isfinite
from typing import TypeAlias

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.ir import Apply, Compare, Const, Scalar, Scope, add, mul
from einnet_explore.ir.program import with_body
from einnet_explore.rules.base import scope_rule
from einnet_explore.support.errors import Refused

MAX_TERMS = 32
"""The largest number of terms that products are multiplied out to."""

MAX_POWER = 8
"""The largest power that becomes a product."""

Terms: TypeAlias = "Mapping[tuple[Scalar, ...], Fraction]"
"""The coefficient of each product of factors, which are in one order."""

ONE: Terms = {(): Fraction(1)}


def propose(_: Scope) -> Iterable[None]:
    yield None


def rewrite(scope: Scope, _: None) -> Scope:
    found = with_body(scope, _written(_terms(scope.body)))
    if canonical_key(found) == canonical_key(scope):
        raise Refused(f"{scope.body!r} has this form already")
    return found


def _terms(body: Scalar) -> Terms:
    """Return *body* as a sum of products; raises Refused for an infinite constant, and for too many terms."""
    match body:
        case Const(value):
            if not isfinite(value):
                raise Refused(f"the constant {value:g} is not finite")
            return {(): Fraction(value)} if value else {}
        case Apply("+", args):
            return _sum(map(_terms, args))
        case Apply("-", (a, b)):
            return _sum((_terms(a), _scaled(_terms(b), -1)))
        case Apply("neg", (a,)):
            return _scaled(_terms(a), -1)
        case Apply("*", args):
            return _product(map(_terms, args))
        case Apply("/", (a, b)):
            return _product((_terms(a), _reciprocal(_terms(b))))
        case Apply("maximum", (a, b)) if Const(0) in (a, b):
            return _function("relu", a if b == Const(0) else b)
        case Apply("minimum", (a, b)) if Const(0) in (a, b):
            return _scaled(_function("relu", Apply("neg", (a if b == Const(0) else b,))), -1)
        case Apply("rsqrt", (a,)):
            return _reciprocal(_function("sqrt", a))
        case Apply("sigmoid", (a,)):
            return _reciprocal(_sum((ONE, _function("exp", Apply("neg", (a,))))))
        case Apply("tanh", (a,)):
            return _sum((_scaled(_terms(Apply("sigmoid", (mul(Const(2), a),))), 2), _scaled(ONE, -1)))
        case Apply("pow", (a, Const(n))) if n == int(n) and abs(n) <= MAX_POWER:
            power = _product(_terms(a) for _ in range(abs(int(n))))
            return power if n >= 0 else _reciprocal(power)
        case Apply("where", (Compare() as condition, a, b)):
            return {(Apply("where", (condition, _written(_terms(a)), _written(_terms(b)))),): Fraction(1)}
        case Apply(op, args):
            return _function(op, *args)
    return {(body,): Fraction(1)}


def _function(op: str, *args: Scalar) -> Terms:
    return {(Apply(op, tuple(_written(_terms(a)) for a in args)),): Fraction(1)}


def _scaled(terms: Terms, by: int) -> Terms:
    return {factors: k * by for factors, k in terms.items()}


def _sum(parts: Iterable[Terms]) -> Terms:
    total: dict[tuple[Scalar, ...], Fraction] = {}
    for part in parts:
        for factors, k in part.items():
            total[factors] = total.get(factors, Fraction(0)) + k
    return {factors: k for factors, k in total.items() if k}


def _product(parts: Iterable[Terms]) -> Terms:
    made = ONE
    for part in parts:
        if len(made) * len(part) > MAX_TERMS:
            raise Refused(f"a product has {len(made) * len(part)} terms, at most {MAX_TERMS} are multiplied out")
        made = _sum(
            {tuple(sorted((*one, *other), key=repr)): k * m}
            for (one, k), (other, m) in product(made.items(), part.items())
        )
    return made


def _reciprocal(terms: Terms) -> Terms:
    """Return 1 / *terms*: of a product factor by factor, of a sum as one quotient."""
    match list(terms.items()):
        case []:
            raise Refused("the divisor is 0")
        case [(factors, k)]:
            inverse = [_inverse(f) for f in factors]
            return {tuple(sorted(inverse, key=repr)): 1 / k}
    return {(_inverse(_written(terms)),): Fraction(1)}


def _inverse(factor: Scalar) -> Scalar:
    return Apply("/", (Const(1), factor))


def _written(terms: Terms) -> Scalar:
    """Return *terms* as a scalar, in one order; raises Refused for a coefficient that no constant is."""
    return add(*(mul(Const(_number(k)), *factors) for factors, k in sorted(terms.items(), key=repr)))


def _number(k: Fraction) -> float:
    try:
        if Fraction(float(k)) == k:
            return float(k)
    except OverflowError:
        pass
    raise Refused(f"the coefficient {k} is no number in double precision")


POLYNOMIAL_FORM = scope_rule(
    "polynomial_form",
    r"\frac{a\,(b - c)}{2} = \tfrac12\, a\, b - \tfrac12\, a\, c, \quad \max(a, 0) = \mathrm{relu}(a)",
    propose,
    rewrite,
)
