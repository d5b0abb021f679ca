"""Selection by trials: groups of derived subprograms join or leave a plan, which is measured each time.

* Forward selection: derived subprograms join the plan one by one, and stay if they make it faster.  Many join it
  together first, since conversions between replaced and other subprograms vanish only then.  Those that gain little by
  themselves then leave it together, unless the plan is slower without them, and join it again one by one.
* Backward elimination: subprograms without which the plan is faster are removed.  Forward selection measures each
  subprogram only with those before it.  It may slow down the final plan if it is joined with later ones, or if its
  original was slow only *in isolation*.
* Selection for export: the file of standard operators has all kept derivations if it is then faster than the original
  in ONNX Runtime, else those that are faster there, else none.  A derivation may gain by kernels that ONNX Runtime does
  not have: in standard operators an overlap-add is a ``Pad`` and a sum of many slices.
* Exact subprograms, which round to integers as the model defines and whose originals do not, need not be faster: they
  join all together if the plan is then as fast as the original, stay unless they cost much, and do not leave it for
  another host that is a little faster.  One wrong integer changes everything that is computed from it.
* Selection of the host: another installed runtime runs the nodes that are not replaced if the whole plan is then
  faster, with the subprograms that pay there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from time import perf_counter
from typing import NamedTuple

from einnet_explore.pipeline.baseline import (
    MIN_SPEEDUP,
    Baseline,
    conservative_speedup,
    plan_speedup,
    time_against_original,
)
from einnet_explore.pipeline.optimised import ExportSelection, PlanMaker
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.subprogram import TunedSubprogram

MIN_PART_SPEEDUP = 1.005
"""Speedup of the whole model that a group of equal subprograms has to bring."""

MIN_SPEEDUP_WITHOUT = 1.0
"""Speedup of the whole model for which doubtful subprograms leave it together: fewer replacements are preferred."""

MIN_EXACT_PART_SPEEDUP = 0.99
"""The same for exact subprograms: they may cost as much as noise."""

MIN_EXACT_SPEEDUP = 1.0
"""Speedup over the original that a plan with exact subprograms needs: it must not be slower."""

MAX_SINGLE_TRIALS = 8
"""Groups that are tried one by one; those that gain less are tried together, and more groups all together first."""

MAX_CONTENDERS = 4
"""Groups of contenders, which nearly won by themselves, that are tried one by one in the whole model."""

MAX_NEAR_TRIALS = 4
"""Groups that are tried in place of others that are nearly as fast by themselves."""

FORWARD_SELECTION_SECONDS = 75.0
"""Seconds after which the remaining winners are tried together, and nothing else: a trial of a model that takes a
second takes eight."""

UNTRIED = "interrupted before it was tried in the whole model"


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Subprograms that are estimated to be fastest together (*proposed*), and choices between those of the same nodes.

    *near* are groups to be tried in place of others, *rivals* the numbers of those that share nodes with one.
    *earlier* are those that an earlier run kept, however it ended.
    """

    earlier: tuple[int, ...] = ()
    proposed: tuple[int, ...] = ()
    near: tuple[tuple[int, ...], ...] = ()
    rivals: Mapping[int, Collection[int]] = field(default_factory=dict)


