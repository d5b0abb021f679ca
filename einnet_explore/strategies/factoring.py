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

from collections.abc import Collection, Iterable

from einnet_explore.analysis.equations import readers, weight_only
from einnet_explore.analysis.products import count_products, is_multilinear
from einnet_explore.ir import Program, Scope, accesses
from einnet_explore.rules import (
    BOUNDARY_TIGHTENING,
    COMMON_FACTOR,
    COMMON_SUBEXPRESSION,
    CONTRACTION_ORDER,
    DISTRIBUTIVITY,
    EXPRESSION_EXTRACTION,
    TRAVERSAL_FACTORING,
    Derivation,
    Match,
    Refused,
    Rule,
)
from einnet_explore.rules.base import accepted, places
from einnet_explore.rules.distributivity import Termwise
from einnet_explore.strategies.moves import merge_scopes
from einnet_explore.strategies.vertical_fusion import substitute_intermediate

MAX_SUBSTITUTIONS = 16
"""Intermediates that are substituted, at most."""


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


def products_at_run_time(program: Program, among: Collection[str] | None = None) -> int:
    """The products that the equations of *program* (those called *among*) form, weights not counted."""
    constant = weight_only(program)
    counted = (e for e in program.equations if e.name not in constant and (among is None or e.name in among))
    return sum(count_products(e.scope) for e in counted)


def _substituted(derivation: Derivation) -> Iterable[Derivation]:
    """Yield *derivation* with one more multilinear intermediate substituted each time, until none is left."""
    refused = set[str]()
    for _ in range(MAX_SUBSTITUTIONS):
        for name in _intermediates(derivation.end):
            if name not in refused:
                try:
                    derivation = normalised(substitute_intermediate(derivation, name))
                    break
                except Refused:
                    refused.add(name)
        else:
            return
        yield derivation


def _intermediates(program: Program) -> Iterable[str]:
    """Yield the intermediates that can join the sums of products of all their readers, the last one first."""
    for equation in reversed(program.equations):
        found = [program.equations[n] for n in readers(program, equation.name)]
        if equation.name not in program.outputs and found and all(map(is_multilinear, (equation, *found))):
            yield equation.name


def normalised(derivation: Derivation) -> Derivation:
    """Merge the scopes that sum nothing into their readers, and sum each term on its own, where it is not 0."""
    while True:
        derivation = _merged(derivation)
        match = next(iter(_towards_normal_form(derivation.end)), None)
        if match is None:
            return derivation
        derivation = derivation.then(match)


def _merged(derivation: Derivation) -> Derivation:
    for equation in derivation.end.equations:
        derivation = merge_scopes(derivation, equation.name)
    return derivation


def _towards_normal_form(program: Program) -> Iterable[Match[object]]:
    """Yield matches that sum terms on their own, or do not sum a nested scope's padding; innermost scopes first."""
    for at, scope in reversed(list(places(program))):
        if accepted(DISTRIBUTIVITY.rewrite, program, at, Termwise()):
            yield Match(DISTRIBUTIVITY, at, Termwise())
        elif any(isinstance(a.source, Scope) and a.source.padding for a in accesses(scope.body)):
            yield from (m for m in BOUNDARY_TIGHTENING.matches(program, at) if not m.params.window)


def factored(derivation: Derivation) -> Derivation:
    """Apply the rules that factor until none applies, then make expressions of nested scopes, and share equal ones."""
    for rules in ((COMMON_FACTOR, TRAVERSAL_FACTORING, CONTRACTION_ORDER), (EXPRESSION_EXTRACTION,)):
        while (match := next(iter(_matches(derivation.end, rules)), None)) is not None:
            derivation = derivation.then(match)
    derivation = _merged(derivation)
    while (match := next(iter(_shared(derivation.end)), None)) is not None:
        derivation = derivation.then(match)
    return derivation


def _matches(program: Program, rules: Iterable[Rule[object]]) -> Iterable[Match[object]]:
    for rule in rules:
        for at, _ in places(program):
            yield from rule.matches(program, at)


def _shared(program: Program) -> Iterable[Match[object]]:
    for n in range(len(program.equations)):
        yield from COMMON_SUBEXPRESSION.matches(program, (n,))
