"""Structure of a stage's body that determines its schedule: strides, phases, guards, tiles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import gcd, prod

from einnet_explore.analysis.indices import period
from einnet_explore.codegen.preparation import address_step, evaluation_count
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Remainder,
    Scalar,
    Scope,
    accesses,
    as_index,
)

MAX_LANES = 16
"""Elements of the widest vector register in use."""

MAX_PHASES = 8
"""Rows with more phases than this are not split."""


def moved_elements(scope: Scope) -> int:
    """Return the number of elements read and written; a view of a scope counts that scope's reads."""
    reads = sum(len(tuple(accesses(a.source.body))) if isinstance(a.source, Scope) else 1 for a in accesses(scope.body))
    return evaluation_count(scope) * (1 + reads)


def schedule_templates(scope: Scope) -> tuple[str, ...]:
    """Return the templates that fit *scope*, the most promising first; ``plain`` is always last."""
    if not scope.traversals or evaluation_count(scope) == 0:
        return ("plain",)
    reads = tuple(a for a in accesses(scope.body) if a.index)
    if not scope.summations and case_traversals(scope):
        return ("combine", "rows", "plain")
    if scope.summations:
        last = scope.traversals[-1]
        along = [s for s in scope.summations if vector_lanes(s) and reads and is_contiguous_along(reads, s)]
        if reads and is_contiguous_along(reads, last) and last.extent >= 4:
            return ("outer", *(("inner",) if along else ()), "plain")
        return ("inner", "outer", "plain") if along else ("outer", "plain")
    if transposed_view(scope) is not None:
        return ("turn", "tile", "rows", "plain")
    return ("tile", "rows", "plain") if transpose_tile(scope) else ("rows", "plain")


def case_traversals(scope: Scope) -> tuple[tuple[int, int], ...]:
    """Return (position, period) of the traversals whose value, or remainder, selects between constants.

    Empty if the innermost traversal does, or if its extent has no vector.
    """
    last = scope.traversals[-1]
    if last.extent % (MAX_LANES // 2) or not all(abs(address_step(a, last)) <= 1 for a in accesses(scope.body)):
        return ()
    found: dict[int, int] = {}
    for index in _choices(scope.body):
        match index.terms:
            case ((Iterator() as x, 1),) if x.extent <= MAX_PHASES:
                found[scope.traversals.index(x)] = x.extent
            case ((Remainder(numerator, d), 1),) if d <= MAX_PHASES and (along := numerator.single) is not None:
                found[scope.traversals.index(along)] = d
    return () if len(scope.traversals) - 1 in found else tuple(sorted(found.items()))


def _choices(body: Scalar) -> Iterable[Index]:
    """Yield the indices of ``where(index == n, ...)`` between constants."""
    match body:
        case Apply("where", (Compare("==", left, right), Const() | Apply("where"), Const() | Apply("where"))):
            yield left if not right.terms else right
        case Apply(args=args):
            for arg in args:
                yield from _choices(arg)


def transposed_view(scope: Scope) -> Scope | None:
    """Return *scope* as a transposed view of a scope that runs along memory innermost, or None if no tile fits."""
    n = _along(scope)
    if n is None or scope.summations:
        return None
    x, last = scope.traversals[n], scope.traversals[-1]
    inner = (*scope.traversals[:n], *scope.traversals[n + 1 :], x)
    side = gcd(x.extent, last.extent, MAX_LANES)
    guarded = any(x in i.iterators and (i.bounds[0] < lo or i.bounds[1] >= hi) for i, lo, hi in _guards(scope.body))
    if side < MAX_LANES // 4 or guarded:
        return None
    return replace(scope, body=replace(scope, traversals=inner, padding=())[tuple(as_index(y) for y in inner)])


def is_contiguous_along(reads: Iterable[Access], x: Iterator) -> bool:
    """True if a step of *x* moves every read by at most one element."""
    return all(abs(address_step(a, x)) <= 1 for a in reads)


def vector_lanes(s: Iterator) -> int:
    """Return the widest vector that divides the extent of *s*, or 0."""
    return next((n for n in (MAX_LANES, MAX_LANES // 2, MAX_LANES // 4) if s.extent % n == 0), 0)


def phase_period(scope: Scope, x: Iterator) -> int:
    """Return the number of phases after which every ``//`` and ``%`` of *x* repeats; 1 for none or too many."""
    found = period(_indices(scope.body), x)
    return found if found <= MAX_PHASES and x.extent % found == 0 and x.extent > found else 1


def guard_borders(scope: Scope, last: Iterator, period: int) -> tuple[int, int]:
    """Return (before, after): numbers of steps at the ends of a row that need guards."""
    rows = last.extent // period
    x = Iterator(last.name, 0, rows)
    cuts: set[int] = set()
    for phase in range(period):
        for index, lo, hi in _guards(scope.body):
            at = as_index(x) * period + phase + last.lo
            moved = index.substitute(partial(_replaced, last, at))
            k = moved.coefficient(x)
            if k and not (moved - as_index(x) * k).terms:
                edges = ((lo - moved.const), (hi - moved.const))
                cuts |= {-(-e // k) for e in edges} if k > 0 else {(e // k) + 1 for e in edges}
    inside = sorted(c for c in cuts if 0 < c < rows)
    before = max((c for c in inside if 2 * c <= rows), default=0)
    after = rows - min((c for c in inside if 2 * c > rows), default=rows)
    return (before, after) if before + after < rows else (0, 0)


def _replaced(old: Iterator, new: Index, x: Iterator) -> Index:
    return new if x == old else as_index(x)


def _guards(body: Scalar) -> Iterable[tuple[Index, int, int]]:
    """Yield (index, lo, hi) of every test in the evaluation of *body*."""
    match body:
        case Access(source, index):
            yield from ((i, lo, hi) for i, (lo, hi) in zip(index, source.box, strict=True))
        case Compare(_, left, right):
            yield left - right, 0, 1
        case Apply(args=args):
            for arg in args:
                yield from _guards(arg)
        case Const():
            pass


def _indices(body: Scalar) -> Iterable[Index]:
    for access in accesses(body):
        yield from access.index


def _along(scope: Scope) -> int | None:
    """Return the position of the traversal, not the innermost, that runs along memory in the largest read, or None."""
    reads = max(accesses(scope.body), key=lambda a: prod(a.source.shape), default=None)
    if reads is None or not scope.traversals or is_contiguous_along((reads,), scope.traversals[-1]):
        return None
    return next(
        (n for n, x in enumerate(scope.traversals[:-1]) if x.extent > 1 and abs(address_step(reads, x)) == 1), None
    )


def transpose_tile(scope: Scope) -> tuple[int, int, int] | None:
    """Return (position of the iterator along memory, its tile, the innermost traversal's tile) or None."""
    n = _along(scope)
    if n is None:
        return None
    along, across = (_divisor(y.extent) for y in (scope.traversals[n], scope.traversals[-1]))
    return (n, along, across) if min(along, across) > 1 else None


def _divisor(extent: int) -> int:
    return max(n for n in range(1, MAX_LANES + 1) if extent % n == 0)
