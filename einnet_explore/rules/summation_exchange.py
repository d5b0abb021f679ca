r"""Summation exchange: what is summed first is summed last.

.. math::
   \mathop{L}_{\vec x} \sum_{\vec s} \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f \Big\}[\pi(\vec s, \vec x)]
   \;\mapsto\;
   \mathop{L}_{\vec x} \sum_{\vec y} \Big\{ \mathop{L}_{\vec y \vec x} \sum_{\vec s} f[\pi / \vec z] \Big\}
   [\vec y, \vec x]

for any monoid, the same for both: it is commutative.  The inner scope must be read inside its box.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from einnet_explore.algebra.products import opened
from einnet_explore.ir import Access, Scope
from einnet_explore.rules.base import Refused, scope_rule


@dataclass(frozen=True, slots=True)
class Exchange:
    """Summation exchange has no parameters: all that is summed outside changes places with all inside."""


def propose(scope: Scope) -> Iterable[Exchange]:
    """The exchange, where a reduction of a reduction stands."""
    try:
        rewrite(scope, Exchange())
    except Refused:
        return
    yield Exchange()


def rewrite(scope: Scope, _: Exchange) -> Scope:
    """The law; refuses what is no reduction of one by the same monoid, read inside its box."""
    if not scope.summations:
        raise Refused("the scope sums nothing")
    if scope.domain:
        raise Refused(f"the scope has a domain: {scope.domain[0]!r}")
    if not isinstance(scope.body, Access):
        raise Refused("the body is more than a read of a reduction")
    found = opened(scope.body, scope.reduce, (*scope.traversals, *scope.summations))
    if isinstance(found, str):
        raise Refused(found)
    body, summations = found
    kept = (*summations, *scope.traversals)
    inner = Scope(kept, scope.summations, body, scope.reduce)
    return replace(scope, summations=summations, body=inner[kept])


def explain(scope: Scope) -> str:
    """Why nothing changes places."""
    try:
        rewrite(scope, Exchange())
    except Refused as why:
        return str(why)
    return "the summations can change places"


def encode(_: Exchange) -> dict[str, Any]:
    """``{}``."""
    return {}


def decode(_: Scope, params: Mapping[str, Any]) -> Exchange:
    """The inverse of ``encode``; refuses parameters, since there are none."""
    if params:
        raise Refused(f"summation exchange takes no parameters, found {', '.join(params)}")
    return Exchange()


SUMMATION_EXCHANGE = scope_rule(
    "summation_exchange",
    r"\mathop{L}_{\vec x} \sum_{\vec s} \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f \Big\}[\pi(\vec s, \vec x)]"
    r" \;\mapsto\; \mathop{L}_{\vec x} \sum_{\vec y} \Big\{ \mathop{L}_{\vec y \vec x} \sum_{\vec s} f \Big\}"
    r"[\vec y, \vec x]",
    propose,
    rewrite,
    encode,
    decode,
    explain,
)
