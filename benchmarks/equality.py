"""Equality of the evaluation models and what optimisers make of them: ``python -m benchmarks.equality [MODEL …]``.

Each model is compared with ONNX Runtime's file of each level, the file that ``optimize`` writes for ONNX Runtime, its
form with constants folded, and a form in other operators.  Then single elements of weights, attributes and wires are
changed (``--mutations``); each change must be found, with an input.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import einnet_explore as ee
from einnet_evaluation.models import MODELS
from einnet_explore.cli.output import format_table
from einnet_explore.onnx_import.load import load_model

BUDGET_SECONDS = 60.0
HEAD = ["model", "compared with", "verdict", "seconds", "pairs proved", "weights folded", "why"]


def main() -> None:
    """Print a row for each pair, then the number of mutations found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equality", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="evaluation models (default: all)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tuning for the own file (default: 20)")
    parser.add_argument("--mutations", type=int, default=40, help="changes of each model (default: 40)")
    arguments = parser.parse_args()
    rows, counts = [HEAD], Counter[str]()
    for kind in MODELS:
        if arguments.models and kind.name not in arguments.models:
            continue
        proto = kind.write(1, kind.size)
        for name, other in forms(proto, arguments.budget):
            found = ee.equal(proto, other, budget=BUDGET_SECONDS)
            sizes = [f"{found.seconds:.1f}", str(len(found.pairs)), str(len(found.folded))]
            rows.append([kind.name, name, found.kind, *sizes, found.why])
            print(*rows[-1], sep=" | ", flush=True)
            counts[found.kind] += 1
        for name, changed in mutations(proto, arguments.mutations):
            found = ee.equal(proto, changed, budget=BUDGET_SECONDS)
            counts[f"mutations {found.kind}"] += 1
            if found.kind != "different":
                print(kind.name, name, found, sep=" | ", flush=True)
    print(format_table(rows))
    print(dict(counts))


def forms(proto: onnx.ModelProto, budget: float) -> Iterable[tuple[str, onnx.ModelProto]]:
    """Yield equal models by name."""
    for level in ("BASIC", "EXTENDED"):
        yield f"ONNX Runtime, {level.lower()}", optimised_by_runtime(proto, level)
    yield (
        "optimize, for ONNX Runtime",
        ee.optimize(proto, budget=budget, threads=1, target_runtime="onnxruntime").onnx(),
    )
    yield "constants folded", load_model(proto).proto
    yield "other operators", respelled(proto)


def optimised_by_runtime(proto: onnx.ModelProto, level: str) -> onnx.ModelProto:
    """Return what ONNX Runtime's optimiser makes of *proto* at *level*."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        made: onnx.ModelProto = onnx.load(path)
        return made


def respelled(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return *proto* with normalisations, biases, activations and products in other operators."""
    out = onnx.ModelProto.FromString(proto.SerializeToString())
    weights = {weight.name: numpy_helper.to_array(weight) for weight in out.graph.initializer}
    spelling = _Spelling(weights)
    nodes = [new for node in out.graph.node for new in SPELLINGS.get(node.op_type, _Spelling.same)(spelling, node)]
    del out.graph.node[:]
    out.graph.node.extend(nodes)
    out.graph.initializer.extend(spelling.made)
    del out.graph.value_info[:]
    return out


