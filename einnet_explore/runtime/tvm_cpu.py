"""Kernels on the CPU through TVM and LLVM: from a scope to a source to a compiled kernel.

A contraction with an epilogue is a tiled kernel.  Any other scope is an eOperator: blocks of rows, a chain in blocks,
or, where no C compiler is installed, loop nests as they are written.

The ``kind`` attribute of an eOperator names the rule that made it.  The kind of a kernel is decided once, from the
scope itself, because views are substituted into the scope after the rule was applied, and an equation may be run before
any rule was applied to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from math import prod
from pathlib import Path
from typing import TypeAlias
from weakref import WeakValueDictionary

import tvm_ffi

from einnet_explore.analysis.fused_chain import Chain
from einnet_explore.analysis.online_softmax import OnlineSoftmax, row_work
from einnet_explore.analysis.row_nest import RowNest
from einnet_explore.codegen import versions
from einnet_explore.codegen.fused_tiling.block_sizes import choose_parts, tileable_chain
from einnet_explore.codegen.fused_tiling.kernel import chain_function
from einnet_explore.codegen.preparation import MIN_PARALLEL_ELEMENTS, collapse_dimensions, moved_elements, prepare
from einnet_explore.codegen.register_tiles import (
    Machine,
    this_machine,
)
from einnet_explore.codegen.rows.kernel import nest_function
from einnet_explore.codegen.rows.online import is_one_pass_faster, online_function
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.contraction import (
    ContractionPlan,
    contraction_function,
    gather_positions,
)
from einnet_explore.codegen.tvm.emission import stages_function
from einnet_explore.codegen.versions import scope_identity
from einnet_explore.ir import Scope, tensors
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import Array, aligned, aligned_empty, bind_function, check_argument
from einnet_explore.runtime.onnx_weights import LARGE_PAGE_BYTES, LargePages, owner_of
from einnet_explore.support.errors import BackendError

MIN_PEAK_SHARE = 3 / 16
"""Share of the peak rate from which on a contraction is bound by arithmetic rather than by memory."""


@contextmanager
def _refusals_of(what: str) -> Generator[None]:
    """Raise BackendError, with TVM's own words, where TVM refuses to compile *what*."""
    try:
        yield
    except Exception as error:
        raise BackendError(f"TVM refuses {what}: {compiled.last_line(error)}") from error


_packed: WeakValueDictionary[tuple[str, int], Array] = WeakValueDictionary()
"""Packed constants, by kernel and address of the constant."""

_sources: WeakValueDictionary[tuple[str, int], Array] = WeakValueDictionary()
"""The arrays that the constants are views of: a freed one might pass its address on to another."""


