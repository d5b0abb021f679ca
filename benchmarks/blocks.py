"""Compare chains run equation by equation with fused tiling: ``python -m benchmarks.blocks [--cold] [--torch]``.

A 3x3 convolution is optimised by the bilinear algorithms that search finds.  For each algorithm, the chain from the
data to the result runs equation by equation and as fused tiles, in turn with ONNX Runtime's convolution.  Times are
processor times on one thread, which other work on the machine affects little, unless ``--threads`` is given.  With
``--cold``, all data is read from memory, like weights that exceed the last-level cache.  ``--torch`` adds the fastest
convolution of torch (oneDNN) over its memory formats.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from statistics import quantiles
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.cost import CostModel, cpu_default
from einnet_explore.ir import Program
from einnet_explore.pipeline.fusion import chain_in_blocks, fuse_eoperators
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import best_by_algorithm, find_variants
from einnet_explore.runtime.implementation_choice import peak_flops
from einnet_explore.runtime.program import compile_program
from einnet_explore.syntax import parse

CASES = ((1, 64, 56, 1), (1, 128, 28, 1), (1, 256, 14, 1), (1, 512, 7, 1), (1, 512, 14, 2), (16, 64, 56, 1),
         (16, 128, 28, 1), (16, 256, 14, 1), (16, 512, 7, 1))  # fmt: skip
"""(batch, channels, side, dilation)."""


def convolution(n: int, c: int, h: int, d: int) -> Program:
    """Return a 3x3 convolution from *c* channels to *c* channels."""
    return parse(f"""
        tensor A[{n}, {c}, {h}, {h}] pad [0, 0, {d}, {d}]
        tensor K[{c}, {c}, 3, 3] weight
        Y[n:{n}, f:{c}, h:{h}, w:{h}] = sum[c:{c}, r:3, s:3] A[n, c, h+{d}*r-{d}, w+{d}*s-{d}] * K[f, c, r, s]""")


def library(node: onnx.NodeProto, data: Any, taps: Any, threads: int) -> Callable[[], Any]:
    """Return a call of ONNX Runtime's *node* on these arrays; its second input, the weights, is constant."""
    (given, weights), (result,) = node.input, node.output
    inputs = [helper.make_tensor_value_info(given, TensorProto.FLOAT, data.shape)]
    outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "one", inputs, outputs, [numpy_helper.from_array(taps, weights)])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {given: data})[0]


def torch_library(data: Any, taps: Any, d: int, threads: int) -> Mapping[str, Callable[[], Any]]:
    """Return torch's convolution of these arrays in each memory format, with weights in oneDNN's preferred layout."""
    torch: Any = import_module("torch")
    torch.set_num_threads(threads)
    made: dict[str, Callable[[], Any]] = {}
    for name, order in (("torch", torch.contiguous_format), ("torch, channels last", torch.channels_last)):
        layer = torch.nn.Conv2d(data.shape[1], taps.shape[0], 3, padding=d, dilation=d, bias=False)
        layer.weight.data = torch.from_numpy(taps)
        frozen = torch.jit.freeze(torch.jit.script(layer.eval().to(memory_format=order)))
        given = torch.from_numpy(data).to(memory_format=order)

        def call(frozen: Any = frozen, given: Any = given) -> Any:
            with torch.inference_mode():
                return frozen(given)

        made[name] = call
    return made


def lower_quartiles(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float],
    between: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Return the lower quartile of the seconds of each call, in turn.

    Each round calls once without timing, runs *between*, and then times a second call.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            between()
            began = clock()
            call()
            samples[name].append(clock() - began)
    return {name: quantiles(found, n=4)[0] for name, found in samples.items()}


def main() -> None:
    """Print one line per case and algorithm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=4.0, help="time budget of each search")
    parser.add_argument("--cold", action="store_true", help="read all data from memory, not from the cache")
    parser.add_argument("--torch", action="store_true", help="compare with torch, which must be installed")
    args = parser.parse_args()
    threads = args.threads
    device = cpu_default(threads)
    model = CostModel(replace(device, peak_flops=peak_flops(threads)))
    rng = np.random.default_rng(0)
    others = np.ones(this_machine().l3 // 2, np.float32) if args.cold else np.ones(1, np.float32)
    rivals = ("ONNX Runtime", *(("torch", "channels last") if args.torch else ()))
    print(
        "case".ljust(20),
        "algorithm".ljust(25),
        *(f"{name:>13}" for name in (*rivals, "equations", "in blocks")),
        "ratio",
    )
    for n, c, h, d in CASES:
        program = convolution(n, c, h, d)
        data = rng.standard_normal((n, c, h, h)).astype(np.float32)
        taps = (rng.standard_normal((c, c, 3, 3)) / (3 * c**0.5)).astype(np.float32)
        node = helper.make_node("Conv", ["A", "K"], ["Y"], kernel_shape=[3, 3], pads=[d] * 4, dilations=[d, d])
        theirs = library(node, data, taps, threads)
        want = theirs()

        def cost(p: Program) -> tuple[float, str]:
            found = model.program_cost(p)
            return found.seconds, found.how

        ranked = find_variants(program, cost, Settings(seconds=args.seconds)).variants
        for entry in best_by_algorithm(ranked, 4, 1.0):
            whole = fuse_eoperators(entry.derivation())
            blocks = chain_in_blocks(whole)
            if blocks is None or not entry.algorithm:
                continue
            made = {
                name: compile_program(p, threads, constants={"K": taps})
                for name, p in (("equations", whole.end), ("blocks", blocks.end))
            }
            error = np.abs(made["blocks"].run({"A": data})["Y"] - want).max() / np.abs(want).max()
            calls: dict[str, Callable[[], Any]] = {"theirs": theirs}
            if args.torch:
                calls |= torch_library(data, taps, d, threads)
            rival = tuple(calls)
            for name, run in made.items():
                run.inputs["A"][...] = data
                calls[name] = run.execute
            found = lower_quartiles(calls, args.rounds, thread_time if threads == 1 else perf_counter, others.sum)
            best = min(found[name] for name in rival)
            shapes = sorted(set(entry.algorithm))
            tiles = "×".join(f"F({k},{p - k + 1})" for k, p in (s for s in shapes if s[0] < s[1]))
            print(
                f"{n}×{c}×{h}² d{d}".ljust(20), tiles.ljust(25),
                *(f"{found[name] * 1e6:13.0f}" for name in calls), f"{best / found['blocks']:5.2f}",
                f"{error:.1e}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
