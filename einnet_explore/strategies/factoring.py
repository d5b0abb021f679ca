r"""Factoring across expressions: one sum over all factors, and back by the order with the fewest products.

.. math::
   Y = \mathop{L} \sum_j \Big\{ \mathop{L} \sum_k Q\, K \Big\} V
   \;\mapsto\; \mathop{L} \sum_{j k} Q\, K\, V
   \;\mapsto\; \mathop{L} \sum_k Q \Big\{ \mathop{L} \sum_j K\, V \Big\}

.. code-block:: text

    normal form: substitute each intermediate that is a sum of a product or moves elements (fusion, inlining)
    factoring:   eliminate the summations in the cheapest order (contraction order), compute what is read through a
                 quotient once (traversal factoring), make nested sums expressions of their own (expression
                 extraction), share equal ones (common subexpression)

Every step is a rule.  Products of weights alone are free, since they are computed beforehand.  The results are open
programs: each of their expressions is searched like any other, and the costs compete with the start's.
"""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.analysis.equations import readers, weight_only
from einnet_explore.analysis.products import count_products, quotient_factors
from einnet_explore.ir import Access, Apply, Const, Equation, Program, Scalar
from einnet_explore.rules import (
    COMMON_SUBEXPRESSION,
    CONTRACTION_ORDER,
    EXPRESSION_EXTRACTION,
    TRAVERSAL_FACTORING,
    Derivation,
    Match,
    Refused,
)
from einnet_explore.rules.base import places
from einnet_explore.strategies.moves import merge_scopes
from einnet_explore.strategies.vertical_fusion import substitute_intermediate


def factorings(program: Program) -> Iterable[Derivation]:
    """Yield derivations of *program* that form fewer products at run time than each before, and than *program*.

    Intermediates are substituted one by one, from the outputs upwards, and what results is factored each time.
    """
    least = products_at_run_time(program)
    start = Derivation(program)
    for fused in (start, *_substituted(start)):
        found = factored(fused)
        if (count := products_at_run_time(found.end)) < least:
            least = count
            yield found


def products_at_run_time(program: Program) -> int:
    """The products that the equations of *program* form, weights not counted."""
    constant = weight_only(program)
    return sum(count_products(e.scope) for e in program.equations if e.name not in constant)


def _substituted(derivation: Derivation) -> Iterable[Derivation]:
    """Yield *derivation* with one more multilinear intermediate substituted each time, until none is left."""
    while (name := _next_intermediate(derivation.end)) is not None:
        try:
            derivation = substitute_intermediate(derivation, name)
        except Refused:
            return
        for equation in derivation.end.equations:
            derivation = merge_scopes(derivation, equation.name)
        yield derivation


def _next_intermediate(program: Program) -> str | None:
    """The last intermediate that can join the products of all its readers."""
    for equation in reversed(program.equations):
        found = [program.equations[n] for n in readers(program, equation.name)]
        if equation.name not in program.outputs and found and all(map(is_product, (equation, *found))):
            return equation.name
    return None


def is_product(equation: Equation) -> bool:
    """Whether *equation* is open, and a sum of a product of reads, constants and reciprocals, or such a product."""
    scope = equation.scope
    plain = scope.reduce == "sum" and not scope.domain and equation.via is None
    return plain and all(map(_is_factor, quotient_factors(scope.body)))


def _is_factor(factor: Scalar) -> bool:
    match factor:
        case Access() | Const() | Apply("/", (Const(), Access() | Const())):
            return True
    return False


def factored(derivation: Derivation) -> Derivation:
    """Apply the rules that factor, each where it first applies, until none does."""
    while (match := next(iter(_matches(derivation.end)), None)) is not None:
        derivation = derivation.then(match)
    return derivation


def _matches(program: Program) -> Iterable[Match[object]]:
    for rule in (TRAVERSAL_FACTORING, CONTRACTION_ORDER, EXPRESSION_EXTRACTION):
        for at, _ in places(program):
            yield from rule.matches(program, at)
    for n in range(len(program.equations)):
        yield from COMMON_SUBEXPRESSION.matches(program, (n,))
