r"""Kernels for a CPU without conditions: every traversal is cut where a read begins or ends, and into its phases.

.. math::
   x + c = P u + q \;\Rightarrow\; \lfloor (x + c) / P \rfloor = u, \quad (x + c) \bmod P = q,
   \qquad 0 \le q < P

Phases are counted from where the windows are (`x + c`, not `x`), so that an overlap-add reads whole pieces of each
window.  Between two cuts a read is inside or outside all the time; what is left there is sums of contiguous reads, in
loops that compilers make vectors of.  Each element is gathered, so each read of the scope is one load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from einnet_explore.algebra.guarding import guard
from einnet_explore.algebra.substitute import substitute
from einnet_explore.ir import (
    Access,
    Index,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    map_accesses,
    tensors,
)
from einnet_explore.kernels.cuts import LANES, Cut, cut, decided, ordered, place_of
from einnet_explore.kernels.source import (
    F32,
    I64,
    Array,
    Declare,
    Expr,
    For,
    Id,
    If,
    Kernel,
    KernelError,
    Literal,
    Statement,
    Store,
    Var,
    cast,
    conjunction,
    lowering,
)

FIRST = ":first"
"""The argument that says from which block on a kernel is launched."""

MOST_PIECES = 400
"""So many statements of a kernel at most."""


def regions_kernel(scope: Scope, result: str) -> tuple[Kernel, int]:
    """(the kernel that computes *scope* into *result*, its blocks): tensors, the result, ``FIRST``.

    Raises KernelError for what reduces or reads scopes and tables, for phases that are not of one traversal, and where
    there is nothing to cut or too much of it.
    """
    if scope.summations or scope.domain or any(not isinstance(a.source, Tensor) for a in accesses(scope.body)):
        raise KernelError("the scope reduces, or reads other scopes: expected reads of tensors only")
    if not scope.traversals or prod(scope.shape) == 0:
        raise KernelError("the scope has no traversals or no elements")
    body = map_accesses(scope.body, _explicit)
    order, turned = ordered(scope)
    cuts = tuple(cut(x, body) for x in order)
    pieces = prod(sum(len(tuple(c.phases(r))) for r in c.ranges) for c in cuts)
    reads = sum(1 for _ in accesses(body))
    pieces *= prod(x.extent for x in turned)
    if pieces == 1 or pieces * reads > MOST_PIECES:
        raise KernelError(f"{pieces} pieces of {reads} reads: expected 2 and more, {MOST_PIECES} reads in all")
    read = {t.name: Array(t.name, F32, const=True, noalias=True) for t in tensors(scope)}
    writer = _Writer(scope, cuts, turned, read, Array(result, F32))
    first, block = Var(FIRST, I64), Var(":block", I64)
    inside = (Declare(block, cast(I64, Id("block")) + first), *writer.block(body, block))
    return Kernel("regions", (*read.values(), writer.result, first), inside), writer.blocks


def _explicit(access: Access) -> Scalar:
    """A read with its conditions said."""
    return guard(access.index, access.source.box, access, access.source.value)


@dataclass(frozen=True)
class _Writer:
    scope: Scope
    cuts: tuple[Cut, ...]
    turned: tuple[Iterator, ...]
    read: Mapping[str, Array]
    result: Array

    @property
    def blocks(self) -> int:
        """One for every `u` of the outermost traversal, or for all where there is none outside the innermost."""
        return self.cuts[0].extent if len(self.cuts) > 1 else 1

    def block(self, body: Scalar, block: Var) -> Iterable[Statement]:
        """What the block does."""
        if len(self.cuts) == 1:
            yield from self._loops(body, 0, {}, {})
            return
        outermost = self.cuts[0]
        u = Var(":u 0", I64)
        yield Declare(u, block + outermost.first if outermost.first >= 0 else block - -outermost.first)
        for at in outermost.ranges:
            lo, hi = at
            inside: list[Statement] = []
            for iterator, value in outermost.phases(at):
                inside += self._loops(substitute(body, {outermost.x: value}), 1, {iterator: u}, {outermost.x: value})
            later = [u.ge(lo)] if at != outermost.ranges[0] else []
            sooner = [u.lt(hi)] if at != outermost.ranges[-1] else []
            test = conjunction(*later, *sooner)
            yield from inside if test is None else (If(test, tuple(inside)),)

    def _loops(
        self, body: Scalar, depth: int, at: Mapping[Iterator, Expr], where: Mapping[Iterator, Index]
    ) -> list[Statement]:
        """The loops from traversal number *depth* on; *where* are the values of those outside."""
        if depth == len(self.cuts):
            values = product(*(range(x.lo, x.hi) for x in self.turned))
            each = (dict(zip(self.turned, map(as_index, v), strict=True)) for v in values)
            return [self._store(decided(substitute(body, to)), at, {**where, **to}) for to in each]
        body = decided(body)
        here, out = self.cuts[depth], list[Statement]()
        for lo, hi in here.ranges:
            u = Var(f":u {depth}", I64)
            inside: list[Statement] = []
            for iterator, value in here.phases((lo, hi)):
                inner = {**where, here.x: value}
                inside += self._loops(substitute(body, {here.x: value}), depth + 1, {**at, iterator: u}, inner)
            if inside:
                last = depth + 1 == len(self.cuts)
                for begin, end in _vectors(lo, hi) if last else ((lo, hi),):
                    bounds = (Literal(begin, I64), Literal(end, I64), Literal(1, I64))
                    out.append(For(u, *bounds, tuple(inside), simd=last))
        return out

    def _store(self, body: Scalar, at: Mapping[Iterator, Expr], where: Mapping[Iterator, Index]) -> Statement:
        index = tuple(where[x] - x.lo for x in self.scope.traversals)
        return Store(self.result, _place(self.scope.shape, index, at), self._scalar(body, at))

    def _scalar(self, body: Scalar, at: Mapping[Iterator, Expr]) -> Expr:
        def load(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
            return self.read[_name(source)][where[0]]

        return lowering.scalar(map_accesses(body, _flat), at, load, F32, I64)


def _vectors(lo: int, hi: int) -> tuple[tuple[int, int], ...]:
    """The range in whole vectors: where it does not come out even the last one overlaps the one before."""
    rest = (hi - lo) % LANES
    return ((lo, hi),) if hi - lo <= LANES or not rest else ((lo, hi - rest), (hi - LANES, hi))


def _name(source: Tensor | Table | Scope) -> str:
    assert isinstance(source, Tensor)
    return source.name


def _flat(access: Access) -> Access:
    """A read by its place in memory; what may be outside has been said by conditions around it."""
    place = place_of(access)
    least, most = place.bounds
    return Access(Tensor(_name(access.source), (most + 1 - least,), origin=(least,)), (place,))


def _place(shape: tuple[int, ...], index: tuple[Index, ...], at: Mapping[Iterator, Expr]) -> Expr:
    flat = as_index(0)
    for d, i in enumerate(index):
        flat = flat + i * prod(shape[d + 1 :])
    return lowering.index(flat, at, I64)
