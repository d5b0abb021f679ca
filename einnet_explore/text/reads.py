r"""Whether an index can leave what it reads: :math:`\exists x \in D:\ \tau(x) \notin [lo, hi)`.

Intervals answer for affine indices without a domain.  Otherwise the box of iterators is halved until intervals
decide, so the answer is exact unless that takes more than ``BUDGET`` halvings; then the read counts as leaving.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product

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
        first, last = _clipped(here, bounds)
        if last < first or (lo <= first and last < hi):
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
    """The interval of *index*, cut by the bounds that speak of it up to sign and an offset."""
    lo, hi = index.bounds
    for b, sign in product(domain, (1, -1)):
        offset = index - b.index * sign
        if not offset.terms:
            ends = offset.const + b.lo * sign, offset.const + (b.hi - 1) * sign
            lo, hi = max(lo, min(ends)), min(hi, max(ends))
    return lo, hi


def _narrowed(index: Index, bounds: tuple[Bound, ...], x: Iterator, half: Iterator) -> tuple[Index, tuple[Bound, ...]]:
    def to(y: Iterator) -> Iterator:
        return half if y == x else y

    return index.substitute(to), tuple(Bound(b.index.substitute(to), b.lo, b.hi) for b in bounds)
