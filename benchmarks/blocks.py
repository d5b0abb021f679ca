"""Chains across a product, equation by equation and in blocks: ``python -m benchmarks.blocks [--threads N]``.

A 3x3 convolution is optimised by the bilinear algorithms that search finds; for each, what leads from its data to its
result is run equation by equation and in blocks, in turn with ONNX Runtime's convolution.  Times are of the processor
(one thread) unless ``--threads`` says otherwise: what else runs on the machine counts less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import quantiles
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.backends.bandwidth import peak_flops
from einnet_explore.backends.program import compile_program
from einnet_explore.cost import CostModel, cpu_default
from einnet_explore.graph.finalists import algorithms, entries
from einnet_explore.graph.post.chaining import chained
from einnet_explore.graph.post.fusing import fuse
from einnet_explore.ir import Program
from einnet_explore.text import parse

CASES = ((1, 64, 56, 1), (1, 128, 28, 1), (1, 256, 14, 1), (1, 512, 7, 1), (1, 512, 14, 2), (16, 64, 56, 1))
"""(batch, channels, side, dilation)."""


def convolution(n: int, c: int, h: int, d: int) -> Program:
    """A 3x3 convolution of *c* channels to as many."""
    return parse(f"""
        tensor A[{n}, {c}, {h}, {h}] pad [0, 0, {d}, {d}]
        tensor K[{c}, {c}, 3, 3] weight
        Y[n:{n}, f:{c}, h:{h}, w:{h}] = sum[c:{c}, r:3, s:3] A[n, c, h+{d}*r-{d}, w+{d}*s-{d}] * K[f, c, r, s]""")


def library(data: Any, taps: Any, d: int, threads: int) -> Callable[[], Any]:
    """ONNX Runtime's convolution of these arrays."""
    node = helper.make_node("Conv", ["A", "K"], ["Y"], kernel_shape=[3, 3], pads=[d] * 4, dilations=[d, d])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, data.shape) for name in ("A", "Y")]
    graph = helper.make_graph([node], "conv", ends[:1], ends[1:], [numpy_helper.from_array(taps, "K")])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"A": data})[0]


def lower_quartiles(
    calls: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Seconds of each call, run in turn, a first time beside the clock."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            began = clock()
            call()
            samples[name].append(clock() - began)
    return {name: quantiles(found, n=4)[0] for name, found in samples.items()}


def main() -> None:
    """Print a line for each case and algorithm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=4.0, help="of search")
    args = parser.parse_args()
    threads = args.threads
    device = cpu_default(threads)
    model = CostModel(replace(device, peak_flops=peak_flops(threads)))
    rng = np.random.default_rng(0)
    print("case                 algorithm                 ONNX Runtime  equations  in blocks   ratio  error")
    for n, c, h, d in CASES:
        program = convolution(n, c, h, d)
        data = rng.standard_normal((n, c, h, h)).astype(np.float32)
        taps = (rng.standard_normal((c, c, 3, 3)) / (3 * c**0.5)).astype(np.float32)
        theirs = library(data, taps, d, threads)
        want = theirs()

        def cost(p: Program) -> tuple[float, str]:
            found = model.program_cost(p)
            return found.seconds, found.how

        ranked, _ = entries(program, cost, 7, args.seconds)
        for entry in algorithms(ranked, 4, 1.0):
            whole = fuse(entry.derivation())
            blocks = chained(whole)
            if blocks is None or not entry.tables:
                continue
            made = {
                name: compile_program(p, threads, constants={"K": taps})
                for name, p in (("equations", whole.end), ("blocks", blocks.end))
            }
            error = np.abs(made["blocks"].run({"A": data})["Y"] - want).max() / np.abs(want).max()
            calls: dict[str, Callable[[], Any]] = {"theirs": theirs}
            for name, run in made.items():
                run.inputs["A"][...] = data
                calls[name] = run.execute
            found = lower_quartiles(calls, args.rounds, thread_time if threads == 1 else perf_counter)
            shapes = sorted({t.shape for t in entry.tables})
            tiles = "×".join(f"F({k},{p - k + 1})" for k, p in (s for s in shapes if s[0] < s[1]))
            print(
                f"{n}×{c}×{h}² d{d}".ljust(20), tiles.ljust(25),
                *(f"{found[name] * 1e6:10.0f}" for name in calls), f"{found['theirs'] / found['blocks']:9.2f}",
                f"{error:.1e}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
