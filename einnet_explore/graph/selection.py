"""What was selected of a model's parts by measurement, and how that is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from einnet_explore.graph.filed import ORIGINAL, Exported

LEAST = 10.0
"""Seconds that selecting may take, however small the budget is: some trials, or nothing that was found is used."""


def selecting(budget: float | None) -> float:
    """Seconds after which selecting tries nothing more: half of a *budget*; without one each step has its own."""
    return inf if budget is None else max(LEAST, budget / 2)


@dataclass(frozen=True, slots=True)
class Selection:
    """The numbers of the parts kept, the form of the plan, why other winners are not kept, and what is exported."""

    kept: tuple[int, ...]
    form: str
    refused: Mapping[int, str]
    exported: Exported

    def given_back(self, why: str) -> Selection:
        """Nothing, since what was kept does not hold what it promised."""
        return Selection((), self.form, {**self.refused, **dict.fromkeys(self.kept, why)}, ORIGINAL)

    def to_json(self) -> dict[str, Any]:
        """The selection as it is remembered."""
        exported = [self.exported.speedup, self.exported.why, self.exported.parts, self.exported.form]
        return {"kept": self.kept, "form": self.form, "refused": dict(self.refused), "exported": exported}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Selection:
        """The selection that ``to_json`` told."""
        speedup, why, parts, form = found["exported"]
        refused = {int(n): said for n, said in found["refused"].items()}
        return Selection(tuple(found["kept"]), found["form"], refused, Exported(speedup, why, tuple(parts), form))
