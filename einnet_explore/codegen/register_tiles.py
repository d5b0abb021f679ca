r"""Register tiles of a contraction: the processor, layouts of operands, candidates that fit registers, and their cost.

An operand is read in place, from a padded copy, or from a packed array of constants.  A copy contains all elements that
are read, zeros around the tensor included, with the dimension of the vector iterator last.  If the vector iterator
moves in steps of `k`, that dimension is split into :math:`(i \bmod k, \lfloor i/k \rfloor)`, so that neighbouring lanes
are neighbours in memory.

A tile has `rows` × `vectors` × `slots` × `together` sums in registers: rows and vectors move the vector operand, slots
the broadcast one, and several phases are computed together.  A step of the reduction costs

.. math::  \max\left(\frac{F}{f}, \frac{L_v + L_s}{l}, \frac{F + L_v + L_s}{i}, \frac{F \cdot t}{S}\right)

cycles for `F` multiply-adds, :math:`L_v` vector loads (two where they cross a cache line, or come from beyond the
second-level cache), :math:`L_s` broadcasts and `S` sums with a latency of `t` cycles; traffic from the second-level
cache is added.  PlaidML chooses tile sizes for GPUs in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, product
from math import ceil, gcd, prod
from pathlib import Path

from einnet_explore.analysis.counts import ELEMENT_BYTES
from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.codegen.sum_of_products import Phase, SumOfProducts, affine_terms
from einnet_explore.ir import Index, Iterator, Tensor


@dataclass(frozen=True, slots=True)
class Machine:
    """Vector registers of *lanes* float32 elements, operations a cycle, cache sizes in bytes."""

    registers: int = 32
    lanes: int = 16
    fma_per_cycle: float = 2
    loads_per_cycle: float = 2
    issue: float = 6
    latency: float = 4
    """Cycles from a multiply-add to one that uses its sum, on average."""
    l1: int = 32 << 10
    l2: int = 1 << 20
    l2_bytes: float = 32
    """Bytes a cycle from the second-level cache."""
    l3: int = 32 << 20
    """Bytes of the last cache, which cores share."""

    @property
    def flops_per_cycle(self) -> float:
        """Multiplications and additions a cycle, at most."""
        return 2 * self.lanes * self.fma_per_cycle


NARROW_LATENCY = 5
"""``latency`` where vectors have 256 bits: tiles of 8 sums, which 4 cycles would keep busy, reach 0.75 of the rate of
those of 12."""


@lru_cache(1)
def this_machine() -> Machine:
    """Return this processor: vector width by its flags, cache sizes by the system; defaults where it reports none."""
    flags = cpu_flags()
    wide = not flags or "avx512f" in flags
    l1, l2, l3 = (_cache_bytes(n) for n in (1, 2, 3))
    caches = Machine(l1=l1 or 32 << 10, l2=l2 or 1 << 20, l3=l3 or 32 << 20)
    return caches if wide else replace(caches, registers=16, lanes=8, latency=NARROW_LATENCY)


def cpu_flags() -> frozenset[str]:
    """Return the feature flags of this processor; empty if the system reports none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in text.splitlines() if line.startswith("flags")), "").split())


