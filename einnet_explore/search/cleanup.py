r"""Clean-ups: rewrites that only ever simplify, applied to a normal form and not counted as choices.

After a choice (a split, a substitution) three rewrites are always worth doing, in whatever order:

* *relaxing* drops a bound of a nested scope that no reader violates;
* *merging* inlines a scope that only re-indexes another scope;
* *tightening* cuts away what is constant.

Each strictly lowers (number of bounds, number of scopes, number of computed points), so they end.  Merging here is
restricted to scopes without a summation of their own whose body is one access of a scope: merging more would undo the choice (a
split is undone by merging the inner summation back, a substitution by merging it into the scope it came from).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from einnet_explore.ir import Access, Path, Program, Scope, accesses
from einnet_explore.rules import BOUNDARY_RELAXING, BOUNDARY_TIGHTENING, TRAVERSAL_MERGING, Match
from einnet_explore.rules.base import places

Moves = tuple[tuple[Match[Any], ...], Program]


def clean(program: Program) -> Moves:
    """*program* in its cleaned-up form, and the matches that led there."""
    done: list[Match[Any]] = []
    while (found := next(iter(_pending(program)), None)) is not None:
        done.append(found)
        program = found.apply(program).after
    return tuple(done), program


def _pending(program: Program) -> Iterable[Match[Any]]:
    for at, scope in places(program):
        yield from _relaxed(program, at, scope)
        yield from _merged(program, at, scope)
        yield from BOUNDARY_TIGHTENING.matches(program, at)


def _relaxed(program: Program, at: Path, scope: Scope) -> Iterable[Match[Any]]:
    if any(isinstance(a.source, Scope) and a.source.domain for a in accesses(scope.body)):
        for match in BOUNDARY_RELAXING.matches(program, at):
            if "bounds" in BOUNDARY_RELAXING.encode(match.params):
                yield match


def _merged(program: Program, at: Path, scope: Scope) -> Iterable[Match[Any]]:
    if any(map(_reindexes, accesses(scope.body))):
        inner = list(accesses(scope.body))
        for match in TRAVERSAL_MERGING.matches(program, at):
            if _reindexes(inner[TRAVERSAL_MERGING.encode(match.params)["access"]]):
                yield match


def _reindexes(access: Access) -> bool:
    match access.source:
        case Scope(summations=(), body=Access(source=Scope())):
            return True
    return False
