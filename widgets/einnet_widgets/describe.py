"""What panels show of a session, as plain values: each a function of the session and of where the reader looks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from einnet_explore.algebra.certificate import Certificate
from einnet_explore.cost import program_seconds
from einnet_explore.explore.changes import changed
from einnet_explore.explore.session import Session
from einnet_explore.explore.tables import operator, said
from einnet_explore.ir import EOPERATOR, VIEW, Path, Program, read_path, scopes, show_path
from einnet_explore.operators import Operator, find_operators
from einnet_explore.render import latex, text
from einnet_explore.rules import Match
from einnet_explore.rules.base import places
from einnet_explore.search.candidate import verdict
from einnet_explore.search.instantiation import nearest

Shown: TypeAlias = "dict[str, Any]"
Reach: TypeAlias = Literal["selection", "scope", "everywhere"]

PAYLOAD = 40_000
"""Characters of previews that are sent with the matches; the rest is sent when it is asked for."""

LISTED = 100
"""Matches that are listed at most: more than that nobody reads, and each has its gain to be found."""

EXPLAINED = 60
"""Equations up to which it is said why rules are refused: those between equations look at all pairs for that."""

NAMES = 60
"""Characters of a scope's description."""


@dataclass(frozen=True, slots=True)
class Look:
    """Where the reader looks: the scope selected, how far around it rules are listed, the target, a pair of nodes."""

    at: str = ""
    reach: Reach = "scope"
    target: str = ""
    compare: tuple[int, int] | None = None
    operator: str = ""

    def operators(self, session: Session) -> tuple[Operator, ...]:
        """The operators that distances are to."""
        return find_operators((self.target,), session.operators) if self.target else session.operators


def settled(session: Session, look: Look) -> str:
    """The scope selected, or its nearest ancestor that is there, or the first scope that rules may act on."""
    program = session.program
    known = {show_path(path) for path, _ in _scopes(program)}
    at = look.at
    while at and at not in known:
        at = at.rpartition(".")[0]
    if at and program.equations[read_path(at)[0]].via is None:
        return at
    return next((show_path(path) for path, _ in places(program)), at)


def head(session: Session, look: Look) -> Shown:
    """The title, the targets, and what the arrows can do."""
    return {
        "title": f"{', '.join(session.program.outputs)} · node {session.here} of {len(session.nodes)}",
        "targets": ["", *(o.name for o in session.operators)],
        "target": look.target,
        "undo": session.can_undo,
        "redo": session.can_redo,
    }


def expression(session: Session, look: Look) -> Shown:
    """The expression here, its scopes by path, and what the last step changed."""
    program, steps = session.program, session.derivation.steps
    shown = {
        **_formula(program),
        "node": session.here,
        "step": len(steps),
        "at": settled(session, look),
        "paths": [show_path(path) for path, _ in _scopes(program)],
        "names": {show_path(path): name for path, name in _scopes(program)},
        "distance": nearest(program, look.operators(session)),
        "seconds": program_seconds(program)[0],
        "certificate": proof(session),
        "marks": {},
        "before": None,
    }
    if steps:
        last = steps[-1]
        shown["marks"] = _marks(changed(last.before, last.after), "new")
        shown["before"] = {
            **_formula(last.before),
            "marks": _marks(changed(last.after, last.before), "old"),
            "rule": last.match.rule.name,
            "at": show_path(last.match.at),
        }
    return shown


def proof(session: Session) -> Shown | None:
    """What is known of the steps from the start to here: the weakest certificate; None where some are not made yet."""
    known = session.known_certificates()
    way = session.way()[1:]
    if not way or any(node not in known for node in way):
        return None
    kind = verdict(tuple(known[node] for node in way))
    worst = next(known[node] for node in way if known[node].kind == kind)
    return {"kind": kind, "says": f"{len(way)} steps; the weakest: {certified(worst)}"}


def certified(certificate: Certificate) -> str:
    """A certificate in words."""
    match certificate.kind:
        case "proved":
            return f"proved ({certificate.method}): equal for every input"
        case "exact":
            return f"exact: equal on random integers, {certificate.elements} elements"
        case "false":
            return f"false: {certificate.counterexample}"


