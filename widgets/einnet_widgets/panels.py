"""The explorer and its panels, which can be displayed separately; panels of one session share the selection."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from einnet_explore.session.run import Run
from einnet_explore.session.session import Session
from einnet_widgets.desk import desk_of, sessions
from einnet_widgets.face import Face


class Explorer(Face):
    """All panels of one session: derivation, expression, rules, search, graph, comparison, iterator table, bench."""

    def __init__(self, session: Session) -> None:
        panels = ("history", "expression", "rules", "search", "graph", "compare", "table", "bench")
        super().__init__(desk_of(session), panels, "einnet explorer", folded=("table", "bench"))


class ExpressionView(Face):
    """The expression, with scopes selectable by click or arrow keys and the last step coloured."""

    def __init__(self, session: Session) -> None:
        super().__init__(desk_of(session), ("expression",), "expression")


class RulePicker(Face):
    """The legal matches at the selection with previews, and the refusals."""

    def __init__(self, session: Session) -> None:
        super().__init__(desk_of(session), ("rules",), "rules")


class DerivationHistory(Face):
    """The derivation history: undo, redo, go to a node, compare two nodes."""

    def __init__(self, session: Session) -> None:
        super().__init__(desk_of(session), ("history",), "derivation")


class SearchMonitor(Face):
    """A live search: its tree, its candidates, and its refusals."""

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
    """Candidates and the original, measured interleaved."""

    def __init__(self, session: Session) -> None:
        super().__init__(desk_of(session), ("bench",), "benchmark")


_explorers: WeakKeyDictionary[Session, Explorer] = WeakKeyDictionary()
_sessions: WeakKeyDictionary[Run, Session] = WeakKeyDictionary()


def explorer(session: Session) -> Explorer:
    """Return the explorer of *session*, always the same object."""
    if session not in _explorers:
        _explorers[session] = Explorer(session)
    return _explorers[session]


def session_of(run: Run) -> Session:
    """Return the displayed session that started *run*, or a new session at its start."""
    for session in sessions():
        if run in session.runs:
            return session
    if run not in _sessions:
        session = Session(run.search.start, operators=run.search.options.targets)
        session.runs.append(run)
        _sessions[run] = session
    return _sessions[run]
