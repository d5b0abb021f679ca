"""The widget that every panel is: traits that mirror, messages that are forwarded, a picture where no kernel is.

The front end is one module for all panels (``static/einnet.js``, built from ``widgets/js``); *panels* says
which to show.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import anywidget
import traitlets as t

STATIC = Path(__file__).parent / "static"
PANELS = ("history", "expression", "rules", "search", "graph", "table", "bench", "optimise", "quiz")


class Behind(Protocol):
    """What a face shows, and tells of what it is asked."""

    def open(self, face: Face) -> None:
        """Show *face* what there is."""

    def leave(self, face: Face) -> None:
        """Show *face* nothing more."""

    def receive(self, face: Face, message: dict[str, Any]) -> None:
        """Do what *message* asks for."""

    def picture(self, panels: tuple[str, ...]) -> dict[str, str]:
        """What stands for *panels* where there is no kernel."""


class Face(anywidget.AnyWidget):
    """Panels over a desk.  Each trait below is what one panel shows, as plain values."""

    _esm = STATIC / "einnet.js"
    _css = STATIC / "einnet.css"
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
    bench = t.Dict().tag(sync=True)
    optimise = t.Dict().tag(sync=True)
    quiz = t.Dict().tag(sync=True)
    desk: Behind | None = None

    def __init__(self, desk: Behind | None, panels: tuple[str, ...], label: str, folded: tuple[str, ...] = ()) -> None:
        self.desk = desk
        self.wanted = set(panels) - set(folded)  # what is folded is not even made until the reader opens it
        super().__init__(panels=list(panels), label=label)
        self.on_msg(lambda _, message, buffers: self.receive(message))
        if desk is not None:
            desk.open(self)

    def receive(self, message: dict[str, Any]) -> None:
        """What the front end asks for: ``{"do": name, …}``."""
        if self.desk is not None:
            self.desk.receive(self, message)

    def say(self, message: dict[str, Any], buffer: bytes | None = None) -> None:
        """Send the front end something that is not kept."""
        self.send(message, None if buffer is None else [buffer])

    def close(self) -> None:
        """Leave the desk, and the page."""
        if self.desk is not None:
            self.desk.leave(self)
        super().close()

    def _picture(self) -> dict[str, str]:
        """What stands here where there is no kernel."""
        return self.desk.picture(tuple(self.panels)) if self.desk is not None else {}

    def _repr_mimebundle_(self, **options: Any) -> Any:
        shown = super()._repr_mimebundle_(**options)
        if shown is None:
            return None
        data, meta = shown if isinstance(shown, tuple) else (shown, {})
        return {**data, **self._picture()}, meta
