"""Spellings of one computation are proved equal, and traps are refused with an input."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_building import build, node, run

import einnet_explore as ee
from benchmarks.spellings.__main__ import compared, main
from benchmarks.spellings.engines import measured
from benchmarks.spellings.families import ATTENTION, FAMILIES, NORMALISATION, ROTARY
from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.equivalence.program_diff import inline_equations
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Scope
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model, with_domains
from einnet_explore.pipeline.baseline import Baseline
from einnet_explore.pipeline.folded_weights import find_joined_weights
from einnet_explore.pipeline.model_sessions import open_session, run_definition, run_session, without_optimisations
from einnet_explore.pipeline.model_spelling import with_normal_spelling
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.pipeline.subprogram import open_original
from einnet_explore.rules import RULES
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.strategies.options import BETWEEN
from einnet_explore.strategies.vertical_fusion import traffic, vertical_fusions


def test_there_are_enough_spellings_and_traps() -> None:
    for family in FAMILIES.values():
        assert len(family.spellings(100)) == 100 and len(list(family.trapped(50))) == 50
        for choice in (*family.spellings(5), *family.trapped(5)):
            onnx.checker.check_model(family.model(choice), full_check=True)
            onnx.checker.check_model(family.model(choice, size=4), full_check=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_spellings_are_proved_and_traps_refused(name: str) -> None:
    family = FAMILIES[name]
    equal = Counter(found.kind for _, found in compared(family, family.spellings(16)))
    assert equal.keys() <= {"proved", "rounded"} and equal.total() == 16
    traps = list(family.trapped(2 * len(family.traps)))
    for choice, found in compared(family, traps):
        assert found.kind == "different" and found.difference is not None, choice


def test_the_command_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gated layer", "--spellings", "3", "--traps", "2"]) == 0
    (row,) = {line for line in capsys.readouterr().out.splitlines() if line.startswith("gated layer")}
    assert row.split()[2:6] == ["3", "3", "0", "2"]


def test_engines_are_compared_with_the_usual_spelling() -> None:
    found = measured(NORMALISATION, NORMALISATION.spellings(2), "onnxruntime", 1.0)
    assert len(found.ratios) == 2 and all(ratio > 0 for ratio in found.ratios) and not found.refused


def test_what_an_optimiser_of_onnx_runtime_does_wrong_is_no_difference_of_the_models() -> None:
    """With its epsilon as the first operand, the fused normalisation of ONNX Runtime 1.31 takes another epsilon."""
    usual = NORMALISATION.usual()
    first, second = (
        NORMALISATION.model({**usual, "square": "power", "epsilon": way}) for way in ("in order", "swapped")
    )
    assert ee.equal(first, second).kind == "proved"
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    sessions = (open_session(model, 1, adjust=without_optimisations) for model in (first, second))
    one, other = (run_session(session, ["y"], {"x": x})[0] for session in sessions)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_what_an_optimiser_of_onnx_runtime_does_wrong_refuses_no_candidate() -> None:
    """The definition of the nodes decides, for a part and for the whole model."""
    model = load_model(NORMALISATION.model({**NORMALISATION.usual(), "square": "power", "epsilon": "swapped"}))
    (subprogram,) = partition(model).subprograms
    opener, weights = open_original(model, subprogram, 1)
    original, program = opener(), subprogram.anonymous.program
    arrays = {**original.feeds, **weights}
    got = {name: evaluated(scope, arrays) for name, scope in inline_equations(program, ()).items()}
    assert original.error(original.outputs(), got) < 1e-5
    assert original.error(original.outputs(), {name: array + 1 for name, array in got.items()}) > 0.1
    feeds = {"x": np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)}
    outputs = run_definition(model, feeds, without_optimisations)
    baseline = Baseline(model, build_plan(model), feeds, 1.0)
    assert baseline.errors(outputs) == (0, 0) and baseline.errors({"y": outputs["y"] + 1})[1] > 0.1


def test_a_weight_of_pieces_is_read_from_them() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    pieces = {"a": whole[:, :2], "b": whole[:, 2:].reshape(16), "other": whole[:2] + 1}
    (found,) = find_joined_weights({"w": whole}, pieces)
    assert found.weight == "w" and found.error == 0
    arrays = {name: array for name, array in pieces.items() if name != "other"}
    assert np.array_equal(evaluated(found.definition, arrays), whole)
    (twice,) = find_joined_weights({"w": np.concatenate([whole, whole])}, {"whole": whole})
    assert np.array_equal(evaluated(twice.definition, {"whole": whole}), np.concatenate([whole, whole]))
    assert not list(find_joined_weights({"w": whole}, {"a": pieces["a"]}))
    assert not list(find_joined_weights({"w": whole}, {"the same": whole}))


def evaluated(scope: Scope, arrays: Arrays) -> Array:
    return np.asarray(evaluate(scope, arrays, np.float64))


@pytest.mark.parametrize("name", ["attention", "convolution block"])
def test_all_spellings_have_one_partition(name: str) -> None:
    """Scales, masks, transpositions, padding and concatenated parts go with the operators that they belong to."""
    family = FAMILIES[name]
    for choice in family.spellings(12):
        model = with_normal_spelling(load_model(family.model(choice)))
        (subprogram,) = partition(model).subprograms
        left = {node.op for node in model.nodes if node.name not in subprogram.nodes}
        assert left <= {"Identity"}, (choice, left)
        assert not {"Pad", "Concat"} & {node.op for node in model.nodes}
        assert sum(node.op == "Conv" for node in model.nodes) == (name == "convolution block")


def test_all_spellings_of_attention_have_one_fused_form() -> None:
    """Up to which operand comes first, and a scale that is the product of two roots."""
    forms = set[Hashable]()
    for choice in ATTENTION.spellings(6):
        if choice["scale"] != "both times":
            (subprogram,) = partition(load_model(ATTENTION.model(choice))).subprograms
            program, order = subprogram.anonymous.program, {t.name for t in subprogram.program.inputs[:1]}
            fused = min(vertical_fusions(program, (*BETWEEN, *RULES)), key=lambda found: traffic(found.end))
            forms.add((tuple(order), program_key(fused.end)))
    assert len(forms) <= 2


def test_a_padding_that_the_reader_does_not_have_stays() -> None:
    """Zeros around an image are no part of a maximum; windows that are cut differently are no part of one operator."""
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("MaxPool", ["p"], ["a"], kernel_shape=[3, 3]),
        helper.make_node("Conv", ["x", "w"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "v"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["b", "c"], ["d"], axis=2),
        helper.make_node("Add", ["d", "d"], ["e"]),
    ]
    w, v = np.random.default_rng(0).normal(size=(2, 2, 2, 3, 3)).astype(np.float32)
    model = load_model(build(nodes, {"x": (1, 2, 5, 5)}, ["a", "e"], {"pads": pads, "w": w, "v": v}))
    assert [node.op for node in with_normal_spelling(model).nodes] == [node.op for node in model.nodes]


@pytest.mark.parametrize("choice", ROTARY.spellings(6), ids=lambda choice: "-".join(choice.values()))
def test_rotated_halves_are_work_on_the_halves(choice: dict[str, str]) -> None:
    """Tables whose halves are equal are read once, since each half is a weight."""
    model = with_normal_spelling(load_model(ROTARY.model(choice)))
    (join,) = (node for node in model.nodes if node.op == "Concat")
    assert [node.op for node in model.nodes if set(join.results) & {*node.inputs}] == ["Identity"]
    tables = {name: array for name, array in model.weights.items() if array.dtype == np.float32 and array.size > 1}
    assert {array.shape[-1] for array in tables.values()} == {4}


def rotary(axis: int = -1, first: int = 4, cut: str = "x", later: bool = False) -> Model:
    """x cos + [-x2, x1] sin, where x1 and x2 are parts of *cut*; *later*: the turned one is also an output."""
    rng = np.random.default_rng(0)
    weights: dict[str, Array] = {name: rng.normal(size=(8, 8)).astype(np.float32) for name in ("cos", "sin")}
    weights |= {"sizes": np.array([first, 8 - first]), "turned sizes": np.array([8 - first, first])}
    nodes = [
        helper.make_node("Split", [cut, "sizes"], ["x1", "x2"], axis=axis),
        helper.make_node("Neg", ["x2"], ["n"]),
        helper.make_node("Concat", ["n", "x1"], ["turned"], axis=axis),
        helper.make_node("Mul", ["x", "cos"], ["a"]),
        helper.make_node("Mul", ["turned", "sin"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    return load_model(build(nodes, {"x": (3, 8, 8), "z": (3, 8, 8)}, ["y", *(["turned"] if later else [])], weights))


@pytest.mark.parametrize("axis", [-1, 1])
def test_a_value_that_is_cut_elsewhere_is_work_on_its_parts(axis: int) -> None:
    model = replace(rotary(axis), dynamic={"x": ("batch", 8, 8)})
    spelled = with_normal_spelling(model)
    assert spelled.dynamic == model.dynamic
    assert [node.op for node in spelled.nodes].count("Mul") == 4 and spelled.nodes[-1].op == "Concat"
    feed = {name: np.random.default_rng(1).normal(size=(3, 8, 8)).astype(np.float32) for name in "xz"}
    assert np.array_equal(run(spelled.proto, feed)["y"], run(model.original, feed)["y"])


@pytest.mark.parametrize("change", [{"first": 3}, {"cut": "z"}, {"later": True}], ids=str)
def test_work_on_other_parts_stays(change: dict[str, Any]) -> None:
    """Parts that lie elsewhere, or are of another value; a concatenation that others read is computed anyway."""
    model = rotary(**change)
    assert [node.op for node in with_normal_spelling(model).nodes] == [node.op for node in model.nodes]


def attention_with_biases(gemm: bool, rows: int = 6, heads: int = 2, size: int = 4) -> Model:
    """Queries and keys with biases, in heads; the keys by MatMul and Add, or by Gemm."""
    rng = np.random.default_rng(0)
    width = heads * size
    weights = {name: rng.normal(size=(width, width)).astype(np.float32) for name in ("wq", "wk")}
    weights |= {name: rng.normal(size=width).astype(np.float32) for name in ("bq", "bk")}
    weights |= {"shape": np.array([rows, heads, size]), "scale": np.float32(0.5)}
    nodes = [helper.make_node("MatMul", ["x", "wq"], ["q0"]), helper.make_node("Add", ["q0", "bq"], ["q"])]
    if gemm:
        nodes.append(helper.make_node("Gemm", ["x", "wk", "bk"], ["k"]))
    else:
        nodes += [helper.make_node("MatMul", ["x", "wk"], ["k0"]), helper.make_node("Add", ["bk", "k0"], ["k"])]
    for name, perm in (("q", [1, 0, 2]), ("k", [1, 2, 0])):
        nodes.append(helper.make_node("Reshape", [name, "shape"], [f"{name}1"]))
        nodes.append(helper.make_node("Transpose", [f"{name}1"], [f"{name}2"], perm=perm))
    nodes += [
        helper.make_node("MatMul", ["q2", "k2"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["t"]),
        helper.make_node("Softmax", ["t"], ["y"], axis=-1),
    ]
    return load_model(build(nodes, {"x": (rows, width)}, ["y"], weights))


@pytest.mark.parametrize("gemm", [False, True])
def test_bias_of_the_keys_is_dropped_and_that_of_the_queries_stays(gemm: bool) -> None:
    """A softmax does not depend on it, and sums are others without it, so ``exact`` keeps it."""
    model = attention_with_biases(gemm)
    model = with_domains(model, {model.inputs[0].name: "0..1"})
    spelled = with_normal_spelling(model)
    assert spelled.nodes != model.nodes and spelled.domains == model.domains
    assert model.weights.keys() - spelled.weights.keys() == {"bk"}
    feed = {"x": np.random.default_rng(1).normal(size=model.shape("x")).astype(np.float32)}
    assert np.allclose(run(spelled.proto, feed)["y"], run(model.original, feed)["y"], atol=1e-6)
    assert with_normal_spelling(model, "exact").weights.keys() == model.weights.keys()


def squares_apart() -> Model:
    """A root mean square in one subprogram, whose squares another one computes."""
    nodes = [
        node("ReduceMean", ["squares", "axes"], ["mean"], keepdims=1),
        node("Sqrt", ["mean"], ["root"]),
        node("Div", ["x", "root"], ["y"]),
    ]
    proto = build(nodes, {"squares": (16, 8), "x": (16, 8)}, ["y"], {"axes": np.array([1])})
    return load_model(proto)


def test_subprograms_are_compared_where_their_results_are_defined() -> None:
    model = squares_apart()
    (subprogram,) = partition(model).subprograms
    opener, _ = open_original(model, subprogram, 1)
    original = opener()
    assert not any(np.isnan(array).any() for array in original.outputs().values())
    assert all((array >= 0).all() and array.std() > 0.1 for array in original.feeds.values())


def test_inputs_of_other_subprograms_have_both_signs() -> None:
    model = load_model(build([node("Exp", ["x"], ["e"]), node("Neg", ["e"], ["y"])], {"x": (16, 8)}, ["y"]))
    (subprogram,) = partition(model).subprograms
    opener, _ = open_original(model, subprogram, 1)
    assert all((array < 0).any() for array in opener().feeds.values())
