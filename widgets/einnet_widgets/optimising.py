"""Widget of ``ee.optimize``: progress with cancel, table of subprograms, graphs before and after, download."""

from __future__ import annotations

import threading
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

from einnet_explore.pipeline.gpu_optimiser import GpuOptimiser
from einnet_explore.pipeline.gpu_parts import LIBRARY
from einnet_explore.pipeline.gpu_plan import GpuPart, GpuPlan
from einnet_explore.pipeline.optimisation import OptimiserOptions, begin_optimisation
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.optimiser import TUNING, Optimiser
from einnet_explore.pipeline.subprogram import TunedSubprogram
from einnet_explore.session.candidate_benchmark import ALWAYS, Choice, devices
from einnet_explore.support.errors import BackendError
from einnet_explore.support.status_line import PERIOD_SECONDS
from einnet_explore.viz.graph_figures import graph_figure
from einnet_widgets.face import Face
from einnet_widgets.look import Shown, library_calls

INTERRUPT = "Cancel"
"""The button that ends the optimisation; in other cells, an interrupt of the kernel does."""

OUTPUTS = ("Save bundle", "Save here")
"""The buttons that write the bundle and the file."""

KNOWN = {field.name for field in fields(OptimiserOptions)}

DEVICES = ("cpu", "cuda")


