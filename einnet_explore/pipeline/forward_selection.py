"""Forward selection: winners join the plan of the whole model one by one, and stay if they make it faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import inf
from time import perf_counter
from typing import NamedTuple, TypeAlias

from einnet_explore.pipeline.baseline import Baseline
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.plan_timing import plan_speedup
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, largest_error

PlanMaker: TypeAlias = "Callable[[Sequence[int]], ExecutionPlan]"
"""Makes the plan with the derivations of some subprograms, by number; raises ValueError if that is impossible."""

MIN_PART_SPEEDUP = 1.005
"""Speedup of the whole model that a group of equal subprograms has to bring."""

MAX_SINGLE_TRIALS = 8
"""Groups that are tried one by one; those that gain less are tried together."""

MAX_CONTENDERS = 4
"""Groups of contenders, which nearly won by themselves, that are tried in the whole model."""

FORWARD_SELECTION_SECONDS = 75.0
"""Seconds after which the remaining winners are tried together, and nothing else: a trial of a model that takes a
second takes eight."""

UNTRIED = "interrupted before it was tried in the whole model"


class ForwardSelection(NamedTuple):
    """The numbers of the subprograms *kept*, the *plan* with them, and the reasons why others are *refused*."""

    kept: list[int]
    plan: ExecutionPlan
    refused: dict[int, str]
    interrupted: bool = False


def forward_selection(
    baseline: Baseline,
    plan_of: PlanMaker,
    winners: Sequence[Sequence[int]],
    contenders: Sequence[Sequence[int]] = (),
    seconds: float = FORWARD_SELECTION_SECONDS,
    clock: Callable[[], float] = perf_counter,
) -> ForwardSelection:
    """Select the subprograms that make the whole model faster.

    *winners* and *contenders* are groups of equal subprograms, most gain first; each group joins the plan as one.
    Contenders come after the winners.  A group that made the plan slower is tried once more with those that joined
    later, whose layouts it may share.  Ctrl-C ends the selection with the groups kept by then.
    """
    _ = baseline.want  # its run is no part of the time
    until = clock() + seconds
    kept: list[int] = []
    plan, refused, interrupted = baseline.original, dict[int, str](), False
    tried: dict[tuple[int, ...], float] = {}
    turns = _turns([*map(tuple, winners)], [*map(tuple, contenders)][:MAX_CONTENDERS], lambda: clock() > until)
    for more in turns:
        if len(kept) <= tried.get(more, -1):
            continue  # it is in, it does not agree, or the plan has not changed since it was tried
        tried[more], larger = inf, sorted((*kept, *more))
        try:
            speedup, better = _trial(baseline, plan, plan_of, larger)
        except ValueError as problem:
            refused |= dict.fromkeys(more, str(problem))
            continue
        except KeyboardInterrupt:
            refused, interrupted = dict.fromkeys(chain.from_iterable(winners), UNTRIED) | refused, True
            break
        if better is None:
            refused |= dict.fromkeys(more, f"with it the whole model runs at {speedup:.2f} of its speed without")
            tried[more] = len(kept)
        else:
            kept, plan = larger, better
    return ForwardSelection(kept, plan, {n: why for n, why in refused.items() if n not in kept}, interrupted)


def _turns(
    winners: Sequence[tuple[int, ...]], contenders: Sequence[tuple[int, ...]], late: Callable[[], bool]
) -> Iterable[tuple[int, ...]]:
    """Yield *winners*, the last of them together, then *contenders*, then both again, until it is *late*."""
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


def _trial(
    baseline: Baseline, plan: ExecutionPlan, plan_of: PlanMaker, larger: list[int]
) -> tuple[float, ExecutionPlan | None]:
    """Return the speedup over *plan* of the plan with *larger*, and that plan if it pays.

    A plan that does not pay is freed here: plans are as large as their model.  Raises ValueError if the plan cannot be
    made or does not agree with the original.
    """
    trial = plan_of(larger)
    error = largest_error(baseline.want, trial.run(baseline.feeds))
    if error > MAX_RELATIVE_ERROR:
        raise ValueError(f"with it the model differs by {error:.1e} of its largest output")
    once = baseline.seconds
    speedup = plan_speedup(plan, trial, baseline.feeds, once, {"before": once, "after": once})
    return speedup, trial if speedup >= MIN_PART_SPEEDUP else None
