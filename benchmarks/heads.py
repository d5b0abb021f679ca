"""Measure GCN's separable heads with grouped taps: ``python -m benchmarks.heads [--rounds N] [--small]``.

A head is a pair of separable 11x11 windows from many channels to 21 classes.  Three versions run in turn, in processor
time: ONNX Runtime; each convolution with its fastest kernel and no rewrite; and the large convolutions with taps in
groups of four (``--small``: the small ones too).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from statistics import geometric_mean
from time import thread_time
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.blocks import lower_quartiles
from benchmarks.merging import separable
from einnet_explore.analysis.counts import is_compute_bound
from einnet_explore.cost import program_seconds
from einnet_explore.ir import Program
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.rules import BILINEAR_SUBSTITUTION, FEWER_PRODUCTS, RULES, Derivation
from einnet_explore.runtime.implementation_choice import ProfileStore, compile_measured
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options
from einnet_explore.strategies.strategy import Restrictions, best_first_moves
from einnet_explore.syntax import parse

CASES = ((2048, 7), (1024, 14), (512, 28), (256, 56))
"""(channels, side) of the stages of GCN's encoder at 224²."""

CLASSES, TAPS = 21, 11


def in_groups(program: Program, names: Collection[str]) -> Derivation:
    """Return the first choice that groups the taps of each equation in *names*."""
    done = Derivation(program)
    for name in names:
        fixed = frozenset(e.name for e in done.end.equations if e.name != name)
        made = best_first_moves(done.end, Restrictions((*RULES, *FEWER_PRODUCTS), fixed))
        for match in next(m for m, _ in made if [x for x in m[1:] if x.rule == BILINEAR_SUBSTITUTION]):
            done = done.then(match)
    return done


def run_by(start: Derivation) -> Derivation:
    """Match or generate every equation of *start* unchanged, then fuse."""
    fixed = frozenset(e.name for e in start.end.equations if not is_compute_bound(e.scope))
    search = Search(start.end, program_seconds, Options(max_depth=0, fixed=fixed, rules=(*RULES, *FEWER_PRODUCTS)))
    found = min((e for e in search.run() if isinstance(e, Found)), key=lambda e: e.seconds)
    for step in search.derivation(found.state.id).steps:
        start = start.then(step.match)
    return fuse_eoperators(start)


def library(c: int, side: int, weights: dict[str, Any], x: Any, threads: int) -> Callable[[], Any]:
    """Return the head in ONNX Runtime."""
    half = TAPS // 2
    down = {"kernel_shape": [TAPS, 1], "pads": [half, 0, half, 0]}
    across = {"kernel_shape": [1, TAPS], "pads": [0, half, 0, half]}
    ways = (("X", "A", "P", down), ("P", "B", "Q", across), ("X", "C", "R", across), ("R", "D", "S", down))
    nodes = [helper.make_node("Conv", [data, taps], [out], **how) for data, taps, out, how in ways]
    nodes.append(helper.make_node("Add", ["Q", "S"], ["Y"]))
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [1, c, side, side])]
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(
        nodes, "head", inputs, outputs, [numpy_helper.from_array(w, n) for n, w in weights.items()]
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"X": x})[0]


def main() -> None:
    """Print one line per head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--small", action="store_true", help="group the taps of the small convolutions as well")
    args = parser.parse_args()
    rng, store = np.random.default_rng(0), ProfileStore()
    print("head           ONNX Runtime  as it is  in groups  times faster  before  error")
    gains = []
    for c, side in CASES:
        program = parse(separable(c, CLASSES, side, TAPS))
        arrays = {t.name: rng.standard_normal(t.shape, np.float32) for t in program.inputs}
        weights = {t.name: arrays[t.name] / (t.shape[1] * TAPS) ** 0.5 for t in program.inputs if t.weight}
        theirs = library(c, side, weights, arrays["X"], 1)
        names = ("P", "R", "Q", "S") if args.small else ("P", "R")
        calls: dict[str, Callable[[], Any]] = {"theirs": theirs}
        for kind, start in (("plain", Derivation(program)), ("groups", in_groups(program, names))):
            run = compile_measured(run_by(start).end, 1, weights, store)
            run.inputs["X"][...] = arrays["X"]
            run.execute()
            error = np.abs(run.outputs["Y"] - (want := theirs())).max() / np.abs(want).max()
            calls[kind] = run.execute
        found = lower_quartiles(calls, args.rounds, thread_time)
        gains.append(found["theirs"] / found["groups"])
        print(
            f"{c}→{CLASSES}, {side}²".ljust(14), *(f"{found[name] * 1e6:10.0f}" for name in calls),
            f"{gains[-1]:12.2f} {found['theirs'] / found['plain']:8.2f}  {error:.1e}", flush=True,
        )  # fmt: skip
    print(f"geometric mean {geometric_mean(gains):.2f}")


if __name__ == "__main__":
    main()
