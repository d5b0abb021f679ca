r"""Traversal factoring: values that depend on :math:`\lfloor x / d \rfloor` alone are computed once for d values of x.

.. math::
   \mathop{L}_{\vec x} \sum_{\vec y} f(\lfloor \vec x / \vec d \rfloor, \vec y)
   \;\mapsto\;
   \mathop{L}_{\vec x} \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f(\vec z, \vec y) \Big\}
   [\lfloor \vec x / \vec d \rfloor]

It is the inverse of traversal merging for indices that are no bijection: a product moves before an upsampling, and a
value that does not depend on x (d is its extent) is computed once.  In the same way, values that depend on a sum of
traversals alone, such as the position :math:`h + r` of a window, are computed once for each value of the sum:

.. math::
   \mathop{L}_{h\,r\,\vec x} \sum_{\vec y} f(h + r, \vec x, \vec y)
   \;\mapsto\;
   \mathop{L}_{h\,r\,\vec x} \Big\{ \mathop{L}_{t\,\vec x} \sum_{\vec y} f(t, \vec x, \vec y) \Big\}[h + r, \vec x]

Of a nested scope that is read at some of its points only, such as by a slice, only these are computed:

.. math::
   \mathop{L}_{\vec x} g\Big(\Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f(\vec z, \vec y) \Big\}[\Phi(\vec x)]\Big)
   \;\mapsto\;
   \mathop{L}_{\vec x} g\Big(\Big\{ \mathop{L}_{\vec x} \sum_{\vec y} f(\Phi(\vec x), \vec y) \Big\}[\vec x]\Big)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from einnet_explore.analysis.access_structure import quotient_divisors, skews
from einnet_explore.analysis.indices import fresh_name, is_inside_box, iterators_of, rename_iterators, substitute
from einnet_explore.ir import Access, Index, Iterator, Scope, accesses, as_index, describe_source, map_accesses
from einnet_explore.rules.base import accepted, access_of, refusals_of, scope_rule
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Factoring:
    """The traversals and their divisors."""

    divisors: tuple[tuple[Iterator, int], ...]


@dataclass(frozen=True, slots=True)
class Position:
    """A sum of traversals, with one coefficient of 1 or -1 at least."""

    position: Index


@dataclass(frozen=True, slots=True)
class Selection:
    """The number of an access to a nested scope, in order of writing."""

    selected: int


def propose(scope: Scope) -> Iterable[Factoring | Position | Selection]:
    """Propose together all traversals that the body of a sum reads only through a quotient, or not at all.

    Then propose each sum of traversals with fewer values than they have, and nested sums that are read in part.
    """
    if scope.summations:
        yield from _quotients(scope)
        yield from _positions(scope)
    for number, access in enumerate(accesses(scope.body)):
        params = Selection(number)
        if _is_read_in_part(scope, access) and accepted(rewrite, scope, params):
            yield params


def _is_read_in_part(scope: Scope, access: Access) -> bool:
    """Whether *access* reads a nested sum, which has more points than the iterators of its index have."""
    inner = access.source
    return (
        isinstance(inner, Scope)
        and bool(inner.summations)
        and _points(_read_by(scope, access)) < _points(inner.traversals)
    )


def _read_by(scope: Scope, access: Access) -> tuple[Iterator, ...]:
    """Return the iterators of *scope* on which the index of *access* depends."""
    read = {x for i in access.index for x in i.iterators}
    return tuple(x for x in (*scope.traversals, *scope.summations) if x in read)


def _points(iterators: Iterable[Iterator]) -> int:
    return prod(x.extent for x in iterators)


def _quotients(scope: Scope) -> Iterable[Factoring]:
    read = iterators_of(scope.body)
    found = {x: x.extent for x in scope.traversals if x not in read and x.extent > 1}
    for x, d in quotient_divisors(scope):
        if x not in found and accepted(rewrite, scope, Factoring(((x, d),))):
            found[x] = d
    params = Factoring(tuple(found.items()))
    if accepted(rewrite, scope, params):
        yield params


def _positions(scope: Scope) -> Iterable[Position]:
    for position, _ in skews(scope, scope.traversals):
        low, high = position.bounds
        fewer = high - low + 1 < _points(position.iterators)
        if fewer and accepted(rewrite, scope, params := Position(position)):
            yield params


def rewrite(scope: Scope, params: Factoring | Position | Selection) -> Scope:
    """Apply the law; refuses a traversal that the body reads finer than by its quotient or sum, and a domain.

    Refuses a nested scope with a domain, and one that is read outside its box.
    """
    if isinstance(params, Selection):
        return _of_selection(scope, params.selected)
    if scope.domain:
        raise Refused(f"the scope has a domain: {scope.domain[0]!r}")
    return _by_position(scope, params.position) if isinstance(params, Position) else _by_quotients(scope, params)


def _by_position(scope: Scope, position: Index) -> Scope:
    unit = next(((x, k) for x, k in position.terms if isinstance(x, Iterator) and abs(k) == 1), None)
    if unit is None or not set(scope.traversals).issuperset(position.iterators):
        raise Refused(f"{position!r} is no sum of traversals with a coefficient of 1 or -1")
    name = fresh_name("t", {x.name for x in (*scope.traversals, *scope.summations)})
    low, high = position.bounds
    t, (x, k) = Iterator(name, low, high + 1), unit
    body = substitute(scope.body, {x: x + (t - position) * k})
    members = [y for y in scope.traversals if y in position.iterators]
    if fine := [y for y in members if y in iterators_of(body)]:
        raise Refused(f"{fine[0].name} is read finer than {position!r}")
    index = {y: as_index(y) for y in scope.traversals} | {members[-1]: position}
    walked = tuple(y for y in scope.traversals if y not in members[:-1])
    inner = Scope(tuple(t if y is members[-1] else y for y in walked), scope.summations, body, scope.reduce)
    return replace(scope, summations=(), reduce="sum", body=Access(inner, tuple(index[y] for y in walked)))


def _of_selection(scope: Scope, number: int) -> Scope:
    access = access_of(scope, number)
    inner = access.source
    if not isinstance(inner, Scope):
        raise Refused(f"access {number} reads {describe_source(inner)}, not a scope")
    if inner.domain:
        raise Refused(f"the nested scope has a domain: {inner.domain[0]!r}")
    if not is_inside_box(access.index, inner.box):
        raise Refused(f"access {number}, {list(access.index)}, leaves the box of the nested scope, {list(inner.box)}")
    over = _read_by(scope, access)
    renamed = rename_iterators(inner, (x.name for x in (*scope.traversals, *scope.summations)))
    body = substitute(renamed.body, dict(zip(renamed.traversals, access.index, strict=True)))
    selected = Scope(over, renamed.summations, body, inner.reduce)[over]
    return replace(scope, body=map_accesses(scope.body, lambda read: selected if read is access else read))


def _by_quotients(scope: Scope, params: Factoring) -> Scope:
    if not params.divisors:
        raise Refused("no traversal is divided")
    used = {x.name for x in (*scope.traversals, *scope.summations)}
    coarse: dict[Iterator, Iterator] = {}
    to: dict[Iterator, Index] = {}
    index = {x: as_index(x) for x in scope.traversals}
    rests = []
    for x, d in params.divisors:
        if x not in index:
            raise Refused(f"{x.name} is no traversal of this scope")
        if d < 2 or x.lo:
            raise Refused(f"{x.name} ∈ [{x.lo}, {x.hi}) is divided by {d}: expected at least 2, and a range from 0")
        coarse[x] = Iterator(fresh_name(x.name, used), 0, -(-x.hi // d))
        rest = Iterator(fresh_name(x.name, {*used, coarse[x].name}), 0, d)
        used |= {coarse[x].name, rest.name}
        rests.append((x, d, rest))
        to[x], index[x] = as_index(coarse[x]) * d + rest, as_index(x) // d
    body = substitute(scope.body, to)
    if fine := [(x, d) for x, d, rest in rests if rest in iterators_of(body)]:
        raise Refused(f"{fine[0][0].name} is read finer than {fine[0][0].name} // {fine[0][1]}")
    inner = Scope(tuple(coarse.get(x, x) for x in scope.traversals), scope.summations, body, scope.reduce)
    return replace(scope, summations=(), reduce="sum", body=Access(inner, tuple(index[x] for x in scope.traversals)))


def explain(scope: Scope) -> str:
    """Return why no traversal is factored."""
    if not scope.summations:
        return "the scope sums nothing, and reads no nested sum in part: nothing is computed more than once"
    tried: tuple[Factoring | Position, ...] = (
        *(Factoring(((x, d),)) for x, d in quotient_divisors(scope)),
        *(Position(position) for position, _ in skews(scope, scope.traversals)),
    )
    reasons = [r for params in tried for r in refusals_of(rewrite, scope, params)]
    return "; ".join(reasons) or "no traversal is read through a quotient or a sum alone"


TRAVERSAL_FACTORING = scope_rule(
    "traversal_factoring",
    r"\mathop{L}_{\vec x} \sum_{\vec y} f(\lfloor \vec x / \vec d \rfloor, \vec y) \;\mapsto\;"
    r" \mathop{L}_{\vec x} \Big\{ \mathop{L}_{\vec z} \sum_{\vec y} f(\vec z, \vec y) \Big\}"
    r"[\lfloor \vec x / \vec d \rfloor]",
    propose,
    rewrite,
    explain=explain,
)
