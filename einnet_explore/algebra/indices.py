"""The indices in a body: those of its accesses and of its comparisons, not of the scopes inside; their periods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd, lcm

from einnet_explore.ir import Access, Apply, Compare, Const, Index, Iterator, Quotient, Remainder, Scalar


def read_indices(body: Scalar) -> Iterable[Index]:
    """Every index of *body*, left to right."""
    match body:
        case Access(index=index):
            yield from index
        case Apply(args=args):
            for arg in args:
                yield from read_indices(arg)
        case Compare(left=left, right=right):
            yield from (left, right)
        case Const():
            pass


def map_indices(body: Scalar, change: Callable[[Index], Index]) -> Scalar:
    """*body* with every index *i* replaced by ``change(i)``."""
    match body:
        case Access(source, index):
            return Access(source, tuple(map(change, index)))
        case Apply(op, args):
            return Apply(op, tuple(map_indices(a, change) for a in args))
        case Compare(op, left, right):
            return Compare(op, change(left), change(right))
        case Const():
            return body


def iterators_of(body: Scalar) -> frozenset[Iterator]:
    """The iterators that *body* depends on; those of nested scopes are their own."""
    return frozenset(x for i in read_indices(body) for x in i.iterators)


def compared(body: Scalar) -> tuple[Iterator, ...]:
    """The iterators of the comparisons in *body*, each once, left to right."""
    match body:
        case Compare(left=left, right=right):
            return tuple(dict.fromkeys((*left.iterators, *right.iterators)))
        case Apply(args=args):
            return tuple(dict.fromkeys(x for arg in args for x in compared(arg)))
        case Access() | Const():
            return ()


def period(indices: Iterable[Index], x: Iterator) -> int:
    """After so many steps of *x* every quotient and remainder of *indices* repeats."""
    return lcm(*(d // gcd(d, k) for index in indices for d, k in _divided(index, x)), 1)


def _divided(index: Index, x: Iterator) -> Iterable[tuple[int, int]]:
    """(divisor, coefficient of *x*) of everything that is divided and moves with *x*."""
    for atom, _ in index.terms:
        match atom:
            case Quotient(numerator, d) | Remainder(numerator, d):
                if x in numerator.iterators:
                    yield d, numerator.coefficient(x) or 1
                    yield from _divided(numerator, x)
