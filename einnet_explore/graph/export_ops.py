r"""Scopes as standard ONNX operators, structure by structure.

.. math::  \Big\{ \mathop{L}_{\vec x} \sum_{\vec y} f(T[\tau(\vec x, \vec y)]) \Big\}

Values live over the iterators that occur in them only.  Sums are distributed over ``+`` and ``-``, products under a sum
are contracted pairwise as ``MatMul``; small sums are written out by ``prepare`` and become chains of slices; whatever
is left is gathered over its iterators and reduced.  Nested scopes are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import isfinite, prod

import numpy as np

from einnet_explore.algebra.substitute import substitute, substitute_domain
from einnet_explore.backends.prepare import prepare
from einnet_explore.graph.onnx_body import Body
from einnet_explore.graph.onnx_reads import Held, mask, pads_needed, read
from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Iterator,
    Padding,
    Scalar,
    Scope,
    Tensor,
    accesses,
    as_index,
)

SIMPLE = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs",
    "erf": "Erf", "neg": "Neg", "pow": "Pow", "maximum": "Max", "minimum": "Min", "/": "Div", "-": "Sub",
    "+": "Add", "*": "Mul",
}  # fmt: skip


def lower(scope: Scope, places: Mapping[str, str], body: Body) -> str:
    """Write *scope* into *body*; *places* names the value of every tensor.  Returns the value of shape ``scope.shape``.

    Raises ValueError for a function that is none of ``FUNCTIONS`` and for a tensor without a place.
    """
    return _Scopes(places, body, {}).instantiate(prepare(scope))


@dataclass(frozen=True)
class _Scopes:
    places: Mapping[str, str]
    body: Body
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
        plain = _without_units(scope)
        grid = (*plain.traversals, *plain.summations)
        values = _Values(self, grid, plain.summations, pads_needed([plain.body]))
        if any(x.extent == 0 for x in plain.summations):
            held = values.constant(REDUCTIONS[plain.reduce])
        elif plain.reduce == "sum":
            held = values.summed(plain.body)
        else:
            held = values.reduced(plain.reduce, plain.body)
        for bound in plain.domain:
            held = values.bounded(bound, held, plain.value)
        return values.result(held, plain.traversals, shape)

    def source(self, source: Tensor | Scope) -> str:
        """The value of what an access reads."""
        match source:
            case Tensor(name):
                if name not in self.places:
                    raise ValueError(f"tensor {name} has no value, only {', '.join(self.places) or 'none'} have")
                return self.places[name]
            case Scope():
                return self.instantiate(source)


def _without_units(scope: Scope) -> Scope:
    """*scope* without iterators that take one value only."""
    fixed = {x: as_index(x.lo) for x in (*scope.traversals, *scope.summations) if x.extent == 1}
    return replace(
        scope,
        traversals=tuple(x for x in scope.traversals if x not in fixed),
        summations=tuple(x for x in scope.summations if x not in fixed),
        body=substitute(scope.body, fixed),
        domain=substitute_domain(scope.domain, fixed),
    )


@dataclass(frozen=True)
class _Values:
    """Values over *grid*: all iterators of one scope, the *summations* last."""

    scopes: _Scopes
    grid: tuple[Iterator, ...]
    summations: tuple[Iterator, ...]
    pads: Mapping[Tensor | Scope, Padding]
    done: dict[Scalar, Held] = field(default_factory=dict)

    @property
    def body(self) -> Body:
        return self.scopes.body

    def constant(self, value: float) -> Held:
        """A number."""
        return Held(self.body.number(value), ())

    def value(self, scalar: Scalar) -> Held:
        """*scalar* over its own iterators."""
        if scalar not in self.done:
            self.done[scalar] = self._value(scalar)
        return self.done[scalar]

    def _value(self, scalar: Scalar) -> Held:
        match scalar:
            case Const(value):
                return self.constant(value)
            case Access(source) if 0 in source.shape:
                return self.constant(source.value)
            case Access(source):
                return read(self.body, scalar, self.scopes.source(source), self.grid, self.pads[source])
            case Compare():
                return mask(self.body, scalar, self.grid)
            case Apply("rsqrt", (a,)):
                return self.apply("Reciprocal", self.apply("Sqrt", self.value(a)))
            case Apply("where", args):
                return self.apply("Where", *map(self.value, args))
            case Apply("+" | "*" as op, args):
                return reduce(lambda a, b: self.apply(SIMPLE[op], a, b), map(self.value, args))
            case Apply(op, args) if op in SIMPLE:
                return self.apply(SIMPLE[op], *map(self.value, args))
        raise ValueError(f"{scalar!r} is no scalar function that ONNX has")

    def apply(self, op: str, *args: Held) -> Held:
        """The elementwise operator *op*, broadcast."""
        over = tuple(x for x in self.grid if any(x in a.over for a in args))
        return Held(self.body.emit(op, *(a.name for a in args)), over)

    def summed(self, scalar: Scalar) -> Held:
        """Σ over the summations: distributed over sums, contracted pairwise over products."""
        match scalar:
            case Apply("+", args):
                return reduce(lambda a, b: self.apply("Add", a, b), map(self.summed, args))
            case Apply("-", (a, b)):
                return self.apply("Sub", self.summed(a), self.summed(b))
            case Apply("neg", (a,)):
                return self.apply("Neg", self.summed(a))
            case Apply("/", (a, Const() as b)):
                return self.apply("Div", self.summed(a), self.value(b))
            case Apply("where", (Compare() as test, a, b)) if not self._sums(test):
                return self.apply("Where", self.value(test), self.summed(a), self.summed(b))
            case Apply("where", (test, Apply("*", args), Const(0) as zero)) if (n := self._guardable(test, args)) >= 0:
                guarded = Apply("where", (test, args[n], zero))
                return self._product([guarded if m == n else a for m, a in enumerate(args)])
            case Apply("*", args):
                return self._product(args)
        return self._product([scalar])

    def _sums(self, test: Compare) -> bool:
        return any(x in self.summations for x in (*test.left.iterators, *test.right.iterators))

    def _guardable(self, test: Scalar, args: Sequence[Scalar]) -> int:
        """Which factor may take the guard of the whole product: the smallest over the guard's iterators; -1: none.

        The others must not be infinite where the guard fails, as padding may be.
        """
        own = set(_iterators(test))
        if not all(isfinite(a.source.value) for arg in args for a in accesses(arg)):
            return -1
        wide = [(prod(x.extent for x in xs), n) for n, a in enumerate(args) if own <= (xs := set(_iterators(a)))]
        return min(wide, default=(0, -1))[1]

    def _product(self, args: Sequence[Scalar]) -> Held:
        factors = [self.value(a) for a in args]
        missing = prod(x.extent for x in self.summations if not any(x in f.over for f in factors))
        out = factors[0]
        for n, factor in enumerate(factors[1:], 2):
            out = self._contract(out, factor, [x for x in self.summations if not any(x in f.over for f in factors[n:])])
        out = self._total("sum", out)
        return out if missing == 1 else self.apply("Mul", out, self.constant(missing))

    def reduced(self, monoid: str, scalar: Scalar) -> Held:
        """The reduction over the summations by any monoid."""
        held = self.value(scalar)
        missing = prod(x.extent for x in self.summations if x not in held.over)
        held = self._total(monoid, held)
        return self.apply("Pow", held, self.constant(missing)) if monoid == "prod" and missing != 1 else held

    def _total(self, monoid: str, held: Held) -> Held:
        axes = [n for n, x in enumerate(self.grid) if x in held.over and x in self.summations]
        over = tuple(x for x in held.over if x not in self.summations)
        return Held(self.body.reduce(monoid, held.name, axes), over)

    def _sum_over(self, held: Held, over: Sequence[Iterator]) -> Held:
        axes = [n for n, x in enumerate(self.grid) if x in held.over and x in over]
        return Held(self.body.reduce("sum", held.name, axes), tuple(x for x in held.over if x not in over))

    def _contract(self, a: Held, b: Held, done: Sequence[Iterator]) -> Held:
        """Σ over *done* of a·b: a batched matrix product where both have iterators of their own, else a product."""
        a = self._sum_over(a, [x for x in done if x not in b.over])
        b = self._sum_over(b, [x for x in done if x not in a.over])
        inner = [x for x in done if x in a.over and x in b.over]
        batch = [x for x in a.over if x in b.over and x not in inner]
        left = [x for x in a.over if x not in b.over]
        right = [x for x in b.over if x not in a.over]
        if not inner or not (left or right):
            return self._sum_over(self.apply("Mul", a, b), inner)
        x = self._matrix(a, batch, left, inner)
        y = self._matrix(b, batch, inner, right)
        name = self.body.emit("MatMul", x, y)
        order = (*batch, *left, *right)
        extents = [x.extent for x in order]
        shape = [
            *([prod(x.extent for x in batch)] if batch else []),
            *(prod(x.extent for x in g) for g in (left, right)),
        ]
        kept = tuple(x for x in self.grid if x in order)
        name = self.body.transpose(self.body.reshape(name, shape, extents), [order.index(x) for x in kept])
        full = [x.extent if x in order else 1 for x in self.grid]
        return Held(self.body.reshape(name, [x.extent for x in kept], full), kept)

    def _matrix(self, held: Held, batch: list[Iterator], rows: list[Iterator], columns: list[Iterator]) -> str:
        own = [x.extent for x in held.over]
        full = [x.extent if x in held.over else 1 for x in self.grid]
        order = [*batch, *rows, *columns]
        turn = [held.over.index(x) for x in order]
        groups = [*([batch] if batch else []), rows, columns]
        shape = [prod(x.extent for x in g) for g in groups]
        if turn == sorted(turn):
            return self.body.reshape(held.name, full, shape)
        name = self.body.transpose(self.body.reshape(held.name, full, own), turn)
        return self.body.reshape(name, [own[n] for n in turn], shape)

    def bounded(self, bound: Bound, held: Held, value: float) -> Held:
        """*held* where *bound* holds, *value* elsewhere."""
        lo, hi = bound.index.bounds
        for op, edge, needed in ((">=", bound.lo, lo < bound.lo), ("<", bound.hi, hi >= bound.hi)):
            if needed:
                test = mask(self.body, Compare(op, bound.index, as_index(edge)), self.grid)
                held = self.apply("Where", test, held, self.constant(value))
        return held

    def result(self, held: Held, traversals: tuple[Iterator, ...], shape: tuple[int, ...]) -> str:
        """*held* in full, in the shape of the scope."""
        name, own = held.name, [x.extent if x in held.over else 1 for x in self.grid]
        if not held.over and not traversals:  # a number, of any rank
            return self.body.emit("Reshape", name, self.body.constant(shape))
        if held.over != traversals:
            kept = [x.extent if x in held.over else 1 for x in traversals]
            name = self.body.reshape(name, own, kept) if held.over else name
            own = [x.extent for x in traversals]
            name = self.body.emit("Expand", name, self.body.constant(own))
        return self.body.reshape(name, own, shape)


def _iterators(scalar: Scalar) -> tuple[Iterator, ...]:
    match scalar:
        case Access(_, index):
            return tuple(x for i in index for x in i.iterators)
        case Apply(_, args):
            return tuple(x for a in args for x in _iterators(a))
        case Compare(_, left, right):
            return (*left.iterators, *right.iterators)
        case Const():
            return ()
