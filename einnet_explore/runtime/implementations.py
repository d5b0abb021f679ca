"""Implementations of an equation: view, library call in ONNX Runtime, matrix product, kernels by TVM and in C.

A library call is a node of a larger session, or a session of its own.  The tile of a contraction is chosen by a model,
in 2 to 40 ms, and stored.  ``implementations_of`` lists the implementations of an equation with its arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import onnxruntime
from numpy.lib.stride_tricks import as_strided

from einnet_explore.analysis.access_structure import windows
from einnet_explore.analysis.counts import flops
from einnet_explore.analysis.equations import is_typed, rounds_to_16_bits
from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.fused_chain import Chain
from einnet_explore.analysis.online_softmax import OnlineSoftmax
from einnet_explore.analysis.products import TensorContraction, match_matrix_product
from einnet_explore.analysis.row_nest import RowNest
from einnet_explore.codegen import versions
from einnet_explore.codegen.register_tiles import (
    Machine,
    RegisterTile,
    TileParameters,
    best_tile,
    register_tiles,
    this_machine,
)
from einnet_explore.codegen.sum_of_products import SumOfProducts, match_sum_of_products
from einnet_explore.codegen.tvm.contraction import plan_contraction
from einnet_explore.codegen.versions import scope_identity
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import (
    VIEW,
    Equation,
    Scope,
    Tensor,
    accesses,
    computing_type,
    map_tensors,
    tensors,
)
from einnet_explore.operators.operator import OnnxNode, Operator, onnx_node
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import Array, bind_arrays, bind_function, fits_kernel
from einnet_explore.runtime.bfloat16_products import bfloat16_kernel, match_bfloat16_product
from einnet_explore.runtime.c_kernels import NativeSource
from einnet_explore.runtime.integer_products import PackedProduct, integer_product
from einnet_explore.runtime.kernel_shapes import Shape
from einnet_explore.runtime.matrix_products import bind_matrix_product
from einnet_explore.runtime.onnx_fragment import FragmentWriter, bind_session, custom_ops_available, onnx_session
from einnet_explore.runtime.profile_store import (
    BFLOAT16_ENGINE,
    C_ENGINE,
    INTEGER_ENGINE,
    ONE_THREAD_SUFFIX,
    ProfileKey,
    profile_key,
)
from einnet_explore.runtime.tvm_cpu import (
    KernelKind,
    TiledContraction,
    TvmKernel,
    TvmSource,
    compile_scope,
    kernel_kind,
)
from einnet_explore.support.errors import BackendError
from einnet_explore.support.storage import cache_directory, write_aside

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
    return onnx_session(writer.model(fed, ["y"]), call.threads, writer.weights, waiting="sleep")


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A kernel of *scope* by TVM; it is compiled, or loaded, when it is first bound."""

    scope: Scope
    threads: int = 1
    engine = "tvm"

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t.name for t in tensors(self.scope)))

    @property
    def key(self) -> str:
        """The key of the compiled kernel in the cache directory."""
        return TvmSource(self.scope, self.threads).key

    @cached_property
    def kernel(self) -> TvmKernel:
        """The compiled kernel; raises BackendError where TVM refuses."""
        return compile_scope(self.scope, self.threads)

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        return self.kernel.bind([arrays[name] for name in self.reads], out)

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        return writer.add_kernel(self.kernel.source, [(name, None) for name in self.reads], makes)


@dataclass(frozen=True, eq=False)
class NativeCall:
    """A kernel in C; it is compiled, or loaded, when it is first bound."""

    source: NativeSource
    engine = C_ENGINE

    @property
    def key(self) -> str:
        """The key of the compiled kernel in the cache directory."""
        return self.source.key

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
    """A contraction by a tiled kernel; an operand in *constants* is packed once.

    Once a session has it packed, it is not read any more.
    """

    made: TiledContraction
    constants: Mapping[str, Array] = field(repr=False)
    packed: dict[str, Array] = field(default_factory=dict, init=False, repr=False)
    engine = "tiled"

    @property
    def key(self) -> str:
        """The key of the compiled kernel in the cache directory."""
        return self.made.key

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for name in self.made.reads if name not in self.packed)

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        return self.made.bind(arrays, out, self.packed.get(self.made.packed or ""))

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        made = self.made
        assert made.function is not None  # it is compiled, or loaded, when it is asked for
        if made.packed is not None and made.packed not in self.packed:
            self.packed[made.packed] = made.pack(self.constants[made.packed])
        return writer.add_kernel(made, [(name, self.packed.get(name)) for name in made.reads], makes)


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
class NarrowProductCall:
    """Sums of products of bytes or of bfloat16 in 32 bits; operands in *constants* are packed once."""

    made: PackedProduct
    constants: Mapping[str, Array] = field(repr=False)

    @property
    def engine(self) -> str:
        return INTEGER_ENGINE if self.made.is_integer else BFLOAT16_ENGINE

    @property
    def reads(self) -> tuple[str, ...]:
        return self.made.reads

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        given = [arrays[name] if made is None else made for name, made in self._arguments]
        return bind_arrays(self.made.function, (*given, out), self.made.shapes)

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        assert self.made.function is not None  # it is compiled, or loaded, when it is asked for
        return writer.add_kernel(self.made, self._arguments, makes)

    @cached_property
    def _arguments(self) -> Sequence[tuple[str, Array | None]]:
        return self.made.arguments(self.constants)


