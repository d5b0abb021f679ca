"""Backward elimination: subprograms that do not pay next to the others leave the plan; and what each kept one brings.

Forward selection measures each subprogram with those before it.  One that is joined with others later, or that only
gains because its original is slow *by itself*, may cost the whole more than it brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from einnet_explore.pipeline.baseline import Baseline
from einnet_explore.pipeline.forward_selection import PlanMaker
from einnet_explore.pipeline.history import TuningHistory
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.plan_timing import plan_speedup
from einnet_explore.pipeline.trial import TunedSubprogram
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Arrays, largest_error

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
            lost |= dict.fromkeys(group, f"beside the others the whole model runs with it at {ratio:.2f} of its speed")
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

    def to_json(self) -> dict[str, Any]:
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
        return None if found is None else float(found)

    def measure(self, group: tuple[int, ...], plan: ExecutionPlan, feeds: Arrays, once: float) -> float:
        """Measure the speedup of *plan*, a run of which takes *once* seconds, over the plan without *group*.

        Raises ValueError if that plan cannot be made.
        """
        rest = [n for other in self.groups if other != group for n in other]
        speedup = plan_speedup(self.plan_of(rest), plan, feeds, once, {"after": once})
        self.history.put(speedup, "attribution", *self.key, group)
        return speedup
