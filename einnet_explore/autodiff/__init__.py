"""Reverse-mode differentiation, and common subexpressions of both passes with a stash between them."""

from einnet_explore.autodiff.stash import (
    CommonValue,
    Passes,
    Stash,
    StashAnalysis,
    analyse_passes,
    cse,
    pareto_front,
    split_passes,
    substitute_placeholders,
)
from einnet_explore.autodiff.stash_plan import StashPlan, StashProblem, ValueNode

__all__ = [
    "CommonValue",
    "Passes",
    "Stash",
    "StashAnalysis",
    "StashPlan",
    "StashProblem",
    "ValueNode",
    "analyse_passes",
    "cse",
    "pareto_front",
    "split_passes",
    "substitute_placeholders",
]
