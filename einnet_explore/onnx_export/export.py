"""Programs as ONNX nodes, and ONNX models in which groups of nodes are replaced by optimised programs.

Library operators are nodes, eOperators local functions of standard operators.  Equations that depend on known weights
only are evaluated and become initialisers.  Any ONNX runtime can run the result; it does not need this package.

The result has operator set 21 (IR 10) or a newer one.  ONNX's converter converts older models; a model that it cannot
convert keeps its operator set, which must be at least ``MIN_OPSET``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Program, Scope, Table, Tensor, accesses, tensors
from einnet_explore.onnx_export.lowering import lower_scope
from einnet_explore.onnx_export.value_grid import Array, NodeBuilder
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
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import OnnxNode, Operator, onnx_node
from einnet_explore.support.errors import Refused

FUNCTION_DOMAIN = "einnet_explore"
EXPORT_OPSET = 21
IR_VERSION = 10
MIN_OPSET = 13
"""The first operator set in which all exported nodes are legal (axes of ``ReduceSum`` are an input)."""


@dataclass(frozen=True, slots=True)
class ExportedNodes:
    """Ordered nodes, the initialisers that they read, and the local functions that they call."""

    nodes: tuple[onnx.NodeProto, ...]
    initialisers: tuple[onnx.TensorProto, ...]
    functions: tuple[onnx.FunctionProto, ...]


def function_of(
    scope: Scope, name: str = "", *, opset: int = EXPORT_OPSET, dtype: np.typing.DTypeLike = np.float32
) -> onnx.FunctionProto:
    """Return *scope* as a local function; its inputs are the distinct tensors that it reads, in order.

    The name ends in a digest of the body, so that functions have equal names if and only if they are equal.
    """
    inputs = {tensor: f"X{n}" for n, tensor in enumerate(_input_names(scope))}
    body = NodeBuilder("v", np.dtype(dtype), opset)
    body.finish(lower_scope(scope, inputs, body), "Y", inputs.values())
    made = helper.make_function(
        FUNCTION_DOMAIN, "", list(inputs.values()), ["Y"], body.nodes, opset_imports=[helper.make_opsetid("", opset)]
    )
    digest = hashlib.sha256(made.SerializeToString(deterministic=True)).hexdigest()[:16]
    made.name = f"{name or EOPERATOR}_{digest}"
    return made


def to_onnx(
    program: Program,
    names: Mapping[str, str],
    constants: Mapping[str, Array] | None = None,
    prefix: str = "",
    *,
    opset: int = EXPORT_OPSET,
    dtype: np.typing.DTypeLike = np.float32,
    operators: Sequence[Operator] = OPERATORS,
) -> ExportedNodes:
    """Return *program* as ONNX nodes; *names* maps its inputs and outputs to ONNX values.

    A weight without a name in *names* becomes an initialiser with its array in *constants*, if a node reads it.  Every
    other value is named *prefix* + the equation's name.
    Raises Refused for an input with neither a name nor an array, and for an equation that ONNX cannot express.
    """
    return _Export(program, names, constants or {}, prefix, opset, np.dtype(dtype), operators).run()


@dataclass(frozen=True)
class _Export:
    program: Program
    names: Mapping[str, str]
    constants: Mapping[str, Array]
    prefix: str
    opset: int
    dtype: np.dtype
    operators: Sequence[Operator]

    def run(self) -> ExportedNodes:
        program = self.program
        if missing := [o for o in program.outputs if o not in program.names()]:
            raise Refused(f"output {', '.join(missing)}: no equation and no input has this name")
        places = {name: self.value_name(name) for name in program.names()}
        known = self._fold_constants()
        made = known.keys() - (self.names.keys() & {t.name for t in program.inputs})
        nodes: list[onnx.NodeProto] = []
        functions: dict[str, onnx.FunctionProto] = {}
        stored = {name: places[name] for name in made}
        for output in (name for name in program.outputs if name in made):
            # ONNX requires a node for every output: a folded output is copied by an identity.
            stored[output] = f"{places[output]}__folded"
            nodes.append(helper.make_node("Identity", [stored[output]], [places[output]]))
        for equation in program.equations:
            if equation.name not in known:
                nodes.extend(self._equation(equation, places, functions))
        read = {name for node in nodes for name in node.input}
        for tensor in program.inputs:
            if places[tensor.name] in read and tensor.name not in made and tensor.name not in self.names:
                raise Refused(f"input {tensor.name}: found neither a value of the model nor an array for it")
        weights = [
            numpy_helper.from_array(np.ascontiguousarray(known[name], self.dtype).reshape(known[name].shape), value)
            for name, value in stored.items()
            if value in read
        ]
        return ExportedNodes(tuple(nodes), tuple(weights), tuple(functions.values()))

    def value_name(self, name: str) -> str:
        return self.names.get(name, self.prefix + name)

    def _fold_constants(self) -> dict[str, Array]:
        """Return the arrays of the constants and of all equations that depend on them only, in double precision."""
        known = {t.name: np.asarray(self.constants[t.name]) for t in self.program.inputs if t.name in self.constants}
        for tensor in self.program.inputs:
            if tensor.name in known and known[tensor.name].shape != tensor.shape:
                raise Refused(f"constant {tensor.name} has shape {known[tensor.name].shape}, expected {tensor.shape}")
        for equation in self.program.equations:
            if all(t.name in known for t in tensors(equation.scope)):
                used = {t.name: known[t.name] for t in tensors(equation.scope)}
                known[equation.name] = evaluate(equation.scope, used, np.float64)
        return known

    def _equation(
        self, equation: Equation, places: Mapping[str, str], functions: dict[str, onnx.FunctionProto]
    ) -> Sequence[onnx.NodeProto]:
        target = places[equation.name]
        try:
            if (call := self._call(equation)) is not None:
                return self._node(equation, call, places, target)
            if equation.via is not None and equation.via.operator == VIEW:
                body = NodeBuilder(f"{self.prefix}{equation.name}__", self.dtype, self.opset)
                body.finish(lower_scope(equation.scope, places, body), target, places.values())
                return body.nodes
            stem = equation.via.operator if equation.via else EOPERATOR
            made = function_of(equation.scope, stem, opset=self.opset, dtype=self.dtype)
        except ValueError as error:
            raise Refused(f"equation {equation.name}: {error}") from error
        functions.setdefault(made.name, made)
        inputs = [places[name] for name in _input_names(equation.scope)]
        return [
            helper.make_node(made.name, inputs, [target], name=f"{self.prefix}{equation.name}", domain=FUNCTION_DOMAIN)
        ]

    def _call(self, equation: Equation) -> OnnxNode | None:
        """Return the ONNX node of the library operator of *equation*, None if its scope must be lowered instead."""
        node = onnx_node(equation.via, self.operators)
        sources = [access.source for access in accesses(equation.scope.body)]
        if node is None or len(sources) != len(node.shapes) or not all(isinstance(s, Tensor) for s in sources):
            return None
        return node

    def _node(
        self, equation: Equation, call: OnnxNode, places: Mapping[str, str], target: str
    ) -> Sequence[onnx.NodeProto]:
        body = NodeBuilder(f"{self.prefix}{equation.name}__", self.dtype, self.opset)
        operands = []
        reads = tuple(accesses(equation.scope.body))
        for access, shape, order in zip(reads, call.shapes, call.permutations, strict=True):
            source = access.source
            name = body.reshape(self.source(source, places), source.shape, shape)
            operands.append(body.transpose(name, order) if order else name)
        name = body.emit(call.op_type, *operands, **dict(call.attributes))
        name = body.reshape(name, call.output, equation.scope.shape)
        body.finish(name, target, places.values())
        return body.nodes

    @staticmethod
    def source(source: Tensor | Table | Scope, places: Mapping[str, str]) -> str:
        match source:
            case Tensor(name) if name in places:
                return places[name]
        raise ValueError(f"{source!r} has no value")


def _input_names(scope: Scope) -> tuple[str, ...]:
    return tuple(dict.fromkeys(t.name for t in tensors(scope)))


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
    model: onnx.ModelProto, replacements: Iterable[Replacement], operators: Sequence[Operator] = OPERATORS
) -> onnx.ModelProto:
    """Return *model* with the nodes of each replacement replaced by its program, and without unread weights.

    The result passes ONNX's full check and uses standard operators only.  Raises Refused if a node of a group is
    unknown or in two groups, if a group is not convex or computes a needed value that its program does not compute, if
    an operator set below ``MIN_OPSET`` cannot be converted, and if a program cannot be expressed in ONNX.
    """
    groups = tuple(replacements)
    out = _convert_opset(model)
    taken = _replaced_nodes(list_nodes(out.graph), groups)
    prefix = _free_prefix(out)
    version = opset(out)
    place = {node.name: n for n, node in enumerate(list_nodes(out.graph))}
    pieces = [(place[node.name], node.proto) for node in list_nodes(out.graph) if node.name not in taken]
    functions = {(f.domain, f.name): f for f in out.functions}
    weights = list(out.graph.initializer)
    names_by_digest: dict[bytes, str] = {}
    for n, group in enumerate(groups):
        dtype = _dtype(out, group)
        made = to_onnx(
            group.program,
            group.names,
            group.constants,
            f"{prefix}{n}_",
            opset=version,
            dtype=dtype,
            operators=operators,
        )
        first = min(place[name] for name in group.nodes)
        pieces.extend((first, node) for node in _share_weights(made, names_by_digest, weights))
        functions |= {(f.domain, f.name): f for f in made.functions}
    nodes = [node for _, node in sorted(pieces, key=lambda piece: piece[0])]
    _fill(out, nodes, weights, functions.values())
    _check(out)
    return out


def _share_weights(
    made: ExportedNodes, names_by_digest: dict[bytes, str], weights: list[onnx.TensorProto]
) -> Sequence[onnx.NodeProto]:
    """Return the nodes of *made* with equal weights shared; add new weights to *names_by_digest* and *weights*."""
    called: dict[str, str] = {}
    for tensor in made.initialisers:
        name = tensor.name
        bare = copy_message(tensor)
        bare.name = ""
        called[name] = names_by_digest.setdefault(
            hashlib.sha256(bare.SerializeToString(deterministic=True)).digest(), name
        )
        if called[name] == name:
            weights.append(tensor)
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
    checked = copy_message(model)
    replace_misjudged_nodes(checked)
    try:
        onnx.shape_inference.infer_shapes(checked, check_type=True, strict_mode=True)
        for value in checked.graph.output:
            # The checker requires shapes of outputs, which are unknown after non-standard operators.
            value.type.tensor_type.shape.SetInParent()
        onnx.checker.check_model(checked)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise Refused(f"the written model: {error}") from error
