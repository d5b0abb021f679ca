r"""Like terms: the terms of a sum that read the same element are added first.

.. math::
   &\mathop{L}_{\vec x} \sum_{\vec y\, \vec z} f(\vec x, \vec y, \varphi(\vec x, \vec z))\, g(\vec x, \vec y, \vec z) \\
   \mapsto\; &\mathop{L}_{\vec x} \sum_{\vec y\, \vec u} f(\vec x, \vec y, \vec u)
   \Big\{ \mathop{L}_{\vec x\, \vec y\, \vec u} \sum_{\vec z} [\varphi(\vec x, \vec z) = \vec u]\,
   g(\vec x, \vec y, \vec z) \Big\}[\vec x, \vec y, \vec u]

Terms are alike if they read *f* at one position :math:`\varphi`.  A window of 3 on a window of 3 reads *f* at
:math:`h + r + s`, so nine terms read five elements: it is a window of 5, whose weights are sums of products of both.  A
window on an upsampled image reads at :math:`\lfloor (h + r) / 2 \rfloor`, so several of its places are one element.
If *g* has only weights, the inner sum is computed once, ahead of time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod

from einnet_explore.analysis.indices import (
    fresh_name,
    iterators_of,
    map_indices,
    parse_index_over,
    read_indices,
    substitute_index,
)
from einnet_explore.analysis.padding import excess
from einnet_explore.analysis.products import (
    SummedProduct,
    flatten_product,
    has_finite_padding,
    least_products,
    summed_factors,
)
from einnet_explore.analysis.regions import index_reach
from einnet_explore.ir import Apply, Compare, Const, Index, Iterator, Scope, as_index, mul
from einnet_explore.rules.base import accepted, refusing, scope_rule
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import as_items


@dataclass(frozen=True, slots=True)
class Positions:
    """Sums over summations, after sums that are factors are substituted, at which some factors are read."""

    positions: tuple[Index, ...]


def propose(scope: Scope) -> Iterable[Positions]:
    """Propose the positions of one factor, with fewer values than their summations have, that save most products."""
    try:
        flat = _flat(scope)
    except Refused:
        return
    best, most = None, 0
    for params in dict.fromkeys(Positions(_positions(flat, number)) for number in range(len(flat.parts))):
        if params.positions and accepted(rewrite, scope, params):
            saved = least_products(scope) - least_products(rewrite(scope, params))
            if saved > most:
                best, most = params, saved
    if best is not None:
        yield best


def _positions(flat: SummedProduct, number: int) -> tuple[Index, ...]:
    """Return the sums in the indices of a factor over summations that other factors read as well, if they repeat."""
    elsewhere = frozenset[Iterator]().union(*(read for n, read in enumerate(flat.reads) if n != number))
    shared = elsewhere.intersection(flat.summations)
    found = dict.fromkeys(_moving(index, shared) for index in read_indices(flat.parts[number]))
    positions = (_primitive(position) for position in found if not shared.isdisjoint(position.iterators))
    return tuple(position for position in positions if _repeats(position, shared))


def _repeats(position: Index, summations: frozenset[Iterator]) -> bool:
    """Whether *position* has fewer values than its summations; other iterators in it are phases, below the divisor."""
    points = prod(z.extent for z in summations.intersection(position.iterators))
    phases = all(
        not isinstance(atom, Iterator) and x.extent <= atom.divisor
        for atom, _ in position.terms
        for x in set(as_index(atom).iterators).difference(summations)
    )
    low, high = index_reach(position - _origin(position, summations))
    return phases and high - low + 1 < points


def _moving(index: Index, summations: Collection[Iterator]) -> Index:
    """Return the terms of *index* that depend on *summations*."""
    return Index(tuple((a, k) for a, k in index.terms if any(x in summations for x in as_index(a).iterators)), 0)


def _primitive(position: Index) -> Index:
    """Return *position* divided by what all its coefficients have in common."""
    common = gcd(*(k for _, k in position.terms))
    return Index(tuple((atom, k // common) for atom, k in position.terms), 0)


def _origin(position: Index, summations: Iterable[Iterator]) -> Index:
    """Return *position* at the first values of *summations*."""
    return substitute_index(position, {z: as_index(z.lo) for z in summations})


def rewrite(scope: Scope, params: Positions) -> Scope:
    """Apply the law; refuses positions that no factor is read at alone, and reads beyond the padding of a tensor."""
    flat = _flat(scope)
    read = {x for position in params.positions for x in position.iterators}
    gone = tuple(y for y in flat.summations if y in read)
    if not gone or any(set(gone).isdisjoint(position.iterators) for position in params.positions):
        raise Refused(f"positions {list(params.positions)}: expected sums over the summations of the scope")
    names = {x.name for x in (*scope.traversals, *flat.summations)}
    made = list[Iterator]()
    to = dict[Index, Index]()
    for position in params.positions:
        origin = _origin(position, gone)
        low, high = index_reach(position - origin)
        made.append(Iterator(fresh_name("u", names), low, high + 1))
        names.add(made[-1].name)
        to[position] = origin + made[-1]
    moved = [map_indices(part, lambda index: _replaced(index, to, gone)) for part in flat.parts]
    outside = [part for part in moved if iterators_of(part).isdisjoint(gone)]
    inside = [part for part, new in zip(flat.parts, moved, strict=True) if not iterators_of(new).isdisjoint(gone)]
    if not any(new != part for part, new in zip(flat.parts, moved, strict=True) if new in outside) or not inside:
        raise Refused(f"no factor is read at {list(params.positions)} alone, next to others")
    equal = [
        Apply("where", (Compare("==", position - to[position], Index()), Const(1), Const(0)))
        for position in params.positions
    ]
    product = mul(*equal, *inside)
    free, there = iterators_of(mul(*outside)), iterators_of(product)
    summed = tuple(y for y in flat.summations if y in there and y not in free)
    over = tuple(x for x in (*scope.traversals, *flat.summations, *made) if x in there and x not in summed)
    left = tuple(y for y in flat.summations if y not in summed)
    body = mul(*flat.constants, *outside, Scope(over, summed, product)[over])
    new = replace(scope, summations=(*left, *made), body=body)
    if beyond := excess(new):
        raise Refused(f"a position that no term has would be read: {beyond[0]}")
    return new


def _replaced(index: Index, to: dict[Index, Index], gone: tuple[Iterator, ...]) -> Index:
    """Return *index* with a multiple of a position replaced; as it is if it depends on *gone* in another way."""
    moving = _moving(index, gone)
    for position, new in to.items():
        if moving.terms and moving.terms[0][1] % position.terms[0][1] == 0:
            times = moving.terms[0][1] // position.terms[0][1]
            if moving == position * times:
                return index - moving + new * times
    return index


def _flat(scope: Scope) -> SummedProduct:
    """Return *scope* as one sum; raises Refused if it is none."""
    summed_factors(scope)
    if not scope.summations:
        raise Refused("the scope sums nothing, expected a plain sum of a product")
    flat = flatten_product(scope.body, scope.traversals, scope.summations)
    if not all(map(has_finite_padding, flat.parts)):
        raise Refused("adding first needs finite paddings: 0 times infinity is undefined")
    return flat


def explain(scope: Scope) -> str:
    """Return why no like terms are proposed."""
    try:
        _flat(scope)
    except Refused as why:
        return str(why)
    return "no two terms of the sum read the same element of a factor, or adding them first saves no products"


def decode(scope: Scope, params: Mapping[str, object]) -> Positions:
    """Read ``{"positions": ["r+s"]}``, in the iterators after sums that are factors are substituted."""
    iterators = (*scope.traversals, *_flat(scope).summations)
    with refusing():
        return Positions(tuple(parse_index_over(str(text), iterators) for text in as_items(params["positions"])))


LIKE_TERMS = scope_rule(
    "like_terms",
    r"\mathop{L}_{\vec x} \sum_{\vec y \vec z} f(\varphi(\vec z))\, g(\vec z) \;\mapsto\;"
    r" \mathop{L}_{\vec x} \sum_{\vec y \vec u} f(\vec u)"
    r" \Big\{ \mathop{L}_{\vec x \vec y \vec u} \sum_{\vec z} [\varphi(\vec z) = \vec u]\, g(\vec z) \Big\}"
    r"[\vec x, \vec y, \vec u]",
    propose,
    rewrite,
    decode=decode,
    explain=explain,
)
