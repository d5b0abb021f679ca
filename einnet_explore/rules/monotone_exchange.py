r"""Monotone exchange: a monotone function moves out of a maximum or minimum.

.. math::
   \mathop{L}_{\vec x} \max_{\vec y} f\big(g(\vec x, \vec y), c(\vec x)\big)
   \;\mapsto\;
   \mathop{L}_{\vec x} f\Big(\big\{\mathop{L}_{\vec z} \max_{\vec y} g\big\}[\vec z],\, c(\vec x)\Big)

for *f* that increases in its first argument on all real numbers: sums, products with a constant :math:`k > 0`, and the
functions with ``is_increasing`` (``ir/scalar_functions.py``).  A function that decreases, as a product with
:math:`k < 0`, exchanges maximum and minimum.  All functions that can move do, the outermost first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import has_finite_padding
from einnet_explore.ir import Apply, Iterator, Path, Program, Scalar, Scope, add, mul
from einnet_explore.ir.scalar_functions import monotonicity
from einnet_explore.rules.base import place_rule
from einnet_explore.support.errors import Refused

_OTHER = {"max": "min", "min": "max"}


def rewrite(program: Program, at: Path) -> Program:
    """Apply the law; refuses another reduction, a domain, and a body of which nothing can move."""
    scope = program.scope_at(at)
    if not scope.summations or scope.reduce not in _OTHER:
        raise Refused("the scope takes no maximum or minimum")
    if scope.domain:
        raise Refused(f"the scope has a domain, where the inner {scope.reduce} would be read: {scope.domain[0]!r}")
    if not has_finite_padding(scope.body):
        raise Refused("a padding is infinite: a sum with it may be no number")
    body = _moved_out(scope, scope.body, scope.reduce)
    return program.replace_at(at, replace(scope, summations=(), reduce="sum", body=body))


def _moved_out(scope: Scope, body: Scalar, reduce: str) -> Scalar:
    """Return the reduction by *reduce* of *body*, with every function that can move outside."""
    match body:
        case Apply("+", args):
            outside = [arg for arg in args if not _depends(arg, scope.summations)]
            inside = [arg for arg in args if _depends(arg, scope.summations)]
            if outside and inside:
                return add(*outside, _reduced(scope, add(*inside), reduce))
        case Apply(op, args):
            moving = [n for n, arg in enumerate(args) if _depends(arg, scope.summations)]
            if len(moving) == 1 and (direction := monotonicity(body, n := moving[0])):
                inner = _reduced(scope, args[n], reduce if direction > 0 else _OTHER[reduce])
                moved = (*args[:n], inner, *args[n + 1 :])
                return mul(*moved) if op == "*" else Apply(op, moved)
    raise Refused(f"{body!r} is no monotone function of one part that depends on the {reduce}")


def _reduced(scope: Scope, body: Scalar, reduce: str) -> Scalar:
    try:
        return _moved_out(scope, body, reduce)
    except Refused:
        kept = tuple(x for x in scope.traversals if x in iterators_of(body))
        return Scope(kept, scope.summations, body, reduce)[kept]


def _depends(body: Scalar, summed: Collection[Iterator]) -> bool:
    return not iterators_of(body).isdisjoint(summed)


MONOTONE_EXCHANGE = place_rule(
    "monotone_exchange",
    r"\mathop{L}_{\vec x} \max_{\vec y} f(g, c) \mapsto"
    r" \mathop{L}_{\vec x} f\big(\{\mathop{L}_{\vec z} \max_{\vec y} g\}[\vec z], c\big)",
    rewrite,
    "a monotone function moves out of the maximum or minimum",
)
