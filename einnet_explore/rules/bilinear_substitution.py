r"""Bilinear substitution: a filter along one dimension is computed with fewer multiplications.

.. math::
   \mathop{L}_{h, \vec x} \sum_{r, \vec y} A[h + r, \cdot]\, K[r, \cdot]
   \;\mapsto\;
   \mathop{L}_{h, \vec x} \sum_p W[h \bmod m, p]
   \Big\{ \mathop{L}_{p, t, \vec x} \sum_{\vec y}
      \Big\{ \sum_i U[p, i]\, A[m t + i, \cdot] \Big\} \Big\{ \sum_r V[p, r]\, K[r, \cdot] \Big\}
   \Big\}[p, \lfloor h / m \rfloor, \vec x]

where (U, V, W) are tables of exact rationals with :math:`\sum_p W[k,p]\,U[p,i]\,V[p,r] = [i = k + r]`: *m* outputs of
*R* taps take :math:`m + R - 1` products instead of :math:`m R`.  The bilinear identity is the guard.  The three scopes
become new equations: the transform of the filter is computed at compile time, and the product in the middle has one
more batch dimension.  Applied to every dimension of a window, the rule derives the nested algorithm F(m×m, R×R).

If taps come in groups of *m*, the data are read at h + r + m q, and window (t, q) equals window t + q.  All groups then
share one transform, which the product reads at :math:`[p, t + q, \cdot]`.  For long filters, R taps in groups of
*m* take :math:`\lceil R / m \rceil (2m - 1)` products for *m* outputs instead of :math:`m R`.

Sources: S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, CVPR 2016.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod

from einnet_explore.analysis.access_structure import Window, channels_last, filter_windows, keep_in_place, match_window
from einnet_explore.analysis.bilinear import (
    Bilinear,
    as_table,
    bilinear_from_json,
    bilinear_to_json,
    check_bilinear,
    correlates,
    correlation,
)
from einnet_explore.analysis.indices import fresh_name, iterator_by_name
from einnet_explore.analysis.padding import fit_padding
from einnet_explore.analysis.regions import index_reach
from einnet_explore.ir import Access, Equation, Index, Iterator, Path, Program, Scope, as_index, factors, mul
from einnet_explore.rules.base import Rule, refusing
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import as_integer, as_texts

OUTPUTS = (4, 2, 6)
"""How many outputs at a time are proposed: more save more products and lose more digits."""

RANK = 8
"""The largest algorithm that is proposed: beyond it too few digits are left in single precision."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The dimension (*traversal* h, *summation* r) and the algorithm that takes its place.

    Data are transposed so that channels lie innermost, or stay *in_place*, which is better with few features.
    """

    traversal: Iterator
    summation: Iterator
    algorithm: Bilinear
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class _Windows:
    """The *number* of a transformed window, where readers find theirs (*at*), and the *start* of window 0."""

    number: Iterator
    at: Index
    start: Index

    def reads(self, window: Window, m: int, data: int) -> tuple[int, int]:
        """Return the first and the last position that windows of *data* elements at distance *m* read."""
        return (self.start + (as_index(self.number) * m + Iterator("@i", 0, data)) * window.step).bounds


def propose(program: Program, at: Path) -> Iterable[Filter]:
    """Propose F(m, R) for every traversal and summation that occur together only as h ± r, with at least m outputs."""
    scope = program.scope_at(at)
    for h, r, _ in filter_windows(scope):
        for m in OUTPUTS:
            if r.extent > 1 and m <= h.extent and m + r.extent - 1 <= RANK:
                yield Filter(h, r, correlation(m, r.extent))


def rewrite(program: Program, at: Path, params: Filter) -> Program:
    """Apply the law; refuses h and r that form no filter, and an algorithm with a wrong entry (the first is shown)."""
    scope = program.scope_at(at)
    h, r, algorithm = params.traversal, params.summation, params.algorithm
    window, (m, data, _) = _checked_window(scope, params), algorithm.shape
    before: list[Equation] = []
    laid = keep_in_place(scope, window, h) if params.in_place else channels_last(scope, window)
    inner, window, turned_data = laid
    names = {x.name for x in (*scope.traversals, *scope.summations)}
    p = Iterator(fresh_name("p", names), 0, algorithm.rank)
    t = Iterator(fresh_name("t", names | {p.name}), 0, -(-h.extent // m))
    windows = _windows(window, m, t)
    if turned_data is not None:
        before.append(
            Equation(program.fresh("D"), _pad_read_region(turned_data, window, windows.reads(window, m, data)))
        )
        read = before[-1].tensor[window.data.index]
        inner = replace(inner, body=mul(*(read if f == window.data else f for f in factors(inner.body))))
        window = replace(window, data=read)
    with refusing():
        inputs = Equation(program.fresh("X"), _data(inner, window, params, p, windows))
    filters = Equation(program.fresh("L"), _taps(window, params, p))
    put = {
        window.data: inputs.tensor[_at(window, p, windows)],
        window.taps: filters.tensor[(p, *_own(window.taps, r))],
    }
    body = mul(*(put.get(f, f) if isinstance(f, Access) else f for f in factors(inner.body)))
    over = (p, *(t if x == h else x for x in inner.traversals))
    middle = Equation(program.fresh("M"), Scope(over, tuple(y for y in inner.summations if y != r), body))
    where = as_index(h) - h.lo
    read = middle.tensor[(p, *(where // m if x == h else x for x in inner.traversals))]
    out = Scope(inner.traversals, (p,), mul(as_table(algorithm.w)[where % m, p], read))
    before += (inputs, filters, middle)
    if inner.traversals == scope.traversals:
        return program.replace_at(at, replace(out, padding=scope.padding, value=scope.value), tuple(before))
    last = Equation(program.fresh("Z"), out)
    turned = replace(scope, summations=(), body=last.tensor[inner.traversals])
    return program.replace_at(at, turned, before=(*before, last))


def _checked_window(scope: Scope, params: Filter) -> Window:
    """Return the window that the filter reads; refuses an algorithm of another size, and one with a wrong entry."""
    window = match_window(scope, params.traversal, params.summation)
    (m, data, taps), r = params.algorithm.shape, params.summation
    if taps != r.extent or data != m + taps - 1:
        raise Refused(f"{params.algorithm.name} is for {taps} taps and {data} data, {r.name} has {r.extent} taps")
    check_bilinear(params.algorithm, correlates)
    return window


def _windows(window: Window, m: int, t: Iterator) -> _Windows:
    """Number windows t + q, with q the whole windows in *start*, if that numbers fewer than all pairs do."""
    unit = m * window.step
    q = Index(tuple((atom, k // unit) for atom, k in window.start.terms if k % unit == 0))
    lo, hi = (t + q).bounds
    if not q.terms or hi - lo + 1 > t.extent * prod(x.extent for x in q.iterators):
        return _Windows(t, as_index(t), window.start)
    return _Windows(Iterator(t.name, lo, hi + 1), t + q, window.start - q * unit)


def _pad_read_region(turned: Scope, window: Window, reads: tuple[int, int]) -> Scope:
    """Return *turned* with the padding that is read: it is computed anyway, so no copy is needed."""
    (lo, hi), (first, last) = turned.box[window.d], reads
    need = [(0, 0)] * len(turned.box)
    need[window.d] = (max(lo - first, 0), max(last + 1 - hi, 0))
    held = turned.padding or tuple((0, 0) for _ in need)
    wide = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(held, need, strict=True))
    return replace(turned, padding=wide if any(map(any, wide)) else ())


def _data(scope: Scope, window: Window, params: Filter, p: Iterator, windows: _Windows) -> Scope:
    """Return Σ_i U[p,i]·A[m·u + i, ·] over the region that is read of A; it is 0 where A is 0 everywhere."""
    source, index = window.data.source, window.data.index
    m, data, _ = params.algorithm.shape
    u, beside = windows.number, windows.start.iterators
    i = Iterator(fresh_name("i", {p.name, u.name, *(x.name for x in beside)}), 0, data)
    zero = source.value == 0
    over: list[Iterator] = [p]
    padding = [(0, 0)]
    reads: list[Index] = []
    for d, (at, box) in enumerate(zip(index, source.box, strict=True)):
        if d == window.d:
            over += (u, *beside)
            padding += [(0, 0)] * (1 + len(beside))
            reads.append(windows.start + (as_index(u) * m + i) * window.step)
            continue
        lo, most = index_reach(at, scope.domain)
        hi = most + 1
        first, last = (max(lo, box[0]), min(hi, box[1])) if zero else (lo, hi)
        if first >= last:
            first, last = lo, hi
        z = Iterator(fresh_name(f"z{d + 1}", {x.name for x in (*over, *beside, i)}), first, last)
        over.append(z)
        padding.append((first - lo, hi - last))
        reads.append(as_index(z))
    body = mul(as_table(params.algorithm.u)[p, i], Access(source, tuple(reads)))
    plain = Scope(tuple(over), (i,), body, padding=tuple(padding) if any(map(any, padding)) else ())
    return fit_padding(plain, 0)


def _taps(window: Window, params: Filter, p: Iterator) -> Scope:
    """Return Σ_r V[p,r]·K[r, ·] over the other iterators that index K."""
    r = params.summation
    tap = r.hi - 1 - as_index(r) if window.backwards else as_index(r) - r.lo
    return Scope((p, *_own(window.taps, r)), (r,), mul(as_table(params.algorithm.v)[p, tap], window.taps))


def _own(taps: Access, r: Iterator) -> tuple[Iterator, ...]:
    return tuple(dict.fromkeys(x for i in taps.index for x in i.iterators if x != r))


def _at(window: Window, p: Iterator, windows: _Windows) -> tuple[Index | Iterator, ...]:
    at = window.data.index
    return (p, *at[: window.d], windows.at, *windows.start.iterators, *at[window.d + 1 :])


def explain(program: Program, at: Path) -> str:
    """Return why no traversal and summation of the scope form a filter whose size has a known algorithm."""
    scope = program.scope_at(at)
    sized, whys = list[str](), list[str]()
    for h, r in product(scope.traversals, scope.summations):
        try:
            match_window(scope, h, r)
        except Refused as why:
            whys.append(f"{h.name} and {r.name}: {why}")
        else:
            known = f"no F(m, {r.extent}) of rank {RANK} or less with m of {OUTPUTS} up to {h.extent}"
            sized.append(f"{h.name} and {r.name}: {known}")
    return "; ".join(dict.fromkeys([*sized, *whys])) or "there is no pair of a traversal and a summation"


def encode(params: Filter) -> dict[str, object]:
    """``{"traversal": "h", "summation": "r", "u": [[...]], "v": [[...]], "w": [[...]]}`` or ``"outputs": 4``.

    ``"in_place": True`` where the data are not turned.
    """
    out: dict[str, object] = {"traversal": params.traversal.name, "summation": params.summation.name}
    m, _, taps = params.algorithm.shape
    if params.in_place:
        out["in_place"] = True
    if params.algorithm == correlation(m, taps):
        return out | {"outputs": m}
    return out | {"name": params.algorithm.name} | bilinear_to_json(params.algorithm)


def decode(program: Program, at: Path, params: Mapping[str, object]) -> Filter:
    """The inverse of ``encode``; ``points`` may be given in addition to ``outputs``, ``in_place`` with either."""
    scope = program.scope_at(at)
    with refusing():
        h = iterator_by_name(scope.traversals, str(params["traversal"]))
        r = iterator_by_name(scope.summations, str(params["summation"]))
        there = bool(params.get("in_place", False))
        if "u" in params:
            return Filter(h, r, bilinear_from_json(str(params.get("name", "the algorithm")), params), there)
        points = {"points": tuple(map(Fraction, as_texts(params["points"])))} if "points" in params else {}
        return Filter(h, r, correlation(as_integer(params["outputs"]), r.extent, **points), there)


BILINEAR_SUBSTITUTION = Rule(
    "bilinear_substitution",
    r"\mathop{L}_{h} \sum_{r} A[h + r] K[r] \;\mapsto\; \mathop{L}_{h} \sum_p W[h \bmod m, p]"
    r"\Big(\sum_i U[p,i] A[m \lfloor h/m \rfloor + i]\Big)\Big(\sum_r V[p,r] K[r]\Big),"
    r"\qquad \sum_p W[k,p] U[p,i] V[p,r] = [i = k + r]",
    propose,
    rewrite,
    encode,
    decode,
    explain=explain,
)
