"""Plan of a register-tiled contraction: loops, steps, packed constants, and the buffers of its kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import prod

from tvm import tirx

from einnet_explore.codegen.operand_layout import FlatAddress, OperandLayout, in_place_layout, padded_copy_layout
from einnet_explore.codegen.packing import BlockLoop, PackedRegion, packed_regions
from einnet_explore.codegen.register_tiles import RegisterTile, Tap, list_taps
from einnet_explore.codegen.sum_of_products import SUM_RESULT, SumOfProducts
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import Environment
from einnet_explore.ir import Iterator, Tensor, accesses

MIN_PARALLEL_FLOPS = 1 << 20
"""Operations from which on threads share the tiles."""

MIN_PARALLEL_COPY_ELEMENTS = 1 << 16
"""Elements from which on threads share a copy."""


@dataclass(frozen=True)
class ContractionPlan:
    """A contraction, its tile, the layout of the other operand (None: packed), and the number of threads."""

    form: SumOfProducts
    tile: RegisterTile
    other: OperandLayout | None
    threads: int

    @property
    def shared(self) -> bool:
        """True if several threads run the kernel, or a part of it."""
        return self.threads > 1 and (self.tiles_shared or any(map(self.copy_shared, (self.tile.layout, self.other))))

    @property
    def tiles_shared(self) -> bool:
        """True if several threads compute the tiles."""
        return self.threads > 1 and self.form.flops >= MIN_PARALLEL_FLOPS

    def copy_shared(self, layout: OperandLayout | None) -> bool:
        """True if several threads copy an operand into *layout*."""
        return self.threads > 1 and layout is not None and layout.copied and layout.size >= MIN_PARALLEL_COPY_ELEMENTS

    @cached_property
    def steps(self) -> tuple[tuple[Tap, ...], ...]:
        """The products of one step, by group of phases."""
        tile = self.tile
        return tuple(tuple(list_taps(self.form, tile.vector, tile.layout, g, tile.unrolled)) for g in tile.groups)

    @cached_property
    def blocks(self) -> tuple[BlockLoop, ...]:
        """The loops outside the sums, outermost first."""
        form, tile = self.form, self.tile
        sizes: dict[Iterator | None, int] = {tile.row: tile.rows, tile.slot: tile.slots}
        last = form.traversals[-1]
        sizes[last] = tile.lanes * tile.vectors
        loops = [BlockLoop(x, sizes.get(x, 1)) for x in form.traversals]
        mine, other = form.moves(tile.vector), form.moves(1 - tile.vector)
        rank = {(True, True): 0, (True, False): 2, (False, True): 1 if tile.slots_outside else 3, (False, False): 0}
        return tuple(sorted(loops, key=lambda b: rank[b.iterator in mine, b.iterator in other]))

    @cached_property
    def sums(self) -> tuple[Iterator, ...]:
        """The summations that are loops."""
        return tuple(y for y in self.form.summations if y not in self.tile.unrolled)

    @cached_property
    def regions(self) -> tuple[PackedRegion, ...]:
        """The parts of the packed operand."""
        loops = [b for b in self.blocks if b.count > 1 or b.iterator == self.tile.slot]
        return packed_regions(self.form, self.tile, self.steps, (*loops, *(BlockLoop(y, 1) for y in self.sums)))

    @cached_property
    def sides(self) -> tuple[Tensor, ...]:
        """The tensors that the epilogue reads."""
        reads = [a.source for a in accesses(self.form.epilogue) if a.source != SUM_RESULT]
        return tuple({t.name: t for t in reads if isinstance(t, Tensor)}.values())

    @property
    def packed(self) -> int:
        """The elements of the packed operand; one, never read, if all its products are zero."""
        return max(1, sum(r.size for r in self.regions))


def plan_contraction(form: SumOfProducts, tile: RegisterTile, constant: bool, threads: int) -> ContractionPlan | None:
    """Return the plan of *tile*, or None; *constant*: the operand without vectors is constant, so it is packed."""
    if constant:
        return ContractionPlan(form, tile, None, threads)
    last = form.traversals[-1]
    along = last if last in form.moves(1 - tile.vector) else None
    # A copy has spare elements, which vectors wider than the rows read.
    wide = along is not None and tile.lanes > last.extent
    other = None if wide else in_place_layout(form, 1 - tile.vector, along)
    other = other or padded_copy_layout(form, 1 - tile.vector, along)
    return None if other is None else ContractionPlan(form, tile, other, threads)


@dataclass(frozen=True, eq=False)
class ContractionContext:
    """Buffers and fresh names of a kernel under construction."""

    plan: ContractionPlan
    _next: Callable[[], int] = field(default_factory=lambda: count().__next__)

    @property
    def last(self) -> Iterator:
        """The traversal along the lanes."""
        return self.plan.form.traversals[-1]

    @cached_property
    def raw(self) -> tuple[TvmObject, TvmObject]:
        """The operands as parameters: the one that is read in vectors, the other one."""
        plan = self.plan
        vector, other = (plan.form.operands[n].shape for n in (plan.tile.vector, 1 - plan.tile.vector))
        return flat_buffer(vector, "a"), flat_buffer((plan.packed,) if plan.other is None else other, "b")

    @cached_property
    def operands(self) -> tuple[TvmObject, TvmObject]:
        """The operands or their copies; vectors may extend past the last row of a copy."""
        spare = 2 * self.plan.tile.lanes
        first, second = (
            flat_buffer((layout.size + spare,), f"{raw.name}c") if layout is not None and layout.copied else raw
            for layout, raw in zip((self.plan.tile.layout, self.plan.other), self.raw, strict=True)
        )
        return first, second

    @cached_property
    def sides(self) -> Mapping[str, TvmObject]:
        """The buffers that the epilogue reads, by name."""
        return {t.name: flat_buffer(t.shape, f"t{n}") for n, t in enumerate(self.plan.sides)}

    @cached_property
    def result(self) -> TvmObject:
        """The result's buffer."""
        return flat_buffer(tuple(x.extent for x in self.plan.form.outside), "y")

    def variable(self, stem: str) -> TvmObject:
        """Return a new integer."""
        return tirx.Var(f"{stem}{self._next()}", "int32")

    def accumulator(self) -> TvmObject:
        """Return a new buffer of one vector."""
        return flat_buffer((self.plan.tile.lanes,), f"c{self._next()}")

    def let(self, out: list[TvmObject], value: TvmObject, lanes: int | None = None) -> TvmObject:
        """Bind the vector *value* to a new name by a statement appended to *out*."""
        name = tirx.Var(f"v{self._next()}", f"float32x{lanes or self.plan.tile.lanes}")
        out.append(tirx.Bind(name, value))
        return name

    def lanes(self, start: TvmObject | int) -> TvmObject:
        """Return the positions of a vector from *start* on."""
        first = tirx.const(start, "int32") if isinstance(start, int) else start
        return tirx.Ramp(first, tirx.const(1, "int32"), self.plan.tile.lanes)


