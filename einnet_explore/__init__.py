"""einnet_explore: explore and optimise tensor programs by derivation (EinNet, OSDI'23, and beyond).

>>> import einnet_explore as ee
>>> conv = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3)
>>> session = ee.explore(conv)              # rules by hand: session.rules(at="0"), session.apply(...), session.undo()
>>> run = ee.search(conv, target="Matmul")  # events as they happen: for event in run: ...
"""

from einnet_explore.algebra.certificate import Certificate, certify
from einnet_explore.algebra.evaluate import evaluate
from einnet_explore.algebra.keys import program_key
from einnet_explore.cost import program_seconds
from einnet_explore.explore.api import benchmark, check, explore, graph, load, optimize, search, write_model
from einnet_explore.explore.session import Session
from einnet_explore.operators import OPERATORS
from einnet_explore.operators import expressions as ops
from einnet_explore.render import latex, text
from einnet_explore.rules import RULES, Refused
from einnet_explore.search.cleanup import clean
from einnet_explore.text import parse

__all__ = [
    "OPERATORS",
    "RULES",
    "Certificate",
    "Refused",
    "Session",
    "benchmark",
    "certify",
    "check",
    "clean",
    "evaluate",
    "explore",
    "graph",
    "latex",
    "load",
    "ops",
    "optimize",
    "parse",
    "program_key",
    "program_seconds",
    "search",
    "text",
    "write_model",
]
