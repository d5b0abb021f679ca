"""The main job: an ONNX model in, a verified program that is at least as fast out (EinNet §6.3, Algorithm 1).

The model is split into subprograms; for each, the original competes with derived candidates by measurement on this
device; the winners and what stays of the model (in as few ONNX Runtime sessions as possible) make one plan, which is
measured and checked as a whole.  A kept derivation that does not pay in the whole program is taken back, so nothing
gets slower.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from einnet_explore.algebra.certificate import certify
from einnet_explore.backends.measure import Timing, compare, stream_bandwidth
from einnet_explore.backends.profiles import ProfileStore
from einnet_explore.backends.program import CompiledProgram, compile_program
from einnet_explore.cost import CostModel, cpu_default, weight_only
from einnet_explore.graph.anonymous import Anonymous, anonymous
from einnet_explore.graph.contest import AGREEMENT, Arrays, Outcome, Settings, contest, largest_error
from einnet_explore.graph.export import Replacement
from einnet_explore.graph.model import Model
from einnet_explore.graph.onnx_in import load
from einnet_explore.graph.optimised import Optimised, Part
from einnet_explore.graph.plan import Plan, build_plan
from einnet_explore.graph.regions import random_inputs, subgraph_session
from einnet_explore.graph.split import Split, Subprogram, partition
from einnet_explore.ir import Program
from einnet_explore.rules import Derivation
from einnet_explore.search.engine import Cost

SETTLE = 0.01
"""Seconds after which ONNX Runtime's waiting threads no longer spin."""

