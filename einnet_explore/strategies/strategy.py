"""Search strategies: ``paper`` makes each legal match one move, ``best_first`` makes one choice and cleans up after it.

``best_first`` omits matches that lead to no other library call than the remaining ones (decision 0004):

* tightening and dropping bounds are clean-ups; eOperators are generated when a state is finished;
* a summation is widened only together with a substitution or a moving window that needs the wider range;
* a window is divided only together with a split that sums one digit outside; other iterators are divided only if an
  index then has a low digit;
* iterators are joined only if a larger index contains the sum, since matching joins the others itself;
* a scope that only sums up or re-indexes a nested scope is not rewritten, and the nested scope is not split again;
* taps are grouped only for the bilinear algorithm that then computes the fewest products;
* a window that moves beyond its data is chosen together with the substitution that makes each phase a filter;
* a nested scope with a summation is merged only if the start program has it, as given or cleaned up: all others come
  from a split or a substitution.

A *tactic* extends a sequence of matches, and the program that they lead to, in every way that it knows.  ``each``,
``then``, ``either`` and ``interleave`` combine tactics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import TypeAlias

from einnet_explore.analysis.access_structure import filter_windows, match_window, windows
from einnet_explore.analysis.bilinear import correlation
from einnet_explore.analysis.counts import COMPUTE_BOUND, intensity
from einnet_explore.analysis.indices import fresh_name
from einnet_explore.ir import Access, Index, Iterator, Path, Program, Remainder, Scope, Table, accesses, as_index
from einnet_explore.operators.form import overlaps
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
from einnet_explore.rules.boundaries import Tightening, Wider, phased
from einnet_explore.rules.summation_splitting import Splitting
from einnet_explore.rules.traversal_merging import Merging
from einnet_explore.rules.variable_substitution import Substitution
from einnet_explore.strategies.moves import Moves, clean, local_moves, position_of, rule_moves

Tactic: TypeAlias = "Callable[[Moves], Iterable[Moves]]"


def each(rule: Rule[object], at: Path, admits: Callable[[Match[object]], bool] = lambda _: True) -> Tactic:
    """Append each match of *rule* at *at* that *admits* accepts."""

    def extend(done: Moves) -> Iterable[Moves]:
        before, program = done
        for match, changed in rule_moves(rule, program, at, program.scope_at(at)):
            if admits(match):
                yield (*before, match), changed

    return extend


def then(first: Tactic, second: Tactic) -> Tactic:
    """Apply *second* to every result of *first*."""
    return lambda done: (result for middle in first(done) for result in second(middle))


def either(*tactics: Tactic) -> Tactic:
    """All results of each tactic in turn."""
    return lambda done: chain.from_iterable(tactic(done) for tactic in tactics)


def unchanged(done: Moves) -> Iterable[Moves]:
    """The tactic that adds nothing."""
    yield done


def interleave(streams: Iterable[Iterable[Moves]]) -> Iterable[Moves]:
    """Yield one result of each stream in turn."""
    waiting = [iter(stream) for stream in streams]
    while waiting:
        left = []
        for stream in waiting:
            if (first := next(stream, None)) is not None:
                yield first
                left.append(stream)
        waiting = left


def is_transform(scope: Scope) -> bool:
    """Whether *scope* is a sum with a table's coefficients, which is only instantiated."""
    return any(isinstance(a.source, Table) for a in accesses(scope.body)) and intensity(scope) < COMPUTE_BOUND


