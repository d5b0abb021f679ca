"""The tuner of one model: each distinct tuning task is run once, within the time budget, and remembered.

Searches and whole tasks may run on other processes and machines (remote tuning).  A search bounded by *states* gives
the same variants on every machine: its cost model travels with it, with the rates and times of the machine that asks.
Derivations travel as steps, which the receiver applies again, so no reply is trusted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import TypeAlias

from einnet_explore.cost import CostModel
from einnet_explore.cost.model import Device
from einnet_explore.ir import Equation, Program, Table
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.subprogram import (
    Subprogram,
    Trial,
    open_original,
    operator_digest,
    trial_from_json,
    trial_to_json,
)
from einnet_explore.pipeline.tuning_context import OUT_OF_MEMORY, Implementations, Settings, TuningHistory
from einnet_explore.pipeline.tuning_task import (
    MAX_ESTIMATE_RATIO,
    FoundVariants,
    TuningTask,
    Variant,
    find_variants,
    requested_variants,
)
from einnet_explore.rules import Derivation
from einnet_explore.rules.base import MatchJson
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.profile_store import ProfileKey, device_name, library_versions, profile_key
from einnet_explore.strategies.candidate import replay, steps_to_json
from einnet_explore.support.executors import (
    Cluster,
    WorkExecutor,
    has_device,
    iterate_settled,
    submit_device_work,
    submit_work,
)
from einnet_explore.support.json_values import JsonObject, as_number, as_object
from einnet_explore.support.limits import MEMORY_LIMIT, STARVATION_FACTOR, limit_memory

Steps: TypeAlias = "list[MatchJson]"

TaskRunner: TypeAlias = "Callable[[str], JsonObject]"
"""Runs the tuning task of one name on a device: ``optimiser.tune_named_task`` with its model and settings."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A *program* to be searched for *seconds*; variants estimated *below* so many seconds may be measured."""

    program: Program
    seconds: float
    below: float


@dataclass(frozen=True, slots=True)
class SearchReply:
    """The variants of a search: seconds, kind, tables and, if a task may need the derivation, its steps.

    *states* were seen; the search was *cut* off if memory ran short.
    """

    ranked: list[tuple[float, Hashable, tuple[Table, ...], Steps | None]]
    states: int
    cut: bool


@dataclass(frozen=True)
class PortableCost:
    """A cost model that travels: a machine's rates, and the seconds that equations are *known* to take on it."""

    rates: Device
    threads: int
    known: Mapping[ProfileKey, float] = field(repr=False)
    device: str = field(default_factory=device_name)
    library: str = field(default_factory=library_versions)

    @staticmethod
    def of(rates: Device, store: ProfileStore, threads: int) -> PortableCost:
        """Return the cost model of this machine, with the times in *store*."""
        return PortableCost(rates, threads, store.known(threads))

    def __call__(self, program: Program) -> tuple[float, str]:
        found = CostModel(self.rates, self._find).program_cost(program)
        return found.seconds, found.how

    def _find(self, equation: Equation) -> float | None:
        return self.known.get(replace(profile_key(equation, self.threads), device=self.device, library=self.library))


def tune_on_executor(
    executor: WorkExecutor,
    requests: Mapping[str, SearchRequest],
    implementations: Implementations,
    seconds: float,
    task_runner: Callable[[], TaskRunner],
) -> Iterable[tuple[str, Trial | SearchReply]]:
    """Answer *requests*, by task name, on *executor*: trials by *task_runner* if it has devices, else search replies.

    Answers come in any order; after *seconds* the missing ones are cancelled.
    """
    settings = implementations.settings
    if has_device(executor):
        return tune_on_devices(executor, requests, seconds, task_runner())
    cost = PortableCost.of(implementations.model.device, implementations.store, settings.threads)
    return search_on_executor(executor, requests, cost, settings, seconds)


def search_on_executor(
    executor: WorkExecutor,
    requests: Mapping[str, SearchRequest],
    cost: PortableCost,
    settings: Settings,
    seconds: float,
) -> Iterable[tuple[str, SearchReply]]:
    """Search each program on *executor*; searches that fail there are left out.

    The memory limit of this process holds for each of the executor's processes too.
    """
    limit = None if isinstance(executor, Cluster) else MEMORY_LIMIT.limit
    futures = {
        name: submit_work(executor, answer_request, request, cost, settings, limit)
        for name, request in requests.items()
    }
    return iterate_settled(executor, futures, seconds)


