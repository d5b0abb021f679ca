r"""Operand rounding: the factors of a summed product are rounded to bfloat16; sums stay in ``float32``.

.. math::  \sum_{\vec y} f\, g \;\mapsto\; \sum_{\vec y} \mathrm{bfloat16}(f)\, \mathrm{bfloat16}(g), \qquad
   |\mathrm{bfloat16}(x) - x| \le 2^{-8} |x|

This is no equality: the rule is of the level ``bf16``, which a user allows together with a bound on the error.  The
product of two such factors is exact in ``float32``.  Processors multiply them at twice the rate (AVX512-BF16), and they
take half the memory.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from einnet_explore.ir import (
    EOPERATOR,
    FLOAT32,
    Access,
    Apply,
    Equation,
    Instance,
    Path,
    Program,
    Scalar,
    Table,
    factors,
    scalar_type,
    show_path,
)
from einnet_explore.rules.base import place_rule
from einnet_explore.support.errors import Refused


def _rewrite(program: Program, at: Path) -> Program:
    """Round the factors of the product that the scope at *at* sums; a generated kernel then runs its equation."""
    scope = program.scope_at(at)
    if scope.reduce != "sum" or not scope.summations:
        raise Refused(f"the scope at {show_path(at)} takes the {scope.reduce} over no iterator, expected a sum")
    found = factors(scope.body)
    if len(found) < 2:
        raise Refused(f"the scope at {show_path(at)} sums {scope.body!r}, expected a product")
    if wrong := next((f for f in found if not _is_number(f)), None):
        raise Refused(f"the factor {wrong!r} is no read of float32, whose elements could be rounded")
    after = program.replace_at(at, replace(scope, body=_rounded(scope.body)))
    changed = after.equations[at[0]]
    generated = Equation(changed.name, changed.scope, Instance(EOPERATOR))
    return replace(after, equations=(*after.equations[: at[0]], generated, *after.equations[at[0] + 1 :]))


def _is_number(factor: Scalar) -> bool:
    """Whether *factor* is a read of ``float32`` elements, all of which are finite outside the tensor."""
    match factor:
        case Access(source) if not isinstance(source, Table):
            return scalar_type(factor) == FLOAT32 and isfinite(source.value)
    return False


def _rounded(body: Scalar) -> Scalar:
    match body:
        case Apply("*", args):
            return Apply("*", tuple(map(_rounded, args)))
    return Apply("bfloat16", (body,))


def _applies(at: Path) -> str:
    return f"the operands of the scope at {show_path(at)} may be rounded"


OPERAND_ROUNDING = place_rule(
    "operand_rounding",
    r"\sum_{\vec y} f\, g \mapsto \sum_{\vec y} \mathrm{bfloat16}(f)\, \mathrm{bfloat16}(g)",
    _rewrite,
    _applies,
)
