r"""When two expressions read one tensor alike: a matching of their iterators under which the index maps agree.

.. math::  \tau(\vec x)\big|_{\vec u = \vec u_0} = \tau'(\vec x' \mapsto \vec x + \vec\delta)

Iterators of one role (both traversals, or both summations) with one coefficient are matched, up to a shift.  A
summation of only one of the two is held at one value for the other: a window of one tap lies somewhere in the larger.
Source: EinNet §4.2, expression merging (:math:`X_1 \cup X_2 \subseteq X`), and Fig. 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from einnet_explore.ir import Atom, Index, IndexLike, Iterator, Scope

Terms: TypeAlias = "tuple[tuple[Atom, int], ...]"
Pairs: TypeAlias = "dict[Iterator, Iterator]"
"""Iterators of the second reading with their partners in the first."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An index vector, and which of its iterators are summed.  Iterators of one value count as that value."""

    index: tuple[Index, ...]
    summed: frozenset[Iterator]

    @staticmethod
    def of(scope: Scope, index: tuple[Index, ...]) -> Reading:
        """How *scope* reads at *index*."""
        return Reading(tuple(map(inline_unit_iterators, index)), frozenset(scope.summations))


@dataclass(frozen=True, slots=True)
class Alignment:
    """How *second* lies in *first*, iterator by iterator.

    *shift*: each matched iterator of the second as ``(iterator of the first, δ)``: it is that iterator plus δ.  *held*:
    summations of the first alone and their values for the second.  *extra*: summations of the second alone and their
    values for the first.
    """

    shift: Mapping[Iterator, tuple[Iterator, int]] = field(default_factory=dict)
    held: Mapping[Iterator, int] = field(default_factory=dict)
    extra: Mapping[Iterator, int] = field(default_factory=dict)


def align_readings(first: Reading, second: Reading) -> Alignment:
    """The matching under which both index vectors agree; raises ValueError with the first index maps that differ."""
    if len(first.index) != len(second.index):
        raise ValueError(f"one reads {len(first.index)} dimensions, the other {len(second.index)}")
    for pairs in _matchings(first, second, 0, {}):
        if (found := _solved(first, second, pairs)) is not None:
            return found
    raise ValueError(_why(first, second))


def inline_unit_iterators(index: Index) -> Index:
    """*index* with iterators of one value put in."""
    if all(x.extent != 1 for x in index.iterators):
        return index
    return index.substitute(lambda x: x.lo if x.extent == 1 else x)


def _matchings(first: Reading, second: Reading, d: int, pairs: Pairs) -> Iterable[Pairs]:
    """Every consistent matching of iterators of the second with those of the first, from dimension *d* on."""
    if d == len(first.index):
        yield pairs
        return
    for more in _terms(first.index[d].terms, second.index[d].terms, first, second, pairs):
        yield from _matchings(first, second, d + 1, more)


def _terms(ours: Terms, theirs: Terms, first: Reading, second: Reading, pairs: Pairs) -> Iterable[Pairs]:
    if not theirs:
        if all(isinstance(a, Iterator) and a in first.summed and a not in pairs.values() for a, _ in ours):
            yield pairs
        return
    (atom, k), rest = theirs[0], theirs[1:]
    for term in sorted(ours, key=lambda t: _size(t[0]) != _size(atom)):  # equal extents first
        if term[1] == k and (more := _paired(term[0], atom, first, second, pairs)) is not None:
            yield from _terms(tuple(t for t in ours if t != term), rest, first, second, more)
    if isinstance(atom, Iterator) and atom in second.summed and atom not in pairs:
        yield from _terms(ours, rest, first, second, pairs)


