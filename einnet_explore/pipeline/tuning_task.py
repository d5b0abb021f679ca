"""Tuning of one subprogram: its original and derived variants, measured on this device (EinNet §6.3, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import prod
from time import perf_counter
from typing import TypeAlias

from einnet_explore.cost.model import ELEMENT_BYTES
from einnet_explore.ir import Program
from einnet_explore.pipeline.post.chaining import chain_in_blocks
from einnet_explore.pipeline.post.fusing import fuse_eoperators
from einnet_explore.pipeline.trial import Trial
from einnet_explore.pipeline.tuning_context import OUT_OF_MEMORY, OriginalOpener, Settings, TuningContext
from einnet_explore.pipeline.variants import (
    MAX_ESTIMATE_RATIO,
    Variant,
    find_variants,
    select_finalists,
    variants_by_algorithm,
)
from einnet_explore.rules import Derivation
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Arrays, largest_error
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.measurement import settle_seconds, stop_after, time_calls, times_faster
from einnet_explore.runtime.profile_store import ProfileKey, profile_key
from einnet_explore.strategies.closure import compute_bound
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.limits import MemoryWatch
from einnet_explore.support.wording import count_noun

VariantSource: TypeAlias = "Callable[[MemoryWatch], tuple[list[Variant], int]]"
"""Returns variants that were searched elsewhere, and the states of that search."""

MAX_CHAIN_VARIANTS = 4
"""Variants of one algorithm that are tried as a kernel in blocks."""

MAX_WINNER_RATIO = 0.95
"""A winner takes less than this part of the original's time: smaller differences are within the noise."""

MAX_CONTENDER_RATIO = 1.25
"""A contender takes less than this multiple of the original's time: it may still pay joined with its neighbours."""

MODEL_SEARCH_SECONDS = 45.0
"""Seconds of search for a whole model, distributed over its subprograms by their part of its time."""

MIN_SEARCH_SECONDS = 0.5
"""Seconds of search for the smallest subprogram that is worth one."""

MAX_SEARCH_SECONDS = 120.0
"""Seconds of search for any subprogram."""

NEGLIGIBLE_SHARE = 1e-3
"""Subprograms below this part of the model's time are not tuned: any gain drowns in the noise of the whole."""


