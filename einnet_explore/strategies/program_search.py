"""Algorithm 1 (EinNet §6.3): the closure of a program under inter-expression rules, with a search of each member.

.. code-block:: text

    Q = {E0};  for E in Q:  Q += r(E) for every rule r between expressions;  Q += search(E)

Members are also the factorings of the program (``factoring.py``), what laws of functions make of it
(``simplification.py``), and its vertical fusions (``vertical_fusion.py``).
Rules between expressions also apply to results of the searches: Fig. 3 and Fig. 15 merge matrix products that
convolutions became.  Results are post-optimised: eOperators are fused and inverse layouts cancel (Fig. 11, Fig. 14).

Searches advance in rounds of growing numbers of states.  After each round, the variants found so far are combined, so
that a search which is stopped early has candidates, and nothing depends on a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice, zip_longest

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.counts import compute_bound
from einnet_explore.ir import Program
from einnet_explore.rules import (
    BATCH_MERGING,
    CONTRACTION_ORDER,
    EXPRESSION_FUSION,
    EXPRESSION_SPLITTING,
    INTER_RULES,
    SIBLING_MERGING,
    Derivation,
    Match,
    Rule,
)
from einnet_explore.strategies.combination import rank_choices
from einnet_explore.strategies.engine import Search, StateTable
from einnet_explore.strategies.events import Found, MatchRefused, Pruned, Reached, Searched, SearchEvent, State
from einnet_explore.strategies.expression_searches import (
    ExpressionSearch,
    ExpressionVariant,
    standalone,
)
from einnet_explore.strategies.factoring import factorings, products_at_run_time
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.strategies.simplification import FUNCTION_RULES, simplifications
from einnet_explore.strategies.vertical_fusion import traffic, vertical_fusions

PostOptimisation = Callable[[Derivation], Derivation]
"""What is done to an executable program: it returns the derivation with further steps, or as it is."""

MAX_MEMBERS = 12
"""Programs of a closure under merging, and splits of the start program."""

MERGES = (SIBLING_MERGING, BATCH_MERGING)
"""The rules that merge expressions."""

MAX_FACTORINGS = 3
"""Factorings across expressions that become members, those with the fewest products."""

MAX_SIMPLIFICATIONS = 2
"""Simplifications across functions that become members, those with the least work."""

MAX_FUSIONS = 6
"""Vertical fusions that become members, those with the least traffic."""

MERGING_CHOICES = 24
"""Combinations of variants that are tried because their library calls may merge."""

PROMISING = 2.0
"""What merging made is post-optimised if it costs at most this multiple of the best candidate."""

FIRST_STATES, GROWTH = 100, 4
"""States of each expression's search in the first round, and the factor from one round to the next."""


def search_program(
    start: Program, cost: Cost, options: Options, post: PostOptimisation | None = None, states: int | None = None
) -> Search | ProgramSearch:
    """Return the search of *start*: Algorithm 1 where several expressions matter, else that of the one expression.

    Expressions are worth a search if they are compute-bound; where none is, if they may merge.  Without rules *between*
    expressions, or with one of them among the rules inside, all expressions are searched as one.  *post* and *states*
    are those of ``ProgramSearch``.
    """
    separate = options.between and not any(rule in INTER_RULES for rule in options.rules)
    if separate and _has_several(start, options):
        return ProgramSearch(start, cost, options, post or (lambda derivation: derivation), states)
    return Search(start, cost, replace(options, between=()))


def _has_several(start: Program, options: Options) -> bool:
    found = len(compute_bound(start, options.fixed))
    merges = not found and any(True for _ in matches_between(start, merging_rules(options)))
    return found > 1 or merges or bool(derive_across(start, options))


def merging_rules(options: Options) -> tuple[Rule[object], ...]:
    """Return the rules of *options* that make one expression of several."""
    return tuple(rule for rule in options.between if rule in MERGES)


