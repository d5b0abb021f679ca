r"""Simultaneous substitution :math:`\tau[\Phi(\vec x) / \vec z]` of iterators by indices, and fresh names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from einnet_explore.ir import Access, Apply, Bound, Compare, Const, Index, IndexLike, Iterator, Scalar, Scope


def substitute(body: Scalar, to: Mapping[Iterator, IndexLike]) -> Scalar:
    """*body* with iterators replaced.  Scopes are closed (their iterators are their own), so only indices change."""
    if not to:
        return body
    match body:
        case Access(source, index):
            new = tuple([substitute_index(i, to) for i in index])
            return Access(source, new) if new != index else body
        case Apply(op, args):
            return Apply(op, tuple(substitute(a, to) for a in args))
        case Compare(op, left, right):
            return Compare(op, substitute_index(left, to), substitute_index(right, to))
        case Const():
            return body


def substitute_index(index: Index, to: Mapping[Iterator, IndexLike]) -> Index:
    """*index* with iterators replaced; itself where none of them occurs."""
    return index.substitute(lambda x: to.get(x, x)) if any(x in to for x in index.iterators) else index


def substitute_domain(domain: tuple[Bound, ...], to: Mapping[Iterator, IndexLike]) -> tuple[Bound, ...]:
    """The bounds with iterators replaced; those that always hold afterwards are dropped."""
    out = (Bound(substitute_index(b.index, to), b.lo, b.hi) for b in domain)
    return tuple(dict.fromkeys(b for b in out if not holds_everywhere(b)))


def holds_everywhere(bound: Bound) -> bool:
    """Whether *bound* holds over the whole ranges of its iterators."""
    lo, hi = bound.index.bounds
    return bound.lo <= lo and hi < bound.hi


def rename_iterators(scope: Scope, used: Iterable[str]) -> Scope:
    """*scope* with its own iterators renamed so that none has a name in *used*; nested scopes keep theirs."""
    taken = set(used)
    own = {x.name for x in (*scope.traversals, *scope.summations)}
    to: dict[Iterator, Iterator] = {}
    for x in (*scope.traversals, *scope.summations):
        if x.name in taken:
            name = fresh_name(x.name, taken | own)
            taken.add(name)
            to[x] = Iterator(name, x.lo, x.hi)
    return with_iterators(scope, to) if to else scope


def with_iterators(scope: Scope, to: Mapping[Iterator, Iterator]) -> Scope:
    """*scope* with iterators exchanged one for one, in ranges, domain and body."""
    return replace(
        scope,
        traversals=tuple(to.get(x, x) for x in scope.traversals),
        summations=tuple(to.get(x, x) for x in scope.summations),
        body=substitute(scope.body, to),
        domain=tuple(Bound(substitute_index(b.index, to), b.lo, b.hi) for b in scope.domain),
    )


def fresh_name(stem: str, used: Iterable[str]) -> str:
    """*stem* with the smallest number that makes it a name not in *used*."""
    stem = stem.rstrip("0123456789") or "x"
    taken = set(used)
    return next(name for n in range(1, len(taken) + 2) if (name := f"{stem}{n}") not in taken)
