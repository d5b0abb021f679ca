"""Models as exporters write them: unusual models are read, run and written, or refused in one line."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_building import build, integers, node, run, whole

from benchmarks.zoo import KINDS, exported
from benchmarks.zoo.__main__ import understood
from benchmarks.zoo.exported import EXPORTED
from benchmarks.zoo.parts import Kind
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.onnx_export.export import rewrite_model
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.node_call import NotUnderstood
from einnet_explore.pipeline.optimisation import optimize_model
from einnet_explore.pipeline.partition import partition
from einnet_explore.runtime.arrays import differences, largest_error
from einnet_explore.support.errors import Refused

QUICK = ("light_squeezenet", "ocr_classifier")
"""Real architectures that are read in a second."""

PAGE = Path(__file__).parents[1] / "docs" / "your-models.md"

small = st.integers(1, 4)
seeds = st.integers(0, 2**32)


def agree(proto: onnx.ModelProto, feed: dict[str, Any], exact: bool = True) -> None:
    """The model's expressions give what ONNX Runtime computes of *proto* as it is."""
    model = load_model(proto)
    program = whole(model)
    held = {model.identifiers[name]: a for name, a in {**feed, **model.weights}.items()}
    found = evaluate(program, {t.name: held[t.name] for t in program.inputs}, "exact" if exact else np.float64)
    for name, wanted in run(proto, feed).items():
        array = found[model.identifiers[name]]
        assert array.shape == wanted.shape
        assert np.array_equal(array, wanted) if exact else np.allclose(array, wanted, 1e-4, 1e-5)


def refusal(proto: onnx.ModelProto) -> str:
    """Why the first node of *proto* has no canonical expression."""
    model = load_model(proto)
    found = express(model.nodes[0], model)
    assert isinstance(found, NotUnderstood)
    return found.reason


def selecting(mask: Any, *shape: int) -> onnx.ModelProto:
    """x where *mask* holds, else 7."""
    weights = {"m": mask, "c": np.array([7, 7], np.float32)[:1]}
    return build([node("Where", ["m", "x", "c"], ["y"])], {"x": shape}, ["y"], weights)


@given(small, small, st.integers(-4, 4), st.integers(-4, 4), st.booleans(), st.booleans(), seeds)
def test_band_masks_agree_with_onnx_runtime(
    rows: int, columns: int, a: int, b: int, negated: bool, leading: bool, seed: int
) -> None:
    """Causal masks, windows and their complements."""
    place = np.arange(columns) - np.arange(rows)[:, None]
    mask = ((place >= min(a, b)) & (place <= max(a, b))) ^ negated
    x = integers(np.random.default_rng(seed), 2, rows, columns)
    agree(selecting(mask[None] if leading else mask, 2, rows, columns), {"x": x})


@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 6), st.booleans(), seeds)
def test_masks_of_one_dimension_agree_with_onnx_runtime(size: int, a: int, b: int, down: bool, seed: int) -> None:
    """The padding at the end of a sequence, for keys or for queries."""
    place = np.arange(size)
    mask = (place >= min(a, b)) & (place <= max(a, b))
    x = integers(np.random.default_rng(seed), 2, size, size)
    agree(selecting(mask[:, None] if down else mask, 2, size, size), {"x": x})


