"""Programs as ONNX: library operators are nodes, eOperators local functions of standard operators (opset 21, IR 10).

Equations that depend on known weights only are evaluated and become initialisers.  Any ONNX runtime can run the result;
it does not need this package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Program, Scope, Table, Tensor, accesses, tensors
from einnet_explore.onnx_export.lowering import lower_scope
from einnet_explore.onnx_export.node_builder import Array, NodeBuilder
from einnet_explore.operators import OPERATORS, OnnxNode, Operator
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
    inputs = {tensor: f"X{n}" for n, tensor in enumerate(_read_by(scope))}
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
    dtype: np.dtype[Any]
    operators: Sequence[Operator]

    def run(self) -> ExportedNodes:
        program = self.program
        if missing := [o for o in program.outputs if o not in program.names()]:
            raise Refused(f"output {', '.join(missing)}: no equation and no input has this name")
        places = {name: self.value_name(name) for name in program.names()}
        known = self._folded()
        made = {name for name in known if not self._exists(name)}
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

    def _exists(self, name: str) -> bool:
        return name in self.names and any(t.name == name for t in self.program.inputs)

    def _folded(self) -> dict[str, Array]:
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
        inputs = [places[name] for name in _read_by(equation.scope)]
        return [
            helper.make_node(made.name, inputs, [target], name=f"{self.prefix}{equation.name}", domain=FUNCTION_DOMAIN)
        ]

    def _call(self, equation: Equation) -> OnnxNode | None:
        """Return the ONNX node of the library operator of *equation*, None if its scope must be lowered instead."""
        via = equation.via
        found = next((o for o in self.operators if via is not None and via.operator in o.names), None)
        if via is None or found is None or found.onnx is None:
            return None
        reads = [access.source for access in accesses(equation.scope.body)]
        if len(reads) != len(found.pattern.operands) or not all(isinstance(s, Tensor) for s in reads):
            return None
        return found.onnx(dict(via.attributes))

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


def _read_by(scope: Scope) -> tuple[str, ...]:
    return tuple(dict.fromkeys(t.name for t in tensors(scope)))
