"""Controller of the panels of a session: contents of panels, and handlers of their messages.

A message of a panel is one call of the session; all panels then display the session's state.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from einnet_explore.ir import show_path
from einnet_explore.operators.library import find_operators
from einnet_explore.session.faces import face as offline_face
from einnet_explore.session.program_paths import path
from einnet_explore.session.session import Session
from einnet_explore.support.wording import count_noun
from einnet_explore.viz.views import rule_page, show
from einnet_widgets import describe
from einnet_widgets.board import STEPS, Board
from einnet_widgets.branches import history
from einnet_widgets.comparing import compare, kernels
from einnet_widgets.face import Face
from einnet_widgets.graphs import drawn, folded_layers, graph, is_large, layers_of
from einnet_widgets.look import Look, Selection, Shown, certified, settled
from einnet_widgets.measuring import Measuring
from einnet_widgets.saved import sections
from einnet_widgets.searching import CALLS, Searching

PATH_SECONDS = 20
"""Time limit of a search for the steps between two nodes."""

_later = ThreadPoolExecutor(max_workers=1, thread_name_prefix="einnet-later")
_draw = ThreadPoolExecutor(max_workers=1, thread_name_prefix="einnet-draw")
_desks: WeakKeyDictionary[Session, Desk] = WeakKeyDictionary()


def desk_of(session: Session) -> Desk:
    """Return the desk of *session*, whose panels share one selection."""
    if session not in _desks:
        _desks[session] = Desk(session)
    return _desks[session]


def sessions() -> tuple[Session, ...]:
    """Return the sessions that have a desk."""
    return tuple(_desks)


class Desk(Board):
    """Panels of *session*, its search and its measurement, and the handlers of messages."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._replaced = ""
        self._drawing: Future[object] | None = None
        self._pins: tuple[str, ...] = ()
        self.searching = Searching(self)
        self.measuring = Measuring(self, self.searching)
        session.subscribe(lambda _: self.changed())
        self.changed()

    @property
    def selection(self) -> Selection:
        """What is selected."""
        detail = self.searching.detail
        state = None if detail is None else int(detail["state"])
        return Selection(self.session.here, settled(self.session, self.look), state)

    # Contents of panels

    def _show(self, face: Face, panels: Iterable[str], made: dict[str, Shown] | None = None) -> None:
        # Graphviz is a process of its own: it runs while the other panels are described.
        if "graph" in panels and "graph" in face.wanted:
            program = self.session.program
            self._drawing = _draw.submit(drawn, program, folded_layers(program, self.look.folds))
        super()._show(face, panels, made)

    def describe(self, panel: str) -> Shown:
        """Return the value that *panel* displays."""
        session, look = self.session, self.look
        match panel:
            case "notice":
                return self.notice
            case "history":
                return history(session, look)
            case "search":
                return self.searching.describe()
            case "graph":
                if self._drawing is not None:
                    wait([self._drawing])
                return graph(session, look)
            case "compare":
                return compare(session, look, self.measuring.result)
            case "bench":
                return self.measuring.describe()
            case _:
                made: Callable[[Session, Look], Shown] = getattr(describe, panel)
                return made(session, look)

    def changed(self) -> None:
        """Update the panels to the session's position, and prove unproved steps."""
        self.searching.follow()
        self.look = replace(self.look, at=settled(self.session, self.look))
        self.refresh(*STEPS, "bench")
        if (pins := tuple(self.session.pins)) != self._pins:
            self._pins = pins
            self.refresh("search")  # which can start from them
        if any(node not in self.session.known_certificates() for node in self._to_prove()):
            _later.submit(self._prove)

    def _to_prove(self) -> tuple[int, ...]:
        """Return the nodes on the way, and those with the claim of a file."""
        return (*self.session.way()[1:], *self.session.claims)

    def _prove(self) -> None:
        session = self.session
        try:
            claims = set(session.claims)
            for node in self._to_prove():
                found = session.certificate(node)
                if node in claims and (claim := session.claims.get(node)) is not None:
                    self.say(f"#{node}: the file says {claim.kind}, found {certified(found)}", "error")
        except Exception as error:
            self.complain(error)
        self.refresh("expression", "history", "graph")

    def picture(self, panels: tuple[str, ...]) -> dict[str, str]:
        """Return the static display of *panels* without a kernel.

        It takes a second and is made without the lock, which clicks need: what it reads is replaced, never modified.
        """
        if len(panels) == 1:
            return self._panel_picture(panels[0])
        expression = self.session._repr_mimebundle_()
        parts = [("expression", expression)]
        if self.session.derivation.steps:
            parts.append(("derivation", self.session.history()._repr_mimebundle_()))
        parts.append(("computation graph", self._panel_picture("graph")))
        if (run := self.searching.run) is not None and not run.running:
            parts += [("search", self._panel_picture("search")), ("candidates", run.table()._repr_mimebundle_())]
        return {**expression, "text/html": sections(parts)}

    def _panel_picture(self, panel: str) -> dict[str, str]:
        match panel:
            case "search" if (run := self.searching.run) is not None:
                return {"image/svg+xml": run.tree().svg, "text/plain": repr(run.table())}
            case "graph":
                return self.session.graph()._repr_mimebundle_()
            case "table":
                operator = self.look.operator or self.look.target
                return self.session.table(operator, self.look.at or "0")._repr_mimebundle_()
            case _:
                return self.session._repr_mimebundle_()

    # Handlers of messages

    def select(self, at: str | None, state: int | None) -> None:
        """Select a scope, or a state of the search, or both."""
        with self.lock:
            if at is not None:
                self._select(None, {"at": at})
            if state is not None:
                self.searching.select(state)

    def receive(self, face: Face, message: dict[str, Any]) -> None:
        """Handle *message*; display its error, if any."""
        with self.lock:
            try:
                asked = str(message.get("do"))
                if asked in _CALLS:
                    if self.notice and asked not in ("preview", "tree", "state", "select", "hover", "why"):
                        self.say("")
                    _CALLS[asked](self, face, {k: v for k, v in message.items() if k != "do"})
                else:
                    self.say(f"unknown request {asked!r} of the panel: reload the page", "error")
            except Exception as error:
                self.complain(error)

    def _apply(self, _: Face, asked: Shown) -> None:
        params = {name: value for name, value in asked["params"].items() if value is not None}
        self.session.apply(self.session.match(asked["rule"], asked["at"], params))

    def _clean(self, _: Face, __: Shown) -> None:
        here = self.session.here
        self.session.clean()
        if self.session.here == here:
            self.say("nothing to tidy up: no clean-up applies here")

    def _advise(self, _: Face, __: Shown) -> None:
        self.say("a search of 5 s looks for a good step …")
        _later.submit(self._take_advice, self.session.here)

    def _take_advice(self, node: int) -> None:
        try:
            found = self.session.advise(self.look.target or ())
            with self.lock:
                if self.session.here != node:
                    self.say("the program has changed: ask again")
                    return
                if found.match is not None:
                    self.session.apply(found.match)
                self.say(str(found))
        except Exception as error:
            self.complain(error)

    def _page(self, _: Face, asked: Shown) -> None:
        self.say(asked["rule"].replace("_", " "), code=repr(rule_page(self.session.rule(asked["rule"]))))

    def _undo(self, _: Face, __: Shown) -> None:
        self.session.undo()

    def _redo(self, _: Face, __: Shown) -> None:
        self.session.redo()

    def _goto(self, _: Face, asked: Shown) -> None:
        self.session.goto(int(asked["node"]))

    def _select(self, _: Face | None, asked: Shown) -> None:
        at = show_path(self.session.path(asked["at"]))
        self.look = replace(self.look, at=at, token=asked.get("token", ""))
        self.refresh("rules", "expression", "graph", "table")

    def _reach(self, _: Face, asked: Shown) -> None:
        if asked["reach"] not in ("selection", "scope", "everywhere"):
            raise ValueError(f"reach {asked['reach']!r}, expected selection, scope or everywhere")
        self.look = replace(self.look, reach=asked["reach"])
        self.refresh("rules")

    def _further(self, _: Face, asked: Shown) -> None:
        self.look = replace(self.look, further=bool(asked["open"]))
        self.refresh("rules")

    def _fold(self, _: Face, asked: Shown) -> None:
        program, folds = self.session.program, self.look.folds
        if "layer" in asked:
            folds = tuple({*folds} ^ {asked["layer"]})
        else:
            titles = [layer.title for layer in layers_of(program).inner()]
            folds = () if asked["all"] == is_large(program) else tuple(titles)
        self.look = replace(self.look, folds=folds)
        self.refresh("graph")

    def _target(self, _: Face, asked: Shown) -> None:
        look = replace(self.look, target=asked["target"])
        look.operators(self.session)
        self.look = look
        self.refresh(*STEPS)

    def _against(self, _: Face, asked: Shown) -> None:
        find_operators((asked["operator"],), self.session.operators)
        self.look = replace(self.look, operator=asked["operator"])
        self.refresh("table")

    def _compare(self, _: Face, asked: Shown) -> None:
        nodes = (int(asked["a"]), int(asked["b"]), *map(int, asked.get("more", ()))) if "a" in asked else None
        for node in nodes or ():
            self.session.compare(node, node)  # refused here if it is none
        self.look = replace(self.look, compare=nodes)
        self.refresh("history", "compare", "bench")

    def _connect(self, _: Face, asked: Shown) -> None:
        nodes = self.session.node(int(asked["a"])), self.session.node(int(asked["b"]))
        names = " to ".join(map(self.session.name, nodes))
        self.say(f"looking for steps from {names}, for up to {PATH_SECONDS} s …")
        threading.Thread(target=self._find_path, args=(*nodes, names), name="einnet-path", daemon=True).start()

    def _find_path(self, one: int, other: int, names: str) -> None:
        try:
            session = self.session
            found = path(session.nodes[one].end, session.nodes[other].end, PATH_SECONDS)
            with self.lock:
                said = f"{names}: {found.summary()}"
                if found.derivation is not None:
                    end = session.keep(found.derivation)
                    chosen = self.look.compare or (one, other)
                    self.look = replace(self.look, compare=tuple(end if node == other else node for node in chosen))
                    self.refresh("history", "compare", "bench")
                    said += f"; the branch ends with #{end}"
                self.say(said)
        except Exception as error:
            self.complain(error)

    def _kernels(self, face: Face, asked: Shown) -> None:
        program = self.session.nodes[int(asked["node"])].end
        face.say({"do": "kernels", "node": asked["node"], "kernels": kernels(program)})

    def _preview(self, face: Face, asked: Shown) -> None:
        rows = describe.rules(self.session, self.look)["matches"]
        if asked["node"] == self.session.here and 0 <= asked["match"] < len(rows):
            row = rows[asked["match"]]
            rule = self.session.rule(row["rule"])
            path = self.session.path(row["at"])
            match = rule.match(self.session.program, path, **row["params"])
            face.say({"do": "preview", "match": asked["match"], "shown": describe.preview(self.session, match)})

    def _check(self, _: Face, __: Shown) -> None:
        certificate = self.session.check()
        self.say(f"compared with the start: {certified(certificate)}", "" if certificate.ok else "error")

    def _script(self, _: Face, __: Shown) -> None:
        self.say("this derivation as Python", code=self.session.script())

    def _latex(self, _: Face, __: Shown) -> None:
        self.say("this derivation in LaTeX (amsmath)", code=show(self.session.derivation).latex())

    def _export(self, face: Face, _: Shown) -> None:
        text = json.dumps(self.session.record(), indent=1, ensure_ascii=False) + "\n"
        face.say({"do": "file", "name": "derivation.json", "text": text})

    def _share(self, face: Face, _: Shown) -> None:
        face.say({"do": "file", "name": "session.html", "text": offline_face().page(self.session, "")})

    def _save(self, face: Face, _: Shown) -> None:
        face.say({"do": "file", "name": "session.eins", "text": self.session.to_text()})

    def _load(self, _: Face, asked: Shown) -> None:
        before = self.session.to_text()
        self.session.open_text(asked["text"], asked["name"])
        self._replaced = before
        self._opened(asked["name"], {"label": "Back to the session before", "do": "reload"})

    def _reload(self, _: Face, __: Shown) -> None:
        self.session.open_text(self._replaced)
        self._opened("the session before")

    def _opened(self, name: str, action: Shown | None = None) -> None:
        session = self.session
        parts = ((session.nodes, "node"), (session.pins, "pin"), (session.notes, "note"), (session.runs, "search"))
        counts = ", ".join(count_noun(len(values), noun) for values, noun in parts if values)
        self.say(f"opened {name}: {counts}", action=action)

    def _pin_node(self, _: Face, asked: Shown) -> None:
        self.session.pin(int(asked["node"]), asked["name"])

    def _unpin(self, _: Face, asked: Shown) -> None:
        self.session.unpin(asked["name"])

    def _note(self, _: Face, asked: Shown) -> None:
        self.session.note(asked["text"], int(asked["node"]))

    def _hush(self, _: Face, __: Shown) -> None:
        self.say("")

    def _open(self, face: Face, asked: Shown) -> None:
        face.wanted.add(asked["panel"])
        self._show(face, (asked["panel"],))

    def _close(self, face: Face, asked: Shown) -> None:
        face.wanted.discard(asked["panel"])

    def _bench(self, _: Face, asked: Shown) -> None:
        self.measuring.start(list(asked["keys"]), int(asked["rounds"]), str(asked.get("device", "cpu")))

    def _bench_stop(self, _: Face, __: Shown) -> None:
        self.measuring.stop()


def _asked(call: Callable[[Searching, Face, Shown], None]) -> Callable[[Desk, Face, Shown], None]:
    return lambda desk, face, asked: call(desk.searching, face, asked)


_CALLS: dict[str, Callable[[Desk, Face, Shown], None]] = {
    name: getattr(Desk, f"_{name}")
    for name in (
        *(
            "apply",
            "clean",
            "advise",
            "page",
            "undo",
            "redo",
            "goto",
            "select",
            "reach",
            "further",
            "fold",
            "target",
            "compare",
            "connect",
            "kernels",
            "preview",
        ),
        *("check", "script", "latex", "export", "share", "hush", "open", "close", "bench", "bench_stop"),
        *("save", "load", "reload", "pin_node", "unpin", "note"),
    )
}
_CALLS["table"] = Desk._against
_CALLS |= {name: _asked(call) for name, call in CALLS.items()}
