r"""Summations whose terms are neutral outside a window that moves with other iterators.

.. math::  \sum_{h} f(\vec x, h) = \sum_{j \in [0, n)} f(\vec x, base(\vec x) - j)

if every h at which f is not neutral is :math:`base(\vec x) - j` for one j, and f is neutral where base - j leaves the
range of h.  For :math:`lo \le e - k h < hi`, as in a transposed convolution, :math:`base = \lfloor (e - lo)/k \rfloor`
and :math:`n = \lceil (hi - lo)/k \rceil`: the overlap-add of EinNet §7.3 (Fig. 11).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from einnet_explore.algebra.bijection import show_point
from einnet_explore.algebra.constancy import constancy
from einnet_explore.algebra.legality import trimmed
from einnet_explore.algebra.ranges import changed
from einnet_explore.algebra.regions import always, violation
from einnet_explore.algebra.substitute import fresh, substitute
from einnet_explore.ir import REDUCTIONS, Bound, Index, Iterator, Scope, as_index

Window: TypeAlias = "tuple[Iterator, Index, int]"


def sliding(scope: Scope) -> tuple[Window, ...]:
    """The shortest window (h, base, n) of each summation, if shorter than the summation; bases read traversals."""
    known = constancy(scope.body)
    if known is None or not known.bounds or known.value != REDUCTIONS[scope.reduce]:
        return ()
    out: list[Window] = []
    for h in scope.summations:
        found = [w for b in known.bounds if (w := _window(b, h)) is not None]
        fitting = [w for w in found if w[2] < h.extent and set(w[1].iterators) <= set(scope.traversals)]
        if fitting:
            out.append(min(fitting, key=lambda w: w[2]))
    return tuple(out)


def moved(scope: Scope, windows: tuple[Window, ...], wrap: bool = True) -> Scope:
    """*scope* with every h of *windows* replaced by base - j.

    Raises ValueError with a term that is lost, or where what a window reads beyond the range of h is not neutral.
    """
    names = [x.name for x in (*scope.traversals, *scope.summations)]
    gone = {h for h, _, _ in windows}
    for h, base, n in windows:
        if h not in scope.summations:
            raise ValueError(f"{h.name} is not summed here")
        if n < 1 or gone & set(base.iterators):
            raise ValueError(f"window {h.name} = {base} - [0, {n}): expected some terms and a base of other iterators")
        _must_cover(scope, h, base, n)
    spans = {h: _span(h, base, n) for h, base, n in windows}
    wide = changed(scope, {h: span for h, span in spans.items() if span != (h.lo, h.hi)}, wrap)
    to: dict[Iterator, Index] = {}
    taps: dict[Iterator, Iterator] = {}
    for h, base, n in windows:
        new = Iterator(fresh(h.name, names), 0, n)
        names.append(new.name)
        old = Iterator(h.name, *spans[h])
        to[old], taps[old] = base - new, new
    body = substitute(wide.body, to)
    return trimmed(replace(wide, body=body, summations=tuple(taps.get(y, y) for y in wide.summations)))


def _window(bound: Bound, h: Iterator) -> Window | None:
    k = bound.index.coefficient(h)
    rest = bound.index - as_index(h) * k
    if not k or h in rest.iterators or not rest.iterators:
        return None
    n = -((bound.lo - bound.hi) // abs(k))
    base = (rest - bound.lo) // -k if k < 0 else (bound.hi - 1 - rest) // k
    return h, base, n


def _span(h: Iterator, base: Index, n: int) -> tuple[int, int]:
    lo, hi = base.bounds
    return min(h.lo, lo - n + 1), max(h.hi, hi + 1)


def _must_cover(scope: Scope, h: Iterator, base: Index, n: int) -> None:
    """Every h at which the body is not neutral lies in the window: one bound proves it, or all together."""
    known = constancy(scope.body)
    neutral = known is not None and known.value == REDUCTIONS[scope.reduce]
    bounds = known.bounds or () if known is not None and neutral else ()
    inside = Bound(base - h, 0, n)
    if any(always(inside, (b,)) for b in bounds) or always(inside, (*bounds, *scope.domain)):
        return
    point = violation(inside, (*bounds, *scope.domain))
    raise ValueError(f"window {h.name} = {base} - [0, {n}) misses the term at {show_point(point)}")
