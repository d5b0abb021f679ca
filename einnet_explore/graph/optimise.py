"""The main job: an ONNX model in, a verified program that is at least as fast out (EinNet §6.3, Algorithm 1).

The model is split into subprograms; for each, the original competes with derived candidates by measurement on this
device; the winners and what stays of the model (in as few ONNX Runtime sessions as possible) make one plan, which is
measured and checked as a whole.  A kept derivation that does not pay in the whole program is taken back, so nothing
gets slower.
"""

from __future__ import annotations

import ctypes.util
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from einnet_explore.algebra.certificate import certify
from einnet_explore.backends.bandwidth import stream_bandwidth
from einnet_explore.backends.measure import Timing, compare
from einnet_explore.backends.profiles import ProfileStore
from einnet_explore.backends.program import CompiledProgram, compile_program
from einnet_explore.cost import CostModel, cpu_default, weight_only
from einnet_explore.graph.anonymous import Anonymous, anonymous
from einnet_explore.graph.contest import Arrays, Outcome, Settings, contest, largest_error
from einnet_explore.graph.optimised import Optimised, Part
from einnet_explore.graph.reading.load import load
from einnet_explore.graph.reading.model import Model
from einnet_explore.graph.running.alone import alone
from einnet_explore.graph.running.plan import Plan, build_plan
from einnet_explore.graph.running.regions import random_inputs, subgraph_session
from einnet_explore.graph.split import Split, Subprogram, partition
from einnet_explore.graph.whole import WORTH, least_gain, rounds_for, select, telling_inputs, timed
from einnet_explore.graph.writing.export import Replacement
from einnet_explore.ir import Program
from einnet_explore.rules import Derivation
from einnet_explore.search.candidate import verdict
from einnet_explore.search.engine import Cost

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
        self._model = CostModel(replace(device, memory_bandwidth=max(device.memory_bandwidth, bandwidth)))
        self.original: Plan = build_plan(self.model, {}, self.settings.threads)
        self.feeds = telling_inputs(self.model, self.original)
        self.seconds = compare({"it": lambda: self.original.run(self.feeds)}, rounds=5, min_seconds=0.05)["it"].low

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
                self._known[anon.signature] = self._guarded(subprogram, anon, spent)
                self.search_seconds += self._known[anon.signature].search_seconds
            part = judged(subprogram.nodes, self._known[anon.signature])
            self.parts.append(part)
            self.done.append((subprogram, anon))
            yield Progress(n, len(subprograms), part)

    def _guarded(self, subprogram: Subprogram, anon: Anonymous, spent: float) -> Outcome:
        """The contest; a mistake of ours in one must not cost the user the others, and must not pass in silence."""
        try:
            return self._contest(subprogram, anon, spent)
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            why = f"its search failed: {type(error).__name__}: {error}"
            warnings.warn(f"{', '.join(subprogram.nodes[:2])}: {why}", RuntimeWarning, stacklevel=2)
            return Outcome(0.0, 0.0, None, 0.0, 0, why)

    def _contest(self, subprogram: Subprogram, anon: Anonymous, spent: float) -> Outcome:
        session = subgraph_session(self.model, subprogram.nodes, self.settings.threads)
        feeds = random_inputs(session, 0)
        original = self._values(subprogram, anon)
        constants = {t.name: self.model.weights[original[t.name]] for t in anon.program.inputs if t.weight}
        inputs = {t.name: feeds[original[t.name]] for t in anon.program.inputs if not t.weight}

        wanted = [original[name] for name in anon.program.outputs]

        def before() -> Arrays:
            return dict(zip(anon.program.outputs, session.run(wanted, feeds), strict=True))

        return contest(
            anon.program, before, inputs, constants, self.cost, self._effort(spent), self.store, self.seconds
        )

    def _values(self, subprogram: Subprogram, anon: Anonymous) -> dict[str, str]:
        """The model's value for each tensor that *anon* shares with the model."""
        back = {self.model.identifiers[name]: name for name in (*subprogram.inputs, *subprogram.outputs)}
        return {new: back[old] for new, old in anon.names.items() if old in back}

    def _effort(self, spent: float) -> Settings:
        if self.budget is None:
            return self.settings
        return replace(self.settings, seconds=min(self.settings.seconds, max(0.2, (self.budget - spent) / 4)))

    def result(self) -> Optimised:
        """The plan of what won so far, measured and checked against ONNX Runtime on random inputs.

        What won alone need not win in the whole, where it breaks ONNX Runtime's own fusions and layouts: equal
        subprograms are taken in together, most gain first, and stay if the whole model then runs faster and agrees.
        """
        original, feeds = self.original, self.feeds
        want = original.run(feeds)
        groups: dict[str, list[int]] = {}
        for n, part in enumerate(self.parts):
            if part.kept:
                groups.setdefault(self.done[n][1].signature, []).append(n)
        gains = {n: part.gain for n, part in enumerate(self.parts)}
        kept, plan, refused = select(list(groups.values()), gains, original, self._plan, feeds, self.seconds)
        timings = timed(original, plan, feeds, self.seconds)
        ratio = least_gain(timings)
        if kept and self.settings.threads > 1:
            timings, ratio = self._held_against_alone(timings, ratio)
        if kept and ratio < WORTH:
            refused |= dict.fromkeys(kept, f"with it the whole model runs at {ratio:.2f} of its speed")
            kept, plan, timings = [], original, timed(original, original, feeds, self.seconds)
        got = plan.run(feeds) if kept else want
        parts = tuple(replace(part, kept=n in kept, why=refused.get(n, part.why)) for n, part in enumerate(self.parts))
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
            (absolute, largest_error(want, got)),
            self.search_seconds,
            sum(len(weight_only(p)) for p in programs),
            sum(fusions(part.outcome.winner) for part in parts if part.kept and part.outcome.winner),
            self.settings.threads,
            self.interrupted,
        )

    def _held_against_alone(self, timings: dict[str, Timing], ratio: float) -> tuple[dict[str, Timing], float]:
        """*timings* with the original as fast as it is in a process of its own, where it does not share the cores."""
        before = alone(self.model.original, self.feeds, self.settings.threads, rounds_for(self.seconds, 21))
        if before is None:  # nothing to hold the plan against: it is not kept on the word of a disturbed measurement
            return timings, 0.0
        if before.median >= timings["before"].median:
            return timings, ratio
        return {**timings, "before": before}, min(ratio, before.median / timings["after"].median)

    def _replacement(self, n: int) -> Replacement:
        subprogram, anon = self.done[n]
        program = self.parts[n].program
        assert program is not None
        names = self._values(subprogram, anon)
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


