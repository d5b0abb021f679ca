"""The fused kernel as a value: grid, stages, and where every value lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from einnet_explore.ir import Access, Apply, Const, Iterator, Program, Scalar, Tensor, accesses
from einnet_explore.kernels.fusion.operations import FusionError, Operation, operations, read_name
from einnet_explore.kernels.fusion.placing import stages
from einnet_explore.kernels.fusion.sizes import Shapes, Sizes, check, counted, sizes_of
from einnet_explore.kernels.fusion.stages import Nest, Stage, grid_axes, here


@dataclass(frozen=True)
class Space:
    """Where a value lies: an ``input``, an ``output``, a ``register`` or a ``temporary``.

    A temporary lies in *slot*, together with others that live at other times, or in the memory of the output *beside*,
    which is written only when and where the temporary is read for the last time.  *live* is its first and last stage.
    """

    name: str
    kind: str
    axes: tuple[Iterator, ...]
    live: tuple[int, int] = (0, 0)
    slot: int | None = None
    beside: str | None = None


@dataclass(frozen=True)
class Fused:
    """A program as one kernel: at every point of *grid*, *stages* one after the other.

    Numbers that may follow the sizes (the 784 of a mean over 28×28) are *constants*, arguments of the kernel.
    """

    program: Program
    operations: tuple[Operation, ...]
    grid: tuple[Iterator, ...]
    stages: tuple[Stage, ...]
    sizes: Sizes
    spaces: Mapping[str, Space]
    constants: tuple[float, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that are read, in order."""
        read = {a.source for s in self.stages for step in s.steps for a in accesses(step.body)}
        return tuple(t for t in self.program.inputs if t in read)

    @cached_property
    def known(self) -> Mapping[str, Operation]:
        """The operations by name."""
        return {o.name: o for o in self.operations}

    def memory(self, name: str) -> tuple[str, tuple[int, ...]]:
        """(where the value *name* lies, which of its dimensions are the dimensions there, in order)."""
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
        """How many pieces of memory hold all temporaries."""
        return 1 + max((s.slot for s in self.spaces.values() if s.slot is not None), default=-1)

    @property
    def barriers(self) -> int:
        """How often threads wait: once after a stage that reduces or whose memory others read."""
        return sum(s.barrier or any(n.summations for n in s.nests) for s in self.stages)


def fuse(program: Program) -> Fused:
    """*program* as one kernel.

    Raises FusionError for a program without equations or outputs, or one that reads a table.
    """
    found = operations(program)
    if not found:
        raise FusionError("the program has no outputs: there is nothing to compute")
    grid = grid_axes(found)
    made = stages(found, grid)
    sizes = sizes_of(program.inputs, found)
    numbers = counted(found, sizes)
    with_arguments = tuple(_with_constants(stage, numbers) for stage in made)
    return Fused(program, found, grid, with_arguments, sizes, _spaces(program, found, grid, made), numbers)


def _with_constants(stage: Stage, numbers: tuple[float, ...]) -> Stage:
    """*stage* with *numbers* read as arguments of the kernel."""

    def named(body: Scalar) -> Scalar:
        match body:
            case Const(value) if value in numbers:
                return Access(argument(numbers.index(value)), ())
            case Apply(op, args):
                return Apply(op, tuple(map(named, args)))
        return body

    heads = tuple(replace(s, body=named(s.body)) for s in stage.heads)
    nests = tuple(replace(n, steps=tuple(replace(s, body=named(s.body)) for s in n.steps)) for n in stage.nests)
    return replace(stage, heads=heads, nests=nests)


def argument(n: int) -> Tensor:
    """What stands for constant *n* in a step; names that begin with a colon are the kernel's own."""
    return Tensor(f":constant {n}", ())


def _spaces(
    program: Program, found: tuple[Operation, ...], grid: tuple[Iterator, ...], made: tuple[Stage, ...]
) -> Mapping[str, Space]:
    known = {o.name: o for o in found}
    out: dict[str, Space] = {t.name: Space(t.name, "input", ()) for t in program.inputs}
    stored = {s.name: n for n, stage in enumerate(made) for s in stage.steps if s.stores}
    steps = [(n, s) for n, stage in enumerate(made) for s in stage.steps]
    last = {name: n for n, s in steps for name in map(read_name, accesses(s.body))}
    slots: list[list[tuple[int, int]]] = []
    taken: set[str] = set()
    for name in dict.fromkeys(s.name for _, s in steps):
        operation = known[name]
        axes = operation.scope.traversals
        live = (stored.get(name, 0), last.get(name, stored.get(name, 0)))
        if operation.output:
            out[name] = Space(name, "output", axes, live)
        elif name not in stored:
            out[name] = Space(name, "register", ())
        elif (output := _output_beside(operation, made, known, live[1])) is not None and output not in taken:
            taken.add(output)
            out[name] = Space(name, "temporary", axes, live, beside=output)
        else:
            slot = next((n for n, used in enumerate(slots) if all(b < live[0] or live[1] < a for a, b in used)), None)
            if slot is None:
                slots.append([])
                slot = len(slots) - 1
            slots[slot].append(live)
            inner = tuple(x for x in axes if x not in grid)
            out[name] = Space(name, "temporary", inner, live, slot)
    return out


def _output_beside(
    operation: Operation, made: tuple[Stage, ...], known: Mapping[str, Operation], last: int
) -> str | None:
    """An output that may lend its memory until it is written: over the same axes, in the nest of the last readers."""
    readers = [(nest, s) for nest in made[last].nests for s in nest.steps if _reads(s.body, operation)]
    if any(_reads(s.body, operation) for s in made[last].heads):
        return None
    homes: list[Nest] = [nest for nest, _ in readers]
    if any(nest != homes[0] for nest in homes) or not all(
        here(a, operation) for _, s in readers for a in accesses(s.body) if a.source == operation.tensor
    ):
        return None
    for step in homes[0].steps if homes else ():
        other = known[step.name]
        same = set(other.scope.traversals) == set(operation.scope.traversals)
        if step.stores and step.reduce is None and other.output and same and step.name != operation.name:
            return step.name
    return None


def _reads(body: Scalar, operation: Operation) -> bool:
    return any(read_name(a) == operation.name for a in accesses(body))


def served(fused: Fused, shapes: Shapes) -> None:
    """Raise FusionError, with the numbers, where *fused* does not serve inputs of *shapes*."""
    check(fused.program.inputs, fused.operations, fused.sizes, shapes)
