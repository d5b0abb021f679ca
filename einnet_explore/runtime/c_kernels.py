"""Kernels of ``codegen.language`` compiled as C by the host's compiler; argument checks of all such kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from einnet_explore.codegen.language import Array, Kernel, Literal, Var
from einnet_explore.codegen.language.printer import emit, entry_name
from einnet_explore.runtime.compiled import CompiledFunction, load_c_function
from einnet_explore.support.errors import BackendError

Grid = tuple[int, int, int]

_MAX_BLOCKS = (1 << 31) - 1
_MAX_BLOCKS_ACROSS = (1 << 16) - 1


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
    most = (_MAX_BLOCKS, _MAX_BLOCKS_ACROSS, _MAX_BLOCKS_ACROSS)
    if len(blocks) != 3 or not all(1 <= n <= m for n, m in zip(blocks, most, strict=True)):
        raise _error(kernel, f"a grid of {blocks}, expected three numbers from 1, at most {most}")
    pairs = zip(kernel.params, given, strict=True)
    return [
        _array_argument(kernel, p, g) if isinstance(p, Array) else _scalar_argument(kernel, p, g) for p, g in pairs
    ], blocks


def _array_argument(kernel: Kernel, p: Array, given: Argument) -> np.ndarray:
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
    function: CompiledFunction

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
            return CKernel(kernel, text, load_c_function(text, entry_name(kernel), *chosen))
        except BackendError as error:
            said = error
    raise BackendError(f"kernel {kernel.name} is not compiled: {said}")
