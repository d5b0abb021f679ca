"""Implementations of an equation: view, matrix product, TVM kernel, C kernel, tiled kernel; equations with arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Protocol

from numpy.lib.stride_tricks import as_strided

from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.products import TensorContraction
from einnet_explore.ir import Equation, Scope, Tensor, accesses, map_tensors, tensors
from einnet_explore.operators.operator import Operator
from einnet_explore.runtime.arrays import Array, bind_function
from einnet_explore.runtime.matrix_products import bind_matrix_product
from einnet_explore.runtime.native import NativeSource
from einnet_explore.runtime.onnx_fragment import FragmentWriter, bind_session, onnx_session
from einnet_explore.runtime.profile_store import C_ENGINE, ONE_THREAD_SUFFIX, ProfileKey, profile_key
from einnet_explore.runtime.tvm_cpu import TiledContraction, TvmKernel, compile_scope

Call = Callable[[], object]


class Implementation(Protocol):
    """A way to run an equation, prepared once: it owns its sessions, kernels and packed weights."""

    @property
    def engine(self) -> str:
        """Its engine: ``onnxruntime``, ``matmul``, ``tiled``, ``tvm``, ``c`` or ``view``, perhaps by one thread."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        """A call that reads *arrays* in place and writes *out*; it may be bound several times."""

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        """Add it to a session's graph; return whether a session can run it."""


@dataclass(frozen=True, eq=False)
class SingleThreaded:
    """An implementation whose kernel runs on one of several threads: waking the others costs more than they save."""

    implementation: Implementation

    @property
    def engine(self) -> str:
        return self.implementation.engine + ONE_THREAD_SUFFIX

    @property
    def reads(self) -> tuple[str, ...]:
        return self.implementation.reads

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        return self.implementation.bind(arrays, out)

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        return self.implementation.write(writer, makes)


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A TVM kernel of *scope*; it is compiled, or loaded, when it is first bound."""

    scope: Scope
    threads: int = 1
    engine = "tvm"

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t.name for t in tensors(self.scope)))

    @cached_property
    def kernel(self) -> TvmKernel:
        """The compiled kernel; raises BackendError where TVM refuses."""
        return compile_scope(self.scope, "float32", self.threads)

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        return self.kernel.bind([arrays[name] for name in self.reads], out)

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        return writer.add_kernel(self.kernel.source, [(name, None) for name in self.reads], makes)


@dataclass(frozen=True, eq=False)
class NativeCall:
    """A fused kernel in C; it is compiled, or loaded, when it is first bound."""

    source: NativeSource
    engine = C_ENGINE

    @property
    def reads(self) -> tuple[str, ...]:
        return self.source.inputs

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        return bind_function(self.source, self.source.function, [arrays[name] for name in self.reads], out)

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        assert self.source.function is not None  # it is compiled, or loaded, when it is asked for
        return writer.add_kernel(self.source, [(name, None) for name in self.reads], makes)


@dataclass(frozen=True, eq=False)
class TiledCall:
    """A contraction by a tiled kernel; an operand in *constants* is packed once."""

    made: TiledContraction
    constants: Mapping[str, Array] = field(repr=False)
    engine = "tiled"

    @property
    def reads(self) -> tuple[str, ...]:
        return self.made.reads

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        return self.made.bind(arrays, out)

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        made = self.made
        assert made.function is not None  # it is compiled, or loaded, when it is asked for
        first, second, *sides = self.reads
        packed = made.pack(self.constants[second]) if made.plan.other is None else None
        return writer.add_kernel(made, [(first, None), (second, packed), *((name, None) for name in sides)], makes)


@dataclass(frozen=True, eq=False)
class ProductCall:
    """A matrix product by NumPy's BLAS, on strided views."""

    product: TensorContraction
    engine = "matmul"

    @property
    def reads(self) -> tuple[str, ...]:
        sides = (self.product.left.source, self.product.right.source)
        return tuple(side.name for side in sides if isinstance(side, Tensor))

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        left, right = (arrays[name] for name in self.reads)
        call = bind_matrix_product(self.product, left, right, out)
        assert call is not None, "bound to arrays with other strides than it was chosen for"
        return call

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class ViewCall:
    """A view of a tensor's elements: free in an execution context, and a reshape or a copying kernel in a session."""

    scope: Scope
    inlined: Scope
    threads: int
    engine = "view"

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(a.source.name for a in accesses(self.scope.body) if isinstance(a.source, Tensor))

    def view(self, arrays: Mapping[str, Array]) -> Array | None:
        """The array as a view of its source; None if the source is not contiguous."""
        found = view_strides(self.scope)
        source = arrays[self.reads[0]]
        if found is None or not source.flags.c_contiguous:
            return None
        offset, strides = found
        flat = source.reshape(-1)[offset:]
        return as_strided(flat, self.scope.shape, tuple(s * flat.itemsize for s in strides))

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        return self._copy.bind(arrays, out)

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        source, shape = self.reads[0], self.scope.shape
        found = view_strides(self.scope)
        if found == (0, row_major_strides(shape)) and prod(writer.shapes[source]) == prod(shape):
            writer.reshape(writer.value(source), shape, makes)
            return True
        return self._copy.write(writer, makes)

    @cached_property
    def _copy(self) -> KernelCall:
        return KernelCall(self.inlined, self.threads)


