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

The first sum has kernels of its own, and sums of weights are computed beforehand.  Maxima and minima of scaled integers
between quantisations of equal parameters, as pooling has, become those of the integers:

.. math::  Q\big(\max_k s\, (X - z)\big) \;\mapsto\; \max_k Q(s\, (X - z)) \;\mapsto\; \max_k X

Quantisations of element-wise operands have known scales, too.  Every step is a rule; the result is an open program,
whose cost competes with that of the start.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from itertools import chain
from math import prod

from einnet_explore.analysis.equations import constant_tensors, equation_number, find_equation, readers, weight_only
from einnet_explore.analysis.products import is_multilinear, multiplies_bytes
from einnet_explore.ir import (
    ELEMENT_TYPES,
    Access,
    Apply,
    Path,
    Program,
    Scope,
    Tensor,
    accesses,
    element_type,
    scopes,
    tensors,
    walk_scalar,
)
from einnet_explore.rules import (
    DISTRIBUTIVITY,
    EXPRESSION_EXTRACTION,
    KNOWN_QUOTIENT,
    MONOTONE_DISTRIBUTION,
    PADDING_EXCHANGE,
    PART_EXTRACTION,
    REQUANTISATION,
    Derivation,
    Match,
    Refused,
)
from einnet_explore.rules.base import accepted
from einnet_explore.rules.distributivity import Outwards, Termwise
from einnet_explore.rules.padding_exchange import PaddedFunction, PaddedRead
from einnet_explore.strategies.factoring import exhausted
from einnet_explore.strategies.moves import merge_scopes
from einnet_explore.strategies.vertical_fusion import substitute_intermediate

BYTE = 8
"""Bits of the integers whose products have kernels of their own."""


def integer_forms(program: Program) -> Iterable[Derivation]:
    """Yield the derivation of *program* in which operations on scaled bytes are operations on the bytes, if any."""
    derivation = Derivation(program)
    for name in (e.name for e in program.equations):
        for form in (_in_integers, _reduced_in_integers, _quantised):
            with suppress(Refused):
                derivation = form(derivation, name) if name in derivation.end.names() else derivation
    if derivation.steps:
        yield derivation


def _in_integers(derivation: Derivation, name: str) -> Derivation:
    """Return *derivation* with the equation called *name* over a product of integers; raises Refused if it has none."""
    known = derivation.end.names()
    _require(find_equation(derivation.end, name).scope.reduce == "sum", f"{name} is no sum")
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


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Refused(otherwise)


def _reduced_in_integers(derivation: Derivation, name: str) -> Derivation:
    """Return *derivation* with the quantised maximum or minimum *name* of scaled bytes as that of the bytes.

    Raises Refused if it is none, or is quantised otherwise than its operand.
    """
    operand = _byte_operand(derivation.end, name)
    reduce = find_equation(derivation.end, name).scope.reduce
    _require(operand is not None and reduce in ("max", "min"), f"{name} is no maximum or minimum of scaled bytes")
    assert operand is not None
    while not ELEMENT_TYPES[element_type(find_equation(derivation.end, name).scope)].is_integer:
        found = readers(derivation.end, name)
        _require(len(found) == 1, f"{name} has {len(found)} readers, expected one")
        reader = derivation.end.equations[found[0]].name
        derivation, name = merge_scopes(substitute_intermediate(derivation, name), reader), reader
    derivation = derivation.then(Match(MONOTONE_DISTRIBUTION, (equation_number(derivation.end, name),), None))
    derivation = merge_scopes(substitute_intermediate(derivation, operand), name)
    at: Path = (equation_number(derivation.end, name),)
    for entering in [m for m in PADDING_EXCHANGE.matches(derivation.end, at) if isinstance(m.params, PaddedFunction)]:
        derivation = derivation.then(entering)
    nested = isinstance(derivation.end.scope_at(at).body, Access)
    derivation = derivation.then(Match(REQUANTISATION, (*at, 0) if nested else at, None))
    return _with_moved_padding(derivation, name)


def _quantised(derivation: Derivation, name: str) -> Derivation:
    """Return *derivation* with the quantisation *name* of element-wise operands in bytes, of known scale.

    Raises Refused if it quantises anything else.
    """
    start = derivation
    while True:
        equation = find_equation(derivation.end, name)
        made = {e.name: e.scope for e in derivation.end.equations}
        _require(not any(scope.summations for _, scope in scopes(equation.scope)), f"{name} sums")
        _require(ELEMENT_TYPES[element_type(equation.scope)].is_integer, f"{name} is not quantised")
        floats = [t.name for t in tensors(equation.scope) if not ELEMENT_TYPES[t.dtype].is_integer]
        if not floats:
            break
        _require(floats[0] in made and not made[floats[0]].summations, f"{floats[0]} is not computed of bytes")
        derivation = merge_scopes(substitute_intermediate(derivation, floats[0]), name)
    at = (equation_number(derivation.end, name),)
    match = next(chain(REQUANTISATION.matches(derivation.end, at), _quotients(derivation.end, at)), None)
    _require(match is not None and derivation is not start, f"{name} has no known scale")
    assert match is not None
    return derivation.then(match)


def _with_operand(derivation: Derivation, name: str, operand: str) -> Derivation:
    """Return *derivation* with the equation called *operand* substituted into the sum *name*, and its padding moved."""
    return _with_moved_padding(substitute_intermediate(derivation, operand), name)


def _with_moved_padding(derivation: Derivation, name: str) -> Derivation:
    """Return *derivation* with the padding of what the equation called *name* reads as padding of tensors."""
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
    """Return *derivation* with the products and quotients of weights in the equation *name* as expressions."""
    at, known = (equation_number(derivation.end, name),), constant_tensors(derivation.end)
    for extraction in PART_EXTRACTION.matches(derivation.end, at):
        part = tuple(walk_scalar(derivation.end.scope_at(at).body))[extraction.params.part]
        read = {a.source.name if isinstance(a.source, Tensor) else "" for a in accesses(part)}
        if isinstance(part, Apply) and part.op in ("*", "/") and read and read <= known:
            return _with_known_parts(derivation.then(extraction), name)
    return derivation
