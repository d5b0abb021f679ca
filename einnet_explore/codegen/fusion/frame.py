r"""Frame of a fused kernel, for CPUs and GPUs: its layout at call time, and the state of its text under construction.

.. math::  \mathrm{address} = \sum_a x_a\, k_{a,T}, \qquad
           k_{a,T} = n_b\, k_{b,T} \text{ for all } T \;\Rightarrow\; (a, b) \mapsto \text{one axis of } n_a n_b

The text of a kernel depends on the axes that remain only; extents and strides are arguments, except strides of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import count
from math import prod
from operator import mul

from einnet_explore.analysis.flattening import are_neighbours, row_major_strides
from einnet_explore.analysis.indices import box_tests
from einnet_explore.codegen.fusion.operations import Shapes, read_name
from einnet_explore.codegen.fusion.plan import FusedKernel, FusedNest, FusedStep, constant_argument
from einnet_explore.codegen.language import lowering
from einnet_explore.codegen.language.lowering import add_offset
from einnet_explore.codegen.language.statements import Declare, LoopHint, Statement, Store, counted_loop
from einnet_explore.codegen.language.values import (
    F64,
    I64,
    Array,
    Expr,
    Literal,
    Type,
    Var,
    cast,
    conjunction,
    literal,
    select,
)
from einnet_explore.ir import REDUCTIONS, Iterator, Scope, Table, Tensor, accesses

Strides = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class FusedLayout:
    """*fused* with sizes and strides: *order* holds the remaining axes, the innermost last.

    A collapsed axis counts as 0; the axis that stands for both runs over the product.
    """

    fused: FusedKernel
    shapes: Shapes
    sizes: Mapping[Iterator, int]
    """The extent of each axis by itself."""
    extents: Mapping[Iterator, int]
    strides: Strides
    order: tuple[Iterator, ...]
    joined: int = 0
    """Points along the last axis of the grid, the vectors of whose reductions are added together; 0 if none are."""

    swept: Iterator | None = None
    """An axis of the grid along which one block computes all points, or None."""

    @property
    def together(self) -> Iterator | None:
        """The axis of the grid whose points are computed together, or None."""
        return self.grid[-1] if self.joined else self.lanes

    @property
    def lanes(self) -> Iterator | None:
        """The axis of the grid that runs along memory, or None; its points are computed together."""
        last = self.order[-1] if self.order else None
        return last if last in self.fused.grid else None

    @property
    def grid(self) -> tuple[Iterator, ...]:
        """The remaining axes of the grid."""
        return self.in_order(self.fused.grid)

    @property
    def points(self) -> int:
        """Points of the grid."""
        return prod(self.extents[x] for x in self.grid)

    def in_order(self, axes: Collection[Iterator]) -> tuple[Iterator, ...]:
        """Return those of *axes* that remain, outermost first."""
        return tuple(x for x in self.order if x in axes)

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """The scalar arguments of a kernel by name: sizes, strides, constants, slots' sizes."""
        sizes = {size_name(x): n for x, n in self.extents.items()}
        steps = {step_name(t, d): k for t, own in self.strides.items() for d, k in enumerate(own)}
        constants = {constant_argument(n).name: value for n, value in enumerate(self.fused.constants)}
        return sizes | steps | constants | {f"{slot_name(n)} size": k for n, k in enumerate(slot_sizes(self))}

    @cached_property
    def signature(self) -> tuple[object, ...]:
        """The properties of a call on which the text of a CPU kernel depends."""
        memory = [n for n in self.strides if self.fused.spaces[n].slot is None]
        units = tuple((name, d) for name in memory for d, k in enumerate(self.strides[name]) if k == 1)
        return self.order, units


def size_name(x: Iterator) -> str:
    """Return the name of the size of *x* in a kernel."""
    return f":n {x.name}"


def step_name(tensor: str, d: int) -> str:
    """Return the name of the stride of *tensor* along dimension *d* in a kernel."""
    return f":{tensor} step {d}"


def slot_name(n: int) -> str:
    """Return the name of slot *n* in a kernel."""
    return f":slot {n}"


def lay_out(fused: FusedKernel, shapes: Shapes, strides: Strides) -> FusedLayout:
    """Return *fused* for inputs of *shapes* and tensors (inputs and outputs) of *strides*, in elements."""
    sizes = {x: fused.sizes.extent(x, shapes) for x in fused.sizes.axes}
    own = dict(strides)
    for space in fused.spaces.values():
        if space.slot is not None:
            own[space.name] = row_major_strides(tuple(sizes[x] for x in space.axes))
    order = _order_axes(fused, sizes, own)
    return FusedLayout(fused, shapes, sizes, *_collapse_axes(fused, sizes, own, order))


