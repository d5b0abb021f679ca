"""Variants of one subprogram: they are searched, and finalists are selected (EinNet §6.3).

The cost model orders programs of one kind well and programs of different kinds badly, so the true best may not be among
the cheapest few: finalists are the cheapest of each kind first.  A kind is the library operators that a program calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from math import inf
from typing import TypeAlias

from einnet_explore.analysis.counts import is_compute_bound
from einnet_explore.ir import EOperatorKind, Program, Table, accesses, scopes
from einnet_explore.pipeline.fusion import chain_in_blocks, fuse_eoperators
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.rules import FEWER_PRODUCTS, RULES, Derivation
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import BETWEEN, Cost, Options
from einnet_explore.strategies.program_search import ProgramSearch, search_program
from einnet_explore.strategies.rounding_levels import allowed_rules
from einnet_explore.support.limits import MemoryWatch, WorkClock

EVERY_RULE = (*RULES, *FEWER_PRODUCTS)
"""Rules of the search, those that are equal only up to rounding among them: differences are measured."""

FIRST_VARIANT_TIME_FACTOR = 10
"""Multiple of its time that a search may take to its first variant."""

MAX_ESTIMATE_SPREAD = 10.0
"""A finalist's estimate is below this multiple of the cheapest variant's: a larger gap is no error of the model."""

TableShapes: TypeAlias = "tuple[tuple[int, ...], ...]"
"""Shapes of coefficient tables, in order, each as often as its table is read."""

NESTED_SUM_KINDS = (EOperatorKind.ROWS, EOperatorKind.ONE_PASS, EOperatorKind.REDUCTIONS)
"""The kinds of generated kernels that compute several reductions of one another."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A candidate derivation: estimated *seconds*, library operators that it calls, and a call to its *derivation*."""

    seconds: float
    kind: Hashable
    derivation: Callable[[], Derivation]
    algorithm: TableShapes = ()
    """Its ``bilinear_algorithm``."""
    is_generated: bool = True
    """True if it has generated kernels only, and calls no library."""


@dataclass(frozen=True, slots=True)
class FoundVariants:
    """The *variants* of a search, cheapest first, and the number of *states* that it saw (0: not counted).

    If *memory_short*, a memory limit ended the search.
    """

    variants: list[Variant]
    states: int
    memory_short: bool = False


def search_subprogram(
    program: Program, cost: Cost, settings: Settings, memory: MemoryWatch
) -> tuple[list[tuple[float, int]], Search | ProgramSearch]:
    """Search *program*; return its executable programs as (estimated seconds, state), cheapest first, and the search.

    Only compute-bound equations are derived; the others are generated as they are.  Rules beyond the numerics level of
    *settings* are not used.  The search ends after its states (of each expression) or else its seconds (twice as many
    for several expressions, whose results are also merged), or when *memory* is full.
    """
    rules, between = (allowed_rules(known, settings.numerics) for known in (EVERY_RULE, BETWEEN))
    options = Options(max_depth=settings.max_depth, rules=rules, between=between)
    made = search_program(program, cost, options, fuse_eoperators, settings.states)
    heavy = {e.name for e in program.equations if is_compute_bound(e.scope)}
    if isinstance(made, Search) and heavy:
        fixed = frozenset(e.name for e in program.equations if e.name not in heavy)
        made = Search(program, cost, replace(options, fixed=fixed))
    cost(program)  # a machine's rates are measured at the first estimate: that is no part of the search
    watch, states = WorkClock(), settings.states
    several = isinstance(made, ProgramSearch)
    seconds = settings.seconds * (2 if several else 1)
    found: list[tuple[float, int]] = []
    for event in made.run():
        if isinstance(event, Found):
            found.append((event.seconds, event.state.id))
        if memory.full() or (states is not None and not several and made.size >= states):
            break
        # On a busy machine the time may be over before there is anything at all.
        if states is None and watch.seconds > (seconds if found else FIRST_VARIANT_TIME_FACTOR * seconds):
            break
    return sorted(found), made


