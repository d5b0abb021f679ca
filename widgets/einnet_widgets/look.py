"""Selection of the reader, and descriptions of programs shared by all panels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args

from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.ir import Path, Program, read_path, scopes, show_path
from einnet_explore.operators.library import find_operators
from einnet_explore.operators.operator import Operator
from einnet_explore.rules.base import places
from einnet_explore.session.session import Session
from einnet_explore.syntax import text
from einnet_explore.syntax.latex_printer import tokens_of
from einnet_explore.viz.tables import format_calls

Shown: TypeAlias = "dict[str, Any]"
Reach: TypeAlias = Literal["selection", "scope", "everywhere"]

NAMES = 60
"""Characters of a scope's description."""


def measured_name(node: int) -> str:
    """Return the name of a node's program among those that are measured."""
    return f"#{node}" if node else "start"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is selected in an explorer: a node of the session, a scope of its program, a state of the search."""

    node: int
    at: str
    state: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The reader's selection: a scope, the reach of listed rules, the target, nodes to compare, a token, layers.

    *further*: whether matches of the library's further rules are listed, too.
    """

    at: str = ""
    reach: Reach = "scope"
    target: str = ""
    compare: tuple[int, ...] | None = None
    operator: str = ""
    token: str = ""
    folds: tuple[str, ...] = ()
    further: bool = False

    @staticmethod
    def of(session: Session) -> Look:
        """Return the selection in the ``view`` of *session*, without what the session does not have."""
        kept = {f.name: session.view[f.name] for f in fields(Look) if f.name in session.view}
        names, nodes = ["", *(operator.name for operator in session.operators)], range(len(session.nodes))
        fits = {
            "at": lambda value: isinstance(value, str),
            "reach": lambda value: value in get_args(Reach),
            "target": lambda value: value in names,
            "operator": lambda value: value in names,
            "compare": lambda value: value is None or (len(value) > 1 and all(n in nodes for n in value)),
            "token": lambda value: isinstance(value, str),
            "further": lambda value: isinstance(value, bool),
            "folds": lambda value: isinstance(value, list | tuple) and all(isinstance(title, str) for title in value),
        }
        look = Look(**{name: value for name, value in kept.items() if fits[name](value)})
        return replace(look, compare=look.compare and tuple(look.compare), folds=tuple(look.folds))

    def operators(self, session: Session) -> tuple[Operator, ...]:
        """The target operators of expression distances."""
        return find_operators((self.target,), session.operators) if self.target else session.operators


def settled(session: Session, look: Look) -> str:
    """Return the selected scope, its nearest existing ancestor, or the first scope."""
    program = session.program
    known = {show_path(path) for path, _ in named_scopes(program)}
    at = look.at
    while at and at not in known:
        at = at.rpartition(".")[0]
    if at and program.equations[read_path(at)[0]].via is None:
        return at
    return next((show_path(path) for path, _ in places(program)), at)


def named_scopes(program: Program) -> Iterable[tuple[Path, str]]:
    """Yield every scope's path and display name."""
    for n, equation in enumerate(program.equations):
        how = "" if equation.via is None else f", run by {equation.via.operator}"
        for path, scope in scopes(equation.scope):
            of = ", ".join(f"{x.name}:{x.extent}" for x in scope.traversals)
            sums = f", {scope.reduce} over {', '.join(x.name for x in scope.summations)}" if scope.summations else ""
            name = equation.name if not path else "scope"
            shown = f"{name}[{of}]{sums}"
            yield (n, *path), (shown if len(shown) <= NAMES else shown[: NAMES - 1] + "…") + how


def formula(program: Program) -> Shown:
    """Return *program* in LaTeX with marked tokens, and as text."""
    return {"latex": tokens_of(program), "text": text(program)}


def certified(certificate: Certificate) -> str:
    """Describe a certificate."""
    match certificate.kind:
        case "proved":
            return f"proved ({certificate.method}): equal for every input"
        case "rounded":
            return f"rounded: {certificate.rounding_text}"
        case "exact":
            return f"exact: equal on random inputs, {certificate.elements} elements"
        case "unknown":
            return f"unknown: {certificate.detail}"
        case "false":
            return f"false: {certificate.counterexample}"


def library_calls(program: Program) -> str:
    """Describe the library operators that *program* calls, with their sizes."""
    return format_calls(program) or "none"