@given(st.data(), seeds)
def test_half_spaces_and_periods_of_several_dimensions_agree_with_onnx_runtime(data: st.DataObject, seed: int) -> None:
    """Masks that an export with mixed radices has, such as those of overlapping windows."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    place = np.indices(sizes)
    if data.draw(st.booleans()):
        steps = data.draw(st.lists(st.integers(-4, 4), min_size=len(sizes), max_size=len(sizes)))
        mask = np.tensordot(steps, place, 1) >= data.draw(st.integers(-6, 6))
    else:
        periods = [data.draw(st.integers(1, 3)) for _ in sizes]
        mask = np.logical_and.reduce([at % p == 0 for at, p in zip(place, periods, strict=True)])
    agree(selecting(mask, *sizes), {"x": integers(np.random.default_rng(seed), *sizes)})


@given(st.data(), seeds)
def test_gathers_by_digits_and_by_clamped_indices_agree_with_onnx_runtime(data: st.DataObject, seed: int) -> None:
    """Digits in another order, and windows whose ends are clamped."""
    if data.draw(st.booleans()):
        radices = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        wanted = np.arange(np.prod(radices)).reshape(radices).T.reshape(-1)
    else:
        wanted = np.add.outer(np.arange(data.draw(st.integers(1, 5))) * 2, np.arange(3)) + data.draw(st.integers(-3, 2))
        wanted = np.clip(wanted, 0, wanted.max() - 1 if data.draw(st.booleans()) and wanted.max() > 0 else None)
    x = integers(np.random.default_rng(seed), 2, int(wanted.max()) + 1)
    agree(build([node("Gather", ["x", "i"], ["y"], axis=1)], {"x": x.shape}, ["y"], {"i": wanted}), {"x": x})


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (
            np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]], bool),
            "its condition of shape [3, 4] is no band, no product of periods and no convex set",
        ),
        (
            np.random.default_rng(0).integers(0, 2, (2, 3, 4)).astype(bool),
            "its condition of shape [2, 3, 4] is no band, no product of periods and no convex set",
        ),
    ],
)
def test_masks_that_are_no_conditions_on_indices_are_unchanged(mask: Any, why: str) -> None:
    assert refusal(selecting(mask, 2, 3, 4)) == why


def test_a_mask_that_is_computed_stays() -> None:
    proto = build([node("Where", ["m", "x", "x"], ["y"])], {"m": (3,), "x": (3,)}, ["y"])
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.BOOL
    assert refusal(proto) == "condition (m) is not known before the model runs"


@given(small, small, st.none() | st.integers(-4, 4), st.booleans(), seeds)
def test_triangular_matrices_agree_with_onnx_runtime(
    rows: int, columns: int, k: int | None, upper: bool, seed: int
) -> None:
    item = node("Trilu", ["x"] if k is None else ["x", "k"], ["y"], upper=int(upper))
    x = integers(np.random.default_rng(seed), 2, rows, columns)
    agree(build([item], {"x": x.shape}, ["y"], {} if k is None else {"k": np.array(k)}), {"x": x})


@given(st.lists(st.tuples(small, st.booleans(), st.booleans()), max_size=2), st.booleans(), small, small, small, seeds)
def test_an_ellipsis_is_broadcast(
    batch: list[tuple[int, bool, bool]], arrow: bool, i: int, j: int, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a = integers(rng, *(1 if one else n for n, one, _ in batch), i, k)
    b = integers(rng, *(1 if one else n for n, _, one in batch), k, j)
    formula = "...ik, ...kj" + ("-> j...i" if arrow else "")
    proto = build([node("Einsum", ["a", "b"], ["y"], equation=formula)], {"a": a.shape, "b": b.shape}, ["y"])
    agree(proto, {"a": a, "b": b})


ATTENDED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "four dimensions": ((2, 4, 5, 6), (2, 4, 7, 6), {}),
    "side by side": ((2, 5, 24), (2, 7, 24), {"q_num_heads": 4, "kv_num_heads": 4}),
    "groups of queries": ((2, 5, 24), (2, 7, 12), {"q_num_heads": 4, "kv_num_heads": 2, "scale": 0.5}),
    "causal": ((2, 4, 7, 6), (2, 4, 7, 6), {"is_causal": 1}),
    "capped": ((1, 2, 3, 6), (1, 2, 4, 6), {"softcap": 2.0}),
    "mask of numbers": ((1, 2, 3, 6), (1, 2, 4, 6), {"mask": np.array([[0, 1, -np.inf, 2]] * 3, np.float32)}),
    "mask of truths": ((1, 2, 3, 6), (1, 2, 3, 6), {"mask": np.tri(3, dtype=bool), "is_causal": 1}),
}


def attending(q: Any, k: Any, mask: Any = None, opset: int = 23, **attributes: Any) -> onnx.ModelProto:
    reads = ["q", "k", "v"] if mask is None else ["q", "k", "v", "m"]
    weights = {} if mask is None else {"m": mask}
    item = node("Attention", reads, ["y"], **attributes)
    return build([item], {"q": q, "k": k, "v": k}, ["y"], weights, opset=opset, ir=11)


@pytest.mark.parametrize("case", ATTENDED)
def test_attention_agrees_with_onnx_runtime(case: str) -> None:
    q, k, more = ATTENDED[case]
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("q", q), ("k", k), ("v", k))}
    agree(attending(q, k, **more), feed, exact=False)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"mask": np.tri(4, k=-1, dtype=bool)}, "its mask of shape (4, 4) leaves some row none of the 4 keys"),
        ({"mask": np.ones((4, 3), bool)}, "its mask of shape (4, 3) leaves some row none of the 4 keys"),
        ({"softmax_precision": 11}, "its softmax is in another precision"),
    ],
)
def test_unsupported_attention_is_unchanged(more: dict[str, Any], why: str) -> None:
    assert refusal(attending((1, 2, 4, 6), (1, 2, 4, 6), **more)) == why


def test_attention_that_gives_more_or_is_newer_stays() -> None:
    shape = (1, 2, 4, 6)
    cached = node("Attention", ["q", "k", "v", "", "p", "p"], ["y", "a", "b"])
    proto = build([cached], dict.fromkeys("qkvp", shape), ["y", "a", "b"], opset=23, ir=11)
    assert refusal(proto) == "further outputs (a, b) are used"
    model = load_model(attending(shape, shape))
    proto_node = helper.make_node("Attention", ["q", "k", "v"], ["y"], window_size=3)
    found = express(replace(model.nodes[0], proto=proto_node), model)
    assert found == NotUnderstood("attribute window_size is not supported")
    sized = build([node("Attention", [*"qkv", "", "", "", "n"], ["y"])], dict.fromkeys("qkv", shape), ["y"],
                  {"n": np.array([3])}, opset=24, ir=11)  # fmt: skip
    assert refusal(sized) == "it has a cache"


def agree_with_reference(proto: onnx.ModelProto, feed: dict[str, Any]) -> None:
    """The expressions give what ONNX's reference evaluator computes, for operators that ONNX Runtime lacks."""
    model = load_model(proto)
    known = {model.identifiers[name]: a for name, a in {**feed, **model.weights}.items()}
    program = whole(model)
    found = evaluate(program, {t.name: known[t.name] for t in program.inputs}, np.float64)
    for value, wanted in zip(model.outputs, ReferenceEvaluator(proto).run(None, feed), strict=True):
        assert np.allclose(found[model.identifiers[value.name]], wanted, 1e-4, 1e-5)


