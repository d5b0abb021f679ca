"""Compare fused reductions with NumPy, with torch, and with one generated kernel per operation.

``python -m benchmarks.fusion [--threads N] [--seconds S] [--case WORD] [--processor]``.  All run in turn; ``torch`` is
omitted if it is not installed.  *plan* is the program as one expression, in C with constant sizes, as a plan runs it.
``compile`` is the processor time of compiling a kernel for the first time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from einnet_evaluation import fused_programs
from einnet_explore.ir import Program
from einnet_explore.rules import REDUCTION_GENERATION
from einnet_explore.runtime import fused
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.c_kernels import NativeSource
from einnet_explore.runtime.fused import FusedProgram, bind_unfused
from einnet_explore.runtime.implementations import NativeCall
from einnet_explore.runtime.measurement import Timing, time_calls, times_faster
from einnet_explore.runtime.program import set_blas_threads
from einnet_explore.strategies.vertical_fusion import fuse_vertically

Arrays = Mapping[str, Any]
EPSILON = np.float32(1e-5)


@dataclass(frozen=True)
class Case:
    """A program, the same function in NumPy (unfused), and the equivalent torch call."""

    name: str
    program: Program
    numpy: Callable[[Arrays], Any]
    torch: Callable[[Any, Mapping[str, Any]], Any]


def normed(x: Any, axes: tuple[int, ...]) -> Any:
    """(x - mean) / sqrt(variance + ε) in plain NumPy."""
    d = x - x.mean(axes, keepdims=True)
    return d * (1 / np.sqrt((d * d).mean(axes, keepdims=True) + EPSILON))


def batch_norm(n: int, c: int, h: int, w: int) -> Case:
    """Normalise over (0, 2, 3), with scale and shift."""
    across = (1, -1, 1, 1)
    return Case(
        f"batch norm {n}x{c}x{h}x{w}",
        fused_programs.batch_norm(n, c, h, w),
        lambda a: normed(a["X"], (0, 2, 3)) * a["g"].reshape(across) + a["b"].reshape(across),
        lambda torch, a: torch.nn.functional.batch_norm(a["X"], None, None, a["g"], a["b"], training=True),
    )


def layer_norm(r: int, c: int) -> Case:
    """Normalise over the last dimension, with scale and shift."""
    return Case(
        f"layer norm {r}x{c}",
        fused_programs.layer_norm(r, c),
        lambda a: normed(a["X"], (1,)) * a["g"] + a["b"],
        lambda torch, a: torch.nn.functional.layer_norm(a["X"], (c,), a["g"], a["b"]),
    )


def instance_norm(n: int, c: int, h: int, w: int) -> Case:
    """Normalise over (2, 3)."""
    return Case(
        f"instance norm {n}x{c}x{h}x{w}",
        fused_programs.instance_norm(n, c, h, w),
        lambda a: normed(a["X"], (2, 3)),
        lambda torch, a: torch.nn.functional.instance_norm(a["X"]),
    )


def softmax(r: int, c: int) -> Case:
    """Softmax over the last dimension."""

    def unfused(a: Arrays) -> Any:
        e = np.exp(a["X"] - a["X"].max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    return Case(f"softmax {r}x{c}", fused_programs.softmax(r, c), unfused, lambda torch, a: torch.softmax(a["X"], 1))


CASES = (
    batch_norm(32, 256, 56, 56),
    batch_norm(8, 64, 14, 14),
    batch_norm(1, 512, 7, 7),
    layer_norm(512, 768),
    layer_norm(4096, 64),
    instance_norm(8, 64, 56, 56),
    softmax(512, 768),
    softmax(64, 20000),
    softmax(4096, 49),
)


def compile_seconds(case: Case, arrays: Arrays) -> float:
    """Return the processor time from arrays to a newly compiled kernel: analysis, text, compiler, loading."""
    kept = os.environ.get("EINNET_EXPLORE_CACHE")
    with tempfile.TemporaryDirectory() as empty:
        os.environ["EINNET_EXPLORE_CACHE"] = empty
        fused._function.cache_clear()
        try:
            start = os.times()
            FusedProgram(case.program).launch(arrays)
            stop = os.times()
            return sum(stop[:4]) - sum(start[:4])
        finally:
            os.environ.pop("EINNET_EXPLORE_CACHE")
            if kept is not None:
                os.environ["EINNET_EXPLORE_CACHE"] = kept


def processor_times(calls: Mapping[str, Callable[[], object]], rounds: int = 9) -> dict[str, Timing]:
    """Return processor times instead of wall times, in turn: for one thread on a shared machine."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    repeats = {}
    for name, call in calls.items():
        call()
        start = process_time()
        call()
        repeats[name] = max(1, int(0.01 / max(process_time() - start, 1e-6)))
    for _ in range(rounds):
        for name, call in calls.items():
            start = process_time()
            for _ in range(repeats[name]):
                call()
            samples[name].append((process_time() - start) / repeats[name])
    return {name: Timing(median(own), 0.0, len(own), tuple(own)) for name, own in samples.items()}


