"""Implementations of an equation, in order: view, library call in ONNX Runtime, matrix product, generated kernels.

A library call is a node of a larger session, or a session of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import TypeAlias

import numpy as np
import onnxruntime

from einnet_explore.analysis.flattening import view_strides
from einnet_explore.analysis.products import match_matrix_product
from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.ir import VIEW, Tensor, accesses
from einnet_explore.operators.operator import OnnxNode, onnx_node
from einnet_explore.runtime.arrays import Array, fits_kernel
from einnet_explore.runtime.implementations import (
    BoundEquation,
    Implementation,
    KernelCall,
    NativeCall,
    ProductCall,
    TiledCall,
    ViewCall,
    load_implementation,
)
from einnet_explore.runtime.matrix_products import bind_matrix_product
from einnet_explore.runtime.native import NativeSource
from einnet_explore.runtime.onnx_fragment import FragmentWriter, Shape, bind_session, custom_ops_available, onnx_session
from einnet_explore.runtime.tvm_cpu import kernel_kind, outperforms_tiles, tiled_contraction


@dataclass(frozen=True, eq=False)
class LibraryCall:
    """*node* on the tensors *reads*, of *shapes*, with a result of *shape*; *fixed* are operands that never change."""

    node: OnnxNode
    reads: tuple[str, ...]
    shapes: tuple[Shape, ...]
    shape: Shape
    threads: int
    fixed: Mapping[str, Array] = field(default_factory=dict, repr=False)
    engine = "onnxruntime"

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Callable[[], object]:
        """A call that reads *arrays* (canonical shapes, any strides) and writes *out*, which is packed.

        ONNX Runtime packs *fixed* operands once.
        """
        copies: list[tuple[Array, Array]] = []
        inputs: dict[str, Array] = {}
        for name, value in zip(self._fed_names, _values(len(self._fed_names)), strict=True):
            inputs[value] = array = arrays[name]
            if not array.flags.c_contiguous:
                inputs[value] = np.empty(array.shape, array.dtype)
                copies.append((inputs[value], array))
        run = bind_session(self._session, inputs, {"y": out})
        if not copies:
            return run

        def call() -> None:
            for packed, array in copies:
                np.copyto(packed, array)
            run()

        return call

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        """Add the node, with its operands' reshapes and transposes, to *writer*."""
        values = []
        for name, shape, order in zip(self.reads, self.node.shapes, self.node.permutations, strict=True):
            value = writer.value_in_shape(name, shape)
            values.append(writer.add("Transpose", [value], perm=list(order)) if order else value)
        attributes = dict(self.node.attributes)
        if self.node.output == self.shape:
            writer.add(self.node.op_type, values, makes, **attributes)
        else:
            writer.reshape(writer.add(self.node.op_type, values, None, **attributes), self.shape, makes)
        return True

    @property
    def _fed_names(self) -> tuple[str, ...]:
        return tuple(name for name in dict.fromkeys(self.reads) if name not in self.fixed)

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        numbered = dict(zip(dict.fromkeys(self.reads), (f"t{n}" for n in range(len(self.reads))), strict=False))
        same = LibraryCall(self.node, tuple(numbered[n] for n in self.reads), self.shapes, self.shape, self.threads)
        fixed = {numbered[name]: array for name, array in self.fixed.items()}
        if fixed:
            return _open_session(same, fixed)
        return _open_shared_session(self.node, same.reads, self.shapes, self.shape, self.threads)


def _values(number: int) -> tuple[str, ...]:
    return tuple(f"x{n}" for n in range(number))


@lru_cache(maxsize=256)
def _open_shared_session(
    node: OnnxNode, reads: tuple[str, ...], shapes: tuple[Shape, ...], shape: Shape, threads: int
) -> onnxruntime.InferenceSession:
    return _open_session(LibraryCall(node, reads, shapes, shape, threads), {})


