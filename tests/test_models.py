"""The evaluation models: valid, the same every time, and of the layers that the paper names."""

import hashlib
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_building import run

from einnet_evaluation import write_model
from einnet_evaluation.models import MODELS, PARTS, write
from einnet_evaluation.models.builder import Builder
from einnet_evaluation.models.longformer import OUTSIDE
from einnet_explore.cli import main
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model

SMALL = {"longformer": 400}
"""Sizes of models that are too large to keep every value of."""

NAMES = [model.name for model in (*MODELS, *PARTS)]


def digest(name: str, batch: int) -> str:
    return hashlib.sha256(write(name, batch).SerializeToString()).hexdigest()


def multiplications(model: Model) -> int:
    """Count the multiplications of convolutions, transposed convolutions and matrix products."""
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


def computed_from_weights(proto: onnx.ModelProto) -> set[str]:
    """Return the values that depend on no input, such as masks."""
    known = {w.name for w in proto.graph.initializer} | {""}
    for item in proto.graph.node:
        if known.issuperset(item.input):
            known.update(item.output)
    return known


@pytest.mark.parametrize("name", NAMES)
def test_activations_and_outputs_stay_in_range(name: str) -> None:
    proto = write(name, 1, SMALL.get(name))
    onnx.checker.check_model(proto, full_check=True)
    assert (proto.ir_version, proto.opset_import[0].version) == (10, 21)
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for value in load_model(proto).inputs:
        assert value.shape is not None
        feeds[value.name] = rng.standard_normal(value.shape).astype(np.float32)
    masks = computed_from_weights(proto)
    found = run(proto, feeds, True)
    for key, every in found.items():
        assert np.isfinite(every).all(), key
        array = every[every > OUTSIDE / 2]  # but for the scores of what does not count
        if key in masks:
            continue
        assert 1e-3 < np.abs(array).max() < 1e3, key
    rounded = run(proto, {k: np.nextafter(v, np.float32(np.inf)) for k, v in feeds.items()})
    for key, moved in rounded.items():
        assert 0.05 < found[key].std() < 10, "a saturated or vanished output tells nothing"
        assert np.abs(moved - found[key]).max() < 1e-5 * np.abs(moved).max(), "rounding inputs must not show"


def test_resnet18_has_the_published_layers_and_parameters() -> None:
    model = load_model(write("resnet18"))
    assert Counter(n.op for n in model.nodes) == {
        "Conv": 20, "BatchNormalization": 20, "Relu": 17, "Add": 8, "MaxPool": 1,
        "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1,
    }  # fmt: skip
    learned = sum(a.size for n, a in model.weights.items() if not n.startswith(("bn_mean", "bn_var")))
    assert learned == 11_689_512
    assert multiplications(model) == 1_814_073_344
    assert model.outputs[0].shape == (1, 1000)


def test_infogan_is_the_chain_of_the_paper() -> None:
    model = load_model(write("infogan", 16))
    shapes = [model.shape(n.outputs[0])[1:] for n in model.nodes if n.op == "ConvTranspose"]
    assert shapes == [(448, 2, 2), (256, 4, 4), (128, 8, 8), (64, 16, 16), (3, 32, 32)]
    assert [n.op for n in model.nodes if n.op != "ConvTranspose"] == ["Relu"] * 4 + ["Tanh"]
    assert model.inputs[0].shape == (16, 228, 1, 1)


def test_batch_changes_shapes_and_nothing_else() -> None:
    one, many = load_model(write("infogan", 1)), load_model(write("infogan", 3))
    assert many.outputs[0].shape == (3, 3, 32, 32)
    assert all(np.array_equal(one.weights[n], many.weights[n]) for n in one.weights)


def shapes_of(model: Model, op: str) -> list[tuple[int, ...]]:
    return [model.shape(n.outputs[0])[1:] for n in model.nodes if n.op == op]


def test_dcgan_is_a_chain_of_transposed_convolutions() -> None:
    model = load_model(write("dcgan", 2))
    assert shapes_of(model, "ConvTranspose") == [(512, 4, 4), (256, 8, 8), (128, 16, 16), (64, 32, 32), (3, 64, 64)]
    assert [n.op for n in model.nodes if n.op != "ConvTranspose"] == ["Relu"] * 4 + ["Tanh"]
    assert model.inputs[0].shape == (2, 100, 1, 1)


