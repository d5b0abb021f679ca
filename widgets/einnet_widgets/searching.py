"""Search of a desk: start, pause, stop, updates of its panels, and use of its candidates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary

from einnet_explore.session.run import Run
from einnet_explore.strategies.options import Edge
from einnet_widgets import monitor
from einnet_widgets.board import Board
from einnet_widgets.face import Face
from einnet_widgets.interrupt import stop_when_interrupted
from einnet_widgets.look import Shown

PAUSE = 0.15
"""Seconds between two updates of a running search."""


class Searching:
    """The last search of *desk*'s session, and the entries sent to its panels."""

    def __init__(self, desk: Board) -> None:
        self.desk = desk
        self.run: Run | None = None
        self.detail: Shown | None = None
        self.forbidden: dict[Edge, str] = {}
        self.paused = False
        self._columns: monitor.Columns | None = None
        self._sent: WeakKeyDictionary[Face, tuple[int, int]] = WeakKeyDictionary()
        self._news = threading.Event()

    def describe(self) -> Shown:
        """Return the content of the panel."""
        session = self.desk.session
        known = tuple(rule.name for rule in session.known if rule.name != "operator_matching")
        own = tuple(rule.name for rule in session.added_rules)
        steering = {"pins": list(session.pins), "forbidden": list(self.forbidden.values())}
        return monitor.described(self.run, self.paused, known, own, self.detail) | steering

    def follow(self) -> None:
        """Display the session's last search."""
        runs = self.desk.session.runs
        if runs and runs[-1] is not self.run:
            self._attach(runs[-1])
        elif not runs and self.run is not None:
            self.run = self.detail = self._columns = None
            self._news.set()  # ends the thread that watches
            self.desk.refresh("search")

    def _attach(self, run: Run) -> None:
        self.run, self.detail, self.paused = run, None, False
        forbidden = run.search.options.forbid
        self.forbidden = {
            edge: self.forbidden.get(edge, f"edge {n} of this search") for n, edge in enumerate(forbidden)
        }
        self._columns = monitor.Columns(run)
        self._sent.clear()
        run.subscribe(lambda _: self._news.set())
        stop_when_interrupted(run)
        self.desk.refresh("search")
        threading.Thread(target=self._watch, args=(run,), name="einnet-watch", daemon=True).start()

    def _watch(self, run: Run) -> None:
        """Update the panels from *run* periodically while it is displayed."""
        while self.run is run:
            self._news.wait()
            self._news.clear()
            going = run.running
            if not going:
                run.false_steps()  # proofs, for which no click waits
            self.flush()
            if going:
                self._news.set()
            else:
                self.desk.refresh("rules")  # which say what is reachable
            threading.Event().wait(PAUSE)

    def flush(self) -> None:
        """Send the panels the new entries of the search."""
        with self.desk.lock:
            self.desk.refresh("search", "bench")
            for face in self.desk.faces:
                if "search" in face.wanted:
                    self._sent[face] = self._send(face, self._sent.get(face, (0, 0)))

    def _send(self, face: Face, since: tuple[int, int]) -> tuple[int, int]:
        while self._columns is not None and (batch := self._columns.batch(*since)) is not None:
            header, buffer = batch
            face.say(header, buffer)
            since = (since[0] + header["count"], since[1] + header["merges"])
        return since

    def _tree(self, face: Face, asked: Shown) -> None:
        if self.run is not None and asked["run"] == id(self.run):
            self._sent[face] = self._send(face, (int(asked["since"]), 0))

    def _search(self, _: Face, asked: Shown) -> None:
        same = ("max_depth", "strategy", "patience", "rules", "must_use", "starts")
        names = {"limit": "budget", **dict(zip(same, same, strict=True))}
        chosen = {names[k]: v for k, v in asked.items() if k in names and v is not None}
        if self.run is not None and self.run.running:
            raise ValueError("a search still runs: pause or stop it first")
        target = (self.desk.look.target,) if self.desk.look.target else ()
        self.desk.session.live_search(target, forbid=tuple(self.forbidden), **chosen).start()
        self._news.set()

    def _pause(self, _: Face, __: Shown) -> None:
        self._running().stop()
        self.paused = True
        self._news.set()

    def _resume(self, _: Face, __: Shown) -> None:
        run = self._running()
        if run.running:
            run.wait(5)
        self.paused = False
        run.start()
        self._news.set()

    def _stop(self, _: Face, __: Shown) -> None:
        if self.run is not None:
            self.run.stop()
            self.paused = False
            self._news.set()

    def _state(self, _: Face, asked: Shown) -> None:
        self.select(int(asked["state"]))

    def select(self, state: int) -> None:
        """Show the details of *state*; raises ValueError without a search, and LookupError."""
        self.detail = monitor.detail(self._running(), state)
        self.desk.refresh("search")

    def _hover(self, face: Face, asked: Shown) -> None:
        face.say({"do": "hover", "shown": monitor.summary(self._running(), int(asked["state"]))})

    def _why(self, face: Face, _: Shown) -> None:
        face.say(*monitor.reasons(self._running()))

    def _forbid(self, _: Face, asked: Shown) -> None:
        run, state = self._running(), int(asked["state"])
        edge, moved = run.edge(state), run.search.states[state]
        rule = moved.matches[0].rule.name.replace("_", " ") if moved.matches else "no step"
        self.forbidden[edge] = f"{rule}, from state {moved.parent} to {state}"
        self.desk.refresh("search")
        self.desk.say(f"the next search does not go from state {moved.parent} to {state}: it is in its settings")

    def _allow(self, _: Face, asked: Shown) -> None:
        self.forbidden.pop(list(self.forbidden)[int(asked["edge"])], None)
        self.desk.refresh("search")

    def _picture(self, face: Face, _: Shown) -> None:
        face.say({"do": "file", "name": "tree.svg", "text": self._running().tree().svg})

    def _take(self, _: Face, asked: Shown) -> None:
        self.desk.session.goto(self._running().search.derivation(self._known(asked)))

    def _pin(self, _: Face, asked: Shown) -> None:
        session = self.desk.session
        name = session.pin(self._running().search.derivation(self._known(asked)))
        self.desk.say(f"state {asked['state']} is #{session.pins[name]} of the derivation, pinned as {name!r}")

    def _steer(self, face: Face, asked: Shown) -> None:
        run = self._running()
        state = self._known(asked)
        if run.running:
            run.stop()
            run.wait(5)
        self.desk.session.goto(run.search.derivation(state))
        self._search(face, {k: v for k, v in asked.items() if k not in ("state", "starts")})

    def _known(self, asked: Shown) -> int:
        state = int(asked["state"])
        if not 0 <= state < len(self._running().search.states):
            raise LookupError(f"state {state}: expected 0 to {len(self._running().search.states) - 1}")
        return state

    def _running(self) -> Run:
        if self.run is None:
            raise ValueError("there is no search yet")
        return self.run


CALLS: dict[str, Callable[[Searching, Face, Shown], None]] = {
    name: getattr(Searching, f"_{name}")
    for name in (
        *("tree", "search", "pause", "resume", "stop", "state", "picture", "take", "pin", "steer"),
        *("hover", "why", "forbid", "allow"),
    )
}
