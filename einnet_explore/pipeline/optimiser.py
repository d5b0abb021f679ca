"""The main job: an ONNX model in, a verified program that is at least as fast out (EinNet §6.3, Algorithm 1).

The model is split into subprograms; for each, the original competes with derived candidates by measurement on this
device; the winners, joined and post-optimised, and what stays of the model (in as few ONNX Runtime sessions as
possible) make one plan, which is measured and checked as a whole.  What does not pay in the whole program is taken
back, so nothing gets slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from einnet_explore.cost import CostModel
from einnet_explore.ir import Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.assembly import Assembler
from einnet_explore.pipeline.error_report import ErrorReport, report_errors
from einnet_explore.pipeline.history import TuningHistory
from einnet_explore.pipeline.implementations import Implementations
from einnet_explore.pipeline.joining import Piece
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.originals import AnonymousProgram, anonymize, content_digest, model_values, open_original
from einnet_explore.pipeline.outcome import TunedSubprogram, certify_trial, choose_joined_or_parts, trial_to_json
from einnet_explore.pipeline.partition import Split, Subprogram, partition
from einnet_explore.pipeline.plan import ExecutionPlan, build_plan, random_inputs
from einnet_explore.pipeline.post.layout_assignment import estimate_equation, measured_price
from einnet_explore.pipeline.request import NOTHING, make_settings, parse_budget, read_model
from einnet_explore.pipeline.selection import Selector
from einnet_explore.pipeline.tuner import Tuner
from einnet_explore.pipeline.tuning_task import Settings
from einnet_explore.pipeline.whole_model import discriminating_seed
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.measurement import compare
from einnet_explore.support.limits import ROOM


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """One subprogram is done: the *done*-th of *total*."""

    done: int
    total: int
    part: TunedSubprogram


@dataclass
class Optimiser:
    """Optimising one model, part by part; ``run`` may be left at any time, ``result`` is what stands then."""

    model: Model
    settings: Settings
    budget: float | None = None
    store: ProfileStore = field(default_factory=ProfileStore)
    parts: list[TunedSubprogram] = field(default_factory=list)
    interrupted: bool = False
    executor: Any = None
    """What searches subprograms elsewhere, all at once (``executors``); measured is here, or on a cluster's devices."""

    def __post_init__(self) -> None:
        self.split: Split = partition(self.model)
        self.subprograms = tuple(s for joined in self.split.subprograms for s in (*joined.parts, joined))
        self.done: list[tuple[Subprogram, AnonymousProgram]] = []
        self.memory = TuningHistory(self.store)
        self.means = Implementations(self.settings, self.store)
        self.digest = self.model.digest()
        self._judged: dict[str, TunedSubprogram] = {}
        self.original: ExecutionPlan = build_plan(self.model, {}, self.settings.threads)
        self.feeds = random_inputs(self.model, self._seed())
        self.seconds = self._whole()
        self.contests = Tuner(
            self.model, self.digest, self.seconds, self.settings, self.means, self.memory, self.store, self.budget
        )
        self.original.rest()

    def _seed(self) -> int:
        """The seed of inputs that tell right from wrong; remembered, as it takes at least two runs of the model."""
        known = self.memory.get("inputs", self.digest)
        if known is None:
            known = discriminating_seed(self.model, self.original)
            self.memory.put(known, "inputs", self.digest)
        return int(known)

    def _whole(self) -> float:
        """Seconds of the whole model; remembered, as a contest's effort depends on it and shall be the same again."""
        known = self.memory.get("model", self.digest, self.settings.threads)
        if known is None:
            known = compare({"it": lambda: self.original.run(self.feeds)}, rounds=5, min_seconds=0.05)["it"].low
            self.memory.put(known, "model", self.digest, self.settings.threads)
        return float(known)

    def run(self) -> Iterable[TuningProgress]:
        """Hold every subprogram's contest, the same one once, in the order of ``anonymous``.

        Where there is an interrupt while others search, only what they had found competes.
        """
        self.contests.begin()
        if self.executor is not None:
            try:
                self.contests.ahead(self.executor, self.anonymous(), tune_named_task)
            except KeyboardInterrupt:
                self.interrupted = self.contests.closed = True
        for n, (subprogram, anon) in enumerate(self.anonymous(), 1):
            outcome = self.contests.of(subprogram, anon)
            if outcome is None:
                continue
            name = self.contests.name(subprogram, anon)
            if name not in self._judged:
                self._judged[name] = certify_trial(subprogram.nodes, outcome)
            part = replace(self._judged[name], nodes=subprogram.nodes)
            if subprogram.parts:
                part, self.parts = choose_joined_or_parts(part, self.parts)
            self.parts.append(part)
            self.done.append((subprogram, anon))
            yield TuningProgress(n, len(self.subprograms), part)

    def anonymous(self) -> Iterable[tuple[Subprogram, AnonymousProgram]]:
        """Every subprogram, with its program without names: joined ones after their parts.

        Those come first that take longest by the estimate, equal ones together: wherever time runs out, it was spent
        where there was most to gain.
        """
        named = [[(s, anonymize(s.program)) for s in (*whole.parts, whole)] for whole in self.split.subprograms]
        seconds: defaultdict[str, float] = defaultdict(float)
        for *_, (_, anon) in named:
            seconds[anon.signature] += CostModel().program_cost(anon.program).seconds
        largest_first = sorted(named, key=lambda group: -seconds[group[-1][1].signature])
        return chain.from_iterable(largest_first)

    def _badged(self, n: int, part: TunedSubprogram) -> TunedSubprogram:
        """*part*, the *n*-th, with what its derivation does to the last digits, if it is in the plan."""
        if not part.kept or part.derivation is None:
            return part
        subprogram, anon = self.done[n]
        opened, constants = open_original(self.model, subprogram, anon, self.settings.threads)
        # Equal layers have one derivation, but weights of their own, of which roundings and their bound depend.
        key = (*self.contests.key(subprogram, anon), repr(part.derivation.end), content_digest(constants))
        known = self.memory.get("numerics", *key)
        if known is None:
            wanting = ROOM.wanting
            known = report_errors(part.derivation, opened, constants, self.means.engine).to_json()
            if ROOM.wanting == wanting:
                self.memory.put(known, "numerics", *key)
        return replace(part, measured=ErrorReport.from_json(known))

    @cached_property
    def assembler(self) -> Assembler:
        """What makes plans of the parts."""
        rough = partial(estimate_equation, model=self.means.model)
        exact = measured_price(self.store, self.settings.threads, rough)
        return Assembler(self.model, self.settings, rough, exact, self.store, self.memory)

    def pieces(self, kept: Iterable[int]) -> list[Piece]:
        """The parts with these numbers, as they stand in the model, whose contests are held in another order."""
        out = []
        for n in sorted(kept, key=self._places().__getitem__):
            (subprogram, anon), derivation = self.done[n], self.parts[n].derivation
            assert derivation is not None
            out.append(Piece(subprogram.nodes, derivation.end, model_values(self.model, subprogram, anon)))
        return out

    def _places(self) -> list[int]:
        """Where each part stands in the model."""
        place = {subprogram.nodes: n for n, subprogram in enumerate(self.subprograms)}
        return [place[subprogram.nodes] for subprogram, _ in self.done]

    def result(self) -> Optimised:
        """The plan of what won so far, measured and checked against ONNX Runtime on random inputs."""
        order = sorted(range(len(self.done)), key=self._places().__getitem__)
        self.done, self.parts = [self.done[n] for n in order], [self.parts[n] for n in order]
        names = [self.contests.name(subprogram, anon) for subprogram, anon in self.done]
        found = Selector(
            self.model, self.digest, self.settings, self.original, self.feeds, self.seconds, self.assembler,
            self.memory, self.parts, names, self.pieces, self.budget,
        ).optimised()  # fmt: skip
        self.original.rest()
        parts = list(found.parts)
        try:
            for n, part in enumerate(found.parts):
                parts[n] = self._badged(n, part)
        except KeyboardInterrupt:
            self.interrupted = True
        return replace(
            found,
            parts=tuple(parts),
            skipped=self.split.skipped,
            search_seconds=sum(outcome.search_seconds for outcome in self.contests.known.values()),
            interrupted=self.interrupted or found.interrupted,
        )


