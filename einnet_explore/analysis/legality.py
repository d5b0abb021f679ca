r"""Reads and padding: every read lies in the box of its source or in its padding.

.. math::  lo_d - before_d \le \tau_d(\vec x, \vec y) < hi_d + after_d

A nested scope's padding costs nothing, so it grows with what is read; a tensor's is part of what it is, so a tensor
that is read further out is first copied: :math:`\{L_z T[z]\}` with padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from einnet_explore.analysis.regions import always_holds, index_reach
from einnet_explore.ir import Access, Bound, Iterator, Padding, Scope, Table, Tensor, accesses, map_accesses, padded


@dataclass(frozen=True, slots=True)
class Excess:
    """Access number *access* reads *source* in dimension *dimension* over [lo, hi], outside [allowed)."""

    access: int
    source: str
    dimension: int
    read: tuple[int, int]
    allowed: tuple[int, int]

    def __str__(self) -> str:
        (lo, hi), (a, b) = self.read, self.allowed
        return f"{self.source} is read at [{lo}, {hi}] in dimension {self.dimension}, outside [{a}, {b})"


def excess(scope: Scope) -> tuple[Excess, ...]:
    """Every read of *scope* itself (not of the scopes inside it) that goes beyond its source's padding."""
    out: list[Excess] = []
    for n, access in enumerate(accesses(scope.body)):
        name = access.source.name if isinstance(access.source, Tensor) else f"scope {n}"
        for d, (i, allowed) in enumerate(zip(access.index, access.source.reach, strict=True)):
            if not always_holds(Bound(i, *allowed), scope.domain):
                read = index_reach(i, scope.domain)
                if read[0] <= read[1]:  # a domain that holds nowhere reads nothing
                    out.append(Excess(n, name, d, read, allowed))
    return tuple(out)


def fit_padding(scope: Scope, value: float, wrap: bool = True) -> Scope:
    """*scope* with every read made legal by padding nested scopes, and by copying tensors if *wrap* is set.

    New padding holds *value* unless the source has padding already.  Raises ValueError where a tensor would have
    to be copied and must not be.
    """
    beyond = excess(scope)
    if not beyond:
        return scope
    numbers = {e.access for e in beyond}
    tensors = [e for e in beyond if isinstance(list(accesses(scope.body))[e.access].source, Tensor)]
    if tensors and not wrap:
        raise ValueError(str(tensors[0]))
    count = iter(range(len(list(accesses(scope.body)))))

    def fit(access: Access) -> Access:
        return _fit(access, scope, value) if next(count) in numbers else access

    return replace(scope, body=map_accesses(scope.body, fit))


def _fit(access: Access, reader: Scope, value: float) -> Access:
    source = access.source
    spans = [index_reach(i, reader.domain) for i in access.index]
    need = tuple(
        (max(lo - first, before, 0), max(last + 1 - hi, after, 0))
        for (lo, hi), (first, last), (before, after) in zip(source.box, spans, _padding(source), strict=True)
    )
    match source:
        case Scope():
            kept = source.value if source.padding or source.domain else value
            return Access(padded(replace(source, value=kept), need), access.index)
        case Tensor() | Table():
            z = tuple(Iterator(f"z{n + 1}", lo, hi) for n, (lo, hi) in enumerate(source.box))
            kept = source.value if source.padding else value
            return Access(Scope(z, (), source[z], padding=need, value=kept), access.index)


def _padding(source: Tensor | Table | Scope) -> Padding:
    return source.padding or ((0, 0),) * len(source.box)


def trim_padding(scope: Scope) -> Scope:
    """*scope* with the padding of the scopes that it reads cut back to what is read; 0 where none is left."""

    def trim(access: Access) -> Access:
        match access.source:
            case Scope(padding=held) as source if held:
                spans = [index_reach(i, scope.domain) for i in access.index]
                need = tuple(
                    (min(before, max(lo - first, 0)), min(after, max(last + 1 - hi, 0)))
                    for (lo, hi), (first, last), (before, after) in zip(source.box, spans, held, strict=True)
                )
                less = padded(source, need)
                if isinstance(less, Scope) and not less.padding and not less.domain:
                    less = replace(less, value=0)
                return Access(less, access.index)
        return access

    return replace(scope, body=map_accesses(scope.body, trim))
