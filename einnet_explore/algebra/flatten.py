r"""Flattening: an access as one index into the row-major elements of its source (EinNet §5.1; PlaidML).

.. math::  \mathrm{flat}(T[\tau]) = \sum_d (\tau_d - lo_d)\, \prod_{e > d} n_e
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

from einnet_explore.algebra.regions import always
from einnet_explore.ir import Access, Bound, Index, Scope, Tensor

_REMEMBERED = 1 << 14


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of an array of *shape* whose last dimension is contiguous."""
    return tuple(accumulate((1, *shape[:0:-1]), lambda a, b: a * b))[::-1] if shape else ()


@lru_cache(_REMEMBERED)
def flat_address(access: Access) -> Index:
    """The position among the source's stored elements of what *access* reads, as one index in its iterators.

    It means that only where the read is inside the source's box.
    """
    source = access.source
    total = Index()
    for i, (lo, _), stride in zip(access.index, source.box, row_major(source.shape), strict=True):
        total = total + (i - lo) * stride
    return total


def view_strides(scope: Scope) -> tuple[int, tuple[int, ...]] | None:
    """(offset, strides) in elements of the tensor that *scope* reads, if it is that tensor's elements seen otherwise.

    A dimension of one element has the stride that a packed array would have: no other is more true.  None if it
    computes anything, reads padding, has a domain, or reads at an address that is not affine.
    """
    match scope:
        case Scope(summations=(), body=Access(Tensor() as source, index) as access, domain=()):
            pass
        case _:
            return None
    if not all(always(Bound(i, lo, hi)) for i, (lo, hi) in zip(index, source.box, strict=True)):
        return None
    flat = flat_address(access)
    if not flat.affine:
        return None
    own = row_major(scope.shape)
    strides = tuple(o if x.extent == 1 else flat.coefficient(x) for x, o in zip(scope.traversals, own, strict=True))
    return flat.evaluate(lambda x: x.lo), strides
