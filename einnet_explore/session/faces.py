"""Faces: views of a session that other packages provide, such as notebook widgets.

A package registers its face when it is imported.  An installed package names itself as an entry point of ``GROUP``
and is imported when a face is first needed.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar

S_contra = TypeVar("S_contra", contravariant=True)

GROUP = "einnet_explore.faces"


class Face(Protocol[S_contra]):
    """A view of sessions, of type *S_contra*."""

    def page(self, session: S_contra, title: str) -> str:
        """An interactive HTML page of *session* that needs no network and no kernel."""

    def view(self, session: S_contra) -> object:
        """Return the live notebook view of *session*."""


_faces: list[Face[Any]] = []


def register_face(face: Face[Any]) -> None:
    """Make *face* the one that sessions use."""
    _faces.append(face)


def face() -> Face[Any]:
    """The face registered last; raises ValueError where none is installed."""
    load_faces()
    if not _faces:
        raise ValueError(
            "no face is installed, expected one such as einnet_widgets: pip install 'einnet-explore[notebook]'"
        )
    return _faces[-1]


def load_faces() -> None:
    """Import the faces that are installed, unless one is there already."""
    if not _faces:
        for each in entry_points(group=GROUP):
            each.load()
