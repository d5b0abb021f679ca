"""The contests of one model: each held once, here or elsewhere, within the time there is, and remembered."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.finalists import MAX_ESTIMATE_RATIO
from einnet_explore.pipeline.history import TuningHistory
from einnet_explore.pipeline.implementations import Implementations
from einnet_explore.pipeline.originals import AnonymousProgram, open_original, operator_digest
from einnet_explore.pipeline.outcome import trial_from_json, trial_to_json
from einnet_explore.pipeline.partition import Subprogram
from einnet_explore.pipeline.remote_tuning import (
    SearchReply,
    SearchRequest,
    TaskRunner,
    tune_on_executor,
    variants_of_reply,
)
from einnet_explore.pipeline.tuning_task import OUT_OF_MEMORY, Settings, Trial, TuningTask
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.support.limits import ROOM, STARVED

DEFAULT_BUDGET_SECONDS = 480.0
"""Seconds after which no further contest is begun, where no budget is given: the largest have been held by then, and
choosing among winners in the whole model takes some minutes, too."""

REMOTE_TIME_SHARE = 0.5
"""The part of that time which may pass while work is done elsewhere: what was found there competes in the rest."""

ISOLATED_ERRORS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError, *OUT_OF_MEMORY)
"""What may go wrong in one contest, and must not cost the user the others."""


@dataclass
class Tuner:
    """The contests of *model*, one run of which takes so many *seconds*.

    None is begun after *budget* seconds of them, those of earlier runs of the model counted: a second run takes what
    the first one found, and only one with more time goes on.
    """

    model: Model
    digest: str
    seconds: float
    settings: Settings
    means: Implementations
    memory: TuningHistory
    store: ProfileStore
    budget: float | None = None
    closed: bool = False
    """Whether only what was found elsewhere still competes."""
    known: dict[str, Trial] = field(default_factory=dict)
    """What came of the contests, by ``name``."""

    def __post_init__(self) -> None:
        self._found: dict[str, SearchReply] = {}
        self._began: float | None = None
        self._before = float(self.memory.get("spent", *self._spending) or 0.0)

    def begin(self) -> None:
        """From now on time counts."""
        self._began = perf_counter()

    @property
    def spent(self) -> float:
        """Seconds of contests of this model, in earlier runs and this one."""
        return self._before + (0.0 if self._began is None else perf_counter() - self._began)

    @property
    def left(self) -> float:
        """Seconds within which contests may still begin."""
        return max(0.0, (self.budget or DEFAULT_BUDGET_SECONDS) - self.spent)

    def name(self, subprogram: Subprogram, anon: AnonymousProgram) -> str:
        """What equal layers have in common: the program, and the operators that it is written with."""
        return f"{anon.signature}\n{operator_digest(self.model, subprogram.nodes)}"

    def key(self, subprogram: Subprogram, anon: AnonymousProgram) -> tuple[str, Settings]:
        """By what a contest of such a subprogram is remembered."""
        return self.name(subprogram, anon), replace(self.settings, seconds=0.0)

    def ahead(
        self, executor: Any, subprograms: Iterable[tuple[Subprogram, AnonymousProgram]], contested: TaskRunner
    ) -> None:
        """Search each of *subprograms* once on *executor*; where that has devices, contests are *contested* there.

        All of it is done before any candidate is measured here.  What fails there, or is not done in its part of the
        time, is done here again.
        """
        until = perf_counter() + REMOTE_TIME_SHARE * self.left
        asked: dict[str, SearchRequest] = {}
        for subprogram, anon in subprograms:
            if perf_counter() > until:
                break
            name = self.name(subprogram, anon)
            if name in asked or name in self.known:
                continue
            try:
                contest, effort, known = self.prepared(subprogram, anon)
            except ISOLATED_ERRORS:
                continue  # which is told of where its contest is held
            if known is not None:
                self.known[name] = known
            elif effort is not None:
                asked[name] = SearchRequest(anon.program, effort, MAX_ESTIMATE_RATIO * contest.alone)
        left = max(0.0, until - perf_counter())
        for name, answer in tune_on_executor(executor, asked, self.model, self.means, self.budget, left, contested):
            match answer:
                case Trial():
                    self.known[name] = answer
                case SearchReply():
                    self._found[name] = answer

    def of(self, subprogram: Subprogram, anon: AnonymousProgram) -> Trial | None:
        """What comes of the contest of *subprogram*; None where there is no time for it and none is remembered."""
        name = self.name(subprogram, anon)
        if name not in self.known:
            late = not self.left or (self.closed and name not in self._found)
            outcome = self._guarded(subprogram, anon, late)
            if outcome is None:
                return None
            self.known[name] = outcome
        return self.known[name]

    def _guarded(self, subprogram: Subprogram, anon: AnonymousProgram, late: bool) -> Trial | None:
        """The outcome; a mistake of ours in one must not cost the user the others, and must not pass in silence."""
        try:
            return self._remembered(subprogram, anon) if late else self.outcome(subprogram, anon)
        except ISOLATED_ERRORS as error:
            why = f"its search failed: {type(error).__name__}: {error}"
            warnings.warn(f"{', '.join(subprogram.nodes[:2])}: {why}", RuntimeWarning, stacklevel=2)
            return Trial(0.0, 0.0, None, 0.0, 0, why)

    def _remembered(self, subprogram: Subprogram, anon: AnonymousProgram) -> Trial | None:
        """What an earlier run came to; None where that had no time for it."""
        if not self._contest(subprogram, anon).timed:
            return None
        contest, effort, known = self.prepared(subprogram, anon)
        return contest.negligible(self.seconds) if effort is None else known

    def outcome(self, subprogram: Subprogram, anon: AnonymousProgram) -> Trial:
        """The contest of *subprogram*, or what an equal one came to that was given as much time.

        What a limit of memory decided is not remembered: with another one it would be another.
        """
        contest, effort, known = self.prepared(subprogram, anon)
        if effort is None:
            return contest.negligible(self.seconds)
        if known is not None:
            return known
        wanting = ROOM.wanting
        outcome = contest.hold(effort)
        if ROOM.wanting == wanting:
            found = {"effort": effort, "outcome": trial_to_json(outcome)}
            self.memory.put(found, "contest", *self.key(subprogram, anon))
        self.memory.put(self.spent, "spent", *self._spending)
        return outcome

    def prepared(self, subprogram: Subprogram, anon: AnonymousProgram) -> tuple[TuningTask, float | None, Trial | None]:
        """The contest of *subprogram*, its effort, and what is remembered of an equal one with at least half of it."""
        contest = self._contest(subprogram, anon)
        effort = contest.effort(self.seconds)
        kept = None if effort is None else self.memory.get("contest", *self.key(subprogram, anon))
        if effort is None or kept is None or kept["effort"] < effort / 2:
            return contest, effort, None
        return contest, effort, trial_from_json(kept["outcome"], anon.program)

    def _contest(self, subprogram: Subprogram, anon: AnonymousProgram) -> TuningTask:
        opened, constants = open_original(self.model, subprogram, anon, self.settings.threads)
        answer = self._found.get(self.name(subprogram, anon))
        there = None if answer is None else partial(variants_of_reply, anon.program, answer)
        return TuningTask(
            anon.program, opened, constants, self.means.engine, self.means.cost, self._effort(), self.store, there,
            operator_digest(self.model, subprogram.nodes),
        )  # fmt: skip

    def _effort(self) -> Settings:
        if self.budget is None:
            return self.settings
        left = self.left / STARVED  # searches count the processor's time
        return replace(self.settings, seconds=min(self.settings.seconds, max(0.2, left / 4)))

    @property
    def _spending(self) -> tuple[str, Settings]:
        return self.digest, replace(self.settings, seconds=0.0)
