"""A small panel over a session: choose a scope and a legal match, apply it, undo, redo, prove.

The panel only mirrors and forwards.  ``described`` is everything that it shows, as plain values; every button is one
call of the session, and a change made in code shows at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ipywidgets as w

from einnet_explore.explore.session import Session
from einnet_explore.explore.views import said
from einnet_explore.ir import show_path
from einnet_explore.rules import Match
from einnet_explore.rules.base import places

WIDE = w.Layout(width="100%", max_width="60rem")


@dataclass(frozen=True, slots=True)
class Described:
    """What a panel shows of a session.

    *scopes* and *matches* are choices (label, value); *here* and *nodes* say where in its tree the session stands.
    """

    latex: str
    scopes: tuple[tuple[str, str], ...]
    at: str
    matches: tuple[tuple[str, int], ...]
    legal: tuple[Match[Any], ...]
    history: str
    here: int
    nodes: int
    can_undo: bool
    can_redo: bool


def described(session: Session, at: str = "") -> Described:
    """What a panel shows of *session* with the scope *at* chosen (the first one that is there, if *at* is gone)."""
    program = session.program
    scopes = tuple(
        (f"{show_path(path)}: {program.equations[path[0]].name}[{', '.join(x.name for x in scope.traversals)}]"
         if len(path) == 1 else f"{show_path(path)}: {{{', '.join(x.name for x in scope.traversals)}}}",
         show_path(path))
        for path, scope in places(program)
    )  # fmt: skip
    known = [path for _, path in scopes]
    chosen = at if at in known else next(iter(known), "")
    legal = session.rules(chosen) if chosen else ()
    return Described(
        session.formula()._repr_latex_(),
        scopes,
        chosen,
        tuple((f"{m.rule.name}: {said(m)}" if said(m) else m.rule.name, n) for n, m in enumerate(legal)),
        tuple(legal),
        session.history()._repr_html_(),
        session.here,
        len(session.nodes),
        session.can_undo,
        session.can_redo,
    )


class Panel:
    """A panel over *session*.  Shown without a kernel it is the session's static display."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.expression = w.HTMLMath(layout=w.Layout(width="100%", overflow="auto"))
        self.scope = w.Dropdown(description="scope", layout=WIDE)
        self.match = w.Dropdown(description="rule", layout=WIDE)
        self.apply = w.Button(description="Apply", button_style="primary", tooltip="apply the chosen rule")
        self.undo = w.Button(description="Undo", icon="undo", tooltip="step back; what was undone stays as a branch")
        self.redo = w.Button(description="Redo", icon="repeat", tooltip="take back the last undo")
        self.check = w.Button(description="Prove", icon="check", tooltip="prove that this equals the start")
        self.status = w.HTML()
        self.history = w.HTML()
        self.box = w.VBox([
            self.expression, self.scope, self.match,
            w.HBox([self.apply, self.undo, self.redo, self.check]), self.status, self.history,
        ])  # fmt: skip
        self._shown = described(session)
        self.scope.observe(self._chosen, names="value")
        self.apply.on_click(self._apply)
        self.undo.on_click(lambda _: session.undo())
        self.redo.on_click(lambda _: session.redo())
        self.check.on_click(lambda _: setattr(self.status, "value", session.check()._repr_html_()))
        self.close = session.subscribe(lambda _: self.refresh())
        self.refresh()

    def refresh(self, at: str | None = None) -> None:
        """Show the session as it is now."""
        shown = self._shown = described(self.session, self.scope.value or "" if at is None else at)
        self.expression.value = shown.latex
        self.scope.unobserve(self._chosen, names="value")  # what follows is no choice of the reader's
        self.scope.options = shown.scopes
        self.scope.value = shown.at or None
        self.scope.observe(self._chosen, names="value")
        self.match.options = shown.matches
        self.match.index = None  # else the front end, which has the old choice still, would show none
        self.match.index = 0 if shown.matches else None
        self.apply.disabled = not shown.matches
        self.undo.disabled, self.redo.disabled = not shown.can_undo, not shown.can_redo
        self.history.value = shown.history
        count = len(shown.matches)
        self.status.value = f"node {shown.here} of {shown.nodes}; {count} legal match{'' if count == 1 else 'es'} here"

    def _chosen(self, change: Any) -> None:
        self.refresh(change["new"])

    def _apply(self, _: object) -> None:
        if self.match.value is not None:
            try:
                self.session.apply(self._shown.legal[self.match.value])
            except ValueError as refusal:
                self.status.value = str(refusal)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        shown: dict[str, Any] = self.box._repr_mimebundle_(**options)
        return {**shown, **self.session._repr_mimebundle_()}


def panel(session: Session) -> Panel:
    """A panel over *session*: each button is one of its calls."""
    return Panel(session)
