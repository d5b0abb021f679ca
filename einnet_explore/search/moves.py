r"""Moves of a search: what rules make of one scope, remembered, since most scopes of a program do not change in a step.

A *local* rule looks at the scope at its path, and at whether that is a whole equation's, and at nothing else.  What it
proposes for a scope, and what becomes of the scope, is therefore one fact wherever the scope stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

from einnet_explore.ir import Equation, Path, Program, Scope, as_index
from einnet_explore.rules import Match, Rule

Move: TypeAlias = "tuple[Match[Any], Program]"
T = TypeVar("T")

REMEMBERED = 1 << 15


class Lazy(Generic[T]):
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


Local: TypeAlias = "Lazy[tuple[Any, Scope]]"


def moves(rule: Rule[Any], program: Program, at: Path, scope: Scope) -> Iterable[Move]:
    """Each legal match of *rule* at *at*, where *scope* stands, and the program that it leads to."""
    if rule.local:
        for params, new in local_moves(rule, scope, len(at) == 1):
            yield Match(rule, at, params), program.replace_at(at, new)
    else:
        for match in rule.matches(program, at):
            yield match, match.apply(program).after


@lru_cache(REMEMBERED)
def local_moves(rule: Rule[Any], scope: Scope, whole: bool) -> Local:
    """The parameters that a local *rule* proposes for *scope*, and what it becomes; *whole*: it is an equation's."""
    program, at = hosted(scope, whole)
    return Lazy(lambda: ((p, rule.rewrite(program, at, p).scope_at(at)) for p in rule.propose(program, at)))


def hosted(scope: Scope, whole: bool) -> tuple[Program, Path]:
    """A program that holds *scope* as its equation's, or one level below, and the path to it."""
    if whole:
        return Program((), (Equation("Y", scope),), ("Y",)), (0,)
    reader = Scope(scope.traversals, (), scope[tuple(map(as_index, scope.traversals))])
    return Program((), (Equation("Y", reader),), ("Y",)), (0, 0)
