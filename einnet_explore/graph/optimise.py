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
from typing import Any

import numpy as np

from einnet_explore.algebra.certificate import certify
from einnet_explore.backends.bandwidth import stream_bandwidth
from einnet_explore.backends.measure import Timing, compare, times_faster
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

WORTH = 1.02
"""A model that is not faster by more than this is given back as it was: less is within the noise of measuring."""

PAYS = 1.005
"""What a kind of subprogram has to bring to the whole model to be kept in it."""

TRIALS = 8
"""Kinds of subprograms that are tried one by one in the whole model; those that gain less are tried together."""

DRAWS = 16
"""How many random inputs are tried to find one on which the model itself is well-conditioned."""


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
            outcome = self._known[anon.signature]
            part = Part(subprogram.nodes, outcome, outcome.winner is not None, certificate(outcome), outcome.why)
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
        identifiers = self.model.identifiers
        back = {identifiers[name]: name for name in (*subprogram.inputs, *subprogram.outputs)}
        original = {new: back[old] for new, old in anon.names.items() if old in back}
        constants = {t.name: self.model.weights[original[t.name]] for t in anon.program.inputs if t.weight}
        inputs = {t.name: feeds[original[t.name]] for t in anon.program.inputs if not t.weight}

        wanted = [original[name] for name in anon.program.outputs]

        def before() -> Arrays:
            return dict(zip(anon.program.outputs, session.run(wanted, feeds), strict=True))

        return contest(
            anon.program, before, inputs, constants, self.cost, self._effort(spent), self.store, self.seconds
        )

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
        kept, plan, refused = self._select(want)
        timings = timed(original, plan, feeds, bool(kept), self.seconds)
        ratio = min(times_faster(timings["before"], timings["after"]), medians(timings))
        if kept and ratio < WORTH:
            refused |= dict.fromkeys(kept, f"with it the whole model runs at {ratio:.2f} of its speed")
            kept, plan, timings = [], original, timed(original, original, feeds, False, self.seconds)
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

    def _select(self, want: Arrays) -> tuple[list[int], Plan, dict[int, str]]:
        """The parts that are worth it in the whole model, the plan with them, and why the other winners are not."""
        groups: dict[str, list[int]] = {}
        for n, part in enumerate(self.parts):
            if part.kept:
                groups.setdefault(self.done[n][1].signature, []).append(n)
        gain = {s: sum(self.parts[n].gain for n in members) for s, members in groups.items()}
        order = sorted(groups, key=lambda s: -gain[s])
        trials = [groups[s] for s in order[:TRIALS]]
        if len(order) > TRIALS:
            trials.append([n for s in order[TRIALS:] for n in groups[s]])
        kept: list[int] = []
        plan, refused = self.original, dict[int, str]()
        for more in trials:
            trial = self._plan([*kept, *more])
            error = largest_error(want, trial.run(self.feeds))
            if error > AGREEMENT:
                refused |= dict.fromkeys(more, f"with it the model differs by {error:.1e} of its largest output")
                continue
            times = compare(
                {"without": lambda p=plan: p.run(self.feeds), "with": lambda p=trial: p.run(self.feeds)},  # type: ignore[misc]
                rounds=rounds_for(self.seconds, 11),
                min_seconds=0.2,
            )
            ratio = times_faster(times["without"], times["with"])
            if ratio < PAYS:
                refused |= dict.fromkeys(more, f"with it the whole model runs at {ratio:.2f} of its speed without")
                continue
            kept, plan = [*kept, *more], trial
        return kept, plan, refused

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


def telling_inputs(model: Model, plan: Plan) -> dict[str, Any]:
    """Random inputs on which *model* is well-conditioned, so that comparing outputs can tell right from wrong.

    Where rounding the inputs alone moves the outputs by as much as a mistake may (a saturated sigmoid gives nothing but
    rounding errors), agreement says nothing: other inputs are drawn, and those that move them least are taken.
    """
    found: list[tuple[float, int]] = []
    for seed in range(DRAWS):
        feeds = random_inputs(model, seed)
        rounded = {k: np.nextafter(v, np.inf, dtype=v.dtype) if v.dtype.kind == "f" else v for k, v in feeds.items()}
        moved = largest_error(plan.run(feeds), plan.run(rounded))
        found.append((moved, seed))
        if moved <= AGREEMENT / 10:
            break
    return random_inputs(model, min(found)[1])


def by_value(compiled: CompiledProgram, names: Mapping[str, str]) -> Callable[[Arrays], Arrays]:
    """*compiled* as a plan calls it: with the model's value names."""
    reads = tuple((name, names[name]) for name in compiled.inputs)
    makes = tuple((name, names[name]) for name in compiled.program.outputs)

    def run(arrays: Arrays) -> Arrays:
        made = compiled.run({name: arrays[value] for name, value in reads})
        return {value: made[name] for name, value in makes}

    return run


def timed(original: Plan, plan: Plan, feeds: Arrays, differs: bool, once: float) -> dict[str, Timing]:
    """Both plans measured in turns; where they are the same program it is measured once and compared with itself.

    *once* is about how many seconds a run takes.
    """
    rounds = rounds_for(once, 21)
    if not differs:
        same = compare({"before": lambda: original.run(feeds)}, rounds=rounds)["before"]
        return {"before": same, "after": same}
    calls = {"before": lambda: original.run(feeds), "after": lambda: plan.run(feeds)}
    return compare(calls, rounds=rounds, min_seconds=1.0)


def medians(timings: Mapping[str, Timing]) -> float:
    """The ratio of the medians: where it and the median of the ratios differ, the machine was not quiet."""
    return timings["before"].median / timings["after"].median


def rounds_for(once: float, most: int) -> int:
    """How often to measure what takes *once* seconds: *most* times, less often where that takes many seconds."""
    return max(5, min(most, int(4 / once)))


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
