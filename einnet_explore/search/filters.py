"""What is chosen together with a bilinear algorithm: groups of taps before it, further dimensions and phases after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from einnet_explore.algebra.bilinear import correlation
from einnet_explore.algebra.filters import Window, window_of
from einnet_explore.algebra.measure import intensity
from einnet_explore.algebra.substitute import fresh
from einnet_explore.ir import Iterator, Path, Program, Scope, Table, accesses, as_index
from einnet_explore.rules import (
    BILINEAR_SUBSTITUTION,
    BOUNDARY_RELAXING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Match,
    Refused,
)
from einnet_explore.rules.bilinear_substitution import OUTPUTS, RANK, Filter
from einnet_explore.rules.boundary_relaxing import Wider
from einnet_explore.rules.eoperator_generation import COMPUTE_BOUND
from einnet_explore.rules.variable_substitution import Substitution
from einnet_explore.search.cleanup import Moves
from einnet_explore.search.moves import moves


def transforms(scope: Scope) -> bool:
    """Whether *scope* is a sum with a table's coefficients: it only awaits its kernel."""
    return any(isinstance(a.source, Table) for a in accesses(scope.body)) and intensity(scope) < COMPUTE_BOUND


def grouped(scope: Scope) -> Iterable[tuple[Iterator, Iterator, int]]:
    """Every h and r of a filter with the size of the groups of taps that do the fewest products.

    Left out are filters of which no group does fewer than the filter itself, or than F(m, R) as it is proposed.
    """
    for h in scope.traversals:
        for r in scope.summations:
            if isinstance(window_of(scope, h, r), Window):
                sizes = {m: -(-r.extent // m) * products(h.extent, m, m) for m in OUTPUTS if 2 * m - 1 <= RANK}
                whole = [products(h.extent, m, r.extent) for m in OUTPUTS if m + r.extent - 1 <= RANK]
                best = min(sizes, key=lambda m: sizes[m])
                if best < r.extent and sizes[best] < min((h.extent * r.extent, *whole)):
                    yield h, r, best


def products(outputs: int, m: int, taps: int) -> int:
    """How many products F(*m*, *taps*) does for so many *outputs*."""
    return -(-outputs // m) * (m + taps - 1)


def in_groups(program: Program, at: Path, scope: Scope) -> Iterable[Moves]:
    """Taps in groups, widened to whole ones, and the filter that each group is; one transform serves all groups."""
    for h, r, m in grouped(scope):
        used = {x.name for x in (*scope.traversals, *scope.summations)}
        low = fresh(r.name, used)
        high = fresh(r.name, used | {low})
        done = Derivation(program)
        try:
            if short := -r.extent % m:
                done = done.then(Match(BOUNDARY_RELAXING, at, Wider(((r, r.lo, r.hi + short),))))
            summed = done.end.scope_at(at).summations
            (taps,) = (y for y in summed if y.name == r.name)
            digits = ((low, (taps - r.lo) % m), (high, (taps - r.lo) // m))
            phi = tuple(z for y in summed for z in (digits if y == taps else ((y.name, as_index(y)),)))
            done = done.then(Match(VARIABLE_SUBSTITUTION, at, Substitution(phi)))
        except Refused:
            continue
        (tap,) = (y for y in done.end.scope_at(at).summations if y.name == low)
        for there in (True, False):
            match = Match(BILINEAR_SUBSTITUTION, at, Filter(h, tap, correlation(m, m), there))
            try:
                step = match.apply(done.end)
            except Refused:
                continue
            yield (*(s.match for s in done.steps), match), step.after


def nested(before: tuple[Match[Any], ...], program: Program, added: int) -> Iterable[Moves]:
    """The filter of one dimension, and before it those that do the same along further dimensions of its window.

    The last of *before* *added* equations to *program*; the product of what it transformed is among them.
    """
    done = before[-1]
    made = range(done.at[0], done.at[0] + added)
    for n in (n for n in made if not transforms(program.equations[n].scope)):
        for match, changed in moves(done.rule, program, (n,), program.equations[n].scope):
            if match.params.algorithm.shape[0] == done.params.algorithm.shape[0]:
                yield from nested((*before, match), changed, len(changed.equations) - len(program.equations))
    yield before, program


def strided(before: tuple[Match[Any], ...], program: Program) -> Iterable[Moves]:
    """Filters that the residues of a strided window are: 2h + 2r' + r'' moves by 2, along h and r' alone by one."""
    at = before[-1].at
    scope = program.scope_at(at)
    for match, changed in moves(BILINEAR_SUBSTITUTION, program, at, scope):
        window = window_of(scope, match.params.traversal, match.params.summation)
        if isinstance(window, Window) and window.step > 1:
            yield from nested((*before, match), changed, len(changed.equations) - len(program.equations))
