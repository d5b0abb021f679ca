"""Converging derivation (EinNet §6.1): from a state straight to candidates.

Every scope is matched with every target operator, and eOperators are generated for the remaining equations.  The module
also has the table of a search's states and the lower bound on the cost of a state's candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.equations import weight_only
from einnet_explore.ir import Program, show_path
from einnet_explore.rules import EOPERATOR_GENERATION, Derivation, Match, Refused
from einnet_explore.strategies.events import Found, MatchRefused, Pruned, SearchEvent, State
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.moves import clean
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.strategies.strategy import Restrictions


@dataclass(slots=True, eq=False)
class StateTable:
    """The states reached from *start*, numbered in order, candidates included."""

    start: Program
    states: list[State] = field(default_factory=list, init=False)
    pruned: int = field(default=0, init=False)
    best: float = field(default=float("inf"), init=False)
    _derivations: dict[int, Derivation] = field(default_factory=dict, init=False)
    _costs: dict[int, float] = field(default_factory=dict, init=False)

    @property
    def size(self) -> int:
        """The number of states."""
        return len(self.states)

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
            if state.id == 0 and self.options.strategy == "best_first":
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
        key, known = program_key(program), self.known
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
