r"""Laws that make scopes cheap to run and keep every value; afterwards scopes map one to one onto stages of a kernel.

* *windows*: in :math:`\sum_h f(h)\, T[e + k h]`, with `T` zero outside ``[lo, hi)``, only
  :math:`\lceil (hi - lo) / |k| \rceil` values of `h` count; the sum is narrowed to those (overlap-add);
* small sums are unrolled, so that their guards are decided at compile time;
* nested scopes without summations are inlined;
* where a domain would guard a reduction, the reduction becomes a scope of its own;
* dimensions are collapsed: :math:`A[c, h, w] \mapsto A[c, t]` where :math:`t = h W + w`, since longer rows fill
  vectors better;
* traversals are split into ranges and phases (polyphase decomposition), inside which every condition is decided:

.. math::
   x + c = P u + q \;\Rightarrow\; \lfloor (x + c) / P \rfloor = u, \quad (x + c) \bmod P = q,
   \qquad 0 \le q < P

Ranges end where reads enter or leave their tensors.  Phases are counted from the windows (`x + c`, not `x`), so that an
overlap-add reads whole pieces of each window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, permutations, product
from math import lcm, prod

from einnet_explore.analysis.bilinear import select_entry
from einnet_explore.analysis.flattening import flat_address
from einnet_explore.analysis.indices import (
    common_divisor,
    compared_iterators,
    fresh_name,
    guard,
    read_indices,
    split_traversal,
    substitute,
)
from einnet_explore.ir import (
    COMPARISONS,
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
    add,
    as_index,
    combined,
    factors,
    map_accesses,
    walk_scalar,
)
from einnet_explore.ir.scalar_functions import REAL_FUNCTIONS
from einnet_explore.support.errors import Refused

MAX_UNROLLED_READS = 64
"""Reads of a sum that is unrolled, at most."""

VECTOR_LANES = 16
"""Elements of the longest vector."""

MIN_ROW_SUM = 8
"""Elements of a row in memory that are worth a sum in vectors."""

MAX_RECOMPUTATION = 2
"""A nested body that is not light is inlined if it is then evaluated at most so many times as often."""


def prepare(scope: Scope) -> Scope:
    """Resolve windows, small sums and nested scopes of *scope*; equal in value, also at the edge of its padding."""
    ready: dict[Scope, Scope] = {}

    def inner(access: Access) -> Access:
        if not isinstance(access.source, Scope):
            return access
        if access.source not in ready:
            ready[access.source] = prepare(access.source)
        return Access(ready[access.source], access.index)

    scope = replace(scope, body=map_accesses(scope.body, inner))
    scope = _domain_to_guards(_unroll_small_sums(_narrow_windows(scope)))
    return replace(scope, body=_inline_scopes(replace(scope, body=map_accesses(scope.body, expand_table))))


def expand_table(access: Access) -> Scalar:
    """Return a read of a table as comparisons of its index with the positions of entries; other reads unchanged."""
    return select_entry(access.source, access.index) if isinstance(access.source, Table) else access


def address_step(access: Access, x: Iterator) -> int:
    """Return the elements by which one step of *x* moves the read: exact where the index is affine in *x*."""
    return _index_slope(flat_address(access), x)


def evaluation_count(scope: Scope) -> int:
    """Return the number of evaluations of the body."""
    return prod(x.extent for x in (*scope.traversals, *scope.summations))


MIN_PARALLEL_ELEMENTS = 1 << 18
"""A kernel that moves fewer elements runs on one thread: waking threads takes as long as moving a megabyte."""


def moved_elements(scope: Scope) -> int:
    """Return the number of elements read and written; a view of a scope counts that scope's reads."""
    reads = sum(len(tuple(accesses(a.source.body))) if isinstance(a.source, Scope) else 1 for a in accesses(scope.body))
    return evaluation_count(scope) * (1 + reads)


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
    """True if a summation runs along memory where the innermost traversal does not, and windows are apart."""
    if not scope.traversals:
        return False
    last = scope.traversals[-1]
    reads = max(accesses(scope.body), key=lambda a: prod(a.source.shape), default=None)
    if reads is None or (step := abs(address_step(reads, last))) <= 1:
        return False
    return any(MIN_ROW_SUM <= s.extent <= step and abs(address_step(reads, s)) == 1 for s in scope.summations)


def _domain_to_guards(scope: Scope) -> Scope:
    if not scope.domain:
        return scope
    body: Scalar = scope.body
    if scope.summations:
        if scope.reduce == "sum" and scope.value == 0:
            return replace(scope, domain=(), body=_domain_guard(scope, body))
        body = Access(replace(scope, domain=(), padding=()), tuple(as_index(x) for x in scope.traversals))
    return replace(scope, summations=(), reduce="sum", domain=(), body=_domain_guard(scope, body))


