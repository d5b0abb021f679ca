r"""Traversal factoring: values that depend on :math:`\lfloor x / d \rfloor` alone are computed once for d values of x.

.. math::
   \mathop{L}_{\vec x} \sum_{\vec y} f(\lfloor \vec x / \vec d \rfloor, \vec y)
   \;\mapsto\;
   \mathop{L}_{\vec x} \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f(\vec z, \vec y) \Big\}
   [\lfloor \vec x / \vec d \rfloor]

It is the inverse of traversal merging for indices that are no bijection: a product moves before an upsampling, and a
value that does not depend on x (d is its extent) is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.analysis.access_structure import quotient_divisors
from einnet_explore.analysis.indices import fresh_name, iterators_of, substitute
from einnet_explore.ir import Access, Index, Iterator, Scope, as_index
from einnet_explore.rules.base import accepted, refusals_of, scope_rule
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Factoring:
    """The traversals and their divisors."""

    divisors: tuple[tuple[Iterator, int], ...]


def propose(scope: Scope) -> Iterable[Factoring]:
    """Propose together all traversals that the body of a sum reads only through a quotient, or not at all."""
    if not scope.summations:
        return
    read = iterators_of(scope.body)
    found = {x: x.extent for x in scope.traversals if x not in read and x.extent > 1}
    for x, d in quotient_divisors(scope):
        if x not in found and accepted(rewrite, scope, Factoring(((x, d),))):
            found[x] = d
    params = Factoring(tuple(found.items()))
    if accepted(rewrite, scope, params):
        yield params


def rewrite(scope: Scope, params: Factoring) -> Scope:
    """Apply the law; refuses a traversal that the body reads finer than by its quotient, and a domain."""
    if scope.domain:
        raise Refused(f"the scope has a domain: {scope.domain[0]!r}")
    if not params.divisors:
        raise Refused("no traversal is divided")
    used = {x.name for x in (*scope.traversals, *scope.summations)}
    coarse: dict[Iterator, Iterator] = {}
    to: dict[Iterator, Index] = {}
    index = {x: as_index(x) for x in scope.traversals}
    rests = []
    for x, d in params.divisors:
        if x not in index:
            raise Refused(f"{x.name} is no traversal of this scope")
        if d < 2 or x.lo:
            raise Refused(f"{x.name} ∈ [{x.lo}, {x.hi}) is divided by {d}: expected at least 2, and a range from 0")
        coarse[x] = Iterator(fresh_name(x.name, used), 0, -(-x.hi // d))
        rest = Iterator(fresh_name(x.name, {*used, coarse[x].name}), 0, d)
        used |= {coarse[x].name, rest.name}
        rests.append((x, d, rest))
        to[x], index[x] = as_index(coarse[x]) * d + rest, as_index(x) // d
    body = substitute(scope.body, to)
    if fine := [(x, d) for x, d, rest in rests if rest in iterators_of(body)]:
        raise Refused(f"{fine[0][0].name} is read finer than {fine[0][0].name} // {fine[0][1]}")
    inner = Scope(tuple(coarse.get(x, x) for x in scope.traversals), scope.summations, body, scope.reduce)
    return replace(scope, summations=(), reduce="sum", body=Access(inner, tuple(index[x] for x in scope.traversals)))


def explain(scope: Scope) -> str:
    """Return why no traversal is factored."""
    if not scope.summations:
        return "the scope sums nothing: nothing is computed more than once"
    reasons = [r for x, d in quotient_divisors(scope) for r in refusals_of(rewrite, scope, Factoring(((x, d),)))]
    return "; ".join(reasons) or "no traversal is read through a quotient alone"


TRAVERSAL_FACTORING = scope_rule(
    "traversal_factoring",
    r"\mathop{L}_{\vec x} \sum_{\vec y} f(\lfloor \vec x / \vec d \rfloor, \vec y) \;\mapsto\;"
    r" \mathop{L}_{\vec x} \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f(\vec z, \vec y) \Big\}"
    r"[\lfloor \vec x / \vec d \rfloor]",
    propose,
    rewrite,
    explain=explain,
)
