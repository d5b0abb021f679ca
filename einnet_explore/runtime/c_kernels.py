"""Kernels in C, compiled by the host's compiler: kernels that are called with pointers, and eOperators.

An eOperator has the calling convention of TVM's compiled functions.  Its text is that of ``codegen.fusion`` or of
``codegen.copies`` with sizes and strides as numbers, and an entry function that takes TVM's tensors.  Such a kernel is
cached, sandboxed, called and put into a session like a TVM kernel, and its threads come from the same pool or from the
session.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np

from einnet_explore.analysis.equations import is_typed
from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.analysis.indices import fresh_name, substitute
from einnet_explore.codegen import versions
from einnet_explore.codegen.copies import regions_kernel, transpose_kernel
from einnet_explore.codegen.fusion.cpu import (
    ROW_POINTS,
    cpu_blocks,
    cpu_kernel,
    row_length,
    sum_along_memory,
    sweep_rows,
)
from einnet_explore.codegen.fusion.frame import lay_out, slot_name, slot_sizes
from einnet_explore.codegen.fusion.plan import fuse_program
from einnet_explore.codegen.language.dialects import C
from einnet_explore.codegen.language.lowering import FIRST_BLOCK
from einnet_explore.codegen.language.printer import emit, entry_name
from einnet_explore.codegen.language.statements import Declare, Kernel
from einnet_explore.codegen.language.values import F32, I64, Literal, Var
from einnet_explore.codegen.language.values import Array as KernelArray
from einnet_explore.codegen.preparation import (
    MIN_PARALLEL_ELEMENTS,
    collapse_dimensions,
    moved_elements,
    prepare,
    split_traversals,
)
from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.codegen.versions import scope_identity
from einnet_explore.ir import Equation, Program, Scope, Table, accesses, as_index, element_type, scopes, tensors
from einnet_explore.runtime import compiled
from einnet_explore.support.errors import BackendError, NoKernel, Refused

Grid = tuple[int, int, int]

_MAX_GRID = ((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1)


Argument: TypeAlias = np.ndarray | np.generic | float
"""An argument of a kernel: an array, which may be written in place, or a number."""


def checked_arguments(
    kernel: Kernel, given: Sequence[Argument], grid: Grid | None
) -> tuple[list[np.ndarray | np.generic], Grid]:
    """Return *given* as arrays and typed scalars in the order of the kernel's parameters, and the grid.

    Raises BackendError, with what was found and what is expected, for a wrong number of arguments, an array of another
    dtype, not contiguous, too small or read-only, a scalar beyond its type, and an impossible grid.
    """
    if len(given) != len(kernel.params):
        raise _error(kernel, f"{len(given)} arguments, expected {len(kernel.params)}")
    blocks = kernel.grid if grid is None else grid
    if len(blocks) != 3 or not all(1 <= n <= m for n, m in zip(blocks, _MAX_GRID, strict=True)):
        raise _error(kernel, f"a grid of {blocks}, expected three numbers from 1, at most {_MAX_GRID}")
    pairs = zip(kernel.params, given, strict=True)
    return [
        _array_argument(kernel, p, g) if isinstance(p, KernelArray) else _scalar_argument(kernel, p, g)
        for p, g in pairs
    ], blocks


def _array_argument(kernel: Kernel, p: KernelArray, given: Argument) -> np.ndarray:
    if not isinstance(given, np.ndarray):
        raise _error(kernel, f"{p.name} is a {type(given).__name__}, expected an array of {p.kind!r}")
    if given.dtype != p.kind.dtype:
        raise _error(kernel, f"{p.name} holds {given.dtype}, expected {p.kind!r}")
    if not given.flags.c_contiguous:
        raise _error(kernel, f"{p.name} has strides {given.strides}, expected a contiguous array")
    if given.size < p.size:
        raise _error(kernel, f"{p.name} has {given.size} elements, expected {p.size}")
    if not p.const and not given.flags.writeable:
        raise _error(kernel, f"{p.name} is written to, and the array is read-only")
    return given


def _scalar_argument(kernel: Kernel, p: Var, given: Argument) -> np.generic:
    try:
        if isinstance(given, np.ndarray):
            raise TypeError
        number: float = given.item() if isinstance(given, np.generic) else given
        typed: np.generic = p.kind.dtype.type(Literal(number, p.kind).value)
        return typed
    except (TypeError, ValueError, OverflowError):
        raise _error(kernel, f"{p.name} is {given!r}, expected a number of type {p.kind!r}") from None


def _error(kernel: Kernel, what: str) -> BackendError:
    return BackendError(f"kernel {kernel.name}: {what}")


C_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")

VECTOR_MATH_DECLARATIONS = """\
#include <math.h>
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GLIBC__ > 2 || __GLIBC_MINOR__ >= 35
__attribute__((simd("notinbranch"))) extern float expf(float), logf(float), tanhf(float), erff(float);
__attribute__((simd("notinbranch"))) extern double exp(double), log(double), tanh(double), erf(double);
#endif
#endif
"""
"""glibc's functions of whole vectors (libmvec), which the compiler uses only if they are declared."""


