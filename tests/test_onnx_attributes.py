"""A node with an attribute that its definition does not know is unchanged."""

from dataclasses import replace
from typing import Any

import onnx
import pytest
from onnx import helper
from onnx_building import build, node

from einnet_explore.onnx_import import OPERATORS_ONNX, express
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.node_call import _EXECUTION_HINTS, NodeCall, NotUnderstood, unsupported_attributes

X = (1, 2, 4, 6)


def found(item: onnx.NodeProto, opset: int, inputs: tuple[str, ...] = ("x",)) -> Any:
    """Return the import of *item* in a model of operator set *opset*, without ONNX's converter."""
    model = load_model(
        build([node("Relu", [name], [f"r{name}"]) for name in dict.fromkeys(inputs)], dict.fromkeys(inputs, X), ["rx"])
    )
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    proto.opset_import[0].version = opset
    out = replace(model.values["rx"], name="y")
    new = replace(
        model, graph_proto=proto, values={**model.values, "y": out}, identifiers={**model.identifiers, "y": "y"}
    )
    return express(replace(model.nodes[0], op=item.op_type, inputs=inputs, outputs=("y",), proto=item), new)


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "attributes", "why"),
    [
        ("Attention", 25, ("x", "x", "x"), {"left_window_size": 2}, "left_window_size"),
        ("Attention", 25, ("x", "x", "x"), {"left_window_size": -1}, None),
        ("Attention", 23, ("x", "x", "x"), {"is_causal": 1}, None),
        ("Add", 6, ("x", "z"), {"broadcast": 1, "axis": 1}, "axis, broadcast"),
        ("Add", 6, ("x", "z"), {"broadcast": 0}, None),
        ("Relu", 1, ("x",), {"consumed_inputs": [0]}, None),
        ("Relu", 21, ("x",), {"from_tomorrow": 1.5}, "from_tomorrow"),
        ("Relu", 10_000, ("x",), {"from_tomorrow": 1.5}, "from_tomorrow"),
    ],
)
def test_unsupported_attribute_leaves_its_node_unchanged(
    op: str, opset: int, inputs: tuple[str, ...], attributes: dict[str, Any], why: str | None
) -> None:
    made = found(helper.make_node(op, list(inputs), ["y"], **attributes), opset, inputs)
    assert isinstance(made, NotUnderstood) == (why is not None), made
    if why is not None:
        assert made == NotUnderstood(f"attribute {why} is not supported")


def test_a_model_with_such_a_node_is_read_and_the_node_stays() -> None:
    shapes = dict.fromkeys("qkv", (1, 2, 4, 8))
    windowed = node("Attention", [*"qkv"], ["a"], left_window_size=1)
    model = load_model(build([windowed, node("Relu", ["a"], ["y"])], shapes, ["y"], opset=25, ir=11))
    stays, relu = (express(item, model) for item in model.nodes)
    assert stays == NotUnderstood("attribute left_window_size is not supported")
    assert not isinstance(relu, NotUnderstood)


def test_defaults_are_those_of_the_models_operator_set() -> None:
    model = load_model(build([node("Relu", ["x"], ["y"])], {"x": X}, ["y"]))
    item = replace(
        model.nodes[0], op="Resize", proto=helper.make_node("Resize", ["x"], ["y"], antialias=0, mode="cubic")
    )
    assert unsupported_attributes(item, 18, frozenset()) == ("mode",)
    assert unsupported_attributes(item, 10, frozenset()) == ("antialias", "mode")  # antialias came with 18
    assert unsupported_attributes(item, 18, frozenset(("mode",))) == ()


def test_definition_that_reads_an_undeclared_attribute_is_an_error() -> None:
    model = load_model(build([node("LeakyRelu", ["x"], ["y"])], {"x": X}, ["y"]))
    with pytest.raises(LookupError, match="definition of LeakyRelu reads attribute alpha, which it does not declare"):
        NodeCall(model.nodes[0], model).get("alpha", 0.01)


def test_known_attributes_are_those_of_the_onnx_definitions() -> None:
    """In some operator set; ``steps`` and ``sizes`` are inputs that older sets lack as attributes."""
    declared: dict[str, set[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            declared.setdefault(schema.name, set()).update(schema.attributes)
    for name, operator in OPERATORS_ONNX.items():
        assert set(operator.attributes.split()) <= declared[name] | {"steps"} - _EXECUTION_HINTS, name


def test_the_checker_refuses_an_attribute_of_another_type() -> None:
    made = node("LeakyRelu", ["x"], ["y"])
    made.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.STRING, s=b"0.5"))
    with pytest.raises(ValueError, match="alpha"):
        load_model(build([made], {"x": X}, ["y"]))
