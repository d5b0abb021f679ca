"""The measurement that a benchmark panel shows: chosen programs, run in turn in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from einnet_explore.cost import program_seconds
from einnet_explore.explore.bench import Benched, bench
from einnet_explore.ir import Program
from einnet_widgets.describe import Shown, library_calls

if TYPE_CHECKING:
    from einnet_widgets.desk import Desk

CANDIDATES = 12
"""Candidates that are offered."""

SUGGESTED = 2
"""Candidates that are ticked at first."""


class Measuring:
    """What *desk*'s benchmark panel offers and has measured."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.result: Benched | None = None
        self.labels: dict[str, str] = {}
        self.rounds = 0
        self.says = ""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._going = False

    @property
    def running(self) -> bool:
        """Whether a measurement goes on."""
        return self._going

    def offered(self) -> dict[str, tuple[str, Program]]:
        """What can be measured by key: the start, where the session stands, and the cheapest candidates."""
        session, run = self.desk.session, self.desk.searching.run
        found = {"start": ("original, as generated kernels", session.nodes[0].end)}
        if session.here:
            found[f"node {session.here}"] = (f"node {session.here}: {_calls(session.program)}", session.program)
        if run is not None:
            for c in sorted(run.candidates, key=lambda c: (c.seconds, len(c.derivation.steps)))[:CANDIDATES]:
                found[f"state {c.state}"] = (f"state {c.state}: {_calls(c.program)}", c.program)
        return found

    def describe(self) -> Shown:
        """What the panel shows."""
        result, offered = self.result, self.offered()
        rows = []
        for n, (key, (label, program)) in enumerate(offered.items()):
            held = result if result is not None and key in result.programs else None
            rows.append(
                {
                    "key": key,
                    "label": label,
                    "suggested": n <= SUGGESTED,
                    "estimated": program_seconds(program)[0],
                    "measured": held and held.median(key),
                    "iqr": held and held.iqr(key),
                    "speedup": held and held.speedup(key),
                    "error": held and held.errors.get(key),
                    "failed": held and held.failures.get(key),
                }
            )
        done = result is not None and result.rounds > 0
        return {
            "rows": rows,
            "running": self.running,
            "progress": result.rounds / self.rounds if result is not None and self.rounds else 0.0,
            "says": self.says,
            "device": "this CPU, one thread, interleaved rounds; speed-up against the original",
            "csv": result.sheet().csv() if done and result else "",
            "svg": result.plot().svg if done and result else "",
        }

    def start(self, keys: Iterable[str], rounds: int) -> None:
        """Measure the programs with these *keys* and the original; raises ValueError while another one goes on."""
        if self.running:
            raise ValueError("a measurement goes on: stop it first")
        offered = self.offered()
        chosen = dict.fromkeys(("start", *keys))
        if missing := [key for key in chosen if key not in offered]:
            raise ValueError(f"{', '.join(missing)}: not offered any more")
        self.rounds, self.says = rounds, "compiling …"
        self._stopped.clear()
        programs = {key: offered[key][1] for key in chosen}
        self._thread = threading.Thread(target=self._work, args=(programs,), name="einnet-bench", daemon=True)
        self._going = True
        self._thread.start()
        self.desk.refresh("bench")

    def stop(self) -> None:
        """End the measurement after its current rounds."""
        self._stopped.set()

    def _work(self, programs: dict[str, Program]) -> None:
        try:
            for result in bench(programs, self.rounds):
                self.result = result
                self.says = f"{result.rounds} of {self.rounds} rounds"
                self.desk.refresh("bench")
                if self._stopped.is_set():
                    break
        except Exception as error:
            self.desk.complain(error)
            self.says = ""
        self._going = False
        self.desk.refresh("bench")


def _calls(program: Program) -> str:
    calls = library_calls(program)
    return "no library operator" if calls == "none" else calls
