"""Derivation rules that need no table of operators, in the order of the paper's Table 1.

``RULES`` are the rules on one expression that searches apply, ``INTER_RULES`` those between expressions, ``ALL_RULES``
all equalities, ``ROUNDING_RULES`` those that are none; ``rule(name)`` returns one.  ``rule.matches(program, path)``
proposes matches, ``rule.match(program, path, **parameters)`` makes one, ``match.apply(program)`` returns the step or
raises ``Refused``, and ``Derivation(program).then(match)`` collects steps.  A path is (number of the equation, number
of an access, …).
"""

from collections.abc import Iterable

from einnet_explore.rules.base import Derivation, Match, Rule, Step, scope_rule
from einnet_explore.rules.batch_merging import BATCH_MERGING
from einnet_explore.rules.bilinear_product import BILINEAR_PRODUCT
from einnet_explore.rules.bilinear_substitution import BILINEAR_SUBSTITUTION
from einnet_explore.rules.boundaries import BOUNDARY_RELAXING, BOUNDARY_TIGHTENING
from einnet_explore.rules.cancellation import CANCELLATION
from einnet_explore.rules.common_factor import COMMON_FACTOR
from einnet_explore.rules.contraction_order import CONTRACTION_ORDER
from einnet_explore.rules.distributivity import DISTRIBUTIVITY
from einnet_explore.rules.expression_fusion import EXPRESSION_EXTRACTION, EXPRESSION_FUSION, EXPRESSION_INLINING
from einnet_explore.rules.expression_splitting import EXPRESSION_SPLITTING
from einnet_explore.rules.generation import (
    BLOCKED_GENERATION,
    EOPERATOR_GENERATION,
    ONE_PASS_GENERATION,
    REDUCTION_GENERATION,
    ROW_GENERATION,
)
from einnet_explore.rules.homomorphism import HOMOMORPHISM
from einnet_explore.rules.inverse import inverse_rule
from einnet_explore.rules.known_quotient import KNOWN_QUOTIENT
from einnet_explore.rules.like_terms import LIKE_TERMS
from einnet_explore.rules.monotone_exchange import MONOTONE_DISTRIBUTION, MONOTONE_EXCHANGE
from einnet_explore.rules.operand_rounding import OPERAND_ROUNDING
from einnet_explore.rules.padding_exchange import PADDING_EXCHANGE
from einnet_explore.rules.part_extraction import PART_EXTRACTION
from einnet_explore.rules.polynomial_form import POLYNOMIAL_FORM
from einnet_explore.rules.positive_scaling import POSITIVE_SCALING
from einnet_explore.rules.prefix_splitting import PREFIX_SPLITTING
from einnet_explore.rules.recentring import RECENTRING
from einnet_explore.rules.redundant_equations import COMMON_SUBEXPRESSION, DEAD_EQUATION
from einnet_explore.rules.requantisation import REQUANTISATION
from einnet_explore.rules.sibling_merging import SIBLING_MERGING
from einnet_explore.rules.storage_layout import STORAGE_LAYOUT
from einnet_explore.rules.summation_exchange import SUMMATION_EXCHANGE
from einnet_explore.rules.summation_splitting import SUMMATION_SPLITTING
from einnet_explore.rules.traversal_factoring import TRAVERSAL_FACTORING
from einnet_explore.rules.traversal_merging import TRAVERSAL_MERGING
from einnet_explore.rules.variable_substitution import VARIABLE_SUBSTITUTION
from einnet_explore.support.errors import Refused

RULES: tuple[Rule[object], ...] = (
    SUMMATION_SPLITTING,
    VARIABLE_SUBSTITUTION,
    TRAVERSAL_MERGING,
    BOUNDARY_RELAXING,
    BOUNDARY_TIGHTENING,
    EOPERATOR_GENERATION,
)
"""The rules on one expression, which search applies everywhere."""

FEWER_PRODUCTS: tuple[Rule[object], ...] = (BILINEAR_SUBSTITUTION,)
"""Rules that compute other products than the expression has: equal in exact arithmetic, with other rounding."""

IDENTITIES: tuple[Rule[object], ...] = (
    DISTRIBUTIVITY,
    COMMON_FACTOR,
    LIKE_TERMS,
    SUMMATION_EXCHANGE,
    CONTRACTION_ORDER,
    TRAVERSAL_FACTORING,
    PREFIX_SPLITTING,
    RECENTRING,
    BILINEAR_PRODUCT,
    HOMOMORPHISM,
    POSITIVE_SCALING,
    MONOTONE_EXCHANGE,
    MONOTONE_DISTRIBUTION,
    CANCELLATION,
    KNOWN_QUOTIENT,
    REQUANTISATION,
    POLYNOMIAL_FORM,
)
"""Rules that the search of one expression does not try.

Factoring across expressions uses distributivity, common factors, contraction order, traversal factoring and the rules
that move something through a function; the others are applied on request only.
"""

INTER_RULES: tuple[Rule[object], ...] = (EXPRESSION_SPLITTING, SIBLING_MERGING, BATCH_MERGING, EXPRESSION_FUSION)
"""The rules between expressions."""

