"""Splitting: activations between contractions, convex subprograms, right values, and nothing lost."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_building import build, integers, node, run

from einnet_check.record import check as check_record
from einnet_evaluation.models import write
from einnet_explore.analysis.equations import weight_only
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.onnx_export.export import Replacement, rewrite_model
from einnet_explore.onnx_import import OPERATORS_ONNX
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline import joins
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.pipeline.partition import Split, partition
from einnet_explore.rules import SIBLING_MERGING, Derivation
from einnet_explore.strategies.candidate import to_record
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.factoring import factorings, products_at_run_time
from einnet_explore.strategies.options import Options


def operators(model: Model) -> list[list[str]]:
    by_name = {n.name: n.op for n in model.nodes}
    return [[by_name[name] for name in sub.nodes] for sub in partition(model).subprograms]


def parts(model: Model) -> list[list[str]]:
    by_name = {n.name: n.op for n in model.nodes}
    found = [part for sub in partition(model).subprograms for part in (sub.parts or (sub,))]
    return [[by_name[name] for name in part.nodes] for part in found]


def check(model: Model) -> Split:
    """Every node is somewhere once; the units can run one after another; names and weights fit."""
    found = partition(model)
    held = [name for sub in found.subprograms for name in sub.nodes]
    assert sorted([*held, *(s.node for s in found.skipped)]) == sorted(n.name for n in model.nodes)
    by_name = {n.name: n for n in model.nodes}
    units: list[tuple[set[str], set[str]]] = [
        ({i for i in sub.inputs if i not in model.weights}, set(sub.outputs)) for sub in found.subprograms
    ]
    units += [
        ({r for r in by_name[s.node].reads if r not in model.weights}, set(by_name[s.node].results))
        for s in found.skipped
    ]
    have = {v.name for v in model.inputs}
    while units:
        ready = [unit for unit in units if unit[0] <= have]
        assert ready, "units wait for one another"
        have |= {name for unit in ready for name in unit[1]}
        units = [unit for unit in units if unit not in ready]
    assert {v.name for v in model.outputs} <= have
    for sub in found.subprograms:
        contractions = [name for name in sub.nodes if OPERATORS_ONNX[by_name[name].op].kind == "contraction"]
        # Without parts, several contractions are one region: work on rows, or sums of products.
        assert not sub.parts or len(contractions) == len(sub.parts)
        assert sorted(name for part in sub.parts for name in part.nodes if name in contractions) == (
            sorted(contractions) if sub.parts else []
        )
        assert all(set(part.nodes) <= set(sub.nodes) for part in sub.parts)
        assert [t.name for t in sub.program.inputs] == [model.identifiers[name] for name in sub.inputs]
        assert [t.weight for t in sub.program.inputs] == [name in model.weights for name in sub.inputs]
        assert list(sub.program.outputs) == [model.identifiers[name] for name in sub.outputs]
    return found


def computes_what_the_model_does(model: Model, feed: dict[str, Any]) -> None:
    """Each subprogram, given the values that ONNX Runtime has there, gives the values that it has next."""
    values = {**run(model.proto, feed, every=True), **feed, **model.weights}
    for sub in check(model).subprograms:
        arrays = {t.name: values[name] for t, name in zip(sub.program.inputs, sub.inputs, strict=True)}
        found = evaluate(sub.program, arrays, np.float64, outputs_only=True)
        for name, identifier in zip(sub.outputs, sub.program.outputs, strict=True):
            scale = np.abs(values[name]).max()
            assert np.allclose(found[identifier], values[name], 1e-4, 1e-6 + 1e-5 * scale), sub.nodes


def test_resnet18_is_split_into_convolutions_with_their_epilogues() -> None:
    model = load_model(write("resnet18"))
    found = parts(model)
    assert sorted(map(tuple, found)) == sorted(
        [("Conv", "BatchNormalization", "Relu")] * 9
        + [("Conv", "BatchNormalization", "Add", "Relu")] * 8
        + [("Conv", "BatchNormalization")] * 3
        + [("MaxPool",), ("Flatten", "Gemm")]
    )
    joined = Counter(map(tuple, operators(model)))
    assert joined["Conv", "BatchNormalization", "Relu", "Conv", "BatchNormalization"] == 3  # 3x3 and 1x1 of one input
    assert joined["Conv", "BatchNormalization", "Relu"] == 6 and joined.total() == 19
    assert [(s.node.split("_")[0], s.why) for s in check(model).skipped] == [
        ("GlobalAveragePool", "GlobalAveragePool alone is no subprogram"),
    ]


def test_infogan_is_split_into_five_subprograms() -> None:
    model = load_model(write("infogan"))
    assert operators(model) == [["ConvTranspose", "Relu"]] * 4 + [["ConvTranspose", "Tanh"]]
    computes_what_the_model_does(model, {"input": np.random.default_rng(1).standard_normal((1, 228, 1, 1), np.float32)})


def test_pretrained_detector_is_split_and_computes_the_same() -> None:
    package = pytest.importorskip("rapidocr_onnxruntime")
    path = next((Path(package.__file__).parent / "models").glob("*det*.onnx"))
    model = load_model(path, {"x": (1, 3, 64, 64)})
    found = check(model)
    assert Counter(s.why for s in found.skipped) == {"GlobalAveragePool alone is no subprogram": 10}
    assert sum(op in ("Conv", "ConvTranspose") for sub in operators(model) for op in sub) == 64
    assert ["Conv", "Mul", "Add", "Add", "Clip", "Mul", "Div", "Mul", "Add"] in operators(model)
    computes_what_the_model_does(model, {"x": np.random.default_rng(2).standard_normal((1, 3, 64, 64), np.float32)})


def test_a_gate_joins_and_a_second_reader_ends() -> None:
    weights = {"k": np.ones((2, 2, 1, 1), np.float32)}
    gate = [node("Conv", ["x", "k"], ["c"]), node("Sigmoid", ["c"], ["s"]), node("Mul", ["c", "s"], ["y"])]
    image = {"x": (1, 2, 3, 3)}
    assert operators(load_model(build(gate, image, ["y"], weights))) == [["Conv", "Sigmoid", "Mul"]]
    two = [*gate[:2], node("Conv", ["s", "k"], ["d"]), node("Conv", ["c", "k"], ["y"])]
    assert sorted(operators(load_model(build(two, image, ["d", "y"], weights)))) == [["Conv"], ["Conv"], ["Conv"]]


def separable(between: str = "") -> onnx.ModelProto:
    """GCN's pair: 7 x 1 then 1 x 7, and the other way round, of one image; *between* them perhaps an activation."""
    weights = {f"k{n}": np.ones((2, 2, *((7, 1) if n in (1, 4) else (1, 7))), np.float32) for n in range(1, 5)}
    nodes = []
    for first, second in ((1, 2), (3, 4)):
        pads = [[3, 0, 3, 0] if n in (1, 4) else [0, 3, 0, 3] for n in (first, second)]
        nodes.append(node("Conv", ["x", f"k{first}"], [f"a{first}"], pads=pads[0]))
        if between:
            nodes.append(node(between, [f"a{first}"], [f"r{first}"]))
        nodes.append(node("Conv", [f"{'r' if between else 'a'}{first}", f"k{second}"], [f"a{second}"], pads=pads[1]))
    return build([*nodes, node("Add", ["a2", "a4"], ["y"])], {"x": (1, 2, 6, 5)}, ["y"], weights)


