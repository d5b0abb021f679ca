r"""Values of indices over a box of iterators within a domain, and bijections between boxes: exact answers for guards.

.. math::  \{\, e(\vec x) : \vec x \in X,\ \vec x \text{ in the domain} \,\}, \qquad
           \Phi : X \to \Phi(X), \quad \Phi^{-1}(\Phi(\vec x)) = \vec x \text{ for all } \vec x \in X

Interval arithmetic decides most questions; where it may be too coarse (quotients, remainders, a domain), the integer
sets of isl decide.  Source: Verdoolaege, "isl: An Integer Set Library", for the quasi-affine sets.

:math:`\Phi^{-1}` is inferred (EinNet §4.1): equations with one unknown are solved, a sum whose coefficients exceed the
reach of the smaller terms is read digit by digit (:math:`z = E\,a + b`, :math:`0 \le b < E`), and the quotient and
remainder of one numerator are joined.  It is then *verified*, by normal form or with integer sets, so a wrong inference
is refused.  The image need not be a box: bounds describe the points of its hull that belong to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import TypeAlias

import islpy as isl

from einnet_explore.analysis.indices import IndexTerms, holds_everywhere
from einnet_explore.ir import Atom, Bound, Index, Iterator, Quotient, Remainder, as_index

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
    point = _first_point(f"{{ [{', '.join(names)}] : {where} }}") if source else ()
    half = len(source)
    return tuple(
        {x.name: v for x, v in zip(source, part, strict=True)} for part in (point[:half], point[half:]) if part
    )


def find_violation(bound: Bound, domain: Domain = ()) -> Mapping[str, int]:
    """Return a point where *domain* holds and *bound* does not; empty if there is none."""
    names = _names((bound.index, *(b.index for b in domain)))
    text = _text(bound.index, names)
    outside = f"({text} < {bound.lo} or {text} >= {bound.hi})"
    conditions = " and ".join((*_conditions(names, domain), outside))
    point = _first_point(f"{{ [{', '.join(names.values())}] : {conditions} }}")
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


@lru_cache(maxsize=1 << 14)
def _first_point(where: str) -> tuple[int, ...]:
    """Return the first point of the set *where*, in isl's notation; () if it is empty."""
    points = isl.Set(where)
    if points.is_empty():
        return ()
    point = points.lexmin().sample_point()
    count = points.dim(isl.dim_type.set)
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


@dataclass(frozen=True, slots=True)
class Bijection:
    """A bijection Φ from the box of *source* onto the points of the box of *target* where the bounds of *image* hold.

    *forward* has an index in the source iterators for each target, *backward* one in the target iterators for each
    source.
    """

    source: tuple[Iterator, ...]
    target: tuple[Iterator, ...]
    forward: tuple[Index, ...]
    backward: tuple[Index, ...]
    image: tuple[Bound, ...]

    @property
    def to_target(self) -> Mapping[Iterator, Index]:
        """Φ⁻¹ as a substitution of source iterators by indices in the target iterators."""
        return dict(zip(self.source, self.backward, strict=True))

    @property
    def points(self) -> tuple[int, int]:
        """The numbers of points of the image and of its hull."""
        return prod(x.extent for x in self.source), prod(z.extent for z in self.target)


def hull(names: tuple[str, ...], forward: tuple[Index, ...]) -> tuple[Iterator, ...]:
    """Return the iterators whose box is the hull of the image of *forward*."""
    return tuple(Iterator(n, i.bounds[0], i.bounds[1] + 1) for n, i in zip(names, forward, strict=True))


@lru_cache(maxsize=1 << 12)
def bijection(
    source: tuple[Iterator, ...], names: tuple[str, ...], forward: tuple[Index, ...], inverse: tuple[Index, ...] = ()
) -> Bijection:
    """Return the bijection of *forward* on the box of *source*; *names* are those of the new iterators.

    *inverse* (an index in the iterators of ``hull(names, forward)`` for every source) is inferred if omitted. Raises
    ValueError with two points of one image, or with a point that the inverse does not recover.
    """
    target = hull(names, forward)
    backward = inverse or _invert(source, target, forward)
    if backward is None:
        _refuse_collision(source, names, forward)
        raise ValueError(f"no inverse of Φ = ({', '.join(map(repr, forward))}) was found: give one")
    if len(backward) != len(source):
        raise ValueError(f"the inverse has {len(backward)} indices, expected {len(source)}")
    to_source = dict(zip(target, forward, strict=True))
    for x, back in zip(source, backward, strict=True):
        off = back.substitute(lambda z: to_source.get(z, z)) - x
        if off != Index() and not always_holds(Bound(off, 0, 1)):
            _refuse_collision(source, names, forward)
            point = find_violation(Bound(off, 0, 1)) or {y.name: y.lo for y in source}
            raise ValueError(f"Φ⁻¹ does not lead back to {x.name}: at {show_point(point)}, {back} differs from it")
    return Bijection(source, target, forward, backward, _image(source, target, forward, backward))


