"""Panel contents as plain values: pure functions of the session and the selection."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import product
from typing import Any

from einnet_explore.cost import program_seconds
from einnet_explore.ir import Path, Program, read_path, show_path
from einnet_explore.rules import GROUPS, Match, group_of
from einnet_explore.rules.base import places
from einnet_explore.session.session import Session
from einnet_explore.strategies.candidate import combined_verdict
from einnet_explore.strategies.instantiation import nearest_distance
from einnet_explore.support.errors import RuleError
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax.tokens import changed_tokens
from einnet_explore.viz.tables import format_parameters
from einnet_widgets.look import Look, Reach, Shown, certified, formula, named_scopes, settled
from einnet_widgets.tokens import describe_tokens

PAYLOAD = 40_000
"""Characters of previews sent with the matches; further previews are sent on request."""

TOKENS = 30_000
"""Characters of descriptions of tokens; of a large program only the first tokens are described when pointed at."""

LISTED = 100
"""Maximum number of listed matches; computing the gain of each takes time."""

EXPLAINED = 60
"""Refusals are listed for programs up to this many equations, since inter-expression rules examine all pairs."""


def head(session: Session, look: Look) -> Shown:
    """Return the title, the targets, and the available undo and redo."""
    here = f"E{len(session.derivation.steps)} · #{session.here} of {count_noun(len(session.nodes), 'node')}"
    return {
        "title": f"{', '.join(session.program.outputs)} · {here}",
        "targets": ["", *(o.name for o in session.operators)],
        "target": look.target,
        "undo": session.can_undo,
        "redo": session.can_redo,
    }


def expression(session: Session, look: Look) -> Shown:
    """Return the current expression, its scopes by path, and the changes of the last step."""
    program, steps = session.program, session.derivation.steps
    at, token = settled(session, look), selected_token(session, look)
    shown = {
        **formula(program),
        "node": session.here,
        "step": len(steps),
        "at": at,
        "token": token or (at and f"p{at}"),
        "tokens": tokens(program, token),
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
        old, new = changed_tokens(last.before, last.after)
        shown["marks"] = {"new": new}
        shown["before"] = {
            **formula(last.before),
            "marks": {"old": old},
            "rule": last.match.title,
            "at": show_path(last.match.at),
        }
    return shown


def selected_token(session: Session, look: Look) -> str:
    """Return the selected token if it is smaller than the selected scope, else an empty name."""
    kept = look.token in describe_tokens(session.program) and look.at == settled(session, look)
    return look.token if kept and not look.token.startswith("p") else ""


def tokens(program: Program, selected: str) -> Shown:
    """Return the descriptions of the tokens of *program* up to ``TOKENS`` characters, and of the *selected* one."""
    shown, spent = dict[str, Any](), 0
    for name, token in describe_tokens(program).items():
        made = {
            "says": [token.title, *token.says],
            "at": show_path(token.at),
            "node": token.node,
            "names": sorted(token.names),
        }
        spent += len(json.dumps(made))
        if spent < TOKENS or name == selected:
            shown[name] = made
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
    """Return the legal matches at the selection with their gains, and the refusals of the other rules.

    Matches of the library's further rules come last, if they are asked for: computing them takes time.
    """
    at = settled(session, look)
    program, targets = session.program, look.operators(session)
    token = describe_tokens(program).get(selected_token(session, look))
    about = f"for {token.title.partition(':')[0]}" if token else ""

    def group(match: Match[object]) -> str:
        return about if token and show_path(match.at) == at and match.mentions(token.names) else group_of(match.rule)

    groups = (about, *GROUPS)
    found = [m for m in _matches(session, at, look) if not about or look.reach != "selection" or group(m) == about]
    known = frozenset(session.known)
    matches = sorted(found, key=lambda match: (match.rule not in known, groups.index(group(match))))
    far, cost = nearest_distance(program, targets), program_seconds(program)[0]
    rows, faults, spent = list[Shown](), list[Shown](), 0
    run = session.runs[-1] if session.runs else None
    for match in matches[:LISTED]:
        try:
            after = match.apply(program).after
        except RuleError as error:
            faults.append({"rule": match.rule.name, "at": show_path(match.at), "why": str(error)})
            continue
        now = nearest_distance(after, targets)
        row = {
            **match.to_json(),
            "says": format_parameters(match),
            "group": group(match),
            "further": match.rule not in known,
            "distance": None if now is None or far is None else now - far,
            "seconds": program_seconds(after)[0] - cost,
            "best": None if run is None else run.reachable_seconds(after),
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
        "further": len(session.further_rules),
        "open": look.further,
        "refusals": [*faults, *({"rule": r.rule, "at": show_path(r.at), "why": r.why} for r in refusals)],
        "laws": {
            name: session.rule(name).law for name in (*(r.rule for r in refusals), *(m.rule.name for m in matches))
        },
        "unsaid": f"session.refusals({at!r}) lists why the others are refused ({len(program.equations)} equations)"
        if large
        else "",
        "none": _why_none(active, about, look.reach),
        "others": 0 if look.reach == "everywhere" else len({path[:1] for path in active} - {here[:1]}),
    }


def _why_none(active: list[Path], about: str, reach: Reach) -> str:
    if not active:
        return "every equation is run by an operator: nothing is left to rewrite"
    return (
        f"no legal match names it ({about.removeprefix('for ')}): see those of the scope"
        if about and reach == "selection"
        else ""
    )


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


def _matches(session: Session, at: str, look: Look) -> tuple[Match[object], ...]:
    program = session.program
    active = [path for path, _ in places(program)]
    here = read_path(at)
    match look.reach:
        case "selection":
            chosen = [path for path in active if path == here]
        case "scope":
            chosen = [path for path in active if path[: len(here)] == here]
        case "everywhere":
            chosen = sorted(active, key=lambda path: path != here)
    rules, found = (*session.known, *(session.further_rules if look.further else ())), list[Match[object]]()
    for path, rule in product(chosen, rules):
        with suppress(RuleError):  # it is among the refusals
            found += rule.matches(program, path)
    return tuple(found)


def _previewed(before: Program, after: Program) -> Shown:
    old, new = changed_tokens(before, after)
    return {**formula(after), "marks": {"new": new}, "gone": old}
