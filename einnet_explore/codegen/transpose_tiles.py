r"""Kernels for a CPU that write along another dimension than they read: tiles transposed in vector registers.

.. math::  Y[\dots, u, \dots, v] = f(T[\dots, v, \dots, u], \dots)

`v` is innermost in the result and `u` runs along memory in the largest tensor that is read.  A tile has as many values
of both as a vector has lanes: its rows are computed along `u` and written along `v`.  If a range is not a multiple of
the tile, its last tile overlaps its predecessor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from einnet_explore.analysis.flattening import flat_address, row_major_strides
from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.codegen.language import (
    F32,
    I64,
    Array,
    Copy,
    Declare,
    Expr,
    For,
    Kernel,
    LaunchIndex,
    Literal,
    LocalArray,
    Prefetch,
    Statement,
    Store,
    StoreTransposed,
    Var,
    binary_operation,
    cast,
    counted_loop,
    minimum,
)
from einnet_explore.codegen.language.lowering import (
    FIRST_BLOCK,
    add_offset,
    element_address,
    lower_flat,
    lower_index,
    tensor_name,
)
from einnet_explore.codegen.language.statements import TILE_SIDES
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.ir import Access, Iterator, Scope, Tensor, accesses, tensors
from einnet_explore.support.errors import Refused

SAME_PAGE_BYTES = 512
"""Distance between rows of the result up to which lines are written one by one, each in another row of one page.

