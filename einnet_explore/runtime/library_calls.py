"""Implementations that an equation has: view, library call in ONNX Runtime, matrix product, generated kernels.

A library call is a node of a larger session, or a session of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnxruntime

from einnet_explore.analysis.flattening import view_strides
from einnet_explore.codegen.kernel_kind import kernel_kind, outperforms_tiles
from einnet_explore.codegen.machine import this_machine
from einnet_explore.ir import VIEW, Equation, Scope, Tensor, accesses, map_tensors
from einnet_explore.operators import OnnxNode, Operator
from einnet_explore.runtime import generated, matrix_products, onnx_fragment
from einnet_explore.runtime.arrays import ALIGNMENT, Array
from einnet_explore.runtime.implementations import (
    Implementation,
    KernelCall,
    NativeCall,
    ProductCall,
    TiledCall,
    ViewCall,
    load_implementation,
)
from einnet_explore.runtime.native import NativeSource
from einnet_explore.runtime.onnx_fragment import FragmentWriter, Shape, onnx_session


@dataclass(frozen=True, eq=False)
class LibraryCall:
    """*node* on the tensors *reads*, of *shapes*, giving a tensor of *shape*; *fixed* are those that never change."""

    node: OnnxNode
    reads: tuple[str, ...]
    shapes: tuple[Shape, ...]
    shape: Shape
    threads: int
    fixed: Mapping[str, Array] = field(default_factory=dict, repr=False)
    engine = "onnxruntime"

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Callable[[], object]:
        """A call that reads *arrays* (canonical shapes, any strides) and writes *out*, which is packed.

        What is *fixed* ONNX Runtime has packed once.
        """
        binding = self._session.io_binding()
        gathered: list[tuple[Array, Array]] = []
        held = [out]
        for name, value in zip(self._fed, _values(len(self._fed)), strict=True):
            array = arrays[name]
            packed = array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
            if packed is not array:
                gathered.append((packed, array))
            held.append(packed)
            binding.bind_input(value, "cpu", 0, np.float32, list(packed.shape), packed.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, list(self.shape), out.ctypes.data)
        run = self._session.run_with_iobinding

        def call(held: Sequence[Array] = tuple(held)) -> None:  # the binding knows addresses only
            del held
            for packed, array in gathered:
                np.copyto(packed, array)
            run(binding)

        return call

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        """Add the node, with its operands' reshapes and transposes, to *writer*."""
        values = []
        for name, shape, order in zip(self.reads, self.node.shapes, self.node.permutations, strict=True):
            value = writer.value_in_shape(name, shape)
            values.append(writer.add("Transpose", [value], perm=list(order)) if order else value)
        attributes: dict[str, Any] = dict(self.node.attributes)
        if self.node.output == self.shape:
            writer.add(self.node.op_type, values, makes, **attributes)
        else:
            writer.reshape(writer.add(self.node.op_type, values, **attributes), self.shape, makes)
        return True

    @property
    def _fed(self) -> tuple[str, ...]:
        return tuple(name for name in dict.fromkeys(self.reads) if name not in self.fixed)

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        numbered = dict(zip(dict.fromkeys(self.reads), (f"t{n}" for n in range(len(self.reads))), strict=False))
        same = LibraryCall(self.node, tuple(numbered[n] for n in self.reads), self.shapes, self.shape, self.threads)
        fixed = {numbered[name]: array for name, array in self.fixed.items()}
        if fixed:
            return _alone(same, fixed)
        return _shared(self.node, same.reads, self.shapes, self.shape, self.threads)


def _values(number: int) -> tuple[str, ...]:
    return tuple(f"x{n}" for n in range(number))


@lru_cache(maxsize=256)
def _shared(
    node: OnnxNode, reads: tuple[str, ...], shapes: tuple[Shape, ...], shape: Shape, threads: int
) -> onnxruntime.InferenceSession:
    return _alone(LibraryCall(node, reads, shapes, shape, threads), {})


def _alone(call: LibraryCall, fixed: Mapping[str, Array]) -> onnxruntime.InferenceSession:
    fed = tuple(name for name in dict.fromkeys(call.reads) if name not in fixed)
    shapes = {**dict(zip(call.reads, call.shapes, strict=True)), "y": call.shape}
    writer = FragmentWriter({**dict(zip(fed, _values(len(fed)), strict=True)), "y": "y"}, shapes, fixed)
    call.write(writer, "y")
    return onnx_session(writer.model(fed, ["y"]), call.threads, spinning=False)


