"""Search panel: states of a search as growing columns, and the status of the search.

There is no callback for events: states, prunings and candidates only grow, so a reader polls the new entries a few
times a second while the search runs in its own thread.
"""

from __future__ import annotations

import array
import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any

from einnet_explore.session.run import Run
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.strategies.rounding_levels import LEVEL_WORDS, derivation_level
from einnet_explore.strategies.strategy import STRATEGIES
from einnet_explore.viz.tables import format_parameters
from einnet_widgets.look import Shown, formula, library_calls

STATES, MERGES = 1000, 4000
"""Entries of a message: 12 bytes a state and 8 a merge, and about 100 a candidate; most states are none."""

EVERY_MERGE = 20_000
"""Maximum number of drawn merges; a search by single rules prunes hundreds of thousands of states."""

NONE = 255
PHASES = {"start": 0, "explorative": 1, "converging": 2}


@dataclass
class Columns:
    """The states of *run* as columns; ``batch`` returns the new entries."""

    run: Run
    rules: list[str] = field(default_factory=list)
    found: dict[int, Candidate] = field(default_factory=dict)
    merges: dict[tuple[int, int], None] = field(default_factory=dict)
    _candidates: int = 0
    _pruned: int = 0

    def grow(self) -> None:
        """Read new estimates and merges."""
        candidates, pruned = self.run.candidates, self.run.pruned
        for candidate in candidates[self._candidates :]:
            self.found[candidate.state] = candidate
            self._candidates += 1
        for p in pruned[self._pruned : len(pruned)]:
            self._pruned += 1
            if p.twin is not None and len(self.merges) < EVERY_MERGE:
                self.merges.setdefault((p.parent, p.twin))

    def ready(self) -> int:
        """Return the number of displayable states; a candidate needs its estimate first."""
        states = self.run.search.states
        n = len(states)
        while n and states[n - 1].phase == "converging" and n - 1 not in self.found:
            n -= 1
        return n

    def batch(self, since: int, merged: int) -> tuple[Shown, bytes] | None:
        """Return one message of states from *since* and merges from *merged* on, None if there are none."""
        self.grow()
        states = self.run.search.states[since : min(self.ready(), since + STATES)]
        known = since + len(states)
        pairs = [m for m in list(self.merges)[merged : merged + MERGES] if m[0] < known and m[1] < known]
        if not states and not pairs:
            return None
        bodies: list[array.array[Any]] = [
            array.array("i", (s.parent for s in states)),
            array.array("f", (self.found[s.id].seconds if s.id in self.found else -1.0 for s in states)),
            array.array("i", (n for pair in pairs for n in pair)),
            array.array("B", (min(s.depth, NONE) for s in states)),
            array.array("B", (NONE if s.distance is None else min(s.distance, NONE - 1) for s in states)),
            array.array("B", (PHASES[s.phase] for s in states)),
            array.array("B", (self._rule(s.matches[0].rule.name) if s.matches else NONE for s in states)),
        ]
        header = {
            "do": "tree",
            "run": id(self.run),
            "from": since,
            "count": len(states),
            "merged": merged,
            "merges": len(pairs),
            "rules": list(self.rules),
            "found": [self._candidate(self.found[s.id]) for s in states if s.id in self.found],
        }
        return header, b"".join(body.tobytes() for body in bodies)

    def _rule(self, name: str) -> int:
        if name not in self.rules:
            self.rules.append(name)
        return self.rules.index(name)

    def _candidate(self, candidate: Candidate) -> Shown:
        return {
            "state": candidate.state,
            "operators": library_calls(candidate.program),
            "eoperators": candidate.eoperators,
            "steps": len(candidate.derivation.steps),
            "seconds": candidate.seconds,
            "found": self.run.found_seconds.get(candidate.state),
            "numerics": LEVEL_WORDS[derivation_level(candidate.derivation)],
        }


def reasons(run: Run) -> tuple[Shown, bytes]:
    """Return why moves were not followed: texts with # for numbers, and pairs of a state and the number of its text."""
    texts: dict[str, int] = {}
    pairs: dict[tuple[int, int], None] = {}
    pruned = ((p.parent, p.why if p.twin is None else p.why.removesuffix(f" as state {p.twin}")) for p in run.pruned)
    refused = ((r.state, f"{r.target}: {r.why}") for r in run.refused)
    for state, why in chain(list(pruned), list(refused)):
        pairs.setdefault((state, texts.setdefault(_without_numbers(why), len(texts))))
    header = {"do": "why", "run": id(run), "texts": list(texts)}
    return header, array.array("i", chain.from_iterable(pairs)).tobytes()


