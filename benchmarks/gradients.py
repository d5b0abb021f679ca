"""Compare backward passes that read stashed values with the one that recomputes everything.

``python -m benchmarks.gradients [--threads N] [--quick]``.  Each line is a plan of the curve: the bytes stashed, the
remaining operations, and the speedup over the recomputing backward pass, run in turn.  Some cases also compare the
forward pass with and without the stash as outputs.  If torch is installed, the last line is its backward pass, which
reads the values that torch saved.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import einnet_explore as ee
from einnet_explore.autodiff.stash import Passes, cse, pareto_front, split_passes
from einnet_explore.ir import Program
from einnet_explore.runtime.measurement import Timing, settle_seconds, time_calls, times_faster
from einnet_explore.runtime.program import CompiledProgram, compile_program

Arrays = Mapping[str, npt.NDArray[Any]]


def batch_normalisation(N: int, C: int, H: int, W: int) -> str:
    """Training's batch normalisation of NCHW images."""
    x, y, m = f"n:{N}, c:{C}, h:{H}, w:{W}", f"n:{N}, h:{H}, w:{W}", N * H * W
    return f"""
        tensor X[{N}, {C}, {H}, {W}]
        tensor g[{C}]
        tensor b[{C}]
        E[c:{C}] = {{[c:{C}] sum[{y}] X[n, c, h, w]}}[c] / {m}
        V[c:{C}] = {{[c:{C}] sum[{y}] (X[n, c, h, w] - E[c]) * (X[n, c, h, w] - E[c])}}[c] / {m}
        Y[{x}] = g[c] * ((X[n, c, h, w] - E[c]) / sqrt(V[c] + 0.00001)) + b[c]"""


def attention(heads: int, rows: int, features: int) -> str:
    """Softmax attention of given queries, keys and values."""
    given = "".join(f"tensor {name}[{heads}, {rows}, {features}]\n" for name in "QKU")
    return given + _attended("Y", heads, rows, features)


def attention_block(heads: int, rows: int, features: int) -> str:
    """Self-attention as a network layer: projections of one input, softmax attention, and an output projection."""
    d = heads * features
    weights = "".join(f"tensor W{name}[{heads}, {d}, {features}]\n" for name in "QKU")
    projected = "".join(
        f"{name}[h:{heads}, i:{rows}, k:{features}] = sum[d:{d}] X[i, d] * W{name}[h, d, k]\n" for name in "QKU"
    )
    back = f"Y[i:{rows}, d:{d}] = sum[h:{heads}, k:{features}] R[h, i, k] * WR[h, k, d]\noutput Y"
    head = f"tensor X[{rows}, {d}]\n{weights}tensor WR[{heads}, {features}, {d}]\n"
    return f"{head}{projected}{_attended('R', heads, rows, features)}\n{back}"


def _attended(result: str, heads: int, rows: int, features: int) -> str:
    a, scale = f"h:{heads}, i:{rows}, j:{rows}", features**-0.5
    return f"""
        T[{a}] = sum[k:{features}] Q[h, i, k] * K[h, j, k]
        A[{a}] = {scale} * T[h, i, j]
        M[h:{heads}, i:{rows}] = max[j:{rows}] A[h, i, j]
        Z[{a}] = exp(A[h, i, j] - M[h, i])
        S[h:{heads}, i:{rows}] = sum[j:{rows}] Z[h, i, j]
        P[{a}] = Z[h, i, j] / S[h, i]
        {result}[h:{heads}, i:{rows}, k:{features}] = sum[j:{rows}] P[h, i, j] * U[h, j, k]"""


def prepared(program: Program, arrays: Arrays, threads: int) -> CompiledProgram:
    """Compile *program* and fill its inputs."""
    made = compile_program(program, threads)
    for name, place in made.inputs.items():
        place[...] = arrays[name]
    return made


def measured(forward: Program, threads: int, rounds: int) -> None:
    """Print the curve of the gradients of *forward* and the speedups of its plans."""
    backward = ee.grad(forward)
    began = perf_counter()
    passes = cse(forward, backward)
    print(f"  {passes!r}, in {perf_counter() - began:.1f} s, {', '.join(c.kind for c in passes.certificates)}")
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape, np.float32) for p in (forward, backward) for t in p.inputs}
    runs: dict[str, Callable[[], object]] = {"recomputing": prepared(backward, arrays, threads).execute}
    for form, plan in pareto_front(passes.forms):
        found = split_passes(form, plan, passes.forms)
        kept = prepared(found.forward, arrays, threads)
        kept.execute()
        fed = arrays | {s.name: kept.outputs[s.name].copy() for s in found.stashes}
        label = f"{plan.nbytes:>12} bytes {plan.operations:>12} operations: {', '.join(s.name for s in found.stashes)}"
        runs[label] = prepared(found.backward, fed, threads).execute
    if (torch := in_torch(forward, arrays, threads)) is not None:
        runs["torch's backward"] = torch
    told(time_calls(runs, rounds=rounds, min_seconds=0.3, settle=settle_seconds(threads)), "recomputing")
    ahead(forward, passes, arrays, threads, rounds)


def ahead(forward: Program, passes: Passes, arrays: Arrays, threads: int, rounds: int) -> None:
    """Measure the cost of the stash in the forward pass."""
    runs = {"forward": prepared(forward, arrays, threads).execute}
    runs["forward with the stash"] = prepared(passes.forward, arrays, threads).execute
    told(time_calls(runs, rounds=rounds, min_seconds=0.3, settle=settle_seconds(threads)), "forward")


def told(timings: Mapping[str, Timing], base: str) -> None:
    """Print times and ratios to *base*."""
    for name, timing in timings.items():
        print(f"  {timing.median * 1e3:8.2f} ms {times_faster(timings[base], timing):5.2f}x  {name}")


def in_torch(forward: Program, arrays: Arrays, threads: int) -> Callable[[], object] | None:
    """Return torch's backward pass of the same function; None if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(threads)
    given = {t.name: torch.tensor(arrays[t.name], requires_grad=True) for t in forward.inputs}
    if "WR" in given:
        q, k, u = (given["X"] @ given[name] for name in ("WQ", "WK", "WU"))
        heads = torch.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, -1) @ u
        y = (heads @ given["WR"]).sum(0)
    elif "X" in given:
        y = torch.nn.functional.batch_norm(given["X"], None, None, given["g"], given["b"], training=True, eps=1e-5)
    else:
        scores = given["Q"] @ given["K"].transpose(1, 2) * given["Q"].shape[-1] ** -0.5
        y = torch.softmax(scores, -1) @ given["U"]
    seed = torch.tensor(arrays["d_Y"])
    return lambda: torch.autograd.grad(y, list(given.values()), seed, retain_graph=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Print every case."""
    parser = argparse.ArgumentParser(prog="benchmarks.gradients", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="small shapes")
    arguments = parser.parse_args(argv)
    cases = {
        "batch normalisation": batch_normalisation(*((8, 16, 28, 28) if arguments.quick else (32, 64, 56, 56))),
        "softmax attention": attention(*((2, 64, 32) if arguments.quick else (8, 512, 64))),
        "attention block": attention_block(*((2, 64, 32) if arguments.quick else (8, 512, 64))),
    }
    for name, written in cases.items():
        print(name)
        measured(ee.parse(written), arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()