def flat_buffer(shape: Sequence[int], name: str) -> TvmObject:
    """Return a flat buffer for *shape*."""
    return tirx.decl_buffer((max(1, prod(shape)),), "float32", name)


def statement_sequence(statements: Sequence[TvmObject]) -> TvmObject:
    """Return *statements* in order; TVM does not nest sequences."""
    flat: list[TvmObject] = []
    for s in statements:
        flat += list(s.seq) if isinstance(s, tirx.SeqStmt) else [s]
    return tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]


def serial_loop(x: TvmObject, extent: int, body: TvmObject) -> TvmObject:
    """A loop."""
    return tirx.For(x, 0, extent, tirx.ForKind.SERIAL, body)


def parallel_loop(x: TvmObject, extent: int, body: TvmObject) -> TvmObject:
    """A loop whose iterations threads share."""
    return tirx.For(x, 0, extent, tirx.ForKind.PARALLEL, body)


def vector_loop(x: TvmObject, extent: int, body: TvmObject) -> TvmObject:
    """A loop that is one vector."""
    return tirx.For(x, 0, extent, tirx.ForKind.VECTORIZED, body)


def row_major_position(at: Sequence[TvmObject], shape: Sequence[int]) -> TvmObject:
    """Return the position of *at* in an array of *shape*."""
    total: TvmObject = tirx.const(0, "int32")
    for d, i in enumerate(at):
        total = total + i * prod(shape[d + 1 :])
    return total


def flat_position(address: FlatAddress, env: Environment) -> TvmObject:
    """Return *address* for iterators of the values *env*."""
    total: TvmObject = tirx.const(0, "int32")
    for x, k in address[1].items():
        total = total + env[x] * k
    return total + address[0]
