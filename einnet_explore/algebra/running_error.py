r"""Running error analysis: with every value the largest error that single precision may have left in it.

Every value is a pair, what it is in double precision and how far what is computed may be from it; roundings are those
of the scopes as they stand (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.3).  With
:math:`\tilde x = |x| + e_x`, unit roundoff `u`, and :math:`\gamma_t = t u / (1 - t u)`,

.. math::
   e\Big(\sum_{\vec y} \prod_k x_k\Big) = \sum_{\vec y} \Big(\prod_k \tilde x_k - \prod_k |x_k|\Big)
   + \gamma_t \sum_{\vec y} \prod_k \tilde x_k,

where `t` counts the products and the additions, taken in any order; a monotone function has the larger of its changes
over :math:`[x - e_x, x + e_x]`, and an error of its own.  So what a bilinear algorithm adds and takes away again is in
the bound, and a bound of one algorithm on the same numbers can be held against that of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np

from einnet_explore.algebra import parts
from einnet_explore.algebra.grid import Grid, branches, gathered, holds
from einnet_explore.algebra.near import SLACK, Near, applied, constant
from einnet_explore.algebra.parts import Array, Part
from einnet_explore.algebra.rounding import gamma
from einnet_explore.ir import Access, Apply, Compare, Const, Scalar, Scope, Table, Tensor

_LIMIT = 1 << 23
"""Elements of what is gathered at once."""


class _Sum(NamedTuple):
    """A sum whose own roundings are not counted yet: they are *roundings* at most, in terms that add to *most*."""

    value: Array
    error: Array
    most: Array
    roundings: int


def running_error(scope: Scope, inputs: Mapping[str, Array], rescalings: int = 0) -> Near:
    """Every element of *scope* and its error bound, for *inputs* that hold one array of single precision a tensor.

    Exponentials are rescaled so many times more (the blocks of a softmax in one pass), with arguments that add up to no
    more than their own.  Errors are infinite where nothing can be said (a divisor that may be 0).  Raises ValueError
    for a tensor without array and sums too long for single precision, IllegalRead for reads beyond the padding.
    """
    held = {name: Near(np.asarray(a, np.float64), _zero(np.ndim(a))) for name, a in inputs.items()}
    with np.errstate(all="ignore"):
        found = _Run(held, rescalings).scope(scope)
    return Near(found.value, np.where(np.isnan(found.error), np.inf, found.error))


@dataclass(slots=True)
class _Run:
    tensors: dict[str, Near]
    rescalings: int
    known: dict[Scope, Near] = field(default_factory=dict)

    def scope(self, scope: Scope) -> Near:
        if scope in self.known:
            return self.known[scope]
        found = self.region(scope, Grid({x: (x.lo, x.hi) for x in (*scope.traversals, *scope.summations)}))
        value, error = found.value, found.error
        if found.roundings:
            error = error + gamma(found.roundings) * found.most
        if scope.domain:
            inside = holds(scope.domain, Grid({x: (x.lo, x.hi) for x in scope.traversals}))
            value, error = np.where(inside, value, scope.value), np.where(inside, error, 0)
        self.known[scope] = Near(np.ascontiguousarray(value), np.ascontiguousarray(error))
        return self.known[scope]

    def region(self, scope: Scope, grid: Grid) -> _Sum:
        """The reduction over a part of the grid, halved until what is gathered of it is small."""
        if (x := grid.too_large(scope, _LIMIT)) is not None:
            low, high = (self.region(scope, half) for half in grid.halves(x))
            if x in scope.summations:
                return _plus(low, high)
            d = scope.traversals.index(x)
            value, error, most = (np.concatenate(pair, d) for pair in zip(low[:3], high[:3], strict=True))
            return _Sum(value, error, most, max(low.roundings, high.roundings))
        active = holds(scope.domain, grid) if scope.domain else None
        axes = range(len(scope.traversals), len(grid.ranges))
        if scope.reduce == "sum" and scope.summations:
            found = self.summed(scope.body, grid, axes, active)
            found = found._replace(roundings=found.roundings + grid.volume(scope.summations) - 1)
        else:
            near = self.value(scope.body, grid, active)
            near = _reduced(scope.reduce, near, grid, axes) if scope.summations else near
            found = _Sum(*near, _zero(len(grid.ranges)), 0)
        shape = tuple(grid.extent(x) for x in scope.traversals)
        value, error, most = (np.broadcast_to(a.reshape(a.shape[: len(shape)]), shape) for a in found[:3])
        return _Sum(value, error, most, found.roundings)

    def summed(self, body: Scalar, grid: Grid, axes: range, active: Array | None) -> _Sum:
        """Σ over *axes*: distributed over sums, products contracted pairwise."""
        match body:
            case Apply("+" | "-", args):
                first, *rest = (self.summed(a, grid, axes, active) for a in args)
                if body.op == "-":
                    rest = [r._replace(value=-r.value) for r in rest]
                return reduce(
                    lambda a, b: _plus(a, b, prod(grid.extent(x) for x in list(grid.ranges)[axes.start :])), rest, first
                )
            case Apply("neg", (a,)):
                found = self.summed(a, grid, axes, active)
                return found._replace(value=-found.value)
            case Apply("*", args):
                factors = [self.value(a, grid, active) for a in args]
            case _:
                factors = [self.value(body, grid, active)]
        value = _contracted([f.value for f in factors], grid, axes)
        most = _contracted([f.most for f in factors], grid, axes)
        error = np.zeros_like(most)
        if any(f.error.any() for f in factors):
            error = np.maximum(most - _contracted([np.abs(f.value) for f in factors], grid, axes), 0) + SLACK * most
        return _Sum(value, error, most, len(factors) - 1)

    def value(self, body: Scalar, grid: Grid, active: Array | None) -> Near:
        """The body over the grid, broadcastable to it; *active* says where its reads are made."""
        match body:
            case Const(value):
                return constant(np.full((1,) * len(grid.ranges), value, np.float64))
            case Access():
                return self.read(body, grid, active)
            case Apply("where", (Compare() as condition, yes, no)):
                taken, here, there = branches(condition, grid, active)
                then, other = self.value(yes, grid, here), self.value(no, grid, there)
                return Near(*(np.where(taken, a, b) for a, b in zip(then, other, strict=True)))
            case Apply(op, args):
                return applied(op, [self.value(a, grid, active) for a in args], args, self.rescalings)
        raise ValueError(f"comparison {body!r} outside the condition of where")

    def read(self, access: Access, grid: Grid, active: Array | None) -> Near:
        match access.source:
            case Tensor(name=name):
                if name not in self.tensors:
                    raise ValueError(f"tensor {name} has no array: given are {', '.join(self.tensors)}")
                held = self.tensors[name]
            case Table(shape, entries):
                held = constant(np.array([float(x) for x in entries]).reshape(shape))
            case Scope() as scope:
                held = self.scope(scope)
        outside = constant(np.asarray(access.source.value, np.float64))
        pairs = ((held.value, outside.value), (np.broadcast_to(held.error, held.value.shape), outside.error))
        found = gathered(access, [(Part(a, 0), Part(b, 0)) for a, b in pairs], grid, active)
        return Near(*(part.array for part in found))


def _contracted(factors: list[Array], grid: Grid, axes: range) -> Array:
    """Σ over *axes* of the product of *factors*."""
    extents = [grid.extent(x) for x in grid.ranges]
    missing = prod(extents[i] for i in axes if all(f.shape[i] == 1 for f in factors))
    out = Part(factors[0], 0)
    for n, factor in enumerate(factors[1:], 2):
        done = frozenset(i for i in axes if all(f.shape[i] == 1 for f in factors[n:]))
        out = parts.contract(out, Part(factor, 0), done)
    out = parts.total(out, tuple(i for i in axes if out.array.shape[i] != 1))
    return np.asarray(out.array * missing)


def _reduced(monoid: str, near: Near, grid: Grid, axes: range) -> Near:
    over = tuple(i for i in axes if near.value.shape[i] != 1)
    if monoid in ("max", "min"):
        best = np.max if monoid == "max" else np.min
        error = np.broadcast_to(near.error, near.value.shape).max(axis=over, keepdims=True)
        return Near(np.asarray(best(near.value, axis=over, keepdims=True)), error)
    power = prod(grid.extent(x) for i, x in enumerate(grid.ranges) if i in axes and i not in over)
    value, most = (a.prod(axis=over, keepdims=True) ** power for a in (near.value, near.most))
    count = prod(grid.extent(x) for i, x in enumerate(grid.ranges) if i in axes)
    return Near(value, most - np.abs(value) + (gamma(max(0, count - 1)) + SLACK) * most)


def _plus(a: _Sum, b: _Sum, additions: int = 1) -> _Sum:
    """Both together, in any order: the longest way meets every addition of both."""
    return _Sum(a.value + b.value, a.error + b.error, a.most + b.most, a.roundings + b.roundings + additions)


def _zero(rank: int) -> Array:
    return np.zeros((1,) * rank)
