"""Programs of element-wise work and reductions as one kernel: normalisations, softmax, variance."""

from __future__ import annotations

from typing import Any

from einnet_explore.graph.rows import substituted
from einnet_explore.ir import Program, scopes
from einnet_explore.rules import REDUCTION_GENERATION, Derivation, Match


def in_one(program: Program) -> Derivation | None:
    """The derivation that runs *program* in one kernel with all its reductions, or None where it is no such work.

    Only programs of one output and several equations are looked at.
    """
    sums = any(inner.summations for e in program.equations for _, inner in scopes(e.scope))
    if len(program.outputs) != 1 or len(program.equations) < 2 or not sums:
        return None
    derivation = substituted(Derivation(program))
    if derivation is None:
        return None
    match: Match[Any] | None = next(iter(REDUCTION_GENERATION.matches(derivation.end, (0,))), None)
    return None if match is None else derivation.then(match)
