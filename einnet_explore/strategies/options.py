"""Options of a search, and the type of its cost function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from operator import index
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, TypedDict

from einnet_explore.ir import Program
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import (
    ALL_RULES,
    BATCH_MERGING,
    CONTRACTION_ORDER,
    EXPRESSION_FUSION,
    EXPRESSION_SPLITTING,
    RULES,
    SIBLING_MERGING,
    Derivation,
    Rule,
    Step,
    find_rules,
    require_rules,
)
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.simplification import FUNCTION_RULES
from einnet_explore.strategies.strategy import STRATEGIES
from einnet_explore.strategies.vertical_fusion import KERNEL_RULES

Cost: TypeAlias = "Callable[[Program], tuple[float, str]]"
"""Seconds that an executable program takes, and how that is known."""

BETWEEN: tuple[Rule[object], ...] = (
    SIBLING_MERGING,
    BATCH_MERGING,
    EXPRESSION_SPLITTING,
    EXPRESSION_FUSION,
    CONTRACTION_ORDER,
    *KERNEL_RULES,
    *FUNCTION_RULES,
)
"""Rules between expressions: those that merge and split them, factoring, laws of functions, and vertical fusion.

All but those that merge and split need expression fusion: contraction order factors (``strategies/factoring.py``), the
laws of functions simplify (``strategies/simplification.py``), and the generation rules make kernels that compute their
intermediates themselves (``strategies/vertical_fusion.py``).
"""


class Edge(NamedTuple):
    """The move of a search from one program to another."""

    before: Program
    after: Program


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a search.  *fingerprint* and *converging* are switched off for the paper's ablations only."""

    strategy: str = "best_first"
    max_depth: int = 7
    fingerprint: bool = True
    converging: bool = True
    patience: int = 2
    ahead: int = 3
    """Depth in choices to which ``best_first`` looks ahead before the first level; 0: no look-ahead."""
    bound: bool = False
    """Leave out what costs more already than a candidate that is known, and match the cheapest first.

    Good for who only wants the best candidate: the others are then not all found.  The best one is.
    """
    rules: tuple[Rule[object], ...] = RULES
    between: tuple[Rule[object], ...] = BETWEEN
    """The rules between expressions of a program of several (Algorithm 1); none: all are searched as one expression."""
    combinations: int = 8
    """The number of cheapest combinations of the expressions' candidates that become candidates of the program."""
    targets: tuple[Operator, ...] = OPERATORS
    fixed: frozenset[str] = frozenset()
    """Equations that are left as they are until eOperators are generated: no rule and no operator is tried on them."""
    must_use: tuple[str, ...] = ()
    """Names of rules, or rules, that every candidate's derivation uses; others are no candidates."""
    forbid: tuple[Edge, ...] = ()
    """Moves that are not made, from a program equal to *before* to one equal to *after*: edges, or steps."""
    starts: tuple[Derivation, ...] = ()
    """Derivations from the program; only what follows their ends is searched (none: what follows the program)."""

    def __post_init__(self) -> None:
        for name in ("rules", "between"):
            object.__setattr__(self, name, require_rules(name, getattr(self, name)))
        require_rules("rules and between", (*self.rules, *self.between))
        used = tuple(each if isinstance(each, str) else each.name for each in self.must_use)
        known = (*self.rules, *self.between, *ALL_RULES, matching_rule(self.targets))
        usable = dict.fromkeys(rule.name for rule in known)
        if unknown := [name for name in used if name not in usable]:
            raise ValueError(f"must_use: found {unknown[0]!r}, expected some of {', '.join(usable)}")
        object.__setattr__(self, "must_use", used)
        object.__setattr__(self, "forbid", tuple(Edge(each.before, each.after) for each in self.forbid))
        object.__setattr__(self, "starts", tuple(self.starts))
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy {self.strategy!r}: expected one of {', '.join(STRATEGIES)}")
        for name in ("max_depth", "patience", "ahead", "combinations"):
            object.__setattr__(self, name, _whole(name.replace("_", " "), getattr(self, name)))


class SteeringOptions(TypedDict, total=False):
    """Options of a search as keyword arguments, but for its rules and where it starts."""

    strategy: str
    max_depth: int
    fingerprint: bool
    converging: bool
    patience: int
    ahead: int
    bound: bool
    combinations: int
    fixed: frozenset[str]
    must_use: Iterable[Rule[object] | str]
    forbid: Iterable[Edge | Step]


class SearchOptions(SteeringOptions, total=False):
    """Options of a search as keyword arguments: the fields of ``Options``, rules as values or by name."""

    rules: Iterable[Rule[object] | str]
    between: Iterable[Rule[object] | str]
    starts: Iterable[Derivation]


def options_by_name(options: Mapping[str, Any]) -> Options:
    """Return *options* as a value, rules by name as rules.

    Raises TypeError for an unknown name, ValueError for an illegal value and LookupError for an unknown rule.
    """
    known = [field.name for field in fields(Options) if field.name != "targets"]
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"found the option {unknown[0]!r} of a search, expected one of {', '.join(known)}")
    rules = {name: find_rules(options[name]) for name in ("rules", "between") if name in options}
    return Options(**{**options, **rules})


def _whole(name: str, value: object) -> int:
    """Return *value* as a whole number from 0 (NumPy's included); raises ValueError for anything else."""
    if not isinstance(value, SupportsIndex) or index(value) < 0:
        raise ValueError(f"{name} {value}: expected 0 or more, a whole number")
    return index(value)
