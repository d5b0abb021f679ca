"""Equality of models: what optimisers write is proved, and single changes are found."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime
import pytest
from exporter_spellings import exporter_spellings, function_spellings
from exporter_spellings import model as small_model
from onnx import TensorProto, helper, numpy_helper
from onnx_building import Dims, build

import einnet_explore as ee
from benchmarks.equality import mutations, respelled
from einnet_check import check as check_independently
from einnet_evaluation.models.builder import Builder
from einnet_explore.checker.record import COMPARISON, FORMAT, VERSION
from einnet_explore.cli import main
from einnet_explore.equivalence.certificate import certify
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline import value_proofs, value_samples
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.model_spelling import with_normal_spelling
from einnet_explore.session import model_equality
from einnet_explore.session.model_equality import Difference, Verdict
from einnet_explore.support.errors import Refused
from einnet_explore.viz.graph_figures import DIFFERENT_COLOUR
from tests.slow_cases import with_slow

LENGTH, WIDTH, HEADS = 6, 16, 2


class Block:
    """A transformer block with a convolution in front, written in one of two ways."""

    def __init__(self, spelling: str) -> None:
        self.spelling = spelling
        self.nodes: list[onnx.NodeProto] = []
        rng = np.random.default_rng(1)
        shapes = {"w": (4, 3, 3, 3), "bias": (4,), "g0": (4,), "h0": (4,), "mean": (4,), "Wp": (4 * 24, WIDTH * LENGTH)}
        shapes |= {f"W{n}": (WIDTH, WIDTH) for n in "qkvo"} | {f"b{n}": (WIDTH,) for n in "qkvo"}
        shapes |= {"W1": (WIDTH, 32), "b1": (32,), "W2": (32, WIDTH), "b2": (WIDTH,), "g1": (WIDTH,), "h1": (WIDTH,)}
        self.weights = {
            name: (rng.standard_normal(shape) / np.sqrt(shape[0] if len(shape) > 1 else 1)).astype(np.float32)
            for name, shape in shapes.items()
        }
        self.weights["h0"] = np.abs(self.weights["h0"])  # no channel is always below 0
        self.weights["var"] = np.abs(rng.standard_normal(4)).astype(np.float32) + np.float32(0.5)

    def constant(self, value: object, kind: type = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.array(value, kind)
        return name

    def node(self, op: str, *inputs: str, output: str = "", **attributes: object) -> str:
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"n{len(self.nodes)}", **attributes))  # type: ignore[arg-type]
        return name

    def normalised(self, x: str, scale: str, shift: str) -> str:
        if self.spelling == "fused":
            return self.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)
        last = self.constant([-1], np.int64)
        centred = self.node("Sub", x, self.node("ReduceMean", x, last))
        variance = self.node("ReduceMean", self.node("Mul", centred, centred), last)
        deviation = self.node("Sqrt", self.node("Add", variance, self.constant(1e-5)))
        return self.node("Add", self.node("Mul", self.node("Div", centred, deviation), scale), shift)

    def heads(self, x: str, letter: str) -> str:
        if self.spelling == "fused":
            y = self.node("Add", self.node("MatMul", x, f"W{letter}"), f"b{letter}")
        else:
            flat = self.node("Reshape", x, self.constant([LENGTH, WIDTH], np.int64))
            y = self.node("Gemm", flat, f"W{letter}", f"b{letter}")
        shape = self.constant([1, LENGTH, HEADS, WIDTH // HEADS], np.int64)
        return self.node("Transpose", self.node("Reshape", y, shape), perm=[0, 2, 1, 3])

    def convolution(self) -> str:
        if self.spelling == "fused":
            scale = self.weights["g0"] / np.sqrt(self.weights["var"] + np.float32(1e-5))
            self.weights["folded"] = self.weights["w"] * scale[:, None, None, None]
            self.weights["shift"] = (self.weights["bias"] - self.weights["mean"]) * scale + self.weights["h0"]
            y = self.node("Conv", "image", "folded", "shift", pads=[1, 1, 1, 1])
        else:
            y = self.node("Conv", "image", "w", "bias", pads=[1, 1, 1, 1])
            y = self.node("BatchNormalization", y, "g0", "h0", "mean", "var")
        flat = self.node("Reshape", self.node("Relu", y), self.constant([1, -1], np.int64))
        tokens = self.constant([1, LENGTH, WIDTH], np.int64)
        return self.node("Reshape", self.node("MatMul", flat, "Wp"), tokens)

    def attention(self, x: str) -> str:
        q, k, v = (self.heads(x, letter) for letter in "qkv")
        keys, root = self.node("Transpose", k, perm=[0, 1, 3, 2]), float(np.sqrt(WIDTH // HEADS))
        if self.spelling == "fused":
            scores = self.node("Div", self.node("MatMul", q, keys), self.constant(root))
        else:
            scores = self.node("MatMul", self.node("Mul", q, self.constant(1 / root)), keys)
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), v)
        joined = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self.node("Reshape", joined, self.constant([1, LENGTH, WIDTH], np.int64))
        return self.node("Add", self.node("MatMul", flat, "Wo"), "bo")

    def gelu(self, z: str) -> str:
        if self.spelling == "fused":
            inside = self.node("Erf", self.node("Div", z, self.constant(np.sqrt(2))))
            return self.node("Mul", self.node("Mul", z, self.node("Add", inside, self.constant(1))), self.constant(0.5))
        inside = self.node("Erf", self.node("Mul", z, self.constant(np.sqrt(0.5))))
        half = self.node("Mul", self.constant(0.5), z)
        return self.node("Mul", half, self.node("Add", self.constant(1), inside))

    def model(self) -> onnx.ModelProto:
        x = self.convolution()
        normal = self.normalised(x, "g1", "h1")
        attended = self.attention(normal)
        x = self.node("Add", *((x, attended) if self.spelling == "fused" else (attended, x)))
        z = self.gelu(self.node("Add", self.node("MatMul", x, "W1"), "b1"))
        self.node("Add", x, self.node("Add", self.node("MatMul", z, "W2"), "b2"), output="y")
        read = {name for node in self.nodes for name in node.input}
        graph = helper.make_graph(
            self.nodes,
            "block",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 4, 6])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, LENGTH, WIDTH])],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items() if name in read],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.fixture(scope="module")
def fused() -> onnx.ModelProto:
    return Block("fused").model()


@pytest.fixture(scope="module")
def plain() -> onnx.ModelProto:
    return Block("plain").model()


def optimised(model: onnx.ModelProto, level: str, path: Path) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def replayed(found: Verdict, folder: Path) -> set[str]:
    """The verdicts of the independent checker on the certificates of *found*."""
    found.save_certificates(folder)
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    assert len(records) == sum(len(case.pairs) for case in found.cases) or len(found.pairs)
    return {v.kind for record in records for v in check_independently(record)}


def test_reason_of_an_unknown_verdict_shows_the_beginning_of_a_long_operand() -> None:
    tensors = "tensor A[4, 8]\ntensor X[4]\n"
    whole = ee.parse(tensors + "Z[i:4] = sum[j:8] A[i, j]\nY[i:4] = X[i] / Z[i]\noutput Y")
    sums = [f"{{[i:4] sum[j:1] A[i, j+{n}]}}[i]" for n in range(8)]
    found = ee.equal(whole, ee.parse(f"{tensors}Y[i:4] = X[i] / ({' + '.join(sums)})"))
    assert found.kind == "unknown" and found.why.startswith("no sample depends on the pole of ")
    assert found.why.endswith(" …") and len(found.why) < 250


def test_two_spellings_of_a_block_are_equal_and_the_certificates_are_replayed(
    fused: onnx.ModelProto, plain: onnx.ModelProto, tmp_path: Path
) -> None:
    assert ee.equal(plain, fused).kind == "rounded"
    found = ee.equal(fused, plain)
    assert found
    assert found.kind == "rounded"
    assert {"folded", "shift"} <= {each.weight.partition("_")[2] for each in found.folded}
    assert max(each.error for each in found.folded) < 1e-6
    assert replayed(found, tmp_path) == {"proved"}


@pytest.mark.parametrize("level", ["BASIC", "EXTENDED"])
def test_files_of_onnx_runtimes_optimiser_are_equal(
    level: str, fused: onnx.ModelProto, plain: onnx.ModelProto, tmp_path: Path
) -> None:
    for model in (fused, plain):
        assert ee.equal(model, optimised(model, level, tmp_path / "m.onnx"))


def test_equal_models_without_folded_weights_are_proved(fused: onnx.ModelProto) -> None:
    assert ee.equal(fused, fused).kind == "proved"


def test_the_file_that_optimize_writes_is_equal(plain: onnx.ModelProto, tmp_path: Path) -> None:
    fast = ee.optimize(plain, budget=5, threads=1, target_runtime="onnxruntime")
    fast.save(tmp_path / "fast.onnx")
    assert ee.equal(plain, tmp_path / "fast.onnx")


OPTIMISED_BLOCK = Path(__file__).parent / "goldens" / "saved" / "block_of_attention.onnx"
"""The block as ``optimize`` once wrote it: the bias of the keys is gone, and scores are scaled after the product."""


def test_a_saved_file_of_attention_without_the_bias_of_its_keys_is_equal(
    plain: onnx.ModelProto, tmp_path: Path
) -> None:
    found = ee.equal(plain, OPTIMISED_BLOCK)
    assert found and any("exp(a + b)" in pair.certificate.detail for pair in found.pairs)
    assert replayed(found, tmp_path) <= {"proved", "rounded"}


def test_other_keys_than_in_the_saved_file_of_attention_are_different(plain: onnx.ModelProto) -> None:
    model = onnx.load(OPTIMISED_BLOCK)
    keys = next(w for w in model.graph.initializer if w.name == "Wk")
    array = numpy_helper.to_array(keys).copy()
    array[3, 5] += np.float32(0.25)
    keys.CopyFrom(numpy_helper.from_array(array, keys.name))
    assert ee.equal(plain, model).kind == "different"


SOFTMAX = """tensor Q[6, 8]
tensor K[6, 8]
tensor b[8] weight
S[i:6, j:6] = sum[k:8] 0.25 * Q[i, k] * (K[j, k] + b[k])
E[i:6, j:6] = exp(S[i, j] - {[x:6] max[r:6] S[x, r]}[i])
Y[i:6, j:6] = E[i, j] / {[x:6] sum[r:6] E[x, r]}[i]
output Y
"""

SOFTMAX_IN_PARTS = """tensor Q[6, 8]
tensor K[6, 8]
T[m:6, n:6] = sum[k:8] Q[m, k] * K[n, k]
S[i:1, m:6, n:6] = 0.25 * T[i+m, n]
E[i:6, j:6] = exp(S[0, i, j] - {[x:6] max[r:6] S[0, x, r]}[i])
Z1[i:6] = sum[r:4] E[i, r]
Z2[i:6] = sum[r:2] E[i, r+4]
Y[i:6, j:6] = E[i, j] / (Z1[i] + Z2[i])
output Y
"""


@pytest.mark.parametrize(
    ("part", "change", "kind"),
    [
        ("", "", "proved"),
        ("r+4", "r+3", "different"),
        ("sum[r:4] E", "sum[r:3] E", "different"),
        ("(Z1[i] + Z2[i])", "(Z1[i] + Z1[i])", "different"),
        ("0.25", "0.125", "different"),
        ("K[n, k]", "(K[n, k] + Q[n, k])", "different"),
    ],
)
def test_a_softmax_whose_sum_is_in_parts_is_equal_to_one_with_a_bias_of_the_keys(
    part: str, change: str, kind: str
) -> None:
    one, other = ee.parse(SOFTMAX), ee.parse(SOFTMAX_IN_PARTS.replace(part, change))
    found = ee.equal(one, other)
    assert found.kind == kind
    assert certify(one, other, exact_elements=None).kind == ("proved" if kind == "proved" else "unknown")
    record = {"format": FORMAT, "version": VERSION, "start": ee.text(one)}
    step = {"rule": COMPARISON, "at": "0", "params": {}, "after": ee.text(other), "certificate": None}
    verdicts = [v.kind for v in check_independently({**record, "steps": [step]})]
    assert verdicts == ["proved", "proved" if kind == "proved" else "unproved"]


def test_attention_without_the_bias_of_its_keys_is_equal(plain: onnx.ModelProto, tmp_path: Path) -> None:
    found = ee.equal(plain, with_normal_spelling(load_model(plain)).proto)
    assert found.kind == "proved"
    assert replayed(found, tmp_path) <= {"proved", "rounded"}


def mutants(model: onnx.ModelProto) -> Iterable[tuple[str, onnx.ModelProto]]:
    """*model* with one element of a weight, one attribute, one wire or one operator changed."""

    def copy() -> onnx.ModelProto:
        return onnx.ModelProto.FromString(model.SerializeToString())

    for n, weight in enumerate(model.graph.initializer):
        array = numpy_helper.to_array(weight)
        if array.dtype.kind != "f" or weight.name == "bk":  # softmax does not depend on the key's bias
            continue
        changed, other = copy(), array.copy()
        at = (0, array.size // 2, array.size - 1)[n % 3]
        other.reshape(-1)[at] += np.float32(0.25)
        changed.graph.initializer[n].CopyFrom(numpy_helper.from_array(other, weight.name))
        yield f"{weight.name}[{at}]", changed
    for n, node in enumerate(model.graph.node):
        for spelled in {
            "Add": "Sub",
            "Mul": "Add",
            "Div": "Mul",
            "Relu": "Abs",
            "Softmax": "Sigmoid",
            "Erf": "Tanh",
        }.items():
            if node.op_type == spelled[0] and "bk" not in node.input:
                changed = copy()
                changed.graph.node[n].op_type = spelled[1]
                if spelled[1] == "Sigmoid":
                    del changed.graph.node[n].attribute[:]
                yield f"{node.name}: {spelled[1]}", changed
        if node.op_type == "MatMul" and node.input[1] in ("Wq", "Wk", "Wv", "Wo"):
            changed = copy()
            changed.graph.node[n].input[1] = {"Wq": "Wk", "Wk": "Wv", "Wv": "Wo", "Wo": "Wq"}[node.input[1]]
            yield f"{node.name}: other weight", changed
        if node.op_type == "LayerNormalization":
            changed = copy()
            changed.graph.node[n].attribute[1].f = 0.1
            yield f"{node.name}: epsilon", changed


def test_single_changes_are_found_with_an_element_that_differs(fused: onnx.ModelProto) -> None:
    missed, count = [], 0
    for what, changed in mutants(fused):
        found = ee.equal(fused, changed)
        count += 1
        if found.kind != "different" or found.difference is None:
            missed.append((what, str(found)))
            continue
        session = onnxruntime.InferenceSession(changed.SerializeToString(), providers=["CPUExecutionProvider"])
        (got,) = session.run(["y"], dict(found.difference.inputs))
        assert got[found.difference.at] == pytest.approx(found.difference.second, rel=1e-4)
    assert count >= 40
    assert missed == []


def test_a_change_below_the_noise_is_never_called_proved(fused: onnx.ModelProto) -> None:
    changed = onnx.ModelProto.FromString(fused.SerializeToString())
    weight = next(w for w in changed.graph.initializer if w.name == "Wp")
    array = numpy_helper.to_array(weight).copy()
    array[0, 0] += np.float32(1e-4)
    weight.CopyFrom(numpy_helper.from_array(array, "Wp"))
    found = ee.equal(fused, changed)
    assert not found
    assert found.kind in ("different", "unknown")


def test_programs_are_compared_whatever_their_outputs_are_called() -> None:
    one = ee.parse("tensor A[4, 5]\ntensor B[5, 6]\nY[i:4, j:6] = sum[k:5] A[i, k] * B[k, j]\n")
    other = ee.parse("tensor A[4, 5]\ntensor B[5, 6]\nZ[a:4, b:6] = sum[c:5] B[c, b] * A[a, c]\n")
    wrong = ee.parse("tensor A[4, 5]\ntensor B[5, 6]\nZ[a:4, b:6] = sum[c:4] B[c, b] * A[a, c]\n")
    assert ee.equal(one, other).kind == "proved"
    assert ee.equal(one, wrong).kind == "different"


def test_copies_of_inputs_and_operators_without_expression_are_equal() -> None:
    def model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
        image, numbers = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y"))
        graph = helper.make_graph(nodes, "g", [image], [numbers, helper.make_tensor_value_info("z", 1, [2, 3])])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    one = model(
        [
            helper.make_node("Identity", ["x"], ["y"]),
            helper.make_node("Round", ["y"], ["r"]),
            helper.make_node("Add", ["r", "x"], ["z"]),
        ]
    )
    other = model(
        [
            helper.make_node("Round", ["x"], ["r"]),
            helper.make_node("Identity", ["x"], ["y"]),
            helper.make_node("Add", ["x", "r"], ["z"]),
        ]
    )
    wrong = model(
        [
            helper.make_node("Floor", ["x"], ["r"]),
            helper.make_node("Identity", ["x"], ["y"]),
            helper.make_node("Add", ["x", "r"], ["z"]),
        ]
    )
    assert ee.equal(one, other).kind == "proved"
    assert ee.equal(one, wrong).kind == "different"


def test_models_that_do_not_fit_are_refused(fused: onnx.ModelProto) -> None:
    other = onnx.ModelProto.FromString(fused.SerializeToString())
    other.graph.output.append(helper.make_tensor_value_info("v0", TensorProto.FLOAT, None))
    with pytest.raises(Refused, match="outputs: found 2 in the second model, expected 1"):
        ee.equal(fused, other)
    with pytest.raises(Refused, match="expected two programs, two families or two models"):
        ee.equal(fused, ee.parse("tensor A[4]\nY[i:4] = A[i]\n"))
    with pytest.raises(Refused, match=r"found a model \(m.onnx\) and a program, expected"):
        ee.equal("m.onnx", ee.parse("tensor A[4]\nY[i:4] = A[i]\n"))


def test_the_command_has_exit_codes_and_writes_inputs(
    fused: onnx.ModelProto, plain: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, wrong = (str(tmp_path / f"{name}.onnx") for name in ("one", "other", "wrong"))
    onnx.save(fused, one)
    onnx.save(plain, other)
    onnx.save(next(changed for _, changed in mutants(fused)), wrong)
    assert main(["equal", one, other, "--require", "rounded"]) == 0
    inputs, page, document = (str(tmp_path / name) for name in ("x.npz", "page.html", "found.json"))
    assert main(["equal", one, wrong, "--inputs", inputs, "--html", page, "--json", document]) == 1
    assert "in the first, " in capsys.readouterr().out
    assert np.load(inputs)["image"].shape == (1, 3, 4, 6)
    assert json.loads(Path(document).read_text())["kind"] == "different"
    assert "different" in Path(page).read_text()
    report = str(tmp_path / "report.xml")
    for two, failures, kind in ((other, 1, "rounded"), (one, 0, None)):
        assert main(["equal", one, two, "--junit", report]) == (3 if failures else 0)
        suite = ElementTree.parse(report).getroot()
        assert int(suite.attrib["failures"]) == failures
        assert [each.attrib["type"] for each in suite.iter("failure")] == [kind] * failures
    capsys.readouterr()
    assert main(["equal", one, str(tmp_path / "missing.onnx"), "--junit", report]) == 2
    (case,) = ElementTree.parse(report).getroot()
    assert f"error: {case[0].attrib['message']}" in capsys.readouterr().err and case[0].tag == "error"


def test_the_page_shows_both_graphs_and_the_term_that_differs(fused: onnx.ModelProto) -> None:
    wrong = dict(mutants(fused))["W2[511]"]
    found = ee.equal(fused, wrong, parts=True)
    assert found.nodes == ("n35", "n35") and "weight W2 differs in 1 of 512 elements, at [31, 15]: " in found.why
    assert len(found.pairs) > 35 and not ee.equal(fused, wrong).pairs
    page = found.page("fused and wrong")
    assert page.count("<svg") == 2 and page.count(DIFFERENT_COLOUR) == 2
    numbers = [graph.count(f">= {n}<") for graph in page.split("second model</text>") for n in range(1, 40)]
    assert sum(numbers) > 60 and numbers[:39] == numbers[39:]


def test_a_form_in_other_operators_is_equal() -> None:
    b = Builder("spelled", seed=3)
    x = b.node("Relu", b.batch_norm(b.conv("x", 3, 4, 3, padding=1, bias=True), 4))
    x = b.node("Relu", b.conv(x, 4, 1, 1, bias=True))
    x = b.node("Tanh", b.linear(b.node("Flatten", x), 36, 5))
    model = b.model({"x": (2, 3, 6, 6)}, x, (2, 5))
    other = respelled(model)
    assert {node.op_type for node in other.graph.node}.isdisjoint({"Relu", "BatchNormalization", "Gemm"})
    assert ee.equal(model, other) and ee.equal(other, model)
    for name, changed in mutations(model, 30):
        assert ee.equal(other, changed).kind == "different", name


def test_inputs_of_any_name_are_saved(tmp_path: Path) -> None:
    inputs = {name: np.arange(3, dtype=np.float32) for name in ("file", "allow_pickle", "args/0")}
    Difference("y", (0,), 1.0, 2.0, inputs).save_inputs(tmp_path / "x.npz")
    saved = np.load(tmp_path / "x.npz")
    assert {name: saved[name].tolist() for name in inputs} == {name: [0, 1, 2] for name in inputs}


def test_models_with_a_scalar_input_are_compared() -> None:
    first, second = (
        build([helper.make_node("Mul", order, ["y"])], {"x": (3,), "s": ()}, ["y"])
        for order in (["x", "s"], ["s", "x"])
    )
    assert ee.equal(first, second).kind == "proved"


X: Mapping[str, Dims] = {"x": ("batch", "length", 8)}


def dynamic(nodes: list[onnx.NodeProto], inputs: Mapping[str, Dims] = X, **weights: object) -> onnx.ModelProto:
    """Return a model with the output ``y``; *weights* are integers or become float32."""
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    return build(
        nodes, inputs, ["y"], {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in arrays.items()}
    )


WEIGHT = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def attention(inside: bool, name: str = "x") -> onnx.ModelProto:
    """Return attention with its scale on the scores, or *inside*, on the queries."""
    nodes = [
        helper.make_node("MatMul", [name, "w"], ["q"]),
        helper.make_node("Transpose", [name], ["k"], perm=[0, 2, 1]),
    ]
    if inside:
        nodes += [helper.make_node("Mul", ["q", "half"], ["r"]), helper.make_node("MatMul", ["r", "k"], ["s"])]
    else:
        nodes += [helper.make_node("MatMul", ["q", "k"], ["r"]), helper.make_node("Div", ["r", "two"], ["s"])]
    nodes += [helper.make_node("Softmax", ["s"], ["p"], axis=-1), helper.make_node("MatMul", ["p", name], ["y"])]
    return dynamic(nodes, {name: X["x"]}, w=WEIGHT, **({"half": 0.5} if inside else {"two": 2.0}))


def test_models_are_proved_equal_at_all_sizes(tmp_path: Path) -> None:
    found = ee.equal(attention(False), attention(True, "input"), all_sizes=True)
    assert found.kind == "proved" and found.guards == ("batch >= 1", "length >= 1")
    assert str(found).startswith("proved for all sizes with batch >= 1, length >= 1: ")
    assert found.to_json()["guards"] == ["batch >= 1", "length >= 1"]
    assert replayed(found, tmp_path) == {"proved"}


def test_means_over_a_dynamic_dimension_are_proved_at_all_sizes() -> None:
    axis = np.array([1])
    mean = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ReduceMean", ["h", "axis"], ["y"], keepdims=0),
    ]
    first = [
        helper.make_node("ReduceMean", ["x", "axis"], ["h"], keepdims=0),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    total = [
        helper.make_node("ReduceSum", ["x", "axis"], ["h"], keepdims=0),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    one, other, wrong = (dynamic(nodes, w=WEIGHT, axis=axis) for nodes in (mean, first, total))
    assert ee.equal(one, other, all_sizes=True).guards == ("batch >= 1", "length >= 2")
    assert ee.equal(one, wrong, all_sizes=True).kind == "different"


def halved(rows: Dims, two: int) -> onnx.ModelProto:
    """Return a model that adds up pairs of rows, as a reshaped array."""
    shape = [-1, *[d for d in rows[1:] if isinstance(d, int)], 2]
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["p"]), helper.make_node("Mul", ["p", "two"], ["q"])]
    nodes = nodes[: 1 + (two > 1)]
    nodes.append(helper.make_node("ReduceSum", [nodes[-1].output[0], "axis"], ["y"], keepdims=0))
    return dynamic(nodes, {"x": rows}, shape=shape, axis=[-1], **({"two": 1.0} if two > 1 else {}))


def test_all_remainders_of_a_size_are_one_verdict(tmp_path: Path) -> None:
    """A convolution of stride 2 has another form at odd sizes; a reshape into pairs has none there."""
    image: Mapping[str, Dims] = {"x": ("n", 3, "h", 16)}
    weight = np.random.default_rng(1).standard_normal((4, 3, 3, 3))
    conv = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2])
    one, other = (
        dynamic([conv, helper.make_node(op, ["c", *more], ["y"])], image, w=weight, **({"zero": 0.0} if more else {}))
        for op, more in (("Relu", []), ("Max", ["zero"]))
    )
    found = ee.equal(one, other, all_sizes=True, shapes={"x": (1, 3, 32, 16)})
    assert found.kind == "proved" and found.guards == ("n >= 1", "h >= 2")
    assert sorted(case.guards[-1] for case in found.cases) == ["h % 2 == 0", "h % 2 == 1"]
    assert replayed(found, tmp_path) == {"proved"}


def test_sizes_at_which_a_model_has_no_meaning_are_left_out() -> None:
    found = ee.equal(halved(("n",), 1), halved(("n",), 2), all_sizes=True, shapes={"x": (32,)})
    assert found.kind == "proved" and "n % 2 == 0" in found.guards


def test_models_that_differ_at_other_sizes_only_are_not_proved() -> None:
    """The second model cuts what is longer than 40: sizes near the first choice do not show it."""
    cut = helper.make_node("Slice", ["x", "start", "end", "axis"], ["y"])
    whole = dynamic([helper.make_node("Identity", ["x"], ["y"])])
    other = dynamic([cut], start=[0], end=[40], axis=[1])
    found = ee.equal(whole, other, all_sizes=True)
    assert found.kind == "unknown" and "length = 41 the operators have another form" in found.why
    assert ee.equal(whole, other, shapes={"x": (2, 40, 8)}).kind == "proved"


def test_a_weight_that_depends_on_the_sizes_is_no_proof() -> None:
    """Positions are a constant of each size: equal content at the tried sizes says nothing of others."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Squeeze", ["n"], ["m"]),
        helper.make_node("Range", ["zero", "m", "one"], ["r"]),
        helper.make_node("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Sin", ["f"], ["g"]),
        helper.make_node("Unsqueeze", ["g", "last"], ["u"]),
    ]
    one, other = (
        dynamic([*nodes, helper.make_node("Add", order, ["y"])], zero=0, one=1, last=[1])
        for order in (["x", "u"], ["u", "x"])
    )
    found = ee.equal(one, other, all_sizes=True)
    assert found.kind == "unknown", found
    here = ee.equal(one, other, shapes={"x": (2, 5, 8)})
    assert here.kind == "proved" and str(here).startswith("proved at batch = 2, length = 5 only: ")


