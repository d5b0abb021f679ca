"""Candidates: programs in which every equation is instantiated, and what to say of them.

Derivations as plain JSON values without their programs, and applied again from where they began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from einnet_explore.analysis.equations import weight_only
from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.ir import Equation, Program, read_path
from einnet_explore.operators import OPERATORS
from einnet_explore.rules import ALL_RULES, Derivation, Match, Refused
from einnet_explore.rules.base import BAD_STEP_ERRORS
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.support.wording import counted


@dataclass(frozen=True, slots=True)
class Candidate:
    """A derivation that ends in an executable program, its estimated cost and the state it came from."""

    state: int
    derivation: Derivation
    seconds: float
    how: str

    @property
    def program(self) -> Program:
        """The executable program."""
        return self.derivation.end

    @property
    def rank(self) -> tuple[float, int]:
        """Where it stands among others: by its cost, and by its steps where the cost is one."""
        return self.seconds, len(self.derivation.steps)

    @property
    def operators(self) -> tuple[Equation, ...]:
        """The equations that a library operator runs."""
        return tuple(e for e in self.program.equations if e.via and e.via.is_library_call)

    @property
    def eoperators(self) -> int:
        """How many generated kernels run: views and what only depends on weights cost nothing at run time."""
        folded = weight_only(self.program)
        return sum(bool(e.via and e.via.is_eoperator) and e.name not in folded for e in self.program.equations)

    def to_json(self, certificate: str) -> dict[str, Any]:
        """One entry of ``candidates`` in the JSON of ``derive``."""
        return {
            "operators": [
                {"name": e.via.operator, "attributes": dict(e.via.attributes)} for e in self.operators if e.via
            ],
            "eoperators": self.eoperators,
            "depth": len(self.derivation.steps),
            "estimated_seconds": self.seconds,
            "certificate": certificate,
            "steps": [step.match.to_json() for step in self.derivation.steps],
        }

    def __repr__(self) -> str:
        calls = " + ".join([*(str(e.via) for e in self.operators), counted(self.eoperators, "eOperator")])
        steps = counted(len(self.derivation.steps), "step")
        return f"<Candidate {self.state}: {calls}, {steps}, {self.seconds * 1e6:.1f} µs>"


def combined_verdict(certificates: tuple[Certificate, ...]) -> str:
    """``proved`` if all are, ``exact`` if some were evaluated, ``false`` if one is wrong, ``none`` without any."""
    kinds = {c.kind for c in certificates}
    for kind in ("false", "exact", "proved"):
        if kind in kinds:
            return kind
    return "none"


def steps_to_json(derivation: Derivation) -> list[dict[str, Any]]:
    """The matches of *derivation* in their JSON form: ``replay`` leads from the same start to the same end."""
    return [step.match.to_json() for step in derivation.steps]


def replay(start: Program, steps: Iterable[Mapping[str, Any]]) -> Derivation:
    """*start* and *steps*, as ``told`` gave them; raises Refused where a step no longer applies or is none."""
    known = {rule.name: rule for rule in (*ALL_RULES, matching_rule(OPERATORS))}
    derivation = Derivation(start)
    for n, step in enumerate(steps):
        try:
            rule, at = known[step["rule"]], read_path(step["at"])
            derivation.end.scope_at(at)
            params = rule.decode(derivation.end, at, step["params"])
            derivation = derivation.then(Match(rule, at, params))
        except BAD_STEP_ERRORS as why:
            raise Refused(f"step {n}: {type(why).__name__}: {why}") from None
    return derivation
