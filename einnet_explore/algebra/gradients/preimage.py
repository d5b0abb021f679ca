r"""Pre-images of an index map: all points of a box that it leads to one element.

.. math::  \tau^{-1}(\vec t) = \{\, \vec v \in V : \tau(\vec v) = \vec t \,\}

as iterators in terms of :math:`\vec t` and of as few *free* iterators as can be, which walk through the pre-image, and
*guards*, which say where such a point lies in the box.  A map that is invertible leaves nothing free.  Every quotient
and remainder is a pair of unknowns, :math:`e = d\,q + p`, so the equations are linear; one is solved for an unknown

* with a unit coefficient: :math:`v = t - \dots`;
* with a coefficient :math:`k`: :math:`v = (t - \dots)/k` where that is whole.  Another unknown :math:`u` of the
  equation is walked through in steps then, :math:`u = m\,j + p`, of which the equation determines the residue *p*: so a
  window over strides, :math:`2h + r = t`, leaves the half of its taps that meet in one place, and digits,
  :math:`4i + j = t`, leave nothing.

Source: the inversion of index maps is EinNet §4.1's :math:`\Phi^{-1}`, here for maps that are no bijections.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from math import gcd

from einnet_explore.algebra.regions import always
from einnet_explore.algebra.substitute import at, fresh, holds
from einnet_explore.ir import Bound, Index, Iterator, Quotient, Remainder, as_index


@dataclass(frozen=True, slots=True)
class Preimage:
    """*values*: a box's iterators in terms of the targets and of *free*; *guards*: where that is a point of the box.

    *hard*: some equation could not be solved, and is a guard.
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
class _Option:
    """One way to solve an equation: for *v*, stepping through *u* in case of a coefficient; *saves* so many points."""

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
    """The points of *box* at which *index* takes the values *targets*.

    Unknowns that are *prefer*red are solved for first, else those that leave least to walk through.
    """
    made = _Solver(box, {x.name for x in (*box, *targets)})
    for t, i in zip(targets, index, strict=True):
        made.equations.append(made.linear(i) - t)
    made.solve(prefer)
    return made.found(box)


class _Solver:
    """Linear equations (``= 0``) over unknowns, and what has been found."""

    def __init__(self, box: Iterable[Iterator], names: set[str]) -> None:
        self.names = names
        self.unknowns: dict[Iterator, None] = dict.fromkeys(box)
        self.equations: list[Index] = []
        self.values: dict[Iterator, Index] = {x: as_index(x) for x in self.unknowns}
        self.guards: list[Bound] = []
        self.pairs: dict[tuple[Index, int], tuple[Iterator, Iterator]] = {}
        self.hard = False

    def linear(self, index: Index) -> Index:
        """*index* with quotients and remainders as unknowns."""
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
        name = fresh(stem, self.names)
        self.names.add(name)
        made = Iterator(name, lo, hi)
        self.unknowns[made] = None
        self.values[made] = as_index(made)
        return made

    def solve(self, prefer: Container[Iterator]) -> None:
        """Solve equation after equation; what no unknown can be solved for is a guard."""
        while self.equations:
            options = [o for n, e in enumerate(self.equations) for o in self._options(n, e)]
            if not options:
                self.guards += [Bound(e, 0, 1) for e in self.equations]
                self.hard = any(x in self.unknowns for e in self.equations for x in e.iterators)
                return
            self._take(max(options, key=lambda o: self._rank(o, prefer)))

    def _rank(self, option: _Option, prefer: Container[Iterator]) -> tuple[bool, bool, int]:
        # An equation with one unknown leaves no choice: it comes first.
        alone = sum(x in self.unknowns for x in self.equations[option.number].iterators) == 1
        return alone, option.v in prefer, option.saves

    def _options(self, number: int, e: Index) -> Iterable[_Option]:
        hidden = {x for atom, _ in e.terms if not isinstance(atom, Iterator) for x in as_index(atom).iterators}
        linear = [(a, k) for a, k in e.terms if isinstance(a, Iterator) and a in self.unknowns and a not in hidden]
        for v, k in linear:
            yield _Option(v.extent, number, v)
            if abs(k) > 1:
                for u, c in linear:
                    # The unit steps between two values of u with one residue: 1 would step through all of them.
                    if u != v and (m := abs(k) // gcd(k, c)) > 1:
                        yield _Option(v.extent * u.extent // -(-u.extent // m), number, v, u)

    def _take(self, option: _Option) -> None:
        e = self.equations.pop(option.number)
        v, k = option.v, e.coefficient(option.v)
        if option.u is not None:
            e = self._stepped(e, option.u, v)
        rest = e - as_index(v) * k
        if k > 0:
            rest = -rest
        # |k|·v = rest
        if abs(k) > 1:
            self._guard(Bound(rest % abs(k), 0, 1))
        self._put(v, rest // abs(k))

    def _stepped(self, e: Index, u: Iterator, v: Iterator) -> Index:
        """*e* with ``u = lo + m·j + p``, where *p* is the residue that makes *e* a multiple of *v*'s coefficient."""
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
        self._put(u, value)
        return at(e, {u: value})

    def _put(self, x: Iterator, value: Index) -> None:
        to = {x: value}
        del self.unknowns[x]
        self.equations = [at(e, to) for e in self.equations]
        self.values = {y: at(i, to) for y, i in self.values.items()}
        self.guards = [Bound(at(b.index, to), b.lo, b.hi) for b in self.guards]

    def _guard(self, bound: Bound) -> None:
        if not holds(bound):
            self.guards.append(bound)

    def found(self, box: tuple[Iterator, ...]) -> Preimage:
        """What was found for the iterators of *box*; a quotient's own range follows from theirs."""
        ranges = [Bound(self.values[x], x.lo, x.hi) for x in box]
        ranges += [Bound(self.values[p], p.lo, p.hi) for _, p in self.pairs.values()]
        guards = tuple(b for b in dict.fromkeys((*self.guards, *ranges)) if not holds(b))
        return Preimage({x: self.values[x] for x in box}, tuple(self.unknowns), _needed(guards), self.hard)


def _needed(guards: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """*guards* without those that follow from the others; intervals cannot tell where quotients are involved."""
    kept = list(guards)
    for b in guards:
        if not b.index.affine and always(b, tuple(o for o in kept if o != b)):
            kept.remove(b)
    return tuple(kept)