def load_implementation(implementation: Implementation) -> Implementation:
    """Return *implementation* with its kernel compiled or loaded; raises BackendError if its engine refuses."""
    match implementation:
        case KernelCall():
            _ = implementation.kernel
        case TiledCall(made):
            _ = made.function
        case NativeCall(source):
            _ = source.function
        case SingleThreaded(inner):
            load_implementation(inner)
    return implementation


def single_threaded_variant(implementation: Implementation) -> SingleThreaded | None:
    """*implementation* with a kernel for one thread; None if its kernel is one, or is no kernel of ours.

    Raises BackendError where the kernel of *implementation* cannot be compiled.
    """
    match implementation:
        case KernelCall(scope) if implementation.kernel.source.shared:
            return SingleThreaded(KernelCall(scope))
        case TiledCall(made, constants) if made.plan.shared:
            return SingleThreaded(TiledCall(replace(made, plan=replace(made.plan, threads=1)), constants))
        case NativeCall(source) if source.shared:
            return SingleThreaded(NativeCall(replace(source, threads=1)))
    return None


@dataclass(frozen=True, eq=False)
class BoundEquation:
    """An *equation*, *arrays* with the shapes and strides of those that it will read, and *out* like its result.

    *constants* are the arrays that never change, *views* the scopes of tensors that are views.  A library operator is
    one of *operators*.
    """

    equation: Equation
    arrays: Mapping[str, Array]
    out: Array
    threads: int = 1
    constants: Mapping[str, Array] = field(default_factory=dict)
    views: Mapping[str, Scope] = field(default_factory=dict)
    operators: Sequence[Operator] = ()

    @property
    def operands(self) -> Mapping[str, Array]:
        """The arrays that the equation reads."""
        return {t.name: self.arrays[t.name] for t in tensors(self.equation.scope)}

    @property
    def profile_key(self) -> ProfileKey:
        """The key of its measured times."""
        strided = {name: array.strides for name, array in self.operands.items() if not array.flags.c_contiguous}
        return profile_key(self.equation, self.threads, self.constants, strided)

    @property
    def inlined(self) -> Scope:
        """Its scope, with reads of views replaced by reads of their sources: a kernel follows strides by itself."""
        return map_tensors(self.equation.scope, lambda tensor: self.views.get(tensor.name, tensor))

    def bind(self, implementation: Implementation) -> Call:
        """A call of *implementation*, by the threads of a session where there are several, as in a compiled program."""
        call = self._bind_in_session(implementation) if self.threads > 1 else None
        return call or implementation.bind(self.arrays, self.out)

    def _bind_in_session(self, implementation: Implementation) -> Call | None:
        """A call of *implementation* as a session of its own; None where no session runs it, or an array is not packed.

        The session reads constants once, and all other arrays where they are now.
        """
        held = {name: self.arrays[name] for name in implementation.reads}
        if not all(array.flags.c_contiguous for array in held.values()):
            return None
        fed = {name: array for name, array in held.items() if name not in self.constants}
        fixed = {name: array for name, array in held.items() if name in self.constants}
        shapes = {**{name: array.shape for name, array in held.items()}, "": self.out.shape}
        writer = FragmentWriter({name: f"in {name}" for name in fed} | {"": "out"}, shapes, fixed)
        if not implementation.write(writer, ""):
            return None
        session = onnx_session(writer.model(tuple(fed), [""]), self.threads)
        return bind_session(session, {f"in {name}": array for name, array in fed.items()}, {"out": self.out})
