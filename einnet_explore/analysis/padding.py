r"""Padding and ranges of scopes: legal reads, constant regions, changed ranges, sliding windows (EinNet §4.1).

**Legal reads.**  Every read lies in the box of its source or in its padding,

.. math::  lo_d - before_d \le \tau_d(\vec x, \vec y) < hi_d + after_d

The padding of a nested scope is free, so it grows as needed; a tensor's padding is fixed, so a tensor that is read
further out is first copied: :math:`\{L_z T[z]\}` with padding.

**Constants.**  A body is constant outside some bounds if its value is one known number wherever one of them is
violated: :math:`\neg(lo \le i < hi) \Rightarrow f = c`.  A read outside a source's box is its padding's constant; a
product is 0 where one factor is; a sum is constant where every term is.

**Ranges.**  Iteration spaces grow or shrink by points at which the body is that constant (boundary relaxing and
tightening):

.. math::
   \mathop{L}_{\vec x}^{X} f \iff \mathop{L}_{\vec x}^{X'} f, \qquad X \subset X',\ f = c \text{ on } X' \setminus X

For a summation the constant is the neutral element of its monoid; for a traversal of a nested scope it is the scope's
value, and points that leave the box become padding.

**Windows.**  Summations whose terms are neutral outside a window that moves with other iterators:

.. math::  \sum_{h} f(\vec x, h) = \sum_{j \in [0, n)} f(\vec x, base(\vec x) - j)

if every h at which f is not neutral is :math:`base(\vec x) - j` for one j, and f is neutral where base - j leaves the
range of h.  For :math:`lo \le e - k h < hi`, as in a transposed convolution, :math:`base = \lfloor (e - lo)/k \rfloor`
and :math:`n = \lceil (hi - lo)/k \rceil`: the overlap-add of EinNet §7.3 (Fig. 11).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from einnet_explore.analysis.indices import (
    condition_slack,
    fresh_name,
    holds_everywhere,
    substitute,
    substitute_domain,
    with_iterators,
)
from einnet_explore.analysis.regions import always_holds, find_violation, index_reach, never_holds, show_point
from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Index,
    Iterator,
    Padding,
    Quotient,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    factors,
    map_accesses,
    padded,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.support.errors import Refused
from einnet_explore.support.limits import MEMO_ENTRIES


@dataclass(frozen=True, slots=True)
class Constancy:
    """A body is *value* wherever one of *bounds* is violated; everywhere if *bounds* is None."""

    bounds: tuple[Bound, ...] | None
    value: float


@lru_cache(MEMO_ENTRIES)
def constancy(body: Scalar) -> Constancy | None:
    """Return where *body* is known to be constant; None if nothing is known."""
    match body:
        case Const(value):
            return Constancy(None, value)
        case Access(Tensor() as source, index):
            outside = tuple(Bound(i, lo, hi) for i, (lo, hi) in zip(index, source.box, strict=True))
            return Constancy(tuple(b for b in outside if not holds_everywhere(b)), source.value)
        case Access(Scope() as source, index):
            outside = tuple(Bound(i, lo, hi) for i, (lo, hi) in zip(index, source.box, strict=True))
            inside = substitute_domain(source.domain, dict(zip(source.traversals, index, strict=True)))
            return Constancy(tuple(b for b in (*outside, *inside) if not holds_everywhere(b)), source.value)
        case Apply("*", args):
            # 0 times a padding of -inf is no number: then nothing is known of the product.
            finite = all(math.isfinite(a.source.value) for a in accesses(body))
            return _product_constancy([constancy(a) for a in args]) if finite else None
        case Apply("+", args):
            return _join_constancies([constancy(a) for a in args], lambda *v: sum(v))
        case Apply("where", (_, a, b)):
            pair = [constancy(a), constancy(b)]
            return _join_constancies(pair, lambda v, w: v if v == w else math.nan)
        case Apply(op, args) if (f := SCALAR_FUNCTIONS.get(op)) and f.compute and not f.has_pole:
            return _join_constancies([constancy(a) for a in args], f.of_numbers)
        case _:
            return None


def reduced_constant(scope: Scope, value: float) -> float:
    """Return the reduction of *scope* if its body is *value* at every point."""
    count = math.prod(y.extent for y in scope.summations)
    match scope.reduce:
        case "sum":
            return value * count if value else 0
        case "prod":
            return value**count
        case _:
            return value


def confined_range(bound: Bound, x: Iterator) -> tuple[int, int] | None:
    """Return the half-open range of *x* outside which *bound* is always violated; None if unknown."""
    while (inner := _undo_quotient(bound)) is not None:
        bound = inner
    k = bound.index.coefficient(x)
    if not k:
        return None
    rest = bound.index - as_index(x) * k
    if x in rest.iterators:
        return None
    lo, hi = rest.bounds
    if k > 0:
        return -((hi - bound.lo) // k), (bound.hi - 1 - lo) // k + 1
    return -((bound.hi - 1 - lo) // -k), (hi - bound.lo) // -k + 1


def constant_region(scope: Scope, value: float) -> bool:
    """Whether the body of *scope* is *value* over the whole of its iterators' ranges."""
    known = constancy(scope.body)
    if known is None or known.value != value:
        return False
    return known.bounds is None or any(map(never_holds, known.bounds))