def _paired(a: Atom, b: Atom, first: Reading, second: Reading, pairs: Pairs) -> Pairs | None:
    """*pairs* with the iterators of two atoms matched in order; None where they cannot be."""
    ours, theirs = _iterators(a), _iterators(b)
    if a.__class__ is not b.__class__ or len(ours) != len(theirs):
        return None
    out = dict(pairs)
    for x, y in zip(ours, theirs, strict=True):
        if (x in first.summed) != (y in second.summed) or out.get(y, x) != x or (y not in out and x in out.values()):
            return None
        out[y] = x
    return out


def _solved(first: Reading, second: Reading, pairs: Pairs) -> Alignment | None:
    """The shifts and values that make the constants agree as well; None where none do."""
    shift = {y: y.lo - x.lo for y, x in pairs.items()}
    held: dict[Iterator, int] = {}
    extra = {y: y.lo for j in second.index for y in j.iterators if y not in pairs}
    moved: set[Iterator] = set()
    for i, j in zip(first.index, second.index, strict=True):
        gap = _gap(i, j, Alignment({y: (x, shift[y]) for y, x in pairs.items()}, held, extra))
        alone = [x for x in i.iterators if x not in pairs.values()]
        if alone:
            value, left = divmod(-gap, i.coefficient(alone[0]))
            if left or any(
                held.setdefault(x, v) != v for x, v in zip(alone, (value, *(0 for _ in alone[1:])), strict=True)
            ):
                return None
        elif gap and (mine := [y for y in j.iterators if y in extra and j.coefficient(y)]):
            extra[mine[0]] += gap // j.coefficient(mine[0])
        elif gap:
            free = [y for y in j.iterators if y in pairs and y not in moved and j.coefficient(y)]
            y = min(free, key=lambda y: y not in second.summed, default=None)  # a summation rather than a traversal
            if y is None or gap % j.coefficient(y):
                return None
            shift[y] += gap // j.coefficient(y)
            moved.add(y)
    found = Alignment({y: (x, shift[y]) for y, x in pairs.items()}, held, extra)
    return found if all(_agree(i, j, found) for i, j in zip(first.index, second.index, strict=True)) else None


def _gap(i: Index, j: Index, found: Alignment) -> int:
    """The constant by which the first exceeds the second; what the first alone sums counts as 0 until it is held."""
    partners = {x for x, _ in found.shift.values()}
    return i.substitute(lambda x: x if x in partners else found.held.get(x, 0)).const - _moved(j, found).const


def _agree(i: Index, j: Index, found: Alignment) -> bool:
    return i.substitute(lambda x: found.held.get(x, x)) == _moved(j, found)


def _moved(j: Index, found: Alignment) -> Index:
    """*j*, of the second, as a function of the first's iterators."""

    def to(y: Iterator) -> IndexLike:
        if y in found.extra:
            return found.extra[y]
        x, by = found.shift[y]
        return x + by

    return j.substitute(to)


def _why(first: Reading, second: Reading) -> str:
    """The first dimension that cannot agree by itself; else that they cannot together."""
    for d, (i, j) in enumerate(zip(first.index, second.index, strict=True)):
        ours, theirs = Reading((i,), first.summed), Reading((j,), second.summed)
        if all(_solved(ours, theirs, pairs) is None for pairs in _matchings(ours, theirs, 0, {})):
            return f"dimension {d} is read at {_shown(i, first)} and at {_shown(j, second)}"
    both = [", ".join(map(repr, reading.index)) for reading in (first, second)]
    return f"no matching of iterators makes [{both[0]}] and [{both[1]}] one"


def _shown(index: Index, reading: Reading) -> str:
    ranges = (f"{x.name} ∈ [{x.lo}, {x.hi}){' summed' if x in reading.summed else ''}" for x in index.iterators)
    told = ", ".join(ranges)
    return f"{index} ({told})" if told else f"{index}"


def _iterators(atom: Atom) -> tuple[Iterator, ...]:
    return (atom,) if isinstance(atom, Iterator) else atom.numerator.iterators


def _size(atom: Atom) -> int:
    return sum(x.extent for x in _iterators(atom))