def test_constants_that_agree_at_some_sizes_only_are_no_proof() -> None:
    """The first model divides by the length, the second by the length or 60."""

    def mean(most: int) -> onnx.ModelProto:
        nodes = [
            helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
            helper.make_node("Min", ["n", "most"], ["m"]),
            helper.make_node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["x", "axis"], ["h"]),
            helper.make_node("Div", ["h", "f"], ["y"]),
        ]
        return dynamic(nodes, most=[most], axis=[1])

    same, other = ee.equal(mean(10**6), mean(10**7), all_sizes=True), ee.equal(mean(10**6), mean(60), all_sizes=True)
    assert same.kind == "proved"
    assert other.kind == "unknown" and "length = 61" in other.why
    assert ee.equal(mean(10**6), mean(60), shapes={"x": (2, 60, 8)}).kind == "proved"


def test_dimensions_of_different_names_are_different_parameters() -> None:
    add = helper.make_node("Add", ["x", "z"], ["y"])
    inputs: Mapping[str, Dims] = {"x": ("batch-size", 1), "z": (1, "batch_size")}
    assert ee.equal(dynamic([add], inputs), dynamic([add], inputs), all_sizes=True).guards == (
        "batch_size >= 1",
        "batch_size_1 >= 1",
    )


def test_models_without_dynamic_sizes_are_refused_for_all_sizes(fused: onnx.ModelProto) -> None:
    with pytest.raises(Refused, match="found no dynamic dimension"):
        ee.equal(fused, fused, all_sizes=True)


