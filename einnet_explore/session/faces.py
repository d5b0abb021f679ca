"""Front ends: packages that display sessions and searches, such as notebook widgets; the engine imports none."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Protocol


class Face(Protocol):
    """A view of sessions by another package, such as notebook widgets."""

    def page(self, shown: Any, title: str) -> str:
        """Return an interactive HTML page of a session or a run that needs no network and no kernel."""

    def view(self, session: Any) -> object:
        """Return the live notebook view of *session*."""


FACE_GROUP = "einnet_explore.faces"
"""Entry points of packages that register a face when they are imported."""

_faces: list[Face] = []


def register_face(face: Face) -> None:
    """Make *face* the one that sessions use."""
    _faces.append(face)


def face() -> Face:
    """Return the face registered last; raises ValueError if none is installed."""
    load_faces()
    if not _faces:
        raise ValueError("no front end is installed, expected one such as einnet_widgets: pip install '.[notebook]'")
    return _faces[-1]


def load_faces() -> None:
    """Import the packages with faces, unless a face is registered."""
    if not _faces:
        for entry_point in entry_points(group=FACE_GROUP):
            entry_point.load()
