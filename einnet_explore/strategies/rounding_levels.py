"""Levels of rounding: which rules keep rounding errors, reorder sums, or sum other terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from einnet_explore.rules import (
    BATCH_MERGING,
    BLOCKED_GENERATION,
    BOUNDARY_RELAXING,
    BOUNDARY_TIGHTENING,
    CANCELLATION,
    COMMON_FACTOR,
    COMMON_SUBEXPRESSION,
    CONTRACTION_ORDER,
    DEAD_EQUATION,
    DISTRIBUTIVITY,
    EOPERATOR_GENERATION,
    EXPRESSION_EXTRACTION,
    EXPRESSION_FUSION,
    EXPRESSION_INLINING,
    EXPRESSION_SPLITTING,
    KNOWN_QUOTIENT,
    MONOTONE_EXCHANGE,
    PADDING_EXCHANGE,
    PART_EXTRACTION,
    POSITIVE_SCALING,
    PREFIX_SPLITTING,
    REDUCTION_GENERATION,
    ROW_GENERATION,
    SIBLING_MERGING,
    STORAGE_LAYOUT,
    SUMMATION_EXCHANGE,
    SUMMATION_SPLITTING,
    TRAVERSAL_FACTORING,
    TRAVERSAL_MERGING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Rule,
)

Level: TypeAlias = Literal["exact", "reassociate", "approximate"]
"""How far a derivation may change rounding errors.

* ``exact``: every sum keeps its terms and their order.
* ``reassociate``: sums are reordered or split, factors move in and out of them; the error bound stays that of the sum
  of the same terms' magnitudes.
* ``approximate``: other terms are summed, which may be larger and cancel.
"""

LEVELS: tuple[Level, ...] = ("exact", "reassociate", "approximate")

LEVEL_WORDS: Mapping[str, str] = MappingProxyType(dict(zip(LEVELS, ("sums unchanged", *LEVELS[1:]), strict=True)))
"""The levels in reports, where ``exact`` would be read as the verdict of a certificate."""

EXACT = frozenset(
    rule.name
    for rule in (
        BLOCKED_GENERATION, BOUNDARY_RELAXING, BOUNDARY_TIGHTENING, COMMON_SUBEXPRESSION,
        DEAD_EQUATION, EOPERATOR_GENERATION, EXPRESSION_EXTRACTION, EXPRESSION_FUSION,
        EXPRESSION_INLINING, PADDING_EXCHANGE, PART_EXTRACTION, REDUCTION_GENERATION,
        SIBLING_MERGING, STORAGE_LAYOUT, TRAVERSAL_FACTORING, TRAVERSAL_MERGING,
    )
)  # fmt: skip

REASSOCIATING = frozenset(
    rule.name
    for rule in (
        SUMMATION_SPLITTING, VARIABLE_SUBSTITUTION, EXPRESSION_SPLITTING, BATCH_MERGING, DISTRIBUTIVITY,
        SUMMATION_EXCHANGE, CONTRACTION_ORDER, ROW_GENERATION, MONOTONE_EXCHANGE, POSITIVE_SCALING,
        CANCELLATION, COMMON_FACTOR, PREFIX_SPLITTING, KNOWN_QUOTIENT,
    )
)  # fmt: skip


def parse_level(text: str) -> Level:
    """Return the level called *text*; raises ValueError if it is unknown."""
    for level in LEVELS:
        if level == text:
            return level
    raise ValueError(f"numerics {text!r}: expected one of {', '.join(LEVELS)}")


def rule_level(rule: Rule[object]) -> Level:
    """Return the level of *rule*; ``approximate`` for a rule of one's own."""
    return "exact" if rule.name in EXACT else "reassociate" if rule.name in REASSOCIATING else "approximate"


def derivation_level(derivation: Derivation) -> Level:
    """Return the highest level of the steps of *derivation*."""
    return max((rule_level(step.match.rule) for step in derivation.steps), key=LEVELS.index, default=LEVELS[0])


def allowed_rules(rules: Iterable[Rule[object]], most: Level) -> tuple[Rule[object], ...]:
    """Return those of *rules* whose level is at most *most*."""
    return tuple(rule for rule in rules if LEVELS.index(rule_level(rule)) <= LEVELS.index(most))