def _undo_quotient(bound: Bound) -> Bound | None:
    """Return ``lo <= e // d + c < hi`` as a bound of e."""
    match bound.index.terms:
        case ((Quotient(numerator, d), 1),):
            c = bound.index.const
            return Bound(numerator, (bound.lo - c) * d, (bound.hi - c) * d)
    return None


def _product_constancy(parts: list[Constancy | None]) -> Constancy | None:
    zeros = [p for p in parts if p is not None and p.value == 0]
    if not zeros:
        return _join_constancies(parts, lambda *v: math.prod(v))
    if any(p.bounds is None for p in zeros):
        return Constancy(None, 0)
    return Constancy(tuple(dict.fromkeys(b for p in zeros for b in p.bounds or ())), 0)


def _join_constancies(parts: list[Constancy | None], combine: Callable[..., float]) -> Constancy | None:
    """Combine parts that are all constant outside the bounds that they share."""
    if any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    value = combine(*(p.value for p in known))
    if math.isnan(value):
        return None
    bounded = [p.bounds for p in known if p.bounds is not None]
    if not bounded:
        return Constancy(None, value)
    return Constancy(tuple(b for b in bounded[0] if all(b in other for other in bounded)), value)


Ranges = Mapping[Iterator, tuple[int, int]]


def change_ranges(scope: Scope, ranges: Ranges) -> Scope:
    """Change the ranges of iterators; raises ValueError unless the body is constant at points added or removed."""
    grown = {x: (min(x.lo, lo), max(x.hi, hi)) for x, (lo, hi) in ranges.items()}
    wide = scope
    to = {x: Iterator(x.name, *span) for x, span in grown.items() if span != (x.lo, x.hi)}
    if to:
        wide = fit_padding(_with_padding(with_iterators(scope, to), scope.box), REDUCTIONS[scope.reduce])
        for x, new in to.items():
            for lo, hi in ((new.lo, x.lo), (x.hi, new.hi)):
                wide = _must_be_constant(wide, scope, new, lo, hi, "adds")
    cut = {to.get(x, x): span for x, span in ranges.items() if span != grown[x]}
    narrow = wide
    for x, (lo, hi) in cut.items():
        for a, b in ((x.lo, lo), (hi, x.hi)):
            narrow = _must_be_constant(narrow, narrow, x, a, b, "cuts away")
    back = {x: Iterator(x.name, *span) for x, span in cut.items()}
    if not back:
        return narrow
    narrow = _with_padding(with_iterators(narrow, back), narrow.box)
    return replace(narrow, domain=tuple(b for b in narrow.domain if not holds_everywhere(b)))


