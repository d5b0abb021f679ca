r"""Lowering of programs and scopes to standard ONNX operators.

.. math::  \Big\{ \mathop{L}_{\vec x} \sum_{\vec y} f(T[\tau(\vec x, \vec y)]) \Big\}

A value has dimensions only for the iterators that occur in it.  Sums are distributed over ``+`` and ``-``; products
under a sum are contracted pairwise as ``MatMul``; ``prepare`` unrolls small sums into chains of slices; all other
accesses are gathered over their iterators and reduced.  Nested scopes are computed once.

Before that, an iterator that an index divides by d is split into x = d·a + b, which removes most quotients:

.. math::  T[i / 4, i \bmod 4],\ i < 12 \;\mapsto\; T[a, b],\ a < 3,\ b < 4

Library operators are nodes, eOperators local functions of standard operators.  Equations that depend on known weights
only are evaluated and become initialisers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import isfinite, prod

import numpy as np
import onnx
from onnx import helper, numpy_helper

from einnet_explore.analysis.equations import require_float32, tensor_names
from einnet_explore.analysis.indices import fresh_name, read_indices, substitute, substitute_domain
from einnet_explore.analysis.online_softmax import OnlineSoftmax, row_work
from einnet_explore.analysis.row_nest import RowNest
from einnet_explore.codegen.preparation import prepare
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import (
    EOPERATOR,
    REDUCTIONS,
    VIEW,
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
    Iterator,
    Padding,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    tensors,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.onnx_export import banded
from einnet_explore.onnx_export.value_grid import (
    Array,
    GridValue,
    NodeBuilder,
    ValueGrid,
    emit_access,
    emit_comparison,
    required_padding,
)
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import OnnxNode, Operator, onnx_node
from einnet_explore.runtime.arrays import aligned
from einnet_explore.support.errors import Refused

FUNCTION_DOMAIN = "einnet_explore"
EXPORT_OPSET = 21
IR_VERSION = 10

_ONNX_FUNCTIONS = {f.name: f.onnx for f in SCALAR_FUNCTIONS.values() if f.onnx}


@dataclass(frozen=True, slots=True)
class ExportedNodes:
    """Ordered nodes, the *weights* that they read, by value name, and the local functions that they call."""

    nodes: tuple[onnx.NodeProto, ...]
    weights: Mapping[str, Array]
    functions: tuple[onnx.FunctionProto, ...]

    @property
    def initialisers(self) -> tuple[onnx.TensorProto, ...]:
        """The weights as initialisers."""
        return tuple(numpy_helper.from_array(array, name) for name, array in self.weights.items())


def function_of(
    scope: Scope, name: str = "", *, opset: int = EXPORT_OPSET, dtype: np.typing.DTypeLike = np.float32
) -> onnx.FunctionProto:
    """Return *scope* as a local function; its inputs are the distinct tensors that it reads, in order.

    The name ends in a digest of the body, so that functions have equal names if and only if they are equal.
    """
    inputs = {tensor: f"X{n}" for n, tensor in enumerate(tensor_names(scope))}
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
    require_float32(program, "the export")
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
        weights = {value: aligned(known[name], self.dtype) for name, value in stored.items() if value in read}
        return ExportedNodes(tuple(nodes), weights, tuple(functions.values()))

    def value_name(self, name: str) -> str:
        return self.names.get(name, self.prefix + name)

    def _fold_constants(self) -> dict[str, Array]:
        """Return the arrays of the constants and of all equations that depend on them only.

        They are computed in double precision, in which an array is kept until the last of these has read it.
        """
        known = {t.name: np.asarray(self.constants[t.name]) for t in self.program.inputs if t.name in self.constants}
        for tensor in self.program.inputs:
            if tensor.name in known and known[tensor.name].shape != tensor.shape:
                raise Refused(f"constant {tensor.name} has shape {known[tensor.name].shape}, expected {tensor.shape}")
        names, folded = set(known), list[Equation]()
        for equation in self.program.equations:
            if all(t.name in names for t in tensors(equation.scope)):
                folded.append(equation)
                names.add(equation.name)
        last = {t.name: e.name for e in folded for t in tensors(e.scope)}
        for equation in folded:
            used = {t.name: known[t.name] for t in tensors(equation.scope)}
            known[equation.name] = evaluate(equation.scope, used, np.float64)
            for name in {*used, equation.name}:
                if last.get(name, equation.name) == equation.name:
                    known[name] = known[name].astype(self.dtype, copy=False)
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
        inputs = [places[name] for name in tensor_names(equation.scope)]
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


def lower_scope(scope: Scope, places: Mapping[str, str], body: NodeBuilder) -> str:
    """Lower *scope* into *body* and return the name of its value; *places* names the value of every tensor.

    Raises ValueError for an unknown function and for a tensor without a value.
    """

    def plain(scope: Scope, values: Mapping[str, str]) -> str:
        return _Scopes(values, body, {}).instantiate(prepare(scope))

    match row_work(scope):
        case OnlineSoftmax() as weighted:
            value = banded.write_online_softmax(weighted, places, body, plain)
            return body.reshape(value, weighted.nest.scope.shape, scope.shape)
        case RowNest(banded=True) as rows:
            return banded.write_row_nest(rows, places, body, plain)
    return plain(scope, places)


@dataclass(frozen=True)
class _Scopes:
    places: Mapping[str, str]
    body: NodeBuilder
    done: dict[Scope, str]

    def instantiate(self, scope: Scope) -> str:
        """Return the value of *scope*."""
        # Readers pad the result themselves, so scopes that differ in padding share it.
        bare = replace(scope, padding=())
        if bare not in self.done:
            self.done[bare] = self._lower(bare)
        return self.done[bare]

    def _lower(self, scope: Scope) -> str:
        body, shape = self.body, scope.shape
        if 0 in shape:
            return body.constant(np.zeros(shape), body.dtype)
        split = split_divided_iterators(scope)
        values = _Values(
            self,
            ValueGrid(body, (*split.traversals, *split.summations)),
            split.summations,
            required_padding([split.body]),
        )
        if any(x.extent == 0 for x in split.summations):
            value = values.grid.constant(REDUCTIONS[split.reduce])
        elif split.reduce == "sum":
            value = values.sum(split.body)
        else:
            value = values.reduce(split.reduce, split.body)
        for bound in split.domain:
            value = values.mask_bound(bound, value, split.value)
        return values.result(value, split.traversals, shape)

    def source(self, source: Tensor | Table | Scope) -> str:
        """Return the value of an access's source."""
        match source:
            case Tensor(name):
                if name not in self.places:
                    raise ValueError(
                        f"tensor {name} has no value; tensors with values: {', '.join(self.places) or 'none'}"
                    )
                return self.places[name]
            case Table(shape, entries):
                return self.body.constant(np.array([float(x) for x in entries]).reshape(shape), self.body.dtype)
            case Scope():
                return self.instantiate(source)


