"""One program of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einnet_explore.algebra.equations import weight_only
from einnet_explore.graph.joining import Piece
from einnet_explore.ir import EOPERATOR, VIEW
from einnet_explore.rules import Derivation


@dataclass(frozen=True, slots=True)
class Assembled:
    """A program of the plan: *piece*, what post-optimisation did to make it, and how well that is proved.

    *certificate* is ``none`` where nothing was done.
    """

    piece: Piece
    derivation: Derivation
    certificate: str

    def to_json(self) -> dict[str, Any]:
        """One entry of ``programs`` in the JSON of ``optimize``."""
        program = self.piece.program
        folded = weight_only(program)
        run = [e.via for e in program.equations if e.via and e.name not in folded]
        return {
            "nodes": list(self.piece.nodes),
            "operators": [v.operator for v in run if v.operator not in (EOPERATOR, VIEW)],
            "eoperators": sum(v.operator == EOPERATOR for v in run),
            "certificate": self.certificate,
            "steps": [step.match.to_json() for step in self.derivation.steps],
        }
