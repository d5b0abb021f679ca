"""Outcome of one item of a soak."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """Counts of checks, and findings, one line each."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def found(self, what: str, said: object, *shown: object) -> None:
        """Note that *what* went wrong, with *shown* to see it by."""
        kind = f"{type(said).__name__}: {said}" if isinstance(said, BaseException) else str(said)
        text = " | ".join(str(part).strip() for part in shown)
        self.findings.append(" ".join(f"{what}: {kind[:600]}".split()) + (f"\n{text}" if text else ""))

    def to_json(self) -> dict[str, Any]:
        """Return the content of a line of the state file."""
        return {"counts": dict(self.counts), "findings": self.findings}