def tightest_ranges(scope: Scope, iterators: Iterable[Iterator]) -> dict[Iterator, tuple[int, int]]:
    """Return the smallest range of each iterator outside which the body is a constant that can be dropped."""
    known = constancy(scope.body)
    out: dict[Iterator, tuple[int, int]] = {}
    for x in iterators:
        bounds = list(scope.domain) if x in scope.traversals else []
        if known is not None and _may_be_cut(scope, x, known.value):
            bounds += known.bounds or ()
        lo, hi = x.lo, x.hi
        for bound in bounds:
            if (span := confined_range(bound, x)) is not None:
                lo, hi = max(lo, span[0]), min(hi, span[1])
        if (lo, hi) != (x.lo, x.hi) and lo < hi:
            out[x] = (lo, hi)
    return out


def _must_be_constant(scope: Scope, original: Scope, x: Iterator, lo: int, hi: int, verb: str) -> Scope:
    """Check that the body is the right constant where *x* is in [lo, hi), and set the scope's value if free."""
    if lo >= hi:
        return scope
    region = Iterator(x.name, lo, hi)
    part = substitute(scope.body, {x: region})
    known = constancy(part)
    where = f"{x.name} ∈ [{lo}, {hi})"
    if x in scope.traversals:
        return _with_outer_value(scope, original, x, region, where, verb)
    neutral = REDUCTIONS[scope.reduce]
    if not constant_region(replace(scope, body=part), neutral):
        wrong = known is not None and known.value != neutral and constant_region(replace(scope, body=part), known.value)
        found = f"is {known.value:g}, not" if known is not None and wrong else "is not known to be"
        raise ValueError(f"{verb} {where}, where the body {found} the neutral {neutral:g} of {scope.reduce}")
    return scope


def _with_outer_value(scope: Scope, original: Scope, x: Iterator, region: Iterator, where: str, verb: str) -> Scope:
    d = scope.traversals.index(x)
    first, last = original.reach[d]
    if verb == "adds" and (region.hi <= first or region.lo >= last):
        return scope  # it could not be read before
    if any(never_holds(b) for b in _restricted_domain(scope, x, region)):
        return scope  # the domain yields the value there
    part = substitute(scope.body, {x: region})
    known = constancy(part)
    if known is None or (known.bounds is not None and not any(map(never_holds, known.bounds))):
        raise ValueError(f"{verb} {where}, where the body is not constant")
    value = reduced_constant(scope, known.value)
    if value != scope.value and (original.padding or original.domain):
        raise ValueError(f"{verb} {where}, where the result is {value:g}, but {scope.value:g} in the padding")
    return replace(scope, value=value)


def _restricted_domain(scope: Scope, x: Iterator, region: Iterator) -> tuple[Bound, ...]:
    return substitute_domain(scope.domain, {x: region})


def _may_be_cut(scope: Scope, x: Iterator, value: float) -> bool:
    """Whether points where the body is *value* can be dropped: it is neutral, or what the padding will hold."""
    if x in scope.summations:
        return value == REDUCTIONS[scope.reduce]
    return reduced_constant(scope, value) == scope.value or not (scope.padding or scope.domain)


def _with_padding(scope: Scope, before: tuple[tuple[int, int], ...]) -> Scope:
    """Turn points that left the box, which was *before*, into padding, and points that joined it out of it."""
    old = scope.padding or ((0, 0),) * len(before)
    new = tuple(
        (max(0, x.lo - lo + a), max(0, hi - x.hi + b))
        for x, (lo, hi), (a, b) in zip(scope.traversals, before, old, strict=True)
    )
    return padded(scope, new)  # type: ignore[return-value]


SlidingWindow: TypeAlias = "tuple[Iterator, Index, int]"


