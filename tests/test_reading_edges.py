"""Canonical expressions at the edges of operators' domains: 0, ∞ and NaN as in ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_building import build, node, run, whole

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.onnx_import import express, load
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import ModelError
from einnet_explore.onnx_import.node_call import NotUnderstood

INF, NAN = np.inf, np.nan
LARGEST = float(np.finfo(np.float32).max)

NUMBERS = np.array([0, 0.5, 1, 2.5, 10, 20, 60, 88.8, 100, 1e4, 1e10, 1e20, 3e38, INF, 1e-40, 1e-20, 1e-7], np.float32)
NUMBERS = np.concatenate([NUMBERS, -NUMBERS, np.array([NAN], np.float32)])

ROWS = np.array(
    [
        [1, 2, 3, 4],
        [-1, -2, -3, -4],
        [5, 5, 5, 5],
        [0.1, 0.1, 0.1, 0.1],
        [0, 0, 0, 0],
        [-0.0, -0.0, -0.0, -0.0],
        [100, 0, 0, 0],
        [1e-30, 1e-30, 1e-30, 1e-30],
        [INF, 1, 2, 3],
        [INF, INF, 1, 2],
        [INF, -INF, 1, 2],
        [INF, INF, INF, INF],
        [-INF, 1, 2, 3],
        [-INF, -INF, -INF, -INF],
        [NAN, 1, 2, 3],
    ],
    np.float32,
)
FINITE = ROWS[:8]


def ours(proto: onnx.ModelProto, feed: dict[str, Any]) -> dict[str, Any]:
    """The outputs of the expressions of *proto*, in float32."""
    model = load_model(proto)
    held = {model.identifiers[name]: a for name, a in {**feed, **model.weights}.items()}
    program = whole(model)
    found = evaluate(program, {t.name: held[t.name] for t in program.inputs}, np.float32)
    return {v.name: found[model.identifiers[v.name]] for v in model.outputs}


def agree(proto: onnx.ModelProto, feed: dict[str, Any]) -> None:
    """The model's expressions give what ONNX Runtime computes, NaN and infinities in the same places."""
    found = ours(proto, feed)
    for name, wanted in run(proto, feed).items():
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, 1e-4, 1e-5, err_msg=f"{name} of {feed}")


def of(op: str, x: Any, weights: dict[str, Any] | None = None, opset: int = 21, **attributes: Any) -> None:
    """*op* of x and *weights* agrees."""
    item = node(op, ["x", *(weights or {})], ["y"], **attributes)
    agree(build([item], {"x": x.shape}, ["y"], weights, opset=opset, ir=11 if opset > 21 else 10), {"x": x})


PLAIN = (
    *("Neg", "Reciprocal", "Identity", "Dropout", "Abs", "Relu", "Tanh", "Sigmoid", "Exp", "Log", "Sqrt", "Erf"),
    *("HardSigmoid", "HardSwish", "Softplus", "Softsign", "Mish", "LeakyRelu", "Elu", "Celu", "Selu", "Gelu"),
)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        *((op, {}) for op in PLAIN),
        ("Gelu", {"approximate": "tanh"}),
        ("LeakyRelu", {"alpha": -0.5}),
        ("LeakyRelu", {"alpha": 0.0}),
        ("Elu", {"alpha": 0.0}),
        ("Celu", {"alpha": -0.5}),
        ("HardSigmoid", {"alpha": -0.2, "beta": 0.3}),
    ],
)
def test_unary_operators_agree_at_edges_of_their_domain(op: str, attributes: dict[str, Any]) -> None:
    of(op, NUMBERS, **attributes)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Sum", "Mean", "Max", "Min", "Pow"])
def test_binary_operators_agree_at_edges_of_their_domain(op: str) -> None:
    a, b = (m.reshape(-1) for m in np.meshgrid(NUMBERS, NUMBERS))
    agree(build([node(op, ["a", "b"], ["y"])], {"a": a.shape, "b": b.shape}, ["y"]), {"a": a, "b": b})


