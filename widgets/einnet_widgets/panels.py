"""The explorer and its panels, each of which can be shown alone.  Those over one session share what is selected."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from einnet_explore.session.run import Run
from einnet_explore.session.session import Session
from einnet_widgets.desk import desk_of, sessions
from einnet_widgets.face import Face


class Explorer(Face):
    """Everything over one session: derivation, expression, rules, search, graph, iterator table, benchmark."""

    def __init__(self, session: Session) -> None:
        panels = ("history", "expression", "rules", "search", "graph", "table", "bench")
        super().__init__(desk_of(session), panels, "einnet explorer", folded=("table", "bench"))


class ExpressionView(Face):
    """The expression: click a scope or walk with the arrow keys; the last step in colour."""

    def __init__(self, session: Session) -> None:
        super().__init__(desk_of(session), ("expression",), "expression")


class RulePicker(Face):
    """The legal matches where the reader looks, with previews, and why other rules are refused."""

    def __init__(self, session: Session) -> None:
        super().__init__(desk_of(session), ("rules",), "rules")


class DerivationHistory(Face):
    """Where the session has been: undo, redo, go anywhere, compare two."""

    def __init__(self, session: Session) -> None:
        super().__init__(desk_of(session), ("history",), "derivation")


class SearchMonitor(Face):
    """A search, live: its tree, its candidates, and why it did not go some way."""

    def __init__(self, of: Session | Run) -> None:
        super().__init__(desk_of(session_of(of) if isinstance(of, Run) else of), ("search",), "search")


class GraphView(Face):
    """The computation graph; a click on a node selects its expression."""

    def __init__(self, session: Session) -> None:
        super().__init__(desk_of(session), ("graph",), "computation graph")


class IteratorTableView(Face):
    """The iterator mapping table of the selected scope against *operator*."""

    def __init__(self, session: Session, operator: str = "") -> None:
        super().__init__(desk_of(session), ("table",), "iterator table")
        if operator:
            self.receive({"do": "table", "operator": operator})


class BenchPanel(Face):
    """Candidates measured in turn with the original."""

    def __init__(self, session: Session) -> None:
        super().__init__(desk_of(session), ("bench",), "benchmark")


_explorers: WeakKeyDictionary[Session, Explorer] = WeakKeyDictionary()
_sessions: WeakKeyDictionary[Run, Session] = WeakKeyDictionary()


def explorer(session: Session) -> Explorer:
    """The explorer of *session*: the same one however often it is displayed."""
    if session not in _explorers:
        _explorers[session] = Explorer(session)
    return _explorers[session]


def session_of(run: Run) -> Session:
    """The session that began *run* if it is shown anywhere, else one at its start."""
    for session in sessions():
        if run in session.runs:
            return session
    if run not in _sessions:
        session = Session(run.search.start, operators=run.search.options.targets)
        session.runs.append(run)
        _sessions[run] = session
    return _sessions[run]


def displayed(session: Session, **options: Any) -> Any:
    """What a notebook shows of *session*: its explorer, and its expression where there is no kernel."""
    return explorer(session)._repr_mimebundle_(**options)
