"""Panel contents as plain values: pure functions of the session and the selection."""

from __future__ import annotations

import json

from einnet_explore.cost import program_seconds
from einnet_explore.ir import Program, read_path, show_path
from einnet_explore.rules import GROUPS, Match, group_of
from einnet_explore.rules.base import places
from einnet_explore.session.comparison import changed_paths
from einnet_explore.session.session import Session
from einnet_explore.strategies.candidate import combined_verdict
from einnet_explore.strategies.instantiation import nearest_distance
from einnet_explore.viz.tables import format_parameters
from einnet_widgets.look import Look, Reach, Shown, certified, formula, marks, named_scopes, settled

PAYLOAD = 40_000
"""Characters of previews sent with the matches; further previews are sent on request."""

LISTED = 100
"""Maximum number of listed matches; computing the gain of each takes time."""

EXPLAINED = 60
"""Refusals are listed for programs up to this many equations, since inter-expression rules examine all pairs."""


def head(session: Session, look: Look) -> Shown:
    """Return the title, the targets, and the available undo and redo."""
    return {
        "title": f"{', '.join(session.program.outputs)} · node {session.here} of {len(session.nodes)}",
        "targets": ["", *(o.name for o in session.operators)],
        "target": look.target,
        "undo": session.can_undo,
        "redo": session.can_redo,
    }


def expression(session: Session, look: Look) -> Shown:
    """Return the current expression, its scopes by path, and the changes of the last step."""
    program, steps = session.program, session.derivation.steps
    shown = {
        **formula(program),
        "node": session.here,
        "step": len(steps),
        "at": settled(session, look),
        "paths": [show_path(path) for path, _ in named_scopes(program)],
        "names": {show_path(path): name for path, name in named_scopes(program)},
        "distance": nearest_distance(program, look.operators(session)),
        "seconds": program_seconds(program)[0],
        "certificate": proof(session),
        "marks": {},
        "before": None,
    }
    if steps:
        last = steps[-1]
        shown["marks"] = marks(changed_paths(last.before, last.after), "new")
        shown["before"] = {
            **formula(last.before),
            "marks": marks(changed_paths(last.after, last.before), "old"),
            "rule": last.match.title,
            "at": show_path(last.match.at),
        }
    return shown


def proof(session: Session) -> Shown | None:
    """Return the weakest certificate of the steps so far, None while some are missing."""
    known = session.known_certificates()
    way = session.way()[1:]
    if not way or any(node not in known for node in way):
        return None
    kind = combined_verdict(tuple(known[node] for node in way))
    worst = next(known[node] for node in way if known[node].kind == kind)
    return {"kind": kind, "says": f"{len(way)} step{'s' * (len(way) > 1)}; the weakest: {certified(worst)}"}


def rules(session: Session, look: Look) -> Shown:
    """Return the legal matches at the selection with their gains, and the refusals of the other rules."""
    at = settled(session, look)
    program, targets = session.program, look.operators(session)
    matches = sorted(_matches(session, at, look.reach), key=lambda match: GROUPS.index(group_of(match.rule)))
    far, cost = nearest_distance(program, targets), program_seconds(program)[0]
    rows, spent = list[Shown](), 0
    for match in matches[:LISTED]:
        after = match.apply(program).after
        now = nearest_distance(after, targets)
        row = {
            **match.to_json(),
            "says": format_parameters(match),
            "group": group_of(match.rule),
            "distance": None if now is None or far is None else now - far,
            "seconds": program_seconds(after)[0] - cost,
            "latex": None,
        }
        if spent < PAYLOAD:
            shown = _previewed(program, after)
            spent += len(json.dumps(shown))
            row |= shown
        rows.append(row)
    active = [path for path, _ in places(program)]
    here = read_path(at)
    large = len(program.equations) > EXPLAINED
    refusals = session.refusals(here) if here in active and not large else ()
    return {
        "node": session.here,
        "at": at,
        "reach": look.reach,
        "matches": rows,
        "more": max(0, len(matches) - LISTED),
        "refusals": [{"rule": r.rule, "at": show_path(r.at), "why": r.why} for r in refusals],
        "laws": {
            name: session.rule(name).law for name in (*(r.rule for r in refusals), *(m.rule.name for m in matches))
        },
        "unsaid": f"session.refusals({at!r}) lists why the others are refused ({len(program.equations)} equations)"
        if large
        else "",
        "none": "" if active else "every equation is run by an operator: nothing is left to rewrite",
    }


def preview(session: Session, match: Match[object]) -> Shown:
    """Return the program after *match* in LaTeX, with the changes."""
    return _previewed(session.program, match.apply(session.program).after)


def table(session: Session, look: Look) -> Shown:
    """Return the iterator mapping table of the selected scope."""
    at = settled(session, look)
    names = [o.name for o in session.operators]
    if not at:
        return {"operators": names, "operator": look.operator or names[0], "says": "no scope is left"}
    found = session.table(look.operator or look.target, at)
    far = found.distance
    return {
        "at": at,
        "operators": names,
        "operator": found.operator.name,
        "tensors": list(found.tensors),
        "distance": None if far is None else far.total,
        "rows": None if far is None else [
            {
                "group": g.group,
                "expected": list(g.expected),
                "found": [f"{x.name}:{x.extent}" for x in g.found],
                "mismatch": g.mismatch,
            }
            for g in far.groups
        ],
        "map": [(name, ", ".join(xs) or "–") for name, xs in found.iterators] or None,
        "says": found.why,
    }  # fmt: skip


def _matches(session: Session, at: str, reach: Reach) -> tuple[Match[object], ...]:
    program = session.program
    active = [path for path, _ in places(program)]
    here = read_path(at)
    match reach:
        case "selection":
            chosen = [path for path in active if path == here]
        case "scope":
            chosen = [path for path in active if path[: len(here)] == here]
        case "everywhere":
            chosen = sorted(active, key=lambda path: path != here)
    return tuple(m for path in chosen for m in session.rules(path))


def _previewed(before: Program, after: Program) -> Shown:
    return {**formula(after), "marks": marks(changed_paths(before, after), "new")}
