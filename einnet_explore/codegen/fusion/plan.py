"""The fused kernel as a value: its grid, the stage of each value, stored values, and their memory.

There are as few barriers as possible, and values are forwarded to their readers.  A point of the *grid* computes
everything that belongs to it; inside, a reduction ends a stage, since its readers need the complete result.
Element-wise values are computed where they are read (``tmp[tid] = a; b = tmp[tid]`` becomes ``b = a``), unless
recomputation costs more than storing and loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from einnet_explore.analysis.flattening import stays_inside
from einnet_explore.analysis.indices import substitute, substitute_domain
from einnet_explore.codegen.fusion.operations import (
    AbstractSizes,
    FusedOperation,
    Shapes,
    TypedProgram,
    ValueType,
    ValueTypes,
    abstract_sizes,
    check_abstract_sizes,
    operation_cost,
    program_operations,
    read_name,
    size_constants,
    typed_program,
)
from einnet_explore.codegen.language.values import Type
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Iterator,
    Program,
    Scalar,
    Tensor,
    accesses,
    as_index,
    map_accesses,
)
from einnet_explore.support.errors import Refused


@dataclass(frozen=True)
class FusedStep:
    """One value: at every point of its nest, or reduced by *reduce* over the nest's summations.

    Outside *domain* it is *value*.  *stores*: it is stored to memory; otherwise it is a variable.
    """

    name: str
    body: Scalar
    reduce: str | None
    domain: tuple[Bound, ...]
    value: float
    stores: bool


@dataclass(frozen=True)
class FusedNest:
    """Steps that share loops: at each point of *traversals* over all of *summations*."""

    traversals: tuple[Iterator, ...]
    summations: tuple[Iterator, ...]
    steps: tuple[FusedStep, ...]

    @property
    def axes(self) -> frozenset[Iterator]:
        """All loops."""
        return frozenset((*self.traversals, *self.summations))

    @property
    def flat(self) -> bool:
        """True if threads share the points of a single group of loops."""
        return not (self.traversals and self.summations)


@dataclass(frozen=True)
class FusedStage:
    """Values of the whole grid point (*heads*), then *nests*; *barrier*: all threads must see the memory afterwards."""

    heads: tuple[FusedStep, ...]
    nests: tuple[FusedNest, ...]
    barrier: bool

    @property
    def steps(self) -> tuple[FusedStep, ...]:
        """All steps, in order."""
        return (*self.heads, *(s for nest in self.nests for s in nest.steps))


def grid_axes(found: tuple[FusedOperation, ...]) -> tuple[Iterator, ...]:
    """Return the axes without reductions and without reads at other positions: their points are independent.

    An element-wise operation that lacks an axis is repeated along it if all repetitions cost less than the outputs.
    """
    made = {o.name: o for o in found}
    total = sum(operation_cost(o.scope.body) * prod(o.scope.shape) + prod(o.scope.shape) for o in found if o.output)
    out: list[Iterator] = []
    spent = 0
    for axis in dict.fromkeys(x for o in found if o.output for x in o.scope.traversals):
        lacking = [o for o in found if axis not in o.axes]
        if any(o.output or o.reduces for o in lacking) or any(axis in o.scope.summations for o in found):
            continue
        if any(axis in b.index.iterators for o in found for b in o.scope.domain):
            continue
        if any(_reads_elsewhere(a, made, axis) for o in found for a in o.reads):
            continue
        cost = sum((operation_cost(o.scope.body) + 1) * prod(o.scope.shape) for o in lacking) * axis.extent
        if spent + cost <= total:
            spent += cost
            out.append(axis)
    return tuple(out)


def _reads_elsewhere(access: Access, made: Mapping[str, FusedOperation], axis: Iterator) -> bool:
    """True if *access* reads a value at another position along *axis* than its own."""
    operation = made.get(read_name(access))
    if operation is None or axis not in operation.scope.traversals:
        return False
    return access.index[operation.scope.traversals.index(axis)].single != axis


def reads_own_point(access: Access, operation: FusedOperation) -> bool:
    """True if *access* reads the value of *operation* at the point where it is computed."""
    return all(i.single == x for i, x in zip(access.index, operation.scope.traversals, strict=True))


STORE_COST = 8
"""Cost of storing and reloading a value, in additions; more expensive values are not recomputed."""


@dataclass
class _NestDraft:
    """A nest under construction."""

    traversals: tuple[Iterator, ...]
    summations: tuple[Iterator, ...]
    steps: dict[str, FusedStep] = field(default_factory=dict)


@dataclass
class _StagePlacement:
    """The stage of each value, where the values *floating* are computed by their readers; the others are stored."""

    found: tuple[FusedOperation, ...]
    grid: frozenset[Iterator]
    types: ValueTypes
    floating: frozenset[str] = frozenset()
    made: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.by_name = {o.name: o for o in self.found}
        self.readers: dict[str, list[tuple[Access, FusedOperation]]] = {o.name: [] for o in self.found}
        for reader in self.found:
            for access in reader.reads:
                self.readers.setdefault(read_name(access), []).append((access, reader))
        for operation in self.found:
            self.made[operation.name] = max((self._first_stage(a, operation) for a in operation.reads), default=0)

    def inner(self, operation: FusedOperation) -> tuple[Iterator, ...]:
        """Return the axes of a value inside its grid point."""
        return tuple(x for x in operation.scope.traversals if x not in self.grid)

    def scalar(self, operation: FusedOperation) -> bool:
        """True for one value a grid point, computed from such values."""
        return not self.inner(operation) and not operation.reduces

    def _first_stage(self, access: Access, reader: FusedOperation) -> int:
        operation = self.by_name.get(read_name(access))
        if operation is None:
            return 0
        # The reader may read the value where it is made, at the same points.
        together = set(self.inner(operation)) == set(reader.axes) - self.grid and reads_own_point(access, operation)
        together = together or operation.name in self.floating or self.scalar(operation)
        return self.made[operation.name] + (operation.reduces or not together)

    def may_float(self, operation: FusedOperation) -> bool:
        """True if every reader may compute the value itself: at its own point, or in arithmetic of the same type."""
        if operation.output or operation.reduces or self.scalar(operation):
            return False
        own = self.types.get(operation.name)
        return all(
            stays_inside(a) and (reads_own_point(a, operation) or self.types.get(o.name) == own)
            for a, o in self.readers[operation.name]
        )

    def worth_floating(self, operation: FusedOperation) -> bool:
        """True if recomputing the value in its readers costs no more than storing it."""
        reads = self.readers[operation.name]
        places = {(self._stage(o), self._loop_axes(o)) for _, o in reads}
        inner = set(self.inner(operation))
        if len(places) == 1 and all(reads_own_point(a, operation) and self._loop_axes(o) == inner for a, o in reads):
            return True
        return self._full_weight(operation) * max(1, len(places) - 1, len(reads) - 1) <= STORE_COST

    def _stage(self, operation: FusedOperation) -> int:
        """Return the first stage that needs the value."""
        if operation.name not in self.floating:
            return self.made[operation.name]
        return min((self._stage(o) for _, o in self.readers[operation.name]), default=0)

    def _loop_axes(self, operation: FusedOperation) -> frozenset[Iterator]:
        axes = operation.scope.traversals if operation.name in self.floating else operation.axes
        return frozenset(axes) - self.grid

    def _full_weight(self, operation: FusedOperation) -> int:
        below = (self.by_name[n] for a in operation.reads if (n := read_name(a)) in self.floating)
        return operation_cost(operation.scope.body) + sum(map(self._full_weight, below))

    def stages(self) -> tuple[FusedStage, ...]:
        """Return the stages with their nests."""
        kept = [o for o in self.found if o.name not in self.floating]
        return tuple(self._stage_of(n, kept) for n in range(1 + max(self.made[o.name] for o in kept)))

    def _stage_of(self, stage: int, kept: list[FusedOperation]) -> FusedStage:
        mine = [o for o in kept if self.made[o.name] == stage]
        drafts: list[_NestDraft] = []
        heads = _NestDraft((), ())
        homes: dict[str, _NestDraft] = {}
        for operation in sorted(mine, key=lambda o: not o.reduces):
            homes[operation.name] = heads if self.scalar(operation) else self._find_draft(operation, drafts)
        for operation in mine:
            self._add(operation, homes[operation.name], stage)
        nests = tuple(FusedNest(d.traversals, d.summations, tuple(d.steps.values())) for d in drafts)
        return FusedStage(tuple(heads.steps.values()), nests, False)

    def _find_draft(self, operation: FusedOperation, drafts: list[_NestDraft]) -> _NestDraft:
        inner, sums = self.inner(operation), operation.scope.summations
        for draft in drafts:
            own, summed = set(draft.traversals), set(draft.summations)
            if (own, summed) == (set(inner), set(sums)) if operation.reduces else own | summed == set(inner):
                return draft
        drafts.append(_NestDraft(inner, sums))
        return drafts[-1]

    def _add(self, operation: FusedOperation, draft: _NestDraft, stage: int) -> None:
        scope = operation.scope
        body = self._forward_values(scope.body, draft, stage)
        reduce = scope.reduce if operation.reduces else None
        stores = operation.output or bool(self.inner(operation))
        draft.steps[operation.name] = FusedStep(operation.name, body, reduce, scope.domain, scope.value, stores)

    def _forward_values(self, body: Scalar, draft: _NestDraft, stage: int) -> Scalar:
        """Return *body* with values computed where they are read instead of loaded."""

        def swap(access: Access) -> Scalar:
            operation = self.by_name.get(read_name(access))
            if operation is None or operation.reduces or self.scalar(operation):
                return access
            name = operation.name
            if name not in self.floating and self.made[name] < stage:
                return access
            if reads_own_point(access, operation):
                if name not in draft.steps:
                    self._add(operation, draft, stage)
                    draft.steps[name] = replace(draft.steps[name], stores=False)
                return access
            return self._forward_values(inline_operation(access, operation), draft, stage)

        return map_accesses(body, swap)


def inline_operation(access: Access, operation: FusedOperation) -> Scalar:
    """Return the value that *access* reads, computed in place: the body, or the constant outside the domain."""
    scope = operation.scope
    to = dict(zip(scope.traversals, access.index, strict=True))
    body = substitute(scope.body, to)
    for bound in substitute_domain(scope.domain, to):
        for op, limit in ((">=", bound.lo), ("<", bound.hi)):
            body = Apply("where", (Compare(op, bound.index, as_index(limit)), body, Const(scope.value)))
    return body


def place_stages(
    found: tuple[FusedOperation, ...], grid: tuple[Iterator, ...], types: ValueTypes
) -> tuple[FusedStage, ...]:
    """Return the stages of the operations *found* at every point of *grid*."""
    stored = _StagePlacement(found, frozenset(grid), types)
    able = replace(stored, floating=frozenset(o.name for o in found if stored.may_float(o)))
    placed = replace(stored, floating=frozenset(n for n in able.floating if able.worth_floating(able.by_name[n])))
    made = placed.stages()
    return tuple(replace(s, barrier=_needs_barrier(s, made[n:], placed.by_name)) for n, s in enumerate(made, 1))


def _needs_barrier(stage: FusedStage, later: tuple[FusedStage, ...], known: Mapping[str, FusedOperation]) -> bool:
    """True if another thread reads in *later* stages what a thread stores in *stage*."""
    heads = {read_name(a) for after in later for s in after.heads for a in accesses(s.body)}
    nests = [nest for after in later for nest in after.nests]
    reads = [(nest, a) for nest in nests for s in nest.steps for a in accesses(s.body)]

    def is_own(nest: FusedNest, step: FusedStep, other: FusedNest, access: Access) -> bool:
        return nest.flat and other.flat and nest.axes == other.axes and reads_own_point(access, known[step.name])

    return any(
        step.name in heads or any(not is_own(nest, step, other, a) for other, a in reads if read_name(a) == step.name)
        for nest in stage.nests
        for step in nest.steps
        if step.stores and (step.reduce is None or nest.traversals)
    )


@dataclass(frozen=True)
class ValueSpace:
    """The memory of a value: an ``input``, an ``output``, a ``register`` or a ``temporary``.

    A temporary lies in *slot*, shared with others of disjoint lifetimes, or in the memory of the output *beside*, which
    is written only when and where the temporary is read for the last time. *live* is its first and last stage.
    """

    name: str
    kind: str
    axes: tuple[Iterator, ...]
    live: tuple[int, int] = (0, 0)
    slot: int | None = None
    beside: str | None = None


@dataclass(frozen=True)
class FusedKernel:
    """A program as one kernel: at every point of *grid*, *stages* in order.

    Numbers that may follow from the sizes (the 784 of a mean over 28×28) are *constants*, arguments of the kernel.
    """

    program: Program
    operations: tuple[FusedOperation, ...]
    grid: tuple[Iterator, ...]
    stages: tuple[FusedStage, ...]
    sizes: AbstractSizes
    spaces: Mapping[str, ValueSpace]
    constants: tuple[float, ...]
    types: ValueTypes = field(default_factory=dict)
    tables: Mapping[str, np.ndarray[Any, np.dtype[Any]]] = field(default_factory=dict)

    def type_of(self, name: str, kind: Type) -> ValueType:
        """Return the types of *name* in a kernel of *kind*."""
        return self.types.get(name, ValueType(kind, kind))

    def slot_type(self, n: int, kind: Type) -> Type:
        """Return the type of the elements of slot *n*: all its temporaries have it."""
        return next(self.type_of(s.name, kind).stored for s in self.spaces.values() if s.slot == n)

    @cached_property
    def nests(self) -> tuple[FusedNest, ...]:
        """All nests, in order."""
        return tuple(nest for stage in self.stages for nest in stage.nests)

    @cached_property
    def steps(self) -> tuple[FusedStep, ...]:
        """All steps, in order."""
        return tuple(step for stage in self.stages for step in stage.steps)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that are read, in order."""
        read = {a.source for step in self.steps for a in accesses(step.body)}
        return tuple(t for t in self.program.inputs if t in read)

    @cached_property
    def known(self) -> Mapping[str, FusedOperation]:
        """The operations by name."""
        return {o.name: o for o in self.operations}

    def output_shapes(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        """Return the shape of each output, in the program's order, for inputs of *shapes*."""
        axes = {name: self.known[name].scope.traversals for name in self.program.outputs}
        return {name: tuple(self.sizes.extent(x, shapes) for x in own) for name, own in axes.items()}

    def memory(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return (the memory of *name*, the dimensions of the value that are the memory's dimensions, in order)."""
        space = self.spaces.get(name)
        if space is None or space.kind != "temporary":
            rank = len(self.known[name].scope.traversals) if name in self.known else len(self._shapes[name])
            return name, tuple(range(rank))
        own = self.known[name].scope.traversals
        there = space.axes if space.beside is None else self.known[space.beside].scope.traversals
        return space.beside or name, tuple(own.index(x) for x in there)

    @cached_property
    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {t.name: t.shape for t in self.program.inputs}

    @property
    def slots(self) -> int:
        """Number of memory slots for all temporaries."""
        return 1 + max((s.slot for s in self.spaces.values() if s.slot is not None), default=-1)

    @property
    def barriers(self) -> int:
        """Number of barriers: one after a stage that reduces or whose memory others read."""
        return sum(s.barrier or any(n.summations for n in s.nests) for s in self.stages)


def fuse_program(given: Program | TypedProgram) -> FusedKernel:
    """Return a program as one kernel.

    Raises Refused for a program without equations or outputs, or one that reads a table.
    """
    typed = given if isinstance(given, TypedProgram) else typed_program(given)
    program, types = typed.program, typed.types
    found = program_operations(program)
    if not found:
        raise Refused("the program has no outputs: there is nothing to compute")
    grid = grid_axes(found)
    made = place_stages(found, grid, types)
    sizes = abstract_sizes(program.inputs, found)
    has_own_types = typed.program is not given and not isinstance(given, TypedProgram)
    numbers = () if has_own_types else size_constants(found, sizes)  # an argument would round large integers
    with_arguments = tuple(_name_constants(stage, numbers) for stage in made)
    spaces = _allocate_spaces(program, found, grid, made, types)
    return FusedKernel(program, found, grid, with_arguments, sizes, spaces, numbers, types, typed.tables)


def _name_constants(stage: FusedStage, numbers: tuple[float, ...]) -> FusedStage:
    """Return *stage* with *numbers* read as arguments of the kernel."""

    def name_constant(body: Scalar) -> Scalar:
        match body:
            case Const(value) if value in numbers:
                return Access(constant_argument(numbers.index(value)), ())
            case Apply(op, args):
                return Apply(op, tuple(map(name_constant, args)))
        return body

    heads = tuple(replace(s, body=name_constant(s.body)) for s in stage.heads)
    nests = tuple(replace(n, steps=tuple(replace(s, body=name_constant(s.body)) for s in n.steps)) for n in stage.nests)
    return replace(stage, heads=heads, nests=nests)


def constant_argument(n: int) -> Tensor:
    """Return the tensor that stands for constant *n* in a step; names that begin with a colon are the kernel's own."""
    return Tensor(f":constant {n}", ())


def _allocate_spaces(
    program: Program,
    found: tuple[FusedOperation, ...],
    grid: tuple[Iterator, ...],
    made: tuple[FusedStage, ...],
    types: ValueTypes,
) -> Mapping[str, ValueSpace]:
    known = {o.name: o for o in found}
    out: dict[str, ValueSpace] = {t.name: ValueSpace(t.name, "input", ()) for t in program.inputs}
    steps = [(n, s) for n, stage in enumerate(made) for s in stage.steps]
    stored = {s.name: n for n, s in steps if s.stores}
    last = {name: n for n, s in steps for name in map(read_name, accesses(s.body))}
    slots: list[tuple[Type | None, list[tuple[int, int]]]] = []

    def stored_type(name: str) -> Type | None:
        return types[name].stored if name in types else None

    lent: set[str] = set()
    for name in dict.fromkeys(s.name for _, s in steps):
        operation = known[name]
        axes = operation.scope.traversals
        live = (stored.get(name, 0), last.get(name, stored.get(name, 0)))
        if operation.output:
            out[name] = ValueSpace(name, "output", axes, live)
            continue
        if name not in stored:
            out[name] = ValueSpace(name, "register", ())
            continue
        kind, lender = stored_type(name), _lending_output(operation, made[live[1]], known)
        if lender is not None and lender.name not in lent and stored_type(lender.name) == kind:
            lent.add(lender.name)
            out[name] = ValueSpace(name, "temporary", axes, live, beside=lender.name)
            continue
        free = (kind == k and all(b < live[0] or live[1] < a for a, b in used) for k, used in slots)
        slot = next((n for n, is_free in enumerate(free) if is_free), len(slots))
        if slot == len(slots):
            slots.append((kind, []))
        slots[slot][1].append(live)
        out[name] = ValueSpace(name, "temporary", tuple(x for x in axes if x not in grid), live, slot)
    return out


def _lending_output(
    operation: FusedOperation, stage: FusedStage, known: Mapping[str, FusedOperation]
) -> FusedStep | None:
    """Return the step of an output whose memory serves until it is written: of the same axes, in the readers' nest.

    *stage* is the last one that reads *operation*.
    """
    readers = [nest for nest in stage.nests if any(_reads_operation(s.body, operation) for s in nest.steps)]
    if len(set(readers)) != 1 or any(_reads_operation(s.body, operation) for s in stage.heads):
        return None
    reads = (a for s in readers[0].steps for a in accesses(s.body) if read_name(a) == operation.name)
    if not all(reads_own_point(a, operation) for a in reads):
        return None
    for step in readers[0].steps:
        other = known[step.name]
        same = set(other.scope.traversals) == set(operation.scope.traversals)
        if step.stores and step.reduce is None and other.output and same and step.name != operation.name:
            return step
    return None


def _reads_operation(body: Scalar, operation: FusedOperation) -> bool:
    return any(read_name(a) == operation.name for a in accesses(body))


def check_served(fused: FusedKernel, shapes: Shapes) -> None:
    """Raise Refused, with the numbers, if *fused* does not serve inputs of *shapes*."""
    check_abstract_sizes(fused.program.inputs, fused.operations, fused.sizes, shapes)
