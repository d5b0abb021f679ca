"""Which substitutions are worth a choice, and what is chosen together with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

from einnet_explore.algebra.structure import windows
from einnet_explore.ir import Access, Index, Iterator, Path, Program, Remainder, Scope, accesses, as_index
from einnet_explore.operators.digits import overlaps
from einnet_explore.rules import (
    BILINEAR_SUBSTITUTION,
    BOUNDARY_TIGHTENING,
    SUMMATION_SPLITTING,
    VARIABLE_SUBSTITUTION,
    Match,
    Rule,
)
from einnet_explore.rules.boundary_tightening import phased
from einnet_explore.rules.summation_splitting import Splitting
from einnet_explore.rules.variable_substitution import Substitution
from einnet_explore.search.cleanup import Moves
from einnet_explore.search.filters import strided
from einnet_explore.search.moves import local_moves, moves


def substituted(
    before: tuple[Match[Any], ...], program: Program, at: Path, wider: frozenset[str], rules: Collection[Rule[Any]]
) -> Iterable[Moves]:
    """Each substitution that takes every widened iterator apart, after *before*."""
    scope = program.scope_at(at)
    for match, changed in moves(VARIABLE_SUBSTITUTION, program, at, scope):
        if wider <= {x.name for x in _divided(match.params)}:
            yield from substitution(before, match, scope, changed, rules)


def substitution(
    before: tuple[Match[Any], ...], match: Match[Any], scope: Scope, changed: Program, rules: Collection[Rule[Any]]
) -> Iterable[Moves]:
    """The substitution *match* of *scope*, if it serves anything; halves of windows together with a split."""
    params: Substitution = match.params
    divided = _divided(params)
    halved = divided & set(windows(scope))
    if halved:
        if SUMMATION_SPLITTING in rules:
            yield from _separated((*before, match), scope, params, changed, halved)
    elif not only_joins(scope, params) and _digits_serve(scope, params, divided):
        yield (*before, match), changed
        if BILINEAR_SUBSTITUTION in rules:
            yield from strided((*before, match), changed)


def _separated(
    before: tuple[Match[Any], ...], scope: Scope, params: Substitution, program: Program, halved: set[Iterator]
) -> Iterable[Moves]:
    """Splits that sum one part of every halved window outside, the other inside."""
    at = before[-1].at
    now = {y.name: y for y in program.scope_at(at).summations}
    # High digits first: a window whose high digit is summed outside is dense inside.
    parts = [[now[name] for name, i in params.phi[::-1] if x in i.iterators] for x in scope.summations if x in halved]
    outer = [(), *(p.outer for p, _ in local_moves(SUMMATION_SPLITTING, scope, len(at) == 1))]
    others = dict.fromkeys(tuple(y for y in found if y not in halved) for found in outer)
    for rest in others:
        if all(y.name in now for y in rest):
            for chosen in product(*parts):
                split = Match(SUMMATION_SPLITTING, at, Splitting((*chosen, *rest)))
                yield (*before, split), split.apply(program).after


def phases(before: tuple[Match[Any], ...], program: Program) -> Iterable[Moves]:
    """The substitution that *before* ends with, and windows of its phases that read a padded copy of their data."""
    last = before[-1]
    if last.rule != VARIABLE_SUBSTITUTION or not only_reads(program.scope_at(last.at)):
        return
    inside = (*last.at, 0)
    if (params := phased(program.scope_at(inside))) is not None:
        match = Match(BOUNDARY_TIGHTENING, inside, params)
        yield (*before, match), match.apply(program).after


def only_joins(scope: Scope, params: Substitution) -> bool:
    """Whether Φ joins iterators, as digits of one, whose sum is no part of a larger index."""
    joined = [set(i.iterators) for _, i in params.phi if len(i.terms) > 1 and i.affine and not overlaps(i)]
    indices = [set(i.iterators) for a in accesses(scope.body) for i in a.index]
    return any(not any(part < index for index in indices) for part in joined)


def _divided(params: Substitution) -> set[Iterator]:
    """The iterators that Φ replaces by digits of their own."""
    return {x for _, i in params.phi if i.single is None and len(i.terms) == 1 and not i.affine for x in i.iterators}


def _digits_serve(scope: Scope, params: Substitution, divided: set[Iterator]) -> bool:
    """Whether every new low digit is one of some index, or its iterator is divided in an index already."""
    indices = [i for a in accesses(scope.body) for i in a.index]
    for x in divided:
        if any(x in as_index(atom).iterators for i in indices for atom, _ in i.terms if not isinstance(atom, Iterator)):
            continue
        radix = max(i.bounds[1] - i.bounds[0] + 1 for _, i in params.phi if x in i.iterators and _low(i))
        if not any(_span(i, x, radix) < radix for i in indices if x in i.iterators and len(i.terms) > 1):
            return False
    return True


def _low(index: Index) -> bool:
    return any(isinstance(atom, Remainder) for atom, _ in index.terms)


def _span(index: Index, x: Iterator, radix: int) -> int:
    """How far the low digit of *index* reaches once *x* stands in it by its digits of this radix."""
    low = Index(tuple((a, k) for a, k in index.terms if k % radix and a != x))
    lo, hi = low.bounds
    return hi - lo + (radix - 1) * abs(index.coefficient(x))


def only_reads(scope: Scope) -> bool:
    """Whether *scope* only sums up, or re-indexes, a nested scope."""
    return isinstance(scope.body, Access) and isinstance(scope.body.source, Scope)