@dataclass(frozen=True)
class TiledContraction:
    """A contraction as a tiled kernel: its *scope* and the plan of its tiles."""

    scope: Scope
    plan: ContractionPlan
    compiler = "LLVM"

    @property
    def cycles(self) -> float:
        """The estimate that chose the tile."""
        return self.plan.tile.cycles

    @property
    def worthwhile(self) -> bool:
        """Return whether arithmetic is expected to bound it: other kernels are slower then."""
        return self.plan.form.flops >= MIN_PEAK_SHARE * this_machine().flops_per_cycle * self.cycles

    @property
    def text(self) -> str:
        """TVMScript."""
        return str(contraction_function(self.plan).script())

    @cached_property
    def key(self) -> str:
        """The key of the compiled kernel in the cache directory."""
        packed = (self.plan.other is None, self.plan.has_packed_vectors)
        tile = self.plan.tile
        cut = (tile.vector, tile.layout.copied, tile.lanes, tile.vectors, tile.rows, tile.slots, tile.slots_outside)
        code = (len(tile.groups), len(tile.unrolled), *packed, self.plan.threads, versions.TILED_KERNEL_VERSION)
        parts = (scope_identity(self.scope), *cut, *code, *compiled.compilation_target())
        return "c" + hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:39]

    @cached_property
    def function(self) -> compiled.CompiledFunction:
        """The compiled function, from the cache directory where it is there; raises BackendError where TVM refuses."""
        compiled.use_threads(self.plan.threads)
        known = compiled.load_stored(self.key)
        if known is not None:
            return known
        with _refusals_of(f"the tiled kernel of {self.scope!r}"):
            return compiled.build_tvm(contraction_function(self.plan), self.key, self.plan.threads)

    def write_object(self, path: Path, name: str, cpu: str) -> None:
        """Compile to an object file; raises BackendError where TVM refuses."""
        with _refusals_of(f"the tiled kernel of {self.scope!r}"):
            compiled.write_tvm_object(contraction_function(self.plan), path, name, cpu, self.plan.threads)

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self.plan.threads

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The tensors that the function takes, in order; ``packed`` is one of the first two, if one is constant."""
        plan = self.plan
        vector, other = (plan.form.operands[n] for n in (plan.tile.vector, 1 - plan.tile.vector))
        return (vector.name, other.name, *(t.name for t in plan.sides))

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arguments as the function sees them."""
        plan = self.plan
        vector, other = (plan.form.operands[n].shape for n in (plan.tile.vector, 1 - plan.tile.vector))
        first = (plan.packed if plan.has_packed_vectors else prod(vector),)
        second = (plan.packed if plan.other is None else prod(other),)
        return (first, second, *((prod(t.shape),) for t in plan.sides), (prod(self.scope.shape),))

    @property
    def packed(self) -> str | None:
        """The tensor that the function takes packed, if any."""
        operand = self.plan.packed_operand
        return None if operand is None else self.plan.form.operands[operand].name

    def pack(self, array: Array) -> Array:
        """Return *array*, the tensor ``packed``, in the function's layout; plans share it while one of them exists."""
        operand = self.plan.packed_operand
        assert operand is not None
        key, owner = (self.key, array.ctypes.data), owner_of(array)
        known = _packed.get(key)
        if known is not None and _sources.get(key) is owner:
            return known
        is_large = self.plan.packed * array.itemsize >= LARGE_PAGE_BYTES  # where sessions read them
        found = (LargePages().empty if is_large else aligned_empty)((self.plan.packed,), array.dtype)
        elements, done = array.reshape(-1), 0
        for at in gather_positions(self.plan.form, self.plan.tile, operand, self.plan.steps, self.plan.regions):
            block = found[done : done + at.size]
            elements.take(at, mode="wrap", out=block)
            block[at < 0] = 0
            done += at.size
        found[done:] = 0
        _sources[key], _packed[key] = owner, found
        return found

    def bind(self, arrays: Mapping[str, Array], out: Array, packed: Array | None = None) -> Callable[[], object]:
        """A call that reads *arrays* (by tensor name) where they are now and writes *out*.

        A constant is packed here, unless it is given *packed*.  Raises BackendError where an array has another shape or
        dtype, or is not contiguous and aligned.
        """
        shapes = {t.name: t.shape for t in tensors(self.scope)}
        made = {} if packed is None or self.packed is None else {self.packed: packed}
        for name in self.reads:
            if name not in made:
                check_argument(name, arrays[name], shapes[name])
        check_argument("the result", out, self.scope.shape)
        if out.size == 0:
            return lambda: None
        if self.packed is not None and not made:
            made[self.packed] = self.pack(arrays[self.packed])
        held = (made[name] if name in made else arrays[name] for name in self.reads)
        given = (*held, out)
        return partial(self.function, *(tvm_ffi.from_dlpack(array.reshape(-1)) for array in given))


KernelKind: TypeAlias = OnlineSoftmax | RowNest | Chain | None
"""What a kernel computes in one pass, in blocks of rows or in blocks of a chain; None: loop nests."""


@lru_cache(256)
def kernel_kind(scope: Scope, machine: Machine) -> KernelKind:
    """Return the kind of the float32 kernel of *scope* on *machine*."""
    match row_work(scope):
        case OnlineSoftmax(nest=nest) as online:
            return online if is_one_pass_faster(online, machine) else nest
        case RowNest() as nest:
            return nest
    return tileable_chain(scope, machine)


