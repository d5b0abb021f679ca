r"""Boundary tightening (EinNet Table 1; §4.1).

.. math::
   \mathop{L}_{\vec x}^{X'} f(T[\tau(\vec x)]) \;\mapsto\; \mathop{L}_{\vec x}^{X} f(T[\tau(\vec x)]),
   \qquad X \subset X',\ f \text{ constant on } X' \setminus X

Constants come from padding.  Positions that are removed from a nested scope become its padding, so every read stays
legal.  The tightest ranges are chosen.  A summation may also shrink to a *window that moves* with other iterators, if
the body is neutral unless :math:`0 \le base(\vec x) - h < n`,

.. math::  \sum_{h} f(\vec x, h) \;\mapsto\; \sum_{j \in [0, n)} f(\vec x, base(\vec x) - j)

so the sum of an overlap-add has only the taps that reach one position.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from einnet_explore.analysis.indices import join_names
from einnet_explore.analysis.padding import (
    SlidingWindow,
    change_ranges,
    constancy,
    copies_tensor,
    recentre_windows,
    sliding_windows,
    tightest_ranges,
)
from einnet_explore.ir import Index, Iterator, Path, Program, Scope
from einnet_explore.rules.base import Rule, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Tightening:
    """*ranges*: iterators with their smaller ranges.  *window*: (h, base, n) where h = base - j for j in [0, n)."""

    ranges: tuple[tuple[Iterator, int, int], ...] = ()
    window: tuple[tuple[Iterator, Index, int], ...] = ()


def propose(program: Program, at: Path) -> Iterable[Tightening]:
    """Propose the tightest ranges together, then the shortest moving windows that need no copy of a tensor."""
    scope = program.scope_at(at)
    iterators = scope.summations if len(at) == 1 else (*scope.traversals, *scope.summations)
    if ranges := tightest_ranges(scope, iterators):
        yield Tightening(ranges=tuple((x, lo, hi) for x, (lo, hi) in ranges.items()))
    if legal := tuple(window for window in sliding_windows(scope) if _copies(scope, (window,)) is False):
        yield Tightening(window=legal)


def phased(scope: Scope) -> Tightening | None:
    """Return the shortest moving windows together if some read beyond a tensor without padding, else None.

    ``propose`` leaves these out: the tensor is copied with padding, which only pays once the bases of the windows no
    longer depend on residues of one traversal, i.e. once each phase of a transposed convolution is a filter.
    """
    windows = sliding_windows(scope)
    return Tightening(window=windows) if windows and _copies(scope, windows) else None


def _copies(scope: Scope, windows: tuple[SlidingWindow, ...]) -> bool | None:
    """Whether moving *windows* copies a tensor with padding; None if they must not move."""
    try:
        return copies_tensor(scope, recentre_windows(scope, windows))
    except ValueError:
        return None


def rewrite(program: Program, at: Path, params: Tightening) -> Program:
    """Apply the law; refuses with the region that is not constant, or with a term that a window misses."""
    scope = program.scope_at(at)
    if not params.ranges and not params.window:
        raise Refused("neither a range nor a window is given")
    for x, lo, hi in params.ranges:
        if x not in (*scope.traversals, *scope.summations):
            raise Refused(f"{x.name} ∈ [{x.lo}, {x.hi}) is no iterator of this scope")
        if len(at) == 1 and x in scope.traversals:
            raise Refused(f"{x.name} is a traversal of the whole equation: its result keeps [{x.lo}, {x.hi})")
        if not x.lo <= lo < hi <= x.hi or (lo, hi) == (x.lo, x.hi):
            raise Refused(f"[{lo}, {hi}) is not narrower than {x.name} ∈ [{x.lo}, {x.hi})")
    with refusing():
        scope = change_ranges(scope, {x: (lo, hi) for x, lo, hi in params.ranges})
        return program.replace_at(at, recentre_windows(scope, params.window) if params.window else scope)


def explain(program: Program, at: Path) -> str:
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
    propose,
    rewrite,
    local=True,
    explain=explain,
)
