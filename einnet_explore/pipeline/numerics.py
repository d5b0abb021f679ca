"""Numerics levels of rules: how a rewrite may change rounding errors.  In exact arithmetic all rules are equalities.

``exact``: every sum keeps its terms and their order.  ``reassociate``: sums are reordered or split, factors move in and
out of them; the error bound stays that of the sum of the same terms' magnitudes.  ``approximate``: other terms are
summed, which may be larger and cancel.
"""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.rules import (
    BATCH_MERGING,
    BILINEAR_PRODUCT,
    BILINEAR_SUBSTITUTION,
    CONTRACTION_ORDER,
    DISTRIBUTIVITY,
    EXPRESSION_SPLITTING,
    ONE_PASS_GENERATION,
    RECENTRING,
    ROW_GENERATION,
    SUMMATION_EXCHANGE,
    SUMMATION_SPLITTING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Rule,
)

LEVELS = ("exact", "reassociate", "approximate")

REASSOCIATING = frozenset(
    rule.name
    for rule in (
        SUMMATION_SPLITTING, VARIABLE_SUBSTITUTION, EXPRESSION_SPLITTING, BATCH_MERGING, DISTRIBUTIVITY,
        SUMMATION_EXCHANGE, CONTRACTION_ORDER, ROW_GENERATION,
    )
)  # fmt: skip

APPROXIMATING = frozenset(
    rule.name for rule in (BILINEAR_SUBSTITUTION, BILINEAR_PRODUCT, RECENTRING, ONE_PASS_GENERATION)
)


def check_level(level: str) -> str:
    """Return *level*; raises ValueError if it is unknown."""
    if level not in LEVELS:
        raise ValueError(f"numerics {level!r}: expected one of {', '.join(LEVELS)}")
    return level


def rule_level(rule: Rule[object]) -> str:
    """Return the level of *rule*."""
    return LEVELS[(rule.name in REASSOCIATING) + 2 * (rule.name in APPROXIMATING)]


def derivation_level(derivation: Derivation) -> str:
    """Return the highest level of the steps of *derivation*."""
    return max((rule_level(step.match.rule) for step in derivation.steps), key=LEVELS.index, default=LEVELS[0])


def allowed_rules(rules: Iterable[Rule[object]], most: str) -> tuple[Rule[object], ...]:
    """Return those of *rules* whose level is at most *most*."""
    return tuple(rule for rule in rules if is_within(rule_level(rule), most))


def is_within(level: str, most: str) -> bool:
    """Whether *level* is at most *most*."""
    return LEVELS.index(level) <= LEVELS.index(check_level(most))