@dataclass(frozen=True)
class CKernel:
    """A compiled kernel; a call runs its blocks one after the other, or shared among *threads*."""

    kernel: Kernel
    text: str
    function: compiled.CompiledFunction

    def __call__(self, *given: Argument, grid: Grid | None = None, threads: int = 1) -> None:
        """Run on *given*, in the order of the kernel's parameters: arrays, which are written in place, and numbers.

        Raises BackendError for arguments that do not fit, see ``checked_arguments``.
        """
        self.bind(*given, grid=grid, threads=threads)()

    def bind(self, *given: Argument, grid: Grid | None = None, threads: int = 1) -> Callable[[], None]:
        """A function without arguments that runs on *given*, checked once; it keeps the arrays alive."""
        arguments, blocks = checked_arguments(self.kernel, given, grid)
        passed = [_c_argument(argument) for argument in arguments]
        counts = [ctypes.c_int(n) for n in (*blocks, threads)]

        def call(_arrays: object = arguments) -> None:
            self.function(*passed, *counts)

        return call


def _c_argument(argument: np.ndarray | np.generic) -> object:
    """*argument* as C takes it: an array by its address, a number in its own type."""
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    return np.ctypeslib.as_ctypes_type(argument.dtype.name)(argument.item())


@lru_cache(maxsize=512)
def load_c_kernel(kernel: Kernel, flags: tuple[str, ...] = C_FLAGS) -> CKernel:
    """*kernel* compiled for this machine; equal kernels are compiled once, and cached across processes.

    Raises BackendError where there is no C compiler, or where it does not compile the text, with its words.
    """
    text = VECTOR_MATH_DECLARATIONS + emit(kernel, "c")
    # A compiler without OpenMP makes a kernel that runs on one thread.
    without_openmp = tuple(f for f in flags if f != "-fopenmp")
    for chosen in dict.fromkeys((flags, without_openmp)):
        try:
            return CKernel(kernel, text, compiled.load_c_function(text, entry_name(kernel), *chosen))
        except BackendError as error:
            said = error
    raise BackendError(f"kernel {kernel.name} is not compiled: {said}")


NATIVE = "-march=native"
EOPERATOR_FLAGS = ("-O3", NATIVE, "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")

MAX_TEXT_BYTES = 1 << 18
"""Bytes of the C source of an eOperator: unrolled loops make longer ones, which GCC compiles at 15 kB a second."""

MAX_BLOCKS = 1 << 31
"""Blocks are counted in 32 bits."""


