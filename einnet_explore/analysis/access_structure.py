"""Structure of index functions, from which rules infer candidate parameters (EinNet §4.1, §6.1).

Everything found depends only on the extents and coefficients:

* a *skew* is a sum of iterators, :math:`h + r - 1`, that one new iterator can replace;
* a *residue* is an iterator that is added to a multiple of another, :math:`2 h + r`, or divided itself;
* a *window* is a summation that slides over a traversal;
* a *run* is a chain of iterators that is contiguous in every source that they index;
* a *filter* is a traversal and a summation that only occur together, as k·(h ± r): an output and a tap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

from einnet_explore.analysis.flattening import flat_address
from einnet_explore.analysis.indices import holds_everywhere
from einnet_explore.analysis.products import summed_factors
from einnet_explore.ir import (
    Access,
    Bound,
    Const,
    Index,
    Iterator,
    Quotient,
    Remainder,
    Scope,
    Tensor,
    accesses,
    as_index,
    factors,
    mul,
)
from einnet_explore.support.errors import Refused

Group: TypeAlias = "tuple[Iterator, ...]"


def roles(scope: Scope) -> dict[Iterator, frozenset[int]]:
    """Return the numbers of the body's accesses in which each iterator of *scope* occurs."""
    seen: dict[Iterator, set[int]] = {x: set() for x in (*scope.traversals, *scope.summations)}
    for n, access in enumerate(accesses(scope.body)):
        for i in access.index:
            for x in i.iterators:
                seen[x].add(n)
    return {x: frozenset(numbers) for x, numbers in seen.items()}


def skews(scope: Scope, group: Group) -> tuple[tuple[Index, Group], ...]:
    """Return sums of at least two iterators of *group* in the body's indices, and which of these the sum can replace.

    An iterator with a unit coefficient may be replaced; those that occur in no other index are preferred, since
    replacing another one only moves the skew there.
    """
    found: dict[Index, Group] = {}
    indices = tuple(_indices(scope))
    for index in indices:
        for part in _parts(index, group):
            units = tuple(x for x, k in part.terms if isinstance(x, Iterator) and abs(k) == 1)
            alone = tuple(x for x in units if all(x not in i.iterators for i in indices if i != index))
            found.setdefault(part, alone or units)
    return tuple(found.items())


def digits(scope: Scope, group: Group) -> tuple[Index, ...]:
    """Return sums over *group* whose iterators occur nowhere else: one new iterator can replace them all, x + 2 y."""
    indices = tuple(_indices(scope))
    return tuple(
        part
        for index in indices
        for part in _parts(index, group)
        if all(x not in i.iterators for x in part.iterators for i in indices if i != index)
        and all(x not in b.index.iterators for x in part.iterators for b in scope.domain)
    )


def residue_divisors(scope: Scope, group: Group) -> tuple[tuple[Iterator, int], ...]:
    """Return iterators of *group* with a divisor that an index suggests, in order of appearance."""
    found: dict[tuple[Iterator, int], None] = {}
    for index in _indices(scope):
        for atom, k in index.terms:
            match atom:
                case Iterator() if abs(k) > 1:
                    for other, c in index.terms:
                        if isinstance(other, Iterator) and other in group and c % k and other.extent > 1:
                            found.setdefault((other, abs(k)))
                case Quotient(numerator, d) | Remainder(numerator, d):
                    for other in numerator.iterators:
                        if other in group and numerator.coefficient(other) % d:
                            found.setdefault((other, d))
    return tuple((x, d) for x, d in found if d < x.extent)


def quotient_divisors(scope: Scope) -> tuple[tuple[Iterator, int], ...]:
    """Return traversals of *scope* with a divisor of a quotient that reads them, the largest of each first."""
    atoms = (atom for index in _indices(scope) for atom, _ in index.terms if isinstance(atom, Quotient))
    found = {(x, a.divisor) for a in atoms for x in a.numerator.iterators if x in scope.traversals and x.extent > 1}
    return tuple(sorted(found, key=lambda pair: (scope.traversals.index(pair[0]), -pair[1])))


def windows(scope: Scope) -> Mapping[Iterator, int]:
    """Return the summations that slide over a traversal (an index adds them), with the step of the traversal."""
    found: dict[Iterator, int] = {}
    for index in _indices(scope):
        step = min((abs(k) for x, k in index.terms if x in scope.traversals), default=None)
        if step is not None:
            for x, k in index.terms:
                if isinstance(x, Iterator) and abs(k) == 1 and x in scope.summations:
                    found[x] = min(found.get(x, step), step)
    return found