NOTHING: Mapping[str, tuple[int, ...]] = {}


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

    def __post_init__(self) -> None:
        self.split: Split = partition(self.model)
        self.done: list[tuple[Subprogram, Anonymous]] = []
        self._known: dict[str, Outcome] = {}
        device = cpu_default(self.settings.threads)
        bandwidth = stream_bandwidth(self.settings.threads)
        model = CostModel(replace(device, memory_bandwidth=max(device.memory_bandwidth, bandwidth)))
        self._model = model

    @property
    def cost(self) -> Cost:
        """The estimate that orders candidates before they are measured."""

        def estimate(program: Program) -> tuple[float, str]:
            found = self._model.program_cost(program)
            return found.seconds, found.how

        return estimate

    def run(self) -> Iterable[Progress]:
        """Hold every subprogram's contest, the same one once."""
        began = perf_counter()
        subprograms = self.split.subprograms
        for n, subprogram in enumerate(subprograms, 1):
            anon = anonymous(subprogram.program)
            spent = perf_counter() - began
            if anon.signature not in self._known:
                if self.budget is not None and spent > self.budget:
                    return
                self._known[anon.signature] = self._contest(subprogram, anon, spent)
                self.search_seconds += self._known[anon.signature].search_seconds
            outcome = self._known[anon.signature]
            part = Part(subprogram.nodes, outcome, outcome.winner is not None, certificate(outcome), outcome.why)
            self.parts.append(part)
            self.done.append((subprogram, anon))
            yield Progress(n, len(subprograms), part)

    def _contest(self, subprogram: Subprogram, anon: Anonymous, spent: float) -> Outcome:
        session = subgraph_session(self.model, subprogram.nodes, self.settings.threads)
        feeds = random_inputs(session, 0)
        identifiers = self.model.identifiers
        back = {identifiers[name]: name for name in (*subprogram.inputs, *subprogram.outputs)}
        original = {new: back[old] for new, old in anon.names.items() if old in back}
        constants = {t.name: self.model.weights[original[t.name]] for t in anon.program.inputs if t.weight}
        inputs = {t.name: feeds[original[t.name]] for t in anon.program.inputs if not t.weight}

        wanted = [original[name] for name in anon.program.outputs]

        def before() -> Arrays:
            return dict(zip(anon.program.outputs, session.run(wanted, feeds), strict=True))

        settings = self.settings
        if self.budget is not None:
            settings = replace(settings, seconds=min(settings.seconds, max(0.2, (self.budget - spent) / 4)))
        return contest(anon.program, before, inputs, constants, self.cost, settings, self.store)

    def result(self) -> Optimised:
        """The plan of what won so far, measured and checked against ONNX Runtime on random inputs.

        While the plan is not faster than the original, the part that gains least is taken back.
        """
        original = build_plan(self.model, {}, self.settings.threads)
        feeds = random_inputs(self.model, 0)
        want = original.run(feeds)
        kept = [n for n, part in enumerate(self.parts) if part.kept]
        kept.sort(key=lambda n: self.parts[n].outcome.seconds_after - self.parts[n].outcome.seconds_before)
        taken_back: dict[int, str] = {}
        while True:
            plan = self._plan(kept)
            got = plan.run(feeds)
            error = largest_error(want, got)
            if kept and error > AGREEMENT:
                taken_back[kept.pop()] = f"with it the model differs by {error:.1e} of its largest output"
                continue
            timings = timed(original, plan, feeds, bool(kept))
            ratio = timings["before"].median / timings["after"].median
            if not kept or ratio >= 1.0:
                break
            # Half are taken back at a time, least gain first: each plan costs sessions to load and rounds to measure.
            for _ in range((len(kept) + 1) // 2):
                taken_back[kept.pop()] = f"with it the whole model runs at {ratio:.2f} of its speed"
        parts = tuple(
            replace(part, kept=n in kept, why=taken_back.get(n, part.why)) for n, part in enumerate(self.parts)
        )
        absolute = max((float(np.max(np.abs(want[k] - got[k]), initial=0)) for k in want), default=0.0)
        programs = [part.program for part in parts if part.kept and part.program]
        return Optimised(
            self.model,
            plan,
            original,
            parts,
            tuple(self._replacement(n) for n in sorted(kept)),
            self.split.skipped,
            timings,
            (absolute, error),
            self.search_seconds,
            sum(len(weight_only(p)) for p in programs),
            sum(fusions(part.outcome.winner) for part in parts if part.kept and part.outcome.winner),
            self.settings.threads,
            self.interrupted,
        )

    def _replacement(self, n: int) -> Replacement:
        subprogram, anon = self.done[n]
        program = self.parts[n].program
        assert program is not None
        back = {self.model.identifiers[name]: name for name in (*subprogram.inputs, *subprogram.outputs)}
        names = {new: back[old] for new, old in anon.names.items() if old in back}
        weights = {t.name for t in program.inputs if t.weight}
        constants = {name: self.model.weights[names[name]] for name in weights}
        return Replacement(subprogram.nodes, program, {k: v for k, v in names.items() if k not in weights}, constants)

    def _plan(self, kept: list[int]) -> Plan:
        runs = {}
        for n in kept:
            replacement = self._replacement(n)
            made = compile_program(replacement.program, self.settings.threads, constants=replacement.constants)
            runs[replacement.nodes] = by_value(made, replacement.names)
        return build_plan(self.model, runs, self.settings.threads)


def by_value(compiled: CompiledProgram, names: Mapping[str, str]) -> Callable[[Arrays], Arrays]:
    """*compiled* as a plan calls it: with the model's value names."""
    reads = tuple((name, names[name]) for name in compiled.inputs)
    makes = tuple((name, names[name]) for name in compiled.program.outputs)

    def run(arrays: Arrays) -> Arrays:
        made = compiled.run({name: arrays[value] for name, value in reads})
        return {value: made[name] for name, value in makes}

    return run


def timed(original: Plan, plan: Plan, feeds: Arrays, differs: bool) -> dict[str, Timing]:
    """Both plans measured in turns; where they are the same program it is measured once and compared with itself."""
    if not differs:
        once = compare({"before": lambda: original.run(feeds)}, rounds=11)["before"]
        return {"before": once, "after": once}
    calls = {"before": lambda: original.run(feeds), "after": lambda: plan.run(feeds)}
    return compare(calls, rounds=21, min_seconds=0.5, settle=SETTLE if plan.threads > 1 else 0)


def certificate(outcome: Outcome) -> str:
    """``proved`` if every step of the winner is, ``exact`` if some were evaluated, ``none`` without a winner."""
    if outcome.winner is None:
        return "none"
    kinds = {certify(step.before, step.after).kind for step in outcome.winner.steps}
    return next((kind for kind in ("false", "exact") if kind in kinds), "proved")


def fusions(derivation: Derivation) -> int:
    """How many eOperators were fused into their readers."""
    return sum(step.match.rule.name == "expression_fusion" for step in derivation.steps)


def optimize(
    model: str | Path | Model,
    *,
    shapes: Mapping[str, tuple[int, ...]] = NOTHING,
    device: str = "cpu",
    threads: int | None = None,
    max_depth: int = 7,
    budget: float | str | None = None,
) -> Optimised:
    """Optimise an ONNX model for this machine.

    *shapes* fixes dynamic inputs, *budget* ends the search after so many seconds (``60`` or ``"60s"``).  Interrupting
    keeps what was found so far.  Raises ModelError for a model that cannot be read, ValueError for an unknown device.
    """
    work = Optimiser(read(model, shapes), settings(device, threads, max_depth), seconds_of(budget))
    try:
        for _ in work.run():
            pass
    except KeyboardInterrupt:
        work.interrupted = True
    return work.result()


def read(model: str | Path | Model, shapes: Mapping[str, tuple[int, ...]] = NOTHING) -> Model:
    """*model* itself, or read from a file."""
    return model if isinstance(model, Model) else load(model, shapes)


def settings(device: str, threads: int | None, max_depth: int) -> Settings:
    """The settings of a search; raises ValueError on a device that is not there."""
    if device != "cpu":
        raise ValueError(f"device {device!r}: found no support for it in this release, expected cpu")
    return Settings(threads or len(os.sched_getaffinity(0)), max_depth)


def seconds_of(budget: float | str | None) -> float | None:
    """``60``, ``60.0`` and ``"60s"`` are sixty seconds; raises ValueError on what is no positive number."""
    if budget is None:
        return None
    value = float(str(budget).removesuffix("s"))
    if not value > 0:
        raise ValueError(f"budget {budget!r}: expected a positive number of seconds")
    return value


