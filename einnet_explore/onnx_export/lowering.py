r"""Lowering of scopes to standard ONNX operators.

.. math::  \Big\{ \mathop{L}_{\vec x} \sum_{\vec y} f(T[\tau(\vec x, \vec y)]) \Big\}

A value has dimensions only for the iterators that occur in it.  Sums are distributed over ``+`` and ``-``; products
under a sum are contracted pairwise as ``MatMul``; ``prepare`` unrolls small sums into chains of slices; all other
accesses are gathered over their iterators and reduced.  Nested scopes are computed once.

Before that, an iterator that an index divides by d is split into x = d·a + b, which removes most quotients:

.. math::  T[i / 4, i \bmod 4],\ i < 12 \;\mapsto\; T[a, b],\ a < 3,\ b < 4
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import isfinite, prod

import numpy as np

from einnet_explore.analysis.indices import fresh_name, substitute, substitute_domain
from einnet_explore.analysis.online_softmax import OnlineSoftmax, row_work
from einnet_explore.analysis.row_nest import RowNest
from einnet_explore.codegen.preparation import prepare
from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Index,
    Iterator,
    Padding,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.onnx_export import banded
from einnet_explore.onnx_export.value_grid import (
    GridValue,
    NodeBuilder,
    ValueGrid,
    emit_access,
    emit_comparison,
    required_padding,
)


def split_divided_iterators(scope: Scope) -> Scope:
    """Return *scope* without iterators of extent 1, and with divided iterators split into x = d·a + b.

    The order of elements stays, the shape changes.
    """
    fixed: dict[Iterator, Index] = {x: as_index(x.lo) for x in _iterators_of(scope) if x.extent == 1}
    to = dict.fromkeys(fixed, ())
    scope = _replace_iterators(scope, fixed, to)
    while (found := next(((x, d) for x in _iterators_of(scope) for d in _divisors(scope, x)), None)) is not None:
        x, d = found
        used = [y.name for y in _iterators_of(scope)]
        a = Iterator(fresh_name(x.name, used), 0, x.extent // d)
        b = Iterator(fresh_name(x.name, [*used, a.name]), 0, d)
        scope = _replace_iterators(scope, {x: a * d + b + x.lo}, {x: (a, b)})
    return scope


def _iterators_of(scope: Scope) -> tuple[Iterator, ...]:
    return (*scope.traversals, *scope.summations)


def _replace_iterators(
    scope: Scope, to: Mapping[Iterator, Index], by: Mapping[Iterator, tuple[Iterator, ...]]
) -> Scope:
    return replace(
        scope,
        traversals=tuple(y for x in scope.traversals for y in by.get(x, (x,))),
        summations=tuple(y for x in scope.summations for y in by.get(x, (x,))),
        body=substitute(scope.body, to),
        domain=substitute_domain(scope.domain, to),
    )


def _divisors(scope: Scope, x: Iterator) -> list[int]:
    """Return the divisors of the extent of *x* by which indices with *x* are divided, largest first."""
    own = [*scalar_indices(scope.body), *(b.index for b in scope.domain)]
    found = {a.divisor for index in own for a in index.divisions if x in a.numerator.iterators}
    return sorted((d for d in found if d < x.extent and x.extent % d == 0), reverse=True)


def scalar_indices(scalar: Scalar) -> Iterable[Index]:
    """Yield every index of *scalar*, comparisons included, nested scopes excluded."""
    match scalar:
        case Access(_, index):
            yield from index
        case Apply(_, args):
            for arg in args:
                yield from scalar_indices(arg)
        case Compare(_, left, right):
            yield left
            yield right
        case Const():
            pass


_ONNX_FUNCTIONS = {f.name: f.onnx for f in SCALAR_FUNCTIONS.values() if f.onnx}


def lower_scope(scope: Scope, places: Mapping[str, str], body: NodeBuilder) -> str:
    """Lower *scope* into *body* and return the name of its value; *places* names the value of every tensor.

    Raises ValueError for an unknown function and for a tensor without a value.
    """

    def plain(scope: Scope, values: Mapping[str, str]) -> str:
        return _Scopes(values, body, {}).instantiate(prepare(scope))

    match row_work(scope):
        case OnlineSoftmax() as weighted:
            return banded.write_online_softmax(weighted, places, body, plain)
        case RowNest(banded=True) as rows:
            return banded.write_row_nest(rows, places, body, plain)
    return plain(scope, places)


@dataclass(frozen=True)
class _Scopes:
    places: Mapping[str, str]
    body: NodeBuilder
    done: dict[Scope, str]

    def instantiate(self, scope: Scope) -> str:
        """Return the value of *scope*."""
        # Readers pad the result themselves, so scopes that differ in padding share it.
        bare = replace(scope, padding=())
        if bare not in self.done:
            self.done[bare] = self._lower(bare)
        return self.done[bare]

    def _lower(self, scope: Scope) -> str:
        body, shape = self.body, scope.shape
        if 0 in shape:
            return body.constant(np.zeros(shape), body.dtype)
        split = split_divided_iterators(scope)
        values = _Values(
            self,
            ValueGrid(body, (*split.traversals, *split.summations)),
            split.summations,
            required_padding([split.body]),
        )
        if any(x.extent == 0 for x in split.summations):
            value = values.grid.constant(REDUCTIONS[split.reduce])
        elif split.reduce == "sum":
            value = values.sum(split.body)
        else:
            value = values.reduce(split.reduce, split.body)
        for bound in split.domain:
            value = values.mask_bound(bound, value, split.value)
        return values.result(value, split.traversals, shape)

    def source(self, source: Tensor | Table | Scope) -> str:
        """Return the value of an access's source."""
        match source:
            case Tensor(name):
                if name not in self.places:
                    raise ValueError(
                        f"tensor {name} has no value; tensors with values: {', '.join(self.places) or 'none'}"
                    )
                return self.places[name]
            case Table(shape, entries):
                return self.body.constant(np.array([float(x) for x in entries]).reshape(shape), self.body.dtype)
            case Scope():
                return self.instantiate(source)


