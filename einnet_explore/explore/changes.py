"""What a step changed: the smallest scopes of a program that another one does not have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from einnet_explore.ir import Access, Path, Program, Scope, Tensor, accesses, map_accesses

_BLANK = Tensor("", ())


def changed(before: Program, after: Program) -> tuple[Path, ...]:
    """The paths in *after* of the smallest scopes that *before* does not have in the same place."""
    known = {e.name: e for e in before.equations}
    paths: list[Path] = []
    for n, equation in enumerate(after.equations):
        old = known.get(equation.name)
        if old is None or old.via != equation.via:
            paths.append((n,))
        elif old.scope != equation.scope:
            paths += [(n, *path) for path in _differing(old.scope, equation.scope)]
    return tuple(paths)


def _differing(old: Scope, new: Scope) -> Iterable[Path]:
    if _outline(old) != _outline(new):
        yield ()
        return
    for n, (a, b) in enumerate(zip(accesses(old.body), accesses(new.body), strict=True)):
        match a.source, b.source:
            case Scope() as one, Scope() as other if one != other:
                for path in _differing(one, other):
                    yield (n, *path)
            case one, other if one != other:
                yield ()
                return


def _outline(scope: Scope) -> Scope:
    """*scope* without what it reads."""
    return replace(scope, body=map_accesses(scope.body, lambda a: Access(_BLANK, a.index)))
