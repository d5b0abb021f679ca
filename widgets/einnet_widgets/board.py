"""State shared by the panels of one session: selection, message, and the panels themselves."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict

from einnet_explore.session.session import Session
from einnet_widgets.face import Face
from einnet_widgets.look import Look, Shown

STEPS = ("head", "history", "expression", "rules", "graph", "table", "compare")
"""Panels that depend on the session's position."""


class Board(ABC):
    """The panels of *session*, and the values they display."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.notice: Shown = {}
        self.faces: list[Face] = []
        self.lock = threading.RLock()

    @property
    def look(self) -> Look:
        """The reader's selection, which is saved with the session."""
        return Look.of(self.session)

    @look.setter
    def look(self, look: Look) -> None:
        self.session.view = asdict(look)

    @abstractmethod
    def describe(self, panel: str) -> Shown:
        """Return the value that *panel* displays."""

    def open(self, face: Face) -> None:
        """Register *face* and send it the current values."""
        with self.lock:
            self.faces.append(face)
            self._show(face, (*STEPS, "search", "bench", "notice"))

    def leave(self, face: Face) -> None:
        """Unregister *face*."""
        with self.lock:
            if face in self.faces:
                self.faces.remove(face)

    def refresh(self, *panels: str) -> None:
        """Update these panels."""
        with self.lock:
            made: dict[str, Shown] = {}
            for face in self.faces:
                self._show(face, panels, made)

    def _show(self, face: Face, panels: Iterable[str], made: dict[str, Shown] | None = None) -> None:
        known = {} if made is None else made
        with face.hold_sync():
            for name in panels:
                if name in face.wanted or name in ("head", "notice"):
                    if name not in known:
                        known[name] = self.describe(name)
                    setattr(face, name, known[name])
            face.mirror()

    def say(self, text: str, kind: str = "", code: str = "", action: Shown | None = None) -> None:
        """Display *text* above the panels, with *code* below it; *action* is a button: its label and its message."""
        self.notice = {"text": text, "kind": kind, "code": code, "action": action}
        self.refresh("notice")

    def complain(self, error: BaseException) -> None:
        """Display an error; an unexpected one with its type."""
        expected = isinstance(error, (ValueError, LookupError, OSError))
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        self.say(text if expected and text else f"{type(error).__name__}: {text}", "error")
