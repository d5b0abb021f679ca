r"""The canonical form of a definition: which of its indices are parameters, in what order, and the key.

.. math::  f(T_1[\tau_1(\vec x)], \dots) = \big(\mathop{L}_{\vec p} f(T_1[\pi_1(\vec p)], \dots)\big)[\sigma(\vec x)]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count

from einnet_explore.algebra.indices import compared
from einnet_explore.algebra.keys import key, numbering
from einnet_explore.algebra.substitute import substitute, with_iterators
from einnet_explore.ir import (
    Access,
    Bound,
    Index,
    Iterator,
    Scalar,
    Scope,
    accesses,
    as_index,
    map_accesses,
)

FREE = 1 << 40
"""Parameters that stand for whole indices range over [-FREE, FREE): who reads the value says where."""


@dataclass(frozen=True)
class Canonical:
    """A definition with its *key*; the indices *at* that its parameters stand for, and its summations as written."""

    key: Hashable
    scope: Scope
    at: tuple[Index, ...]
    summed: tuple[str, ...]


def canonical(body: Scalar, summations: tuple[Iterator, ...] = (), reduce: str = "sum") -> Canonical:
    """*body* reduced over *summations* as a function of its other indices."""
    args, sums, read = _parameters(body, summations)
    # Bounds tell parameters from summations of the same range; they are in no definition.
    marks = tuple(Bound(as_index(p), 0, 0) for p in args)
    number = numbering(Scope((), (*args, *sums), read, reduce, marks))
    params = tuple(sorted(args, key=lambda p: number[p]))
    ordered = tuple(sorted(sums, key=lambda y: number[y]))
    plain = Scope(params, ordered, read, reduce)
    scope = with_iterators(plain, {**numbered(params, "p"), **numbered(ordered, "y")})
    return Canonical(key(scope), scope, tuple(args[p] for p in params), tuple(sums[y].name for y in ordered))


def numbered(iterators: Sequence[Iterator], stem: str) -> dict[Iterator, Iterator]:
    """Iterators of the same ranges called *stem* and a number."""
    return {x: Iterator(f"{stem}{n}", x.lo, x.hi) for n, x in enumerate(iterators)}


def _parameters(
    body: Scalar, summations: tuple[Iterator, ...]
) -> tuple[dict[Iterator, Index], dict[Iterator, Iterator], Scalar]:
    """Parameters and the indices that they stand for, summations and what they were, and the body over these.

    An index is a parameter as a whole where its iterators occur in no other index, are not summed and not compared;
    otherwise its iterators are.
    """
    indices = tuple(dict.fromkeys(i for a in accesses(body) for i in a.index))
    fixed = {*compared(body), *summations}
    whole: dict[Index, Iterator] = {}
    for i in indices:
        mine = set(i.iterators)
        if not mine & fixed and not any(mine & set(j.iterators) for j in indices if j != i):
            whole[i] = Iterator(f"a{len(whole)}", -FREE, FREE)
    rest = dict.fromkeys(x for i in indices if i not in whole for x in i.iterators)
    rest |= dict.fromkeys(compared(body))
    number = count()
    kept = {x: Iterator(f"b{next(number)}", x.lo, x.hi) for x in rest if x not in summations}
    sums = {y: Iterator(f"s{n}", y.lo, y.hi) for n, y in enumerate(summations)}
    to: dict[Iterator, Iterator] = {**kept, **sums}

    def read(access: Access) -> Access:
        return Access(access.source, tuple(as_index(whole[i]) if i in whole else i for i in access.index))

    args = {p: i for i, p in whole.items()} | {p: as_index(x) for x, p in kept.items()}
    return args, {p: y for y, p in sums.items()}, substitute(map_accesses(body, read), to)
