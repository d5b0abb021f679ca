r"""Stages as vectors: small sums written out, what coefficients hang on side by side.

.. math::  y_p = \sum_i U[p, i]\, x_i \quad \text{for every } p

is computed for a vector of neighbours at a time: the `x_i` are loaded once for all `p`, entries of `U` are immediates,
and those that are 0 cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from math import prod

from einnet_explore.algebra.lookup import written
from einnet_explore.algebra.substitute import substitute
from einnet_explore.backends.blocks.local import Local
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Remainder,
    Scalar,
    Table,
    accesses,
    add,
    as_index,
    map_accesses,
)

SIDE_BY_SIDE = 64
"""At most so many cases are written out beside one another."""

WRITTEN_OUT = 64
"""At most so many terms of a sum are written out."""


def phased(stage: Local) -> tuple[Local, tuple[Iterator, ...]]:
    """*stage* with every traversal whose value, or its remainder, is looked up in a table as a loop of its own.

    Given with those loops: they are to be unrolled.
    """
    cases: list[Iterator] = []
    for x, period in _looked_up(stage):
        if prod(c.extent for c in cases) * period > SIDE_BY_SIDE or x in stage.guards:
            continue
        if period == x.extent:
            cases.append(x)
            continue
        if x.extent % period or x.lo:
            continue
        outer, case = Iterator(f"{x.name}o", 0, x.extent // period), Iterator(f"{x.name}i", 0, period)
        to = {x: as_index(outer) * period + case}
        n = stage.traversals.index(x)
        stage = replace(
            stage,
            traversals=(*stage.traversals[:n], outer, case, *stage.traversals[n + 1 :]),
            body=substitute(stage.body, to),
            place=stage.place.substitute(lambda y, to=to: to.get(y, y)),  # type: ignore[misc]
        )
        cases.append(case)
    return stage, tuple(cases)


def _looked_up(stage: Local) -> Iterable[tuple[Iterator, int]]:
    found: dict[Iterator, int] = {}
    for access in accesses(stage.body):
        if isinstance(access.source, Table):
            for index in access.index:
                match index.terms:
                    case ((Iterator() as x, 1),) if x in stage.traversals[:-1]:
                        found[x] = x.extent
                    case ((Remainder(numerator, d), 1),) if numerator.single in stage.traversals[:-1]:
                        assert numerator.single is not None
                        found.setdefault(numerator.single, d)
    return found.items()


def terms(stage: Local, case: Mapping[Iterator, int]) -> Scalar | None:
    """The body where the unrolled iterators are *case*, its sums written out; None where there are too many terms."""
    if prod(y.extent for y in stage.sums) > WRITTEN_OUT:
        return None
    fixed: Mapping[Iterator, Index] = {x: as_index(n) for x, n in case.items()}
    values = product(*(range(y.lo, y.hi) for y in stage.sums))
    bodies = []
    for at in values:
        to = {**fixed, **{y: as_index(n) for y, n in zip(stage.sums, at, strict=True)}}
        bodies.append(simplified(map_accesses(substitute(stage.body, to), _read)))
    return add(*bodies) if stage.sums else bodies[0]


def _read(access: Access) -> Scalar:
    return written(access.source, access.index) if isinstance(access.source, Table) else access


def simplified(body: Scalar) -> Scalar:
    """*body* with products with 0 and 1 and conditions that are decided carried out."""
    match body:
        case Apply("*", args):
            args = tuple(map(simplified, args))
            scale = prod(a.value for a in args if isinstance(a, Const))
            rest = tuple(a for a in args if not isinstance(a, Const))
            if scale == 0 or not rest:
                return Const(scale)
            kept = rest if scale == 1 else (Const(scale), *rest)
            return kept[0] if len(kept) == 1 else Apply("*", kept)
        case Apply(op, args):
            return Apply(op, tuple(a if isinstance(a, Compare) else simplified(a) for a in args))
    return body
