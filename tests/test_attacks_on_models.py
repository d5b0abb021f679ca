"""Models that mean harm by other things than their size: calls, attributes, types, branches, names."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_building import build, node

from einnet_explore.cli import main
from einnet_explore.cli.output import one_line
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.load import inline_functions, load_model
from einnet_explore.onnx_import.model import ModelError
from einnet_explore.onnx_import.node_call import NotUnderstood
from einnet_explore.pipeline.optimised import _shorten as in_table
from einnet_explore.pipeline.optimised import file_word
from einnet_explore.support.storage import write_atomically

X = (1, 4, 6, 6)


def functions(bodies: dict[str, list[str]]) -> onnx.ModelProto:
    """A model that calls function ``f0``; each function calls the ones that *bodies* says, one after the other."""
    proto = build([helper.make_node("f0", ["x"], ["y"], "call", domain="d")], {"x": X}, ["y"])
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]
    proto.opset_import.append(sets[1])
    for name, called in bodies.items():
        values = ["a", *(f"t{n}" for n in range(1, len(called))), "b"]
        nodes = [
            helper.make_node(op, [values[n]], [values[n + 1]], domain="d" if op in bodies else "")
            for n, op in enumerate(called)
        ]
        proto.functions.append(helper.make_function("d", name, ["a"], ["b"], nodes, sets))
    return proto


def test_functions_that_grow_are_counted_before_they_are_put_in() -> None:
    levels = 40
    doubling = {f"f{n}": [f"f{n + 1}"] * 2 for n in range(levels)} | {f"f{levels}": ["Relu"]}
    with pytest.raises(ModelError, match=r"found functions that come to 1.1e\+12 nodes, expected at most 1000000"):
        load_model(functions(doubling))
    few = functions({"f0": ["f1", "f1", "Relu"], "f1": ["Relu", "Neg"]})
    assert [n.op for n in load_model(few).nodes] == ["Relu", "Neg", "Relu", "Neg", "Relu"]
    assert len(inline_functions("m", few, 5).graph.node) == 5
    with pytest.raises(ModelError, match="m: found functions that come to 5 nodes, expected at most 4"):
        inline_functions("m", few, 4)


def test_recursive_functions_are_refused() -> None:
    with pytest.raises(ModelError, match=r"call one another in a circle, d\.f0 <- d\.f1 <- d\.f0"):
        load_model(functions({"f0": ["f1"], "f1": ["f0"]}))


def test_calls_with_more_arguments_than_the_function_are_refused() -> None:
    proto = functions({"f0": ["Relu"]})
    proto.functions[0].output.append("c")
    proto.graph.node[0].output.append("z")
    proto.graph.node[0].input.append("x")
    with pytest.raises(ModelError, match="functions"):
        load_model(proto)


def with_attribute(op: str, attribute: onnx.AttributeProto, **more: Any) -> onnx.ModelProto:
    made = node(op, ["x", "w"] if op == "Conv" else ["x"], ["y"], **more)
    made.attribute.append(attribute)
    return build([made], {"x": X}, ["y"], {"w": np.ones((4, 4, 3, 3), np.float32)} if op == "Conv" else None)


NO_TEXT = b"\xff\xfe"


@pytest.mark.parametrize(
    "proto",
    [
        with_attribute("Conv", helper.make_attribute("group", 0)),
        with_attribute("Conv", onnx.AttributeProto(name="auto_pad", type=onnx.AttributeProto.STRING, s=NO_TEXT)),
        with_attribute("Gelu", onnx.AttributeProto(name="approximate", type=onnx.AttributeProto.STRING, s=NO_TEXT)),
        with_attribute("Celu", helper.make_attribute("alpha", 0.0)),
        with_attribute("LRN", helper.make_attribute("size", 0)),
        with_attribute("LpPool", helper.make_attribute("p", 0), kernel_shape=[2, 2]),
    ],
    ids=lambda proto: f"{proto.graph.node[0].op_type} {proto.graph.node[0].attribute[-1].name}",
)
def test_node_with_malformed_attributes_is_unchanged(proto: onnx.ModelProto) -> None:
    """ONNX's checker lets them pass: the node stays as it is, and whoever runs it says what is wrong."""
    model = load_model(proto)
    (found,) = (express(item, model) for item in model.nodes)
    assert isinstance(found, NotUnderstood)
    assert found.reason.startswith("its attributes are malformed: ") and "\n" not in found.reason