NO_ALTERNATIVES = Alternatives()


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
    start: ExecutionPlan | None = None,
    exact: Collection[int] = (),
    doubtful: Collection[int] = (),
    alternatives: Alternatives = NO_ALTERNATIVES,
) -> ForwardSelection:
    """Select the subprograms that make the whole model faster than the plan *start* (by default the original).

    *winners* and *contenders* are groups of equal subprograms, most gain first; each group joins the plan as one.
    Contenders come after the winners.  A group that made the plan slower is tried once more with those that joined
    later, whose layouts it may share; last, all are tried together.  Those that are *exact* are tried together first,
    and a group of them stays unless the plan is slower by more than noise, or slower than *start*.  If many groups
    joined together, the *doubtful* ones leave together if the plan is then no slower, and are tried one by one.  The
    *alternatives* have those of an earlier run and propose a plan, both before all groups; what is proposed is then not
    doubtful.  They also name groups in place of others.  Ctrl-C ends the selection with the groups kept by then.
    """
    _ = baseline.want  # its run is no part of the time
    until = clock() + seconds
    kept: list[int] = []
    plan, refused, interrupted = start or baseline.original, dict[int, str](), False
    tried: dict[_Turn, float] = {}
    doubtful = {*doubtful} - {*exact}
    turns = _trial_order(
        [*map(tuple, winners)],
        [*map(tuple, contenders)],
        doubtful,
        is_kept=lambda group: {*group} <= {*kept},
        late=lambda: clock() > until,
        near=alternatives.near,
    )
    every = tuple(n for group in (*winners, *contenders) for n in group if n in exact)
    gained = 1.0
    proposed = _Turn(alternatives.proposed)
    for turn in chain([_Turn(every)] if every else [], [_Turn(alternatives.earlier), proposed], turns):
        changed = turn.applied_to(kept, alternatives.rivals)
        if len(kept) <= tried.get(turn, -1) or changed == kept or not changed:
            continue  # it is in, it does not agree, or the plan has not changed since it was tried
        tried[turn] = inf
        least = MIN_PART_SPEEDUP if turn.joining else MIN_SPEEDUP_WITHOUT
        if turn.joining and {*changed} - {*kept} <= {*exact}:  # the first ones, all together, may not cost anything
            least = max(MIN_EXACT_PART_SPEEDUP, MIN_EXACT_SPEEDUP / gained)
        try:
            speedup, better = _try_group(baseline, plan, plan_of, changed, least)
        except ValueError as problem:
            refused |= dict.fromkeys(turn.joining, str(problem))
            continue
        except KeyboardInterrupt:
            refused, interrupted = dict.fromkeys(chain.from_iterable(winners), UNTRIED) | refused, True
            break
        if better is None:
            why = f"with it the whole model is not faster: {speedup:.2f} of the speed without"
            refused |= dict.fromkeys(turn.joining, why)
            tried[turn] = len(kept)
        else:
            why = f"without it and others the whole model is not slower: {speedup:.2f} of the speed with them"
            refused |= dict.fromkeys(turn.leaving, why)
            refused |= dict.fromkeys(
                {*kept} - {*changed} - {*turn.leaving},
                f"others of its nodes are faster: {speedup:.2f} of the speed with it",
            )
            kept, plan, gained = changed, better, gained * speedup
            if turn is proposed:
                doubtful -= {*turn.joining}  # the turns to come know it
    return ForwardSelection(kept, plan, {n: why for n, why in refused.items() if n not in kept}, interrupted)


class _Turn(NamedTuple):
    """A change of the plan to be tried: the subprograms *joining* it, or *leaving* it."""

    joining: tuple[int, ...]
    leaving: tuple[int, ...] = ()

    def applied_to(self, kept: Iterable[int], rivals: Mapping[int, Collection[int]]) -> list[int]:
        """Return the subprograms of the plan with *kept* after this turn; those that join replace their *rivals*."""
        replaced = {*chain.from_iterable(rivals.get(n, ()) for n in self.joining)}
        return sorted(({*kept} - replaced | {*self.joining}) - {*self.leaving})


def _trial_order(
    winners: Sequence[tuple[int, ...]],
    contenders: Sequence[tuple[int, ...]],
    doubtful: Collection[int],
    is_kept: Callable[[Iterable[int]], bool],
    late: Callable[[], bool],
    near: Sequence[tuple[int, ...]] = (),
) -> Iterable[_Turn]:
    """Yield *winners*, the last of them together, then *contenders*, then both again, until it is *late*; then all.

    Groups that are *near* ones that they replace come after the winners.

    Among many operators with a layout of their own, which another runtime prefers, a few others only pay together.  So
    all are tried, however late it is, and many winners are tried together first.  Each of those that are *doubtful*
    may cost less than the noise, and all together more: they leave together, and those that are not kept (*is_kept*)
    are tried one by one.
    """
    again: list[tuple[int, ...]] = []
    if len(winners) > MAX_SINGLE_TRIALS:
        together = tuple(chain.from_iterable(winners))
        yield _Turn(together)
        yield _Turn((), tuple(n for n in together if n in doubtful))
    waiting = [group for group in winners if not is_kept(group)]
    for n, group in enumerate(waiting):
        last = n == MAX_SINGLE_TRIALS or late()
        again.append(tuple(chain.from_iterable(waiting[n:])) if last else group)
        yield _Turn(again[-1])
        if last:
            break
    several = contenders[:MAX_CONTENDERS]
    for more in (*near[:MAX_NEAR_TRIALS], *several, *again, *several):
        if late():
            break
        yield _Turn(more)
    yield _Turn(tuple(dict.fromkeys(chain.from_iterable((*winners, *contenders)))))


