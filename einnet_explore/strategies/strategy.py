"""What counts as one move: every legal match (``paper``), or a choice and the clean-ups after it (``best_first``).

``best_first`` leaves out matches that lead to no other library call than the rest (decision 0004):

* tightening and the dropping of bounds are clean-ups; eOperators are generated when a state is finished;
* a summation is widened only together with a substitution or a moving window that needs its new range;
* a window is halved only together with a split that sums one half outside; other iterators are divided only where an
  index then has a low digit;
* iterators are joined to one only where a larger index contains the sum, since matching joins the others itself;
* a scope that only sums up or re-indexes a nested scope is left alone, and what it sums up is not split again;
* taps are taken in groups only for the bilinear algorithm that then does the fewest products;
* a window that moves beyond its data comes with the substitution that makes each of its phases a filter, never alone;
* a nested scope that sums is merged only if the start program has it, as given or tidied up: others were
  made by a split or a substitution.

Which substitutions are worth a choice, and what is chosen together with them.

What is chosen together with a bilinear algorithm: groups of taps before it, further dimensions and phases after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from einnet_explore.analysis.access_structure import Window, window_of, windows
from einnet_explore.analysis.bilinear import correlation
from einnet_explore.analysis.counts import intensity
from einnet_explore.analysis.substitution import fresh
from einnet_explore.ir import Access, Index, Iterator, Path, Program, Remainder, Scope, Table, accesses, as_index
from einnet_explore.operators.layout import overlaps
from einnet_explore.rules import (
    BILINEAR_SUBSTITUTION,
    BOUNDARY_RELAXING,
    BOUNDARY_TIGHTENING,
    EOPERATOR_GENERATION,
    SUMMATION_SPLITTING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Match,
    Refused,
    Rule,
)
from einnet_explore.rules.base import places
from einnet_explore.rules.bilinear_substitution import OUTPUTS, RANK, Filter
from einnet_explore.rules.boundary_relaxing import Wider
from einnet_explore.rules.boundary_tightening import phased
from einnet_explore.rules.eoperator_generation import COMPUTE_BOUND
from einnet_explore.rules.summation_splitting import Splitting
from einnet_explore.rules.traversal_merging import Merging
from einnet_explore.rules.variable_substitution import Substitution
from einnet_explore.strategies.moves import Move, Moves, clean, local_moves, rule_moves


def is_transform(scope: Scope) -> bool:
    """Whether *scope* is a sum with a table's coefficients: it only awaits its kernel."""
    return any(isinstance(a.source, Table) for a in accesses(scope.body)) and intensity(scope) < COMPUTE_BOUND


