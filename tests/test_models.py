"""The evaluation models: valid, the same every time, and of the layers that the paper names."""

import hashlib
from collections import Counter
from math import prod

import numpy as np
import onnx
import pytest
from onnx_building import run

from einnet_explore.graph.models import MODELS, write
from einnet_explore.graph.reading.load import load
from einnet_explore.graph.reading.model import Model

NAMES = [model.name for model in MODELS]


def digest(name: str, batch: int) -> str:
    return hashlib.sha256(write(name, batch).SerializeToString()).hexdigest()


def multiplications(model: Model) -> int:
    """Of the convolutions, transposed convolutions and matrix products."""
    total = 0
    for node in model.nodes:
        if node.op in ("Conv", "Gemm"):
            total += prod(model.shape(node.outputs[0])) * prod(model.shape(node.inputs[1])[1:])
        if node.op == "ConvTranspose":
            total += prod(model.shape(node.inputs[0])) * prod(model.shape(node.inputs[1])[1:])
    return total


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_the_same_every_time(name: str) -> None:
    assert digest(name, 1) == digest(name, 1)


@pytest.mark.parametrize("name", NAMES)
def test_runs_in_onnx_runtime_with_activations_in_range(name: str) -> None:
    proto = write(name, 1)
    onnx.checker.check_model(proto, full_check=True)
    assert (proto.ir_version, proto.opset_import[0].version) == (10, 21)
    (value,) = load(proto).inputs
    assert value.shape is not None
    found = run(proto, {value.name: np.random.default_rng(0).standard_normal(value.shape).astype(np.float32)}, True)
    for key, array in found.items():
        assert np.isfinite(array).all(), key
        assert 1e-3 < np.abs(array).max() < 1e3, key
    assert found["output"].std() > 1e-2


def test_resnet18_is_resnet18() -> None:
    model = load(write("resnet18"))
    assert Counter(n.op for n in model.nodes) == {
        "Conv": 20, "BatchNormalization": 20, "Relu": 17, "Add": 8, "MaxPool": 1,
        "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1,
    }  # fmt: skip
    learned = sum(a.size for n, a in model.weights.items() if not n.startswith(("bn_mean", "bn_var")))
    assert learned == 11_689_512
    assert multiplications(model) == 1_814_073_344
    assert model.outputs[0].shape == (1, 1000)


def test_infogan_is_the_chain_of_the_paper() -> None:
    model = load(write("infogan", 16))
    shapes = [model.shape(n.outputs[0])[1:] for n in model.nodes if n.op == "ConvTranspose"]
    assert shapes == [(448, 2, 2), (256, 4, 4), (128, 8, 8), (64, 16, 16), (3, 32, 32)]
    assert [n.op for n in model.nodes if n.op != "ConvTranspose"] == ["Relu"] * 4 + ["Tanh"]
    assert model.inputs[0].shape == (16, 228, 1, 1)


def test_batch_changes_shapes_and_nothing_else() -> None:
    one, many = load(write("infogan", 1)), load(write("infogan", 3))
    assert many.outputs[0].shape == (3, 3, 32, 32)
    assert all(np.array_equal(one.weights[n], many.weights[n]) for n in one.weights)


def test_what_cannot_be_written() -> None:
    with pytest.raises(ValueError, match=r"model 'alexnet': expected one of infogan, resnet18"):
        write("alexnet")
    with pytest.raises(ValueError, match="batch 0: expected at least 1"):
        write("infogan", 0)
