r"""Evaluation: the one meaning of expressions, on integers exactly and in floating point.

.. math::  \Big\{ \mathop{L}_{\vec x} \sum_{\vec y} f \Big\}[\vec i] = \sum_{\vec y} f(\vec i, \vec y)
           \text{ where the domain holds, else } value

The grid of all iterators is sparse: an access is gathered over the iterators that occur in it only, products under a
sum are contracted pairwise as matrix products, and a grid beyond *limit* elements is halved until it fits.
Source: EinNet §3 (scopes, padding); docs/architecture.md for domains, values and monoids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.interpreter import exact_arrays
from einnet_explore.interpreter.exact_arrays import Array, Part
from einnet_explore.interpreter.grid import Grid, IllegalRead, branches, gathered, holds
from einnet_explore.ir import REDUCTIONS, Access, Apply, Compare, Const, Iterator, Program, Scalar, Scope, Table, Tensor

__all__ = ["IllegalRead", "evaluate"]


@overload
def evaluate(
    root: Scope, inputs: Mapping[str, npt.ArrayLike], dtype: npt.DTypeLike = "exact", *, limit: int = 1 << 25
) -> Array: ...


@overload
def evaluate(
    root: Program,
    inputs: Mapping[str, npt.ArrayLike],
    dtype: npt.DTypeLike = "exact",
    *,
    outputs_only: bool = False,
    limit: int = 1 << 25,
) -> dict[str, Array]: ...


def evaluate(
    root: Scope | Program,
    inputs: Mapping[str, npt.ArrayLike],
    dtype: npt.DTypeLike = "exact",
    *,
    outputs_only: bool = False,
    limit: int = 1 << 25,
) -> Array | dict[str, Array]:
    """The value of a scope, of shape ``root.shape``; of a program, every equation's value by name.

    *inputs* holds one array a tensor, of the tensor's shape.  *dtype* ``"exact"`` computes with integers of any
    size (int64 where no overflow is possible, Python ints beyond), except that division, infinite paddings and the
    real functions give float64; a floating dtype computes in it.  *outputs_only* keeps a program's outputs only.
    *limit* bounds the elements of an intermediate array.

    Raises IllegalRead for a read beyond the padding; reads in a branch of ``where`` that is not taken, and at points
    outside the domain, are not made.  Raises ValueError for an array that is missing or has another shape.
    """
    exact = isinstance(dtype, str) and dtype == "exact"
    kind = None if exact else np.dtype(dtype)
    if kind is not None and kind.kind != "f":
        raise ValueError(f"dtype {kind}: expected 'exact' or a floating type")
    run = _Run(
        {
            name: exact_arrays.integers(name, np.asarray(a)) if kind is None else Part(np.asarray(a, kind), 0)
            for name, a in inputs.items()
        },
        kind,
        limit,
    )
    with np.errstate(all="ignore"):
        match root:
            case Scope():
                return _instantiate(root, run).array
            case Program(equations=equations, outputs=outputs):
                for tensor in root.inputs:
                    _stored(tensor, run)
                for equation in equations:
                    run.tensors[equation.name] = _instantiate(equation.scope, run)
                names = outputs if outputs_only else tuple(e.name for e in equations)
                return {name: run.tensors[name].array for name in names}


@dataclass(slots=True)
class _Run:
    """What one evaluation knows: arrays by name, the dtype (None: exact), the size limit, scopes already evaluated."""

    tensors: dict[str, Part]
    dtype: np.dtype[Any] | None
    limit: int
    results: dict[Scope, Part] = field(default_factory=dict)

    def number(self, value: float) -> Part:
        return exact_arrays.number(value, self.dtype)


def _instantiate(scope: Scope, run: _Run) -> Part:
    if (known := run.results.get(scope)) is not None:
        return known
    for bound in scope.domain:
        if foreign := [x.name for x in bound.index.iterators if x not in scope.traversals]:
            raise ValueError(f"domain {bound!r} of a scope names {', '.join(foreign)}: only traversals may occur")
    if clash := {x.name for x in iterators_of(scope.body)} - {x.name for x in (*scope.traversals, *scope.summations)}:
        raise ValueError(f"{', '.join(sorted(clash))}: no iterator of the scope that uses it")
    grid = Grid({x: (x.lo, x.hi) for x in (*scope.traversals, *scope.summations)})
    out = _region(scope, grid, run)
    if scope.domain:
        here = Grid({x: (x.lo, x.hi) for x in scope.traversals})
        out = exact_arrays.choose(holds(scope.domain, here), out, run.number(scope.value))
    run.results[scope] = out
    return out


def _region(scope: Scope, grid: Grid, run: _Run) -> Part:
    """The raw reduction over a part of the grid, its domain aside."""
    for over in _materialised(scope):
        if grid.volume(over) > run.limit:
            outer = [x for x in scope.traversals if x in over and grid.extent(x) > 1]
            x = next(iter(outer), None) or max(over, key=grid.extent)
            low, high = (_region(scope, half, run) for half in grid.halves(x))
            if x in scope.summations:
                return _COMBINE[scope.reduce](low, high)
            both, size = exact_arrays.joined((low, high))
            return Part(np.concatenate(both, axis=scope.traversals.index(x)), size)
    active = holds(scope.domain, grid) if scope.domain else None
    axes = range(len(scope.traversals), len(grid.ranges))
    if scope.reduce == "sum":
        out = _summed(scope.body, grid, axes, active, run)
    else:
        out = _reduced(scope.reduce, _value(scope.body, grid, active, run), grid, axes, run)
    shape = tuple(grid.extent(x) for x in scope.traversals)
    array = out.array.reshape(out.array.shape[: len(shape)]) if out.array.ndim else out.array
    return Part(np.ascontiguousarray(np.broadcast_to(array, shape)).reshape(shape), out.size)


_COMBINE = {
    "sum": exact_arrays.add,
    "prod": exact_arrays.multiply,
    "max": exact_arrays.maximum,
    "min": exact_arrays.minimum,
}


def _summed(body: Scalar, grid: Grid, axes: range, active: Array | None, run: _Run) -> Part:
    """Σ over *axes*: distributed over sums, contracted pairwise over products."""
    match body:
        case Apply("+", args):
            return reduce(exact_arrays.add, (_summed(a, grid, axes, active, run) for a in args))
        case Apply("-", (a, b)):
            return exact_arrays.subtract(_summed(a, grid, axes, active, run), _summed(b, grid, axes, active, run))
        case Apply("neg", (a,)):
            return exact_arrays.apply("neg", (_summed(a, grid, axes, active, run),))
        case Apply("*", args):
            factors = [_ranked(_value(a, grid, active, run), grid) for a in args]
        case _:
            factors = [_ranked(_value(body, grid, active, run), grid)]
    missing = 1
    extents = [grid.extent(x) for x in grid.ranges]
    for i in axes:
        if all(f.array.shape[i] == 1 for f in factors):
            missing *= extents[i]
    out = factors[0]
    for n, factor in enumerate(factors[1:], 2):
        done = frozenset(i for i in axes if all(f.array.shape[i] == 1 for f in factors[n:]))
        out = exact_arrays.contract(out, factor, done)
    out = exact_arrays.total(out, tuple(i for i in axes if out.array.shape[i] != 1))
    return out if missing == 1 else exact_arrays.multiply(out, run.number(missing))


def _reduced(monoid: str, part: Part, grid: Grid, axes: range, run: _Run) -> Part:
    part = _ranked(part, grid)
    extents = [grid.extent(x) for x in grid.ranges]
    if any(extents[i] == 0 for i in axes):
        shape = tuple(1 if i in axes else n for i, n in enumerate(part.array.shape))
        neutral = run.number(REDUCTIONS[monoid])
        return Part(np.broadcast_to(neutral.array, shape), neutral.size)
    present = tuple(i for i in axes if part.array.shape[i] != 1)
    if monoid == "prod":
        missing = prod(extents[i] for i in axes if part.array.shape[i] == 1)
        part = exact_arrays.product(part, present)
        return part if missing == 1 else exact_arrays.power(part, run.number(missing))
    best = np.max if monoid == "max" else np.min
    return Part(best(part.array, axis=present, keepdims=True), part.size) if present else part


def _value(body: Scalar, grid: Grid, active: Array | None, run: _Run) -> Part:
    """The body over the grid, broadcastable to it; *active* says where its reads are made."""
    match body:
        case Const(value):
            return run.number(value)
        case Access():
            return _read(body, grid, active, run)
        case Apply("where", (Compare() as condition, yes, no)):
            taken, here, there = branches(condition, grid, active)
            return exact_arrays.choose(taken, _value(yes, grid, here, run), _value(no, grid, there, run))
        case Apply(op, args):
            return exact_arrays.apply(op, [_value(a, grid, active, run) for a in args])
        case Compare():
            raise ValueError(f"comparison {body!r} outside the condition of where")


def _read(access: Access, grid: Grid, active: Array | None, run: _Run) -> Part:
    (found,) = gathered(access, [(_held(access.source, run), run.number(access.source.value))], grid, active)
    return found


def _held(source: Tensor | Table | Scope, run: _Run) -> Part:
    match source:
        case Tensor():
            return _stored(source, run)
        case Table(shape, entries):
            return exact_arrays.rationals(shape, entries, run.dtype)
        case Scope():
            return _instantiate(source, run)


def _stored(tensor: Tensor, run: _Run) -> Part:
    held = run.tensors.get(tensor.name)
    if held is None:
        raise ValueError(f"tensor {tensor.name} has no array: given are {', '.join(run.tensors) or 'none'}")
    if held.array.shape != tensor.shape:
        raise ValueError(f"tensor {tensor.name} has shape {tensor.shape}, its array {held.array.shape}")
    return held


def _materialised(scope: Scope) -> Iterable[frozenset[Iterator]]:
    """The iterators over which intermediate arrays are made."""
    if scope.reduce != "sum":
        yield iterators_of(scope.body)
        return
    later = frozenset(scope.summations)

    def below(body: Scalar) -> Iterable[frozenset[Iterator]]:
        match body:
            case Apply("+" | "-" | "neg", args):
                for arg in args:
                    yield from below(arg)
            case Apply("*", args):
                own = [iterators_of(a) for a in args]
                yield from own
                made = own[0]
                for n, factor in enumerate(own[1:], 2):
                    needed = frozenset[Iterator]().union(*own[n:])
                    made = (made | factor) - (later - needed)
                    yield made
            case _:
                yield iterators_of(body)

    yield from below(scope.body)


def _ranked(part: Part, grid: Grid) -> Part:
    """Constants get the grid's rank."""
    return part if part.array.ndim else Part(part.array.reshape((1,) * len(grid.ranges)), part.size)
