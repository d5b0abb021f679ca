"""Steps that round operands of products to bfloat16: no equalities, but nothing else may differ."""

from __future__ import annotations

from dataclasses import replace

from einnet_check.text import Expr, Program, Read, Scope, scope_type

ROUNDING_RULES = frozenset(["operand_rounding"])
"""The rules whose steps round operands; they are allowed only where the record's reader says so."""


def rounds_operands(before: Program, after: Program) -> bool:
    """Whether *after* is *before* with factors of summed products rounded to bfloat16."""
    if (before.inputs, before.outputs, before.guards) != (after.inputs, after.outputs, after.guards):
        return False
    if [e.name for e in before.equations] != [e.name for e in after.equations]:
        return False
    return all(_rounds(a.scope, b.scope) for a, b in zip(before.equations, after.equations, strict=True))


def _rounds(before: Scope, after: Scope) -> bool:
    if before == after:
        return True
    if replace(after, body=before.body) != before or scope_type(before) != scope_type(after):
        return False
    return _same(before.body, after.body, before.reduce == "sum" and bool(before.sums))


def _same(before: Expr, after: Expr, factor: bool) -> bool:
    """Compare two expressions; *factor*: the first is a factor of a summed product, which may be rounded."""
    if factor and after == ("bfloat16", before):
        return True
    match before, after:
        case Read(Scope() as one, at), Read(Scope() as other, place):
            return at == place and _rounds(one, other)
        case (str(op), *args), (str(name), *others) if op == name and len(args) == len(others):
            return all(_same(a, b, factor and op == "*") for a, b in zip(args, others, strict=True))
    return bool(before == after)
