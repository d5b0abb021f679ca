r"""Homomorphisms: a function of a combination is the combination of the functions, and back.

.. math::
   f(a \circ b) = f(a) \bullet f(b): \qquad e^{a + b} = e^a\, e^b, \qquad |a\, b| = |a|\, |b|

``ir/scalar_functions.py`` lists these functions.  The equations hold for all real numbers.  The exponential of a sum
may be a number where that of a term overflows, so the rule is of the level ``approximate``.  If a term is infinite,
:math:`e^{a + b}` may be a number and :math:`e^a e^b` none; proofs exclude this case, and name the axiom.
"""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.ir import Apply, Scalar, add, factors, mul, terms
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.rules.base import function_rule
from einnet_explore.support.errors import Refused


def _apart(body: Apply) -> Scalar:
    """Return f(a ∘ b) as f(a) • f(b)."""
    function = SCALAR_FUNCTIONS[body.op]
    if function.homomorphism is None:
        raise Refused(f"{body.op} is no homomorphism")
    inside, outside = function.homomorphism
    parts = _parts(inside, body.args[0])
    if len(parts) < 2:
        raise Refused(f"{body.args[0]!r} has one part, expected several with {inside} between them")
    return _joined(outside, (Apply(body.op, (part,)) for part in parts))


def _together(body: Apply) -> Scalar:
    """Return a • b with all values of the first function that has several of them as one value."""
    whole = _parts(body.op, body)
    for function in SCALAR_FUNCTIONS.values():
        if function.homomorphism is not None and function.homomorphism[1] == body.op:
            images = [p for p in whole if isinstance(p, Apply) and p.op == function.name]
            if len(images) > 1:
                one = Apply(function.name, (_joined(function.homomorphism[0], (image.args[0] for image in images)),))
                rest = [p for p in whole if not (isinstance(p, Apply) and p.op == function.name)]
                return _joined(body.op, (*rest, one))
    raise Refused(f"no two parts of {body!r} are values of one homomorphism into {body.op}")


def _parts(op: str, body: Scalar) -> tuple[Scalar, ...]:
    match op, body:
        case "+", Apply("-", (a, b)):
            return (*_parts(op, a), *(Apply("neg", (part,)) for part in _parts(op, b)))
        case "+", Apply("neg", (Apply("+" | "-") as a,)):
            return tuple(Apply("neg", (part,)) for part in _parts(op, a))
    return terms(body) if op == "+" else factors(body) if op == "*" else (body,)


def _joined(op: str, parts: Iterable[Scalar]) -> Scalar:
    return add(*parts) if op == "+" else mul(*parts)


HOMOMORPHISM = function_rule("homomorphism", r"f(a \circ b) = f(a) \bullet f(b)", _apart, _together)
