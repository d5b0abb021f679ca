"""What becomes of a contest: its winner is kept if every step is true; and how an outcome is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einnet_explore.algebra.certificate import Certificate, certify
from einnet_explore.graph.contest import Outcome
from einnet_explore.graph.part import Part
from einnet_explore.ir import Program
from einnet_explore.rules import Derivation, Refused
from einnet_explore.search.candidate import verdict
from einnet_explore.search.replay import replay, told


def judged(nodes: tuple[str, ...], outcome: Outcome) -> Part:
    """What becomes of a contest: a winner is kept unless one of its steps is false, however fast it is."""
    kind = certificate(outcome)
    if kind == "false":
        return Part(nodes, outcome, False, kind, "the fastest candidate's derivation has a false step")
    return Part(nodes, outcome, outcome.winner is not None, kind, outcome.why)


def certificate(outcome: Outcome) -> str:
    """``proved`` if every step of the winner (or the contender) is, ``exact`` if some were evaluated, else ``none``."""
    derivation = outcome.winner or outcome.contender
    return "none" if derivation is None else verdict(certificates(derivation))


def certificates(derivation: Derivation) -> tuple[Certificate, ...]:
    """One certificate for each step."""
    return tuple(certify(step.before, step.after) for step in derivation.steps)


def fusions(derivation: Derivation) -> int:
    """How many eOperators were fused into their readers."""
    return sum(step.match.rule.name in ("expression_fusion", "expression_inlining") for step in derivation.steps)


def to_json(outcome: Outcome) -> dict[str, Any]:
    """*outcome* as it is remembered: derivations by their steps."""
    return {
        "seconds_before": outcome.seconds_before,
        "seconds_after": outcome.seconds_after,
        "search_seconds": outcome.search_seconds,
        "states": outcome.states,
        "why": outcome.why,
        "winner": told(outcome.winner) if outcome.winner else None,
        "contender": told(outcome.contender) if outcome.contender else None,
    }


def from_json(found: Mapping[str, Any], program: Program) -> Outcome | None:
    """The outcome of *program*'s contest that ``to_json`` told; None where its steps no longer apply."""
    try:
        derivations = [None if found[k] is None else replay(program, found[k]) for k in ("winner", "contender")]
        return Outcome(
            found["seconds_before"], found["seconds_after"], derivations[0], 0.0, found["states"], found["why"],
            derivations[1],
        )  # fmt: skip
    except (KeyError, Refused):
        return None
