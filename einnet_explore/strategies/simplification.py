r"""Simplification across functions: terms and factors move through functions until they vanish or meet a weight.

.. math::
   S = Q (K + b)^T, \quad P = \operatorname{softmax}_j S
   \;\mapsto\;
   S = Q K^T + (Q b)\, 1^T, \quad M = Q b + \max_j Q K^T, \quad e^{S - M} = e^{Q K^T - \max_j Q K^T}

.. code-block:: text

    for each element-wise intermediate: follow it
        substitute it into all its readers, and apply the laws of functions there to a fixpoint
        stop when less work is left than at the start; else go on with the readers that are element-wise now
    for each scaled product: the scale moves into a weight of the product

Work is the number of operations at run time, without those on weights alone.  No law is special to softmax, to
attention or to normalisations: distributivity splits a product, monotone exchange moves a term out of a maximum,
cancellation removes it, positive scaling moves a factor through relu, and part extraction multiplies it into the next
weight.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import islice

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.analysis.counts import flops
from einnet_explore.analysis.equations import equation_number, find_equation, readers, weight_only
from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import is_multilinear, quotient_factors, reads_weights
from einnet_explore.ir import Access, Apply, Const, Program, Scalar, Scope, Tensor, accesses, walk_scalar
from einnet_explore.rules import (
    CANCELLATION,
    COMMON_SUBEXPRESSION,
    CONTRACTION_ORDER,
    DEAD_EQUATION,
    DISTRIBUTIVITY,
    EXPRESSION_EXTRACTION,
    MONOTONE_EXCHANGE,
    PART_EXTRACTION,
    POSITIVE_SCALING,
    TRAVERSAL_MERGING,
    Derivation,
    Match,
    Refused,
    Rule,
)
from einnet_explore.rules.base import places
from einnet_explore.rules.distributivity import Outwards, Termwise
from einnet_explore.rules.part_extraction import Part, known_arguments
from einnet_explore.strategies.moves import merge_scopes
from einnet_explore.strategies.vertical_fusion import substitute_intermediate

FUNCTION_RULES: tuple[Rule[object], ...] = (MONOTONE_EXCHANGE, CANCELLATION, POSITIVE_SCALING)
"""The laws that simplification uses; only those of them that are allowed are applied."""

MAX_FOLLOWED = 6
"""Substitutions after which following one intermediate ends."""

MAX_LAWS = 40
"""Applications of laws after one substitution."""


def simplifications(program: Program, rules: Iterable[Rule[object]] = FUNCTION_RULES) -> Iterable[Derivation]:
    """Yield derivations of *program* by *rules*, each a continuation of the one before, with less work at run time."""
    allowed = frozenset(rules)
    derivation = Derivation(program)
    while (found := next(iter(_improved(derivation, allowed)), None)) is not None:
        yield (derivation := found)


def operations_left(program: Program) -> int:
    """Count the operations of *program* at run time, those of equations on weights alone left out."""
    constant = weight_only(program)
    return sum(flops(e.scope) for e in program.equations if e.name not in constant)


def _improved(derivation: Derivation, rules: frozenset[Rule[object]]) -> Iterable[Derivation]:
    """Yield *derivation* with less work left, by following each of its intermediates."""
    most = operations_left(derivation.end)
    for equation in derivation.end.equations:
        name = equation.name
        found = (_scale_into_weight(derivation, name), *_followed(derivation, name, rules))
        for each in (_with_laws(derivation, (name,), rules), *found):
            if each is not None and operations_left(each.end) < most:
                yield each


def _followed(derivation: Derivation, name: str, rules: frozenset[Rule[object]]) -> Iterable[Derivation]:
    """Substitute *name* into its readers, and then those of them that are element-wise; yield each derivation."""
    waiting, start = [name], derivation.end
    for _ in range(MAX_FOLLOWED):
        while waiting and not _is_followed(derivation.end, waiting[0]):
            waiting.pop(0)
        if not waiting:
            return
        name = waiting.pop(0)
        took = tuple(derivation.end.equations[n].name for n in readers(derivation.end, name))
        try:
            derivation = substitute_intermediate(derivation, name)
        except Refused:
            return
        for reader in took:
            derivation = merge_scopes(derivation, reader)
        derivation = _with_laws(derivation, took, rules)
        yield derivation
        yield _share_parts(derivation, {e.name for e in derivation.end.equations if e not in start.equations})
        for reader in took:
            if (scaled := _scale_into_weight(derivation, reader)) is not None:
                yield scaled
        waiting += [reader for reader in took if reader not in waiting]


def _is_followed(program: Program, name: str) -> bool:
    """Whether *name* is an open element-wise intermediate that computes."""
    if name in program.outputs or name not in {e.name for e in program.equations}:
        return False
    equation = find_equation(program, name)
    open_readers = all(program.equations[n].via is None for n in readers(program, name))
    return (
        equation.via is None
        and open_readers
        and not equation.scope.summations
        and isinstance(equation.scope.body, Apply)
    )


def _with_laws(derivation: Derivation, names: Iterable[str], rules: frozenset[Rule[object]]) -> Derivation:
    """Apply the laws to the equations called *names*, and to what is extracted from them, until none applies."""
    known = {e.name for e in derivation.end.equations}
    changing = set(names)
    for _ in range(MAX_LAWS):
        match = next(iter(_laws(derivation.end, changing, rules)), None)
        if match is None:
            break
        derivation = derivation.then(match)
        changing |= {e.name for e in derivation.end.equations} - known
    for name in sorted(changing & {e.name for e in derivation.end.equations}):
        derivation = merge_scopes(derivation, name)
    return derivation


def _laws(program: Program, names: set[str], rules: frozenset[Rule[object]]) -> Iterable[Match[object]]:
    for n, equation in enumerate(program.equations):
        yield from DEAD_EQUATION.matches(program, (n,))
        if equation.name not in names or equation.via is not None:
            continue
        for at, scope in places(program):
            if at[0] != n:
                continue
            for rule in (CANCELLATION, MONOTONE_EXCHANGE):
                if rule in rules:
                    yield from rule.matches(program, at)
            if POSITIVE_SCALING in rules:
                yield from (m for m in POSITIVE_SCALING.matches(program, at) if m.params.direction == "apart")
            if rules and _is_linear(scope):
                yield from (m for m in DISTRIBUTIVITY.matches(program, at) if isinstance(m.params, Termwise))
            is_sum = bool(scope.summations) and scope.reduce == "sum"
            if is_sum:
                yield from _known_parts(program, at, scope)
            if is_sum and len(quotient_factors(scope.body)) > 1:
                yield from (m for m in DISTRIBUTIVITY.matches(program, at) if isinstance(m.params, Outwards))
            yield from CONTRACTION_ORDER.matches(program, at)
            yield from EXPRESSION_EXTRACTION.matches(program, at)
            yield from _invariant_parts(program, at, scope)
            if is_sum:
                yield from _functions(program, at, scope)


def _is_linear(scope: Scope) -> bool:
    """Whether multiplying out *scope* cannot cancel: one factor is a sum, and no term of it is subtracted.

    Without a summation, only constants are multiplied out.
    """
    sums = [f for f in quotient_factors(scope.body) if isinstance(f, Apply) and f.op in ("+", "-")]
    others = [f for f in quotient_factors(scope.body) if f not in sums]
    if len(sums) != 1 or any(_subtracts(part) for part in walk_scalar(sums[0])):
        return False
    return bool(scope.summations) or all(isinstance(f, Const) for f in others)


def _subtracts(part: Scalar) -> bool:
    match part:
        case Apply("-" | "neg"):
            return True
        case Const(value):
            return value < 0
    return False


def _known_parts(program: Program, at: tuple[int, ...], scope: Scope) -> Iterable[Match[object]]:
    """Yield the extraction of what is known at compile time from the product of *scope*."""
    if found := known_arguments(scope.body):
        yield from (m for m in PART_EXTRACTION.matches(program, at) if m.params == Part(0, found))


def _invariant_parts(program: Program, at: tuple[int, ...], scope: Scope) -> Iterable[Match[object]]:
    """Yield the extraction of parts that depend on fewer iterators than the scope has: they are computed once."""
    parts = tuple(walk_scalar(scope.body))
    moving = {x for x in (*scope.traversals, *scope.summations) if x.extent > 1}
    for match in PART_EXTRACTION.matches(program, at):
        if (
            match.params.part
            and not match.params.arguments
            and iterators_of(parts[match.params.part]) & moving < moving
        ):
            yield match


def _share_parts(derivation: Derivation, names: Iterable[str]) -> Derivation:
    """Extract the largest element-wise part that two of the equations called *names* have, until there is none."""
    while (pair := _common_part(derivation.end, tuple(names))) is not None:
        made = []
        for name, part in pair:
            at = (equation_number(derivation.end, name),)
            derivation = derivation.then(PART_EXTRACTION.match(derivation.end, at, part=part))
            made.append(derivation.end.equations[at[0]].name)
        at = (equation_number(derivation.end, made[1]),)
        derivation = derivation.then(COMMON_SUBEXPRESSION.match(derivation.end, at, tensor=made[0]))
    return derivation


def _common_part(program: Program, names: tuple[str, ...]) -> tuple[tuple[str, int], tuple[str, int]] | None:
    """Return the places, by equation and part, of the largest part that two equations compute in the same way."""
    seen: dict[Hashable, tuple[str, int]] = {}
    found = []
    for equation in program.equations:
        if equation.name not in names or equation.via is not None:
            continue
        for match in PART_EXTRACTION.matches(program, (equation_number(program, equation.name),)):
            if match.params.arguments:
                continue
            part = tuple(walk_scalar(equation.scope.body))[match.params.part]
            own = (*equation.scope.traversals, *equation.scope.summations)
            made = Scope(tuple(x for x in own if x in iterators_of(part)), (), part)
            first = seen.setdefault(canonical_key(made), (equation.name, match.params.part))
            if first[0] != equation.name:
                found.append((flops(made), first, (equation.name, match.params.part)))
    return max(found, key=lambda pair: pair[0])[1:] if found else None


def _functions(program: Program, at: tuple[int, ...], scope: Scope) -> Iterable[Match[object]]:
    """Yield the extraction of factors that are functions: a library multiplies elements."""
    parts = tuple(walk_scalar(scope.body))
    whole = quotient_factors(scope.body)
    if len(whole) > 1:
        for match in PART_EXTRACTION.matches(program, at):
            part = parts[match.params.part]
            if not match.params.arguments and part in whole and isinstance(part, Apply) and part.op != "/":
                yield match


def _scale_into_weight(derivation: Derivation, name: str) -> Derivation | None:
    """Multiply the scale of the product that *name* reads into a weight of it; a positive one also through a function.

    A sum of a scaled product and a shift is split first.
    """
    program = derivation.end
    numbers = [n for n, e in enumerate(program.equations) if e.name == name and e.via is None]
    if not numbers or program.equations[numbers[0]].scope.summations:
        return None
    (n,) = numbers
    for match in islice((m for m in POSITIVE_SCALING.matches(program, (n,)) if m.params.direction == "together"), 1):
        derivation = derivation.then(match)
    for number, part in enumerate(walk_scalar(derivation.end.scope_at((n,)).body)):
        if (read := _scaled_read(part)) is None or not _is_sole_product(derivation.end, read):
            continue
        if number:
            derivation = derivation.then(PART_EXTRACTION.match(derivation.end, (n,), part=number))
            name = derivation.end.equations[n].name
        try:
            derivation = substitute_intermediate(derivation, read)
        except Refused:
            return None
        at = (equation_number(derivation.end, name),)
        for merging in islice(TRAVERSAL_MERGING.matches(derivation.end, at), 1):
            return _with_laws(derivation.then(merging), (name,), frozenset())
    return None


def _scaled_read(part: Scalar) -> str | None:
    """Return the tensor that *part* multiplies by constants and weights only."""
    if not (isinstance(part, Apply) and part.op == "*"):
        return None
    match [arg for arg in part.args if not reads_weights(arg)]:
        case [Access(Tensor(name=name))]:
            return name
    return None


def _is_sole_product(program: Program, name: str) -> bool:
    """Whether *name* is a sum of products with a weight, and one equation alone reads it, once."""
    found = [e for e in program.equations if e.name == name]
    if not found or name in program.outputs or not found[0].scope.summations or not is_multilinear(found[0]):
        return False
    reads = [a for n in readers(program, name) for a in accesses(program.equations[n].scope.body)]
    weighted = any(reads_weights(f) for f in quotient_factors(found[0].scope.body))
    return weighted and sum(isinstance(a.source, Tensor) and a.source.name == name for a in reads) == 1