@dataclass(slots=True, eq=False)
class ProgramSearch(StateTable):
    """Algorithm 1 as a stream of events; its states are the members of Q.

    *post* post-optimises the cheapest combinations and what merges; *most* bounds the states of each expression's
    search.
    """

    cost: Cost
    options: Options
    post: PostOptimisation
    most: int | None = None
    complete: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    expanded: set[int] = field(default_factory=set, init=False)
    _searches: dict[Program, ExpressionSearch] = field(default_factory=dict, init=False)
    _seen: set[Hashable] = field(default_factory=set, init=False)
    _combined: dict[int, tuple[tuple[ExpressionVariant, ...], ...]] = field(default_factory=dict, init=False)

    @property
    def size(self) -> int:
        """The number of states, those of the expressions' searches included."""
        return len(self.states) + sum(len(each.search.states) for each in self._searches.values())

    def run(self) -> Iterable[SearchEvent]:
        """Yield members of Q: the closure of the program, then round by round what searching and merging make of it.

        Members with the fewest products are searched first: then fewer results of the others are post-optimised.
        """
        members = list[State]()
        for event in self._closure():
            members.append(event.state)
            yield event
        members.sort(key=lambda member: products_at_run_time(member.program))
        states = FIRST_STATES
        while True:
            states = states if self.most is None else min(states, self.most)
            for member in members:
                yield from self._search(member, states)
                yield from self._candidates(member, states)
            if all(each.ended for each in self._searches.values()) or states == self.most:
                break
            states *= GROWTH
        self.complete = all(each.search.complete for each in self._searches.values())
        self.ended = not self.complete and all(each.ended for each in self._searches.values())

    def _closure(self) -> Iterable[Reached]:
        """Factorings and fusions; the closure under merging, breadth first; every split of one of the expressions."""
        first = self.reached(0, (), self.start, 0, "start", None)
        self._seen.add(program_key(self.start))
        yield Reached(first)
        for derivation in derive_across(self.start, self.options):
            matches = tuple(step.match for step in derivation.steps)
            yield from self._member(first, matches, derivation.end)
        yield from self._merged(first)
        if EXPRESSION_SPLITTING in self.options.between:
            for match in islice(matches_between(self.start, (EXPRESSION_SPLITTING,)), MAX_MEMBERS):
                yield from self._member(first, (match,), match.apply(self.start).after)

    def _merged(self, first: State) -> Iterable[Reached]:
        """Yield the closure of *first* under merging, the rules in turn: at most ``MAX_MEMBERS``, none twice."""
        queue = [first]
        for member in queue:
            if len(queue) >= MAX_MEMBERS:
                return
            proposals = (matches_between(member.program, (rule,)) for rule in merging_rules(self.options))
            for match in filter(None, chain.from_iterable(zip_longest(*proposals))):
                for event in self._member(member, (match,), match.apply(member.program).after):
                    queue.append(event.state)
                    yield event
                if len(queue) >= MAX_MEMBERS:
                    return

    def _member(self, parent: State, matches: tuple[Match[object], ...], program: Program) -> Iterable[Reached]:
        """The *program* that *matches* make of *parent*, unless it is known."""
        if (key := program_key(program)) in self._seen:
            self.pruned += 1
            return
        self._seen.add(key)
        yield Reached(self.reached(parent.id, matches, program, parent.depth + 1, "explorative", None))

    def _search(self, member: State, states: int) -> Iterable[SearchEvent]:
        """Advance the searches of the expressions of *member* to *states* states."""
        for n in self._worthwhile(member.program):
            name = member.program.equations[n].name
            each = self._expression(member.program, n)
            for event in each.advance(states):
                match event:
                    case Pruned():
                        self.pruned += 1
                    case MatchRefused(0, at):
                        yield replace(event, state=member.id, at=(at[0] + n, *at[1:]))
                yield Searched(member.id, name, len(each.search.states))

    def _worthwhile(self, program: Program) -> tuple[int, ...]:
        """The numbers of the expressions worth a search: where none of the start is compute-bound, all that sum."""
        if compute_bound(self.start, self.options.fixed):
            return compute_bound(program, self.options.fixed)
        return tuple(n for n, e in enumerate(program.equations) if e.via is None and e.scope.summations)

    def _expression(self, program: Program, n: int) -> ExpressionSearch:
        alone = standalone(program, n)
        if alone not in self._searches:
            self._searches[alone] = ExpressionSearch(Search(alone, self.cost, replace(self.options, fixed=frozenset())))
        return self._searches[alone]

    def _candidates(self, member: State, states: int) -> Iterable[SearchEvent]:
        """Yield the best combinations of the variants of *member*, and the results of merging their library calls."""
        numbers = self._worthwhile(member.program)
        variants = tuple(self._expression(member.program, n).variants() for n in numbers)
        if self._combined.get(member.id) == variants:
            return
        self._combined[member.id] = variants
        several = len(numbers) > 1
        choices, cheapest = rank_choices(
            member.program, numbers, variants, self.cost, self.options.combinations, MERGING_CHOICES if several else 0
        )
        for rank, choice in enumerate(choices):
            found = self._run(member, numbers, choice)
            if found is None:
                continue
            yield self._priced(found)
            if rank < cheapest:
                yield from self._post_optimised(found)
            if several:
                for event in self._merged(found):
                    yield event
                    yield from self._search(event.state, states)
                    yield from self._best(event.state)

    def _best(self, member: State) -> Iterable[SearchEvent]:
        """Yield the cheapest combination of the variants of *member*."""
        numbers = self._worthwhile(member.program)
        variants = [self._expression(member.program, n).variants() for n in numbers]
        for choice in rank_choices(member.program, numbers, variants, self.cost, 1, 0)[0]:
            if (found := self._run(member, numbers, choice)) is not None:
                is_promising = self.cost(found.program)[0] <= PROMISING * self.best
                yield self._priced(found)
                if is_promising:
                    yield from self._post_optimised(found)

    def _run(self, member: State, numbers: tuple[int, ...], choice: tuple[ExpressionVariant, ...]) -> State | None:
        """*member* with its expressions run as in *choice*, the rest generated; None if known or if that is refused."""
        derivation = Derivation(member.program)
        # From the last on: what an expression becomes stands where it stood.
        for n, variant in sorted(zip(numbers, choice, strict=True), key=lambda pair: -pair[0]):
            for step in variant.derivation.steps:
                at = (step.match.at[0] + n, *step.match.at[1:])
                derivation = derivation.then(replace(step.match, at=at))
        rest = Search(derivation.end, self.cost, replace(self.options, max_depth=0, ahead=0, fixed=frozenset()))
        for event in rest.run():
            if isinstance(event, Found):
                steps = (*derivation.steps, *rest.derivation(event.state.id).steps)
                return self._executable(member, Derivation(member.program, steps)) if steps else member
        return None

    def _executable(self, parent: State, derivation: Derivation) -> State | None:
        """The executable program at the end of *derivation* from *parent*; None if it is known."""
        if (key := program_key(derivation.end)) in self._seen:
            self.pruned += 1
            return None
        self._seen.add(key)
        matches = tuple(step.match for step in derivation.steps)
        return self.reached(parent.id, matches, derivation.end, parent.depth, "converging", 0)

    def _post_optimised(self, state: State) -> Iterable[Found]:
        """Yield the candidate that post-optimisation makes of *state*, if it is a new one."""
        derivation = self.post(Derivation(state.program))
        if derivation.steps and (after := self._executable(state, derivation)) is not None:
            yield self._priced(after)

    def _priced(self, state: State) -> Found:
        seconds, how = self.cost(state.program)
        self.priced(state.depth, seconds)
        improved = seconds < self.best
        self.best = min(self.best, seconds)
        return Found(state, seconds, how, improved)


