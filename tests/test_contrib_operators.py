"""Models that ONNX Runtime's optimiser wrote: its operators become standard ones, with the same results."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_building import build, node, run

from einnet_explore.onnx_import.contrib_operators import CONTRIB_DOMAIN, expand_contrib_operators
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.optimisation import read_model
from einnet_explore.pipeline.partition import partition

SIZE = (2, 3, 8)
RNG = np.random.default_rng(0)
WEIGHTS = {name: RNG.standard_normal(8).astype(np.float32) for name in ("scale", "shift", "bias")}


def contrib(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return node(op, inputs, outputs, domain=CONTRIB_DOMAIN, **attributes)


def optimised(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = ("y",), opset: int = 21) -> onnx.ModelProto:
    used = {name for each in nodes for name in each.input}
    inputs = {name: SIZE for name in ("x", "skip") if name in used}
    proto = build(nodes, inputs, outputs, {n: a for n, a in WEIGHTS.items() if n in used}, opset=opset)
    proto.opset_import.append(helper.make_opsetid(CONTRIB_DOMAIN, 1))
    return proto


def assert_same(one: onnx.ModelProto, other: onnx.ModelProto) -> None:
    feeds = {value.name: RNG.standard_normal(SIZE).astype(np.float32) for value in one.graph.input}
    wanted, found = run(one, feeds), run(other, feeds)
    for value in one.graph.output:
        assert np.abs(wanted[value.name] - found[value.name]).max() <= 2e-6 * np.abs(wanted[value.name]).max()


NORMALISATIONS = [
    node("LayerNormalization", ["x", "scale", "shift"], ["y"], axis=-1, epsilon=0.5),
    node("LayerNormalization", ["x", "scale"], ["y"], axis=2),
    node("SimplifiedLayerNormalization", ["x", "scale"], ["y"], axis=-1, epsilon=0.5),
]


@pytest.mark.parametrize("opset", [11, 14, 17, 20])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_normalisations_that_the_operator_set_lacks_are_read(normalisation: onnx.NodeProto, opset: int) -> None:
    proto = optimised([normalisation], opset=opset)
    model = load_model(proto)
    assert not partition(model).skipped
    assert_same(proto, model.proto)
    assert [n.op_type for n in model.original.graph.node] == [normalisation.op_type]


def test_a_normalisation_with_further_outputs_is_refused_with_its_name() -> None:
    nodes = [node("SimplifiedLayerNormalization", ["x", "scale"], ["y", "inverse"], axis=-1)]
    with pytest.raises(ValueError, match=r"\(SimplifiedLayerNormalization\): found No Op registered"):
        load_model(optimised(nodes))


TRANSPOSED = [
    node("Transpose", ["x"], ["a"], perm=[0, 2, 1]),
    node("Transpose", ["skip"], ["b"], perm=[0, 2, 1]),
    contrib("FusedMatMul", ["a", "b"], ["y"], transA=1, alpha=0.5),
]


@pytest.mark.parametrize("opset", [14, 21])
@pytest.mark.parametrize(
    "nodes",
    [
        [contrib("QuickGelu", ["x"], ["y"], alpha=1.0)],
        [contrib("BiasGelu", ["x", "bias"], ["y"])],
        [contrib("SkipLayerNormalization", ["x", "skip", "scale", "shift", "bias"], ["y"], epsilon=1e-3)],
        [contrib("SkipSimplifiedLayerNormalization", ["x", "skip", "scale", "bias"], ["y"], epsilon=1e-3)],
        TRANSPOSED,
    ],
)
def test_optimize_derives_operators_of_onnx_runtime(nodes: Sequence[onnx.NodeProto], opset: int) -> None:
    proto = optimised(nodes, opset=opset)
    model = read_model(proto, {})
    assert not any(n.domain or n.op == "Einsum" for n in model.nodes)
    assert partition(model).subprograms
    assert_same(proto, model.proto)
    assert [n.op_type for n in model.original.graph.node] == [n.op_type for n in nodes]


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_sums_before_a_normalisation_are_outputs(op: str) -> None:
    affine = ["scale", "shift"] if op == "SkipLayerNormalization" else ["scale"]
    proto = optimised([contrib(op, ["x", "skip", *affine], ["y", "", "", "sum"])], ["y", "sum"], opset=14)
    assert_same(proto, read_model(proto, {}).proto)


def test_operators_of_float64_become_nodes_of_float64() -> None:
    proto = optimised([contrib("Gelu", ["x"], ["y"])])
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    model = read_model(proto, {})
    assert {model.dtype(name) for n in model.nodes for name in n.outputs} == {np.dtype(np.float64)}


def test_an_operator_of_an_unknown_element_type_stays() -> None:
    nodes = [
        node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
        contrib("Gelu", ["wide"], ["g"]),
        node("Cast", ["g"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = optimised(nodes)
    proto.graph.value_info.append(helper.make_tensor_value_info("wide", TensorProto.DOUBLE, SIZE))
    assert [n.op for n in read_model(proto, {}).nodes] == ["Cast", "Gelu", "Cast"]


def test_a_model_without_such_operators_is_not_copied() -> None:
    proto = build([node("Relu", ["x"], ["y"])], {"x": SIZE}, ["y"])
    assert expand_contrib_operators(proto) is proto


def test_values_of_an_expansion_have_new_names() -> None:
    proto = optimised([node("Neg", ["x"], ["y/0"]), contrib("BiasGelu", ["y/0", "bias"], ["y"])])
    assert_same(proto, read_model(proto, {}).proto)
