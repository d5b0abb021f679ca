r"""Fused kernels for a GPU, and a model of the seconds that fusion saves.

A block computes a point of the grid, or a thread does if points are neighbours in memory.  In a block, threads share
the points of a nest cyclically, so that a thread mostly loads its own stores of earlier stages.  All reductions of a
stage are joined in shared memory: the threads' parts by some threads, and those by every thread for itself, with two
barriers; successive stages alternate between two sets of arrays, so that none waits for the readers of the previous
one.

The model compares one fused kernel, which may have a tiny grid, with one kernel for each operation:

.. math::  t_{fused} = l + \frac{b_0}{B\,u} + \frac{b_{again}}{B'\,u} + w\,s, \qquad
           t_{apart} = \sum_o \left( l + \frac{b_o}{B} \right), \qquad u = \min(1, blocks / units)

Repeated reads of a grid point come from a cache if the data of all active points fit there.  Kernels of single
reductions can share one sum among all units; a fused one has a block a point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import prod
from operator import or_
from typing import TypeAlias

import numpy.typing as npt

from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.analysis.indices import iterators_of
from einnet_explore.codegen.fusion.frame import (
    EmissionState,
    FusedLayout,
    LoopBody,
    LoopWriter,
    join_values,
    lay_out,
    slot_name,
    slot_sizes,
)
from einnet_explore.codegen.fusion.operations import Shapes, read_name
from einnet_explore.codegen.fusion.plan import FusedKernel, FusedNest, FusedStage, FusedStep, check_served
from einnet_explore.codegen.language.lowering import mixed_radix_split
from einnet_explore.codegen.language.statements import (
    Assign,
    Barrier,
    Comment,
    Declare,
    If,
    Kernel,
    LocalArray,
    Statement,
    Store,
    counted_loop,
)
from einnet_explore.codegen.language.values import (
    F32,
    I32,
    I64,
    Array,
    Expr,
    LaunchIndex,
    Type,
    Var,
    cast,
    literal,
    type_of,
)
from einnet_explore.ir import Iterator, accesses
from einnet_explore.support.wording import count_noun

FUSED_THREADS = 256
"""Threads of a block; a power of two."""

_THREAD = LaunchIndex("thread")

_Trees: TypeAlias = "Mapping[Type, tuple[Array, ...]]"
"""Arrays of a block, in which its threads join reductions, by type."""


def gpu_launch(
    fused: FusedKernel,
    shapes: Shapes,
    dtype: npt.DTypeLike = "float32",
    threads: int = FUSED_THREADS,
) -> tuple[FusedLayout, Kernel]:
    """Return the layout of *fused* for contiguous arrays of *shapes*, and its kernel; raises Refused for others."""
    flat = gpu_layout(fused, shapes)
    return flat, gpu_kernel(flat, type_of(dtype), threads)


def gpu_layout(fused: FusedKernel, shapes: Shapes) -> FusedLayout:
    """Return the layout of *fused* for contiguous arrays of *shapes*; raises Refused for others."""
    check_served(fused, shapes)
    whole = {t.name: tuple(shapes[t.name]) for t in fused.inputs} | fused.output_shapes(shapes)
    return lay_out(fused, shapes, {name: row_major_strides(shape) for name, shape in whole.items()})


def gpu_kernel(flat: FusedLayout, kind: Type, threads: int = FUSED_THREADS) -> Kernel:
    """Return the kernel of *flat*: inputs, outputs, slots, sizes of slots, sizes and strides, constants."""
    return write_kernel(GpuWriter(flat, threads), kind)


def write_kernel(writer: GpuWriter, kind: Type) -> Kernel:
    """Return the kernel of *writer*."""
    flat = writer.flat
    frame = EmissionState(flat, kind, address_type(flat))
    slots = tuple(Var(f"{slot_name(n)} size", frame.wide) for n in range(flat.fused.slots))
    params: tuple[Array | Var, ...] = (*frame.arrays.values(), *slots, *frame.numbers)
    body = writer.thread_per_point(frame, slots) if flat.lanes is not None else writer.block_per_point(frame, slots)
    blocks = gpu_blocks(flat, writer.threads) // writer.points
    return Kernel("fused", params, tuple(body), (writer.threads * writer.points, 1, 1), (max(1, blocks), 1, 1))


def gpu_blocks(flat: FusedLayout, threads: int = FUSED_THREADS) -> int:
    """Return the number of blocks of the kernel of *flat*."""
    return flat.points if flat.lanes is None else -(-flat.points // threads)


def address_type(flat: FusedLayout) -> Type:
    """Return the integer type of addresses: 32 bits if they suffice."""
    shapes = {**flat.shapes, **flat.fused.output_shapes(flat.shapes)}
    spans = (zip(steps, shapes[name], strict=True) for name, steps in flat.strides.items() if name in shapes)
    far = max((sum(abs(k) * n for k, n in span) for span in spans), default=0)
    most = max(far, *(n * max(1, flat.points) for n in slot_sizes(flat)), *flat.extents.values(), flat.points, 1)
    return I32 if most + 2 * FUSED_THREADS < 1 << 31 else I64


@dataclass(frozen=True)
class GpuWriter(LoopWriter):
    """Writes a kernel whose blocks compute *points* points, a divisor of all, by so many *threads* each."""

    threads: int
    points: int = field(default=1, kw_only=True)

    @property
    def lane(self) -> Expr:
        """This thread among those of its point."""
        return _THREAD if self.points == 1 else Var(":lane", I32)

    def block_per_point(self, frame: EmissionState, slots: tuple[Var, ...]) -> Iterable[Statement]:
        """Yield the kernel with a block for each point."""
        stages = self.flat.fused.stages
        each = [Counter(frame.total(s)[0] for s in _joined_steps(stage)) for stage in stages]
        widest = reduce(or_, each)

        def tree(turn: int, n: int, kind: Type) -> Array:
            name = f":tree {turn} {n}{'' if kind == frame.kind else f' {kind!r}'}"
            return Array(name, kind, self.threads * self.points, "shared", align=16)

        trees: tuple[_Trees, ...] = tuple(
            {kind: tuple(tree(turn, n, kind) for n in range(number)) for kind, number in widest.items()}
            for turn in range(min(2, len(stages)))
        )
        yield from (LocalArray(a) for turn in trees for arrays in turn.values() for a in arrays)
        point = self.var("point", frame.wide)
        block = cast(frame.wide, LaunchIndex("block"))
        if isinstance(self.lane, Var):
            yield Declare(self.lane, _THREAD % self.threads)
            block = block * self.points + cast(frame.wide, _THREAD // self.threads)
        yield Declare(point, block)
        frame, made = self.split_position(frame, self.flat.grid, point)
        yield from made
        frame = replace(frame, base={n: point * size for n, size in enumerate(slots)})
        for n, stage in enumerate(stages):
            yield Comment(f"stage {n}")
            frame, made = self._stage(frame, stage, trees[n % 2])
            yield from made

    def thread_per_point(self, frame: EmissionState, slots: tuple[Var, ...]) -> Iterable[Statement]:
        """Yield the kernel with a thread for each point, without barriers."""
        point = self.var("point", frame.wide)
        block, thread = cast(frame.wide, LaunchIndex("block")), cast(frame.wide, _THREAD)
        yield Declare(point, block * self.threads + thread)
        points = frame.count(self.flat.grid)
        inside, body = self.split_position(frame, self.flat.grid, point)
        inside = replace(inside, base={n: point * size for n, size in enumerate(slots)})
        for n, stage in enumerate(self.flat.fused.stages):
            body.append(Comment(f"stage {n}"))
            inside, made = self.values(inside, stage.heads)
            body += made
            for nest in stage.nests:
                inside, made = self._write_by_one_thread(inside, nest)
                body += made
        yield If(point.lt(points), tuple(body))

    def split_position(
        self, frame: EmissionState, axes: tuple[Iterator, ...], flat: Expr
    ) -> tuple[EmissionState, list[Statement]]:
        """Split *flat* into the values of *axes*."""
        out: list[Statement] = []
        for x, digit in mixed_radix_split(axes, flat, frame.extent).items():
            out.append(Declare(place := self.var(x.name, frame.wide), digit))
            frame = frame.standing(x, place)
        return frame, out

    def _stage(self, frame: EmissionState, stage: FusedStage, trees: _Trees) -> tuple[EmissionState, list[Statement]]:
        frame, out = self.values(frame, stage.heads, self._by_first_thread)
        joined: list[tuple[FusedStep, Var]] = []
        for nest in stage.nests:
            if nest.traversals:
                out += self.share_points(frame, nest, nest.traversals, partial(self._point, nest=nest))
                continue
            parts, made, joins = self._begin_parts(frame, nest)
            out += made
            out += self.share_points(frame, nest, nest.summations, partial(self.steps, nest=nest, join_to=joins))
            joined += parts
        if joined:
            left = {kind: list(arrays) for kind, arrays in trees.items()}
            totals, made = self._join_threads([(step, var, left[var.type].pop(0)) for step, var in joined])
            out += made
            values, made = self.finish(frame, totals, self._by_first_thread)
            out += made
            frame = frame.holding(values)
        elif stage.barrier:
            out.append(Barrier())
        return frame, out

    def _join_threads(
        self, pairs: list[tuple[FusedStep, Var, Array]]
    ) -> tuple[list[tuple[FusedStep, Expr]], list[Statement]]:
        """Join the parts of all threads, for all reductions at once; every thread has the totals then."""
        if self.threads == 1:
            return [(step, part) for step, part, _ in pairs], []
        team = _team(self.threads)
        out: list[Statement] = [Store(tree, _THREAD, part) for _, part, tree in pairs]
        out.append(Barrier())
        rows, rest = divmod(self.threads, team)
        here: list[Statement] = []
        for step, part, tree in pairs:
            n = self.var("row", I32)
            joined = Assign(part, join_values(step, part, tree[_THREAD + n * team]))
            here.append(counted_loop(n, rows, joined, start=1, hint="unroll"))
            if rest:
                over = Assign(part, join_values(step, part, tree[_THREAD + rows * team]))
                here.append(If(self.lane.lt(rest), (over,)))
            here.append(Store(tree, _THREAD, part))
        if self.threads > team:
            out += [If(self.lane.lt(team), tuple(here)), Barrier()]
        totals: list[tuple[FusedStep, Expr]] = []
        for step, part, tree in pairs:
            n, total = self.var("row", I32), self.var(f"total {step.name}", part.type)
            first = _THREAD - self.lane if self.points > 1 else literal(0)
            joined = Assign(total, join_values(step, total, tree[first + n]))
            out += [Declare(total, tree[first]), counted_loop(n, team, joined, start=1, hint="unroll")]
            totals.append((step, total))
        return totals, out

    def _by_first_thread(self, statement: Statement) -> Statement:
        return If(self.lane.eq(0), (statement,))

    def _begin_parts(
        self, frame: EmissionState, nest: FusedNest
    ) -> tuple[list[tuple[FusedStep, Var]], list[Statement], Callable[[FusedStep, Expr], Statement]]:
        """Return the parts of the reductions of *nest*, their declarations, and what joins a value to its part."""
        parts = {s.name: self.var(f"part {s.name}", frame.total(s)[0]) for s in nest.steps if s.reduce is not None}
        pairs = [(s, parts[s.name]) for s in nest.steps if s.reduce is not None]
        declared: list[Statement] = [Declare(part, frame.total(step)[1]) for step, part in pairs]
        return pairs, declared, lambda s, value: Assign(parts[s.name], join_values(s, parts[s.name], value))

    def share_points(
        self, frame: EmissionState, nest: FusedNest, axes: tuple[Iterator, ...], body: LoopBody
    ) -> list[Statement]:
        """Write *body* of *nest* for all points of *axes*, shared among the threads of a block."""
        left = self.flat.in_order(axes)
        flat = self.var("element", frame.wide)
        here, made = self.split_position(frame, left, flat)
        start = cast(frame.wide, self.lane)
        return [counted_loop(flat, frame.count(left), *made, *body(here), start=start, step=self.threads)]

    def _point(self, frame: EmissionState, nest: FusedNest) -> list[Statement]:
        """Write *nest* at one point of its traversals, by one thread."""
        return self._reduce_nest(frame, nest)[1]

    def _reduce_nest(self, frame: EmissionState, nest: FusedNest) -> tuple[EmissionState, list[Statement]]:
        parts, out, joins = self._begin_parts(frame, nest)
        out += self.loops(frame, nest.summations, lambda f: self.steps(f, nest, joins))
        values, made = self.finish(frame, parts)
        return frame.holding(values), out + made

    def _write_by_one_thread(self, frame: EmissionState, nest: FusedNest) -> tuple[EmissionState, list[Statement]]:
        """Write all of *nest* by one thread."""
        if not nest.traversals:
            return self._reduce_nest(frame, nest)
        return frame, self.loops(frame, nest.traversals, lambda f: self._point(f, nest))


def _team(threads: int) -> int:
    """Return the number of threads that join the parts of all: a power of two near the square root, at most 32."""
    return min(1 << (threads.bit_length() // 2), 32, 1 << threads.bit_length() - 1)


def _joined_steps(stage: FusedStage) -> Iterable[FusedStep]:
    """Yield the reductions that all threads of a block share."""
    return (s for n in stage.nests if not n.traversals for s in n.steps if s.reduce is not None)


@dataclass(frozen=True)
class FusionTarget:
    """A device with *units* that run a block each.

    Bytes a second from *memory* and from the *cache* (*cache_bytes* in all); seconds for a *launch* and for a *wait* of
    a block's threads at a barrier.
    """

    name: str
    units: int
    memory: float
    cache: float
    cache_bytes: int
    launch: float
    wait: float


A100_TARGET = FusionTarget("A100", 108, 1.5e12, 4.5e12, 40 << 20, 4e-6, 1e-6)
CPU_CORE_TARGET = FusionTarget("a CPU core", 1, 2.0e10, 8.0e10, 1 << 20, 2e-6, 0.0)
"""Round numbers from data sheets; the final decision is measured."""


@dataclass(frozen=True)
class FusionEstimate:
    """Seconds of the fused kernel and of separate ones, and the blocks of the fused one, on *target*."""

    fused: float
    apart: float
    blocks: int
    target: FusionTarget

    @property
    def pays(self) -> bool:
        """True if the fused kernel is expected to be faster."""
        return self.fused < self.apart

    def __str__(self) -> str:
        said = "fuse" if self.pays else "do not fuse"
        blocks, units = count_noun(self.blocks, "block"), count_noun(self.target.units, "unit")
        times = f"{self.fused * 1e6:.0f} µs fused, {self.apart * 1e6:.0f} µs unfused"
        return f"{self.target.name}: {blocks} on {units}, {times}: {said}"


def estimate_fusion(flat: FusedLayout, target: FusionTarget) -> FusionEstimate:
    """Return both estimates for *flat* on *target*, for elements of float32."""
    fused = flat.fused
    blocks = gpu_blocks(flat, FUSED_THREADS) if target.units > 1 else flat.points
    used = min(1.0, blocks / target.units) or 1.0
    first, again = (n * F32.size for n in _memory_traffic(fused, flat.sizes))
    working = min(first, first * target.units / max(1, blocks))
    rate = target.cache if working <= target.cache_bytes else target.memory
    waits = fused.barriers * target.wait * max(1.0, blocks / target.units / 8)
    one = target.launch + first / (target.memory * used) + again / (rate * used) + waits
    return FusionEstimate(one, _unfused_seconds(fused, flat.sizes, target), blocks, target)


def _memory_traffic(fused: FusedKernel, sizes: Mapping[Iterator, int]) -> tuple[int, int]:
    """Return (elements read and written at least once, elements that later nests read again)."""
    largest: dict[str, int] = {}
    again = 0
    for stage in fused.stages:
        for steps in (stage.heads, *(nest.steps for nest in stage.nests)):
            for name, size in _touched_elements(fused, sizes, steps).items():
                again += size if name in largest else 0
                largest[name] = max(size, largest.get(name, 0))
    return sum(n for name, n in largest.items() if fused.spaces[name].kind in ("input", "output")), again


def _touched_elements(fused: FusedKernel, sizes: Mapping[Iterator, int], steps: Iterable[FusedStep]) -> dict[str, int]:
    """Return the elements of each memory that *steps* read or write, each once."""
    out: dict[str, int] = {}
    for step in steps:
        uses = [(read_name(a), iterators_of(a)) for a in accesses(step.body)]
        if step.stores:
            uses.append((step.name, frozenset(fused.known[step.name].scope.traversals)))
        for name, axes in uses:
            space = fused.spaces.get(name)
            if space is not None and space.kind != "register":
                memory = space.beside or name
                out[memory] = max(prod(sizes[x] for x in axes), out.get(memory, 0))
    return out


def _unfused_seconds(fused: FusedKernel, sizes: Mapping[Iterator, int], target: FusionTarget) -> float:
    seconds = 0.0
    for operation in fused.operations:
        elements = prod(sizes[x] for x in operation.scope.traversals)
        elements += sum(prod(sizes[x] for x in iterators_of(a)) for a in operation.reads)
        seconds += target.launch + elements * F32.size / target.memory
    return seconds
