"""Models for several sizes: each plan at the sizes for which it was made, the original operators at all others.

.. code-block:: text

    If(sizes of the inputs = those of the first plan, first plan, If(…, second plan, … original))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.onnx_import.load import convert_opset, inline_functions
from einnet_explore.onnx_import.model import Model, Shape, copy_message, opset, replace_contents, walk_graphs
from einnet_explore.support.errors import Refused


def with_declared_sizes(model: Model) -> onnx.ModelProto:
    """Return the original of *model* with the declared dimensions of its inputs."""
    proto = copy_message(model.original)
    for value in proto.graph.input:
        if value.name not in model.dynamic:
            continue
        for dim, size in zip(value.type.tensor_type.shape.dim, model.dynamic[value.name], strict=True):
            dim.Clear()
            if isinstance(size, int):
                dim.dim_value = size
            elif size is not None:
                dim.dim_param = size
    return proto


def dispatch_sizes(model: Model, plans: Sequence[tuple[Mapping[str, Shape], onnx.ModelProto]]) -> onnx.ModelProto:
    """Return a model of the declared sizes of *model*: each plan at its shapes (by input), the original at others.

    Raises Refused if the plans and the original cannot have the same operator sets.
    """
    original = with_declared_sizes(model)
    if not plans:
        return original
    if opset(plans[0][1]) != opset(original):
        original = convert_opset(model.path, original)
    protos = [*(inline_functions(model.path, proto) for _, proto in plans), original]
    names = _FreshNames.of(protos)
    sizes = names.fresh("sizes")
    nodes, weights = _concatenate_sizes(sorted(model.dynamic), sizes, names), list[onnx.TensorProto]()
    chosen = _branch(original.graph, {}, names)
    for (shapes, _), proto in reversed(list(zip(plans, protos[:-1], strict=True))):
        wanted = [size for name in sorted(model.dynamic) for size in shapes[name]]
        weights.append(numpy_helper.from_array(np.array(wanted, np.int64), names.fresh("sizes of a plan")))
        test = names.fresh("has the sizes of a plan")
        nodes += _compare_sizes(sizes, weights[-1].name, test, names)
        branch = _branch(proto.graph, {name: shapes[name] for name in model.dynamic}, names)
        chosen = _choice(test, branch, chosen, names)
    (choice,) = chosen.node
    choice.output[:] = [value.name for value in original.graph.output]
    given = [value for value in original.graph.input if value.name not in {w.name for w in original.graph.initializer}]
    graph = helper.make_graph([*nodes, choice], "sizes", given, list(original.graph.output), weights)
    version = max(proto.ir_version for proto in protos)
    return helper.make_model(graph, opset_imports=_common_opsets(protos), ir_version=version)


@dataclass
class _FreshNames:
    """Names of values that no model has."""

    taken: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, protos: Iterable[onnx.ModelProto]) -> _FreshNames:
        graphs = [graph for proto in protos for graph in walk_graphs(proto.graph)]
        made = {name for graph in graphs for node in graph.node for name in node.output}
        values = {v.name for graph in graphs for v in (*graph.input, *graph.initializer)}
        return cls(made | values | {w.values.name for graph in graphs for w in graph.sparse_initializer})

    def fresh(self, stem: str) -> str:
        name = stem
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name


def _concatenate_sizes(inputs: Sequence[str], sizes: str, names: _FreshNames) -> list[onnx.NodeProto]:
    """Return nodes that make *sizes*, those of *inputs* one after the other."""
    each = [names.fresh(f"sizes of {name}") for name in inputs]
    shapes = [helper.make_node("Shape", [name], [own]) for name, own in zip(inputs, each, strict=True)]
    return [*shapes, helper.make_node("Concat", each, [sizes], axis=0)]


def _compare_sizes(sizes: str, wanted: str, result: str, names: _FreshNames) -> list[onnx.NodeProto]:
    """Return nodes that make *result*, whether *sizes* are those *wanted*."""
    same, numbers, least = (names.fresh(f"{result}: {what}") for what in ("each", "numbers", "least"))
    return [
        helper.make_node("Equal", [sizes, wanted], [same]),
        helper.make_node("Cast", [same], [numbers], to=TensorProto.INT32),
        helper.make_node("ReduceMin", [numbers], [least], keepdims=0),
        helper.make_node("Cast", [least], [result], to=TensorProto.BOOL),
    ]


def _choice(test: str, then: onnx.GraphProto, otherwise: onnx.GraphProto, names: _FreshNames) -> onnx.GraphProto:
    """Return a branch that is *then* if *test* holds."""
    outputs = [copy_message(value) for value in otherwise.output]
    for value in outputs:
        value.name = names.fresh(value.name)
    node = helper.make_node("If", [test], [v.name for v in outputs], then_branch=then, else_branch=otherwise)
    return helper.make_graph([node], "other sizes", [], outputs)


def _branch(graph: onnx.GraphProto, shapes: Mapping[str, Shape], names: _FreshNames) -> onnx.GraphProto:
    """Return *graph* as a branch, whose results have new names; it reads the model's inputs as arrays of *shapes*."""
    branch = copy_message(graph)
    made = {name for node in graph.node for name in node.output}
    results = {value.name: names.fresh(value.name) for value in graph.output}
    new = {name: result for name, result in results.items() if name in made}
    first = list[onnx.NodeProto]()
    for name, shape in shapes.items():
        new[name], sizes = names.fresh(name), names.fresh(f"shape of {name}")
        branch.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), sizes))
        first.append(helper.make_node("Reshape", [name, sizes], [new[name]]))
    for each in walk_graphs(branch):
        for node in each.node:
            node.input[:] = [new.get(name, name) for name in node.input]
            node.output[:] = [new.get(name, name) for name in node.output]
        for value in (*each.output, *each.value_info):
            value.name = new.get(value.name, value.name)
    unmade = [name for name in results if name not in made]
    copies = [helper.make_node("Identity", [new.get(name, name)], [results[name]]) for name in unmade]
    for value, name in zip(branch.output, results.values(), strict=True):
        value.name = name
    replace_contents(branch.node, [*first, *branch.node, *copies])
    del branch.input[:]
    return branch


def _common_opsets(protos: Iterable[onnx.ModelProto]) -> list[onnx.OperatorSetIdProto]:
    versions: dict[str, int] = {}
    for entry in (entry for proto in protos for entry in proto.opset_import):
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise Refused(
                f"operator set {domain or 'ai.onnx'}: found version {versions[domain]} in a plan and {entry.version} "
                "in the model of other sizes, expected one that both can have"
            )
    return [helper.make_opsetid(domain, version) for domain, version in versions.items()]
