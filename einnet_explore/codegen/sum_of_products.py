r"""A sum of products of two tensors, in the form that register-tiled kernels need.

.. math::  Y[\vec x] = g\Big(\sum_{\vec y} A[\alpha(\vec x, \vec y)]\, B[\beta(\vec x, \vec y)]\Big)

Everything is derived from the index maps: the traversals that move A alone, B alone or both; windows of strided
transposed convolutions, which narrow a summation; phases, after which quotients and remainders of a traversal repeat
and inside which every index is affine; neighbouring traversals, which are collapsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

from einnet_explore.analysis.indices import (
    compared_iterators,
    fresh_name,
    is_inside_box,
    open_views,
    period,
    substitute,
    substitute_index,
)
from einnet_explore.analysis.products import two_reads
from einnet_explore.codegen.preparation import (
    drop_unit_dimensions,
    merge_neighbours,
    merge_read,
    narrowest_window,
    reads_as_neighbours,
)
from einnet_explore.ir import (
    Access,
    Apply,
    Index,
    IndexLike,
    Iterator,
    Scalar,
    Scope,
    Tensor,
    accesses,
    as_index,
    map_accesses,
)
from einnet_explore.support.errors import Refused

SUM_RESULT = Tensor("", ())
"""Placeholder of the sum's value in an epilogue."""


def split_epilogue(scope: Scope) -> tuple[Scope, Scalar] | None:
    """Split *scope* into (the scope that sums, over the outer one's traversals; the epilogue on its result)."""
    if scope.domain or not scope.traversals:
        return None
    if scope.summations:
        return (scope, SUM_RESULT[()]) if scope.reduce == "sum" else None
    inner = {a for a in accesses(scope.body) if isinstance(a.source, Scope) and a.source.summations}
    if len(inner) != 1:
        return None
    (read,) = inner
    inner_scope = read.source
    if not isinstance(inner_scope, Scope) or inner_scope.reduce != "sum" or inner_scope.domain:
        return None
    traversals = inner_scope.traversals
    to: dict[Iterator, IndexLike] = dict(zip(traversals, read.index, strict=True))
    moving = {i.single for i, x in zip(read.index, traversals, strict=True) if x.extent > 1}
    if moving != {x for x in scope.traversals if x.extent > 1} or len(moving) < sum(x.extent > 1 for x in traversals):
        return None
    if any(i.bounds != (x.lo, x.hi - 1) for x, i in zip(traversals, read.index, strict=True)):
        return None
    used = {x.name for x in scope.traversals}
    for s in inner_scope.summations:
        name = fresh_name(s.name, used) if s.name in used else s.name
        used.add(name)
        to[s] = Iterator(name, s.lo, s.hi)
    sums = tuple(as_index(to[s]).single or s for s in inner_scope.summations)
    core = Scope(scope.traversals, sums, substitute(inner_scope.body, to))
    epilogue = map_accesses(scope.body, lambda a: SUM_RESULT[()] if a == read else a)
    return core, epilogue


def normalize_ranges(core: Scope, epilogue: Scalar) -> tuple[Scope, Scalar]:
    """Count every iterator from 0; iterators of one value are substituted, and dropped unless no traversal is left."""
    to = {x: Iterator(x.name, 0, x.extent) for x in (*core.traversals, *core.summations)}
    at: Mapping[Iterator, IndexLike] = {x: y + x.lo if x.extent > 1 else x.lo for x, y in to.items()}
    moved = replace(
        core,
        traversals=tuple(to[x] for x in core.traversals if x.extent != 1) or (to[core.traversals[-1]],),
        summations=tuple(to[x] for x in core.summations if x.extent != 1),
        body=substitute(core.body, at),
        padding=(),
    )
    return moved, substitute(epilogue, at)


def product_operands(core: Scope) -> tuple[Access, Access] | None:
    """Return the two reads whose product is summed, or None.

    Views are looked through where they are read inside their boxes.
    """
    try:
        left, right = map(open_views, two_reads(core.body))
    except Refused:
        return None
    for access in (left, right):
        if not isinstance(access.source, Tensor):
            return None
        if not is_inside_box(access.index, access.source.box) and access.source.value != 0:
            return None
    return left, right


def narrow_windows(core: Scope) -> Scope | None:
    """Substitute h = start(x) ± j for every summation that a zero-padded operand confines.

    The other operand reads all of h itself; outside the range of h it is zero.
    """
    reads = product_operands(core)
    if reads is None:
        return None
    core = replace(core, body=Apply("*", reads))
    for h in core.summations:
        now = product_operands(core)
        for mine, other in (now, tuple(reversed(now))) if now is not None else ():
            found = narrowest_window((mine,), h, core.summations)
            if found is None or not _reads_whole_range(other, h):
                continue
            start, sign, count = found
            j = Iterator(fresh_name("j", {x.name for x in (*core.traversals, *core.summations)}), 0, count)
            at = start + as_index(j) * sign
            rest = tuple(j if s == h else s for s in core.summations)
            core = replace(core, summations=rest, body=substitute(core.body, {h: at}))
            break
    return core


