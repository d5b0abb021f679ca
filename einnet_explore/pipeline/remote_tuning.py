"""Remote tuning: searches and whole tuning tasks of subprograms on other processes and machines.

A search bounded by *states* gives the same variants wherever it runs: its cost travels with it, as the rates and times
of the machine that asks.  Derivations travel as steps and are applied again by the receiver, so nothing is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from einnet_explore.cost import CostModel
from einnet_explore.cost.model import Device
from einnet_explore.ir import Equation, Program, Table
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.trial import Trial, trial_from_json
from einnet_explore.pipeline.tuning_context import Implementations, Settings
from einnet_explore.pipeline.tuning_task import requested_variants
from einnet_explore.pipeline.variants import Variant, find_variants
from einnet_explore.rules import Derivation
from einnet_explore.rules.base import MatchJson
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.profile_store import ProfileKey, device_name, library_versions, profile_key
from einnet_explore.strategies.candidate import replay, steps_to_json
from einnet_explore.support.executors import (
    Cluster,
    has_device,
    iterate_settled,
    submit_device_work,
    submit_work,
)
from einnet_explore.support.limits import MEMORY_LIMIT, MemoryWatch, limit_memory

Steps: TypeAlias = "list[MatchJson]"

TaskRunner: TypeAlias = "Callable[[bytes, Settings, float | None, str], dict[str, Any]]"
"""Runs one named tuning task of a serialized model on a device: ``optimiser.tune_named_task``."""


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
    executor: Any,
    requests: Mapping[str, SearchRequest],
    model: Model,
    implementations: Implementations,
    budget: float | None,
    seconds: float,
    run_task: TaskRunner,
) -> Iterable[tuple[str, Trial | SearchReply]]:
    """Answer *requests*, by task name, on *executor*: trials by *run_task* if it has devices, else search replies.

    Answers come in any order; after *seconds* the missing ones are cancelled.
    """
    settings = implementations.settings
    if has_device(executor):
        return tune_on_devices(
            executor, requests, run_task, (model.original.SerializeToString(), settings, budget), seconds
        )
    cost = PortableCost.of(implementations.model.device, implementations.store, settings.threads)
    return search_on_executor(executor, requests, cost, settings, seconds)


def search_on_executor(
    executor: Any, requests: Mapping[str, SearchRequest], cost: PortableCost, settings: Settings, seconds: float
) -> Iterable[tuple[str, SearchReply]]:
    """Search each program on *executor*; searches that fail there are left out.

    The memory limit of this process holds for each of the executor's processes too.
    """
    limit = None if isinstance(executor, Cluster) else MEMORY_LIMIT.limit
    futures = {
        name: submit_work(executor, answer_request, r.program, cost, settings, r.seconds, r.below, limit)
        for name, r in requests.items()
    }
    return iterate_settled(executor, futures, seconds)


def tune_on_devices(
    executor: Any,
    requests: Mapping[str, SearchRequest],
    run_task: TaskRunner,
    arguments: tuple[bytes, Settings, float | None],
    seconds: float,
) -> Iterable[tuple[str, Trial]]:
    """Run the tuning tasks of *requests* on the devices of *executor*; tasks that fail there are left out.

    *arguments* of *run_task* are the serialized model, settings and budget.
    """
    futures = {name: submit_device_work(executor, run_task, *arguments, name) for name in requests}
    for name, answer in iterate_settled(executor, futures, seconds):
        trial = trial_from_json(answer, requests[name].program)
        if trial is not None:
            yield name, trial


def answer_request(
    program: Program, cost: PortableCost, settings: Settings, seconds: float, below: float, limit: int | None = None
) -> SearchReply:
    """Search *program* within the memory *limit*; the reply has the steps of variants that a task may need."""
    memory = MemoryWatch()
    with limit_memory(limit):
        ranked, states = find_variants(
            program, cost, settings.max_depth, seconds, settings.numerics, settings.states, memory
        )
    needed = {id(variant) for variant in requested_variants(ranked, settings, below)}
    sent = [(v.seconds, v.kind, v.tables, steps_to_json(v.derivation()) if id(v) in needed else None) for v in ranked]
    return SearchReply(sent, states, memory.short)


def variants_of_reply(program: Program, reply: SearchReply, memory: MemoryWatch) -> tuple[list[Variant], int]:
    """Return the variants of *program* in *reply*, and the states seen; steps are applied on demand."""
    if reply.cut:
        memory.stopped()
    ranked = [
        Variant(seconds, kind, partial(_replayed, program, steps), tables)
        for seconds, kind, tables, steps in reply.ranked
    ]
    return ranked, reply.states


def _replayed(program: Program, steps: Steps | None) -> Derivation:
    if steps is None:
        raise LookupError("a candidate that no contest asks for was left where it was found")
    return replay(program, steps)
