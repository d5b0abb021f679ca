"""ONNX models in which groups of nodes are replaced by optimised programs.

Any ONNX runtime can run the result; it does not need this package.

The result has operator set 21 (IR 10) or a newer one.  ONNX's converter converts older models; a model that it cannot
convert keeps its operator set, which must be at least ``MIN_OPSET``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, version_converter

from einnet_explore.ir import Program
from einnet_explore.onnx_export.lowering import EXPORT_OPSET, FUNCTION_DOMAIN, IR_VERSION, ExportedNodes, to_onnx
from einnet_explore.onnx_export.value_grid import Array
from einnet_explore.onnx_import.model import (
    ModelError,
    ModelNode,
    check_names,
    copy_message,
    list_nodes,
    opset,
    replace_contents,
    topological_order,
)
from einnet_explore.onnx_import.shapes import replace_misjudged_nodes
from einnet_explore.runtime.arrays import Arrays
from einnet_explore.runtime.onnx_weights import NO_WEIGHTS, is_declared, weight_proto, with_elements
from einnet_explore.support.errors import Refused

MIN_OPSET = 13
"""The first operator set in which all exported nodes are legal (axes of ``ReduceSum`` are an input)."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A convex group of *nodes* (by name, see ``model.list_nodes``) and the program that replaces it.

    *names* maps the program's inputs and outputs to value names of the model.  Weights may be omitted from it and
    passed as *constants*, arrays by input name, so that equations that depend on them only are folded.
    """

    nodes: tuple[str, ...]
    program: Program
    names: Mapping[str, str]
    constants: Mapping[str, Array] = field(default_factory=dict)


def rewrite_model(
    model: onnx.ModelProto, replacements: Iterable[Replacement], weights: Arrays = NO_WEIGHTS
) -> onnx.ModelProto:
    """Return *model*, which declares *weights*, with the nodes of each replacement replaced by its program.

    It has the elements of all weights that are read, and no other weights.  Raises Refused as ``rewrite_graph`` does.
    """
    return with_elements(*rewrite_graph(model, replacements, weights))


def rewrite_graph(
    model: onnx.ModelProto, replacements: Iterable[Replacement], weights: Arrays = NO_WEIGHTS
) -> tuple[onnx.ModelProto, Arrays]:
    """Return ``rewrite_model`` as a model that declares weights, and these.

    The result passes ONNX's full check; it has only standard operators and model-local functions made of them.  Raises
    Refused if a node of a group is unknown or in two groups, if a group is not convex or computes a needed value that
    its program does not compute, if an operator set below ``MIN_OPSET`` cannot be converted, and if a program cannot be
    expressed in ONNX.
    """
    groups = tuple(replacements)
    out = _convert_opset(model)
    taken = _replaced_nodes(list_nodes(out.graph), groups)
    prefix = _free_prefix(out)
    version = opset(out)
    place = {node.name: n for n, node in enumerate(list_nodes(out.graph))}
    pieces = [(place[node.name], node.proto) for node in list_nodes(out.graph) if node.name not in taken]
    functions = {(f.domain, f.name): f for f in out.functions}
    arrays = dict(weights)
    names_by_digest: dict[tuple[object, ...], str] = {}
    for n, group in enumerate(groups):
        dtype = _dtype(out, group)
        made = to_onnx(group.program, group.names, group.constants, f"{prefix}{n}_", opset=version, dtype=dtype)
        first = min(place[name] for name in group.nodes)
        pieces.extend((first, node) for node in _share_weights(made, names_by_digest, arrays))
        functions |= {(f.domain, f.name): f for f in made.functions}
    nodes = [node for _, node in sorted(pieces, key=lambda piece: piece[0])]
    new = [weight_proto(name, arrays[name]) for name in names_by_digest.values()]
    _fill(out, nodes, [*out.graph.initializer, *new], functions.values())
    _check(out)
    return out, {t.name: arrays[t.name] for t in out.graph.initializer if is_declared(t)}


def _share_weights(
    made: ExportedNodes, names_by_digest: dict[tuple[object, ...], str], arrays: dict[str, Array]
) -> Sequence[onnx.NodeProto]:
    """Return the nodes of *made* with equal weights shared; add new weights to *names_by_digest* and *arrays*."""
    called: dict[str, str] = {}
    for name, array in made.weights.items():
        digest = (array.dtype, array.shape, hashlib.sha256(array.data).digest())
        called[name] = names_by_digest.setdefault(digest, name)
        if called[name] == name:
            arrays[name] = array
    for node in made.nodes:
        for n, name in enumerate(node.input):
            node.input[n] = called.get(name, name)
    return made.nodes


def _convert_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of *model* in operator set 21 if it can be converted."""
    version = opset(model)
    if version < EXPORT_OPSET:
        named = copy_message(model)
        for node, proto in zip(list_nodes(named.graph), named.graph.node, strict=True):
            proto.name = node.name
        try:
            converted = version_converter.convert_version(named, EXPORT_OPSET)
            onnx.checker.check_model(converted)
        except (RuntimeError, ValueError, onnx.checker.ValidationError, version_converter.ConvertError):
            converted = named
        if {n.name for n in named.graph.node} <= {n.name for n in converted.graph.node}:
            named = converted
        if opset(named) < MIN_OPSET:
            raise Refused(f"operator set {version}: found one that ONNX cannot convert, expected {MIN_OPSET} or later")
        model = named
    out = copy_message(model)
    out.ir_version = IR_VERSION if opset(out) <= EXPORT_OPSET else max(out.ir_version, IR_VERSION)
    return out


