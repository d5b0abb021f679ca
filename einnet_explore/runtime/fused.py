"""Programs as one fused C kernel each, compiled and called on the host.

A call with known shapes and strides reuses its kernel; other sizes reuse the kernel if they meet its recorded
equalities, and are analysed anew if they do not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.codegen.fusion.cpu import cpu_blocks, cpu_kernel, row_length
from einnet_explore.codegen.fusion.frame import FusedLayout, lay_out, slot_name, slot_sizes
from einnet_explore.codegen.fusion.operations import TypedProgram, program_operations
from einnet_explore.codegen.fusion.plan import FusedKernel, check_served, fuse_program
from einnet_explore.codegen.language.lowering import FIRST_BLOCK
from einnet_explore.codegen.language.printer import emit, entry_name
from einnet_explore.codegen.language.statements import Kernel
from einnet_explore.codegen.language.values import I64, Var, type_of
from einnet_explore.codegen.language.values import Array as KernelArray
from einnet_explore.ir import Equation, Program, tensors
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.c_kernels import VECTOR_MATH_DECLARATIONS
from einnet_explore.runtime.compiled import CompiledFunction, load_c_function
from einnet_explore.runtime.measurement import Timing, time_calls
from einnet_explore.support.errors import BackendError, Refused

FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math")

_OVERLAP_WORK = 1000
"""Candidate elements that are tried for a common address."""

MOST_BLOCKS = 1 << 31
"""Blocks are counted in 32 bits."""

Code = tuple[Kernel, str, CompiledFunction]
"""A kernel, its text, and the compiled function."""


@dataclass(frozen=True)
class FusedLaunch:
    """One kernel for one signature of arguments, run by *threads*."""

    flat: FusedLayout
    kernel: Kernel
    text: str
    function: CompiledFunction
    dtype: np.dtype
    threads: int = 1

    def bind(self, arrays: Mapping[str, Array], outs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that reads *arrays* where they are now and writes *outs*.

        All must have the strides of the kernel's signature; temporaries are allocated here, once for each thread.
        """
        total = cpu_blocks(self.flat, row_length(self.threads))
        if total == 0:
            return lambda: None
        shares = max(1, min(self.threads, total))
        if total // shares >= MOST_BLOCKS:
            raise BackendError(f"{total} blocks for {shares} threads, expected less than {MOST_BLOCKS} for each")
        calls = []
        kept: list[object] = [arrays, outs]
        for n in range(shares):
            first, stop = total * n // shares, total * (n + 1) // shares
            slots = self._slots()
            kept.append(slots)
            arguments = self._arguments(arrays, outs, slots, first, stop - first)
            calls.append(_call(self.function, arguments, kept))
        return calls[0] if shares == 1 else _run_together(tuple(calls))

    def _slots(self) -> list[Array]:
        """Memory for each slot, for all points that run side by side."""
        return [np.empty(size, kind) for size, kind in self._slot_forms]

    @cached_property
    def _slot_forms(self) -> tuple[tuple[int, np.dtype], ...]:
        points = row_length(self.threads) if self.flat.lanes is not None else 1
        kinds = (self.flat.fused.slot_type(n, type_of(self.dtype)).dtype for n in range(self.flat.fused.slots))
        return tuple((size * points, kind) for size, kind in zip(slot_sizes(self.flat), kinds, strict=True))

    def _arguments(
        self, arrays: Mapping[str, Array], outs: Mapping[str, Array], slots: list[Array], first: int, number: int
    ) -> list[object]:
        held = {**self.flat.fused.tables, **arrays, **outs, **{slot_name(n): slot for n, slot in enumerate(slots)}}
        made = [ctypes.c_void_p(held[p].ctypes.data) if isinstance(p, str) else p for p in self._parameters]
        made[self._first] = ctypes.c_longlong(first)
        return [*made, *(ctypes.c_int(n) for n in (number, 1, 1, 1))]

    @cached_property
    def _parameters(self) -> tuple[object, ...]:
        """The parameters of the kernel: names of arrays, and values of the numbers that all calls have in common."""
        real = ctypes.c_float if self.dtype == np.float32 else ctypes.c_double
        made: list[object] = []
        for p in self.kernel.params:
            match p:
                case KernelArray(name):
                    made.append(name)
                case Var(name) if name == FIRST_BLOCK:
                    made.append(None)
                case Var(name, kind):
                    value = self.flat.numbers[name]
                    made.append(ctypes.c_longlong(int(value)) if kind == I64 else real(value))
        return tuple(made)

    @cached_property
    def _first(self) -> int:
        return self._parameters.index(None)


def _call(function: CompiledFunction, arguments: list[object], kept: list[object]) -> Callable[[], None]:
    def call(_held: object = kept) -> None:  # arrays live as long as the call
        function(*arguments)

    return call


