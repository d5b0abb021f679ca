"""Weights apart from graphs: sessions read them where they are, kernels in large pages."""

import mmap
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.runtime.arrays import ALIGNMENT, Array, aligned
from einnet_explore.runtime.onnx_weights import (
    LARGE_PAGE_BYTES,
    LargePages,
    content_bytes,
    declare_as_inputs,
    is_declared,
    lies_in_large_pages,
    open_lent,
    restore_declared,
    weight_proto,
    with_elements,
    without_elements,
)

has_large_pages = pytest.mark.skipif(
    not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages to ask for"
)


def added(weight: Array) -> onnx.ModelProto:
    """Return the model Y = X + W."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, weight.shape) for name in "XY"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["X", "W"], ["Y"])], "g", ends[:1], ends[1:], [weight_proto("W", weight)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def gathered(weight: Array) -> onnx.ModelProto:
    """Return the model Y = W[X]."""
    model = added(weight)
    model.graph.node[0].CopyFrom(helper.make_node("Gather", ["W", "X"], ["Y"]))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


@has_large_pages
def test_small_arrays_share_a_large_page_and_large_ones_begin_at_one() -> None:
    rng, pages = np.random.default_rng(0), LargePages()
    given = [
        rng.standard_normal((3, 5)).astype(np.float32),
        rng.standard_normal(LARGE_PAGE_BYTES // 4 + 3).astype(np.float32),
        np.arange(7),
        np.zeros((0, 3), np.float32),
        np.float64(3.0),
    ]
    first, large, *rest = made = [pages.copy(np.asarray(array)) for array in given]
    for array, want in zip(made, given, strict=True):
        np.testing.assert_array_equal(array, want)
        assert array.dtype == want.dtype and array.ctypes.data % ALIGNMENT == 0
        assert lies_in_large_pages(array) and lies_in_large_pages(array.reshape(-1)[:1])
    assert first.ctypes.data % LARGE_PAGE_BYTES == large.ctypes.data % LARGE_PAGE_BYTES == 0
    page = first.ctypes.data // LARGE_PAGE_BYTES
    assert all(
        array.ctypes.data // LARGE_PAGE_BYTES in (page, large.ctypes.data // LARGE_PAGE_BYTES + 1) for array in rest
    )
    assert not lies_in_large_pages(given[0])


def test_session_reads_a_declared_weight_in_place() -> None:
    weight = aligned(np.arange(1024, dtype=np.float32))
    model = gathered(weight)
    assert model.ByteSize() < weight.nbytes and content_bytes(model, {"W": weight}) > weight.nbytes
    session = open_lent(model, onnxruntime.SessionOptions(), {"W": weight, "not read": weight})
    feeds = {"X": np.arange(1024)[::-1].copy()}
    np.testing.assert_array_equal(session.run(None, feeds)[0], weight[::-1])
    weight += 1
    np.testing.assert_array_equal(session.run(None, feeds)[0], weight[::-1])


def test_a_weight_that_onnx_runtime_transposes_is_not_read_in_place() -> None:
    """Its optimisations move the transpositions of x behind the sum, and give the transposed weight the same name."""
    weight = aligned(np.arange(1024, dtype=np.float32).reshape(32, 32))
    model = added(weight)
    del model.graph.node[:]
    model.graph.node.extend(
        [
            helper.make_node("Transpose", ["X"], ["T"], perm=[1, 0]),
            helper.make_node("Add", ["T", "W"], ["S"]),
            helper.make_node("Transpose", ["S"], ["Y"], perm=[1, 0]),
        ]
    )
    session = open_lent(model, onnxruntime.SessionOptions(), {"W": weight})
    np.testing.assert_array_equal(session.run(None, {"X": np.zeros_like(weight)})[0], weight.T)


def test_weights_are_lent_to_graphs_inside_and_not_if_nothing_reads_them() -> None:
    weight = aligned(np.arange(1024, dtype=np.float32))
    model = added(weight)
    (node,), end = model.graph.node, helper.make_tensor_value_info("Z", TensorProto.FLOAT, weight.shape)
    node.output[0] = "Z"
    branch = helper.make_graph([node], "branch", [], [end])
    model.graph.node[0].CopyFrom(helper.make_node("If", ["is"], ["Y"], then_branch=branch, else_branch=branch))
    model.graph.input.append(helper.make_tensor_value_info("is", TensorProto.BOOL, []))
    model.graph.initializer.append(weight_proto("unread", weight))
    session = open_lent(model, onnxruntime.SessionOptions(), {"W": weight, "unread": weight})
    found = session.run(None, {"X": np.ones(1024, np.float32), "is": np.array(True)})[0]
    np.testing.assert_array_equal(found, weight + 1)


def test_few_elements_are_written_into_the_graph() -> None:
    weight = np.arange(4, dtype=np.float32)
    (tensor,) = added(weight).graph.initializer
    assert not is_declared(tensor)
    session = open_lent(added(weight), onnxruntime.SessionOptions(), {})
    np.testing.assert_array_equal(session.run(None, {"X": weight})[0], 2 * weight)


def test_elements_leave_a_model_and_come_back() -> None:
    weight = np.arange(2048, dtype=np.float32)
    model = added(weight)
    model.doc_string, model.metadata_props.add().key = "as it was", "a key"
    whole = with_elements(model, {"W": weight})
    assert len(whole.graph.initializer[0].raw_data) == weight.nbytes
    assert without_elements(whole, {"W": weight}) == model
    assert with_elements(without_elements(whole, {"W": weight}), {"W": weight}) == whole


def loaded() -> Model:
    weight = np.arange(2048, dtype=np.float32)
    return load_model(with_elements(gathered(weight), {"W": weight}))


def test_model_holds_each_weight_once() -> None:
    model = loaded()
    assert model.weights["W"] is model.original_weights["W"]
    assert all(proto.ByteSize() < 1024 for proto in (model.graph_proto, model.original_proto))
    assert len(model.original.graph.initializer[0].raw_data) == len(model.proto.graph.initializer[0].raw_data) == 8192


def test_digest_depends_on_every_element() -> None:
    model, other = loaded(), loaded()
    assert model.digest() == other.digest()
    other.original_weights["W"][2047] = 0
    assert model.digest() != other.digest()


def test_plan_of_the_original_reads_its_weights_in_place() -> None:
    model = loaded()
    plan = build_plan(model)
    feeds = {"X": np.arange(2048)}
    np.testing.assert_array_equal(plan.run(feeds)["Y"], np.arange(2048))
    model.weights["W"][:] = 1
    np.testing.assert_array_equal(plan.run(feeds)["Y"], np.ones(2048))


def test_tools_of_onnx_get_models_without_the_elements_of_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checker, converter and inference copy what they are given several times."""
    weight = np.arange(1 << 16, dtype=np.float32)
    whole = with_elements(added(weight), {"W": weight})
    whole.opset_import[0].version = 13  # Add has another definition since 14, so it is converted
    seen = dict[str, int]()

    def watch(module: object, name: str) -> None:
        tool = getattr(module, name)

        def call(proto: onnx.ModelProto, *rest: Any, **options: Any) -> Any:
            seen[name] = max(seen.get(name, 0), proto.ByteSize())
            return tool(proto, *rest, **options)

        monkeypatch.setattr(module, name, call)

    watch(onnx.checker, "check_model")
    watch(onnx.version_converter, "convert_version")
    watch(onnx.shape_inference, "infer_shapes")
    model = load_model(whole)
    assert model.opset == 21 and seen.keys() == {"check_model", "convert_version", "infer_shapes"}
    assert max(seen.values()) < 1024
    assert [value.name for value in model.graph_proto.graph.input] == ["X"]
    np.testing.assert_array_equal(model.weights["W"], weight)


def test_large_weights_are_folded_and_stay_apart() -> None:
    weight = np.arange(1 << 12, dtype=np.float32)
    whole = with_elements(added(weight), {"W": weight})
    whole.graph.node[0].input[1] = "N"
    whole.graph.node.insert(0, helper.make_node("Neg", ["W"], ["N"]))
    model = load_model(whole)
    assert [node.op for node in model.nodes] == ["Add"] and model.graph_proto.ByteSize() < 1024
    np.testing.assert_array_equal(model.weights["N"], -weight)


def test_inputs_in_place_of_declared_weights_become_weights_again() -> None:
    model = added(np.arange(2048, dtype=np.float32))
    bare = declare_as_inputs(model)
    assert [value.name for value in bare.graph.input] == ["X", "W"] and not bare.graph.initializer
    onnx.checker.check_model(bare)
    restore_declared(bare, model)
    assert bare == model