@dataclass(frozen=True)
class NativeSource:
    """The eOperator *scope* as C for *threads* threads; nothing is compiled before ``function``."""

    scope: Scope
    threads: int = 1
    compiler = "C"

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that the function takes, in order."""
        return tuple(dict.fromkeys(t.name for t in tensors(self.scope)))

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of inputs and result as the function sees them."""
        shapes = {t.name: t.shape for t in tensors(self.scope)}
        return (*((prod(shapes[name]),) for name in self.inputs), (prod(self.scope.shape),))

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The element types of inputs and result."""
        types = {t.name: t.dtype for t in tensors(self.scope)}
        return (*(types[name] for name in self.inputs), element_type(self.scope))

    @cached_property
    def text(self) -> str:
        """The C source; raises NoKernel if the scope has no kernel in C."""
        try:
            made = self._made
            name = entry_name(made.kernel)
            # A copy of the function, inlined or for its arguments, loses what GCC knows of its vectors.
            text = emit(made.kernel, "c").replace(f"void {name}(", f"APART void {name}(", 1)
            at = {**{name: n for n, name in enumerate(self.inputs)}, made.result: len(self.inputs)}
            return "\n".join((VECTOR_MATH_DECLARATIONS, _NOINLINE, text, *_entry_text(made, at, self.threads)))
        except Refused as error:
            raise NoKernel(f"no kernel in C: {error}") from error

    @cached_property
    def _made(self) -> _SourceKernel:
        if is_typed(self.scope):
            return _fused_kernel(self.scope, self.threads)
        return _moving_kernel(self.scope) or _fused_kernel(self.scope, self.threads)

    @property
    def shared(self) -> bool:
        """Return whether several threads run the kernel; raises NoKernel as ``text`` does."""
        return self.threads > 1 and LAUNCH_DECLARATIONS in self.text

    @cached_property
    def key(self) -> str:
        """The key of the compiled kernel; without the text, which takes 10 ms and more to emit."""
        own = (self.threads, MIN_PARALLEL_ELEMENTS, versions.C_KERNEL_VERSION, this_machine(), *EOPERATOR_FLAGS)
        parts = (scope_identity(self.scope), *own, *compiled.compilation_target(), compiled.c_compiler())
        return "n" + hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:39]

    @cached_property
    def function(self) -> compiled.CompiledFunction:
        """The compiled function, from the cache directory where it is there.

        Raises NoKernel if the text exceeds ``MAX_TEXT_BYTES``, and BackendError where there is no C compiler, or it
        refuses the text, and where the first run fails.
        """
        compiled.use_threads(self.threads)
        known = compiled.load_stored(self.key)
        if known is not None:
            return known
        if (size := len(self.text)) > MAX_TEXT_BYTES:
            raise NoKernel(f"no kernel in C: found a text of {size} bytes, expected at most {MAX_TEXT_BYTES}")
        types = ("uint16" if kind == "bfloat16" else kind for kind in self.dtypes)  # as DLPack takes it
        specs = list(zip(self.shapes, types, strict=True))
        return compiled.build_c(self.text, self.key, specs, EOPERATOR_FLAGS)

    def write_object(self, path: Path, name: str, cpu: str) -> None:
        """Compile to an object file; raises BackendError as ``function`` does."""
        inner = entry_name(self._made.kernel)
        flags = [flag for flag in EOPERATOR_FLAGS if flag != NATIVE]
        compiled.write_c_object(self.text, path, name, [*flags, f"-march={cpu}", f"-D{inner}={name}_{inner}"])


@dataclass(frozen=True)
class _SourceKernel:
    """A *kernel* of *blocks* blocks that writes *result*; *slots* are bytes of temporaries, *moved* all elements."""

    kernel: Kernel
    result: str
    blocks: int
    slots: tuple[int, ...]
    moved: int


def _moving_kernel(scope: Scope) -> _SourceKernel | None:
    """The kernel of a *scope* that only moves elements; None if it computes, or if the fused kernel is as good.

    Transposed tiles serve a result along another dimension than the operand, kernels by regions avoid conditions.
    """
    ready = _simplify(scope)
    result = fresh_name("Y", {t.name for t in tensors(ready)})
    for generate in (partial(transpose_kernel, machine=this_machine()), regions_kernel):
        with suppress(Refused):
            kernel, number = generate(ready, result)
            return _SourceKernel(kernel, result, number, (), moved_elements(ready))
    return None


def _simplify(scope: Scope) -> Scope:
    """*scope* in as few traversals as possible, none of them of extent 1."""
    ready = collapse_dimensions(prepare(scope))
    ones = {x: as_index(x.lo) for x in ready.traversals if x.extent == 1}
    kept = tuple(x for x in ready.traversals if x not in ones)
    return replace(ready, traversals=kept, body=substitute(ready.body, ones), padding=()) if ones else ready


def _fused_kernel(scope: Scope, threads: int) -> _SourceKernel:
    """The fused kernel of *scope* over contiguous arrays, with sizes, strides and constants as numbers in its text."""
    if any(isinstance(a.source, Table) for _, inner in scopes(scope) for a in accesses(inner.body)):
        scope = prepare(scope)  # sums over tables, which are not in memory, are unrolled
    # Beside a reduction, values that are read at several places are kept or computed again as fusion sees fit.
    nested = any(inner.summations for path, inner in scopes(scope) if path)
    if is_typed(scope):
        ready = prepare(scope)
        ready = scope if any(inner.summations for path, inner in scopes(ready) if path) else ready
        ready = ready if scope.domain or any(map(any, scope.padding)) else split_traversals(ready, 1)
    else:
        ready = scope if nested else prepare(scope) if scope.summations else _simplify(scope)
    reads = {t.name: t for t in tensors(ready)}
    result = fresh_name("Y", set(reads))
    fused = fuse_program(Program(tuple(reads.values()), (Equation(result, ready),), (result,)))
    shapes = {t.name: t.shape for t in fused.program.inputs}
    held = {**{t.name: t.shape for t in fused.inputs}, result: ready.shape}
    strides = {name: row_major_strides(shape) for name, shape in held.items()}
    flat = sweep_rows(sum_along_memory(lay_out(fused, shapes, strides), this_machine().lanes), threads)
    row_points = ROW_POINTS if fused.slots else row_length(threads)
    kernel = cpu_kernel(flat, F32, row_points)
    numbers = tuple(p for p in kernel.params if isinstance(p, Var) and p.name != FIRST_BLOCK)
    values = {p: flat.numbers[p.name] for p in numbers}
    known = tuple(Declare(p, Literal(int(n) if p.kind == I64 else n, p.kind)) for p, n in values.items())
    params = tuple(p for p in kernel.params if p not in numbers)
    points = row_points if flat.together is not None else 1
    slots = tuple(size * points * fused.slot_type(n, F32).size for n, size in enumerate(slot_sizes(flat)))
    return _SourceKernel(
        replace(kernel, params=params, body=(*known, *kernel.body)),
        result,
        cpu_blocks(flat, row_points),
        slots,
        sum(moved_elements(o.scope) for o in fused.operations),
    )


_NOINLINE = """\
#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noinline, noclone))
/* A minimum of a maximum would become branches, which vectors compute one after the other.  Splitting loops at the
   borders of images takes half of the time of compilation, and gains nothing. */