def window_pieces(extent: int, step: int) -> tuple[int, ...]:
    """Return the sizes of equal pieces of a window that moves by *step*, largest first; pieces move by *step*, too."""
    return tuple(d for d in range(extent // 2, step, -1) if extent % d == 0 and d % step == 0)


def padded_windows(extent: int, step: int) -> tuple[int, ...]:
    """Return the extents to which a window that moves by *step* is padded for pieces that do not divide it."""
    found = set[int]()
    for count in range(2, extent + 1):
        piece = -(-extent // count)
        piece += -piece % step
        if step < piece < extent:
            found.add(piece * -(-extent // piece))
    return tuple(sorted(found - {extent}))


def contiguous_groups(scope: Scope, pairs: Iterable[tuple[Iterator, Iterator]]) -> tuple[Group, ...]:
    """Return the longest chains of *pairs* (a, b) where a's flattened stride is b's times extent(b) in every read."""
    after: dict[Iterator, Iterator] = {}
    for a, b in pairs:
        if a not in after and b not in after.values() and _are_contiguous(scope, a, b):
            after[a] = b
    chains: list[Group] = []
    for head in after:
        if head not in after.values():
            chain = [head]
            while (following := after.get(chain[-1])) is not None and following not in chain:
                chain.append(following)
            chains.append(tuple(chain))
    return tuple(chains)


def order_by_role(scope: Scope, last: Iterator) -> Group:
    """Group the traversals of *scope* by the accesses in which they occur, so that operators find their dimensions.

    The group shared by all accesses comes first (it is a batch), the group of *last* comes last (the reader's fastest
    dimension stays contiguous).  Within a group, iterators of an activation keep the order in which it is stored;
    a weight can be laid out anew at compile time, so its iterators keep their order as traversals.
    """
    role = roles(scope)
    every = frozenset(range(len(tuple(accesses(scope.body)))))
    first: dict[frozenset[int], int] = {}
    for n, x in enumerate(scope.traversals):
        first.setdefault(role[x], n)
    stored = _storage_order(scope)

    def key(x: Iterator) -> tuple[bool, bool, int, tuple[int, int], int]:
        group = role[x]
        at = stored.get(x, (0, 0))
        return group == role.get(last, every), group != every, first[group], at, scope.traversals.index(x)

    return tuple(sorted(scope.traversals, key=key))


def _storage_order(scope: Scope) -> dict[Iterator, tuple[int, int]]:
    """Return (access, dimension) of each iterator's first use in a source that is no weight."""
    at: dict[Iterator, tuple[int, int]] = {}
    for n, access in enumerate(accesses(scope.body)):
        if not (isinstance(access.source, Tensor) and access.source.weight):
            for d, i in enumerate(access.index):
                for x in i.iterators:
                    at.setdefault(x, (n, d))
    return at


def _indices(scope: Scope) -> Iterable[Index]:
    """Return the distinct indices of the body's accesses."""
    return dict.fromkeys(i for access in accesses(scope.body) for i in access.index)


def _parts(index: Index, group: Group) -> Iterable[Index]:
    """Yield the sum over *group* within *index* if it has a unit coefficient, and sums in it that share a factor.

    The constant is included if nothing else is left: t = h + r - 1, but h + 3 p of h + 3 p + r - 2 with r summed.
    """
    terms = [(x, k) for x, k in index.terms if isinstance(x, Iterator) and x in group]
    whole = len(terms) == len(index.terms)
    if len(terms) > 1 and any(abs(k) == 1 for _, k in terms):
        yield _sum_terms(terms) + (index.const if whole else 0)
    for common in sorted({abs(k) for _, k in terms} - {1}):
        shared = [(x, k // common) for x, k in terms if k % common == 0]
        if len(shared) > 1:
            yield _sum_terms(shared)


def _sum_terms(terms: Iterable[tuple[Iterator, int]]) -> Index:
    total = Index()
    for x, k in terms:
        total = total + x * k
    return total


def _are_contiguous(scope: Scope, a: Iterator, b: Iterator) -> bool:
    for access in accesses(scope.body):
        touched = [d for d, i in enumerate(access.index) if a in i.iterators or b in i.iterators]
        if touched and not _walks_contiguously(access, touched, a, b):
            return False
    return all(a not in bound.index.iterators and b not in bound.index.iterators for bound in scope.domain)


def _walks_contiguously(access: Access, dimensions: list[int], a: Iterator, b: Iterator) -> bool:
    box = access.source.box
    if not all(holds_everywhere(Bound(access.index[d], *box[d])) for d in dimensions):
        return False
    flat = flat_address(access)
    rest = flat - a * flat.coefficient(a) - b * flat.coefficient(b)
    if a in rest.iterators or b in rest.iterators:
        return False
    return flat.coefficient(b) != 0 and flat.coefficient(a) == b.extent * flat.coefficient(b)


@dataclass(frozen=True, slots=True)
class Window:
    """A filter: *data* read at dimension *d*, where h and r meet, and the access of the *taps*.

    The index there is *start* + *step* · (outputs from 0 + taps from 0); *start* may depend on other iterators.
    """

    data: Access
    d: int
    start: Index
    step: int
    taps: Access
    backwards: bool


def filter_windows(scope: Scope) -> Iterable[tuple[Iterator, Iterator, Window]]:
    """Yield every traversal and summation of *scope* that meet as a filter, and their window."""
    for h, r in product(scope.traversals, scope.summations):
        try:
            yield h, r, match_window(scope, h, r)
        except Refused:
            continue


def match_window(scope: Scope, h: Iterator, r: Iterator) -> Window:
    """Match how *h* and *r* meet; raises Refused unless they meet as in a filter."""
    parts = summed_factors(scope)
    if not all(isinstance(f, Access | Const) for f in parts):
        raise Refused("the body is no product of elements")
    reads = [f for f in parts if isinstance(f, Access)]
    of_h = [a for a in reads if any(h in i.iterators for i in a.index)]
    of_r = [a for a in reads if any(r in i.iterators for i in a.index)]
    if len(of_h) != 1 or len(of_r) != 2 or of_h[0] not in of_r or of_r[0] == of_r[1]:
        raise Refused(
            f"{h.name} occurs in {len(of_h)} factors and {r.name} in {len(of_r)}, expected 1 and that and another"
        )
    data = of_h[0]
    taps = next(a for a in of_r if a is not data)
    where = [d for d, i in enumerate(data.index) if h in i.iterators or r in i.iterators]
    index = data.index[where[0]]
    step = index.coefficient(h)
    rest = index - as_index(h) * step - as_index(r) * index.coefficient(r)
    if len(where) != 1 or step < 1 or abs(index.coefficient(r)) != step or {h, r} & set(rest.iterators):
        told = ", ".join(repr(data.index[d]) for d in where)
        raise Refused(
            f"the data are read at {told}, expected a multiple of {h.name} + {r.name} or of {h.name} - {r.name}"
        )
    backwards = index.coefficient(r) < 0
    first = 1 - r.hi if backwards else r.lo
    return Window(data, where[0], rest + step * (h.lo + first), step, taps, backwards)


def channels_last(scope: Scope, window: Window) -> tuple[Scope, Window, Scope | None]:
    """Move dimensions that do not slide, summed channels and the taps' own traversals, innermost.

    Coefficients of the sliding dimension then depend on outer iterators only, and vectors are contiguous. The third
    result transposes the data, None if they need not be: the returned window reads the given data by the transposed
    index, which the caller redirects to the transposed data.
    """
    data, taps = window.data, window.taps
    moving = {x for i in data.index for x in i.iterators if x in scope.traversals}
    order = sorted(range(len(data.index)), key=lambda d: (not moving & set(data.index[d].iterators), d))
    own = {x for i in taps.index for x in i.iterators} - moving
    inner = replace(scope, traversals=tuple(sorted(scope.traversals, key=lambda x: x in own)), padding=(), value=0)
    return _transpose_data(inner, window, order)


def keep_in_place(scope: Scope, window: Window, h: Iterator) -> tuple[Scope, Window, Scope | None]:
    """Keep the data in place, and move another dimension along which the data slide innermost.

    If the filter slides along the innermost dimension, on which coefficients must not depend, that dimension is moved
    outside the next one that slides. Returns the same as ``channels_last``; raises Refused if nothing else slides.
    """
    index = window.data.index
    moving = {x for x in scope.traversals if x.extent > 1 and x != h}
    others = [d for d, i in enumerate(index) if d != window.d and moving & set(i.iterators)]
    inner = replace(scope, padding=(), value=0)
    if not others:
        raise Refused(f"the data are read at {', '.join(map(repr, index))}: only {h.name} moves")
    if window.d < others[-1]:
        return inner, window, None
    order = [d for d in range(len(index)) if d != window.d]
    order.insert(order.index(others[-1]), window.d)
    beside = [x for x in scope.traversals if x != h]
    beside.insert(min(n for n, x in enumerate(beside) if x in index[others[-1]].iterators), h)
    return _transpose_data(replace(inner, traversals=tuple(beside)), window, order)


def _transpose_data(scope: Scope, window: Window, order: list[int]) -> tuple[Scope, Window, Scope | None]:
    """Return *scope* with the dimensions of its data in *order*, and the transposed data, or None if unchanged."""
    data = window.data
    if order == sorted(order):
        return scope, window, None
    source = data.source
    z = tuple(Iterator(f"z{d + 1}", *span) for d, span in enumerate(source.box))
    turned = Scope(
        tuple(z[d] for d in order),
        (),
        source[z],
        padding=tuple(source.padding[d] for d in order) if source.padding else (),
        value=source.value,
    )
    read = Access(turned, tuple(data.index[d] for d in order))
    body = mul(*(read if f == data else f for f in factors(scope.body)))
    return replace(scope, body=body), replace(window, data=read, d=order.index(window.d)), turned