def optimize_model(
    model: str | Path | Model | Program,
    *,
    shapes: Mapping[str, tuple[int, ...]] = NOTHING,
    device: str = "cpu",
    threads: int | None = None,
    max_depth: int = 7,
    budget: float | str | None = None,
    target_runtime: str = "plan",
    numerics: str = "approximate",
    states: int | None = None,
    executor: Any = None,
) -> Optimised:
    """Optimise an ONNX model for this machine, or a program, whose weights are inputs then.

    *shapes* fixes dynamic inputs.  No part's contest begins after *budget* seconds (``60`` or ``"60s"``), all runs of
    the model counted, and selecting takes half as long at most.  With the *target_runtime* ``onnxruntime`` what pays
    in ONNX Runtime on the exported file is kept, instead of what pays in our plan.  *numerics* bounds what rules may do
    to the last digits (``graph/numerics.py``).  *states* bounds each search by its states and not by the clock;
    *executor* (``executors``) runs the searches.  Interrupting keeps what was found so far.  Raises ModelError for a
    model that cannot be read, ValueError for an unknown device or runtime.
    """
    chosen = replace(make_settings(device, threads, max_depth, target_runtime, numerics), states=states)
    work = Optimiser(read_model(model, shapes), chosen, parse_budget(budget), executor=executor)
    try:
        for _ in work.run():
            pass
    except KeyboardInterrupt:
        work.interrupted = True
    return work.result()


def tune_named_task(model: bytes, settings: Settings, budget: float | None, name: str) -> dict[str, Any]:
    """The outcome (``outcome.to_json``) of the contest of *model* that has this *name*, held where this runs."""
    work = _work(model, settings, budget)
    subprogram, anon = next((s, a) for s, a in work.anonymous() if work.contests.name(s, a) == name)
    return trial_to_json(work.contests.outcome(subprogram, anon))


@lru_cache(maxsize=2)
def _work(model: bytes, settings: Settings, budget: float | None) -> Optimiser:
    return Optimiser(load_model(model), settings, budget)