#pragma GCC optimize("no-thread-jumps", "no-tree-pre", "no-split-loops")
#endif
"""

INTERFACE_DECLARATIONS = """
#include <stdint.h>
/* What is used of DLTensor, TVMFFIAny and TVMParallelGroupEnv; a tensor that is an object stands behind its header. */
enum { PLAIN = 7, HEADER = 24, CPU = 1, FLOAT = 2, BITS = 32 };
typedef struct { void *data; } Tensor;
typedef struct { int32_t type; uint32_t zero; union { int64_t number; char *pointer; } value; } Any;
typedef struct { void *sync; int32_t tasks; } Group;
#define VISIBLE __attribute__((visibility("default")))
"""

LAUNCH_DECLARATIONS = "VISIBLE int (*__TVMBackendParallelLaunch)(int (*)(int, Group *, void *), void *, int);"
SPACE_DECLARATIONS = """\
VISIBLE void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
VISIBLE int (*__TVMBackendFreeWorkspace)(int, int, void *);"""


def _entry_text(made: _SourceKernel, at: dict[str, int], threads: int) -> Iterable[str]:
    """The function that TVM or a session calls; it shares the blocks among *threads* if they are large enough."""
    total = made.blocks
    shares = max(1, min(threads if made.moved >= MIN_PARALLEL_ELEMENTS else 1, total))
    if total // shares >= MAX_BLOCKS:
        raise BackendError(f"{total} blocks for {shares} threads, expected less than {MAX_BLOCKS} for each")
    yield INTERFACE_DECLARATIONS
    run = f"some(at, 0, {total})" if total else "0"
    if shares > 1:
        yield LAUNCH_DECLARATIONS
        # Not so many tasks: a pool that is smaller would refuse them; it shares the blocks among the threads it has.
        run = "__TVMBackendParallelLaunch(task, at, 0)"
    yield from _blocks_text(made, at)
    if shares > 1:
        yield "static int task(int n, Group *group, void *at)\n{"
        yield f"    const long long first = {total}LL * n / group->tasks, stop = {total}LL * (n + 1) / group->tasks;"
        yield "    return some(at, first, (int)(stop - first));\n}"
    arguments = len(at)
    yield "VISIBLE int __tvm_ffi_main(void *self, const Any *given, int32_t count, Any *result)\n{"
    yield f"    void *at[{arguments}];\n    (void)self, (void)result;"
    yield f"    if (count != {arguments}) return -1;"
    yield f"    for (int n = 0; n < {arguments}; n++) {{"
    yield "        const int ahead = given[n].type == PLAIN ? 0 : HEADER;"
    yield "        at[n] = ((Tensor *)(given[n].value.pointer + ahead))->data;\n    }"
    yield f"    return {run};\n}}"


def _blocks_text(made: _SourceKernel, at: dict[str, int]) -> Iterable[str]:
    """The function ``some``, which runs a range of blocks with temporaries of its own."""
    sizes = [-(-n // 64) * 16 for n in made.slots]
    starts = {slot_name(n): sum(sizes[:n]) for n in range(len(sizes))}
    given = []
    for p in made.kernel.params:
        match p:
            case KernelArray(name, kind):
                place = f"space + {starts[name]}" if name in starts else f"at[{at[name]}]"
                if name not in starts:
                    given.append(f"({C.spell(kind)} *){place}")
                else:
                    given.append(place if kind == F32 else f"({C.spell(kind)} *)({place})")
            case Var():
                given.append("first")
    if sizes:
        yield SPACE_DECLARATIONS
    yield "static int some(void **at, long long first, int number)\n{"
    if sizes:
        yield f"    float *space = __TVMBackendAllocWorkspace(CPU, 0, {4 * sum(sizes)}, FLOAT, BITS);"
        yield "    if (!space) return -1;"
    yield f"    {entry_name(made.kernel)}({', '.join(given)}, number, 1, 1, 1);"
    yield "    return __TVMBackendFreeWorkspace(CPU, 0, space);\n}" if sizes else "    return 0;\n}"
