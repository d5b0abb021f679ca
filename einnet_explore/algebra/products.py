r"""Products as sums over one body: nested sums put in, factors by what they read, reciprocals told from quotients."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from einnet_explore.algebra.regions import always
from einnet_explore.algebra.substitute import rename, substitute
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Const,
    Iterator,
    Scalar,
    Scope,
    accesses,
    factors,
)


def quotient_factors(body: Scalar) -> tuple[Scalar, ...]:
    """The factors of *body*, a quotient by b being the factors of what is divided and 1 / b."""
    out: list[Scalar] = []
    for factor in factors(body):
        match factor:
            case Apply("/", (a, b)) if a != Const(1):
                out += [*quotient_factors(a), Apply("/", (Const(1), b))]
            case _:
                out.append(factor)
    return tuple(out)


def finite(body: Scalar) -> bool:
    """Whether nothing that *body* reads is padded with an infinite value: 0 times that is no number."""
    return all(isfinite(access.source.value) for access in accesses(body))


def opened(access: Access, reduce: str, used: Iterable[Iterator]) -> tuple[Scalar, tuple[Iterator, ...]] | str:
    """The body and the summations of the scope that *access* reads, in the iterators of the reader, which are *used*.

    Where the scope is more than a reduction by *reduce* of its body at that place, why.
    """
    scope = access.source
    if not isinstance(scope, Scope) or not scope.summations:
        return f"{access!r} reads no reduction"
    if scope.reduce != reduce:
        return f"the inner scope reduces by {scope.reduce}, expected {reduce}"
    if scope.domain:
        return f"the inner scope has a domain: {scope.domain[0]!r}"
    for i, (lo, hi) in zip(access.index, scope.box, strict=True):
        if not always(Bound(i, lo, hi)):
            least, most = i.bounds
            return f"it is read at {i!r} ∈ [{least}, {most}], outside its box [{lo}, {hi})"
    inner = rename(scope, {x.name for x in used})
    return substitute(inner.body, dict(zip(inner.traversals, access.index, strict=True))), inner.summations
