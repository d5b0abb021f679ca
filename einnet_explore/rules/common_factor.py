r"""Common factors: two terms of a sum that have a factor in common are added first.

.. math::
   \mathop{L}_{\vec x} \sum_{\vec y} f(\vec x, \vec y)\, g_1(\vec x, \vec y)
     + \sum_{\vec z} f(\vec x, \varphi(\vec x, \vec z))\, g_2(\vec x, \vec z)
   \;\mapsto\;
   \mathop{L}_{\vec x} \sum_{\vec y} f(\vec x, \vec y)
   \Big\{ \mathop{L}_{\vec x \vec y} g_1(\vec x, \vec y)
     + \sum_{\vec z :\, \varphi(\vec x, \vec z) = \vec y} g_2(\vec x, \vec z) \Big\}[\vec x, \vec y]

It is the inverse of distributivity's multiplying out.  :math:`\varphi` is solved from the indices of the factor: the
summations of both terms may correspond one to one, as in :math:`x W + x A B`, or the second term may read the factor at
one place of the first, as a 1×1 convolution reads a 3×3 window's centre and a residual addition reads one channel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from math import prod

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.analysis.indices import (
    holds_everywhere,
    iterators_of,
    substitute,
    substitute_index,
)
from einnet_explore.analysis.products import (
    SummedProduct,
    flatten_product,
    has_finite_padding,
    least_products,
    open_scope,
)
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Const,
    Index,
    Iterator,
    Scalar,
    Scope,
    add,
    as_index,
    factors,
    mul,
    terms,
)
from einnet_explore.rules.base import scope_rule
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Common:
    """The numbers of two terms, and of the factor in each that both have; the first term's summations remain.

    Factors are numbered after sums that are factors are substituted; constants have no number.
    """

    terms: tuple[int, int]
    factors: tuple[int, int]


def propose(scope: Scope) -> Iterable[Common]:
    """Propose the common factor of two terms that saves most products, if one saves any."""
    found = terms(scope.body)
    if len(found) < 2 or scope.summations or scope.domain or not has_finite_padding(scope.body):
        return
    most, best = 0, None
    for i, j in combinations(range(len(found)), 2):
        saved, here = _best_of_pair(found[i], found[j], scope.traversals, scope.reduce)
        if here is not None and saved > most:
            most, best = saved, Common((i, j) if here.terms == (0, 1) else (j, i), here.factors)
    if best is not None:
        yield best


@lru_cache(1 << 13)  # a step joins one pair of a sum and leaves the others
def _best_of_pair(first: Scalar, second: Scalar, own: tuple[Iterator, ...], reduce: str) -> tuple[int, Common | None]:
    """Return the products that the best common factor of two terms saves, and this factor, if any."""
    pair = Scope(own, (), add(first, second), reduce)
    one, other = (flatten_product(term, own).parts for term in terms(pair.body))
    most, best = 0, None
    for m, n in product(range(len(one)), range(len(other))):
        if _same_source(one[m], other[n]) and not _always_differ(one[m], other[n], own):
            for here in (Common((0, 1), (m, n)), Common((1, 0), (n, m))):
                try:
                    joined = rewrite(pair, here)
                except Refused:
                    continue
                if (saved := least_products(pair) - least_products(joined)) > most:
                    most, best = saved, here
                break
    return most, best


def _always_differ(p: Scalar, q: Scalar, own: tuple[Iterator, ...]) -> bool:
    """Whether two elements of one source differ at each point of *own*, such as those of two steps of a recurrence."""
    apart = ((a, b) for a, b in _index_pairs(p, q) if a.terms == b.terms and a.const != b.const)
    return any(set(a.iterators) <= set(own) for a, _ in apart)


def _same_source(p: Scalar, q: Scalar) -> bool:
    match p, q:
        case Access(one), Access(other):
            if isinstance(one, Scope) and isinstance(other, Scope):
                return canonical_key(one) == canonical_key(other)
            return one == other
        case Apply(one, ours), Apply(other, theirs):
            return one == other and len(ours) == len(theirs) and all(map(_same_source, ours, theirs))
    return p == q


def rewrite(scope: Scope, params: Common) -> Scope:
    """Apply the law; refuses terms without this factor, and indices of it that have no one solution."""
    if scope.summations or scope.domain:
        what = f"a domain: {scope.domain[0]!r}" if scope.domain else "summations"
        raise Refused(f"the scope has {what}, expected a sum of terms, each summed on its own")
    if not has_finite_padding(scope.body):
        raise Refused("distributivity needs finite paddings: 0 times infinity is undefined")
    found = terms(scope.body)
    i, j = params.terms
    if i == j or not all(0 <= n < len(found) for n in params.terms):
        raise Refused(f"terms {i} and {j}: expected two of the {len(found)} terms of the body")
    one = flatten_product(found[i], scope.traversals)
    other = flatten_product(found[j], (*scope.traversals, *one.summations))
    for n, flat in zip(params.factors, (one, other), strict=True):
        if not 0 <= n < len(flat.parts):
            raise Refused(f"factor {n}: the term has {len(flat.parts)}")
    together = _joined(scope, one, other, params.factors)
    rest = [term for n, term in enumerate(found) if n not in params.terms]
    if not rest:
        over = tuple(y for y in one.summations if y in iterators_of(together))
        return replace(scope, summations=over, body=together)
    new = _summed((*scope.traversals, *one.summations), one.summations, together)
    return replace(scope, body=add(*rest[: min(i, j)], new, *rest[min(i, j) :]))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the second term reads the factor: *to* renames its summations, *bounds* hold there and nowhere else."""

    to: Mapping[Iterator, Index]
    bounds: tuple[Bound, ...]