def test_separable_pairs_are_one_subprogram() -> None:
    """The first two read one image; the last two follow them in parallel, and nothing but sums lies between."""
    model = load_model(separable())
    (whole,) = check(model).subprograms
    assert len(whole.nodes) == 5 and len(whole.parts) == 4
    assert sorted(map(tuple, operators(load_model(separable("Relu"))))) == [
        ("Conv",),
        ("Conv", "Add"),
        ("Conv", "Relu") * 2,
    ]
    assert sorted(map(tuple, parts(model))) == [("Conv",)] * 3 + [("Conv", "Add")]
    computes_what_the_model_does(model, {"x": np.random.default_rng(3).standard_normal((1, 2, 6, 5), np.float32)})


def attention(reads: tuple[str, ...] = ("x", "x", "x")) -> onnx.ModelProto:
    """Queries, keys and values as LongFormer makes them: products of one input, biases, heads in front."""
    rng = np.random.default_rng(0)
    weights = {name: integers(rng, 8, 8) for name in "qkv"} | {f"b{name}": integers(rng, 8) for name in "qkv"}
    weights |= {"heads": np.array([1, 6, 2, 4])}
    nodes = []
    for name, source in zip("qkv", reads, strict=True):
        nodes += [
            node("MatMul", [source, name], [f"{name}1"]),
            node("Add", [f"{name}1", f"b{name}"], [f"{name}2"]),
            node("Reshape", [f"{name}2", "heads"], [f"{name}3"]),
            node("Transpose", [f"{name}3"], [f"{name}4"], perm=[0, 2, 1, 3] if name != "k" else [0, 2, 3, 1]),
        ]
    nodes += [node("MatMul", ["q4", "k4"], ["s"]), node("MatMul", ["s", "v4"], ["y"])]
    return build(nodes, dict.fromkeys(dict.fromkeys(reads), (1, 6, 8)), ["y"], weights)


