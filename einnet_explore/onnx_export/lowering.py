r"""Scopes as standard ONNX operators, structure by structure.

.. math::  \Big\{ \mathop{L}_{\vec x} \sum_{\vec y} f(T[\tau(\vec x, \vec y)]) \Big\}

Values live over the iterators that occur in them only.  Sums are distributed over ``+`` and ``-``, products under a sum
are contracted pairwise as ``MatMul``; small sums are written out by ``prepare`` and become chains of slices; whatever
is left is gathered over its iterators and reduced.  Nested scopes are computed once.

Scopes with their iterators written in digits, x = d·a + b, where indices divide them: most quotients then go.

.. math::  T[i / 4, i \bmod 4],\ i < 12 \;\mapsto\; T[a, b],\ a < 3,\ b < 4
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import isfinite, prod

import numpy as np

from einnet_explore.analysis.online_softmax import Online, row_work
from einnet_explore.analysis.row_nest import Nest
from einnet_explore.analysis.substitution import fresh, substitute, substitute_domain
from einnet_explore.codegen.preparation import prepare
from einnet_explore.ir import (
    REDUCTIONS,
    SCALAR_FUNCTIONS,
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
from einnet_explore.onnx_export import banded
from einnet_explore.onnx_export.node_builder import NodeBuilder
from einnet_explore.onnx_export.value_grid import GridValue, ValueGrid, emit_access, emit_comparison, required_padding


def split_divided_iterators(scope: Scope) -> Scope:
    """*scope* without iterators of one value, and with iterators that are divided written in digits: x = d·a + b.

    The elements keep their order; the box is another one.  Afterwards indices are affine where they can be.
    """
    fixed: dict[Iterator, Index] = {x: as_index(x.lo) for x in _own(scope) if x.extent == 1}
    to = dict.fromkeys(fixed, ())
    scope = _exchanged(scope, fixed, to)
    while (found := next(((x, d) for x in _own(scope) for d in _divisors(scope, x)), None)) is not None:
        x, d = found
        used = [y.name for y in _own(scope)]
        a = Iterator(fresh(x.name, used), 0, x.extent // d)
        b = Iterator(fresh(x.name, [*used, a.name]), 0, d)
        scope = _exchanged(scope, {x: a * d + b + x.lo}, {x: (a, b)})
    return scope


def _own(scope: Scope) -> tuple[Iterator, ...]:
    return (*scope.traversals, *scope.summations)


def _exchanged(scope: Scope, to: Mapping[Iterator, Index], by: Mapping[Iterator, tuple[Iterator, ...]]) -> Scope:
    return replace(
        scope,
        traversals=tuple(y for x in scope.traversals for y in by.get(x, (x,))),
        summations=tuple(y for x in scope.summations for y in by.get(x, (x,))),
        body=substitute(scope.body, to),
        domain=substitute_domain(scope.domain, to),
    )


def _divisors(scope: Scope, x: Iterator) -> list[int]:
    """The divisors of the extent of *x* by which an index that it occurs in is divided, largest first."""
    own = [*scalar_indices(scope.body), *(b.index for b in scope.domain)]
    found = {a.divisor for index in own for a in index.divisions if x in a.numerator.iterators}
    return sorted((d for d in found if d < x.extent and x.extent % d == 0), reverse=True)


def scalar_indices(scalar: Scalar) -> Iterable[Index]:
    """Every index of *scalar*, those of comparisons too, not those inside scopes that it reads."""
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
    """Write *scope* into *body*; *places* names the value of every tensor.  Returns the value of shape ``scope.shape``.

    Raises ValueError for a function that is none of ``FUNCTIONS`` and for a tensor without a place.
    """

    def plain(scope: Scope, held: Mapping[str, str]) -> str:
        return _Scopes(held, body, {}).instantiate(prepare(scope))

    match row_work(scope):
        case Online() as weighted:
            return banded.write_online_softmax(weighted, places, body, plain)
        case Nest(banded=True) as rows:
            return banded.write_row_nest(rows, places, body, plain)
    return plain(scope, places)


@dataclass(frozen=True)
class _Scopes:
    places: Mapping[str, str]
    body: NodeBuilder
    done: dict[Scope, str]

    def instantiate(self, scope: Scope) -> str:
        """The value of *scope* over its box."""
        # Its padding is the reader's business: one result serves all.
        bare = replace(scope, padding=())
        if bare not in self.done:
            self.done[bare] = self._instantiated(bare)
        return self.done[bare]

    def _instantiated(self, scope: Scope) -> str:
        body, shape = self.body, scope.shape
        if 0 in shape:
            return body.constant(np.zeros(shape), body.dtype)
        plain = split_divided_iterators(scope)
        values = _Values(
            self,
            ValueGrid(body, (*plain.traversals, *plain.summations)),
            plain.summations,
            required_padding([plain.body]),
        )
        if any(x.extent == 0 for x in plain.summations):
            held = values.grid.constant(REDUCTIONS[plain.reduce])
        elif plain.reduce == "sum":
            held = values.summed(plain.body)
        else:
            held = values.reduced(plain.reduce, plain.body)
        for bound in plain.domain:
            held = values.bounded(bound, held, plain.value)
        return values.result(held, plain.traversals, shape)

    def source(self, source: Tensor | Table | Scope) -> str:
        """The value of what an access reads."""
        match source:
            case Tensor(name):
                if name not in self.places:
                    raise ValueError(f"tensor {name} has no value, only {', '.join(self.places) or 'none'} have")
                return self.places[name]
            case Table(shape, entries):
                return self.body.constant(np.array([float(x) for x in entries]).reshape(shape), self.body.dtype)
            case Scope():
                return self.instantiate(source)


@dataclass(frozen=True)
class _Values:
    """Values over *grid*: all iterators of one scope, the *summations* last."""

    scopes: _Scopes
    grid: ValueGrid
    summations: tuple[Iterator, ...]
    pads: Mapping[Tensor | Table | Scope, Padding]
    done: dict[Scalar, GridValue] = field(default_factory=dict)

    @property
    def body(self) -> NodeBuilder:
        return self.scopes.body

    def value(self, scalar: Scalar) -> GridValue:
        """*scalar* over its own iterators."""
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
        raise ValueError(f"{scalar!r} is no scalar function that ONNX has")

    def summed(self, scalar: Scalar) -> GridValue:
        """Σ over the summations: distributed over sums, contracted pairwise over products."""
        match scalar:
            case Apply("+", args):
                return reduce(lambda a, b: self.grid.apply("Add", a, b), map(self.summed, args))
            case Apply("-", (a, b)):
                return self.grid.apply("Sub", self.summed(a), self.summed(b))
            case Apply("neg", (a,)):
                return self.grid.apply("Neg", self.summed(a))
            case Apply("/", (a, Const() as b)):
                return self.grid.apply("Div", self.summed(a), self.value(b))
            case Apply("where", (Compare() as test, a, b)) if not self._sums(test):
                return self.grid.apply("Where", self.value(test), self.summed(a), self.summed(b))
            case Apply("where", (Compare(), _, Const(0))) if factors := self._guarded(scalar):
                return self._product(factors)
            case Apply("*", args):
                return self._product(args)
        return self._product([scalar])

    def _sums(self, test: Compare) -> bool:
        return any(x in self.summations for x in _iterators(test))

    def _guarded(self, scalar: Scalar) -> list[Scalar]:
        """A product that is 0 unless tests hold as a product: each test guards its smallest factor, or is one itself.

        Empty where that is not the same, since a factor may be infinite where a test fails, as padding may be.
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

    def reduced(self, monoid: str, scalar: Scalar) -> GridValue:
        """The reduction over the summations by any monoid."""
        held = self.value(scalar)
        missing = prod(x.extent for x in self.summations if x not in held.over)
        held = self.grid.total(monoid, held, self.summations)
        return self.grid.apply("Pow", held, self.grid.constant(missing)) if monoid == "prod" and missing != 1 else held

    def bounded(self, bound: Bound, held: GridValue, value: float) -> GridValue:
        """*held* where *bound* holds, *value* elsewhere."""
        lo, hi = bound.index.bounds
        for op, edge, needed in ((">=", bound.lo, lo < bound.lo), ("<", bound.hi, hi >= bound.hi)):
            if needed:
                test = emit_comparison(self.body, Compare(op, bound.index, as_index(edge)))
                held = self.grid.apply("Where", test, held, self.grid.constant(value))
        return held

    def result(self, held: GridValue, traversals: tuple[Iterator, ...], shape: tuple[int, ...]) -> str:
        """*held* in full, in the shape of the scope."""
        own = [x.extent for x in traversals if x in held.over]
        full = [x.extent for x in traversals]
        name = self.grid.aligned(held, traversals)
        if own != full:
            name = self.body.emit("Expand", name, self.body.constant(full))
        return self.body.reshape(name, full, shape)


def _finite(scalar: Scalar) -> bool:
    """Whether reads outside what is stored are finite; what is stored is taken to be."""
    return all(isfinite(access.source.value) for access in accesses(scalar))


def _iterators(scalar: Scalar) -> tuple[Iterator, ...]:
    return tuple(x for index in scalar_indices(scalar) for x in index.iterators)
