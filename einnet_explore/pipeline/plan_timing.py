"""Timing of whole plans, and random inputs on which a comparison of outputs can find mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.submodels import random_inputs
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Arrays, largest_error
from einnet_explore.runtime.measurement import NOTHING, Timing, all_rounds, settle_seconds, time_calls, times_faster
from einnet_explore.support.errors import Refused

Effort: TypeAlias = Literal["full", "brief"]
"""A brief measurement ends as soon as the new plan is clearly faster."""

MIN_SPEEDUP = 1.02
"""Speedup below which a model is given back as it was: less is within the noise of measurement."""

CLEAR_SPEEDUP = 3.0
"""Speedup of a single round that leaves no doubt: equal plans, one of them disturbed, have differed by about two."""

BRIEF_SECONDS = 3.0
"""Seconds of measurement after which rounds suffice that are all ``CLEAR_SPEEDUP``, or are ``MIN_ROUNDS`` and all
``MIN_SPEEDUP``."""

MIN_ROUNDS = 3
"""Rounds of a model that takes a second or more."""

MAX_INPUT_DRAWS = 16
"""Random inputs that are tried to find one on which the model itself is well-conditioned."""


def discriminating_inputs(model: Model, plan: ExecutionPlan) -> dict[str, Any]:
    """Return random inputs on which *model* is well-conditioned, so that comparing outputs can find mistakes.

    If rounding the inputs moves the outputs by as much as a mistake may (a saturated sigmoid returns nothing but
    rounding errors), agreement proves nothing: other inputs are drawn, and those that move the outputs least are taken.
    Raises Refused if the model fails on all of them, for example because its inputs are sizes or positions.
    """
    return random_inputs(model, discriminating_seed(model, plan))


def discriminating_seed(model: Model, plan: ExecutionPlan) -> int:
    """Return the seed of ``discriminating_inputs``, after two runs of *plan* or more."""
    found: list[tuple[float, int]] = []
    failure = ""
    for seed in range(MAX_INPUT_DRAWS):
        feeds = random_inputs(model, seed)
        rounded = {k: _rounded_up(v) if v.dtype.kind == "f" else v for k, v in feeds.items()}
        try:
            change = largest_error(plan.run(feeds), plan.run(rounded))
        except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
            failure = str(error).strip().splitlines()[0]
            continue
        found.append((change, seed))
        if change <= MAX_RELATIVE_ERROR / 10:
            break
    if not found:
        raise Refused(
            f"{model.path}: found that it fails on random inputs ({failure}), expected one that runs on any numbers: "
            "sizes and positions may be weights"
        )
    return min(found)[1]


def _rounded_up(array: Any) -> Any:
    return np.asarray(np.nextafter(array, np.inf, dtype=array.dtype))


def plan_speedup(
    before: ExecutionPlan, after: ExecutionPlan, feeds: Arrays, once: float, warm: Mapping[str, float] = NOTHING
) -> float:
    """Return the speedup of *after* over *before*, one run of which takes about *once* seconds."""
    times = time_plans(before, after, feeds, measurement_rounds(once, 11), 0.3, warm)
    return times_faster(times["before"], times["after"])


def time_plans(
    before: ExecutionPlan,
    after: ExecutionPlan,
    feeds: Arrays,
    rounds: int,
    min_seconds: float,
    warm: Mapping[str, float] = NOTHING,
    effort: Effort = "full",
) -> dict[str, Timing]:
    """Time both plans in turns, with a pause in which the other's spinning threads settle; *warm* as in ``compare``."""
    calls = {"before": lambda: before.run(feeds), "after": lambda: after.run(feeds)}
    settle = settle_seconds(max(before.threads, after.threads))
    return time_calls(calls, rounds, min_seconds, settle, warm, is_clearly_faster if effort == "brief" else all_rounds)


def is_clearly_faster(samples: Mapping[str, Sequence[float]]) -> bool:
    """Whether *samples* ``before`` and ``after`` took long enough and all agree that ``after`` is faster."""
    pairs = list(zip(samples["before"], samples["after"], strict=True))
    least = MIN_SPEEDUP if len(pairs) >= MIN_ROUNDS else CLEAR_SPEEDUP
    return sum(map(sum, pairs)) >= BRIEF_SECONDS and all(one >= least * other for one, other in pairs)


def time_against_original(
    original: ExecutionPlan,
    plan: ExecutionPlan,
    feeds: Arrays,
    once: float,
    warm: Mapping[str, float] = NOTHING,
    effort: Effort = "full",
) -> dict[str, Timing]:
    """Time *plan* and *original*, a run of which takes about *once* seconds; equal plans are timed once."""
    rounds = measurement_rounds(once, 21)
    if plan is original:
        same = time_calls({"before": lambda: original.run(feeds)}, rounds=rounds, warm=warm)["before"]
        return {"before": same, "after": same}
    return time_plans(original, plan, feeds, rounds, 1.0, warm, effort)


def conservative_speedup(timings: Mapping[str, Timing]) -> float:
    """Return the smaller of two speedups, the median of ratios and the ratio of quartiles: noise makes them differ."""
    before, after = timings["before"], timings["after"]
    return min(times_faster(before, after), before.low / after.low)


def measurement_rounds(once: float, most: int) -> int:
    """Return the rounds for a run of *once* seconds: *most*, fewer if that takes many seconds."""
    return max(5 if once < 1 else MIN_ROUNDS, min(most, int(4 / once)))
