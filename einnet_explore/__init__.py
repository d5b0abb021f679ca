"""einnet_explore: explore and optimise tensor programs by derivation (EinNet, OSDI'23, and beyond).

>>> import einnet_explore as ee
>>> conv = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1)
>>> session = ee.explore(conv)              # rules by hand: session.rules(at="0"), session.apply(...), session.undo()
>>> run = ee.search(conv, target="Matmul")  # run.best, run.table(); events as they happen: ee.live_search

A name is imported when it is first used, so that commands which need no compiler and no solver start at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einnet_evaluation import benchmark, write_model
    from einnet_explore.analysis.canonical_keys import program_key
    from einnet_explore.autodiff.differentiation import grad
    from einnet_explore.autodiff.stash import cse
    from einnet_explore.checker.record import check_file
    from einnet_explore.cost import program_seconds
    from einnet_explore.equivalence.verdict import Certificate
    from einnet_explore.interpreter.evaluation import evaluate
    from einnet_explore.operators import expressions as ops
    from einnet_explore.operators.library import OPERATORS
    from einnet_explore.operators.operator import Operator
    from einnet_explore.parametric.equality import equal
    from einnet_explore.parametric.family import family, load_family
    from einnet_explore.pipeline.gpu_plan import GpuPlan
    from einnet_explore.rules import RULES, Refused, Rule, scope_rule
    from einnet_explore.runtime.array_functions import elementwise, fuse
    from einnet_explore.runtime.measurement import time_calls
    from einnet_explore.runtime.program import compile_program
    from einnet_explore.session import bilinear, kernels
    from einnet_explore.session.api import (
        certify,
        check,
        explore,
        graph,
        live_search,
        load,
        optimize,
        post_optimize,
        search,
        search_all,
    )
    from einnet_explore.session.exercises import Exercise
    from einnet_explore.session.explanations import Quiz
    from einnet_explore.session.model_equality import Verdict
    from einnet_explore.session.program_paths import path
    from einnet_explore.session.session import Session
    from einnet_explore.strategies.factoring import factorings, products_at_run_time
    from einnet_explore.strategies.moves import clean
    from einnet_explore.strategies.vertical_fusion import fuse_vertically
    from einnet_explore.syntax import latex, parse, text
    from einnet_explore.viz import figures
    from einnet_explore.viz.tables import TextTable
    from einnet_explore.viz.views import rule_page, show

__all__ = [
    "OPERATORS",
    "RULES",
    "Certificate",
    "Exercise",
    "GpuPlan",
    "Operator",
    "Quiz",
    "Refused",
    "Rule",
    "Session",
    "TextTable",
    "Verdict",
    "benchmark",
    "bilinear",
    "certify",
    "check",
    "check_file",
    "clean",
    "compile_program",
    "cse",
    "elementwise",
    "equal",
    "evaluate",
    "explore",
    "factorings",
    "family",
    "figures",
    "fuse",
    "fuse_vertically",
    "grad",
    "graph",
    "ir",
    "kernels",
    "latex",
    "live_search",
    "load",
    "load_family",
    "ops",
    "optimize",
    "parse",
    "path",
    "post_optimize",
    "products_at_run_time",
    "program_key",
    "program_seconds",
    "rule_page",
    "rules",
    "scope_rule",
    "search",
    "search_all",
    "show",
    "text",
    "time_calls",
    "write_model",
]

_HOMES = {
    "einnet_evaluation": ("benchmark", "write_model"),
    "einnet_explore.autodiff.stash": ("cse",),
    "einnet_explore.autodiff.differentiation": ("grad",),
    "einnet_explore.checker.record": ("check_file",),
    "einnet_explore.cost": ("program_seconds",),
    "einnet_explore.equivalence.verdict": ("Certificate",),
    "einnet_explore.interpreter.evaluation": ("evaluate",),
    "einnet_explore.analysis.canonical_keys": ("program_key",),
    "einnet_explore.operators.library": ("OPERATORS",),
    "einnet_explore.operators.operator": ("Operator",),
    "einnet_explore.parametric.family": ("family", "load_family"),
    "einnet_explore.parametric.equality": ("equal",),
    "einnet_explore.pipeline.gpu_plan": ("GpuPlan",),
    "einnet_explore.rules": ("RULES", "Refused", "Rule", "scope_rule"),
    "einnet_explore.runtime.array_functions": ("elementwise", "fuse"),
    "einnet_explore.runtime.measurement": ("time_calls",),
    "einnet_explore.runtime.program": ("compile_program",),
    "einnet_explore.session.api": (
        "certify",
        "check",
        "explore",
        "graph",
        "live_search",
        "load",
        "optimize",
        "post_optimize",
        "search",
        "search_all",
    ),
    "einnet_explore.session.exercises": ("Exercise",),
    "einnet_explore.session.explanations": ("Quiz",),
    "einnet_explore.session.model_equality": ("Verdict",),
    "einnet_explore.session.program_paths": ("path",),
    "einnet_explore.session.session": ("Session",),
    "einnet_explore.strategies.factoring": ("factorings", "products_at_run_time"),
    "einnet_explore.strategies.moves": ("clean",),
    "einnet_explore.strategies.vertical_fusion": ("fuse_vertically",),
    "einnet_explore.syntax": ("latex", "parse", "text"),
    "einnet_explore.viz.tables": ("TextTable",),
    "einnet_explore.viz.views": ("rule_page", "show"),
}
_MODULES = {
    "bilinear": "session.bilinear",
    "figures": "viz.figures",
    "ir": "ir",
    "kernels": "session.kernels",
    "ops": "operators.expressions",
    "rules": "rules",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value: object = import_module(f"{__name__}.{_MODULES[name]}")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