def _reads_whole_range(access: Access, h: Iterator) -> bool:
    """True if *access* reads *h* itself, in one dimension, whose box is the range of *h*, and zero outside."""
    indices = zip(access.index, access.source.box, strict=True)
    inside = [(i, box) for i, box in indices if h in i.iterators]
    return len(inside) == 1 and inside[0] == (as_index(h), (h.lo, h.hi)) and access.source.value == 0


MAX_PHASE_COMBINATIONS = 64
"""Combinations of phases, at most: each has code of its own."""

MAX_ZERO_RATIO = 2
"""A sum over a whole range, zeros included, may have so many times as many products as one over its window."""

Phase = tuple[int, ...]
IndexTuple = tuple[Index, ...]


@dataclass(frozen=True)
class SumOfProducts:
    """A contraction: *traversals* and *summations* start at 0, and traversal ``x`` stands for ``period·x + phase``.

    *reads* maps each combination of phases to the affine indices of both *operands*, which are zero outside their
    boxes. *epilogue* is a scalar over *outside* (the traversals before they were split) that reads ``SUM_RESULT`` for
    the sum.
    """

    traversals: tuple[Iterator, ...]
    periods: tuple[int, ...]
    summations: tuple[Iterator, ...]
    operands: tuple[Tensor, Tensor]
    reads: Mapping[Phase, tuple[IndexTuple, IndexTuple]]
    outside: tuple[Iterator, ...]
    epilogue: Scalar

    def moves(self, operand: int) -> frozenset[Iterator]:
        """Return the iterators on which the reads of *operand* depend, in any phase."""
        return frozenset(x for both in self.reads.values() for i in both[operand] for x in i.iterators)

    @property
    def flops(self) -> int:
        """Multiplications and additions, without those that a whole phase knows to be padding."""
        return 2 * prod(x.extent for x in (*self.traversals, *self.summations)) * len(self.reads)


def match_sum_of_products(scope: Scope) -> SumOfProducts | None:
    """Return *scope* as a contraction, or None.

    It must sum a product of two reads of tensors that are zero outside their boxes, with indices that are affine inside
    every phase; scalar functions of the sum, of other tensors and of the traversals may follow.
    """
    found = split_epilogue(scope)
    if found is None:
        return None
    core, epilogue = normalize_ranges(*found)
    narrow = narrow_windows(core)
    if narrow is None:
        return None
    # If phases do not divide the extents, a few products with zeros are better than no tiles.
    ratio = prod(y.extent for y in core.summations) / prod(y.extent for y in narrow.summations)
    candidates = (narrow, core) if ratio <= MAX_ZERO_RATIO else (narrow,)
    without = map_accesses(epilogue, drop_unit_dimensions)
    plain = (replace(c, body=map_accesses(c.body, drop_unit_dimensions)) for c in candidates)
    return next((f for c in plain if (f := _build(*_collapse_traversals(c, without))) is not None), None)


def _build(core: Scope, epilogue: Scalar) -> SumOfProducts | None:
    reads = product_operands(core)
    if reads is None:
        return None
    # Equal products have equal kernels, whichever operand is written first.
    inner = [any(core.traversals[-1] in i.iterators for i in read.index) for read in reads]
    return _split_phases(core, reads[::-1] if inner == [False, True] else reads, epilogue)


def affine_terms(index: Index) -> tuple[int, dict[Iterator, int]]:
    """Return (constant, coefficients) of an affine index."""
    return index.const, {x: k for x, k in index.terms if isinstance(x, Iterator)}


def _collapse_traversals(core: Scope, epilogue: Scalar) -> tuple[Scope, Scalar]:
    """Collapse neighbouring traversals that every read has as neighbouring dimensions, the inner one whole."""
    for x, y in zip(core.traversals, core.traversals[1:], strict=False):
        reads = (*accesses(core.body), *(a for a in accesses(epilogue) if a.source != SUM_RESULT))
        if {x, y} & {*compared_iterators(epilogue)} or not all(reads_as_neighbours(a, x, y) for a in reads):
            continue
        return _collapse_traversals(merge_neighbours(core, x, y), map_accesses(epilogue, partial(merge_read, x=x, y=y)))
    return core, epilogue


def _split_phases(core: Scope, reads: tuple[Access, Access], epilogue: Scalar) -> SumOfProducts | None:
    indices = [i for a in reads for i in a.index]
    periods = tuple(period(indices, x) for x in core.traversals)
    is_whole = not any(x.extent % p for x, p in zip(core.traversals, periods, strict=True))
    if not is_whole or prod(periods) > MAX_PHASE_COMBINATIONS:
        return None
    inner = tuple(Iterator(x.name, 0, x.extent // p) for x, p in zip(core.traversals, periods, strict=True))
    found: dict[Phase, tuple[IndexTuple, IndexTuple]] = {}
    for phase in product(*map(range, periods)):
        to = {x: as_index(u) * p + q for x, u, p, q in zip(core.traversals, inner, periods, phase, strict=True)}
        both = [tuple(substitute_index(i, to) for i in a.index) for a in reads]
        if not all(i.affine for where in both for i in where):
            return None
        found[phase] = (both[0], both[1])
    left, right = (a.source for a in reads)
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return None
    return SumOfProducts(inner, periods, core.summations, (left, right), found, core.traversals, epilogue)
