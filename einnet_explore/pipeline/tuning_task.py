"""Tuning of one subprogram: variants are searched, and finalists are measured against the original (EinNet §6.3)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, prod
from time import perf_counter

from einnet_explore.analysis.counts import ELEMENT_BYTES, compute_bound
from einnet_explore.analysis.equations import weight_only
from einnet_explore.analysis.patterns import extents, pattern
from einnet_explore.codegen.wide_values import rounds_computed_values, rounds_exactly
from einnet_explore.ir import VIEW, Program
from einnet_explore.pipeline.candidate_race import Finalists, Form, Race, RecalledRun, Reference, bind_feeds, chain_form
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.pipeline.numerics import level_report, measure_errors
from einnet_explore.pipeline.rounded_products import round_products
from einnet_explore.pipeline.tuning_context import OUT_OF_MEMORY, OriginalOpener, TuningContext
from einnet_explore.pipeline.variants import (
    FoundVariants,
    Variant,
    bilinear_algorithm,
    blocked_forms,
    chain_groups,
    find_variants,
    program_kind,
    select_finalists,
    variant_of,
)
from einnet_explore.pipeline.vector_layouts import chain_in_vectors, is_fixed_chain, products_in_vectors
from einnet_explore.rules import Derivation
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Arrays
from einnet_explore.runtime.implementation_choice import ProfileStore, session_overhead, without_overhead
from einnet_explore.runtime.measurement import (
    displacing_read,
    own_seconds,
    sample_seconds,
    settle_seconds,
    stop_after,
    time_calls,
    times_faster,
)
from einnet_explore.runtime.profile_store import ProfileKey, profile_key
from einnet_explore.runtime.program import BoundProgram
from einnet_explore.strategies.candidate import replay, replay_at_other_sizes, steps_to_json
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.json_values import JsonObject, as_integer, as_number, as_object
from einnet_explore.support.limits import MemoryWatch, available_cores, return_free_memory
from einnet_explore.support.wording import count_noun

MAX_ESTIMATE_RATIO = 3.0
"""A variant is worth measuring if its estimate is below this multiple of the original's measured time."""


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

    @property
    def displacing_bytes(self) -> int:
        """Bytes of weights that the rest of the model reads between two calls: they displace those of *program*."""
        return self.context.cost.displacing_bytes

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
            self._keep_steps(trial.derivation)
        return replace(trial, search_seconds=perf_counter() - began, states=found.states, memory_short=memory.short)

    def _keep_steps(self, *derivations: Derivation) -> None:
        """Let other tasks replay the steps of *derivations*."""
        kinds = [(bilinear_algorithm(each.end), program_kind(each.end)) for each in derivations]
        steps = list(map(steps_to_json, derivations))
        for key in (self._structure, self._pattern(False), self._pattern(True)):
            known = self.context.replayable.setdefault(key, {})
            known.update(zip(kinds, steps, strict=True))

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
        """Return the variants by the steps kept for programs that differ in constants only, cheapest first.

        If *any_extents*, they may differ in extents, too.
        """
        return sorted(self._replays(self._pattern(any_extents)).values(), key=lambda variant: variant.seconds)

    def _pattern(self, any_extents: bool) -> Hashable:
        return pattern(self.program), () if any_extents else extents(self.program)

    def _with_replayed(self, found: Sequence[Variant]) -> list[Variant]:
        """Return the variants *found*, and those by steps kept at other sizes that were not found, cheapest first."""
        known = {(variant.seconds, variant.kind) for variant in found}
        new = (variant for key, variant in self._replays(self._structure).items() if key not in known)
        return sorted((*found, *new), key=lambda variant: variant.seconds)

    def _replays(self, key: Hashable) -> dict[tuple[float, Hashable], Variant]:
        """Return the variants by the steps kept with this *key*, by estimate and kind."""
        replayed = dict[tuple[float, Hashable], Variant]()
        for steps in self.context.replayable.get(key, {}).values():
            if (derivation := replay_at_other_sizes(self.program, steps)) is not None:
                seconds, _ = self.context.cost(derivation.end)
                variant = variant_of(seconds, derivation.end, partial(_same, derivation))
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
        forms = [Form(fuse_eoperators(each.derivation()), each.seconds, each.kind) for each in promising]
        groups = chain_groups(ranked, settings, below)
        blocked = blocked_forms(groups, settings.finalists)
        self._keep_steps(*blocked)  # elsewhere another one may be the fastest
        chains = [chain_form(derivation, settings.threads, self.context.cost) for derivation in blocked]
        if in_vectors is not None and all(in_vectors.end != other.end for other in blocked):
            chains.append(chain_form(in_vectors, settings.threads, self.context.cost, "in vectors"))
        forms += (form for form in chains if form.estimate < below)
        apart = products_in_vectors(self.program) if in_vectors is not None else None
        if apart is not None:
            seconds, _ = self.context.cost(apart.end)
            forms.append(Form(fuse_eoperators(apart), seconds, program_kind(apart.end)))
        if not forms:
            return stays(why=f"its kernels in blocks are estimated above {below * 1e6:.0f} µs")
        if settings.numerics == "bf16":
            rounded = [(form, round_products(form.derivation)) for form in forms]
            forms += [
                replace(form, derivation=made, kind=("bf16", form.kind)) for form, made in rounded if made is not None
            ]
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

    def _measure(self, forms: Sequence[Form], memory: MemoryWatch) -> tuple[Finalists, dict[str, float]]:
        """Compile *forms* that may be the fastest; time those that agree with the original, and the original."""
        original = self.opener()
        read_others = displacing_read(self.displacing_bytes) if self.displacing_bytes else None
        reference = Reference(original, original.outputs(), read_others)
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

    def _compile(self, forms: Sequence[Form], reference: Reference, memory: MemoryWatch) -> Finalists:
        """Compile *forms* that may be the fastest, those expected to be first, one on each core at a time."""
        original = reference.run_of(reference.original.run)
        before = self._stored(self._key("onnxruntime"), lambda: _sample(original, reference))
        found, race = Finalists(), Race(before, self.context.ratios)
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

    def _try_form(self, form: Form, found: Finalists, race: Race, reference: Reference, memory: MemoryWatch) -> None:
        """Compile *form* and enter it in *race* and *found*, or say in *found* why it is refused."""
        derivation, want, feeds = form.derivation, reference.want, reference.original.feeds
        try:
            memory.require(working_set_bytes(derivation.end), "a candidate")
            run = self.context.compiler(derivation.end, self.constants)
            call = reference.run_of(bind_feeds(run, feeds))  # packs weights, which is no part of a run
            once = own_seconds(call, 1)
            got = call.last
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
            found.derivations[name], found.runners[name] = derivation, call
            seconds = self._stored(
                self._key("program in place", derivation.end),
                lambda: once if race.is_hopeless(once) else _sample(call, reference),
            )
            race.enter(name, form, seconds)
            for slow in race.losers():  # their copies of the weights are freed
                found.derivations.pop(slow, None)
                found.runners.pop(slow, None)

    def _stored(self, key: ProfileKey, measure: Callable[[], float]) -> float:
        known = self.context.store.get(key)
        return known.seconds if known else measure()

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


def _sample(call: RecalledRun, reference: Reference) -> float:
    return min(sample_seconds(call, 1, reference.displace(call)) for _ in range(2))


def _same(derivation: Derivation) -> Derivation:
    return derivation


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
