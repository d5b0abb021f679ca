"""The original model timed in a process of its own.

With several threads, engines in one process disturb each other: one's waiting threads spin on the cores of the next,
whatever pauses lie between.  What a user has without this project is one engine in one process, so that is what a plan
is held against.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from einnet_explore.backends.measure import Timing, compare, pause
from einnet_explore.graph.running.regions import Array, start


def alone(model: onnx.ModelProto, feeds: dict[str, Array], threads: int, rounds: int) -> Timing | None:
    """*model* in ONNX Runtime with *threads* threads on *feeds*, in a new process; None where that cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        file, arrays = Path(folder) / "model.onnx", Path(folder) / "feeds.npz"
        try:
            onnx.save_model(model, file, save_as_external_data=model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF)
            np.savez(arrays, *feeds.values())
            command = [sys.executable, "-m", __name__, str(file), str(arrays), str(threads), str(rounds), *feeds]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
            said: dict[str, Any] = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
    return Timing(said["median"], said["iqr"], said["n"])


def main(file: str, arrays: str, threads: str, rounds: str, *names: str) -> None:
    """Time the model in *file* and print a JSON of the timing."""
    with np.load(arrays) as held:
        feeds = {name: held[f"arr_{n}"] for n, name in enumerate(names)}
    session = start(file, int(threads))
    # Sampled as plans are: a pause before each sample, so that threads have to be woken for its first call.
    calls = {"it": lambda: session.run(None, feeds)}
    timing = compare(calls, rounds=int(rounds), min_seconds=0.5, settle=pause(int(threads)))["it"]
    print(json.dumps({"median": timing.median, "iqr": timing.iqr, "n": timing.n}))


if __name__ == "__main__":
    main(*sys.argv[1:])
