"""One subprogram in a result.

What becomes of a contest: its winner is kept if every step is true; and how an outcome is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.ir import Program
from einnet_explore.pipeline.error_report import ErrorReport, level_report
from einnet_explore.pipeline.tuning_task import Trial
from einnet_explore.rules import Derivation, Refused
from einnet_explore.strategies.candidate import combined_verdict, replay, steps_to_json


@dataclass(frozen=True, slots=True)
class TunedSubprogram:
    """One subprogram: its nodes, how its contest ended, and whether the derived program is in the plan.

    *measured* is what its derivation does to the last digits, where that has been looked at.
    """

    nodes: tuple[str, ...]
    outcome: Trial
    kept: bool
    certificate: str
    why: str
    measured: ErrorReport | None = None

    @property
    def gain(self) -> float:
        """Seconds that the derived program saves by itself."""
        return self.outcome.seconds_before - self.outcome.seconds_after

    @property
    def seconds(self) -> float:
        """What it takes by itself: the derived program where that is in the plan, else the original."""
        return self.outcome.seconds_after if self.kept else self.outcome.seconds_before

    @property
    def derivation(self) -> Derivation | None:
        """The derivation that won, or came near."""
        return self.outcome.winner or self.outcome.contender

    @property
    def program(self) -> Program | None:
        """The derived program, where one won or came near."""
        return self.derivation.end if self.derivation else None

    @property
    def numerics(self) -> ErrorReport | None:
        """What the derivation in the plan does to the last digits; None where the original stays."""
        if not self.kept or self.derivation is None:
            return None
        return self.measured or level_report(self.derivation)

    def to_json(self) -> dict[str, Any]:
        """One entry of ``subprograms`` in the JSON of ``optimize``."""
        equations = self.program.equations if self.program and self.kept else ()
        calls = [e.via for e in equations if e.via and e.via.is_library_call]
        steps = self.derivation.steps if self.derivation and self.kept else ()
        numerics = self.numerics
        return {
            "nodes": list(self.nodes),
            "kept": self.kept,
            "seconds_before": self.outcome.seconds_before,
            "seconds_after": self.seconds,
            "operators": [{"name": via.operator, "attributes": dict(via.attributes)} for via in calls],
            "eoperators": sum(bool(e.via and e.via.is_eoperator) for e in equations),
            "certificate": self.certificate,
            "numerics": numerics.to_json() if numerics else None,
            "why": self.why,
            "states": self.outcome.states,
            "steps": [step.match.to_json() for step in steps],
        }


def choose_joined_or_parts(
    whole: TunedSubprogram, parts: Sequence[TunedSubprogram]
) -> tuple[TunedSubprogram, list[TunedSubprogram]]:
    """*whole* in place of those of *parts* inside it, where it takes less time than they and what lies between them.

    What each gains is no measure: one by one the originals take longer than together.
    """
    inside = set(whole.nodes)
    within = [part for part in parts if not inside.isdisjoint(part.nodes)]
    between = whole.outcome.seconds_before - sum(part.outcome.seconds_before for part in within)
    apart = max(0.0, between) + sum(part.seconds for part in within)
    if not whole.kept:
        return _without(whole, whole.why), list(parts)
    if whole.seconds >= apart:
        why = f"takes {whole.seconds * 1e6:.0f} µs, its parts {apart * 1e6:.0f} µs by themselves"
        return _without(whole, why), list(parts)
    together = "is derived together with others"
    return whole, [part if inside.isdisjoint(part.nodes) else _without(part, together) for part in parts]


def _without(part: TunedSubprogram, why: str) -> TunedSubprogram:
    """*part* as it was before it was derived, and not to be tried either."""
    return replace(part, outcome=replace(part.outcome, contender=None), kept=False, why=why)


def certify_trial(nodes: tuple[str, ...], outcome: Trial) -> TunedSubprogram:
    """What becomes of a contest: a winner is kept unless one of its steps is false, however fast it is."""
    kind = _winner_certificate(outcome)
    if kind == "false":
        return TunedSubprogram(nodes, outcome, False, kind, "the fastest candidate's derivation has a false step")
    return TunedSubprogram(nodes, outcome, outcome.winner is not None, kind, outcome.why)


def _winner_certificate(outcome: Trial) -> str:
    """``proved`` if every step of the winner (or the contender) is, ``exact`` if some were evaluated, else ``none``."""
    derivation = outcome.winner or outcome.contender
    return "none" if derivation is None else combined_verdict(step_certificates(derivation))


def step_certificates(derivation: Derivation) -> tuple[Certificate, ...]:
    """One certificate for each step."""
    return tuple(certify(step.before, step.after) for step in derivation.steps)


def count_fusions(derivation: Derivation) -> int:
    """How many eOperators were fused into their readers."""
    return sum(step.match.rule.name in ("expression_fusion", "expression_inlining") for step in derivation.steps)


def trial_to_json(outcome: Trial) -> dict[str, Any]:
    """*outcome* as it is remembered: derivations by their steps."""
    return {
        "seconds_before": outcome.seconds_before,
        "seconds_after": outcome.seconds_after,
        "search_seconds": outcome.search_seconds,
        "states": outcome.states,
        "why": outcome.why,
        "winner": steps_to_json(outcome.winner) if outcome.winner else None,
        "contender": steps_to_json(outcome.contender) if outcome.contender else None,
    }


def trial_from_json(found: Mapping[str, Any], program: Program) -> Trial | None:
    """The outcome of *program*'s contest that ``to_json`` told; None where its steps no longer apply."""
    try:
        derivations = [None if found[k] is None else replay(program, found[k]) for k in ("winner", "contender")]
        return Trial(
            found["seconds_before"], found["seconds_after"], derivations[0], 0.0, found["states"], found["why"],
            derivations[1],
        )  # fmt: skip
    except (KeyError, Refused):
        return None
