r"""Clean-ups: rewrites that only ever simplify, applied to a normal form and not counted as choices.

After a choice (a split, a substitution) three rewrites are always worth doing, in whatever order:

* *relaxing* drops a bound of a nested scope that no reader violates;
* *merging* inlines a scope that only re-indexes another scope;
* *tightening* cuts away what is constant.

Each strictly lowers (number of bounds, number of scopes, number of computed points), so they end.  Merging here is
restricted to scopes that only re-index a scope: merging more would undo the choice (a split is undone by merging the
inner summation back, a substitution by merging it into the scope it came from).  Once no choice follows, scopes that
only re-index a tensor are merged as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeAlias

from einnet_explore.ir import Access, Program, Scope, accesses
from einnet_explore.rules import BOUNDARY_RELAXING, BOUNDARY_TIGHTENING, TRAVERSAL_MERGING, Match, Rule
from einnet_explore.rules.base import places
from einnet_explore.search.moves import REMEMBERED, local_moves

Moves: TypeAlias = "tuple[tuple[Match[Any], ...], Program]"
Due: TypeAlias = "tuple[Rule[Any], Any, Scope] | None"


CLEAN_UPS: frozenset[Rule[Any]] = frozenset((BOUNDARY_RELAXING, TRAVERSAL_MERGING, BOUNDARY_TIGHTENING))


def clean(program: Program, final: bool = False, rules: Iterable[Rule[Any]] = CLEAN_UPS) -> Moves:
    """*program* in its cleaned-up form, and the matches that led there; *final*: no choice follows.

    Of the three only those among *rules* are applied: what is forbidden is not done in tidying up either.
    """
    done, allowed = list[Match[Any]](), CLEAN_UPS.intersection(rules)
    while (found := _first(program, final, allowed)) is not None:
        match, program = found
        done.append(match)
    return tuple(done), program


def _first(program: Program, final: bool, allowed: frozenset[Rule[Any]]) -> tuple[Match[Any], Program] | None:
    for at, scope in places(program):
        if (found := _due(scope, len(at) == 1, final, allowed)) is not None:
            rule, params, new = found
            return Match(rule, at, params), program.replace_at(at, new)
    return None


@lru_cache(REMEMBERED)
def _due(scope: Scope, whole: bool, final: bool, allowed: frozenset[Rule[Any]]) -> Due:
    """The clean-up that *scope* itself is due, and what it becomes."""
    read = list(accesses(scope.body))
    if BOUNDARY_RELAXING in allowed and any(isinstance(a.source, Scope) and a.source.domain for a in read):
        for params, new in local_moves(BOUNDARY_RELAXING, scope, whole):
            if "bounds" in BOUNDARY_RELAXING.encode(params):
                return BOUNDARY_RELAXING, params, new
    if TRAVERSAL_MERGING in allowed and any(_reindexes(a, final) for a in read):
        for params, new in local_moves(TRAVERSAL_MERGING, scope, whole):
            if _reindexes(read[TRAVERSAL_MERGING.encode(params)["access"]], final):
                return TRAVERSAL_MERGING, params, new
    tightened = local_moves(BOUNDARY_TIGHTENING, scope, whole) if BOUNDARY_TIGHTENING in allowed else ()
    for params, new in tightened:
        return BOUNDARY_TIGHTENING, params, new
    return None


def _reindexes(access: Access, final: bool) -> bool:
    match access.source:
        case Scope(summations=(), body=Access(source)):
            return final or isinstance(source, Scope)
    return False
