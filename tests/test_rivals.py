"""OpenVINO, ncnn and MNN run what ONNX Runtime runs, if they are installed."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_building import build, node

from einnet_evaluation import library_runtimes
from einnet_evaluation.engines import Task, prepare
from einnet_evaluation.rivals import ORT, RIVALS
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.baseline import random_model_inputs

CONVERTED = ("openvino", "ncnn", "mnn")


def need(name: str) -> None:
    if why := RIVALS[name].why_missing():
        pytest.skip(why)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A convolution with two outputs and a dynamic batch size."""
    weight = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node("Relu", ["c"], ["y"]),
        node("GlobalAveragePool", ["y"], ["z"]),
    ]
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, {"x": ["n", 3, 8, 8]}, ["y", "z"], {"w": weight}).SerializeToString())
    return str(path)


@pytest.mark.parametrize("name", CONVERTED)
def test_outputs_agree_with_onnx_runtime(name: str, model: str) -> None:
    need(name)
    shapes = {"x": (1, 3, 8, 8)}
    want = prepare(Task(model, ORT, 1, shapes))
    made = prepare(Task(model, name, 1, shapes), want.feeds)
    assert made.outputs.keys() == {"y", "z"} and made.said.casefold().startswith(name)
    for key, array in want.outputs.items():
        np.testing.assert_allclose(made.outputs[key], array, rtol=1e-4, atol=1e-4)


def test_samples_of_a_batch_run_one_after_the_other_in_ncnn(model: str) -> None:
    need("ncnn")
    shapes = {"x": (3, 3, 8, 8)}
    want = prepare(Task(model, ORT, 1, shapes))
    made = prepare(Task(model, "ncnn", 1, shapes), want.feeds)
    assert made.said.endswith("float32, one sample after the other")
    for key, array in want.outputs.items():
        np.testing.assert_allclose(made.outputs[key], array, rtol=1e-4, atol=1e-4)


def test_batch_size_is_the_first_dimension_of_all_shapes() -> None:
    assert library_runtimes._batch_size([(4, 3), (4,)]) == 4
    assert library_runtimes._batch_size([(4, 3), (8, 3)]) == 1
    assert library_runtimes._batch_size([(4, 3), None]) == library_runtimes._batch_size([(4, 3), ()]) == 1


@pytest.mark.parametrize("name", ["openvino", "mnn"])
def test_batches_and_integers_are_inputs(name: str) -> None:
    need(name)
    table = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    nodes = [node("Gather", ["t", "i"], ["g"]), node("Add", ["g", "x"], ["y"])]
    proto = build(nodes, {"i": [3, 2], "x": [3, 2, 4]}, ["y"], {"t": table})
    proto.graph.input[0].type.tensor_type.elem_type = 7
    feeds = {"i": np.array([[0, 1], [4, 2], [3, 3]]), "x": np.ones((3, 2, 4), np.float32)}
    found = RIVALS[name].start(load_model(proto), feeds, 1).call()
    np.testing.assert_allclose(found["y"], table[feeds["i"]] + 1, rtol=1e-5)


def refusal(name: str, proto: Any) -> str:
    model = load_model(proto)
    with pytest.raises(ValueError, match=r"\S") as found:
        RIVALS[name].start(model, random_model_inputs(model), 1)
    return str(found.value)


def test_unknown_layer_of_ncnn_is_refused() -> None:
    need("ncnn")
    said = refusal(
        "ncnn", build([node("CumSum", ["x", "a"], ["z"], reverse=1)], {"x": [1, 4]}, ["z"], {"a": np.array(1)})
    )
    assert said == "ncnn cannot load the converted model: it has a layer that ncnn does not know"


def test_converter_that_fails_or_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "model"
    with pytest.raises(ValueError, match="sh wrote no model and ended with code 3: no such operator"):
        library_runtimes._convert("sh", ["sh", "-c", "echo no such operator; exit 3"], made)
    with pytest.raises(ValueError, match="true wrote no model and ended with code 0"):
        library_runtimes._convert("true", ["true"], made)
    monkeypatch.setattr(library_runtimes, "CONVERSION_SECONDS", 0.1)
    with pytest.raises(ValueError, match=r"sleep did not convert the model within 0\.1 seconds"):
        library_runtimes._convert("sleep", ["sleep", "9"], made)


def test_runtimes_need_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    model = load_model(build([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"]))
    for name in CONVERTED:
        with pytest.raises(ValueError, match=rf"for the engine {name}: pip install '.\[rivals\]'"):
            RIVALS[name].start(model, {}, 1)
