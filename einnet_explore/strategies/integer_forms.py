r"""Sums of products of scaled integers, as sums of products of the integers (quantised models).

.. math::
   \sum_k s_x (X - z_x)\, s_w (W - z_w)
   \;\mapsto\;
   s_x s_w \Big( \sum_k X W - z_w \sum_k X - z_x \sum_k W + n\, z_x z_w \Big)

.. code-block:: text

    substitute the operands that are computed of bytes, element by element (fusion, padding exchange)
    move the factors out of the sum on which it does not depend, sum each term on its own (distributivity)
    make expressions of the nested sums (extraction)
    divide the scale and the bias by the scale of a quantisation which reads the result (known quotient)

The first sum has kernels of its own, and sums of weights are computed beforehand.  Every step is a rule; the result is
an open program, whose cost competes with that of the start.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from math import prod

from einnet_explore.analysis.equations import equation_number, find_equation, readers, weight_only
from einnet_explore.analysis.products import is_multilinear, multiplies_bytes, reads_weights
from einnet_explore.ir import (
    ELEMENT_TYPES,
    Apply,
    Path,
    Program,
    Scope,
    accesses,
    element_type,
    tensors,
    walk_scalar,
)
from einnet_explore.rules import (
    DISTRIBUTIVITY,
    EXPRESSION_EXTRACTION,
    KNOWN_QUOTIENT,
    PADDING_EXCHANGE,
    PART_EXTRACTION,
    Derivation,
    Match,
    Refused,
)
from einnet_explore.rules.base import accepted
from einnet_explore.rules.distributivity import Outwards, Termwise
from einnet_explore.rules.padding_exchange import PaddedRead
from einnet_explore.strategies.factoring import exhausted
from einnet_explore.strategies.moves import merge_scopes
from einnet_explore.strategies.vertical_fusion import substitute_intermediate

BYTE = 8
"""Bits of the integers whose products have kernels of their own."""


def integer_forms(program: Program) -> Iterable[Derivation]:
    """Yield the derivation of *program* in which sums of products of scaled bytes are products of integers, if any."""
    derivation = Derivation(program)
    for name in (e.name for e in program.equations):
        with suppress(Refused):  # the sum before may have become part of its reader
            derivation = _in_integers(derivation, name) if name in derivation.end.names() else derivation
    if derivation.steps:
        yield derivation


def _in_integers(derivation: Derivation, name: str) -> Derivation:
    """Return *derivation* with the equation called *name* over a product of integers; raises Refused if it has none."""
    known = derivation.end.names()
    while (operand := _byte_operand(derivation.end, name)) is not None:
        derivation = _with_operand(derivation, name, operand)
    at: Path = (equation_number(derivation.end, name),)
    scope = derivation.end.scope_at(at)
    if not scope.summations or not any(ELEMENT_TYPES[t.dtype].bits == BYTE for t in tensors(scope)):
        raise Refused(f"{name} sums nothing that is computed of bytes")
    if accepted(DISTRIBUTIVITY.rewrite, derivation.end, at, Outwards()):
        derivation = derivation.then(Match(DISTRIBUTIVITY, at, Outwards()))
        reads = accesses(derivation.end.scope_at(at).body)
        at = next((*at, n) for n, a in enumerate(reads) if isinstance(a.source, Scope) and a.source.summations)
    if accepted(DISTRIBUTIVITY.rewrite, derivation.end, at, Termwise()):
        derivation = merge_scopes(derivation.then(Match(DISTRIBUTIVITY, at, Termwise())), name)
    derivation = exhausted(derivation, (EXPRESSION_EXTRACTION,))
    if not any(multiplies_bytes(e.scope) for e in derivation.end.equations if e.name not in known):
        raise Refused(f"{name} multiplies no bytes")
    return _with_known_scale(derivation, name)


def _with_operand(derivation: Derivation, name: str, operand: str) -> Derivation:
    """Return *derivation* with the equation called *operand* substituted into the sum *name*, and its padding moved."""
    derivation = substitute_intermediate(derivation, operand)
    at = (equation_number(derivation.end, name),)
    while found := [m for m in PADDING_EXCHANGE.matches(derivation.end, at) if isinstance(m.params, PaddedRead)]:
        derivation = derivation.then(found[0])
    return merge_scopes(derivation, name)


def _byte_operand(program: Program, name: str) -> str | None:
    """Return an operand of the sum *name* that is computed of bytes element by element, in floating point."""
    made = {e.name: e for e in program.equations}
    scope = find_equation(program, name).scope
    for read in tensors(scope) if scope.summations else ():
        operand = made.get(read.name)
        while operand is not None and not operand.scope.summations and is_multilinear(operand):
            size = prod(operand.scope.shape)
            source = next((t for t in tensors(operand.scope) if prod(t.shape) == size), None)
            if source is None or ELEMENT_TYPES[element_type(operand.scope)].is_integer:
                break
            if ELEMENT_TYPES[source.dtype].bits == BYTE:
                return read.name
            operand = made.get(source.name)
    return None


def _with_known_scale(derivation: Derivation, name: str) -> Derivation:
    """Return *derivation* with the equation called *name* in the next quotient of it, and a known scale there.

    All equations on the way have one reader.  The scale, and what is added, are expressions of weights, if they are no
    constants.
    """
    fused = derivation
    while len(found := readers(fused.end, name)) == 1:
        reader = fused.end.equations[found[0]].name
        known = weight_only(fused.end) & {t.name for t in tensors(fused.end.equations[found[0]].scope)}
        try:
            for source in (name, *sorted(known)):
                fused = merge_scopes(substitute_intermediate(fused, source), reader)
        except Refused:
            return derivation
        at = (equation_number(fused.end, reader),)
        if (match := next(_quotients(fused.end, at), None)) is not None:
            return _with_known_parts(fused.then(match), reader)
        name = reader
    return derivation


def _quotients(program: Program, at: Path) -> Generator[Match[object]]:
    yield from (match for match in KNOWN_QUOTIENT.matches(program, at) if match.params.direction == "apart")


def _with_known_parts(derivation: Derivation, name: str) -> Derivation:
    """Return *derivation* with the quotients of weights in the equation called *name* as expressions."""
    at = (equation_number(derivation.end, name),)
    for extraction in PART_EXTRACTION.matches(derivation.end, at):
        part = tuple(walk_scalar(derivation.end.scope_at(at).body))[extraction.params.part]
        if isinstance(part, Apply) and part.op == "/" and reads_weights(part) and accesses(part):
            return _with_known_parts(derivation.then(extraction), name)
    return derivation
