"""How one equation is run: as a view, a matrix product, an ONNX Runtime node, or a generated kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from einnet_explore.algebra.flatten import view_strides
from einnet_explore.backends import contraction, ort, tvm_cpu
from einnet_explore.ir import EOPERATOR, VIEW, Access, Equation, Scope, Tensor, accesses, map_accesses
from einnet_explore.operators import Operator

Array = npt.NDArray[Any]
Call = Callable[[], object]


@dataclass(frozen=True)
class Placed:
    """An equation that has been given a place: its *array*, and the *call* that fills it (None: nothing to do)."""

    array: Array
    call: Call | None
    engine: str


def place(
    equation: Equation,
    arrays: Mapping[str, Array],
    views: Mapping[str, Scope],
    operators: Sequence[Operator] = (),
    threads: int = 1,
    tune: bool = False,
    constant: Collection[str] = (),
) -> Placed:
    """Give *equation* an array and a call.

    *arrays* holds what it reads, *views* the scopes of those that are views; arrays named in *constant* never change.
    """
    scope = equation.scope
    if equation.via is not None and equation.via.operator == VIEW:
        found = _view(scope, arrays)
        if found is not None:
            return Placed(found, None, "view")
    out = tvm_cpu.aligned_empty(scope.shape)
    if equation.via is None or equation.via.operator not in (VIEW, EOPERATOR):
        call = _node(equation, arrays, out, operators, threads, constant)
        if call is not None:
            return Placed(out, call, "onnxruntime")
        call = _product(scope, arrays, out)
        if call is not None:
            return Placed(out, call, "matmul")
    inlined = through_views(scope, views)
    kernel = tvm_cpu.compile_scope(inlined, "float32", threads, tune)
    return Placed(out, kernel.bind([arrays[name] for name in kernel.source.inputs], out), "tvm")


def through_views(scope: Scope, views: Mapping[str, Scope]) -> Scope:
    """*scope* with reads of views replaced by reads of what they show: a kernel follows strides by itself."""

    def look(access: Access) -> Access:
        match access.source:
            case Tensor(name) if name in views:
                return Access(views[name], access.index)
            case Scope() as inner:
                return Access(through_views(inner, views), access.index)
        return access

    return replace(scope, body=map_accesses(scope.body, look))


def _view(scope: Scope, arrays: Mapping[str, Array]) -> Array | None:
    found = view_strides(scope)
    match scope.body:
        case Access(Tensor(name)) if found is not None and arrays[name].flags.c_contiguous:
            offset, strides = found
            flat = arrays[name].reshape(-1)[offset:]
            return as_strided(flat, scope.shape, tuple(s * flat.itemsize for s in strides))
    return None


def _node(
    equation: Equation,
    arrays: Mapping[str, Array],
    out: Array,
    operators: Sequence[Operator],
    threads: int,
    constant: Collection[str],
) -> Call | None:
    via = equation.via
    operator = next((o for o in operators if via is not None and via.operator in o.names), None)
    if via is None or operator is None or operator.onnx is None or out.size == 0:
        return None
    # Optional iterators that are absent may be left out of the attributes.
    node = operator.onnx({**dict.fromkeys(operator.pattern.optional, 1), **dict(via.attributes)})
    names = [a.source.name for a in accesses(equation.scope.body) if isinstance(a.source, Tensor)]
    if node is None or len(names) != len(node.shapes):
        return None
    fixed = [p for p, name in enumerate(names) if name in constant]
    if len(fixed) == len(names):
        fixed = []
    return ort.bind(node, [arrays[name] for name in names], out, threads, fixed)


def _product(scope: Scope, arrays: Mapping[str, Array], out: Array) -> Call | None:
    product = contraction.contraction(scope)
    if product is None or out.size == 0:
        return None
    left, right = (arrays[a.source.name] for a in (product.left, product.right) if isinstance(a.source, Tensor))
    return contraction.bind(product, left, right, out)
