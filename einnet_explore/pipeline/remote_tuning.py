"""Searches and contests of subprograms on other processes and machines: plain values there and back.

A search gives the same candidates wherever it runs, if its *states* are bounded and not its seconds: its cost travels
with it, as the rates and times of the machine that asks.  Derivations travel as their steps and are applied again by
who asked, so nothing has to be believed.
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
from einnet_explore.pipeline.finalists import Variant, find_variants
from einnet_explore.pipeline.implementations import Implementations
from einnet_explore.pipeline.outcome import trial_from_json
from einnet_explore.pipeline.tuning_task import Settings, Trial, requested_variants
from einnet_explore.rules import Derivation
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.keys import Key, device, key_of, libraries
from einnet_explore.strategies.candidate import replay, steps_to_json
from einnet_explore.support.executors import clustered, has_device, settled, submitted
from einnet_explore.support.limits import ROOM, limited

Steps: TypeAlias = "list[dict[str, Any]]"

TaskRunner: TypeAlias = "Callable[[bytes, Settings, float | None, str], dict[str, Any]]"
"""Holds one contest of a serialized model on a device, by name: ``optimiser.contested``."""


@dataclass(frozen=True, slots=True)
class SearchReply:
    """What a search found: every candidate's seconds, kind, tables and, if a contest may ask for it, its steps.

    So many *states* were seen; it was *cut* off where it had to stop for want of memory.
    """

    ranked: list[tuple[float, Hashable, tuple[Table, ...], Steps | None]]
    states: int
    cut: bool


@dataclass(frozen=True)
class PortableCost:
    """A cost that travels: a machine's rates, and the seconds that equations were *known* to take on it."""

    rates: Device
    threads: int
    known: Mapping[Key, float] = field(repr=False)
    device: str = field(default_factory=device)
    library: str = field(default_factory=libraries)

    @staticmethod
    def of(rates: Device, store: ProfileStore, threads: int) -> PortableCost:
        """Those of this machine, with the times that *store* holds."""
        return PortableCost(rates, threads, store.known(threads))

    def __call__(self, program: Program) -> tuple[float, str]:
        found = CostModel(self.rates, self._find).program_cost(program)
        return found.seconds, found.how

    def _find(self, equation: Equation) -> float | None:
        return self.known.get(replace(key_of(equation, self.threads), device=self.device, library=self.library))


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A *program* to be searched for *seconds*; candidates estimated *below* so many may be worth measuring."""

    program: Program
    seconds: float
    below: float


def tune_on_executor(
    executor: Any,
    asked: Mapping[str, SearchRequest],
    model: Model,
    means: Implementations,
    budget: float | None,
    seconds: float,
    contested: TaskRunner,
) -> Iterable[tuple[str, Trial | SearchReply]]:
    """What *executor* makes of the programs that are *asked* for: *contested* where it has devices, else searches.

    They are told as they come; after *seconds* the others are cancelled.
    """
    if has_device(executor):
        return tune_on_devices(executor, asked, model, means.settings, budget, seconds, contested)
    cost = PortableCost.of(means.model.device, means.store, means.settings.threads)
    return search_on_executor(executor, asked, cost, means.settings, seconds)


def search_on_executor(
    executor: Any, asked: Mapping[str, SearchRequest], cost: PortableCost, settings: Settings, seconds: float
) -> Iterable[tuple[str, SearchReply]]:
    """What *executor* finds for each program that is *asked* for; without those whose search fails there.

    The limit of memory of this process is that of each of its processes, too.
    """
    limit = None if clustered(executor) else ROOM.limit
    futures = {
        name: submitted(executor, answer_request, a.program, cost, settings, a.seconds, a.below, limit)
        for name, a in asked.items()
    }
    return settled(executor, futures, seconds)


def tune_on_devices(
    executor: Any,
    asked: Mapping[str, SearchRequest],
    model: Model,
    settings: Settings,
    budget: float | None,
    seconds: float,
    contested: TaskRunner,
) -> Iterable[tuple[str, Trial]]:
    """The outcomes of the contests of *model* that *executor*'s devices hold; without those that fail there."""
    sent = model.original.SerializeToString()
    futures = {name: submitted(executor, contested, sent, settings, budget, name, device=True) for name in asked}
    for name, said in settled(executor, futures, seconds):
        outcome = trial_from_json(said, asked[name].program)
        if outcome is not None:
            yield name, outcome


def answer_request(
    program: Program, cost: PortableCost, settings: Settings, seconds: float, below: float, limit: int | None = None
) -> SearchReply:
    """What a search of *program* finds within the *limit* of memory; steps only of what its contest may ask for."""
    wanting = ROOM.wanting
    with limited(limit):
        ranked, states = find_variants(program, cost, settings.max_depth, seconds, settings.numerics, settings.states)
    wanted = {id(entry) for entry in requested_variants(ranked, settings, below)}
    sent = [(e.seconds, e.kind, e.tables, steps_to_json(e.derivation()) if id(e) in wanted else None) for e in ranked]
    return SearchReply(sent, states, ROOM.wanting > wanting)


def variants_of_reply(program: Program, answer: SearchReply) -> tuple[list[Variant], int]:
    """The entries that ``found`` told of *program*; the steps of one are applied when it is asked for."""
    if answer.cut:
        ROOM.stopped()
    ranked = [
        Variant(seconds, kind, partial(_applied, program, steps), tables)
        for seconds, kind, tables, steps in answer.ranked
    ]
    return ranked, answer.states


def _applied(program: Program, steps: Steps | None) -> Derivation:
    if steps is None:
        raise LookupError("a candidate that no contest asks for was left where it was found")
    return replay(program, steps)
