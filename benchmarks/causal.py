"""Causal linear attention as an ONNX model: the plan of ``ee.optimize`` against ONNX Runtime, interleaved, one thread.

``python -m benchmarks.causal [--gated] [--length 4096] [--depth 64] [--budget 150]``
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import einnet_explore as ee

ROUNDS = 11


def linear_attention(length: int, depth: int) -> onnx.ModelProto:
    """Y = M(Q Kᵀ) V for the mask M of positions that are not later."""
    return _model(length, depth, [helper.make_node("Where", ["mask", "S", "zero"], ["M"])])


def gated_attention(length: int, depth: int) -> onnx.ModelProto:
    """Y = M(exp(L - Lᵀ) ⊙ Q Kᵀ) V, where L adds up the logarithms of gates, G."""
    nodes = [
        helper.make_node("CumSum", ["G", "first"], ["L"]),
        helper.make_node("Unsqueeze", ["L", "second"], ["column"]),
        helper.make_node("Unsqueeze", ["L", "first"], ["row"]),
        helper.make_node("Sub", ["column", "row"], ["D"]),
        helper.make_node("Exp", ["D"], ["E"]),
        helper.make_node("Mul", ["E", "S"], ["R"]),
        helper.make_node("Where", ["mask", "R", "zero"], ["M"]),
    ]
    return _model(length, depth, nodes, helper.make_tensor_value_info("G", TensorProto.FLOAT, [length]))


def _model(length: int, depth: int, masked: list[onnx.NodeProto], *gates: onnx.ValueInfoProto) -> onnx.ModelProto:
    """Return the model in which *masked* makes M of the scores S."""
    nodes = [
        helper.make_node("Transpose", ["K"], ["T"], perm=[1, 0]),
        helper.make_node("MatMul", ["Q", "T"], ["S"]),
        *masked,
        helper.make_node("MatMul", ["M", "V"], ["Y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [length, depth]) for name in "QKVY"]
    weights = {
        "mask": np.tri(length, dtype=bool),
        "zero": np.float32(0),
        "first": np.array([0]),
        "second": np.array([1]),
    }
    read = {name for node in nodes for name in node.input}
    known = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items() if name in read]
    graph = helper.make_graph(nodes, "causal", [*values[:3], *gates], values[3:], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def main() -> None:
    """Print medians and the median ratio of ``ROUNDS`` rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gated", action="store_true", help="with decay between positions")
    parser.add_argument("--length", type=int, default=4096, help="positions (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=64, help="channels of a head (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=150, help="seconds of tuning (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "causal.onnx"
        model = gated_attention if arguments.gated else linear_attention
        onnx.save(model(arguments.length, arguments.depth), path)
        fast = ee.optimize(path, budget=arguments.budget, threads=1)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options)
    print(fast)
    inputs = fast.random_inputs()
    if arguments.gated:
        inputs["G"] = -np.abs(inputs["G"]) / 10
    times: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        start = perf_counter()
        fast(**inputs)
        between = perf_counter()
        session.run(None, inputs)
        times.append((between - start, perf_counter() - between))
    (want,), (got,) = session.run(None, inputs), fast(**inputs).values()
    ours, theirs = (1e3 * median(column) for column in zip(*times, strict=True))
    ratio = median(b / a for a, b in times)
    print(f"{ours:.2f} ms; ONNX Runtime {theirs:.2f} ms; ratio {ratio:.1f}")
    print(f"largest difference {np.abs(want - got).max() / np.abs(want).max():.1e} of the largest output")


if __name__ == "__main__":
    main()
