"""Expressions of a program searched each alone, and programs put together from what was found.

The expressions of a program do not depend on one another's derivations, and the cost of a program is the sum of its
parts', so equal expressions are searched once and choices for all of them are only added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any, TypeAlias

from einnet_explore.algebra.equations import constants
from einnet_explore.algebra.measure import intensity
from einnet_explore.ir import (
    EOPERATOR,
    VIEW,
    Equation,
    Instance,
    Program,
    map_tensors,
    tensors,
)
from einnet_explore.room import ROOM
from einnet_explore.rules import RULES, Derivation, Rule
from einnet_explore.rules.eoperator_generation import COMPUTE_BOUND
from einnet_explore.search.engine import Search
from einnet_explore.search.events import Found
from einnet_explore.search.options import Cost, Options
from einnet_explore.search.watch import Watch

Calls: TypeAlias = "tuple[Instance, ...]"

CHOICES = 20_000
"""Up to so many choices of ways for the expressions of a program are looked at."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far Algorithm 1 goes.

    *members*: of a closure; *seconds*: for all searches of expressions, and again for merging what they make; *kinds*:
    how many ways to run an expression by the same operators are held; *together*: how many choices of these are tried;
    *rules*: what the expressions are searched by; *states*: of the search of each expression, None for any number.
    """

    members: int = 12
    seconds: float = 4.0
    kinds: int = 6
    together: int = 24
    max_depth: int = 7
    rules: tuple[Rule[Any], ...] = RULES
    states: int | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run an expression: its cost, the library operators that it calls, its derivation."""

    seconds: float
    calls: Calls
    derivation: Derivation


def compute_bound(program: Program) -> tuple[int, ...]:
    """The numbers of the equations that are worth a search: compute-bound, and run by nothing yet."""
    return tuple(n for n, e in enumerate(program.equations) if e.via is None and intensity(e.scope) >= COMPUTE_BOUND)


@dataclass(slots=True)
class Pieces:
    """Searches of single expressions, each done once, and programs put together from what they found."""

    cost: Cost
    limits: Limits
    until: float = 0.0
    seconds: float = 0.0
    known: dict[Program, tuple[Way, ...]] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self) -> None:
        self.until = self.watch.seconds + self.limits.seconds

    def share(self, expressions: tuple[int, ...], last: bool = False) -> None:
        """Give *expressions* half of the time that is left, all of it to the *last*: first members are the best."""
        left = max(0.0, self.until - self.watch.seconds) / (1 if last else 2)
        self.seconds = left / max(1, len(expressions))

    def combined(self, start: Derivation) -> Iterable[Derivation]:
        """*start* with its compute-bound expressions run, the rest generated; the cheapest choice first.

        Then come the choices whose calls may merge: the more of them the sooner.
        """
        program = start.end
        numbers = compute_bound(program)
        few = int(CHOICES ** (1 / max(1, len(numbers))))
        ways = [self.ways(program, n)[: max(2, few)] for n in numbers]
        choices: list[tuple[Way, ...]] = sorted(product(*ways), key=_seconds)
        if not choices:
            return
        akin = [(_akin(choice), choice) for choice in choices]
        rest = [choice for count, choice in sorted(akin, key=lambda pair: -pair[0]) if count]
        for choice in dict.fromkeys((choices[0], *rest[: self.limits.together])):
            derivation = start
            # From the last on: what an expression becomes stands where it stood.
            for n, way in sorted(zip(numbers, choice, strict=True), key=lambda pair: -pair[0]):
                for step in way.derivation.steps:
                    at = (step.match.at[0] + n, *step.match.at[1:])
                    derivation = derivation.then(replace(step.match, at=at))
            if (done := self.finished(derivation)) is not None:
                yield done

    def finished(self, derivation: Derivation) -> Derivation | None:
        """*derivation* with all that is left made eOperators and views; None where that is refused."""
        search = Search(derivation.end, self.cost, Options(max_depth=0, ahead=0))
        for event in search.run():
            if isinstance(event, Found):
                return Derivation(derivation.start, (*derivation.steps, *search.derivation(event.state.id).steps))
        return None

    def ways(self, program: Program, n: int) -> tuple[Way, ...]:
        """The cheapest ways to run equation *n*: the best by each choice of operators first, then others of these."""
        alone = standalone(program, n)
        if alone not in self.known:
            search = Search(alone, self.cost, Options(max_depth=self.limits.max_depth, rules=self.limits.rules))
            until, states = self.watch.seconds + self.seconds, self.limits.states
            found: dict[Calls, tuple[float, int]] = {}
            for event in search.run():
                if isinstance(event, Found):
                    calls = _calls(event.state.program)
                    found[calls] = min(found.get(calls, (float("inf"), 0)), (event.seconds, event.state.id))
                if ROOM.full() or (states is not None and len(search.states) >= states):
                    break
                if found and self.watch.seconds > until:
                    break
            ranked: list[tuple[int, Way]] = []
            count: dict[tuple[str, ...], int] = {}
            for calls, (seconds, state) in sorted(found.items(), key=lambda item: item[1]):
                names = tuple(call.operator for call in calls)
                count[names] = count.get(names, 0) + 1
                if count[names] <= self.limits.kinds:
                    ranked.append((count[names], Way(seconds, calls, search.derivation(state))))
            self.known[alone] = tuple(way for _, way in sorted(ranked, key=lambda pair: pair[0]))
        return self.known[alone]


def _seconds(choice: tuple[Way, ...]) -> float:
    return sum(way.seconds for way in choice)


def _calls(program: Program) -> Calls:
    """The library operators that run *program*, with their attributes."""
    return tuple(e.via for e in program.equations if e.via and e.via.operator not in (EOPERATOR, VIEW))


def _akin(choice: tuple[Way, ...]) -> int:
    """How many pairs of calls of different expressions are one operator with at most one attribute that differs."""
    pairs = ((a, b) for one, other in combinations(choice, 2) for a in one.calls for b in other.calls)
    return sum(a.operator == b.operator and _differing(a, b) <= 1 for a, b in pairs)


def _differing(a: Instance, b: Instance) -> int:
    return len({name for name, _ in {*a.attributes} ^ {*b.attributes}})


def standalone(program: Program, n: int) -> Program:
    """Equation *n* as a program of its own, whose tensors are called by their positions.

    What is known at compile time counts as a weight.
    """
    constant = constants(program)
    scope = program.equations[n].scope
    to = {
        t.name: replace(t, name=f"{'w' if t.name in constant else 'x'}{k}", weight=t.name in constant)
        for k, t in enumerate(dict.fromkeys(tensors(scope)), 1)
    }
    return Program(tuple(to.values()), (Equation("y", map_tensors(scope, lambda t: to[t.name])),), ("y",))