def test_texts_are_compared_and_families_at_all_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        "one": "tensor A[3, 4]\nY[i:3] = sum[k:4] A[i, k] * 2\n",
        "two": "tensor A[3, 4]\nB[i:3] = sum[k:4] A[i, k]\nY[i:3] = 2 * B[i]\n",
        "wrong": "tensor A[3, 4]\nY[i:3] = sum[k:3] A[i, k] * 2\n",
        "odd": "tensor A[3, 5]\nY[i:3] = sum[k:4] A[i, k] * 2\n",
        "family": "param N\ntensor A[N, N]\nY[i:N, j:N] = A[i, j] + A[j, i]\n",
        "turned": "param N\ntensor A[N, N]\nY[i:N, j:N] = A[j, i] + A[i, j]\n",
        "copied": "param N\ntensor A[N, N]\nY[i:N, j:N] = A[i, j] + A[i, j]\n",
    }
    for name, written in texts.items():
        (tmp_path / f"{name}.ein").write_text(written)
    path = {name: str(tmp_path / f"{name}.ein") for name in texts}
    assert ee.equal(path["one"], path["two"]).kind == "proved"
    found = ee.equal(path["one"], path["wrong"])
    assert found.kind == "different" and found.difference is not None and not found.pairs
    assert found.why == f"A[{found.difference.at[0]}, 3] occurs 2 times in the first and 0 times in the second"
    assert found.to_json()["pairs"] == []
    inputs = str(tmp_path / "x.npz")
    assert main(["equal", path["one"], path["wrong"], "--inputs", inputs]) == 1
    assert np.load(inputs)["A"].shape == (3, 4) and f"saved {inputs}" in capsys.readouterr().err
    assert programs_on_page(found) == 2
    assert main(["equal", path["one"], path["odd"]]) == 2
    assert "the second program: input A has shape (3, 5), expected (3, 4), as in the first" in capsys.readouterr().err
    for option in (["--all-sizes"], ["--shape", "A=3,4"]):
        assert main(["equal", path["one"], path["two"], *option]) == 2
    assert main(["equal", path["family"], path["turned"]]) == 0
    assert "for all sizes with N >= 1" in capsys.readouterr().out
    assert main(["equal", path["family"], path["copied"], "--inputs", inputs]) == 1
    assert np.load(inputs)["A"].shape == (2, 2) and "different at N = 2 in" in capsys.readouterr().out
    assert main(["equal", path["family"], path["one"]]) == 2
    assert ee.equal(path["family"], path["turned"]).page("families").count("param N") == 2
    assert programs_on_page(ee.equal(path["family"], path["copied"])) == 2