@dataclass(slots=True)
class _Finalists:
    """Finalists that agree with the original, their runners, and the reasons why others were refused."""

    derivations: dict[str, Derivation] = field(default_factory=dict)
    runners: dict[str, Callable[[], object]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TuningTask:
    """*program* to be tuned against its original, which *opener* opens if it has to be run.

    *constants* are the arrays of its weights, *operators* digests its ONNX operators (``operator_digest``): the
    original's times belong to them.  *variants*, if given, replaces the search.
    """

    program: Program
    opener: OriginalOpener
    constants: Arrays
    context: TuningContext
    operators: str = ""
    variants: VariantSource | None = None

    @cached_property
    def original_seconds(self) -> float:
        """Seconds of the original, measured alone.

        It has a key of its own in the store, so that the search is the same whatever the finalists' times were.
        """
        return _time(self.context.store, self._key("onnxruntime alone"), lambda: self.opener()[0])

    @property
    def is_original_timed(self) -> bool:
        """Whether the store holds the original's time."""
        return self.context.store.get(self._key("onnxruntime alone")) is not None

    def search_effort(self, model_seconds: float) -> float | None:
        """Return the seconds of search that the original's part of *model_seconds* is worth; None if negligible."""
        share = self.original_seconds / model_seconds
        if share < NEGLIGIBLE_SHARE:
            return None
        most = self.context.settings.seconds * max(1, len(compute_bound(self.program)))
        return min(most, max(MIN_SEARCH_SECONDS, MODEL_SEARCH_SECONDS * share), MAX_SEARCH_SECONDS)

    def negligible_trial(self, model_seconds: float) -> Trial:
        """Return the trial of a task whose ``search_effort`` is None."""
        before = self.original_seconds
        why = f"takes {before * 1e6:.0f} µs of the model's {model_seconds * 1e3:.1f} ms: no gain there could be seen"
        return Trial(before, before, None, 0.0, 0, why)

    def run(self, seconds: float) -> Trial:
        """Search for *seconds*, measure the finalists and the original in turns, and return the fastest that agrees.

        If the store holds all times, nothing is measured.
        """
        began, memory, before = perf_counter(), MemoryWatch(), self.original_seconds
        ranked, states = self.variants(memory) if self.variants else self._search(seconds, memory)

        def stays(why: str, contender: Derivation | None = None, after: float | None = None) -> Trial:
            spent = perf_counter() - began
            return Trial(before, after or before, None, spent, states, why, contender, memory.short)

        below = MAX_ESTIMATE_RATIO * before
        promising = select_finalists(ranked, self.context.settings.finalists, below)
        if not promising:
            least = f"{ranked[0].seconds * 1e6:.0f} µs" if ranked else "no candidate"
            found = count_noun(len(ranked), "candidate")
            return stays(f"the cheapest of {found}: estimated {least}, the original takes {before * 1e6:.0f} µs")
        try:
            memory.require(working_set_bytes(self.program), "the original")
        except Refused as shortage:
            return stays(str(shortage))
        forms = [fuse_eoperators(variant.derivation()) for variant in promising]
        forms += blocked_forms(chain_groups(ranked, self.context.settings, below))
        finalists, times = self._measure(forms, memory)
        before = times.pop("original")
        if not times:
            return stays("; ".join(finalists.refusals))
        best = min(times, key=lambda name: times[name])
        ratio, winner = times[best] / before, finalists.derivations[best]
        if times[best] <= MAX_WINNER_RATIO * before:
            why, spent = f"{before / times[best]:.2f}x in its own right", perf_counter() - began
            return Trial(before, times[best], winner, spent, states, why, memory_short=memory.short)
        measured = f"the fastest of {len(finalists.derivations)} measured candidates"
        contender = winner if times[best] <= MAX_CONTENDER_RATIO * before else None
        return stays(f"{measured} takes {ratio:.2f} of the original's time", contender, times[best])

    def _search(self, seconds: float, memory: MemoryWatch) -> tuple[list[Variant], int]:
        chosen = self.context.settings
        cost = self.context.cost
        return find_variants(self.program, cost, chosen.max_depth, seconds, chosen.numerics, chosen.states, memory)

    def _measure(self, forms: Iterable[Derivation], memory: MemoryWatch) -> tuple[_Finalists, dict[str, float]]:
        """Compile *forms*, and time those that agree with the original, and the original."""
        original, feeds = self.opener()
        finalists = self._compile(forms, original(), feeds, memory)
        keys = {name: self._key("program", derivation.end) for name, derivation in finalists.derivations.items()}
        calls = {"original": original, **finalists.runners}
        return finalists, _times(self.context.store, {"original": self._key("onnxruntime"), **keys}, calls)

    def _compile(self, forms: Iterable[Derivation], want: Arrays, feeds: Arrays, memory: MemoryWatch) -> _Finalists:
        found = _Finalists()
        for n, derivation in enumerate(forms):
            try:
                memory.require(working_set_bytes(derivation.end), "a candidate")
                run = self.context.compiler(derivation.end, self.constants)
                error = largest_error(want, run(feeds))
            except (BackendError, ValueError) as problem:
                found.refusals.append(str(problem))
            except OUT_OF_MEMORY as problem:
                memory.short = True
                found.refusals.append(f"a candidate does not fit: {type(problem).__name__}: {problem}")
            else:
                if error > MAX_RELATIVE_ERROR:
                    found.refusals.append(f"a candidate differs by {error:.1e} of the largest output")
                    continue
                found.derivations[str(n)] = derivation
                found.runners[str(n)] = _runner(run, feeds)
        return found

    def _key(self, operator: str, program: Program | None = None) -> ProfileKey:
        settings = self.context.settings
        key = replace(profile_key(program or self.program, settings.threads), operator=operator)
        if program is None:  # no kernel of ours is in it
            key = replace(key, attributes=f"{key.attributes} {self.operators}".strip(), engine="onnxruntime")
        if settings.runtime == "plan":
            return key
        return replace(key, operator=f"{operator} in {settings.runtime}")


def chain_groups(ranked: Iterable[Variant], settings: Settings, below: float) -> tuple[tuple[Variant, ...], ...]:
    """Group the variants of *ranked*, estimated *below* so many seconds, that are tried as chains in blocks.

    Standard operators do not run in blocks: for ONNX Runtime there are no groups.
    """
    if settings.runtime != "plan":
        return ()
    return tuple(group[:MAX_CHAIN_VARIANTS] for group in variants_by_algorithm(ranked, settings.finalists, below))


def requested_variants(ranked: Sequence[Variant], settings: Settings, below: float) -> Iterable[Variant]:
    """Return those of *ranked* whose derivations a task may need."""
    return chain(select_finalists(ranked, settings.finalists, below), *chain_groups(ranked, settings, below))


def blocked_forms(groups: Iterable[Iterable[Variant]]) -> tuple[Derivation, ...]:
    """Return the cheapest variant of each of *groups* that is a chain, as a kernel in blocks."""
    forms = ((chain_in_blocks(fuse_eoperators(variant.derivation())) for variant in group) for group in groups)
    return tuple(made for group in forms if (made := next(filter(None, group), None)) is not None)


def _time(store: ProfileStore, key: ProfileKey, opened: Callable[[], Callable[[], object]]) -> float:
    known = store.get(key)
    if known:
        return known.seconds
    measured = time_calls({"it": opened()}, rounds=5, min_seconds=0.02, settle=settle_seconds(key.threads))["it"].low
    store.record(key, measured, "measured alone")
    return measured


def _times(
    store: ProfileStore, keys: Mapping[str, ProfileKey], calls: Mapping[str, Callable[[], object]]
) -> dict[str, float]:
    """Return the time of each call: as stored if all are, else all measured in turns and stored."""
    known = {name: profile.seconds for name, key in keys.items() if (profile := store.get(key))}
    if len(known) == len(keys):
        return known
    settle = settle_seconds(keys["original"].threads)
    timings = time_calls(calls, rounds=9, min_seconds=0.05, settle=settle, enough=stop_after(5, 1.0))
    base = timings["original"]
    measured = {name: base.low / times_faster(base, timing) for name, timing in timings.items()}
    for name, seconds in measured.items():
        store.record(keys[name], seconds, "measured in turns")
    return measured


def working_set_bytes(program: Program) -> int:
    """Return the bytes that *program* reads and writes when it runs next to its original: two copies of each."""
    shapes = (*(t.shape for t in program.inputs), *(e.scope.shape for e in program.equations))
    return 2 * ELEMENT_BYTES * sum(prod(shape) for shape in shapes)


def _runner(run: Callable[[Arrays], Arrays], feeds: Arrays) -> Callable[[], object]:
    """Return a call that runs on *feeds* as a plan does: inputs copied in, outputs out."""
    return lambda: run(feeds)
