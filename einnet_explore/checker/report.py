"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einnet_explore.algebra.certificate import Certificate, Kind
from einnet_explore.algebra.given import only


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: what was claimed (None: nothing), what was found, and instances that are not what they say."""

    rule: str
    at: str
    claimed: Kind | None
    certificate: Certificate
    instances: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the step holds."""
        return self.certificate.ok and not self.instances

    @property
    def counterexample(self) -> str | None:
        """What is wrong with the step."""
        return self.certificate.counterexample or next(iter(self.instances), None)

    def to_json(self) -> dict[str, Any]:
        """The step as plain JSON values."""
        return {
            "rule": self.rule,
            "at": self.at,
            "ok": self.ok,
            "claimed": self.claimed,
            "certificate": self.certificate.to_json(),
            "instances": list(self.instances),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on a record: its steps one by one, and its end against its start.

    *start* says what is wrong with the first program itself (None: nothing).
    """

    source: str
    start: str | None
    steps: tuple[StepReport, ...]
    whole: Certificate

    @property
    def ok(self) -> bool:
        """Whether the end computes what the start does, by every step and as a whole."""
        return self.start is None and self.whole.ok and all(step.ok for step in self.steps)

    @property
    def kind(self) -> Kind:
        """The record's certificate: ``proved`` if every step is, or else the end is proved against the start."""
        if not self.ok:
            return "false"
        if self.whole.kind == "proved" or all(step.certificate.kind == "proved" for step in self.steps):
            return "proved"
        return "exact"

    @property
    def counterexample(self) -> str | None:
        """What is wrong, at the first step that is; None where all holds."""
        if self.start is not None:
            return f"start: {self.start}"
        for number, step in enumerate(self.steps):
            if not step.ok:
                return f"step {number} ({step.rule} at {step.at}): {step.counterexample}"
        return None if self.whole.ok else f"start to end: {self.whole.counterexample}"

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "record": self.source,
            "ok": self.ok,
            "kind": self.kind,
            "counterexample": self.counterexample,
            "steps": [step.to_json() for step in self.steps],
            "whole": self.whole.to_json(),
        }

    def __str__(self) -> str:
        lines = [f"{n}. {step.rule} at {step.at}: {_said(step)}" for n, step in enumerate(self.steps)]
        needed = self.whole.detail if self.whole.programs else only([self.whole.detail])
        how = ", ".join(filter(None, (self.whole.method, needed)))
        lines.append(f"start to end: {self.whole.kind} ({how})")
        verdict = self.kind if self.ok else f"false: {self.counterexample}"
        return "\n".join([*lines, f"{self.source}: {verdict}"])


def _said(step: StepReport) -> str:
    kind = "false" if not step.ok else step.certificate.kind
    how = ", ".join(filter(None, (step.certificate.method, only([step.certificate.detail]))))
    return f"{kind} ({how})" + ("" if step.claimed in (None, kind) else f", claimed {step.claimed}")
