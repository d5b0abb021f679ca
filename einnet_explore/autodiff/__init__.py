"""Common subexpressions of a forward and a backward pass, and what the one should stash for the other."""

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
