r"""Work of a scope: floating-point operations and bytes, counted from the scope alone.

A summation that reads zero padding at most places counts only its reads of stored elements:
:math:`\sum_h X[h]\, K[y - 2h + p]` multiplies :math:`\lceil R/2 \rceil` times per output, not `H` times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from einnet_explore.codegen.sum_of_products import match_sum_of_products
from einnet_explore.ir import Access, Apply, Compare, Const, Iterator, Scalar, Scope, accesses, scopes, tensors

ELEMENT_BYTES = 4
"""Bytes of an element (float32)."""


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations; bytes of every tensor read once and of the result written once."""

    flops: int
    read_bytes: int
    written_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def intensity(self) -> float:
        """FLOPs a tensor element, the measure of EinNet §4.3 for memory-bound expressions (there: below 4)."""
        return self.flops * ELEMENT_BYTES / max(1, self.nbytes)


def work(scope: Scope) -> Work:
    """The work of *scope* and the scopes nested in it, each evaluated once over its box."""
    flops = sum(_flops(inner) for inner in dict.fromkeys(inner for _, inner in scopes(scope)))
    read = {t.name: prod(t.shape) * ELEMENT_BYTES for t in tensors(scope)}
    return Work(flops, sum(read.values()), prod(scope.shape) * ELEMENT_BYTES)


def _flops(scope: Scope) -> int:
    outputs = prod(scope.shape)
    terms = prod(_counted_terms(scope, s) for s in scope.summations)
    reduced = 1 if scope.summations else 0
    return outputs * terms * (_operations(scope.body) + reduced)


def _counted_terms(scope: Scope, s: Iterator) -> int:
    if scope.reduce != "sum":
        return s.extent
    return min((s.extent, *_windows(scope.body, s)))


def _windows(body: Scalar, s: Iterator) -> Iterable[int]:
    for access in _factors(body):
        if access.source.value == 0:
            for i, (lo, hi) in zip(access.index, access.source.box, strict=True):
                if k := abs(i.coefficient(s)):
                    yield -(-(hi - lo) // k)


def _factors(body: Scalar) -> Iterable[Access]:
    match body:
        case Access():
            yield body
        case Apply("*", args):
            yield from (a for a in args if isinstance(a, Access))


def _operations(body: Scalar) -> int:
    match body:
        case Apply("+" | "*", args):
            return len(args) - 1 + sum(map(_operations, args))
        case Apply(_, args):
            return 1 + sum(map(_operations, args))
        case Access() | Const() | Compare():
            return 0


def utilisation(scope: Scope, lanes: int) -> float:
    """The part of the vector lanes that does useful work in a library's contraction of this shape.

    A library lays one group of output iterators along the lanes, those of one operand alone: with 21 output channels
    and 16 lanes 21 of 32 are used.  A plain matrix product may take either operand, one with composite indices (a
    convolution) only the other one.
    """
    reads = tuple(accesses(scope.body))
    if len(reads) != 2:
        return 1.0
    inside = [{x for i in a.index for x in i.iterators} for a in reads]
    composite = [any(len(i.iterators) > 1 for i in a.index) for a in reads]
    candidates = []
    for mine, other, mixed in zip(inside, reversed(inside), composite, strict=True):
        extent = prod(x.extent for x in scope.traversals if x in mine and x not in other)
        if not mixed:
            candidates.append(extent / (-(-extent // lanes) * lanes))
    return max(candidates, default=1.0)


@lru_cache(maxsize=4096)
def row_utilisation(scope: Scope, lanes: int) -> float:
    """The part of the vector lanes that does useful work in a register-tiled kernel; 0 where there is none.

    It lays the innermost traversal along the lanes, as far as it runs through one operand, and the last of several
    vectors overlaps the one before.
    """
    found = match_sum_of_products(scope)
    if found is None:
        return 0.0
    last = found.traversals[-1]
    along = [n for n in (0, 1) if last in found.moves(n)]
    if not along or found.flops == 0:
        return 0.0
    return last.extent / (-(-last.extent // lanes) * lanes)
