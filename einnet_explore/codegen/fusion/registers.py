r"""Fused kernels of known sizes whose threads keep their elements in registers or shared memory from stage to stage.

Thread :math:`t` of :math:`P` has the packs :math:`t + kP` of a point: what several nests read or write is loaded once,
by transfers of 16 bytes, and stored once.  Registers hold the first packs of each thread, shared memory the next ones;
the rest, where there are more, goes through memory as in ``gpu``.  A thread accesses no packs but its own, so that
shared memory needs no barriers; it is used where registers alone would leave room for a single block on a
multiprocessor, whose loads, reductions and stores nothing overlaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2, prod
from types import MappingProxyType
from typing import TypeAlias

import numpy.typing as npt

from einnet_explore.analysis.flattening import stays_inside
from einnet_explore.codegen.fusion.frame import EmissionState, FusedLayout, LoopBody, memory_uses
from einnet_explore.codegen.fusion.gpu import FUSED_THREADS, GpuWriter, gpu_kernel, gpu_layout, write_kernel
from einnet_explore.codegen.fusion.operations import Shapes, read_name
from einnet_explore.codegen.fusion.plan import FusedKernel, FusedNest
from einnet_explore.codegen.language.lowering import add_offset, mixed_radix_split
from einnet_explore.codegen.language.statements import (
    MAX_BLOCK_REGISTERS,
    MAX_BLOCK_THREADS,
    PACK_BYTES,
    Copy,
    For,
    If,
    Kernel,
    LocalArray,
    Statement,
    counted_loop,
    unrolled,
)
from einnet_explore.codegen.language.values import Array, Expr, Literal, Type, cast, type_of
from einnet_explore.ir import Iterator, accesses

HELD_ELEMENTS = 40
"""Elements that a thread holds in registers, at most."""

ELEMENTS, FEW_ELEMENTS = 16, 4
"""Elements of a thread, about: enough loads are under way, and with few points all threads have some."""

MANY_POINTS = 1024
"""Points of the grid that fill a GPU."""

OVERLAPPED_POINTS = 2 * 132
"""Points of the grid from which shared memory for two blocks at a time pays: two a multiprocessor of an H100."""

LONG_POINT_THREADS = 512
"""Threads of a block whose elements are in shared memory, two of which fit a multiprocessor."""

MAX_SHARED_BYTES = 99 << 10
"""Shared memory of a block on every device from sm_80 on; 227 KiB on sm_90 and sm_100."""

MULTIPROCESSOR_SHARED_BYTES, OTHER_SHARED_BYTES = 228 << 10, 10 << 10
"""Shared memory of a multiprocessor from sm_90 on, and what a block needs for all but the elements that it holds."""

LOADS_IN_FLIGHT = 4
"""Packs that a thread loads before it uses the first one; more than these take registers for their addresses."""

MIN_HELD_SHARE = 0.75
"""One block that holds this part of a point is better than two which hold less."""

LARGE_POINT_ELEMENTS = 4096
"""Elements of a point that as many threads as possible are worth if there are few points."""

WARP, SMALL_BLOCK_THREADS = 32, 128
"""Threads that run together, and threads of a block that computes several points, at most."""

OTHER_REGISTERS = 36
"""Registers of a thread for everything but the elements that it holds."""

Place: TypeAlias = tuple[Array, Expr]
"""An array, and the position of the first element of a pack there."""

MemoryAxes = Mapping[str, tuple[Iterator, ...]]
"""The axes of each memory's dimensions, for memories that are accessed at a point's own place only."""


@dataclass(frozen=True)
class Share:
    """*threads* threads share *packs* of *pack* elements of a point.

    Each holds its first *held* packs in registers, and the next *shared* ones in shared memory.  A block computes
    *points* points; *resident* blocks at a time should fit a multiprocessor (0: no matter).
    """

    threads: int
    pack: int
    packs: int
    held: int
    points: int = 1
    shared: int = 0
    resident: int = 0

    @property
    def kept(self) -> int:
        """Packs of a thread that stay with it."""
        return self.held + self.shared


def held_launch(
    fused: FusedKernel, shapes: Shapes, dtype: npt.DTypeLike = "float32", shared_bytes: int = MAX_SHARED_BYTES
) -> tuple[FusedLayout, Kernel]:
    """Return the layout of *fused* for contiguous arrays of *shapes*, aligned to 16 bytes, and its kernel.

    A block has at most *shared_bytes* of shared memory.
    Where points lie along memory, or nests have different axes, it is the kernel of ``gpu_launch``.  Raises Refused for
    other shapes.
    """
    flat = gpu_layout(fused, shapes)
    kind = type_of(dtype)
    nests = fused.nests
    elements = max((prod(flat.extents[x] for x in nest.axes) for nest in nests), default=1)
    if (
        not elements
        or flat.lanes is not None
        or len({nest.axes for nest in nests}) != 1
        or not all(nest.flat for nest in nests)
    ):
        few = flat.lanes is None and flat.points < MANY_POINTS and elements >= LARGE_POINT_ELEMENTS
        return flat, gpu_kernel(flat, kind, MAX_BLOCK_THREADS if few else FUSED_THREADS)
    inner = flat.in_order(nests[0].axes)
    assert inner, "a nest has loops"
    places = own_places(fused)
    pack = _pack_size(flat, kind, inner, places)
    near = {m: own for m, own in places.items() if _is_packed(flat, own, m, inner, pack)}
    held = tuple(m for m, own in near.items() if len(_using_nests(fused, m)) > 1 and set(inner) <= set(own))
    slots = _slots(fused, kind, held)
    nbytes = sum({slot: fused.type_of(m, kind).stored.size for m, slot in slots.items()}.values())
    share = choose_share(elements // pack, pack, flat.points, len({*slots.values()}), nbytes, shared_bytes)
    writer = RegisterWriter(flat, share.threads, share, inner, near, held, slots, points=share.points)
    return flat, replace(write_kernel(writer, kind), resident=share.resident)


def choose_share(
    packs: int, pack: int, points: int, memories: int, nbytes: int = 4, shared_bytes: int = MAX_SHARED_BYTES
) -> Share:
    """Return how *packs* packs of each of *points* points are shared, of which *memories* arrays are held at a time.

    Idle lanes cost as much as the same share of the threads, and a factor of two from the wanted elements a twentieth.
    An element of all arrays has *nbytes*; a block has *shared_bytes* at most.
    """
    wanted = ELEMENTS if points >= MANY_POINTS else FEW_ELEMENTS
    found: list[tuple[float, Share]] = []
    for each in range(1, HELD_ELEMENTS // pack + 1):
        threads = lanes = -(-packs // each)
        if threads > WARP:
            lanes = -(-threads // WARP) * WARP
            threads = min(lanes, MAX_BLOCK_THREADS) if threads * each != packs else threads
        if packs <= threads * each and each <= _held_packs(threads, pack, memories):
            score = packs / (lanes * each) - abs(log2(each * pack / wanted)) / 20
            together = max(n for n in range(1, max(1, SMALL_BLOCK_THREADS // threads) + 1) if points % n == 0)
            found.append((score, Share(threads, pack, packs, each, together)))
    best = max(found, key=lambda pair: pair[0])[1] if found else None
    if best is not None and (points < OVERLAPPED_POINTS or best.held <= _held_packs(2 * best.threads, pack, memories)):
        return best
    if not memories:
        return Share(min(packs, MAX_BLOCK_THREADS), pack, packs, 0)
    two = _long_share(packs, pack, memories, nbytes, shared_bytes, 2)
    if two.kept * two.threads >= packs:
        return two
    if best is not None:
        return best
    one = _long_share(packs, pack, memories, nbytes, shared_bytes, 1)
    return one if one.kept * one.threads >= MIN_HELD_SHARE * packs or points <= OVERLAPPED_POINTS // 2 else two


def _long_share(packs: int, pack: int, memories: int, nbytes: int, shared_bytes: int, resident: int) -> Share:
    """Return the share of a long point if *resident* blocks at a time are to fit: shared memory is used first."""
    least = -(-packs // (MAX_BLOCK_THREADS if resident == 1 else LONG_POINT_THREADS))
    # As few idle lanes as can be: of the last warp, and in the last packs of all threads.
    each = max(range(least, least + 3), key=lambda n: packs / (n * -(-packs // (n * WARP))))
    threads = -(-packs // each)
    room = min(shared_bytes, MULTIPROCESSOR_SHARED_BYTES // resident) - OTHER_SHARED_BYTES
    shared = max(0, room) // (threads * pack * nbytes)
    # Packs outside of a loop of several take registers for their addresses, which are used again in later stages.
    shared = each if each <= shared else shared // LOADS_IN_FLIGHT * LOADS_IN_FLIGHT
    held = min(each - shared, _held_packs(threads * resident, pack, memories, addresses=1))
    return Share(threads, pack, packs, held, shared=shared, resident=resident)


def _held_packs(threads: int, pack: int, memories: int, addresses: int = 0) -> int:
    """Return the packs of *memories* arrays that each of *threads* threads of a multiprocessor can hold.

    Each takes as many registers as elements, and *addresses*.
    """
    registers = min(HELD_ELEMENTS, MAX_BLOCK_REGISTERS // threads - OTHER_REGISTERS)
    return max(0, registers) // (pack * max(1, memories) + addresses)


def _slots(fused: FusedKernel, kind: Type, held: Sequence[str]) -> dict[str, int]:
    """Return the number of the place in which each of *held* is kept: one that is over gives its place to the next.

    A thread has loaded a pack before it stores another one there.
    """
    spans = {m: (used[0], used[-1]) for m in held if (used := _using_nests(fused, m))}
    free: list[tuple[int, Type]] = []
    found: dict[str, int] = {}
    for memory, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        stored = fused.type_of(memory, kind).stored
        fit = (n for n, (end, other) in enumerate(free) if end <= first and other == stored)
        slot = next(fit, len(free))
        free[slot : slot + 1] = [(last, stored)]
        found[memory] = slot
    return found


def own_places(fused: FusedKernel) -> MemoryAxes:
    """Return the memories that are read and written at a point's own place only, each with its dimensions' axes."""
    outside = {read_name(a) for step in fused.steps for a in accesses(step.body) if not stays_inside(a)}
    uses = memory_uses(fused)
    often = Counter(memory for memory, _ in uses)
    own = {memory: tuple(x for x in axes if x is not None) for memory, axes in uses if often[memory] == 1}
    ranks = {memory: len(axes) for memory, axes in uses}
    return {m: axes for m, axes in own.items() if len({*axes}) == ranks[m] and m not in outside}


def _pack_size(flat: FusedLayout, kind: Type, inner: Sequence[Iterator], places: MemoryAxes) -> int:
    """Return the elements of a pack: 16 bytes of the widest type if the largest memories have whole packs, else 1."""
    fused = flat.fused
    widest = max(fused.type_of(m, kind).stored.size for m in fused.spaces)
    pack = max(1, PACK_BYTES // widest)
    whole = [m for m, own in places.items() if set(inner) <= set(own)]
    fits = flat.extents[inner[-1]] % pack == 0
    return pack if fits and whole and all(_is_packed(flat, places[m], m, inner, pack) for m in whole) else 1


def _is_packed(flat: FusedLayout, own: Sequence[Iterator], memory: str, inner: Sequence[Iterator], pack: int) -> bool:
    """True if packs along the last of *inner* are neighbours in *memory*, at multiples of their size."""
    space, last = flat.fused.spaces[memory], inner[-1]
    left = [x for x in own if x in flat.order]
    if last not in left:
        return False
    if space.slot is not None:
        sizes = [flat.extents[x] for x in space.axes]
        return left[-1] == last and prod(sizes) % pack == 0
    steps = dict(zip(own, flat.strides[memory], strict=True))
    return pack == 1 or all(steps[x] == 1 if x == last else steps[x] % pack == 0 for x in left)


def _using_nests(fused: FusedKernel, memory: str) -> tuple[int, ...]:
    """Return the numbers of the nests that read or write *memory*."""
    return tuple(n for n, nest in enumerate(fused.nests) if memory in dict(memory_uses(fused, nest.steps)))


@dataclass(frozen=True)
class RegisterWriter(GpuWriter):
    """Writes a kernel in which threads share the points of the axes *inner* as *share* says.

    Accesses to the memories *near* go through registers: a pack at a time, or, for those *held*, which more than one
    nest uses at all its points, for all packs that a thread holds.  Packs that it has in shared memory are in *slots*.
    """

    share: Share
    inner: tuple[Iterator, ...]
    near: MemoryAxes
    held: tuple[str, ...]
    slots: Mapping[str, int]

    def share_points(
        self, frame: EmissionState, nest: FusedNest, axes: tuple[Iterator, ...], body: LoopBody
    ) -> list[Statement]:
        share, wide = self.share, frame.wide
        thread = cast(wide, self.lane)
        number = next(n for n, other in enumerate(self.flat.fused.nests) if other is nest)
        loads, stores = self._loads(nest), self._stores(nest)
        held = {m: self._array(frame, m, share.held * share.pack) for m in self.held if share.held}
        begun = [m for m in held if self._spans[m][0] == number]
        first = [m for m in loads if m in begun]
        last = [m for m in stores if m in held and self._is_complete(m, number)]
        out: list[Statement] = [LocalArray(held[m]) for m in begun]

        def load(k: Expr) -> list[Statement]:
            there = self._places(frame, first, k * share.threads + thread)
            return [Copy(held[m], k * share.pack, *there[m], share.pack) for m in first]

        def compute(k: Expr) -> list[Statement]:
            at = k * share.threads + thread
            reads, writes = (self._places(frame, (m for m in used if m not in held), at) for used in (loads, stores))
            near = {m: (array, k * share.pack) for m, array in held.items()}
            made = self._pack(frame, at, body, reads, writes.items(), near)
            return made + [Copy(*to, *near[m], share.pack) for m, to in self._places(frame, last, at).items()]

        if share.held:
            if first:
                out += self._each_pack(wide, 0, share.held, load)
            out += self._each_pack(wide, 0, share.held, compute)
        if share.shared:
            out += self._through_shared_memory(frame, number, loads, stores, body)
        if share.kept * share.threads < share.packs:
            q = self.var("pack", wide)
            reads, writes = (self._places(frame, memories, q) for memories in (loads, stores))
            streamed = self._pack(frame, q, body, reads, writes.items())
            start = thread + share.kept * share.threads
            out.append(counted_loop(q, share.packs, *streamed, start=start, step=share.threads))
        return out

    def _through_shared_memory(
        self, frame: EmissionState, number: int, loads: Sequence[str], stores: Sequence[str], body: LoopBody
    ) -> list[Statement]:
        """Write *body* of the nest *number* for the packs that the thread has in shared memory."""
        share, wide, spans = self.share, frame.wide, self._spans
        thread = cast(wide, self.lane)
        arrays = {m: self._shared_array(frame, m) for m in self.held}
        begun = {self.slots[m] for m, used in spans.items() if used[0] < number}
        new = {self.slots[m]: m for m, used in spans.items() if used[0] == number and self.slots[m] not in begun}
        kept = [m for m, used in spans.items() if number in used and used[-1] > number]
        done = [m for m in stores if m not in arrays or self._is_complete(m, number)]

        def through(k: Expr) -> list[Statement]:
            at = k * share.threads + thread
            near = {m: (a, ((k - share.held) * share.threads + thread) * share.pack) for m, a in arrays.items()}
            before = {m: near[m] for m in loads if m in near and spans[m][0] < number}
            after = [(m, near[m]) for m in kept if m in stores or spans[m][0] == number]
            return self._pack(
                frame,
                at,
                body,
                self._places(frame, loads, at) | before,
                [*self._places(frame, done, at).items(), *after],
            )

        declared: list[Statement] = [LocalArray(arrays[m]) for m in new.values()]
        return [*declared, *self._each_pack(wide, share.held, share.kept, through, LOADS_IN_FLIGHT)]

    def _loads(self, nest: FusedNest) -> list[str]:
        """Return the memories that *nest* reads, not from its own values."""
        made = {step.name for step in nest.steps}
        read = [read_name(a) for step in nest.steps for a in accesses(step.body)]
        found = dict.fromkeys(self._memory(name) for name in read if name not in made)
        return [m for m in found if m in self.near]

    def _stores(self, nest: FusedNest) -> list[str]:
        found = dict.fromkeys(self._memory(step.name) for step in nest.steps if step.stores and step.reduce is None)
        return [m for m in found if m in self.near]

    def _memory(self, name: str) -> str:
        fused = self.flat.fused
        return fused.memory(name)[0] if name in fused.spaces else name

    @cached_property
    def _spans(self) -> Mapping[str, tuple[int, ...]]:
        """The numbers of the nests that use each memory that is held."""
        return {m: _using_nests(self.flat.fused, m) for m in self.held}

    def _is_complete(self, memory: str, number: int) -> bool:
        """True if *memory* is an output that no nest after *number* stores."""
        fused = self.flat.fused
        later = any(memory in self._stores(nest) for nest in fused.nests[number + 1 :])
        return fused.spaces[memory].kind == "output" and not later

    def _array(self, frame: EmissionState, memory: str, size: int) -> Array:
        kind = self.flat.fused.type_of(memory, frame.kind).stored
        nbytes = self.share.pack * kind.size
        return Array(f":held {memory}", kind, size, "private", align=nbytes if nbytes & (nbytes - 1) == 0 else 0)

    def _shared_array(self, frame: EmissionState, memory: str) -> Array:
        kind = self.flat.fused.type_of(memory, frame.kind).stored
        size = self.share.shared * self.share.threads * self.share.pack
        return Array(f":shared {self.slots[memory]}", kind, size, "shared", align=PACK_BYTES)

    def _each_pack(
        self, wide: Type, start: int, stop: int, make: Callable[[Expr], list[Statement]], together: int = HELD_ELEMENTS
    ) -> list[Statement]:
        """Write *make* for a thread's packs from *start* to *stop*; the last ones of some threads may be missing.

        A loop has *together* of them, without a loop among them.
        """
        share = self.share
        full = min(stop, share.packs // share.threads)
        out: list[Statement] = []

        def packs(first: Expr, count: int) -> For:
            k = self.var("held", wide)
            return unrolled(k, count, *make(first + k))

        groups, rest = divmod(max(0, full - start), together)
        if groups:
            g = self.var("group", wide)
            out.append(counted_loop(g, groups, packs(start + g * together, together)))
        if rest:
            out.append(packs(Literal(full - rest, wide), rest))
        if start <= full < stop and share.packs > full * share.threads:
            rest = share.packs - full * share.threads
            out.append(If(cast(wide, self.lane).lt(rest), tuple(make(Literal(full, wide)))))
        return out

    def _pack(
        self,
        frame: EmissionState,
        at: Expr,
        body: LoopBody,
        reads: Mapping[str, Place],
        writes: Iterable[tuple[str, Place]],
        held: Mapping[str, Place] = MappingProxyType({}),
    ) -> list[Statement]:
        """Write *body* for the elements of pack *at*, through registers beside those *held*.

        The packs of *reads* are loaded from there before, and those of *writes* stored there afterwards.
        """
        share, wide = self.share, frame.wide
        own: dict[str, Place] = {}
        out: list[Statement] = []
        writes = tuple(writes)
        for memory in dict.fromkeys((*reads, *(m for m, _ in writes))):
            array = replace(self._array(frame, memory, share.pack), name=f":pack {memory} {self.var('').name}")
            own[memory] = array, Literal(0, wide)
            out.append(LocalArray(array))
        out += [Copy(*own[m], *place, share.pack) for m, place in reads.items()]
        j = self.var("element", wide)
        near = {m: (array, first + j) for m, (array, first) in {**held, **own}.items()}
        here, made = self.split_position(frame, self.inner, at * share.pack + j)
        out.append(unrolled(j, share.pack, *made, *body(replace(here, near=near))))
        return out + [Copy(*place, *own[m], share.pack) for m, place in writes]

    def _places(self, frame: EmissionState, memories: Iterable[str], at: Expr) -> dict[str, Place]:
        """Return the places of pack *at* of *memories*."""
        return {m: self._address(frame, m, at) for m in memories}

    def _address(self, frame: EmissionState, memory: str, at: Expr) -> Place:
        """Return (array, position) of the first element of pack *at* of *memory*."""
        fused = self.flat.fused
        digits = mixed_radix_split(self.inner, at * self.share.pack, frame.extent)
        here = replace(frame, at={**frame.at, **{x: add_offset(place, x.lo) for x, place in digits.items()}})
        if memory in fused.known:
            own = fused.known[memory].scope.traversals
            los = [x.lo for x in own]
        else:
            (tensor,) = (t for t in fused.inputs if t.name == memory)
            los, own = [lo for lo, _ in tensor.box], self.near[memory]
        return here.element(memory, tuple(add_offset(here.place(x), -lo) for x, lo in zip(own, los, strict=True)))
