"""Events of a search.

A strategy yields them: to pause is not to ask for the next event, to cancel is to stop asking.  The live tree, the log
and the progress bar read this one stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

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
    matches: tuple[Match[object], ...]
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
    """The program of *matches* after state *parent* is not followed: *why*, and its *twin* if it has one."""

    parent: int
    matches: tuple[Match[object], ...]
    why: str
    twin: int | None = None


@dataclass(frozen=True, slots=True)
class MatchRefused:
    """At state *state* and path *at*, *target* does not match or has no kernel: *why*, with numbers."""

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
class Searched:
    """The search of the expression called *name* of state *state* has *states* states."""

    state: int
    name: str
    states: int


@dataclass(frozen=True, slots=True)
class Level:
    """All states of *depth* have converged: a search to that depth ends here."""

    depth: int


SearchEvent: TypeAlias = Reached | Pruned | MatchRefused | Found | Searched | Level