def tune_on_devices(
    executor: WorkExecutor,
    requests: Mapping[str, SearchRequest],
    seconds: float,
    run_task: TaskRunner,
) -> Iterable[tuple[str, Trial]]:
    """Run the tuning tasks of *requests* on the devices of *executor*; tasks that fail there are left out."""
    futures = {name: submit_device_work(executor, run_task, name) for name in requests}
    for name, answer in iterate_settled(executor, futures, seconds):
        trial = trial_from_json(answer, requests[name].program)
        if trial is not None:
            yield name, trial


def answer_request(
    request: SearchRequest, cost: PortableCost, settings: Settings, limit: int | None = None
) -> SearchReply:
    """Answer *request* within the memory *limit*; the reply has the steps of variants that a task may need."""
    with limit_memory(limit):
        found = find_variants(request.program, cost, replace(settings, seconds=request.seconds))
    needed = {id(variant) for variant in requested_variants(found.variants, settings, request.below)}
    sent = [
        (v.seconds, v.kind, v.tables, steps_to_json(v.derivation()) if id(v) in needed else None)
        for v in found.variants
    ]
    return SearchReply(sent, found.states, found.memory_short)


def variants_of_reply(program: Program, reply: SearchReply) -> FoundVariants:
    """Return the variants of *program* in *reply*; steps are applied on demand."""
    ranked = [
        Variant(seconds, kind, partial(_replay_steps, program, steps), tables)
        for seconds, kind, tables, steps in reply.ranked
    ]
    return FoundVariants(ranked, reply.states, reply.cut)


def _replay_steps(program: Program, steps: Steps | None) -> Derivation:
    if steps is None:
        raise LookupError("the candidate was not requested from its worker")
    return replay(program, steps)


DEFAULT_BUDGET_SECONDS = 480.0
"""Seconds after which no further task is begun, if no budget is given: the largest have been tuned by then, and the
selection in the whole model takes some minutes, too."""

REMOTE_TIME_SHARE = 0.5
"""Part of that time for remote tuning: what it finds is measured in the rest."""

ISOLATED_ERRORS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError, *OUT_OF_MEMORY)
"""Exceptions that end one task and no other."""


