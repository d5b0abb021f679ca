"""Searches of single expressions (EinNet §6.3): each distinct one is searched once, in instalments.

Derivations of different expressions are independent, and the cost of a program is the sum over its expressions.  So an
expression is searched as a program of its own, whose tensors are named by position, and its cheapest *variants* are put
together with those of the others.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from einnet_explore.analysis.equations import constant_tensors
from einnet_explore.ir import Equation, Instance, Program, map_tensors, tensors
from einnet_explore.rules import Derivation
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found, SearchEvent

Calls: TypeAlias = "tuple[Instance, ...]"

VARIANTS_PER_KIND = 6
"""Variants of an expression that are kept for the same library operators."""


@dataclass(frozen=True, slots=True)
class ExpressionVariant:
    """One variant of an expression: its cost, its library calls, its derivation."""

    seconds: float
    calls: Calls
    derivation: Derivation


@dataclass(slots=True)
class ExpressionSearch:
    """The search of one expression, in instalments, and the variants that it has found so far."""

    search: Search
    ended: bool = False
    _events: Generator[SearchEvent] = field(init=False)
    _found: dict[Calls, tuple[float, int]] = field(default_factory=dict)
    _variants: tuple[ExpressionVariant, ...] | None = None

    def __post_init__(self) -> None:
        self._events = (event for event in self.search.run())

    def advance(self, states: int) -> Iterable[SearchEvent]:
        """Continue the search until it has *states* states or ends; yield its events."""
        while not self.ended and len(self.search.states) < states:
            event = next(self._events, None)
            self.ended = event is None
            if isinstance(event, Found):
                calls = library_calls(event.state.program)
                self._found[calls] = min(self._found.get(calls, (float("inf"), 0)), (event.seconds, event.state.id))
                self._variants = None
            if event is not None:
                yield event

    def variants(self) -> tuple[ExpressionVariant, ...]:
        """The cheapest variants: the best of each choice of operators first, then others of these."""
        if self._variants is None:
            ranked: list[tuple[int, ExpressionVariant]] = []
            count: dict[tuple[str, ...], int] = {}
            for calls, (seconds, state) in sorted(self._found.items(), key=lambda item: item[1]):
                names = tuple(call.operator for call in calls)
                count[names] = count.get(names, 0) + 1
                if count[names] <= VARIANTS_PER_KIND:
                    ranked.append((count[names], ExpressionVariant(seconds, calls, self.search.derivation(state))))
            self._variants = tuple(variant for _, variant in sorted(ranked, key=lambda pair: pair[0]))
        return self._variants


def library_calls(program: Program) -> Calls:
    """The library calls of *program*, with their attributes."""
    return tuple(e.via for e in program.equations if e.via and e.via.is_library_call)


def operands(program: Program, n: int) -> tuple[str, ...]:
    """The tensors that equation *n* reads, in the order of the inputs of ``standalone``."""
    return tuple(dict.fromkeys(t.name for t in tensors(program.equations[n].scope)))


def standalone(program: Program, n: int) -> Program:
    """Return equation *n* as a program of its own, with tensors named by position.

    A tensor that is known at compile time is a weight.
    """
    constant = constant_tensors(program)
    scope = program.equations[n].scope
    to = {
        t.name: replace(t, name=f"{'w' if t.name in constant else 'x'}{k}", weight=t.name in constant)
        for k, t in enumerate(dict.fromkeys(tensors(scope)), 1)
    }
    return Program(tuple(to.values()), (Equation("y", map_tensors(scope, lambda t: to[t.name])),), ("y",))
