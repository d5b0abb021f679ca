"""Import of ONNX: normalisation, inferred shapes, and one clear line for every kind of bad input."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_building import build, node, run

from einnet_explore.onnx_export.export import Replacement
from einnet_explore.onnx_import import load
from einnet_explore.onnx_import.load import load_model, restore_folded_nodes
from einnet_explore.onnx_import.model import ModelError, make_identifiers
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import export_model

W = np.ones((4, 3, 3, 3), np.float32)
CONV = [node("Conv", ["x", "w"], ["y"], "conv1", pads=[1, 1, 1, 1])]
IMAGE = {"x": (1, 3, 8, 8)}


def refused(model: Any, shapes: dict[str, tuple[int, ...]] | None = None) -> str:
    with pytest.raises(ModelError) as error:
        load_model(model, shapes or {})
    assert "\n" not in str(error.value)
    return str(error.value)


def test_nodes_are_ordered_and_have_shapes_and_weights(tmp_path: Path) -> None:
    nodes = [node("Relu", ["c"], ["y"]), node("Conv", ["x", "w"], ["c"], "conv1")]
    path = tmp_path / "unordered.onnx"
    onnx.save(build(nodes, IMAGE, ["y"], {"w": W}), path)
    model = load_model(path)
    assert [n.op for n in model.nodes] == ["Conv", "Relu"]
    assert model.shape("c") == (1, 4, 6, 6)
    assert model.dtype("c") == np.float32
    assert model.outputs[0].shape == (1, 4, 6, 6)
    assert model.weights["w"].tolist() == W.tolist()
    assert model.path == str(path)


def test_dynamic_dimensions_take_the_given_shape() -> None:
    proto = build(CONV, {"x": ("N", 3, None, None)}, ["y"], {"w": W})
    assert load_model(proto, {"x": (2, 3, 5, 9)}).shape("y") == (2, 4, 5, 9)


def test_a_named_dimension_is_given_once() -> None:
    proto = build([node("Add", ["a", "b"], ["y"])], {"a": ("N", 3), "b": ("N", 1)}, ["y"])
    model = load_model(proto, {"a": (5, 3)})
    assert model.shape("b") == (5, 1)
    assert refused(proto, {"a": (5, 3), "b": (1, 1)}) == (
        "<model>: shape b=1,1: found 1 for dimension 0 (N), expected 5 as in a"
    )


def test_shape_computations_are_folded_and_results_agree() -> None:
    constant = helper.make_tensor("c", TensorProto.INT64, [1], [-1])
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Constant", [], ["i"], value_ints=[0]),
        node("Gather", ["s", "i"], ["n"], axis=0),
        node("Constant", [], ["minus"], value=constant),
        node("Concat", ["n", "minus"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    proto = build(nodes, {"x": ("N", 3, 4)}, ["y"])
    model = load_model(proto, {"x": (2, 3, 4)})
    assert [n.op for n in model.nodes] == ["Reshape"]
    assert model.shape("y") == (2, 12)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(run(model.proto, {"x": x})["y"], run(proto, {"x": x})["y"])
    assert [n.op_type for n in model.original.graph.node] == ["Shape", "Gather", "Concat", "Reshape"]


def made_weight(side: int = 31) -> onnx.ModelProto:
    """A convolution whose weight is computed from a shape and a factor for each filter."""
    value = helper.make_tensor("", TensorProto.INT64, [1], [2])
    nodes = [
        node("ConstantOfShape", ["s"], ["ones"], value=value),
        node("Cast", ["ones"], ["real"], to=TensorProto.FLOAT),
        node("Mul", ["real", "factor"], ["scaled"]),
        node("Reshape", ["scaled", "to"], ["w"]),
        node("Conv", ["x", "w"], ["y"], pads=[side // 2] * 4),
    ]
    factor = np.arange(4, dtype=np.float32).reshape(4, 1) - 1
    sizes = {"s": np.array([4, 3 * side * side]), "to": np.array([4, 3, side, side])}
    return build(nodes, {"x": (1, 3, 8, 8)}, ["y"], {"factor": factor, **sizes})


def test_a_weight_that_depends_on_no_input_is_folded_before_the_split() -> None:
    proto = made_weight()
    model = load_model(proto)
    assert [n.op for n in model.nodes] == ["Conv"] and not {"ones", "real", "scaled"} & model.weights.keys()
    (part,) = partition(model).subprograms
    assert [t.name for t in part.program.inputs if t.weight] == ["w"]
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    want = run(proto, {"x": x})["y"]
    assert np.array_equal(run(model.proto, {"x": x})["y"], want)
    file = restore_folded_nodes(model)
    assert file.ByteSize() < 2000 and {w.name for w in file.graph.initializer} == {"s", "factor", "to"}
    assert np.array_equal(run(file, {"x": x})["y"], want)


def test_a_file_holds_a_folded_weight_only_where_it_is_replaced() -> None:
    model = load_model(made_weight())
    (part,) = partition(model).subprograms
    names = {model.identifiers[name]: name for name in (*part.inputs, *part.outputs) if name not in model.weights}
    made = export_model(model, [Replacement(part.nodes, part.program, names, {"w": model.weights["w"]})])
    assert "ConstantOfShape" not in {n.op_type for n in made.proto.graph.node}
    assert [n.op_type for n in export_model(model, []).proto.graph.node] == [
        "ConstantOfShape",
        "Cast",
        "Mul",
        "Reshape",
        "Conv",
    ]


@pytest.mark.parametrize("op", ["RandomNormal", "Log", "DequantizeLinear"])
def test_random_infinite_and_quantised_weights_are_not_folded(op: str) -> None:
    inputs, more = {"RandomNormal": ([], {"shape": [4, 4]}), "Log": (["zero"], {})}.get(op, (["q", "scale"], {}))
    weights = {"zero": np.zeros((4, 4), np.float32), "q": np.ones((4, 4), np.int8), "scale": np.float32(0.5)}
    nodes = [node(op, inputs, ["w"], **more), node("Add", ["x", "w"], ["y"])]
    used = {name: array for name, array in weights.items() if name in inputs}
    assert [n.op for n in load_model(build(nodes, {"x": (4, 4)}, ["y"], used)).nodes] == [op, "Add"]


def relative_buckets(reads_infinity: bool) -> onnx.ModelProto:
    """Rows of a table by distance, in buckets by logarithm as T5 has them; the logarithm of distance 0 is not used."""
    nodes = [
        node("Log", ["distance"], ["log"]),
        node("Cast", ["log"], ["far"], to=TensorProto.INT64),
        node("Cast", ["distance"], ["near"], to=TensorProto.INT64),
        node("Less", ["near", "two"], ["is_near"]),
        node("Where", ["is_near", "near", "far"], ["bucket"]),
        node("Gather", ["x", "bucket"], ["bias"]),
        *([node("Exp", ["log"], ["again"]), node("Add", ["bias", "again"], ["y"])] if reads_infinity else []),
    ]
    weights = {"distance": np.arange(5, dtype=np.float32), "two": np.array(2)}
    return build(nodes, {"x": (8, 5)}, ["y" if reads_infinity else "bias"], weights)


@pytest.mark.parametrize("reads_infinity", [False, True])
def test_finite_results_of_infinite_ones_are_folded(reads_infinity: bool) -> None:
    proto = relative_buckets(reads_infinity)
    model = load_model(proto)
    assert [n.op for n in model.nodes] == (["Gather", "Add"] if reads_infinity else ["Gather"])
    assert model.weights["bucket"].tolist() == [0, 1, 0, 1, 1]
    assert all(np.isfinite(array).all() for array in model.weights.values())
    x = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    for file in (model.proto, restore_folded_nodes(model)):
        (name,) = (value.name for value in model.outputs)
        assert np.array_equal(run(file, {"x": x})[name], run(proto, {"x": x})[name])


def test_an_infinity_that_the_model_reads_is_not_folded() -> None:
    nodes = [*relative_buckets(False).graph.node, node("Add", ["bias", "log"], ["y"])]
    weights = {"distance": np.arange(5, dtype=np.float32), "two": np.array(2)}
    model = load_model(build(nodes, {"x": (5, 5)}, ["y"], weights))
    assert [n.op for n in model.nodes] == ["Log", "Gather", "Add"] and "log" not in model.weights
    assert "Log" not in {n.op_type for n in model.folded} and model.weights["bucket"].tolist() == [0, 1, 0, 1, 1]


def test_weights_over_the_limit_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_FOLDED_BYTES", 60_000)
    assert [n.op for n in load_model(made_weight()).nodes] == ["ConstantOfShape", "Cast", "Mul", "Reshape", "Conv"]


def test_a_model_whose_weights_come_from_constant_of_shape_is_split() -> None:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = load_model(folder / "light_squeezenet.onnx")
    assert "ConstantOfShape" not in {n.op for n in model.nodes}
    assert sum(len(part.parts) or 1 for part in partition(model).subprograms) >= 26
    assert restore_folded_nodes(model).ByteSize() < 200_000 < sum(w.nbytes for w in model.weights.values())


def test_an_older_opset_is_converted() -> None:
    nodes = [node("Squeeze", ["x"], ["s"], axes=[0]), node("Clip", ["s"], ["y"], min=0.0, max=6.0)]
    proto = build(nodes, {"x": (1, 4)}, ["y"], opset=10, ir=5)
    model = load_model(proto)
    assert model.opset == 21
    x = np.array([[-1, 2, 7, 3]], np.float32)
    assert np.array_equal(run(model.proto, {"x": x})["y"], run(proto, {"x": x})["y"])


def test_local_functions_are_inlined() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["b"])]
    function = helper.make_function("mine", "Square", ["a"], ["b"], body, [helper.make_opsetid("", 21)])
    proto = build([helper.make_node("Square", ["x"], ["y"], domain="mine")], {"x": (3,)}, ["y"])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert [n.op for n in load_model(proto).nodes] == ["Mul"]


def test_a_foreign_operator_is_no_error() -> None:
    proto = build([helper.make_node("Magic", ["x"], ["y"], "m", domain="elsewhere")], {"x": (3,)}, ["y"])
    proto.opset_import.append(helper.make_opsetid("elsewhere", 1))
    model = load_model(proto)
    assert not model.is_static("y")
    with pytest.raises(ModelError, match="value y: found no static shape"):
        model.shape("y")


def test_a_value_that_is_no_tensor_has_no_element_type() -> None:
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    model = load_model(build(nodes, {"x": (3,)}, ["y"]))
    assert not model.is_static("s")
    with pytest.raises(ModelError, match="value s: found no element type, expected a tensor"):
        model.dtype("s")


def test_values_that_subgraphs_read_are_reads() -> None:
    value = helper.make_tensor_value_info("t", TensorProto.FLOAT, (3,))
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "branch", [], [value])
    nodes = [node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)]
    model = load_model(build(nodes, {"x": (3,)}, ["y"], {"flag": np.array(True)}))
    assert model.nodes[0].reads == ("flag", "x")


def test_missing_external_data_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    proto = build(CONV, IMAGE, ["y"], {"w": W})
    onnx.save(proto, path, save_as_external_data=True, location="big.data", size_threshold=0)
    assert np.array_equal(load_model(path).weights["w"], W)
    (tmp_path / "big.data").unlink()
    assert refused(path).startswith(f"{path}: external data: found ")


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    whole = build(CONV, IMAGE, ["y"], {"w": W}).SerializeToString()
    absent, empty, text, cut = (tmp_path / f"{n}.onnx" for n in ("absent", "empty", "text", "cut"))
    empty.write_bytes(b"")
    text.write_text("this is no model")
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileNotFoundError) as missing:
        load_model(absent)
    assert missing.value.filename == str(absent)
    assert refused(tmp_path) == f"{tmp_path}: found a folder, expected an ONNX model"
    assert refused(empty) == f"{empty}: found an empty file, expected an ONNX model"
    assert refused(text) == f"{text}: found a file that is not ONNX, expected an ONNX model"
    assert refused(cut) == f"{cut}: found a truncated or damaged ONNX file, expected an ONNX model"
    assert refused(onnx.ModelProto()) == "<model>: found no ONNX graph, expected an ONNX model"


@pytest.mark.parametrize("end", [1, 2, 7, 20, 100, 300, 440])
def test_a_file_cut_anywhere_is_refused(end: int) -> None:
    assert refused(build(CONV, IMAGE, ["y"], {"w": W}).SerializeToString()[:end]).startswith("<bytes>: found ")


def test_unsupported_onnx_versions_are_refused() -> None:
    newest, ir = onnx.defs.onnx_opset_version(), onnx.IR_VERSION
    assert refused(build(CONV, IMAGE, ["y"], {"w": W}, opset=999)) == (
        f"<model>: found opset 999, expected at most {newest}"
    )
    assert refused(build(CONV, IMAGE, ["y"], {"w": W}, ir=999)) == (
        f"<model>: found IR version 999, expected at most {ir}"
    )
    proto = build(CONV, IMAGE, ["y"], {"w": W})
    del proto.opset_import[:]
    assert refused(proto) == (
        f"<model>: found no opset import for the default domain, expected a version up to {newest}"
    )


def test_graphs_without_nodes_or_outputs_are_refused() -> None:
    assert refused(build([], IMAGE, ["x"])) == "<model>: found a graph without nodes, expected at least one"
    assert refused(build(CONV, IMAGE, [], {"w": W})) == "<model>: found a graph without outputs, expected at least one"


def test_dynamic_shapes_without_sizes_are_refused() -> None:
    proto = build(CONV, {"x": ("N", 3, "H", None)}, ["y"], {"w": W})
    assert refused(proto) == (
        "<model>: found dynamic shapes: dimension 0 (N) and 2 (H) and 3 (unnamed) of x "
        "(--shape x=?,3,?,? or shapes={'x': (?, 3, ?, ?)}); expected a size for each (optimize also takes ranges, such "
        "as 1..8; equal has --all-sizes)"
    )


def test_an_unranked_input_is_open_until_given() -> None:
    proto = build([node("Relu", ["x"], ["y"])], {"x": ()}, ["y"])
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert "all dimensions of x (--shape x=… or shapes={'x': (…)})" in refused(proto)
    assert load_model(proto, {"x": (2, 3)}).shape("y") == (2, 3)


def test_shapes_that_contradict_the_model_are_refused() -> None:
    proto = build(CONV, {"x": ("N", 3, "H", "W")}, ["y"], {"w": W})
    assert refused(proto, {"z": (1, 3, 8, 8)}) == "<model>: shape z: found no such input, expected one of x"
    assert refused(proto, {"x": (1, 3, 8)}) == "<model>: shape x=1,3,8: found 3 dimensions, expected 4"
    assert refused(proto, {"x": (1, 4, 8, 8)}) == (
        "<model>: shape x=1,4,8,8: found 4 for dimension 1, expected 3, which the model fixes"
    )
    assert refused(proto, {"x": (0, 3, 8, 8)}) == (
        "<model>: shape x=0,3,8,8: found a dimension of size 0, expected at least 1"
    )


def test_contradictory_shapes_are_refused() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"], "product")]
    message = refused(build(nodes, {"x": (2, 3)}, ["y"], {"w": np.ones((4, 5), np.float32)}))
    assert message.startswith("<model>: found shapes that do not fit: node product (MatMul): ")
    assert message.endswith("; its inputs are x [2, 3], w [4, 5]")


def test_unknown_operator_is_refused_with_its_node() -> None:
    message = refused(build([node("Frobnicate", ["x"], ["y"], "odd")], {"x": (2, 3)}, ["y"], {}))
    assert message.startswith("<model>: node odd (Frobnicate): found No Op registered for Frobnicate ")


def test_dimensions_of_size_zero_are_refused() -> None:
    assert refused(build(CONV, {"x": (1, 3, 0, 8)}, ["y"], {"w": W})) == (
        "<model>: input x: found shape 1x3x0x8, expected no dimension of size 0"
    )
    sliced = [node("Slice", ["x", "a", "a"], ["y"], "none")]
    assert refused(build(sliced, {"x": (3,)}, ["y"], {"a": np.array([1])})) == (
        "<model>: node none (Slice): found output y of shape 0, expected no dimension of size 0"
    )
    empty = np.ones((4, 0, 3, 3), np.float32)
    assert refused(build(CONV, IMAGE, ["y"], {"w": empty})) == (
        "<model>: node conv1 (Conv): weight w: found shape (4, 0, 3, 3), expected no dimension of size 0"
    )


@pytest.mark.parametrize(("bad", "told"), [(np.nan, "NaN"), (np.inf, "an infinity"), (-np.inf, "an infinity")])
def test_nan_and_infinity_in_weights_are_refused(bad: float, told: str) -> None:
    w = W.copy()
    w[0, 0, 0, :2] = bad
    assert refused(build(CONV, IMAGE, ["y"], {"w": w})) == (
        f"<model>: node conv1 (Conv): weight w: found {told} in 2 of 108 elements, expected finite numbers"
    )


def test_a_mask_may_be_infinite_but_not_nan() -> None:
    added = [node("Add", ["x", "m"], ["y"], "mask")]
    assert load_model(build(added, {"x": (2,)}, ["y"], {"m": np.array([0, -np.inf], np.float32)})).shape("y") == (2,)
    assert "node mask (Add): weight m: found NaN in 1 of 2" in refused(
        build(added, {"x": (2,)}, ["y"], {"m": np.array([0, np.nan], np.float32)})
    )


def test_cyclic_model_is_refused() -> None:
    nodes = [node("Add", ["x", "b"], ["a"], "first"), node("Relu", ["a"], ["b"], "second")]
    assert refused(build(nodes, {"x": (3,)}, ["b"])) == (
        "<model>: node first (Add): found a cycle first <- second <- first, expected an acyclic graph"
    )


def test_graph_with_missing_producers_is_refused() -> None:
    assert refused(build(CONV, IMAGE, ["z"], {"w": W})) == (
        "<model>: graph output z: found no node that computes it, expected one"
    )
    assert refused(build(CONV, IMAGE, ["y"])) == (
        "<model>: node conv1 (Conv): found input w that nothing computes, "
        "expected a graph input, a weight or another node's output"
    )


def test_duplicate_names_are_refused() -> None:
    twice = [node("Relu", ["x"], ["y"], "a"), node("Neg", ["x"], ["y"], "b")]
    assert refused(build(twice, {"x": (3,)}, ["y"])) == (
        "<model>: node b (Neg): found output y which is also an output of node a (Relu), expected a new name"
    )
    proto = build(CONV, IMAGE, ["y"], {"w": W})
    proto.graph.initializer.append(proto.graph.initializer[0])
    assert refused(proto) == "<model>: weight w: found twice, expected one of that name"
    proto = build(CONV, IMAGE, ["y"], {"w": W})
    proto.graph.input.append(proto.graph.input[0])
    assert refused(proto) == "<model>: graph input x: found twice, expected one of that name"
    proto = build(CONV, IMAGE, ["y", "y"], {"w": W})
    assert refused(proto) == "<model>: graph output y: found twice, expected one of that name"


def test_nodes_with_equal_names_are_renamed() -> None:
    nodes = [node("Relu", ["x"], ["a"], "n"), node("Neg", ["a"], ["y"], "n"), helper.make_node("Abs", ["y"], ["z"])]
    names = [n.name for n in load_model(build(nodes, {"x": (3,)}, ["z"])).nodes]
    assert len(set(names)) == 3 and all(names) and names[0] == "n"


def test_an_unknown_operator_and_a_missing_attribute() -> None:
    assert refused(build([node("Frobnicate", ["x"], ["y"], "f")], {"x": (3,)}, ["y"])).startswith("<model>: ")
    message = refused(build([node("Concat", ["x", "x"], ["y"], "c")], {"x": (3,)}, ["y"]))
    assert "expected a valid ONNX model" in message


@pytest.mark.parametrize("what", ["input", "output"])
def test_values_that_are_no_tensors_are_refused_as_what_they_are(what: str) -> None:
    many = [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])]
    one = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])]
    made = node("SequenceAt", ["s", "i"], ["x"], "n") if what == "input" else node("SequenceConstruct", ["x"], ["s"])
    position = [helper.make_tensor("i", TensorProto.INT64, [], [0])]
    graph = helper.make_graph([made], "g", *((many, one) if what == "input" else (one, many)), position)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert refused(model) == f"<model>: {what} s: found a value of type sequence, expected a tensor"


def test_identifiers_are_distinct_and_free_of_reserved_words() -> None:
    names = ["x.1", "x/1", "x_1", "1", "sum", "where", "日本", "", "a__b_", "tensor"]
    found = make_identifiers(names)
    assert len(set(found.values())) == len(names)
    assert all(i.isidentifier() and i.isascii() and "__" not in i and not i.endswith("_") for i in found.values())
    assert not {"sum", "where", "tensor"} & set(found.values())


def test_pretrained_detector_is_loaded_with_static_shapes() -> None:
    package = pytest.importorskip("rapidocr_onnxruntime")
    path = next((Path(package.__file__).parent / "models").glob("*det*.onnx"))
    model = load_model(path, {"x": (1, 3, 320, 320)})
    assert (model.opset, len(model.nodes)) == (21, 330)
    assert [v.shape for v in model.outputs] == [(1, 1, 320, 320)]
    assert all(model.is_static(name) for n in model.nodes for name in n.results)
    message = refused(path)
    assert message.startswith(f"{path}: found dynamic shapes: ") and "--shape x=?,3,?,?" in message
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
    small = load_model(path, {"x": x.shape})
    (name,) = (v.name for v in small.outputs)
    before, after = run(onnx.load(path), {"x": x})[name], run(small.proto, {"x": x})[name]
    assert np.allclose(before, after, 1e-5, 1e-6)
