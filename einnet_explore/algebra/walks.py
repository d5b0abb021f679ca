r"""How a sum walks through what it reads.

.. math::  T = \mathop{L}_{\vec z} A[\pi(\vec z)], \qquad Y[\vec x, h] = \sum_{i} U[\cdot, i]\; T[\dots, h]

Where `h` runs along the last dimension of `T` but not along the memory of `A`, vectors of `Y` are gathered from `A` for
every term; `T` made once costs each element once.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from einnet_explore.algebra.flatten import view_strides
from einnet_explore.ir import EOPERATOR, Access, Equation, Scope, Tensor, accesses, scopes

SEVERAL = 2
"""How often a sum reads what is worth being turned for it first, at least."""


def turned_for(source: Equation, *readers: Equation) -> bool:
    """Whether *source* only turns a tensor whose elements one of *readers* sums several times, across memory.

    A library's operator is none of them: it packs what it reads.
    """
    return _turns(source.scope) and any(
        _again(scope, access, prod(source.scope.shape))
        for reader in readers
        if reader.via is None or reader.via.operator == EOPERATOR
        for _, scope in scopes(reader.scope)
        for access in accesses(scope.body)
        if isinstance(access.source, Tensor) and access.source.name == source.name
    )


@lru_cache(1 << 12)
def _turns(scope: Scope) -> bool:
    """Whether *scope* is a tensor whose memory runs along another dimension than the last."""
    found = view_strides(scope)
    if found is None:
        return False
    strides = [k for x, k in zip(scope.traversals, found[1], strict=True) if x.extent > 1]
    return 1 in strides[:-1] and strides[-1] != 1


def _again(scope: Scope, access: Access, elements: int) -> bool:
    """Whether *scope* sums what *access* reads, of so many *elements*, several times, its vectors along the last."""
    moving = [x for x in scope.traversals if x.extent > 1]
    last = next((i for i in reversed(access.index) if i.iterators), None)
    if not scope.summations or not moving or last is None or last.coefficient(moving[-1]) != 1:
        return False
    return prod(x.extent for x in (*moving, *scope.summations)) >= SEVERAL * elements
