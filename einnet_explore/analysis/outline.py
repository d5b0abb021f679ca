"""Outlines: scopes without the bodies of the scopes that they read.

A rule on one scope rarely reads what the scopes nested in it compute: their boxes, domains and paddings are enough.
So scopes of one *outline* have the same matches, and a search, in which a rewrite of one scope changes the values of
all scopes around it, computes these matches once for each outline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.ir import Access, Iterator, Scope, Tensor, accesses, map_accesses, with_body

STEM = "?"
"""The first letter of the tensors that stand for hidden bodies; no name in a program starts with it."""


@dataclass(frozen=True, slots=True)
class Outline:
    """*scope* without the bodies of *hidden*: the n-th is the scope whose body reads the tensor ``?n``."""

    scope: Scope
    hidden: tuple[Scope, ...]

    def fill(self, scope: Scope) -> Scope:
        """*scope*, made from the outline, with the hidden bodies in place; its paddings and values stay."""
        body = scope.body
        if isinstance(body, Access) and isinstance(body.source, Tensor) and body.source.name.startswith(STEM):
            full = self.hidden[int(body.source.name[len(STEM) :])]
            if scope.padding == full.padding and scope.value == full.value:
                return full
            return Scope(
                full.traversals, full.summations, full.body, full.reduce, full.domain, scope.padding, scope.value
            )
        return with_body(scope, map_accesses(body, self._fill_access))

    def _fill_access(self, access: Access) -> Access:
        source = access.source
        return Access(self.fill(source), access.index) if isinstance(source, Scope) else access


@lru_cache(1 << 14)
def outline(scope: Scope, levels: int) -> Outline:
    """The outline of *scope* that keeps the bodies of *levels* levels of nested scopes.

    Nested scopes that are equal but for names are not hidden, since an outline cannot tell which of them comes first.
    """
    found = dict.fromkeys(_below(scope, levels))
    if len(found) > 1:
        # Canonical orders compare what is read: the names of hidden bodies keep the order of the bodies.
        keys: dict[Scope, Any] = {source: canonical_key(source) for source in found}
        if len(set(keys.values())) < len(found):
            return Outline(scope, ())
        found = dict.fromkeys(sorted(found, key=lambda source: keys[source]))
    if not found:
        return Outline(scope, ())
    stub = _lone_stub if len(found) == 1 else _stub
    stubs = {source: stub(source, n) for n, source in enumerate(found)}
    return Outline(_hide(scope, levels, stubs), tuple(found))


def _below(scope: Scope, levels: int) -> Iterable[Scope]:
    """The scopes read by *scope* below so many levels."""
    for access in accesses(scope.body):
        if isinstance(access.source, Scope):
            if levels:
                yield from _below(access.source, levels - 1)
            else:
                yield access.source


def _hide(scope: Scope, levels: int, stubs: Mapping[Scope, Scope]) -> Scope:
    def swap(access: Access) -> Access:
        source = access.source
        if not isinstance(source, Scope):
            return access
        return Access(_hide(source, levels - 1, stubs) if levels else stubs[source], access.index)

    return with_body(scope, map_accesses(scope.body, swap))


def _stub(scope: Scope, n: int) -> Scope:
    """Return *scope* with a read of the tensor ``?n`` as body."""
    return with_body(scope, Access(Tensor(f"{STEM}{n}", ()), ()))


def _lone_stub(scope: Scope, n: int) -> Scope:
    """Return the stub of the only nested scope: nothing is compared with it, so any names of iterators do."""
    found = _stub(scope, n)
    if scope.domain:
        return found
    box = tuple([Iterator(f"z{d}", x.lo, x.hi) for d, x in enumerate(scope.traversals)])
    return Scope(box, (), found.body, "sum", (), scope.padding, scope.value)
