"""Reshapes around kernels: kernels read and write the shapes before and after them."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from einnet_explore.runtime.kernel_shapes import Shape, flatten_shapes, list_shapes, without_reshapes
from einnet_explore.runtime.onnx_weights import DOMAIN

SIZES = {"six": np.array([6]), "two": np.array([2, 3]), "open": np.array([-1, 3])}


def kernel(reads: Sequence[str], makes: str, shapes: Sequence[Shape]) -> onnx.NodeProto:
    return helper.make_node("Kernel", reads, [makes], domain=DOMAIN, shapes=flatten_shapes(shapes), name=makes)


def reshape(source: str, size: str, target: str) -> onnx.NodeProto:
    return helper.make_node("Reshape", [source, size], [target])


def spell(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Each node as its operator, its inputs with the shapes that a kernel declares, and its output."""
    out = []
    for node in nodes:
        shapes = [list_shapes(a.ints) for a in node.attribute if a.name == "shapes"]
        seen = [f"{n}{list(s)}" for n, s in zip((*node.input, *node.output), shapes[0], strict=True)] if shapes else []
        out.append(f"{node.op_type} {' '.join(seen or (*node.input, *node.output))}")
    return out


def merged(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = ("y",), **shapes: Shape) -> list[str]:
    before = [node.SerializeToString() for node in nodes]
    found = spell(without_reshapes(nodes, shapes, SIZES, outputs))
    assert [node.SerializeToString() for node in nodes] == before, "nodes that change are copies"
    return found


def test_shapes_are_listed_as_they_were_flattened() -> None:
    shapes = [(2, 3), (), (0,), (1, 1, 7)]
    assert flatten_shapes(shapes) == [2, 2, 3, 0, 1, 0, 3, 1, 1, 7] and list_shapes(flatten_shapes(shapes)) == shapes


def test_kernels_read_what_is_reshaped() -> None:
    nodes = [
        reshape("x", "six", "flat"), kernel(["flat", "w", "flat"], "a", [(6,), (4,), (6,), (6,)]),
        kernel(["flat"], "y", [(6,), (2, 3)]),
    ]  # fmt: skip
    assert merged(nodes, x=(2, 3)) == ["Kernel x[2, 3] w[4] x[2, 3] a[6]", "Kernel x[2, 3] y[2, 3]"]


def test_kernel_makes_what_is_reshaped() -> None:
    nodes = [kernel(["x"], "a", [(2, 3), (6,)]), reshape("a", "two", "y")]
    assert merged(nodes) == ["Kernel x[2, 3] y[2, 3]"]
    nodes[1] = helper.make_node("Unsqueeze", ["a", "axes"], ["y"])
    assert merged(nodes, y=(1, 6)) == ["Kernel x[2, 3] y[1, 6]"]


def test_reshapes_in_a_row_between_kernels_go() -> None:
    nodes = [
        kernel(["x"], "a", [(6,), (6,)]), reshape("a", "two", "b"), helper.make_node("Flatten", ["b"], ["c"], axis=0),
        kernel(["c"], "y", [(1, 6), (6,)]),
    ]  # fmt: skip
    assert merged(nodes, c=(1, 6)) == ["Kernel x[6] b[2, 3]", "Kernel b[2, 3] y[6]"]


@pytest.mark.parametrize("reader", ["node", "graph", "output"])
def test_reshape_stays_where_others_read_both_values(reader: str) -> None:
    nodes = [kernel(["x"], "a", [(6,), (6,)]), reshape("a", "two", "b"), kernel(["b"], "y", [(2, 3), (6,)])]
    outputs = ["y"]
    if reader == "node":
        nodes.append(helper.make_node("Relu", ["b"], ["z"]))
        nodes.append(helper.make_node("Relu", ["a"], ["u"]))
    elif reader == "graph":
        info = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
        both = helper.make_graph([helper.make_node("Relu", [n], ["z"]) for n in ("a", "b")], "branch", [], [info])
        nodes.append(helper.make_node("If", ["test"], ["z"], then_branch=both, else_branch=both))
    else:
        outputs += ["a", "b"]
    assert merged(nodes, outputs)[1] == "Reshape a two b"


def test_reshape_of_a_value_that_others_read_leaves_its_kernel() -> None:
    nodes = [
        kernel(["x"], "a", [(6,), (6,)]), reshape("a", "two", "b"), kernel(["b"], "y", [(2, 3), (6,)]),
        helper.make_node("Relu", ["a"], ["z"]),
    ]  # fmt: skip
    assert merged(nodes) == ["Kernel x[6] a[6]", "Kernel a[6] y[6]", "Relu a z"]


def test_reshapes_of_unknown_shape_or_without_kernels_stay() -> None:
    nodes = [reshape("x", "six", "b"), kernel(["b"], "a", [(6,), (6,)]), reshape("a", "open", "y")]
    assert merged(nodes)[::2] == ["Reshape x six b", "Reshape a open y"]
    assert merged(nodes, x=(2, 4))[0] == "Reshape x six b"
    others = [helper.make_node("Relu", ["x"], ["a"]), reshape("a", "six", "y")]
    assert merged(others, x=(2, 3), a=(2, 3)) == ["Relu x a", "Reshape a six y"]
