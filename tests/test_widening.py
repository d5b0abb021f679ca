"""Models that store numbers in 16 bits: their float32 form, and what ``optimize`` says of them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import einnet_explore as ee
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import ModelError
from einnet_explore.onnx_import.widening import narrow_types, widen
from einnet_explore.runtime.arrays import largest_error

F16, BF16 = TensorProto.FLOAT16, TensorProto.BFLOAT16
DTYPES = {F16: np.dtype(np.float16), BF16: np.dtype(ml_dtypes.bfloat16)}


def residual(kind: int, channels: int = 8, side: int = 9) -> onnx.ModelProto:
    """Two convolutions with a residual connection, and the mean of their result, in elements of *kind*."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.standard_normal((channels, channels, 3, 3)) / 9).astype(DTYPES[kind]), name)
        for name in ("w1", "w2")
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "second", pads=[1] * 4),
        helper.make_node("Add", ["c", "b"], ["y"], "add"),
        helper.make_node("GlobalAveragePool", ["y"], ["z"], "mean"),
    ]
    image = [1, channels, side, side]
    outputs = [helper.make_tensor_value_info(n, kind, s) for n, s in (("y", image), ("z", [1, channels, 1, 1]))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, image)], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(proto: onnx.ModelProto, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def image(channels: int = 8, side: int = 9) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((1, channels, side, side)).astype(np.float16)


def test_float16_is_computed_in_float32_between_conversions() -> None:
    proto = residual(F16)
    wide = widen(proto)
    onnx.checker.check_model(wide, full_check=True)
    assert narrow_types(proto) == {"float16"}
    assert [v.type.tensor_type.elem_type for v in (*wide.graph.input, *wide.graph.output)] == [F16] * 3
    want, got = run(proto, x=image()), run(wide, x=image())
    assert {value.dtype for value in got.values()} == {np.dtype(np.float16)}
    assert largest_error(want, got) < 1e-6
    assert widen(wide) is wide  # conversions at the border only


def test_bfloat16_becomes_float32_and_keeps_its_elements() -> None:
    wide = widen(residual(BF16))
    onnx.checker.check_model(wide, full_check=True)
    assert widen(wide) is wide
    weight = numpy_helper.to_array(wide.graph.initializer[0])
    assert weight.dtype == np.float32 and (weight == weight.astype(ml_dtypes.bfloat16)).all()
    same = residual(F16)
    for stored, source in zip(same.graph.initializer, wide.graph.initializer, strict=True):
        stored.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(source).astype(np.float16), source.name))
    got = run(wide, x=image().astype(np.float32))
    assert all((value == value.astype(ml_dtypes.bfloat16)).all() for value in got.values())
    assert largest_error({k: v.astype(np.float32) for k, v in run(same, x=image()).items()}, got) < 6e-3


def test_subgraphs_attributes_and_names_in_use_are_widened() -> None:
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "half"], ["inner"]), helper.make_node("Identity", ["y"], ["same"])],
        "then", [], [helper.make_tensor_value_info(name, F16, [2]) for name in ("inner", "same")],
        [numpy_helper.from_array(np.float16([0.5, 2]), "half")],
    )  # fmt: skip
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["x/float32"]),
        helper.make_node("Cast", ["n"], ["real"], to=F16),
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=numpy_helper.from_array(np.float16([1]))),
        helper.make_node("Sum", ["x/float32", "real", "ones"], ["y"]),
        helper.make_node("If", ["flag"], ["p", "q"], then_branch=branch, else_branch=branch),
    ]
    inputs = [("x", F16), ("n", TensorProto.INT64)]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
        + [helper.make_tensor_value_info(name, kind, [2]) for name, kind in inputs],
        [helper.make_tensor_value_info(name, F16, [2]) for name in "ypq"],
        [numpy_helper.from_array(np.array([2]), "shape")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    wide = widen(proto)
    onnx.checker.check_model(wide, full_check=True)
    feeds = {"flag": np.array(True), "x": np.float16([1.5, -2]), "n": np.array([3, 4])}
    want, got = run(proto, **feeds), run(wide, **feeds)
    assert all(np.array_equal(want[name], got[name]) for name in "ypq")


@pytest.mark.parametrize("kind", [F16, BF16])
def test_outputs_that_no_node_makes_have_the_type_of_what_they_are(kind: int) -> None:
    proto = residual(kind)
    for name in ("x", "w1"):
        shape = [1 if name == "x" else 8, 8, 9 if name == "x" else 3, 9 if name == "x" else 3]
        proto.graph.output.append(helper.make_tensor_value_info(name, kind, shape))
    wide = widen(proto)
    onnx.checker.check_model(wide, full_check=True)
    kinds = [value.type.tensor_type.elem_type for value in wide.graph.output]
    assert kinds[2:] == [F16 if kind == F16 else TensorProto.FLOAT, TensorProto.FLOAT]


def test_models_with_operators_of_other_domains_stay() -> None:
    proto = residual(F16)
    proto.graph.node[1].domain = "my.operators"
    proto.opset_import.append(helper.make_opsetid("my.operators", 1))
    assert widen(proto) is proto
    border = widen(residual(F16))  # converted at its border only
    assert load_model(border).stored is None and load_model(residual(F16)).narrow == ("float16",)


def test_damaged_elements_are_named() -> None:
    proto = residual(F16)
    proto.graph.node.append(helper.make_node("ConstantOfShape", ["s"], ["t"], "fill"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2]), "s"))
    damaged = onnx.TensorProto(data_type=F16, dims=[1], raw_data=b"123", name="value")
    proto.graph.node[-1].attribute.append(helper.make_attribute("value", damaged))
    with pytest.raises(ModelError, match="expected the elements of 16-bit tensors"):
        load_model(proto)


@pytest.mark.parametrize("kind", [F16, BF16])
def test_optimize_derives_models_of_16_bits(kind: int, tmp_path: Path) -> None:
    proto = residual(kind, 16, 28)
    fast = ee.optimize(proto, budget=4, threads=1)
    assert fast.parts and fast.stored is not None and fast.report()["stored"]["types"] == [str(DTYPES[kind])]
    x = image(16, 28).astype(np.float16 if kind == F16 else np.float32)
    got = fast(x=x)
    if kind == F16:
        assert fast.stored.difference is not None and fast.stored.difference < 1e-4
        assert largest_error(run(proto, x=x), got) < 1e-4
        assert "float16 computed in float32; the file takes" in str(fast)
    else:
        assert "ONNX Runtime does not run the file" in str(fast)
    fast.save(tmp_path / "fast.onnx")
    if kind == F16 or fast.replacements:
        assert largest_error(run(onnx.load(tmp_path / "fast.onnx"), x=x), got) < 1e-3


def test_one_unit_in_the_last_place_of_float16_is_no_error() -> None:
    want = {"y": np.float16([1000.0, 0.5])}
    assert largest_error(want, {"y": np.nextafter(want["y"], np.float16(np.inf))}) == 0
    assert largest_error(want, {"y": np.float16([1002.0, 0.5])}) > 5e-4
