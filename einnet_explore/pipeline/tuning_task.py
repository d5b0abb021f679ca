"""Tuning of one subprogram: variants are searched, and finalists are measured against the original (EinNet §6.3).

The cost model orders programs of one kind well and programs of different kinds badly, so the true best may not be among
the cheapest few: finalists are the cheapest of each kind first.  A kind is the library operators that a program calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice
from math import inf, prod
from time import perf_counter

from einnet_explore.analysis.counts import ELEMENT_BYTES, compute_bound, is_compute_bound
from einnet_explore.analysis.equations import weight_only
from einnet_explore.analysis.patterns import extents, pattern
from einnet_explore.codegen.wide_values import rounds_computed_values, rounds_exactly
from einnet_explore.ir import VIEW, EOperatorKind, Program, Table, accesses, scopes
from einnet_explore.pipeline.fusion import chain_cycles, chain_in_blocks, fuse_eoperators
from einnet_explore.pipeline.numerics import level_report, measure_errors
from einnet_explore.pipeline.rounded_products import round_products
from einnet_explore.pipeline.tuning_context import OUT_OF_MEMORY, OriginalOpener, OriginalRun, Settings, TuningContext
from einnet_explore.pipeline.vector_layouts import chain_in_vectors, is_fixed_chain, products_in_vectors
from einnet_explore.rules import FEWER_PRODUCTS, RULES, Derivation
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Arrays
from einnet_explore.runtime.implementation_choice import ProfileStore, clock_rate, session_overhead, without_overhead
from einnet_explore.runtime.measurement import (
    LONG_CALL_SECONDS,
    MAX_FIRST_RUN_RATIO,
    displacing_read,
    own_seconds,
    sample_seconds,
    settle_seconds,
    stop_after,
    time_calls,
    times_faster,
)
from einnet_explore.runtime.profile_store import ProfileKey, profile_key
from einnet_explore.runtime.program import BoundProgram, CompiledProgram
from einnet_explore.strategies.candidate import replay, replay_at_other_sizes, steps_to_json
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import BETWEEN, Cost, Options
from einnet_explore.strategies.program_search import ProgramSearch, search_program
from einnet_explore.strategies.rounding_levels import allowed_rules
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.json_values import JsonObject, as_integer, as_number, as_object
from einnet_explore.support.limits import MemoryWatch, WorkClock, available_cores, return_free_memory
from einnet_explore.support.wording import count_noun

EVERY_RULE = (*RULES, *FEWER_PRODUCTS)
"""Rules of the search, those that are equal only up to rounding among them: differences are measured."""

FIRST_VARIANT_TIME_FACTOR = 10
"""Multiple of its time that a search may take to its first variant."""

MAX_ESTIMATE_RATIO = 3.0
"""A variant is worth measuring if its estimate is below this multiple of the original's measured time."""

MAX_ESTIMATE_SPREAD = 10.0
"""A finalist's estimate is below this multiple of the cheapest variant's: a larger gap is no error of the model."""

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
    found = [_variant(s, made.states[state].program, partial(made.derivation, state)) for s, state in ranked]
    return FoundVariants(sorted(found, key=lambda v: v.seconds), made.size, memory.short)


def _variant(seconds: float, program: Program, derivation: Callable[[], Derivation]) -> Variant:
    is_generated = not any(e.via and e.via.is_library_call for e in program.equations)
    return Variant(seconds, _kind(program), derivation, _tables(program), is_generated)


def _tables(program: Program) -> tuple[Table, ...]:
    """Return the coefficient tables that *program* reads, each as often as it does."""
    every = (a.source for e in program.equations for _, scope in scopes(e.scope) for a in accesses(scope.body))
    return tuple(source for source in every if isinstance(source, Table))


def _algorithm(tables: Iterable[Table]) -> Hashable:
    """Return what identifies the bilinear algorithm of a program that reads *tables*."""
    return tuple(sorted(table.shape for table in tables))


def _same(derivation: Derivation) -> Derivation:
    return derivation


