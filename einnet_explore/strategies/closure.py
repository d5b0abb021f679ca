"""Algorithm 1 (EinNet §6.3): the closure of a program under inter-expression rules, with a search of each member.

.. code-block:: text

    Q = {E0};  for E in Q:  Q += r(E) for every rule r between expressions;  Q += search(E)

Rules between expressions also apply to results of the searches: Fig. 3 and Fig. 15 merge matrix products that
convolutions became.  Derivations of different expressions are independent, and the cost of a program is the sum over
its expressions.  So equal expressions are searched once, and the costs of their variants are added.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, product
from typing import TypeAlias

import numpy as np

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.counts import intensity
from einnet_explore.analysis.equations import constant_tensors
from einnet_explore.ir import Equation, Instance, Program, map_tensors, tensors
from einnet_explore.rules import BATCH_MERGING, EXPRESSION_SPLITTING, RULES, SIBLING_MERGING, Derivation, Match, Rule
from einnet_explore.rules.eoperator_generation import COMPUTE_BOUND
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.support.limits import MemoryWatch, WorkClock

Calls: TypeAlias = "tuple[Instance, ...]"

MAX_CHOICES = 20_000
"""Up to so many choices of ways for the expressions of a program are looked at, however many expressions there are."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of Algorithm 1.

    *members*: programs of a closure; *seconds*: for all searches of expressions, and again for merging their results;
    *kinds*: variants of an expression kept for the same operators; *together*: combinations of variants that are tried;
    *rules*: the rules of the searches; *states*: of the search of each expression, None for any number.
    """

    members: int = 12
    seconds: float = 4.0
    kinds: int = 6
    together: int = 24
    max_depth: int = 7
    rules: tuple[Rule[object], ...] = RULES
    states: int | None = None
    memory: MemoryWatch = field(default_factory=MemoryWatch, compare=False)


@dataclass(frozen=True, slots=True)
class ExpressionVariant:
    """One variant of an expression: its cost, its library calls, its derivation."""

    seconds: float
    calls: Calls
    derivation: Derivation


def compute_bound(program: Program) -> tuple[int, ...]:
    """Return the numbers of the equations worth a search: compute-bound and not instantiated."""
    return tuple(n for n, e in enumerate(program.equations) if e.via is None and intensity(e.scope) >= COMPUTE_BOUND)


@dataclass(slots=True)
class ExpressionSearches:
    """Searches of single expressions, each run once, and programs combined from their results."""

    cost: Cost
    limits: Limits
    until: float = 0.0
    seconds: float = 0.0
    known: dict[Program, tuple[ExpressionVariant, ...]] = field(default_factory=dict)
    watch: WorkClock = field(default_factory=WorkClock)

    def __post_init__(self) -> None:
        self.until = self.watch.seconds + self.limits.seconds

    def share(self, expressions: tuple[int, ...], part: float = 0.5) -> None:
        """Divide *part* of the remaining time among *expressions*: the first members of a closure are the best."""
        left = max(0.0, self.until - self.watch.seconds) * part
        self.seconds = left / max(1, len(expressions))

    @property
    def late(self) -> bool:
        """Whether the time for searches and for merging their results is over."""
        return self.watch.seconds > self.until + self.limits.seconds

    def combined(self, start: Derivation) -> Iterable[Derivation]:
        """*start* with its compute-bound expressions run, the rest generated; the cheapest choice first.

        Then come the choices whose calls may merge: the more of them the sooner.
        """
        program = start.end
        numbers = compute_bound(program)
        for choice in _ranked([self.ways(program, n) for n in numbers], self.limits.together):
            derivation = start
            # From the last on: what an expression becomes stands where it stood.
            for n, way in sorted(zip(numbers, choice, strict=True), key=lambda pair: -pair[0]):
                for step in way.derivation.steps:
                    at = (step.match.at[0] + n, *step.match.at[1:])
                    derivation = derivation.then(replace(step.match, at=at))
            if (done := self.finished(derivation)) is not None:
                yield done

    def finished(self, derivation: Derivation) -> Derivation | None:
        """Return *derivation* with the remaining equations made eOperators and views; None if one is refused."""
        search = Search(derivation.end, self.cost, Options(max_depth=0, ahead=0))
        for event in search.run():
            if isinstance(event, Found):
                return Derivation(derivation.start, (*derivation.steps, *search.derivation(event.state.id).steps))
        return None

    def ways(self, program: Program, n: int) -> tuple[ExpressionVariant, ...]:
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
                if self.limits.memory.full() or (states is not None and len(search.states) >= states):
                    break
                if found and self.watch.seconds > until:
                    break
            ranked: list[tuple[int, ExpressionVariant]] = []
            count: dict[tuple[str, ...], int] = {}
            for calls, (seconds, state) in sorted(found.items(), key=lambda item: item[1]):
                names = tuple(call.operator for call in calls)
                count[names] = count.get(names, 0) + 1
                if count[names] <= self.limits.kinds:
                    ranked.append((count[names], ExpressionVariant(seconds, calls, search.derivation(state))))
            self.known[alone] = tuple(way for _, way in sorted(ranked, key=lambda pair: pair[0]))
        return self.known[alone]


def _ranked(ways: Sequence[tuple[ExpressionVariant, ...]], together: int) -> Iterable[tuple[ExpressionVariant, ...]]:
    """The cheapest choice of one of *ways* for each expression, then the *together* whose calls may merge most."""
    some = _limit_choices(ways)
    choices = np.array(list(product(*(range(len(each)) for each in some))), dtype=np.intp)
    if not len(choices):
        return
    seconds, merging = np.zeros(len(choices)), np.zeros(len(choices), dtype=np.int64)
    for n, each in enumerate(some):
        seconds += np.array([way.seconds for way in each])[choices[:, n]]
    for a, b in combinations(range(len(some)), 2):
        akin = np.array([[_mergeable_pairs(one.calls, other.calls) for other in some[b]] for one in some[a]])
        merging += akin[choices[:, a], choices[:, b]]
    most = [k for k in np.lexsort((seconds, -merging)) if merging[k]][:together]
    for k in dict.fromkeys((int(np.argmin(seconds)), *map(int, most))):
        yield tuple(each[w] for each, w in zip(some, choices[k], strict=True))


def _limit_choices(ways: Sequence[tuple[ExpressionVariant, ...]]) -> list[tuple[ExpressionVariant, ...]]:
    """Return the cheapest *ways* of each expression, at most ``MAX_CHOICES`` combinations in all.

    With many expressions, two variants of each would be too many: then only the first expressions have two.
    """
    few, left = max(2, int(MAX_CHOICES ** (1 / max(1, len(ways))))), MAX_CHOICES
    some = list[tuple[ExpressionVariant, ...]]()
    for each in ways:
        some.append(each[: max(1, min(few, left))])
        left //= max(1, len(some[-1]))
    return some


def _calls(program: Program) -> Calls:
    """The library calls of *program*, with their attributes."""
    return tuple(e.via for e in program.equations if e.via and e.via.is_library_call)


def _mergeable_pairs(one: Calls, other: Calls) -> int:
    """Count the pairs of calls of two expressions that are one operator with at most one different attribute."""
    return sum(a.operator == b.operator and _differing(a, b) <= 1 for a, b in product(one, other))


def _differing(a: Instance, b: Instance) -> int:
    return len({name for name, _ in {*a.attributes} ^ {*b.attributes}})


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


MERGES: tuple[Rule[object], ...] = (SIBLING_MERGING, BATCH_MERGING)


def merge_closure(start: Derivation, rules: tuple[Rule[object], ...] = MERGES, most: int = 12) -> Iterable[Derivation]:
    """Yield *start* and programs that *rules* make of it, breadth first, at most *most*, none twice."""
    seen: set[Hashable] = {program_key(start.end)}
    queue = [start]
    for member in queue:
        yield member
        if len(queue) >= most:
            continue
        for match in matches_between(member.end, rules):
            if len(queue) >= most:
                break
            longer = member.then(match)
            key = program_key(longer.end)
            if key not in seen:
                seen.add(key)
                queue.append(longer)


def matches_between(program: Program, rules: Iterable[Rule[object]]) -> Iterable[Match[object]]:
    """Yield the legal matches of *rules* at whole equations, instantiated ones included."""
    for rule in rules:
        for n in range(len(program.equations)):
            yield from rule.matches(program, (n,))


def variants(program: Program, cost: Cost, limits: Limits | None = None) -> Iterable[Derivation]:
    """Yield the members of Q: *program*, its closure, then programs that searching and merging make of these.

    Members of the closure may still be searched; members from the searches are fully instantiated.
    """
    yield from _members(program, ExpressionSearches(cost, limits or Limits()))


def candidates(program: Program, cost: Cost, limits: Limits | None = None) -> Iterable[Candidate]:
    """Run Algorithm 1 and yield candidates, each with its derivation from *program* and its cost."""
    pieces = ExpressionSearches(cost, limits or Limits())
    for member in _members(program, pieces):
        pieces.share(compute_bound(member.end))
        for derivation in pieces.combined(member):
            seconds, how = cost(derivation.end)
            yield Candidate(0, derivation, seconds, how)


def _members(program: Program, pieces: ExpressionSearches) -> Iterable[Derivation]:
    seen: set[Hashable] = set()
    members: list[Derivation] = []
    for member in _expressions(program, pieces.limits):
        if (key := program_key(member.end)) not in seen:
            seen.add(key)
            members.append(member)
            yield member
    several = [member for member in members if len(compute_bound(member.end)) > 1]
    for n, member in enumerate(several):
        pieces.share(compute_bound(member.end), part=1.0 if n == len(several) - 1 else 0.5)
        for done in _merged_on(member, pieces):
            if pieces.late:
                return
            if (key := program_key(done.end)) not in seen:
                seen.add(key)
                yield done


def _merged_on(member: Derivation, pieces: ExpressionSearches) -> Iterable[Derivation]:
    """Yield the best variant of *member*, and the results of merging the library calls of its variants."""
    for n, whole in enumerate(pieces.combined(member)):
        if not n:
            yield whole
        elif pieces.late:  # looking for what merges takes its time, too, where there are many expressions
            return
        for merged in islice(merge_closure(whole, most=pieces.limits.members), 1, None):
            yield from islice(pieces.combined(merged), 1)


def _expressions(program: Program, limits: Limits) -> Iterable[Derivation]:
    """Yield the closure under merging, then every split of one of the expressions."""
    start = Derivation(program)
    yield from merge_closure(start, most=limits.members)
    for match in islice(matches_between(program, (EXPRESSION_SPLITTING,)), limits.members):
        yield start.then(match)


__all__ = [
    "MERGES",
    "Limits",
    "candidates",
    "compute_bound",
    "matches_between",
    "merge_closure",
    "variants",
]
