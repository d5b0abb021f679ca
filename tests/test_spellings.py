"""Spellings of one computation are proved equal, and traps are refused with an input."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from math import inf

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_building import build, run

import einnet_explore as ee
from benchmarks.spellings.__main__ import compared, main
from benchmarks.spellings.engines import measured
from benchmarks.spellings.families import ATTENTION, FAMILIES, NORMALISATION
from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.cost import program_seconds
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program, Scope
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline import tuning_task
from einnet_explore.pipeline.folded_weights import find_joined_weights
from einnet_explore.pipeline.model_spelling import with_normal_spelling
from einnet_explore.pipeline.optimiser import make_settings
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import open_session, run_session
from einnet_explore.pipeline.tuning_task import find_variants, select_finalists
from einnet_explore.pipeline.value_samples import without_optimisations
from einnet_explore.strategies.vertical_fusion import in_normal_spelling
from einnet_explore.support.limits import WorkClock


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


def evaluated(scope: Scope, arrays: dict[str, np.ndarray]) -> np.ndarray:  # type: ignore[type-arg]
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


@pytest.mark.parametrize("name", ["attention", "convolution block"])
def test_all_spellings_have_one_normal_form(name: str) -> None:
    """Up to a scale that is the product of two roots; normalisations are in the weights and the bias."""
    family, forms = FAMILIES[name], set[Hashable]()
    for choice in (family.usual(), *family.spellings(12)):
        if choice.get("scale") != "both times":
            (subprogram,) = partition(with_normal_spelling(load_model(family.model(choice)))).subprograms
            forms.add(program_key(in_normal_spelling(subprogram.anonymous.program, factors=True).end))
    assert len(forms) == 1


def test_equal_spellings_have_the_same_finalists() -> None:
    found = set[tuple[Hashable, ...]]()
    settings = replace(make_settings("cpu", 1, 7), states=2)
    for choice in (ATTENTION.usual(), *ATTENTION.spellings(1)):
        (subprogram,) = partition(with_normal_spelling(load_model(ATTENTION.model(choice)))).subprograms
        variants = find_variants(subprogram.anonymous.program, program_seconds, settings).variants
        finalists = select_finalists(variants, 4, inf)
        found.add(tuple(program_key(variant.derivation().end) for variant in finalists))
        assert all(variant.derivation().start == subprogram.anonymous.program for variant in finalists)
    assert len(found) == 1 and len(next(iter(found))) == 4


def test_what_scales_and_shifts_channels_joins_the_weights_before_it() -> None:
    """Up to the first node that does not; the level ``exact`` keeps the order of products and sums."""
    rng = np.random.default_rng(0)
    kernel, (scale, shift, mean), var = rng.normal(size=(4, 2, 3, 3)), rng.normal(size=(3, 4)), rng.uniform(1, 2, 4)
    per_channel, per_column = rng.normal(size=(4, 1, 1)), rng.normal(size=5)
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "var"], ["b"]),
        helper.make_node("Mul", ["per_channel", "b"], ["c"]),
        helper.make_node("Mul", ["c", "per_column"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Mul", ["per_channel", "e"], ["y"]),
    ]
    weights = {
        "kernel": kernel, "scale": scale, "shift": shift, "mean": mean, "var": var, "per_channel": per_channel,
        "per_column": per_column,
    }  # fmt: skip
    model = load_model(build(nodes, {"x": (1, 2, 5, 5)}, ["y"], {k: np.float32(v) for k, v in weights.items()}))
    joined = with_normal_spelling(model)
    assert [node.op for node in joined.nodes] == ["Conv", "Mul", "Relu", "Mul"]
    assert len(joined.nodes[0].inputs) == 3 and joined.nodes[3].inputs == ("e", "per_channel")
    feeds = {"x": np.float32(rng.normal(size=(1, 2, 5, 5)))}
    want, got = (run_session(open_session(m.proto, 1), ["y"], feeds)[0] for m in (model, joined))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    exact = [node.op for node in with_normal_spelling(model, "exact").nodes]
    assert exact == [node.op for node in model.nodes]


def test_a_machine_is_measured_before_the_clock_of_a_search_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first search of a process ends early, and the first spelling of a model has another plan."""
    events = list[str]()

    def cost(program: Program) -> tuple[float, str]:
        events.append("estimate")
        return program_seconds(program)

    class Clock(WorkClock):
        def __init__(self) -> None:
            super().__init__()
            events.append("clock")

    monkeypatch.setattr(tuning_task, "WorkClock", Clock)
    program = ee.ops.matmul(4, 4, 4)
    find_variants(program, cost, replace(make_settings("cpu", 1, 7), states=1))
    assert events[:2] == ["estimate", "clock"]


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
    spelled = with_normal_spelling(model)
    assert model.weights.keys() - spelled.weights.keys() == {"bk"}
    feed = {"x": np.random.default_rng(1).normal(size=model.shape("x")).astype(np.float32)}
    assert np.allclose(run(spelled.proto, feed)["y"], run(model.original, feed)["y"], atol=1e-6)
    assert with_normal_spelling(model, "exact").weights.keys() == model.weights.keys()