def derive_across(program: Program, options: Options) -> tuple[Derivation, ...]:
    """Return the factorings and simplifications across expressions of *program*, and vertical fusions of least traffic.

    Nothing is derived without the rules for it among those between expressions, and from equations that are fixed.
    """
    if options.fixed or EXPRESSION_FUSION not in options.between or len(program.equations) < 2:
        return ()
    return _derived_across(program, options.between, options.rules)


@lru_cache(16)  # asked for once to choose the search, and once by it
def _derived_across(
    program: Program, between: tuple[Rule[object], ...], rules: tuple[Rule[object], ...]
) -> tuple[Derivation, ...]:
    factored = tuple(factorings(program)) if CONTRACTION_ORDER in between else ()
    laws = tuple(rule for rule in FUNCTION_RULES if rule in between)
    simplified = tuple(simplifications(program, laws)) if laws else ()
    fusions = vertical_fusions(program, (*between, *rules))
    fused = sorted(fusions, key=lambda found: (traffic(found.end), len(found.end.equations)))
    return (*factored[-MAX_FACTORINGS:], *simplified[-MAX_SIMPLIFICATIONS:], *fused[:MAX_FUSIONS])


def matches_between(program: Program, rules: Iterable[Rule[object]]) -> Iterable[Match[object]]:
    """Yield the legal matches of *rules* at whole equations, instantiated ones included, at those that sum first."""
    numbers = sorted(range(len(program.equations)), key=lambda n: not program.equations[n].scope.summations)
    for rule in rules:
        for n in numbers:
            yield from rule.matches(program, (n,))