@dataclass(frozen=True)
class _Values:
    """Values over *grid*, whose iterators are those of one scope with its *summations* last."""

    scopes: _Scopes
    grid: ValueGrid
    summations: tuple[Iterator, ...]
    pads: Mapping[Tensor | Table | Scope, Padding]
    done: dict[Scalar, GridValue] = field(default_factory=dict)

    @property
    def body(self) -> NodeBuilder:
        return self.scopes.body

    def value(self, scalar: Scalar) -> GridValue:
        """Return the value of *scalar* over its iterators."""
        if scalar not in self.done:
            self.done[scalar] = self._value(scalar)
        return self.done[scalar]

    def _value(self, scalar: Scalar) -> GridValue:
        match scalar:
            case Const(value):
                return self.grid.constant(value)
            case Access(source) if 0 in source.shape:
                return self.grid.constant(source.value)
            case Access(source):
                return emit_access(self.body, scalar, self.scopes.source(source), self.pads[source])
            case Compare():
                return emit_comparison(self.body, scalar)
            case Apply("rsqrt", (a,)):
                return self.grid.apply("Reciprocal", self.grid.apply("Sqrt", self.value(a)))
            case Apply("+" | "*" as op, args):
                return reduce(lambda a, b: self.grid.apply(_ONNX_FUNCTIONS[op], a, b), map(self.value, args))
            case Apply(op, args) if op in _ONNX_FUNCTIONS:
                return self.grid.apply(_ONNX_FUNCTIONS[op], *map(self.value, args))
        raise ValueError(f"{scalar!r} is not a scalar function of ONNX")

    def sum(self, scalar: Scalar) -> GridValue:
        """Return Σ of *scalar* over the summations: distributed over sums, contracted pairwise in products."""
        match scalar:
            case Apply("+", args):
                return reduce(lambda a, b: self.grid.apply("Add", a, b), map(self.sum, args))
            case Apply("-", (a, b)):
                return self.grid.apply("Sub", self.sum(a), self.sum(b))
            case Apply("neg", (a,)):
                return self.grid.apply("Neg", self.sum(a))
            case Apply("/", (a, Const() as b)):
                return self.grid.apply("Div", self.sum(a), self.value(b))
            case Apply("where", (Compare() as test, a, b)) if not self._sums(test):
                return self.grid.apply("Where", self.value(test), self.sum(a), self.sum(b))
            case Apply("where", (Compare(), _, Const(0))) if factors := self._guard_factors(scalar):
                return self._product(factors)
            case Apply("*", args):
                return self._product(args)
        return self._product([scalar])

    def _sums(self, test: Compare) -> bool:
        return any(x in self.summations for x in _iterators(test))

    def _guard_factors(self, scalar: Scalar) -> list[Scalar]:
        """Return the factors of a product guarded by comparisons; each comparison guards the smallest factor it can.

        Returns no factors if one may be infinite where a comparison fails, as padding may be: 0 · ∞ is not 0.
        """
        tests = []
        while True:
            match scalar:
                case Apply("where", (Compare() as test, inner, Const(0))):
                    tests.append(test)
                    scalar = inner
                case _:
                    break
        found = list(scalar.args if isinstance(scalar, Apply) and scalar.op == "*" else [scalar])
        if not all(_finite(factor) for factor in found):
            return []
        for test in tests:
            own = set(_iterators(test))
            sizes = {n: set(_iterators(a)) for n, a in enumerate(found)}
            wide = [(prod(x.extent for x in xs), n) for n, xs in sizes.items() if own <= xs]
            if wide:
                n = min(wide)[1]
                found[n] = Apply("where", (test, found[n], Const(0)))
            else:
                found.append(Apply("where", (test, Const(1), Const(0))))
        return found

    def _product(self, args: Sequence[Scalar]) -> GridValue:
        factors = [self.value(a) for a in args]
        missing = prod(x.extent for x in self.summations if not any(x in f.over for f in factors))
        out = factors[0]
        for n, factor in enumerate(factors[1:], 2):
            out = self.grid.contract(
                out, factor, [x for x in self.summations if not any(x in f.over for f in factors[n:])]
            )
        out = self.grid.total("sum", out, self.summations)
        return out if missing == 1 else self.grid.apply("Mul", out, self.grid.constant(missing))

    def reduce(self, monoid: str, scalar: Scalar) -> GridValue:
        """Return *scalar* reduced over the summations by *monoid*."""
        value = self.value(scalar)
        missing = prod(x.extent for x in self.summations if x not in value.over)
        value = self.grid.total(monoid, value, self.summations)
        return (
            self.grid.apply("Pow", value, self.grid.constant(missing)) if monoid == "prod" and missing != 1 else value
        )

    def mask_bound(self, bound: Bound, value: GridValue, outside: float) -> GridValue:
        """Return *value* where *bound* holds, *outside* elsewhere."""
        lo, hi = bound.index.bounds
        for op, edge, needed in ((">=", bound.lo, lo < bound.lo), ("<", bound.hi, hi >= bound.hi)):
            if needed:
                test = emit_comparison(self.body, Compare(op, bound.index, as_index(edge)))
                value = self.grid.apply("Where", test, value, self.grid.constant(outside))
        return value

    def result(self, value: GridValue, traversals: tuple[Iterator, ...], shape: tuple[int, ...]) -> str:
        """Return *value* broadcast to *traversals* and reshaped to *shape*."""
        own = [x.extent for x in traversals if x in value.over]
        full = [x.extent for x in traversals]
        name = self.grid.align(value, traversals)
        if own != full:
            name = self.body.emit("Expand", name, self.body.constant(full))
        return self.body.reshape(name, full, shape)


def _finite(scalar: Scalar) -> bool:
    """Return whether all paddings are finite; stored elements are assumed finite."""
    return all(isfinite(access.source.value) for access in accesses(scalar))


def _iterators(scalar: Scalar) -> tuple[Iterator, ...]:
    return tuple(x for index in scalar_indices(scalar) for x in index.iterators)
