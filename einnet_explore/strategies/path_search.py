r"""A derivation from one program to another: a search from both ends.

Every rule is an equality, so two derivations that meet at one program, up to the names of iterators and intermediate
tensors, are one derivation: the steps of the second are taken backwards (the rule ``inverse``).

.. code-block:: text

    a table of known programs by canonical key, and the derivation from each end
    until they meet: continue the program with the lowest rank, with each match of each rule, also cleaned up
    rank: its steps, and how much of it and of the other end is not in common (scopes, reads, functions, constants)
    then, for a number of programs, look for a shorter way

From the ends themselves, the factorings and simplifications of the program are followed as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from time import monotonic

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.equivalence.program_diff import require_common_interface
from einnet_explore.ir import Access, Apply, Const, Index, Program, Tensor, scopes, walk_scalar
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules import ALL_RULES, INVERSE, Derivation, Rule
from einnet_explore.rules.base import BAD_STEP_ERRORS, places
from einnet_explore.rules.inverse import backwards
from einnet_explore.strategies.factoring import factorings, multiplied_out
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.moves import clean
from einnet_explore.strategies.simplification import simplifications

MAX_MATCHES = 24
"""Matches of one rule at one place that are followed."""

DISTANCE_WEIGHT = 0.6
"""What one part that is not in common counts, in steps."""

MORE_PROGRAMS = 500
"""After the first path, the search reaches as many programs again as that took, and so many more.

The limit is no time, so the result does not depend on what else runs.
"""

Features = Counter[object]


class PathSearch:
    """A search from both *ends*; ``best`` is the shortest derivation from the first to the second so far."""

    def __init__(self, before: Program, after: Program) -> None:
        require_common_interface(before, after)
        open_programs = all(equation.via is None for program in (before, after) for equation in program.equations)
        self.rules = tuple(rule for rule in ALL_RULES if not (open_programs and _instantiates(rule)))
        if not open_programs:
            self.rules = (*self.rules, matching_rule(OPERATORS))
        self.ends = (_End(0, _features(after)), _End(1, _features(before)))
        self.reached: dict[Hashable, list[Derivation | None]] = {}
        """The shortest derivation to each program from either end; keys are large, so one table is looked up once."""
        self.best: Derivation | None = None
        for end, start in zip(self.ends, (before, after), strict=True):
            self._reach(end, Derivation(start))

    @property
    def known(self) -> tuple[int, int]:
        """The number of programs that are known from each end."""
        first, second = self.ends
        return first.known, second.known

    @property
    def complete(self) -> bool:
        """Whether no program is left to be continued."""
        return not any(end.waiting for end in self.ends)

    def run(self) -> Generator[Derivation | None, None, None]:
        """Yield ``best`` after each program that is reached; ends when no program is left to be continued."""
        while waiting := [end for end in self.ends if end.waiting]:
            end = min(waiting, key=lambda end: end.known)
            _, _, derivation = heappop(end.waiting)
            for longer in _continued(derivation, self.rules):
                for steps in range(len(derivation.steps) + 1, len(longer.steps) + 1):
                    self._reach(end, Derivation(longer.start, longer.steps[:steps]))
                yield self.best

    def _reach(self, end: _End, derivation: Derivation) -> None:
        """Note that *derivation* leads from *end* to its last program, unless a shorter one does."""
        shortest = self.reached.setdefault(program_key(derivation.end), [None, None])
        before = shortest[end.side]
        if before is not None and len(before.steps) <= len(derivation.steps):
            return
        end.known += before is None
        shortest[end.side] = derivation
        end.add(derivation)
        there, back = shortest
        if there is None or back is None:
            return
        if self.best is None or len(there.steps) + len(back.steps) < len(self.best.steps):
            for step in reversed(back.steps):
                there = there.then(backwards(INVERSE, step))
            self.best = there


@dataclass(eq=False)
class _End:
    """An end: the programs *known* from it are counted, and those to be continued wait by rank."""

    side: int
    goal: Features
    known: int = 0
    waiting: list[tuple[float, int, Derivation]] = field(default_factory=list)
    numbers: count[int] = field(default_factory=count)

    def add(self, derivation: Derivation) -> None:
        """Let the last program of *derivation* wait to be continued."""
        found = _features(derivation.end)
        distance = (found - self.goal).total() + (self.goal - found).total()
        heappush(self.waiting, (len(derivation.steps) + DISTANCE_WEIGHT * distance, next(self.numbers), derivation))


def run_for(search: PathSearch, budget: float) -> Derivation | None:
    """Continue *search* for at most *budget* seconds, or until Ctrl-C; return its best derivation."""
    stop, enough, found = monotonic() + budget, inf, search.best
    with suppress(KeyboardInterrupt):
        for reached, best in enumerate(search.run() if found is None else (), start=1):
            if best is not found:
                found, enough = best, min(enough, MORE_PROGRAMS + 2 * reached)
            if reached > enough or monotonic() > stop:
                break
    return search.best


def _instantiates(rule: Rule[object]) -> bool:
    return rule.name.endswith("_generation") or rule.name == "storage_layout"


def _continued(derivation: Derivation, rules: tuple[Rule[object], ...]) -> Iterable[Derivation]:
    """Yield *derivation* with one more step each time, also cleaned up; from an end, also the steps of strategies."""
    program = derivation.end
    if not derivation.steps:
        yield from multiplied_out(program)
        yield from factorings(program)
        yield from simplifications(program)
    for at, _ in places(program):
        for rule in rules:
            for match in islice(rule.matches(program, at), MAX_MATCHES):
                try:
                    longer = derivation.then(match)
                except BAD_STEP_ERRORS:
                    continue
                yield longer
                if clean_ups := clean(longer.end, final=True)[0]:
                    for clean_up in clean_ups:
                        longer = longer.then(clean_up)
                    yield longer


def _features(program: Program) -> Features:
    """Count the equations, scopes, reads, functions and constants of *program*, without names of its own."""
    given = {t.name for t in program.inputs}
    found: Features = Counter({"equations": len(program.equations)})
    for equation in program.equations:
        for _, scope in scopes(equation.scope):
            found["traversals", tuple(sorted(x.extent for x in scope.traversals if x.extent > 1))] += 1
            found[scope.reduce, tuple(sorted(x.extent for x in scope.summations))] += bool(scope.summations)
            for part in walk_scalar(scope.body):
                match part:
                    case Access(source, index):
                        name = source.name if isinstance(source, Tensor) and source.name in given else ""
                        found["read", name, tuple(map(_form, index))] += 1
                    case Apply(op, args):
                        found[op, len(args)] += 1
                    case Const(value):
                        found[value] += 1
    return found


def _form(index: Index) -> object:
    """Return the extents and coefficients of *index*, without names."""
    return tuple(sorted((x.extent, abs(index.coefficient(x))) for x in index.iterators))
