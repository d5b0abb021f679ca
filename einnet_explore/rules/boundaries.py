"""Boundaries of ranges (EinNet Table 1; §4.1): relaxing widens them, tightening narrows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TypeAlias

from einnet_explore.analysis.access_structure import padded_windows, residue_divisors, windows
from einnet_explore.analysis.indices import join_names, substitute_domain
from einnet_explore.analysis.padding import (
    SlidingWindow,
    change_ranges,
    check_tensor_reads,
    constancy,
    copies_tensor,
    excess,
    fit_padding,
    recentre_windows,
    reduced_constant,
    sliding_windows,
    tightest_ranges,
)
from einnet_explore.analysis.regions import always_holds, index_reach
from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Bound,
    Index,
    Iterator,
    Path,
    Program,
    Scope,
    Tensor,
    accesses,
    describe_source,
    map_accesses,
)
from einnet_explore.rules.base import Rule, accepted, access_of, refusals_of, refusing
from einnet_explore.support.errors import Refused

Ranges: TypeAlias = tuple[tuple[Iterator, int, int], ...]
"""Iterators with new half-open ranges."""


def _check_may_change(scope: Scope, at: Path, x: Iterator) -> None:
    """Raise Refused unless the range of *x* may change in *scope* at *at*."""
    if x not in (*scope.traversals, *scope.summations):
        raise Refused(f"{x.name} ∈ [{x.lo}, {x.hi}) is no iterator of this scope")
    if len(at) == 1 and x in scope.traversals:
        raise Refused(f"{x.name} is a traversal of the whole equation: its result keeps [{x.lo}, {x.hi})")


@dataclass(frozen=True, slots=True)
class Unbound:
    """Drop the bounds numbered *bounds* from the domain of the scope that access *access* reads.

    *wrap* allows tensors that are then read beyond their padding to be copied with more of it.
    """

    access: int
    bounds: tuple[int, ...]
    wrap: bool = False


@dataclass(frozen=True, slots=True)
class Wider:
    """Iterators of the scope with the larger half-open ranges that they get."""

    ranges: Ranges


Relaxing: TypeAlias = Unbound | Wider


def propose_relaxing(program: Program, at: Path) -> Iterable[Relaxing]:
    """Propose all redundant bounds of each nested scope; summations up to multiples that indices or windows need."""
    scope = program.scope_at(at)
    for n, access in enumerate(accesses(scope.body)):
        if isinstance(access.source, Scope) and access.source.domain:
            yield from _droppable(scope, n, access, access.source)
    for ranges in _wider_ranges(scope):
        if accepted(relax, program, at, params := Wider(ranges)):
            yield params


def relax(program: Program, at: Path, params: Relaxing) -> Program:
    r"""Boundary relaxing (EinNet Table 1; §4.1).

    .. math::
       \mathop{L}_{\vec x}^{X} f(T[\tau(\vec x)]) \;\mapsto\; \mathop{L}_{\vec x}^{X'} f(T[\tau(\vec x)]),
       \qquad X \subset X',\ T \text{ constant on } X' \setminus X

    Three forms: a reader drops bounds of a nested scope's domain that no read violates, or outside which the scope
    equals its constant; a summation is extended over points where the body is the neutral element; a traversal of a
    nested scope is extended over part of its padding.  Refusals show the values that violate a bound, or the added
    region that is not constant.
    """
    scope = program.scope_at(at)
    match params:
        case Unbound():
            return program.replace_at(at, _unbound(scope, params))
        case Wider(ranges):
            return program.replace_at(at, _wider(scope, at, ranges))


def _unbound(scope: Scope, params: Unbound) -> Scope:
    access = access_of(scope, params.access)
    inner = access.source
    if not isinstance(inner, Scope):
        raise Refused(f"access {params.access} reads {describe_source(inner)}, which has no domain")
    if not params.bounds:
        raise Refused("no bound is given")
    if stray := [n for n in params.bounds if not 0 <= n < len(inner.domain)]:
        raise Refused(f"bound {stray[0]}: the domain has {len(inner.domain)} bounds")
    freed = _drop_bounds(inner, params.bounds)
    if not params.wrap:
        check_tensor_reads(freed)
    freed = fit_padding(freed, REDUCTIONS[inner.reduce])
    for n in params.bounds:
        check_redundant(scope, access, freed, inner.domain[n], inner.value)
    number = count()
    return replace(
        scope, body=map_accesses(scope.body, lambda a: Access(freed, a.index) if next(number) == params.access else a)
    )


def _drop_bounds(inner: Scope, bounds: tuple[int, ...]) -> Scope:
    """Return *inner* without the bounds of these numbers; some reads may leave their boxes."""
    kept = tuple(b for n, b in enumerate(inner.domain) if n not in bounds)
    return replace(inner, domain=kept, value=inner.value if kept or inner.padding else 0)


def _without_domain(inner: Scope) -> Scope:
    """Return *inner* without any bound; reads outside a tensor go to a padded copy."""
    return fit_padding(replace(inner, domain=(), value=inner.value if inner.padding else 0), REDUCTIONS[inner.reduce])


def check_redundant(scope: Scope, access: Access, inner: Scope, bound: Bound, value: float) -> None:
    """Raise Refused if a read violates *bound* where *inner*, without the bound, is not *value*."""
    to = dict(zip(inner.traversals, access.index, strict=True))
    read = substitute_domain((bound,), to)
    # A read in the padding yields the value whatever the domain says: only reads inside the box matter.
    inside = tuple(Bound(i, x.lo, x.hi) for x, i in to.items())
    if not read or always_holds(read[0], (*scope.domain, *inside)):
        return
    known = constancy(inner.body)
    constant = known is not None and reduced_constant(inner, known.value) == value
    if (
        known is not None
        and constant
        and (known.bounds is None or any(always_holds(bound, (b,)) for b in known.bounds))
    ):
        return
    lo, hi = index_reach(read[0].index, (*scope.domain, *inside))
    raise Refused(f"reads reach [{lo}, {hi}], outside {bound}")


def _wider(scope: Scope, at: Path, ranges: Ranges) -> Scope:
    if not ranges:
        raise Refused("no range is given")
    for x, lo, hi in ranges:
        _check_may_change(scope, at, x)
        if lo > x.lo or hi < x.hi or (lo, hi) == (x.lo, x.hi):
            raise Refused(f"[{lo}, {hi}) is not wider than {x.name} ∈ [{x.lo}, {x.hi})")
    with refusing():
        return change_ranges(scope, {x: (lo, hi) for x, lo, hi in ranges})


def _droppable(scope: Scope, number: int, access: Access, inner: Scope) -> Iterable[Unbound]:
    everything = _without_domain(inner)
    redundant = partial(check_redundant, scope, access, everything, value=inner.value)
    free = tuple(n for n, b in enumerate(inner.domain) if accepted(redundant, bound=b))
    if free:
        kept = tuple(b for n, b in enumerate(inner.domain) if n not in free)
        sources = [a.source for a in accesses(inner.body)]
        beyond = excess(replace(inner, domain=kept))
        yield Unbound(number, free, wrap=any(isinstance(sources[e.access], Tensor) for e in beyond))


def _wider_ranges(scope: Scope) -> Iterable[Ranges]:
    """Yield the ranges of summations that an index divides, and of windows for equal pieces: all at once, then each.

    Ranges for smaller pieces are only yielded all at once.
    """
    suggested, moving = residue_divisors(scope, scope.summations), windows(scope)
    extents = {x: dict[int, None]() for x in reversed((*(x for x, _ in suggested), *moving))}
    for x, d in suggested:
        if x.extent % d:
            extents[x][x.extent + -x.extent % d] = None
    for x, step in moving.items():
        extents[x] |= dict.fromkeys(padded_windows(x.extent, step))
    for rank in range(max(map(len, extents.values()), default=0)):
        wider = [(x, x.lo, x.lo + tuple(found)[rank]) for x, found in extents.items() if rank < len(found)]
        yield tuple(wider)
        if rank == 0 and len(wider) > 1:
            yield from ((each,) for each in wider)


def _why_not_relaxed(program: Program, at: Path) -> str:
    """Return why no bound can be dropped and no range has to grow."""
    scope = program.scope_at(at)
    reasons: list[str] = []
    for n, access in enumerate(accesses(scope.body)):
        if isinstance(access.source, Scope) and access.source.domain:
            try:
                everything = _without_domain(access.source)
                redundant = partial(check_redundant, scope, access, everything, value=access.source.value)
                needed = [reason for b in access.source.domain for reason in refusals_of(redundant, bound=b)]
            except ValueError as error:
                needed = [str(error)]
            reasons += [f"access {n}: {reason}" for reason in needed]
    for ranges in _wider_ranges(scope):
        reasons += refusals_of(relax, program, at, Wider(ranges))
    extents = ", ".join(f"{x.name}:{x.extent}" for x in scope.summations) or "none"
    return (
        "; ".join(reasons)
        or f"no nested scope has a domain, and no index needs a wider range of the summations ({extents})"
    )


BOUNDARY_RELAXING = Rule(
    "boundary_relaxing",
    r"\mathop{L}_{\vec x}^{X} f(T[\tau(\vec x)]) \;\mapsto\; \mathop{L}_{\vec x}^{X'} f(T[\tau(\vec x)]),"
    r"\qquad X \subset X',\ f \text{ constant on } X' \setminus X",
    propose_relaxing,
    relax,
    local=True,
    explain=_why_not_relaxed,
)


@dataclass(frozen=True, slots=True)
class Tightening:
    """*ranges*: iterators with their smaller ranges.  *window*: (h, base, n) where h = base - j for j in [0, n)."""

    ranges: Ranges = ()
    window: tuple[tuple[Iterator, Index, int], ...] = ()


def propose_tightening(program: Program, at: Path) -> Iterable[Tightening]:
    """Propose the tightest ranges together, then the shortest moving windows that need no copy of a tensor."""
    scope = program.scope_at(at)
    iterators = scope.summations if len(at) == 1 else (*scope.traversals, *scope.summations)
    if ranges := tightest_ranges(scope, iterators):
        yield Tightening(ranges=tuple((x, lo, hi) for x, (lo, hi) in ranges.items()))
    legal: tuple[SlidingWindow, ...] = ()
    for window in sliding_windows(scope):  # two that are legal alone need not be legal together
        if _copies(scope, (*legal, window)) is False:
            legal = (*legal, window)
    if legal:
        yield Tightening(window=legal)


def phased(scope: Scope) -> Tightening | None:
    """Return the shortest moving windows together if some read beyond a tensor without padding, else None.

    ``propose_tightening`` leaves these out: the tensor is copied with padding, which only pays once the bases of the
    windows no longer depend on residues of one traversal, i.e. once each phase of a transposed convolution is a filter.
    """
    windows = sliding_windows(scope)
    return Tightening(window=windows) if windows and _copies(scope, windows) else None


def _copies(scope: Scope, windows: tuple[SlidingWindow, ...]) -> bool | None:
    """Whether moving *windows* copies a tensor with padding; None if they must not move."""
    try:
        return copies_tensor(scope, recentre_windows(scope, windows))
    except ValueError:
        return None


def tighten(program: Program, at: Path, params: Tightening) -> Program:
    r"""Boundary tightening (EinNet Table 1; §4.1).

    .. math::
       \mathop{L}_{\vec x}^{X'} f(T[\tau(\vec x)]) \;\mapsto\; \mathop{L}_{\vec x}^{X} f(T[\tau(\vec x)]),
       \qquad X \subset X',\ f \text{ constant on } X' \setminus X

    Constants come from padding.  Positions that are removed from a nested scope become its padding, so every read stays
    legal.  The tightest ranges are chosen.  A summation may also shrink to a *window that moves* with other iterators,
    if the body is neutral unless :math:`0 \le base(\vec x) - h < n`,

    .. math::  \sum_{h} f(\vec x, h) \;\mapsto\; \sum_{j \in [0, n)} f(\vec x, base(\vec x) - j)

    so the sum of an overlap-add has only the taps that reach one position.  Refusals show the region that is not
    constant, or a term that a window misses.
    """
    scope = program.scope_at(at)
    if not params.ranges and not params.window:
        raise Refused("neither a range nor a window is given")
    for x, lo, hi in params.ranges:
        _check_may_change(scope, at, x)
        if not x.lo <= lo < hi <= x.hi or (lo, hi) == (x.lo, x.hi):
            raise Refused(f"[{lo}, {hi}) is not narrower than {x.name} ∈ [{x.lo}, {x.hi})")
    with refusing():
        scope = change_ranges(scope, {x: (lo, hi) for x, lo, hi in params.ranges})
        return program.replace_at(at, recentre_windows(scope, params.window) if params.window else scope)


def _why_not_tightened(program: Program, at: Path) -> str:
    """Return why nothing can be removed: the support of every iterator is its range, or the body is unknown."""
    scope = program.scope_at(at)
    iterators = scope.summations if len(at) == 1 else (*scope.traversals, *scope.summations)
    kept = f"traversals of the result keep their ranges: {join_names(scope.traversals)}; " if len(at) == 1 else ""
    if constancy(scope.body) is None:
        return f"{kept}the body is not known to be constant anywhere"
    if not iterators:
        return f"{kept}nothing is summed"
    spans = ", ".join(f"{x.name} is [{x.lo}, {x.hi})" for x in iterators)
    return f"{kept}the body is constant at no end of a range: the support of {spans}, the whole range"


BOUNDARY_TIGHTENING = Rule(
    "boundary_tightening",
    r"\mathop{L}_{\vec x}^{X'} f(T[\tau(\vec x)]) \;\mapsto\; \mathop{L}_{\vec x}^{X} f(T[\tau(\vec x)]),"
    r"\qquad X \subset X',\ f \text{ constant on } X' \setminus X",
    propose_tightening,
    tighten,
    local=True,
    explain=_why_not_tightened,
)