def rules(session: Session, look: Look) -> Shown:
    """The legal matches where the reader looks with what each would gain, and why the other rules are refused there."""
    at = settled(session, look)
    program, targets = session.program, look.operators(session)
    matches = _matches(session, at, look.reach)
    far, cost = nearest(program, targets), program_seconds(program)[0]
    rows, spent = list[Shown](), 0
    for match in matches[:LISTED]:
        after = match.apply(program).after
        now = nearest(after, targets)
        row = {
            **match.to_json(),
            "says": said(match),
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
        "laws": {r.rule: session.rule(r.rule).law for r in refusals},
        "unsaid": f"why others are refused: session.refusals({at!r}) says it ({len(program.equations)} equations)"
        if large
        else "",
        "none": "" if active else "every equation is run by an operator: nothing is left to rewrite",
    }


def preview(session: Session, match: Match[Any]) -> Shown:
    """What *match* would give, in LaTeX, with what it would change."""
    return _previewed(session.program, match.apply(session.program).after)


def history(session: Session, look: Look) -> Shown:
    """The tree of what was done, branches indented below the node where they leave the way."""
    known = session.known_certificates()
    way = set(session.way())
    nodes = []
    for n, depth in _order(session):
        steps = session.nodes[n].steps
        match = steps[-1].match if steps else None
        nodes.append(
            {
                "id": n,
                "parent": session.parents[n],
                "branch": depth,
                "step": len(steps),
                "way": n in way,
                "rule": match.rule.name if match else "",
                "at": show_path(match.at) if match else "",
                "says": said(match) if match else "",
                "certificate": known[n].kind if n in known else None,
            }
        )
    return {"here": session.here, "nodes": nodes, "compare": compared(session, look)}


def compared(session: Session, look: Look) -> Shown | None:
    """The two nodes that the reader compares."""
    if look.compare is None:
        return None
    pair = session.compare(*look.compare)
    sides = [
        {
            **_formula(program),
            "id": node,
            "marks": _marks(paths, kind),
            "distance": nearest(program, look.operators(session)),
            "seconds": program_seconds(program)[0],
        }
        for node, program, paths, kind in zip(
            look.compare, (pair.before, pair.after), pair.changed, ("old", "new"), strict=True
        )
    ]
    certificate = {"kind": pair.certificate.kind, "says": certified(pair.certificate)}
    return {"a": sides[0], "b": sides[1], "same": pair.same, "certificate": certificate}


def table(session: Session, look: Look) -> Shown:
    """The iterator mapping table of the selected scope."""
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


def library_calls(program: Program) -> str:
    """The library operators that *program* calls, with their sizes."""
    calls = [e.via for e in program.equations if e.via and e.via.operator not in (EOPERATOR, VIEW)]
    return " + ".join(operator(via.operator, dict(via.attributes)) for via in calls) or "none"


def _matches(session: Session, at: str, reach: Reach) -> tuple[Match[Any], ...]:
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


def _formula(program: Program) -> Shown:
    return {"latex": latex(program, "katex"), "text": text(program)}


def _previewed(before: Program, after: Program) -> Shown:
    return {**_formula(after), "marks": _marks(changed(before, after), "new")}


def _marks(paths: Iterable[Path], kind: str) -> Mapping[str, str]:
    return {show_path(path): kind for path in paths}


def _scopes(program: Program) -> Iterable[tuple[Path, str]]:
    """Every scope with its path and its name for the reader."""
    for n, equation in enumerate(program.equations):
        how = "" if equation.via is None else f", run by {equation.via.operator}"
        for path, scope in scopes(equation.scope):
            of = ", ".join(f"{x.name}:{x.extent}" for x in scope.traversals)
            sums = f", {scope.reduce} over {', '.join(x.name for x in scope.summations)}" if scope.summations else ""
            name = equation.name if not path else "scope"
            shown = f"{name}[{of}]{sums}"
            yield (n, *path), (shown if len(shown) <= NAMES else shown[: NAMES - 1] + "…") + how


def _order(session: Session) -> Iterable[tuple[int, int]]:
    """The nodes, each with how many branches lie between it and the start: the first child's line first."""
    below: dict[int, list[int]] = {}
    for n, parent in enumerate(session.parents):
        below.setdefault(parent, []).append(n)
    stack = [(0, 0)]
    while stack:
        n, depth = stack.pop()
        yield n, depth
        children = below.get(n, [])
        stack += [(child, depth + (k > 0)) for k, child in reversed(list(enumerate(children)))]
