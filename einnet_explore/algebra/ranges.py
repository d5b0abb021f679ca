r"""Wider and narrower iteration spaces, where the difference only ever yields the constant (EinNet §4.1).

.. math::
   \mathop{L}_{\vec x}^{X} f \iff \mathop{L}_{\vec x}^{X'} f, \qquad X \subset X',\ f = c \text{ on } X' \setminus X

For a summation the constant is the neutral element of its monoid; for a traversal of a nested scope it is the scope's
value, and what leaves the box becomes padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from einnet_explore.algebra.constancy import constancy, constant_region, narrowed, reduced
from einnet_explore.algebra.legality import fitted
from einnet_explore.algebra.regions import never
from einnet_explore.algebra.substitute import holds, substitute, substitute_domain, with_iterators
from einnet_explore.ir import REDUCTIONS, Bound, Iterator, Scope, padded

Ranges = Mapping[Iterator, tuple[int, int]]


def changed(scope: Scope, ranges: Ranges, wrap: bool = True) -> Scope:
    """*scope* with iterators over new ranges, each wider or narrower than before.

    Raises ValueError where what is added or cut away is not the constant, or where a tensor would have to be copied to
    make reads legal and *wrap* is not set.
    """
    grown = {x: (min(x.lo, lo), max(x.hi, hi)) for x, (lo, hi) in ranges.items()}
    wide = scope
    to = {x: Iterator(x.name, *span) for x, span in grown.items() if span != (x.lo, x.hi)}
    if to:
        wide = fitted(_with_padding(with_iterators(scope, to), scope.box), REDUCTIONS[scope.reduce], wrap)
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
    return replace(narrow, domain=tuple(b for b in narrow.domain if not holds(b)))


def tightest(scope: Scope, iterators: Iterable[Iterator]) -> dict[Iterator, tuple[int, int]]:
    """The smallest range of each iterator outside which the body is the constant that may be cut away."""
    known = constancy(scope.body)
    out: dict[Iterator, tuple[int, int]] = {}
    for x in iterators:
        bounds = list(scope.domain) if x in scope.traversals else []
        if known is not None and _may_be_cut(scope, x, known.value):
            bounds += known.bounds or ()
        lo, hi = x.lo, x.hi
        for bound in bounds:
            if (span := narrowed(bound, x)) is not None:
                lo, hi = max(lo, span[0]), min(hi, span[1])
        if (lo, hi) != (x.lo, x.hi) and lo < hi:
            out[x] = (lo, hi)
    return out


def _must_be_constant(scope: Scope, original: Scope, x: Iterator, lo: int, hi: int, verb: str) -> Scope:
    """*scope*, whose value is set if it was free, if the body is the right constant where *x* is in [lo, hi)."""
    if lo >= hi:
        return scope
    region = Iterator(x.name, lo, hi)
    part = substitute(scope.body, {x: region})
    known = constancy(part)
    where = f"{x.name} ∈ [{lo}, {hi})"
    if x in scope.traversals:
        return _traversed(scope, original, x, region, where, verb)
    neutral = REDUCTIONS[scope.reduce]
    if not constant_region(replace(scope, body=part), neutral):
        wrong = known is not None and known.value != neutral and constant_region(replace(scope, body=part), known.value)
        found = f"is {known.value:g}, not" if known is not None and wrong else "is not known to be"
        raise ValueError(f"{verb} {where}, where the body {found} the neutral {neutral:g} of {scope.reduce}")
    return scope


def _traversed(scope: Scope, original: Scope, x: Iterator, region: Iterator, where: str, verb: str) -> Scope:
    d = scope.traversals.index(x)
    first, last = original.reach[d]
    if verb == "adds" and (region.hi <= first or region.lo >= last):
        return scope  # it could not be read before: nobody does
    if any(never(b) for b in _violable(scope, x, region)):
        return scope  # the domain yields the value there
    part = substitute(scope.body, {x: region})
    known = constancy(part)
    if known is None or (known.bounds is not None and not any(map(never, known.bounds))):
        raise ValueError(f"{verb} {where}, where the body is not constant")
    value = reduced(scope, known.value)
    if value != scope.value and (original.padding or original.domain):
        raise ValueError(f"{verb} {where}, where the result is {value:g}, but {scope.value:g} in the padding")
    return replace(scope, value=value)


def _violable(scope: Scope, x: Iterator, region: Iterator) -> tuple[Bound, ...]:
    return substitute_domain(scope.domain, {x: region})


def _may_be_cut(scope: Scope, x: Iterator, value: float) -> bool:
    """Whether *x* may leave points out where the body is *value*: the neutral element, or what the padding will say."""
    if x in scope.summations:
        return value == REDUCTIONS[scope.reduce]
    return reduced(scope, value) == scope.value or not (scope.padding or scope.domain)


def _with_padding(scope: Scope, before: tuple[tuple[int, int], ...]) -> Scope:
    """*scope*, whose box was *before*, with what left the box as padding and what joined it no longer."""
    old = scope.padding or ((0, 0),) * len(before)
    new = tuple(
        (max(0, x.lo - lo + a), max(0, hi - x.hi + b))
        for x, (lo, hi), (a, b) in zip(scope.traversals, before, old, strict=True)
    )
    return padded(scope, new)  # type: ignore[return-value]