Beyond it rows are written from end to end.
"""

STREAMED_LINES = 4
"""Neighbouring lines that are streamed together: fewer leave pages of memory half written when they are closed."""

BLOCK_TILES, STREAMED_BLOCK_TILES = 64, 256
"""Tiles of a block, and of one that streams: enough to amortise its start and its end."""


def transpose_kernel(scope: Scope, result: str, machine: Machine) -> tuple[Kernel, int]:
    """Return (the kernel that computes *scope* into *result*, its blocks): tensors, the result, ``FIRST_BLOCK``.

    A result of more than half of the last cache bypasses it. Raises Refused for reductions, for reads of scopes and
    tables or outside of a tensor, if no tile fits, and if there is nothing to transpose.
    """
    reads = tuple(accesses(scope.body))
    if scope.summations or scope.domain or not reads or any(not isinstance(a.source, Tensor) for a in reads):
        raise Refused("the scope reduces, or reads other scopes: expected reads of tensors only")
    for access in reads:
        if not is_inside_box(access.index, access.source.box) or not flat_address(access).affine:
            raise Refused(f"{access!r} is not affine, or reads outside of its tensor")
    largest = max(reads, key=lambda a: prod(a.source.shape))
    place, last = flat_address(largest), scope.traversals[-1] if scope.traversals else None
    along = next((x for x in scope.traversals[:-1] if x.extent > 1 and place.coefficient(x) == 1), None)
    if last is None or along is None or abs(place.coefficient(last)) <= 1:
        raise Refused("the result is written as it is read, or nothing runs along memory: expected another dimension")
    if any(flat_address(a).coefficient(along) not in (0, 1) for a in reads):
        raise Refused(f"a read takes steps along {along.name} that are longer than 1")
    side = next((n for n in TILE_SIDES if n <= min(along.extent, last.extent, machine.lanes)), None)
    if side is None:
        raise Refused(f"{along.extent} x {last.extent} elements: expected {TILE_SIDES[-1]} x {TILE_SIDES[-1]} and more")
    return _Writer(scope, result, largest, along, side, machine).kernel()


@dataclass(frozen=True)
class _Writer:
    scope: Scope
    result: str
    largest: Access
    along: Iterator
    side: int
    machine: Machine

    @cached_property
    def last(self) -> Iterator:
        return self.scope.traversals[-1]

    @cached_property
    def memory(self) -> dict[str, Array]:
        return {t.name: Array(t.name, F32, const=True, noalias=True) for t in tensors(self.scope)}

    @cached_property
    def out(self) -> Array:
        return Array(self.result, F32)

    @cached_property
    def step(self) -> int:
        """Elements from one row of the result to the next."""
        return dict(zip(self.scope.traversals, row_major_strides(self.scope.shape), strict=True))[self.along]

    @cached_property
    def streamed(self) -> bool:
        """True if the result bypasses the caches, since it and its operands would be evicted anyway."""
        elements = prod(self.scope.shape) + sum(prod(t.shape) for t in tensors(self.scope))
        return 2 * elements * F32.size > self.machine.l3 and self.step % self.side == 0

    @cached_property
    def across(self) -> int:
        """Elements along a row of the result that are written together."""
        return min(STREAMED_LINES if self.streamed else 1, self.last.extent // self.side) * self.side

    @cached_property
    def bands(self) -> tuple[Iterator, Iterator]:
        """(the iterator that is cut into bands, the iterator along which a band runs)."""
        near = self.step * F32.size <= SAME_PAGE_BYTES
        return (self.last, self.along) if near else (self.along, self.last)

    def wide(self, x: Iterator) -> int:
        """Return the elements of *x* in a tile, or in the tiles that are written together."""
        return self.across if x == self.last else self.side

    def kernel(self) -> tuple[Kernel, int]:
        """Return the kernel and its number of blocks."""
        band, run = self.bands
        steps = -(-run.extent // self.wide(run))
        each = max(1, (STREAMED_BLOCK_TILES if self.streamed else BLOCK_TILES) * self.side // self.across)
        rest = [x for x in self.scope.traversals if x not in (band, run) and x.extent > 1]
        counts = {**{x: x.extent for x in rest}, band: -(-band.extent // self.wide(band)), run: -(-steps // each)}
        first, block = Var(FIRST_BLOCK, I64), Var(":block", I64)
        body: list[Statement] = [Declare(block, cast(I64, LaunchIndex("block")) + first)]
        digits: dict[Iterator, Expr] = {}
        left: Expr = block
        for n, (x, count) in reversed(tuple(enumerate(counts.items()))):
            own = Var(f":digit {n}", I64)
            body.append(Declare(own, binary_operation("%", left, count)))
            digits[x], left = own, binary_operation("/", left, count)
        at: dict[Iterator, Expr] = {x: Literal(x.lo, I64) for x in self.scope.traversals if x.extent == 1}
        at |= {x: add_offset(digits[x], x.lo) for x in rest}
        here = {x: Var(f":{which}", I64) for x, which in ((band, "band"), (run, "run"))}
        at |= {x: add_offset(v, x.lo) for x, v in here.items()}
        start, stop, step = Var(":start", I64), Var(":stop", I64), Var(":step", I64)
        body.append(Declare(here[band], self._begin(band, digits[band])))
        body.append(Declare(start, digits[run] * each))
        body.append(Declare(stop, minimum(start + each, steps)))
        inner: list[Statement] = [Declare(here[run], self._begin(run, step))]
        for more in range(0, self.across, self.side):
            inner += self._tile({**at, self.last: at[self.last] + more}, more)
        body.append(For(step, start, stop, Literal(1, I64), tuple(inner)))
        return Kernel("turned", (*self.memory.values(), self.out, first), tuple(body)), prod(counts.values())

    def _begin(self, x: Iterator, number: Expr) -> Expr:
        """Return the begin of step *number* along *x*; the last step ends where *x* does."""
        at = number * self.wide(x)
        return at if x.extent % self.wide(x) == 0 else minimum(at, x.extent - self.wide(x))

    def _tile(self, at: Mapping[Iterator, Expr], number: int) -> Iterable[Statement]:
        """Yield one tile: rows along the source, transposed into the result, and a prefetch of the next one."""
        side, run = self.side, self.bands[1]
        tile = Array(f":tile {number}", F32, side * side, "private", align=F32.size * side)
        i, j = Var(":i", I64), Var(":j", I64)
        row, column = {**at, self.last: at[self.last] + i}, {**at, self.along: at[self.along] + i}
        yield LocalArray(tile)
        if run == self.last and not self.streamed:
            ahead = self._address({**column, run: column[run] + self.across})
            yield counted_loop(i, side, Prefetch(self.out, ahead, True), hint="unroll")
            yield counted_loop(i, side, *self._row(tile, row, i, j), hint="unroll")
        else:
            there = {**row, run: row[run] + self.wide(run)}
            hint = Prefetch(self.memory[tensor_name(self.largest.source)], self._read(self.largest, there))
            yield counted_loop(i, side, hint, *self._row(tile, row, i, j), hint="unroll")
        yield StoreTransposed(self.out, self._address(at), self.step, tile, side, self.streamed)

    def _row(self, tile: Array, at: Mapping[Iterator, Expr], i: Var, j: Var) -> Iterable[Statement]:
        """Yield row *i* of the tile: copied, or computed."""
        if self.scope.body == self.largest:
            yield Copy(
                tile,
                i * self.side,
                self.memory[tensor_name(self.largest.source)],
                self._read(self.largest, at),
                self.side,
            )
            return
        along = {**at, self.along: at[self.along] + j}

        value = lower_flat(self.scope.body, along, self.memory)
        yield counted_loop(j, self.side, Store(tile, i * self.side + j, value), hint="vector")

    def _read(self, access: Access, at: Mapping[Iterator, Expr]) -> Expr:
        return lower_index(flat_address(access), at, I64)

    def _address(self, at: Mapping[Iterator, Expr]) -> Expr:
        scope = self.scope
        return element_address(scope.shape, tuple(x - x.lo for x in scope.traversals), at)
