"""One call of a short session on a machine with a GPU: measure on from the last call, or optimise a model there.

Everything is written to one folder while it is measured: a call that is killed loses one entry.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu.run import run

LIVE_MODEL = "fsrcnn.onnx"
"""The model of the bundle that is optimised on the machine itself."""

END_SECONDS = 30.0
"""Of the time for the live command, what is left to end in after an interrupt: the plan so far is measured then."""


def measure(data: Path, out: Path, limit: float, earlier: Iterable[Path] = ()) -> int:
    """Measure for *limit* seconds to ``gpu.json`` in *out*, from where the first of *earlier* that is there ended.

    The log is ``session.log``, which is printed, too.  Returns the exit code of ``run``, and copies the results back to
    *earlier* files that are in folders which can be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = out / "gpu.json"
    known = [path for path in earlier if path != results]
    if not results.exists() and (found := next((path for path in known if path.exists()), None)):
        for suffix in ("", ".running"):  # the latter names what a killed call was at
            if (path := Path(f"{found}{suffix}")).exists():
                shutil.copyfile(path, f"{results}{suffix}")
    with (out / "session.log").open("a") as log, redirect_stdout(_Both(log, sys.stdout)):
        try:
            code = run(data, results, limit)
        except Exception:  # said in the log, too, which is what comes back from a machine
            print(traceback.format_exc(), flush=True)
            code = 1
        for path in known if results.exists() else ():
            try:
                shutil.copyfile(results, path)
            except OSError as error:
                print(f"{path}: not copied: {error}", flush=True)
    return code


def optimise(data: Path, out: Path, limit: float) -> int:
    """Run ``optimize --device cuda`` on the bundle's model for *limit* seconds; outputs and a log go to *out*."""
    out.mkdir(parents=True, exist_ok=True)
    budget = max(10.0, (limit - END_SECONDS) / 2)  # the final selection takes half as long at most
    command = [sys.executable, "-m", "einnet_explore", "optimize", str(data / LIVE_MODEL)]
    command += ["--device", "cuda", "--debug"]
    command += ["--budget", f"{budget:.0f}"]
    for option, name in (("-o", "live.gpu"), ("--json", "live.json"), ("--html", "live.html")):
        command += [option, str(out / name)]
    with (out / "live.log").open("a") as log:
        print(*command, file=log, flush=True)
        made = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        for seconds, stop in ((limit - END_SECONDS, signal.SIGINT), (END_SECONDS, signal.SIGKILL)):
            try:
                made.wait(max(1.0, seconds))
                break
            except subprocess.TimeoutExpired:
                made.send_signal(stop)
        code = made.wait()
    print((out / "live.log").read_text()[-4000:])
    return code


class _Both:
    """A stream that writes to two."""

    def __init__(self, *streams: TextIO) -> None:
        self.streams = streams

    def write(self, text: str) -> int:
        for stream in self.streams:
            stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self.streams:
            stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.streams[-1], name)
