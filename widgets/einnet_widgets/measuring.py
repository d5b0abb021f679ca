"""Benchmark panel: interleaved measurement of programs and other engines in a thread, on an available device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from einnet_explore.cost import program_seconds
from einnet_explore.ir import Program
from einnet_explore.session.candidate_benchmark import ALWAYS, CandidateMeasurements, Choice, bench, devices, note
from einnet_explore.support.wording import count_noun
from einnet_widgets.board import Board
from einnet_widgets.look import Shown, library_calls, measured_name
from einnet_widgets.searching import Searching

if TYPE_CHECKING:
    from einnet_explore.runtime.arrays import Arrays

CANDIDATES = 12
"""Number of listed candidates."""

CAPTION = "interleaved rounds; speed-up against the original"

BASELINE = "onnxruntime"
"""The engine that is initially selected."""

SUGGESTED = 2
"""Number of initially selected candidates."""


class Measuring:
    """Programs, engines and results of the benchmark panel of *desk*, including candidates of *searching*."""

    def __init__(self, desk: Board, searching: Searching) -> None:
        self.desk = desk
        self.searching = searching
        self.result: CandidateMeasurements | None = None
        self.rounds = 0
        self.says = ""
        self.device = "cpu"
        self._devices: tuple[Choice, ...] = ()
        self._rivals: dict[str, str] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._going = False

    @property
    def running(self) -> bool:
        """Return whether a measurement is running."""
        return self._going

    def offered(self) -> dict[str, tuple[str, Program]]:
        """Return the programs by key: the start, current, compared and pinned nodes, the cheapest candidates."""
        session, run = self.desk.session, self.searching.run
        found = {"start": ("original, as generated kernels", session.nodes[0].end)}
        for node in dict.fromkeys((session.here, *(self.desk.look.compare or ()), *session.pins.values())):
            if 0 < node < len(session.nodes):
                program = session.nodes[node].end
                found[measured_name(node)] = (f"{session.name(node)}: {_calls(program)}", program)
        if run is not None:
            for c in islice(run.ranked(), CANDIDATES):
                found[f"state {c.state}"] = (f"state {c.state}: {_calls(c.program)}", c.program)
        return found

    def describe(self) -> Shown:
        """Return the content of the panel: measured rows in the order of their times, engines that are missing last."""
        result, offered = self.result, self.offered()
        rows = [
            self._row(key, label, program) | {"suggested": n <= SUGGESTED, "estimated": program_seconds(program)[0]}
            for n, (key, (label, program)) in enumerate(offered.items())
        ]
        for name, missing in self._rivals.items():
            label = name if missing else f"{name}: the original in standard operators"
            row = self._row(name, label, offered["start"][1])
            rows.append(row | {"engine": True, "missing": missing, "suggested": name == BASELINE})
        choices = self.devices()
        done = result is not None and result.rounds > 0
        return {
            "rows": sorted(rows, key=lambda row: (row["missing"] != "", row["measured"] is None, row["measured"] or 0)),
            "running": self.running,
            "progress": result.rounds / self.rounds if result is not None and self.rounds else 0.0,
            "says": self.says,
            "caption": f"{result.caption}; speed-up against the original" if done and result else CAPTION,
            "device": self.device,
            "devices": [{"name": c.name, "says": c.says, "missing": c.missing} for c in choices],
            "note": note(choices),
            "csv": result.sheet().csv() if done and result else "",
            "svg": result.plot().svg if done and result else "",
        }

    def _row(self, key: str, label: str, program: Program) -> Shown:
        result = self.result
        # A measured node may since have become another program with the same name.
        held = result if result is not None and result.programs.get(key) == program else None
        at = held.position(key) if held else None
        return {
            "key": key,
            "label": label,
            "engine": False,
            "missing": "",
            "estimated": None,
            "measured": held and held.median(key),
            "iqr": held and held.iqr(key),
            "speedup": held and held.speedup(key),
            "error": held and held.errors.get(key),
            "failed": held and held.failures.get(key),
            "how": held and held.hows.get(key),
            "roof": at
            and {
                "part": at.part,
                "bound": at.bound,
                "flops": at.flops,
                "flops_part": at.flops_part,
                "bytes": at.bandwidth,
                "bytes_part": at.bandwidth_part,
            },
        }

    def devices(self) -> tuple[Choice, ...]:
        """Return the available devices, found in a thread because it imports compilers."""
        if not self._devices:
            self._devices = ALWAYS
            threading.Thread(target=self._look, name="einnet-devices", daemon=True).start()
        return self._devices

    def _look(self) -> None:
        from einnet_evaluation.rivals import RIVALS  # imports the compilers

        self._rivals = {
            name: f"not installed: {rival.install}" if rival.why_missing() else "" for name, rival in RIVALS.items()
        }
        self._devices = devices()
        self.desk.refresh("bench")

    def start(self, keys: Iterable[str], rounds: int, device: str = "cpu") -> None:
        """Measure the programs and engines with these *keys* and the original on *device*.

        Raises ValueError while another measurement goes on, for a key that is not offered, no rounds, a device that is
        not there, and engines on another device than the CPU.
        """
        if self.running:
            raise ValueError("a measurement is running: stop it first")
        offered = self.offered()
        chosen = dict.fromkeys(("start", *keys))
        if missing := [key for key in chosen if key not in offered and key not in self._rivals]:
            raise ValueError(f"{', '.join(missing)}: no longer available")
        programs = {key: offered[key][1] for key in chosen if key in offered}
        engines = {key: partial(_open, key) for key in chosen if key in self._rivals}
        # Refused here, in the reader's sight, not in the thread.
        going = bench(programs, rounds, device=device, engines=engines)
        self.rounds, self.says, self.device = rounds, "compiling …", device
        self._stopped.clear()
        self._thread = threading.Thread(target=self._work, args=(going,), name="einnet-bench", daemon=True)
        self._going = True
        self._thread.start()
        self.desk.refresh("bench")

    def stop(self) -> None:
        """Stop after the current compilation or rounds, and keep the results."""
        self._stopped.set()

    def _work(self, going: Iterable[CandidateMeasurements]) -> None:
        try:
            for result in going:
                self.result, self.says = result, result.stage
                self.desk.refresh("bench")
                if self._stopped.is_set():
                    self.says = f"stopped after {result.rounds} of {count_noun(self.rounds, 'round')}"
                    break
        except Exception as error:
            self.desk.complain(error)
            self.says = ""
        self._going = False
        self.desk.refresh("bench", "compare")


def _calls(program: Program) -> str:
    calls = library_calls(program)
    return "no library operator" if calls == "none" else calls


def _open(name: str, program: Program, feeds: Arrays, threads: int) -> tuple[Arrays, Callable[[], object]]:
    from einnet_evaluation.engines import open_program  # imports the optimiser

    return open_program(name, program, feeds, threads)
