r"""Products of a derivation in bfloat16, by the rule ``operand_rounding``, with numerics of the level ``bf16``.

Equations that sum products are rounded where a kernel multiplies in bfloat16.  Elementwise work that reads each of
their results once is fused into the kernel:

.. math::  T[\vec x] = \sum_{\vec y} A\,B, \quad Y[\vec x] = g(T[\vec x], \dots)  \;\mapsto\;
   Y[\vec x] = g\Big(\sum_{\vec y} \mathrm{bfloat16}(A)\, \mathrm{bfloat16}(B), \dots\Big)
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from einnet_explore.analysis.counts import is_compute_bound
from einnet_explore.analysis.equations import find_equation, weight_only
from einnet_explore.ir import VIEW, Equation, scopes
from einnet_explore.pipeline.fusion import apply_rule, check_no_recomputation, readers_by_name
from einnet_explore.rules import EXPRESSION_FUSION, OPERAND_ROUNDING, Derivation
from einnet_explore.rules.expression_fusion import Intermediate
from einnet_explore.runtime.bfloat16_products import match_bfloat16_product
from einnet_explore.strategies.moves import merge_scopes
from einnet_explore.support.errors import Refused


def round_products(derivation: Derivation) -> Derivation | None:
    """Return *derivation* with the operands of its products rounded to bfloat16; None if no kernel multiplies them."""
    folded, done = weight_only(derivation.end), derivation
    for equation in derivation.end.equations:
        if equation.name not in folded and is_compute_bound(equation.scope):
            for name, fused in (*_with_epilogue(done, equation), (equation.name, done)):
                with suppress(Refused):
                    done = _rounded(fused, name)
                    break
    return None if done is derivation else done


def _with_epilogue(derivation: Derivation, product: Equation) -> Iterable[tuple[str, Derivation]]:
    """Yield the elementwise reader of *product*, perhaps through views, and *derivation* with all of them fused."""
    program, names = derivation.end, [product.name]
    with suppress(Refused):
        while len(found := readers_by_name(program).get(names[-1], ())) == 1 and names[-1] not in program.outputs:
            reader = find_equation(program, found[0])
            derivation = apply_rule(derivation, EXPRESSION_FUSION, reader.name, Intermediate(names[-1]))
            if len(names) > 1:
                derivation = merge_scopes(derivation, reader.name)
            names.append(reader.name)
            if reader.via is None or reader.via.operator != VIEW:
                if reader.via is not None and reader.via.is_eoperator and not reader.scope.summations:
                    check_no_recomputation(find_equation(program, names[-2]), reader)
                    yield reader.name, derivation
                return


def _rounded(derivation: Derivation, name: str) -> Derivation:
    """Round the operands of the equation called *name*; raises Refused if no kernel multiplies in bfloat16 then."""
    program = derivation.end
    n = program.equations.index(find_equation(program, name))
    for path, scope in scopes(program.equations[n].scope):
        if scope.summations:
            derivation = derivation.then(OPERAND_ROUNDING.match(program, (n, *path)))
    if match_bfloat16_product(find_equation(derivation.end, name).scope) is not None:
        return derivation
    raise Refused(f"no kernel multiplies the operands of {name} in bfloat16")
