"""Refusals: the rules' reasons as values that a notebook shows as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einnet_explore.ir import Path, Program, show_path
from einnet_explore.rules import Refused, Rule
from einnet_explore.viz.tables import TextTable


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a rule does not apply at a place."""

    rule: str
    at: Path
    why: str


class Refusals(tuple[Refusal, ...]):
    """Refusals that a notebook shows as a table."""

    __slots__ = ()

    def table(self) -> TextTable:
        """One row a rule."""
        rows = tuple((r.rule, show_path(r.at), r.why) for r in self)
        return TextTable(("rule", "at", "refused because"), rows, "" if self else "every rule has a legal match")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


def refusal_reason(rule: Rule[Any], program: Program, at: Path) -> str:
    """Return why *rule* proposes nothing: its explanation, else its refusal of empty parameters."""
    if rule.explain is not None:
        return rule.explain(program, at)
    try:
        rule.rewrite(program, at, rule.decode(program, at, {}))
    except Refused as refusal:
        if not is_missing_parameter(refusal):
            return str(refusal)
    except (KeyError, TypeError, ValueError):
        pass
    return "nothing to propose from this scope's extents and coefficients"


def is_missing_parameter(error: Exception) -> bool:
    """Whether *error* is about a parameter that is missing."""
    return any(isinstance(each, KeyError) for each in (error, error.__cause__, error.__context__))