def test_queries_keys_and_values_are_one_subprogram() -> None:
    model = load_model(attention())
    found = check(model).subprograms
    assert sorted(len(sub.parts) for sub in found) == [0, 3]  # (q kᵀ) v is one region
    whole = next(sub for sub in found if sub.parts)
    assert [n.split("_")[0] for n in whole.nodes].count("matmul") == 3
    assert whole.inputs[0] == "x" and len(whole.outputs) == 3
    apart = operators(load_model(attention(("x", "z", "w"))))
    assert sorted(ops.count("MatMul") for ops in apart) == [1, 1, 1, 2]  # inputs of their own: nothing to share


RNG = np.random.default_rng(0)


def heads(rows: int, features: int, count: int) -> Model:
    """Attention after three projections of one input, whose heads are cut by Reshape and Transpose."""
    nodes, weights = [], {"shape": np.array([rows, count, features // count])}
    for name, perm in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2])):
        weights[f"w{name}"] = integers(RNG, features, features)
        weights[f"b{name}"] = integers(RNG, features)
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"m{name}"]),
            node("Add", [f"m{name}", f"b{name}"], [f"a{name}"]),
            node("Reshape", [f"a{name}", "shape"], [f"r{name}"]),
            node("Transpose", [f"r{name}"], [name], perm=perm),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    return load_model(build(nodes, {"x": [rows, features]}, ["y"], weights), {})


@pytest.mark.parametrize("sizes", [(16, 32, 4), (9, 12, 2)])
def test_heads_of_queries_keys_and_values_stay_with_their_merged_product(sizes: tuple[int, int, int]) -> None:
    """Parts of a merged product are cut, biased and transposed in one pass each; attention reads them as they are."""
    model = heads(*sizes)
    check(model)
    projections, attention = operators(model)
    assert Counter(projections) == dict.fromkeys(("MatMul", "Add", "Reshape", "Transpose"), 3)
    assert attention == ["MatMul", "Softmax", "MatMul"]
    program = partition(model).subprograms[0].program
    (match,) = (m for m in SIBLING_MERGING.matches(program, (0,)) if len(m.params.others) == 2)
    merged = Derivation(program).then(match)
    search = Search(merged.end, lambda _: (1.0, ""), Options(max_depth=0, ahead=0))
    found = next(event.state for event in search.run() if isinstance(event, Found))
    derivation = fuse_eoperators(Derivation(program, (*merged.steps, *search.derivation(found.id).steps)))
    assert {certify(step.before, step.after).kind for step in derivation.steps} == {"proved"}
    computed = [e for e in derivation.end.equations if e.name not in weight_only(derivation.end)]
    assert len(computed) == 4  # the product, and one pass for each of Q, K and V


