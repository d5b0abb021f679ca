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
from itertools import zip_longest
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
MAX_MUTATED_SIZE = 224
"""Size of a model that is changed, at most: a difference is confirmed by running it."""

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
        mutated = kind.write(1, min(kind.size, MAX_MUTATED_SIZE))
        for name, changed in mutations(mutated, arguments.mutations):
            found = ee.equal(mutated, changed, budget=BUDGET_SECONDS)
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


Change = tuple[str, Callable[[onnx.ModelProto], None]]


def mutations(proto: onnx.ModelProto, count: int) -> Iterable[tuple[str, onnx.ModelProto]]:
    """Yield *count* models with one change, each kind in turn: weights, operators, attributes, axes and operands."""
    rng = np.random.default_rng(0)
    kinds = [_changed_weights(proto, rng), _changed_operators(proto), _changed_attributes(proto), _changed_wires(proto)]
    drawn = [[changes[n] for n in rng.permutation(len(changes))] for changes in map(list, kinds)]
    in_turn = [change for changes in zip_longest(*drawn) for change in changes if change is not None]
    for name, change in in_turn[:count]:
        changed = onnx.ModelProto.FromString(proto.SerializeToString())
        change(changed)
        yield name, changed


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


def _changed_operators(proto: onnx.ModelProto) -> Iterable[Change]:
    for n, node in enumerate(proto.graph.node):
        if new := OTHER_OPERATORS.get(node.op_type):

            def respell(model: onnx.ModelProto, n: int = n, new: str = new) -> None:
                model.graph.node[n].op_type = new

            yield f"{node.name}: {new}", respell


def _changed_attributes(proto: onnx.ModelProto) -> Iterable[Change]:
    """Yield changes of attributes that leave the shapes as they are."""
    model = load_model(proto)
    for n, node in enumerate(proto.graph.node):
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        known = model.values.get(node.input[0])
        shape = (known.shape if known else None) or ()
        new = dict[str, object]()
        if any(given.get("pads", ())):  # the window begins one element later
            half = len(given["pads"]) // 2
            new["pads"] = [
                given["pads"][0] - 1,
                *given["pads"][1:half],
                given["pads"][half] + 1,
                *given["pads"][half + 1 :],
            ]
        if "epsilon" in given:
            new["epsilon"] = given["epsilon"] + 0.5
        if node.op_type == "Gemm":
            new["alpha"] = given.get("alpha", 1.0) * 2
        if node.op_type == "Softmax":
            new["axis"] = next((axis for axis, size in enumerate(shape[:-1]) if size > 1), 0)
        if order := list(given.get("perm", ())):
            twins = [(a, b) for a in order for b in order if a < b and shape[a] == shape[b]]
            if twins:
                a, b = twins[0]
                new["perm"] = [b if axis == a else a if axis == b else axis for axis in order]
        if node.op_type == "Resize" and given.get("coordinate_transformation_mode") == b"align_corners":
            new["coordinate_transformation_mode"] = "half_pixel"
        for name, value in new.items():

            def adjust(model: onnx.ModelProto, n: int = n, name: str = name, value: object = value) -> None:
                changed = model.graph.node[n]
                others = [a for a in changed.attribute if a.name != name]
                del changed.attribute[:]
                changed.attribute.extend([*others, helper.make_attribute(name, value)])

            yield f"{node.name}: {name} = {value}", adjust


def _changed_wires(proto: onnx.ModelProto) -> Iterable[Change]:
    """Yield nodes that read another value of the same shape: another weight, or an operand of their operand's node."""
    model = load_model(proto)
    shapes = {name: value.shape for name, value in model.values.items()}
    makers = {output: node for node in proto.graph.node for output in node.output}
    weights = [w.name for w in proto.graph.initializer]
    for n, node in enumerate(proto.graph.node):
        for k, name in enumerate(node.input):
            near = makers[name].input if name in makers else weights
            other = next((v for v in near if v not in node.input and v and shapes.get(v, ()) == shapes.get(name)), None)
            if other is None or (len(node.input) > 1 and k == 0 and name not in makers):
                continue

            def rewire(model: onnx.ModelProto, n: int = n, k: int = k, other: str = other) -> None:
                model.graph.node[n].input[k] = other

            yield f"{node.name}: reads {other} for {name}", rewire
        if node.op_type == "Concat" and len({shapes.get(v) for v in node.input}) == 1 and len(node.input) > 1:

            def swap(model: onnx.ModelProto, n: int = n) -> None:
                first, second = model.graph.node[n].input[:2]
                model.graph.node[n].input[0], model.graph.node[n].input[1] = second, first

            yield f"{node.name}: its first operands exchanged", swap


if __name__ == "__main__":
    main()
