"""Session or search as one HTML file: the same panels, with the recorded views of every node in place of a kernel."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from html import escape
from typing import Any

from einnet_explore.ir import show_path
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules.base import places
from einnet_explore.session.run import Run
from einnet_explore.session.saved_sessions import USUAL_RULES
from einnet_explore.session.session import Session
from einnet_explore.support.storage import write_atomically
from einnet_explore.viz.views import show
from einnet_widgets import describe, monitor
from einnet_widgets.branches import history
from einnet_widgets.desk import desk_of
from einnet_widgets.face import STATIC
from einnet_widgets.graphs import graph
from einnet_widgets.look import Look, Shown, settled
from einnet_widgets.panels import explorer

PANELS = ("history", "expression", "rules", "search", "graph")


DETAILS = 400
"""States of a search recorded with their programs; the others have positions only."""


class PageFace:
    """The engine's interface to this package (entry point ``einnet_explore.faces``)."""

    def page(self, shown: Session | Run, title: str) -> str:
        """Return an interactive HTML page of a session, or of a search at its best candidate."""
        return page(shown, title)

    def view(self, session: Session) -> object:
        """Return the explorer of *session*."""
        return explorer(session)


def to_html(shown: Session | Run, path: str, title: str = "") -> None:
    """Write ``page`` to *path* atomically."""
    write_atomically(path, page(shown, title))


def page(shown: Session | Run, title: str = "") -> str:
    """Return the page of a session: its nodes, their matches, its last search; it needs no network or kernel.

    The page of a search is that of a session from its start, at its best candidate.
    """
    session = shown if isinstance(shown, Session) else _session_of(shown)
    title = title or f"einnet_explore: {', '.join(session.program.outputs)}"
    data = _packed(json.dumps(recorded(session), ensure_ascii=False))
    code = _packed((STATIC / "einnet.js").read_text())
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
        f"<style>{(STATIC / 'einnet.css').read_text()}\n"
        ":root { color-scheme: light dark; } body { margin: 1rem auto; max-width: 160rem; padding: 0 1rem; "
        "background: Canvas; color: CanvasText; font-family: system-ui, sans-serif; }</style></head>"
        f"<body><main><h1 style='font-size:1.2rem'>{escape(title)}</h1><div id='einnet'></div></main>"
        f"<script type='module'>{_UNPACK}\nconst code = await unpack('{code}');\nconst data = await unpack('{data}');\n"
        "const face = await import(URL.createObjectURL(new Blob([code], { type: 'text/javascript' })));\n"
        "face.offline(document.getElementById('einnet'), JSON.parse(data));</script></body></html>\n"
    )


def _session_of(run: Run) -> Session:
    options = run.search.options
    rules = dict.fromkeys((*USUAL_RULES, *options.rules, *options.between))
    session = Session(run.search.start, rules, dict.fromkeys((*OPERATORS, *options.targets)))
    session.runs.append(run)
    if run.best is not None:
        session.adopt(run.best.derivation)
    return session


_UNPACK = (
    "const unpack = (packed) => new Response(new Blob([Uint8Array.from(atob(packed), (c) => c.charCodeAt(0))])"
    ".stream().pipeThrough(new DecompressionStream('gzip'))).text();"
)
"""The inverse of ``_packed`` in the page."""


def _packed(text: str) -> str:
    """Return *text* compressed, in characters that need no escapes."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def recorded(session: Session) -> Shown:
    """Return every view of every node, and the states of the last search."""
    desk = desk_of(session)
    walker = Session(session.nodes[0].end, operators=session.operators)
    walker.known = session.known
    walker.nodes, walker.parents = list(session.nodes), list(session.parents)
    walker.pins, walker.notes = session.pins, session.notes
    for node in range(1, len(session.nodes)):
        session.certificate(node)
    walker._proofs = session.known_certificates()
    nodes = []
    for node in range(len(walker.nodes)):
        walker.goto(node)
        nodes.append(_views(walker, desk.look))
    run = desk.searching.run
    data: Shown = {
        "panels": list(PANELS),
        "here": session.here,
        "nodes": nodes,
        "search": desk.describe("search"),
        "script": session.script(branches=True),
        "latex": show(session.derivation).latex(),
    }
    if run is not None:
        data["tree"] = _tree(run)
    return data


def _views(session: Session, look: Look) -> Shown:
    program = session.program
    at = settled(session, look)
    scopes = [show_path(path) for path, _ in places(program)]
    everything = describe.rules(session, replace(look, at=at, reach="everywhere", further=True))
    children = [
        {"node": n, **session.nodes[n].steps[-1].match.to_json()}
        for n, parent in enumerate(session.parents)
        if parent == session.here
    ]
    refusals = {path: describe.rules(session, Look(path, "selection", look.target)) for path in scopes}
    return {
        "head": describe.head(session, look),
        "history": history(session, replace(look, compare=None)),
        "expression": describe.expression(session, look),
        "rules": everything,
        "refusals": {path: {"refusals": r["refusals"], "laws": r["laws"]} for path, r in refusals.items()},
        "graph": graph(session, look),
        "children": children,
        "parent": session.parents[session.here],
    }


def _tree(run: Any) -> Shown:
    columns, batches, since, merged = monitor.Columns(run), [], 0, 0
    while (batch := columns.batch(since, merged)) is not None:
        header, buffer = batch
        batches.append({"header": header, "bytes": base64.b64encode(buffer).decode()})
        since, merged = since + header["count"], merged + header["merges"]
    states = [monitor.detail(run, n) for n in range(min(since, DETAILS))]
    header, pairs = monitor.reasons(run)
    why = {"header": header, "bytes": base64.b64encode(pairs).decode()}
    return {"batches": batches, "details": states, "why": why}