class OptimizeCell(Face):
    """``ee.optimize`` of *model* in a thread; *result* is what it returned, once it is done.

    *options* are those of ``ee.optimize``; raises ValueError for one that it does not know.
    """

    def __init__(self, model: str | Path, **options: Any) -> None:
        if unknown := sorted(options.keys() - KNOWN):
            raise ValueError(f"unknown options {', '.join(unknown)}: expected some of {', '.join(sorted(KNOWN))}")
        self.model = str(model)
        self.options = options
        self.result: Optimised | GpuPlan | None = None
        self._rows: list[Shown] = []
        self._optimiser: Optimiser | GpuOptimiser | None = None
        self._devices: tuple[Choice, ...] = ALWAYS
        self._showing = threading.Lock()
        self._says = f"{self.model}: not optimised yet"
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._going = False
        self._notice: Shown = {}
        super().__init__(None, ("optimise",), f"optimise {self.model}")
        self._show()
        threading.Thread(target=self._look, name="einnet-devices", daemon=True).start()

    def _look(self) -> None:
        """Find the devices of this machine, which imports compilers."""
        self._devices = devices()
        self._show()

    @property
    def running(self) -> bool:
        """Return whether the optimisation is running."""
        return self._going

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message of the front end."""
        try:
            match message.get("do"):
                case "optimise":
                    if not self.running and message.get("device"):
                        self.options["device"] = message["device"]
                    self.start()
                case "cancel":
                    self.cancel()
                case "download":
                    self.download()
                case "write":
                    self.write(message["path"])
                case "bundle":
                    self.write_bundle(message["path"])
                case "hush":
                    self.notice = {}
                case asked:
                    self._complain(f"unknown request {asked!r} of the panel: reload the page")
        except (ValueError, LookupError, OSError, BackendError) as error:
            self._complain(str(error))

    def start(self) -> OptimizeCell:
        """Start in a thread; raise ValueError if it is running."""
        if self.running:
            raise ValueError("the optimisation is already running: cancel it first")
        self._stopped.clear()
        self._rows, self.result, self._optimiser, self._says = [], None, None, ""
        self._thread = threading.Thread(target=self._work, name="einnet-optimise", daemon=True)
        self._going = True
        self._thread.start()
        self._show()
        threading.Thread(target=self._tick, name="einnet-optimise-clock", daemon=True).start()
        return self

    def _tick(self) -> None:
        """Display the time that has passed, once a second."""
        while self._going:
            self._show()
            threading.Event().wait(PERIOD_SECONDS)

    def cancel(self) -> None:
        """Stop after the current tuning task; results so far are measured and selected."""
        self._stopped.set()
        if self.running:
            self._says = "stopping after this subprogram; then the best plan so far is measured"
            self._show()

    def wait(self, timeout: float | None = None) -> Optimised | GpuPlan:
        """Wait for the result; an interrupt cancels.  Raises TimeoutError, and ValueError without a result."""
        if self._thread is not None:
            try:
                self._thread.join(timeout)
            except KeyboardInterrupt:
                self.cancel()
                raise
            if self._thread.is_alive():
                raise TimeoutError(f"the optimisation still runs after {timeout} s")
        if self.result is None:
            raise ValueError(self._says)
        return self.result

    def download(self) -> None:
        """Send the optimised model to the browser as a download; raise ValueError without one, or for a GPU's plan."""
        result = self._result()
        if isinstance(result, GpuPlan):
            raise ValueError("a plan for a GPU is no ONNX file: save it on the machine of the kernel")
        self._announce_selection(result)
        self.say({"do": "file", "name": self._name()}, result.onnx_bytes())
        self._say("")

    def _name(self) -> str:
        """Return the name of the file that is proposed."""
        return f"{Path(self.model).stem}_fast.{'gpu' if self.options.get('device') == 'cuda' else 'onnx'}"

    def write(self, path: str) -> None:
        """Write the optimised model to *path*; raise ValueError without a result, and OSError."""
        if not path:
            raise ValueError("no file is named")
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            result = self._result()
            self._announce_selection(result)
            result.save(path)
        self._say("; ".join(str(warning.message) for warning in raised) or f"written to {path}")

    def write_bundle(self, path: str) -> None:
        """Write the plan to a folder: *path* without its suffix.

        Raises ValueError without a result or for a GPU's plan, and what ``Optimised.save_bundle`` raises.
        """
        result = self._result()
        if isinstance(result, GpuPlan):
            raise ValueError("a plan for a GPU is one file, and no bundle")
        if not path:
            raise ValueError("no folder is named")
        folder = Path(path).with_suffix("")
        result.save_bundle(folder)
        self._say(f"written to the folder {folder}: its README.md says how ONNX Runtime opens it")

    def _announce_selection(self, result: Optimised | GpuPlan) -> None:
        """Say why the file takes a while, the first time."""
        if isinstance(result, Optimised) and not result.is_file_selected:
            self._say("measuring which rewrites are also faster in plain ONNX Runtime")

    def _say(self, text: str) -> None:
        self.notice = {"text": text, "kind": "", "code": ""}

    def _result(self) -> Optimised | GpuPlan:
        if self.result is None:
            raise ValueError("no model is optimised yet")
        return self.result

    def _work(self) -> None:
        try:
            self._optimiser = work = self._begin()
            for step in work.run():
                self._rows.append(_row(step.part))
                self._show()
                if self._stopped.is_set():
                    work.interrupted = True
                    break
            self._says = ""
            result = work.result()
            self._rows = [_row(part) for part in result.parts]
            lines = result.conclusions() if isinstance(result, GpuPlan) else result.conclusions(*OUTPUTS)
            self.result, self._says = result, "\n".join(lines)
        except Exception as error:
            ours = isinstance(error, (ValueError, OSError))  # of the model or the request, which says what is wrong
            self._says = "the optimisation failed"
            self._complain(str(error) if ours else f"{type(error).__name__}: {error}")
        self._going = False
        self._show()

    def _begin(self) -> Optimiser | GpuOptimiser:
        """Return the optimiser of the model; raises what ``ee.optimize`` raises for it and the options."""
        work = begin_optimisation(self.model, OptimiserOptions(**self.options))
        if not isinstance(work, Optimiser | GpuOptimiser):
            raise ValueError("shapes: found several sizes of a dimension, expected one: call ee.optimize in a cell")
        return work

    def _complain(self, text: str) -> None:
        self.notice = {"text": text, "kind": "error", "code": ""}

    def _show(self) -> None:
        with self._showing:  # two threads call this, and the last state has to be displayed last
            done = self.result is not None
            work = self._optimiser
            graphs = self.result.graphs() if isinstance(self.result, Optimised) else []
            choices = [choice for choice in self._devices if choice.name in DEVICES]
            self.optimise = {
                "status": "running" if self.running else "done" if done else "idle",
                "rows": list(self._rows),
                "progress": self._progress(),
                "says": self._says or (work.status(INTERRUPT) if work else "reading the model"),
                "path": self._name(),
                "device": self.options.get("device", "cpu"),
                "devices": [{"name": c.name, "says": c.says, "missing": c.missing} for c in choices],
                "note": "".join(
                    f"There is no {c.name.upper()} GPU to optimise for (missing: {c.missing})"
                    for c in choices
                    if c.missing
                ),
                "file": not isinstance(self.result, GpuPlan),
                "graphs": [
                    {"name": name, "before": graph_figure(a).svg, "after": graph_figure(b).svg} for name, a, b in graphs
                ],
            }

    def _progress(self) -> float | None:
        """Return the tuned fraction; None while that is not known."""
        work = self._optimiser
        if work is None or work.stage != TUNING:
            return None
        if isinstance(work, GpuOptimiser):
            return len(work.tuned) / len(work.different)
        return work.done / len(work.subprograms)

    def _picture(self) -> dict[str, str]:
        if self.result is None:
            return {"text/plain": self._says}
        return {"text/html": self.result._repr_html_(), "text/plain": repr(self.result)}


def _row(part: TunedSubprogram | GpuPart) -> Shown:
    if isinstance(part, GpuPart):
        return {
            "nodes": list(part.nodes),
            "kept": part.is_derived,
            "before": part.seconds.get(LIBRARY),
            "after": part.seconds.get(part.chosen),
            "now": part.chosen if part.is_derived else f"library{f' ({part.why})' if part.why else ''}",
            "certificate": part.certificate if part.is_derived else "",
            "numerics": "",
        }
    before = part.trial.seconds_before
    program = part.program
    now = library_calls(program) if part.kept and program is not None else f"original ({part.why})"
    return {
        "nodes": list(part.nodes),
        "kept": part.kept,
        "before": before,
        "after": part.trial.seconds_after if part.kept else before,
        "now": now,
        "certificate": part.certificate if part.kept else "",
        "numerics": str(part.numerics or ""),
    }
