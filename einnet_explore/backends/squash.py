r"""Neighbouring dimensions as one: :math:`A[c, h, w] \mapsto A[c, t]` where :math:`t = h W + w`.

Longer rows fill vectors better, and what is left of a shape is what its kernel has to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

from einnet_explore.algebra.indices import compared
from einnet_explore.ir import Access, Iterator, Scalar, Scope, Tensor, accesses, map_accesses


def squash(scope: Scope) -> Scope:
    """*scope* with iterators merged that every access reads as neighbouring dimensions.

    Its tensors keep their elements in order and lose dimensions.  Scopes that read scopes are left as they are.
    """
    reads = tuple(accesses(scope.body))
    if scope.domain or any(isinstance(a.source, Scope) for a in reads):
        return scope
    rows = zip(scope.traversals, scope.traversals[1:], strict=False)
    for x, y in (*rows, *permutations(scope.summations, 2)):
        places = _places(reads, x, y)
        if places is not None and not {x, y} & {*compared(scope.body)}:
            return squash(_merge(scope, x, y, places))
    return scope


def _places(reads: tuple[Access, ...], x: Iterator, y: Iterator) -> Mapping[str, int] | None:
    """Where each tensor has *x* and *y* as neighbours; None if anything else is done with them."""
    if x.lo or y.lo:
        return None
    places: dict[str, int] = {}
    seen: dict[str, int] = {}
    for access in reads:
        name = access.source.name if isinstance(access.source, Tensor) else ""
        inside = [d for d, i in enumerate(access.index) if x in i.iterators or y in i.iterators]
        place = inside[0] if inside else -1
        if seen.setdefault(name, place) != place:
            return None
        if inside:
            box = access.source.box
            neighbours = len(inside) == 2 and inside[1] == place + 1
            if not neighbours or access.index[place].single != x or access.index[place + 1].single != y:
                return None
            if box[place][0] or x.hi > box[place][1] or box[place + 1] != (0, y.hi):
                return None
            places[name] = place
    return places


def _merge(scope: Scope, x: Iterator, y: Iterator, places: Mapping[str, int]) -> Scope:
    both = Iterator(x.name, 0, x.extent * y.extent)

    def merged(access: Access) -> Scalar:
        match access.source:
            case Tensor(name, shape, _, value, weight, origin) if name in places:
                d = places[name]
                one = (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
                start = (*origin[:d], 0, *origin[d + 2 :]) if origin else ()
                index = (*access.index[:d], *both_index, *access.index[d + 2 :])
                return Access(Tensor(name, one, (), value, weight, start), index)
        return access

    both_index = ((both + 0),)

    def put(group: tuple[Iterator, ...]) -> tuple[Iterator, ...]:
        return tuple(both if s == x else s for s in group if s != y)

    return replace(
        scope,
        traversals=put(scope.traversals),
        summations=put(scope.summations),
        body=map_accesses(scope.body, merged),
        padding=(),
    )