def sliding_windows(scope: Scope) -> tuple[SlidingWindow, ...]:
    """Return the shortest window (h, base, n) of each summation, if shorter; bases read traversals."""
    bounds = _support(scope)
    out: list[SlidingWindow] = []
    for h in scope.summations:
        found = [w for b in bounds if (w := _window(b, h)) is not None]
        fitting = [w for w in found if w[2] < h.extent and set(w[1].iterators) <= set(scope.traversals)]
        if fitting:
            out.append(min(fitting, key=lambda w: w[2]))
    return tuple(out)


def _support(scope: Scope) -> tuple[Bound, ...]:
    """Return bounds such that the body of *scope* is neutral where one of them is violated."""
    known = constancy(scope.body)
    neutral = REDUCTIONS[scope.reduce]
    bounds = known.bounds or () if known is not None and known.value == neutral else ()
    return (*bounds, *_condition_bounds(scope.body)) if neutral == 0 else bounds


def _condition_bounds(body: Scalar) -> tuple[Bound, ...]:
    """Return bounds of differences of indices outside which a condition makes a factor of *body*, and so it, 0."""
    ends: dict[Index, tuple[int, int]] = {}
    if all(math.isfinite(access.source.value) for access in accesses(body)):
        for condition in _zero_conditions(body):
            slack = condition_slack(condition)
            if slack is not None and slack.terms:
                positive = slack.terms[0][1] > 0  # of a condition on i - j and one on j - i, both are ends of one range
                varying = (slack - slack.const) * (1 if positive else -1)
                first, last = ends.get(varying, varying.bounds)
                ends[varying] = (max(first, -slack.const), last) if positive else (first, min(last, slack.const))
    return tuple(Bound(index, lo, hi + 1) for index, (lo, hi) in ends.items() if lo <= hi)


def _zero_conditions(body: Scalar) -> Iterable[Compare]:
    """Yield the conditions without which a factor of *body* is 0."""
    for factor in factors(body):
        match factor:
            case Apply("where", (Compare() as condition, one, Const(0))):
                yield condition
                yield from _zero_conditions(one)


def recentre_windows(scope: Scope, windows: tuple[SlidingWindow, ...]) -> Scope:
    """Replace every h of *windows* by base - j.

    Raises ValueError with a term that is lost, or if a window reads beyond the range of h and is not neutral there.
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
    wide = change_ranges(scope, {h: span for h, span in spans.items() if span != (h.lo, h.hi)})
    to: dict[Iterator, Index] = {}
    taps: dict[Iterator, Iterator] = {}
    for h, base, n in windows:
        new = Iterator(fresh_name(h.name, names), 0, n)
        names.append(new.name)
        old = Iterator(h.name, *spans[h])
        to[old], taps[old] = base - new, new
    body = _without_known_conditions(substitute(wide.body, to))
    return trim_padding(replace(wide, body=body, summations=tuple(taps.get(y, y) for y in wide.summations)))


def _without_known_conditions(body: Scalar) -> Scalar:
    """Return *body* without conditions on indices that hold everywhere."""
    match body:
        case Apply("where", (Compare() as condition, one, _)) if _holds(condition):
            return _without_known_conditions(one)
        case Apply(op, args):
            return Apply(op, tuple(map(_without_known_conditions, args)))
    return body


def _holds(condition: Compare) -> bool:
    slack = condition_slack(condition)
    return slack is not None and slack.bounds[0] >= 0


def _window(bound: Bound, h: Iterator) -> SlidingWindow | None:
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
    """Raise ValueError unless every h at which the body is not neutral lies in the window."""
    bounds, inside = _support(scope), Bound(base - h, 0, n)
    if any(always_holds(inside, (b,)) for b in bounds) or always_holds(inside, (*bounds, *scope.domain)):
        return
    point = find_violation(inside, (*bounds, *scope.domain))
    raise ValueError(f"window {h.name} = {base} - [0, {n}) misses the term at {show_point(point)}")


@dataclass(frozen=True, slots=True)
class Excess:
    """Access number *access* reads *source* in dimension *dimension* over [lo, hi], outside [allowed)."""

    access: int
    source: str
    dimension: int
    read: tuple[int, int]
    allowed: tuple[int, int]

    def __str__(self) -> str:
        (lo, hi), (a, b) = self.read, self.allowed
        return f"{self.source} is read at [{lo}, {hi}] in dimension {self.dimension}, outside [{a}, {b})"


def excess(scope: Scope) -> tuple[Excess, ...]:
    """Return every read of *scope* itself (not of nested scopes) that goes beyond its source's padding."""
    out: list[Excess] = []
    for n, access in enumerate(accesses(scope.body)):
        name = access.source.name if isinstance(access.source, Tensor) else f"scope {n}"
        for d, (i, allowed) in enumerate(zip(access.index, access.source.reach, strict=True)):
            if not always_holds(Bound(i, *allowed), scope.domain):
                read = index_reach(i, scope.domain)
                if read[0] <= read[1]:  # a domain that holds nowhere reads nothing
                    out.append(Excess(n, name, d, read, allowed))
    return tuple(out)


