r"""Contribution of one read to the gradient of its source.

.. math::
   Y = \mathop{L}_{\vec x} \sum_{\vec y} f(T[\tau(\vec x, \vec y)])
   \quad\Rightarrow\quad
   dT = \mathop{L}_{\vec t}\ \sum_{(\vec x, \vec y) \in \tau^{-1}(\vec t)} dY[\vec x]\,
        \frac{\partial f}{\partial T}(\vec x, \vec y)

Points of the pre-image outside the box contribute nothing.  They read dY's padding, which is 0, if they are outside
because of *x* alone and all other reads are finite there; otherwise they are excluded by a ``where``.

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

Source: the inversion of index maps is EinNet §4.1's :math:`\Phi^{-1}`, here also for maps that are not bijective.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd, isfinite, prod

from einnet_explore.analysis.indices import (
    fresh_name,
    holds_everywhere,
    substitute,
    substitute_domain,
    substitute_index,
)
from einnet_explore.analysis.padding import excess, fit_padding
from einnet_explore.analysis.regions import always_holds, index_reach
from einnet_explore.autodiff.scalar_derivatives import Partial
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Index,
    Iterator,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    factors,
    map_accesses,
    mul,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS


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


MAX_SLOWDOWN = 16
"""Points per point of the forward pass that a gradient may enumerate for an index map without inverse."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """A contribution: the sum over *free* of *body*, at the gradient's element of the target iterators."""

    free: tuple[Iterator, ...]
    body: Scalar


def target_iterators(
    index: tuple[Index, ...], box: tuple[tuple[int, int], ...], used: Iterable[str]
) -> tuple[Iterator, ...]:
    """Return iterators over *box*, named like single-iterator indices of *index*, else ``t1``, ``t2``, …"""
    taken = {*used, *(x.name for i in index for x in i.iterators)}
    out: list[Iterator] = []
    for i, (lo, hi) in zip(index, box, strict=True):
        single = i.single
        name = single.name if single and all(single.name != t.name for t in out) else fresh_name("t", taken)
        taken.add(name)
        out.append(Iterator(name, lo, hi))
    return tuple(out)


def gradient_contribution(
    scope: Scope, above: Tensor, part: Partial, into: tuple[Iterator, ...], scale: Scalar
) -> Contribution | None:
    """Return the contribution of the read of *part* to the gradient over *into*; None if it is 0.

    *above* is the gradient of *scope*'s result, and *scale*, over the scope's iterators, a factor of all its partials.
    Raises ValueError if the index map has no usable inverse.
    """
    whole = replace(part, factor=mul(part.factor, scale))
    direct = _pull_back(scope, above, whole, into, scope.traversals)
    if (direct.bounds or direct.stepped) and not whole.conditions and _finite(whole.factor):
        # Strides: where another factor's padding says which points count, this is a transposed convolution.  Rules step
        # through its sum as this did, but no rule makes steps whole again.
        other = _pull_back(scope, above, whole, into, scope.summations)
        if not (other.bounds or other.stepped or other.hard):
            direct = other
    if direct.hard:
        _refuse_long(scope, direct.scope, part.access)
    return _bounds_to_conditions(direct)


@dataclass(frozen=True, slots=True)
class _PulledScope:
    """A scope over the targets, valid where all *bounds* and *conditions* hold, and 0 elsewhere.

    *stepped*: an iterator of the original is strided; *hard*: an equation could not be solved.
    """

    scope: Scope
    bounds: tuple[Bound, ...]
    conditions: tuple[tuple[Scalar, bool], ...]
    stepped: bool
    hard: bool


def _pull_back(
    scope: Scope, above: Tensor, part: Partial, into: tuple[Iterator, ...], prefer: tuple[Iterator, ...]
) -> _PulledScope:
    """Return *part* times *above* at the targets *into*, solved for *prefer* first."""
    own = (*scope.traversals, *scope.summations)
    # The new iterators may have names of the old ones: these get a mark in between.
    marked = {x: Iterator(f"{x.name}'", x.lo, x.hi) for x in own}
    index = tuple(i.substitute(lambda x: marked[x]) for i in part.access.index)
    found = preimage(tuple(marked.values()), index, into, {marked[x] for x in prefer})
    plain = _unmark_iterators(found.free, into)
    stepped = any(y not in found.values for y in found.free)

    def unmark(i: Index) -> Index:
        return i.substitute(lambda y: plain.get(y, y))

    to = {x: unmark(found.values[marked[x]]) for x in own}
    bounds = (*(Bound(unmark(b.index), b.lo, b.hi) for b in found.guards), *substitute_domain(scope.domain, to))
    conditions = tuple((substitute(c, to), holds) for c, holds in part.conditions)
    read = Access(above, tuple(to[x] for x in scope.traversals))
    made = Scope(into, tuple(plain.values()), mul(read, substitute(part.factor, to)))
    if not part.conditions and _finite(part.factor):
        kept = tuple(b for b in bounds if not any(_vanishes(f, b) for f in factors(made.body)))
        if len(kept) < len(bounds) and (fit := _pad_reads(made, above, kept)) is not None:
            return _PulledScope(fit, kept, conditions, stepped, found.hard)
    return _PulledScope(made, bounds, conditions, stepped, found.hard)