def judged(nodes: tuple[str, ...], outcome: Outcome) -> Part:
    """What becomes of a contest: a winner is kept unless one of its steps is false, however fast it is."""
    kind = certificate(outcome)
    if kind == "false":
        return Part(nodes, outcome, False, kind, "the fastest candidate's derivation has a false step")
    return Part(nodes, outcome, outcome.winner is not None, kind, outcome.why)


def certificate(outcome: Outcome) -> str:
    """``proved`` if every step of the winner is, ``exact`` if some were evaluated, ``none`` without a winner."""
    if outcome.winner is None:
        return "none"
    return verdict(tuple(certify(step.before, step.after) for step in outcome.winner.steps))


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
    check_device(device)
    return Settings(threads or len(os.sched_getaffinity(0)), max_depth)


def check_device(device: str) -> None:
    """Raise ValueError, with what is missing, unless *device* can be used."""
    if device == "cuda":
        driver = "an NVIDIA driver but" if ctypes.util.find_library("cuda") else "no NVIDIA driver, and"
        raise ValueError(f"device 'cuda': found {driver} no CUDA backend in this release, expected cpu")
    if device != "cpu":
        raise ValueError(f"device {device!r}: found no such device, expected cpu or cuda")


def seconds_of(budget: float | str | None) -> float | None:
    """``60``, ``60.0`` and ``"60s"`` are sixty seconds; raises ValueError on what is no positive number."""
    if budget is None:
        return None
    value = float(str(budget).removesuffix("s"))
    if not value > 0:
        raise ValueError(f"budget {budget!r}: expected a positive number of seconds")
    return value
