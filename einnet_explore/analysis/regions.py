r"""Values of indices over a box of iterators within a domain, bijections between boxes, and pre-images: exact answers.

.. math::  \{\, e(\vec x) : \vec x \in X,\ \vec x \text{ in the domain} \,\}, \qquad
           \Phi : X \to \Phi(X), \quad \Phi^{-1}(\Phi(\vec x)) = \vec x \text{ for all } \vec x \in X

Interval arithmetic decides most questions; where it may be too coarse (quotients, remainders, a domain), the integer
sets of isl decide.  Source: Verdoolaege, "isl: An Integer Set Library", for the quasi-affine sets.

:math:`\Phi^{-1}` is inferred (EinNet §4.1): equations with one unknown are solved, a sum whose coefficients exceed the
reach of the smaller terms is read digit by digit (:math:`z = E\,a + b`, :math:`0 \le b < E`), and the quotient and
remainder of one numerator are joined.  It is then *verified*, by normal form or with integer sets, so a wrong inference
is refused.  The image need not be a box: bounds describe the points of its hull that belong to it.

The pre-image of an index map is the set of points of a box that it maps to one element,

.. math::  \tau^{-1}(\vec t) = \{\, \vec v \in V : \tau(\vec v) = \vec t \,\}

given by the iterators as functions of :math:`\vec t` and of a minimal set of *free* iterators, which enumerate the
pre-image, and by *guards*, the conditions for such a point to lie in the box.  An invertible map has no free iterators.
Every quotient and remainder is a pair of unknowns, :math:`e = d\,q + p`, so the equations are linear; each is solved
for an unknown

* with a unit coefficient: :math:`v = t - \dots`;
* with a coefficient :math:`k`: :math:`v = (t - \dots)/k` for whole quotients.  Another unknown :math:`u` of the
  equation is then strided, :math:`u = m\,j + p`, with the residue *p* determined by the equation: a strided window,
  :math:`2h + r = t`, enumerates half of its taps, and a mixed-radix split, :math:`4i + j = t`, has no free iterator.

This inverts maps that are not bijective, too, without a verification.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import gcd, prod
from typing import TypeAlias

import islpy as isl

from einnet_explore.analysis.indices import IndexTerms, fresh_name, holds_everywhere, substitute_index
from einnet_explore.ir import Atom, Bound, Index, Iterator, Quotient, Remainder, as_index
from einnet_explore.support.limits import MEMO_ENTRIES

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


@lru_cache(MEMO_ENTRIES)
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


@lru_cache(MEMO_ENTRIES)
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


@lru_cache(MEMO_ENTRIES)
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


@dataclass(frozen=True, slots=True)
class Preimage:
    """A pre-image: *values*, a box's iterators in terms of the targets and *free*; *guards*, the box's conditions.

    *hard*: an equation could not be solved and is a guard.
    """

    values: Mapping[Iterator, Index]
    free: tuple[Iterator, ...]
    guards: tuple[Bound, ...]
    hard: bool = False

    @property
    def exact(self) -> bool:
        """Whether every element has one point: the map is inverted."""
        return not self.free


@dataclass(frozen=True, slots=True)
class _Elimination:
    """A candidate elimination: solve for *v*, with strided *u* for a coefficient; *saves* counts the points saved."""

    saves: int
    number: int
    v: Iterator
    u: Iterator | None = None


def preimage(
    box: tuple[Iterator, ...],
    index: tuple[Index, ...],
    targets: tuple[Iterator, ...],
    prefer: Container[Iterator] = (),
) -> Preimage:
    """Return the points of *box* at which *index* has the values *targets*.

    Unknowns in *prefer* are solved for first, then those that leave the fewest points to enumerate.
    """
    made = _Solver(box, {x.name for x in (*box, *targets)})
    for t, i in zip(targets, index, strict=True):
        made.equations.append(made.linear(i) - t)
    made.solve(prefer)
    return made.solution(box)


class _Solver:
    """Solver of linear equations (``= 0``) over unknowns."""

    def __init__(self, box: Iterable[Iterator], names: set[str]) -> None:
        self.names = names
        self.unknowns: dict[Iterator, None] = dict.fromkeys(box)
        self.equations: list[Index] = []
        self.values: dict[Iterator, Index] = {x: as_index(x) for x in self.unknowns}
        self.guards: list[Bound] = []
        self.pairs: dict[tuple[Index, int], tuple[Iterator, Iterator]] = {}
        self.hard = False

    def linear(self, index: Index) -> Index:
        """Return *index* with quotients and remainders as unknowns."""
        out = as_index(index.const)
        for atom, k in index.terms:
            match atom:
                case Iterator():
                    out = out + atom * k
                case Quotient(numerator, d):
                    out = out + self._pair(numerator, d)[0] * k
                case Remainder(numerator, d):
                    out = out + self._pair(numerator, d)[1] * k
        return out

    def _pair(self, numerator: Index, d: int) -> tuple[Iterator, Iterator]:
        if (numerator, d) not in self.pairs:
            lo, hi = numerator.bounds
            q, p = self._unknown("q", lo // d, hi // d + 1), self._unknown("p", 0, d)
            self.pairs[numerator, d] = q, p
            self.equations.append(self.linear(numerator) - q * d - p)
        return self.pairs[numerator, d]

    def _unknown(self, stem: str, lo: int, hi: int) -> Iterator:
        name = fresh_name(stem, self.names)
        self.names.add(name)
        made = Iterator(name, lo, hi)
        self.unknowns[made] = None
        self.values[made] = as_index(made)
        return made

    def solve(self, prefer: Container[Iterator]) -> None:
        """Solve the equations one by one; an equation that cannot be solved becomes a guard."""
        while self.equations:
            options = [o for n, e in enumerate(self.equations) for o in self._options(n, e)]
            if not options:
                self.guards += [Bound(e, 0, 1) for e in self.equations]
                self.hard = any(x in self.unknowns for e in self.equations for x in e.iterators)
                return
            self._eliminate(max(options, key=lambda o: self._rank(o, prefer)))

    def _rank(self, option: _Elimination, prefer: Container[Iterator]) -> tuple[bool, bool, int]:
        # An equation with one unknown leaves no choice: it comes first.
        alone = sum(x in self.unknowns for x in self.equations[option.number].iterators) == 1
        return alone, option.v in prefer, option.saves

    def _options(self, number: int, e: Index) -> Iterable[_Elimination]:
        hidden = {x for atom, _ in e.terms if not isinstance(atom, Iterator) for x in as_index(atom).iterators}
        linear = [(a, k) for a, k in e.terms if isinstance(a, Iterator) and a in self.unknowns and a not in hidden]
        for v, k in linear:
            yield _Elimination(v.extent, number, v)
            if abs(k) > 1:
                for u, c in linear:
                    # The unit steps between two values of u with one residue: 1 would step through all of them.
                    if u != v and (m := abs(k) // gcd(k, c)) > 1:
                        yield _Elimination(v.extent * u.extent // -(-u.extent // m), number, v, u)

    def _eliminate(self, option: _Elimination) -> None:
        e = self.equations.pop(option.number)
        v, k = option.v, e.coefficient(option.v)
        if option.u is not None:
            e = self._make_strided(e, option.u, v)
        rest = e - as_index(v) * k
        if k > 0:
            rest = -rest
        # |k|·v = rest
        if abs(k) > 1:
            self._guard(Bound(rest % abs(k), 0, 1))
        self._substitute(v, rest // abs(k))

    def _make_strided(self, e: Index, u: Iterator, v: Iterator) -> Index:
        """Substitute ``u = lo + m·j + p`` in *e*, for the residue *p* at which *v*'s coefficient divides *e*."""
        c, k = e.coefficient(u), abs(e.coefficient(v))
        g = gcd(k, c)
        m = k // g
        rest = e - as_index(u) * c - as_index(v) * e.coefficient(v) + c * u.lo
        # c·(m·j + p) = -rest modulo k, and c·m is a multiple of k: (c/g)·p = -rest/g modulo m.
        if g > 1:
            self._guard(Bound(rest % g, 0, 1))
        inverse = pow(c // g, -1, m)
        known = (rest % k if g == 1 else (rest % k) // g) * -inverse
        count = -(-u.extent // m)
        value = known % m + u.lo
        if count > 1:
            value = value + self._unknown(u.name.rstrip("0123456789") or "j", 0, count) * m
        self._substitute(u, value)
        return substitute_index(e, {u: value})

    def _substitute(self, x: Iterator, value: Index) -> None:
        to = {x: value}
        del self.unknowns[x]
        self.equations = [substitute_index(e, to) for e in self.equations]
        self.values = {y: substitute_index(i, to) for y, i in self.values.items()}
        self.guards = [Bound(substitute_index(b.index, to), b.lo, b.hi) for b in self.guards]

    def _guard(self, bound: Bound) -> None:
        if not holds_everywhere(bound):
            self.guards.append(bound)

    def solution(self, box: tuple[Iterator, ...]) -> Preimage:
        """Return the solution for the iterators of *box*; a quotient's range follows from theirs."""
        ranges = [Bound(self.values[x], x.lo, x.hi) for x in box]
        ranges += [Bound(self.values[p], p.lo, p.hi) for _, p in self.pairs.values()]
        guards = tuple(b for b in dict.fromkeys((*self.guards, *ranges)) if not holds_everywhere(b))
        return Preimage({x: self.values[x] for x in box}, tuple(self.unknowns), _drop_implied(guards), self.hard)


def _drop_implied(guards: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """Drop the guards that follow from the others by intervals."""
    kept = list(guards)
    for b in guards:
        if not b.index.affine and always_holds(b, tuple(o for o in kept if o != b)):
            kept.remove(b)
    return tuple(kept)