def normal(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_a_cumulative_sum(reverse: int, exclusive: int) -> None:
    item = node("CumSum", ["x", "axis"], ["y"], reverse=reverse, exclusive=exclusive)
    x = integers(np.random.default_rng(0), 2, 5, 3)
    agree(build([item], {"x": x.shape}, ["y"], {"axis": np.array(-2)}), {"x": x})


def test_a_gated_activation() -> None:
    feed = {"a": normal(2, 3), "b": normal(3, 2).T}
    proto = build(
        [node("SwiGLU", ["a", "b"], ["y"], alpha=1.5)], {n: x.shape for n, x in feed.items()}, ["y"], opset=28
    )
    agree_with_reference(proto, feed)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated", [0, 4])
def test_a_rotary_embedding(interleaved: int, rotated: int) -> None:
    half = (rotated or 8) // 2
    more = {"interleaved": interleaved, "rotary_embedding_dim": rotated}
    feed = {"x": normal(2, 3, 5, 8), "c": normal(2, 5, half), "s": normal(2, half, 5).swapaxes(1, 2)}
    item = node("RotaryEmbedding", ["x", "c", "s"], ["y"], **more)
    agree_with_reference(build([item], {n: x.shape for n, x in feed.items()}, ["y"], opset=23), feed)
    places = np.array([[1, 2, 3, 4, 5], [3, 4, 5, 6, 7]])
    item = node("RotaryEmbedding", ["x", "c", "s", "p"], ["y"], num_heads=3, **more)
    weights = {"c": normal(9, half), "s": normal(half, 9).T, "p": places}
    agree_with_reference(build([item], {"x": (2, 5, 24)}, ["y"], weights, opset=23), {"x": normal(2, 5, 24)})


@pytest.mark.parametrize(
    ("rule", "decay"), [("linear", 0), ("gated", 1), ("gated", 3)], ids=["linear", "by head", "by channel"]
)
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("outputs", [["y"], ["y", "state"]], ids=["output", "state"])
def test_linear_attention(rule: str, decay: int, heads: int, past: bool, outputs: list[str]) -> None:
    feed = {"q": normal(2, 5, heads * 3), "k": normal(2, 5, 6), "v": normal(2, 5, 8)}
    feed |= {"p": normal(2, 2, 3, 4)} if past else {}
    feed |= {"g": -abs(normal(2, 5, 2 * decay))} if decay else {}
    reads = ["q", "k", "v", "p" if past else "", *(["g"] if decay else [])]
    item = node("LinearAttention", reads if past or decay else reads[:3], ["y", "state"], q_num_heads=heads,
                kv_num_heads=2, update_rule=rule)  # fmt: skip
    agree_with_reference(build([item], {n: x.shape for n, x in feed.items()}, outputs, opset=27), feed)


def test_a_delta_rule_stays() -> None:
    shapes = {"q": (1, 5, 6), "k": (1, 5, 6), "v": (1, 5, 8), "b": (1, 5, 2)}
    item = node("LinearAttention", ["q", "k", "v", "", "", "b"], ["y", "state"], q_num_heads=2, kv_num_heads=2,
                update_rule="delta")  # fmt: skip
    why = "update_rule is delta, neither linear nor gated: its state depends on products of its steps"
    assert refusal(build([item], shapes, ["y"], opset=27)) == why


def test_group_normalisation_agrees_with_onnx_runtime() -> None:
    rng = np.random.default_rng(0)
    weights = {"s": integers(rng, 6), "b": integers(rng, 6)}
    nodes = [node("GroupNormalization", ["x", "s", "b"], ["g"], num_groups=2), node("Relu", ["g"], ["y"])]
    x = rng.standard_normal((2, 6, 3, 5)).astype(np.float32)
    agree(build(nodes, {"x": x.shape}, ["y"], weights), {"x": x}, exact=False)


@pytest.mark.parametrize("output", ["x", "w"])
def test_an_input_or_a_weight_may_be_an_output(output: str) -> None:
    proto = build([node("MatMul", ["x", "w"], ["y"])], {"x": (3, 4)}, ["y", output], {"w": np.eye(4, dtype="f4")})
    model = load_model(proto)
    assert (model.shape("y"), model.shape(output)) == ((3, 4), (3, 4) if output == "x" else (4, 4))
    assert len(partition(model).subprograms) == 1
    feed = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
    wanted, got = run(proto, feed), run(rewrite_model(model.proto, ()), feed)
    assert all(np.array_equal(wanted[name], got[name]) for name in ("y", output))


def test_weights_that_nothing_reads_may_hold_anything() -> None:
    weights = {"w": np.eye(4, dtype="f4"), "left": np.full(3, np.nan, np.float32), "none": np.zeros((0, 3), "f4")}
    assert load_model(build([node("MatMul", ["x", "w"], ["y"])], {"x": (3, 4)}, ["y"], weights)).shape("y") == (3, 4)


def contributed(nodes: Sequence[onnx.NodeProto], domain: str) -> onnx.ModelProto:
    proto = build(nodes, {"x": (3, 4), "w": (4, 5)}, ["y"])
    proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


def test_shapes_behind_operators_that_only_onnx_runtime_knows() -> None:
    """A model that ONNX Runtime optimised and saved has such operators."""
    first = node("FusedMatMul", ["x", "w"], ["a"], domain="com.microsoft", alpha=2.0)
    proto = contributed([first, node("Exp", ["a"], ["b"]), node("Neg", ["b"], ["y"])], "com.microsoft")
    model = load_model(proto)
    assert model.shape("y") == (3, 5)
    assert [s.nodes for s in partition(model).subprograms] == [("exp_b", "neg_y")]
    rewrite_model(model.proto, ())


def test_shapes_after_unknown_operators_are_not_static() -> None:
    """Such a model cannot be run here, but it is read and written."""
    proto = contributed([node("MatMul", ["x", "w"], ["a"]), node("Mystery", ["a"], ["y"], domain="acme")], "acme")
    model = load_model(proto)
    assert not model.is_static("y")
    assert rewrite_model(model.proto, ()).graph.node[-1].op_type == "Mystery"
    with pytest.raises(Refused, match=r"^<model>: ONNX Runtime refuses: .*Mystery"):
        optimize_model(model, threads=1, budget=NOW)


def test_a_state_that_begins_at_zero_is_a_weight() -> None:
    value = helper.make_tensor("", TensorProto.FLOAT, [1], [0.5])
    nodes = [node("ConstantOfShape", ["s"], ["h"], value=value), node("MatMul", ["x", "h"], ["y"])]
    model = load_model(build(nodes, {"x": (2, 3)}, ["y"], {"s": np.array([3, 4])}))
    assert [n.op for n in model.nodes] == ["MatMul"]
    assert np.array_equal(model.weights["h"], np.full((3, 4), 0.5, np.float32))


NOW = 1e-9
"""A budget in seconds that is over before anything is searched."""


def test_nodes_in_no_subprogram_are_listed_with_the_reason() -> None:
    nodes = [node("TopK", ["x", "k"], ["v", "i"]), node("Relu", ["v"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    weights = {"k": np.array([3]), "w": np.eye(3, dtype="f4")}
    fast = optimize_model(build(nodes, {"x": (2, 5)}, ["y"], weights), threads=1, budget=NOW)
    assert fast.untouched() == [
        "1 TopK: operator TopK has no canonical expression",
        "1 Relu: Relu alone is no subprogram",
    ]
    assert "<li>1 TopK: operator TopK has no canonical expression</li>" in fast._repr_html_()


def test_outputs_that_are_no_finite_reals() -> None:
    """Strings, truth values, small unsigned numbers and infinities are compared too."""
    nodes = [
        node("Identity", ["labels"], ["label"]),
        node("Greater", ["x", "zero"], ["truth"]),
        node("QuantizeLinear", ["x", "step", "middle"], ["byte"]),
        node("Where", ["truth", "x", "never"], ["masked"]),
    ]
    weights = {
        "labels": np.array(["cat", "dog"], object),
        "zero": np.float32(0),
        "step": np.float32(0.1),
        "middle": np.uint8(128),
        "never": np.float32(-np.inf),
    }
    types = {"label": TensorProto.STRING, "truth": TensorProto.BOOL, "byte": TensorProto.UINT8}
    proto = build(nodes, {"x": (2, 8)}, ["label", "truth", "byte", "masked"], weights)
    for value in proto.graph.output:
        value.type.tensor_type.elem_type = types.get(value.name, TensorProto.FLOAT)
    fast = optimize_model(proto, threads=1, budget=NOW)
    assert fast.errors == (0.0, 0.0)
    assert list(fast(**fast.random_inputs())["label"]) == ["cat", "dog"]


def test_errors_of_strings_bytes_and_infinities_are_defined() -> None:
    strings = {"y": np.array(["cat", "dog"], object)}
    assert largest_error(strings, {"y": np.array(["cat", "cow"], object)}) == np.inf
    bytes_ = {"y": np.array([3, 200], np.uint8)}, {"y": np.array([5, 200], np.uint8)}
    assert differences(*bytes_) == (2.0, 0.01)
    limits = {"y": np.array([np.inf, 1.0], np.float32)}, {"y": np.array([np.inf, 2.0], np.float32)}
    assert differences(*limits) == (1.0, 1.0)
    assert largest_error(limits[0], {"y": np.array([-np.inf, 1.0], np.float32)}) == np.inf
    assert largest_error(limits[0], {"y": np.array([np.nan, 1.0], np.float32)}) == np.inf


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_the_page_says_what_is_understood_of_each_kind_of_model(kind: Kind) -> None:
    check_page(kind)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=() if k.name in QUICK else pytest.mark.slow) for k in EXPORTED],
    ids=lambda kind: kind.name,
)
def test_the_page_says_what_is_understood_of_each_real_architecture(kind: Kind) -> None:
    try:
        check_page(kind)
    except ValueError as refusal:
        if "found no Python package" not in str(refusal):
            raise
        pytest.skip(str(refusal))


def test_missing_packages_of_real_architectures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported.importlib.util, "find_spec", lambda _: None)
    kinds = {kind.name: kind for kind in EXPORTED}
    with pytest.raises(
        ValueError, match=r"no Python package torch, expected it for BertModel: pip install '\.\[zoo\]'"
    ):
        kinds["bert"].write()
    with pytest.raises(ValueError, match=r"no Python package onnx, expected it for .*light_vgg19"):
        kinds["light_vgg19"].write()


def check_page(kind: Kind) -> None:
    """Compare the row of the page with what the importer says."""
    model = load_model(kind.write())
    found = understood(model, partition(model))
    assert f"| {kind.name} | {kind.title} | {' | '.join(found)} |" in PAGE.read_text(encoding="utf-8")
