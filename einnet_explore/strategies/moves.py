"""Moves of a search: what rules make of one scope, remembered, since most scopes of a program do not change in a step.

A *local* rule looks at the scope at its path, and at whether that is a whole equation's, and at nothing else.  What it
proposes for a scope, and what becomes of the scope, is therefore one fact wherever the scope stands.

Clean-ups: rewrites that only ever simplify, applied to a normal form and not counted as choices.

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

import threading
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

from einnet_explore.ir import Access, Equation, Path, Program, Scope, accesses, as_index
from einnet_explore.rules import BOUNDARY_RELAXING, BOUNDARY_TIGHTENING, TRAVERSAL_MERGING, Match, Rule
from einnet_explore.rules.base import places

Move: TypeAlias = "tuple[Match[Any], Program]"
T = TypeVar("T")

CACHE_ENTRIES = 1 << 15


class LazySequence(Generic[T]):
    """What *source* yields, computed when it is first asked for and remembered; threads may share it.

    Where a computation is broken off (by an interrupt, say) it starts anew behind what is known, so that nothing is
    lost: *source* yields the same whenever it is called.
    """

    __slots__ = ("_known", "_lock", "_rest", "_source")

    def __init__(self, source: Callable[[], Iterable[T]]) -> None:
        self._source = source
        self._rest: Generator[T, None, None] | None = None
        self._known: list[T] = []
        self._lock = threading.RLock()

    def __iter__(self) -> Generator[T, None, None]:
        n = 0
        while self.reaches(n):
            yield self._known[n]
            n += 1

    def __getitem__(self, n: int) -> T:
        return self._known[n]

    def reaches(self, n: int) -> bool:
        """Whether there is an item *n*, which is computed if it has to be."""
        while len(self._known) <= n:
            with self._lock:
                if len(self._known) > n:
                    break
                if self._rest is None:
                    self._rest = (item for item in islice(self._source(), len(self._known), None))
                try:
                    self._known.append(next(self._rest))
                except StopIteration:
                    return False
                except BaseException:
                    self._rest = None
                    raise
        return True


Local: TypeAlias = "LazySequence[tuple[Any, Scope]]"


def rule_moves(rule: Rule[Any], program: Program, at: Path, scope: Scope) -> Iterable[Move]:
    """Each legal match of *rule* at *at*, where *scope* stands, and the program that it leads to."""
    if rule.local:
        for params, new in local_moves(rule, scope, len(at) == 1):
            yield Match(rule, at, params), program.replace_at(at, new)
    else:
        for match in rule.matches(program, at):
            yield match, match.apply(program).after


@lru_cache(CACHE_ENTRIES)
def local_moves(rule: Rule[Any], scope: Scope, whole: bool) -> Local:
    """The parameters that a local *rule* proposes for *scope*, and what it becomes; *whole*: it is an equation's."""
    program, at = host_program(scope, whole)
    return LazySequence(lambda: ((p, rule.rewrite(program, at, p).scope_at(at)) for p in rule.propose(program, at)))


def host_program(scope: Scope, whole: bool) -> tuple[Program, Path]:
    """A program that holds *scope* as its equation's, or one level below, and the path to it."""
    if whole:
        return Program((), (Equation("Y", scope),), ("Y",)), (0,)
    reader = Scope(scope.traversals, (), scope[tuple(map(as_index, scope.traversals))])
    return Program((), (Equation("Y", reader),), ("Y",)), (0, 0)


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


@lru_cache(CACHE_ENTRIES)
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
