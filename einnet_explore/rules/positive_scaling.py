r"""Positive scaling: a constant factor k > 0 moves out of a function of degree *d* (Euler), and back in if *d* is 1.

.. math::
   f(k\, x) = k^d f(x): \qquad
   \mathrm{relu}(k x) = k\, \mathrm{relu}(x), \qquad |k x| = k\, |x|, \qquad \sqrt{k x} = \sqrt k \sqrt x, \qquad
   \max(k x, k y) = k \max(x, y)

``ir/scalar_functions.py`` lists these functions and their degrees.  The equations hold for all real numbers; products
are rounded at other places.  Constants are divided only if the quotient is exact in binary.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf, isfinite

from einnet_explore.ir import Apply, Const, Scalar, factors, mul, split_constants
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.rules.base import function_rule
from einnet_explore.support.errors import Refused


def _outside(body: Apply) -> Scalar:
    """Return f(k·x) as k^d · f(x)."""
    size, args = _common_scale(body)
    return mul(Const(_power(body.op, size)), Apply(body.op, args))


def _inside(body: Apply) -> Scalar:
    """Return k · f(x) as f(k·x), for the first function of a product with a constant."""
    constants, others = split_constants(factors(body))
    images = [f for f in others if isinstance(f, Apply) and SCALAR_FUNCTIONS[f.op].degree is not None]
    if body.op != "*" or not constants or not images:
        raise Refused(f"{body!r} is no product of a constant and a function of some degree")
    if len(constants) > 1:
        raise Refused(f"{body!r} has {len(constants)} constants, whose product is no number in binary")
    image, (k,) = images[0], constants
    if not 0 < k < inf:
        raise Refused(f"the constant {k:g} is not positive and finite")
    if (degree := SCALAR_FUNCTIONS[image.op].degree) != 1:
        raise Refused(f"{image.op} has the degree {degree}, expected 1")
    inside = Apply(image.op, tuple(mul(Const(k), arg) for arg in image.args))
    return mul(*(inside if f is image else f for f in others))


def _common_scale(body: Apply) -> tuple[float, tuple[Scalar, ...]]:
    """Return the constant k > 0 that is a factor of every argument, and the arguments without it."""
    sizes = {_size(arg) for arg in body.args if not isinstance(arg, Const)}
    if len(sizes) != 1 or not isfinite(size := max(sizes)) or size in (0, 1):
        raise Refused(f"the arguments of {body.op} have no common constant factor k > 0 other than 1")
    return size, tuple(_divided(arg, size) for arg in body.args)


def _size(arg: Scalar) -> float:
    """The magnitude of the constant factor of *arg*, 1 if there is none, or several."""
    constants, _ = split_constants(factors(arg))
    return abs(constants[0]) if len(constants) == 1 else 1


def _divided(arg: Scalar, k: float) -> Scalar:
    """*arg* / k, where k is the magnitude of its constant factor, or *arg* is a constant."""
    (constant,), others = split_constants(factors(arg))
    if not isfinite(constant) or Fraction(constant / k) * Fraction(k) != Fraction(constant):
        raise Refused(f"{constant:g} / {k:g} is no number in binary")
    return mul(Const(constant / k), *others)


def _power(name: str, k: float) -> float:
    function = SCALAR_FUNCTIONS[name]
    if function.degree is None:
        raise Refused(f"{name} is not homogeneous")
    power = function.scaled_by(Fraction(k))
    if power is None or Fraction(float(power)) != power:
        raise Refused(f"{k:g} to the power {function.degree} is no number in binary")
    return float(power)


POSITIVE_SCALING = function_rule("positive_scaling", r"f(k\, x) = k^d f(x), \qquad k > 0", _outside, _inside)
