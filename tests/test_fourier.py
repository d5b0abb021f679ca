"""DFT and STFT are products with known matrices."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx_building import build, node, run, whole

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import import fourier as fourier_module
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.node_call import NotUnderstood
from einnet_explore.pipeline.baseline import Baseline
from einnet_explore.pipeline.model_sessions import with_precise_transforms
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.pipeline.subprogram import open_original
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, differences

RNG = np.random.default_rng(0)


def agrees(proto: onnx.ModelProto, wanted: Any = None) -> None:
    """Compare the expression of the only node with ONNX Runtime, or with *wanted* of the input."""
    model = load_model(proto)
    (value,) = proto.graph.input
    size = [d.dim_value for d in value.type.tensor_type.shape.dim]
    dtype = np.float64 if value.type.tensor_type.elem_type == TensorProto.DOUBLE else np.float32
    x = RNG.standard_normal(size).astype(dtype)
    program = whole(model)
    given = {model.identifiers[name]: array for name, array in {**model.weights, "x": x}.items()}
    found = evaluate(program, {t.name: given[t.name] for t in program.inputs}, np.float64)[program.outputs[0]]
    expected = wanted(x) if wanted else run(proto, {"x": x})["y"]
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def pairs(values: Any) -> Any:
    return np.stack([values.real, values.imag], -1)


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_a_transform_along_any_axis_agrees_with_onnx_runtime(axis: int, parts: int, inverse: int) -> None:
    shape = (3, 5, 4, parts)
    late = node("DFT", ["x", "", "axis"], ["y"], inverse=inverse)
    agrees(build([late], {"x": shape}, ["y"], {"axis": np.array(axis)}))
    early = node("DFT", ["x"], ["y"], axis=axis % 4, inverse=inverse)
    agrees(build([early], {"x": shape}, ["y"], opset=17))


@pytest.mark.parametrize("length", [3, 8, 11])
@pytest.mark.parametrize("onesided", [0, 1])
def test_signals_are_padded_or_cut_to_the_length(length: int, onesided: int) -> None:
    proto = build([node("DFT", ["x", "n"], ["y"], onesided=onesided)], {"x": (2, 8, 1)}, ["y"], {"n": np.array(length)})
    transform = np.fft.rfft if onesided else np.fft.fft
    agrees(proto, lambda x: pairs(transform(x[..., 0], length, axis=1)))


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [None, np.hanning(16).astype(np.float32)])
def test_frames_of_a_signal_agree_with_onnx_runtime(window: Any, onesided: int) -> None:
    weights = {"step": np.array(5), "n": np.array(16)} | ({} if window is None else {"w": window})
    stft = node("STFT", ["x", "step", "" if window is None else "w", "n"], ["y"], onesided=onesided)
    agrees(build([stft], {"x": (2, 50, 1)}, ["y"], weights))


def test_frames_of_a_complex_signal_are_transformed() -> None:
    def frames(x: Any) -> Any:
        z = x[..., 0] + 1j * x[..., 1]
        return pairs(np.stack([np.fft.fft(z[:, k : k + 8]) for k in (0, 4, 8)], 1))

    stft = node("STFT", ["x", "step", "", "n"], ["y"], onesided=0)
    agrees(build([stft], {"x": (1, 16, 2)}, ["y"], {"step": np.array(4), "n": np.array(8)}), frames)


def test_a_transform_in_double_precision_has_a_matrix_in_double_precision() -> None:
    proto = build([node("DFT", ["x"], ["y"])], {"x": (2, 8, 1)}, ["y"])
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    assert load_model(proto).weights["y_axis0"].dtype == np.float64
    agrees(proto)


def test_an_inverse_of_one_side_is_refused() -> None:
    model = load_model(build([node("DFT", ["x"], ["y"], inverse=1, onesided=1)], {"x": (1, 5, 2)}, ["y"]))
    assert express(model.nodes[0], model) == NotUnderstood("it is inverse and onesided")


def test_a_window_that_is_computed_is_refused() -> None:
    stft = node("STFT", ["x", "step", "w", "n"], ["y"])
    proto = build([stft], {"x": (1, 16, 1), "w": (8,)}, ["y"], {"step": np.array(4), "n": np.array(8)})
    model = load_model(proto)
    assert express(model.nodes[0], model) == NotUnderstood("window (w) is not known before the model runs")


def test_a_long_transform_is_left_to_a_fast_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier_module, "MAX_MATRIX_ELEMENTS", 127)
    model = load_model(build([node("DFT", ["x"], ["y"])], {"x": (2, 8, 1)}, ["y"]))
    assert partition(model).skipped[0].why == "its matrix has 128 elements, at most 127 are multiplied"


def test_a_transform_is_a_contraction_with_an_epilogue() -> None:
    nodes = [node("STFT", ["x", "step", "w", "n"], ["s"]), node("Mul", ["s", "s"], ["y"])]
    weights = {"step": np.array(100), "w": np.hanning(200).astype(np.float32), "n": np.array(200)}
    model = load_model(build(nodes, {"x": (1, 4000, 1)}, ["y"], weights))
    assert model.shape("y") == (1, 39, 101, 2)  # ONNX's inference has 200 where the attribute onesided is omitted
    (subprogram,) = partition(model).subprograms
    assert subprogram.nodes == ("stft_s", "mul_y")
    assert [t.shape for t in subprogram.program.inputs if t.weight] == [(200, 101, 2)]


def test_equal_transforms_share_a_matrix() -> None:
    model = load_model(build([node("DFT", ["x"], ["a"]), node("DFT", ["a"], ["y"])], {"x": (4, 8, 2)}, ["y"]))
    assert {n.constants for n in model.nodes} == {("a_axis0",)}


def test_results_are_compared_with_precise_transforms() -> None:
    """ONNX Runtime's error for 768 numbers is larger than a candidate may have."""
    nodes = [
        node("DFT", ["x", "", "second"], ["h"]),
        node("DFT", ["h", "", "first"], ["z"]),
        node("Neg", ["z"], ["y"]),
    ]
    axes = {"second": np.array(2), "first": np.array(1)}
    model = load_model(build(nodes, {"x": (1, 128, 768, 1)}, ["y"], axes))
    precise = with_precise_transforms(model.proto)
    feeds = {"x": RNG.standard_normal((1, 128, 768, 1)).astype(np.float32)}
    wanted = {"y": -pairs(np.fft.fft2(feeds["x"][0, ..., 0]))[None].astype(np.float32)}
    assert differences(wanted, run(model.proto, feeds))[1] > MAX_RELATIVE_ERROR
    assert differences(wanted, run(precise, feeds))[1] < 1e-6
    assert Baseline(model, build_plan(model), feeds, MAX_RELATIVE_ERROR).errors(wanted)[1] < 1e-6
    for subprogram in partition(model).subprograms:
        original = open_original(model, subprogram, 1)[0]()
        assert original.run_unoptimised is not None
        assert original.error(original.outputs(), original.run_unoptimised()) < 1e-6


def test_models_without_transforms_are_not_rewritten() -> None:
    proto = build([node("Neg", ["x"], ["y"])], {"x": (2, 8)}, ["y"])
    assert with_precise_transforms(proto) is proto
