r"""What one read contributes to the gradient of what it reads.

.. math::
   Y = \mathop{L}_{\vec x} \sum_{\vec y} f(T[\tau(\vec x, \vec y)])
   \quad\Rightarrow\quad
   dT = \mathop{L}_{\vec t}\ \sum_{(\vec x, \vec y) \in \tau^{-1}(\vec t)} dY[\vec x]\,
        \frac{\partial f}{\partial T}(\vec x, \vec y)

Points of the pre-image that lie outside the box contribute nothing.  Where they lie outside because of *x* alone and
everything else that is read is finite there, dY's padding, which is 0, says so; otherwise a ``where`` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite, prod

from einnet_explore.algebra.gradients.preimage import preimage
from einnet_explore.algebra.gradients.scalars import Partial
from einnet_explore.algebra.legality import excess, fitted
from einnet_explore.algebra.regions import reach
from einnet_explore.algebra.substitute import fresh, substitute, substitute_domain
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Index,
    Iterator,
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

MOST = 16
"""How many points for each of the forward pass a gradient may walk through where its index map is not inverted."""

_TOTAL = ("+", "-", "*", "neg", "relu", "tanh", "sigmoid", "erf", "abs", "maximum", "minimum")
"""The operators that give a finite value wherever their arguments are finite."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """The sum over *free* of *body*, at the element of the gradient that the target iterators name."""

    free: tuple[Iterator, ...]
    body: Scalar


def targets(index: tuple[Index, ...], box: tuple[tuple[int, int], ...], used: Iterable[str]) -> tuple[Iterator, ...]:
    """New iterators over *box*, called as the lone iterators of *index* where there are such, else ``t1``, ``t2``, …"""
    taken = {*used, *(x.name for i in index for x in i.iterators)}
    out: list[Iterator] = []
    for i, (lo, hi) in zip(index, box, strict=True):
        single = i.single
        name = single.name if single and all(single.name != t.name for t in out) else fresh("t", taken)
        taken.add(name)
        out.append(Iterator(name, lo, hi))
    return tuple(out)


def contribution(
    scope: Scope, above: Tensor, part: Partial, into: tuple[Iterator, ...], scale: Scalar
) -> Contribution | None:
    """What the read of *part* contributes to the gradient over *into*; None where that is nothing.

    *above* is the gradient of *scope*'s result, and *scale*, over the scope's iterators, a factor of all its partials.
    Raises ValueError where the index map has no usable inverse.
    """
    whole = replace(part, factor=mul(part.factor, scale))
    direct = _pulled(scope, above, whole, into, scope.traversals)
    if (direct.bounds or direct.stepped) and not whole.conditions and _finite(whole.factor):
        # Strides: where another factor's padding says which points count, this is a transposed convolution.  Rules step
        # through its sum as this did, but no rule makes steps whole again.
        other = _pulled(scope, above, whole, into, scope.summations)
        if not (other.bounds or other.stepped or other.hard):
            direct = other
    if direct.hard:
        _refuse_long(scope, direct.scope, part.access)
    return _guarded(direct)


@dataclass(frozen=True, slots=True)
class _Pulled:
    """A scope over the targets that is right where all *bounds* and *conditions* are met, and has to be 0 elsewhere.

    *stepped*: it walks through an iterator of the original in steps; *hard*: not all equations could be solved.
    """

    scope: Scope
    bounds: tuple[Bound, ...]
    conditions: tuple[tuple[Scalar, bool], ...]
    stepped: bool
    hard: bool


def _pulled(
    scope: Scope, above: Tensor, part: Partial, into: tuple[Iterator, ...], prefer: tuple[Iterator, ...]
) -> _Pulled:
    """*part* times *above* at the targets *into*, solved for *prefer* where there is a choice."""
    own = (*scope.traversals, *scope.summations)
    # The new iterators may have names of the old ones: these get a mark in between.
    marked = {x: Iterator(f"{x.name}'", x.lo, x.hi) for x in own}
    index = tuple(i.substitute(lambda x: marked[x]) for i in part.access.index)
    found = preimage(tuple(marked.values()), index, into, {marked[x] for x in prefer})
    plain = _unmarked(found.free, into)
    stepped = any(y not in found.values for y in found.free)

    def named(i: Index) -> Index:
        return i.substitute(lambda y: plain.get(y, y))

    to = {x: named(found.values[marked[x]]) for x in own}
    bounds = (*(Bound(named(b.index), b.lo, b.hi) for b in found.guards), *substitute_domain(scope.domain, to))
    conditions = tuple((substitute(c, to), holds) for c, holds in part.conditions)
    read = Access(above, tuple(to[x] for x in scope.traversals))
    made = Scope(into, tuple(plain.values()), mul(read, substitute(part.factor, to)))
    if not part.conditions and _finite(part.factor):
        kept = tuple(b for b in bounds if not any(_vanishes(f, b) for f in factors(made.body)))
        if len(kept) < len(bounds) and (fit := _fitted(made, above, legal_anyway=not kept)) is not None:
            return _Pulled(fit, kept, conditions, stepped, found.hard)
    return _Pulled(made, bounds, conditions, stepped, found.hard)


def _refuse_long(scope: Scope, backward: Scope, access: Access) -> None:
    """Raises ValueError where *backward* walks through far more points than *scope* has, or elements are made."""
    walked, forward = (prod(x.extent for x in (*s.traversals, *s.summations)) for s in (backward, scope))
    made = prod(backward.shape)
    if walked > MOST * max(forward, made):
        assert isinstance(access.source, Tensor)
        raise ValueError(
            f"the index map ({', '.join(map(repr, access.index))}) of {access.source.name} has no usable inverse: its "
            f"gradient, of {made} elements, would walk through {walked} points, expected at most {MOST} times as many "
            f"as elements or as the {forward} points of the forward pass"
        )


def _unmarked(free: Iterable[Iterator], into: Iterable[Iterator]) -> dict[Iterator, Iterator]:
    taken = {t.name for t in into}
    out: dict[Iterator, Iterator] = {}
    for y in free:
        name = y.name.replace("'", "")
        out[y] = Iterator(name if name not in taken else fresh(name, taken), y.lo, y.hi)
        taken.add(out[y].name)
    return out


def _vanishes(factor: Scalar, bound: Bound) -> bool:
    """Whether *factor* is, or may be made, 0 wherever *bound* is violated: a read that leaves its box then."""
    match factor:
        case Access(Tensor() | Scope() as source, index):
            boxes = zip(index, source.box, strict=True)
            return not source.value and any(
                i == bound.index and bound.lo <= lo and hi <= bound.hi for i, (lo, hi) in boxes
            )
    return False


def _fitted(scope: Scope, above: Tensor, legal_anyway: bool) -> Scope | None:
    """*scope* with what it reads too far out padded by 0: *above*, and copies of others; None where that is wrong."""
    pads = [(0, 0)] * len(above.shape)

    def widest(access: Access) -> Access:
        if access.source == above:
            for d, (i, (lo, hi)) in enumerate(zip(access.index, above.box, strict=True)):
                first, last = reach(i)
                pads[d] = max(0, lo - first), max(0, last + 1 - hi)
            wide = replace(above, padding=tuple(pads) if any(map(any, pads)) else ())
            return Access(wide, access.index)
        return access

    scope = replace(scope, body=map_accesses(scope.body, widest))
    beyond = {e.access for e in excess(scope)}
    if not beyond:
        return scope
    sources = [a.source for n, a in enumerate(accesses(scope.body)) if n in beyond]
    if not legal_anyway or any(isinstance(s, Table) or s.value for s in sources):
        return None
    return fitted(scope, 0)


def _finite(factor: Scalar) -> bool:
    """Whether *factor* is finite wherever what it reads is, and what it reads is padded by nothing infinite."""
    match factor:
        case Access(source):
            return not source.padding or isfinite(source.value)
        case Const(value):
            return isfinite(value)
        case Apply(op, args):
            return op in _TOTAL and all(map(_finite, args))
        case Compare():
            return False


def _guarded(pulled: _Pulled) -> Contribution | None:
    """What is left, as conditions; None where they cannot be met."""
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
    for condition, holds in pulled.conditions:
        zero = Const(0)
        body = Apply("where", (condition, body, zero) if holds else (condition, zero, body))
    return Contribution(pulled.scope.summations, body)


def _where(condition: Compare, body: Scalar) -> Scalar:
    return Apply("where", (condition, body, Const(0)))