def _replaced_nodes(nodes: Sequence[ModelNode], groups: Sequence[Replacement]) -> set[str]:
    known = {node.name for node in nodes}
    taken: set[str] = set()
    for group in groups:
        for name in group.nodes:
            if name not in known:
                raise Refused(f"node {name}: found no such node, expected one of the model's")
            if name in taken:
                raise Refused(f"node {name}: found in two groups, expected one")
            taken.add(name)
    return taken


def _free_prefix(model: onnx.ModelProto) -> str:
    """Return a prefix that no value of *model* starts with."""
    used = {name for node in model.graph.node for name in (*node.input, *node.output)}
    used |= {w.name for w in model.graph.initializer} | {v.name for v in model.graph.input}
    stem = "einnet"
    while any(name.startswith(stem) for name in used):
        stem += "_"
    return stem


def _dtype(model: onnx.ModelProto, group: Replacement) -> np.dtype[np.generic]:
    """Return the floating-point type of the group's values, float32 if the model declares none."""
    found: set[np.dtype[np.generic]] = set()
    wanted = set(group.names.values())
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if info.name in wanted and info.type.tensor_type.elem_type:
            found.add(np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)))
    for weight in model.graph.initializer:
        if weight.name in wanted:
            found.add(np.dtype(helper.tensor_dtype_to_np_dtype(weight.data_type)))
    if len(found) > 1:
        types = ", ".join(sorted(map(str, found)))
        raise Refused(f"nodes {', '.join(group.nodes)}: found values of types {types}, expected one type")
    dtype = next(iter(found), np.dtype(np.float32))
    if dtype.kind != "f":
        raise Refused(f"nodes {', '.join(group.nodes)}: found values of type {dtype}, expected a floating type")
    return dtype


def _fill(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto],
    functions: Iterable[onnx.FunctionProto],
) -> None:
    """Set *nodes* (sorted, without dead ones), the *weights* they read and *functions* on *model*."""
    graph = model.graph
    replace_contents(graph.node, nodes)
    known = {w.name: w for w in weights}
    replace_contents(graph.initializer, known.values())
    try:
        check_names("model", graph, list_nodes(graph))
        ordered = topological_order("model", list_nodes(graph))
    except ModelError as error:
        raise Refused(str(error)) from None
    needed = {v.name for v in graph.output}
    alive: list[ModelNode] = []
    for node in reversed(ordered):
        if not needed.isdisjoint(node.results):
            alive.append(node)
            needed.update(node.reads)
    replace_contents(graph.initializer, [w for w in graph.initializer if w.name in needed])
    replace_contents(graph.sparse_initializer, [w for w in graph.sparse_initializer if w.values.name in needed])
    # A graph input that only declares the type of a weight is removed with the weight.
    replace_contents(graph.input, [v for v in graph.input if v.name in needed or v.name not in known])
    replace_contents(graph.node, [node.proto for node in reversed(alive)])
    made = {name for node in alive for name in node.results}
    replace_contents(graph.value_info, [v for v in graph.value_info if v.name in made])
    called = tuple(functions)
    replace_contents(model.functions, called)
    if any(f.domain == FUNCTION_DOMAIN for f in called) and FUNCTION_DOMAIN not in {
        o.domain for o in model.opset_import
    }:
        model.opset_import.append(helper.make_opsetid(FUNCTION_DOMAIN, 1))


def _check(model: onnx.ModelProto) -> None:
    if model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        return
    checked = _with_weights_as_inputs(model)
    replace_misjudged_nodes(checked)
    try:
        onnx.shape_inference.infer_shapes(checked, check_type=True, strict_mode=True)
        for value in checked.graph.output:
            # The checker requires shapes of outputs, which are unknown after non-standard operators.
            value.type.tensor_type.shape.SetInParent()
        onnx.checker.check_model(checked)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise Refused(f"the written model: {error}") from error


def _with_weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of *model* whose declared weights are inputs: ONNX's check looks for files of external data."""
    out = copy_message(model)
    graph = out.graph
    inputs = {value.name for value in graph.input}
    declared = [t for t in graph.initializer if is_declared(t)]
    graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in declared if t.name not in inputs
    )
    replace_contents(graph.initializer, [t for t in graph.initializer if not is_declared(t)])
    return out
