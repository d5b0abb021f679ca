"""Plans held against the original of their model: its outputs, and its time, on this run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.baseline_process import time_with_original_process
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.whole_model import (
    conservative_speedup,
    is_clearly_faster,
    measurement_rounds,
    time_against_original,
)
from einnet_explore.runtime.measurement import Timing, never
from einnet_explore.runtime.outputs import AGREEMENT, Arrays, differences


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A *plan* that was held against the original: the times of both, and its absolute and relative errors."""

    plan: ExecutionPlan
    timings: Mapping[str, Timing]
    errors: tuple[float, float]

    @property
    def gain(self) -> float:
        """How many times faster than the original the plan is at least."""
        return conservative_speedup(self.timings)


@dataclass
class Baseline:
    """The *original* of *model*, a run of which takes about so many *seconds*, on inputs that tell right from wrong."""

    model: Model
    original: ExecutionPlan
    feeds: dict[str, Any]
    seconds: float

    @property
    def want(self) -> Arrays:
        """What the original gives: all plans are held against this one run of it."""
        return self._first[0]

    @cached_property
    def _first(self) -> tuple[Arrays, float]:
        """What the original gives, and the seconds that it took."""
        began = perf_counter()
        return self.original.run(self.feeds), perf_counter() - began

    def held(self, made: Callable[[], ExecutionPlan], brief: bool = False) -> MeasuredPlan | None:
        """The plan that is *made* beside the original; None where it cannot be (ValueError) or does not agree.

        A *brief* measurement is enough for what an earlier run has chosen.
        """
        want, seconds = self._first
        warm = {"before": seconds}
        try:
            plan = made()
            began = perf_counter()
            got = want if plan is self.original else plan.run(self.feeds)
            warm["after"] = perf_counter() - began
        except ValueError:
            return None
        errors = differences(want, got)
        if errors[1] > AGREEMENT:
            return None
        return MeasuredPlan(plan, self._timings(plan, warm, brief), errors)

    def itself(self) -> MeasuredPlan:
        """The original, measured once and compared with itself."""
        return MeasuredPlan(
            self.original, time_against_original(self.original, self.original, self.feeds, self.seconds), (0.0, 0.0)
        )

    def _timings(self, plan: ExecutionPlan, warm: Mapping[str, float], brief: bool) -> Mapping[str, Timing]:
        """The original and *plan* in turns; with several threads each has a process of its own.

        Both were run just now and took *warm* seconds.  That says how often to run them, and is no measurement: the
        first run of a session also asks for its memory.
        """
        if plan is not self.original and plan.threads > 1:
            rounds = measurement_rounds(self.seconds, 21)
            ran, enough = {"after": warm["after"]}, is_clearly_faster if brief else never
            apart = time_with_original_process(self.model.original, plan, self.feeds, rounds, warm=ran, enough=enough)
            if apart is not None:
                return apart
        return time_against_original(self.original, plan, self.feeds, self.seconds, warm, brief)
