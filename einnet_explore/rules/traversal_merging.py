r"""Traversal merging (EinNet Table 1; §4.1).

.. math::
   \mathop{L}_{\vec x}^{X} \sum_{\vec y}^{Y}
     \Big\{ \mathop{L}_{\vec z}^{Z} f(T[\tau(\vec z)]) \Big\}[\Phi(\vec x, \vec y)]
   \;\mapsto\;
   \mathop{L}_{\vec x}^{X} \sum_{\vec y}^{Y} f(T[\tau(\Phi(\vec x, \vec y))]),
   \qquad \Phi(X \times Y) \subseteq Z .

An inner scope without summations may occur anywhere in the body.  Inner summations join the outer ones if the body is
only this access and the monoids agree, or, by distributivity, if the body is a product with it and both are sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from einnet_explore.analysis.indices import rename_iterators, substitute, substitute_domain
from einnet_explore.analysis.regions import always_holds, index_reach
from einnet_explore.ir import Access, Bound, Scalar, Scope, accesses, describe_source, factors, map_accesses, mul
from einnet_explore.rules.base import accepted, access_of, refusals_of, scope_rule
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Merging:
    """*access* is the number of the access, counted over the body from left to right."""

    access: int


def propose(scope: Scope) -> Iterable[Merging]:
    """Propose every access whose scope may be merged."""
    for n, access in enumerate(accesses(scope.body)):
        if isinstance(access.source, Scope) and accepted(rewrite, scope, Merging(n)):
            yield Merging(n)


@lru_cache(256)  # what is proposed has been rewritten once already
def rewrite(scope: Scope, params: Merging) -> Scope:
    """Apply the law; refuses with the values that Φ reaches outside Z, or with two reductions that differ."""
    access = access_of(scope, params.access)
    inner = access.source
    if not isinstance(inner, Scope):
        raise Refused(f"access {params.access} reads {describe_source(inner)}, not a scope")
    for z, i in zip(inner.traversals, access.index, strict=True):
        if not always_holds(Bound(i, z.lo, z.hi), scope.domain):
            lo, hi = index_reach(i, scope.domain)
            raise Refused(f"Φ reaches [{lo}, {hi}], outside {z.name} ∈ [{z.lo}, {z.hi})")
    scope = _with_domain(scope, inner, access)
    reduce = _reduction(scope, inner, params.access)
    inner = rename_iterators(inner, (x.name for x in (*scope.traversals, *scope.summations)))
    merged = substitute(inner.body, dict(zip(inner.traversals, access.index, strict=True)))
    body = _replace_access(scope.body, params.access, merged)
    return replace(scope, summations=(*scope.summations, *inner.summations), body=body, reduce=reduce)


def _with_domain(scope: Scope, inner: Scope, access: Access) -> Scope:
    """Return the merged domain: the inner one must hold at every read, or both scopes yield its value outside."""
    bounds = substitute_domain(inner.domain, dict(zip(inner.traversals, access.index, strict=True)))
    open_bounds = tuple(b for b in bounds if not always_holds(b, scope.domain))
    if not open_bounds:
        return scope
    lo, hi = index_reach(open_bounds[0].index, scope.domain)
    why = f"the inner domain {open_bounds[0]} does not hold: it reaches [{lo}, {hi}]"
    if scope.summations or scope.body is not access:
        raise Refused(why)
    if (scope.domain or scope.padding) and scope.value != inner.value:
        raise Refused(f"{why}, and the values differ: {scope.value:g} outside, {inner.value:g} inside")
    return replace(scope, domain=(*scope.domain, *open_bounds), value=inner.value)


def _reduction(scope: Scope, inner: Scope, number: int) -> str:
    if not inner.summations:
        return scope.reduce
    outer = scope.reduce if scope.summations else inner.reduce
    if outer != inner.reduce:
        raise Refused(f"the inner scope reduces by {inner.reduce}, the outer by {outer}")
    if not isinstance(scope.body, Access):
        parts = factors(scope.body)
        alone = [n for n, part in enumerate(_access_numbers(parts)) if part == (number,)]
        if outer != "sum" or not alone or not isinstance(parts[alone[0]], Access):
            raise Refused(f"access {number} has summations and is neither the whole body nor a factor of a sum's terms")
    return outer


def _access_numbers(parts: tuple[Scalar, ...]) -> Iterable[tuple[int, ...]]:
    """Return the numbers of the accesses in each part."""
    first = 0
    for part in parts:
        count = sum(1 for _ in accesses(part))
        yield tuple(range(first, first + count))
        first += count


def _replace_access(body: Scalar, number: int, new: Scalar) -> Scalar:
    """Return *body* with access *number* replaced; products stay flat."""
    count = iter(range(number + 1))

    def swap(access: Access) -> Scalar:
        return new if next(count, None) == number else access

    parts = factors(body)
    if len(parts) == 1:
        return map_accesses(body, swap)
    return mul(*(map_accesses(part, swap) for part in parts))


def explain(scope: Scope) -> str:
    """Return why no nested scope can be merged, for each of them."""
    nested = [n for n, access in enumerate(accesses(scope.body)) if isinstance(access.source, Scope)]
    reasons = [f"access {n}: {reason}" for n in nested for reason in refusals_of(rewrite, scope, Merging(n))]
    return "; ".join(reasons) or "the body reads no scope"


TRAVERSAL_MERGING = scope_rule(
    "traversal_merging",
    r"\mathop{L}_{\vec x}^{X} \sum_{\vec y}^{Y} \Big\{ \mathop{L}_{\vec z}^{Z} f(T[\tau(\vec z)]) \Big\}"
    r"[\Phi(\vec x, \vec y)] \;\mapsto\; \mathop{L}_{\vec x}^{X} \sum_{\vec y}^{Y} f(T[\tau(\Phi(\vec x, \vec y))]),"
    r"\qquad \Phi(X \times Y) \subseteq Z",
    propose,
    rewrite,
    explain=explain,
)
