"""Measure the gain of merging: each merged program of Algorithm 1 compared with the best unmerged program.

``python -m benchmarks.merging [--threads N] [--seconds S]``.  A line shows the merging rules, the estimate, and the
speedup over the cheapest unmerged program, run in turn: the median of the ratios, and the ratio of the fastest
samples, which other work on the machine disturbs least.  ``--search`` runs no program: it prints the processor time
after which the cheapest programs were found, and the result of one search of the whole program.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from time import perf_counter, process_time

import numpy as np

from einnet_explore.analysis.counts import compute_bound
from einnet_explore.cost import program_seconds
from einnet_explore.ir import Program
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.runtime.measurement import time_calls, times_faster
from einnet_explore.runtime.program import compile_program
from einnet_explore.session.run import Run
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options
from einnet_explore.syntax import parse


def attention(m: int, k: int, heads: int, n: int) -> str:
    """Queries, keys and values with biases and heads in front, as in LongFormer."""
    rows = [f"tensor X[{m}, {k}]"]
    for name in "QKV":
        rows += [f"tensor W{name}[{k}, {heads * n}] weight", f"tensor b{name}[{heads * n}] weight"]
    for name in "QKV":
        rows.append(f"P{name}[m:{m}, n:{heads * n}] = sum[k:{k}] X[m, k] * W{name}[k, n]")
        rows.append(f"{name}[h:{heads}, m:{m}, n:{n}] = P{name}[m, {n}*h+n] + b{name}[{n}*h+n]")
    return "\n".join([*rows, "output Q, K, V"])


def siblings(c: int, f: int, g: int, size: int, stride: int) -> str:
    """A 3x3 and a 1x1 convolution of one image, as at the start of ResNet's stages."""
    out = -(-size // stride)
    return f"""
        tensor A[1, {c}, {size}, {size}] pad [0, 0, 1, 1]
        tensor K[{f}, {c}, 3, 3] weight
        tensor L[{g}, {c}, 1, 1] weight
        Y[n:1, f:{f}, h:{out}, w:{out}] = sum[c:{c}, r:3, s:3] A[n, c, {stride}*h+r-1, {stride}*w+s-1] * K[f, c, r, s]
        Z[n:1, f:{g}, h:{out}, w:{out}] = sum[c:{c}, r:1, s:1] A[n, c, {stride}*h+r, {stride}*w+s] * L[f, c, r, s]
        R[n:1, f:{f}, h:{out}, w:{out}] = relu(Y[n, f, h, w])
        output R, Z"""


def separable(c: int, f: int, size: int, k: int) -> str:
    """GCN's pair of separable convolutions."""
    p, x = k // 2, f"n:1, f:{f}, h:{size}, w:{size}"
    return f"""
        tensor X[1, {c}, {size}, {size}] pad [0, 0, {p}, {p}]
        tensor A[{f}, {c}, {k}, 1] weight
        tensor B[{f}, {f}, 1, {k}] weight
        tensor C[{f}, {c}, 1, {k}] weight
        tensor D[{f}, {f}, {k}, 1] weight
        P[{x}] = sum[c:{c}, r:{k}, s:1] X[n, c, h+r-{p}, w+s] * A[f, c, r, s] pad [0, 0, 0, {p}]
        Q[{x}] = sum[c:{f}, r:1, s:{k}] P[n, c, h+r, w+s-{p}] * B[f, c, r, s]
        R[{x}] = sum[c:{c}, r:1, s:{k}] X[n, c, h+r, w+s-{p}] * C[f, c, r, s] pad [0, 0, {p}, 0]
        S[{x}] = sum[c:{f}, r:{k}, s:1] R[n, c, h+r-{p}, w+s] * D[f, c, r, s]
        Y[{x}] = Q[n, f, h, w] + S[n, f, h, w]"""


CASES = {
    "queries, keys, values 512x512": attention(512, 512, 8, 64),
    "queries, keys, values 64x768": attention(64, 768, 12, 64),
    "3x3 and 1x1, 64 to 128, stride 2": siblings(64, 128, 128, 56, 2),
    "3x3 and 1x1, 256 to 32 and 64": siblings(256, 32, 64, 14, 1),
    "separable 11, 1024 to 21": separable(1024, 21, 14, 11),
    "separable 7, 128 to 128": separable(128, 128, 14, 7),
}


def how(candidate: Candidate) -> str:
    """Describe a candidate by the merges of its derivation and the operators of its program."""
    names = (step.match.rule.name for step in candidate.derivation.steps)
    merges = [name.removesuffix("_merging") for name in names if name in ("sibling_merging", "batch_merging")]
    operators = sorted(e.via.operator for e in candidate.operators if e.via)
    return f"{' + '.join(sorted(merges)) or 'not merged'}: {', '.join(operators)}"


def kinds(program: Program, seconds: float) -> list[Candidate]:
    """Return the cheapest unmerged candidate, then the cheapest for every set of merges."""
    best: dict[str, Candidate] = {}
    for candidate in Run(program, program_seconds, budget=seconds).start().wait().candidates:
        key = how(candidate).partition(":")[0]
        if key not in best or candidate.seconds < best[key].seconds:
            best[key] = candidate
    plain = best.pop("not merged")
    return [plain, *sorted(best.values(), key=lambda c: c.seconds)]


def whole(program: Program, seconds: float) -> str:
    """Search all compute-bound expressions of *program* together."""
    bound = {program.equations[n].name for n in compute_bound(program)}
    fixed = frozenset(e.name for e in program.equations if e.name not in bound)
    search, began, last = Search(program, program_seconds, Options(fixed=fixed)), process_time(), 0.0
    for event in search.run():
        if isinstance(event, Found) and event.improved:
            last = process_time() - began
        if process_time() - began > seconds:
            break
    return f"{len(search.states)} states, cheapest {search.best * 1e6:.0f} µs after {last:.2f} s"


def one_by_one(program: Program, seconds: float) -> str:
    """Run Algorithm 1; return the cheapest unmerged program and the cheapest of all."""
    began = process_time()
    best: dict[bool, tuple[float, float]] = {}
    run = Run(program, program_seconds, budget=seconds)
    for event in run:
        if isinstance(event, Found):
            for kind in {how(run.candidates[-1]).startswith("not merged"), False}:
                if event.seconds < best.get(kind, (float("inf"), 0.0))[0]:
                    best[kind] = event.seconds, process_time() - began
    plain, every = (f"{cost * 1e6:.0f} µs after {after:.2f} s" for cost, after in (best[True], best[False]))
    return f"cheapest unmerged {plain}, of all {every}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print every case."""
    parser = argparse.ArgumentParser(prog="benchmarks.merging", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of search for each case")
    parser.add_argument(
        "--search", action="store_true", help="print the times at which programs were found; run no program"
    )
    arguments = parser.parse_args(argv)
    for name, written in CASES.items():
        program, began = parse(written), perf_counter()
        if arguments.search:
            print(f"{name}\n  together: {whole(program, arguments.seconds)}")
            print(f"  one by one: {one_by_one(program, arguments.seconds)}")
            continue
        found = kinds(program, arguments.seconds)
        print(f"{name}: found in {perf_counter() - began:.1f} s")
        rng = np.random.default_rng(0)
        arrays = {t.name: rng.standard_normal(t.shape, np.float32) for t in program.inputs}
        weights = {t.name: arrays[t.name] for t in program.inputs if t.weight}
        runs = {}
        for candidate in found:
            made = compile_program(fuse_eoperators(candidate.derivation).end, arguments.threads, constants=weights)
            made.run({k: v for k, v in arrays.items() if k not in weights})
            runs[f"{how(candidate)} ({candidate.seconds * 1e6:.0f} µs estimated)"] = partial(made.execute)
        timings = time_calls(runs, rounds=61, min_seconds=0.3)
        base = timings[next(iter(runs))]
        for line, timing in timings.items():
            ratios = f"{times_faster(base, timing):5.2f}x {min(base.samples) / min(timing.samples):5.2f}x"
            print(f"  {min(timing.samples) * 1e6:7.0f} µs {ratios}  {line}")


if __name__ == "__main__":
    main()
