"""Models in PyTorch: every operator that is known agrees with ONNX Runtime, the others are refused by name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_building import build, node, run
from onnx_building import integers as ints

from einnet_evaluation.engines import Task, prepare
from einnet_evaluation.models import write
from einnet_evaluation.rivals import COMPILED, TORCH
from einnet_evaluation.torch_engine import torch_engine
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.baseline import random_model_inputs

pytest.importorskip("torch")

RNG = np.random.default_rng(3)
X = (2, 6, 8, 9)
W = {
    "k": ints(RNG, 4, 6, 3, 3), "t": ints(RNG, 6, 4, 3, 3), "c1": ints(RNG, 4, 6, 3), "m": ints(RNG, 9, 5),
    "s": RNG.uniform(0.5, 1.5, 6), "b": ints(RNG, 6), "k4": ints(RNG, 4), "slope": RNG.uniform(0, 1, (6, 1, 1)),
    "wide": RNG.uniform(0.5, 1.5, X[1:]), "ln": RNG.uniform(0.5, 1.5, 9),
}  # fmt: skip
NUMBERS = {"shape": [2, 48, 9], "axes": [1, 3], "one": [1], "lo": [1, 2], "hi": [5, -1], "by": [2, 3], "at": [3, 0, 3],
           "pads": [0, 0, 1, 2, 0, 1, 0, 3], "times": [1, 2, 1, 3], "large": [2, 6, 8, 9], "zero": 2,
           "end": [[-1, 0], [2, -3]]}  # fmt: skip

SINGLE: dict[str, tuple[str, Sequence[str], dict[str, Any]]] = {
    **{op: (op, ["x"], {}) for op in ("Relu", "Tanh", "Sigmoid", "Exp", "Abs", "Neg", "Erf", "Softplus", "HardSwish",
                                      "Identity", "HardSigmoid", "LeakyRelu", "Elu", "Gelu", "GlobalAveragePool",
                                      "GlobalMaxPool", "Flatten", "Softmax", "LogSoftmax", "Transpose")},
    **{op: (op, ["x", "x2"], {}) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")},
    "Clip": ("Clip", ["x", "low"], {}),
    "PRelu a channel": ("PRelu", ["x", "slope"], {}),
    "PRelu a place": ("PRelu", ["x", "wide"], {}),
    "Gelu tanh": ("Gelu", ["x"], {"approximate": "tanh"}),
    "Conv": ("Conv", ["x", "k", "k4"], {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 2, 1, 2]}),
    "Conv, uneven padding": ("Conv", ["x", "k"], {"pads": [1, 0, 2, 3]}),
    "Conv 1d": ("Conv", ["flat", "c1"], {"pads": [1, 1]}),
    "ConvTranspose": ("ConvTranspose", ["x", "t"], {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}),
    "MaxPool": ("MaxPool", ["x"], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "AveragePool": ("AveragePool", ["x"], {"kernel_shape": [2, 3], "pads": [1, 1, 1, 1]}),
    "BatchNormalization": ("BatchNormalization", ["x", "s", "b", "b", "s"], {}),
    "InstanceNormalization": ("InstanceNormalization", ["x", "s", "b"], {}),
    "LayerNormalization": ("LayerNormalization", ["x", "ln"], {}),
    "MatMul": ("MatMul", ["x", "m"], {}),
    "Gemm": ("Gemm", ["rows", "m", "row"], {"alpha": 0.5, "beta": 2.0}),
    "Einsum": ("Einsum", ["x", "m"], {"equation": "abcd,de->aebc"}),
    "Reshape": ("Reshape", ["x", "shape"], {}),
    "Concat": ("Concat", ["x", "x2"], {"axis": 1}),
    "Slice": ("Slice", ["x", "lo", "hi", "axes", "by"], {}),
    "Gather": ("Gather", ["x", "at"], {"axis": 1}),
    "Gather from the end": ("Gather", ["x", "end"], {"axis": -2}),
    "Gather one": ("Gather", ["x", "zero"], {"axis": 3}),
    "Pad": ("Pad", ["x", "pads"], {}),
    "Tile": ("Tile", ["x", "times"], {}),
    "ReduceSum": ("ReduceSum", ["x", "axes"], {}),
    "ReduceMean": ("ReduceMean", ["x", "axes"], {"keepdims": 0}),
    "ReduceMax": ("ReduceMax", ["x"], {}),
    "Resize": ("Resize", ["x", "", "scales"], {"mode": "linear"}),
    "Resize, nearest": ("Resize", ["x", "", "scales"], {"mode": "nearest"}),
    "Resize, corners": (
        "Resize", ["x", "", "scales"], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    ),
    "Cast": ("Cast", ["x"], {"to": onnx.TensorProto.DOUBLE}),
}  # fmt: skip


def single(op: str, reads: Sequence[str], attributes: dict[str, Any]) -> onnx.ModelProto:
    inputs = {"x": X, "x2": X, "flat": (2, 6, 9), "rows": (7, 9)}
    weights: dict[str, Any] = {n: np.asarray(a, np.float32) for n, a in W.items()}
    weights |= {n: np.asarray(a, np.int64) for n, a in NUMBERS.items()}
    weights |= {
        "scales": np.asarray([1, 1, 2, 3], np.float32),
        "low": np.float32(-0.25),
        "row": np.float32(RNG.random(5)),
    }
    proto = build(
        [node(op, reads, ["y"], **attributes)],
        {n: s for n, s in inputs.items() if n in reads},
        ["y"],
        {n: a for n, a in weights.items() if n in reads},
    )
    if op == "Cast":
        proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    return proto


@pytest.mark.parametrize("name", SINGLE)
def test_operators_agree_with_onnx_runtime(name: str) -> None:
    proto = single(*SINGLE[name])
    model = load_model(proto)
    feeds = random_model_inputs(model)
    (got,) = torch_engine(model, feeds, 1).call().values()
    (want,) = run(proto, feeds).values()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_nodes_with_several_results_agree_with_onnx_runtime() -> None:
    nodes = [
        node("Split", ["x", "sizes"], ["a", "b"], axis=1),
        node("Relu", ["a"], ["c"]),
        node("Add", ["c", "b"], ["d"]),
    ]
    proto = build(nodes, {"x": (2, 6)}, ["d", "b"], {"sizes": np.asarray([3, 3], np.int64)})
    model = load_model(proto)
    feeds = random_model_inputs(model)
    found = torch_engine(model, feeds, 1).call()
    assert list(found) == ["d", "b"]
    for name, want in run(proto, feeds).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "reads", "attributes"),
    [
        ("Hardmax", ["x"], {}),
        ("MaxPool", ["x"], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("Conv", ["x", "k"], {"auto_pad": "SAME_UPPER"}),
        ("Resize", ["x", "", "scales"], {"mode": "cubic"}),
        ("Pad", ["x", "pads"], {"mode": "reflect"}),
    ],
)
def test_unsupported_node_is_refused_by_name(op: str, reads: Sequence[str], attributes: dict[str, Any]) -> None:
    model = load_model(single(op, reads, attributes))
    with pytest.raises(ValueError, match=rf"node \w+ \({op}\): found an operator that the engine torch does not run"):
        torch_engine(model, random_model_inputs(model), 1)


@pytest.mark.parametrize("name", ["infogan", "dcgan", "fsrcnn", "csrnet", "gcn", "resnet18", "longformer"])
def test_evaluation_models_agree_with_onnx_runtime(name: str, tmp_path: Any) -> None:
    path = tmp_path / "m.onnx"
    sizes = {"gcn": 64, "resnet18": 64, "longformer": 400, "csrnet": 6, "fsrcnn": 8}
    path.write_bytes(write(name, 1, sizes.get(name)).SerializeToString())
    engine = prepare(Task(str(path), TORCH, 1))
    for key, want in run(onnx.load(path), engine.feeds).items():
        assert np.abs(engine.outputs[key] - want).max() < 1e-4 * np.abs(want).max()
    assert "eager, channels" in engine.said


def test_case_runs_in_pytorch(tmp_path: Any) -> None:
    path = tmp_path / "m.ein"
    path.write_text("tensor A[6, 5]\ntensor B[5, 4]\nY[m:6, n:4] = sum[k:5] A[m, k] * B[k, n]\n")
    engine = prepare(Task(str(path), TORCH, 1))
    np.testing.assert_allclose(engine.outputs["Y"], engine.feeds["A"] @ engine.feeds["B"], rtol=1e-5, atol=1e-6)
    assert engine.said.startswith("Matmul") or engine.said.startswith("as written")


def test_eager_run_is_reported_if_inductor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", broken)
    model = load_model(single("Relu", ["x"], {}))
    feeds = random_model_inputs(model)
    made = torch_engine(model, feeds, 1, compiled=True)
    assert "run eagerly" in made.said and "no C++ compiler" in made.said
    np.testing.assert_array_equal(made.call()["y"], np.maximum(feeds["x"], 0))


@pytest.mark.slow  # compilers take their time
def test_compiled_model_agrees_with_onnx_runtime(tmp_path: Any) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(write("infogan").SerializeToString())
    engine = prepare(Task(str(path), COMPILED, 1))
    (want,) = run(onnx.load(path), engine.feeds).values()
    assert np.abs(engine.outputs["output"] - want).max() < 1e-4 * np.abs(want).max()
    assert "Inductor" in engine.said