@dataclass(frozen=True, eq=False)
class InterpretedCall:
    """An equation of other types than ``float32`` by the interpreter, in the type that holds all its integers."""

    scope: Scope
    engine = "interpreter"

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(t.name for t in tensors(self.scope))

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        kind = computing_type(self.scope)
        given = {name: arrays[name] for name in self.reads}

        def call() -> None:
            out[...] = evaluate(self.scope, given, "exact" if kind == "int64" else kind)

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
        return load_implementation(self._copy).write(writer, makes)

    @cached_property
    def _copy(self) -> KernelCall | NativeCall:
        return loop_nests(self.inlined, self.threads)


def loop_nests(scope: Scope, threads: int = 1) -> KernelCall | NativeCall:
    """*scope* as loop nests in C; by TVM if there is no C compiler."""
    if is_typed(scope) or compiled.c_compiler():
        return NativeCall(NativeSource(scope, threads))
    return KernelCall(scope, threads)


def load_implementation(implementation: Implementation) -> Implementation:
    """Return *implementation* with its kernel compiled or loaded; raises BackendError if its engine refuses."""
    match implementation:
        case KernelCall():
            _ = implementation.kernel
        case TiledCall(made) | NarrowProductCall(made):
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
    def is_constant(self) -> bool:
        """Whether it only reads constants: its value is computed once, when a program is compiled."""
        return all(t.name in self.constants for t in tensors(self.equation.scope))

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
        types = {name: str(array.dtype) for name, array in (*held.items(), ("", self.out))}
        names = {name: f"in {name}" for name in fed} | {"": "out"}
        writer = FragmentWriter(names, shapes, fixed, types=types)
        if not implementation.write(writer, ""):
            return None
        session = onnx_session(writer.model(tuple(fed), [""]), self.threads, writer.weights)
        return bind_session(session, {f"in {name}": array for name, array in fed.items()}, {"out": self.out})


MAX_ELEMENTS = 1 << 28
"""Elements of an array: positions are 32-bit numbers, in a padded copy and while they are computed too."""


def tiled_contraction(scope: Scope, constant: Collection[str] = (), threads: int = 1) -> TiledContraction | None:
    """*scope* as a tiled kernel over float32; None if it is no contraction or no tile fits.

    Tensors named in *constant* never change.
    """
    chosen = _choose(scope, this_machine())
    if chosen is None:
        return None
    found, tile = chosen
    made = plan_contraction(found, tile, threads, constant)
    return None if made is None else TiledContraction(scope, made)


@lru_cache(1 << 12)  # every candidate and every plan asks again, and a choice takes up to 40 ms
def _choose(scope: Scope, machine: Machine) -> tuple[SumOfProducts, RegisterTile] | None:
    """*scope* as a contraction, and its tile."""
    found = None if is_typed(scope) else match_sum_of_products(scope)
    if found is None or any(x.extent == 0 for x in (*found.traversals, *found.summations)):
        return None
    if max(map(prod, (scope.shape, *(t.shape for t in tensors(scope))))) > MAX_ELEMENTS:
        return None
    tile = choose_tile(scope, found, machine)
    return None if tile is None else (found, tile)


def choose_tile(scope: Scope, form: SumOfProducts, machine: Machine) -> RegisterTile | None:
    """``best_tile`` of *form*, the form of *scope*, stored by expression, *machine* and version.

    A stored tile that is damaged or does not fit is chosen anew, and so is one that the disk cannot store.
    """
    key = "\n".join((scope_identity(scope), repr(astuple(machine)), str(versions.TILE_CHOICE_VERSION)))
    path = cache_directory() / "tiles" / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"
    kept = _read_parameters(path)
    if kept is not None and (tile := next(iter(register_tiles(form, machine, kept)), None)) is not None:
        return tile
    tile = best_tile(form, machine)
    if tile is not None:
        _write(path, json.dumps(astuple(tile.parameters)))
    return tile


