r"""Scopes with their iterators written in digits, x = d·a + b, where indices divide them: most quotients then go.

.. math::  T[i / 4, i \bmod 4],\ i < 12 \;\mapsto\; T[a, b],\ a < 3,\ b < 4
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from einnet_explore.algebra.substitute import fresh, substitute, substitute_domain
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Scalar,
    Scope,
    as_index,
)


def in_digits(scope: Scope) -> Scope:
    """*scope* without iterators of one value, and with iterators that are divided written in digits: x = d·a + b.

    The elements keep their order; the box is another one.  Afterwards indices are affine where they can be.
    """
    fixed: dict[Iterator, Index] = {x: as_index(x.lo) for x in _own(scope) if x.extent == 1}
    to = dict.fromkeys(fixed, ())
    scope = _exchanged(scope, fixed, to)
    while (found := next(((x, d) for x in _own(scope) for d in _divisors(scope, x)), None)) is not None:
        x, d = found
        used = [y.name for y in _own(scope)]
        a = Iterator(fresh(x.name, used), 0, x.extent // d)
        b = Iterator(fresh(x.name, [*used, a.name]), 0, d)
        scope = _exchanged(scope, {x: a * d + b + x.lo}, {x: (a, b)})
    return scope


def _own(scope: Scope) -> tuple[Iterator, ...]:
    return (*scope.traversals, *scope.summations)


def _exchanged(scope: Scope, to: Mapping[Iterator, Index], by: Mapping[Iterator, tuple[Iterator, ...]]) -> Scope:
    return replace(
        scope,
        traversals=tuple(y for x in scope.traversals for y in by.get(x, (x,))),
        summations=tuple(y for x in scope.summations for y in by.get(x, (x,))),
        body=substitute(scope.body, to),
        domain=substitute_domain(scope.domain, to),
    )


def _divisors(scope: Scope, x: Iterator) -> list[int]:
    """The divisors of the extent of *x* by which an index that it occurs in is divided, largest first."""
    own = [*indices(scope.body), *(b.index for b in scope.domain)]
    found = {a.divisor for index in own for a in index.divisions if x in a.numerator.iterators}
    return sorted((d for d in found if d < x.extent and x.extent % d == 0), reverse=True)


def indices(scalar: Scalar) -> Iterable[Index]:
    """Every index of *scalar*, those of comparisons too, not those inside scopes that it reads."""
    match scalar:
        case Access(_, index):
            yield from index
        case Apply(_, args):
            for arg in args:
                yield from indices(arg)
        case Compare(_, left, right):
            yield left
            yield right
        case Const():
            pass