class _Spelling:
    """Other spellings of nodes; *made* are the new weights."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights, self.made = weights, list[onnx.TensorProto]()

    def constant(self, values: np.ndarray | float) -> str:
        self.made.append(numpy_helper.from_array(np.asarray(values, np.float32), f"spelled_{len(self.made)}"))
        return self.made[-1].name

    def same(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [node]

    def relu(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [helper.make_node("Max", [node.input[0], self.constant(0.0)], [node.output[0]], node.name)]

    def batch_normalisation(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        scale, shift, mean, variance = (self.weights[name].reshape(-1, 1, 1) for name in node.input[1:])
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        centred, scaled = f"{node.name}/centred", f"{node.name}/scaled"
        return [
            helper.make_node("Sub", [node.input[0], self.constant(mean)], [centred], centred),
            helper.make_node("Mul", [centred, self.constant(scale / np.sqrt(variance + epsilon))], [scaled], scaled),
            helper.make_node("Add", [scaled, self.constant(shift)], [node.output[0]], node.name),
        ]

    def convolution(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if len(node.input) < 3:
            return [node]
        shift = self.constant(self.weights[node.input[2]].reshape(-1, 1, 1))
        plain = onnx.NodeProto.FromString(node.SerializeToString())
        del plain.input[2:]
        plain.output[0] = plain.name = f"{node.name}/plain"
        return [plain, helper.make_node("Add", [shift, plain.output[0]], [node.output[0]], node.name)]

    def general_product(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if given.keys() - {"transB"} or len(node.input) < 3:
            return [node]
        weight = self.weights[node.input[1]]
        plain = f"{node.name}/plain"
        turned = self.constant(weight.T if given.get("transB") else weight)
        return [
            helper.make_node("MatMul", [node.input[0], turned], [plain], plain),
            helper.make_node("Add", [plain, node.input[2]], [node.output[0]], node.name),
        ]

    def softmax(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
        power, total, axes = f"{node.name}/power", f"{node.name}/total", f"{node.name}/axes"
        self.made.append(numpy_helper.from_array(np.array([axis]), axes))
        return [
            helper.make_node("Exp", [node.input[0]], [power], power),
            helper.make_node("ReduceSum", [power, axes], [total], total, keepdims=1),
            helper.make_node("Div", [power, total], [node.output[0]], node.name),
        ]


SPELLINGS: dict[str, Callable[[_Spelling, onnx.NodeProto], list[onnx.NodeProto]]] = {
    "Relu": _Spelling.relu,
    "BatchNormalization": _Spelling.batch_normalisation,
    "Conv": _Spelling.convolution,
    "ConvTranspose": _Spelling.convolution,
    "Gemm": _Spelling.general_product,
    "Softmax": _Spelling.softmax,
}


def mutations(proto: onnx.ModelProto, count: int) -> Iterable[tuple[str, onnx.ModelProto]]:
    """Yield *count* models with one change: a weight's element, an operator, an attribute, or an operand."""
    rng = np.random.default_rng(0)
    changes = [*_changed_weights(proto, rng), *_changed_nodes(proto)]
    for n in rng.permutation(len(changes))[:count]:
        name, change = changes[n]
        changed = onnx.ModelProto.FromString(proto.SerializeToString())
        change(changed)
        yield name, changed


Change = tuple[str, Callable[[onnx.ModelProto], None]]


def _changed_weights(proto: onnx.ModelProto, rng: np.random.Generator) -> Iterable[Change]:
    for n, weight in enumerate(proto.graph.initializer):
        array = numpy_helper.to_array(weight).copy()
        if array.dtype.kind != "f" or not array.size:
            continue
        at = int(rng.integers(array.size))
        array.reshape(-1)[at] += np.float32(np.abs(array).max() + 0.25)

        def change(model: onnx.ModelProto, n: int = n, array: np.ndarray = array) -> None:
            model.graph.initializer[n].CopyFrom(numpy_helper.from_array(array, model.graph.initializer[n].name))

        yield f"{weight.name}[{at}]", change


OTHER_OPERATORS = {
    "Add": "Sub", "Mul": "Add", "Div": "Mul", "Sub": "Add", "Relu": "Abs", "Tanh": "Sigmoid", "Sigmoid": "Tanh",
    "MaxPool": "AveragePool", "GlobalAveragePool": "GlobalMaxPool", "Softmax": "LogSoftmax", "Erf": "Tanh",
}  # fmt: skip


def _changed_nodes(proto: onnx.ModelProto) -> Iterable[Change]:
    shapes = {w.name: tuple(w.dims) for w in proto.graph.initializer}
    for n, node in enumerate(proto.graph.node):
        if new := OTHER_OPERATORS.get(node.op_type):

            def respell(model: onnx.ModelProto, n: int = n, new: str = new) -> None:
                model.graph.node[n].op_type = new

            yield f"{node.name}: {new}", respell
        twins = [name for name, shape in shapes.items() if len(node.input) > 1 and shape == shapes.get(node.input[1])]
        if other := next((name for name in twins if name != node.input[1]), None):

            def rewire(model: onnx.ModelProto, n: int = n, other: str = other) -> None:
                model.graph.node[n].input[1] = other

            yield f"{node.name}: reads {other}", rewire


if __name__ == "__main__":
    main()