def _write(path: Path, text: str) -> None:
    def write(new: Path) -> None:
        new.write_text(text)

    write_aside(path, write)


def _read_parameters(path: Path) -> TileParameters | None:
    try:
        numbers = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    whole = (
        isinstance(numbers, list)
        and len(numbers) == len(fields(TileParameters))
        and all(isinstance(n, int) for n in numbers)
    )
    return TileParameters(*numbers) if whole else None


ImplementationChooser: TypeAlias = Callable[[BoundEquation, Iterable[Implementation]], Implementation]
"""A function that takes one of the implementations of an equation."""


def first_implementation(bound: BoundEquation, implementations: Iterable[Implementation]) -> Implementation:
    """The first one that its engine does not refuse, if nothing is measured; raises BackendError if all are refused."""
    refusals = []
    for implementation in implementations:
        try:
            return load_implementation(implementation)
        except BackendError as error:
            refusals.append(str(error))
    raise BackendError("; ".join(refusals))


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
    if is_typed(equation.scope) or rounds_to_16_bits(equation.scope):
        yield from _typed_implementations(bound)
        return
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


def _typed_implementations(bound: BoundEquation) -> Iterable[Implementation]:
    scope = bound.equation.scope
    if bound.out.size:
        for product in _narrow_products(bound):
            if all(name in bound.arrays and bound.arrays[name].flags.c_contiguous for name in product.reads):
                yield NarrowProductCall(product, bound.constants)
        numbers = match_matrix_product(scope)
        types = {bound.out.dtype, *(a.dtype for a in bound.operands.values())}
        if numbers is not None and types == {np.dtype("float64")}:
            by_blas = ProductCall(numbers)
            left, right = (bound.arrays[name] for name in by_blas.reads)
            if bind_matrix_product(numbers, left, right, bound.out) is not None:
                yield by_blas
    yield NativeCall(NativeSource(bound.inlined, bound.threads))
    yield InterpretedCall(scope)


def _narrow_products(bound: BoundEquation) -> Iterable[PackedProduct]:
    """Yield the kernels for *bound* as a sum of products of bytes or of bfloat16, if it is one."""
    scope, how = bound.equation.scope, (bound.constants, bound.views, bound.threads)
    if (integers := integer_product(scope, *how)) is not None:
        yield integers
    found = match_bfloat16_product(scope)
    if found is not None and (rounded := bfloat16_kernel(found, *how)) is not None:
        yield rounded


def _kernels(bound: BoundEquation) -> Iterable[Implementation]:
    """Our own kernels: as a tiled contraction, blocks of rows or a chain in blocks by TVM, and loop nests."""
    scope, kind = bound.inlined, kernel_kind(bound.inlined, this_machine())
    nests = loop_nests(scope, bound.threads)
    if kind is not None and _is_mostly_padding(bound.equation.scope) and (only := _tiled_call(bound)) is not None:
        yield only
        return
    kernel = nests if kind is None else KernelCall(scope, bound.threads)
    if _outperforms_tiles(kind):
        yield kernel  # a tile is chosen only if another implementation is asked for
        order: tuple[Implementation | None, ...] = (_tiled_call(bound),)
    else:
        tiled = _tiled_call(bound)
        order = (tiled, kernel) if tiled is not None and tiled.made.worthwhile else (kernel, tiled)
    yield from filter(None, order)
    if kernel is nests and windows(scope) and not any(isinstance(each, TiledCall) for each in order):
        yield KernelCall(scope, bound.threads)  # vectors of windows, which LLVM shuffles
    library = bound.equation.via is not None and bound.equation.via.is_library_call
    if kernel is not nests and not library and not isinstance(kind, Chain):
        yield nests


MAX_VISITED_RATIO = 16
"""A sum of products that visits more than so many times the points of its windows is left to tiles, which do not."""


def _is_mostly_padding(scope: Scope) -> bool:
    """True if most points of the sums of *scope* read padding, such as those of a transposed convolution.

    Loops over all of them take thousands of times as long as tiles, so that even one run is too long.
    """
    form = match_sum_of_products(scope)
    return form is not None and flops(scope) > MAX_VISITED_RATIO * form.flops


def _outperforms_tiles(kind: KernelKind) -> bool:
    """Return whether a kernel of *kind* is tried before a tiled contraction of the same scope."""
    match kind:
        case OnlineSoftmax() | Chain():
            return True
        case RowNest() as nest:
            return nest.banded
        case None:
            return False


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