def plan_kernel(program: Program, arrays: Arrays, threads: int) -> Callable[[], object]:
    """Return *program* as one expression, compiled as a plan's kernel."""
    derived = fuse_vertically(program, (REDUCTION_GENERATION,))
    assert derived is not None
    scope = derived.end.equations[0].scope
    placed = {name: aligned(a) for name, a in arrays.items()}
    ours = NativeCall(NativeSource(scope, threads))
    return ours.bind(placed, aligned_empty(scope.shape))


def python_seconds() -> dict[str, float]:
    """Return the call overhead on tiny arrays: bound, with new arrays, and in a plan."""
    program = fused_programs.batch_norm(1, 1, 1, 1)
    kernel = FusedProgram(program)
    arrays = {t.name: aligned(np.ones(t.shape, np.float32)) for t in program.inputs}
    bound = kernel.bind(arrays, kernel(arrays))
    calls = {"bound": bound, "unbound": lambda: kernel(arrays), "in a plan": plan_kernel(program, arrays, 1)}
    return {name: timing.low for name, timing in time_calls(calls, rounds=15, min_seconds=0.05).items()}


def main(argv: Sequence[str] = ()) -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(prog="benchmarks.fusion", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=0.2, help="minimum seconds of measurement for each case and engine"
    )
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--processor", action="store_true", help="processor time: one thread on a busy machine")
    arguments = parser.parse_args(argv)
    set_blas_threads(arguments.threads)
    try:
        import torch

        torch.set_num_threads(arguments.threads)
    except ImportError:
        torch = None
    called = ", ".join(f"{name} {seconds * 1e6:.1f} µs" for name, seconds in python_seconds().items())
    print(f"a call of a kernel that does nothing: {called}; threads: {arguments.threads}")
    heads = ("fused", "apart", "numpy", "torch", "error", "compile ms")
    print(f"{'case':28}{'plan µs':>14}" + "".join(f"{h:>12}" for h in heads) + "   (fused to torch: times the plan's)")
    rng = np.random.default_rng(0)
    for case in CASES:
        if arguments.case not in case.name:
            continue
        arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in case.program.inputs}
        seconds = compile_seconds(case, arrays)
        kernel = FusedProgram(case.program, threads=arguments.threads)
        outs = kernel(arrays)
        calls: dict[str, Callable[[], object]] = {
            "fused": kernel.bind(arrays, outs),
            "plan": plan_kernel(case.program, arrays, arguments.threads),
            "apart": bind_unfused(case.program, arrays, {"Y": np.empty_like(outs["Y"])}, arguments.threads),
            "numpy": lambda case=case, arrays=arrays: case.numpy(arrays),  # type: ignore[misc]
        }
        if torch is not None:
            held = {name: torch.from_numpy(a) for name, a in arrays.items()}
            calls["torch"] = lambda case=case, held=held: case.torch(torch, held)  # type: ignore[misc]
        found = processor_times(calls) if arguments.processor else time_calls(calls, 9, arguments.seconds)
        error = np.abs(outs["Y"] - case.numpy(arrays)).max()
        ratios = "".join(
            f"{times_faster(found[name], found['plan']):12.2f}" if name in found else f"{'-':>12}"
            for name in ("fused", "apart", "numpy", "torch")
        )
        plan = f"{found['plan'].median * 1e6:.1f}"
        print(f"{case.name:28}{plan:>14}{ratios}{error:12.1e}{seconds * 1e3:12.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