def _domain_guard(scope: Scope, body: Scalar) -> Scalar:
    return guard(tuple(b.index for b in scope.domain), tuple((b.lo, b.hi) for b in scope.domain), body, scope.value)


def _inline_scopes(scope: Scope) -> Scalar:
    often = Counter(a.source for a in accesses(scope.body) if isinstance(a.source, Scope) and not a.source.summations)

    def inline_scope(access: Access) -> Scalar:
        nested = access.source
        if not isinstance(nested, Scope) or nested.summations:
            return access
        is_worth = _worth_inlining(nested, often[nested] * evaluation_count(scope))
        return _inlined(access, nested, nested.body) if is_worth else access

    return map_accesses(scope.body, inline_scope)


def _inlined(access: Access, nested: Scope, body: Scalar) -> Scalar:
    """Return *body*, that of *nested*, at the place where *access* reads it."""
    to = dict(zip(nested.traversals, access.index, strict=True))
    return guard(access.index, nested.box, substitute(body, to), nested.value)


def inline_nested(scope: Scope) -> Scalar:
    """Return the body of *scope* with the scopes that it reads inlined and its domain as a condition."""

    def inline_scope(access: Access) -> Scalar:
        match access.source:
            case Tensor():
                return access
            case Scope() as inner if not inner.summations:
                return _inlined(access, inner, inline_nested(inner))
            case source:
                raise Refused(f"{source!r} is read at {access.index!r}: expected tensors and scopes without sums")

    if scope.summations and scope.domain:
        raise Refused(f"a sum with {len(scope.domain)} bounds is not moved")
    body = map_accesses(scope.body, inline_scope)
    return _domain_guard(scope, body) if scope.domain else body


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

    Iterators and dimensions of one element are dropped, and traversals are split where divisors end.  Its tensors keep
    the order of their elements and lose dimensions.  Scopes that read scopes are unchanged.
    """
    if scope.domain or any(isinstance(a.source, Scope) for a in accesses(scope.body)):
        return scope
    scope = _drop_unit_iterators(split_traversals(scope))
    reads = tuple(accesses(scope.body))
    rows = zip(scope.traversals, scope.traversals[1:], strict=False)
    for x, y in (*rows, *permutations(scope.summations, 2)):
        if _are_neighbours(reads, x, y) and not {x, y} & {*compared_iterators(scope.body)}:
            return collapse_dimensions(merge_neighbours(scope, x, y))
    return scope


def split_traversals(scope: Scope, lanes: int = VECTOR_LANES) -> Scope:
    r"""Substitute :math:`x = d u + v` for a traversal that is divided by `d`, so that its reads are affine.

    The result's elements keep their order.  The innermost traversal is only split into whole vectors of
    *lanes*, and where memory runs along its quotient.
    """
    for n, x in enumerate(scope.traversals):
        d = common_divisor(x, scope.body)
        if d > 1 and (x != scope.traversals[-1] or d >= lanes or _runs_along_quotient(x, d, scope.body)):
            return split_traversals(split_traversal(scope, n, d), lanes)
    return scope


def _runs_along_quotient(x: Iterator, d: int, body: Scalar) -> bool:
    """True if a read is contiguous along `x // d`."""
    return any((Quotient(as_index(x), d), 1) in flat_address(a).terms for a in accesses(body))


def _drop_unit_iterators(scope: Scope) -> Scope:
    """Substitute the iterators of one value, and drop the dimensions of one element that are read there."""
    single = {x: as_index(x.lo) for x in (*scope.traversals, *scope.summations) if x.extent == 1}
    body = map_accesses(substitute(scope.body, single) if single else scope.body, drop_unit_dimensions)
    ranks = {(a.source.name, len(a.index)) for a in accesses(body) if isinstance(a.source, Tensor)}
    if len(ranks) > len({name for name, _ in ranks}):
        return scope  # a tensor is also read beside its one element
    kept = tuple(x for x in scope.traversals if x not in single) or scope.traversals[-1:]
    sums = tuple(y for y in scope.summations if y not in single)
    return replace(scope, traversals=kept, summations=sums, reduce=scope.reduce if sums else "sum", body=body)


def drop_unit_dimensions(access: Access) -> Access:
    """Return *access* without the dimensions of one element in which it reads that element."""
    match access.source:
        case Tensor(name, shape, _, value, weight, origin) as source:
            kept = [d for d, (lo, hi) in enumerate(source.box) if hi - lo != 1 or access.index[d] != as_index(lo)]
            if len(kept) < len(shape):
                start = tuple(origin[d] for d in kept) if origin else ()
                one = Tensor(name, tuple(shape[d] for d in kept), (), value, weight, start)
                return Access(one, tuple(access.index[d] for d in kept))
    return access


def _are_neighbours(reads: tuple[Access, ...], x: Iterator, y: Iterator) -> bool:
    """True if all *reads* have *x* and *y* as neighbours, each as an index of its own, and a tensor's at one place."""
    if x.lo or y.lo:
        return False
    places: dict[str, int | None] = {}
    for access in reads:
        d = next((d for d, i in enumerate(access.index) if x in i.iterators), None)
        name = access.source.name if isinstance(access.source, Tensor) else ""
        if not reads_as_neighbours(access, x, y) or places.setdefault(name, d) != d:
            return False
        if d is not None and (access.index[d].single != x or access.source.box[d][0] or x.hi > access.source.box[d][1]):
            return False
    return True


