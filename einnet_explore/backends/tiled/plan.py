"""What a tiled kernel does, decided: loops, steps, packed constants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from einnet_explore.ir import Iterator, Tensor, accesses
from einnet_explore.kernels.core import RESULT
from einnet_explore.kernels.form import Form
from einnet_explore.kernels.layout import Layout, in_place, padded_copy
from einnet_explore.kernels.packing import Blocks, Region, regions
from einnet_explore.kernels.tile import Tap, Tile, taps

SHARED_FLOPS = 1 << 20
"""Operations from which on threads share the tiles."""

SHARED_COPY = 1 << 16
"""Elements from which on threads share a copy."""


@dataclass(frozen=True)
class Plan:
    """A contraction, its tile, where the other operand lies (None: packed), and for how many threads."""

    form: Form
    tile: Tile
    other: Layout | None
    threads: int

    @property
    def shared(self) -> bool:
        """Whether several threads run the kernel, or a part of it."""
        return self.threads > 1 and (self.tiles_shared or any(map(self.copy_shared, (self.tile.layout, self.other))))

    @property
    def tiles_shared(self) -> bool:
        """Whether several threads compute the tiles."""
        return self.threads > 1 and self.form.flops >= SHARED_FLOPS

    def copy_shared(self, layout: Layout | None) -> bool:
        """Whether several threads copy an operand into *layout*."""
        return self.threads > 1 and layout is not None and layout.copied and layout.size >= SHARED_COPY

    @cached_property
    def steps(self) -> tuple[tuple[Tap, ...], ...]:
        """The products of one step, by group of phases."""
        tile = self.tile
        return tuple(tuple(taps(self.form, tile.vector, tile.layout, g, tile.unrolled)) for g in tile.groups)

    @cached_property
    def blocks(self) -> tuple[Blocks, ...]:
        """The loops outside the sums, outermost first."""
        form, tile = self.form, self.tile
        sizes: dict[Iterator | None, int] = {tile.row: tile.rows, tile.slot: tile.slots}
        last = form.traversals[-1]
        sizes[last] = tile.lanes * tile.vectors
        loops = [Blocks(x, sizes.get(x, 1)) for x in form.traversals]
        mine, other = form.moves(tile.vector), form.moves(1 - tile.vector)
        rank = {(True, True): 0, (True, False): 2, (False, True): 1 if tile.slots_outside else 3, (False, False): 0}
        return tuple(sorted(loops, key=lambda b: rank[b.iterator in mine, b.iterator in other]))

    @cached_property
    def sums(self) -> tuple[Iterator, ...]:
        """The summations that are loops."""
        return tuple(y for y in self.form.summations if y not in self.tile.unrolled)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """The parts of the packed operand."""
        loops = [b for b in self.blocks if b.count > 1 or b.iterator == self.tile.slot]
        return regions(self.form, self.tile, self.steps, (*loops, *(Blocks(y, 1) for y in self.sums)))

    @cached_property
    def sides(self) -> tuple[Tensor, ...]:
        """What the epilogue reads besides the sum."""
        reads = [a.source for a in accesses(self.form.epilogue) if a.source != RESULT]
        return tuple({t.name: t for t in reads if isinstance(t, Tensor)}.values())

    @property
    def packed(self) -> int:
        """The elements of the packed operand: one, read by nobody, where all of it is multiplied with zeros."""
        return max(1, sum(r.size for r in self.regions))


def plan(form: Form, tile: Tile, constant: bool, threads: int) -> Plan | None:
    """How *tile* is run; *constant*: the operand that is not read in vectors never changes, and may be packed."""
    if constant:
        return Plan(form, tile, None, threads)
    last = form.traversals[-1]
    along = last if last in form.moves(1 - tile.vector) else None
    # A copy has spare elements, which vectors wider than the rows read.
    wide = along is not None and tile.lanes > last.extent
    other = None if wide else in_place(form, 1 - tile.vector, along)
    other = other or padded_copy(form, 1 - tile.vector, along)
    return None if other is None else Plan(form, tile, other, threads)
