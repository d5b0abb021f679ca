"""Canonical expressions: exactly ONNX Runtime's values on integers, at random attributes; and why others stay."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx_building import build, integers, node, run, whole

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Scope, accesses
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import ModelError
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble
from einnet_explore.syntax import parse

small = st.integers(1, 3)


def agree(proto: Any, feed: dict[str, Any], exact: bool = True) -> None:
    """The model's expressions give what ONNX Runtime computes."""
    model = load_model(proto)
    program = whole(model)
    given_ = {model.identifiers[name]: a for name, a in {**feed, **model.weights}.items()}
    found = evaluate(program, {t.name: given_[t.name] for t in program.inputs}, "exact" if exact else np.float64)
    wanted = run(proto, feed)
    for value in model.outputs:
        array = found[model.identifiers[value.name]]
        assert array.shape == wanted[value.name].shape
        if exact:
            assert np.array_equal(array, wanted[value.name])
        else:
            assert np.allclose(array, wanted[value.name], 1e-4, 1e-5)


@st.composite
def windows(draw: Any, rank: int) -> dict[str, Any]:
    """Kernel, strides, dilations and pads of a sliding window of *rank* dimensions."""
    several = st.lists(small, min_size=rank, max_size=rank)
    return {
        "kernel_shape": draw(several),
        "strides": draw(several),
        "dilations": draw(several),
        "pads": draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank)),
    }


@given(st.data(), st.integers(1, 3), small, small, small, st.booleans(), st.integers(0, 2**32))
def test_convolution_agrees_with_onnx_runtime(
    data: Any, rank: int, groups: int, c: int, f: int, bias: bool, seed: int
) -> None:
    window = data.draw(windows(rank))
    extents = data.draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    reach = [(r - 1) * d + 1 for r, d in zip(window["kernel_shape"], window["dilations"], strict=True)]
    pads = window["pads"]
    assume(all(n + pads[i] + pads[i + rank] >= reach[i] for i, n in enumerate(extents)))
    rng = np.random.default_rng(seed)
    weights = {"k": integers(rng, groups * f, c, *window["kernel_shape"]), "b": integers(rng, groups * f)}
    conv = node("Conv", ["x", "k", "b"] if bias else ["x", "k"], ["y"], group=groups, **window)
    x = integers(rng, 2, groups * c, *extents)
    agree(build([conv], {"x": x.shape}, ["y"], weights if bias else {"k": weights["k"]}), {"x": x})


@given(st.data(), st.sampled_from([1, 2]), small, small, small, st.booleans(), st.integers(0, 2**32))
def test_transposed_convolution_agrees_with_onnx_runtime(
    data: Any, rank: int, groups: int, c: int, f: int, bias: bool, seed: int
) -> None:
    window = data.draw(windows(rank))
    strides, kernel, dilations, pads = (window[k] for k in ("strides", "kernel_shape", "dilations", "pads"))
    extra = [data.draw(st.integers(0, s - 1)) for s in strides]
    extents = data.draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    for i, n in enumerate(extents):
        out = strides[i] * (n - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[i + rank]
        assume(out >= 1)
    rng = np.random.default_rng(seed)
    k = integers(rng, groups * c, f, *kernel)
    weights = {"k": k, "b": integers(rng, groups * f)} if bias else {"k": k}
    deconv = node("ConvTranspose", ["x", *weights], ["y"], group=groups, output_padding=extra, **window)
    x = integers(rng, 1, groups * c, *extents)
    agree(build([deconv], {"x": x.shape}, ["y"], weights), {"x": x})


@given(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]), small, st.integers(1, 4), st.integers(4, 7))
def test_automatic_padding_agrees_with_onnx_runtime(mode: str, stride: int, kernel: int, size: int) -> None:
    rng = np.random.default_rng(size)
    attributes = {"auto_pad": mode, "strides": [stride, 1], "kernel_shape": [kernel, 2]}
    conv = node("Conv", ["x", "k"], ["y"], **attributes)
    x, k = integers(rng, 1, 2, size, 5), integers(rng, 3, 2, kernel, 2)
    agree(build([conv], {"x": x.shape}, ["y"], {"k": k}), {"x": x})
    if kernel >= stride:  # ONNX Runtime refuses to pool with gaps between windows
        pool = node("MaxPool", ["x"], ["y"], **attributes)
        agree(build([pool], {"x": x.shape}, ["y"]), {"x": x})


