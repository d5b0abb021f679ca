"""What a search says while it runs.  Strategies yield these; nobody is called back.

Pausing is not asking for the next event, cancelling is not asking again.  The live tree, the log and the progress bar
are readers of this one stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from einnet_explore.ir import Path, Program
from einnet_explore.rules import Match


@dataclass(frozen=True, slots=True)
class State:
    """One program of the search: state *parent* followed by *matches* (one choice, then its clean-ups).

    *depth* counts the choices that led here; *phase* is ``start``, ``explorative`` or ``converging``; *distance* is the
    expression distance to the nearest target (§6.1), where one was computed.
    """

    id: int
    parent: int
    matches: tuple[Match[Any], ...]
    program: Program
    depth: int
    phase: str
    distance: int | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """A state seen for the first time, or again with more depth left."""

    state: State


@dataclass(frozen=True, slots=True)
class Pruned:
    """*matches* after state *parent* give a program that need not be followed: *why*, and its *twin* if it has one."""

    parent: int
    matches: tuple[Match[Any], ...]
    why: str
    twin: int | None = None


@dataclass(frozen=True, slots=True)
class MatchRefused:
    """At state *state* and path *at*, *target* could not be matched or the rest not generated: *why*, with numbers."""

    state: int
    at: Path
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """A state in which every equation is instantiated: a candidate.  *improved*: it is the cheapest so far."""

    state: State
    seconds: float
    how: str
    improved: bool


@dataclass(frozen=True, slots=True)
class Level:
    """All states of *depth* have converged: this is what a search to that depth says."""

    depth: int


SearchEvent: TypeAlias = Reached | Pruned | MatchRefused | Found | Level