def _refuse_long(scope: Scope, backward: Scope, access: Access) -> None:
    """Raise ValueError if *backward* enumerates far more points than *scope* or the gradient have."""
    walked, forward = (prod(x.extent for x in (*s.traversals, *s.summations)) for s in (backward, scope))
    made = prod(backward.shape)
    if walked > MAX_SLOWDOWN * max(forward, made):
        assert isinstance(access.source, Tensor)
        raise ValueError(
            f"the index map ({', '.join(map(repr, access.index))}) of {access.source.name} has no usable inverse: its "
            f"gradient, of {made} elements, would walk through {walked} points, expected at most {MAX_SLOWDOWN} times "
            f"as many as elements or as the {forward} points of the forward pass"
        )


def _unmark_iterators(free: Iterable[Iterator], into: Iterable[Iterator]) -> dict[Iterator, Iterator]:
    taken = {t.name for t in into}
    out: dict[Iterator, Iterator] = {}
    for y in free:
        name = y.name.replace("'", "")
        out[y] = Iterator(name if name not in taken else fresh_name(name, taken), y.lo, y.hi)
        taken.add(out[y].name)
    return out


def _vanishes(factor: Scalar, bound: Bound) -> bool:
    """Whether *factor* is, or can be padded to, 0 wherever *bound* is violated: a read outside its box."""
    match factor:
        case Access(Tensor() | Scope() as source, index):
            boxes = zip(index, source.box, strict=True)
            return not source.value and any(
                i == bound.index and bound.lo <= lo and hi <= bound.hi for i, (lo, hi) in boxes
            )
    return False


def _pad_reads(scope: Scope, above: Tensor, bounds: tuple[Bound, ...]) -> Scope | None:
    """Pad out-of-box reads of *scope* by 0: of *above*, and of copies of others; None if that is not valid.

    Where *bounds* are left, other reads stay as they are.
    """
    pads = [(0, 0)] * len(above.shape)

    def widest(access: Access) -> Access:
        if access.source == above:
            for d, (i, (lo, hi)) in enumerate(zip(access.index, above.box, strict=True)):
                first, last = index_reach(i)
                pads[d] = max(0, lo - first), max(0, last + 1 - hi)
            wide = replace(above, padding=tuple(pads) if any(map(any, pads)) else ())
            return Access(wide, access.index)
        return access

    scope = replace(scope, body=map_accesses(scope.body, widest))
    beyond = {e.access for e in excess(scope)}
    if not beyond:
        return scope
    sources = [a.source for n, a in enumerate(accesses(scope.body)) if n in beyond]
    if bounds or any(isinstance(s, Table) or s.value for s in sources):
        return None
    return fit_padding(scope, 0)


def _finite(factor: Scalar) -> bool:
    """Whether *factor* is finite for finite reads, and no read has infinite padding."""
    match factor:
        case Access(source):
            return not source.padding or isfinite(source.value)
        case Const(value):
            return isfinite(value)
        case Apply(op, args):
            f = SCALAR_FUNCTIONS.get(op)
            return f is not None and f.finite_on_finite and all(map(_finite, args))
        case Compare():
            return False


def _bounds_to_conditions(pulled: _PulledScope) -> Contribution | None:
    """Turn the remaining bounds into conditions; None if they cannot be met."""
    body = pulled.scope.body
    for b in pulled.bounds:
        lo, hi = b.index.bounds
        if hi < b.lo or lo >= b.hi:
            return None
        if b.hi - b.lo == 1:
            body = _where(Compare("==", b.index, as_index(b.lo)), body)
            continue
        if hi >= b.hi:
            body = _where(Compare("<", b.index, as_index(b.hi)), body)
        if lo < b.lo:
            body = _where(Compare(">=", b.index, as_index(b.lo)), body)
    for condition, true in pulled.conditions:
        zero = Const(0)
        body = Apply("where", (condition, body, zero) if true else (condition, zero, body))
    return Contribution(pulled.scope.summations, body)


def _where(condition: Compare, body: Scalar) -> Scalar:
    return Apply("where", (condition, body, Const(0)))