def slot_sizes(flat: FusedLayout) -> tuple[int, ...]:
    """Return the elements of each slot for one point of the grid: the largest of its temporaries."""
    fused = flat.fused
    sizes = [1] * fused.slots
    for space in fused.spaces.values():
        if space.slot is not None:
            sizes[space.slot] = max(sizes[space.slot], prod(flat.extents[x] for x in space.axes))
    return tuple(sizes)


MemoryUse = tuple[str, tuple["Iterator | None", ...]]


def memory_uses(fused: FusedKernel, steps: Iterable[FusedStep] | None = None) -> tuple[MemoryUse, ...]:
    """Return (memory, the axis of each index or None) for every access to memory and every store of *steps*, or all."""
    out: dict[MemoryUse, None] = {}
    for step in fused.steps if steps is None else steps:
        found: list[MemoryUse] = [(read_name(a), tuple(i.single for i in a.index)) for a in accesses(step.body)]
        if step.stores:
            found.append((step.name, fused.known[step.name].scope.traversals))
        for name, axes in found:
            space = fused.spaces.get(name)
            if space is not None and space.kind != "register":
                memory, dims = fused.memory(name)
                out[memory, tuple(axes[d] for d in dims)] = None
    return tuple(out)


def _order_axes(fused: FusedKernel, extents: Mapping[Iterator, int], strides: Strides) -> tuple[Iterator, ...]:
    """Return all axes, those with the largest steps in the largest tensor outermost."""
    steps: dict[Iterator, tuple[int, int]] = {}
    for memory, axes in memory_uses(fused):
        if fused.spaces[memory].slot is None:
            size = prod(extents[x] for x in axes if x is not None)
            for x, step in zip(axes, strides[memory], strict=True):
                if x is not None and extents[x] > 1 and size > steps.get(x, (0, 0))[0]:
                    steps[x] = (size, abs(step))
    whole = max((size for size, _ in steps.values()), default=0)

    def rank(x: Iterator) -> tuple[bool, int]:
        size, step = steps.get(x, (0, 0))
        # What occurs in small tensors only goes outside, and so does what takes no step at all.
        return size == whole and step > 0, -step

    return tuple(sorted(dict.fromkeys(x for o in fused.operations for x in o.axes), key=rank))


def _collapse_axes(
    fused: FusedKernel, extents: Mapping[Iterator, int], strides: Strides, order: tuple[Iterator, ...]
) -> tuple[Mapping[Iterator, int], Strides, tuple[Iterator, ...]]:
    """Collapse neighbouring axes that are neighbours in every tensor, repeatedly."""
    left, sizes = list(order), dict(extents)
    uses = memory_uses(fused)
    n = 0
    while n + 1 < len(left):
        a, b = left[n], left[n + 1]
        if _have_same_loops(fused, a, b) and all(_are_neighbours(u, sizes, strides, a, b) for u in uses):
            gone, kept = (b, a) if sizes[b] == 1 else (a, b)
            sizes[kept], sizes[gone] = sizes[a] * sizes[b], 1
            left.remove(gone)
            n = max(0, n - 1)
        else:
            n += 1
    return sizes, strides, tuple(left)


def _have_same_loops(fused: FusedKernel, a: Iterator, b: Iterator) -> bool:
    """True if both are free, and loops of the same kind in every nest."""
    if fused.sizes.axes[a].fixed or fused.sizes.axes[b].fixed or (a in fused.grid) != (b in fused.grid):
        return False
    parts = (part for n in fused.nests for part in (n.traversals, n.summations))
    return all((a in part) == (b in part) for part in parts)


def _are_neighbours(
    use: MemoryUse, extents: Mapping[Iterator, int], strides: Strides, a: Iterator, b: Iterator
) -> bool:
    """True if *use* has *a* and *b* as one axis, or neither of them."""
    memory, axes = use
    if 1 in (extents[a], extents[b]):
        return True
    if a not in axes or b not in axes:
        return (a in axes) == (b in axes)
    steps = dict(zip(axes, strides[memory], strict=True))
    return are_neighbours([(steps[a], steps[b])], extents[b])


