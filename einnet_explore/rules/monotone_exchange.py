r"""Monotone exchange and distribution: a monotone function moves out of a maximum or minimum, or into it.

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
from math import isfinite

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import has_finite_padding, open_reduction
from einnet_explore.ir import (
    Access,
    Apply,
    Const,
    Iterator,
    Path,
    Program,
    Scalar,
    Scope,
    accesses,
    add,
    is_exact_cast,
    map_accesses,
    mul,
)
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


def distribute(program: Program, at: Path) -> Program:
    r"""Monotone distribution: the inverse of monotone exchange, for an expression around one maximum or minimum.

    .. math::
       \mathop{L}_{\vec x} f\Big(\big\{\mathop{L}_{\vec z} \max_{\vec y} g\big\}[\vec z],\, c(\vec x)\Big)
       \;\mapsto\;
       \mathop{L}_{\vec x} \max_{\vec y} f\big(g(\vec x, \vec y), c(\vec x)\big)

    It also holds where *g* is infinite, such as in padding, if what is added to it is finite.
    """
    scope = program.scope_at(at)
    if scope.summations or scope.domain:
        raise Refused("the scope sums or has a domain, expected a function of a maximum or minimum")
    found = [a for a in accesses(scope.body) if isinstance(a.source, Scope) and a.source.reduce in _OTHER]
    if len(found) != 1 or scope.body == found[0]:
        raise Refused(f"{scope.body!r} is no function of one maximum or minimum")
    (read,) = found
    assert isinstance(read.source, Scope)
    reduce = read.source.reduce
    direction = _direction(scope.body, read)
    body, over = open_reduction(read, reduce, scope.traversals)
    moved = map_accesses(scope.body, lambda access: body if access == read else access)
    reduce = reduce if direction > 0 else _OTHER[reduce]
    return program.replace_at(at, replace(scope, summations=over, reduce=reduce, body=moved))


def _direction(body: Scalar, read: Access) -> int:
    """Return 1 if *body* increases in *read*, -1 if it decreases; raises Refused if neither is known."""
    if body == read:
        return 1
    if isinstance(body, Apply):
        within = [n for n, arg in enumerate(body.args) if read in accesses(arg)]
        others = [arg for n, arg in enumerate(body.args) if n not in within]
        is_finite = all(isfinite(o.value) if isinstance(o, Const) else has_finite_padding(o) for o in others)
        direction = (1 if is_exact_cast(body) else monotonicity(body, within[0])) if len(within) == 1 else 0
        if direction and is_finite:
            return direction * _direction(body.args[within[0]], read)
    raise Refused(f"{body!r} is no monotone function of {read!r}, with finite operands")


MONOTONE_DISTRIBUTION = place_rule(
    "monotone_distribution",
    r"\mathop{L}_{\vec x} f\big(\{\mathop{L}_{\vec z} \max_{\vec y} g\}[\vec z], c\big) \mapsto"
    r" \mathop{L}_{\vec x} \max_{\vec y} f(g, c)",
    distribute,
    "a monotone function moves into the maximum or minimum",
)
