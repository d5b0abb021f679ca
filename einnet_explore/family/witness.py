"""Sizes that fulfil what is assumed: without any, all that is proved would be true of nothing.

Integer sets take a product of parameters for a number of its own: where they say that there are no sizes there are
none, where they name some these may be no solution.  Then small ones are tried, and z3 is asked.  Whether polynomials
have a common solution in the integers is undecidable (Y. Matiyasevich, 1970), so an end of the effort is an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count, islice, product

from einnet_explore.algebra.space import Beyond
from einnet_explore.family.decide import solution
from einnet_explore.family.parameters import Ground, OutsideError
from einnet_explore.family.region import bounds, least

TRIED = 2000
"""So many sizes are tried, of those next to the least; and as many of powers of two above it."""


def witness(ground: Ground) -> tuple[int, ...] | None:
    """The unknowns of *ground* at sizes that it allows; None where there are none.

    Raises Beyond where it is not known whether there are any.
    """
    first = least(ground.ranges, ground.rows)
    if first is None:
        return None
    for unknowns in chain([first], _small(ground), _powers(ground)):
        if _allowed(ground, unknowns):
            return unknowns
    unknown = f"whether any sizes fulfil it is not known: none of up to {2 * TRIED} do"
    try:
        found = solution([*bounds(ground.ranges), *ground.rows])
    except Beyond as why:
        raise Beyond(f"{unknown}, and {why}") from None
    if found is None:
        return None
    unknowns = tuple(found.get(p.unknown.symbol, p.first) for p in ground.parameters)
    if not _allowed(ground, unknowns):
        raise Beyond(f"{unknown}, nor does what z3 found: {unknowns}")
    return unknowns


def _allowed(ground: Ground, unknowns: Iterable[int]) -> bool:
    try:
        ground.refuse(ground.sizes(unknowns))
    except OutsideError:
        return False
    return True


def _small(ground: Ground) -> Iterable[tuple[int, ...]]:
    """The unknowns by how far they lie above their least values, in all."""
    firsts = [p.first for p in ground.parameters]
    every = (more for total in count() for more in _parts(total, len(firsts)))
    return (tuple(map(sum, zip(firsts, more, strict=True))) for more in islice(every, TRIED))


def _parts(total: int, terms: int) -> Iterable[tuple[int, ...]]:
    """Natural numbers, *terms* of them, whose sum is *total*."""
    if terms == 1:
        yield (total,)
        return
    for n in range(total + 1):
        for rest in _parts(total - n, terms - 1):
            yield (n, *rest)


def _powers(ground: Ground) -> Iterable[tuple[int, ...]]:
    """The unknowns at powers of two above their least values, as far up as so many sizes go."""
    terms = len(ground.parameters)
    ends = range(2, 64)
    most = max((n for n in ends if n**terms <= TRIED), default=1)
    steps = product([0, *(1 << (n * 48 // most) for n in range(most))], repeat=terms)
    return (tuple(p.first + n for p, n in zip(ground.parameters, more, strict=True)) for more in steps)