@dataclass(frozen=True)
class _Values:
    """Values over *grid*, whose iterators are those of one scope with its *summations* last."""

    scopes: _Scopes
    grid: ValueGrid
    summations: tuple[Iterator, ...]
    pads: Mapping[Tensor | Table | Scope, Padding]
    done: dict[Scalar, GridValue] = field(default_factory=dict)

    @property
    def body(self) -> NodeBuilder:
        return self.scopes.body

    def value(self, scalar: Scalar) -> GridValue:
        """Return the value of *scalar* over its iterators."""
        if scalar not in self.done:
            self.done[scalar] = self._value(scalar)
        return self.done[scalar]

    def _value(self, scalar: Scalar) -> GridValue:
        match scalar:
            case Const(value):
                return self.grid.constant(value)
            case Access(source) if 0 in source.shape:
                return self.grid.constant(source.value)
            case Access(source):
                return emit_access(self.body, scalar, self.scopes.source(source), self.pads[source])
            case Compare():
                return emit_comparison(self.body, scalar)
            case Apply("rsqrt", (a,)):
                return self.grid.apply("Reciprocal", self.grid.apply("Sqrt", self.value(a)))
            case Apply("+" | "*" as op, args):
                return reduce(lambda a, b: self.grid.apply(_ONNX_FUNCTIONS[op], a, b), map(self.value, args))
            case Apply(op, args) if op in _ONNX_FUNCTIONS:
                return self.grid.apply(_ONNX_FUNCTIONS[op], *map(self.value, args))
        raise ValueError(f"{scalar!r} is not a scalar function of ONNX")

    def sum(self, scalar: Scalar) -> GridValue:
        """Return Σ of *scalar* over the summations: distributed over sums, contracted pairwise in products."""
        match scalar:
            case Apply("+", args):
                return reduce(lambda a, b: self.grid.apply("Add", a, b), map(self.sum, args))
            case Apply("-", (a, b)):
                return self.grid.apply("Sub", self.sum(a), self.sum(b))
            case Apply("neg", (a,)):
                return self.grid.apply("Neg", self.sum(a))
            case Apply("/", (a, Const() as b)):
                return self.grid.apply("Div", self.sum(a), self.value(b))
            case Apply("where", (Compare() as test, a, b)) if not self._sums(test):
                return self.grid.apply("Where", self.value(test), self.sum(a), self.sum(b))
            case Apply("where", (Compare(), _, Const(0))) if factors := self._guard_factors(scalar):
                return self._product(factors)
            case Apply("*", args):
                return self._product(args)
        return self._product([scalar])

    def _sums(self, test: Compare) -> bool:
        return any(x in self.summations for x in _iterators(test))

    def _guard_factors(self, scalar: Scalar) -> list[Scalar]:
        """Return the factors of a product guarded by comparisons; each comparison guards the smallest factor it can.

        Returns no factors if one may be infinite where a comparison fails, as padding may be: 0 · ∞ is not 0.
        """
        tests = []
        while True:
            match scalar:
                case Apply("where", (Compare() as test, inner, Const(0))):
                    tests.append(test)
                    scalar = inner
                case _:
                    break
        found = list(scalar.args if isinstance(scalar, Apply) and scalar.op == "*" else [scalar])
        if not all(_finite(factor) for factor in found):
            return []
        for test in tests:
            own = set(_iterators(test))
            sizes = {n: set(_iterators(a)) for n, a in enumerate(found)}
            wide = [(prod(x.extent for x in xs), n) for n, xs in sizes.items() if own <= xs]
            if wide:
                n = min(wide)[1]
                found[n] = Apply("where", (test, found[n], Const(0)))
            else:
                found.append(Apply("where", (test, Const(1), Const(0))))
        return found

    def _product(self, args: Sequence[Scalar]) -> GridValue:
        factors = [self.value(a) for a in args]
        missing = prod(x.extent for x in self.summations if not any(x in f.over for f in factors))
        out = factors[0]
        for n, factor in enumerate(factors[1:], 2):
            out = self.grid.contract(
                out, factor, [x for x in self.summations if not any(x in f.over for f in factors[n:])]
            )
        out = self.grid.total("sum", out, self.summations)
        return out if missing == 1 else self.grid.apply("Mul", out, self.grid.constant(missing))

    def reduce(self, monoid: str, scalar: Scalar) -> GridValue:
        """Return *scalar* reduced over the summations by *monoid*."""
        value = self.value(scalar)
        missing = prod(x.extent for x in self.summations if x not in value.over)
        value = self.grid.total(monoid, value, self.summations)
        return (
            self.grid.apply("Pow", value, self.grid.constant(missing)) if monoid == "prod" and missing != 1 else value
        )

    def mask_bound(self, bound: Bound, value: GridValue, outside: float) -> GridValue:
        """Return *value* where *bound* holds, *outside* elsewhere."""
        lo, hi = bound.index.bounds
        for op, edge, needed in ((">=", bound.lo, lo < bound.lo), ("<", bound.hi, hi >= bound.hi)):
            if needed:
                test = emit_comparison(self.body, Compare(op, bound.index, as_index(edge)))
                value = self.grid.apply("Where", test, value, self.grid.constant(outside))
        return value

    def result(self, value: GridValue, traversals: tuple[Iterator, ...], shape: tuple[int, ...]) -> str:
        """Return *value* broadcast to *traversals* and reshaped to *shape*."""
        own = [x.extent for x in traversals if x in value.over]
        full = [x.extent for x in traversals]
        name = self.grid.align(value, traversals)
        if own != full:
            name = self.body.emit("Expand", name, self.body.constant(full))
        return self.body.reshape(name, full, shape)


