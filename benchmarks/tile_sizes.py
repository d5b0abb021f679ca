"""Evaluate tile sizes of PlaidML's cost model: the number of visited sizes, and the speed of the selected ones.

``python -m benchmarks.tile_sizes [--rounds N]``.  For each case it prints the sizes visited by best-first search and
the number of all sizes.  Then it runs the C kernel in turn on the same arrays with one thread: with the size of
best-first search, of exhaustive search, and with three random sizes of equal score.  GFLOP/s are those of best-first.
"""

from __future__ import annotations

import argparse
import random

import numpy as np

from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.codegen.tiling.cost import (
    Hardware,
    as_contraction,
    cpu_hardware,
    search_best_first,
    search_exhaustively,
)
from einnet_explore.codegen.tiling.kernel import tile_contraction
from einnet_explore.runtime import c_kernels
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.measurement import time_calls, times_faster
from einnet_explore.syntax import parse

CASES = {
    "conv 3x3 64→64, 56², NHWC": """
tensor D[1, 56, 56, 64] pad [0, 1, 1, 0]
tensor K[3, 3, 64, 64] weight
O[n:1, x:56, y:56, co:64] = sum[ci:64, i:3, j:3] D[n, x+i-1, y+j-1, ci] * K[i, j, ci, co]""",
    "matmul 256x384x320": """
tensor A[256, 384]
tensor B[384, 320]
O[m:256, n:320] = sum[k:384] A[m, k] * B[k, n]""",
    "dilated band 2x512x64, w 33, d 4": """
tensor A[2, 512, 64]
tensor B[2, 512, 64] pad [0, 64, 0]
O[b:2, m:512, w:33] = sum[k:64] A[b, m, k] * B[b, m+4*w-64, k]""",
}


def main() -> None:
    """Print one block per case."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=9)
    rounds = arguments.parse_args().rounds
    core = cpu_hardware(this_machine())
    for name, text in CASES.items():
        whole = parse(text)
        found = as_contraction(whole.equations[0].scope)
        problem = found.problem()
        for said, hardware in (("the document's device", Hardware()), ("this core", core)):
            quick, full = search_best_first(problem, hardware), search_exhaustively(problem, hardware)
            better = f"score {quick.chosen.score:.3g} of {full.chosen.score:.3g}"
            print(f"{name}, {said}: {len(quick.visited)} of {len(full.visited)} sizes visited, {better}")
        ties = [c.tile for c in full.visited if c.score == full.chosen.score]
        sizes = {"best-first": quick.chosen.tile, "exhaustive": full.chosen.tile}
        sizes |= {f"drawn {n}": t for n, t in enumerate(random.Random(0).sample(ties, min(3, len(ties))))}
        rng = np.random.default_rng(0)
        made = {label: tile_contraction(whole, core, tile) for label, tile in sizes.items()}
        inputs = [aligned(rng.standard_normal(t.shape).astype(np.float32)) for t in made["best-first"].inputs]
        out = aligned_empty(whole.equations[0].scope.shape, "float32")
        calls = {label: c_kernels.load_c_kernel(k.kernel).bind(*inputs, out) for label, k in made.items()}
        timings = time_calls(calls, rounds=rounds, min_seconds=0.02)
        best = timings["best-first"]
        flops = 2 * problem.products
        print(
            f"  best-first {list(quick.chosen.tile)}: {best.median * 1e3:.2f} ms, {flops / best.low / 1e9:.0f} GFLOP/s"
        )
        for label, timing in timings.items():
            if label != "best-first":
                print(f"  {label} {list(sizes[label])}: {times_faster(best, timing):.2f} times as fast")


if __name__ == "__main__":
    main()
