"""Levels of rounding: which rules keep rounding errors, reorder sums, or sum other terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from einnet_explore.rules import (
    BATCH_MERGING,
    BILINEAR_PRODUCT,
    BILINEAR_SUBSTITUTION,
    CANCELLATION,
    COMMON_FACTOR,
    CONTRACTION_ORDER,
    DISTRIBUTIVITY,
    EXPRESSION_SPLITTING,
    HOMOMORPHISM,
    KNOWN_QUOTIENT,
    LIKE_TERMS,
    MONOTONE_DISTRIBUTION,
    MONOTONE_EXCHANGE,
    ONE_PASS_GENERATION,
    POLYNOMIAL_FORM,
    POSITIVE_SCALING,
    PREFIX_SPLITTING,
    RECENTRING,
    ROUNDING_RULES,
    ROW_GENERATION,
    SUMMATION_EXCHANGE,
    SUMMATION_SPLITTING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Rule,
)

Level: TypeAlias = Literal["exact", "reassociate", "approximate", "bf16"]
"""How far a derivation may change rounding errors.

* ``exact``: every sum keeps its terms and their order.
* ``reassociate``: sums are reordered or split, factors move in and out of them; the error bound stays that of the sum
  of the same terms' magnitudes.
* ``approximate``: other terms are summed, which may be larger and cancel.
* ``bf16``: factors of products are rounded to bfloat16, which no equality allows; sums stay in ``float32``.
"""

LEVELS: tuple[Level, ...] = ("exact", "reassociate", "approximate", "bf16")

LEVEL_WORDS: Mapping[str, str] = MappingProxyType(
    dict(zip(LEVELS, ("sums unchanged", "reassociate", "approximate", "operands in bfloat16"), strict=True))
)
"""The levels in reports, where ``exact`` would be read as the verdict of a certificate."""

REASSOCIATING = frozenset(
    rule.name
    for rule in (
        SUMMATION_SPLITTING, VARIABLE_SUBSTITUTION, EXPRESSION_SPLITTING, BATCH_MERGING, DISTRIBUTIVITY,
        SUMMATION_EXCHANGE, CONTRACTION_ORDER, ROW_GENERATION, MONOTONE_EXCHANGE, POSITIVE_SCALING,
        CANCELLATION, COMMON_FACTOR, LIKE_TERMS, PREFIX_SPLITTING, KNOWN_QUOTIENT, MONOTONE_DISTRIBUTION,
    )
)  # fmt: skip

APPROXIMATING = frozenset(
    rule.name
    for rule in (
        BILINEAR_SUBSTITUTION, BILINEAR_PRODUCT, RECENTRING, ONE_PASS_GENERATION, HOMOMORPHISM, POLYNOMIAL_FORM,
    )
)  # fmt: skip


def parse_level(text: str) -> Level:
    """Return the level called *text*; raises ValueError if it is unknown."""
    for level in LEVELS:
        if level == text:
            return level
    raise ValueError(f"numerics {text!r}: expected one of {', '.join(LEVELS)}")


def rule_level(rule: Rule[object]) -> Level:
    """Return the level of *rule*: ``approximate`` for one of one's own, of which nothing is known."""
    if not rule.is_library:
        return "approximate"
    if rule in ROUNDING_RULES:
        return "bf16"
    return LEVELS[(rule.name in REASSOCIATING) + 2 * (rule.name in APPROXIMATING)]


def derivation_level(derivation: Derivation) -> Level:
    """Return the highest level of the steps of *derivation*."""
    return max((rule_level(step.match.rule) for step in derivation.steps), key=LEVELS.index, default=LEVELS[0])


def allowed_rules(rules: Iterable[Rule[object]], most: Level) -> tuple[Rule[object], ...]:
    """Return those of *rules* whose level is at most *most*."""
    return tuple(rule for rule in rules if LEVELS.index(rule_level(rule)) <= LEVELS.index(most))