@given(st.data(), st.sampled_from([0, 1]), st.sampled_from([0, 1]), st.sampled_from(["MaxPool", "AveragePool"]))
def test_pooling_agrees_with_onnx_runtime(data: Any, count_pads: int, ceil: int, op: str) -> None:
    window = data.draw(windows(2))
    kernel = window["kernel_shape"]
    pads = [min(p, k - 1) for p, k in zip(window["pads"], kernel * 2, strict=True)]
    x = integers(np.random.default_rng(5), 1, 2, *data.draw(st.lists(st.integers(7, 9), min_size=2, max_size=2)))
    attributes = {**window, "pads": pads, "ceil_mode": ceil}
    if op == "AveragePool":
        attributes["count_include_pad"] = count_pads
    proto = build([node(op, ["x"], ["y"], **attributes)], {"x": x.shape}, ["y"])
    # A window that ceil_mode would start beyond the input is dropped by some versions and kept by others.
    assume(load_model(proto).shape("y") == run(proto, {"x": x})["y"].shape)
    agree(proto, {"x": x}, exact=op == "MaxPool")


@given(st.lists(small, max_size=2), st.lists(st.booleans(), min_size=2, max_size=2), small, small, small)
def test_matrix_product_broadcasts(batch: list[int], dropped: list[bool], m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m)
    left = [1 if drop else size for size, drop in zip(batch, dropped, strict=False)]
    for a, b in (
        ((*left, m, k), (*batch, k, n)),
        ((m, k), (*batch, k, n)),
        ((k,), (*batch, k, n)),
        ((*batch, m, k), (k,)),
    ):
        x, y = integers(rng, *a), integers(rng, *b)
        proto = build([node("MatMul", ["x", "y"], ["z"])], {"x": a, "y": b}, ["z"])
        agree(proto, {"x": x, "y": y})


@given(st.booleans(), st.booleans(), st.sampled_from([1.0, 2.0]), st.sampled_from([0.0, 1.0, 3.0]), st.integers(0, 3))
def test_gemm_agrees_with_onnx_runtime(ta: bool, tb: bool, alpha: float, beta: float, bias: int) -> None:
    rng = np.random.default_rng(bias)
    a, b = integers(rng, *((5, 3) if ta else (3, 5))), integers(rng, *((4, 5) if tb else (5, 4)))
    c = {0: {}, 1: {"c": integers(rng, 4)}, 2: {"c": integers(rng, 3, 1)}, 3: {"c": integers(rng, 3, 4)}}[bias]
    gemm = node("Gemm", ["a", "b", *c], ["y"], transA=int(ta), transB=int(tb), alpha=alpha, beta=beta)
    agree(build([gemm], {"a": a.shape, "b": b.shape}, ["y"], c), {"a": a, "b": b})


@given(st.permutations(range(4)), st.sampled_from([[6, 4, 5], [2, 60], [120], [3, 2, 20], [5, 2, 2, 2, 3], [4, 30, 1]]))
def test_chains_of_reshapes_and_transposes_agree_with_onnx_runtime(order: list[int], shape: list[int]) -> None:
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    nodes = [
        node("Reshape", ["x", "shape"], ["r"]),
        node("Reshape", ["r", "back"], ["b"]),
        node("Transpose", ["b"], ["t"], perm=order),
        node("Flatten", ["t"], ["y"], axis=2),
    ]
    agree(build(nodes, {"x": x.shape}, ["y"], {"shape": shape, "back": [2, 3, 4, 5]}), {"x": x})


