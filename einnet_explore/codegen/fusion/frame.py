"""State of a fused kernel under construction, for CPUs and GPUs: arguments, positions of values, iterators, loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count

from einnet_explore.codegen.fusion.memory_layout import FusedLayout, size_name, slot_name, step_name
from einnet_explore.codegen.fusion.plan import constant_argument
from einnet_explore.codegen.fusion.stages import FusedNest, FusedStep
from einnet_explore.codegen.language import (
    F64,
    I64,
    Array,
    Declare,
    Expr,
    For,
    Literal,
    Statement,
    Store,
    Type,
    Var,
    cast,
    conjunction,
    literal,
    lowering,
    select,
)
from einnet_explore.codegen.memory_access import add_offset
from einnet_explore.ir import REDUCTIONS, Bound, Compare, Iterator, Scalar, Scope, Table, Tensor, as_index


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

    @cached_property
    def arrays(self) -> Mapping[str, Array]:
        """Inputs, outputs and slots, by name, in the order of the arguments."""
        fused = self.flat.fused
        out = {t.name: Array(t.name, self.kind, const=True, noalias=True) for t in fused.inputs}
        out |= {o.name: Array(o.name, self.kind) for o in fused.operations if o.output}
        return out | {slot_name(n): Array(slot_name(n), self.kind) for n in range(fused.slots)}

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

    def standing(self, x: Iterator, place: Expr) -> EmissionState:
        """Return the state with *x* at *place*, counted from 0."""
        return replace(self, at={**self.at, x: add_offset(place, x.lo)})

    def holding(self, values: Mapping[str, Expr]) -> EmissionState:
        """Return the state with further *values*."""
        return replace(self, values={**self.values, **values})

    def scalar(self, body: Scalar) -> Expr:
        """Return *body* at this point."""
        return lowering.lower_scalar(body, self._places, self._read, self.kind, self.wide)

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
        step: Expr = Literal(1, self.wide)
        for x in space.axes[d + 1 :]:
            step = step * self.extent(x)
        return step

    def guarded(self, step: FusedStep, value: Expr) -> Expr:
        """Return *value* if the domain of *step* holds, else its constant."""
        tests = [t for b in step.domain for t in _bound_tests(b)]
        test = conjunction(*(lowering.lower_comparison(t, self._places, self.wide) for t in tests))
        return value if test is None else select(test, value, literal(step.value, self.kind))

    def store(self, step: FusedStep, value: Expr) -> Store:
        """Return a store of *value* as the element of *step* at this point."""
        axes = self.flat.fused.known[step.name].scope.traversals
        where = tuple(add_offset(self._places[x], -x.lo) for x in axes)
        array, place = self.element(step.name, where)
        return Store(array, place, value)

    def total(self, step: FusedStep) -> tuple[Type, Expr]:
        """Return (the type of a partial reduction of *step*, its neutral element)."""
        assert step.reduce is not None
        return self.kind, literal(REDUCTIONS[step.reduce], self.kind)

    def wide_total(self, step: FusedStep) -> tuple[Type, Expr]:
        """Return ``total`` with sums and products in double precision."""
        assert step.reduce is not None
        kind = F64 if step.reduce in ("sum", "prod") else self.kind
        return kind, literal(REDUCTIONS[step.reduce], kind)

    def finished(self, step: FusedStep, total: Expr) -> Expr:
        """Return the value of *step* for its complete sum."""
        return self.guarded(step, cast(self.kind, total))


def join_values(step: FusedStep, total: Expr, value: Expr) -> Expr:
    """Return *value* joined with *total*."""
    assert step.reduce is not None
    return lowering.lower_join(step.reduce, total, value)


def _bound_tests(bound: Bound) -> Iterable[Compare]:
    lo, hi = bound.index.bounds
    if lo < bound.lo:
        yield Compare(">=", bound.index, as_index(bound.lo))
    if hi >= bound.hi:
        yield Compare("<", bound.index, as_index(bound.hi))


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
            var = self.var(step.name, frame.kind)
            out.append(Declare(var, frame.guarded(step, frame.scalar(step.body))))
            frame = frame.holding({step.name: var})
            if step.stores:
                out.append(kept(frame.store(step, var)))
        return frame, out

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
                out.append(join_to(step, frame.scalar(step.body)))
        return out

    def loops(
        self, frame: EmissionState, axes: Iterable[Iterator], body: LoopBody, simd: bool = False
    ) -> list[Statement]:
        """Return *body* in loops over *axes* in their order; *simd* vectorises the innermost one."""
        among = frozenset(axes)
        left = [x for x in self.flat.order if x in among]
        if not left:
            return list(body(frame))
        x, *rest = left
        var = self.var(x.name, frame.wide)
        inner = self.loops(frame.standing(x, var), rest, body, simd)
        start, step = Literal(0, frame.wide), Literal(1, frame.wide)
        return [For(var, start, frame.extent(x), step, tuple(inner), simd=simd and not rest)]