def _open_session(call: LibraryCall, fixed: Mapping[str, Array]) -> onnxruntime.InferenceSession:
    fed = tuple(name for name in dict.fromkeys(call.reads) if name not in fixed)
    shapes = {**dict(zip(call.reads, call.shapes, strict=True)), "y": call.shape}
    writer = FragmentWriter({**dict(zip(fed, _values(len(fed)), strict=True)), "y": "y"}, shapes, fixed)
    call.write(writer, "y")
    return onnx_session(writer.model(fed, ["y"]), call.threads, waiting="sleep")


ImplementationChooser: TypeAlias = Callable[[BoundEquation, Iterable[Implementation]], Implementation]
"""A function that takes one of the implementations of an equation."""


def first_implementation(bound: BoundEquation, implementations: Iterable[Implementation]) -> Implementation:
    """The implementation to take if nothing is measured; raises BackendError if its engine refuses."""
    return load_implementation(next(iter(implementations)))


def view_call(bound: BoundEquation) -> ViewCall | None:
    """*bound* as a view of an array; None if it is none."""
    equation = bound.equation
    if equation.via is None or equation.via.operator != VIEW or view_strides(equation.scope) is None:
        return None
    call = ViewCall(equation.scope, bound.inlined, bound.threads)
    return None if call.view(bound.arrays) is None else call


def implementations_of(bound: BoundEquation) -> Iterable[Implementation]:
    """The implementations of *bound*, each made on demand; first the one to take if nothing is measured.

    None is compiled here: an engine that refuses does so when the implementation is loaded, and the others remain.
    """
    equation = bound.equation
    if equation.via is None or equation.via.is_library_call:
        node = _library_call(bound)
        if node is not None:
            yield node
        product = match_matrix_product(equation.scope)
        # BLAS would keep the program from being one session.
        if product is not None and bound.out.size and (node is None or not custom_ops_available()):
            call = ProductCall(product)
            left, right = (bound.arrays[name] for name in call.reads)
            if bind_matrix_product(product, left, right, bound.out) is not None:
                yield call
    yield from _kernels(bound)


def _kernels(bound: BoundEquation) -> Iterable[Implementation]:
    """Our own kernels: by TVM, as a tiled contraction, and in C."""
    scope = bound.inlined
    kernel = KernelCall(scope, bound.threads)
    if outperforms_tiles(kernel_kind(scope, this_machine())):
        yield kernel  # a tile is chosen only if another implementation is asked for
        order: tuple[Implementation | None, ...] = (_tiled_call(bound),)
    else:
        tiled = _tiled_call(bound)
        order = (tiled, kernel) if tiled is not None and tiled.made.worthwhile else (kernel, tiled)
    yield from filter(None, order)
    if bound.equation.via is None or bound.equation.via.is_eoperator:
        yield NativeCall(NativeSource(scope, bound.threads))


def _tiled_call(bound: BoundEquation) -> TiledCall | None:
    """*bound* as a tiled contraction; None if it is none, or if an operand does not fit the kernel.

    A view need not be packed and aligned.
    """
    made = tiled_contraction(bound.equation.scope, bound.constants, bound.threads)
    if made is None or not all(name in bound.arrays and fits_kernel(bound.arrays[name]) for name in made.reads):
        return None
    return TiledCall(made, bound.constants)


def _library_call(bound: BoundEquation) -> LibraryCall | None:
    shape = bound.equation.scope.shape
    node = onnx_node(bound.equation.via, bound.operators) if prod(shape) else None
    reads = tuple(a.source.name for a in accesses(bound.equation.scope.body) if isinstance(a.source, Tensor))
    if node is None or len(reads) != len(node.shapes):
        return None
    fixed = {name: bound.constants[name] for name in reads if name in bound.constants}
    if len(fixed) == len(set(reads)):
        fixed = {}  # it is run once
    shapes = tuple(bound.arrays[name].shape for name in reads)
    return LibraryCall(node, reads, shapes, shape, bound.threads, fixed)
