"""The indices in a body: those of its accesses and of its comparisons, not of the scopes inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from einnet_explore.ir import Access, Apply, Compare, Const, Index, Scalar


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