def programs_on_page(found: ee.Verdict) -> int:
    """Return how many texts of programs, each with its graph, the page of *found* has."""
    page = found.page("programs")
    assert page.count("<svg") == page.count("<pre") and "<table" not in page and page.count(str(found.why)) == 1
    return page.count("<pre")


def test_constants_are_rounded_to_the_same_digits_or_the_same_fraction() -> None:
    def times(constant: str) -> ee.Program:
        return ee.parse(f"tensor A[4]\nY[i:4] = A[i] * {constant}\n")

    third, one = ee.parse("tensor A[4]\nY[i:4] = A[i] / 3\n"), times("1.0")
    kinds = [ee.equal(times("0." + "3" * n), third).kind for n in (15, 14)]
    assert kinds == ["rounded", "different"] and ee.equal(times("1.0000000000001"), one).kind == "rounded"


def test_families_are_equal_at_the_sizes_that_both_allow(tmp_path: Path) -> None:
    """A refuted pair has sizes, an element and inputs."""
    every, few, large, cut = (
        ee.family(f"param {sizes}\ntensor A[N]\nY[i:N] = {body}\n")
        for sizes, body in (
            ("N", "A[i]"),
            ("N <= 100", "where(i < 100, A[i], 0)"),
            ("N >= 4", "A[i]"),
            ("N", "where(i < 100, A[i], 0)"),
        )
    )
    for n, (one, other, guards) in enumerate(
        ((every, few, ("N >= 1", "N <= 100")), (every, large, ("N >= 4",)), (large, few, ("N >= 4", "N <= 100")))
    ):
        found, again = ee.equal(one, other), ee.equal(other, one)
        assert found.kind == again.kind == "proved" and found.guards == again.guards == guards
        assert replayed(found, tmp_path / f"{n}") == replayed(again, tmp_path / f"{n} again") == {"proved"}
    wrong = ee.equal(every, cut)
    assert wrong.kind == "different" and wrong.sizes == (("N", 101),)
    assert wrong.difference is not None and wrong.difference.at == (100,) and wrong.difference.inputs["A"].size == 101
    assert wrong.to_json()["sizes"] == {"N": 101} and wrong.to_json()["difference"]["at"] == [100]
    assert "different at N = 101" in str(wrong) and "A[100] occurs 1 time in the first" in str(wrong)
    huge = ee.family("param N\ntensor A[N]\nY[i:N] = where(i < 10000000000, A[i], 0)\n")
    assert ee.equal(every, huge).difference is None and ee.equal(every, huge).sizes == (("N", 10**10 + 1),)
    with pytest.raises(ValueError, match="the assumptions of both families do not hold together"):
        ee.equal(few, ee.family("param N >= 101\ntensor A[N]\nY[i:N] = A[i]\n"))


