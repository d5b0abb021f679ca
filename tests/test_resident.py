"""Weights that sessions read where they are, in memory of large pages."""

import mmap

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.runtime.onnx_fragment import (
    ARRAY_ALIGNMENT_BYTES,
    LARGE_PAGE_BYTES,
    Array,
    copy_to_large_pages,
    share_initializers,
)

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages to ask for")


def test_copies_are_equal_and_aligned() -> None:
    rng = np.random.default_rng(0)
    given: dict[str, Array] = {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal(LARGE_PAGE_BYTES // 4).astype(np.float32),
        "c": np.arange(7),
        "none": np.zeros((0, 3), np.float32),
    }
    held = copy_to_large_pages(given)
    assert set(held) == {"a", "b", "c"}
    for name, array in held.items():
        np.testing.assert_array_equal(array, given[name])
        assert array.dtype == given[name].dtype and array.ctypes.data % ARRAY_ALIGNMENT_BYTES == 0
    assert held["a"].ctypes.data % LARGE_PAGE_BYTES == 0


def test_small_constants_are_not_moved_to_pages() -> None:
    assert copy_to_large_pages({"a": np.ones(LARGE_PAGE_BYTES // 8, np.float32)}) == {}
    assert copy_to_large_pages({}) == {}


def test_session_computes_with_the_weights_that_replace_its_own() -> None:
    """The model says that W is 0; what is lent in its place is what the session computes with."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "XY"]
    zero = numpy_helper.from_array(np.zeros((1, 2), np.float32), "W")
    graph = helper.make_graph([helper.make_node("Add", ["X", "W"], ["Y"])], "g", ends[:1], ends[1:], [zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    weights = {"W": np.array([[1, 2]], np.float32)}
    options = onnxruntime.SessionOptions()
    held = share_initializers(options, weights)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"X": np.array([[10, 20]], np.float32)})
    assert len(held) == 1
    np.testing.assert_array_equal(got, [[11, 22]])
