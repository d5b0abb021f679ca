"""Structures of scopes, in which names are numbers; and patterns: structures without extents and constants."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import isfinite

from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Padding,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    scopes,
)


@dataclass
class Structure:
    """Scopes as nested tuples: iterators and *tensors* are numbered in order of appearance.

    Scopes of equal structure are equal up to names, and to which of their tensors are weights.
    """

    tensors: dict[str, int] = field(default_factory=dict)

    def scope(self, scope: Scope) -> Hashable:
        """Return the structure of *scope*."""
        own = {x: n for n, x in enumerate((*scope.traversals, *scope.summations))}
        return len(scope.traversals), len(own), scope.reduce, self.edges(scope, own), self._scalar(scope.body, own)

    def edges(self, scope: Scope, own: Mapping[Iterator, int]) -> Hashable:
        """Return the structure of the ranges, the domain and the padding of *scope*."""
        domain = tuple((_index(b.index, own), b.lo, b.hi) for b in scope.domain)
        return tuple((x.lo, x.hi) for x in own), domain, scope.padding, self.constant(scope.value)

    def tensor(self, tensor: Tensor) -> Hashable:
        """Return the structure of *tensor* apart from its number."""
        return tensor.dtype, tensor.shape, tensor.origin, self.constant(tensor.value)

    def constant(self, value: float) -> Hashable:
        """Return the structure of a number."""
        return float(value)

    def _scalar(self, body: Scalar, own: Mapping[Iterator, int]) -> Hashable:
        match body:
            case Const(value):
                return self.constant(value)
            case Access(source, index):
                return self._source(source), tuple(_index(i, own) for i in index)
            case Compare(op, left, right):
                return op, _index(left, own), _index(right, own)
            case Apply(op, args):
                return op, tuple(self._scalar(arg, own) for arg in args)

    def _source(self, source: Tensor | Table | Scope) -> Hashable:
        match source:
            case Tensor(name):
                return self.tensors.setdefault(name, len(self.tensors)), self.tensor(source)
            case Scope():
                return self.scope(source)
            case Table(shape, entries):
                return shape, tuple(map(str, entries))


def _index(index: Index, own: Mapping[Iterator, int]) -> Hashable:
    """Return the structure of *index*, whose terms are ordered by name."""
    parts = (
        (own[atom], k)
        if isinstance(atom, Iterator)
        else (type(atom).__name__, _index(atom.numerator, own), atom.divisor, k)
        for atom, k in index.terms
    )
    return tuple(sorted(parts, key=repr)), index.const


class _Pattern(Structure):
    """Structures without extents, and without constants but 0, 1 and infinity, whose laws are others."""

    def edges(self, scope: Scope, own: Mapping[Iterator, int]) -> Hashable:
        return len(scope.domain), _padded(scope.padding), self.constant(scope.value)

    def tensor(self, tensor: Tensor) -> Hashable:
        return tensor.dtype, tensor.weight, _padded(tensor.padding), self.constant(tensor.value)

    def constant(self, value: float) -> Hashable:
        return float(value) if abs(value) in (0, 1) or not isfinite(value) else "constant"


def _padded(padding: Padding) -> tuple[bool, ...]:
    """Return the dimensions with padding, whose amount depends on extents."""
    return tuple(pair != (0, 0) for pair in padding)


def pattern(program: Program) -> Hashable:
    """Return the pattern of *program*: its functions, reads, strides and offsets, without extents and constants.

    Divisors stay, although quotients and remainders depend on extents by them.
    """
    structure = _Pattern()
    found = []
    for equation in program.equations:
        found.append(structure.scope(equation.scope))
        structure.tensors[equation.name] = len(structure.tensors)
    return tuple(found), tuple(structure.tensors[name] for name in program.outputs)


def extents(program: Program) -> Hashable:
    """Return the ranges of all iterators of *program*: with its pattern, only names and constants are left open."""
    every = (scope for equation in program.equations for _, scope in scopes(equation.scope))
    return tuple(tuple((x.lo, x.hi) for x in (*scope.traversals, *scope.summations)) for scope in every)
