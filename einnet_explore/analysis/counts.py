r"""Counts of a scope, independent of any device: arithmetic operations, elements, bytes, repeated reads.

.. math::  \text{intensity} = \frac{\text{FLOPs}}{\text{tensor elements read and written}}

Source: EinNet §5.2: below an intensity of 4 an expression is bound by memory and becomes an eOperator; so is a formula
without a sum at any intensity.

``is_transposed_for`` finds tensors that are worth a transposed copy:

.. math::  T = \mathop{L}_{\vec z} A[\pi(\vec z)], \qquad Y[\vec x, h] = \sum_{i} U[\cdot, i]\; T[\dots, h]

If `h` runs along the last dimension of `T` but not along the memory of `A`, vectors of `Y` are gathered from `A` for
every term; a copy `T` gathers each element once.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from math import ceil, prod

from einnet_explore.analysis.flattening import view_strides
from einnet_explore.ir import (
    ELEMENT_TYPES,
    Access,
    Apply,
    Compare,
    Const,
    Equation,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    scopes,
    tensors,
)


def flops(scope: Scope) -> int:
    """Count the arithmetic operations of *scope* and of the scopes it reads, each distinct one once.

    Each point costs the operators of the body, and one combination if it is reduced: a matrix product of m × n × k
    costs 2·m·n·k. Sums with coefficients from a table cost one operation per nonzero coefficient.
    """
    nested = dict.fromkeys(inner for _, inner in scopes(scope))
    return sum(map(_scope_operations, nested))


def elements(scope: Scope) -> int:
    """Count the elements of every distinct tensor that is read, at any depth, and of the result."""
    return sum(prod(t.shape) for t in tensors(scope)) + prod(scope.shape)


def intensity(scope: Scope) -> float:
    """Return ``flops / elements``, or 0 without elements."""
    touched = elements(scope)
    return flops(scope) / touched if touched else 0.0


COMPUTE_BOUND = 4
"""FLOPs an element from which the paper calls an expression compute-bound (§5.2)."""


def is_compute_bound(scope: Scope) -> bool:
    """Return whether *scope* sums what it reads and has an intensity of ``COMPUTE_BOUND`` or more.

    Without a sum, a longer formula does no more with an element that is in a register: memory bounds it at any length.
    A scope that reads no tensor, such as the number of points of a window in an image, is computed beforehand.
    """
    sums = any(inner.summations for _, inner in scopes(scope))
    return sums and any(True for _ in tensors(scope)) and intensity(scope) >= COMPUTE_BOUND


def compute_bound(program: Program, fixed: Collection[str] = ()) -> tuple[int, ...]:
    """Return the numbers of the equations worth a search: compute-bound, not instantiated and not *fixed*."""
    return tuple(
        n
        for n, e in enumerate(program.equations)
        if e.via is None and e.name not in fixed and is_compute_bound(e.scope)
    )


ELEMENT_BYTES = 4
"""Bytes of an element (float32)."""


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element of the type called *dtype*."""
    return max(1, ELEMENT_TYPES[dtype].bits // 8)


def bytes_moved(scope: Scope, itemsize: int = ELEMENT_BYTES) -> int:
    """Count the bytes to read every tensor once and to write the result once.

    A tensor that is read partly (a slice, a single row) counts only the elements read.
    """
    read: dict[object, int] = {}
    for _, inner in scopes(scope):
        for access in accesses(inner.body):
            if not isinstance(access.source, Scope):
                points = prod(x.extent for x in {x for i in access.index for x in i.iterators})
                most = min(points, prod(access.source.shape))
                read[access.source] = min(prod(access.source.shape), read.get(access.source, 0) + most)
    return itemsize * (sum(read.values()) + prod(scope.shape))


def _scope_operations(scope: Scope) -> int:
    points = prod(x.extent for x in (*scope.traversals, *scope.summations))
    tables = [a.source for a in accesses(scope.body) if isinstance(a.source, Table)]
    if tables and scope.summations:
        # An entry that is 0 adds nothing, and the product with another goes with the addition that takes it up.
        there = prod(sum(x != 0 for x in t.entries) / len(t.entries) for t in tables)
        return ceil(points * there * (operations(scope.body) - len(tables) + 1))
    combined = 1 if scope.summations else 0
    return points * (operations(scope.body) + combined)


def operations(body: Scalar) -> int:
    """Count the operators that *body* applies at a point; a sum or product of n parts has n - 1."""
    match body:
        case Apply(op, args):
            own = len(args) - 1 if op in ("+", "*") else 1
            return own + sum(map(operations, args))
        case Access() | Const() | Compare():
            return 0


def reads_once(reader: Scope, access: Access) -> bool:
    """Whether *reader* reads every element of *access*'s source at most once through this access.

    This holds if nothing is summed and each traversal of several values is an index by itself.
    """
    if reader.summations:
        return False
    alone = [x for i in access.index if (x := i.single) is not None and x.extent > 1]
    return sorted(alone, key=repr) == sorted((x for x in reader.traversals if x.extent > 1), key=repr)


MIN_READERS = 2
"""Reads of each element by a sum from which a transposed copy is worthwhile."""


def is_transposed_for(source: Equation, *readers: Equation) -> bool:
    """Whether *source* only transposes a tensor that a *reader* reads several times, across memory.

    Library operators do not count as readers: they pack their operands.
    """
    return _is_transposed_view(source.scope) and any(
        _rereads(scope, access, prod(source.scope.shape))
        for reader in readers
        if reader.via is None or reader.via.is_eoperator
        for _, scope in scopes(reader.scope)
        for access in accesses(scope.body)
        if isinstance(access.source, Tensor) and access.source.name == source.name
    )


@lru_cache(1 << 12)
def _is_transposed_view(scope: Scope) -> bool:
    """Whether *scope* is a tensor whose memory is contiguous along another dimension than the last."""
    found = view_strides(scope)
    if found is None:
        return False
    strides = [k for x, k in zip(scope.traversals, found[1], strict=True) if x.extent > 1]
    return 1 in strides[:-1] and strides[-1] != 1


def _rereads(scope: Scope, access: Access, elements: int) -> bool:
    """Whether *scope* reads each of *elements* several times through *access*, its vectors along the last dimension."""
    moving = [x for x in scope.traversals if x.extent > 1]
    last = next((i for i in reversed(access.index) if i.iterators), None)
    if not scope.summations or not moving or last is None or last.coefficient(moving[-1]) != 1:
        return False
    return prod(x.extent for x in (*moving, *scope.summations)) >= MIN_READERS * elements