def check_tensor_reads(scope: Scope) -> None:
    """Raise Refused if *scope* reads a tensor beyond its padding."""
    read = list(accesses(scope.body))
    if beyond := [e for e in excess(scope) if isinstance(read[e.access].source, Tensor)]:
        raise Refused(str(beyond[0]))


def fit_padding(scope: Scope, value: float) -> Scope:
    """Make every read of *scope* legal: pad nested scopes, and copy tensors with padding.

    New padding holds *value* unless the source has padding already.
    """
    numbers = {e.access for e in excess(scope)}
    if not numbers:
        return scope
    count = iter(range(len(list(accesses(scope.body)))))

    def fit(access: Access) -> Access:
        return _fit(access, scope, value) if next(count) in numbers else access

    return replace(scope, body=map_accesses(scope.body, fit))


def _fit(access: Access, reader: Scope, value: float) -> Access:
    source = access.source
    spans = [index_reach(i, reader.domain) for i in access.index]
    need = tuple(
        (max(lo - first, before, 0), max(last + 1 - hi, after, 0))
        for (lo, hi), (first, last), (before, after) in zip(source.box, spans, _padding(source), strict=True)
    )
    match source:
        case Scope():
            kept = source.value if source.padding or source.domain else value
            return Access(padded(replace(source, value=kept), need), access.index)
        case Tensor() | Table():
            z = tuple(Iterator(f"z{n + 1}", lo, hi) for n, (lo, hi) in enumerate(source.box))
            kept = source.value if source.padding else value
            return Access(Scope(z, (), source[z], padding=need, value=kept), access.index)


def _padding(source: Tensor | Table | Scope) -> Padding:
    return source.padding or ((0, 0),) * len(source.box)


def copies_tensor(before: Scope, after: Scope) -> bool:
    """Whether *after* reads a padded copy where *before*, with the same accesses, reads the tensor itself."""
    pairs = zip(accesses(before.body), accesses(after.body), strict=True)
    return any(isinstance(a.source, Tensor) and isinstance(b.source, Scope) for a, b in pairs)


def trim_padding(scope: Scope) -> Scope:
    """Reduce the padding of the scopes that *scope* reads to the part that is read."""

    def trim(access: Access) -> Access:
        match access.source:
            case Scope(padding=held) as source if held:
                spans = [index_reach(i, scope.domain) for i in access.index]
                need = tuple(
                    (min(before, max(lo - first, 0)), min(after, max(last + 1 - hi, 0)))
                    for (lo, hi), (first, last), (before, after) in zip(source.box, spans, held, strict=True)
                )
                less = padded(source, need)
                if isinstance(less, Scope) and not less.padding and not less.domain:
                    less = replace(less, value=0)
                return Access(less, access.index)
        return access

    return replace(scope, body=map_accesses(scope.body, trim))