ImplementationChooser: TypeAlias = (
    "Callable[[Equation, Iterable[Implementation], Mapping[str, Array], Array, Collection[str]], Implementation]"
)
"""What takes one of the ways to run an equation: given arrays like those that it reads, like its result, and the names
of those that never change."""


def first_implementation(
    equation: Equation,
    ways: Iterable[Implementation],
    arrays: Mapping[str, Array],
    out: Array,
    constants: Collection[str],
) -> Implementation:
    """The way to take where nothing is measured; raises BackendError where its engine refuses."""
    return load_implementation(next(iter(ways)))


def view_call(equation: Equation, views: Mapping[str, Scope], threads: int) -> ViewCall | None:
    """*equation* as a view; None where it is none."""
    if equation.via is None or equation.via.operator != VIEW or view_strides(equation.scope) is None:
        return None
    return ViewCall(equation.scope, inline_views(equation.scope, views), threads)


def implementations_of(
    equation: Equation,
    arrays: Mapping[str, Array],
    out: Array,
    views: Mapping[str, Scope],
    operators: Sequence[Operator] = (),
    threads: int = 1,
    tune: bool = False,
    constants: Mapping[str, Array] | None = None,
) -> Iterable[Implementation]:
    """The ways to run *equation*, the one to take where nothing is measured first; each is made when it is asked for.

    None is compiled here: what an engine refuses it refuses when the way is loaded, and the others are still to be had.

    *arrays* are like those that it will read, *out* like the one it will write; *views* are the scopes of those that
    are views, *constants* the arrays that never change.
    """
    if equation.via is None or equation.via.is_library_call:
        node = _node(equation, arrays, operators, threads, constants or {})
        if node is not None:
            yield node
        product = matrix_products.match_matrix_product(equation.scope)
        # BLAS would keep the program from being one session.
        if product is not None and out.size and (node is None or not onnx_fragment.custom_ops_available()):
            call = ProductCall(product)
            left, right = (arrays[name] for name in call.reads)
            if matrix_products.bind_matrix_product(product, left, right, out) is not None:
                yield call
    seen = inline_views(equation.scope, views)
    kernel_first = outperforms_tiles(kernel_kind(seen, this_machine()))
    if kernel_first:
        yield KernelCall(seen, threads, tune)
    made = generated.tiled_contraction(equation.scope, constants or {}, threads)
    tiled = (
        None if made is None or not all(map(_packed, map(arrays.get, made.reads))) else TiledCall(made, constants or {})
    )
    if tiled is not None and tiled.made.worthwhile:
        yield tiled
    if not kernel_first:
        yield KernelCall(seen, threads, tune)
    if tiled is not None and not tiled.made.worthwhile:
        yield tiled
    if equation.via is None or equation.via.is_eoperator:
        yield NativeCall(NativeSource(seen, threads))


def inline_views(scope: Scope, views: Mapping[str, Scope]) -> Scope:
    """*scope* with reads of views replaced by reads of what they show: a kernel follows strides by itself."""

    return map_tensors(scope, lambda tensor: views.get(tensor.name, tensor))


def _packed(array: Array | None) -> bool:
    """Whether a kernel takes *array* as it is, which a view need not allow."""
    return array is not None and array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0


def _node(
    equation: Equation,
    arrays: Mapping[str, Array],
    operators: Sequence[Operator],
    threads: int,
    constants: Mapping[str, Array],
) -> LibraryCall | None:
    via, shape = equation.via, equation.scope.shape
    operator = next((o for o in operators if via is not None and via.operator in o.names), None)
    if via is None or operator is None or operator.onnx is None or not prod(shape):
        return None
    # Optional iterators that are absent may be left out of the attributes.
    node = operator.onnx({**dict.fromkeys(operator.pattern.optional, 1), **dict(via.attributes)})
    reads = tuple(a.source.name for a in accesses(equation.scope.body) if isinstance(a.source, Tensor))
    if node is None or len(reads) != len(node.shapes):
        return None
    fixed = {name: constants[name] for name in reads if name in constants}
    if len(fixed) == len(set(reads)):
        fixed = {}  # it is run once
    return LibraryCall(node, reads, tuple(arrays[name].shape for name in reads), shape, threads, fixed)
