"""Constants packed in the order in which a register-tiled kernel reads them, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from einnet_explore.codegen.register_tiles import RegisterTile, Tap
from einnet_explore.codegen.sum_of_products import SumOfProducts
from einnet_explore.ir import Iterator

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BlockLoop:
    """A loop over *iterator* in *count* blocks of *size*; the last block ends with the iterator's range."""

    iterator: Iterator
    size: int

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.iterator.extent // self.size)

    @property
    def starts(self) -> Array:
        """The start of each block: the last one overlaps its predecessor if the size does not divide the extent."""
        return np.minimum(np.arange(self.count) * self.size, max(0, self.iterator.extent - self.size))


@dataclass(frozen=True)
class PackedRegion:
    """The part of a packed operand that one group of phases reads: *loops* outside, then taps, slots and lanes."""

    start: int
    loops: tuple[BlockLoop, ...]
    inside: int
    """Elements of one step."""

    @property
    def size(self) -> int:
        """Elements."""
        return prod(b.count for b in self.loops) * self.inside

    @property
    def strides(self) -> Mapping[Iterator, int]:
        """Elements from one block of each iterator to the next."""
        found: dict[Iterator, int] = {}
        step = self.inside
        for b in reversed(self.loops):
            found[b.iterator] = step
            step *= b.count
        return found


def vector_offsets(tile: RegisterTile, last: Iterator) -> tuple[int, ...]:
    """Return the offsets of a tile's vectors: the last one ends with the row if the tile is as wide as the row."""
    whole = tile.lanes * tile.vectors >= last.extent
    return tuple(
        min(n * tile.lanes, max(0, last.extent - tile.lanes)) if whole else n * tile.lanes for n in range(tile.vectors)
    )


def packed_regions(
    form: SumOfProducts, tile: RegisterTile, steps: Sequence[Sequence[Tap]], loops: Sequence[BlockLoop]
) -> tuple[PackedRegion, ...]:
    """Return consecutive regions, one for each group of phases."""
    other = form.moves(1 - tile.vector)
    mine = tuple(b for b in loops if b.iterator in other)
    lanes = tile.lanes * tile.vectors if form.traversals[-1] in other else 1
    found: list[PackedRegion] = []
    start = 0
    for group in steps:
        found.append(PackedRegion(start, mine, len(group) * tile.slots * lanes))
        start += found[-1].size
    return tuple(found)


def gather_positions(
    form: SumOfProducts, tile: RegisterTile, steps: Sequence[Sequence[Tap]], found: Sequence[PackedRegion]
) -> Array:
    """Return the tensor's position of every element of the packed operand; -1 is a zero outside the tensor."""
    tensor = form.operands[1 - tile.vector]
    last = form.traversals[-1]
    parts: list[Array] = []
    for group, region in zip(steps, found, strict=True):
        loops = {b.iterator: b for b in region.loops}
        inside = (len(group), tile.slots, *((tile.vectors, tile.lanes) if last in form.moves(1 - tile.vector) else ()))
        rank = len(region.loops) + len(inside)

        def along(values: Array, axis: int, rank: int = rank) -> Array:
            return values.reshape([-1 if d == axis else 1 for d in range(rank)])

        at: dict[Iterator, Array] = {b.iterator: along(b.starts, d) for d, b in enumerate(region.loops)}
        first = len(region.loops)
        if tile.slot is not None and tile.slot in loops:
            at[tile.slot] = at[tile.slot] + along(np.arange(tile.slots), first + 1)
        if len(inside) == 4:
            start = at.get(last, np.zeros([1] * rank, np.int64))
            lane = along(np.array(vector_offsets(tile, last)), first + 2) + along(np.arange(tile.lanes), first + 3)
            at[last] = np.minimum(start + lane, last.extent - 1)
        for y in tile.unrolled:
            at[y] = along(np.array([tap.known[y] for tap in group]), first)
        shape = (*(b.count for b in region.loops), *inside)
        parts.append(_positions(form, tile, group, at, shape, first, tensor.box).reshape(-1))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _positions(
    form: SumOfProducts,
    tile: RegisterTile,
    group: Sequence[Tap],
    at: Mapping[Iterator, Array],
    shape: tuple[int, ...],
    first: int,
    box: tuple[tuple[int, int], ...],
) -> Array:
    flat = np.zeros(shape, np.int64)
    valid = np.ones(shape, bool)
    stride = 1
    rank = len(shape)
    for d in reversed(range(len(box))):
        lo, hi = box[d]
        # Taps of different phases have indices of their own, so each dimension is put together tap by tap.
        rows = []
        for n, tap in enumerate(group):
            index = form.reads[tap.phase][1 - tile.vector][d]
            mine = {x: v.take([n], axis=first) if v.shape[first] > 1 else v for x, v in at.items()}
            value = np.asarray(index.evaluate(lambda x, mine=mine: mine[x]))  # type: ignore[misc]
            one = tuple(1 if axis == first else extent for axis, extent in enumerate(shape))
            rows.append(np.broadcast_to(value.reshape(value.shape or (1,) * rank), one))
        here = np.concatenate(rows, axis=first) if rows else flat
        valid &= (here >= lo) & (here < hi)
        flat += (here - lo) * stride
        stride *= hi - lo
    return np.where(valid, flat, -1)