def _joined(scope: Scope, one: SummedProduct, other: SummedProduct, numbers: tuple[int, int]) -> Scalar:
    """Return the product of the common factors and the sum of the others, over the summations of the first term."""
    first, second = one.parts[numbers[0]], other.parts[numbers[1]]
    solved = _solved(first, second, one.summations, other.summations)
    place = _placed(solved, other.summations)
    theirs = [substitute(part, place.to) for n, part in enumerate(other.parts) if n != numbers[1]]
    ours, common = list[Scalar](), [first]
    for n, part in enumerate(one.parts):
        if n == numbers[0]:
            continue
        if part in theirs:
            theirs.remove(part)
            common.append(part)
        else:
            ours.append(part)
    shared = iterators_of(mul(*common))
    own = (*scope.traversals, *(y for y in one.summations if y in shared))
    left = tuple(y for y in one.summations if y not in shared)
    gone = tuple(y for y in other.summations if y not in place.to)
    added = _with_like_terms(add(_side(one, ours, left, own, ()), _side(other, theirs, gone, own, place.bounds)), own)
    kept = tuple(x for x in own if x in iterators_of(added))
    return mul(*common, Scope(kept, (), added)[kept] if kept else added)


def _with_like_terms(body: Scalar, own: tuple[Iterator, ...]) -> Scalar:
    """Return *body*, whose iterators are *own*, with the coefficients of equal terms added."""
    total: dict[Hashable, tuple[float, Scalar]] = {}
    for term in terms(body):
        constants = [factor.value for factor in factors(term) if isinstance(factor, Const)]
        rest = mul(*(factor for factor in factors(term) if not isinstance(factor, Const)))
        key = canonical_key(Scope(own, (), rest))
        known, first = total.get(key, (0.0, rest))
        total[key] = known + prod(constants), first
    return add(*(mul(Const(k), rest) for k, rest in total.values()))


def _side(
    term: SummedProduct, parts: list[Scalar], over: tuple[Iterator, ...], own: tuple[Iterator, ...],
    bounds: tuple[Bound, ...],
) -> Scalar:  # fmt: skip
    """Return the constants and *parts* of *term* summed over what is *left*, 0 where *bounds* are violated."""
    product = open_scope(mul(*parts))
    limited = {x for bound in bounds for x in bound.index.iterators}
    if stray := limited.difference(own):
        raise Refused(f"the place of the factor depends on {min(x.name for x in stray)}, which is summed elsewhere")
    times = Const(prod(y.extent for y in over if y not in iterators_of(product)))
    return mul(times, *term.constants, _summed(own, over, product, bounds))


