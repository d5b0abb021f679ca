r"""Distance-guided search (EinNet §6.1, Fig. 10): explorative derivation, and converging derivation at every state.

*Explorative* derivation applies rules to a depth; at each new state *converging* derivation takes every scope towards
every target operator by moves that lower the expression distance, down to an instantiated operator, and generates
eOperators for what is left.  Two strategies share the engine:

* ``paper``: every rule at every legal place is one move (§6.1 as published);
* ``best_first``: a move is one choice (a split, a substitution, a padding) and the clean-ups that follow it; a level's
  states are expanded nearest first; it ends after *patience* levels in which no candidate got cheaper by ``WORTH``.
  Before the levels it *looks ahead* by limited discrepancy: moves come most promising first, and paths that leave the
  first move at most ``DETOURS`` times are followed down to *ahead* choices.  What is found there is what the levels
  would find, only sooner: they take these states over as they come to them.

States are one only if their canonical keys are equal.  The visited set remembers the depth: a state that is reached
again by a shorter way is expanded again, so what is reachable at depth d is reachable at d + 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from einnet_explore.algebra.keys import program_key
from einnet_explore.ir import Program, Scope, show_path
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.rules import EOPERATOR_GENERATION, RULES, Derivation, Match, Rule
from einnet_explore.rules import Refused as RuleRefused
from einnet_explore.rules.base import places
from einnet_explore.search.bounds import KEEP_PRODUCTS, Least, lower_bound
from einnet_explore.search.cleanup import Moves, clean
from einnet_explore.search.events import Found, Level, Pruned, Reached, Refused, SearchEvent, State
from einnet_explore.search.instantiation import matching_rule, nearest
from einnet_explore.search.moves import Lazy
from einnet_explore.search.strategies import STRATEGIES, Allowed

WORTH = 0.01
"""The part of the best cost by which a candidate has to be cheaper for *patience* to start anew: less is noise."""

DETOURS = 1
"""How far a path may leave the most promising move while looking ahead: the sum of the numbers of its moves."""

Cost = Callable[[Program], "tuple[float, str]"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a search may do.  *fingerprint* and *converging* are switched off for the paper's ablations only."""

    strategy: str = "best_first"
    max_depth: int = 7
    fingerprint: bool = True
    converging: bool = True
    patience: int = 2
    ahead: int = 3
    """How many choices deep ``best_first`` looks ahead before the first level; 0: not at all."""
    bound: bool = False
    """Leave out what costs more already than a candidate that is known, and match the cheapest first.

    Good for who only wants the best candidate: the others are then not all found.  The best one is.
    """
    rules: tuple[Rule[Any], ...] = RULES
    targets: tuple[Operator, ...] = OPERATORS
    fixed: frozenset[str] = frozenset()
    """Equations that are left as they are until eOperators are generated: no rule and no operator is tried on them."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy {self.strategy!r}: expected one of {', '.join(STRATEGIES)}")
        if self.ahead < 0:
            raise ValueError(f"ahead {self.ahead}: expected 0 or more")
        if self.max_depth < 0:
            raise ValueError(f"max depth {self.max_depth}: expected 0 or more")


@dataclass(slots=True)
class Search:
    """The states found so far; ``run`` yields events and may be left and taken up again at any event."""

    start: Program
    cost: Cost
    options: Options = field(default_factory=Options)
    least: Least | None = None
    """What the equations of a program that are not instantiated yet cost at least; None: nothing is known of them.

    Only asked where every rule keeps products (``bounds.KEEP_PRODUCTS``).
    """
    states: list[State] = field(default_factory=list)
    pruned: int = 0
    complete: bool = False
    ended: bool = False
    """Whether the run ended for want of something cheaper."""
    best: float = float("inf")
    _seen: dict[Hashable, State] = field(default_factory=dict)
    _finished: dict[Hashable, tuple[int, float]] = field(default_factory=dict)
    _given: frozenset[Scope] = frozenset()
    _derivations: dict[int, Derivation] = field(default_factory=dict)
    _children: dict[int, Lazy[Moves]] = field(default_factory=dict)
    expanded: set[int] = field(default_factory=set)
    """The states whose moves were all made."""
    _converged: set[int] = field(default_factory=set)
    _ahead: dict[int, State] = field(default_factory=dict)
    _costs: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._given = frozenset(s for at, s in places(self.start) if len(at) > 1)

    @property
    def _allowed(self) -> Allowed:
        return Allowed(self.options.rules, self.options.fixed, self._given)

    def run(self) -> Iterable[SearchEvent]:
        """Search until every state within the depth is expanded, or nothing got better for *patience* levels."""
        for event in self._levels():
            yield event
            if event == Level(self.options.max_depth):
                self.complete = True
                return

    def _levels(self) -> Iterable[SearchEvent]:
        """Level by level without end: *max_depth* is where ``run`` stops to listen (and bounds looking ahead).

        So what a search to one depth says is how a search to the next begins.
        """
        first = State(0, 0, (), self.start, 0, "start", nearest(self.start, self.options.targets))
        self.states.append(first)
        self._seen[program_key(self.start)] = first
        yield Reached(first)
        yield from self._look_ahead(first)
        level, idle = [first], 0
        for depth in count():
            best = self._cheapest(depth - 1)
            level.sort(key=lambda s: (s.distance if s.distance is not None else 1 << 30, s.id))
            for state in level:
                yield from self._converge(state)
            yield Level(depth)
            now = self._cheapest(depth)
            idle = 0 if now < best * (1 - WORTH) else idle + 1
            enough = now < float("inf") and idle >= self.options.patience
            if self.options.strategy == "best_first" and enough and any(self._moves(s).reaches(0) for s in level):
                self.ended = True
                return
            after: list[State] = []
            for state in level:
                yield from self._explore(state, after)
            if not after:
                self.complete = True
                return
            level = after

    def _cheapest(self, depth: int) -> float:
        """The least cost that is known to be reached within *depth* choices."""
        return min((seconds for d, seconds in self._costs.items() if d <= depth), default=float("inf"))

    def _look_ahead(self, first: State) -> Iterable[SearchEvent]:
        """Follow the most promising moves, those paths first that leave them least (limited discrepancy search)."""
        deepest = min(self.options.ahead, self.options.max_depth)
        if self.options.strategy != "best_first" or not deepest:
            return
        yield from self._converge(first)
        queue = [(0, 0, 0, 0, first)]  # (depth and detours, detours, state, move): the shortest and straightest first
        while queue:
            _, detours, _, rank, parent = heapq.heappop(queue)
            if parent.depth >= deepest or not self._moves(parent).reaches(rank):
                continue
            if detours < DETOURS:
                heapq.heappush(queue, (parent.depth + detours + 1, detours + 1, parent.id, rank + 1, parent))
            matches, program = self._moves(parent)[rank]
            key = program_key(program)
            if key not in self._seen:
                state = self._new(parent, matches, program, "explorative", key)
                self._ahead[state.id] = state
                yield Reached(state)
                yield from self._converge(state)
                heapq.heappush(queue, (state.depth + detours, detours, state.id, 0, state))

    def derivation(self, state: int) -> Derivation:
        """The derivation that ends in *state*."""
        if state not in self._derivations:
            link = self.states[state]
            derivation = self.derivation(link.parent) if state else Derivation(self.start)
            for match in link.matches:
                derivation = derivation.then(match)
            self._derivations[state] = derivation
        return self._derivations[state]

    def path(self, state: int) -> str:
        """The matches that lead to *state*, in words: ``summation_splitting at 0, operator_matching at 0.0``."""
        chain = [self.states[state]]
        while chain[-1].id:
            chain.append(self.states[chain[-1].parent])
        matches = [m for link in reversed(chain) for m in link.matches]
        return ", ".join(f"{m.rule.name} at {show_path(m.at)}" for m in matches) or "the start itself"

    def why_unexpanded(self, state: int) -> str | None:
        """Why no moves were made from *state* (yet): the depth, or the end of the run; None if they were."""
        at, options = self.states[state], self.options
        if state in self.expanded or (at.phase == "converging"):
            return None
        far = "" if at.distance is None else f", {at.distance} iterators from the nearest target"
        if at.depth >= options.max_depth:
            return f"it is {at.depth} choices from the start{far}: the search goes to depth {options.max_depth}"
        if self.ended:
            cheapest = f"{self._cheapest(at.depth):.3g} s"
            return (
                f"it is {at.depth} choices from the start{far}: the search ended before, since in {options.patience} "
                f"levels nothing got cheaper than {cheapest} by {WORTH:.0%}"
            )
        return f"it is {at.depth} choices from the start{far}: the search has not come to it"

    def _moves(self, state: State) -> Lazy[Moves]:
        """The moves from *state* in order, each computed when it is asked for."""
        if state.id not in self._children:
            strategy = STRATEGIES[self.options.strategy]
            self._children[state.id] = Lazy(lambda: strategy(state.program, self._allowed))
        return self._children[state.id]

    def _explore(self, state: State, after: list[State]) -> Iterable[SearchEvent]:
        for matches, program in self._moves(state):
            yield from self._reach(state, matches, program, "explorative", after)
        del self._children[state.id]
        self.expanded.add(state.id)

    def _reach(
        self, parent: State, matches: tuple[Match[Any], ...], program: Program, phase: str, after: list[State]
    ) -> Iterable[SearchEvent]:
        key = program_key(program)
        twin = self._seen.get(key)
        if twin is not None:
            if twin.depth <= parent.depth + 1 and self._ahead.pop(twin.id, None) is not None:
                after.append(twin)
                return
            self.pruned += 1
            if twin.depth <= parent.depth + 1 and self.options.fingerprint:
                yield Pruned(parent.id, matches, f"the same program as state {twin.id}", twin.id)
                return
        # Rules between expressions may take an instance back; then what is chosen so far is no bound.
        kept = self.options.bound and all(rule in RULES for rule in self.options.rules)
        bounded = kept and twin is None and any(e.via for e in program.equations)
        if bounded and (why := self._dear(self._bound(program), parent.depth + 1)) is not None:
            self.pruned += 1
            yield Pruned(parent.id, matches, why)
            return
        state = self._new(parent, matches, program, phase, key)
        after.append(state)
        yield Reached(state)

    def _new(
        self, parent: State, matches: tuple[Match[Any], ...], program: Program, phase: str, key: Hashable
    ) -> State:
        distance = nearest(program, self.options.targets)
        state = State(len(self.states), parent.id, matches, program, parent.depth + 1, phase, distance)
        self.states.append(state)
        self._seen[key] = state
        return state

    def _converge(self, state: State) -> Iterable[SearchEvent]:
        if state.id in self._converged:
            return
        self._converged.add(state.id)
        yield from self._finish(state, (), state.program)
        if not self.options.converging and state.distance != 0:
            return
        rule = matching_rule(self.options.targets)
        places = [at for at, _ in self._allowed.places(state.program)]
        ways = ((m, m.apply(state.program).after) for at in places for m in rule.matches(state.program, at))
        yield from self._finish_each(state, (), ways)

    def _finish_each(
        self, state: State, done: tuple[Match[Any], ...], ways: Iterable[tuple[Match[Any], Program]]
    ) -> Iterable[SearchEvent]:
        """Finish each of *ways*; with ``bound`` the cheapest first, and none that costs more than what is known."""
        if not self.options.bound:
            for match, program in ways:
                yield from self._finish(state, (*done, match), program)
            return
        ranked = sorted(((self._bound(p), n, m, p) for n, (m, p) in enumerate(ways)), key=lambda way: way[:2])
        for bound, _, match, program in ranked:
            if (why := self._dear(bound, state.depth)) is not None:
                self.pruned += 1
                yield Pruned(state.id, (*done, match), why)
            else:
                yield from self._finish(state, (*done, match), program)

    def _bound(self, program: Program) -> float:
        known = all(rule.name in KEEP_PRODUCTS for rule in self.options.rules)
        return lower_bound(program, self.cost, self.least if known else None)

    def _dear(self, bound: float, depth: int) -> str | None:
        """Why what costs at least *bound* need not be followed: a candidate within *depth* choices costs less.

        One that was found deeper does not count: whether a level found something cheaper has to stay the same.
        """
        cheapest = self._cheapest(depth)
        if bound <= cheapest:
            return None
        return f"it costs at least {bound:.4g} s, a candidate {cheapest:.4g} s"

    def _finish(self, state: State, matches: tuple[Match[Any], ...], program: Program) -> Iterable[SearchEvent]:
        """Generate eOperators for all that is left of *program*; a candidate if that succeeds.

        What is left after a match may be compute-bound itself (a sum of two products, a chain): it is matched in turn.
        """
        tidy, program = clean(program, final=True, rules=self.options.rules)
        done = [*matches, *tidy]
        for n, equation in enumerate(program.equations):
            if equation.via is None:
                match = next(iter(EOPERATOR_GENERATION.matches(program, (n,))), None)
                if match is None:
                    yield Refused(state.id, (n,), "eOperator", why_no_eoperator(program, n))
                    if matches:
                        yield from self._match_rest(state, tuple(done), program, n)
                    return
                program = match.apply(program).after
                done.append(match)
        key = program_key(program)
        if key in self._finished:
            self.pruned += 1
            twin, seconds = self._finished[key]
            self._costs[state.depth] = min(seconds, self._costs.get(state.depth, seconds))
            yield Pruned(state.id, tuple(done), "the same candidate", twin)
            return
        seconds, how = self.cost(program)
        self._costs[state.depth] = min(seconds, self._costs.get(state.depth, seconds))
        found = State(len(self.states), state.id, tuple(done), program, state.depth, "converging", 0)
        self.states.append(found)
        self._finished[key] = found.id, seconds
        improved = seconds < self.best
        self.best = min(self.best, seconds)
        yield Found(found, seconds, how, improved)

    def _match_rest(
        self, state: State, matches: tuple[Match[Any], ...], program: Program, equation: int
    ) -> Iterable[SearchEvent]:
        """Each way to give a library operator to what is left of *equation*, and so on until nothing is left."""
        rule = matching_rule(self.options.targets)
        places = [at for at, _ in self._allowed.places(program) if at[0] == equation]
        ways = ((match, match.apply(program).after) for at in places for match in rule.matches(program, at))
        yield from self._finish_each(state, matches, ways)


def why_no_eoperator(program: Program, equation: int) -> str:
    """The refusal of eOperator generation at one equation, in its own words."""
    try:
        EOPERATOR_GENERATION.rewrite(program, (equation,), EOPERATOR_GENERATION.decode(program, (equation,), {}))
    except RuleRefused as refusal:
        return str(refusal)
    return "eOperator generation proposed nothing"
