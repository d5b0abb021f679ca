r"""What no derivation can save: products that have to be formed, results that have to be written.

For a contraction :math:`\sum_{\vec y} A[\tau_A]\,B[\tau_B]` every product of two stored elements is formed at least
once by whatever the rules make of it, if no two points read the same pair (nothing is computed twice) and no element is
used twice for one output (else distributivity would share its factor).  Products with padding that holds 0 need not be.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import prod

from einnet_explore.algebra.regions import collision
from einnet_explore.ir import Access, Apply, Index, Iterator, Scope, Tensor

ENUMERATED = 1 << 20
"""Most points of one index that are gone through to see which lie inside."""


@lru_cache(1 << 10)
def products(scope: Scope) -> int:
    """How many products of two elements *scope* needs at least, however it is derived; 0 where that is not known."""
    match scope:
        case Scope(
            summations=(_, *_),
            body=Apply("*", (Access(Tensor() as a), Access(Tensor() as b)) as reads),
            reduce="sum",
            domain=(),
        ) if a.value == 0 == b.value:
            pass
        case _:
            return 0
    read = [access for access in reads if isinstance(access, Access)]
    indices = [i for access in read for i in access.index]
    own = (*scope.traversals, *scope.summations)
    if not all(i.affine for i in indices):
        return 0
    fixed = dict.fromkeys(scope.traversals, 0)
    for access in read:
        within = [i.substitute(lambda x: fixed.get(x, x)) for i in access.index]
        if collision(scope.summations, within):
            return 0
    return 0 if collision(own, indices) else _inside(own, read)


def _inside(own: tuple[Iterator, ...], read: list[Access]) -> int:
    """The points at which both reads are of stored elements; a lower bound where dimensions depend on one another."""
    points = prod(x.extent for x in own)
    inside, outside, seen = points, 0, set[Iterator]()
    independent = True
    for access in read:
        for i, (lo, hi) in zip(access.index, access.source.box, strict=True):
            first, last = i.bounds
            if lo <= first and last < hi:
                continue
            all_of = prod(x.extent for x in i.iterators)
            if all_of > ENUMERATED:
                return 0
            good = sum(n for value, n in _values(i).items() if lo <= value < hi)
            independent = independent and not seen & set(i.iterators)
            seen.update(i.iterators)
            inside = inside * good // all_of
            outside += points * (all_of - good) // all_of
    return inside if independent else max(0, points - outside)


def _values(index: Index) -> Counter[int]:
    """How often an affine *index* takes each value."""
    found = Counter({index.const: 1})
    for x, k in index.terms:
        assert isinstance(x, Iterator)
        wider: Counter[int] = Counter()
        for value, n in found.items():
            for at in range(x.lo, x.hi):
                wider[value + k * at] += n
        found = wider
    return found