def split_divided_iterators(scope: Scope) -> Scope:
    """Return *scope* without iterators of extent 1, and with divided iterators split into x = d·a + b.

    The order of elements stays, the shape changes.
    """
    fixed: dict[Iterator, Index] = {x: as_index(x.lo) for x in _iterators_of(scope) if x.extent == 1}
    to = dict.fromkeys(fixed, ())
    scope = _replace_iterators(scope, fixed, to)
    while (found := next(((x, d) for x in _iterators_of(scope) for d in _divisors(scope, x)), None)) is not None:
        x, d = found
        used = [y.name for y in _iterators_of(scope)]
        a = Iterator(fresh_name(x.name, used), 0, x.extent // d)
        b = Iterator(fresh_name(x.name, [*used, a.name]), 0, d)
        scope = _replace_iterators(scope, {x: a * d + b + x.lo}, {x: (a, b)})
    return scope


def _iterators_of(scope: Scope) -> tuple[Iterator, ...]:
    return (*scope.traversals, *scope.summations)


def _replace_iterators(
    scope: Scope, to: Mapping[Iterator, Index], by: Mapping[Iterator, tuple[Iterator, ...]]
) -> Scope:
    return replace(
        scope,
        traversals=tuple(y for x in scope.traversals for y in by.get(x, (x,))),
        summations=tuple(y for x in scope.summations for y in by.get(x, (x,))),
        body=substitute(scope.body, to),
        domain=substitute_domain(scope.domain, to),
    )


def _divisors(scope: Scope, x: Iterator) -> list[int]:
    """Return the divisors of the extent of *x* by which indices with *x* are divided, largest first."""
    own = [*read_indices(scope.body), *(b.index for b in scope.domain)]
    found = {a.divisor for index in own for a in index.divisions if x in a.numerator.iterators}
    return sorted((d for d in found if d < x.extent and x.extent % d == 0), reverse=True)


def _finite(scalar: Scalar) -> bool:
    """Return whether all paddings are finite; stored elements are assumed finite."""
    return all(isfinite(access.source.value) for access in accesses(scalar))


def _iterators(scalar: Scalar) -> tuple[Iterator, ...]:
    return tuple(x for index in read_indices(scalar) for x in index.iterators)
