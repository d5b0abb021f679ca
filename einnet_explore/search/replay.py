"""Derivations as plain JSON values without their programs, and applied again from where they began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from einnet_explore.ir import Program, read_path
from einnet_explore.operators import OPERATORS
from einnet_explore.rules import ALL_RULES, Derivation, Match, Refused
from einnet_explore.rules.base import NO_STEP
from einnet_explore.search.instantiation import matching_rule


def told(derivation: Derivation) -> list[dict[str, Any]]:
    """The matches of *derivation* in their JSON form: ``replay`` leads from the same start to the same end."""
    return [step.match.to_json() for step in derivation.steps]


def replay(start: Program, steps: Iterable[Mapping[str, Any]]) -> Derivation:
    """*start* and *steps*, as ``told`` gave them; raises Refused where a step no longer applies or is none."""
    known = {rule.name: rule for rule in (*ALL_RULES, matching_rule(OPERATORS))}
    derivation = Derivation(start)
    for n, step in enumerate(steps):
        try:
            rule, at = known[step["rule"]], read_path(step["at"])
            derivation.end.scope_at(at)
            params = rule.decode(derivation.end, at, step["params"])
            derivation = derivation.then(Match(rule, at, params))
        except NO_STEP as why:
            raise Refused(f"step {n}: {type(why).__name__}: {why}") from None
    return derivation
