"""What each kept derivation brings to the whole: the plan without it beside the plan, measured once and remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from einnet_explore.graph.outputs import Arrays
from einnet_explore.graph.remembered import Memory
from einnet_explore.graph.running.plan import Plan
from einnet_explore.graph.whole import ratio_of


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
class Without:
    """The plan of some kept parts, in *groups* of equal ones, with one group switched off.

    *plan_of* makes the plan with some parts, or raises ValueError.  What was measured is in *memory*, by the *key* of
    the plan.
    """

    groups: tuple[tuple[int, ...], ...]
    plan_of: Callable[[Sequence[int]], Plan]
    memory: Memory
    key: tuple[object, ...]

    def known(self, group: tuple[int, ...]) -> float | None:
        """What this run or an earlier one measured of *group*."""
        found = self.memory.get("attribution", *self.key, group)
        return None if found is None else float(found)

    def measured(self, group: tuple[int, ...], plan: Plan, feeds: Arrays, once: float) -> float:
        """How many times faster *plan*, a run of which takes *once* seconds, is than that without *group*.

        Raises ValueError where that cannot be made.
        """
        rest = [n for other in self.groups if other != group for n in other]
        speedup = ratio_of(self.plan_of(rest), plan, feeds, once, {"after": once})
        self.memory.put(speedup, "attribution", *self.key, group)
        return speedup
