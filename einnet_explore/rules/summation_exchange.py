r"""Summation exchange: inner and outer summations are exchanged.

.. math::
   \mathop{L}_{\vec x} \sum_{\vec s} \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f \Big\}[\pi(\vec s, \vec x)]
   \;\mapsto\;
   \mathop{L}_{\vec x} \sum_{\vec y} \Big\{ \mathop{L}_{\vec y \vec x} \sum_{\vec s} f[\pi / \vec z] \Big\}
   [\vec y, \vec x]

for any monoid, the same for both: it is commutative.  The inner scope must be read inside its box.
"""

from __future__ import annotations

from dataclasses import replace

from einnet_explore.analysis.products import open_reduction
from einnet_explore.ir import Access, Scope
from einnet_explore.rules.base import scope_rule
from einnet_explore.support.errors import Refused


def rewrite(scope: Scope, _: None) -> Scope:
    """Exchange all outer summations with all inner ones.

    Refuses a scope that is not a reduction of a reduction by the same monoid, read inside its box.
    """
    if not scope.summations:
        raise Refused("the scope sums nothing")
    if scope.domain:
        raise Refused(f"the scope has a domain: {scope.domain[0]!r}")
    if not isinstance(scope.body, Access):
        raise Refused("the body is more than a read of a reduction")
    body, summations = open_reduction(scope.body, scope.reduce, (*scope.traversals, *scope.summations))
    kept = (*summations, *scope.traversals)
    inner = Scope(kept, scope.summations, body, scope.reduce)
    return replace(scope, summations=summations, body=inner[kept])


SUMMATION_EXCHANGE = scope_rule(
    "summation_exchange",
    r"\mathop{L}_{\vec x} \sum_{\vec s} \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f \Big\}[\pi(\vec s, \vec x)]"
    r" \;\mapsto\; \mathop{L}_{\vec x} \sum_{\vec y} \Big\{ \mathop{L}_{\vec y \vec x} \sum_{\vec s} f \Big\}"
    r"[\vec y, \vec x]",
    lambda _: (None,),
    rewrite,
)
