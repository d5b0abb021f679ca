"""Which candidates are worth measuring: the cheapest by estimate, of different kinds first.

The estimate orders programs of one kind well and programs of different kinds badly, so the true best may not be among
the cheapest few.  A kind is the library operators that a program calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf

from einnet_explore.analysis.counts import intensity
from einnet_explore.ir import EOPERATOR, VIEW, Program, Table, accesses
from einnet_explore.pipeline.numerics import allowed_rules, derivation_level, is_within
from einnet_explore.pipeline.row_subprograms import derive_by_rows, derive_in_one_kernel
from einnet_explore.rules import FEWER_PRODUCTS, RULES, Derivation
from einnet_explore.rules.eoperator_generation import COMPUTE_BOUND
from einnet_explore.strategies.closure import Limits, candidates, compute_bound
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.support.limits import ROOM, Watch

EVERY_RULE = (*RULES, *FEWER_PRODUCTS)
"""What is equal up to rounding may replace a subprogram: how much it differs is measured."""

FIRST_VARIANT_TIME_FACTOR = 10
"""How many times as long as it should a search may take to its first candidate."""

MAX_ESTIMATE_RATIO = 3.0
"""A candidate is worth measuring if its estimate is below so many times the original's measured time."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A candidate: its estimated *seconds*, the library operators that it calls, and what gives its *derivation*."""

    seconds: float
    kind: Hashable
    derivation: Callable[[], Derivation]
    tables: tuple[Table, ...] = ()
    """The coefficients that it reads: which algorithm takes the place of which sums."""


def search_subprogram(
    program: Program,
    cost: Cost,
    max_depth: int,
    seconds: float,
    numerics: str = "approximate",
    states: int | None = None,
) -> tuple[list[tuple[float, int]], Search]:
    """The search, and its executable programs as (estimated seconds, state), cheapest first.

    Choices are made on the compute-bound equations; the others are generated as they are.  Rules that do more to the
    last digits than *numerics* says are not used.  With *states* it ends after so many of them, whatever the clock
    says; it also ends where there is no room (``room``).
    """
    heavy = {e.name for e in program.equations if intensity(e.scope) >= COMPUTE_BOUND}
    fixed = frozenset(e.name for e in program.equations if heavy and e.name not in heavy)
    made = Search(program, cost, Options(max_depth=max_depth, fixed=fixed, rules=allowed_rules(EVERY_RULE, numerics)))
    watch = Watch()
    found: list[tuple[float, int]] = []
    for event in made.run():
        if isinstance(event, Found):
            found.append((event.seconds, event.state.id))
        if ROOM.full() or (states is not None and len(made.states) >= states):
            break
        # On a busy machine the time may be over before there is anything at all.
        if states is None and watch.seconds > (seconds if found else FIRST_VARIANT_TIME_FACTOR * seconds):
            break
    return sorted(found), made


def find_variants(
    program: Program,
    cost: Cost,
    max_depth: int,
    seconds: float,
    numerics: str = "approximate",
    states: int | None = None,
) -> tuple[list[Variant], int]:
    """The candidates of a subprogram, cheapest first, and how many states were seen (0: they were not counted).

    Several compute-bound expressions are searched one by one and merged where that can be (Algorithm 1).  Rows that
    need not be written between two contractions are not held against forms that write them.
    """
    if (rows := derive_by_rows(program)) is not None and is_within(derivation_level(rows), numerics):
        return [_made(cost(rows.end)[0], rows)], 0
    whole = derive_in_one_kernel(program)
    also = (
        [_made(cost(whole.end)[0], whole)] if whole is not None and is_within(derivation_level(whole), numerics) else []
    )
    seen = 0
    if len(compute_bound(program)) > 1:
        limits = Limits(
            seconds=seconds if states is None else inf,
            max_depth=max_depth,
            rules=allowed_rules(EVERY_RULE, numerics),
            states=states,
        )
        found = [_made(c.seconds, c.derivation) for c in candidates(program, cost, limits)]
    else:
        ranked, made = search_subprogram(program, cost, max_depth, seconds, numerics, states)
        found = [_entry(s, made.states[state].program, partial(made.derivation, state)) for s, state in ranked]
        seen = len(made.states)
    return sorted((*found, *also), key=lambda entry: entry.seconds), seen


def _entry(seconds: float, program: Program, derivation: Callable[[], Derivation]) -> Variant:
    read = (a.source for e in program.equations for a in accesses(e.scope.body))
    return Variant(seconds, _kind(program), derivation, tuple(t for t in read if isinstance(t, Table)))


def _made(seconds: float, derivation: Derivation) -> Variant:
    return _entry(seconds, derivation.end, lambda: derivation)


def _kind(program: Program) -> Hashable:
    """The library operators that *program* calls, each as often as it does, and how many sums have coefficients."""
    vias = [e.via.operator for e in program.equations if e.via]
    tables = sum(any(isinstance(a.source, Table) for a in accesses(e.scope.body)) for e in program.equations)
    return tables, *sorted(name for name in vias if name not in (EOPERATOR, VIEW))


def select_finalists(ranked: Iterable[Variant], most: int, below: float) -> tuple[Variant, ...]:
    """At most *most* of *ranked* estimated below *below* seconds: the best of each kind, then the next best."""
    promising = [entry for entry in ranked if entry.seconds < below]
    first: dict[Hashable, Variant] = {}
    for entry in promising:
        first.setdefault(entry.kind, entry)
    best = list(first.values())[:most]
    rest = [entry for entry in promising if all(entry is not b for b in best)]
    return tuple(sorted((*best, *rest[: most - len(best)]), key=lambda entry: entry.seconds))


def best_by_algorithm(ranked: Iterable[Variant], most: int, below: float) -> tuple[Variant, ...]:
    """The cheapest of *ranked* of each bilinear algorithm and of none, estimated below *below* seconds, at most *most*.

    Programs that are run in blocks do not take the time that was estimated for their equations one by one, but of those
    with the same algorithm the cheapest is the cheapest.
    """
    return tuple(group[0] for group in variants_by_algorithm(ranked, most, below))


def variants_by_algorithm(ranked: Iterable[Variant], most: int, below: float) -> tuple[tuple[Variant, ...], ...]:
    """All entries of each algorithm of ``algorithms``, cheapest first: where that is no chain, the next may be one."""
    groups: dict[Hashable, list[Variant]] = {}
    for entry in ranked:
        if entry.seconds < below:
            groups.setdefault(tuple(sorted(t.shape for t in entry.tables)), []).append(entry)
    return tuple(map(tuple, list(groups.values())[:most]))
