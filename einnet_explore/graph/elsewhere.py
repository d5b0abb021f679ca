"""Searches and contests of subprograms on other processes and machines: plain values there and back.

A search gives the same candidates wherever it runs, if its *states* are bounded and not its seconds: its cost travels
with it, as the rates and times of the machine that asks.  Derivations travel as their steps and are applied again by
who asked, so nothing has to be believed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

from einnet_explore.backends.profiles import Key, ProfileStore, device, key_of, libraries
from einnet_explore.cost import CostModel
from einnet_explore.cost.device import Device
from einnet_explore.executors import has_device, settled, submitted
from einnet_explore.graph.contest import Outcome, Settings
from einnet_explore.graph.finalists import Entry, entries, finalists
from einnet_explore.graph.judging import from_json, to_json
from einnet_explore.graph.means import Means
from einnet_explore.graph.reading.load import load
from einnet_explore.graph.reading.model import Model
from einnet_explore.ir import Equation, Program
from einnet_explore.rules import Derivation
from einnet_explore.search.replay import replay, told

Steps: TypeAlias = "list[dict[str, Any]]"
Told: TypeAlias = "tuple[list[tuple[float, Hashable, Steps | None]], int]"
"""Every candidate's seconds, kind and, if it may be a finalist, its steps; and how many states were seen."""


@dataclass(frozen=True)
class Rates:
    """A cost that travels: a machine's rates, and the seconds that equations were *known* to take on it."""

    rates: Device
    threads: int
    known: Mapping[Key, float] = field(repr=False)
    device: str = field(default_factory=device)
    library: str = field(default_factory=libraries)

    @staticmethod
    def of(rates: Device, store: ProfileStore, threads: int) -> Rates:
        """Those of this machine, with the times that *store* holds."""
        return Rates(rates, threads, store.known(threads))

    def __call__(self, program: Program) -> tuple[float, str]:
        found = CostModel(self.rates, self._find).program_cost(program)
        return found.seconds, found.how

    def _find(self, equation: Equation) -> float | None:
        return self.known.get(replace(key_of(equation, self.threads), device=self.device, library=self.library))


@dataclass(frozen=True, slots=True)
class Asked:
    """A *program* to be searched for *seconds*; candidates estimated *below* so many may be worth measuring."""

    program: Program
    seconds: float
    below: float


def ahead(
    executor: Any, asked: Mapping[str, Asked], model: Model, means: Means, budget: float | None
) -> tuple[dict[str, Outcome], dict[str, Told]]:
    """What *executor* makes of the programs that are *asked* for: contests where it has devices, else searches."""
    if has_device(executor):
        return contests(executor, asked, model, means.settings, budget), {}
    cost = Rates.of(means.model.device, means.store, means.settings.threads)
    return {}, searches(executor, asked, cost, means.settings)


def searches(executor: Any, asked: Mapping[str, Asked], cost: Rates, settings: Settings) -> dict[str, Told]:
    """What *executor* finds for each program that is *asked* for; without those whose search fails there."""
    futures = {
        signature: submitted(executor, found, a.program, cost, settings, a.seconds, a.below)
        for signature, a in asked.items()
    }
    return dict(settled(futures))


def contests(
    executor: Any, asked: Mapping[str, Asked], model: Model, settings: Settings, budget: float | None
) -> dict[str, Outcome]:
    """The outcomes of the contests of *model* that *executor*'s devices hold; without those that fail there."""
    sent = model.original.SerializeToString()
    futures = {
        signature: submitted(executor, contested, sent, settings, budget, signature, device=True) for signature in asked
    }
    answers = ((signature, from_json(told, asked[signature].program)) for signature, told in settled(futures))
    return {signature: outcome for signature, outcome in answers if outcome is not None}


def found(program: Program, cost: Rates, settings: Settings, seconds: float, below: float) -> Told:
    """What a search of *program* finds; steps only of those estimated *below* that would be its finalists."""
    ranked, states = entries(program, cost, settings.max_depth, seconds, settings.numerics, settings.states)
    chosen = {id(entry) for entry in finalists(ranked, settings.finalists, below)}
    return [(e.seconds, e.kind, told(e.derivation()) if id(e) in chosen else None) for e in ranked], states


def held(program: Program, answer: Told) -> tuple[list[Entry], int]:
    """The entries that ``found`` told of *program*; the steps of a finalist are applied when it is asked for."""
    ranked, states = answer
    return [Entry(seconds, kind, partial(_applied, program, steps)) for seconds, kind, steps in ranked], states


def _applied(program: Program, steps: Steps | None) -> Derivation:
    if steps is None:
        raise LookupError("a candidate that is no finalist was left where it was found")
    return replay(program, steps)


def contested(model: bytes, settings: Settings, budget: float | None, signature: str) -> dict[str, Any]:
    """The outcome (``judging.to_json``) of one contest of *model*, searched and measured where this runs."""
    work = _work(model, settings, budget)
    subprogram, anon = next((s, a) for s, a in work.anonymous() if a.signature == signature)
    return to_json(work.outcome(subprogram, anon, 0.0))


@lru_cache(maxsize=2)
def _work(model: bytes, settings: Settings, budget: float | None) -> Any:
    from einnet_explore.graph.optimise import Optimiser  # which knows this module

    return Optimiser(load(model), settings, budget)