def _run_together(calls: tuple[Callable[[], None], ...]) -> Callable[[], None]:
    def call() -> None:
        others = [_pool(len(calls) - 1).submit(c) for c in calls[1:]]
        calls[0]()
        wait(others)

    return call


@lru_cache(maxsize=16)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def compile_fused_kernel(flat: FusedLayout, dtype: npt.DTypeLike, threads: int = 1) -> Code:
    """The kernel of *flat* for *threads* of this CPU, its text, and the compiled function."""
    kernel = cpu_kernel(flat, type_of(dtype), row_length(threads))
    text = emit(kernel, "c")
    return kernel, text, _function(text, entry_name(kernel))


@lru_cache(256)
def _function(text: str, name: str) -> CompiledFunction:
    """The compiled function of *text*, cached in memory and in the cache directory."""
    try:
        return load_c_function(VECTOR_MATH_DECLARATIONS + text, name, *FLAGS)
    except BackendError as error:
        raise BackendError(f"the fused kernel is not compiled: {str(error).splitlines()[0]}") from None


Shapes = Mapping[str, tuple[int, ...]]


class FusedProgram:
    """A program as one kernel on this CPU, for arrays of any shape that meets the recorded equalities.

    *program* is a program, or a function that makes one from the inputs' shapes by name (where numbers in it follow the
    sizes).  A program serves other shapes too, where no recorded equality is broken: Refused says which one is.
    *dtype* is float32 or float64, the type of values that have none of their own.  *analyses* and *kernels* are the
    numbers of analyses and of kernels so far.
    """

    def __init__(
        self,
        program: Program | Callable[[Shapes], Program | TypedProgram],
        dtype: npt.DTypeLike = "float32",
        threads: int = 1,
    ) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise BackendError(f"dtype {self.dtype}: a fused kernel computes in float32 or float64")
        self.threads = threads
        self.analyses = 0
        self._make = program if callable(program) else None
        self._fused: list[FusedKernel] = []
        self._known: dict[object, tuple[FusedLaunch, tuple[str, ...]]] = {}
        self._programs: dict[object, FusedKernel] = {}
        self._code: dict[object, Code] = {}
        if isinstance(program, Program):
            self._analyse(program)

    @property
    def kernels(self) -> int:
        """The number of different kernels that were compiled or loaded."""
        return len({known.text for known, _ in self._known.values()})

    def _analyse(self, program: Program | TypedProgram) -> FusedKernel:
        self.analyses += 1
        self._fused.append(fuse_program(program))
        return self._fused[-1]

    def fused(self, shapes: Shapes) -> FusedKernel:
        """The analysis that serves inputs of *shapes*; raises Refused where none does."""
        if self._make is None:
            check_served(self._fused[0], shapes)
            return self._fused[0]
        key = tuple(sorted((k, tuple(v)) for k, v in shapes.items()))
        if key not in self._programs:
            self._programs[key] = self._analyse(self._make(shapes))
        found = self._programs[key]
        given = [t for t in found.program.inputs if t.name not in found.tables]
        if wrong := [t for t in given if tuple(shapes.get(t.name, ())) != t.shape]:
            raise Refused(f"{wrong[0].name} has shape {list(wrong[0].shape)}, given {shapes.get(wrong[0].name)}")
        return found

    def launch(self, arrays: Mapping[str, Array], outs: Mapping[str, Array] | None = None) -> FusedLaunch:
        """The kernel for arrays like these; *outs* as of ``bind``, contiguous if not given."""
        return self._launch(arrays, outs)[0]

    def bind(self, arrays: Mapping[str, Array], outs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that reads *arrays* (by input) where they are now and writes *outs* (by output), without checks.

        Raises BackendError for a missing array, another dtype, an array between elements, and for outputs that overlap
        one another or an input; Refused for shapes that do not belong together.
        """
        check_outputs(outs, arrays)
        return self._launch(arrays, outs)[0].bind(arrays, outs)

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in new arrays; raises as ``bind`` does."""
        found, names = self._launch(arrays, None)
        shapes = found.flat.fused.output_shapes(found.flat.shapes)
        outs = {name: self._empty(shapes[name], self._dtype(found.flat.fused, name)) for name in names}
        found.bind(arrays, outs)()
        return outs

    def _launch(
        self, arrays: Mapping[str, Array], outs: Mapping[str, Array] | None
    ) -> tuple[FusedLaunch, tuple[str, ...]]:
        given = (*arrays.items(), *(outs.items() if outs is not None else ()))
        key = tuple((name, a.shape, a.strides, a.dtype) for name, a in given)
        if key not in self._known:
            self._known[key] = self._specialise(arrays, outs)
        return self._known[key]

    def _specialise(
        self, arrays: Mapping[str, Array], outs: Mapping[str, Array] | None
    ) -> tuple[FusedLaunch, tuple[str, ...]]:
        fused = self.fused({name: a.shape for name, a in arrays.items()})
        arrays = {**fused.tables, **arrays}
        shapes = {t.name: arrays[t.name].shape for t in fused.program.inputs}
        wanted = fused.output_shapes(shapes)
        strides = {t.name: _element_strides(t.name, arrays[t.name], self._dtype(fused, t.name)) for t in fused.inputs}
        for name, shape in wanted.items():
            if outs is None:
                strides[name] = row_major_strides(shape)
            elif name not in outs or outs[name].shape != shape:
                found = list(outs[name].shape) if name in outs else "none"
                raise BackendError(f"output {name} has shape {list(shape)}, given is {found}")
            else:
                strides[name] = _element_strides(name, outs[name], self._dtype(fused, name))
        return self._compiled(lay_out(fused, shapes, strides)), tuple(wanted)

    def _compiled(self, flat: FusedLayout) -> FusedLaunch:
        # An analysis is used again as long as it serves, and so is its text for calls that need no other.
        key = (id(flat.fused), flat.signature)
        if key not in self._code:
            self._code[key] = compile_fused_kernel(flat, self.dtype, self.threads)
        return FusedLaunch(flat, *self._code[key], self.dtype, self.threads)

    def _dtype(self, fused: FusedKernel, name: str) -> np.dtype:
        return fused.type_of(name, type_of(self.dtype)).stored.dtype

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        return np.empty(shape, dtype)


def _element_strides(name: str, array: Array, dtype: np.dtype) -> tuple[int, ...]:
    """The strides of *array* in elements."""
    if array.dtype != dtype:
        raise BackendError(f"{name} is {array.dtype}, expected {dtype}")
    # CuPy's flags have no alignment: its arrays are aligned, and always writeable.
    if not getattr(array.flags, "aligned", True) or any(s % dtype.itemsize for s in array.strides):
        raise BackendError(f"{name} lies between elements: its strides are {array.strides} bytes")
    return tuple(s // dtype.itemsize for s in array.strides)


def overlap(one: Array, other: Array) -> bool:
    """True if the arrays may have an element in common; an undecided case (many axes) counts as one."""
    if not np.may_share_memory(one, other):
        return False
    try:
        return bool(np.shares_memory(one, other, max_work=_OVERLAP_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def check_outputs(outs: Mapping[str, Array], arrays: Mapping[str, Array] | None = None) -> None:
    """Raise BackendError for *outs* that are read-only, or overlap one another or *arrays*."""
    for n, (name, out) in enumerate(outs.items()):
        for other, array in (*(arrays or {}).items(), *list(outs.items())[:n]):
            if overlap(out, array):
                raise BackendError(f"output {name} overlaps {other}")
        if not getattr(out.flags, "writeable", True):
            raise BackendError(f"output {name} cannot be written")


def split_operations(program: Program) -> tuple[Program, ...]:
    """A program for each operation of *program*, in order; together they are equal to it."""
    made = []
    for operation in program_operations(program):
        equation = Equation(operation.name, operation.scope)
        made.append(Program(tuple(dict.fromkeys(tensors(operation.scope))), (equation,), (operation.name,)))
    return tuple(made)


def bind_unfused(
    program: Program, arrays: Mapping[str, Array], outs: Mapping[str, Array], threads: int = 1
) -> Callable[[], None]:
    """A call that computes *program* by a kernel an operation; temporaries are allocated here."""
    held = dict(arrays)
    calls = []
    for one in split_operations(program):
        (name,) = one.outputs
        kernel = FusedProgram(one, next(iter(arrays.values())).dtype if arrays else "float32", threads)
        given = {t.name: held[t.name] for t in one.inputs}
        held[name] = outs[name] if name in outs else np.empty(one.equations[0].scope.shape, kernel.dtype)
        calls.append(kernel.bind(given, {name: held[name]}))

    def run() -> None:
        for call in calls:
            call()

    return run


def compare_with_unfused(
    program: Program, arrays: Mapping[str, Array], threads: int = 1, rounds: int = 7, seconds: float = 0.1
) -> Mapping[str, Timing]:
    """Times of the ``fused`` kernel and of the unfused ones (``apart``) for *arrays*, run in turn."""
    kernel = FusedProgram(program, next(iter(arrays.values())).dtype if arrays else "float32", threads)
    outs = kernel(arrays)
    calls = {"fused": kernel.bind(arrays, outs), "apart": bind_unfused(program, arrays, dict(outs), threads)}
    return time_calls(calls, rounds=rounds, min_seconds=seconds)