def summed(axes: Iterable[int], scale: float = 1.0) -> onnx.ModelProto:
    """Return a model that sums over its *axes*, one after the other, and multiplies."""
    b, value, axes = Builder("summed", seed=0), "x", list(axes)
    b.weights.append(numpy_helper.from_array(np.float32(scale), "scale"))
    for n in axes:
        b.weights.append(numpy_helper.from_array(np.array([n]), f"axis {n}"))
        value = b.node("ReduceSum", value, f"axis {n}")
    return b.model({"x": (2,) * len(axes)}, b.node("Mul", value, "scale"), (1,) * len(axes))


def test_limits_are_raised_until_the_outputs_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six sums in two orders have no equal value between the input and the output."""
    one, other = summed(range(6)), summed(range(5, -1, -1))
    found = ee.equal(one, other)
    assert found.kind == "proved" and found.agreement is None
    monkeypatch.setattr(value_proofs, "PROOF_LIMITS", value_proofs.PROOF_LIMITS[:1])
    found = ee.equal(one, other)
    assert found.kind == "unknown" and found.agreement is not None and found.agreement < 1e-6
    assert "has 6 equations with 6 sums, at most 24 with 4 are compared" in found.why
    assert "on random inputs, the outputs differ by at most" in str(found)


def test_a_copy_is_equal_to_a_value_that_has_a_counterpart() -> None:
    def model(copies: bool) -> onnx.ModelProto:
        b = Builder("copies", seed=0)
        b.weights += [numpy_helper.from_array(np.array(a), n) for n, a in (("flat", [4, 5]), ("whole", [1, 4, 5]))]
        value = "x"
        for _ in range(6):
            value = b.node("Tanh", value)
        value = b.node("Softmax", value, axis=2)
        value = b.node("Reshape", b.node("Reshape", value, "flat"), "whole") if copies else value
        return b.model({"x": (1, 4, 5)}, b.node("Tanh", value), (1, 4, 5))

    pairs = ee.equal(model(True), model(False)).pairs
    assert ("Reshape_7", "Softmax_6") in [(pair.first, pair.second) for pair in pairs]


def test_small_differences_name_their_node() -> None:
    """The samples of values are not close enough to tell these models apart."""

    def model(scale: float, variance: float, element: float) -> onnx.ModelProto:
        b = Builder("small", seed=3)
        weights = {
            "mean": np.zeros(4),
            "var": np.full(4, variance),
            "gain": np.arange(2.0, 6.0),
            "shift": np.full(4, 0.5),
        }
        weights |= {"scale": np.float64(scale), "w": np.eye(4) + 0.1}
        weights["w"][2, 1] += element
        b.weights += [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in weights.items()]
        value = b.node("BatchNormalization", "x", "gain", "shift", "mean", "var")
        weighted = b.node("Mul", b.node("Softmax", b.node("Mul", value, "scale"), axis=1), "x")
        return b.model({"x": (3, 4)}, b.node("MatMul", b.node("Add", weighted, value), "w"), (3, 4))

    base = (0.001, 1.0, 0.0)
    for other, op, told in (
        ((0.0012, 1.0, 0.0), "Mul", "occurs"),
        ((0.001, 1.0001, 0.0), "BatchNormalization", "weight var differs in 4 of 4 elements"),
        ((0.001, 1.0, 3e-4), "MatMul", "weight w differs in 1 of 16 elements, at [2, 1]"),
    ):
        found = ee.equal(model(*base), model(*other))
        assert found.kind == "different" and f"({op}) and" in found.why and told in found.why, found


def test_the_first_difference_is_no_node_that_is_folded(fused: onnx.ModelProto, plain: onnx.ModelProto) -> None:
    """The normalisation is folded into the convolution of one model: a wrong bias after it is named, not the fold."""
    wrong = dict(mutants(fused))["W2[511]"]
    assert "weight W2 differs in 1 of 512 elements" in ee.equal(plain, wrong).why
    shifted = onnx.ModelProto.FromString(fused.SerializeToString())
    bias = next(w for w in shifted.graph.initializer if w.name == "shift")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(1), "shift"))
    found = ee.equal(plain, shifted)
    assert found.nodes == ("n1", "n0") and "BatchNormalization" in found.why and "bias[0]" in found.why


@pytest.mark.parametrize("is_first", [True, False])
def test_the_first_difference_of_twins_in_other_operators_is_their_term(is_first: bool) -> None:
    b = Builder("linear", seed=2)
    model = b.model({"x": (3, 8)}, b.node("Tanh", b.linear(b.linear("x", 8, 6), 6, 5)), (3, 5))
    other = respelled(model)
    assert {"Gemm"} < {node.op_type for node in model.graph.node} ^ {node.op_type for node in other.graph.node}
    weight = model.graph.initializer[0]
    changed = numpy_helper.to_array(weight).copy()
    changed[2, 3] += 1
    weight.CopyFrom(numpy_helper.from_array(changed, weight.name))
    found = ee.equal(model, other) if is_first else ee.equal(other, model)
    gemm, add = model.graph.node[0].name, other.graph.node[1].name
    assert found.nodes == ((gemm, add) if is_first else (add, gemm)), found
    assert f"differs in 1 of 48 elements, at {[2, 3] if is_first else [3, 2]}: " in found.why


def windowed(order: str, scale: float = 0.5) -> onnx.ModelProto:
    """Products of positions with a window around them, softmax, and the weighted sum; the scale before or after."""
    b = Builder("windowed", seed=4)
    last = np.arange(300)[:, None] + 2 * np.arange(9)[None]
    b.weights += [
        numpy_helper.from_array(last.astype(np.int64), "table"),
        numpy_helper.from_array(np.array([0, 8, 0, 0, 8, 0]), "pads"),
        numpy_helper.from_array(np.array([1, 300, 1, 16]), "row"),
        numpy_helper.from_array(np.float32(scale), "scale"),
    ]
    keys, query = b.node("Gather", b.node("Pad", "x", "pads"), "table", axis=1), b.node("Reshape", "x", "row")
    seen = b.node("Transpose", keys, perm=[0, 1, 3, 2])
    if order == "before":
        scores = b.node("MatMul", b.node("Mul", query, "scale"), seen)
    else:
        scores = b.node("Mul", "scale", b.node("MatMul", query, seen))
    out = b.node("Relu", b.node("MatMul", b.node("Softmax", scores, axis=-1), keys))
    return b.model({"x": (1, 300, 16)}, out, (1, 300, 1, 16))


def test_models_with_large_values_are_compared_by_blocks_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, wrong = windowed("after"), windowed("before"), windowed("before", 0.25)
    whole = [each.kind for each in (ee.equal(one, other), ee.equal(one, wrong))]
    monkeypatch.setattr(value_proofs, "MAX_BYTES", 1)
    assert [each.kind for each in (ee.equal(one, other), ee.equal(one, wrong))] == whole == ["proved", "different"]
    monkeypatch.setattr(model_equality, "find_difference", None)  # a call would fail
    assert ee.equal(one, other).kind == "proved"


def test_blocks_are_the_elements_that_a_run_of_the_model_has() -> None:
    model = load_model(windowed("after"))
    side, feeds = value_proofs.ModelEquations(model, "a_"), [random_model_inputs(model, seed) for seed in (0, 1)]
    blocks = value_samples.sample_blocks(model, feeds, side.equations, side.tensor)
    assert blocks is not None and blocks.keys() == value_samples.sample_values(model, feeds).keys()
    session = onnxruntime.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, (start, feed) in enumerate(zip(value_samples.BLOCK_STARTS, feeds, strict=True)):
        whole = session.run(None, feed)[0].reshape(-1)
        first = int(whole.size * start)
        block = whole[first : first + value_samples.BLOCK_ELEMENTS]
        norm = blocks[model.outputs[0].name].numbers[(value_samples.PROJECTIONS + 1) * (n + 1) - 1]
        assert norm == pytest.approx(float(np.log(np.linalg.norm(block))), abs=1e-5)


def test_a_comparison_ends_at_its_budget_with_what_is_known(
    fused: onnx.ModelProto, plain: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a proof, nor a run of a model, nor many values that are not proved may take longer."""

    def slow(*_: object, **__: object) -> None:
        time.sleep(60)

    monkeypatch.setattr(value_proofs, "certify", slow)
    value_proofs.prove_directly.cache_clear()
    found = ee.equal(fused, plain, budget=0.3)
    assert found.kind == "unknown" and found.seconds < 40 and found.why.startswith("the budget was reached; ")
    monkeypatch.setattr(value_samples, "evaluate", slow)
    monkeypatch.setattr(value_proofs, "MAX_BYTES", 0)
    found = ee.equal(fused, plain, budget=0.1)
    assert found.why == "the budget was reached; a larger budget may decide it; no values were compared"
    monkeypatch.setattr(model_equality, "certify", slow)
    program = ee.parse("tensor A[3]\nY[i:3] = A[i]\n")
    assert ee.equal(program, program, budget=0.1).kind == "unknown"


