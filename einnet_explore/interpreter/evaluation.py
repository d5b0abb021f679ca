r"""Evaluation of scopes and programs: one recursion, parameterised by a number domain.

.. math::  \Big\{ \mathop{L}_{\vec x} \sum_{\vec y} f \Big\}[\vec i] = \sum_{\vec y} f(\vec i, \vec y)
           \text{ inside the scope's domain, its padding value outside}

The grid of all iterators is sparse: an access is gathered over the iterators of its indices only, products under a
sum are contracted pairwise as matrix products, and a grid beyond *limit* elements is halved until it fits.
Source: EinNet §3 (scopes, padding); docs/architecture.md for domains, values and monoids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol, overload

import numpy as np
import numpy.typing as npt

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.interpreter import exact_arrays
from einnet_explore.interpreter.exact_arrays import Array, Part, RealNumbers, Value
from einnet_explore.interpreter.grid import Grid, branch_masks, gather_reads, inside_domain
from einnet_explore.ir import (
    JOINS,
    REDUCTIONS,
    Access,
    Apply,
    Compare,
    Const,
    Iterator,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
)


class NumberDomain(Protocol):
    """Arithmetic of one kind of numbers, on arrays over a grid.

    Values are arrays of the grid's rank, broadcastable to it.  *axes* are the dimensions of the summations and
    *extents* the grid's shape.  A sum may carry more arrays than a value; ``finish`` turns it into a value.
    """

    def constant(self, value: float) -> Value:
        """Return *value* as arrays of rank 0."""

    def table(self, table: Table) -> Value:
        """Return the entries of *table*, in its shape."""

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        """Apply the function *op* element by element; *args* are the expressions that *values* come from."""

    def reduce(self, monoid: str, value: Value, axes: range, extents: Sequence[int]) -> Value:
        """Reduce *value* over *axes* by ``prod``, ``max`` or ``min``; the axes keep extent 1."""

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        """Return the sum over *axes* of the product of *factors*; the axes keep extent 1."""

    def add(self, a: Value, b: Value) -> Value:
        """Add two sums."""

    def negate(self, a: Value) -> Value:
        """Negate a sum."""

    def finish(self, scope: Scope, reduced: Value) -> Value:
        """Return the value of *scope*, given its reduction."""


@dataclass(frozen=True, slots=True)
class DerivedNumbers:
    """A number domain that computes as *numbers* does; its subclasses change some operations."""

    numbers: NumberDomain

    def constant(self, value: float) -> Value:
        return self.numbers.constant(value)

    def table(self, table: Table) -> Value:
        return self.numbers.table(table)

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        return self.numbers.apply(op, values, args)

    def reduce(self, monoid: str, value: Value, axes: range, extents: Sequence[int]) -> Value:
        return self.numbers.reduce(monoid, value, axes, extents)

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        return self.numbers.contract(factors, axes, extents)

    def add(self, a: Value, b: Value) -> Value:
        return self.numbers.add(a, b)

    def negate(self, a: Value) -> Value:
        return self.numbers.negate(a)

    def finish(self, scope: Scope, reduced: Value) -> Value:
        return self.numbers.finish(scope, reduced)


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
    """Return the value of a scope, of shape ``root.shape``, or the value of each equation of a program by name.

    *inputs* maps each tensor's name to an array of the tensor's shape.  *dtype* ``"exact"`` computes with integers of
    any size (int64 where no overflow is possible, Python ints beyond), except that division, infinite paddings and the
    real functions return float64; a floating dtype computes in it.  *outputs_only* keeps a program's outputs only.
    *limit* bounds the elements of an intermediate array.

    Raises IllegalRead for a read beyond the padding; reads in the branch of ``where`` that is not taken, and at points
    outside the domain, are not made.  Raises ValueError for a missing array and for an array of another shape.
    """
    exact = isinstance(dtype, str) and dtype == "exact"
    kind = None if exact else np.dtype(dtype)
    if kind is not None and kind.kind != "f":
        raise ValueError(f"dtype {kind}: expected 'exact' or a floating type")
    numbers = RealNumbers(kind)
    run = Evaluation(numbers, {name: numbers.input(name, np.asarray(a)) for name, a in inputs.items()}, limit)
    match root:
        case Scope():
            return run.scope(root)[0].array
        case Program(outputs=outputs):
            for tensor in root.inputs:
                run.tensor(tensor)
            run.program(root)
            names = outputs if outputs_only else tuple(e.name for e in root.equations)
            return {name: run.tensors[name][0].array for name in names}


@dataclass(slots=True)
class Evaluation:
    """One evaluation: its number domain, the arrays by name, the size limit, and the scopes evaluated so far."""

    numbers: NumberDomain
    tensors: dict[str, Value]
    limit: int
    results: dict[Scope, Value] = field(default_factory=dict)

    def program(self, program: Program) -> None:
        """Evaluate every equation and add its value to ``tensors``."""
        for equation in program.equations:
            self.tensors[equation.name] = self.scope(equation.scope)

    def scope(self, scope: Scope) -> Value:
        """Return the value of *scope*, in its shape."""
        if (known := self.results.get(scope)) is not None:
            return known
        for bound in scope.domain:
            if foreign := [x.name for x in bound.index.iterators if x not in scope.traversals]:
                raise ValueError(f"domain {bound!r} of a scope names {', '.join(foreign)}: only traversals may occur")
        own = {x.name for x in (*scope.traversals, *scope.summations)}
        if clash := {x.name for x in iterators_of(scope.body)} - own:
            raise ValueError(f"{', '.join(sorted(clash))}: no iterator of the scope that uses it")
        with np.errstate(all="ignore"):
            out = self._region(scope, Grid({x: (x.lo, x.hi) for x in (*scope.traversals, *scope.summations)}))
            out = self.numbers.finish(scope, out)
            if scope.domain:
                inside = inside_domain(scope.domain, Grid({x: (x.lo, x.hi) for x in scope.traversals}))
                out = _choose(inside, out, self.numbers.constant(scope.value))
        self.results[scope] = tuple(Part(np.ascontiguousarray(a).reshape(scope.shape), n) for a, n in out)
        return self.results[scope]

    def tensor(self, tensor: Tensor) -> Value:
        """Return the arrays of *tensor*; raise ValueError if there are none or they have another shape."""
        value = self.tensors.get(tensor.name)
        if value is None:
            raise ValueError(f"tensor {tensor.name} has no array: given are {', '.join(self.tensors) or 'none'}")
        if value[0].array.shape != tensor.shape:
            raise ValueError(f"tensor {tensor.name} has shape {tensor.shape}, its array {value[0].array.shape}")
        return value

    def _region(self, scope: Scope, grid: Grid) -> Value:
        """Reduce over a part of the grid, halved while an intermediate array exceeds the limit."""
        for over in _materialised(scope):
            if grid.volume(over) > self.limit:
                outer = [x for x in scope.traversals if x in over and grid.extent(x) > 1]
                x = next(iter(outer), None) or max(over, key=grid.extent)
                low, high = (self._region(scope, half) for half in grid.halves(x))
                if x in scope.summations:
                    return self._combine(scope.reduce, low, high)
                return _concatenate(low, high, scope.traversals.index(x))
        active = inside_domain(scope.domain, grid) if scope.domain else None
        axes = range(len(scope.traversals), len(grid.ranges))
        extents = [grid.extent(x) for x in grid.ranges]
        count = grid.volume(scope.summations)
        if count == 1:
            out = self._value(scope.body, grid, active)
        elif scope.reduce == "sum":
            out = self._sum(scope.body, grid, axes, active)
        elif count == 0:
            out = _ranked(self.numbers.constant(REDUCTIONS[scope.reduce]), grid)
        else:
            out = self.numbers.reduce(scope.reduce, self._value(scope.body, grid, active), axes, extents)
        shape = tuple(extents[: axes.start])
        return tuple(Part(np.broadcast_to(a.reshape(a.shape[: len(shape)]), shape), n) for a, n in out)

    def _combine(self, monoid: str, low: Value, high: Value) -> Value:
        if monoid == "sum":
            return self.numbers.add(low, high)
        return self.numbers.apply(JOINS[monoid], (low, high), ())

    def _sum(self, body: Scalar, grid: Grid, axes: range, active: Array | None) -> Value:
        """Sum over *axes*: distribute over sums, contract products pairwise."""
        match body:
            case Apply("+", args):
                return reduce(self.numbers.add, (self._sum(a, grid, axes, active) for a in args))
            case Apply("-", (a, b)):
                negative = self.numbers.negate(self._sum(b, grid, axes, active))
                return self.numbers.add(self._sum(a, grid, axes, active), negative)
            case Apply("neg", (a,)):
                return self.numbers.negate(self._sum(a, grid, axes, active))
            case Apply("*", args):
                factors = [self._value(a, grid, active) for a in args]
            case _:
                factors = [self._value(body, grid, active)]
        return self.numbers.contract(factors, axes, [grid.extent(x) for x in grid.ranges])

    def _value(self, body: Scalar, grid: Grid, active: Array | None) -> Value:
        """Evaluate *body* over the grid; *active* marks the points at which its reads are made."""
        match body:
            case Const(value):
                return _ranked(self.numbers.constant(value), grid)
            case Access(source):
                pairs = zip(self._source(source), self.numbers.constant(source.value), strict=True)
                return tuple(gather_reads(body, list(pairs), grid, active))
            case Apply("where", (Compare() as condition, yes, no)):
                taken, here, there = branch_masks(condition, grid, active)
                return _choose(taken, self._value(yes, grid, here), self._value(no, grid, there))
            case Apply(op, args):
                return self.numbers.apply(op, [self._value(a, grid, active) for a in args], args)
            case Compare():
                raise ValueError(f"comparison {body!r} outside the condition of where")

    def _source(self, source: Tensor | Table | Scope) -> Value:
        match source:
            case Tensor():
                return self.tensor(source)
            case Table():
                return self.numbers.table(source)
            case Scope():
                return self.scope(source)


def _materialised(scope: Scope) -> Iterable[frozenset[Iterator]]:
    """Yield the iterators of each intermediate array."""
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


def _ranked(value: Value, grid: Grid) -> Value:
    """Reshape a constant to the grid's rank."""
    return tuple(Part(a.reshape((1,) * len(grid.ranges)), n) for a, n in value)


def _choose(mask: Array, a: Value, b: Value) -> Value:
    return tuple(exact_arrays.select_entries(mask, x, y) for x, y in zip(a, b, strict=True))


def _concatenate(a: Value, b: Value, axis: int) -> Value:
    pairs = (exact_arrays.common_dtype(pair) for pair in zip(a, b, strict=True))
    return tuple(Part(np.concatenate(arrays, axis), size) for arrays, size in pairs)
