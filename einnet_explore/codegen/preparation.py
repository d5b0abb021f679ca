r"""Laws that make scopes cheap to run and keep every value; afterwards scopes map one to one onto stages of a kernel.

* *windows*: in :math:`\sum_h f(h)\, T[e + k h]`, with `T` zero outside ``[lo, hi)``, only
  :math:`\lceil (hi - lo) / |k| \rceil` values of `h` count; the sum is narrowed to those (overlap-add);
* small sums are unrolled, so that their guards are decided at compile time;
* nested scopes without summations are inlined;
* where a domain would guard a reduction, the reduction becomes a scope of its own;
* dimensions are collapsed: :math:`A[c, h, w] \mapsto A[c, t]` where :math:`t = h W + w`, since longer rows fill
  vectors better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import permutations
from math import prod

from einnet_explore.analysis.bilinear import select_entry
from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.analysis.indices import compared_iterators, fresh_name, guard, substitute
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    combined,
    factors,
    map_accesses,
)
from einnet_explore.ir.scalar_functions import REAL_FUNCTIONS

MAX_UNROLLED_READS = 64
"""Reads of a sum that is unrolled, at most."""

MAX_RECOMPUTATION = 2
"""A nested body that is not light is inlined if it is then evaluated at most so many times as often."""


def prepare(scope: Scope) -> Scope:
    """Resolve windows, small sums and nested scopes of *scope*; equal in value, also at the edge of its padding."""
    ready: dict[Scope, Scope] = {}

    def inner(access: Access) -> Access:
        match access.source:
            case Tensor() | Table():
                return access
            case Scope() as nested:
                if nested not in ready:
                    ready[nested] = prepare(nested)
                return Access(ready[nested], access.index)

    scope = replace(scope, body=map_accesses(scope.body, inner))
    scope = _domain_to_guards(_unroll_small_sums(_narrow_windows(scope)))
    return replace(scope, body=_inline_scopes(replace(scope, body=map_accesses(scope.body, expand_table))))


def expand_table(access: Access) -> Scalar:
    """Return a read of a table as comparisons of its index with the positions of entries; other reads unchanged."""
    return select_entry(access.source, access.index) if isinstance(access.source, Table) else access


def address_step(access: Access, x: Iterator) -> int:
    """Return the elements by which one step of *x* moves the read: exact where the index is affine in *x*."""
    return sum(
        s * _index_slope(i, x) for s, i in zip(row_major_strides(access.source.shape), access.index, strict=True)
    )


def evaluation_count(scope: Scope) -> int:
    """Return the number of evaluations of the body."""
    return prod(x.extent for x in (*scope.traversals, *scope.summations))


def _index_slope(index: Index, x: Iterator) -> int:
    total = 0
    for atom, k in index.terms:
        match atom:
            case Iterator():
                total += k * (atom == x)
            case Quotient(numerator, d):
                total += k * (_index_slope(numerator, x) // d)
            case Remainder(numerator, d):
                total += k * (_index_slope(numerator, x) % d)
    return total


def _narrow_windows(scope: Scope) -> Scope:
    """Substitute h := start(e) ± j for every summation that a zero-padded factor confines."""
    if scope.reduce != "sum":
        return scope
    confined: list[tuple[Index, tuple[int, int]]] = []
    for h in scope.summations:
        reads = (f for f in factors(scope.body) if isinstance(f, Access))
        found = narrowest_window(reads, h, scope.summations)
        if found is not None:
            start, sign, count = found
            j = Iterator(fresh_name("j", {x.name for x in (*scope.traversals, *scope.summations)}), 0, count)
            at = start + as_index(j) * sign
            confined.append((at, (h.lo, h.hi)))
            rest = tuple(s for s in scope.summations if s != h)
            scope = replace(scope, summations=(*rest, j), body=substitute(scope.body, {h: at}))
    body = guard(tuple(at for at, _ in confined), tuple(box for _, box in confined), scope.body, 0)
    return replace(scope, body=body)


def narrowest_window(
    reads: Iterable[Access], h: Iterator, summations: Iterable[Iterator]
) -> tuple[Index, int, int] | None:
    r"""Return (start, sign, count) of the narrowest window of *h* in a zero-padded read, or None.

    Outside :math:`h = start + sign \cdot j`, :math:`0 \le j < count`, the read is 0.
    None: no window is narrower than *h*.
    """
    others = {h, *summations}
    best: tuple[Index, int, int] | None = None
    for access in reads:
        if access.source.value != 0:
            continue
        for i, (lo, hi) in zip(access.index, access.source.box, strict=True):
            k = i.coefficient(h)
            rest = i - as_index(h) * k
            if k == 0 or others & {*rest.iterators}:
                continue
            count = -(-(hi - lo) // abs(k))
            if count < h.extent and (best is None or count < best[2]):
                # k > 0: h ≥ ⌈(lo - e)/k⌉ and upwards;  k < 0: h ≤ ⌊(e - lo)/|k|⌋ and downwards.
                best = (-((rest - lo) // k), 1, count) if k > 0 else ((rest - lo) // -k, -1, count)
    return best


def _unroll_small_sums(scope: Scope) -> Scope:
    reads = tuple(accesses(scope.body))
    count = prod(s.extent for s in scope.summations)
    if not scope.summations or count == 0 or count * max(1, len(reads)) > MAX_UNROLLED_READS or _inner_reduction(scope):
        return scope
    bodies = [scope.body]
    for s in scope.summations:
        bodies = [substitute(body, {s: as_index(at)}) for body in bodies for at in range(s.lo, s.hi)]
    return replace(scope, summations=(), reduce="sum", body=combined(scope.reduce, bodies))


def _inner_reduction(scope: Scope) -> bool:
    """True if a summation runs along memory where the innermost traversal does not."""
    if not scope.traversals:
        return False
    last = scope.traversals[-1]
    reads = max(accesses(scope.body), key=lambda a: prod(a.source.shape), default=None)
    if reads is None or abs(address_step(reads, last)) <= 1:
        return False
    return any(s.extent > 1 and abs(address_step(reads, s)) == 1 for s in scope.summations)


def _domain_to_guards(scope: Scope) -> Scope:
    if not scope.domain:
        return scope
    body: Scalar = scope.body
    if scope.summations:
        if scope.reduce == "sum" and scope.value == 0:
            plain = replace(scope, domain=())
            return replace(plain, body=_domain_guard(scope, body))
        body = Access(replace(scope, domain=(), padding=()), tuple(as_index(x) for x in scope.traversals))
    return replace(scope, summations=(), reduce="sum", domain=(), body=_domain_guard(scope, body))


def _domain_guard(scope: Scope, body: Scalar) -> Scalar:
    return guard(tuple(b.index for b in scope.domain), tuple((b.lo, b.hi) for b in scope.domain), body, scope.value)


def _inline_scopes(scope: Scope) -> Scalar:
    often: dict[Scope, int] = {}
    for access in accesses(scope.body):
        if isinstance(access.source, Scope):
            often[access.source] = often.get(access.source, 0) + 1

    def inline_scope(access: Access) -> Scalar:
        match access.source:
            case Scope(traversals, (), body) as nested if _worth_inlining(
                nested, often[nested] * evaluation_count(scope)
            ):
                to: Mapping[Iterator, Index] = dict(zip(traversals, access.index, strict=True))
                return guard(access.index, nested.box, substitute(body, to), nested.value)
        return access

    return map_accesses(scope.body, inline_scope)


def _worth_inlining(nested: Scope, evaluations: int) -> bool:
    reads = len(tuple(accesses(nested.body)))
    light = reads <= 1 and _cheap(nested.body)
    return light or (evaluations <= MAX_RECOMPUTATION * max(1, evaluation_count(nested)))


def _cheap(body: Scalar) -> bool:
    match body:
        case Apply(op, args):
            return op not in REAL_FUNCTIONS and all(_cheap(a) for a in args)
        case Access() | Const() | Compare():
            return True


def collapse_dimensions(scope: Scope) -> Scope:
    """Collapse the iterators of *scope* that every access reads as neighbouring dimensions.

    Its tensors keep the order of their elements and lose dimensions.  Scopes that read scopes are unchanged.
    """
    reads = tuple(accesses(scope.body))
    if scope.domain or any(isinstance(a.source, Scope) for a in reads):
        return scope
    rows = zip(scope.traversals, scope.traversals[1:], strict=False)
    for x, y in (*rows, *permutations(scope.summations, 2)):
        places = _places(reads, x, y)
        if places is not None and not {x, y} & {*compared_iterators(scope.body)}:
            return collapse_dimensions(_merge(scope, x, y, places))
    return scope


def _places(reads: tuple[Access, ...], x: Iterator, y: Iterator) -> Mapping[str, int] | None:
    """Return the dimension at which each tensor has *x* and *y* as neighbours; None if they are used otherwise."""
    if x.lo or y.lo:
        return None
    places: dict[str, int] = {}
    seen: dict[str, int] = {}
    for access in reads:
        name = access.source.name if isinstance(access.source, Tensor) else ""
        inside = [d for d, i in enumerate(access.index) if x in i.iterators or y in i.iterators]
        place = inside[0] if inside else -1
        if seen.setdefault(name, place) != place:
            return None
        if inside:
            box = access.source.box
            neighbours = len(inside) == 2 and inside[1] == place + 1
            if not neighbours or access.index[place].single != x or access.index[place + 1].single != y:
                return None
            if box[place][0] or x.hi > box[place][1] or box[place + 1] != (0, y.hi):
                return None
            places[name] = place
    return places


def _merge(scope: Scope, x: Iterator, y: Iterator, places: Mapping[str, int]) -> Scope:
    both = Iterator(x.name, 0, x.extent * y.extent)

    def collapse_read(access: Access) -> Scalar:
        match access.source:
            case Tensor(name, shape, _, value, weight, origin) if name in places:
                d = places[name]
                one = (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
                start = (*origin[:d], 0, *origin[d + 2 :]) if origin else ()
                index = (*access.index[:d], *both_index, *access.index[d + 2 :])
                return Access(Tensor(name, one, (), value, weight, start), index)
        return access

    both_index = ((both + 0),)

    def collapse_group(group: tuple[Iterator, ...]) -> tuple[Iterator, ...]:
        return tuple(both if s == x else s for s in group if s != y)

    return replace(
        scope,
        traversals=collapse_group(scope.traversals),
        summations=collapse_group(scope.summations),
        body=map_accesses(scope.body, collapse_read),
        padding=(),
    )