def test_an_attribute_that_refers_to_a_function_outside_of_one() -> None:
    kind = onnx.AttributeProto.FLOAT
    proto = with_attribute("LeakyRelu", onnx.AttributeProto(name="alpha", ref_attr_name="beta", type=kind))
    with pytest.raises(ModelError, match="found attribute alpha that refers to beta, expected a value"):
        load_model(proto)


def test_unknown_element_types_are_refused() -> None:
    proto = build([node("Add", ["x", "w"], ["y"])], {"x": X}, ["y"], {"w": np.ones(1, np.float32)})
    proto.graph.initializer[0].data_type = 99
    with pytest.raises(ModelError, match="weight w: found type 99, expected the elements of a tensor"):
        load_model(proto)
    proto = build([node("Relu", ["x"], ["y"])], {"x": X}, ["y"])
    proto.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(ModelError, match="Invalid tensor data type 99"):
        load_model(proto)


def test_shapes_beyond_64_bits_are_refused() -> None:
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    nodes = [node("ConstantOfShape", ["s"], ["c"], value=one), node("Shape", ["c"], ["d"])]
    nodes += [node("Cast", ["d"], ["e"], to=1), node("Add", ["x", "e"], ["y"])]
    for size in (1 << 32, 1 << 16):  # the product is 0 in 64 bits, or 2^64
        sizes = np.array([size] * (2 if size > 1 << 20 else 4))
        with pytest.raises(ModelError, match=r"value c: found shape .* GiB, expected at most"):
            load_model(build(nodes, {"x": [len(sizes)]}, ["y"], {"s": sizes}))


def test_branches_are_not_run_while_a_model_is_read() -> None:
    """A small result may take any time and memory: a sum over a range of 2^33, a loop without end."""

    def branch(name: str, value: int) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, TensorProto.INT64, [1])
        made = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array([value])))
        return helper.make_graph([made], name, [], [out])

    choice = node("If", ["c"], ["i"], then_branch=branch("t", 1), else_branch=branch("e", 0))
    nodes = [choice, node("Cast", ["i"], ["f"], to=1), node("Add", ["x", "f"], ["y"])]
    model = load_model(build(nodes, {"x": [1]}, ["y"], {"c": np.array(True)}))
    assert [n.op for n in model.nodes] == ["If", "Cast", "Add"]


def test_external_data_of_a_model_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes lie in no folder, so nothing is beside them: not even what lies where the command was started."""
    (tmp_path / "own.bin").write_bytes(np.ones(4, np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    for location in ("own.bin", "/etc/passwd", "../own.bin"):
        proto = build([node("Add", ["x", "w"], ["y"])], {"x": [4]}, ["y"], {"w": np.ones(4, np.float32)})
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        for given in (proto, proto.SerializeToString()):
            with pytest.raises(ModelError, match="external"):
                load_model(given)


def test_long_names_of_files_are_shortened(tmp_path: Path) -> None:
    """A file's name may have 255 bytes, a node's any number: files named after it have to end somewhere."""
    path = tmp_path / ("é" * 125)
    write_atomically(path, "all")
    write_atomically(path, "of it")
    assert path.read_text() == "of it"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert file_word("../" * 3000 + "/tmp/evil") == "part"
    assert file_word("n" * 5000) == "n" * 80
    assert file_word("</script>'; $(id)\n") == "script_id"


def test_control_characters_of_names_are_replaced_in_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "\x1b[2J\x1b]0;owned\x07\u202e"
    file = tmp_path / "m.onnx"
    file.write_bytes(build([node("Add", ["x", name], ["y"], f"n{name}")], {"x": [4]}, ["y"]).SerializeToString())
    assert main(["optimize", str(file)]) == 2
    said = capsys.readouterr().err
    assert "found input \N{REPLACEMENT CHARACTER}[2J" in said
    assert all(c.isprintable() or c == "\n" for c in said)
    assert one_line(OSError(2, "no such file", f"a\n{name}")).isprintable()
    assert all(c.isprintable() for c in in_table(name * 100)) and len(in_table(name * 100)) == 81