@pytest.mark.parametrize("exponent", [-1, -0.5, 0, 1 / 3, 0.5, 1, 1.5, 2, 3, 4])
def test_powers_agree_at_edges_of_their_domain(exponent: float) -> None:
    """The root of -∞, which is no number, is ∞ where it is a power; here it is a root."""
    bases = NUMBERS[NUMBERS != -INF] if exponent == 0.5 else NUMBERS
    of("Pow", bases, {"b": np.float32(exponent)})


@pytest.mark.parametrize("lo", [None, -1, 0, 2, -INF, INF])
@pytest.mark.parametrize("hi", [None, 1, 6, 0, INF, -INF])
def test_clips_agree_for_missing_and_infinite_limits(lo: float | None, hi: float | None) -> None:
    """A limit that is left out is the largest number, not ∞; the upper one wins."""
    weights = {name: np.float32(limit) for name, limit in (("lo", lo), ("hi", hi)) if limit is not None}
    given = [name if name in weights else "" for name in ("lo", "hi")]
    agree(build([node("Clip", ["x", *given], ["y"])], {"x": NUMBERS.shape}, ["y"], weights), {"x": NUMBERS})


def test_an_infinite_slope_is_refused() -> None:
    with pytest.raises(ModelError, match=r"\(PRelu\): weight s: found an infinity in 1 of 1 elements"):
        load_model(build([node("PRelu", ["x", "s"], ["y"])], {"x": (3,)}, ["y"], {"s": np.array([INF], np.float32)}))
    of("PRelu", NUMBERS, {"s": np.array([-0.5], np.float32)})


SUMMED = ("Sum", "Mean", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")


@pytest.mark.parametrize("op", [*SUMMED, "Max", "Min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_agree_at_edges_of_their_domain(op: str, axis: int) -> None:
    x = ROWS if axis else np.ascontiguousarray(ROWS.T)
    of(f"Reduce{op}", x, {"axes": np.array([axis])})
    of(f"Reduce{op}", x[..., None], {"axes": np.array([2])}, keepdims=0)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "LpNormalization"])
def test_row_normalisations_agree_on_rows_with_infinities(op: str) -> None:
    of(op, ROWS, axis=1)
    of(op, np.ascontiguousarray(ROWS.T), axis=0)
    of(op, ROWS[:, :1], axis=1)


def test_l1_normalisation_agrees_on_rows_with_infinities() -> None:
    of("LpNormalization", ROWS, p=1, axis=1)


@pytest.mark.parametrize("epsilon", [0.0, 1e-5])
@pytest.mark.parametrize("op", ["Layer", "RMS", "Instance", "Group"])
def test_normalisations_by_mean_and_variance_agree_on_constant_rows(op: str, epsilon: float) -> None:
    """Constant rows are 0/0 where epsilon is 0."""
    ones = np.ones(4, np.float32)
    match op:
        case "Layer":
            of("LayerNormalization", ROWS, {"s": ones, "b": ones}, epsilon=epsilon)
        case "RMS":
            of("RMSNormalization", ROWS, {"s": ones}, 23, epsilon=epsilon)
        case "Instance":
            x = ROWS.reshape(-1, 1, 2, 2)
            of("InstanceNormalization", x, {"s": ones[:1], "b": ones[:1]}, epsilon=epsilon)
        case "Group":
            x = ROWS.reshape(-1, 2, 2)
            of("GroupNormalization", x, {"s": ones[:2], "b": ones[:2]}, epsilon=epsilon, num_groups=1)


@pytest.mark.parametrize("variance", [0, 1, -1, 3e38])
@pytest.mark.parametrize("epsilon", [0.0, 1e-5])
def test_batch_normalisation_agrees_for_extreme_variances(variance: float, epsilon: float) -> None:
    weights = {name: np.ones(1, np.float32) for name in "sbm"} | {"v": np.array([variance], np.float32)}
    of("BatchNormalization", NUMBERS.reshape(1, 1, -1), weights, epsilon=epsilon)


def test_mean_variance_normalisation_of_a_constant_channel_is_zero() -> None:
    """This is ONNX's definition; ONNX Runtime omits the 1e-9 that is added to the deviation, and returns 0/0."""
    item = node("MeanVarianceNormalization", ["x"], ["y"], axes=[2, 3])
    x = FINITE.reshape(-1, 1, 2, 2)
    proto = build([item], {"x": x.shape}, ["y"])
    found = ours(proto, {"x": x})["y"]
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})  # type: ignore[misc]
    varied = x.std(axis=(2, 3), dtype=np.float64)[:, 0] > 1e-3
    assert varied.tolist() == [True, True, False, False, False, False, True, False]
    np.testing.assert_allclose(found[varied], wanted[varied], 1e-4, 1e-5)
    np.testing.assert_allclose(found[varied], run(proto, {"x": x})["y"][varied], 1e-4, 1e-5)
    assert np.abs(found[[2, 4, 5]]).max() == 0 and np.isfinite(found).all()