def _try_group(
    baseline: Baseline, plan: ExecutionPlan, plan_of: PlanMaker, numbers: list[int], least: float
) -> tuple[float, ExecutionPlan | None]:
    """Return the speedup over *plan* of the plan with *numbers*, and that plan if the speedup is *least* or more.

    A plan that does not pay is freed here: plans are as large as their model.  Raises ValueError if the plan cannot be
    made or does not agree with the original.
    """
    if plan is baseline.original:
        plan.make_room()
    else:
        baseline.original.rest()  # two other plans are compared
    trial = plan_of(numbers)
    speedup = _checked_speedup(baseline, plan, trial, least)
    return speedup, trial if speedup >= least else None


def _checked_speedup(baseline: Baseline, plan: ExecutionPlan, trial: ExecutionPlan, least: float) -> float:
    """Return the speedup of *trial* over *plan*, exact enough to compare it with *least*.

    Raises ValueError if *trial* fails or does not agree with the original.
    """
    _, error = baseline.errors(trial.run(baseline.feeds))
    if error > baseline.max_error:
        raise ValueError(f"with it the outputs differ by {error:.1e} of the largest output")
    once = baseline.seconds
    return plan_speedup(plan, trial, baseline.feeds, once, {"before": once, "after": once}, least)


MAX_LOSING_SPEEDUP = 0.99
"""Subprograms leave the plan if it runs with them, twice, at less than this part of its speed without."""

MAX_LOSING_EXACT_SPEEDUP = 0.95
"""The same for exact subprograms."""

CERTAIN_SPEEDUP = 1.5
"""Speedup by themselves from which subprograms are not tried: no neighbour costs as much."""

MAX_ELIMINATION_TRIALS = 8
"""Groups that are left out on trial at most, least gain first."""

ELIMINATION_SECONDS = 20.0
"""Seconds after which no further group is tried."""


def eliminate_unprofitable(
    baseline: Baseline,
    plan_of: PlanMaker,
    groups: Sequence[Sequence[int]],
    parts: Mapping[int, TunedSubprogram],
    seconds: float = ELIMINATION_SECONDS,
    clock: Callable[[], float] = perf_counter,
    exact: Collection[int] = (),
) -> dict[int, str]:
    """Return the subprograms without which the whole model is faster, by more if they are *exact*, and why.

    *groups* are the equal ones among *parts*, all of which are in the plan; each group stays or leaves as one.
    """
    began, once = clock(), baseline.seconds
    kept = [n for group in groups for n in group]
    lost: dict[int, str] = {}
    doubtful = [group for group in groups if any(is_doubtful(parts[n]) for n in group)]
    plan: ExecutionPlan | None = None
    without: ExecutionPlan | None
    for group in sorted(doubtful, key=lambda group: sum(parts[n].gain for n in group))[:MAX_ELIMINATION_TRIALS]:
        rest = [n for n in kept if n not in group]
        if not rest or clock() - began > seconds:
            break
        without = None  # the last one is freed before the next is made
        baseline.original.rest()  # two other plans are compared
        try:
            plan = plan or plan_of(kept)
            without = plan_of(rest)
            if baseline.errors(without.run(baseline.feeds))[1] > baseline.max_error:
                continue
        except ValueError:
            continue
        least = MAX_LOSING_EXACT_SPEEDUP if {*group} <= {*exact} else MAX_LOSING_SPEEDUP
        ratio = plan_speedup(without, plan, baseline.feeds, once, {"before": once}, least)
        if ratio < least:
            warm = {"before": once, "after": once}
            ratio = max(ratio, plan_speedup(without, plan, baseline.feeds, once, warm, least))
        if ratio < least:
            lost |= dict.fromkeys(group, f"in the whole model, the plan with it runs at {ratio:.2f} of its speed")
            kept, plan = rest, without
    return lost


def is_doubtful(part: TunedSubprogram) -> bool:
    """True if *part* may cost more in the plan than it gains by itself."""
    return part.trial.seconds_before < CERTAIN_SPEEDUP * part.trial.seconds_after


