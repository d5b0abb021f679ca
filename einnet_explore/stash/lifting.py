"""Where a reduction that stands inside another expression is computed: an equation's box, and what is read of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from einnet_explore.algebra.substitute import at, fresh, substitute_domain
from einnet_explore.ir import Bound, Index, Iterator
from einnet_explore.stash.uses import Use, constant, span


class Nowhere(Exception):
    """A value would be computed where its sources are read beyond their reach; the message says of what and how."""


@dataclass(frozen=True)
class Place:
    """*use* over the traversals *own*, where *domain* holds; its reader reads that at *index*."""

    own: tuple[Iterator, ...]
    domain: tuple[Bound, ...]
    use: Use
    index: tuple[Index, ...]


def places(use: Use, domain: tuple[Bound, ...]) -> Iterable[Place]:
    """Where the value that *use* reads, in a scope with *domain*, may be computed: the better places first.

    First over what its indices are, which other readers may share.  That box may have points at which nobody reads
    the value, and at which it reads beyond its sources; the points at which *use* itself stands have none.
    """
    own = iterators(use.value.names, use.at, domain)
    moved = tuple(Iterator(x.name, 0, x.extent) for x in own)
    there = tuple(constant(z) + x.lo for x, z in zip(own, moved, strict=True))
    index = tuple(i - x.lo for i, x in zip(use.at, own, strict=True))
    yield Place(moved, (), Use(1, use.value, there), index)
    standing, relevant = _standing(use, domain)
    to = {x: Iterator(x.name, 0, x.extent) + x.lo for x in standing}
    yield Place(
        tuple(Iterator(x.name, 0, x.extent) for x in standing),
        substitute_domain(relevant, to),
        Use(1, use.value, tuple(at(i, to) for i in use.at)),
        tuple(x - x.lo for x in standing),
    )


def iterators(names: Sequence[str], at: Sequence[Index], domain: tuple[Bound, ...] = ()) -> tuple[Iterator, ...]:
    """An iterator for each of the indices *at*, over what it is in *domain*, called as *names* say, each otherwise."""
    taken: list[str] = []
    for name in names:
        taken.append(name if name not in taken else fresh(name, taken))
    return tuple(Iterator(name, *span(i, domain)) for name, i in zip(taken, at, strict=True))


def _standing(use: Use, domain: tuple[Bound, ...]) -> tuple[tuple[Iterator, ...], tuple[Bound, ...]]:
    """The iterators that *use* depends on, directly or through bounds of *domain*, and these bounds."""
    own = dict.fromkeys(x for i in use.at for x in i.iterators)
    linked: list[Bound] = []
    rest = list(domain)
    while found := [b for b in rest if own.keys() & set(b.index.iterators)]:
        linked += found
        rest = [b for b in rest if b not in found]
        own |= dict.fromkeys(x for b in found for x in b.index.iterators)
    return tuple(own), tuple(linked)
