"""The original model in a process of its own, timed in turns with the plan.

Without this project a user runs one engine in one process.  A process that measures many programs with several threads
has a thread pool for each, which compete for memory and cores, so the plan is compared with the original in a separate
process.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx

from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.submodels import Array, open_session
from einnet_explore.runtime.measurement import (
    NOTHING,
    Enough,
    Sampler,
    Timing,
    all_rounds,
    sample_seconds,
    settle_seconds,
    time_samplers,
)

REPLY_TIMEOUT_SECONDS = 120.0
"""Seconds without a reply after which the other process counts as hanging."""


class OriginalProcess:
    """*model* in ONNX Runtime with *threads* threads, in another process; leaving the context ends it."""

    def __init__(self, model: onnx.ModelProto, feeds: Mapping[str, Array], threads: int) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            file, arrays = folder / "model.onnx", folder / "feeds.npz"
            onnx.save_model(model, file, save_as_external_data=model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF)
            np.savez(arrays, *feeds.values())
            command = [sys.executable, "-m", __name__, str(file), str(arrays), str(threads), *feeds]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except (OSError, ValueError) as error:
            self._stack.close()
            raise ConnectionError(str(error)) from error

    def sample(self, repeats: int) -> float:
        """Return the seconds of a run, over *repeats* in a row; raises ConnectionError if the process died or hangs."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{repeats}\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], REPLY_TIMEOUT_SECONDS)
            return float(self._process.stdout.readline()) if ready else _gone()
        except (OSError, ValueError) as error:
            raise ConnectionError(str(error)) from error

    def __enter__(self) -> OriginalProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                self._stack.callback(_closed, pipe)
        self._stack.close()


def _gone() -> float:
    raise ConnectionError(f"no answer after {REPLY_TIMEOUT_SECONDS:.0f} seconds")


def _closed(pipe: Any) -> None:
    try:
        pipe.close()
    except OSError:
        return


def time_with_original_process(
    model: onnx.ModelProto,
    plan: ExecutionPlan,
    feeds: Mapping[str, Array],
    rounds: int,
    min_seconds: float = 1.0,
    warm: Mapping[str, float] = NOTHING,
    enough: Enough = all_rounds,
) -> dict[str, Timing] | None:
    """Time *plan* (``after``) and *model* in its own process (``before``) in turns, until the samples are *enough*.

    Where *plan* was run just now, *warm* says how long that took, as in ``compare``.  None where the other process
    cannot be had.
    """
    try:
        with OriginalProcess(model, feeds, plan.threads) as before:
            samplers: dict[str, Sampler] = {
                "before": before.sample,
                "after": partial(sample_seconds, partial(plan.run, feeds)),
            }
            return time_samplers(samplers, rounds, min_seconds, settle_seconds(plan.threads), warm, enough)
    except ConnectionError:
        return None


def _main(file: str, arrays: str, threads: str, *names: str) -> None:
    """Time the model in *file*, with as many runs in a row as each line of standard input says."""
    with np.load(arrays) as held:
        feeds = {name: held[f"arr_{n}"] for n, name in enumerate(names)}
    session = open_session(file, int(threads))
    for line in sys.stdin:
        print(json.dumps(sample_seconds(lambda: session.run(None, feeds), int(line))), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
