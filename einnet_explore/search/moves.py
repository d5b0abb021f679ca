r"""Moves of a search: what rules make of one scope, remembered, since most scopes of a program do not change in a step.

A *local* rule looks at the scope at its path, and at whether that is a whole equation's, and at nothing else.  What it
proposes for a scope, and what becomes of the scope, is therefore one fact wherever the scope stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeAlias

from einnet_explore.ir import Equation, Path, Program, Scope, as_index
from einnet_explore.rules import Match, Rule

Move: TypeAlias = "tuple[Match[Any], Program]"
Local: TypeAlias = "tuple[tuple[Any, Scope], ...]"

REMEMBERED = 1 << 15


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
    return tuple((p, rule.rewrite(program, at, p).scope_at(at)) for p in rule.propose(program, at))


def hosted(scope: Scope, whole: bool) -> tuple[Program, Path]:
    """A program that holds *scope* as its equation's, or one level below, and the path to it."""
    if whole:
        return Program((), (Equation("Y", scope),), ("Y",)), (0,)
    reader = Scope(scope.traversals, (), scope[tuple(map(as_index, scope.traversals))])
    return Program((), (Equation("Y", reader),), ("Y",)), (0, 0)