def _kind(program: Program) -> Hashable:
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
            groups.setdefault(_algorithm(variant.tables), []).append(variant)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Measured times of a subprogram's original and of its best variant.

    The *winner* is faster than the original (None: the original stays).  Without a winner, the *contender* is the
    fastest variant if it came near.  If it *rounds_exactly*, it gives the integers of the definition, and the original
    does not: as a winner, it need not be faster.  *excess* says by how much the error of a variant in bfloat16 exceeds
    the bound.  If *memory_short*, a memory limit decided, so the trial is not remembered.
    """

    seconds_before: float
    seconds_after: float
    why: str
    winner: Derivation | None = None
    search_seconds: float = 0.0
    states: int = 0
    contender: Derivation | None = None
    excess: str = ""
    memory_short: bool = False
    rounds_exactly: bool = False

    @property
    def derivation(self) -> Derivation | None:
        """The derivation of the winner or contender."""
        return self.winner or self.contender


def trial_to_json(trial: Trial) -> JsonObject:
    """Return *trial* as it is remembered: derivations by their steps."""
    return {
        "seconds_before": trial.seconds_before,
        "seconds_after": trial.seconds_after,
        "search_seconds": trial.search_seconds,
        "states": trial.states,
        "why": trial.why,
        "excess": trial.excess,
        "rounds_exactly": trial.rounds_exactly,
        "winner": steps_to_json(trial.winner) if trial.winner else None,
        "contender": steps_to_json(trial.contender) if trial.contender else None,
    }


def trial_from_json(document: object, program: Program) -> Trial | None:
    """Return the trial of *program* that ``trial_to_json`` wrote; None if its steps no longer apply."""
    try:
        found = as_object(document)
        winner, contender = (None if found[k] is None else replay(program, found[k]) for k in ("winner", "contender"))
        return Trial(
            seconds_before=as_number(found["seconds_before"]),
            seconds_after=as_number(found["seconds_after"]),
            winner=winner,
            states=as_integer(found["states"]),
            why=str(found["why"]),
            contender=contender,
            excess=str(found["excess"]),
            rounds_exactly=bool(found["rounds_exactly"]),
        )
    except (KeyError, Refused):
        return None


MAX_WINNER_RATIO = 0.95
"""A winner takes less than this part of the original's time: smaller differences are within the noise."""

MAX_EXACT_RATIO = 1.05
"""A variant that rounds to integers as the definition says, where the original does not, takes at most this multiple of
the time of the original or of another variant to be preferred: larger differences are more than noise."""

NODE_SECONDS = 0.5e-6
"""Seconds by which a variant has to be faster for each node more than another has: less is within the noise."""

MAX_CONTENDER_RATIO = 1.25
"""A contender takes less than this multiple of the original's time: it may still pay joined with its neighbours."""

MAX_EXACT_CONTENDER_RATIO = 3.0
"""The same for a variant that rounds to integers as the definition says: the time of the whole model decides."""

MODEL_SEARCH_SECONDS = 45.0
"""Seconds of search for a whole model, distributed over its subprograms by their part of its time."""

MAX_SEARCH_SHARE = 0.6
"""The part of a budget that searches take at most: kernels are compiled and measured in the rest."""

MIN_SEARCH_SECONDS = 0.5
"""Seconds of search for the smallest subprogram that is worth one."""

MAX_SEARCH_SECONDS = 120.0
"""Seconds of search for any subprogram."""

NEGLIGIBLE_SHARE = 1e-3
"""Subprograms below this part of the model's time are not tuned: any gain drowns in the noise of the whole."""


EXACT = "rounds to integers as the model defines, which the original does not"
"""Why a winner need not be faster."""


@dataclass(slots=True)
class _Finalists:
    """Finalists that agree with the original, their runners, and the reasons why others were refused.

    *over_bound* are those of candidates in bfloat16 whose error exceeds the bound.
    """

    derivations: dict[str, Derivation] = field(default_factory=dict)
    runners: dict[str, _RecalledRun] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    over_bound: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Form:
    """A *derivation* to be measured, and the *estimate* of its seconds, whose error depends on its *kind*."""

    derivation: Derivation
    estimate: float
    kind: Hashable


