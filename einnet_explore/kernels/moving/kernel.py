r"""Kernels for GPUs that move memory: every element of the result by one thread, neighbours by neighbouring threads.

.. math::  Y[\vec x] = \bigoplus_{\vec y} f(T[\tau(\vec x, \vec y)]), \qquad |\vec y| \text{ small}

Memory is fast where neighbouring threads touch neighbouring elements.  They go along the innermost dimension of the
result (``straight``); a read whose neighbours lie along another dimension goes through a tile (``tiled``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from einnet_explore.algebra.guarding import guard
from einnet_explore.algebra.substitute import substitute
from einnet_explore.ir import Access, Scalar, Scope, Tensor, accesses, map_accesses
from einnet_explore.kernels.moving.frame import Frame, moves
from einnet_explore.kernels.moving.straight import straight
from einnet_explore.kernels.moving.tiled import tiled, turned
from einnet_explore.kernels.source import F32, Kernel, KernelError, Type

TERMS = 64
"""Terms of a sum, at most: more are worth more than one thread."""

PRODUCTS = 16
"""The same where several tensors are multiplied: those are worth tiles."""


@dataclass(frozen=True)
class Moved:
    """The kernel of a scope: its parameters are the tensors called *inputs*, in order, then the result."""

    kernel: Kernel
    inputs: tuple[str, ...]


def moving(scope: Scope, name: str = "moved", kind: Type = F32) -> Moved:
    """*scope* as a kernel that moves memory; scopes that it reads are put in.

    Raises KernelError, with what was found, where sums are long, a sum is read, or a source is a table.
    """
    body = _flat(scope)
    terms = prod(x.extent for x in scope.summations)
    summed = [a for a in dict.fromkeys(accesses(body)) if moves(a, scope.summations)]
    most = TERMS if len(summed) < 2 else PRODUCTS
    if terms > most or not scope.shape or not prod(scope.shape):
        raise KernelError(f"{name}: sums of {terms} terms over {list(scope.shape)}: expected at most {most}, not empty")
    frame = Frame(scope, body, name, kind)
    down = turned(frame)
    return Moved(straight(frame) if down is None else tiled(frame, *down), tuple(frame.memory))


def _flat(scope: Scope) -> Scalar:
    """The body of *scope*, with the scopes that it reads put in and its domain as a condition."""

    def put(access: Access) -> Scalar:
        match access.source:
            case Tensor():
                return access
            case Scope() as inner if not inner.summations:
                at = dict(zip(inner.traversals, access.index, strict=True))
                return guard(access.index, inner.box, substitute(_flat(inner), at), inner.value)
            case source:
                raise KernelError(f"{source!r} is read at {access.index!r}: expected tensors and scopes without sums")

    if scope.summations and scope.domain:
        raise KernelError(f"a sum with {len(scope.domain)} bounds is not moved")
    body = map_accesses(scope.body, put)
    if not scope.domain:
        return body
    return guard(tuple(b.index for b in scope.domain), tuple((b.lo, b.hi) for b in scope.domain), body, scope.value)
