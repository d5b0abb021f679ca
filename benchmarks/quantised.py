"""Compare plans of quantised models with ONNX Runtime and OpenVINO: ``python -m benchmarks.quantised [CASE …]``.

A case is a model that ONNX Runtime's tool has quantised to QDQ form with random calibration: ``resnet18`` with weights
quantised by tensor, ``resnet18-channels`` by channel, and ``block``, a transformer block.  ``optimize`` derives the
plan.  With ``--forms``, which needs no quiet machine, every subprogram that has a variant runs as the one that takes
the least processor time by itself instead.

All runtimes are called in turn, on one thread, and the processor times of each turn are compared, which other work on
the machine affects little.  OpenVINO runs in a process of its own, where ``--openvino FOLDER`` says where it is
installed.

Exact outputs are those of the model evaluated in float64, so that only ``QuantizeLinear`` rounds.  They are also
compared with those of ONNX Runtime without operators on quantised values, which rounds the result of every node to
float32.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median, quantiles
from time import process_time
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

WORKER = "--worker"
ROUNDS, CALLS = 60, 2
CASES = ("resnet18", "resnet18-channels", "block")
POSITIONS, WIDTH, HEADS, HIDDEN = 128, 256, 4, 1024


def transformer_block() -> onnx.ModelProto:
    """Return self-attention and a network of two layers, each with a sum and a layer normalisation after it."""
    rng = np.random.default_rng(0)
    head = WIDTH // HEADS
    weights: dict[str, Any] = {
        "heads": np.array([POSITIONS, HEADS, head], np.int64), "rows": np.array([POSITIONS, WIDTH], np.int64),
        "scale": np.float32(head**-0.5), "gain": np.ones(WIDTH, np.float32), "shift": np.zeros(WIDTH, np.float32),
    }  # fmt: skip
    nodes: list[onnx.NodeProto] = []

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    def linear(x: str, name: str, size: int, result: int) -> str:
        weights[f"w{name}"] = (rng.standard_normal((size, result)) * size**-0.5).astype(np.float32)
        weights[f"b{name}"] = rng.standard_normal(result).astype(np.float32)
        return node("Add", node("MatMul", x, f"w{name}"), f"b{name}")

    def by_head(name: str, *order: int) -> str:
        return node("Transpose", node("Reshape", linear("x", name, WIDTH, WIDTH), "heads"), perm=order)

    q, k, v = by_head("q", 1, 0, 2), by_head("k", 1, 2, 0), by_head("v", 1, 0, 2)
    mixed = node("MatMul", node("Softmax", node("Mul", node("MatMul", q, k), "scale"), axis=-1), v)
    mixed = node("Reshape", node("Transpose", mixed, perm=(1, 0, 2)), "rows")
    x = node("LayerNormalization", node("Add", linear(mixed, "o", WIDTH, WIDTH), "x"), "gain", "shift")
    hidden = linear(node("Relu", linear(x, "1", WIDTH, HIDDEN)), "2", HIDDEN, WIDTH)
    y = node("LayerNormalization", node("Add", hidden, x), "gain", "shift")
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [POSITIONS, WIDTH])],
        [helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, [POSITIONS, WIDTH])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def write_quantised(case: str, path: Path) -> None:
    """Write the model of *case*, quantised, to *path*."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from einnet_evaluation.models.convolutional import RESNET18

    model = transformer_block() if case == "block" else RESNET18.write(1, RESNET18.size)
    given = model.graph.input[0]
    shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)

    class RandomReader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter([{given.name: rng.standard_normal(shape).astype(np.float32)} for _ in range(4)])

        def get_next(self) -> Any:
            return next(self.batches, None)

    whole, ready = path.with_name("float.onnx"), path.with_name("ready.onnx")
    onnx.save(model, whole)
    quant_pre_process(str(whole), str(ready), skip_symbolic_shape=True)
    quantize_static(
        str(ready), str(path), RandomReader(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=case.endswith("channels"),
    )  # fmt: skip


def exact_output(path: Path, feeds: Mapping[str, Any]) -> Any:
    """Return the output of the model in *path* where no number but those that it quantises is rounded."""
    from einnet_explore.onnx_import.load import load_model

    model = load_model(path)
    return exact_values(model, feeds)[model.identifiers[model.outputs[0].name]].astype(np.float32)


def float32_output(path: Path, feeds: Mapping[str, Any]) -> Any:
    """Return the output of the model in *path* where ONNX Runtime computes each node in float32."""
    from einnet_explore.onnx_import.load import load_model
    from einnet_explore.pipeline.model_sessions import run_definition

    return next(iter(run_definition(load_model(path), feeds).values()))


def exact_values(model: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return all values of the loaded *model*, by identifier, in float64 or as integers."""
    from einnet_explore.interpreter.evaluation import evaluate
    from einnet_explore.ir import ELEMENT_TYPES
    from einnet_explore.onnx_import import express

    held = {model.identifiers[name]: array for name, array in {**model.weights, **feeds}.items()}
    for node in model.nodes:
        equations: Any = express(node, model)
        for equation in equations:
            made = np.asarray(evaluate(equation.scope, held, np.float64))
            kind = equation.tensor.dtype
            held[equation.name] = made.astype(kind if ELEMENT_TYPES[kind].is_integer else np.float64)
    return held


def main() -> None:
    """Print one line for each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantised", description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--openvino", metavar="FOLDER", help="a folder in which OpenVINO is installed")
    parser.add_argument("--forms", action="store_true", help="replace every subprogram, without selection")
    parser.add_argument("--budget", type=float, default=300.0, metavar="SECONDS", help="of tuning (default: 300)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for case in asked.cases:
            path = Path(folder) / "model.onnx"
            write_quantised(case, path)
            made = plan_of_forms(path) if asked.forms else optimised_plan(path, asked.budget)
            print(case, *compare(path, made, asked.openvino), sep="; ", flush=True)


def optimised_plan(path: Path, budget: float) -> tuple[Any, str]:
    """Return the plan of ``optimize``, and what it replaces."""
    import einnet_explore as ee

    fast = ee.optimize(path, threads=1, budget=budget)
    return fast.plan, f"{sum(part.kept for part in fast.parts)} of {len(fast.parts)} subprograms"


def plan_of_forms(path: Path) -> tuple[Any, str]:
    """Return the plan in which every subprogram is its fastest variant, and how many of them multiply bytes.

    Print the times of these by themselves, in ONNX Runtime and here.
    """
    from einnet_explore.onnx_import.load import load_model
    from einnet_explore.pipeline.fusion import fuse_eoperators
    from einnet_explore.pipeline.model_sessions import subgraph_session
    from einnet_explore.pipeline.partition import partition
    from einnet_explore.pipeline.plan import ProgramCall, build_plan
    from einnet_explore.pipeline.tuning_context import Implementations, Settings
    from einnet_explore.pipeline.variants import find_variants, select_finalists
    from einnet_explore.runtime.implementation_choice import ProfileStore, compile_measured

    model, store, settings = load_model(path), ProfileStore(), Settings(threads=1, seconds=1.0)
    cost = Implementations(settings, store).cost
    found: dict[Any, Any] = {}
    calls, integers = {}, 0
    for part in partition(model).subprograms:
        program, names = part.anonymous.program, part.value_names(model)
        if program not in found:
            ranked = find_variants(program, cost, settings).variants
            found[program] = [fuse_eoperators(v.derivation()).end for v in select_finalists(ranked, 4, float("inf"))]
        if not found[program]:
            continue  # no variant was found: the original stays
        weights = {t.name: model.weights[names[t.name]] for t in program.inputs if t.weight}
        made = [compile_measured(end, 1, weights, store) for end in found[program]]
        rng = np.random.default_rng(0)
        for each in made:
            for array in each.inputs.values():
                array[...] = rng.integers(0, 100, array.shape)
        session = subgraph_session(model, part.nodes)
        given = {names[name]: array for name, array in made[0].inputs.items()}
        tried: list[Callable[[], object]] = [
            lambda s=session, g=given: s.run(None, g),
            *(each.execute for each in made),
        ]
        theirs, *times = (min(_seconds(call) for _ in range(ROUNDS // 4)) for call in tried)
        fastest = times.index(min(times))
        if "integers" in made[fastest].engines.values():
            print(
                f"{part.nodes[-1]}: ONNX Runtime {theirs * 1e6:.0f} µs, ours {times[fastest] * 1e6:.0f} µs", flush=True
            )
        found[program] = [found[program][fastest]]
        integers += "integers" in made[fastest].engines.values()
        calls[part.nodes] = ProgramCall(made[fastest], names)
    return build_plan(model, calls, 1), f"{len(calls)} subprograms, {integers} with products of bytes"


def compare(path: Path, made: tuple[Any, str], openvino: str | None) -> list[str]:
    """Return times, ratios and equal outputs of all runtimes on the model in *path*."""
    import onnxruntime

    plan, what = made
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    want, got = session.run(None, feeds)[0], next(iter(plan.run(feeds).values()))
    exact, nodewise = exact_output(path, feeds), float32_output(path, feeds)
    calls: dict[str, Callable[[], float]] = {
        "ONNX Runtime": lambda: _seconds(lambda: session.run(None, feeds)),
        "plan": lambda: _seconds(lambda: plan.run(feeds)),
    }
    worker = None
    if openvino is not None:
        np.savez(path.with_name("inputs.npz"), **feeds)
        worker = _start(path, openvino)
        calls["OpenVINO"] = lambda: float(_answer(worker))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            times[name].append(calls[name]())
    if worker is not None:
        worker.communicate()
    parts = [what]
    for name, taken in times.items():
        ratios = [other / own for other, own in zip(taken, times["plan"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        ratio = "" if name == "plan" else f", {median(ratios):.2f} ({low:.2f} to {high:.2f}) times the plan's"
        parts.append(f"{name} {median(taken) * 1e3:.2f} ms{ratio}")
    for name, defined in (("exact outputs", exact), ("outputs of float32 nodes", nodewise)):
        parts.append(f"{name}: {_share(got, defined):.1%}, of ONNX Runtime {_share(want, defined):.1%}")
    parts.append(f"of float32 nodes {_share(nodewise, exact):.1%} exact")
    return parts


def _share(found: Any, exact: Any) -> float:
    """Return the share of equal elements; those that are not quantised last are equal up to a rounding."""
    return float(np.mean(np.isclose(found, exact, rtol=1e-6, atol=1e-6)))


def _seconds(call: Callable[[], object]) -> float:
    began = process_time()
    for _ in range(CALLS):
        call()
    return (process_time() - began) / CALLS


def _start(path: Path, openvino: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": openvino}
    command = [sys.executable, "-P", __file__, WORKER, str(path), str(path.with_name("inputs.npz"))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, env=environment, **pipes)


def _answer(worker: subprocess.Popen[str]) -> str:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    return worker.stdout.readline()


def _work(path: str, inputs: str) -> None:
    """Compile the model with OpenVINO, then answer each line with the processor seconds of a call."""
    import openvino  # type: ignore[import-not-found]

    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()
    feeds = dict(np.load(inputs))
    request.infer(feeds)
    for _ in sys.stdin:
        print(_seconds(lambda: request.infer(feeds)), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        _work(*sys.argv[2:])
    else:
        main()