def _chain_form(derivation: Derivation, threads: int, layout: str = "in blocks") -> _Form:
    """Return a chain in blocks with the cycles of its stages; its kind is its *layout* and bilinear algorithm."""
    program = derivation.end
    return _Form(derivation, chain_cycles(program, threads) / clock_rate(), (layout, _algorithm(_tables(program))))


@dataclass(slots=True)
class _RecalledRun:
    """A *run* on *feeds* that keeps its last results, to bring them back into a cache, as in a plan.

    There, a node before has just written the inputs, and memory for results was used not long ago.
    """

    run: Callable[[], Arrays]
    feeds: Arrays
    last: Arrays = field(default_factory=dict)

    def __call__(self) -> Arrays:
        """Run; what was kept is freed before, so that a session takes its memory again."""
        self.last = {}
        self.last = self.run()
        return self.last

    def recall_after(self, read_others: Callable[[], object]) -> None:
        """Call *read_others*, then read the last results, with those between in memory of its own, and the inputs."""
        read_others()
        near = (*self.last.values(), *self.feeds.values())
        if isinstance(self.run, BoundProgram):
            near = (self.run.context.memory, *self.run.context.inputs.values())
        for array in near:
            array.max(initial=0)


@dataclass(frozen=True, slots=True)
class _Reference:
    """The *original* of a task and the outputs that it *wants*; *read_others* displaces weights before each run."""

    original: OriginalRun
    want: Arrays
    read_others: Callable[[], object] | None

    def run_of(self, run: Callable[[], Arrays]) -> _RecalledRun:
        """Return *run* on the original's inputs."""
        return _RecalledRun(run, self.original.feeds)

    def displace(self, call: _RecalledRun) -> Callable[[], object] | None:
        """Return what brings the caches into the state before *call* in a plan, if anything does."""
        return None if self.read_others is None else partial(call.recall_after, self.read_others)


MAX_HOPEFUL_RATIO = 1.6
"""A form is tried if its estimate, corrected by those of the forms so far, is below this multiple of the least time:
estimates of forms of different kinds are off by such factors."""

MAX_KNOWN_KIND_RATIO = 1.1
"""The same for a form of a kind of which other tasks measured some: their least ratio to the estimates corrects its."""

MAX_SAMPLE_RATIO = 1.25
"""A form whose first sample takes more than this multiple of the least one is not measured in turns."""