def show_point(point: Mapping[str, int]) -> str:
    """Return ``(h=0, w=1)``."""
    return f"({', '.join(f'{name}={value}' for name, value in point.items())})"


def _image(
    source: tuple[Iterator, ...], target: tuple[Iterator, ...], forward: tuple[Index, ...], backward: tuple[Index, ...]
) -> tuple[Bound, ...]:
    """Bound the image: Φ⁻¹ leads into the source box, and Φ leads back to the point."""
    to = dict(zip(source, backward, strict=True))
    bounds = [Bound(b, x.lo, x.hi) for x, b in zip(source, backward, strict=True)]
    bounds += [Bound(f.substitute(lambda x: to[x]) - z, 0, 1) for z, f in zip(target, forward, strict=True)]
    kept = [b for b in dict.fromkeys(bounds) if not holds_everywhere(b)]
    if all(b.index.affine for b in kept):
        return tuple(kept)
    # Intervals cannot tell that quotients and remainders of one index go together; integer sets can.
    for b in [b for b in kept if not b.index.affine]:
        if always_holds(b, tuple(o for o in kept if o != b)):
            kept.remove(b)
    return tuple(kept)


def _refuse_collision(source: tuple[Iterator, ...], names: tuple[str, ...], forward: tuple[Index, ...]) -> None:
    if points := find_collision(source, forward):
        first = points[0]
        image = {n: f.evaluate(lambda x: first[x.name]) for n, f in zip(names, forward, strict=True)}
        raise ValueError(
            f"Φ is not injective: {show_point(points[0])} and {show_point(points[1])} both give {show_point(image)}"
        )


def _invert(
    source: tuple[Iterator, ...], target: tuple[Iterator, ...], forward: tuple[Index, ...]
) -> tuple[Index, ...] | None:
    """Return Φ⁻¹ in the target iterators, or None if elimination gets stuck."""
    # Most of Φ leaves iterators as they are: those are known at once.
    known: dict[Atom, Index] = {x: as_index(z) for z, f in zip(target, forward, strict=True) if (x := f.single)}
    pending = [(f, as_index(z)) for f, z in zip(forward, target, strict=True) if not f.single]
    joined: set[tuple[Index, int]] = set()
    while any(x not in known for x in source):
        reduced = [_move_known_right(left, right, known) for left, right in pending]
        # Equations with one unknown first: a sum is only read as digits where nothing else determines its parts.
        for unknowns, right in sorted((e for e in reduced if e[0]), key=lambda e: len(e[0])):
            if (found := _read_digits(unknowns, right)) is not None:
                known |= found
                break
        else:
            return None
        for atom in list(known):
            if isinstance(atom, Remainder) and (atom.numerator, atom.divisor) not in joined:
                q = known.get(Quotient(atom.numerator, atom.divisor))
                if q is not None:
                    joined.add((atom.numerator, atom.divisor))
                    pending.append((atom.numerator, q * atom.divisor + known[atom]))
    return tuple(known[x] for x in source)


def _move_known_right(left: Index, right: Index, known: Mapping[Atom, Index]) -> tuple[IndexTerms, Index]:
    """Return *left = right* with all known atoms on the right."""
    unknowns: list[tuple[Atom, int]] = []
    right = right - left.const
    for atom, k in left.terms:
        value = known.get(atom)
        if value is None and all(x in known for x in as_index(atom).iterators):
            value = as_index(atom).substitute(lambda x: known[x])
        if value is None:
            unknowns.append((atom, k))
        else:
            right = right - value * k
    return tuple(unknowns), right


def _read_digits(terms: IndexTerms, total: Index) -> dict[Atom, Index] | None:
    """Solve ``Σ kᵢ·aᵢ = total`` for the atoms, if every coefficient exceeds the reach of the smaller ones.

    Atoms of one value are constants.
    """
    out: dict[Atom, Index] = {}
    for atom, k in terms:
        lo, hi = as_index(atom).bounds
        if lo == hi:
            out[atom] = Index((), lo)
            total = total - lo * k
    ordered = sorted((t for t in terms if t[0] not in out), key=lambda t: -abs(t[1]))
    spans = [as_index(a).bounds for a, _ in ordered]
    below = list(accumulate(((hi - lo) * abs(k) for (_, k), (lo, hi) in zip(ordered[::-1], spans[::-1], strict=True))))
    below = [0, *below][: len(ordered)][::-1]
    if any(abs(k) <= b for (_, k), b in zip(ordered, below, strict=True)):
        return None
    for (_, k), (lo, hi) in zip(ordered, spans, strict=True):
        total = total - (lo if k > 0 else hi) * k
    for n, ((atom, k), (lo, hi)) in enumerate(zip(ordered, spans, strict=True)):
        digit = total // abs(k)
        out[atom] = lo + digit if k > 0 else hi - digit
        if n + 1 < len(ordered):
            total = total % abs(k)
    return out
