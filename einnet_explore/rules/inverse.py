r"""Inverse: a step backwards.

.. math::
   E' \;\mapsto\; E \qquad\text{where a rule gives}\qquad E \;\mapsto\; E'.

Every rule is an equality, so it holds from right to left as well.  The parameters are the other program and the step
that leads from it to the present one, up to the names of iterators and intermediate tensors; the rule applies that step
again and compares.  A search from both ends (``strategies/path_search.py``) ends in steps backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.ir import Path, Program, show_path
from einnet_explore.rules.base import BAD_STEP_ERRORS, Match, Rule, Step, match_from_json, refusing
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import as_object
from einnet_explore.syntax import parse, text

LAW = r"E' \;\mapsto\; E \qquad \text{where a rule gives} \qquad E \;\mapsto\; E'"


@dataclass(frozen=True, slots=True)
class Inverse:
    """The program *before*, and the step from it to the present one."""

    before: Program
    of: Match[object]


def inverse_rule(known: Callable[[], Mapping[str, Rule[object]]]) -> Rule[Inverse]:
    """Return the rule that reverts steps of the *known* rules, by name."""

    def propose(program: Program, at: Path) -> Iterable[Inverse]:
        return ()

    def rewrite(program: Program, at: Path, params: Inverse) -> Program:
        """Return the program before; refuses one from which the step leads elsewhere."""
        after = params.of.apply(params.before).after
        if program_key(after) != program_key(program):
            raise Refused(
                f"{params.of.rule.name} at {show_path(params.of.at)} leads to another program:\n{text(after)}"
            )
        return params.before

    def encode(params: Inverse) -> dict[str, object]:
        return {"of": params.of.to_json(), "before": text(params.before)}

    def decode(program: Program, at: Path, params: Mapping[str, object]) -> Inverse:
        """Read ``{"of": {"rule": …, "at": …, "params": …}, "before": "the program as text"}``."""
        with refusing():
            before = parse(str(params["before"]))
        try:
            return Inverse(before, match_from_json(known(), before, as_object(params["of"])))
        except BAD_STEP_ERRORS as why:
            raise Refused(f"of: {why}") from None

    return Rule("inverse", LAW, propose, rewrite, encode, decode, explain=lambda program, at: NEEDS_PARAMETERS)


NEEDS_PARAMETERS = "a step backwards is applied with its parameters; ee.path finds such steps"


def backwards(rule: Rule[Inverse], step: Step) -> Match[Inverse]:
    """Return the match that reverts *step*."""
    return Match(rule, (0,), Inverse(step.before, step.match))
