r"""Requantisation: a quantisation undoes the dequantisation with equal scale and zero point.

.. math::
   \operatorname{sat}\Big( \operatorname{round}\Big( \frac{s\, (q - z)}{s} \Big) + z \Big) \;\mapsto\; q

for integers *q* of the type that the result has.  A rounding, a maximum and a minimum of an integer within their bounds
are that integer; so are a quotient and a product with one number, and sums with opposite ones.
"""

from __future__ import annotations

from dataclasses import replace

from einnet_explore.ir import ELEMENT_TYPES, Access, Apply, Const, Path, Program, Scalar, factors, mul, scalar_type
from einnet_explore.rules.base import place_rule
from einnet_explore.support.errors import Refused


def rewrite(program: Program, at: Path) -> Program:
    """Apply the law; refuses a body that is no such function of one integer, or has another type."""
    scope = program.scope_at(at)
    if scope.summations and scope.reduce not in ("max", "min"):
        raise Refused(f"the scope takes the {scope.reduce}, expected a maximum, a minimum or no reduction")
    read, shift = _shifted(scope.body)
    if shift or scope.body == read or scalar_type(read) != scalar_type(scope.body):
        raise Refused(f"{scope.body!r} is no {scalar_type(scope.body)} that is read: it is {read!r} plus {shift}")
    return program.replace_at(at, replace(scope, body=read))


def _shifted(body: Scalar) -> tuple[Access, int]:
    """Return the integer that *body* reads and the number that it adds; raises Refused if it does anything else."""
    match body:
        case Access() if (kind := ELEMENT_TYPES.get(scalar_type(body))) and kind.is_integer:
            return body, 0
        case Apply("+", args):
            numbers = [arg for arg in args if isinstance(arg, Const)]
            rest = [arg for arg in args if not isinstance(arg, Const)]
            if len(rest) == 1 and all(number.value == int(number.value) for number in numbers):
                read, shift = _shifted(rest[0])
                return read, shift + sum(int(number.value) for number in numbers)
        case Apply("-", (part, Const(value))) if value == int(value):
            read, shift = _shifted(part)
            return read, shift - int(value)
        case Apply("/", (product, Const(value) as divisor)) if value and divisor in factors(product):
            parts = list(factors(product))
            parts.remove(divisor)
            return _shifted(mul(*parts))
        case Apply("round", (part,)):
            return _shifted(part)
        case Apply("relu", (part,)):
            return _within(part, 0.0, float("inf"))
        case Apply("maximum", (part, Const(value))) | Apply("maximum", (Const(value), part)):
            return _within(part, value, float("inf"))
        case Apply("minimum", (part, Const(value))) | Apply("minimum", (Const(value), part)):
            return _within(part, float("-inf"), value)
        case Apply(op, (part,)) if op in ELEMENT_TYPES and ELEMENT_TYPES[op].is_integer:
            return _within(part, ELEMENT_TYPES[op].low, ELEMENT_TYPES[op].high)
    raise Refused(f"{body!r} is no rounding or bound of an integer plus a number")


def _within(part: Scalar, low: float, high: float) -> tuple[Access, int]:
    """Return ``_shifted`` of *part*; raises Refused unless all its values are from *low* to *high*."""
    read, shift = _shifted(part)
    kind = ELEMENT_TYPES[scalar_type(read)]
    if kind.low + shift < low or kind.high + shift > high:
        raise Refused(f"{part!r} is from {kind.low + shift} to {kind.high + shift}, expected {low:g} to {high:g}")
    return read, shift


REQUANTISATION = place_rule(
    "requantisation",
    r"\operatorname{sat}\Big( \operatorname{round}\Big( \frac{s\, (q - z)}{s} \Big) + z \Big) \mapsto q",
    rewrite,
    "a quantisation undoes a dequantisation",
)
