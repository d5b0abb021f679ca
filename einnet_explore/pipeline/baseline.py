"""The baseline: the original model, whose outputs and time every plan of this run is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.baseline_process import time_with_original_process
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.plan_timing import (
    Effort,
    conservative_speedup,
    is_clearly_faster,
    measurement_rounds,
    time_against_original,
)
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Arrays, differences
from einnet_explore.runtime.measurement import Timing, all_rounds


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A *plan*, the times of it and of the baseline, and its largest absolute and relative errors."""

    plan: ExecutionPlan
    timings: Mapping[str, Timing]
    errors: tuple[float, float]

    @property
    def speedup(self) -> float:
        """The conservative speedup over the baseline."""
        return conservative_speedup(self.timings)


@dataclass
class Baseline:
    """The *original* plan of *model*, a run of which takes about *seconds*, on the discriminating inputs *feeds*."""

    model: Model
    original: ExecutionPlan
    feeds: dict[str, Any]
    seconds: float

    @property
    def want(self) -> Arrays:
        """The outputs of one run of the original, with which all plans are compared."""
        return self._first_run[0]

    @cached_property
    def _first_run(self) -> tuple[Arrays, float]:
        """The outputs of the original and the seconds of that run."""
        began = perf_counter()
        return self.original.run(self.feeds), perf_counter() - began

    def measure(self, make_plan: Callable[[], ExecutionPlan], effort: Effort = "full") -> MeasuredPlan | None:
        """Measure the plan that *make_plan* returns; None if it raises ValueError or the outputs do not agree."""
        want, seconds = self._first_run
        warm = {"before": seconds}
        try:
            plan = make_plan()
            began = perf_counter()
            got = want if plan is self.original else plan.run(self.feeds)
            warm["after"] = perf_counter() - began
        except ValueError:
            return None
        errors = differences(want, got)
        if errors[1] > MAX_RELATIVE_ERROR:
            return None
        return MeasuredPlan(plan, self._time(plan, warm, effort), errors)

    def measure_original(self) -> MeasuredPlan:
        """Measure the original once and compare it with itself."""
        timings = time_against_original(self.original, self.original, self.feeds, self.seconds)
        return MeasuredPlan(self.original, timings, (0.0, 0.0))

    def _time(self, plan: ExecutionPlan, warm: Mapping[str, float], effort: Effort) -> Mapping[str, Timing]:
        """Time the original and *plan* in turns; with several threads each has a process of its own.

        Both were run just now and took *warm* seconds, which sets the number of rounds but is no measurement: the
        first run of a session also allocates its memory.
        """
        if plan is not self.original and plan.threads > 1:
            rounds = measurement_rounds(self.seconds, 21)
            ran, enough = {"after": warm["after"]}, is_clearly_faster if effort == "brief" else all_rounds
            timings = time_with_original_process(self.model.original, plan, self.feeds, rounds, warm=ran, enough=enough)
            if timings is not None:
                return timings
        return time_against_original(self.original, plan, self.feeds, self.seconds, warm, effort)
