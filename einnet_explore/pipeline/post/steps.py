"""Common steps of post-optimisation passes: apply a rule, find equations by name, instantiate again after a rewrite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from einnet_explore.analysis.equations import is_generated, tensor_names
from einnet_explore.ir import VIEW, Equation, Program, Scope, accesses
from einnet_explore.operators import OPERATORS
from einnet_explore.rules import (
    BLOCKED_GENERATION,
    EOPERATOR_GENERATION,
    TRAVERSAL_MERGING,
    Derivation,
    Match,
    Refused,
    Rule,
)
from einnet_explore.rules.base import places
from einnet_explore.strategies.instantiation import matching_rule


def equation_index(program: Program, name: str) -> int:
    """Return the number of the equation called *name*."""
    return next(n for n, e in enumerate(program.equations) if e.name == name)


def equation_named(program: Program, name: str) -> Equation:
    """Return the equation called *name*."""
    return program.equations[equation_index(program, name)]


def apply_rule(derivation: Derivation, rule: Rule[object], name: str, params: Any) -> Derivation:
    """Apply *rule* at the equation called *name*; raises Refused."""
    return derivation.then(Match(rule, (equation_index(derivation.end, name),), params))


def readers_by_name(program: Program) -> Mapping[str, tuple[str, ...]]:
    """Return the equations that read each tensor, by name."""
    found: dict[str, tuple[str, ...]] = {}
    for e in program.equations:
        for name in tensor_names(e.scope):
            found[name] = (*found.get(name, ()), e.name)
    return found


def merge_scopes(derivation: Derivation, name: str) -> Derivation:
    """Merge every nested scope without a summation, in the equation called *name*, into its reader."""
    while (match := next(iter(_mergeable(derivation.end, name)), None)) is not None:
        derivation = derivation.then(match)
    return derivation


def _mergeable(program: Program, name: str) -> Iterable[Match[object]]:
    n = equation_index(program, name)
    for at, scope in places(program):
        if at[0] == n:
            inner = list(accesses(scope.body))
            for match in TRAVERSAL_MERGING.matches(program, at):
                source = inner[match.params.access].source
                if isinstance(source, Scope) and not source.summations:
                    yield match


def generate_equation(derivation: Derivation, name: str) -> Derivation:
    """Generate the equation called *name* as an eOperator or view, or as a chain in blocks; raises Refused."""
    at = (equation_index(derivation.end, name),)
    try:
        return derivation.then(EOPERATOR_GENERATION.match(derivation.end, at))
    except Refused as why:
        try:
            return derivation.then(BLOCKED_GENERATION.match(derivation.end, at))
        except Refused:
            raise why from None


def match_library_again(derivation: Derivation, name: str, operator: str) -> Derivation:
    """Match the equation called *name* to *operator* again; raises Refused if that takes other computation."""
    program = derivation.end
    at = (equation_index(program, name),)
    for match in matching_rule(OPERATORS).matches(program, at):
        if is_named(match.params.operator, operator):
            longer = derivation.then(match)
            new = [e for e in longer.end.equations if e.name not in program.names() or e.name == name]
            calls = [e for e in new if not is_generated(e)]
            if len(calls) == 1 and all(e.via and e.via.operator == VIEW for e in new if e is not calls[0]):
                return longer
    raise Refused(f"{name} is no {operator} in this layout")


def is_named(pattern: str, operator: str) -> bool:
    """Whether *operator* is a name of the operator called *pattern*."""
    return any(pattern in o.names and operator in o.names for o in OPERATORS)
