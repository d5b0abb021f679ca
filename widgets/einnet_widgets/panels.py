"""The explorer and its panels, which can be displayed separately; panels of one session share the selection."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import traitlets as t

from einnet_explore.session.run import Run
from einnet_explore.session.session import Session
from einnet_widgets.desk import desk_of, sessions
from einnet_widgets.face import Face
from einnet_widgets.look import Selection


class Explorer(Face):
    """All panels of one session: derivation, expression, rules, search, graph, comparison, iterator table, bench.

    ``selection``, ``pins`` (nodes by name) and ``run`` (the last search) can be observed, as in
    ``explorer.observe(print, "selection")``.
    """

    selection = t.Instance(Selection, read_only=True)
    pins = t.Dict(read_only=True)
    run = t.Instance(Run, allow_none=True, read_only=True)

    def __init__(self, session: Session) -> None:
        panels = ("history", "expression", "rules", "search", "graph", "compare", "table", "bench")
        self._own = desk_of(session)
        super().__init__(self._own, panels, "einnet explorer", folded=("table", "bench"))

    def mirror(self) -> None:
        """Update ``selection``, ``pins`` and ``run``."""
        self.set_trait("selection", self._own.selection)
        self.set_trait("pins", dict(self._own.session.pins))
        self.set_trait("run", self._own.searching.run)

    def select(self, at: str | None = None, state: int | None = None) -> None:
        """Select the scope at *at* (``"0.1"``, ``"Y.1"``), or a *state* of the last search, as a click does.

        Raises ValueError and LookupError.
        """
        self._own.select(at, state)


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
