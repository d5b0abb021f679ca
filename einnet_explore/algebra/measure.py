r"""Counts: arithmetic operations, elements and bytes of a scope, without a device in mind.

.. math::  \text{intensity} = \frac{\text{FLOPs}}{\text{tensor elements read and written}}

Source: EinNet §5.2: below an intensity of 4 an expression is bound by memory and becomes an eOperator.
"""

from __future__ import annotations

from math import ceil, prod

from einnet_explore.ir import Access, Apply, Compare, Const, Scalar, Scope, Table, accesses, scopes, tensors


def flops(scope: Scope) -> int:
    """Arithmetic operations of *scope* and of the scopes it reads, each distinct one once.

    A point costs the operators of its body and, for each point of a reduction, one combination: a matrix product of
    m × n × k costs 2·m·n·k.  Sums with coefficients from a table cost one operation a coefficient that is not 0.
    """
    nested = dict.fromkeys(inner for _, inner in scopes(scope))
    return sum(map(_own, nested))


def elements(scope: Scope) -> int:
    """Tensor elements touched: those of every distinct tensor that is read, at any depth, and of the result."""
    return sum(prod(t.shape) for t in tensors(scope)) + prod(scope.shape)


def intensity(scope: Scope) -> float:
    """``flops / elements``: 0 where there is no element."""
    touched = elements(scope)
    return flops(scope) / touched if touched else 0.0


def bytes_moved(scope: Scope, itemsize: int = 4) -> int:
    """The bytes that reading every tensor once and writing the result once takes.

    A tensor of which fewer elements are read than it has (a slice, a single row) counts by those.
    """
    read: dict[object, int] = {}
    for _, inner in scopes(scope):
        for access in accesses(inner.body):
            if not isinstance(access.source, Scope):
                points = prod(x.extent for x in {x for i in access.index for x in i.iterators})
                most = min(points, prod(access.source.shape))
                read[access.source] = min(prod(access.source.shape), read.get(access.source, 0) + most)
    return itemsize * (sum(read.values()) + prod(scope.shape))


def _own(scope: Scope) -> int:
    points = prod(x.extent for x in (*scope.traversals, *scope.summations))
    tables = [a.source for a in accesses(scope.body) if isinstance(a.source, Table)]
    if tables and scope.summations:
        # An entry that is 0 adds nothing, and the product with another goes with the addition that takes it up.
        there = prod(sum(x != 0 for x in t.entries) / len(t.entries) for t in tables)
        return ceil(points * there * (_operations(scope.body) - len(tables) + 1))
    combined = 1 if scope.summations else 0
    return points * (_operations(scope.body) + combined)


def _operations(body: Scalar) -> int:
    match body:
        case Apply(op, args):
            own = len(args) - 1 if op in ("+", "*") else 1
            return own + sum(map(_operations, args))
        case Access() | Const() | Compare():
            return 0


def reads_once(reader: Scope, access: Access) -> bool:
    """Whether *reader* reads every element of *access*'s source at most once through this access.

    So it is where nothing is summed and each traversal of more than one value stands alone in an index of its own.
    """
    if reader.summations:
        return False
    alone = [x for i in access.index if (x := i.single) is not None and x.extent > 1]
    return sorted(alone, key=repr) == sorted((x for x in reader.traversals if x.extent > 1), key=repr)
