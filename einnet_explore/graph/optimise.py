"""The main job: an ONNX model in, a verified program that is at least as fast out (EinNet §6.3, Algorithm 1).

The model is split into subprograms; for each, the original competes with derived candidates by measurement on this
device; the winners, joined and post-optimised, and what stays of the model (in as few ONNX Runtime sessions as
possible) make one plan, which is measured and checked as a whole.  What does not pay in the whole program is taken
back, so nothing gets slower.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

from einnet_explore.backends.measure import compare
from einnet_explore.backends.profiles import ProfileStore
from einnet_explore.cost import CostModel
from einnet_explore.graph.anonymous import Anonymous, anonymous
from einnet_explore.graph.assembling import Assembler
from einnet_explore.graph.badge import Badge, badge
from einnet_explore.graph.contest import Contest, Outcome, Settings
from einnet_explore.graph.elsewhere import Asked, Told, ahead, held
from einnet_explore.graph.finalists import SLACK
from einnet_explore.graph.joining import Piece
from einnet_explore.graph.judging import from_json, judged, to_json
from einnet_explore.graph.means import Means
from einnet_explore.graph.optimised import Optimised
from einnet_explore.graph.originals import original, values
from einnet_explore.graph.part import Part, among
from einnet_explore.graph.post.price import estimated, measured
from einnet_explore.graph.reading.model import Model
from einnet_explore.graph.remembered import Memory
from einnet_explore.graph.request import NOTHING, read, seconds_of, settings
from einnet_explore.graph.result import Result
from einnet_explore.graph.running.plan import Plan, build_plan, random_inputs
from einnet_explore.graph.split import Split, Subprogram, partition
from einnet_explore.graph.whole import telling_seed
from einnet_explore.ir import Program
from einnet_explore.search.watch import STARVED

LONGEST = 480.0
"""Seconds after which no further contest is begun, where no budget is given: the largest have been held by then, and
choosing among winners in the whole model takes some minutes, too."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One subprogram is done: the *done*-th of *total*."""

    done: int
    total: int
    part: Part