def find_variants(program: Program, cost: Cost, settings: Settings) -> FoundVariants:
    """Return the variants of a subprogram that a search with the effort of *settings* finds.

    Several expressions are searched one by one, merged, factored across and fused vertically (Algorithm 1).
    """
    memory = MemoryWatch()
    ranked, made = search_subprogram(program, cost, settings, memory)
    found = [variant_of(s, made.states[state].program, partial(made.derivation, state)) for s, state in ranked]
    return FoundVariants(sorted(found, key=lambda v: v.seconds), made.size, memory.short)


def variant_of(seconds: float, program: Program, derivation: Callable[[], Derivation]) -> Variant:
    is_generated = not any(e.via and e.via.is_library_call for e in program.equations)
    return Variant(seconds, program_kind(program), derivation, bilinear_algorithm(program), is_generated)


def bilinear_algorithm(program: Program) -> TableShapes:
    """Return what identifies the bilinear algorithm of *program*: the shapes of the tables that it reads."""
    every = (a.source for e in program.equations for _, scope in scopes(e.scope) for a in accesses(scope.body))
    return tuple(sorted(source.shape for source in every if isinstance(source, Table)))


def program_kind(program: Program) -> Hashable:
    """Return the library operators and kernels of nested sums, and the number of sums with coefficients."""
    tables = sum(any(isinstance(a.source, Table) for a in accesses(e.scope.body)) for e in program.equations)
    vias = [e.via for e in program.equations if e.via]
    nested = [via.eoperator_kind for via in vias if via.eoperator_kind in NESTED_SUM_KINDS]
    return tables, *sorted([*(via.operator for via in vias if via.is_library_call), *nested])


def select_finalists(ranked: Iterable[Variant], most: int, below: float) -> tuple[Variant, ...]:
    """Return at most *most* of *ranked*, estimated below *below* seconds: the best of each kind, then the next best.

    The cheapest of generated kernels only is among them: an estimate adds up equations, some of them as they were
    measured, but the compiled program may compute element-wise ones in the kernel of the product before.  Those far
    above the cheapest are left out: they would only take time to measure.
    """
    ranked = tuple(ranked)
    below = min(below, MAX_ESTIMATE_SPREAD * min((variant.seconds for variant in ranked), default=inf))
    promising = [variant for variant in ranked if variant.seconds < below]
    generated = next((variant for variant in promising if variant.is_generated), None)
    first = {generated.kind: generated} if generated else dict[Hashable, Variant]()
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
            groups.setdefault(variant.algorithm, []).append(variant)
    return tuple(map(tuple, list(groups.values())[:most]))


MAX_CHAIN_VARIANTS = 4
"""Variants of one algorithm that are tried as a kernel in blocks."""

MAX_CHAIN_ALGORITHMS = 12
"""Algorithms of which variants are tried as a kernel in blocks: the cheapest by equation are often none."""


def chain_groups(ranked: Iterable[Variant], settings: Settings, below: float) -> tuple[tuple[Variant, ...], ...]:
    """Group the variants of *ranked*, estimated *below* so many seconds, that are tried as chains in blocks.

    Standard operators do not run in blocks: for ONNX Runtime there are no groups.
    """
    if settings.runtime != "plan":
        return ()
    return tuple(group[:MAX_CHAIN_VARIANTS] for group in variants_by_algorithm(ranked, MAX_CHAIN_ALGORITHMS, below))


def requested_variants(ranked: Sequence[Variant], settings: Settings, below: float) -> Iterable[Variant]:
    """Return those of *ranked* whose derivations a task may need."""
    return chain(select_finalists(ranked, settings.finalists, below), *chain_groups(ranked, settings, below))


def blocked_forms(groups: Iterable[Iterable[Variant]], most: int) -> tuple[Derivation, ...]:
    """Return the cheapest variant of each of *groups* that is a chain, as a kernel in blocks, of *most* groups."""
    forms = ((chain_in_blocks(fuse_eoperators(variant.derivation())) for variant in group) for group in groups)
    return tuple(islice((made for group in forms if (made := next(filter(None, group), None)) is not None), most))
