r"""Common parts of sums and products: :math:`a\,b\,c` and :math:`b\,d\,a` have :math:`a\,b` in common.

Sums and products are flat, so two of them may share a proper part of both.  A part is a common sub-multiset of their
entries; of overlapping parts the one with the most operations below it is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from einnet_explore.autodiff.values import GROUPS, Entries, Term, Use, Value, Values, parameter_names
from einnet_explore.ir import Const, as_index

MAX_SUBSET_ENTRIES = 12
"""Entries that two sums or products share up to which all sub-multisets are compared; beyond, pairs are.

And how many parts of one value are compared, the largest.
"""


@dataclass(frozen=True)
class EntryGroup:
    """The entries *taken* of a sum or product, replaced by one *use*."""

    taken: frozenset[int]
    use: Use


EntryGroups: TypeAlias = "Mapping[int, tuple[EntryGroup, ...]]"
"""Entry groups of sums and products, by value number."""
Reads: TypeAlias = "Callable[[Value], Iterable[Use]]"
"""The uses that a value is computed from."""


def value_use(value: Value) -> Use:
    """Return *value* at its own parameters."""
    return Use(1, value, tuple(map(as_index, value.scope.traversals)))


def grouped_entries(values: Values, value: Value, parts: Iterable[EntryGroup]) -> Entries:
    """Return the entries of *value*, over its parameters, with disjoint *parts* in place of their entries."""
    entries = values.entries(value_use(value))
    out: list[tuple[int, Term]] = []
    taken: set[int] = set()
    for part in parts:
        if not part.taken & taken:
            taken |= part.taken
            sign = part.use.sign
            out.append((sign, Use(1, part.use.value, part.use.at)))
    return (*(e for n, e in enumerate(entries) if n not in taken), *out)


def grouped_reads(values: Values, value: Value, parts: EntryGroups) -> tuple[Use, ...]:
    """Return the reads of *value* when it is computed from its *parts*."""
    if value.kind in GROUPS:
        return tuple(t for _, t in grouped_entries(values, value, parts.get(value.number, ())) if isinstance(t, Use))
    return values.reads(value)


def reachable_values(roots: Iterable[Value], reads: Reads) -> tuple[Value, ...]:
    """Return *roots* and all values below them by *reads*, readers first."""
    order: list[Value] = []
    seen: set[int] = set()
    waiting = [(v, False) for v in roots]
    while waiting:
        value, left = waiting.pop()
        if left:
            order.append(value)
        elif value.number not in seen:
            seen.add(value.number)
            waiting.append((value, True))
            waiting.extend((use.value, False) for use in reads(value))
    return tuple(reversed(order))


def common_parts(
    values: Values, forward: Iterable[Value], backward: Iterable[Value], kept: Iterable[Value] = ()
) -> tuple[EntryGroups, EntryGroups]:
    """Return the parts that sums and products of *backward* share with *forward*: (forward's parts, backward's).

    A value of *kept*, computed in any case, may also be a part of a backward sum or product.  The parts of one backward
    value are disjoint; the forward's may overlap, larger ones first.
    """
    ones = [v for v in forward if v.kind in GROUPS]
    whole_ones = [v for v in kept if v.kind in GROUPS]
    waiting = [v for v in backward if v.kind in GROUPS]
    theirs: dict[int, list[EntryGroup]] = {}
    mine: dict[int, tuple[EntryGroup, ...]] = {}
    popular: Counter[int] = Counter()
    weights: dict[int, int] = {}
    while waiting:
        found: dict[int, list[EntryGroup]] = {}
        for value in waiting:
            shared = [*_common_groups(values, value, ones, theirs), *_kept_groups(values, value, whole_ones)]
            found[value.number] = sorted(
                dict.fromkeys(shared), key=lambda p: (-len(p.taken), -_weight(values, p.use.value, weights))
            )
            popular.update({p.use.value.number for p in found[value.number]})
        mine.update({n: _disjoint_groups(parts[:MAX_SUBSET_ENTRIES], popular) for n, parts in found.items()})
        chosen = {p.use.value.number: p.use.value for n in found for p in mine[n]}
        waiting = [v for n, v in chosen.items() if n not in mine]
    used = {*mine, *(p.use.value.number for parts in mine.values() for p in parts)}
    theirs = {n: [p for p in dict.fromkeys(parts) if p.use.value.number in used] for n, parts in theirs.items()}
    return (
        {n: tuple(sorted(parts, key=lambda p: -len(p.taken))) for n, parts in theirs.items() if parts},
        {n: parts for n, parts in mine.items() if parts},
    )


def _common_groups(
    values: Values, value: Value, ones: Iterable[Value], theirs: dict[int, list[EntryGroup]]
) -> Iterable[EntryGroup]:
    """Yield the parts of *value* shared with one of *ones*, whose parts are added to *theirs*."""
    for one in ones:
        for here, there in _shared_groups(values, one, value):
            if len(here.taken) < len(values.entries(value_use(one))):
                theirs.setdefault(one.number, []).append(here)
            if len(there.taken) < len(values.entries(value_use(value))):
                yield there


def _kept_groups(values: Values, value: Value, kept: Iterable[Value]) -> Iterable[EntryGroup]:
    """Yield the parts of *value* that equal one of *kept*."""
    for one in kept:
        for here, there in _shared_groups(values, one, value):
            if here.use.value is one and len(there.taken) < len(values.entries(value_use(value))):
                yield there


def _disjoint_groups(parts: list[EntryGroup], popular: Counter[int]) -> tuple[EntryGroup, ...]:
    """Choose disjoint *parts* that leave the fewest entries; ties: the most shared, then the fewest parts."""

    def worth(chosen: tuple[EntryGroup, ...]) -> tuple[int, int, int]:
        return (
            sum(len(p.taken) - 1 for p in chosen),
            sum(popular[p.use.value.number] for p in chosen) - len(chosen),
            -len(chosen),
        )

    def best(n: int, chosen: tuple[EntryGroup, ...]) -> tuple[EntryGroup, ...]:
        if n == len(parts):
            return chosen
        without = best(n + 1, chosen)
        if any(parts[n].taken & other.taken for other in chosen):
            return without
        return max(best(n + 1, (*chosen, parts[n])), without, key=worth)

    return best(0, ())


def _shared_groups(values: Values, one: Value, other: Value) -> Iterable[tuple[EntryGroup, EntryGroup]]:
    """Yield the common parts of two sums or two products, as parts of each."""
    if one is other or one.kind != other.kind:
        return
    mine, others = (values.entries(value_use(v)) for v in (one, other))
    both = Counter(map(_sort, mine)) & Counter(map(_sort, others))
    if both.total() < 2:
        return
    ours = {part.use.value.number: part for part in _subsets(values, one, mine, both)}
    for part in _subsets(values, other, others, both):
        if part.use.value.number in ours:
            yield ours[part.use.value.number], part


def _subsets(values: Values, value: Value, entries: Entries, most: Counter[object]) -> Iterable[EntryGroup]:
    numbers = [n for n, e in enumerate(entries) if _sort(e) in most]
    sizes = range(len(numbers), 1, -1) if len(numbers) <= MAX_SUBSET_ENTRIES else (2,)
    for size in sizes:
        for taken in combinations(numbers, size):
            if Counter(_sort(entries[n]) for n in taken) <= most:
                group = values.total if value.kind == "sum" else values.product
                term = group((entries[n] for n in taken), parameter_names(value))
                if isinstance(term, Use) and term.value.kind == value.kind:
                    yield EntryGroup(frozenset(taken), term)


def _sort(entry: tuple[int, Term]) -> object:
    mark, term = entry
    return (0, mark, term.value) if isinstance(term, Const) else (1, mark, term.value.number)


def _weight(values: Values, value: Value, known: dict[int, int]) -> int:
    """Return the size of a subexpression: the number of values below *value*, itself included."""
    if value.number not in known:
        known[value.number] = len(reachable_values((value,), values.reads))
    return known[value.number]
