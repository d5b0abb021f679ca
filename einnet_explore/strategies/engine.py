r"""Distance-guided search (EinNet §6.1, Fig. 10): explorative derivation, and converging derivation at every state.

*Explorative* derivation applies rules to a depth; at each new state *converging* derivation goes straight to
candidates: every scope is matched with every target operator, and eOperators are generated for the remaining equations.
Two strategies share the engine:

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
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeAlias

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.equations import weight_only
from einnet_explore.ir import Program, show_path
from einnet_explore.rules import EOPERATOR_GENERATION, RULES, Derivation, Match, Refused
from einnet_explore.rules.base import places
from einnet_explore.strategies.events import Found, Level, MatchRefused, Pruned, Reached, SearchEvent, State
from einnet_explore.strategies.instantiation import matching_rule, nearest_distance
from einnet_explore.strategies.moves import LazySequence, Moves, clean
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.strategies.strategy import STRATEGIES, Restrictions
from einnet_explore.support.wording import count_noun


@dataclass(slots=True, eq=False)
class StateTable:
    """The states reached from *start*, numbered in order, candidates included.

    *tracked* names rules: states of one program are different states if other ones of them were used on the way.
    """

    start: Program
    tracked: frozenset[str] = field(default=frozenset(), init=False)
    states: list[State] = field(default_factory=list, init=False)
    pruned: int = field(default=0, init=False)
    best: float = field(default=float("inf"), init=False)
    _derivations: dict[int, Derivation] = field(default_factory=dict, init=False)
    _costs: dict[int, float] = field(default_factory=dict, init=False)
    _used: dict[int, frozenset[str]] = field(default_factory=dict, init=False)
    _forbidden: frozenset[tuple[Hashable, Hashable]] = field(default=frozenset(), init=False)

    def restrict(self, options: Options) -> None:
        """Note the rules that must be used and the edges that are forbidden; raises ValueError for other starts."""
        self.tracked = frozenset(options.must_use)
        self._forbidden = frozenset((program_key(edge.before), program_key(edge.after)) for edge in options.forbid)
        if strange := [start for start in options.starts if start.start != self.start]:
            raise ValueError(f"starts: found {strange[0]!r}, expected derivations from the program that is searched")

    def used(self, state: int, matches: Iterable[Match[object]] = ()) -> frozenset[str]:
        """The tracked rules on the way to *state* and among *matches*."""
        if not self.tracked:
            return self.tracked
        return self._used[state] | self.tracked.intersection(match.rule.name for match in matches)

    def identity(self, parent: int, matches: Iterable[Match[object]], program: Program) -> Hashable:
        """The key of the state that *matches* make of state *parent*: states with equal keys are one state."""
        key = program_key(program)
        return (key, self.used(parent, matches)) if self.tracked else key

    def is_forbidden(self, parent: int, program: Program) -> bool:
        """Whether the edge from state *parent* to *program* is forbidden."""
        if not self._forbidden:
            return False
        return (program_key(self.states[parent].program), program_key(program)) in self._forbidden

    @property
    def size(self) -> int:
        """The number of states."""
        return len(self.states)

    @property
    def counted(self) -> str:
        """The number of states in words, those of the searches of single expressions apart."""
        inside = self.size - len(self.states)
        return count_noun(len(self.states), "state") + (f" and {inside} of single expressions" if inside else "")

    def reached(
        self,
        parent: int,
        matches: tuple[Match[object], ...],
        program: Program,
        depth: int,
        phase: str,
        distance: int | None,
    ) -> State:
        """Add the state that *matches* make of state *parent*."""
        state = State(len(self.states), parent, matches, program, depth, phase, distance)
        if self.tracked:
            self._used[state.id] = self.used(parent, matches) if state.id else frozenset()
        self.states.append(state)
        return state

    def priced(self, depth: int, seconds: float) -> None:
        """Record a candidate of cost *seconds* within *depth* choices."""
        self._costs[depth] = min(seconds, self._costs.get(depth, seconds))

    def cheapest(self, depth: int) -> float:
        """The least known cost within *depth* choices."""
        return min((seconds for d, seconds in self._costs.items() if d <= depth), default=float("inf"))

    def derivation(self, state: int) -> Derivation:
        """The derivation that ends in *state*."""
        if state not in self._derivations:
            link = self.states[state]
            derivation = self.derivation(link.parent) if state else Derivation(self.start)
            for match in link.matches:
                derivation = derivation.then(match)
            self._derivations[state] = derivation
        return self._derivations[state]

    def above(self, state: int) -> list[State]:
        """The states from the start to *state*, each the parent of the next."""
        chain = [self.states[state]]
        while chain[-1].id:
            chain.append(self.states[chain[-1].parent])
        return chain[::-1]

    def path(self, state: int) -> str:
        """The matches that lead to *state* as text: ``summation_splitting at 0, operator_matching at 0.0``."""
        matches = [m for link in self.above(state) for m in link.matches]
        return ", ".join(f"{m.rule.name} at {show_path(m.at)}" for m in matches) or "the start itself"


PRODUCT_PRESERVING_RULES: frozenset[str] = frozenset(
    (
        "summation_splitting", "variable_substitution", "traversal_merging", "boundary_relaxing", "boundary_tightening",
        "eoperator_generation", "expression_fusion",
    )
)  # fmt: skip
"""The rules for which ``cost.products`` is argued; one that forms fewer products (a fast algorithm) is none of them."""

LeastCost: TypeAlias = "Callable[[Program], float]"


def lower_bound(
    program: Program, cost: Callable[[Program], tuple[float, str]], least: LeastCost | None = None
) -> float:
    """Return a lower bound, in seconds, of the cost of every candidate derived from *program*.

    It is the cost of the instantiated equations, which stay as they are, plus *least* of the others (0 if None).
    """
    constant = weight_only(program)
    chosen = tuple(e for e in program.equations if e.via is not None or e.name in constant)
    spent = cost(replace(program, equations=chosen))[0] if any(e.via for e in chosen) else 0.0
    return spent + (least(program) if least is not None and len(chosen) < len(program.equations) else 0.0)


@dataclass(slots=True, eq=False)
class ConvergingDerivation:
    """Converging derivation of the states of *known*, each once; *least* is that of ``Search``."""

    known: StateTable
    cost: Cost
    options: Options
    allowed: Restrictions
    least: LeastCost | None
    _converged: set[int] = field(default_factory=set, init=False)
    _finished: dict[Hashable, tuple[int, float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if any(rule.name not in PRODUCT_PRESERVING_RULES for rule in self.options.rules):
            self.least = None

    def candidates(self, state: State) -> Iterable[SearchEvent]:
        """Yield the events of the candidates that *state* leads to without a choice; nothing the second time."""
        if state.id in self._converged:
            return
        self._converged.add(state.id)
        yield from self._finish(state, (), state.program)
        if self.options.converging or state.distance == 0:
            yield from self._matched(state, (), state.program, range(len(state.program.equations)))
            if state.depth == 0 and self.options.strategy == "best_first":
                # What follows a choice is tidy, but the start need not be, say after steps by hand.
                tidy, program = clean(state.program, rules=self.options.rules)
                if tidy:
                    yield from self._matched(state, tidy, program, range(len(program.equations)))

    def bound(self, program: Program) -> float:
        """A lower bound of the cost of every candidate derived from *program*."""
        return lower_bound(program, self.cost, self.least)

    def reasons_to_prune(self, bound: float, depth: int) -> tuple[str, ...]:
        """Return the reason to prune a program that costs *bound* or more: a cheaper candidate at *depth*.

        Deeper candidates do not count, so that the candidates of a level do not depend on later levels.
        """
        cheapest = self.known.cheapest(depth)
        return (f"it costs at least {bound:.4g} s, a candidate {cheapest:.4g} s",) if bound > cheapest else ()

    def _matched(
        self, state: State, done: tuple[Match[object], ...], program: Program, equations: Iterable[int]
    ) -> Iterable[SearchEvent]:
        """Instantiate each operator match of a scope of one of *equations*, and finish the program.

        With ``bound`` the cheapest comes first, and a match that costs more than a known candidate is pruned.
        """
        rule = matching_rule(self.options.targets)
        places = [at for at, _ in self.allowed.places(program) if at[0] in equations]
        ways = ((match, match.apply(program).after) for at in places for match in rule.matches(program, at))
        if not self.options.bound:
            for match, after in ways:
                yield from self._finish(state, (*done, match), after)
            return
        ranked = sorted(((self.bound(p), n, m, p) for n, (m, p) in enumerate(ways)), key=lambda way: way[:2])
        for bound, _, match, after in ranked:
            if why := self.reasons_to_prune(bound, state.depth):
                self.known.pruned += 1
                yield Pruned(state.id, (*done, match), why[0])
            else:
                yield from self._finish(state, (*done, match), after)

    def _finish(self, state: State, matches: tuple[Match[object], ...], program: Program) -> Iterable[SearchEvent]:
        """Generate eOperators for the remaining equations of *program*; yield a candidate if none is refused.

        A remaining equation may be compute-bound (a sum of two products, a chain): it is matched in turn.
        """
        tidy, program = clean(program, final=True, rules=self.options.rules)
        done = [*matches, *tidy]
        for n, equation in enumerate(program.equations):
            if equation.via is None:
                match = Match(EOPERATOR_GENERATION, (n,), None)
                try:
                    program = match.apply(program).after
                except Refused as reason:
                    yield MatchRefused(state.id, (n,), "eOperator", str(reason))
                    if matches:
                        yield from self._matched(state, tuple(done), program, (n,))
                    return
                done.append(match)
        known = self.known
        missing = frozenset(self.options.must_use) - known.used(state.id, done)
        if missing or known.is_forbidden(state.id, program):
            known.pruned += 1
            why = f"it does not use {', '.join(sorted(missing))}" if missing else FORBIDDEN
            yield Pruned(state.id, tuple(done), why)
            return
        key = known.identity(state.id, done, program)
        if key in self._finished:
            known.pruned += 1
            twin, seconds = self._finished[key]
            known.priced(state.depth, seconds)
            yield Pruned(state.id, tuple(done), "the same candidate", twin)
            return
        seconds, how = self.cost(program)
        known.priced(state.depth, seconds)
        found = known.reached(state.id, tuple(done), program, state.depth, "converging", 0)
        self._finished[key] = found.id, seconds
        improved = seconds < known.best
        known.best = min(known.best, seconds)
        yield Found(found, seconds, how, improved)


FORBIDDEN = "this edge is forbidden"

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

    Only asked where every rule keeps products (``PRODUCT_PRESERVING_RULES``).
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
        self.restrict(self.options)
        roots = [start.end for start in self.options.starts] or [self.start]
        tidy = [clean(root, rules=self.options.rules)[1] for root in roots]
        given = frozenset(s for program in (*roots, *tidy) for at, s in places(program) if len(at) > 1)
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
        self._seen[self.identity(0, (), self.start)] = first
        yield Reached(first)
        level, idle = [first], 0
        if self.options.starts:
            level = list(dict.fromkeys(self._root(first, start) for start in self.options.starts))
            yield from (Reached(state) for state in level if state is not first)
        yield from self._look_ahead(level)
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

    def _root(self, first: State, start: Derivation) -> State:
        """The state at the end of *start*, of depth 0."""
        matches = tuple(step.match for step in start.steps)
        key = self.identity(0, matches, start.end)
        if key not in self._seen:
            distance = nearest_distance(start.end, self.options.targets)
            self._seen[key] = self.reached(first.id, matches, start.end, 0, "explorative", distance)
        return self._seen[key]

    def _look_ahead(self, roots: Iterable[State]) -> Iterable[SearchEvent]:
        """Follow the most promising moves first (limited discrepancy search)."""
        deepest = min(self.options.ahead, self.options.max_depth)
        if self.options.strategy != "best_first" or not deepest:
            return
        queue = list[tuple[int, int, int, int, State]]()
        for root in roots:
            yield from self._converging.candidates(root)
            # (depth and detours, detours, state, move): the shortest and straightest first
            heapq.heappush(queue, (0, 0, root.id, 0, root))
        while queue:
            _, detours, _, rank, parent = heapq.heappop(queue)
            if parent.depth >= deepest or not self._moves(parent).reaches(rank):
                continue
            if detours < MAX_DETOURS:
                heapq.heappush(queue, (parent.depth + detours + 1, detours + 1, parent.id, rank + 1, parent))
            matches, program = self._moves(parent)[rank]
            key = self.identity(parent.id, matches, program)
            if key not in self._seen and not self.is_forbidden(parent.id, program):
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
        if self.is_forbidden(parent.id, program):
            self.pruned += 1
            yield Pruned(parent.id, matches, FORBIDDEN)
            return
        key = self.identity(parent.id, matches, program)
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