def _cache_bytes(level: int) -> int | None:
    """Return the size of the first core's data cache of *level*, or None."""
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, at, size = ((entry / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction" and at == str(level) and size.endswith("K"):
            return int(size[:-1]) << 10
    return None


FlatAddress = tuple[int, dict[Iterator, int]]
"""A flat position: a constant, and the coefficient of each remaining iterator."""


@dataclass(frozen=True, slots=True)
class LayoutAxis:
    """``i // modulus`` (*high*) or ``i % modulus`` of dimension *dim*, for i counted from *lo*."""

    dim: int
    modulus: int
    high: bool
    lo: int
    extent: int


@dataclass(frozen=True)
class OperandLayout:
    """The axes of an operand in memory order; *copied*: a copy instead of the tensor itself."""

    tensor: Tensor
    axes: tuple[LayoutAxis, ...]
    copied: bool

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours of each axis."""
        return row_major_strides(tuple(a.extent for a in self.axes))

    @property
    def size(self) -> int:
        """Elements of all axes together."""
        return prod(a.extent for a in self.axes)

    def address(self, where: tuple[Index, ...], known: Mapping[Iterator, int]) -> FlatAddress | None:
        """Return the flat position of *where* for the iterator values *known*, or None if it is not affine."""
        const, rest = 0, dict[Iterator, int]()
        fixed = [_known(i, known) for i in where]
        for axis, stride in zip(self.axes, self.strides, strict=True):
            at, moving = fixed[axis.dim]
            at -= axis.lo
            if any(k % axis.modulus for k in moving.values()):
                return None
            const += (at // axis.modulus if axis.high else at % axis.modulus) * stride
            for x, k in moving.items() if axis.high else ():
                rest[x] = rest.get(x, 0) + k // axis.modulus * stride
        return const, rest

    def outside(self, where: tuple[Index, ...], known: Mapping[Iterator, int]) -> bool:
        """True if *where* is outside the tensor's box for all values of the other iterators."""
        for i, (lo, hi) in zip(where, self.tensor.box, strict=True):
            at, moving = _known(i, known)
            ends = [(k * x.lo, k * (x.hi - 1)) for x, k in moving.items()]
            if at + sum(map(max, ends)) < lo or at + sum(map(min, ends)) >= hi:
                return True
        return False


def _known(index: Index, known: Mapping[Iterator, int]) -> FlatAddress:
    const, terms = affine_terms(index)
    return const + sum(k * known[x] for x, k in terms.items() if x in known), {
        x: k for x, k in terms.items() if x not in known
    }


def in_place_layout(form: SumOfProducts, operand: int, vector: Iterator | None) -> OperandLayout | None:
    """Return the layout of the tensor itself, or None if reads leave it or *vector* does not run along memory."""
    tensor = form.operands[operand]
    axes = tuple(LayoutAxis(d, 1, True, lo, hi - lo) for d, (lo, hi) in enumerate(tensor.box))
    layout = OperandLayout(tensor, axes, copied=False)
    for where in _reads(form, operand):
        if not is_inside_box(where, tensor.box):
            return None
        found = layout.address(where, {})
        if found is None or (vector is not None and found[1].get(vector) != 1):
            return None
    return layout


def padded_copy_layout(form: SumOfProducts, operand: int, vector: Iterator | None) -> OperandLayout | None:
    """Return a copy of all elements that are read, or None if *vector* moves in several dimensions, or backwards.

    Dimensions that *vector* does not move hold only the elements that are read: those a whole number of steps apart.
    """
    tensor = form.operands[operand]
    dims = {d for where in _reads(form, operand) for d, i in enumerate(where) if vector in i.iterators}
    if vector is not None and len(dims) != 1:
        return None
    along = next(iter(dims), -1)
    axes: list[LayoutAxis] = []
    last: list[LayoutAxis] = []
    for d in range(len(tensor.shape)):
        bounds = [where[d].bounds for where in _reads(form, operand)]
        lo = min(b[0] for b in bounds)
        extent = max(b[1] for b in bounds) + 1 - lo
        if vector is None or d != along:
            step = _common_step(form, operand, d)
            axes.append(LayoutAxis(d, step, True, lo, -(-extent // step)))
            continue
        steps = {where[d].coefficient(vector) for where in _reads(form, operand)}
        if len(steps) != 1 or (step := steps.pop()) < 1:
            return None
        if step > 1:
            axes.append(LayoutAxis(d, step, False, lo, step))
        last.append(LayoutAxis(d, step, True, lo, -(-extent // step)))
    return OperandLayout(tensor, (*axes, *last), copied=True)


def _common_step(form: SumOfProducts, operand: int, dim: int) -> int:
    """Return the greatest step of which all positions that are read in *dim* are multiples, from the first one on."""
    found = [affine_terms(where[dim]) for where in _reads(form, operand)]
    moves = [k for _, terms in found for x, k in terms.items() if x.extent > 1]
    first = [const + sum(k * x.lo for x, k in terms.items()) for const, terms in found]
    return gcd(*moves, *(n - first[0] for n in first)) or 1


def _reads(form: SumOfProducts, operand: int) -> Iterable[tuple[Index, ...]]:
    return (both[operand] for both in form.reads.values())


@dataclass(frozen=True)
class Tap:
    """One product of a step: its *phase*, the values of the unrolled iterators, the vector's offset."""

    phase: Phase
    known: Mapping[Iterator, int]
    offset: int


@dataclass(frozen=True, slots=True)
class TileParameters:
    """The numbers that identify one of the tiles of a contraction."""

    vector: int
    copied: bool
    unrolled: int
    """Number of unrolled summations, shortest first."""
    together: int
    rows: int
    lanes: int
    vectors: int
    slots: int


@dataclass(frozen=True)
class RegisterTile:
    """A register tile of a contraction; see the module."""

    vector: int
    """The operand that is read in vectors, along the innermost traversal."""
    layout: OperandLayout
    """The layout of the vector operand."""
    lanes: int
    vectors: int
    row: Iterator | None
    rows: int
    slot: Iterator | None
    slots: int
    groups: tuple[tuple[Phase, ...], ...]
    unrolled: tuple[Iterator, ...]
    slots_outside: bool
    """True if the loop over slots is outside the one over rows and vectors."""
    cycles: float = 0

    @property
    def parameters(self) -> TileParameters:
        """The parameters that identify this tile."""
        counts = (len(self.unrolled), len(self.groups[0]), self.rows, self.lanes, self.vectors, self.slots)
        return TileParameters(self.vector, self.layout.copied, *counts)

    def lines(self, operand: int) -> int:
        """Rows of *operand* that a tile reads: its rows if it is read in vectors, else its slots."""
        return self.rows if operand == self.vector else self.slots

    @property
    def sums(self) -> int:
        """Accumulators of the largest group."""
        return self.rows * self.vectors * self.slots * max(map(len, self.groups))


def list_taps(
    form: SumOfProducts, vector: int, layout: OperandLayout, phases: Iterable[Phase], unrolled: tuple[Iterator, ...]
) -> list[Tap]:
    """Return the products of one step that are not known to be zero, ordered by vector offset.

    Raises ValueError if an offset is not known at compile time, or if iterators move phases differently.
    """
    boxes = tuple(boxed_layout(form, n) for n in (0, 1))
    found: list[Tap] = []
    moving: dict[Iterator, int] | None = None
    phases = tuple(phases)
    for values in product(*(range(y.extent) for y in unrolled)):
        known = dict(zip(unrolled, values, strict=True))
        for phase in phases:
            both = form.reads[phase]
            if any(box.outside(where, known) for box, where in zip(boxes, both, strict=True)):
                continue
            at = layout.address(both[vector], known)
            if at is None:
                raise ValueError(f"{both[vector]} is not affine in memory")
            moving = at[1] if moving is None else moving
            if at[1] != moving:
                raise ValueError(f"{both[vector]} moves unlike other phases")
            found.append(Tap(phase, known, at[0]))
    return sorted(found, key=lambda tap: tap.offset)


def boxed_layout(form: SumOfProducts, operand: int) -> OperandLayout:
    """Return the tensor of *operand* itself, to test for reads outside it."""
    return OperandLayout(form.operands[operand], (), copied=False)


LOOP_CYCLES, TILE_CYCLES = 0.5, 20
"""Cycles of overhead of a step of a loop and of a tile."""

OVERLAP_DELAY = 1 / 8
"""Cycles of delay for a cycle of the shorter one of arithmetic and traffic, which happen at the same time."""

SPILL_PENALTY = 0.13
"""Relative cost of a step for every missing register."""

CACHE_LINE_BYTES, PAGE_BYTES = 64, 4096

LINE_ELEMENTS = CACHE_LINE_BYTES // ELEMENT_BYTES
"""Elements of a line of the caches."""


@dataclass(frozen=True, slots=True)
class VectorLoads:
    """Vectors that one step reads in all rows: their number, first-level cache accesses for each, and the most that one
    tap needs, including those kept for later taps.
    """

    count: int
    accesses: int
    live: int


def count_loads(form: SumOfProducts, tile: RegisterTile, group: Sequence[Tap]) -> VectorLoads:
    """Count the vectors that one step of *group* reads."""
    along = _row_stride(form, tile)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    offsets = sorted({tap.offset for tap in group})
    for n, offset in enumerate(offsets):
        for row in range(tile.rows):
            first.setdefault(offset + along * row, n)
            last[offset + along * row] = n
    live = [0] * (len(offsets) + 1)
    for place, n in first.items():
        live[n] += 1
        live[last[place] + 1] -= 1
    aligned = all(p % tile.lanes == 0 for p in (*offsets, *_vector_strides(form, tile)))
    return VectorLoads(len(first), 1 if aligned else 2, max(accumulate(live)))


def with_cycles(
    form: SumOfProducts,
    machine: Machine,
    tile: RegisterTile,
    steps: Sequence[Sequence[Tap]],
    found: Sequence[VectorLoads],
) -> RegisterTile:
    """Return *tile* with its estimated cycles, for the *steps* of its groups and their loads, and its loop order."""
    last = form.traversals[-1]
    blocked = {last: -(-last.extent // (tile.lanes * tile.vectors))}
    for x, n in ((tile.row, tile.rows), (tile.slot, tile.slots)):
        if x is not None:
            blocked[x] = -(-x.extent // n)
    count = prod(blocked.get(x, x.extent) for x in form.traversals)
    length = prod(y.extent for y in form.summations if y not in tile.unrolled)
    both = last in form.moves(1 - tile.vector)
    misses = _displaced_rows(form, machine, tile) * CACHE_LINE_BYTES / machine.l2_bytes
    cycles, vector_bytes, slot_bytes = 0.0, 0, 0
    is_far = prod(form.operands[tile.vector].shape) * ELEMENT_BYTES > machine.l2
    for group, each in zip(steps, found, strict=True):
        load = replace(each, accesses=2) if is_far else each
        others = len(group) * tile.slots * (tile.vectors if both else 1)
        sums = tile.rows * tile.vectors * tile.slots * (len({tap.phase for tap in group}) or 1)
        kept = _kept_broadcasts(form, tile, group)
        cycle = _step_cycles(machine, tile, len(group), load, others, sums, kept)
        cycles += (cycle + misses * others / tile.slots + LOOP_CYCLES) * length + 3 * sums + TILE_CYCLES
        vector_bytes = max(vector_bytes, _touched_elements(form, tile, group[0].phase) * ELEMENT_BYTES if group else 0)
        slot_bytes += others * ELEMENT_BYTES * length * (tile.lanes if both else 1)
    # The inner loop's operand streams past the other one, which stays in the first-level cache if it fits.
    half = machine.l1 // 2
    traffic = {
        outside: (streamed if streamed > half else 0) + (kept if kept > half else 0)
        for outside, kept, streamed in ((True, slot_bytes, vector_bytes), (False, vector_bytes, slot_bytes))
    }
    outside = traffic[True] <= traffic[False]
    far = min(traffic.values()) / machine.l2_bytes
    total = count * (max(cycles, far) + min(cycles, far) * OVERLAP_DELAY)
    if tile.layout.copied:
        # Rows of the tensor are copied in vectors; others element by element, from lines far apart.
        along = tile.layout.axes[-1]
        rows = along.dim == len(tile.layout.tensor.shape) - 1
        total += tile.layout.size * (1 / 4 if rows and along.modulus == 1 else 1 if rows else 3) + 200
    return replace(tile, slots_outside=outside, cycles=ceil(total))


def _displaced_rows(form: SumOfProducts, machine: Machine, tile: RegisterTile) -> int:
    """Return how many of the slots' rows in the other operand displace one another from the first-level cache.

    Rows a multiple of a page apart share a set of it.  A quarter of the set is left to the vectors.
    """
    operand = 1 - tile.vector
    strides = row_major_strides(form.operands[operand].shape)
    where = next(iter(form.reads.values()))[operand]
    steps = [] if tile.slot is None else [affine_terms(i)[1].get(tile.slot, 0) for i in where]
    apart = sum(k * n for k, n in zip(steps, strides, strict=False)) * ELEMENT_BYTES
    if not apart:
        return 0
    rows = -(-tile.slots * gcd(apart, PAGE_BYTES) // PAGE_BYTES)
    return max(0, rows - 3 * machine.l1 // PAGE_BYTES // 4) * tile.slots // rows


def _step_cycles(
    machine: Machine, tile: RegisterTile, taps: int, load: VectorLoads, others: int, sums: int, kept: int
) -> float:
    """Return the cycles of one step of *taps* products, which reads *others* values and adds to *sums* registers.

    *kept* values are read by several taps.
    """
    adds = taps * tile.rows * tile.vectors * tile.slots
    loads = load.count * tile.vectors
    operands = load.live * tile.vectors + 1 + kept  # in registers: a tap's vectors, one other value, kept ones
    spilled = max(0, sums + operands - machine.registers)
    return max(
        adds / machine.fma_per_cycle,
        (loads * load.accesses + others) / machine.loads_per_cycle,
        (adds + loads + others) / machine.issue,
        adds * machine.latency / sums,
    ) * (1 + SPILL_PENALTY * spilled)


def _kept_broadcasts(form: SumOfProducts, tile: RegisterTile, taps: Sequence[Tap]) -> int:
    """Return how many elements of the slots' operand several of *taps* read: a compiler keeps them in registers."""
    operand = 1 - tile.vector
    if form.traversals[-1] in form.moves(operand):
        return 0
    strides = row_major_strides(form.operands[operand].shape)
    last: dict[int, int] = {}
    live = [0] * (len(taps) + 1)
    for n, tap in enumerate(taps):
        known = [_known(index, tap.known) for index in form.reads[tap.phase][operand]]
        at = sum(const * k for (const, _), k in zip(known, strides, strict=True))
        moves = (terms for _, terms in known)
        step = sum(terms.get(x, 0) * k for terms, k in zip(moves, strides, strict=True) if (x := tile.slot) is not None)
        for place in {at + step * j for j in range(tile.slots)}:
            if place in last:  # from the tap that read it before to this one
                live[last[place]] += 1
                live[n] -= 1
            last[place] = n
    return max(accumulate(live))


def _touched_elements(form: SumOfProducts, tile: RegisterTile, phase: Phase) -> int:
    """Return the elements of the vector operand that one tile reads."""
    spans = {tile.row: tile.rows, form.traversals[-1]: tile.lanes * tile.vectors} | {
        y: y.extent for y in form.summations
    }
    return prod(
        1 + sum(abs(k) * (spans.get(x, 1) - 1) for x, k in affine_terms(i)[1].items())
        for i in form.reads[phase][tile.vector]
    )


def _row_stride(form: SumOfProducts, tile: RegisterTile) -> int:
    where = next(iter(form.reads.values()))[tile.vector]
    found = tile.layout.address(where, dict.fromkeys(form.summations, 0))
    return found[1].get(tile.row, 0) if found is not None and tile.row is not None else 0


def _vector_strides(form: SumOfProducts, tile: RegisterTile) -> list[int]:
    """Return the elements by which loops move the vectors of *tile*, apart from the loop along them."""
    where = next(iter(form.reads.values()))[tile.vector]
    found = tile.layout.address(where, dict.fromkeys(tile.unrolled, 0))
    return [k for x, k in found[1].items() if x != form.traversals[-1]] if found is not None else []


MAX_UNROLLED_PRODUCTS = 400
"""Multiply-adds of code, at most: a compiler needs some 0.3 ms for each."""

SPARE_REGISTERS = 3
"""Registers for operands, at least."""


def best_tile(form: SumOfProducts, machine: Machine) -> RegisterTile | None:
    """Return the tile of fewest estimated cycles, or None if the innermost traversal moves no operand along memory."""
    return min(register_tiles(form, machine), key=lambda tile: tile.cycles, default=None)


def register_tiles(form: SumOfProducts, machine: Machine, only: TileParameters | None = None) -> Iterable[RegisterTile]:
    """Yield the tiles that fit registers and code size, with their cycles; *only* restricts them to one."""
    last = form.traversals[-1]
    for vector in _matching((0, 1), only, lambda cut: cut.vector):
        if last not in form.moves(vector):
            continue
        for layout in (in_place_layout(form, vector, last), padded_copy_layout(form, vector, last)):
            if layout is not None and (only is None or only.copied == layout.copied):
                yield from _with_layout(form, machine, vector, layout, only)


def _matching(values: Iterable[int], only: TileParameters | None, of: Callable[[TileParameters], int]) -> Iterable[int]:
    return (n for n in values if only is None or n == of(only))


def _with_layout(
    form: SumOfProducts, machine: Machine, vector: int, layout: OperandLayout, only: TileParameters | None
) -> Iterable[RegisterTile]:
    last = form.traversals[-1]
    mine, other = form.moves(vector), form.moves(1 - vector)
    row = next((x for x in reversed(form.traversals[:-1]) if x in mine and x not in other and x.extent > 1), None)
    slots = (x for x in reversed(form.traversals) if x not in mine and x in other)  # neighbours in memory first
    slot = max(slots, key=lambda x: x.extent, default=None)
    widths = {machine.lanes} if last.extent >= machine.lanes else {1 << last.extent.bit_length() - 1}
    if layout.copied:
        widths.add(machine.lanes)  # after the end of a row there are other rows, or spare elements
    by_extent = sorted(form.summations, key=lambda y: y.extent)
    phases, wide = sorted(form.reads), form.periods[-1]
    for count in _matching(range(len(by_extent) + 1), only, lambda cut: cut.unrolled):
        unrolled = tuple(y for y in form.summations if y in by_extent[:count])
        if prod(y.extent for y in unrolled) > MAX_UNROLLED_PRODUCTS:
            break
        try:
            every = list_taps(form, vector, layout, phases, unrolled)
        except ValueError:
            continue
        for together in _matching(range(wide, len(phases) + 1, wide), only, lambda cut: cut.together):
            if len(phases) % together:
                continue
            groups = tuple(tuple(phases[n : n + together]) for n in range(0, len(phases), together))
            steps = [[tap for tap in every if tap.phase in group] for group in groups]
            for rows, lanes in product(
                _matching(range(1, min(8, row.extent if row else 1) + 1), only, lambda cut: cut.rows),
                _matching(widths, only, lambda cut: cut.lanes),
            ):
                draft = RegisterTile(vector, layout, lanes, 1, row, rows, slot, 1, groups, unrolled, True)
                yield from _with_vectors(form, machine, draft, steps, only)


def _with_vectors(
    form: SumOfProducts,
    machine: Machine,
    draft: RegisterTile,
    steps: Sequence[Sequence[Tap]],
    only: TileParameters | None,
) -> Iterable[RegisterTile]:
    """Yield *draft* with every number of vectors and of slots that fits registers and code size."""
    most_vectors = min(8, -(-form.traversals[-1].extent // draft.lanes))
    most_slots = min(machine.registers, draft.slot.extent if draft.slot else 1)
    loads = [count_loads(form, draft, group) for group in steps]
    for vectors, slots in product(
        _matching(range(1, most_vectors + 1), only, lambda cut: cut.vectors),
        _matching(range(1, most_slots + 1), only, lambda cut: cut.slots),
    ):
        size = vectors * draft.rows * slots
        fits = size * len(draft.groups[0]) <= machine.registers - SPARE_REGISTERS
        if fits and sum(map(len, steps)) * size <= MAX_UNROLLED_PRODUCTS:
            tile = replace(draft, vectors=vectors, slots=slots)
            yield with_cycles(form, machine, tile, steps, loads)
