r"""Summation splitting (EinNet Table 1; §4.1).

.. math::
   \mathop{L}_{\vec x} \sum_{\vec s_1, \vec s_2} f
   \;\mapsto\;
   \mathop{L}_{\vec x} \sum_{\vec s_1}
     \Big\{ \mathop{L}_{\vec s_1 \vec x} \sum_{\vec s_2} f \Big\}[\vec s_1, \vec x]

for any monoid, the same for both.  The scope's domain, padding and value stay outside: there no element of the inner
scope is read.  The inner scope repeats the domain only where its reads would be illegal without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from einnet_explore.algebra.legality import excess
from einnet_explore.algebra.naming import by_name, listed
from einnet_explore.algebra.structure import roles
from einnet_explore.ir import Iterator, Scope
from einnet_explore.rules.base import Refused, refusing, scope_rule

ENUMERATED = 5
"""Up to so many units every proper subset is proposed: 2⁵ - 2 splits."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """*outer* are the summations s1 that stay outside."""

    outer: tuple[Iterator, ...]


def propose(scope: Scope) -> Iterable[Splitting]:
    """Every proper subset of the summations; where these are many, of their groups by role."""
    units: list[tuple[Iterator, ...]] = [(s,) for s in scope.summations]
    if len(units) > ENUMERATED:
        role = roles(scope)
        groups = dict.fromkeys(role[s] for s in scope.summations)
        units = [tuple(s for s in scope.summations if role[s] == group) for group in groups]
    if len(units) > ENUMERATED:  # even the groups are many: one against the rest
        for unit in units:
            yield Splitting(unit)
        return
    for size in range(1, len(units)):
        for chosen in combinations(units, size):
            yield Splitting(tuple(s for unit in chosen for s in unit))


def rewrite(scope: Scope, params: Splitting) -> Scope:
    """The law; refuses an iterator that is not summed, or a group that is empty."""
    outer = params.outer
    if stray := [s for s in outer if s not in scope.summations]:
        raise Refused(f"{listed(stray)} is not summed here: the summations are {listed(scope.summations)}")
    if len(set(outer)) < len(outer):
        raise Refused(f"s1 = {listed(outer)} names an iterator twice")
    rest = tuple(s for s in scope.summations if s not in outer)
    if not outer or not rest:
        raise Refused(f"both groups need an iterator: s1 = {listed(outer)}, s2 = {listed(rest)}")
    kept = (*outer, *scope.traversals)
    inner = Scope(kept, rest, scope.body, scope.reduce)
    if scope.domain and excess(inner):
        inner = replace(inner, domain=scope.domain)
    return replace(scope, summations=outer, body=inner[kept])


def explain(scope: Scope) -> str:
    """Why nothing can be split here."""
    if not scope.summations:
        return "the scope has no summation to split"
    only = scope.summations[0]
    return f"only one summation, {only.name}:{only.extent}: both groups need an iterator"


def encode(params: Splitting) -> dict[str, Any]:
    """``{"outer": ["r", "s"]}``."""
    return {"outer": [s.name for s in params.outer]}


def decode(scope: Scope, params: Mapping[str, Any]) -> Splitting:
    """The inverse of ``encode``; refuses a name that no summation has."""
    with refusing():
        return Splitting(tuple(by_name(scope.summations, name) for name in params["outer"]))


SUMMATION_SPLITTING = scope_rule(
    "summation_splitting",
    r"\mathop{L}_{\vec x} \sum_{\vec s_1, \vec s_2} f \;\mapsto\; \mathop{L}_{\vec x} \sum_{\vec s_1}"
    r" \Big\{ \mathop{L}_{\vec s_1 \vec x} \sum_{\vec s_2} f \Big\}[\vec s_1, \vec x]",
    propose,
    rewrite,
    encode,
    decode,
    explain,
)