@dataclass
class Tuner:
    """The tuning tasks of *model*, whose digest is *digest* and a run of which takes *model_seconds*.

    No task is begun after *budget* seconds of tuning, those of earlier runs of the model counted: a second run takes
    what the first one found, and only one with more time goes on.
    """

    model: Model
    digest: str
    model_seconds: float
    implementations: Implementations
    history: TuningHistory
    budget: float | None = None
    closed: bool = False
    """Whether only variants that were found remotely are still measured."""
    trials: dict[str, Trial] = field(default_factory=dict)
    """The trials so far, by task name."""
    _replies: dict[str, SearchReply] = field(default_factory=dict, init=False)
    _began: float | None = field(default=None, init=False)

    @cached_property
    def _earlier_seconds(self) -> float:
        """Seconds of tuning in earlier runs."""
        return as_number(self.history.get("spent", *self._spending) or 0.0)

    def start_clock(self) -> None:
        """Count time from now on."""
        self._began = perf_counter()

    @property
    def spent(self) -> float:
        """Seconds of tuning of this model, in earlier runs and this one."""
        return self._earlier_seconds + (0.0 if self._began is None else perf_counter() - self._began)

    @property
    def left(self) -> float:
        """Seconds within which tasks may still begin."""
        return max(0.0, (self.budget or DEFAULT_BUDGET_SECONDS) - self.spent)

    def history_key(self, subprogram: Subprogram) -> tuple[str, Settings]:
        """Return the key by which the trial of *subprogram* is remembered."""
        return subprogram.task_name(self.model), self._timeless_settings

    @property
    def _timeless_settings(self) -> Settings:
        return replace(self.implementations.settings, seconds=0.0)

    def tune_ahead(
        self, executor: WorkExecutor, subprograms: Iterable[Subprogram], task_runner: Callable[[], TaskRunner]
    ) -> None:
        """Search each distinct subprogram once on *executor*; if that has devices, tune it there by *task_runner*.

        All of it is done before any variant is measured here.  Tasks that fail or are late there are done again here.
        """
        until = perf_counter() + REMOTE_TIME_SHARE * self.left
        requests: dict[str, SearchRequest] = {}
        for subprogram in subprograms:
            if perf_counter() > until:
                break
            name = subprogram.task_name(self.model)
            if name in requests or name in self.trials:
                continue
            try:
                task, effort, known = self.prepare(subprogram)
            except ISOLATED_ERRORS:
                continue  # ``trial_of`` meets the same error and warns
            if known is not None:
                self.trials[name] = known
            elif effort is not None:
                requests[name] = SearchRequest(task.program, effort, MAX_ESTIMATE_RATIO * task.original_seconds)
        left = max(0.0, until - perf_counter())
        for name, answer in tune_on_executor(executor, requests, self.implementations, left, task_runner):
            match answer:
                case Trial():
                    self.trials[name] = answer
                case SearchReply():
                    self._replies[name] = answer

    def trial_of(self, subprogram: Subprogram) -> Trial | None:
        """Return the trial of *subprogram*; None if there is no time for it and none is remembered."""
        name = subprogram.task_name(self.model)
        if name not in self.trials:
            trial = self._isolated_trial(subprogram)
            if trial is None:
                return None
            self.trials[name] = trial
        return self.trials[name]

    def _isolated_trial(self, subprogram: Subprogram) -> Trial | None:
        """Return the trial; a failure warns and keeps the original, and costs no other subprogram."""
        late = not self.left or (self.closed and subprogram.task_name(self.model) not in self._replies)
        try:
            return self._remembered_trial(subprogram) if late else self.run_task(subprogram)
        except ISOLATED_ERRORS as error:
            why = f"its search failed: {type(error).__name__}: {error}"
            warnings.warn(f"{', '.join(subprogram.nodes[:2])}: {why}", RuntimeWarning, stacklevel=2)
            return Trial(seconds_before=0.0, seconds_after=0.0, why=why)

    def _remembered_trial(self, subprogram: Subprogram) -> Trial | None:
        """Return the trial of an earlier run; None if that had no time for it."""
        if not self._task(subprogram).is_original_timed:
            return None
        task, effort, known = self.prepare(subprogram)
        return task.negligible_trial(self.model_seconds) if effort is None else known

    def run_task(self, subprogram: Subprogram) -> Trial:
        """Run the task of *subprogram*, or return the trial of an equal one that had as much time.

        A trial that a memory limit decided is not remembered: another limit may decide otherwise.
        """
        task, effort, known = self.prepare(subprogram)
        if effort is None:
            return task.negligible_trial(self.model_seconds)
        if known is not None:
            return known
        trial = task.run(effort)
        if not trial.memory_short:
            found = {"effort": effort, "outcome": trial_to_json(trial)}
            self.history.record(found, "contest", *self.history_key(subprogram))
        self.history.record(self.spent, "spent", *self._spending)
        return trial

    def prepare(self, subprogram: Subprogram) -> tuple[TuningTask, float | None, Trial | None]:
        """Return the task of *subprogram*, its effort, and a remembered trial that had at least half of that effort."""
        task = self._task(subprogram)
        effort = task.search_effort(self.model_seconds)
        document = None if effort is None else self.history.get("contest", *self.history_key(subprogram))
        if effort is None or document is None:
            return task, effort, None
        known = as_object(document)
        enough = as_number(known["effort"]) >= effort / 2
        return task, effort, trial_from_json(known["outcome"], task.program) if enough else None

    def _task(self, subprogram: Subprogram) -> TuningTask:
        program = subprogram.anonymous.program
        opener, constants = open_original(self.model, subprogram, self.implementations.settings.threads)
        reply = self._replies.get(subprogram.task_name(self.model))
        return TuningTask(
            program,
            opener,
            constants,
            self.implementations.context(self._limited_settings()),
            operators=operator_digest(self.model, subprogram.nodes),
            found=None if reply is None else variants_of_reply(program, reply),
        )

    def _limited_settings(self) -> Settings:
        settings = self.implementations.settings
        if self.budget is None:
            return settings
        left = self.left / STARVATION_FACTOR  # searches count the processor's time
        return replace(settings, seconds=min(settings.seconds, max(0.2, left / 4)))

    @property
    def _spending(self) -> tuple[str, Settings]:
        return self.digest, self._timeless_settings
