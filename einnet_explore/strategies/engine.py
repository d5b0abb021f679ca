r"""Distance-guided search (EinNet §6.1, Fig. 10): explorative derivation, and converging derivation at every state.

*Explorative* derivation applies rules to a depth; at each new state *converging* derivation (``strategies.converging``)
goes straight to candidates.  Two strategies share the engine:

* ``paper``: every rule at every legal place is one move (§6.1 as published);
* ``best_first``: a move is one choice (a split, a substitution, a padding) and the clean-ups that follow it; a level's
  states are expanded nearest first; it ends after *patience* levels in which no candidate got cheaper by ``WORTH``.
  Before the levels it *looks ahead* by limited discrepancy: moves come most promising first, and paths that leave the
  first move at most ``DETOURS`` times are followed down to *ahead* choices.  It finds only states that the levels would
  find later; the levels reuse them.

States are the same only if their canonical keys are equal.  The visited set remembers the depth: a state that is
reached again by a shorter path is expanded again, so every state that is reachable at depth d is reachable at d + 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import count

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.ir import Program
from einnet_explore.rules import RULES, Match
from einnet_explore.rules.base import places
from einnet_explore.strategies.converging import ConvergingDerivation, LeastCost, StateTable
from einnet_explore.strategies.events import Level, Pruned, Reached, SearchEvent, State
from einnet_explore.strategies.instantiation import nearest_distance
from einnet_explore.strategies.moves import LazySequence, Moves, clean
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.strategies.strategy import STRATEGIES, Restrictions

MIN_IMPROVEMENT = 0.01
"""The part of the best cost by which a candidate has to be cheaper for *patience* to start anew: less is noise."""

MAX_DETOURS = 1
"""How far a path may leave the most promising move while looking ahead: the sum of the numbers of its moves."""


@dataclass(slots=True, eq=False)
class Search(StateTable):
    """The states found so far; iterating ``run`` yields events and may stop and resume at any event."""

    cost: Cost
    options: Options = field(default_factory=Options)
    least: LeastCost | None = None
    """What the equations of a program that are not instantiated yet cost at least; None: nothing is known of them.

    Only asked where every rule keeps products (``converging.PRODUCT_PRESERVING_RULES``).
    """
    complete: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    """Whether the run ended for want of something cheaper."""
    expanded: set[int] = field(default_factory=set, init=False)
    """The states whose moves were all made."""
    _allowed: Restrictions = field(init=False)
    _converging: ConvergingDerivation = field(init=False)
    _seen: dict[Hashable, State] = field(default_factory=dict, init=False)
    _children: dict[int, LazySequence[Moves]] = field(default_factory=dict, init=False)
    _ahead: dict[int, State] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        tidy = clean(self.start, rules=self.options.rules)[1]
        given = frozenset(s for program in (self.start, tidy) for at, s in places(program) if len(at) > 1)
        self._allowed = Restrictions(self.options.rules, self.options.fixed, given)
        self._converging = ConvergingDerivation(self, self.cost, self.options, self._allowed, self.least)

    def run(self) -> Iterable[SearchEvent]:
        """Search until every state within the depth is expanded, or nothing got better for *patience* levels."""
        for event in self._levels():
            yield event
            if event == Level(self.options.max_depth):
                self.complete = True
                return

    def _levels(self) -> Iterable[SearchEvent]:
        """Yield events level by level without end; ``run`` stops at *max_depth*, which also bounds looking ahead.

        So the events of a search to one depth are a prefix of those of a deeper search.
        """
        first = self.reached(0, (), self.start, 0, "start", nearest_distance(self.start, self.options.targets))
        self._seen[program_key(self.start)] = first
        yield Reached(first)
        yield from self._look_ahead(first)
        level, idle = [first], 0
        for depth in count():
            best = self.cheapest(depth - 1)
            level.sort(key=lambda s: (s.distance if s.distance is not None else 1 << 30, s.id))
            for state in level:
                yield from self._converging.candidates(state)
            yield Level(depth)
            now = self.cheapest(depth)
            idle = 0 if now < best * (1 - MIN_IMPROVEMENT) else idle + 1
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

    def _look_ahead(self, first: State) -> Iterable[SearchEvent]:
        """Follow the most promising moves first (limited discrepancy search)."""
        deepest = min(self.options.ahead, self.options.max_depth)
        if self.options.strategy != "best_first" or not deepest:
            return
        yield from self._converging.candidates(first)
        queue = [(0, 0, 0, 0, first)]  # (depth and detours, detours, state, move): the shortest and straightest first
        while queue:
            _, detours, _, rank, parent = heapq.heappop(queue)
            if parent.depth >= deepest or not self._moves(parent).reaches(rank):
                continue
            if detours < MAX_DETOURS:
                heapq.heappush(queue, (parent.depth + detours + 1, detours + 1, parent.id, rank + 1, parent))
            matches, program = self._moves(parent)[rank]
            key = program_key(program)
            if key not in self._seen:
                state = self._explored(parent, matches, program, key)
                self._ahead[state.id] = state
                yield Reached(state)
                yield from self._converging.candidates(state)
                heapq.heappush(queue, (state.depth + detours, detours, state.id, 0, state))

    def _moves(self, state: State) -> LazySequence[Moves]:
        """The moves from *state* in order, each computed on demand."""
        if state.id not in self._children:
            strategy = STRATEGIES[self.options.strategy]
            self._children[state.id] = LazySequence(lambda: strategy(state.program, self._allowed))
        return self._children[state.id]

    def _explore(self, state: State, after: list[State]) -> Iterable[SearchEvent]:
        for matches, program in self._moves(state):
            yield from self._reach(state, matches, program, after)
        del self._children[state.id]
        self.expanded.add(state.id)

    def _reach(
        self, parent: State, matches: tuple[Match[object], ...], program: Program, after: list[State]
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
        if bounded and (why := self._converging.reasons_to_prune(self._converging.bound(program), parent.depth + 1)):
            self.pruned += 1
            yield Pruned(parent.id, matches, why[0])
            return
        state = self._explored(parent, matches, program, key)
        after.append(state)
        yield Reached(state)

    def _explored(self, parent: State, matches: tuple[Match[object], ...], program: Program, key: Hashable) -> State:
        distance = nearest_distance(program, self.options.targets)
        state = self.reached(parent.id, matches, program, parent.depth + 1, "explorative", distance)
        self._seen[key] = state
        return state
