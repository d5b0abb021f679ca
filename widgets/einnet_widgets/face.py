"""Base widget of panels: traits that mirror values, forwarded messages, and a saved form without a kernel.

The front end is one module for all panels (``static/einnet.js``, built from ``widgets/js``); *panels*
names the visible ones.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import anywidget
import traitlets as t
from IPython import get_ipython
from IPython.display import DisplayHandle, display

from einnet_widgets.saved import saved_form

STATIC = Path(__file__).parent / "static"
PANELS = ("history", "expression", "rules", "search", "graph", "table", "compare", "bench", "optimise", "quiz")

NOT_DRAWN = "its picture is drawn a moment after it is displayed: save the notebook again"

SAVE_SECONDS = 1.5
"""The saved form is updated once its widget has not changed for this long."""


def has_reader() -> bool:
    """Return whether the cell was run by someone: clients that run whole notebooks take no input."""
    parent = getattr(get_ipython(), "get_parent", dict)()
    return bool(parent.get("content", {}).get("allow_stdin"))


class Behind(Protocol):
    """Controller of a face: it supplies values and receives messages."""

    def open(self, face: Face) -> None:
        """Register *face* and send it the current values."""

    def leave(self, face: Face) -> None:
        """Unregister *face*."""

    def receive(self, face: Face, message: dict[str, Any]) -> None:
        """Handle *message*."""

    def picture(self, panels: tuple[str, ...]) -> dict[str, str]:
        """Return the static display of *panels* without a kernel."""


class Face(anywidget.AnyWidget):
    """Panels of a desk.  Each trait below is the content of one panel as plain values."""

    _esm = STATIC / "einnet.js"
    _css = STATIC / "einnet.css"
    key = t.Unicode().tag(sync=True)
    panels = t.List(t.Unicode()).tag(sync=True)
    label = t.Unicode("einnet explorer").tag(sync=True)
    head = t.Dict().tag(sync=True)
    notice = t.Dict().tag(sync=True)
    history = t.Dict().tag(sync=True)
    expression = t.Dict().tag(sync=True)
    rules = t.Dict().tag(sync=True)
    search = t.Dict().tag(sync=True)
    graph = t.Dict().tag(sync=True)
    table = t.Dict().tag(sync=True)
    compare = t.Dict().tag(sync=True)
    bench = t.Dict().tag(sync=True)
    optimise = t.Dict().tag(sync=True)
    quiz = t.Dict().tag(sync=True)
    desk: Behind | None = None
    _display: DisplayHandle | None = None
    _save: threading.Timer | None = None

    def __init__(self, desk: Behind | None, panels: tuple[str, ...], label: str, folded: tuple[str, ...] = ()) -> None:
        self.desk = desk
        self.wanted = set(panels) - set(folded)  # what is folded is not even made until the reader opens it
        super().__init__(key=uuid4().hex, panels=list(panels), label=label)
        self.observe(lambda _: self._save_later(), list(PANELS))
        self.on_msg(lambda _, message, buffers: self.receive(message))
        if desk is not None:
            desk.open(self)

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message of the front end: ``{"do": name, …}``."""
        if self.desk is not None:
            self.desk.receive(self, message)

    def say(self, message: dict[str, Any], buffer: bytes | None = None) -> None:
        """Send the front end a message that is not stored in a trait."""
        self.send(message, None if buffer is None else [buffer])

    def mirror(self) -> None:
        """Update the values of this widget that are no panel's."""

    def close(self) -> None:
        """Unregister from the desk and close the widget."""
        if self._save is not None:
            self._save.cancel()
        if self.desk is not None:
            self.desk.leave(self)
        super().close()

    def _picture(self) -> dict[str, str]:
        """Return the static display without a kernel."""
        return self.desk.picture(tuple(self.panels)) if self.desk is not None else {}

    def saved(self) -> dict[str, str]:
        """Return what a saved notebook shows in place of this widget, by format."""
        return saved_form(self.key, self.label, self._picture())

    def _ipython_display_(self) -> None:
        data, meta = self._repr_mimebundle_() or ({}, {})
        display({**data, "text/plain": f"{self.label}: interactive while its kernel runs"}, metadata=meta, raw=True)
        later = has_reader()  # who would wait for Matplotlib at the first click
        picture = {"text/plain": NOT_DRAWN} if later else self._picture()
        self._display = display(saved_form(self.key, self.label, picture), raw=True, display_id=self.key)
        if later:
            self._save_later()

    def _save_later(self) -> None:
        if self._display is not None:
            if self._save is not None:
                self._save.cancel()
            self._save = threading.Timer(SAVE_SECONDS, self._update_saved)
            self._save.daemon = True
            self._save.start()

    def _update_saved(self) -> None:
        if self._display is not None:
            self._display.update(self.saved(), raw=True)