def test_single_projection_leaves_its_layouts_to_attention() -> None:
    """Without a sibling nothing merges, and attention by rows reads through its re-indexings."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Transpose", ["m"], ["t"]),
        node("MatMul", ["z", "t"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "x"], ["y"]),
    ]
    model = load_model(build(nodes, {"x": [16, 8], "z": [16, 8]}, ["y"], {"w": integers(RNG, 8, 8)}), {})
    check(model)
    assert operators(model) == [["MatMul"], ["Transpose", "MatMul", "Softmax", "MatMul"]]


def test_gate_and_up_projections_are_one_subprogram() -> None:
    """The gate's group reads the other projection's result: they are siblings all the same."""
    nodes = [
        node("MatMul", ["x", "wg"], ["g"]),
        node("Sigmoid", ["g"], ["s"]),
        node("Mul", ["g", "s"], ["silu"]),
        node("MatMul", ["x", "wu"], ["u"]),
        node("Mul", ["silu", "u"], ["h"]),
        node("MatMul", ["h", "wd"], ["y"]),
    ]
    weights = {"wg": integers(RNG, 6, 10), "wu": integers(RNG, 6, 10), "wd": integers(RNG, 10, 6)}
    model = load_model(build(nodes, {"x": [5, 6]}, ["y"], weights), {})
    check(model)
    assert operators(model) == [["MatMul", "Sigmoid", "Mul", "MatMul", "Mul"], ["MatMul"]]


def test_adapter_and_its_layer_are_one_subprogram_with_the_bias() -> None:
    """x W + (x A) B + b: factoring replaces both branches and their sum, and the bias is the epilogue."""
    rng = np.random.default_rng(0)
    weights = {"W": integers(rng, 16, 12), "A": integers(rng, 16, 4), "B": integers(rng, 4, 12), "b": integers(rng, 12)}
    nodes = [
        node("MatMul", ["x", "W"], ["t"]),
        node("MatMul", ["x", "A"], ["u"]),
        node("MatMul", ["u", "B"], ["v"]),
        node("Add", ["t", "v"], ["s"]),
        node("Add", ["s", "b"], ["r"]),
        node("Relu", ["r"], ["y"]),
    ]
    model = load_model(build(nodes, {"x": (24, 16)}, ["y"], weights))
    assert operators(model) == [["MatMul", "MatMul", "MatMul", "Add", "Add", "Relu"]]
    computes_what_the_model_does(model, {"x": rng.standard_normal((24, 16), np.float32)})


def test_inception_convolutions_of_one_input_are_one_subprogram() -> None:
    weights = {name: np.ones((f, 3, r, r), np.float32) for name, f, r in (("k", 4, 1), ("j", 2, 3), ("i", 5, 5))}
    nodes = [
        node("Conv", ["x", "k"], ["a"]),
        node("Conv", ["x", "j"], ["b"], pads=[1, 1, 1, 1]),
        node("Conv", ["x", "i"], ["c"], pads=[2, 2, 2, 2]),
        node("Relu", ["b"], ["d"]),
        node("Concat", ["a", "d", "c"], ["y"], axis=1),
    ]
    model = load_model(build(nodes, {"x": (1, 3, 6, 6)}, ["y"], weights))
    (whole,) = [sub for sub in check(model).subprograms if sub.parts]
    assert len(whole.parts) == 3
    computes_what_the_model_does(model, {"x": np.random.default_rng(4).standard_normal((1, 3, 6, 6), np.float32)})


def test_siblings_with_a_path_between_them_are_not_joined() -> None:
    """b reads a through a node that is not understood, so both cannot run as one."""
    weights = {"k": np.ones((2, 2, 1, 1), np.float32), "n": np.array([3])}
    nodes = [
        node("Conv", ["x", "k"], ["a"]),
        node("TopK", ["a", "n"], ["t", "i"]),
        node("Conv", ["x", "k"], ["b"]),
        node("Add", ["b", "t"], ["y"]),
    ]
    model = load_model(build(nodes, {"x": (1, 2, 3, 3)}, ["y"], weights))
    assert sorted(len(sub.nodes) for sub in check(model).subprograms) == [1, 2]


def test_strides_that_differ_are_no_siblings() -> None:
    weights = {"k": np.ones((2, 2, 1, 1), np.float32)}
    nodes = [node("Conv", ["x", "k"], ["a"]), node("Conv", ["x", "k"], ["b"], strides=[2, 2])]
    assert operators(load_model(build(nodes, {"x": (1, 2, 4, 4)}, ["a", "b"], weights))) == [["Conv"], ["Conv"]]


def test_nodes_with_a_path_through_another_subprogram_are_not_joined() -> None:
    """a + conv(relu(a)) with a = conv(x): the sum waits for the second convolution, so the first cannot have it."""
    weights = {"k": np.ones((2, 2, 1, 1), np.float32)}
    nodes = [
        node("Conv", ["x", "k"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Conv", ["r", "k"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    model = load_model(build(nodes, {"x": (1, 2, 3, 3)}, ["y"], weights))
    assert operators(model) == [["Conv", "Relu"], ["Conv", "Add"]]
    check(model)


def test_a_small_product_does_not_take_a_large_tensor() -> None:
    weights = {"k": np.ones((2, 2, 1, 1), np.float32)}
    nodes = [
        node("GlobalAveragePool", ["x"], ["p"]),
        node("Conv", ["p", "k"], ["c"]),
        node("Sigmoid", ["c"], ["s"]),
        node("Mul", ["x", "s"], ["m"]),
        node("Add", ["m", "x"], ["y"]),
    ]
    model = load_model(build(nodes, {"x": (1, 2, 8, 8)}, ["y"], weights))
    assert operators(model) == [["Conv", "Sigmoid"], ["Mul", "Add"]]


def test_unsupported_nodes_are_in_no_subprogram() -> None:
    weights = {"k": np.ones((2, 2, 1, 1), np.float32), "n": np.array([1])}
    nodes = [
        node("Conv", ["x", "k"], ["c"]),
        node("TopK", ["c", "n"], ["t", "i"], "top"),
        node("Relu", ["t"], ["r"]),
        node("Cast", ["x"], ["h"], "double", to=11),
        node("Relu", ["h"], ["z"], "high"),
    ]
    proto = build(nodes, {"x": (1, 2, 3, 3)}, ["r", "i", "z"], weights)
    for value, kind in zip(proto.graph.output, (1, 7, 11), strict=True):
        value.type.tensor_type.elem_type = kind
    found = check(load_model(proto))
    assert {s.node: s.why for s in found.skipped} == {
        "top": "operator TopK has no canonical expression",
        "relu_r": "Relu alone is no subprogram",
    }


OPS = ("Conv", "Add", "Relu", "Mul", "Transpose", "Sigmoid", "TopK", "MaxPool")


@st.composite
def graphs(draw: Any) -> onnx.ModelProto:
    """Random graphs on one shape: any node may read any earlier value."""
    nodes, values = [], ["x"]
    for n in range(draw(st.integers(1, 12))):
        op, name = OPS[min(draw(st.integers(0, 7)), draw(st.integers(0, 7)))], f"v{n}"
        a, b = (draw(st.sampled_from(values[-3:])) for _ in range(2))
        match op:
            case "Conv":
                nodes.append(node(op, [a, "k"], [name], pads=[1, 1, 1, 1]))
            case "Add" | "Mul":
                nodes.append(node(op, [a, b], [name]))
            case "Transpose":
                nodes.append(node(op, [a], [name], perm=[0, 1, 3, 2]))
            case "TopK":
                nodes.append(node(op, [a, "three"], [name, f"{name}_places"]))
            case "MaxPool":
                nodes.append(node(op, [a], [name], kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
            case _:
                nodes.append(node(op, [a], [name]))
        values.append(name)
    read = {name for item in nodes for name in item.input}
    outputs = [v for v in values[1:] if v not in read]
    k = integers(np.random.default_rng(0), 2, 2, 3, 3) / 8
    return build(nodes, {"x": (1, 2, 3, 3)}, outputs, {"k": k, "three": np.array([3])})


@given(graphs(), st.integers(0, 2**32))
def test_any_graph_splits_into_units_that_run_and_agree(proto: onnx.ModelProto, seed: int) -> None:
    model = load_model(proto)
    x = np.random.default_rng(seed).standard_normal((1, 2, 3, 3), np.float32)
    computes_what_the_model_does(model, {"x": x})


def test_dependent_contractions_are_no_siblings() -> None:
    """A contraction of the result of another, both also readers of one value: they are no siblings."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1]),
        node("Add", ["a", "x"], ["b"]),
        node("Conv", ["b", "k"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["c", "x"], ["d"]),
        node("Conv", ["d", "k"], ["e"], pads=[1, 1, 1, 1]),
    ]
    model = load_model(build(nodes, {"x": (1, 2, 3, 3)}, ["e"], {"k": integers(rng, 2, 2, 3, 3) / 8}))
    computes_what_the_model_does(model, {"x": rng.standard_normal((1, 2, 3, 3), np.float32)})


