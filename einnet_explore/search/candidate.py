"""Candidates: programs in which every equation is instantiated, and what to say of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einnet_explore.algebra.certificate import Certificate
from einnet_explore.algebra.equations import weight_only
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Program
from einnet_explore.printable import counted
from einnet_explore.rules import Derivation


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
        return tuple(e for e in self.program.equations if e.via and e.via.operator not in (EOPERATOR, VIEW))

    @property
    def eoperators(self) -> int:
        """How many generated kernels run: views and what only depends on weights cost nothing at run time."""
        folded = weight_only(self.program)
        return sum(bool(e.via and e.via.operator == EOPERATOR) and e.name not in folded for e in self.program.equations)

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


def verdict(certificates: tuple[Certificate, ...]) -> str:
    """``proved`` if all are, ``exact`` if some were evaluated, ``false`` if one is wrong, ``none`` without any."""
    kinds = {c.kind for c in certificates}
    for kind in ("false", "exact", "proved"):
        if kind in kinds:
            return kind
    return "none"