def test_a_reshape_and_its_inverse_meet_in_one_index() -> None:
    nodes = [node("Reshape", ["x", "to"], ["r"]), node("Reshape", ["r", "back"], ["y"])]
    model = load_model(build(nodes, {"x": (6, 5)}, ["y"], {"to": [2, 3, 5], "back": [6, 5]}))
    split = whole(model).equations[0].scope
    (there,) = accesses(split.body)
    i0, i1, i2 = split.traversals
    assert there.index == (3 * i0 + i1, 1 * i2)


@given(st.integers(-7, 7), st.integers(-7, 7), st.sampled_from([-2, -1, 1, 2, 3]))
def test_slice_agrees_with_onnx_runtime(start: int, end: int, step: int) -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    assume(x[:, start:end:step].size)
    weights = {"s": [start], "e": [end], "a": [-1], "t": [step]}
    agree(build([node("Slice", ["x", *weights], ["y"])], {"x": x.shape}, ["y"], weights), {"x": x})


@given(st.integers(2, 4), st.sampled_from(["DCR", "CRD"]))
def test_depth_to_space_and_its_inverse_agree_with_onnx_runtime(b: int, mode: str) -> None:
    x = np.arange(2 * b * b * 6, dtype=np.float32).reshape(1, 2 * b * b, 2, 3)
    nodes = [
        node("DepthToSpace", ["x"], ["d"], blocksize=b, mode=mode),
        node("SpaceToDepth", ["d"], ["y"], blocksize=b),
    ]
    agree(build(nodes, {"x": x.shape}, ["y"]), {"x": x})