@dataclass(frozen=True)
class EmissionState:
    """*flat* in arithmetic of *kind* with indices of *wide*, at a point of its text.

    *at* maps iterators to their values here; *values* maps names to the variables or elements that hold them here.
    Element i of a temporary is element ``i·spread + base`` of its slot.
    """

    flat: FusedLayout
    kind: Type
    wide: Type
    at: Mapping[Iterator, Expr] = field(default_factory=dict)
    values: Mapping[str, Expr] = field(default_factory=dict)
    spread: int = 1
    base: Mapping[int, Expr] = field(default_factory=dict)
    near: Mapping[str, tuple[Array, Expr]] = field(default_factory=dict)
    """The registers that hold this point's elements of a memory."""

    @cached_property
    def arrays(self) -> Mapping[str, Array]:
        """Inputs, outputs and slots, by name, in the order of the arguments."""
        fused = self.flat.fused
        stored = {n: fused.type_of(n, self.kind).stored for n in fused.spaces}
        out = {t.name: Array(t.name, stored[t.name], const=True, noalias=True) for t in fused.inputs}
        out |= {o.name: Array(o.name, stored[o.name]) for o in fused.operations if o.output}
        return out | {slot_name(n): Array(slot_name(n), fused.slot_type(n, self.kind)) for n in range(fused.slots)}

    @property
    def numbers(self) -> tuple[Var, ...]:
        """The scalar arguments: sizes, strides other than 1, constants."""
        sizes = (Var(size_name(x), self.wide) for x in self.flat.order if not self._known(x))
        strides = (
            Var(step_name(name, d), self.wide)
            for name, own in self.flat.strides.items()
            if name in self.arrays
            for d, step in enumerate(own)
            if step != 1
        )
        constants = (Var(constant_argument(n).name, self.kind) for n in range(len(self.flat.fused.constants)))
        return (*sizes, *strides, *constants)

    def _known(self, x: Iterator) -> bool:
        return self.flat.fused.sizes.axes[x].fixed

    def extent(self, x: Iterator) -> Expr:
        """Return the extent of *x*; 1 if it was collapsed into another axis."""
        if x not in self.flat.order:
            return Literal(1, self.wide)
        return Literal(self.flat.extents[x], self.wide) if self._known(x) else Var(size_name(x), self.wide)

    def count(self, axes: Iterable[Iterator]) -> Expr:
        """Return the number of points of *axes*."""
        return reduce(mul, map(self.extent, axes), Literal(1, self.wide))

    def standing(self, x: Iterator, place: Expr) -> EmissionState:
        """Return the state with *x* at *place*, counted from 0."""
        return replace(self, at={**self.at, x: add_offset(place, x.lo)})

    def holding(self, values: Mapping[str, Expr]) -> EmissionState:
        """Return the state with further *values*."""
        return replace(self, values={**self.values, **values})

    def kind_of(self, name: str) -> Type:
        """Return the type in which the value *name* is computed."""
        return self.flat.fused.type_of(name, self.kind).computed

    def held_kind(self, step: FusedStep) -> Type:
        """Return the type of a variable with the value of *step*: that of memory if this holds a number's integers."""
        types = self.flat.fused.type_of(step.name, self.kind)
        return types.stored if step.stores and types.stored.integer and not types.computed.integer else types.computed

    def scalar(self, step: FusedStep) -> Expr:
        """Return the body of *step* at this point."""
        kind = self.kind_of(step.name)
        return lowering.lower_scalar(step.body, self._places, self._read, kind, self.wide, eager=True)

    def place(self, x: Iterator) -> Expr:
        """Return the value of *x* here."""
        return self._places[x]

    @cached_property
    def _places(self) -> Mapping[Iterator, Expr]:
        gone = {x: Literal(0, self.wide) for x in self.flat.extents if x not in self.flat.order}
        return {**gone, **self.at}

    def _read(self, source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
        assert isinstance(source, Tensor)
        if source in self._constants:
            return Var(source.name, self.kind)
        if source.name in self.values:
            return self.values[source.name]
        local = tuple(add_offset(i, -lo) for i, (lo, _) in zip(where, source.box, strict=True))
        array, place = self.element(source.name, local)
        return array[place]

    @property
    def _constants(self) -> tuple[Tensor, ...]:
        return tuple(map(constant_argument, range(len(self.flat.fused.constants))))

    def element(self, name: str, where: tuple[Expr, ...]) -> tuple[Array, Expr]:
        """Return (array, position) of the element of *name* at *where*, counted from 0."""
        fused = self.flat.fused
        memory, dims = fused.memory(name)
        if memory in self.near:
            return self.near[memory]
        place: Expr = Literal(0, self.wide)
        for n, d in enumerate(dims):
            place = place + where[d] * self._step(memory, n)
        space = fused.spaces[memory]
        if space.slot is None:
            return self.arrays[memory], place
        place = place * self.spread
        base = self.base.get(space.slot)
        return self.arrays[slot_name(space.slot)], place if base is None else place + base

    def _step(self, memory: str, d: int) -> Expr:
        space = self.flat.fused.spaces[memory]
        if space.slot is None:
            unit = self.flat.strides[memory][d] == 1
            return Literal(1, self.wide) if unit else Var(step_name(memory, d), self.wide)
        return self.count(space.axes[d + 1 :])

    def guarded(self, step: FusedStep, value: Expr) -> Expr:
        """Return *value* if the domain of *step* holds, else its constant."""
        tests = box_tests([b.index for b in step.domain], tuple((b.lo, b.hi) for b in step.domain))
        if tests is None:
            return literal(step.value, value.type)
        test = conjunction(*(lowering.lower_comparison(t, self._places, self.wide) for t in tests))
        return value if test is None else select(test, value, literal(step.value, value.type))

    def store(self, step: FusedStep, value: Expr) -> Store:
        """Return a store of *value* as the element of *step* at this point."""
        axes = self.flat.fused.known[step.name].scope.traversals
        where = tuple(add_offset(self._places[x], -x.lo) for x in axes)
        array, place = self.element(step.name, where)
        return Store(array, place, cast(array.kind.computed, value))

    def total(self, step: FusedStep) -> tuple[Type, Expr]:
        """Return (the type of a partial reduction of *step*, its neutral element); integers wrap as unsigned ones."""
        assert step.reduce is not None
        kind, neutral = self.kind_of(step.name), REDUCTIONS[step.reduce]
        if not kind.integer:
            return kind, literal(neutral, kind)
        if step.reduce in ("sum", "prod"):
            return (unsigned := Type("uint", kind.bits)), literal(neutral, unsigned)
        return kind, literal(kind.bounds[step.reduce == "min"], kind)

    def wide_total(self, step: FusedStep) -> tuple[Type, Expr]:
        """Return ``total`` with sums and products of floating types in double precision."""
        kind, neutral = self.total(step)
        if step.reduce in ("sum", "prod") and kind.kind == "float":
            return F64, cast(F64, neutral)
        return kind, neutral

    def finished(self, step: FusedStep, total: Expr) -> Expr:
        """Return the value of *step* for its complete sum."""
        return self.guarded(step, cast(self.kind_of(step.name), total))


def join_values(step: FusedStep, total: Expr, value: Expr) -> Expr:
    """Return *value* joined with *total*, in the type of *total*."""
    assert step.reduce is not None
    return lowering.lower_join(step.reduce, total, cast(total.type, value))


LoopBody = Callable[[EmissionState], Iterable[Statement]]


@dataclass(frozen=True)
class LoopWriter:
    """Writes the statements of *flat*; variables have unique names."""

    flat: FusedLayout
    _next: Callable[[], int] = field(default_factory=lambda: count().__next__, kw_only=True)

    def var(self, stem: str, kind: Type = I64) -> Var:
        """Return a new variable."""
        return Var(f":{stem} {self._next()}", kind)

    def values(
        self,
        frame: EmissionState,
        steps: Iterable[FusedStep],
        kept: Callable[[Statement], Statement] = lambda store: store,
    ) -> tuple[EmissionState, list[Statement]]:
        """Return element-wise values at this point as variables; *kept* transforms their stores to memory."""
        out: list[Statement] = []
        for step in steps:
            var = self.var(step.name, frame.held_kind(step))
            out.append(Declare(var, cast(var.kind, frame.guarded(step, frame.scalar(step)))))
            frame = frame.holding({step.name: var})
            if step.stores:
                out.append(kept(frame.store(step, var)))
        return frame, out

    def finish(
        self,
        frame: EmissionState,
        totals: Iterable[tuple[FusedStep, Expr]],
        kept: Callable[[Statement], Statement] = lambda store: store,
    ) -> tuple[Mapping[str, Var], list[Statement]]:
        """Return complete reductions as variables; *kept* transforms their stores to memory."""
        values: dict[str, Var] = {}
        out: list[Statement] = []
        for step, total in totals:
            values[step.name] = var = self.var(step.name, frame.kind_of(step.name))
            out.append(Declare(var, frame.finished(step, total)))
            if step.stores:
                out.append(kept(frame.store(step, var)))
        return values, out

    def steps(
        self, frame: EmissionState, nest: FusedNest, join_to: Callable[[FusedStep, Expr], Statement]
    ) -> list[Statement]:
        """Return all steps of *nest* at one point; *join_to* joins the values of reductions."""
        out: list[Statement] = []
        for step in nest.steps:
            if step.reduce is None:
                frame, made = self.values(frame, (step,))
                out += made
            else:
                out.append(join_to(step, frame.scalar(step)))
        return out

    def loops(
        self, frame: EmissionState, axes: Iterable[Iterator], body: LoopBody, hint: LoopHint | None = None
    ) -> list[Statement]:
        """Return *body* in loops over *axes* in their order; *hint* concerns the innermost one."""
        left = self.flat.in_order(frozenset(axes))
        if not left:
            return list(body(frame))
        x, *rest = left
        var = self.var(x.name, frame.wide)
        inner = self.loops(frame.standing(x, var), rest, body, hint)
        return [counted_loop(var, frame.extent(x), *inner, hint=None if rest else hint)]
