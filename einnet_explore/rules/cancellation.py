r"""Cancellation: opposite terms of a sum vanish, and exponentials that are factors of a numerator and a denominator.

.. math::
   \mathop{L}_{\vec x} f(a + c - c) \mapsto \mathop{L}_{\vec x} f(a), \qquad
   \mathop{L}_{\vec x} \frac{a\, e^c}{b\, e^c} \mapsto \mathop{L}_{\vec x} \frac{a}{b}

The terms must be finite, since :math:`\infty - \infty` is no number: constants, paddings and results of equations that
may be infinite are refused.  A factor must be nonzero everywhere, as :math:`e^c` is (:math:`e^c e^{-c} = 1`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einnet_explore.equivalence.assumptions import Assumptions, infinite_results
from einnet_explore.ir import Apply, Const, Path, Program, Scalar, add, factors, mul
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.rules.base import place_rule
from einnet_explore.support.errors import Refused


def rewrite(program: Program, at: Path) -> Program:
    """Apply the law to every part of the body; refuses a body in which nothing cancels."""
    scope = program.scope_at(at)
    body = _Canceller(infinite_results([program.equations])).simplified(scope.body)
    if body == scope.body:
        raise Refused("no two finite terms are opposite, and no exponential is a factor above and below a line")
    return program.replace_at(at, replace(scope, body=body))


@dataclass(frozen=True, slots=True)
class _Canceller:
    given: Assumptions

    def simplified(self, body: Scalar) -> Scalar:
        """Return *body* with its arguments simplified, and then itself."""
        if not isinstance(body, Apply):
            return body
        args = tuple(map(self.simplified, body.args))
        if args != body.args:
            body = Apply(body.op, args)
        match body:
            case Apply("+" | "-"):
                signed = _signed_terms(body)
                kept = self._without_pairs(signed)
                return body if len(kept) == len(signed) else _total(kept)
            case Apply("/", (a, b)):
                above, below = list(factors(a)), list(factors(b))
                for factor in factors(b):
                    if _is_unit(factor) and not self.given.unsure(factor) and factor in above:
                        above.remove(factor)
                        below.remove(factor)
                if len(above) < len(factors(a)):
                    return Apply("/", (mul(*above), mul(*below))) if below else mul(*above)
        return body

    def _without_pairs(self, signed: Sequence[tuple[bool, Scalar]]) -> list[tuple[bool, Scalar]]:
        kept: list[tuple[bool, Scalar]] = []
        for positive, term in signed:
            if (not positive, term) in kept and not self.given.unsure(term):
                kept.remove((not positive, term))
            else:
                kept.append((positive, term))
        return kept


def _signed_terms(body: Scalar) -> list[tuple[bool, Scalar]]:
    """Return the terms of *body*, each with whether it is added."""
    match body:
        case Apply("+", args):
            return [term for arg in args for term in _signed_terms(arg)]
        case Apply("-", (a, b)):
            return [*_signed_terms(a), *_opposite_terms(b)]
        case Apply("neg", (a,)):
            return _opposite_terms(a)
    return [(True, body)]


def _opposite_terms(body: Scalar) -> list[tuple[bool, Scalar]]:
    return [(not positive, term) for positive, term in _signed_terms(body)]


def _total(signed: Sequence[tuple[bool, Scalar]]) -> Scalar:
    added, taken = ([term for positive, term in signed if positive is wanted] for wanted in (True, False))
    if not taken:
        return add(*added) if added else Const(0)
    return Apply("-", (add(*added), add(*taken))) if added else Apply("neg", (add(*taken),))


def _is_unit(factor: Scalar) -> bool:
    """Whether *factor* is never 0: f(c) · f(-c) = f(0) = 1."""
    return isinstance(factor, Apply) and SCALAR_FUNCTIONS[factor.op].homomorphism == ("+", "*")


CANCELLATION = place_rule(
    "cancellation",
    r"\mathop{L}_{\vec x} f(a + c - c) \mapsto \mathop{L}_{\vec x} f(a)",
    rewrite,
    "opposite terms or equal exponentials cancel",
)