def _summed(
    own: tuple[Iterator, ...], over: tuple[Iterator, ...], product: Scalar, bounds: tuple[Bound, ...] = ()
) -> Scalar:
    read = iterators_of(product)
    over = tuple(y for y in over if y in read)
    if not over and not bounds:
        return product
    limited = {x for bound in bounds for x in bound.index.iterators}
    kept = tuple(x for x in own if x not in over and (x in read or x in limited))
    return Scope(kept, over, product, domain=bounds)[kept]


def _solved(
    p: Scalar, q: Scalar, unknown: tuple[Iterator, ...], others: tuple[Iterator, ...]
) -> Mapping[Iterator, Index]:
    """Return *unknown* iterators of *p* such that *p* is *q*, in *others*; raises Refused if there is no one solution.

    An iterator of one value is that value.
    """
    to = {x: as_index(x.lo) for x in unknown if x.extent == 1}
    single = {x: as_index(x.lo) for x in others if x.extent == 1}
    left = [(a, substitute_index(b, single)) for a, b in _index_pairs(p, q)]
    while left:
        waiting = []
        for a, b in left:
            diff = substitute_index(a, to) - b
            open_ = [x for x in diff.iterators if x in unknown]
            if not open_ and diff != as_index(0):
                raise Refused(f"{p!r} and {q!r} are different elements: {diff!r} is not 0")
            if len(open_) == 1 and (k := diff.coefficient(u := open_[0])) in (1, -1):
                value = (diff - as_index(u) * k) * -k
                if u in value.iterators:
                    raise Refused(f"{diff!r} = 0 is not solved for {u.name}")
                lo, hi = value.bounds
                if not u.lo <= lo <= hi < u.hi:
                    raise Refused(f"{u.name} = {value!r} ∈ [{lo}, {hi}] leaves [{u.lo}, {u.hi})")
                to[u] = value
            elif open_:
                waiting.append((a, b))
        if len(waiting) == len(left):
            raise Refused(f"{p!r} = {q!r} has no one solution for {', '.join(sorted(x.name for x in unknown))}")
        left = waiting
    return to


def _index_pairs(p: Scalar, q: Scalar) -> Iterable[tuple[Index, Index]]:
    match p, q:
        case (Access(index=a), Access(index=b)) if _same_source(p, q):
            return zip(a, b, strict=True)
        case (Apply(args=ours), Apply(args=theirs)) if _same_source(p, q):
            return (pair for a, b in zip(ours, theirs, strict=True) for pair in _index_pairs(a, b))
    if p == q:
        return ()
    raise Refused(f"{p!r} and {q!r} have different sources")


def _placed(solved: Mapping[Iterator, Index], summations: tuple[Iterator, ...]) -> _Place:
    """Return *solved* as a renaming of *summations* where it is one to one, and bounds for the rest."""
    to: dict[Iterator, Index] = {}
    equal: list[tuple[Iterator, Index]] = []
    for u, value in solved.items():
        match value.terms:
            case ((Iterator() as v, 1 | -1 as k),) if v in summations and v not in to:
                to[v] = (u - value.const) * k
            case _:
                equal.append((u, value))
    bounds = [Bound(index, v.lo, v.hi) for v, index in to.items()]
    bounds += [Bound(u - substitute_index(value, to), 0, 1) for u, value in equal]
    return _Place(to, tuple(b for b in bounds if not holds_everywhere(b)))


def explain(scope: Scope) -> str:
    """Return why no common factor is proposed."""
    if len(terms(scope.body)) < 2:
        return "the body has one term"
    if scope.summations or scope.domain:
        return "the terms are not summed each on its own: distributivity does this"
    return "no two terms have a common factor that leaves fewer products"


COMMON_FACTOR = scope_rule(
    "common_factor",
    r"\mathop{L}_{\vec x} \sum_{\vec y} f\, g_1 + \sum_{\vec z} f[\varphi(\vec x, \vec z)]\, g_2 \;\mapsto\;"
    r" \mathop{L}_{\vec x} \sum_{\vec y} f"
    r" \Big\{ \mathop{L}_{\vec x \vec y} g_1 + \sum_{\vec z :\, \varphi = \vec y} g_2 \Big\}[\vec x, \vec y]",
    propose,
    rewrite,
    explain=explain,
)