def test_fsrcnn_enlarges_four_times() -> None:
    model = load_model(write("fsrcnn"))
    assert [s[0] for s in shapes_of(model, "Conv")] == [56, 12, 12, 12, 12, 12, 56]
    assert Counter(n.op for n in model.nodes) == {"Conv": 7, "PRelu": 7, "ConvTranspose": 1}
    assert model.outputs[0].shape == (1, 1, 128, 128)
    assert load_model(write("fsrcnn", size=9)).outputs[0].shape == (1, 1, 36, 36)


def test_csrnet_keeps_the_resolution() -> None:
    model = load_model(write("csrnet"))
    assert shapes_of(model, "Conv") == [(f, 14, 14) for f in (512, 512, 512, 256, 128, 64)]
    assert all(n.attributes["dilations"] == [2, 2] for n in model.nodes if n.op == "Conv")
    assert [n.op for n in model.nodes] == ["Conv", "Relu"] * 6


def test_gcn_has_separable_pairs_and_refinements() -> None:
    model = load_model(write("gcn", size=64))
    kernels = Counter(tuple(n.attributes["kernel_shape"]) for n in model.nodes if n.op == "Conv")
    # Two ways of two in six bottlenecks a stage and in four heads; refinements of two in each head and decoder step.
    assert {k: kernels[k] for k in ((5, 1), (1, 5), (7, 1), (1, 7), (11, 1), (1, 11))} == {
        (5, 1): 12, (1, 5): 12, (7, 1): 12, (1, 7): 12, (11, 1): 8, (1, 11): 8,
    }  # fmt: skip
    assert kernels[3, 3] == 7 + 2 * (4 + 5)
    assert kernels[1, 1] == 2 * 7 + 2 + 2 * (6 + 1) and kernels[7, 7] == 1
    assert Counter(n.op for n in model.nodes)["Resize"] == 5
    assert model.outputs[0].shape == (1, 21, 64, 64)


def test_gcn_heads_are_those_of_gcn() -> None:
    heads = load_model(write("gcn-heads", 2))
    assert [v.shape for v in heads.inputs] == [(2, c, s, s) for c, s in ((256, 56), (512, 28), (1024, 14), (2048, 7))]
    assert [v.shape for v in heads.outputs] == [(2, 21, s, s) for s in (56, 28, 14, 7)]
    assert [n.op for n in heads.nodes] == (["Conv"] * 4 + ["Add"]) * 4


def test_size_changes_shapes_and_no_weight() -> None:
    one, large = load_model(write("csrnet")), load_model(write("csrnet", size=20))
    assert large.outputs[0].shape == (1, 64, 20, 20)
    assert all(np.array_equal(one.weights[n], large.weights[n]) for n in one.weights)


def test_unknown_model_or_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model 'alexnet': expected one of infogan, dcgan, fsrcnn"):
        write("alexnet")
    with pytest.raises(ValueError, match="batch 0: expected at least 1"):
        write("infogan", 0)
    with pytest.raises(ValueError, match="size 64: the model infogan has only one, expected none"):
        write("infogan", 1, 64)
    with pytest.raises(ValueError, match="size 100: expected a positive multiple of 32 pixels a side"):
        write("gcn", 1, 100)


def test_a_builder_names_an_output_that_is_not_the_last() -> None:
    b = Builder("test", 1)
    first = b.node("Relu", "input")
    b.node("Tanh", first)
    with pytest.raises(ValueError, match=r"output Relu_0 of shape \(2,\): expected the last node's"):
        b.model({"input": (2,)}, first, (2,))


def test_the_command_lists_sizes_and_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES) and "14 pixels a side" in said
    path = tmp_path / "m.onnx"
    assert main(["models", "write", "csrnet", "--batch", "2", "--size", "6", "-o", str(path)]) == 0
    assert load_model(path).outputs[0].shape == (2, 64, 6, 6)
    assert main(["models", "write", "dcgan", "--size", "6", "-o", str(path)]) == 2
    assert "size 6: the model dcgan has only one, expected none" in capsys.readouterr().err
    assert load_model(write_model("fsrcnn", path, size=4)).outputs[0].shape == (1, 1, 16, 16)
