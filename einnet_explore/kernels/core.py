"""The sum of products inside a scope: what is summed, what is done with it, and windows made explicit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from einnet_explore.algebra.substitute import fresh, substitute
from einnet_explore.ir import (
    Access,
    Apply,
    Index,
    IndexLike,
    Iterator,
    Scalar,
    Scope,
    Tensor,
    accesses,
    as_index,
    factors,
    map_accesses,
)

RESULT = Tensor("", ())
"""Stands in an epilogue for what the sum came to."""


def split(scope: Scope) -> tuple[Scope, Scalar] | None:
    """(the scope that sums, over the outer one's traversals; what is done with its result)."""
    if scope.domain or not scope.traversals:
        return None
    if scope.summations:
        return (scope, RESULT[()]) if scope.reduce == "sum" else None
    inner = {a for a in accesses(scope.body) if isinstance(a.source, Scope) and a.source.summations}
    if len(inner) != 1:
        return None
    (read,) = inner
    match read.source:
        case Scope(traversals, summations, body, "sum", ()):
            at = {x: i.single for x, i in zip(traversals, read.index, strict=True)}
        case _:
            return None
    chosen = set(at.values())
    if chosen != set(scope.traversals) or any(x.lo != y.lo or x.hi != y.hi for x, y in at.items() if y is not None):
        return None
    to: dict[Iterator, IndexLike] = {x: y for x, y in at.items() if y is not None}
    used = {x.name for x in scope.traversals}
    for s in summations:
        name = fresh(s.name, used) if s.name in used else s.name
        used.add(name)
        to[s] = Iterator(name, s.lo, s.hi)
    sums = tuple(as_index(to[s]).single or s for s in summations)
    core = Scope(scope.traversals, sums, substitute(body, to))
    epilogue = map_accesses(scope.body, lambda a: RESULT[()] if a == read else a)
    return core, epilogue


def from_zero(core: Scope, epilogue: Scalar) -> tuple[Scope, Scalar]:
    """Every iterator counted from 0, and those of one value put in."""
    to = {x: Iterator(x.name, 0, x.extent) for x in (*core.traversals, *core.summations)}
    at: Mapping[Iterator, IndexLike] = {x: y + x.lo if x.extent > 1 else x.lo for x, y in to.items()}
    moved = replace(
        core,
        traversals=tuple(to[x] for x in core.traversals),
        summations=tuple(to[x] for x in core.summations if x.extent != 1),
        body=substitute(core.body, at),
        padding=(),
    )
    return moved, substitute(epilogue, at)


def operands(core: Scope) -> tuple[Access, Access] | None:
    """The two reads whose product is summed; views are looked through where they are read inside their box."""
    found = [_seen_through(a) for a in factors(core.body) if isinstance(a, Access)]
    if len(found) != 2 or len(factors(core.body)) != 2:
        return None
    left, right = found
    if left is None or right is None:
        return None
    for access in (left, right):
        inside = all(lo <= i.bounds[0] and i.bounds[1] < hi for i, (lo, hi) in _boxed(access))
        if not inside and access.source.value != 0:
            return None
    return left, right


def _boxed(access: Access) -> Iterable[tuple[Index, tuple[int, int]]]:
    return zip(access.index, access.source.box, strict=True)


def _seen_through(access: Access) -> Access | None:
    match access.source:
        case Tensor():
            return access
        case Scope(traversals, (), Access() as inner, "sum", ()):
            if all(lo <= i.bounds[0] and i.bounds[1] < hi for i, (lo, hi) in _boxed(access)):
                at = dict(zip(traversals, access.index, strict=True))
                seen = substitute(inner, at)
                return _seen_through(seen) if isinstance(seen, Access) else None
    return None


def windowed(core: Scope) -> Scope | None:
    """Sums over windows: h = start(x) ± j for every summation that one zero-padded operand confines.

    The other operand reads h itself, over its whole extent: where h leaves its range that reads zero.
    """
    reads = operands(core)
    if reads is None:
        return None
    core = replace(core, body=Apply("*", reads))
    for h in core.summations:
        now = operands(core)
        for mine, other in (now, tuple(reversed(now))) if now is not None else ():
            found = _window(core, mine, h)
            if found is None or not _whole(other, h):
                continue
            start, sign, count = found
            j = Iterator(fresh("j", {x.name for x in (*core.traversals, *core.summations)}), 0, count)
            at = start + as_index(j) * sign
            rest = tuple(j if s == h else s for s in core.summations)
            core = replace(core, summations=rest, body=substitute(core.body, {h: at}))
            break
    return core


def _window(core: Scope, access: Access, h: Iterator) -> tuple[Index, int, int] | None:
    """(start, sign, count) of the narrowest window of *h*, where it is narrower than the range of *h*."""
    best: tuple[Index, int, int] | None = None
    for i, (lo, hi) in _boxed(access):
        k = i.coefficient(h)
        rest = i - as_index(h) * k
        if k == 0 or access.source.value != 0 or set(rest.iterators) & {h, *core.summations}:
            continue
        count = -(-(hi - lo) // abs(k))
        if count < h.extent and (best is None or count < best[2]):
            best = (-((rest - lo) // k), 1, count) if k > 0 else ((rest - lo) // -k, -1, count)
    return best


def _whole(access: Access, h: Iterator) -> bool:
    """Whether *access* reads *h* as it is, in one dimension, whose box is its range, and zero outside."""
    inside = [(i, box) for i, box in _boxed(access) if h in i.iterators]
    return len(inside) == 1 and inside[0] == (as_index(h), (h.lo, h.hi)) and access.source.value == 0
