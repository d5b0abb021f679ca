"""Reverse-mode differentiation, and common subexpressions of both passes with a stash between them."""

from einnet_explore.autodiff.stash import Analysis, Common, Passes, Stash, analyse, cse, front, optimize, split
from einnet_explore.autodiff.stash_plan import Chosen, Node, Problem

__all__ = [
    "Analysis",
    "Chosen",
    "Common",
    "Node",
    "Passes",
    "Problem",
    "Stash",
    "analyse",
    "cse",
    "front",
    "optimize",
    "split",
]
