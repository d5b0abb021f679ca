"""The whole model: inputs that tell right from wrong, plans measured beside each other, parts that pay in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.submodels import random_inputs
from einnet_explore.runtime.measurement import NOTHING, Timing, compare, never, pause, times_faster
from einnet_explore.runtime.outputs import AGREEMENT, Arrays, largest_error
from einnet_explore.support.errors import Refused

MIN_SPEEDUP = 1.02
"""A model that is not faster by more than this is given back as it was: less is within the noise of measuring."""

MIN_REMEMBERED_SPEEDUP = 1.0
"""What a plan that was kept before has to run at to be kept again: as fast as the original.  Were it ``WORTH`` again,
noise would now give it and now not."""

MIN_PART_SPEEDUP = 1.005
"""What a kind of subprogram has to bring to the whole model to be kept in it."""

MAX_SINGLE_TRIALS = 8
"""Kinds of subprograms that are tried one by one in the whole model; those that gain less are tried together."""

MAX_CONTENDERS = 4
"""Kinds of subprograms that nearly won by themselves and are tried in the whole model."""

FORWARD_SELECTION_SECONDS = 75.0
"""Seconds of *trying* after which the winners that are left are tried together, and nothing else is: of a model that
takes a second each trial takes eight."""

CLEAR_SPEEDUP = 3.0
"""A round in which the plan is so many times faster than the original leaves no doubt that it is not slower: equal
engines, the one disturbed and the other not, have differed by about two."""

BRIEF_SECONDS = 3.0
"""Seconds of measuring after which rounds are enough that are all ``CLEAR``, or are ``LEAST`` and all ``WORTH`` it."""

MIN_ROUNDS = 3
"""Rounds of what takes a second or more."""

UNTRIED = "interrupted before it was tried in the whole model"

MAX_INPUT_DRAWS = 16
"""How many random inputs are tried to find one on which the model itself is well-conditioned."""


def discriminating_inputs(model: Model, plan: ExecutionPlan) -> dict[str, Any]:
    """Random inputs on which *model* is well-conditioned, so that comparing outputs can tell right from wrong.

    Where rounding the inputs alone moves the outputs by as much as a mistake may (a saturated sigmoid gives nothing but
    rounding errors), agreement says nothing: other inputs are drawn, and those that move them least are taken.  Raises
    Refused where the model fails on all of them, as one does whose inputs are sizes or positions.
    """
    return random_inputs(model, discriminating_seed(model, plan))


def discriminating_seed(model: Model, plan: ExecutionPlan) -> int:
    """The seed of ``telling_inputs``: it takes two runs of *plan*, or more, to find."""
    found: list[tuple[float, int]] = []
    failure = ""
    for seed in range(MAX_INPUT_DRAWS):
        feeds = random_inputs(model, seed)
        rounded = {k: _rounded(v) if v.dtype.kind == "f" else v for k, v in feeds.items()}
        try:
            moved = largest_error(plan.run(feeds), plan.run(rounded))
        except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
            failure = str(error).strip().splitlines()[0]
            continue
        found.append((moved, seed))
        if moved <= AGREEMENT / 10:
            break
    if not found:
        raise Refused(
            f"{model.path}: found that it fails on random inputs ({failure}), expected one that runs on any numbers: "
            "sizes and positions may be weights"
        )
    return min(found)[1]


def _rounded(array: Any) -> Any:
    return np.asarray(np.nextafter(array, np.inf, dtype=array.dtype))


class Chosen(NamedTuple):
    """The parts *kept*, the *plan* with them, and why other winners are *refused*; *stopped*: Ctrl-C ended trying."""

    kept: list[int]
    plan: ExecutionPlan
    refused: dict[int, str]
    stopped: bool = False


def forward_selection(
    groups: Sequence[Sequence[int]],
    gains: Mapping[int, float],
    original: ExecutionPlan,
    plan_of: Callable[[list[int]], ExecutionPlan],
    feeds: Arrays,
    once: float,
    contenders: Sequence[Sequence[int]] = (),
    want: Arrays | None = None,
    clock: Callable[[], float] = perf_counter,
    trying: float = FORWARD_SELECTION_SECONDS,
) -> Chosen:
    """The parts that are worth it in the whole model, the plan with them, and why the other winners are not.

    *groups* are equal parts, taken in together, most gain (seconds, of each part by itself) first; *contenders* did not
    win by themselves and come last; what made the plan slower is tried once more beside what came to it later, whose
    layouts it may share.  *plan_of* makes the plan with some parts, or raises ValueError.  *once* is about
    how many seconds a run takes, *want* what the original gives, where that is known; *trying* is as ``TRYING``.
    Ctrl-C ends it with what is kept by then.
    """
    want = original.run(feeds) if want is None else want
    until = clock() + trying
    kept: list[int] = []
    plan, refused, stopped = original, dict[int, str](), False
    tried: dict[tuple[int, ...], float] = {}
    for more in _turns(_ordered(groups, gains), _ordered(contenders, gains)[:MAX_CONTENDERS], lambda: clock() > until):
        if len(kept) <= tried.get(more, -1):
            continue  # it is in, it does not agree, or nothing came to the plan since it was tried
        tried[more], larger = inf, sorted((*kept, *more))
        try:
            ratio, better = _tried(plan, plan_of, larger, want, feeds, once)
        except ValueError as problem:
            refused |= dict.fromkeys(more, str(problem))
            continue
        except KeyboardInterrupt:
            refused, stopped = dict.fromkeys(chain.from_iterable(groups), UNTRIED) | refused, True
            break
        if better is None:
            refused |= dict.fromkeys(more, f"with it the whole model runs at {ratio:.2f} of its speed without")
            tried[more] = len(kept)
        else:
            kept, plan = larger, better
    return Chosen(kept, plan, {n: why for n, why in refused.items() if n not in kept}, stopped)


def _ordered(groups: Sequence[Sequence[int]], gains: Mapping[int, float]) -> list[tuple[int, ...]]:
    """*groups*, most gain first."""
    return sorted(map(tuple, groups), key=lambda group: -sum(gains[n] for n in group))


def _turns(
    winners: Sequence[tuple[int, ...]], contenders: Sequence[tuple[int, ...]], late: Callable[[], bool]
) -> Iterable[tuple[int, ...]]:
    """What is tried in turn: *winners*, the last of them together, *contenders*, and both again, until it is *late*."""
    again: list[tuple[int, ...]] = []
    for n, group in enumerate(winners):
        last = n == MAX_SINGLE_TRIALS or late()
        again.append(tuple(chain.from_iterable(winners[n:])) if last else group)
        yield again[-1]
        if last:
            break
    for more in (*contenders, *again, *contenders):
        if late():
            break
        yield more


def _tried(
    plan: ExecutionPlan,
    plan_of: Callable[[list[int]], ExecutionPlan],
    larger: list[int],
    want: Arrays,
    feeds: Arrays,
    once: float,
) -> tuple[float, ExecutionPlan | None]:
    """How many times faster than *plan* the one with *larger* is, and that plan if it pays.

    One that does not pay is let go here: plans are as large as their model.  Raises ValueError where it cannot be made
    or does not come to what is wanted.
    """
    trial = plan_of(larger)
    error = largest_error(want, trial.run(feeds))
    if error > AGREEMENT:
        raise ValueError(f"with it the model differs by {error:.1e} of its largest output")
    ratio = plan_speedup(plan, trial, feeds, once, {"before": once, "after": once})
    return ratio, trial if ratio >= MIN_PART_SPEEDUP else None


def plan_speedup(
    before: ExecutionPlan, after: ExecutionPlan, feeds: Arrays, once: float, warm: Mapping[str, float] = NOTHING
) -> float:
    """How many times faster *after* is than *before*, one run of which takes about *once* seconds; *warm* as below."""
    times = time_plans(before, after, feeds, measurement_rounds(once, 11), 0.3, warm)
    return times_faster(times["before"], times["after"])


def time_plans(
    before: ExecutionPlan,
    after: ExecutionPlan,
    feeds: Arrays,
    rounds: int,
    min_seconds: float,
    warm: Mapping[str, float] = NOTHING,
    brief: bool = False,
) -> dict[str, Timing]:
    """Both plans measured in turns; threads that one leaves waiting in loops are let settle before the other runs.

    *warm* is as in ``compare``; a *brief* measurement ends as soon as it is clear that *after* is not slower.
    """
    calls = {"before": lambda: before.run(feeds), "after": lambda: after.run(feeds)}
    settle = pause(max(before.threads, after.threads))
    return compare(calls, rounds, min_seconds, settle, warm, is_clearly_faster if brief else never)


def is_clearly_faster(samples: Mapping[str, Sequence[float]]) -> bool:
    """Whether *samples* of what was ``before`` and ``after`` took a while and all say that ``after`` is faster."""
    pairs = list(zip(samples["before"], samples["after"], strict=True))
    sure = MIN_SPEEDUP if len(pairs) >= MIN_ROUNDS else CLEAR_SPEEDUP
    return sum(map(sum, pairs)) >= BRIEF_SECONDS and all(one >= sure * other for one, other in pairs)


def time_against_original(
    original: ExecutionPlan,
    plan: ExecutionPlan,
    feeds: Arrays,
    once: float,
    warm: Mapping[str, float] = NOTHING,
    brief: bool = False,
) -> dict[str, Timing]:
    """Both plans measured in turns; where they are the same one it is measured once and compared with itself.

    *once* is about how many seconds a run takes; *warm* and *brief* are as in ``paired``.
    """
    rounds = measurement_rounds(once, 21)
    if plan is original:
        same = compare({"before": lambda: original.run(feeds)}, rounds=rounds, warm=warm)["before"]
        return {"before": same, "after": same}
    return time_plans(original, plan, feeds, rounds, 1.0, warm, brief)


def conservative_speedup(timings: Mapping[str, Timing]) -> float:
    """How many times faster, by the median of the ratios or the ratio of the quartiles: noise makes them differ."""
    before, after = timings["before"], timings["after"]
    return min(times_faster(before, after), before.low / after.low)


def measurement_rounds(once: float, most: int) -> int:
    """How often to measure what takes *once* seconds: *most* times, less often where that takes many seconds."""
    return max(5 if once < 1 else MIN_ROUNDS, min(most, int(4 / once)))
