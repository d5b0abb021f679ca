"""Compare ways to share a tiled chain among threads.

``python -m benchmarks.sharing [--threads N] [--rounds N] [--case N ...]``.
A convolution is optimised by the bilinear algorithms that search finds.  The chain from its data to its result runs in
tiles on one thread and on several threads in every available way: one part, cut by rows; one part, with a block of
channels per thread; two parts; and the selected way.  They run in turn with ONNX Runtime's operator on one thread and
on the same number of threads.  The machine should be idle, since threads that wait for a core delay the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from statistics import quantiles
from time import perf_counter, sleep
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper

from benchmarks.blocks import convolution
from benchmarks.phases import NODE, transposed
from einnet_explore.analysis.fused_chain import Chain
from einnet_explore.codegen.fused_tiling import kernel
from einnet_explore.codegen.fused_tiling.block_sizes import (
    ChainPart,
    choose_cuts,
    choose_parts,
    split_chain,
    tileable_chain,
)
from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.cost import CostModel, cpu_default
from einnet_explore.ir import Program, Scope, Table, accesses, tensors
from einnet_explore.pipeline.fusion import chain_in_blocks, fuse_eoperators
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import find_variants, variants_by_algorithm
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.onnx_fragment import session_options

CASES = ("phases 512 256 4", "phases 256 128 8", "phases 128 64 16", "conv 64 56", "conv 128 28", "conv 256 28",
         "conv 256 14", "conv 512 14")  # fmt: skip
"""Transposed 4x4 convolutions of stride 2 and 3x3 convolutions: channels, features, side."""

CALLS = 8
"""Of a sample."""


def program(case: str) -> tuple[Program, onnx.NodeProto]:
    """Return the program of *case*, and its operator."""
    kind, *sizes = case.split()
    numbers = tuple(map(int, sizes))
    if kind == "phases":
        return transposed(1, *numbers), NODE
    channels, side = numbers
    return convolution(1, channels, side, 1), helper.make_node(
        "Conv", ["A", "K"], ["Y"], kernel_shape=[3, 3], pads=[1] * 4
    )


def library(node: onnx.NodeProto, arrays: Mapping[str, Any], threads: int) -> Callable[[], Any]:
    """Return ONNX Runtime's *node*; its threads release the cores after a call, as those of our sessions do."""
    given, weights = node.input
    inputs = [helper.make_tensor_value_info(given, TensorProto.FLOAT, arrays[given].shape)]
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "one", inputs, outputs, [numpy_helper.from_array(arrays[weights], weights)])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options, providers = session_options(threads), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return lambda: session.run(None, {given: arrays[given]})[0]


def ways(found: Chain, threads: int) -> dict[str, tuple[ChainPart, ...]]:
    """Return the parts of *found* for each way to share it, by name."""
    machine = this_machine()

    def cut(part: ChainPart) -> ChainPart:
        return replace(part, cuts=choose_cuts(part.chain, threads, machine))

    out = {"one thread": choose_parts(found, 1, machine), "one part": (cut(ChainPart(found)),)}
    for n, (first, second) in enumerate(split_chain(found)):
        out[f"two parts{n or ''}"] = cut(first), cut(second)
        columns = [c for c in cut(second).cuts if c.traversal == found.result.scope.traversals[1]]
        if columns:
            out["channels"] = (ChainPart(found, tuple(columns)),)
    return out | {"chosen": choose_parts(found, threads, machine)}


def calls(scope: Scope, found: Chain, threads: int) -> dict[str, Callable[[], Any]]:
    """Return the kernels of *scope* on random numbers, by the names of ``ways``; print how they are cut."""
    sizes = {t.name: prod(t.shape) for t in tensors(scope)}
    rng = np.random.default_rng(0)
    held = [tvm_ffi.from_dlpack(aligned(rng.standard_normal(size).astype(np.float32))) for size in sizes.values()]
    made: dict[str, Callable[[], Any]] = {}
    results = []
    for name, parts in ways(found, threads).items():
        own = 1 if name == "one thread" else threads
        function = kernel.chain_function(parts, sizes, own, this_machine())
        call = tvm.compile(tvm.IRModule({"main": function}), target=compiled._target(own))["main"]
        results.append(aligned_empty(scope.shape))
        out = tvm_ffi.from_dlpack(results[-1].reshape(-1))
        made[name] = lambda call=call, out=out: call(*held, out)  # type: ignore[misc]
        made[name]()
        assert np.array_equal(results[-1], results[0]), name
        told = (" × ".join(f"{c.traversal.name} in {c.blocks}" for c in p.cuts) or "whole" for p in parts)
        print(f"    {name}: {'; '.join(told)}")
    return made


def main() -> None:
    """Print the lower quartile of each case and algorithm in µs, and the speedup over one thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=4.0, help="time budget of each search")
    parser.add_argument("--most", type=int, default=2, help="maximum number of algorithms for each case")
    parser.add_argument("--case", nargs="*", default=CASES)
    args = parser.parse_args()
    compiled.use_threads(args.threads)
    model = CostModel(cpu_default(1))
    rng = np.random.default_rng(0)

    def cost(p: Program) -> tuple[float, str]:
        found = model.program_cost(p)
        return found.seconds, found.how

    for case in args.case:
        given, node = program(case)
        arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in given.inputs}
        theirs = {f"ONNX Runtime, {n}": library(node, arrays, n) for n in sorted({1, args.threads})}
        groups = variants_by_algorithm(find_variants(given, cost, Settings(seconds=args.seconds)).variants, 7, 1.0)
        forms = (
            next(filter(None, (chain_in_blocks(fuse_eoperators(e.derivation())) for e in g[:4] if e.algorithm)), None)
            for g in groups
        )
        for made in [form for form in forms if form is not None][: args.most]:
            scope = made.end.equations[-1].scope
            found = tileable_chain(scope, this_machine())
            assert found is not None
            print(case, "tables", sorted({t.shape for t in _tables(made.end)}))
            timed = calls(scope, found, args.threads) | theirs
            samples: dict[str, list[float]] = {name: [] for name in timed}
            for _ in range(args.rounds):
                for name, call in timed.items():
                    sleep(0.004)  # until the threads of the call before wait no longer in a loop
                    call()
                    began = perf_counter()
                    for _ in range(CALLS):
                        call()
                    samples[name].append((perf_counter() - began) / CALLS)
            low = {name: quantiles(s, n=4)[0] for name, s in samples.items()}
            for name, seconds in low.items():
                ratio = low[f"ONNX Runtime, {1}" if name.startswith("ONNX") else "one thread"] / seconds
                print(f"    {name:24s}{seconds * 1e6:9.0f}{ratio:7.2f}", flush=True)


def _tables(found: Program) -> list[Table]:
    return [a.source for e in found.equations for a in accesses(e.scope.body) if isinstance(a.source, Table)]


if __name__ == "__main__":
    main()
