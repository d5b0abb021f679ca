r"""Re-centring: an exponential relative to one value becomes relative to another, times a correcting exponential.

.. math::
   e^{a - b} \;\mapsto\; e^{a - c}\, e^{c - b}, \qquad c = \Big\{ \mathop{L}_{\vec z} \max_{\vec y} a \Big\}[\vec z]
   \quad\text{or}\quad c = a|_{x = i} \quad\text{or}\quad c = b|_{x = i}

for a finite `c`.  Its certificate names the law :math:`e^{a+b} = e^a e^b`.  The centre `c` is

- the maximum of `a` over some of the scope's summations, so :math:`e^{a-c} \le 1`.  The second factor does not depend
  on these summations, so distributivity moves it out, and each block of a softmax is relative to its own maximum;
- the value of `a` or `b` at one place of an iterator.  Decay between two positions, :math:`e^{L_t - L_s}`, becomes
  decay to the end of a block, between blocks, and from the beginning of one.  All three are at most 1 where L falls.

An exponential under a condition that has an iterator that a new factor lacks leaves this factor outside the condition.

Source: M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018; for decay S. Yang et al., Gated
linear attention transformers with hardware-efficient training, 2024.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.analysis.indices import iterators_of, join_names, substitute
from einnet_explore.analysis.products import has_finite_padding, summed_factors
from einnet_explore.ir import Apply, Compare, Const, Index, Iterator, Scalar, Scope, add, as_index, factors, mul
from einnet_explore.rules.base import accepted, scope_rule
from einnet_explore.support.errors import Refused
from einnet_explore.support.wording import count_noun


@dataclass(frozen=True, slots=True)
class Centre:
    """Make factor number *factor* relative to its largest argument over the summations *within*."""

    factor: int
    within: tuple[Iterator, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Make factor number *factor* relative to its argument where *iterator* is *at*."""

    factor: int
    iterator: Iterator
    at: Index


def propose(scope: Scope) -> Iterable[Centre | Place]:
    """Propose exponentials relative to their maximum over a summation, and decay under a condition."""
    for n, factor in enumerate(factors(scope.body)):
        found: list[Centre | Place] = []
        match factor:
            case Apply("exp"):
                found += [Centre(n, (y,)) for y in scope.summations if len(scope.summations) > 1]
            case Apply("where", (Compare() as condition, Apply("exp", (argument,)), Const(0))):
                loose = (iterators_of(part) - iterators_of(condition) for part in _difference(argument))
                first, last = (sorted(part, key=lambda x: x.name) for part in loose)
                found += [Place(n, x, as_index(x.lo)) for x in first]
                found += [Place(n, x, as_index(x.hi - 1)) for x in last]
        yield from (params for params in found if accepted(rewrite, scope, params))


def rewrite(scope: Scope, params: Centre | Place) -> Scope:
    """Apply the law; refuses a factor that is no exponential of a difference, or whose argument lacks an iterator."""
    parts = summed_factors(scope)
    if not 0 <= params.factor < len(parts):
        raise Refused(f"factor {params.factor}: the body has {len(parts)}")
    match parts[params.factor]:
        case Apply("where", (Compare() as condition, Apply("exp", (argument,)), Const(0))):
            holds: Compare | None = condition
        case Apply("exp", (argument,)):
            holds = None
        case other:
            raise Refused(f"factor {params.factor} is {other!r}, expected the exponential of a difference")
    a, b = _difference(argument)
    if b == Const(0):
        raise Refused(f"factor {params.factor} is the exponential of {argument!r}, expected a difference")
    match params:
        case Centre(_, within):
            centre = _largest(scope, a, b, within)
        case Place(_, x, at):
            centre = _value_at(a, b, x, at)
    split = _under(holds, (_exp(a, centre), _exp(centre, b)))
    body = mul(*(x for n, p in enumerate(parts) for x in (split if n == params.factor else (p,))))
    return replace(scope, body=body)


def _difference(argument: Scalar) -> tuple[Scalar, Scalar]:
    """Return *a* and *b* of which *argument* is the difference; *b* is the sum of what is subtracted, or 0."""
    match argument:
        case Apply("-", (a, b)):
            (one, minus_one), (other, minus_other) = _difference(a), _difference(b)
            return add(one, minus_other), add(minus_one, other)
        case Apply("+", args):
            added, subtracted = zip(*map(_difference, args), strict=True)
            return add(*added), add(*subtracted)
        case Apply("neg", (a,)):
            return _difference(a)[::-1]
        case Apply("*", (Const(value), *rest)) if value < 0:
            return Const(0), mul(Const(-value), *rest)
    return argument, Const(0)


def _under(condition: Compare | None, parts: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Return *parts*, those under *condition* that have all of its iterators."""
    if condition is None:
        return parts
    needed = iterators_of(condition)
    inside = tuple(part for part in parts if needed <= iterators_of(part))
    held = Apply("where", (condition, mul(*inside), Const(0)))
    return (held, *(part for part in parts if part not in inside))


def _value_at(a: Scalar, b: Scalar, x: Iterator, at: Index) -> Scalar:
    """Return the one of *a* and *b* that depends on *x*, where *x* is *at*."""
    found = [part for part in (a, b) if x in iterators_of(part)]
    if len(found) != 1:
        raise Refused(f"{len(found)} of {a!r} and {b!r} depend on {x.name}, expected one")
    first, last = at.bounds
    if first < x.lo or last >= x.hi:
        raise Refused(f"{x.name} is {at!r} in [{first}, {last}], outside [{x.lo}, {x.hi})")
    if not has_finite_padding(found[0]):
        raise Refused(f"{found[0]!r} may be infinite: its padding is")
    return substitute(found[0], {x: at})


def _exp(a: Scalar, b: Scalar) -> Scalar:
    return Apply("exp", (Apply("-", (a, b)),))


def _largest(scope: Scope, a: Scalar, b: Scalar, within: tuple[Iterator, ...]) -> Scalar:
    read, stray = iterators_of(a), [y for y in within if y not in scope.summations]
    if stray or not within:
        raise Refused(
            f"{join_names(stray or within)} is not summed here: the summations are {join_names(scope.summations)}"
        )
    if missing := [y for y in within if y not in read]:
        raise Refused(f"the exponential is of {a!r}, which does not depend on {join_names(missing)}")
    if common := iterators_of(b) & set(within):
        raise Refused(
            f"the exponential subtracts {b!r}, which depends on {join_names(sorted(common, key=lambda y: y.name))} too"
        )
    kept = tuple(x for x in (*scope.summations, *scope.traversals) if x in read and x not in within)
    return Scope(kept, within, a, "max")[kept]


def explain(scope: Scope) -> str:
    """Return why no factor can be re-centred."""
    if len(scope.summations) < 2:
        found = count_noun(len(scope.summations), "summation")
        return f"the scope has {found}, expected one to stand within another, or a condition"
    return "no factor is the exponential of a difference of what is summed and what is not"


RECENTRING = scope_rule(
    "recentring",
    r"e^{a - b} \;\mapsto\; e^{a - c}\, e^{c - b}, \qquad"
    r" c = \Big\{ \mathop{L}_{\vec z} \max_{\vec y} a \Big\}[\vec z], \; a|_{x = i} \text{ or } b|_{x = i}",
    propose,
    rewrite,
    explain=explain,
)