def chain_of_products(between: str = "", rows: int = 64) -> Model:
    """``(q kᵀ) v`` of 8 columns, with an operator *between* the products."""
    nodes = [node("Transpose", ["k"], ["t"], perm=[1, 0]), node("MatMul", ["q", "t"], ["s"])]
    nodes += [node(between, ["s"], ["r"])] if between else []
    nodes += [node("MatMul", ["r" if between else "s", "v"], ["y"])]
    return load_model(build(nodes, dict.fromkeys("qkv", (rows, 8)), ["y"], {}))


def test_region_is_joined_where_factoring_leaves_fewer_products() -> None:
    assert operators(chain_of_products()) == [["Transpose", "MatMul", "MatMul"]]
    check(chain_of_products())
    for model in (chain_of_products("Relu"), chain_of_products(rows=4)):  # a function in between; few rows
        assert sum("MatMul" in group for group in operators(model)) == 2


def test_pool_and_upsampling_join_their_convolution() -> None:
    weights = {"k": np.ones((8, 4, 1, 1), np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    image = {"x": (1, 4, 6, 6)}
    pool = [node("Conv", ["x", "k"], ["c"]), node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2])]
    assert operators(load_model(build(pool, image, ["y"], weights))) == [["Conv", "AveragePool"]]
    floor = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    resize = [node("Resize", ["x", "", "scales"], ["u"], **floor), node("Conv", ["u", "k"], ["y"])]
    assert operators(load_model(build(resize, image, ["y"], weights))) == [["Resize", "Conv"]]
    most = [pool[0], node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2])]
    assert ["Conv", "MaxPool"] not in operators(load_model(build(most, image, ["y"], weights)))