def tap_groups(scope: Scope) -> Iterable[tuple[Iterator, Iterator, int]]:
    """Yield h and r of every filter with the size of tap groups that needs the fewest products.

    A filter is omitted unless its groups need fewer products than the filter itself and than F(m, R) as proposed.
    """
    for h, r, _ in filter_windows(scope):
        sizes = {m: -(-r.extent // m) * filter_products(h.extent, m, m) for m in OUTPUTS if 2 * m - 1 <= RANK}
        whole = [filter_products(h.extent, m, r.extent) for m in OUTPUTS if m + r.extent - 1 <= RANK]
        best = min(sizes, key=lambda m: sizes[m])
        if best < r.extent and sizes[best] < min((h.extent * r.extent, *whole)):
            yield h, r, best


def filter_products(outputs: int, m: int, taps: int) -> int:
    """The number of products of F(*m*, *taps*) for *outputs* outputs."""
    return -(-outputs // m) * (m + taps - 1)


def grouped_filters(at: Path, done: Moves) -> Iterable[Moves]:
    """Append a split of the taps into groups of equal size, and the filter of one group; all share one transform."""
    before, program = done
    scope = program.scope_at(at)
    for h, r, m in tap_groups(scope):
        used = {x.name for x in (*scope.traversals, *scope.summations)}
        low = fresh_name(r.name, used)
        high = fresh_name(r.name, used | {low})
        made = Derivation(program)
        try:
            if short := -r.extent % m:
                made = made.then(Match(BOUNDARY_RELAXING, at, Wider(((r, r.lo, r.hi + short),))))
            summed = made.end.scope_at(at).summations
            (taps,) = (y for y in summed if y.name == r.name)
            digits = ((low, (taps - r.lo) % m), (high, (taps - r.lo) // m))
            phi = tuple(z for y in summed for z in (digits if y == taps else ((y.name, as_index(y)),)))
            made = made.then(Match(VARIABLE_SUBSTITUTION, at, Substitution(phi)))
        except Refused:
            continue
        (tap,) = (y for y in made.end.scope_at(at).summations if y.name == low)
        for there in (True, False):
            match = Match(BILINEAR_SUBSTITUTION, at, Filter(h, tap, correlation(m, m), there))
            try:
                step = match.apply(made.end)
            except Refused:
                continue
            yield (*before, *(s.match for s in made.steps), match), step.after


def nested_filters(base: Program) -> Tactic:
    """Append filters with as many outputs along further dimensions of the window, longest sequences first.

    The last match made *base* the program at hand: its product is among the added equations.
    """

    def extend(done: Moves) -> Iterable[Moves]:
        matches, program = done
        last = matches[-1]
        assert isinstance(last.params, Filter)
        outputs = last.params.algorithm.shape[0]

        def has_as_many_outputs(match: Match[object]) -> bool:
            return isinstance(match.params, Filter) and match.params.algorithm.shape[0] == outputs

        further = then(
            either(*(
                each(last.rule, (n,), has_as_many_outputs)
                for n in range(last.at[0], last.at[0] + len(program.equations) - len(base.equations))
                if not is_transform(program.equations[n].scope)
            )),
            nested_filters(program),
        )  # fmt: skip
        return either(further, unchanged)(done)

    return extend


def polyphase_filters(done: Moves) -> Iterable[Moves]:
    """Append filters of the phases of a strided window: 2h + 2r' + r'' moves by 2, along h and r' alone by one."""
    matches, program = done
    at = matches[-1].at
    scope = program.scope_at(at)

    def is_strided(match: Match[object]) -> bool:
        assert isinstance(match.params, Filter)
        return match_window(scope, match.params.traversal, match.params.summation).step > 1

    return then(each(BILINEAR_SUBSTITUTION, at, is_strided), nested_filters(program))(done)


def useful_substitution(scope: Scope, rules: Collection[Rule[object]]) -> Tactic:
    """Keep the substitution of *scope* that was made last if it is useful; pieces of windows together with a split."""

    def extend(done: Moves) -> Iterable[Moves]:
        params = done[0][-1].params
        assert isinstance(params, Substitution)
        divided = _divided(params)
        pieces = {x for x, step in windows(scope).items() if x in divided and _radix(params, x) > step}
        if pieces:
            return _separated(done, scope, params, pieces) if SUMMATION_SPLITTING in rules else ()
        if is_mere_join(scope, params) or not _digits_serve(scope, params, divided):
            return ()
        return either(unchanged, polyphase_filters)(done) if BILINEAR_SUBSTITUTION in rules else unchanged(done)

    return extend


def _separated(done: Moves, scope: Scope, params: Substitution, divided: set[Iterator]) -> Iterable[Moves]:
    """Append splits that sum one digit of every divided window outside, the other inside."""
    before, program = done
    at = before[-1].at
    now = {y.name: y for y in program.scope_at(at).summations}
    # High digits first: a window whose high digit is summed outside is dense inside.
    parts = [[now[name] for name, i in params.phi[::-1] if x in i.iterators] for x in scope.summations if x in divided]
    outer = [
        (),
        *(p.outer for p, _ in local_moves(SUMMATION_SPLITTING, scope, position_of(at)) if isinstance(p, Splitting)),
    ]
    others = dict.fromkeys(tuple(y for y in found if y not in divided) for found in outer)
    for rest in others:
        if all(y.name in now for y in rest):
            for chosen in product(*parts):
                split = Match(SUMMATION_SPLITTING, at, Splitting((*chosen, *rest)))
                yield (*before, split), split.apply(program).after


def padded_phases(done: Moves) -> Iterable[Moves]:
    """Append the tightening by which the phases of the last substitution read a padded copy of their data."""
    before, program = done
    last = before[-1]
    if last.rule != VARIABLE_SUBSTITUTION or not is_rereading(program.scope_at(last.at)):
        return
    inside = (*last.at, 0)
    if (params := phased(program.scope_at(inside))) is not None:
        match = Match(BOUNDARY_TIGHTENING, inside, params)
        yield (*before, match), match.apply(program).after


def is_mere_join(scope: Scope, params: Substitution) -> bool:
    """Whether Φ joins iterators, as digits of one, although no larger index contains their sum."""
    joined = [set(i.iterators) for _, i in params.phi if len(i.terms) > 1 and i.affine and not overlaps(i)]
    indices = [set(i.iterators) for a in accesses(scope.body) for i in a.index]
    return any(not any(part < index for index in indices) for part in joined)


def _divided(params: Substitution) -> set[Iterator]:
    """The iterators that Φ replaces by their digits."""
    return {x for _, i in params.phi if i.single is None and len(i.terms) == 1 and not i.affine for x in i.iterators}


def _digits_serve(scope: Scope, params: Substitution, divided: set[Iterator]) -> bool:
    """Whether every new low digit is a digit of some index, or an index divides its iterator already."""
    indices = [i for a in accesses(scope.body) for i in a.index]
    for x in divided:
        if any(x in as_index(atom).iterators for i in indices for atom, _ in i.terms if not isinstance(atom, Iterator)):
            continue
        radix = _radix(params, x)
        if not any(_span(i, x, radix) < radix for i in indices if x in i.iterators and len(i.terms) > 1):
            return False
    return True


def _radix(params: Substitution, x: Iterator) -> int:
    """The number of values of the low digit of *x*."""
    return max(i.bounds[1] - i.bounds[0] + 1 for _, i in params.phi if x in i.iterators and _low(i))


def _low(index: Index) -> bool:
    return any(isinstance(atom, Remainder) for atom, _ in index.terms)


def _span(index: Index, x: Iterator, radix: int) -> int:
    """The range of the low digit of *index* when *x* is written by its digits of *radix*."""
    low = Index(tuple((a, k) for a, k in index.terms if k % radix and a != x))
    lo, hi = low.bounds
    return hi - lo + (radix - 1) * abs(index.coefficient(x))


def is_rereading(scope: Scope) -> bool:
    """Whether *scope* only sums up or re-indexes a nested scope."""
    return isinstance(scope.body, Access) and isinstance(scope.body.source, Scope)


@dataclass(frozen=True, slots=True)
class Restrictions:
    """The rules of a search, the names of equations that stay *fixed*, and the scopes nested in its start (*given*)."""

    rules: tuple[Rule[object], ...]
    fixed: frozenset[str] = frozenset()
    given: frozenset[Scope] = frozenset()

    def places(self, program: Program) -> Iterable[tuple[Path, Scope]]:
        """Yield the scopes that rules may rewrite; transforms are only instantiated."""
        return (
            (at, scope)
            for at, scope in places(program)
            if program.equations[at[0]].name not in self.fixed and not is_transform(scope)
        )


Strategy = Callable[[Program, Restrictions], Iterable[Moves]]


def paper_moves(program: Program, allowed: Restrictions) -> Iterable[Moves]:
    """Yield each legal match of each rule at each place as one move."""
    for at, scope in allowed.places(program):
        for rule in allowed.rules:
            for match, changed in rule_moves(rule, program, at, scope):
                yield (match,), changed


def best_first_moves(program: Program, allowed: Restrictions) -> Iterable[Moves]:
    """Yield each choice between the clean-ups before and after it."""

    def cleaned(done: Moves) -> Iterable[Moves]:
        matches, tidy = clean(done[1], rules=allowed.rules)
        yield (*done[0], *matches), tidy

    return then(then(cleaned, partial(_choices, allowed)), cleaned)(((), program))


def _choices(allowed: Restrictions, done: Moves) -> Iterable[Moves]:
    """Append the choices of every place and rule, interleaved: the first of each kind are the most promising.

    Splits that sum over every moving window outside come first, then substitutions (all skews, or all residues, at
    once before each alone), then widenings of a summation, then the rest.
    """
    places = tuple(allowed.places(done[1]))
    return interleave(_choices_of(rule, at, allowed)(done) for rule in _ranked(allowed.rules) for at, _ in places)


def _ranked(rules: tuple[Rule[object], ...]) -> list[Rule[object]]:
    """The rules that make choices, first those that divide windows."""
    first = (SUMMATION_SPLITTING, VARIABLE_SUBSTITUTION, BOUNDARY_RELAXING)
    rest = [rule for rule in rules if rule not in (*first, BOUNDARY_TIGHTENING, EOPERATOR_GENERATION)]
    return [rule for rule in first if rule in rules] + rest


def _choices_of(rule: Rule[object], at: Path, allowed: Restrictions) -> Tactic:
    """Append the choices that start with *rule* at *at*."""

    def extend(done: Moves) -> Iterable[Moves]:
        scope, rules = done[1].scope_at(at), allowed.rules
        if rule in (SUMMATION_SPLITTING, VARIABLE_SUBSTITUTION, BOUNDARY_RELAXING) and is_rereading(scope):
            return ()
        if _summed_up(done[1], at):
            rules = tuple(r for r in rules if r != SUMMATION_SPLITTING)
        if rule == SUMMATION_SPLITTING:
            return _splits(done, at, scope) if rule in rules else ()
        grouped = rule == BILINEAR_SUBSTITUTION and {BOUNDARY_RELAXING, VARIABLE_SUBSTITUTION} <= set(rules)
        found = then(each(rule, at), _completed(scope, rules, allowed.given, done[1]))
        return either(partial(grouped_filters, at), found)(done) if grouped else found(done)

    return extend


def _completed(scope: Scope, rules: Collection[Rule[object]], given: Collection[Scope], base: Program) -> Tactic:
    """Append the matches that make the first match, at *scope* of *base*, a choice; nothing if it is useless."""

    def extend(done: Moves) -> Iterable[Moves]:
        match = done[0][-1]
        match match.params:
            case Wider(ranges):
                wider = frozenset(x.name for x, _, _ in ranges)
                return either(*_uses_of_wider(wider, match.at, done[1].scope_at(match.at), rules))(done)
            case Substitution():
                useful = useful_substitution(scope, rules)
                phased_too = then(useful, either(unchanged, padded_phases))
                return (phased_too if BOUNDARY_TIGHTENING in rules else useful)(done)
            case Filter():
                return nested_filters(base)(done)
            case Merging(access) if _summing(scope, access) not in (None, *given):
                return ()
        return () if match.rule == BOUNDARY_RELAXING else unchanged(done)

    return extend


def _uses_of_wider(wider: frozenset[str], at: Path, scope: Scope, rules: Collection[Rule[object]]) -> Iterable[Tactic]:
    """Yield a window that moves within every widened range, and a substitution that divides each of them."""

    def moves_within(match: Match[object]) -> bool:
        return isinstance(match.params, Tightening) and wider <= {h.name for h, _, _ in match.params.window}

    def divides(match: Match[object]) -> bool:
        return isinstance(match.params, Substitution) and wider <= {x.name for x in _divided(match.params)}

    if BOUNDARY_TIGHTENING in rules:
        yield each(BOUNDARY_TIGHTENING, at, moves_within)
    if VARIABLE_SUBSTITUTION in rules:
        yield then(each(VARIABLE_SUBSTITUTION, at, divides), useful_substitution(scope, rules))


def _splits(done: Moves, at: Path, scope: Scope) -> Iterable[Moves]:
    """Append the splits of *scope*, first the one that sums outside over all that moves along with a traversal."""
    moving = {y for a in accesses(scope.body) for i in a.index if overlaps(i) for y in i.iterators}
    moving &= {y for y in scope.summations if y.extent > 1}

    def leaves_moving_inside(moves: Moves) -> bool:
        params = moves[0][-1].params
        return not isinstance(params, Splitting) or set(params.outer) != moving

    yield from sorted(each(SUMMATION_SPLITTING, at)(done), key=leaves_moving_inside)


def _summing(scope: Scope, access: int) -> Scope | None:
    """The scope that access number *access* of *scope* reads, if it has summations."""
    source = list(accesses(scope.body))[access].source
    return source if isinstance(source, Scope) and source.summations else None


def _summed_up(program: Program, at: Path) -> bool:
    """Whether the reader of the scope at *at* only sums it up."""
    return len(at) > 1 and bool((reader := program.scope_at(at[:-1])).summations) and is_rereading(reader)


STRATEGIES: dict[str, Strategy] = {"best_first": best_first_moves, "paper": paper_moves}