@given(
    st.sampled_from(["half_pixel", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"]),
    st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_understood_nearest_resizing_agrees_with_onnx_runtime(place: str, rounding: str, up: int, right: int) -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    attributes = {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": rounding}
    resize = node("Resize", ["x", "", "scales"], ["y"], **attributes)
    proto = build([resize], {"x": x.shape}, ["y"], {"scales": np.array([1, 1, up, right], np.float32)})
    model = load_model(proto)
    assume(not isinstance(express(model.nodes[0], model), NotUnderstood))
    agree(proto, {"x": x})


def test_common_nearest_resizing_is_understood_at_any_factor() -> None:
    for place, rounding in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        for factor in range(1, 6):
            attributes = {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": rounding}
            resize = node("Resize", ["x", "", "scales"], ["y"], **attributes)
            scales = np.array([1, 1, factor, 1], np.float32)
            model = load_model(build([resize], {"x": (1, 1, 4, 4)}, ["y"], {"scales": scales}))
            assert not isinstance(express(model.nodes[0], model), NotUnderstood), (place, factor)


@pytest.mark.parametrize("place", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("reads", [["s"], ["", "s"]], ids=["scales", "sizes"])
def test_interpolation_agrees_with_onnx_runtime(mode: str, place: str, reads: list[str]) -> None:
    for size, out in ((3, 6), (4, 7), (6, 3), (7, 2), (5, 5), (1, 4), (4, 1), (2, 16)):
        x = np.random.default_rng(out).standard_normal((1, 1, size, 2 * size)).astype(np.float32)
        scales = np.array([1, 1, out / size, 1.5], np.float32)
        given_ = np.array([1, 1, out, 3 * size]) if len(reads) > 1 else scales
        for outside in (0, 1) if mode == "cubic" else (0,):
            attributes = {"coordinate_transformation_mode": place, "exclude_outside": outside, "cubic_coeff_a": -0.5}
            resize = node("Resize", ["x", "", *reads], ["y"], mode=mode, **attributes)
            agree(build([resize], {"x": x.shape}, ["y"], {"s": given_}), {"x": x}, exact=False)


def test_equal_interpolation_matrices_are_one_weight() -> None:
    nodes = [node("Resize", [name, "", "s"], [f"y_{name}"], mode="linear") for name in "ab"]
    shapes = dict.fromkeys("ab", (1, 2, 3, 3))
    model = load_model(build(nodes, shapes, ["y_a", "y_b"], {"s": np.array([1, 1, 2, 2], np.float32)}))
    assert [n.constants for n in model.nodes] == [("", "", "y_a_axis2", "y_a_axis2")] * 2
    assert load_model(model.proto).nodes[0].constants != model.nodes[0].constants  # the name is in use


def test_elementwise_operators_broadcast_and_inline_single_numbers() -> None:
    x = np.linspace(-5, 5, 24, dtype=np.float32).reshape(2, 3, 4)
    three, six = np.float32(3), np.array([6], np.float32)
    nodes = [
        node("Add", ["x", "three"], ["a"]),
        node("Clip", ["a", "zero", "limit"], ["c"]),
        node("Mul", ["x", "c"], ["m"]),
        node("Div", ["m", "six"], ["d"]),
        node("PRelu", ["d", "slope"], ["y"]),
    ]
    weights = {"three": three, "zero": np.float32(0), "limit": np.float32(6), "six": six}
    weights["slope"] = np.array([[0.5], [0.25], [2]], np.float32)
    proto = build(nodes, {"x": x.shape}, ["y"], weights)
    agree(proto, {"x": x}, exact=False)
    model = load_model(proto)
    assert [t.name for t in whole(model).inputs] == ["x", "slope"]


@pytest.mark.parametrize(("exponent", "body"), [(2, "x * x"), (3, "x * x * x"), (4, "pow(x, 4)"), (0.5, "sqrt(x)")])
def test_small_powers_are_products(exponent: float, body: str) -> None:
    model = load_model(build([node("Pow", ["x", "n"], ["y"])], {"x": (5,)}, ["y"], {"n": np.float32(exponent)}))
    (equation,) = express(model.nodes[0], model)
    wanted = parse(f"tensor x[5]\nY[i:5] = {body.replace('x', 'x[i]')}").equations[0].scope
    assert canonical_key(equation.scope) == canonical_key(wanted)


def test_batch_normalisation_computes_its_coefficients_from_weights_alone() -> None:
    rng = np.random.default_rng(3)
    weights = {n: rng.uniform(0.5, 2, 4).astype(np.float32) for n in "sbmv"}
    proto = build([node("BatchNormalization", ["x", *"sbmv"], ["y"])], {"x": (2, 4, 3)}, ["y"], weights)
    agree(proto, {"x": rng.standard_normal((2, 4, 3)).astype(np.float32)}, exact=False)
    program = whole(load_model(proto))
    assert [e.scope.shape for e in program.equations] == [(4,), (4,), (2, 4, 3)]
    assert [t.name for t in program.inputs if t.weight] == ["s", "v", "b", "m"]


def test_a_tensor_is_read_with_one_padding_in_a_program() -> None:
    """A convolution pads with 0, a maximum with -inf: the maximum reads a copy that has its own padding."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Conv", ["r", "k"], ["c"], pads=[1, 1, 1, 1]),
        node("Conv", ["r", "wide"], ["d"], pads=[2, 2, 2, 2]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    rng = np.random.default_rng(4)
    x = integers(rng, 1, 2, 5, 5)
    weights = {"k": integers(rng, 2, 2, 3, 3), "wide": integers(rng, 2, 2, 5, 5)}
    proto = build(nodes, {"x": x.shape}, ["c", "d", "p"], weights)
    agree(proto, {"x": x})
    relu, *_, pool = whole(load_model(proto)).equations
    assert (relu.scope.padding, relu.scope.value) == (((0, 0), (0, 0), (2, 2), (2, 2)), 0)
    (copied,) = accesses(pool.scope.body)
    assert isinstance(copied.source, Scope)
    assert copied.source.value == -np.inf


def test_every_equation_reads_what_its_program_holds() -> None:
    """One name is one tensor, whichever equation reads it."""
    nodes = [node("Conv", ["x", "k"], ["c"], pads=[1, 0, 0, 1]), node("Add", ["x", "c"], ["y"])]
    model = load_model(build(nodes, {"x": (1, 2, 4, 4)}, ["y"], {"k": np.ones((2, 2, 2, 2), np.float32)}))
    program = whole(model)
    held = {t.name: t for t in (*program.inputs, *(e.tensor for e in program.equations))}
    assert all(a.source == held[a.source.name] for e in program.equations for a in accesses(e.scope.body))  # type: ignore[union-attr]


@pytest.mark.parametrize("block", [(2, 3), (1, 1), (4, 6), (3,)])
def test_blocks_of_an_image_agree_with_onnx_runtime(block: tuple[int, ...]) -> None:
    image = (4, 6)[: len(block)] if len(block) > 1 else (6,)
    count = int(np.prod(image) // np.prod(block))
    x = np.random.default_rng(0).integers(-9, 9, (2, 3 * int(np.prod(block)), count)).astype(np.float32)
    made = node("Col2Im", ["x", "image", "block"], ["y"], strides=block)
    agree(build([made], {"x": x.shape}, ["y"], {"image": np.array(image), "block": np.array(block)}), {"x": x})


def test_blocks_that_overlap_are_refused() -> None:
    made = node("Col2Im", ["x", "image", "block"], ["y"])
    model = load_model(build([made], {"x": (1, 4, 9)}, ["y"], {"image": np.array([4, 4]), "block": np.array([2, 2])}))
    assert express(model.nodes[0], model) == NotUnderstood(
        "blocks of [2, 2] in steps of [1, 1] do not cover [4, 4] once (dilations [1, 1], pads [0, 0, 0, 0])"
    )


PASSED = [
    (node("TopK", ["x", "k"], ["y", "i"]), "operator TopK has no canonical expression"),
    (node("Resize", ["x", "", "s"], ["y"], mode="area"), "mode is area, neither nearest, linear nor cubic"),
    (node("Resize", ["x", "", "s"], ["y"], mode="linear", antialias=1), "antialias is 1, not 0"),
    (
        node("Resize", ["x", "roi", "s"], ["y"], mode="cubic", coordinate_transformation_mode="tf_crop_and_resize"),
        "coordinate_transformation_mode is tf_crop_and_resize",
    ),
    (node("Pad", ["x", "p"], ["y"], mode="reflect"), "mode is reflect, not constant"),
    (
        node("Cast", ["x"], ["y"], to=13),
        "y has elements of uint64, expected one of bool, int8, int16, int32, int64, uint8, uint16, uint32, float16, "
        "bfloat16, float32, float64",
    ),
    (node("Gather", ["x", "g"], ["y"], axis=1), "its indices are affine neither in digits of its places nor in pieces"),
    (node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2]), "further outputs (i) are used"),
    (
        node("Einsum", ["x", "x"], ["y"], equation="...ij,...kj->ik"),
        "equation ...ij,...kj->ik has an ellipsis but its result has none",
    ),
    (node("Expand", ["x", "x2"], ["y"]), "the shape of y is not known before the model runs"),
    (node("Resize", ["x", "", "odd"], ["y"], mode="nearest"), "dimension 2: 4 to 7 is not an integer factor"),
    (node("Gelu", ["x"], ["y"], approximate="other"), "approximate is other, neither none nor tanh"),
    (node("Gather", ["x", "x2"], ["y"], axis=1), "indices (x2) is not known before the model runs"),
    (node("LpNormalization", ["x"], ["y"], p=3), "p is 3, neither 1 nor 2"),
    (node("Dropout", ["x", "", "t"], ["y"]), "it is in training mode"),
    (node("BatchNormalization", ["x", *"ffff"], ["y", "u", "v"], training_mode=1), "it is in training mode"),
    (node("Resize", ["x", "", "s"], ["y"], nearest_mode="up"), "nearest_mode is up"),
    (
        node("Resize", ["x", "roi", "s"], ["y"], coordinate_transformation_mode="tf_crop_and_resize"),
        "coordinate_transformation_mode is tf_crop_and_resize",
    ),
]


@pytest.mark.parametrize(("item", "why"), PASSED, ids=[item.op_type + str(n) for n, (item, _) in enumerate(PASSED)])
def test_unsupported_node_states_the_reason(item: Any, why: str) -> None:
    weights = {
        "k": np.array([2]),
        "s": np.array([1, 1, 2, 2], np.float32),
        "odd": np.array([1, 1, 1.75, 1], np.float32),
        "p": np.array([0, 0, 1, 1] * 2),
        "g": np.array([0, 1, 3, 0, 2, 1, 1, 3, 2, 0, 0, 2, 3]),
        "t": np.array(True),
        "f": np.ones(4, np.float32),
        "roi": np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32),
    }
    inputs: dict[str, Any] = {"x": (1, 4, 4, 4)}
    proto = build([item], inputs, list(item.output), {n: a for n, a in weights.items() if n in item.input})
    for value in proto.graph.output:
        value.type.tensor_type.elem_type = 7 if value.name == "i" else 13 if item.op_type == "Cast" else 1
    if "x2" in item.input:
        proto.graph.input.add(name="x2").CopyFrom(proto.graph.input[0])
        proto.graph.input[1].name = "x2"
        proto.graph.input[1].type.tensor_type.elem_type = 7
        del proto.graph.input[1].type.tensor_type.shape.dim[1:]
        proto.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 4
    model = load_model(proto)
    assert express(model.nodes[0], model) == NotUnderstood(why)


@pytest.mark.parametrize(
    "item", [node("Dropout", ["x"], ["d", "mask"]), node("MaxPool", ["x"], ["d", "at"], kernel_shape=[2, 2])]
)
def test_optional_outputs_that_nothing_reads_are_dropped(item: Any) -> None:
    model = load_model(build([item, node("Relu", ["d"], ["y"])], {"x": (1, 4, 4, 4)}, ["y"]))
    assert model.nodes[0].outputs == ("d",) and not model.values.keys() & {"mask", "at"}
    assert not isinstance(express(model.nodes[0], model), NotUnderstood)
    split = load_model(
        build(
            [node("Split", ["x"], ["d", "unread"], axis=1, num_outputs=2), node("Relu", ["d"], ["y"])],
            {"x": (1, 4)},
            ["y"],
        )
    )
    assert split.nodes[0].outputs == ("d", "unread")  # it is not optional


def test_convolution_with_four_spatial_dimensions_is_unchanged() -> None:
    conv = node("Conv", ["x", "k"], ["y"])
    model = load_model(build([conv], {"x": (1, 1, 2, 2, 2, 2)}, ["y"], {"k": np.ones((1, 1, 1, 1, 1, 1), np.float32)}))
    found = express(model.nodes[0], model)
    assert found == NotUnderstood("it has 4 spatial dimensions, expected 1 to 3")


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_window_larger_than_its_input_is_unchanged(op: str) -> None:
    pool = node(op, ["x"], ["y"], kernel_shape=[5, 2], strides=[2, 1], pads=[1, 0, 0, 0])
    model = load_model(build([pool], {"x": (1, 1, 3, 2)}, ["y"]))
    found = express(model.nodes[0], model)
    assert found == NotUnderstood("its window spans 5 elements, its padded input has 4")


def test_shape_known_only_at_run_time_is_reported() -> None:
    model = load_model(build([node("NonZero", ["x"], ["n"]), node("Cast", ["n"], ["y"], to=1)], {"x": (3,)}, ["y"]))
    assert not model.is_static("n")
    with pytest.raises(ModelError, match="value n: found no static shape"):
        model.shape("n")


def test_nothing_is_assembled_from_nothing() -> None:
    assert assemble((), ()).equations == ()