def tap_groups(scope: Scope) -> Iterable[tuple[Iterator, Iterator, int]]:
    """Every h and r of a filter with the size of the groups of taps that do the fewest products.

    Left out are filters of which no group does fewer than the filter itself, or than F(m, R) as it is proposed.
    """
    for h in scope.traversals:
        for r in scope.summations:
            if isinstance(window_of(scope, h, r), Window):
                sizes = {m: -(-r.extent // m) * filter_products(h.extent, m, m) for m in OUTPUTS if 2 * m - 1 <= RANK}
                whole = [filter_products(h.extent, m, r.extent) for m in OUTPUTS if m + r.extent - 1 <= RANK]
                best = min(sizes, key=lambda m: sizes[m])
                if best < r.extent and sizes[best] < min((h.extent * r.extent, *whole)):
                    yield h, r, best


def filter_products(outputs: int, m: int, taps: int) -> int:
    """How many products F(*m*, *taps*) does for so many *outputs*."""
    return -(-outputs // m) * (m + taps - 1)


def grouped_filters(program: Program, at: Path, scope: Scope) -> Iterable[Moves]:
    """Taps in groups, widened to whole ones, and the filter that each group is; one transform serves all groups."""
    for h, r, m in tap_groups(scope):
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


def nested_filters(before: tuple[Match[Any], ...], program: Program, added: int) -> Iterable[Moves]:
    """The filter of one dimension, and before it those that do the same along further dimensions of its window.

    The last of *before* *added* equations to *program*; the product of what it transformed is among them.
    """
    done = before[-1]
    made = range(done.at[0], done.at[0] + added)
    for n in (n for n in made if not is_transform(program.equations[n].scope)):
        for match, changed in rule_moves(done.rule, program, (n,), program.equations[n].scope):
            if match.params.algorithm.shape[0] == done.params.algorithm.shape[0]:
                yield from nested_filters((*before, match), changed, len(changed.equations) - len(program.equations))
    yield before, program


def polyphase_filters(before: tuple[Match[Any], ...], program: Program) -> Iterable[Moves]:
    """Filters that the residues of a strided window are: 2h + 2r' + r'' moves by 2, along h and r' alone by one."""
    at = before[-1].at
    scope = program.scope_at(at)
    for match, changed in rule_moves(BILINEAR_SUBSTITUTION, program, at, scope):
        window = window_of(scope, match.params.traversal, match.params.summation)
        if isinstance(window, Window) and window.step > 1:
            yield from nested_filters((*before, match), changed, len(changed.equations) - len(program.equations))


def widened_substitutions(
    before: tuple[Match[Any], ...], program: Program, at: Path, wider: frozenset[str], rules: Collection[Rule[Any]]
) -> Iterable[Moves]:
    """Each substitution that takes every widened iterator apart, after *before*."""
    scope = program.scope_at(at)
    for match, changed in rule_moves(VARIABLE_SUBSTITUTION, program, at, scope):
        if wider <= {x.name for x in _divided(match.params)}:
            yield from useful_substitutions(before, match, scope, changed, rules)


def useful_substitutions(
    before: tuple[Match[Any], ...], match: Match[Any], scope: Scope, changed: Program, rules: Collection[Rule[Any]]
) -> Iterable[Moves]:
    """The substitution *match* of *scope*, if it serves anything; halves of windows together with a split."""
    params: Substitution = match.params
    divided = _divided(params)
    halved = divided & set(windows(scope))
    if halved:
        if SUMMATION_SPLITTING in rules:
            yield from _separated((*before, match), scope, params, changed, halved)
    elif not is_mere_join(scope, params) and _digits_serve(scope, params, divided):
        yield (*before, match), changed
        if BILINEAR_SUBSTITUTION in rules:
            yield from polyphase_filters((*before, match), changed)


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


def padded_phases(before: tuple[Match[Any], ...], program: Program) -> Iterable[Moves]:
    """The substitution that *before* ends with, and windows of its phases that read a padded copy of their data."""
    last = before[-1]
    if last.rule != VARIABLE_SUBSTITUTION or not is_rereading(program.scope_at(last.at)):
        return
    inside = (*last.at, 0)
    if (params := phased(program.scope_at(inside))) is not None:
        match = Match(BOUNDARY_TIGHTENING, inside, params)
        yield (*before, match), match.apply(program).after


def is_mere_join(scope: Scope, params: Substitution) -> bool:
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


def is_rereading(scope: Scope) -> bool:
    """Whether *scope* only sums up, or re-indexes, a nested scope."""
    return isinstance(scope.body, Access) and isinstance(scope.body.source, Scope)


@dataclass(frozen=True, slots=True)
class Restrictions:
    """The rules that a search may use, the equations that it leaves alone, and the scopes nested in its start."""

    rules: tuple[Rule[Any], ...]
    fixed: frozenset[str] = frozenset()
    given: frozenset[Scope] = frozenset()

    def places(self, program: Program) -> Iterable[tuple[Path, Scope]]:
        """Every scope that rules may act on; sums with a table's coefficients only await their kernels."""
        return (
            (at, scope)
            for at, scope in places(program)
            if program.equations[at[0]].name not in self.fixed and not is_transform(scope)
        )


Strategy = Callable[[Program, Restrictions], Iterable[Moves]]


def paper_moves(program: Program, allowed: Restrictions) -> Iterable[Moves]:
    """Each legal match of each rule at each place, by itself."""
    for at, scope in allowed.places(program):
        for rule in allowed.rules:
            for match, changed in rule_moves(rule, program, at, scope):
                yield (match,), changed


def best_first_moves(program: Program, allowed: Restrictions) -> Iterable[Moves]:
    """Each choice, followed by the clean-ups."""
    before, program = clean(program, rules=allowed.rules)
    for matches, changed in _choices(program, allowed):
        after, tidied = clean(changed, rules=allowed.rules)
        yield (*before, *matches, *after), tidied


def _choices(program: Program, allowed: Restrictions) -> Iterable[Moves]:
    """The choices of every place and rule, in turn one of each: the first of each kind are the most promising.

    Splits that sum over every moving window outside come first, then substitutions (all skews, or all residues, at
    once before each alone), then what widens a summation, then the rest.
    """
    places = tuple(allowed.places(program))
    waiting = [iter(_of(rule, program, at, scope, allowed)) for rule in _ranked(allowed.rules) for at, scope in places]
    while waiting:
        left = []
        for found in waiting:
            if (first := next(found, None)) is not None:
                yield first
                left.append(found)
        waiting = left


def _ranked(rules: tuple[Rule[Any], ...]) -> list[Rule[Any]]:
    """The rules that make choices, those first that take windows apart."""
    first = (SUMMATION_SPLITTING, VARIABLE_SUBSTITUTION, BOUNDARY_RELAXING)
    rest = [rule for rule in rules if rule not in (*first, BOUNDARY_TIGHTENING, EOPERATOR_GENERATION)]
    return [rule for rule in first if rule in rules] + rest


def _of(rule: Rule[Any], program: Program, at: Path, scope: Scope, allowed: Restrictions) -> Iterable[Moves]:
    """The choices that start with *rule* at *at*, where *scope* stands."""
    if rule in (SUMMATION_SPLITTING, VARIABLE_SUBSTITUTION, BOUNDARY_RELAXING) and is_rereading(scope):
        return
    rules = allowed.rules
    if _summed_up(program, at):
        rules = tuple(r for r in rules if r != SUMMATION_SPLITTING)
    if rule == SUMMATION_SPLITTING:
        if rule in rules:
            yield from (((match,), changed) for match, changed in _splits(program, at, scope))
        return
    if rule == BILINEAR_SUBSTITUTION and {BOUNDARY_RELAXING, VARIABLE_SUBSTITUTION} <= set(rules):
        yield from grouped_filters(program, at, scope)
    for match, changed in rule_moves(rule, program, at, scope):
        match match.params:
            case Wider(ranges):
                wider = frozenset(x.name for x, _, _ in ranges)
                if BOUNDARY_TIGHTENING in rules:
                    yield from _windowed(match, changed, at, wider)
                if VARIABLE_SUBSTITUTION in rules:
                    yield from widened_substitutions((match,), changed, at, wider, rules)
            case Substitution():
                for done, after in useful_substitutions((), match, scope, changed, rules):
                    yield done, after
                    if BOUNDARY_TIGHTENING in rules:
                        yield from padded_phases(done, after)
            case Filter():
                yield from nested_filters((match,), changed, len(changed.equations) - len(program.equations))
            case Merging(access) if _summing(scope, access) not in (None, *allowed.given):
                continue
            case _ if rule != BOUNDARY_RELAXING:
                yield (match,), changed


def _splits(program: Program, at: Path, scope: Scope) -> Iterable[Move]:
    """The splits of *scope*; the one that sums over all that moves along with a traversal outside comes first."""
    moving = {y for a in accesses(scope.body) for i in a.index if overlaps(i) for y in i.iterators}
    moving &= {y for y in scope.summations if y.extent > 1}
    return sorted(rule_moves(SUMMATION_SPLITTING, program, at, scope), key=lambda m: set(m[0].params.outer) != moving)


def _windowed(first: Match[Any], program: Program, at: Path, wider: frozenset[str]) -> Iterable[Moves]:
    """The widening *first* and a window that moves within every widened range."""
    for match, changed in rule_moves(BOUNDARY_TIGHTENING, program, at, program.scope_at(at)):
        if wider <= {h.name for h, _, _ in match.params.window}:
            yield (first, match), changed


def _summing(scope: Scope, access: int) -> Scope | None:
    """The scope that an access of *scope* reads, if it sums."""
    source = list(accesses(scope.body))[access].source
    return source if isinstance(source, Scope) and source.summations else None


def _summed_up(program: Program, at: Path) -> bool:
    """Whether the scope at *at* is read by one that only sums it up."""
    return len(at) > 1 and bool((reader := program.scope_at(at[:-1])).summations) and is_rereading(reader)


STRATEGIES: dict[str, Strategy] = {"best_first": best_first_moves, "paper": paper_moves}
