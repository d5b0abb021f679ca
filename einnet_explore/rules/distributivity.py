r"""Distributivity: a factor moves out of a sum or back in, and products of sums are multiplied out.

.. math::
   \mathop{L}_{\vec x} \sum_{\vec y} g(\vec x)\, f(\vec x, \vec y)
   &\;\rightleftharpoons\;
   \mathop{L}_{\vec x} g(\vec x) \cdot \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f \Big\}[\vec z]
   \\
   \mathop{L}_{\vec x} \sum_{\vec y} g\, (f_1 + f_2)
   &\;\mapsto\;
   \mathop{L}_{\vec x} \Big\{ \mathop{L}_{\vec x} \sum_{\vec y} g\, f_1 \Big\}[\vec x]
   + \Big\{ \mathop{L}_{\vec x} \sum_{\vec y} g\, f_2 \Big\}[\vec x]

A divisor counts as the factor 1/b, so :math:`\sum_y a/b = (\sum_y a)\,(1/b)`; under ``max`` and ``min``, terms replace
factors, :math:`\max_y (g + f) = g + \max_y f`.  Outwards, the result has fewer products; inwards, two sums become one,
which other rules may split differently.  A term is summed over the iterators that it reads; each other summation
multiplies it by its extent.  The inverse of the second law is the rule ``common_factor``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import has_finite_padding, multiply_out, open_reduction, quotient_factors
from einnet_explore.ir import Access, Const, Scalar, Scope, add, mul, terms
from einnet_explore.rules.base import accepted, refusals_of, scope_rule
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Outwards:
    """Move every factor (or term) out that can move."""

    direction: Literal["out"] = "out"


@dataclass(frozen=True, slots=True)
class Inwards:
    """Move the other factors (or terms) into the reduction that factor number *part* reads."""

    direction: Literal["in"] = field(default="in", kw_only=True)
    part: int


@dataclass(frozen=True, slots=True)
class Termwise:
    """Multiply all products of sums out, and sum each term on its own."""

    direction: Literal["terms"] = "terms"


Direction = Outwards | Inwards | Termwise

MAX_TERMS = 16
"""Terms up to which products of sums are multiplied out."""


def propose(scope: Scope) -> Iterable[Direction]:
    """Propose outwards if something can move, inwards into every reduction that is a factor (or a term), and terms."""
    count = max(len(quotient_factors(scope.body)), len(terms(scope.body)))
    tried: list[Direction] = [Outwards(), *(Inwards(n) for n in range(count)), Termwise()]
    for params in tried:
        if accepted(rewrite, scope, params):
            yield params


def rewrite(scope: Scope, params: Direction) -> Scope:
    """Apply the law; refuses if nothing can move, with the reason."""
    if not has_finite_padding(scope.body):
        raise Refused("distributivity needs finite paddings: 0 times infinity is undefined")
    match params:
        case Outwards():
            return _out(scope)
        case Inwards(part=part):
            return _in(scope, part)
        case Termwise():
            return _termwise(scope)


def _out(scope: Scope) -> Scope:
    if not scope.summations or scope.reduce == "prod":
        raise Refused(
            f"the scope {'takes a product' if scope.summations else 'sums nothing'}: no factor can move out of it"
        )
    if scope.domain:
        raise Refused(f"the scope has a domain, where the inner sum would be read: {scope.domain[0]!r}")
    summed = set(scope.summations)
    parts = quotient_factors(scope.body) if scope.reduce == "sum" else terms(scope.body)
    outside = [p for p in parts if not iterators_of(p) & summed]
    inside = [p for p in parts if iterators_of(p) & summed]
    if not outside or not inside:
        kind = "factor" if scope.reduce == "sum" else "term"
        raise Refused(f"of {len(parts)} {kind}s {len(inside)} depend on the summations: expected some, but not all")
    body = mul(*inside) if scope.reduce == "sum" else add(*inside)
    kept = tuple(x for x in scope.traversals if x in iterators_of(body))
    inner = Scope(kept, scope.summations, body, scope.reduce)[kept]
    whole = mul(*outside, inner) if scope.reduce == "sum" else add(*outside, inner)
    return replace(scope, summations=(), reduce="sum", body=whole)


def _in(scope: Scope, part: int) -> Scope:
    if scope.domain:
        raise Refused(f"the scope has a domain: {scope.domain[0]!r}")
    product, total = quotient_factors(scope.body), terms(scope.body)
    parts, reduce = (product, "sum") if len(total) == 1 else (total, _inner_reduction(total, part))
    if not 0 <= part < len(parts):
        raise Refused(f"part {part}: the body has {len(parts)}")
    if scope.summations and scope.reduce != reduce:
        raise Refused(f"the scope reduces by {scope.reduce}, the inner one by {reduce}")
    chosen = parts[part]
    if not isinstance(chosen, Access):
        raise Refused(f"part {part} is {chosen!r}, which reads no reduction")
    found = open_reduction(chosen, reduce, (*scope.traversals, *scope.summations))
    if isinstance(found, str):
        raise Refused(found)
    body, summations = found
    rest = [p for n, p in enumerate(parts) if n != part]
    if not rest:
        raise Refused("the inner reduction is the whole body")
    together: Scalar = mul(*rest, body) if reduce == "sum" else add(*rest, body)
    return replace(scope, summations=(*scope.summations, *summations), reduce=reduce, body=together)


def _inner_reduction(parts: tuple[Scalar, ...], part: int) -> str:
    match parts[part] if 0 <= part < len(parts) else None:
        case Access(Scope(reduce=reduce)) if reduce in ("max", "min"):
            return reduce
    raise Refused(f"part {part} of the sum is no maximum or minimum: terms move only into these")


def _termwise(scope: Scope) -> Scope:
    if scope.domain:
        raise Refused(f"the scope has a domain, where the sums of terms would be read: {scope.domain[0]!r}")
    if scope.summations and scope.reduce != "sum":
        raise Refused(f"the scope takes the {scope.reduce}, expected a sum")
    found = multiply_out(scope.body)
    if not 2 <= len(found) <= MAX_TERMS:
        raise Refused(f"multiplied out, the body has {len(found)} terms: expected 2 to {MAX_TERMS}")
    parts = add(*(_summed_term(scope, term) for term in found))
    if parts == scope.body:
        raise Refused("the body is a sum of products already")
    return replace(scope, summations=(), reduce="sum", body=parts)


def _summed_term(scope: Scope, term: tuple[Scalar, ...]) -> Scalar:
    """Return the sum of the product *term* over the summations of *scope*, as a read of a scope of its own."""
    constants = [factor for factor in term if isinstance(factor, Const)]
    product = mul(*(factor for factor in term if not isinstance(factor, Const)))
    read = iterators_of(product)
    over = tuple(y for y in scope.summations if y in read)
    times = Const(prod(y.extent for y in scope.summations if y not in read))
    kept = tuple(x for x in scope.traversals if x in read)
    return mul(times, *constants, Scope(kept, over, product)[kept] if over else product)


def explain(scope: Scope) -> str:
    """Return why no factor moves out and no term moves in."""
    return "; ".join((*refusals_of(rewrite, scope, Outwards()), *refusals_of(rewrite, scope, Inwards(0))))


DISTRIBUTIVITY = scope_rule(
    "distributivity",
    r"\mathop{L}_{\vec x} \sum_{\vec y} g(\vec x)\, f(\vec x, \vec y) \;\mapsto\;"
    r" \mathop{L}_{\vec x} g(\vec x) \cdot \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f \Big\}[\vec z]",
    propose,
    rewrite,
    explain=explain,
)
