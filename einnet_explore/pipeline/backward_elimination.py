"""Which of the parts that a plan keeps do not pay beside the others: left out on trial, in the form that the plan has.

Parts come to a plan one after the other, each measured beside those before it.  What is joined with others later, or
runs by itself faster than its original does *by itself*, may cost the whole more than it brings: this looks back.

What each kept derivation brings to the whole: the plan without it beside the plan, measured once and remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from einnet_explore.pipeline.history import TuningHistory
from einnet_explore.pipeline.outcome import TunedSubprogram
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.whole_model import plan_speedup
from einnet_explore.runtime.outputs import AGREEMENT, Arrays, largest_error

MAX_LOSING_SPEEDUP = 0.99
"""Parts with which the plan twice runs at less than this part of its speed without are left out."""

CERTAIN_SPEEDUP = 1.5
"""Parts that are so many times faster by themselves are not tried: no neighbour costs as much."""

MAX_ELIMINATION_TRIALS = 8
"""Kinds of parts that are left out on trial at most, least gain first."""

ELIMINATION_SECONDS = 45.0
"""Seconds after which no further kind is tried."""


def eliminate_unprofitable(
    groups: Sequence[Sequence[int]],
    parts: Mapping[int, TunedSubprogram],
    plan_of: Callable[[list[int]], ExecutionPlan],
    feeds: Arrays,
    want: Arrays,
    once: float,
    clock: Callable[[], float] = perf_counter,
    longest: float = ELIMINATION_SECONDS,
) -> dict[int, str]:
    """The parts of *groups*, equal ones together, that the whole is faster without, and why.

    *plan_of* makes the plan with some *parts*, or raises ValueError; *want* is what the model gives for *feeds*, a run
    of which takes about *once* seconds; *longest* is as ``LONGEST``.
    """
    began = clock()
    warm = {"before": once, "after": once}
    kept = [n for group in groups for n in group]
    lost: dict[int, str] = {}
    doubtful = [group for group in groups if any(_doubtful(parts[n]) for n in group)]
    plan: ExecutionPlan | None = None
    for group in sorted(doubtful, key=lambda group: sum(parts[n].gain for n in group))[:MAX_ELIMINATION_TRIALS]:
        rest = [n for n in kept if n not in group]
        if not rest or clock() - began > longest:
            break
        try:
            plan = plan or plan_of(kept)
            without = plan_of(rest)
            if largest_error(want, without.run(feeds)) > AGREEMENT:
                continue
        except ValueError:
            continue
        ratio = plan_speedup(without, plan, feeds, once, {"before": once})
        if (
            ratio < MAX_LOSING_SPEEDUP
            and (ratio := max(ratio, plan_speedup(without, plan, feeds, once, warm))) < MAX_LOSING_SPEEDUP
        ):
            lost |= dict.fromkeys(group, f"beside the others the whole model runs with it at {ratio:.2f} of its speed")
            kept, plan = rest, without
    return lost


def _doubtful(part: TunedSubprogram) -> bool:
    return part.outcome.seconds_before < CERTAIN_SPEEDUP * part.outcome.seconds_after


@dataclass(frozen=True, slots=True)
class Attribution:
    """What the derivation of *nodes* (one entry for each of the equal parts) brings to the whole.

    *speedup* is the time of the plan without it over that of the plan, both measured in turns.
    """

    nodes: tuple[tuple[str, ...], ...]
    speedup: float

    def to_json(self) -> dict[str, Any]:
        """One entry of ``attribution`` in the JSON of ``optimize``."""
        return {"nodes": [list(names) for names in self.nodes], "speedup": self.speedup}


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """The plan of some kept parts, in *groups* of equal ones, with one group switched off.

    *plan_of* makes the plan with some parts, or raises ValueError.  What was measured is in *memory*, by the *key* of
    the plan.
    """

    groups: tuple[tuple[int, ...], ...]
    plan_of: Callable[[Sequence[int]], ExecutionPlan]
    memory: TuningHistory
    key: tuple[object, ...]

    def known(self, group: tuple[int, ...]) -> float | None:
        """What this run or an earlier one measured of *group*."""
        found = self.memory.get("attribution", *self.key, group)
        return None if found is None else float(found)

    def measured(self, group: tuple[int, ...], plan: ExecutionPlan, feeds: Arrays, once: float) -> float:
        """How many times faster *plan*, a run of which takes *once* seconds, is than that without *group*.

        Raises ValueError where that cannot be made.
        """
        rest = [n for other in self.groups if other != group for n in other]
        speedup = plan_speedup(self.plan_of(rest), plan, feeds, once, {"after": once})
        self.memory.put(speedup, "attribution", *self.key, group)
        return speedup
