"""Variants of a subprogram: the search for them, and the finalists that are measured.

The cost model orders programs of one kind well and programs of different kinds badly, so the true best may not be among
the cheapest few: finalists are the cheapest of each kind first.  A kind is the library operators that a program calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf

from einnet_explore.analysis.counts import intensity
from einnet_explore.ir import EOperatorKind, Program, Table, accesses
from einnet_explore.pipeline.numerics import allowed_rules, derivation_level, is_within
from einnet_explore.rules import FEWER_PRODUCTS, RULES, Derivation
from einnet_explore.rules.eoperator_generation import COMPUTE_BOUND
from einnet_explore.strategies.closure import Limits, candidates, compute_bound
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.strategies.vertical_fusion import generate_rest, vertical_fusions
from einnet_explore.support.limits import MemoryWatch, WorkClock

EVERY_RULE = (*RULES, *FEWER_PRODUCTS)
"""Rules of the search, those that are equal only up to rounding among them: differences are measured."""

FIRST_VARIANT_TIME_FACTOR = 10
"""Multiple of its time that a search may take to its first variant."""

MAX_ESTIMATE_RATIO = 3.0
"""A variant is worth measuring if its estimate is below this multiple of the original's measured time."""

MAX_ESTIMATE_SPREAD = 10.0
"""A finalist's estimate is below this multiple of the cheapest variant's: a larger gap is no error of the model."""

MAX_FUSED = 4
"""Vertical fusions of a subprogram that become variants, the cheapest of each kind."""

NESTED_SUM_KINDS = (EOperatorKind.ROWS, EOperatorKind.ONE_PASS, EOperatorKind.REDUCTIONS)
"""The kinds of generated kernels that compute several reductions of one another."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A candidate derivation: estimated *seconds*, library operators that it calls, and a call to its *derivation*."""

    seconds: float
    kind: Hashable
    derivation: Callable[[], Derivation]
    tables: tuple[Table, ...] = ()
    """The coefficient tables that it reads; their shapes identify a bilinear algorithm."""


def search_subprogram(
    program: Program,
    cost: Cost,
    max_depth: int,
    seconds: float,
    numerics: str = "approximate",
    states: int | None = None,
    memory: MemoryWatch | None = None,
) -> tuple[list[tuple[float, int]], Search]:
    """Search *program*; return its executable programs as (estimated seconds, state), cheapest first, and the search.

    Only compute-bound equations are derived; the others are generated as they are.  Rules beyond the level *numerics*
    are not used.  The search ends after *seconds*, or after *states* whatever the clock says, or when *memory* is full.
    """
    heavy = {e.name for e in program.equations if intensity(e.scope) >= COMPUTE_BOUND}
    fixed = frozenset(e.name for e in program.equations if heavy and e.name not in heavy)
    made = Search(program, cost, Options(max_depth=max_depth, fixed=fixed, rules=allowed_rules(EVERY_RULE, numerics)))
    watch, memory = WorkClock(), memory or MemoryWatch()
    found: list[tuple[float, int]] = []
    for event in made.run():
        if isinstance(event, Found):
            found.append((event.seconds, event.state.id))
        if memory.full() or (states is not None and len(made.states) >= states):
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
    memory: MemoryWatch | None = None,
) -> tuple[list[Variant], int]:
    """Return the variants of a subprogram, cheapest first, and the number of states seen (0: not counted).

    Intermediates are computed inside their readers where that can be generated (vertical fusion).  Several
    compute-bound expressions are searched one by one and merged where possible (Algorithm 1).
    """
    also = fused_variants(program, cost, numerics)
    seen = 0
    if len(compute_bound(program)) > 1:
        limits = Limits(
            seconds=seconds if states is None else inf,
            max_depth=max_depth,
            rules=allowed_rules(EVERY_RULE, numerics),
            states=states,
            memory=memory or MemoryWatch(),
        )
        found = [_made(c.seconds, c.derivation) for c in candidates(program, cost, limits)]
    else:
        ranked, made = search_subprogram(program, cost, max_depth, seconds, numerics, states, memory)
        found = [_variant(s, made.states[state].program, partial(made.derivation, state)) for s, state in ranked]
        seen = len(made.states)
    return sorted((*found, *also), key=lambda v: v.seconds), seen


def fused_variants(program: Program, cost: Cost, numerics: str = "approximate") -> tuple[Variant, ...]:
    """Return the cheapest vertical fusion of *program* of each kind that leaves no equation open, cheapest first."""
    best: dict[Hashable, Variant] = {}
    for fused in vertical_fusions(program):
        done = generate_rest(fused)
        if done is not None and is_within(derivation_level(done), numerics):
            found = _made(cost(done.end)[0], done)
            best[found.kind] = min(found, best.get(found.kind, found), key=lambda v: v.seconds)
    return tuple(sorted(best.values(), key=lambda v: v.seconds))[:MAX_FUSED]


def _variant(seconds: float, program: Program, derivation: Callable[[], Derivation]) -> Variant:
    read = (a.source for e in program.equations for a in accesses(e.scope.body))
    return Variant(seconds, _kind(program), derivation, tuple(t for t in read if isinstance(t, Table)))


def _made(seconds: float, derivation: Derivation) -> Variant:
    return _variant(seconds, derivation.end, lambda: derivation)


def _kind(program: Program) -> Hashable:
    """Return the library operators and kernels of nested sums, and the number of sums with coefficients."""
    tables = sum(any(isinstance(a.source, Table) for a in accesses(e.scope.body)) for e in program.equations)
    vias = [e.via for e in program.equations if e.via]
    nested = [via.eoperator_kind for via in vias if via.eoperator_kind in NESTED_SUM_KINDS]
    return tables, *sorted([*(via.operator for via in vias if via.is_library_call), *nested])


def select_finalists(ranked: Iterable[Variant], most: int, below: float) -> tuple[Variant, ...]:
    """Return at most *most* of *ranked*, estimated below *below* seconds: the best of each kind, then the next best.

    Those far above the cheapest are left out: they would only take time to measure.
    """
    ranked = tuple(ranked)
    below = min(below, MAX_ESTIMATE_SPREAD * min((variant.seconds for variant in ranked), default=inf))
    promising = [variant for variant in ranked if variant.seconds < below]
    first: dict[Hashable, Variant] = {}
    for variant in promising:
        first.setdefault(variant.kind, variant)
    best = list(first.values())[:most]
    rest = [variant for variant in promising if all(variant is not b for b in best)]
    return tuple(sorted((*best, *rest[: most - len(best)]), key=lambda v: v.seconds))


def best_by_algorithm(ranked: Iterable[Variant], most: int, below: float) -> tuple[Variant, ...]:
    """Return the cheapest of *ranked* of each bilinear algorithm and of none, below *below* seconds, at most *most*.

    The estimate adds up equations, so it is wrong for programs that run in blocks; among programs of one algorithm it
    still orders them.
    """
    return tuple(group[0] for group in variants_by_algorithm(ranked, most, below))


def variants_by_algorithm(ranked: Iterable[Variant], most: int, below: float) -> tuple[tuple[Variant, ...], ...]:
    """Group *ranked* by algorithm, cheapest first: if the cheapest is no chain, the next may be one."""
    groups: dict[Hashable, list[Variant]] = {}
    for variant in ranked:
        if variant.seconds < below:
            groups.setdefault(tuple(sorted(t.shape for t in variant.tables)), []).append(variant)
    return tuple(map(tuple, list(groups.values())[:most]))
