"""Measure polyphase transposed convolutions: ``python -m benchmarks.phases [--threads N]``.

A transposed 4x4 convolution of stride 2 is optimised by the bilinear algorithms that search finds for its phases.  For
each algorithm, the chain runs equation by equation and as fused tiles, in turn with ONNX Runtime's ``ConvTranspose``.
Times are processor times on one thread, unless ``--threads`` is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from onnx import helper

from benchmarks.blocks import library, lower_quartiles
from einnet_explore.cost import CostModel, cpu_default
from einnet_explore.ir import Program
from einnet_explore.pipeline.fusion import chain_in_blocks, fuse_eoperators
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import find_variants, variants_by_algorithm
from einnet_explore.runtime.implementation_choice import peak_flops
from einnet_explore.runtime.program import compile_program
from einnet_explore.syntax import parse

CASES = ((1, 512, 256, 4), (1, 256, 128, 8), (1, 128, 64, 16), (16, 256, 128, 8), (16, 128, 64, 16))
"""(batch, channels, features, side) of DCGAN's layers."""

NODE = helper.make_node("ConvTranspose", ["X", "K"], ["Y"], kernel_shape=[4, 4], pads=[1] * 4, strides=[2, 2])


def transposed(n: int, c: int, f: int, h: int) -> Program:
    """Return a transposed 4x4 convolution that doubles both sides."""
    return parse(f"""
        tensor X[{n}, {c}, {h}, {h}]
        tensor K[{c}, {f}, 4, 4] pad [0, 0, {2 * h}, {2 * h}] weight
        Y[n:{n}, f:{f}, y:{2 * h}, x:{2 * h}] =
            sum[c:{c}, h:{h}, w:{h}] X[n, c, h, w] * K[c, f, y-2*h+1, x-2*w+1]""")


def main() -> None:
    """Print one line per case and algorithm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--states", type=int, default=400, help="states of each search")
    args = parser.parse_args()
    model = CostModel(replace(cpu_default(args.threads), peak_flops=peak_flops(args.threads)))
    rng = np.random.default_rng(0)
    clock = thread_time if args.threads == 1 else perf_counter

    def cost(p: Program) -> tuple[float, str]:
        found = model.program_cost(p)
        return found.seconds, found.how

    print("case                   tables                             ONNX Runtime  equations  in blocks  ratio  error")
    for n, c, f, h in CASES:
        data = rng.standard_normal((n, c, h, h)).astype(np.float32)
        taps = (rng.standard_normal((c, f, 4, 4)) / (2 * c**0.5)).astype(np.float32)
        theirs = library(NODE, data, taps, args.threads)
        want = theirs()
        for group in variants_by_algorithm(
            find_variants(transposed(n, c, f, h), cost, Settings(states=args.states)).variants, 7, 1.0
        ):
            forms = [(e, fuse_eoperators(e.derivation())) for e in group[:4]]
            chains = [(e, whole, made) for e, whole in forms if (made := chain_in_blocks(whole)) is not None]
            if not chains or not group[0].algorithm:
                continue
            entry, whole, blocks = chains[0]
            runs = {
                name: compile_program(p, args.threads, constants={"K": taps})
                for name, p in (("equations", whole.end), ("blocks", blocks.end))
            }
            error = np.abs(runs["blocks"].run({"X": data})["Y"] - want).max() / np.abs(want).max()
            calls: dict[str, Callable[[], Any]] = {"theirs": theirs}
            for name, run in runs.items():
                run.inputs["X"][...] = data
                calls[name] = run.execute
            found = lower_quartiles(calls, args.rounds, clock)
            shapes = sorted({shape for shape in entry.algorithm if shape[0] < shape[1]})
            once = len(entry.algorithm) == 3
            told = "×".join(f"F({k},{p - k + 1})" for k, p in shapes for _ in range(1 if once else 2))
            print(
                f"{n}×{c}→{f}, {h}²".ljust(22), told.ljust(34), *(f"{found[name] * 1e6:10.0f}" for name in calls),
                f"{found['theirs'] / found['blocks']:9.2f}", f"{error:.1e}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