def reads_as_neighbours(access: Access, x: Iterator, y: Iterator) -> bool:
    """True if *access* reads by *x*, plus other iterators, and by all of *y* in the next dimension; or by neither."""
    inside = [d for d, i in enumerate(access.index) if x in i.iterators or y in i.iterators]
    if not inside:
        return True
    if len(inside) != 2 or inside[1] != inside[0] + 1 or not isinstance(access.source, Tensor):
        return False
    first, second = (access.index[d] for d in inside)
    rest = first - as_index(x)
    whole = access.source.box[inside[1]] == (0, y.hi)
    return second.single == y and whole and x not in rest.iterators and y not in rest.iterators


def merge_neighbours(scope: Scope, x: Iterator, y: Iterator) -> Scope:
    """Return *scope* with the iterators *x* and *y*, which every access reads as neighbours, as one."""
    both = _merged(x, y)
    traversals, summations = (
        tuple(both if s == x else s for s in group if s != y) for group in (scope.traversals, scope.summations)
    )
    body = map_accesses(scope.body, partial(merge_read, x=x, y=y))
    return replace(scope, traversals=traversals, summations=summations, body=body, padding=())


def merge_read(access: Access, x: Iterator, y: Iterator) -> Access:
    """Return *access* with the neighbouring dimensions of *x* and *y*, the inner one whole, as one."""
    d = next((d for d, i in enumerate(access.index) if x in i.iterators), None)
    match access.source:
        case Tensor(_, shape, _, _, _, origin) as source if d is not None:
            start = (*origin[:d], origin[d] * y.extent, *origin[d + 2 :]) if origin else ()
            one = replace(source, shape=(*shape[:d], shape[d] * y.extent, *shape[d + 2 :]), padding=(), origin=start)
            at = (access.index[d] - as_index(x)) * y.extent + _merged(x, y)
            return Access(one, (*access.index[:d], at, *access.index[d + 2 :]))
    return access


def _merged(x: Iterator, y: Iterator) -> Iterator:
    return Iterator(x.name, 0, x.extent * y.extent)


MAX_POLYPHASE = 8
"""Phases that are written out, at most."""

MAX_JOINT_VALUES = 4
"""Values of a traversal that are written out where conditions depend on it and on another one, at most."""


@dataclass(frozen=True)
class PolyphaseCut:
    """A traversal as `x = period·u + q - shift`; *ranges* of `u` between two cuts exclude their ends."""

    x: Iterator
    period: int
    shift: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def first(self) -> int:
        """The least `u`."""
        return self.ranges[0][0]

    @property
    def extent(self) -> int:
        """Number of values of `u`."""
        return self.ranges[-1][1] - self.ranges[0][0]

    def phases(self, at: tuple[int, int]) -> Iterable[tuple[Iterator, Index]]:
        """Yield (u between two cuts, the value of the traversal) for every phase within its range."""
        u = Iterator(f"{self.x.name}'", *at)
        for q in range(self.period):
            value = as_index(u) * self.period + (q - self.shift)
            if self.x.lo <= value.bounds[0] and value.bounds[1] < self.x.hi:
                yield u, value


def case_traversals(scope: Scope) -> tuple[Iterator, ...]:
    """Return the traversals, not the innermost, whose few values select between constants."""
    selecting = {x for t in conditions_in(scope.body) if t.op == "==" for x in (t.left - t.right).iterators}
    return tuple(x for x in scope.traversals[:-1] if x in selecting and x.extent <= MAX_POLYPHASE)


