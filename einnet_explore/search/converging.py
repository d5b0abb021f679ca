r"""Converging derivation (EinNet §6.1): from a state straight to candidates.

Every scope is taken towards every target operator by moves that lower the expression distance, down to an instantiated
operator, and eOperators are generated for what is left.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from einnet_explore.algebra.keys import program_key
from einnet_explore.ir import Program
from einnet_explore.rules import EOPERATOR_GENERATION, Match
from einnet_explore.rules import Refused as RuleRefused
from einnet_explore.search.bounds import KEEP_PRODUCTS, Least, lower_bound
from einnet_explore.search.cleanup import clean
from einnet_explore.search.events import Found, Pruned, Refused, SearchEvent, State
from einnet_explore.search.instantiation import matching_rule
from einnet_explore.search.options import Cost, Options
from einnet_explore.search.states import States
from einnet_explore.search.strategies import Allowed


@dataclass(slots=True, eq=False)
class Converging:
    """What finishes the states of *known*, each once; *least* is that of ``Search``."""

    known: States
    cost: Cost
    options: Options
    allowed: Allowed
    least: Least | None
    _converged: set[int] = field(default_factory=set, init=False)
    _finished: dict[Hashable, tuple[int, float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if any(rule.name not in KEEP_PRODUCTS for rule in self.options.rules):
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
                    yield Refused(state.id, (n,), "eOperator", _why_no_eoperator(program, n))
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
    except RuleRefused as refusal:
        return str(refusal)
    return "eOperator generation proposed nothing"
