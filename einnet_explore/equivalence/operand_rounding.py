"""Certificates of the steps that round operands of products to bfloat16, which numerics of the level ``bf16`` allow.

Such a step is no equality.  Its certificate says that nothing else differs: the program after it is the one before,
with factors of summed products rounded.  The error that this causes is bounded by running error analysis
(``pipeline.numerics``), since it depends on the inputs.
"""

from __future__ import annotations

from dataclasses import replace

from einnet_explore.equivalence.assumptions import ROUNDED_OPERANDS
from einnet_explore.equivalence.certificate import certify
from einnet_explore.equivalence.verdict import Certificate
from einnet_explore.ir import Access, Apply, Program, Scalar, Scope, element_type

ROUNDING_RULES = ("operand_rounding",)
"""The names of the rules whose steps round operands."""


def certify_step(rule: str, before: Program, after: Program, seed: int = 0) -> Certificate:
    """Certify a step of the rule called *rule*: that *after* computes what *before* does, or rounds its operands.

    *seed* determines random inputs.
    """
    if rule in ROUNDING_RULES and rounds_operands(before, after):
        return Certificate("rounded", "operand rounding", detail=ROUNDED_OPERANDS)
    return certify(before, after, seed=seed)


def rounds_operands(before: Program, after: Program) -> bool:
    """Whether *after* is *before* with factors of summed products rounded to bfloat16."""
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        return False
    if [e.name for e in before.equations] != [e.name for e in after.equations]:
        return False
    return all(_rounds(a.scope, b.scope) for a, b in zip(before.equations, after.equations, strict=True))


def _rounds(before: Scope, after: Scope) -> bool:
    if before == after:
        return True
    summed = before.reduce == "sum" and bool(before.summations)
    if element_type(before) != element_type(after):
        return False
    return replace(after, body=before.body) == before and _rounds_factors(before.body, after.body, summed)


def _rounds_factors(before: Scalar, after: Scalar, summed: bool) -> bool:
    """Compare two bodies; *summed*: they are factors of a product that is summed."""
    match before, after:
        case _, Apply("bfloat16", (inner,)) if summed and before == inner:
            return True
        case Apply(op, args), Apply(other, others) if op == other and len(args) == len(others):
            inside = summed and op == "*"
            return all(_rounds_factors(a, b, inside) for a, b in zip(args, others, strict=True))
        case Access(Scope() as one, index), Access(Scope() as two, place):
            return index == place and _rounds(one, two)
    return before == after