@pytest.mark.parametrize("counted", [0, 1])
def test_padding_is_inside_a_region(counted: int) -> None:
    """Between two convolutions, of a pool that counts it or not, and as a node; values are those of ONNX Runtime."""
    rng = np.random.default_rng(counted)
    weights = {"k": integers(rng, 16, 4, 1, 1), "b": integers(rng, 16), "l": integers(rng, 4, 16, 3, 3)}
    weights["p"] = np.array([0, 0, 1, 0, 0, 0, 1, 2])
    nodes = [
        node("Conv", ["x", "k", "b"], ["c"]),
        node("AveragePool", ["c"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=counted),
        node("Conv", ["u", "k", "b"], ["d"]),
        node("Conv", ["d", "l"], ["z"], pads=[1, 1, 1, 1]),
        node("Conv", ["v", "k"], ["e"]),
        node("Pad", ["e", "p"], ["f"]),
        node("Conv", ["f", "l"], ["w"]),
    ]
    model = load_model(build(nodes, dict.fromkeys("xuv", (1, 4, 6, 6)), ["y", "z", "w"], weights))
    assert sorted(operators(model)) == [["Conv", "AveragePool"], ["Conv", "Conv"], ["Conv", "Pad", "Conv"]]
    feed = {name: rng.standard_normal((1, 4, 6, 6)).astype(np.float32) for name in "xuv"}
    computes_what_the_model_does(model, feed)


@pytest.mark.parametrize("first", [-31, -3])
def test_mask_that_is_a_factor_is_a_condition(first: int) -> None:
    """Of positions up to one's own, or of a band: the products before and after it are one region."""
    place = np.arange(32) - np.arange(32)[:, None]
    weights = {"m": ((first <= place) & (place <= 0)).astype(np.float32)}
    nodes = [node("MatMul", ["q", "k"], ["s"]), node("Mul", ["m", "s"], ["t"]), node("MatMul", ["t", "v"], ["y"])]
    model = load_model(build(nodes, {"q": (32, 4), "k": (4, 32), "v": (32, 4)}, ["y"], weights))
    assert operators(model) == [["MatMul", "Mul", "MatMul"]]
    (whole,) = check(model).subprograms
    assert whole.inputs == ("q", "k", "v")
    *_, best = factorings(whole.anonymous.program)
    assert 2 * products_at_run_time(best.end) < products_at_run_time(whole.anonymous.program)
    assert {certify(step.before, step.after).kind for step in best.steps} == {"proved"}
    rng = np.random.default_rng(1)
    computes_what_the_model_does(model, {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in model.inputs})


@pytest.mark.parametrize("zeros", [True, False])
def test_added_mask_of_zeros_is_no_operand(zeros: bool) -> None:
    """Exporters write one where nothing is masked."""
    mask = np.zeros((1, 16, 16), np.float32)
    mask[0, 0, 0] = 0 if zeros else 1
    nodes = [
        node("MatMul", ["q", "k"], ["s"]), node("Add", ["s", "m"], ["t"]), node("Softmax", ["t"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    shapes = {"q": (2, 16, 4), "k": (2, 4, 16), "v": (2, 16, 4)}
    model = load_model(build(nodes, shapes, ["y"], {"m": mask}))
    (whole,) = check(model).subprograms
    assert whole.inputs == (("q", "k", "v") if zeros else ("q", "k", "m", "v"))
    rng = np.random.default_rng(1)
    computes_what_the_model_does(model, {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in model.inputs})


def test_ends_of_regions_have_reasons() -> None:
    weights = {name: np.ones((8, 8), np.float32) for name in "uvw"}
    nodes = [
        node("MatMul", ["x", "u"], ["a"]),
        node("ReduceMax", ["a"], ["m"], keepdims=1),
        node("Mul", ["m", "x"], ["b"]),
        node("MatMul", ["b", "v"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Add", ["r", "c"], ["d"]),
        node("MatMul", ["d", "w"], ["y"]),
    ]
    found = partition(load_model(build(nodes, {"x": (4, 8)}, ["y"], weights)))
    assert {s.node: s.why for s in found.region_ends} == {
        "reducemax_m": "a max is no sum",
        "relu_r": "relu is no product",
        "matmul_c": "others read its result",
    }


def test_large_region_is_cut_at_its_smallest_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("MatMul", ["x", "k"], ["a"]), node("MatMul", ["z", "l"], ["b"]), node("MatMul", ["a", "b"], ["y"])]
    weights = {"k": np.ones((4, 9), np.float32), "l": np.ones((4, 2), np.float32)}
    model = load_model(build(nodes, {"x": (9, 4), "z": (9, 4)}, ["y"], weights))
    assert not partition(model).region_ends
    monkeypatch.setattr(joins, "MAX_REGION_NODES", 2)
    (end,) = partition(model).region_ends
    assert (end.node, end.why) == ("matmul_b", "the region has 2 nodes")


def segmentation_head(c: int, f: int, h: int) -> Model:
    """A 1x1 convolution of two feature maps, of which the second is upsampled linearly."""
    nodes = [
        node("Resize", ["low", "", "", "sizes"], ["u"], mode="linear"),
        node("Concat", ["high", "u"], ["both"], axis=1),
        node("Conv", ["both", "k"], ["c"]),
        node("Relu", ["c"], ["y"]),
    ]
    weights = {"k": integers(np.random.default_rng(c), f, 2 * c, 1, 1) / 8, "sizes": np.array([1, c, 4 * h, 4 * h])}
    return load_model(build(nodes, {"high": (1, c, 4 * h, 4 * h), "low": (1, c, h, h)}, ["y"], weights))


@pytest.mark.parametrize("sizes", [(16, 16, 4), (9, 12, 3)])
def test_convolution_moves_before_the_interpolation(sizes: tuple[int, int, int]) -> None:
    model = segmentation_head(*sizes)
    assert operators(model) == [["Resize", "Concat", "Conv", "Relu"]]
    (whole,) = check(model).subprograms
    best = list(factorings(whole.anonymous.program))[-1]
    c, f, h = sizes
    points = 16 * h * h
    interpolations = f * (4 * h * h * h + points * h)
    assert products_at_run_time(best.end) <= f * c * (points + h * h) + interpolations + 2 * f * points
    assert {certify(step.before, step.after).kind for step in best.steps} == {"proved"}
    assert {verdict.kind for verdict in check_record(to_record(best))} == {"proved"}
    rng = np.random.default_rng(f)
    feed = {v.name: rng.standard_normal(model.shape(v.name)).astype(np.float32) for v in model.inputs}
    computes_what_the_model_does(model, feed)
    after = rewrite_model(model.proto, [Replacement(whole.nodes, best.end, whole.value_names(model))])
    assert np.allclose(run(after, feed)["y"], run(model.original, feed)["y"], 1e-4, 1e-5)


def test_interpolation_alone_is_no_subprogram() -> None:
    nodes = [node("Resize", ["x", "", "s"], ["u"], mode="linear"), node("Relu", ["u"], ["y"])]
    model = load_model(build(nodes, {"x": (1, 2, 4, 4)}, ["y"], {"s": np.array([1, 1, 2, 2], np.float32)}))
    assert operators(model) == []
