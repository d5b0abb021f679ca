"""Outputs and times of spellings in runtimes, compared with those of the usual spelling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.spellings.families import Family
from einnet_evaluation.rivals import RIVALS
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.model_sessions import open_session, run_session, without_optimisations
from einnet_explore.pipeline.optimisation import optimize_model
from einnet_explore.runtime.arrays import Arrays, largest_error
from einnet_explore.runtime.measurement import time_calls

OURS = "einnet_explore"
SIZE = 16
"""Times the smallest tensors, so that times are measurable."""

WRONG = 1e-3
"""Error of an output, relative to the largest, from which on it is wrong."""

SLOWER = 1.1
"""Times as long as the usual spelling, from which on a spelling is slower."""


@dataclass(slots=True)
class Results:
    """The spellings of which an engine has wrong outputs or refuses to run, and times over that of the usual one."""

    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def row(self) -> list[object]:
        """Return the cells of a table."""
        if not self.ratios:
            return [0, len(self.wrong), len(self.refused), "", "", ""]
        slower = sum(ratio > SLOWER for ratio in self.ratios)
        middle, most = np.median(self.ratios), np.max(self.ratios)
        return [len(self.ratios), len(self.wrong), len(self.refused), slower, f"{middle:.2f}", f"{most:.2f}"]


def measured(family: Family, choices: Iterable[Mapping[str, str]], engine: str, budget: float) -> Results:
    """Run the usual spelling and each of *choices* in *engine*, on one thread, the two in turns."""
    usual = load_model(family.model(family.usual(), SIZE))
    feeds, results = random_model_inputs(usual, 0), Results()
    exact = open_session(usual.original, 1, adjust=without_optimisations)
    want = {"y": run_session(exact, ["y"], feeds)[0]}
    reference = start(engine, usual, feeds, budget)
    for choice in choices:
        shown = ", ".join(way for name, way in choice.items() if way != family.usual()[name])
        try:
            call = start(engine, load_model(family.model(choice, SIZE)), feeds, budget)
            error = largest_error(want, {"y": np.array(call()["y"])})
        except (ValueError, RuntimeError) as why:
            results.refused.append(f"{shown}: {why}")
            continue
        if error > WRONG:
            results.wrong.append(f"{shown}: differs by {error:.1e} of the largest output")
        times = time_calls({"usual": reference, "it": call}, rounds=7, min_seconds=0.01)
        results.ratios.append(times["it"].median / times["usual"].median)
    return results


def start(engine: str, model: Model, feeds: Arrays, budget: float) -> Callable[[], Arrays]:
    """Return a call of *model* in *engine*."""
    if engine == OURS:
        plan = optimize_model(model, threads=1, budget=budget).plan
        return lambda: plan.run(feeds)
    return RIVALS[engine].start(model, feeds, 1).call
