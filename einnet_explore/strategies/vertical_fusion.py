r"""Vertical fusion as a search: intermediates are computed inside the kernels that read them.

.. code-block:: text

    Q = {program}; while Q: take the state with the least traffic
        substitute one intermediate into all its readers (expression fusion, inlining), merge re-indexings
        yield it if each equation that has taken an intermediate in can be generated: element by element, by rows, in
        one pass, with its reductions; as it stands, or after a variable substitution (residues of a dilated window)

Traffic is the bytes that equations read and write if each is one kernel.  Activations between two contractions (a
softmax between scores and values, EinNet Fig. 14) end the reach of rules on one expression; here their intermediates
are never written.  Equations that have taken nothing in stay open: the search of single expressions derives them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import TypeAlias

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.counts import ELEMENT_BYTES, bytes_moved
from einnet_explore.analysis.equations import equation_number, find_equation, readers, weight_only
from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import quotient_factors
from einnet_explore.ir import Access, Apply, Const, Path, Program, Scope, split_constants
from einnet_explore.rules import (
    BOUNDARY_RELAXING,
    CONTRACTION_ORDER,
    DEAD_EQUATION,
    DISTRIBUTIVITY,
    EOPERATOR_GENERATION,
    EXPRESSION_FUSION,
    EXPRESSION_INLINING,
    ONE_PASS_GENERATION,
    REDUCTION_GENERATION,
    ROW_GENERATION,
    TRAVERSAL_MERGING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Match,
    Refused,
    Rule,
)
from einnet_explore.rules.base import places
from einnet_explore.rules.distributivity import Outwards
from einnet_explore.strategies.moves import clean, merge_scopes
from einnet_explore.strategies.strategy import is_rereading

Rules: TypeAlias = "tuple[Rule[object], ...]"

KERNEL_RULES: Rules = (ROW_GENERATION, ONE_PASS_GENERATION, REDUCTION_GENERATION)
"""The rules that generate a scope with sums nested in it."""

FUSION_RULES: Rules = (*KERNEL_RULES, VARIABLE_SUBSTITUTION)
"""The rules that may be left out, as the numerics of a model ask for."""

EXTRA_STATES = 16
"""States that a search examines beyond the chain that substitutes everything."""


@dataclass(frozen=True, slots=True)
class FusionState:
    """A derivation, and the names of the open equations that have taken an intermediate in."""

    derivation: Derivation
    fused: frozenset[str] = frozenset()

    def substitute(self, name: str) -> FusionState:
        """Return the state in which all readers of the equation called *name* compute it; raises Refused."""
        took = _reader_names(self.derivation.end, name)
        return FusionState(substitute_intermediate(self.derivation, name), self.fused.difference((name,)).union(took))


def vertical_fusions(
    program: Program, rules: Rules = FUSION_RULES, is_wanted: Callable[[Program], bool] = lambda _: True
) -> Iterable[Derivation]:
    """Yield derivations of *program* in which kernels of several reductions compute their intermediates themselves.

    Equations that have taken nothing in are still open.  Kernels are looked for where the program with the
    intermediates substituted *is_wanted*.
    """
    serial = count()
    left = len(program.equations) + EXTRA_STATES
    queue = [(0, next(serial), FusionState(in_normal_spelling(program, CONTRACTION_ORDER in rules)), "")]
    seen: set[Hashable] = set()
    while queue and left:
        _, _, state, intermediate = heapq.heappop(queue)
        try:
            state = state.substitute(intermediate) if intermediate else state
        except Refused:
            continue
        program = state.derivation.end
        key = program_key(program)
        if key in seen:
            continue
        seen.add(key)
        left -= 1
        if is_wanted(program):
            yield from generate_fused(state, rules)
        moved = traffic(program)
        for saved, name in _savings(program):
            heapq.heappush(queue, (moved - saved, next(serial), state, name))


def fuse_vertically(program: Program, rules: Rules = FUSION_RULES) -> Derivation | None:
    """Return a derivation of *program* to generated kernels that do all its products and reductions; None if none does.

    It is the one with the least number of kernels, then the one that the first of *rules* generates.
    """

    def rank(done: Derivation) -> tuple[int, int]:
        used = [step.match.rule for step in done.steps if step.match.rule in KERNEL_RULES]
        return len(done.end.equations), min(map(rules.index, used))

    finished = (done for found in vertical_fusions(program, rules) if (done := generate_rest(found)) is not None)
    return min(finished, key=rank, default=None)


def traffic(program: Program) -> int:
    """The bytes that the equations of *program* read and write at run time, each as one kernel."""
    constant = weight_only(program)
    return sum(bytes_moved(e.scope) for e in program.equations if e.name not in constant)


def _savings(program: Program) -> Iterable[tuple[int, str]]:
    """Yield the intermediates of *program* and the bytes that are saved if each of its readers computes them."""
    for equation in program.equations:
        if equation.via is None and equation.name not in program.outputs:
            found = readers(program, equation.name)
            if all(program.equations[n].via is None for n in found):
                yield ELEMENT_BYTES * prod(equation.scope.shape) * (len(found) + 1), equation.name


def substitute_intermediate(derivation: Derivation, name: str) -> Derivation:
    """Substitute the equation called *name* into all its readers, if any, and merge re-indexings; raises Refused."""
    found = _reader_names(derivation.end, name)
    rule = EXPRESSION_FUSION if len(found) == 1 else EXPRESSION_INLINING
    for reader in found:
        at = (equation_number(derivation.end, reader),)
        derivation = derivation.then(rule.match(derivation.end, at, tensor=name))
    if len(found) != 1:
        derivation = derivation.then(DEAD_EQUATION.match(derivation.end, (equation_number(derivation.end, name),)))
    return _tidy(derivation, TRAVERSAL_MERGING)


def in_normal_spelling(program: Program, factors: bool) -> Derivation:
    """Merge the intermediates of *program* that depend on how it is written, not on what it computes.

    These are steps of element-wise work, re-indexings and scalings of what is summed, and re-indexings of sums, each
    with one reader.  *factors*: constant factors move out of sums.
    """
    derivation = Derivation(program)
    for may_merge in (_is_moved_sum, _is_moved_or_scaled, _is_step):
        tried = set[str]()
        while (pair := next(iter(_with_one_reader(derivation.end, tried, may_merge)), None)) is not None:
            tried.add(pair[0])
            with suppress(Refused):
                derivation = _merged(derivation, *pair, factors)
    return derivation


def _with_one_reader(
    program: Program, tried: Collection[str], may_merge: Callable[[Scope, Scope], bool]
) -> Iterable[tuple[str, str]]:
    """Yield intermediates that were not *tried*, each with its only reader, for whose scopes *may_merge* holds."""
    for equation in program.equations:
        if equation.via is None and equation.name not in program.outputs and equation.name not in tried:
            found = [program.equations[n] for n in readers(program, equation.name)]
            if len(found) == 1 and found[0].via is None and may_merge(equation.scope, found[0].scope):
                yield equation.name, found[0].name


def _is_moved_sum(scope: Scope, reader: Scope) -> bool:
    """Whether *reader* only re-indexes a sum, and reads no element several times."""
    moves = not reader.summations and isinstance(reader.body, Access)
    return moves and bool(scope.summations) and prod(scope.shape) >= prod(reader.shape)


def _is_moved_or_scaled(scope: Scope, reader: Scope) -> bool:
    """Whether *scope* only re-indexes, or multiplies by constants."""
    match scope.body:
        case Access():
            return not scope.summations
        case Apply("*", parts):
            _, others = split_constants(parts)
            return not scope.summations and len(others) == 1 and isinstance(others[0], Access)
    return False


def _is_step(scope: Scope, reader: Scope) -> bool:
    """Return whether both are element-wise, and *reader* reads no element of *scope* several times."""
    return not scope.summations and not reader.summations and prod(scope.shape) >= prod(reader.shape)


def _merged(derivation: Derivation, name: str, reader: str, factors: bool) -> Derivation:
    """Put the equation called *name* into its *reader*; raises Refused."""
    moved = _is_moved_sum(*(find_equation(derivation.end, each).scope for each in (name, reader)))
    at = (equation_number(derivation.end, reader),)
    derivation = derivation.then(EXPRESSION_FUSION.match(derivation.end, at, tensor=name))
    at = (equation_number(derivation.end, reader),)
    if moved:
        return derivation.then(TRAVERSAL_MERGING.match(derivation.end, at, access=0))
    derivation = merge_scopes(derivation, reader)
    while factors and (match := next(iter(_constant_factors(derivation.end, reader)), None)) is not None:
        derivation = derivation.then(match)
    return derivation


def _constant_factors(program: Program, name: str) -> Iterable[Match[object]]:
    """Yield moves of constants, and of nothing else, out of the sums of products in the equation called *name*."""
    n = equation_number(program, name)
    for at, scope in places(program):
        if at[0] == n and scope.summations and scope.reduce == "sum":
            parts, summed = quotient_factors(scope.body), set(scope.summations)
            movable = [part for part in parts if not iterators_of(part) & summed]
            if movable and len(parts) > len(movable) + 1 and all(isinstance(part, Const) for part in movable):
                yield from (m for m in DISTRIBUTIVITY.matches(program, at) if isinstance(m.params, Outwards))


def _reader_names(program: Program, name: str) -> tuple[str, ...]:
    return tuple(program.equations[n].name for n in readers(program, name))


def _tidy(derivation: Derivation, *rules: Rule[object]) -> Derivation:
    for match in clean(derivation.end, final=True, rules=rules)[0]:
        derivation = derivation.then(match)
    return derivation


def generate_fused(state: FusionState, rules: Rules) -> Iterable[Derivation]:
    """Yield *state* with its fused equations generated, one of them at least by a rule for nested sums."""
    found = [state.derivation] if state.fused else []
    for name in sorted(state.fused):
        found = [longer for derivation in found for longer in _generate(derivation, name, rules)]
    plain = len(state.derivation.steps)
    yield from (done for done in found if any(step.match.rule in KERNEL_RULES for step in done.steps[plain:]))


def _generate(derivation: Derivation, name: str, rules: Rules) -> Iterable[Derivation]:
    """Yield derivations that can generate the equation called *name*: as it stands, or after one substitution."""
    at = (equation_number(derivation.end, name),)
    if any(True for _ in EOPERATOR_GENERATION.matches(derivation.end, at)):
        yield derivation  # low intensity: it is generated with the rest
        return
    yield from _kernels(derivation, at, rules)
    if VARIABLE_SUBSTITUTION not in rules:
        return
    for match in VARIABLE_SUBSTITUTION.matches(derivation.end, _computing(derivation.end, at)):
        yield from _kernels(_tidy(derivation.then(match), BOUNDARY_RELAXING, TRAVERSAL_MERGING), at, rules)


def _kernels(derivation: Derivation, at: Path, rules: Rules) -> Iterable[Derivation]:
    """Yield *derivation* with the equation at *at* run by each kernel for nested sums that can."""
    at = _computing(derivation.end, at)
    kernels = (rule for rule in rules if rule in KERNEL_RULES)
    return (derivation.then(match) for rule in kernels for match in rule.matches(derivation.end, at))


def _computing(program: Program, at: Path) -> Path:
    """Return the path of the scope that the equation at *at* re-indexes, or *at*."""
    return (*at, 0) if is_rereading(program.scope_at(at)) else at


def generate_rest(derivation: Derivation) -> Derivation | None:
    """Generate the open equations of *derivation* as eOperators and views; None if one is refused."""
    for n, equation in enumerate(derivation.end.equations):
        if equation.via is None:
            match = next(iter(EOPERATOR_GENERATION.matches(derivation.end, (n,))), None)
            if match is None:
                return None
            derivation = derivation.then(match)
    return derivation
