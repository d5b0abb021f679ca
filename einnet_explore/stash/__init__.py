"""Common subexpressions of a forward and a backward pass, and what the one should stash for the other."""

from einnet_explore.stash.analysis import Analysis, Common, analyse
from einnet_explore.stash.passes import Passes, Stash, cse, front, optimize, split
from einnet_explore.stash.plan import Chosen, Node, Problem

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