@dataclass
class Optimiser:
    """Optimising one model, part by part; ``run`` may be left at any time, ``result`` is what stands then."""

    model: Model
    settings: Settings
    budget: float | None = None
    store: ProfileStore = field(default_factory=ProfileStore)
    parts: list[Part] = field(default_factory=list)
    search_seconds: float = 0.0
    interrupted: bool = False
    executor: Any = None
    """What searches subprograms elsewhere, all at once (``executors``); measured is here, or on a cluster's devices."""

    def __post_init__(self) -> None:
        self.split: Split = partition(self.model)
        self.subprograms = tuple(s for joined in self.split.subprograms for s in (*joined.parts, joined))
        self.done: list[tuple[Subprogram, Anonymous]] = []
        self.memory = Memory(self.store)
        self.means = Means(self.settings, self.store)
        self.digest = self.model.digest()
        self._known: dict[str, Outcome] = {}
        self._judged: dict[str, Part] = {}
        self._found: dict[str, Told] = {}
        self.original: Plan = build_plan(self.model, {}, self.settings.threads)
        self.feeds = random_inputs(self.model, self._seed())
        self.seconds = self._whole()
        self.original.rest()

    def _seed(self) -> int:
        """The seed of inputs that tell right from wrong; remembered, as it takes at least two runs of the model."""
        known = self.memory.get("inputs", self.digest)
        if known is None:
            known = telling_seed(self.model, self.original)
            self.memory.put(known, "inputs", self.digest)
        return int(known)

    def _whole(self) -> float:
        """Seconds of the whole model; remembered, as a contest's effort depends on it and shall be the same again."""
        known = self.memory.get("model", self.digest, self.settings.threads)
        if known is None:
            known = compare({"it": lambda: self.original.run(self.feeds)}, rounds=5, min_seconds=0.05)["it"].low
            self.memory.put(known, "model", self.digest, self.settings.threads)
        return float(known)

    def run(self) -> Iterable[Progress]:
        """Hold every subprogram's contest, the same one once, in the order of ``anonymous``."""
        began = perf_counter()
        if self.executor is not None:
            self._ahead()
        for n, (subprogram, anon) in enumerate(self.anonymous(), 1):
            spent = perf_counter() - began
            if anon.signature not in self._known:
                if spent > (self.budget or LONGEST):
                    return
                self._known[anon.signature] = self._guarded(subprogram, anon, spent)
                self.search_seconds += self._known[anon.signature].search_seconds
            if anon.signature not in self._judged:
                self._judged[anon.signature] = judged(subprogram.nodes, self._known[anon.signature])
            part = replace(self._judged[anon.signature], nodes=subprogram.nodes)
            if subprogram.parts:
                part, self.parts = among(part, self.parts)
            self.parts.append(part)
            self.done.append((subprogram, anon))
            yield Progress(n, len(self.subprograms), part)

    def anonymous(self) -> Iterable[tuple[Subprogram, Anonymous]]:
        """Every subprogram, with its program without names: joined ones after their parts.

        Those come first that take longest by the estimate, equal ones together: wherever time runs out, it was spent
        where there was most to gain.
        """
        named = [[(s, anonymous(s.program)) for s in (*whole.parts, whole)] for whole in self.split.subprograms]
        seconds: defaultdict[str, float] = defaultdict(float)
        for *_, (_, anon) in named:
            seconds[anon.signature] += CostModel().program_cost(anon.program).seconds
        largest_first = sorted(named, key=lambda group: -seconds[group[-1][1].signature])
        return chain.from_iterable(largest_first)

    def _ahead(self) -> None:
        """Search every subprogram once on the executor; where that has devices, hold the contests there as well.

        All of it is done before anything is measured here.  What fails there is done here again.
        """
        asked: dict[str, Asked] = {}
        for subprogram, anon in self.anonymous():
            contest, effort, known = self._prepared(subprogram, anon, 0.0)
            if anon.signature not in asked and effort is not None and known is None:
                asked[anon.signature] = Asked(anon.program, effort, SLACK * contest.alone)
        self._known, self._found = ahead(self.executor, asked, self.model, self.means, self.budget)

    def _guarded(self, subprogram: Subprogram, anon: Anonymous, spent: float) -> Outcome:
        """The contest; a mistake of ours in one must not cost the user the others, and must not pass in silence."""
        try:
            return self.outcome(subprogram, anon, spent)
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            why = f"its search failed: {type(error).__name__}: {error}"
            warnings.warn(f"{', '.join(subprogram.nodes[:2])}: {why}", RuntimeWarning, stacklevel=2)
            return Outcome(0.0, 0.0, None, 0.0, 0, why)

    def outcome(self, subprogram: Subprogram, anon: Anonymous, spent: float) -> Outcome:
        """The contest of *subprogram*, or what an equal one came to that was given as much time."""
        contest, effort, known = self._prepared(subprogram, anon, spent)
        if effort is None:
            return contest.negligible(self.seconds)
        if known is not None:
            return known
        outcome = contest.hold(effort)
        self.memory.put({"effort": effort, "outcome": to_json(outcome)}, "contest", *self._key(anon))
        return outcome

    def _prepared(
        self, subprogram: Subprogram, anon: Anonymous, spent: float
    ) -> tuple[Contest, float | None, Outcome | None]:
        """The contest of *subprogram*, its effort, and what is remembered of an equal one with at least half of it."""
        opened, constants = original(self.model, subprogram, anon, self.settings.threads)
        answer = self._found.get(anon.signature)
        there = None if answer is None else partial(held, anon.program, answer)
        contest = Contest(
            anon.program, opened, constants, self.means.engine, self.means.cost, self._effort(spent), self.store, there
        )
        effort = contest.effort(self.seconds)
        kept = None if effort is None else self.memory.get("contest", *self._key(anon))
        if effort is None or kept is None or kept["effort"] < effort / 2:
            return contest, effort, None
        return contest, effort, from_json(kept["outcome"], anon.program)

    def _key(self, anon: Anonymous) -> tuple[str, Settings]:
        return anon.signature, replace(self.settings, seconds=0.0)

    def _badged(self, n: int, part: Part) -> Part:
        """*part*, the *n*-th, with what its derivation does to the last digits, if it is in the plan."""
        if not part.kept or part.derivation is None:
            return part
        subprogram, anon = self.done[n]
        key = (*self._key(anon), repr(part.derivation.end))
        known = self.memory.get("numerics", *key)
        if known is None:
            opened, constants = original(self.model, subprogram, anon, self.settings.threads)
            known = badge(part.derivation, opened, constants, self.means.engine).to_json()
            self.memory.put(known, "numerics", *key)
        return replace(part, measured=Badge.from_json(known))

    def _effort(self, spent: float) -> Settings:
        if self.budget is None:
            return self.settings
        left = (self.budget - spent) / STARVED  # searches count the processor's time
        return replace(self.settings, seconds=min(self.settings.seconds, max(0.2, left / 4)))

    @cached_property
    def assembler(self) -> Assembler:
        """What makes plans of the parts."""
        rough = partial(estimated, model=self.means.model)
        exact = measured(self.store, self.settings.threads, rough)
        return Assembler(self.model, self.settings, rough, exact, self.store, self.memory)

    def pieces(self, kept: Iterable[int]) -> list[Piece]:
        """The parts with these numbers, as they stand in the model."""
        out = []
        for n in sorted(kept):
            (subprogram, anon), derivation = self.done[n], self.parts[n].derivation
            assert derivation is not None
            out.append(Piece(subprogram.nodes, derivation.end, values(self.model, subprogram, anon)))
        return out

    def result(self) -> Optimised:
        """The plan of what won so far, measured and checked against ONNX Runtime on random inputs."""
        place = {subprogram.nodes: n for n, subprogram in enumerate(self.subprograms)}
        order = sorted(range(len(self.done)), key=lambda n: place[self.done[n][0].nodes])
        self.done, self.parts = [self.done[n] for n in order], [self.parts[n] for n in order]
        signatures = [anon.signature for _, anon in self.done]
        found = Result(
            self.model, self.digest, self.settings, self.original, self.feeds, self.seconds, self.assembler,
            self.memory, self.parts, signatures, self.pieces,
        ).optimised()  # fmt: skip
        self.original.rest()
        return replace(
            found,
            parts=tuple(self._badged(n, part) for n, part in enumerate(found.parts)),
            skipped=self.split.skipped,
            search_seconds=self.search_seconds,
            interrupted=self.interrupted,
        )


def optimize(
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

    *shapes* fixes dynamic inputs, *budget* ends the search after so many seconds (``60`` or ``"60s"``).  With the
    *target_runtime* ``onnxruntime`` what pays in ONNX Runtime on the exported file is kept, instead of what pays in our
    plan.  *numerics* bounds what rules may do to the last digits (``graph/numerics.py``).  *states* bounds each search
    by its states and not by the clock; *executor* (``executors``) runs the searches.  Interrupting keeps what was found
    so far.  Raises ModelError for a model that cannot be read, ValueError for an unknown device or runtime.
    """
    chosen = replace(settings(device, threads, max_depth, target_runtime, numerics), states=states)
    work = Optimiser(read(model, shapes), chosen, seconds_of(budget), executor=executor)
    try:
        for _ in work.run():
            pass
    except KeyboardInterrupt:
        work.interrupted = True
    return work.result()