POOLS: list[dict[str, Any]] = [
    {"kernel_shape": [3]},
    {"kernel_shape": [3], "pads": [1, 1]},
    {"kernel_shape": [3], "strides": [2], "ceil_mode": 1},
    {"kernel_shape": [3], "strides": [2], "pads": [1, 2], "ceil_mode": 1},
    {"kernel_shape": [3], "dilations": [2], "pads": [2, 2]},
    {"kernel_shape": [3], "auto_pad": "SAME_LOWER", "strides": [2]},
]


@pytest.mark.parametrize("window", POOLS, ids=str)
@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "MaxPool"])
def test_poolings_agree_on_windows_with_infinities(op: str, window: dict[str, Any]) -> None:
    """For windows of NaN or -∞ only, ONNX Runtime's kernels differ from one another."""
    x = np.concatenate([ROWS, ROWS[:, ::-1]], axis=1)[:, None]
    if op == "MaxPool":
        x = x[: len(ROWS) - 3]
    of(op, x, **window)
    if op == "AveragePool":
        of(op, x, count_include_pad=1, **window)
    if op == "LpPool":
        of(op, x, p=1, **window)
        of(op, x, p=3, **window)


SCALES = (1 / 7, 1 / 6, 1 / 5, 0.3, 1 / 3, 0.5, 1, 1.5, 2, 3, 5)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize(
    "place", ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric"]
)
def test_understood_nearest_rounding_agrees_at_every_scale(place: str, rounding: str) -> None:
    """If the nearest element depends on the last digit of float32, the node is unchanged."""
    understood = 0
    attributes = {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": rounding}
    for size in (1, 3, 5, 6, 9, 12, 15, 49):
        x = np.arange(size, dtype=np.float32)[None]
        for scale in SCALES:
            out = int(size * scale)
            for reads, given in ((["s"], np.array([1, scale], np.float32)), (["", "s"], np.array([1, out]))):
                item = node("Resize", ["x", "", *reads], ["y"], **attributes)
                proto = build([item], {"x": x.shape}, ["y"], {"s": given})
                if out and not isinstance(express((model := load_model(proto)).nodes[0], model), NotUnderstood):
                    agree(proto, {"x": x})
                    understood += 1
    assert understood > 24


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
def test_resizing_of_older_operator_sets(op: str, opset: int, mode: str) -> None:
    """ONNX's converter forgets that their samples begin at the first element."""
    x = np.arange(48, dtype=np.float32).reshape(1, 1, 4, 12)
    for scales in ([1, 1, 2, 3], [1, 1, 1, 1.5], [1, 1, 0.5, 1 / 3], [1, 1, 1, 0.25], [1, 1, 1, 0.3]):
        if op == "Upsample" and min(scales) < 1:
            continue
        item = (
            node(op, ["x", "s"], ["y"], mode=mode)
            if opset > 7
            else node(op, ["x"], ["y"], mode=mode, scales=[*map(float, scales)])
        )
        weights = {"s": np.array(scales, np.float32)} if opset > 7 else {}
        proto = build([item], {"x": x.shape}, ["y"], weights, opset=opset, ir=5)
        model = load_model(proto)
        assert model.opset == 21
        np.testing.assert_allclose(run(model.proto, {"x": x})["y"], run(proto, {"x": x})["y"], 1e-5)
        if not isinstance(express(model.nodes[0], model), NotUnderstood):
            agree(proto, {"x": x})


@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_resizing_that_is_not_converted(op: str, opset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> onnx.ModelProto:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", refuse)
    x = np.arange(48, dtype=np.float32).reshape(1, 1, 4, 12)
    for scales in ([1, 1, 2, 3], *(([1, 1, 0.5, 0.25],) if op == "Resize" else ())):
        proto = build([node(op, ["x", "s"], ["y"])], {"x": x.shape}, ["y"], {"s": np.float32(scales)}, opset, 5)
        assert load_model(proto).opset == opset
        agree(proto, {"x": x})


def test_operators_with_the_same_definition_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The converter takes 16 ms and a copy of the model."""
    converted = []
    monkeypatch.setattr(onnx.version_converter, "convert_version", lambda proto, _: converted.append(proto) or proto)
    x, k = np.arange(27, dtype=np.float32).reshape(1, 3, 9), np.ones((2, 3, 3), np.float32)
    for op, same in (("Sigmoid", True), ("Relu", False)):  # Relu takes integers since opset 14
        nodes = [node("Conv", ["x", "k"], ["c"]), node(op, ["c"], ["y"])]
        proto = build(nodes, {"x": x.shape}, ["y"], {"k": k}, opset=13, ir=7)
        before = proto.SerializeToString()
        model = load_model(proto)
        assert (model.opset == 21) == same == (converted == []) and proto.SerializeToString() == before
        agree(proto, {"x": x})
    for op, own in (("Dropout", 12), ("Sigmoid", 0)):
        assert not load._has_same_operators(build([node(op, ["x"], ["y"])], {"x": x.shape}, ["y"], opset=own))


def test_transposed_convolution_with_two_shapes_is_unchanged() -> None:
    """ONNX's shape inference and the operator disagree on these shapes."""
    item = node("ConvTranspose", ["x", "k"], ["y"], auto_pad="SAME_UPPER", output_padding=[1], strides=[2])
    proto = build([item], {"x": (1, 1, 3)}, ["y"], {"k": np.ones((1, 1, 3), np.float32)})
    model = load_model(proto)
    assert run(proto, {"x": np.ones((1, 1, 3), np.float32)})["y"].shape == (1, 1, 6)
    found = express(model.nodes[0], model)
    assert found == NotUnderstood("its result has the shape (7,) by shape inference, (6,) by SAME_UPPER")


@pytest.mark.parametrize("value", [INF, -INF, 1, 0])
def test_movement_and_selection_agree_at_domain_edges(value: float) -> None:
    x = NUMBERS[:32].reshape(4, 8)
    for pads in ([0, 0, 0, 0], [1, 2, 0, 1], [-1, 0, -2, 0], [-1, 2, 3, -2]):
        of("Pad", x, {"p": np.array(pads), "v": np.float32(value)})
    weights = {"m": np.tri(4, 8, dtype=bool), "c": np.float32(value)}
    agree(build([node("Where", ["m", "x", "c"], ["y"])], {"x": x.shape}, ["y"], weights), {"x": x})
    agree(build([node("Concat", ["x", "x"], ["y"], axis=1)], {"x": x.shape}, ["y"]), {"x": x})
    of("Trilu", x, upper=int(value > 0))


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, 0.0), (2.0, 1.0)])
def test_gemm_agrees_for_zero_alpha_or_beta(alpha: float, beta: float) -> None:
    x, weight = ROWS[:, :4], np.array([[1, 0], [0, 1], [0, 0], [3, 0]], np.float32)
    c = np.array([INF, -INF], np.float32)
    item = node("Gemm", ["x", "w", "c"], ["y"], alpha=alpha, beta=beta)
    agree(build([item], {"x": x.shape, "c": c.shape}, ["y"], {"w": weight}), {"x": x, "c": c})