SPELLINGS = dict(exporter_spellings()) | dict(function_spellings())
LARGE = ("nested filtering of 4 outputs", "nested filtering of 4 outputs with a wrong entry")
"""Those of two outputs show the same."""


@pytest.mark.parametrize("name", with_slow(SPELLINGS, LARGE))
def test_spellings_of_exporters_are_judged(name: str) -> None:
    first, second, kind = SPELLINGS[name]
    found = ee.equal(first, second)
    assert found.kind == kind, found
    for record in found._records():
        head = {"format": "einnet-explore record", "version": 1}
        assert [each.why for each in check_independently(head | dict(record)) if each.why is not None] == []


def test_one_graph_is_proved_without_a_run(fused: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and order of the nodes do not matter, operands and attributes do; at all sizes, too."""
    first, second = attention(False), attention(False)
    for node in second.graph.node:
        for names in (node.input, node.output):
            kept = {each.name for each in (*second.graph.input, *second.graph.output, *second.graph.initializer)}
            names[:] = [name if name in kept or not name else f"other_{name}" for name in names]
    second.graph.node.reverse()
    monkeypatch.setattr(model_equality, "find_difference", None)  # a call would fail
    monkeypatch.setattr(value_proofs, "sample_values", lambda *_: {})
    found = ee.equal(first, second, all_sizes=True)
    assert found.kind == "proved" and found.guards and found.why == model_equality.ONE_GRAPH and found.pairs
    assert ee.equal(fused, fused).why == model_equality.ONE_GRAPH


def test_operands_of_operators_without_expression_are_compared_by_position() -> None:
    """Both nodes read the same two values."""
    first, second = (
        load_model(small_model("uint64[3] a, uint64[3] b -> uint64[9] y", f"y = Concat<axis=0>({operands})"))
        for operands in ("a, b, a", "a, b, b")
    )
    for twin, is_equal in ((first, True), (second, False)):
        sweep = value_proofs.open_sweep(first, twin)
        assert sweep.one.opaque and not list(sweep.run())
        assert sweep.are_equal("y", "y") is is_equal


def test_a_domain_limits_the_inputs_of_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signature = "float[3,4] x, float[3,4] m -> float[3,4] y"
    chosen = small_model(signature, "b = Greater(m, h); y = Where(b, x, z)", h=0.5, z=0.0)
    masked = small_model(signature, "y = Mul(x, m)")
    assert ee.equal(chosen, masked).kind == "different"
    assert ee.equal(chosen, masked, domains={"m": [0, 1]}).kind == "unknown"
    remainder = [
        small_model("int64[8] x -> int64[8] y", nodes, n=np.array(3))
        for nodes in ("y = Mod(x, n)", "q = Div(x, n); p = Mul(q, n); y = Sub(x, p)")
    ]
    assert ee.equal(*remainder).kind == "unknown"
    files = [str(tmp_path / f"{n}.onnx") for n in range(2)]
    for file, each in zip(files, remainder, strict=True):
        onnx.save(each, file)
    saved = str(tmp_path / "inputs.npz")
    assert main(["equal", *files, "--domain", "x=-9..-1", "--inputs", saved]) == 1
    with np.load(saved) as found:
        assert -9 <= found["x"].min() <= found["x"].max() <= -1
    assert "different" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ("z=0,1", "domain of z: found no such input, expected one of x"),
        ("x=0.5,1", "domain of x: found 0.5,1, expected integers from -9223372036854775808"),
        ("x=3..1", "domain of x: found 3..1, expected finite numbers, the smaller one first"),
        ("x=a..b", "domain of x: found 'a..b', expected a range of numbers, such as 0..1, or numbers, such as 0,1"),
        ("0,1", "--domain 0,1: found no numbers after a name, expected NAME=0,1 or NAME=0..1"),
    ],
)
def test_domains_that_do_not_fit_are_refused(
    domain: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "m.onnx")
    onnx.save(small_model("int64[8] x -> int64[8] y", "y = Neg(x)"), file)
    assert main(["equal", file, file, "--domain", domain]) == 2
    assert message in capsys.readouterr().err


def overlapping_windows(mask_from: int = 0, place_from: int = 0) -> onnx.ModelProto:
    """A transposed convolution as a product and a sum of two windows, selected by known masks and indices.

    The mask begins *mask_from* rows later, and the second window is read *place_from* elements later.
    """
    nodes = (
        "r = Reshape(x, s1); t = Transpose<perm=[1,0]>(r); p = MatMul(t, w); q = Pad(p, around); f = Reshape(q, flat); "
        "a = Gather(f, i); b = Gather(f, j); u = Where(m, a, z); v = Where(n, b, z); c = Add(u, v); y = Reshape(c, s2)"
    )
    rows, ends = np.arange(4)[:, None], np.arange(2)
    # Position 2 h + r of the result is row h + 1 of tap r - 1 or row h of tap r + 1, r = 0, 1.
    places = np.arange(5)[:, None, None] * 4 + (rows + 1)[None] * 20
    first = places + np.where(ends == 0, 1, 20 + 0)
    second = places + np.where(ends == 0, 3 - 20, 2)
    weight = transposed_weight()
    return small_model(
        "float[1,3,4] x -> float[1,5,8] y", nodes, s1=[3, 4], around=[1, 0, 1, 0], flat=[-1], s2=[1, 5, 8], z=0.0,
        w=weight.reshape(3, 20), i=first, j=second + place_from,
        m=(rows + ends < 4 - mask_from)[None], n=(rows + ends > mask_from)[None],
    )  # fmt: skip


def transposed_weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)


def transposed_convolution() -> onnx.ModelProto:
    nodes = "y = ConvTranspose<strides=[2], pads=[1,1]>(x, w)"
    return small_model("float[1,3,4] x -> float[1,5,8] y", nodes, w=transposed_weight())


def test_known_masks_and_indices_of_overlapping_windows_are_proved(tmp_path: Path) -> None:
    found = ee.equal(transposed_convolution(), overlapping_windows())
    assert found.kind == "proved"
    assert replayed(found, tmp_path) == {"proved"}


@pytest.mark.parametrize(("mask_from", "place_from"), [(1, 0), (0, 1), (0, -1)])
def test_masks_and_indices_off_by_one_are_different(mask_from: int, place_from: int) -> None:
    assert ee.equal(transposed_convolution(), overlapping_windows(mask_from, place_from)).kind == "different"


@pytest.mark.parametrize("name", ["banded", "padded"])
def test_weights_in_another_layout_are_proved_and_other_elements_are_different(name: str) -> None:
    """A matrix of all positions, and channels first with zeros between."""
    kernel = np.random.default_rng(1).standard_normal((6, 4, 3)).astype(np.float32)
    signature = "float[1,4,8] x -> float[1,6,6] y"
    if name == "banded":
        banded = np.zeros((4, 8, 6, 6), np.float32)
        for place, tap in np.ndindex(6, 3):
            banded[:, place + tap, :, place] = kernel[:, :, tap].T
        weight, nodes = banded.reshape(32, 36), "r = Reshape(x, s); p = MatMul(r, w); y = Reshape(p, t)"
        sizes = {"s": [1, 32], "t": [1, 6, 6]}
    else:
        weight = np.pad(kernel, ((0, 0), (0, 0), (0, 1))).transpose(1, 0, 2).reshape(4, 24)
        nodes = "e = Pad(x, p); r = Reshape(w, s); k = Transpose<perm=[1,0,2]>(r); y = Conv(e, k)"
        sizes = {"s": [4, 6, 4], "p": [0, 0, 0, 0, 0, 1]}
    convolution = small_model(signature, "y = Conv(x, w)", w=kernel)
    assert ee.equal(convolution, small_model(signature, nodes, w=weight, **sizes)).kind == "proved"
    wrong = weight.copy()
    wrong[1, 5] += np.float32(1)
    assert ee.equal(convolution, small_model(signature, nodes, w=wrong, **sizes)).kind == "different"


@pytest.mark.parametrize(("change", "kind"), [(0, "proved"), (1, "different")])
def test_layouts_of_integer_weights_are_proved(change: int, kind: str) -> None:
    weight = np.arange(-12, 12, dtype=np.int8).reshape(6, 4)
    signature = "int8[3,6] x -> int32[3,4] y"
    other = weight.T.copy()
    other[1, 2] += change
    first = small_model(signature, "y = MatMulInteger(x, w)", w=weight)
    second = small_model(signature, "t = Transpose(w); y = MatMulInteger(x, t)", w=other)
    assert ee.equal(first, second).kind == kind