POST_RULES: tuple[Rule[object], ...] = (
    EXPRESSION_INLINING,
    EXPRESSION_EXTRACTION,
    PADDING_EXCHANGE,
    PART_EXTRACTION,
    COMMON_SUBEXPRESSION,
    DEAD_EQUATION,
    STORAGE_LAYOUT,
    ROW_GENERATION,
    ONE_PASS_GENERATION,
    REDUCTION_GENERATION,
    BLOCKED_GENERATION,
)
"""The rules of post-optimisation, vertical fusion and factoring; the search of one expression does not try them."""


ALL_RULES: tuple[Rule[object], ...] = (*RULES, *FEWER_PRODUCTS, *IDENTITIES, *INTER_RULES, *POST_RULES)
"""The rules that propose matches."""

ROUNDING_RULES: tuple[Rule[object], ...] = (OPERAND_ROUNDING,)
"""Rules that round operands, which is no equality: derivations use them only with numerics of the level ``bf16``."""

GROUPS = ("structure", "algebra", "layout", "instantiation", "your own")
"""The groups of rules, in the order of lists: rules change scopes and equations, arithmetic, storage, or make code."""


def group_of(rule: Rule[object]) -> str:
    """Return the member of ``GROUPS`` that *rule* belongs to."""
    if rule.name.endswith("_generation") or rule.name == "operator_matching":
        return "instantiation"
    if rule is STORAGE_LAYOUT:
        return "layout"
    if rule in (*FEWER_PRODUCTS, *IDENTITIES, *ROUNDING_RULES) and rule is not PREFIX_SPLITTING:
        return "algebra"
    return "structure" if rule.is_library else "your own"


INVERSE = inverse_rule(lambda: {rule.name: rule for rule in ALL_RULES})


def rule(name: str) -> Rule[object]:
    """Return the rule called *name*; raises LookupError with the known names."""
    for found in (*ALL_RULES, *ROUNDING_RULES):
        if found.name == name:
            return found
    raise LookupError(f"no rule is called {name!r}: there are {', '.join(r.name for r in ALL_RULES)}")


def find_rules(given: Iterable[Rule[object] | str]) -> tuple[Rule[object], ...]:
    """Return rules that are *given* as values or by name; raises LookupError for an unknown name.

    Raises TypeError for anything else, and ValueError for different rules of one name.
    """
    return require_rules("rules", (rule(each) if isinstance(each, str) else each for each in given))


def require_rules(what: str, given: Iterable[Rule[object]]) -> tuple[Rule[object], ...]:
    """Return *given*, called *what* in errors; raises TypeError for a value that is no rule.

    Raises ValueError if two of them have one name, by which steps, scripts and records know them.
    """
    found, named = tuple(given), dict[str, Rule[object]]()
    for each in found:
        if not isinstance(each, Rule):
            raise TypeError(f"{what}: found {each!r}, expected rules, such as those of ee.RULES or of ee.scope_rule")
        if named.setdefault(each.name, each) is not each:
            raise ValueError(f"{what}: two rules are called {each.name!r}, expected different names")
    return found


__all__ = [
    "ALL_RULES",
    "BATCH_MERGING",
    "BILINEAR_PRODUCT",
    "BILINEAR_SUBSTITUTION",
    "BLOCKED_GENERATION",
    "BOUNDARY_RELAXING",
    "BOUNDARY_TIGHTENING",
    "CANCELLATION",
    "COMMON_FACTOR",
    "COMMON_SUBEXPRESSION",
    "CONTRACTION_ORDER",
    "DEAD_EQUATION",
    "DISTRIBUTIVITY",
    "EOPERATOR_GENERATION",
    "EXPRESSION_EXTRACTION",
    "EXPRESSION_FUSION",
    "EXPRESSION_INLINING",
    "EXPRESSION_SPLITTING",
    "FEWER_PRODUCTS",
    "GROUPS",
    "HOMOMORPHISM",
    "IDENTITIES",
    "INTER_RULES",
    "INVERSE",
    "KNOWN_QUOTIENT",
    "LIKE_TERMS",
    "MONOTONE_DISTRIBUTION",
    "MONOTONE_EXCHANGE",
    "ONE_PASS_GENERATION",
    "OPERAND_ROUNDING",
    "PADDING_EXCHANGE",
    "PART_EXTRACTION",
    "POLYNOMIAL_FORM",
    "POSITIVE_SCALING",
    "POST_RULES",
    "PREFIX_SPLITTING",
    "RECENTRING",
    "REDUCTION_GENERATION",
    "REQUANTISATION",
    "ROUNDING_RULES",
    "ROW_GENERATION",
    "RULES",
    "SIBLING_MERGING",
    "STORAGE_LAYOUT",
    "SUMMATION_EXCHANGE",
    "SUMMATION_SPLITTING",
    "TRAVERSAL_FACTORING",
    "TRAVERSAL_MERGING",
    "VARIABLE_SUBSTITUTION",
    "Derivation",
    "Match",
    "Refused",
    "Rule",
    "Step",
    "rule",
    "scope_rule",
]