EXPORT_SELECTION_SECONDS = 15.0
"""Seconds of forward selection in the file: most of the gain is in the plan."""

MIN_EXPORT_SPEEDUP = 1.0
"""Speedup that the file needs in ONNX Runtime: it must not be slower than the original."""

MEASURED_IN_ONNXRUNTIME = "measured in turn with the original in ONNX Runtime"


def select_for_export(
    baseline: Baseline,
    plan_of: PlanMaker,
    groups: Sequence[Sequence[int]],
    whole: ExportSelection,
    seconds: float = EXPORT_SELECTION_SECONDS,
    clock: Callable[[], float] = perf_counter,
) -> ExportSelection:
    """Select the derivations for the file; *plan_of* runs a file with some of them.

    *groups* are the kept derivations, most gain first; *whole* is the file with all of them, if it was measured.
    Raises KeyboardInterrupt.
    """
    if whole.speedup is not None and whole.speedup >= MIN_EXPORT_SPEEDUP:
        return replace(whole, why=MEASURED_IN_ONNXRUNTIME)
    found = forward_selection(baseline, plan_of, groups, (), seconds, clock)
    if found.interrupted:
        raise KeyboardInterrupt
    if found.kept:
        timings = time_against_original(baseline.original, found.plan, baseline.feeds, baseline.seconds)
        speedup = conservative_speedup(timings)
        if speedup >= MIN_EXPORT_SPEEDUP:
            return ExportSelection(speedup, MEASURED_IN_ONNXRUNTIME, tuple(found.kept))
    lost = whole.why
    if whole.speedup is not None:
        lost = f"with all of them it runs at {whole.speedup:.2f} of the original's speed"
    return ExportSelection(1.0, f"no kept rewrite is faster in plain ONNX Runtime ({lost}): the file is the original")


MIN_HOSTED_SPEEDUP = 0.9
"""Speedup over the plan of ONNX Runtime from which on subprograms are selected for a plan of another host."""

MIN_INEXACT_SPEEDUP = 1.25
"""Speedup for which a plan of another host may lack exact subprograms of the plan of ONNX Runtime."""

HOST_SELECTION_SECONDS = 8.0
"""Seconds after which no further subprogram is tried with another host."""


def select_host(
    baseline: Baseline,
    current: ExecutionPlan,
    plan_of: PlanMaker,
    groups: Sequence[Sequence[int]],
    kept: Sequence[int],
    seconds: float = HOST_SELECTION_SECONDS,
    clock: Callable[[], float] = perf_counter,
    exact: Collection[int] = (),
) -> tuple[int, ...] | None:
    """Return the subprograms with which the plan of a host is faster than *current* by more than noise, else None.

    *plan_of* makes plans of the host.  It runs the whole model, or the nodes that the *kept* subprograms of *current*
    leave; if one of these is nearly as fast, *groups* of equal subprograms join the former one by one, most gain first.
    Without all of *kept* that are *exact*, a plan has to be faster by ``MIN_INEXACT_SPEEDUP``.
    Raises KeyboardInterrupt.
    """

    def least(numbers: Iterable[int]) -> float:
        return MIN_SPEEDUP if {*kept} & {*exact} <= {*numbers} else MIN_INEXACT_SPEEDUP

    until, whole = clock() + seconds, None
    speedups = dict[tuple[int, ...], float]()
    for numbers in dict.fromkeys(((), tuple(kept))):
        with suppress(ValueError):
            plan = plan_of(numbers)
            speedups[numbers] = _checked_speedup(baseline, current, plan, least(numbers))
            whole = whole if numbers else plan
    if max(speedups.values(), default=0.0) < MIN_HOSTED_SPEEDUP:
        return None
    if whole is not None and [*map(tuple, groups)] not in ([], [tuple(kept)]) and clock() < until:
        found = forward_selection(baseline, plan_of, groups, (), until - clock(), clock, whole, exact)
        if found.interrupted:
            raise KeyboardInterrupt
        if tuple(found.kept) not in speedups:
            more = least(found.kept)
            speedups[tuple(found.kept)] = _checked_speedup(baseline, current, found.plan, more)
    best = max(speedups, key=lambda numbers: speedups[numbers] / least(numbers))
    return best if speedups[best] >= least(best) else None
