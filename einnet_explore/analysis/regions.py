r"""Values of an index over a box of iterators within a domain: exact answers for the guards of rules.

.. math::  \{\, e(\vec x) : \vec x \in X,\ \vec x \text{ in the domain} \,\}

Interval arithmetic decides most questions; where it may be too coarse (quotients, remainders, a domain), the integer
sets of isl decide.  Source: Verdoolaege, "isl: An Integer Set Library", for the quasi-affine sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

import islpy as isl

from einnet_explore.analysis.indices import holds_everywhere
from einnet_explore.ir import Bound, Index, Iterator, Quotient, Remainder

Domain: TypeAlias = "tuple[Bound, ...]"


def never_holds(bound: Bound) -> bool:
    """Whether *bound* is violated over the whole ranges of its iterators, as far as intervals decide."""
    lo, hi = bound.index.bounds
    return hi < bound.lo or lo >= bound.hi


def always_holds(bound: Bound, domain: Domain = ()) -> bool:
    """Whether *bound* holds at every point of its iterators' ranges where *domain* holds."""
    if holds_everywhere(bound) or bound in domain:
        return True
    relevant = _relevant(bound.index, domain)
    if not relevant and bound.index.affine:
        return False
    lo, hi = _extremes(bound.index, relevant)
    return bound.lo <= lo and hi < bound.hi


def index_reach(index: Index, domain: Domain = ()) -> tuple[int, int]:
    """Return the smallest closed interval of the values of *index* in *domain*; (0, -1) if *domain* is empty."""
    relevant = _relevant(index, domain)
    if index.affine and not relevant:
        return index.bounds
    return _extremes(index, relevant)


def find_collision(source: tuple[Iterator, ...], forward: Iterable[Index]) -> tuple[Mapping[str, int], ...]:
    """Return two points of the box of *source* that *forward* maps to one point; empty if it is injective."""
    first = {x: f"a{n}" for n, x in enumerate(source)}
    second = {x: f"b{n}" for n, x in enumerate(source)}
    same = [f"{_text(i, first)} = {_text(i, second)}" for i in forward]
    before = [
        " and ".join([*(f"{first[y]} = {second[y]}" for y in source[:n]), f"{first[x]} < {second[x]}"])
        for n, x in enumerate(source)
    ]
    box = [*_box(first), *_box(second)]
    names = [*first.values(), *second.values()]
    where = " and ".join([*box, *same, f"({' or '.join(f'({b})' for b in before)})"])
    point = _first_point(isl.Set(f"{{ [{', '.join(names)}] : {where} }}")) if source else ()
    half = len(source)
    return tuple(
        {x.name: v for x, v in zip(source, part, strict=True)} for part in (point[:half], point[half:]) if part
    )


def find_violation(bound: Bound, domain: Domain = ()) -> Mapping[str, int]:
    """Return a point where *domain* holds and *bound* does not; empty if there is none."""
    names = _names((bound.index, *(b.index for b in domain)))
    text = _text(bound.index, names)
    outside = f"({text} < {bound.lo} or {text} >= {bound.hi})"
    point = _first_point(_set(names, (*_conditions(names, domain), outside)))
    return {x.name: v for x, v in zip(names, point, strict=False)}


def _relevant(index: Index, domain: Domain) -> Domain:
    """Return the bounds that share an iterator with *index*, directly or through other bounds."""
    rest = [b for b in domain if not holds_everywhere(b)]
    if not rest:
        return ()
    linked = set(index.iterators)
    kept: list[Bound] = []
    while found := [b for b in rest if linked & set(b.index.iterators)]:
        kept += found
        rest = [b for b in rest if b not in found]
        linked.update(x for b in found for x in b.index.iterators)
    return tuple(b for b in domain if b in kept)


@lru_cache(maxsize=1 << 14)
def _extremes(index: Index, domain: Domain) -> tuple[int, int]:
    names = _names((index, *(b.index for b in domain)))
    inside = " and ".join((*_conditions(names, domain), f"v = {_text(index, names)}"))
    exists = f"exists {', '.join(names.values())} : {inside}" if names else inside
    values = isl.Set(f"{{ [v] : {exists} }}")
    if values.is_empty():
        return 0, -1
    return values.dim_min_val(0).to_python(), values.dim_max_val(0).to_python()


def _names(indices: Iterable[Index]) -> dict[Iterator, str]:
    iterators = dict.fromkeys(x for i in indices for x in i.iterators)
    return {x: f"x{n}" for n, x in enumerate(iterators)}


def _conditions(names: Mapping[Iterator, str], domain: Domain) -> tuple[str, ...]:
    return (*_box(names), *(f"{b.lo} <= {_text(b.index, names)} < {b.hi}" for b in domain))


def _box(names: Mapping[Iterator, str]) -> tuple[str, ...]:
    return tuple(f"{x.lo} <= {name} < {x.hi}" for x, name in names.items())


def _set(names: Mapping[Iterator, str], conditions: Iterable[str]) -> isl.Set:
    return isl.Set(f"{{ [{', '.join(names.values())}] : {' and '.join(conditions)} }}")


def _first_point(where: isl.Set) -> tuple[int, ...]:
    if where.is_empty():
        return ()
    point = where.lexmin().sample_point()
    count = where.dim(isl.dim_type.set)
    return tuple(point.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(count))


def _text(index: Index, names: Mapping[Iterator, str]) -> str:
    """Write *index* in isl's notation, with iterators named by *names*."""
    parts = [str(index.const)]
    for atom, k in index.terms:
        match atom:
            case Iterator():
                text = names[atom]
            case Quotient(numerator, d):
                text = f"floor(({_text(numerator, names)})/{d})"
            case Remainder(numerator, d):
                text = f"(({_text(numerator, names)}) mod {d})"
        parts.append(f"{k}*{text}")
    return f"({' + '.join(parts)})"
