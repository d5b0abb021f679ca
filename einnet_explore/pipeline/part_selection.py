"""Selection of derived subprograms by measurements of the whole model.

* Forward selection: derived subprograms join the plan one by one, and stay if they make it faster.
* Backward elimination: subprograms without which the plan is faster are removed.  Forward selection measures each
  subprogram only with those before it.  It may slow down the final plan if it is joined with later ones, or if its
  original was slow only *in isolation*.
* Selection for export: the file of standard operators has all kept derivations if it is then faster than the original
  in ONNX Runtime, else those that are faster there, else none.  A derivation may gain by kernels that ONNX Runtime does
  not have: in standard operators an overlap-add is a ``Pad`` and a sum of many slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from time import perf_counter
from typing import NamedTuple, TypeAlias

from einnet_explore.pipeline.assembly import PlanForm
from einnet_explore.pipeline.baseline import Baseline, conservative_speedup, plan_speedup, time_against_original
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.subprogram import TunedSubprogram
from einnet_explore.pipeline.tuning_context import TuningHistory
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Arrays, largest_error
from einnet_explore.support.json_values import JsonObject, as_number
from einnet_explore.support.wording import count_noun

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
    turns = _trial_order([*map(tuple, winners)], [*map(tuple, contenders)][:MAX_CONTENDERS], lambda: clock() > until)
    for more in turns:
        if len(kept) <= tried.get(more, -1):
            continue  # it is in, it does not agree, or the plan has not changed since it was tried
        tried[more], larger = inf, sorted((*kept, *more))
        try:
            speedup, better = _try_group(baseline, plan, plan_of, larger)
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


def _trial_order(
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


def _try_group(
    baseline: Baseline, plan: ExecutionPlan, plan_of: PlanMaker, larger: list[int]
) -> tuple[float, ExecutionPlan | None]:
    """Return the speedup over *plan* of the plan with *larger*, and that plan if it pays.

    A plan that does not pay is freed here: plans are as large as their model.  Raises ValueError if the plan cannot be
    made or does not agree with the original.
    """
    trial = plan_of(larger)
    error = largest_error(baseline.want, trial.run(baseline.feeds))
    if error > MAX_RELATIVE_ERROR:
        raise ValueError(f"with it the outputs differ by {error:.1e} of the largest output")
    once = baseline.seconds
    speedup = plan_speedup(plan, trial, baseline.feeds, once, {"before": once, "after": once})
    return speedup, trial if speedup >= MIN_PART_SPEEDUP else None


MAX_LOSING_SPEEDUP = 0.99
"""Subprograms leave the plan if it runs with them, twice, at less than this part of its speed without."""

CERTAIN_SPEEDUP = 1.5
"""Speedup by themselves from which subprograms are not tried: no neighbour costs as much."""

MAX_ELIMINATION_TRIALS = 8
"""Groups that are left out on trial at most, least gain first."""

ELIMINATION_SECONDS = 45.0
"""Seconds after which no further group is tried."""


def eliminate_unprofitable(
    baseline: Baseline,
    plan_of: PlanMaker,
    groups: Sequence[Sequence[int]],
    parts: Mapping[int, TunedSubprogram],
    seconds: float = ELIMINATION_SECONDS,
    clock: Callable[[], float] = perf_counter,
) -> dict[int, str]:
    """Return the subprograms without which the whole model is faster, and why.

    *groups* are the equal ones among *parts*, all of which are in the plan; each group stays or leaves as one.
    """
    began, once = clock(), baseline.seconds
    kept = [n for group in groups for n in group]
    lost: dict[int, str] = {}
    doubtful = [group for group in groups if any(_is_doubtful(parts[n]) for n in group)]
    plan: ExecutionPlan | None = None
    for group in sorted(doubtful, key=lambda group: sum(parts[n].gain for n in group))[:MAX_ELIMINATION_TRIALS]:
        rest = [n for n in kept if n not in group]
        if not rest or clock() - began > seconds:
            break
        try:
            plan = plan or plan_of(kept)
            without = plan_of(rest)
            if largest_error(baseline.want, without.run(baseline.feeds)) > MAX_RELATIVE_ERROR:
                continue
        except ValueError:
            continue
        ratio = plan_speedup(without, plan, baseline.feeds, once, {"before": once})
        if ratio < MAX_LOSING_SPEEDUP:
            again = plan_speedup(without, plan, baseline.feeds, once, {"before": once, "after": once})
            ratio = max(ratio, again)
        if ratio < MAX_LOSING_SPEEDUP:
            lost |= dict.fromkeys(group, f"in the whole model, the plan with it runs at {ratio:.2f} of its speed")
            kept, plan = rest, without
    return lost


def _is_doubtful(part: TunedSubprogram) -> bool:
    return part.trial.seconds_before < CERTAIN_SPEEDUP * part.trial.seconds_after


@dataclass(frozen=True, slots=True)
class Attribution:
    """The *speedup* that the derivation of *nodes* (an entry for each of the equal subprograms) brings to the model.

    It is the time of the plan without the derivation over that of the plan, measured in turns.
    """

    nodes: tuple[tuple[str, ...], ...]
    speedup: float

    def to_json(self) -> JsonObject:
        """Return one entry of ``attribution`` in the JSON of ``optimize``."""
        return {"nodes": [list(names) for names in self.nodes], "speedup": self.speedup}


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """The plan with one of its *groups* of equal subprograms left out.

    Measured speedups are remembered in *history*, by the *key* of the plan.
    """

    groups: tuple[tuple[int, ...], ...]
    plan_of: PlanMaker
    history: TuningHistory
    key: tuple[object, ...]

    def known(self, group: tuple[int, ...]) -> float | None:
        """Return the speedup of *group* that this run or an earlier one measured."""
        found = self.history.get("attribution", *self.key, group)
        return None if found is None else as_number(found)

    def measure(self, group: tuple[int, ...], plan: ExecutionPlan, feeds: Arrays, once: float) -> float:
        """Measure the speedup of *plan*, a run of which takes *once* seconds, over the plan without *group*.

        Raises ValueError if that plan cannot be made.
        """
        rest = [n for other in self.groups if other != group for n in other]
        speedup = plan_speedup(self.plan_of(rest), plan, feeds, once, {"after": once})
        self.history.record(speedup, "attribution", *self.key, group)
        return speedup


EXPORT_SELECTION_SECONDS = 30.0
"""Seconds of forward selection in the file: most of the gain is in the plan."""

MIN_EXPORT_SPEEDUP = 1.0
"""Speedup that the file needs in ONNX Runtime: it must not be slower than the original."""

MEASURED_IN_ONNXRUNTIME = "measured in turn with the original in ONNX Runtime"


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """The file: its *speedup* in ONNX Runtime (None: not measured), and *why*.

    *parts* are the numbers of the derived subprograms in it, assembled in *form*.
    """

    speedup: float | None
    why: str
    parts: tuple[int, ...] = ()
    form: PlanForm = PlanForm.EXPORTED

    def lacks(self, kept: int) -> str:
        """Say that the file is slower or lacks some of the *kept* derivations; empty if neither."""
        if self.speedup is None:
            return f"its speed in ONNX Runtime is not known ({self.why})"
        if len(self.parts) < kept:
            return (
                f"it has {len(self.parts)} of {count_noun(kept, 'derivation')} and runs at {self.speedup:.2f} of the "
                "original's speed in ONNX Runtime: the other derivations are faster in the plan only"
            )
        return (
            "" if self.speedup >= 1 else f"in plain ONNX Runtime it runs at {self.speedup:.2f} of the original's speed"
        )


ORIGINAL_EXPORT = ExportSelection(1.0, "no rewrite is kept: the file is the original")
"""The file if no derivation is kept."""

UNMEASURED_EXPORT = ExportSelection(None, "it was not measured")


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
