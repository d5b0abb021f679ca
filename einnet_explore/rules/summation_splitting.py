r"""Summation splitting (EinNet Table 1; §4.1).

.. math::
   \mathop{L}_{\vec x} \sum_{\vec s_1, \vec s_2} f
   \;\mapsto\;
   \mathop{L}_{\vec x} \sum_{\vec s_1}
     \Big\{ \mathop{L}_{\vec s_1 \vec x} \sum_{\vec s_2} f \Big\}[\vec s_1, \vec x]

for any monoid, the same for both.  The outer scope keeps the domain, padding and value, and reads no inner element
outside them.  The inner scope repeats the domain only if its reads would be illegal without it.

A sum of products may be split *apart*: the factors g without an iterator of s2 stay outside (distributivity), and the
inner scope has only the traversals that its own factors f read,

.. math::
   \mathop{L}_{\vec x} \sum_{\vec s_1, \vec s_2} g\, f
   \;\mapsto\;
   \mathop{L}_{\vec x} \sum_{\vec s_1} g \cdot \Big\{ \mathop{L}_{\vec z} \sum_{\vec s_2} f \Big\}[\vec z],
   \qquad \vec z \subseteq \vec s_1 \vec x .

This re-associates a chain of matrix products.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite

from einnet_explore.analysis.access_structure import roles
from einnet_explore.analysis.canonical_keys import numbering
from einnet_explore.analysis.indices import iterators_of, join_names
from einnet_explore.analysis.padding import excess
from einnet_explore.analysis.products import split_factors
from einnet_explore.ir import Iterator, Scope, accesses, mul
from einnet_explore.rules.base import accepted, scope_rule
from einnet_explore.support.errors import Refused

ENUMERATED = 5
"""Up to so many units every proper subset is proposed: 2⁵ - 2 splits."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """*outer* are the summations s1 that stay outside; if *apart*, the factors without another summation stay too."""

    outer: tuple[Iterator, ...]
    apart: bool = False


def propose(scope: Scope) -> Iterable[Splitting]:
    """Propose every proper subset of the summations, also *apart* if some factor can stay outside."""
    for plain in _subsets(scope):
        yield plain
        rest = tuple(s for s in scope.summations if s not in plain.outer)
        if not scope.domain and accepted(check_apart, scope, rest):
            yield replace(plain, apart=True)


def _subsets(scope: Scope) -> Iterable[Splitting]:
    """Return every proper subset of the summations; of many summations, of their groups by role.

    The outer summations become traversals, which are a layout, so their order must not depend on the order in which
    the sum is written.
    """
    ordered = _ordered(scope)
    units: list[tuple[Iterator, ...]] = [(s,) for s in scope.summations]
    if len(units) > ENUMERATED:
        role = roles(scope)
        groups = dict.fromkeys(role[s] for s in scope.summations)
        units = [tuple(s for s in ordered if role[s] == group) for group in groups]
    if len(units) > ENUMERATED:  # even the groups are many: one against the rest
        for unit in units:
            yield Splitting(unit)
        return
    for size in range(1, len(units)):
        for chosen in combinations(units, size):
            outer = {s for unit in chosen for s in unit}
            yield Splitting(tuple(s for s in ordered if s in outer))


def _ordered(scope: Scope) -> tuple[Iterator, ...]:
    """Return the summations by the first dimension in which an access has them; canonical numbers break ties."""
    first = dict.fromkeys(scope.summations, len(scope.traversals) + len(scope.summations))
    for access in accesses(scope.body):
        for d, i in enumerate(access.index):
            for y in i.iterators:
                if y in first:
                    first[y] = min(first[y], d)
    number = numbering(scope) if len(set(first.values())) < len(first) else dict.fromkeys(first, 0)
    return tuple(sorted(scope.summations, key=lambda y: (first[y], number[y])))


def rewrite(scope: Scope, params: Splitting) -> Scope:
    """Split the summations; refuses an iterator that is not summed, and an empty group."""
    outer = params.outer
    if stray := [s for s in outer if s not in scope.summations]:
        raise Refused(f"{join_names(stray)} is not summed here: the summations are {join_names(scope.summations)}")
    if len(set(outer)) < len(outer):
        raise Refused(f"s1 = {join_names(outer)} names an iterator twice")
    rest = tuple(s for s in scope.summations if s not in outer)
    if not outer or not rest:
        raise Refused(f"both groups need an iterator: s1 = {join_names(outer)}, s2 = {join_names(rest)}")
    if params.apart:
        return _apart(scope, outer, rest)
    kept = (*outer, *scope.traversals)
    inner = Scope(kept, rest, scope.body, scope.reduce)
    if scope.domain and excess(inner):
        inner = replace(inner, domain=scope.domain)
    return replace(scope, summations=outer, body=inner[kept])


def _apart(scope: Scope, outer: tuple[Iterator, ...], rest: tuple[Iterator, ...]) -> Scope:
    check_apart(scope, rest)
    inside, outside = split_factors(scope.body, rest)
    used = frozenset[Iterator]().union(*map(iterators_of, inside))
    kept = tuple(x for x in (*outer, *scope.traversals) if x in used)
    inner = Scope(kept, rest, mul(*inside), scope.reduce)
    if scope.domain and (beyond := excess(inner)):
        raise Refused(f"with 'apart', the inner scope has no domain and reads beyond its sources: {beyond[0]!r}")
    return replace(scope, summations=outer, body=mul(*outside, inner[kept]))


def check_apart(scope: Scope, rest: tuple[Iterator, ...]) -> None:
    """Raise Refused unless *scope* is a sum of products of which some factors, not all, read s2 = *rest*."""
    if scope.reduce != "sum":
        raise Refused(f"'apart' needs a sum, the scope reduces by {scope.reduce}")
    if not all(isfinite(a.source.value) for a in accesses(scope.body)):
        raise Refused("'apart' needs finite paddings: 0 times infinity is undefined")
    moving, free = split_factors(scope.body, rest)
    if not any(iterators_of(f) for f in free):
        raise Refused(f"every factor reads an iterator of s2 = {join_names(rest)}: none can stay outside")
    if not moving:
        raise Refused(f"no factor reads s2 = {join_names(rest)}")


def explain(scope: Scope) -> str:
    """Return why nothing can be split here."""
    if not scope.summations:
        return "the scope has no summation to split"
    only = scope.summations[0]
    return f"only one summation, {only.name}:{only.extent}: both groups need an iterator"


SUMMATION_SPLITTING = scope_rule(
    "summation_splitting",
    r"\mathop{L}_{\vec x} \sum_{\vec s_1, \vec s_2} f \;\mapsto\; \mathop{L}_{\vec x} \sum_{\vec s_1}"
    r" \Big\{ \mathop{L}_{\vec s_1 \vec x} \sum_{\vec s_2} f \Big\}[\vec s_1, \vec x]",
    propose,
    rewrite,
    explain=explain,
)
