"""Remote tuning: searches and whole tuning tasks on other processes and machines.

A search bounded by *states* gives the same variants on every machine: its cost model travels with it, with the rates
and times of the machine that asks.  Derivations travel as steps, which the receiver applies again, so no reply is
trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from einnet_explore.cost import CostModel, Device
from einnet_explore.ir import Equation, Program
from einnet_explore.pipeline.tuning_context import Implementations, Settings
from einnet_explore.pipeline.tuning_task import Trial, trial_from_json
from einnet_explore.pipeline.variants import FoundVariants, TableShapes, Variant, find_variants, requested_variants
from einnet_explore.rules import Derivation
from einnet_explore.rules.base import MatchJson
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.profile_store import ProfileKey, device_name, library_versions, recorded_key
from einnet_explore.strategies.candidate import replay, steps_to_json
from einnet_explore.support.executors import (
    Cluster,
    WorkExecutor,
    has_device,
    iterate_settled,
    submit_device_work,
    submit_work,
)
from einnet_explore.support.json_values import JsonObject
from einnet_explore.support.limits import MEMORY_LIMIT, limit_memory

Steps: TypeAlias = "list[MatchJson]"

TaskRunner: TypeAlias = "Callable[[str], JsonObject]"
"""Runs the tuning task of one name on a device: ``optimiser.tune_named_task`` with its model and settings."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A *program* to be searched for *seconds*; variants estimated *below* so many seconds may be measured.

    The model reads *displacing_bytes* between two runs of the program.
    """

    program: Program
    seconds: float
    below: float
    displacing_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SentVariant:
    """A ``Variant`` that travels: its derivation by *steps*, None if a task does not need it."""

    seconds: float
    kind: Hashable
    algorithm: TableShapes
    is_generated: bool
    steps: Steps | None

    def received(self, program: Program) -> Variant:
        """Return the variant of *program*; its steps are applied on demand."""
        return Variant(
            self.seconds, self.kind, partial(_replay_steps, program, self.steps), self.algorithm, self.is_generated
        )


@dataclass(frozen=True, slots=True)
class SearchReply:
    """The *variants* of a search; *states* were seen; the search was *cut* off if memory ran short."""

    variants: list[SentVariant]
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
    displacing_bytes: int = 0

    @staticmethod
    def of(rates: Device, store: ProfileStore, threads: int) -> PortableCost:
        """Return the cost model of this machine, with the times in *store*."""
        return PortableCost(rates, threads, store.known(threads))

    def __call__(self, program: Program) -> tuple[float, str]:
        return CostModel(self.rates, self._find, displacing_bytes=self.displacing_bytes)(program)

    def _find(self, equation: Equation) -> float | None:
        return self.known.get(recorded_key(equation, self.device, self.library, self.threads))


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
    displaced = replace(cost, displacing_bytes=request.displacing_bytes)
    with limit_memory(limit):
        found = find_variants(request.program, displaced, replace(settings, seconds=request.seconds))
    needed = {id(variant) for variant in requested_variants(found.variants, settings, request.below)}
    sent = [
        SentVariant(
            v.seconds, v.kind, v.algorithm, v.is_generated, steps_to_json(v.derivation()) if id(v) in needed else None
        )
        for v in found.variants
    ]
    return SearchReply(sent, found.states, found.memory_short)


def variants_of_reply(program: Program, reply: SearchReply) -> FoundVariants:
    """Return the variants of *program* in *reply*."""
    return FoundVariants([sent.received(program) for sent in reply.variants], reply.states, reply.cut)


def _replay_steps(program: Program, steps: Steps | None) -> Derivation:
    if steps is None:
        raise LookupError("the candidate was not requested from its worker")
    return replay(program, steps)
