"""Converging derivation (EinNet §6.1): from a state straight to candidates.

Every scope is taken towards every target operator by moves that lower the expression distance, down to an instantiated
operator, and eOperators are generated for what is left.

The states of a search: how each was reached, and what the cheapest candidates cost.

What every candidate derived from a program costs at least.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.equations import weight_only
from einnet_explore.ir import Program, show_path
from einnet_explore.rules import EOPERATOR_GENERATION, Derivation, Match
from einnet_explore.strategies.events import Found, MatchRefused, Pruned, SearchEvent, State
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.moves import clean
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.strategies.strategy import Restrictions
from einnet_explore.support.errors import Refused


@dataclass(slots=True, eq=False)
class StateTable:
    """Every state that was reached from *start*, numbered in order, candidates among them."""

    start: Program
    states: list[State] = field(default_factory=list, init=False)
    pruned: int = field(default=0, init=False)
    best: float = field(default=float("inf"), init=False)
    _derivations: dict[int, Derivation] = field(default_factory=dict, init=False)
    _costs: dict[int, float] = field(default_factory=dict, init=False)

    def reached(
        self,
        parent: int,
        matches: tuple[Match[Any], ...],
        program: Program,
        depth: int,
        phase: str,
        distance: int | None,
    ) -> State:
        """The next state, which *matches* make of state *parent*."""
        state = State(len(self.states), parent, matches, program, depth, phase, distance)
        self.states.append(state)
        return state

    def priced(self, depth: int, seconds: float) -> None:
        """Remember that a candidate which costs *seconds* is reached within *depth* choices."""
        self._costs[depth] = min(seconds, self._costs.get(depth, seconds))

    def cheapest(self, depth: int) -> float:
        """The least cost that is known to be reached within *depth* choices."""
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
        """The matches that lead to *state*, in words: ``summation_splitting at 0, operator_matching at 0.0``."""
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
    """Seconds that no candidate derived from *program* stays below: what is chosen already, and *least* besides.

    A *cost* is a sum over equations, and equations that are instantiated stay as they are until the end.  *least* says
    what those that are not cost at least; None: nothing is known of them.
    """
    constant = weight_only(program)
    chosen = tuple(e for e in program.equations if e.via is not None or e.name in constant)
    spent = cost(replace(program, equations=chosen))[0] if any(e.via for e in chosen) else 0.0
    return spent + (least(program) if least is not None and len(chosen) < len(program.equations) else 0.0)


@dataclass(slots=True, eq=False)
class ConvergingDerivation:
    """What finishes the states of *known*, each once; *least* is that of ``Search``."""

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
        """The candidates that *state* leads to without another choice, as events; nothing if that was asked before."""
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
        """What every candidate derived from *program* costs at least."""
        return lower_bound(program, self.cost, self.least)

    def dear(self, bound: float, depth: int) -> str | None:
        """Why what costs at least *bound* need not be followed: a candidate within *depth* choices costs less.

        One that was found deeper does not count: whether a level found something cheaper has to stay the same.
        """
        cheapest = self.known.cheapest(depth)
        if bound <= cheapest:
            return None
        return f"it costs at least {bound:.4g} s, a candidate {cheapest:.4g} s"

    def _matched(
        self, state: State, done: tuple[Match[Any], ...], program: Program, equations: Iterable[int]
    ) -> Iterable[SearchEvent]:
        """Finish each way to give a library operator to a scope of one of *equations*.

        With ``bound`` the cheapest comes first, and none that costs more than what is known.
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
            if (why := self.dear(bound, state.depth)) is not None:
                self.known.pruned += 1
                yield Pruned(state.id, (*done, match), why)
            else:
                yield from self._finish(state, (*done, match), after)

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
                    yield MatchRefused(state.id, (n,), "eOperator", _why_no_eoperator(program, n))
                    if matches:
                        yield from self._matched(state, tuple(done), program, (n,))
                    return
                program = match.apply(program).after
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


def _why_no_eoperator(program: Program, equation: int) -> str:
    """The refusal of eOperator generation at one equation, in its own words."""
    try:
        EOPERATOR_GENERATION.rewrite(program, (equation,), EOPERATOR_GENERATION.decode(program, (equation,), {}))
    except Refused as refusal:
        return str(refusal)
    return "eOperator generation proposed nothing"
