"""Stages of fused operations: as few barriers as possible, and values forwarded to their readers.

A point of the *grid* computes everything that belongs to it; inside, a reduction ends a stage, since its readers need
the complete result.  Element-wise values are computed where they are read (``tmp[tid] = a; b = tmp[tid]`` becomes
``b = a``), unless recomputation costs more than storing and loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from einnet_explore.codegen.fusion.operations import FusedOperation, operation_cost, read_name
from einnet_explore.ir import Access, Bound, Iterator, Scalar


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
