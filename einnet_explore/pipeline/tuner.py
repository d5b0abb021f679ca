"""The contests of one model: each held once, here or elsewhere, within the time there is, and remembered."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.finalists import SLACK
from einnet_explore.pipeline.history import Memory
from einnet_explore.pipeline.implementations import Means
from einnet_explore.pipeline.originals import Anonymous, original, written
from einnet_explore.pipeline.outcome import from_json, to_json
from einnet_explore.pipeline.partition import Subprogram
from einnet_explore.pipeline.remote_tuning import Asked, Contested, Told, ahead, held
from einnet_explore.pipeline.tuning_task import WANT_OF_MEMORY, Contest, Outcome, Settings
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.support.limits import ROOM, STARVED

LONGEST = 480.0
"""Seconds after which no further contest is begun, where no budget is given: the largest have been held by then, and
choosing among winners in the whole model takes some minutes, too."""

AHEAD = 0.5
"""The part of that time which may pass while work is done elsewhere: what was found there competes in the rest."""

MISTAKES = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError, *WANT_OF_MEMORY)
"""What may go wrong in one contest, and must not cost the user the others."""


@dataclass
class Contests:
    """The contests of *model*, one run of which takes so many *seconds*.

    None is begun after *budget* seconds of them, those of earlier runs of the model counted: a second run takes what
    the first one found, and only one with more time goes on.
    """

    model: Model
    digest: str
    seconds: float
    settings: Settings
    means: Means
    memory: Memory
    store: ProfileStore
    budget: float | None = None
    closed: bool = False
    """Whether only what was found elsewhere still competes."""
    known: dict[str, Outcome] = field(default_factory=dict)
    """What came of the contests, by ``name``."""

    def __post_init__(self) -> None:
        self._found: dict[str, Told] = {}
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
        return max(0.0, (self.budget or LONGEST) - self.spent)

    def name(self, subprogram: Subprogram, anon: Anonymous) -> str:
        """What equal layers have in common: the program, and the operators that it is written with."""
        return f"{anon.signature}\n{written(self.model, subprogram.nodes)}"

    def key(self, subprogram: Subprogram, anon: Anonymous) -> tuple[str, Settings]:
        """By what a contest of such a subprogram is remembered."""
        return self.name(subprogram, anon), replace(self.settings, seconds=0.0)

    def ahead(self, executor: Any, subprograms: Iterable[tuple[Subprogram, Anonymous]], contested: Contested) -> None:
        """Search each of *subprograms* once on *executor*; where that has devices, contests are *contested* there.

        All of it is done before any candidate is measured here.  What fails there, or is not done in its part of the
        time, is done here again.
        """
        until = perf_counter() + AHEAD * self.left
        asked: dict[str, Asked] = {}
        for subprogram, anon in subprograms:
            if perf_counter() > until:
                break
            name = self.name(subprogram, anon)
            if name in asked or name in self.known:
                continue
            try:
                contest, effort, known = self.prepared(subprogram, anon)
            except MISTAKES:
                continue  # which is told of where its contest is held
            if known is not None:
                self.known[name] = known
            elif effort is not None:
                asked[name] = Asked(anon.program, effort, SLACK * contest.alone)
        left = max(0.0, until - perf_counter())
        for name, answer in ahead(executor, asked, self.model, self.means, self.budget, left, contested):
            match answer:
                case Outcome():
                    self.known[name] = answer
                case Told():
                    self._found[name] = answer

    def of(self, subprogram: Subprogram, anon: Anonymous) -> Outcome | None:
        """What comes of the contest of *subprogram*; None where there is no time for it and none is remembered."""
        name = self.name(subprogram, anon)
        if name not in self.known:
            late = not self.left or (self.closed and name not in self._found)
            outcome = self._guarded(subprogram, anon, late)
            if outcome is None:
                return None
            self.known[name] = outcome
        return self.known[name]

    def _guarded(self, subprogram: Subprogram, anon: Anonymous, late: bool) -> Outcome | None:
        """The outcome; a mistake of ours in one must not cost the user the others, and must not pass in silence."""
        try:
            return self._remembered(subprogram, anon) if late else self.outcome(subprogram, anon)
        except MISTAKES as error:
            why = f"its search failed: {type(error).__name__}: {error}"
            warnings.warn(f"{', '.join(subprogram.nodes[:2])}: {why}", RuntimeWarning, stacklevel=2)
            return Outcome(0.0, 0.0, None, 0.0, 0, why)

    def _remembered(self, subprogram: Subprogram, anon: Anonymous) -> Outcome | None:
        """What an earlier run came to; None where that had no time for it."""
        if not self._contest(subprogram, anon).timed:
            return None
        contest, effort, known = self.prepared(subprogram, anon)
        return contest.negligible(self.seconds) if effort is None else known

    def outcome(self, subprogram: Subprogram, anon: Anonymous) -> Outcome:
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
            found = {"effort": effort, "outcome": to_json(outcome)}
            self.memory.put(found, "contest", *self.key(subprogram, anon))
        self.memory.put(self.spent, "spent", *self._spending)
        return outcome

    def prepared(self, subprogram: Subprogram, anon: Anonymous) -> tuple[Contest, float | None, Outcome | None]:
        """The contest of *subprogram*, its effort, and what is remembered of an equal one with at least half of it."""
        contest = self._contest(subprogram, anon)
        effort = contest.effort(self.seconds)
        kept = None if effort is None else self.memory.get("contest", *self.key(subprogram, anon))
        if effort is None or kept is None or kept["effort"] < effort / 2:
            return contest, effort, None
        return contest, effort, from_json(kept["outcome"], anon.program)

    def _contest(self, subprogram: Subprogram, anon: Anonymous) -> Contest:
        opened, constants = original(self.model, subprogram, anon, self.settings.threads)
        answer = self._found.get(self.name(subprogram, anon))
        there = None if answer is None else partial(held, anon.program, answer)
        return Contest(
            anon.program, opened, constants, self.means.engine, self.means.cost, self._effort(), self.store, there,
            written(self.model, subprogram.nodes),
        )  # fmt: skip

    def _effort(self) -> Settings:
        if self.budget is None:
            return self.settings
        left = self.left / STARVED  # searches count the processor's time
        return replace(self.settings, seconds=min(self.settings.seconds, max(0.2, left / 4)))

    @property
    def _spending(self) -> tuple[str, Settings]:
        return self.digest, replace(self.settings, seconds=0.0)
