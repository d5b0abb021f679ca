r"""What counts as one move: every legal match (``paper``), or a choice and the clean-ups after it (``best_first``).

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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from einnet_explore.ir import Path, Program, Scope, accesses
from einnet_explore.operators.digits import overlaps
from einnet_explore.rules import (
    BILINEAR_SUBSTITUTION,
    BOUNDARY_RELAXING,
    BOUNDARY_TIGHTENING,
    EOPERATOR_GENERATION,
    SUMMATION_SPLITTING,
    VARIABLE_SUBSTITUTION,
    Match,
    Rule,
)
from einnet_explore.rules.base import places
from einnet_explore.rules.bilinear_substitution import Filter
from einnet_explore.rules.boundary_relaxing import Wider
from einnet_explore.rules.traversal_merging import Merging
from einnet_explore.rules.variable_substitution import Substitution
from einnet_explore.search.cleanup import Moves, clean
from einnet_explore.search.filters import in_groups, nested, transforms
from einnet_explore.search.moves import Move, moves
from einnet_explore.search.substitutions import only_reads, phases, substituted, substitution


@dataclass(frozen=True, slots=True)
class Allowed:
    """The rules that a search may use, the equations that it leaves alone, and the scopes nested in its start."""

    rules: tuple[Rule[Any], ...]
    fixed: frozenset[str] = frozenset()
    given: frozenset[Scope] = frozenset()

    def places(self, program: Program) -> Iterable[tuple[Path, Scope]]:
        """Every scope that rules may act on; sums with a table's coefficients only await their kernels."""
        return (
            (at, scope)
            for at, scope in places(program)
            if program.equations[at[0]].name not in self.fixed and not transforms(scope)
        )


Strategy = Callable[[Program, Allowed], Iterable[Moves]]


def every_rule(program: Program, allowed: Allowed) -> Iterable[Moves]:
    """Each legal match of each rule at each place, by itself."""
    for at, scope in allowed.places(program):
        for rule in allowed.rules:
            for match, changed in moves(rule, program, at, scope):
                yield (match,), changed


def choices(program: Program, allowed: Allowed) -> Iterable[Moves]:
    """Each choice, followed by the clean-ups."""
    before, program = clean(program, rules=allowed.rules)
    for matches, changed in _choices(program, allowed):
        after, tidied = clean(changed, rules=allowed.rules)
        yield (*before, *matches, *after), tidied


def _choices(program: Program, allowed: Allowed) -> Iterable[Moves]:
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


def _of(rule: Rule[Any], program: Program, at: Path, scope: Scope, allowed: Allowed) -> Iterable[Moves]:
    """The choices that start with *rule* at *at*, where *scope* stands."""
    if rule in (SUMMATION_SPLITTING, VARIABLE_SUBSTITUTION, BOUNDARY_RELAXING) and only_reads(scope):
        return
    rules = allowed.rules
    if _summed_up(program, at):
        rules = tuple(r for r in rules if r != SUMMATION_SPLITTING)
    if rule == SUMMATION_SPLITTING:
        if rule in rules:
            yield from (((match,), changed) for match, changed in _splits(program, at, scope))
        return
    if rule == BILINEAR_SUBSTITUTION and {BOUNDARY_RELAXING, VARIABLE_SUBSTITUTION} <= set(rules):
        yield from in_groups(program, at, scope)
    for match, changed in moves(rule, program, at, scope):
        match match.params:
            case Wider(ranges):
                wider = frozenset(x.name for x, _, _ in ranges)
                if BOUNDARY_TIGHTENING in rules:
                    yield from _windowed(match, changed, at, wider)
                if VARIABLE_SUBSTITUTION in rules:
                    yield from substituted((match,), changed, at, wider, rules)
            case Substitution():
                for done, after in substitution((), match, scope, changed, rules):
                    yield done, after
                    if BOUNDARY_TIGHTENING in rules:
                        yield from phases(done, after)
            case Filter():
                yield from nested((match,), changed, len(changed.equations) - len(program.equations))
            case Merging(access) if _summing(scope, access) not in (None, *allowed.given):
                continue
            case _ if rule != BOUNDARY_RELAXING:
                yield (match,), changed


def _splits(program: Program, at: Path, scope: Scope) -> Iterable[Move]:
    """The splits of *scope*; the one that sums over all that moves along with a traversal outside comes first."""
    moving = {y for a in accesses(scope.body) for i in a.index if overlaps(i) for y in i.iterators}
    moving &= {y for y in scope.summations if y.extent > 1}
    return sorted(moves(SUMMATION_SPLITTING, program, at, scope), key=lambda m: set(m[0].params.outer) != moving)


def _windowed(first: Match[Any], program: Program, at: Path, wider: frozenset[str]) -> Iterable[Moves]:
    """The widening *first* and a window that moves within every widened range."""
    for match, changed in moves(BOUNDARY_TIGHTENING, program, at, program.scope_at(at)):
        if wider <= {h.name for h, _, _ in match.params.window}:
            yield (first, match), changed


def _summing(scope: Scope, access: int) -> Scope | None:
    """The scope that an access of *scope* reads, if it sums."""
    source = list(accesses(scope.body))[access].source
    return source if isinstance(source, Scope) and source.summations else None


def _summed_up(program: Program, at: Path) -> bool:
    """Whether the scope at *at* is read by one that only sums it up."""
    return len(at) > 1 and bool((reader := program.scope_at(at[:-1])).summations) and only_reads(reader)


STRATEGIES: dict[str, Strategy] = {"best_first": choices, "paper": every_rule}