@lru_cache(1 << 12)
def _without_numbers(why: str) -> str:
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", why)


def options(run: Run | None, own: tuple[str, ...]) -> Shown:
    """Return the settings of *run*, or the default settings, with the rules of one's *own*."""
    from einnet_explore.strategies.options import Options

    held = run.search.options if run else Options()
    return {
        "max_depth": held.max_depth,
        "limit": run.budget if run else 60,
        "strategy": held.strategy,
        "patience": held.patience,
        "rules": [*(rule.name for rule in held.rules), *(() if run else own)],
        "must_use": list(held.must_use),
    }


def status(run: Run | None, paused: bool) -> str:
    """``idle``, ``running``, ``stopping``, ``paused``, ``failed``, ``done`` (complete) or ``ended`` (stopped)."""
    if run is None:
        return "idle"
    if run.running:
        return "stopping" if run.stopping else "running"
    if run.error is not None:
        return "failed"
    if run.search.complete or run.search.ended:
        return "done"
    return "paused" if paused else "ended"


def described(
    run: Run | None, paused: bool, known: tuple[str, ...], own: tuple[str, ...], detail: Shown | None
) -> Shown:
    """Return the content of the search panel of a session with *known* rules, some of them one's *own*."""
    how = status(run, paused)
    shown: Shown = {
        "run": None if run is None else id(run),
        "status": how,
        "options": options(run, own),
        "strategies": list(STRATEGIES),
        "known": list(known),
        "states": 0,
        "inside": 0,
        "pruned": 0,
        "candidates": 0,
        "spent": 0.0,
        "progress": 0.0,
        "best": None,
        "top": None,
        "detail": detail,
        "ending": "",
        "remarks": [],
        "false": [],
        "error": "",
    }
    if run is None:
        return shown
    best, spent = run.best, run.seconds
    shown |= {
        "states": len(run.search.states),
        "inside": run.search.size - len(run.search.states),
        "pruned": run.search.pruned,
        "candidates": len(run.candidates),
        "spent": spent,
        "progress": 1.0 if how == "done" else min(1.0, spent / run.budget) if run.budget else 0.0,
        "best": None if best is None else best.seconds,
        "top": None if best is None else best.state,
        "ending": run.ending,
        "remarks": [] if run.running else _remarks(run),
        "false": _false(run),
        "error": "" if run.error is None else f"{type(run.error).__name__}: {run.error}",
    }
    return shown


def _remarks(run: Run) -> list[Shown]:
    """Return the remarks on the results of *run*, each with the step that unblocks an equation, if there is one."""
    steps = [None if b.unblock is None else b.unblock.to_json() for b in run.blockers()]
    return [{"says": says, "step": step} for says, step in zip_longest(run.remarks(), steps)]


def _false(run: Run) -> list[Shown]:
    """Return the false candidates: their states, and why the first one is, for each rule that makes false steps."""
    found: dict[str, Shown] = {}
    for state, step in run.false_steps().items():
        rule = step.match.forwards.rule.name
        if rule not in found:
            found[rule] = {"rule": rule, "why": run.why_false(step), "states": []}
        found[rule]["states"].append(state)
    return list(found.values())


def detail(run: Run, state: int) -> Shown:
    """Return a state's program, derivation, and the reasons of refused moves; raise LookupError if it is unknown."""
    return {**summary(run, state), "why": list(run.why_pruned(state))}


def summary(run: Run, state: int) -> Shown:
    """Return a state's program and derivation; raise LookupError if it is unknown."""
    from einnet_explore.ir import show_path

    states = run.search.states
    if not 0 <= state < len(states):
        raise LookupError(f"state {state}: expected 0 to {len(states) - 1}")
    held = states[state]
    steps = [
        f"{m.rule.name.replace('_', ' ')} at {show_path(m.at)}{params and ': '}{params}"
        for s in run.search.above(state)
        for m in s.matches
        for params in [format_parameters(m)]
    ]
    price = next((c.seconds for c in list(run.candidates) if c.state == state), None)
    false = run.false_steps().get(state)
    return {
        "state": state,
        "depth": held.depth,
        "distance": held.distance,
        "seconds": price,
        "false": "" if false is None else run.why_false(false),
        **formula(held.program),
        "marks": {},
        "steps": steps,
    }
