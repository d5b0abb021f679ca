r"""Variable substitution (EinNet Table 1; §4.1).

.. math::
   \mathop{L}_{\vec x}^{X} \sum_{\vec y} f(\vec x, \vec y)
   \;\mapsto\;
   \mathop{L}_{\vec x}^{X}
     \Big\{ \mathop{L}_{\vec z}^{\Phi(X)} \sum_{\vec y} f(\Phi^{-1}(\vec z), \vec y) \Big\}[\Phi(\vec x)]
   \qquad\text{and}\qquad
   \sum_{\vec y}^{Y} f(\vec y) \;\mapsto\; \sum_{\vec z}^{\Phi(Y)} f(\Phi^{-1}(\vec z)),

where Φ is a bijection.  Over traversals its image need not be a box: the new scope spans the hull, and a domain
excludes the other points, so these are neither computed nor read.  Over summations it must be a box.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, permutations
from typing import TypeAlias

from einnet_explore.analysis.access_structure import (
    contiguous_groups,
    digits,
    order_by_role,
    residue_divisors,
    skews,
    window_pieces,
    windows,
)
from einnet_explore.analysis.indices import (
    fresh_name,
    iterator_by_name,
    join_names,
    parse_index_over,
    substitute,
    substitute_domain,
)
from einnet_explore.analysis.regions import Bijection, bijection, hull
from einnet_explore.ir import Access, Index, Iterator, Scope, accesses, as_index
from einnet_explore.rules.base import accepted, refusals_of, refusing, scope_rule
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import as_items, as_object

Replacement: TypeAlias = "tuple[tuple[Iterator, ...], tuple[tuple[str, Index], ...]]"
"""Some iterators, and the new ones that stand for them (names and indices)."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """Φ by the names of the new iterators and an index for each; *inverse* by old iterator, inferred where empty."""

    phi: tuple[tuple[str, Index], ...]
    inverse: tuple[Index, ...] = ()


def propose(scope: Scope) -> Iterable[Substitution]:
    """Propose skews, residues and runs that the indices of the body suggest, over traversals and over summations."""
    seen: set[tuple[Index, ...]] = set()
    for group in (scope.traversals, scope.summations):
        for params in _candidates(scope, group):
            forward = tuple(i for _, i in params.phi)
            if forward not in seen:
                seen.add(forward)
                if accepted(rewrite, scope, params):
                    yield params


@lru_cache(256)  # what is proposed has been rewritten once already
def rewrite(scope: Scope, params: Substitution) -> Scope:
    """Apply the law; refuses a Φ that is no bijection (with two points that collide) or, over summations, no box."""
    group = _group(scope, tuple(i for _, i in params.phi))
    names = tuple(name for name, _ in params.phi)
    forward = tuple(i for _, i in params.phi)
    others = scope.summations if group is scope.traversals else scope.traversals
    if clash := [n for n in dict.fromkeys(names) if names.count(n) > 1 or n in {x.name for x in others}]:
        raise Refused(f"new iterators need new names: {', '.join(clash)} is taken")
    if forward == tuple(map(as_index, group)):
        raise Refused(f"Φ only renames {join_names(group)}")
    with refusing():
        phi = bijection(group, names, forward, params.inverse)
    return _traversals(scope, phi) if group is scope.traversals else _summations(scope, phi)


def _traversals(scope: Scope, phi: Bijection) -> Scope:
    """Substitute traversals: the domain moves inside, where it guards the reads; the outer scope has none."""
    inside = substitute_domain(scope.domain, phi.to_target)
    domain = tuple(dict.fromkeys((*phi.image, *inside)))
    body = substitute(scope.body, phi.to_target)
    value = scope.value if inside else 0
    inner = Scope(phi.target, scope.summations, body, scope.reduce, domain, value=value)
    return replace(scope, summations=(), body=Access(inner, phi.forward), reduce="sum", domain=())


def _summations(scope: Scope, phi: Bijection) -> Scope:
    if phi.image:
        image, box = phi.points
        spans = " x ".join(f"{z.name}:[{z.lo}, {z.hi})" for z in phi.target)
        raise Refused(f"Φ reaches {image} of the {box} points of {spans}: {', '.join(map(repr, phi.image))} fails")
    return replace(scope, summations=phi.target, body=substitute(scope.body, phi.to_target))


def _group(scope: Scope, forward: tuple[Index, ...]) -> tuple[Iterator, ...]:
    read = {x for i in forward for x in i.iterators}
    for group in (scope.traversals, scope.summations):
        if read and read <= set(group):
            return group
    summed = [x for x in scope.summations if x in read]
    walked = [x for x in scope.traversals if x in read]
    stray = sorted(read - set(summed) - set(walked), key=lambda x: x.name)
    if stray:
        raise Refused(f"{join_names(stray)} is no iterator of this scope")
    if not read:
        raise Refused("Φ reads no iterator")
    raise Refused(f"Φ mixes traversals {join_names(walked)} with summations {join_names(summed)}")


def _candidates(scope: Scope, group: tuple[Iterator, ...]) -> Iterable[Substitution]:
    """Yield all options of a kind together, then each alone; a scope that only moves elements gains by digits only."""
    traversed = group is scope.traversals
    moves = not scope.summations and isinstance(scope.body, Access)
    if traversed and not moves:
        for replacements in _together(_skews(scope)):
            yield _by_role(scope, Substitution(_phi(group, replacements)))
    if not moves:
        first, *smaller = (_residues(scope, divisors) for divisors in _divisors(scope, group))
        pairs = pairwise(group) if traversed else permutations(group, 2)
        runs = ((_run(scope, chain),) for chain in contiguous_groups(scope, pairs))
        for replacements in (*_together(first), *smaller, *runs):
            yield Substitution(_phi(group, replacements))
    for part, name in zip(found := digits(scope, group), _fresh(scope, "z", len(found)), strict=True):
        yield Substitution(_phi(group, ((tuple(x for x in group if x in part.iterators), ((name, part),)),)))


def _skews(scope: Scope) -> tuple[Replacement, ...]:
    found = skews(scope, scope.traversals)
    names = _fresh(scope, "t", len(found))
    return tuple(((x,), ((name, part),)) for (part, units), name in zip(found, names, strict=True) for x in units)


def _together(options: tuple[Replacement, ...]) -> Iterable[tuple[Replacement, ...]]:
    """Yield the first option of each iterator and new name together, then every option alone."""
    joint: list[Replacement] = []
    for old, new in options:
        if all(old != o and new != n for o, n in joint):
            joint.append((old, new))
    if len(joint) > 1:
        yield tuple(joint)
    yield from ((one,) for one in options)


def _divisors(scope: Scope, group: tuple[Iterator, ...]) -> Iterable[tuple[tuple[Iterator, int], ...]]:
    """Yield what indices suggest with halves of windows, then smaller pieces of all windows at once."""
    steps = {x: step for x, step in windows(scope).items() if x in group and x.extent > 1}
    suggested = residue_divisors(scope, group)
    halves = {x: x.extent // 2 for x, step in steps.items() if step == 1 and x.extent % 2 == 0 and x.extent > 2}
    yield tuple(dict.fromkeys((*suggested, *halves.items())))
    smaller = [(x, [d for d in window_pieces(x.extent, n) if d != halves.get(x)]) for x, n in steps.items()]
    for rank in range(min((len(sizes) for _, sizes in smaller), default=0)):
        yield tuple((x, sizes[rank]) for x, sizes in smaller)


def _phi(group: tuple[Iterator, ...], replacements: Iterable[Replacement]) -> tuple[tuple[str, Index], ...]:
    """Return Φ over *group*: new iterators take the place of the first iterator that they replace."""
    at = {xs[0]: new for xs, new in replacements}
    gone = {x for xs, _ in replacements for x in xs}
    return tuple(entry for x in group for entry in at.get(x, () if x in gone else ((x.name, as_index(x)),)))


def _residues(scope: Scope, divisors: tuple[tuple[Iterator, int], ...]) -> tuple[Replacement, ...]:
    """Return x ↦ (x mod d, x / d) for each x and d, counted from the start of the range of x.

    The residue varies slower, as a batch does.  Different iterators get different new names.
    """
    used = [x.name for x in (*scope.traversals, *scope.summations)]
    names: dict[Iterator, tuple[str, str]] = {}
    for x, _ in divisors:
        if x not in names:
            low = fresh_name(x.name, used)
            names[x] = low, fresh_name(x.name, (*used, low))
            used += names[x]
    starts = ((x, d, as_index(x) if x.lo % d == 0 else x - x.lo) for x, d in divisors)
    return tuple(((x,), ((names[x][0], start % d), (names[x][1], start // d))) for x, d, start in starts)


def _run(scope: Scope, chain: tuple[Iterator, ...]) -> Replacement:
    """Return (a, b) ↦ (a - lo)·extent(b) + (b - lo)."""
    (name,) = _fresh(scope, chain[0].name, 1)
    total = Index()
    for x in chain:
        total = total * x.extent + (x - x.lo)
    return chain, ((name, total),)


def join_iterators(scope: Scope, chain: tuple[Iterator, ...]) -> Substitution:
    """Return Φ that joins *chain*, traversals or summations of *scope*, into one iterator, the last one fastest."""
    group = scope.traversals if chain[0] in scope.traversals else scope.summations
    return Substitution(_phi(group, (_run(scope, chain),)))


def divide_iterator(scope: Scope, x: Iterator, size: int) -> Substitution:
    """Return Φ that divides *x*, which starts at 0, into blocks of *size* and the place in its block."""
    group = scope.traversals if x in scope.traversals else scope.summations
    names = [y.name for y in (*scope.traversals, *scope.summations)]
    block = fresh_name(x.name.upper(), names)
    place = fresh_name(x.name, (*names, block))
    return Substitution(_phi(group, (((x,), ((block, x // size), (place, x % size))),)))


def _by_role(scope: Scope, params: Substitution) -> Substitution:
    """Return Φ with the new traversals in the order that operators need."""
    try:
        inner = next(iter(_inner(rewrite(scope, params))))
    except Refused:
        return params
    to = dict(params.phi)
    last = next((z for z in inner.traversals if scope.traversals[-1] in to[z.name].iterators), inner.traversals[-1])
    return Substitution(tuple((z.name, to[z.name]) for z in order_by_role(inner, last)))


def _inner(scope: Scope) -> Iterable[Scope]:
    match scope.body:
        case Access(source=Scope() as inner):
            yield inner


def _fresh(scope: Scope, stem: str, count: int) -> tuple[str, ...]:
    used = {x.name for x in (*scope.traversals, *scope.summations)}
    out: list[str] = []
    for _ in range(count):
        out.append(fresh_name(stem, (*used, *out)))
    return tuple(out)


def explain(scope: Scope) -> str:
    """Return why nothing is substituted: the refusal of a candidate, or that no index suggests one."""
    for group in (scope.traversals, scope.summations):
        for params in _candidates(scope, group):
            for reason in refusals_of(rewrite, scope, params):
                return f"{', '.join(f'{name} = {i}' for name, i in params.phi if not i.single)}: {reason}"
    read = ", ".join(dict.fromkeys(repr(i) for access in accesses(scope.body) for i in access.index if i.terms))
    return f"no sum of iterators, no coefficient above 1 and no contiguous run suggests one in the indices {read}"


def decode(scope: Scope, params: Mapping[str, object]) -> Substitution:
    """Read ``{"phi": {"t1": "h+r", …}, "inverse": […]}``, the inverse in the old order or as an object.

    Iterators of the group that Φ does not read stay themselves and are appended.
    """
    iterators = (*scope.traversals, *scope.summations)
    with refusing():
        phi = [(name, parse_index_over(text, iterators)) for name, text in as_object(params["phi"]).items()]
        group = _group(scope, tuple(i for _, i in phi))
        read = {x for _, i in phi for x in i.iterators}
        phi += [(x.name, as_index(x)) for x in group if x not in read]
        written = params.get("inverse", ())
        if isinstance(written, Mapping):
            for name in written:
                iterator_by_name(group, name)
            written = [written.get(x.name, x.name) for x in group]
        target = hull(tuple(name for name, _ in phi), tuple(i for _, i in phi))
        return Substitution(tuple(phi), tuple(parse_index_over(text, target) for text in as_items(written)))


VARIABLE_SUBSTITUTION = scope_rule(
    "variable_substitution",
    r"\mathop{L}_{\vec x}^{X} f(\vec x) \;\mapsto\; \mathop{L}_{\vec x}^{X}"
    r" \Big\{ \mathop{L}_{\vec z}^{\Phi(X)} f(\Phi^{-1}(\vec z)) \Big\}[\Phi(\vec x)], \qquad"
    r" \sum_{\vec y}^{Y} f(\vec y) \;\mapsto\; \sum_{\vec z}^{\Phi(Y)} f(\Phi^{-1}(\vec z))",
    propose,
    rewrite,
    decode=decode,
    explain=explain,
)
