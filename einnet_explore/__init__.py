"""einnet_explore: explore and optimise tensor programs by derivation (EinNet, OSDI'23, and beyond).

>>> import einnet_explore as ee
>>> conv = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3)
>>> session = ee.explore(conv)              # rules by hand: session.rules(at="0"), session.apply(...), session.undo()
>>> run = ee.search(conv, target="Matmul")  # events as they happen: for event in run: ...

A name is imported when it is first used, so that commands which need no compiler and no solver start at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einnet_explore.analysis.canonical_keys import program_key
    from einnet_explore.autodiff import cse
    from einnet_explore.autodiff.gradients import grad
    from einnet_explore.cost import program_seconds
    from einnet_explore.equivalence.certificate import Certificate, certify
    from einnet_explore.interpreter.evaluation import evaluate
    from einnet_explore.operators import OPERATORS, Operator
    from einnet_explore.operators import expressions as ops
    from einnet_explore.parametric.family import family, load_family
    from einnet_explore.rules import RULES, Refused, Rule, scope_rule
    from einnet_explore.session.api import (
        benchmark,
        check,
        explore,
        graph,
        load,
        optimize,
        search,
        search_all,
        write_model,
    )
    from einnet_explore.session.quiz import Quiz
    from einnet_explore.session.session import Session
    from einnet_explore.strategies.moves import clean
    from einnet_explore.syntax import latex, parse, text
    from einnet_explore.viz.views import rule_page, show

__all__ = [
    "OPERATORS",
    "RULES",
    "Certificate",
    "Operator",
    "Quiz",
    "Refused",
    "Rule",
    "Session",
    "benchmark",
    "certify",
    "check",
    "clean",
    "cse",
    "evaluate",
    "explore",
    "family",
    "grad",
    "graph",
    "latex",
    "load",
    "load_family",
    "ops",
    "optimize",
    "parse",
    "program_key",
    "program_seconds",
    "rule_page",
    "scope_rule",
    "search",
    "search_all",
    "show",
    "text",
    "write_model",
]

_HOMES = {
    "algebra.certificate": ("Certificate", "certify"),
    "algebra.evaluate": ("evaluate",),
    "algebra.keys": ("program_key",),
    "cost": ("program_seconds",),
    "explore.api": (
        "benchmark",
        "check",
        "explore",
        "graph",
        "load",
        "optimize",
        "search",
        "search_all",
        "write_model",
    ),
    "explore.gradients": ("grad",),
    "explore.quiz": ("Quiz",),
    "explore.rule_pages": ("rule_page",),
    "explore.session": ("Session",),
    "explore.views": ("show",),
    "family.reading": ("family", "load_family"),
    "operators": ("OPERATORS", "Operator"),
    "render": ("latex", "text"),
    "rules": ("RULES", "Refused", "Rule", "scope_rule"),
    "search.cleanup": ("clean",),
    "stash": ("cse",),
    "text": ("parse",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "ops":
        value: object = import_module(f"{__name__}.operators.expressions")
    elif name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """This package.  Five verbs are called like packages of their floor: importing one must not hide the verb."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
