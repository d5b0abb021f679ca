"""Fused reductions against NumPy's sequence, torch's own kernels, and our kernels with one operation each.

``python -m benchmarks.fusion [--threads N] [--seconds S] [--case WORD] [--processor]``.  All are run in turn; ``torch``
is left out where it is not installed.  ``compile`` is the processor time of a kernel that was never compiled before.
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

from einnet_explore.backends import compare, fused
from einnet_explore.backends.apart import bind_apart
from einnet_explore.backends.blas import set_threads
from einnet_explore.backends.fused import FusedProgram
from einnet_explore.backends.measure import Timing, times_faster
from einnet_explore.ir import Program
from einnet_explore.text import parse

Arrays = Mapping[str, Any]
EPSILON = np.float32(1e-5)


@dataclass(frozen=True)
class Case:
    """A program, the same in NumPy (unfused), and the torch call that does it."""

    name: str
    program: Program
    numpy: Callable[[Arrays], Any]
    torch: Callable[[Any, Mapping[str, Any]], Any]


def normed(x: Any, axes: tuple[int, ...]) -> Any:
    """(x - mean) / sqrt(variance + ε) as users write it."""
    d = x - x.mean(axes, keepdims=True)
    return d * (1 / np.sqrt((d * d).mean(axes, keepdims=True) + EPSILON))


def batch_norm(n: int, c: int, h: int, w: int) -> Case:
    """Over (0, 2, 3), with scale and shift."""
    text = f"""
        tensor X[{n}, {c}, {h}, {w}]
        tensor g[{c}]
        tensor b[{c}]
        M[c:{c}] = {{[c:{c}] sum[n:{n}, h:{h}, w:{w}] X[n, c, h, w]}}[c] / {n * h * w}
        D[n:{n}, c:{c}, h:{h}, w:{w}] = X[n, c, h, w] - M[c]
        V[c:{c}] = {{[c:{c}] sum[n:{n}, h:{h}, w:{w}] D[n, c, h, w] * D[n, c, h, w]}}[c] / {n * h * w}
        Y[n:{n}, c:{c}, h:{h}, w:{w}] = D[n, c, h, w] * rsqrt(V[c] + 0.00001) * g[c] + b[c]
        output Y"""
    across = (1, -1, 1, 1)
    return Case(
        f"batch norm {n}x{c}x{h}x{w}",
        parse(text),
        lambda a: normed(a["X"], (0, 2, 3)) * a["g"].reshape(across) + a["b"].reshape(across),
        lambda torch, a: torch.nn.functional.batch_norm(a["X"], None, None, a["g"], a["b"], training=True),
    )


def layer_norm(r: int, c: int) -> Case:
    """Over the last dimension, with scale and shift."""
    text = f"""
        tensor X[{r}, {c}]
        tensor g[{c}]
        tensor b[{c}]
        M[i:{r}] = {{[i:{r}] sum[j:{c}] X[i, j]}}[i] / {c}
        V[i:{r}] = {{[i:{r}] sum[j:{c}] (X[i, j] - M[i]) * (X[i, j] - M[i])}}[i] / {c}
        Y[i:{r}, j:{c}] = (X[i, j] - M[i]) * rsqrt(V[i] + 0.00001) * g[j] + b[j]
        output Y"""
    return Case(
        f"layer norm {r}x{c}",
        parse(text),
        lambda a: normed(a["X"], (1,)) * a["g"] + a["b"],
        lambda torch, a: torch.nn.functional.layer_norm(a["X"], (c,), a["g"], a["b"]),
    )


def instance_norm(n: int, c: int, h: int, w: int) -> Case:
    """Over (2, 3)."""
    text = f"""
        tensor X[{n}, {c}, {h}, {w}]
        M[n:{n}, c:{c}] = {{[n:{n}, c:{c}] sum[h:{h}, w:{w}] X[n, c, h, w]}}[n, c] / {h * w}
        D[n:{n}, c:{c}, h:{h}, w:{w}] = X[n, c, h, w] - M[n, c]
        V[n:{n}, c:{c}] = {{[n:{n}, c:{c}] sum[h:{h}, w:{w}] D[n, c, h, w] * D[n, c, h, w]}}[n, c] / {h * w}
        Y[n:{n}, c:{c}, h:{h}, w:{w}] = D[n, c, h, w] * rsqrt(V[n, c] + 0.00001)
        output Y"""
    return Case(
        f"instance norm {n}x{c}x{h}x{w}",
        parse(text),
        lambda a: normed(a["X"], (2, 3)),
        lambda torch, a: torch.nn.functional.instance_norm(a["X"]),
    )


def softmax(r: int, c: int) -> Case:
    """Over the last dimension."""
    text = f"""
        tensor X[{r}, {c}]
        M[i:{r}] = max[j:{c}] X[i, j]
        E[i:{r}, j:{c}] = exp(X[i, j] - M[i])
        S[i:{r}] = sum[j:{c}] E[i, j]
        Y[i:{r}, j:{c}] = E[i, j] / S[i]
        output Y"""

    def unfused(a: Arrays) -> Any:
        e = np.exp(a["X"] - a["X"].max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    return Case(f"softmax {r}x{c}", parse(text), unfused, lambda torch, a: torch.softmax(a["X"], 1))


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
    """Processor time from arrays to a kernel that was never compiled: analysis, text, compiler, loading."""
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
    """Processor time instead of time, in turn: for one thread on a machine that others use."""
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


def python_seconds() -> float:
    """What a bound call costs where there is next to nothing to compute."""
    kernel = FusedProgram(batch_norm(1, 1, 1, 1).program)
    arrays = {name: np.ones(shape, np.float32) for name, shape in (("X", (1, 1, 1, 1)), ("g", 1), ("b", 1))}
    bound = kernel.bind(arrays, kernel(arrays))
    return compare({"call": bound}, rounds=15, min_seconds=0.05)["call"].median


def main(argv: Sequence[str] = ()) -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(prog="benchmarks.fusion", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2, help="of measurement a case and engine, at least")
    parser.add_argument("--case", default="", help="only cases whose name has this in it")
    parser.add_argument("--processor", action="store_true", help="processor time: one thread on a busy machine")
    arguments = parser.parse_args(argv)
    set_threads(arguments.threads)
    try:
        import torch

        torch.set_num_threads(arguments.threads)
    except ImportError:
        torch = None
    print(f"a bound call: {python_seconds() * 1e6:.1f} µs; threads: {arguments.threads}")
    heads = ("fused µs", "apart", "numpy", "torch", "error", "compile ms")
    print(f"{'case':28}" + "".join(f"{h:>12}" for h in heads) + "   (apart, numpy, torch: times the fused kernel's)")
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
            "apart": bind_apart(case.program, arrays, {"Y": np.empty_like(outs["Y"])}, arguments.threads),
            "numpy": lambda case=case, arrays=arrays: case.numpy(arrays),  # type: ignore[misc]
        }
        if torch is not None:
            held = {name: torch.from_numpy(a) for name, a in arrays.items()}
            calls["torch"] = lambda case=case, held=held: case.torch(torch, held)  # type: ignore[misc]
        found = processor_times(calls) if arguments.processor else compare(calls, 9, arguments.seconds)
        error = np.abs(outs["Y"] - case.numpy(arrays)).max()
        ratios = "".join(
            f"{times_faster(found[name], found['fused']):12.2f}" if name in found else f"{'-':>12}"
            for name in ("apart", "numpy", "torch")
        )
        print(f"{case.name:28}{found['fused'].median * 1e6:12.1f}{ratios}{error:12.1e}{seconds * 1e3:12.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