@dataclass(frozen=True)
class TvmSource:
    """An eOperator ready to compile: *scope* in float32 for *threads* threads."""

    scope: Scope
    threads: int = 1
    compiler = "LLVM"

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that the kernel takes, in order."""
        return tuple(dict.fromkeys(t.name for t in tensors(self.scope)))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The element types of inputs and result."""
        return ("float32",) * (len(self.inputs) + 1)

    @property
    def kind(self) -> KernelKind:
        """The kind of the kernel."""
        return kernel_kind(self.scope, this_machine())

    @cached_property
    def prepared(self) -> Scope:
        """The scope that the kernel computes: *scope* with as many dimensions merged as possible."""
        ready = prepare(self.scope)
        return ready if isinstance(self.kind, OnlineSoftmax | RowNest) else collapse_dimensions(ready)

    @property
    def shared(self) -> bool:
        """Return whether several threads run the kernel."""
        if self.threads == 1:
            return False
        match self.kind:
            case Chain() as chain:
                return any(part.blocks > 1 for part in choose_parts(chain, self.threads, this_machine()))
            case OnlineSoftmax() | RowNest():
                return True
        return moved_elements(self.prepared) >= MIN_PARALLEL_ELEMENTS

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of inputs and result as the kernel sees them: the same elements in the same order."""
        if isinstance(self.kind, Chain):
            sizes = {t.name: (prod(t.shape),) for t in tensors(self.scope)}
            return (*(sizes[name] for name in self.inputs), (prod(self.scope.shape),))
        shapes = {t.name: t.shape for t in (*tensors(self.scope), *tensors(self.prepared))}
        return (*(shapes[name] for name in self.inputs), self._result_shape)

    @property
    def _result_shape(self) -> tuple[int, ...]:
        match self.kind:
            case OnlineSoftmax(nest=nest):
                return nest.scope.shape
        return self.prepared.shape

    @cached_property
    def function(self) -> TvmObject:
        """The PrimFunc."""
        inputs, machine = dict(zip(self.inputs, self.shapes, strict=False)), this_machine()
        match self.kind:
            case Chain() as chain:
                flat = {name: size for name, (size,) in inputs.items()}
                return chain_function(choose_parts(chain, self.threads, machine), flat, self.threads, machine)
            case OnlineSoftmax() as online:
                return online_function(online, inputs, self.threads, machine)
            case RowNest() as nest:
                return nest_function(nest, inputs, self.threads, machine)
        return stages_function(self.prepared, inputs, self.shared)

    def write_object(self, path: Path, name: str, cpu: str) -> None:
        """Compile to an object file; raises BackendError where TVM refuses."""
        with _refusals_of(repr(self.scope)):
            compiled.write_tvm_object(self.function, path, name, cpu, self.threads)

    @property
    def text(self) -> str:
        """TVMScript."""
        return str(self.function.script())

    @cached_property
    def key(self) -> str:
        """The key of the compiled kernel in the cache directory."""
        own = (self.threads, versions.SCHEDULE_VERSION, this_machine())
        parts = (scope_identity(self.scope), *own, *compiled.compilation_target())
        return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:40]


@dataclass(frozen=True)
class TvmKernel:
    """A compiled eOperator."""

    source: TvmSource
    function: compiled.CompiledFunction = field(repr=False)

    def __call__(self, *arrays: Array, out: Array | None = None) -> Array:
        """The result for *arrays*, in the order of ``source.inputs``; arrays that are not aligned are copied."""
        result = aligned_empty(self.source.scope.shape)
        self.bind(tuple(aligned(a) for a in arrays), result)()
        if out is None:
            return result
        out[...] = result
        return out

    def bind(self, inputs: Sequence[Array], out: Array) -> Callable[[], object]:
        """A call without arguments that reads *inputs* and writes *out*, where they are now.

        Raises BackendError where an array has the wrong shape or dtype, or is not contiguous and aligned.
        """
        return bind_function(self.source, self.function, inputs, out)


def load_tvm_kernel(source: TvmSource) -> TvmKernel:
    """Compile *source*, or take it from the cache directory; raises BackendError where TVM refuses."""
    compiled.use_threads(source.threads)
    known = compiled.load_stored(source.key)
    if known is not None:
        return TvmKernel(source, known)
    with _refusals_of(repr(source.scope)):
        return TvmKernel(source, compiled.build_tvm(source.function, source.key, source.threads))


def compile_scope(scope: Scope, threads: int = 1) -> TvmKernel:
    """The kernel of *scope*."""
    return load_tvm_kernel(TvmSource(scope, threads))
