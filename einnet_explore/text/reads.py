r"""Whether an index can leave what it reads: :math:`\exists x \in D:\ \tau(x) \notin [lo, hi)`.

Intervals answer for affine indices without a domain.  Otherwise the box of iterators is halved until intervals
decide, so the answer is exact unless that takes more than ``BUDGET`` halvings; then the read counts as leaving.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from einnet_explore.ir import Bound, Index, Iterator

BUDGET = 20_000


def leaving(index: Index, lo: int, hi: int, domain: Sequence[Bound]) -> tuple[int, int] | None:
    """The closed interval that *index* reaches if it leaves ``[lo, hi)`` somewhere in *domain*, else None."""
    if lo <= index.bounds[0] and index.bounds[1] < hi:
        return None
    if index.affine and not domain:
        return index.bounds
    reach = _clipped(index, domain)
    boxes = [(index, tuple(domain))]
    for _ in range(BUDGET):
        if not boxes:
            return None
        here, bounds = boxes.pop()
        if lo <= here.bounds[0] and here.bounds[1] < hi:
            continue
        if any(b.index.bounds[1] < b.lo or b.hi <= b.index.bounds[0] for b in bounds):
            continue
        wide = {x for x in chain(here.iterators, *(b.index.iterators for b in bounds)) if x.extent > 1}
        if not wide:
            return reach
        x = max(wide, key=lambda x: (x.extent, x.name))
        middle = x.lo + x.extent // 2
        for half in (Iterator(x.name, x.lo, middle), Iterator(x.name, middle, x.hi)):
            boxes.append(_narrowed(here, bounds, x, half))
    return reach


def _clipped(index: Index, domain: Sequence[Bound]) -> tuple[int, int]:
    """The interval of *index*, cut by the bounds that speak of it up to an offset."""
    lo, hi = index.bounds
    for b in domain:
        offset = index - b.index
        if not offset.terms:
            lo, hi = max(lo, b.lo + offset.const), min(hi, b.hi - 1 + offset.const)
    return lo, hi


def _narrowed(index: Index, bounds: tuple[Bound, ...], x: Iterator, half: Iterator) -> tuple[Index, tuple[Bound, ...]]:
    def to(y: Iterator) -> Iterator:
        return half if y == x else y

    return index.substitute(to), tuple(Bound(b.index.substitute(to), b.lo, b.hi) for b in bounds)
