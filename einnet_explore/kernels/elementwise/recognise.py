"""Expressions that are element-wise: every read is at the position that is written, or at one fixed position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from einnet_explore.algebra.substitute import substitute
from einnet_explore.ir import Access, Index, Iterator, Scalar, Scope, Tensor, as_index, map_accesses
from einnet_explore.kernels.elementwise.functor import Functor, operand
from einnet_explore.kernels.source import F32, KernelError, Type


def functor(
    scope: Scope, name: str = "elementwise", kind: Type = F32, kinds: Mapping[str, Type] | None = None
) -> Functor:
    """*scope* as a functor over its elements in memory order, all of *kind* unless *kinds* says otherwise by name.

    Scopes that it reads are put in.  A tensor with a single element is a scalar.  Raises KernelError, with the read or
    the condition in question, where the expression is not element-wise, and for types without a common one.
    """
    given = kinds or {}
    found: dict[str, bool] = {}

    def read(access: Access) -> Scalar:
        source = access.source
        if not isinstance(source, Tensor):
            raise KernelError(f"{name} reads a table at {access.index!r}: that is not element-wise")
        single = _place(access, scope, name)
        if found.setdefault(source.name, single) != single:
            raise KernelError(f"{name} reads {source.name} both by position and as a scalar")
        return operand(source.name)

    body = map_accesses(_flat(scope, name), read)
    typed = [(n, given.get(n, kind)) for n in found]
    return Functor(
        body,
        given.get(name, kind),
        tuple(t for t in typed if not found[t[0]]),
        tuple(t for t in typed if found[t[0]]),
        name,
    )


def _flat(scope: Scope, name: str) -> Scalar:
    """The body of *scope* with the scopes that it reads put in."""
    if scope.summations:
        sums = ", ".join(f"{s.name}:{s.lo}..{s.hi}" for s in scope.summations)
        raise KernelError(f"{name} has {scope.reduce}[{sums}]: a reduction is not element-wise")
    if scope.domain:
        raise KernelError(f"{name} is computed where {scope.domain[0]!r} only: that is not element-wise")

    def put(access: Access) -> Scalar:
        if not isinstance(access.source, Scope):
            return access
        _inside(access, name)
        at = dict(zip(access.source.traversals, access.index, strict=True))
        return substitute(_flat(access.source, name), at)

    return map_accesses(scope.body, put)


def _inside(access: Access, name: str) -> None:
    for index, (lo, hi) in zip(access.index, access.source.box, strict=True):
        least, most = index.bounds
        if least < lo or most >= hi:
            raise KernelError(f"{name} reads {access.source!r} at {index} in [{least}, {most}], outside [{lo}, {hi})")


def _place(access: Access, scope: Scope, name: str) -> bool:
    """False where *access* is at the position that is written, True where it is at the only one there is."""
    _inside(access, name)
    address = _address(access.index, access.source.box)
    here = _address([as_index(x) for x in scope.traversals], scope.box)
    size, whole = prod(access.source.shape), prod(scope.shape)
    if size == whole and _same(address, here):
        return False
    if size == 1:
        return True
    raise KernelError(
        f"{name} reads {access!r} of {size} elements at {address}, and writes {whole} at {here}: not element-wise"
    )


def _same(a: Index, b: Index) -> bool:
    # An iterator of one value is that value, whichever is written.
    alone: dict[Iterator, Index] = {
        x: as_index(Iterator(x.name, x.lo, x.hi)) * 0 + x.lo for i in (a, b) for x in i.iterators if x.extent == 1
    }
    return a.substitute(lambda x: alone.get(x, as_index(x))) == b.substitute(lambda x: alone.get(x, as_index(x)))


def _address(index: Iterable[Index], box: tuple[tuple[int, int], ...]) -> Index:
    """The flat position of *index* in an array that holds *box*."""
    total = Index()
    for i, (lo, hi) in zip(index, box, strict=True):
        total = total * (hi - lo) + (i - lo)
    return total
