"""Patterns of programs: what programs have in common that differ in extents, names and constants only."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
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
    Tensor,
    scopes,
)


def pattern(program: Program) -> Hashable:
    """Return the pattern of *program*: its functions, reads, strides and offsets, without extents and constants.

    The constants 0, 1 and infinity stay, whose laws are others.
    """
    tensors: dict[str, int] = {}
    found = []
    for equation in program.equations:
        found.append(_scope(equation.scope, tensors))
        tensors[equation.name] = len(tensors)
    return tuple(found), tuple(tensors[name] for name in program.outputs)


def extents(program: Program) -> Hashable:
    """Return the ranges of all iterators of *program*: with its pattern, only names and constants are left open."""
    every = (scope for equation in program.equations for _, scope in scopes(equation.scope))
    return tuple(tuple((x.lo, x.hi) for x in (*scope.traversals, *scope.summations)) for scope in every)


def _scope(scope: Scope, tensors: dict[str, int]) -> Hashable:
    own = {x: n for n, x in enumerate((*scope.traversals, *scope.summations))}
    edges = len(scope.domain), _padded(scope.padding), _constant(scope.value)
    return len(scope.traversals), len(own), scope.reduce, edges, _scalar(scope.body, own, tensors)


def _scalar(body: Scalar, own: Mapping[Iterator, int], tensors: dict[str, int]) -> Hashable:
    match body:
        case Const(value):
            return _constant(value)
        case Access(Tensor(name) as read, index):
            number = tensors.setdefault(name, len(tensors))
            kind = read.dtype, read.weight, _padded(read.padding), _constant(read.value)
            return number, kind, tuple(_index(i, own) for i in index)
        case Access(Scope() as scope, index):
            return _scope(scope, tensors), tuple(_index(i, own) for i in index)
        case Access(source, index):
            return source, tuple(_index(i, own) for i in index)
        case Compare(op, left, right):
            return op, _index(left, own), _index(right, own)
        case Apply(op, args):
            return op, tuple(_scalar(arg, own, tensors) for arg in args)
    raise TypeError(f"{body!r} is no scalar")


def _index(index: Index, own: Mapping[Iterator, int]) -> Hashable:
    """Return the strides and the offset of *index*; quotients and remainders depend on extents by their divisors."""
    parts = (
        (own[atom], k)
        if isinstance(atom, Iterator)
        else (type(atom).__name__, _index(atom.numerator, own), atom.divisor, k)
        for atom, k in index.terms
    )
    return frozenset(parts), index.const


def _padded(padding: Padding) -> tuple[bool, ...]:
    """Return the dimensions with padding, whose amount depends on extents."""
    return tuple(pair != (0, 0) for pair in padding)


def _constant(value: float) -> Hashable:
    return float(value) if abs(value) in (0, 1) or not isfinite(value) else "constant"
