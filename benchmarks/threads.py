"""Measure two sources of error in timings: threads that spin after a run, and two equal sessions in one process.

``python -m benchmarks.threads [--model NAME] [--threads N] [--times N]`` prints the processor time used after a run,
with ONNX Runtime's default spinning and with our settings, and the apparent speedup of a session over an equal one, by
the length of a sample.
"""

from __future__ import annotations

import argparse
from functools import partial
from time import perf_counter, process_time, sleep
from typing import Any

import onnxruntime

from einnet_evaluation.models import write
from einnet_explore.cli.output import format_table
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.runtime import measurement
from einnet_explore.runtime.onnx_fragment import session_options

LONG = 0.2
"""Seconds for which the processor time after a run is watched."""


def sessions(proto: bytes, threads: int) -> dict[str, onnxruntime.InferenceSession]:
    """Return the model with threads that wait by default settings, and by ours."""
    plain = onnxruntime.SessionOptions()
    plain.intra_op_num_threads = threads
    plain.log_severity_level = 3
    options = {"ONNX Runtime's default": plain, "ours": session_options(threads)}
    return {
        name: onnxruntime.InferenceSession(proto, chosen, providers=["CPUExecutionProvider"])
        for name, chosen in options.items()
    }


def after(session: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> float:
    """Return the processor seconds that this process uses after a run, while it waits."""
    session.run(None, feeds)
    began = process_time()
    sleep(LONG)
    return process_time() - began


def equal(calls: dict[str, Any], seconds: float, settle: float, rounds: int) -> tuple[float, float]:
    """Return the apparent speedup of the second of two equal *calls*, by pairs and by lower quartiles."""
    measurement.SAMPLE_SECONDS, before = seconds, measurement.SAMPLE_SECONDS
    try:
        found = measurement.time_calls(calls, rounds, settle=settle)
    finally:
        measurement.SAMPLE_SECONDS = before
    one, other = found.values()
    return measurement.times_faster(one, other), one.low / other.low


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="infogan")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=6)
    chosen = parser.parse_args()
    proto = write(chosen.model).SerializeToString()
    held = sessions(proto, chosen.threads)
    feeds = random_model_inputs(held["ours"])
    rows = [["threads wait", "processor ms in the 200 ms after a run"]]
    for name, session in held.items():
        rows.append([name, " ".join(f"{after(session, feeds) * 1e3:.1f}" for _ in range(chosen.times))])
    print(format_table(rows))
    twins = sessions(proto, chosen.threads)["ours"], held["ours"]
    calls = {str(n): partial(twin.run, None, feeds) for n, twin in enumerate(twins)}
    rows = [["a sample lasts", "seconds", "equal sessions: pairs, quartiles"]]
    for seconds in (0.005, measurement.SAMPLE_SECONDS):
        began = perf_counter()
        ratios = [equal(calls, seconds, measurement.settle_seconds(chosen.threads), 21) for _ in range(chosen.times)]
        spent = (perf_counter() - began) / chosen.times
        rows.append([f"{seconds * 1e3:.0f} ms", f"{spent:.1f}", "; ".join(f"{a:.2f}, {b:.2f}" for a, b in ratios)])
    print(format_table(rows))


if __name__ == "__main__":
    main()