def order_traversals(scope: Scope) -> tuple[tuple[Iterator, ...], tuple[Iterator, ...]]:
    """Return the traversals with loops, outermost first, and those whose few values are unrolled innermost.

    Values that select between constants are unrolled if reads are contiguous: all results share their operands' loads.
    So are the values of a short innermost traversal if reads are contiguous along the next one: its vectors are stored
    interleaved.
    If the result's neighbours are k elements apart in the source, and a traversal of k values fills the gaps, that
    traversal goes innermost: each cache line is then read once.
    """
    reads = [flat for a in accesses(scope.body) if (flat := flat_address(a)).terms]
    *outer, last = scope.traversals
    apart = {abs(flat.coefficient(last)) for flat in reads}
    if apart <= {0, 1} and (cases := case_traversals(scope)):
        return tuple(x for x in scope.traversals if x not in cases), cases
    if outer and 1 < last.extent < VECTOR_LANES and {flat.coefficient(outer[-1]) for flat in reads} in ({1}, {0, 1}):
        return tuple(outer), (last,)
    if len(reads) != 1 or len(apart) != 1 or not 1 < (k := apart.pop()) <= MAX_POLYPHASE or last.extent < VECTOR_LANES:
        return scope.traversals, ()
    between = tuple(x for x in outer if x.extent == k and reads[0].coefficient(x) == 1)
    if not between:
        return scope.traversals, ()
    rest = sorted((x for x in outer if x not in between), key=lambda x: -abs(reads[0].coefficient(x)))
    return (*rest, last), between


def cut_traversal(x: Iterator, body: Scalar, joint: bool = False) -> PolyphaseCut:
    """Return *x* cut where conditions on it alone change; raises Refused for other phases than of it alone.

    *joint*: also conditions on it and on traversals of few values, all of which are then ranges of their own.
    """
    found = {
        (atom.divisor, atom.numerator)
        for i in read_indices(body)
        for atom in i.divisions
        if x in atom.numerator.iterators
    }
    shift = 0
    for divisor, numerator in sorted(found, key=repr):
        rest = numerator - x
        if rest.terms or divisor > MAX_POLYPHASE:
            raise Refused(f"{numerator} is divided by {divisor}: expected one traversal, and at most {MAX_POLYPHASE}")
        shift = rest.const
    period = lcm(*(divisor for divisor, _ in found))
    if period > MAX_POLYPHASE:
        raise Refused(f"{x.name} has {period} phases, expected at most {MAX_POLYPHASE}")
    whole = Iterator(f"{x.name}'", (x.lo + shift) // period, (x.hi - 1 + shift) // period + 1)
    at = {whole.lo, whole.hi}
    for q in range(period):
        value = as_index(whole) * period + (q - shift)
        placed = substitute(body, {x: value})
        tests = [Compare(">=", value, as_index(x.lo)), Compare("<", value, as_index(x.hi)), *conditions_in(placed)]
        for test in tests:
            at.update(_thresholds(test, whole, joint))
    return PolyphaseCut(x, period, shift, tuple(pairwise(sorted(at))))


def conditions_in(body: Scalar) -> Iterable[Compare]:
    """Yield the conditions in *body*."""
    return (part for part in walk_scalar(body) if isinstance(part, Compare))


def _thresholds(test: Compare, u: Iterator, joint: bool) -> Iterable[int]:
    """Yield the `u` at which the outcome of *test* changes; every `u` for few that decide it *joint* with others."""
    rest = test.left - test.right
    k = rest.coefficient(u)
    others = [y for y in rest.iterators if y != u]
    if k == 0 or not rest.affine or (others and not joint):
        return
    if others and u.extent <= MAX_JOINT_VALUES:
        yield from range(u.lo, u.hi)
    elif all(y.extent <= MAX_JOINT_VALUES for y in others):
        for values in product(*(range(y.lo, y.hi) for y in others)):
            at = dict(zip(others, values, strict=True))
            const = rest.const + sum(rest.coefficient(y) * value for y, value in at.items())
            # k·u + c ⋛ 0 changes at -c/k, for < and >= of a growing side there, else one further.
            turn = -(const // k) if (test.op in (">=", "<")) == (k > 0) else -const // k + 1
            if u.lo < turn < u.hi:
                yield turn


def fold_decided(body: Scalar) -> Scalar:
    """Return *body* without the conditions that always or never hold over the ranges of its iterators."""
    match body:
        case Apply("where", (Compare() as test, yes, no)) if (known := _constant_outcome(test)) is not None:
            return fold_decided(yes if known else no)
        case Apply("+", args):
            return add(*map(fold_decided, args))
        case Apply(op, args):
            return Apply(op, tuple(map(fold_decided, args)))
        case Access() | Const() | Compare():
            return body


def assume(body: Scalar, tests: Collection[Compare], hold: bool = True) -> Scalar:
    """Return *body* where all *tests* *hold*, or none does."""
    match body:
        case Apply("where", (Compare() as test, yes, no)) if test in tests:
            return assume(yes if hold else no, tests, hold)
        case Apply(op, args):
            return Apply(op, tuple(assume(a, tests, hold) for a in args))
    return body


def _constant_outcome(test: Compare) -> bool | None:
    least, most = (test.left - test.right).bounds
    first, last = (COMPARISONS[test.op](end, 0) for end in (least, most))
    has_turn = test.op in ("==", "!=") and least < 0 < most  # between two ends with one outcome
    return bool(first) if first == last and not has_turn else None