@dataclass(slots=True)
class _Race:
    """The samples of the forms so far, in *seconds* by name; *original_seconds* are to beat.

    *ratios* are the least ratios of samples to estimates by kind, in the tasks before.
    """

    original_seconds: float
    ratios: dict[Hashable, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    samples: dict[Hashable, float] = field(default_factory=dict)
    """These ratios of the forms so far."""

    def expected(self, form: _Form) -> float:
        """Return the seconds that *form* is expected to take: its estimate, corrected."""
        ratio = self.ratios.get(form.kind)
        return form.estimate * (min(self.samples.values(), default=1.0) if ratio is None else ratio)

    def is_open_to(self, form: _Form) -> bool:
        """Return whether *form* may be the fastest; the first one is tried in any case."""
        if not self.samples:
            return True
        margin = MAX_KNOWN_KIND_RATIO if form.kind in self.ratios else MAX_HOPEFUL_RATIO
        return self.expected(form) < margin * min((self.original_seconds, *self.seconds.values()))

    def enter(self, name: str, form: _Form, seconds: float) -> None:
        """Note that a run of *form* took *seconds*."""
        self.seconds[name] = seconds
        if form.estimate:
            ratio = seconds / form.estimate
            self.samples[form.kind] = min(self.samples.get(form.kind, ratio), ratio)

    def is_hopeless(self, once: float) -> bool:
        """Return whether a form whose first run took *once* seconds is too slow to be sampled: it also allocated."""
        least = min((self.original_seconds, *self.seconds.values()))
        return once > max(LONG_CALL_SECONDS, MAX_FIRST_RUN_RATIO * least)

    def losers(self) -> list[str]:
        """Return the names of forms that are clearly slower than another one."""
        least = min(self.seconds.values())
        return [name for name, seconds in self.seconds.items() if seconds > MAX_SAMPLE_RATIO * least]


@dataclass(frozen=True)
class TuningTask:
    """*program* to be tuned against its original, which *opener* opens if it has to be run.

    *constants* are the arrays of its weights, *operators* digests its ONNX operators (``operator_digest``): the
    original's times belong to them.  Variants that were *found* already replace the search.
    """

    program: Program
    opener: OriginalOpener
    constants: Arrays
    context: TuningContext
    operators: str = ""
    found: FoundVariants | None = None
    displacing_bytes: int = 0
    """Bytes of weights that the rest of the model reads between two calls, which displace those of this subprogram."""

    @cached_property
    def original_seconds(self) -> float:
        """Seconds of the original, measured alone.

        It has a key of its own in the store, so that the search is the same whatever the finalists' times were.
        """
        return _time(self.context.store, self._key("onnxruntime alone"), lambda: self.opener().run)

    @property
    def is_original_timed(self) -> bool:
        """Whether the store holds the original's time."""
        return self.context.store.get(self._key("onnxruntime alone")) is not None

    def search_effort(self, model_seconds: float, budget: float = inf) -> float | None:
        """Return the seconds of search that the original's part of *model_seconds* is worth; None if negligible.

        *budget* are the seconds in which the whole model is tuned.
        """
        share = self.original_seconds / model_seconds
        if share < NEGLIGIBLE_SHARE and not self.may_be_exact:
            return None
        most = self.context.settings.seconds * max(1, len(compute_bound(self.program)))
        whole = min(MODEL_SEARCH_SECONDS, MAX_SEARCH_SHARE * budget)
        return min(most, max(MIN_SEARCH_SECONDS, whole * share), MAX_SEARCH_SECONDS)

    @cached_property
    def may_be_exact(self) -> bool:
        """Whether a variant may round to integers as the definition says, and the original does not."""
        return self.context.settings.runtime == "plan" and rounds_computed_values(self.program)

    def negligible_trial(self, model_seconds: float) -> Trial:
        """Return the trial of a task whose ``search_effort`` is None."""
        before = self.original_seconds
        why = f"takes {before * 1e6:.0f} µs of the model's {model_seconds * 1e3:.1f} ms: a gain is not measurable"
        return Trial(seconds_before=before, seconds_after=before, why=why)

    def run(self, seconds: float) -> Trial:
        """Search for *seconds*, measure the finalists and the original in turns, and return the fastest that agrees.

        If the store holds all times, nothing is measured.
        """
        began, memory = perf_counter(), MemoryWatch()
        settings = replace(self.context.settings, seconds=seconds)
        found = self.found or self._closed_variants() or find_variants(self.program, self.context.cost, settings)
        if found.memory_short:
            memory.stopped()
        trial = self._try_finalists(self._with_replayed(found.variants), memory)
        if trial.derivation is not None and (trial.winner or trial.rounds_exactly):
            for key in (self._structure, self._pattern(False), self._pattern(True)):
                self.context.winners.setdefault(key, []).append(steps_to_json(trial.derivation))
        return replace(trial, search_seconds=perf_counter() - began, states=found.states, memory_short=memory.short)

    def _closed_variants(self) -> FoundVariants | None:
        """Return no variants where several contractions are one chain in vectors: its parts are searched."""
        is_closed = self.context.settings.runtime == "plan" and is_fixed_chain(self.program)
        return FoundVariants([], 0) if is_closed else None

    @property
    def _structure(self) -> Hashable:
        """The numbers of traversals and summations of each equation, which do not depend on extents."""
        scopes = (e.scope for e in self.program.equations)
        return tuple((len(scope.traversals), len(scope.summations)) for scope in scopes)

    def replayed(self, any_extents: bool) -> list[Variant]:
        """Return the variants by the steps of winners whose programs differ in constants only, cheapest first.

        If *any_extents*, they may differ in extents, too.
        """
        return sorted(self._replays(self._pattern(any_extents)).values(), key=lambda variant: variant.seconds)

    def _pattern(self, any_extents: bool) -> Hashable:
        return pattern(self.program), () if any_extents else extents(self.program)

    def _with_replayed(self, found: Sequence[Variant]) -> list[Variant]:
        """Return the variants *found*, and those that win at other sizes and were not found, cheapest first."""
        known = {(variant.seconds, variant.kind) for variant in found}
        new = (variant for key, variant in self._replays(self._structure).items() if key not in known)
        return sorted((*found, *new), key=lambda variant: variant.seconds)

    def _replays(self, key: Hashable) -> dict[tuple[float, Hashable], Variant]:
        """Return the variants by the steps of the winners with this *key*, by estimate and kind."""
        replayed = dict[tuple[float, Hashable], Variant]()
        for steps in self.context.winners.get(key, ()):
            if (derivation := replay_at_other_sizes(self.program, steps)) is not None:
                seconds, _ = self.context.cost(derivation.end)
                variant = _variant(seconds, derivation.end, partial(_same, derivation))
                replayed[seconds, variant.kind] = variant
        return replayed

    def _try_finalists(self, ranked: Sequence[Variant], memory: MemoryWatch) -> Trial:
        before = self.original_seconds
        stays = partial(Trial, seconds_before=before, seconds_after=before)
        below, settings = MAX_ESTIMATE_RATIO * before, self.context.settings
        promising = select_finalists(ranked, settings.finalists, below)
        in_vectors = chain_in_vectors(self.program) if settings.runtime == "plan" else None
        if not promising and in_vectors is None:
            least = f"{ranked[0].seconds * 1e6:.0f} µs" if ranked else "no candidate"
            count = count_noun(len(ranked), "candidate")
            return stays(why=f"the cheapest of {count}: estimated {least}, the original takes {before * 1e6:.0f} µs")
        try:
            memory.require(working_set_bytes(self.program), "the original")
        except Refused as shortage:
            return stays(why=str(shortage))
        forms = [_Form(fuse_eoperators(each.derivation()), each.seconds, each.kind) for each in promising]
        groups = chain_groups(ranked, settings, below)
        blocked = blocked_forms(groups, settings.finalists)
        chains = [_chain_form(derivation, settings.threads) for derivation in blocked]
        if in_vectors is not None and all(in_vectors.end != other.end for other in blocked):
            chains.append(_chain_form(in_vectors, settings.threads, "in vectors"))
        forms += (form for form in chains if form.estimate < below)
        apart = products_in_vectors(self.program) if in_vectors is not None else None
        if apart is not None:
            seconds, _ = self.context.cost(apart.end)
            forms.append(_Form(fuse_eoperators(apart), seconds, _kind(apart.end)))
        if not forms:
            return stays(why=f"its kernels in blocks are estimated above {below * 1e6:.0f} µs")
        if settings.numerics == "bf16":
            rounded = [(form, round_products(form.derivation)) for form in forms]
            forms += [_Form(made, form.estimate, ("bf16", form.kind)) for form, made in rounded if made is not None]
        finalists, times = self._measure(forms, memory)
        before = times.pop("original")
        excess = "; ".join(dict.fromkeys(finalists.over_bound))
        if not times:
            why = "; ".join(dict.fromkeys(finalists.refusals))
            return Trial(seconds_before=before, seconds_after=before, why=why or excess, excess=excess)
        nodes = {name: count_nodes(finalists.derivations[name].end) for name in times}
        exact = {name for name in times if self.may_be_exact and rounds_exactly(finalists.derivations[name].end)}

        def cost(name: str) -> float:
            return (times[name] + NODE_SECONDS * nodes[name]) / (MAX_EXACT_RATIO if name in exact else 1.0)

        best = min(times, key=cost)
        fastest, after = finalists.derivations[best], times[best]
        outcome = partial(
            Trial, seconds_before=before, seconds_after=after, excess=excess, rounds_exactly=best in exact
        )
        if after <= MAX_WINNER_RATIO * before:
            return outcome(winner=fastest, why=f"{before / after:.2f}x in its own right")
        if best in exact and after <= MAX_EXACT_RATIO * before:
            return outcome(winner=fastest, why=f"{EXACT}, {before / after:.2f}x in its own right")
        most = MAX_EXACT_CONTENDER_RATIO if best in exact else MAX_CONTENDER_RATIO
        measured = f"the fastest of {len(finalists.derivations)} measured candidates"
        return outcome(
            contender=fastest if after <= most * before else None,
            why=f"{measured} takes {after / before:.2f} of the original's time, at most {MAX_WINNER_RATIO} is a gain",
        )

    def _measure(self, forms: Sequence[_Form], memory: MemoryWatch) -> tuple[_Finalists, dict[str, float]]:
        """Compile *forms* that may be the fastest; time those that agree with the original, and the original."""
        original = self.opener()
        read_others = displacing_read(self.displacing_bytes) if self.displacing_bytes else None
        reference = _Reference(original, original.outputs(), read_others)
        finalists = self._compile(forms, reference, memory)
        keys = {
            name: self._key("program in place", derivation.end) for name, derivation in finalists.derivations.items()
        }
        keys = {"original": self._key("onnxruntime"), **keys}
        calls = {"original": reference.run_of(original.run), **finalists.runners}
        displace = {name: recall for name, call in calls.items() if (recall := reference.displace(call))}
        times = _times(self.context.store, keys, calls, displace or None)
        # A plan is one session: the calls of others are not part of it.
        overhead = session_overhead(self.displacing_bytes)
        return finalists, {
            name: seconds if isinstance(calls[name].run, BoundProgram) else without_overhead(seconds, overhead)
            for name, seconds in times.items()
        }

    def _compile(self, forms: Sequence[_Form], reference: _Reference, memory: MemoryWatch) -> _Finalists:
        """Compile *forms* that may be the fastest, those expected to be first, one on each core at a time."""
        found, race = _Finalists(), _Race(self.original_seconds, self.context.ratios)
        waiting, cores = list(forms), available_cores()
        while waiting := sorted(filter(race.is_open_to, waiting), key=race.expected):
            batch, waiting = waiting[:cores], waiting[cores:]
            self._compile_ahead([form.derivation.end for form in batch], memory)
            for form in filter(race.is_open_to, batch):
                self._try_form(form, found, race, reference, memory)
                return_free_memory()  # of engines that were compared, each with weights in its layout
        for kind, ratio in race.samples.items():
            race.ratios[kind] = min(race.ratios.get(kind, ratio), ratio)
        return found

    def _compile_ahead(self, programs: Sequence[Program], memory: MemoryWatch) -> None:
        with suppress(Refused):  # one by one they are refused again, and those that fit are compiled
            memory.require(max(map(working_set_bytes, programs), default=0), "a candidate")
            self.context.ahead(programs, self.constants)

    def _try_form(
        self, form: _Form, found: _Finalists, race: _Race, reference: _Reference, memory: MemoryWatch
    ) -> None:
        """Compile *form* and enter it in *race* and *found*, or say in *found* why it is refused."""
        derivation, want, feeds = form.derivation, reference.want, reference.original.feeds
        try:
            memory.require(working_set_bytes(derivation.end), "a candidate")
            run = self.context.compiler(derivation.end, self.constants)
            results: list[Arrays] = []
            once = own_seconds(lambda: results.append(run(feeds)), 1)
            got = results[0]
            plain, error = level_report(derivation), reference.original.error(want, got)
            if plain.level == "bf16":
                report = measure_errors(derivation, plain, {**feeds, **self.constants}, want, got)
                if excess := report.excess(self.context.settings.error_bound):
                    found.over_bound.append(excess)
                    return
        except (BackendError, ValueError) as problem:
            found.refusals.append(str(problem))
        except OUT_OF_MEMORY as problem:
            memory.short = True
            found.refusals.append(f"a candidate does not fit: {type(problem).__name__}: {problem}")
        else:
            if error > MAX_RELATIVE_ERROR and plain.level != "bf16":
                found.refusals.append(
                    f"a candidate differs by {error:.1e} of the largest output, {MAX_RELATIVE_ERROR:g} is allowed"
                )
                return
            name = str(len(race.seconds))
            call = reference.run_of(_bind_feeds(run, feeds))
            found.derivations[name], found.runners[name] = derivation, call
            known = self.context.store.get(self._key("program in place", derivation.end))
            if known is None and not race.is_hopeless(once):
                once = min(sample_seconds(call, 1, reference.displace(call)) for _ in range(2))
            race.enter(name, form, known.seconds if known else once)
            for slow in race.losers():  # their copies of the weights are freed
                found.derivations.pop(slow, None)
                found.runners.pop(slow, None)

    def _key(self, operator: str, program: Program | None = None) -> ProfileKey:
        settings = self.context.settings
        if self.displacing_bytes:
            operator = f"{operator} near its arrays after {self.displacing_bytes} bytes"
        key = replace(profile_key(program or self.program, settings.threads), operator=operator)
        if program is None:  # no kernel of ours is in it
            key = replace(key, attributes=f"{key.attributes} {self.operators}".strip(), engine="onnxruntime")
        if settings.runtime == "plan":
            return key
        return replace(key, operator=f"{operator} in {settings.runtime}")


def _time(store: ProfileStore, key: ProfileKey, opened: Callable[[], Callable[[], object]]) -> float:
    known = store.get(key)
    if known:
        return known.seconds
    measured = time_calls({"it": opened()}, rounds=5, min_seconds=0.02, settle=settle_seconds(key.threads))["it"].low
    store.record(key, measured, "measured alone")
    return measured


def _times(
    store: ProfileStore,
    keys: Mapping[str, ProfileKey],
    calls: Mapping[str, Callable[[], object]],
    displace: Mapping[str, Callable[[], object]] | None,
) -> dict[str, float]:
    """Return the time of each call: as stored if all are, else all measured in turns and stored.

    *displace* has by name what brings the caches into their state before the call; None if nothing does.
    """
    known = {name: profile.seconds for name, key in keys.items() if (profile := store.get(key))}
    if len(known) == len(keys):
        return known
    settle = settle_seconds(keys["original"].threads)
    enough = stop_after(5, 1.0)
    timings = time_calls(calls, rounds=9, min_seconds=0.05, settle=settle, enough=enough, displace=displace)
    base = timings["original"]
    measured = {name: base.low / times_faster(base, timing) for name, timing in timings.items()}
    for name, seconds in measured.items():
        store.record(keys[name], seconds, "measured in turns")
    return measured


def count_nodes(program: Program) -> int:
    """Return the number of nodes that compute *program* at run time: views and weights need none."""
    constant = weight_only(program)
    return sum(e.name not in constant and not (e.via and e.via.operator == VIEW) for e in program.equations)


def working_set_bytes(program: Program) -> int:
    """Return the bytes that *program* reads and writes when it runs next to its original: two copies of each."""
    shapes = (*(t.shape for t in program.inputs), *(e.scope.shape for e in program.equations))
    return 2 * ELEMENT_BYTES * sum(prod(shape) for shape in shapes)


def _bind_feeds(run: Callable[[Arrays], Arrays], feeds: Arrays) -> Callable[[], Arrays]:
    """Return a call that runs on *feeds* as the nodes of a plan do: without copies, if a compiled program can."""
    return run.bind(feeds) if isinstance(run, CompiledProgram) else lambda: run(feeds)
