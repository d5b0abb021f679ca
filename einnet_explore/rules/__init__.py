"""Every derivation rule that needs no table of operators, in the order of the paper's Table 1."""

from typing import Any

from einnet_explore.rules.base import Derivation, Match, Refused, Rule, Step
from einnet_explore.rules.boundary_relaxing import BOUNDARY_RELAXING
from einnet_explore.rules.boundary_tightening import BOUNDARY_TIGHTENING
from einnet_explore.rules.eoperator_generation import EOPERATOR_GENERATION
from einnet_explore.rules.expression_fusion import EXPRESSION_FUSION
from einnet_explore.rules.summation_splitting import SUMMATION_SPLITTING
from einnet_explore.rules.traversal_merging import TRAVERSAL_MERGING
from einnet_explore.rules.variable_substitution import VARIABLE_SUBSTITUTION

RULES: tuple[Rule[Any], ...] = (
    SUMMATION_SPLITTING,
    VARIABLE_SUBSTITUTION,
    TRAVERSAL_MERGING,
    BOUNDARY_RELAXING,
    BOUNDARY_TIGHTENING,
    EOPERATOR_GENERATION,
)
"""The rules on one expression, which search applies everywhere."""

INTER_RULES: tuple[Rule[Any], ...] = (EXPRESSION_FUSION,)
"""The rules between expressions."""


def rule(name: str) -> Rule[Any]:
    """The rule called *name*; raises LookupError with the names that there are."""
    for found in (*RULES, *INTER_RULES):
        if found.name == name:
            return found
    raise LookupError(f"no rule is called {name!r}: there are {', '.join(r.name for r in (*RULES, *INTER_RULES))}")


__all__ = [
    "BOUNDARY_RELAXING",
    "BOUNDARY_TIGHTENING",
    "EOPERATOR_GENERATION",
    "EXPRESSION_FUSION",
    "INTER_RULES",
    "RULES",
    "SUMMATION_SPLITTING",
    "TRAVERSAL_MERGING",
    "VARIABLE_SUBSTITUTION",
    "Derivation",
    "Match",
    "Refused",
    "Rule",
    "Step",
    "rule",
]
