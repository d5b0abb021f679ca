"""The states of a search: how each was reached, and what the cheapest candidates cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from einnet_explore.ir import Program, show_path
from einnet_explore.rules import Derivation, Match
from einnet_explore.search.events import State


@dataclass(slots=True, eq=False)
class States:
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
