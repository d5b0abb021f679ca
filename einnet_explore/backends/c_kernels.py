"""Kernels of ``kernels.source`` in C, compiled by the machine's ``cc`` and kept in the cache directory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from einnet_explore.backends import compiled
from einnet_explore.backends.errors import BackendError
from einnet_explore.backends.launch import Grid, checked
from einnet_explore.kernels.source import Array, Kernel, Type, emit, entry

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")

VECTORS = """\
#include <math.h>
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GLIBC__ > 2 || __GLIBC_MINOR__ >= 35
__attribute__((simd("notinbranch"))) extern float expf(float), logf(float), tanhf(float), erff(float);
__attribute__((simd("notinbranch"))) extern double exp(double), log(double), tanh(double), erf(double);
#endif
#endif
"""
"""glibc has these for whole vectors (libmvec); the compiler has to be told."""


@dataclass(frozen=True)
class CKernel:
    """A compiled kernel; a call runs its blocks one after the other, or shared among *threads*."""

    kernel: Kernel
    text: str
    compiled: Any
    library: Any

    def __call__(self, *given: Any, grid: Grid | None = None, threads: int = 1) -> None:
        """Run on *given*, in the order of the kernel's parameters: arrays, which are written in place, and numbers.

        Raises BackendError for arguments that do not fit, see ``launch.checked``.
        """
        arguments, blocks = checked(self.kernel, given, grid)
        passed = [
            a.ctypes.data if isinstance(p, Array) else a.item()
            for p, a in zip(self.kernel.params, arguments, strict=True)
        ]
        self.compiled(*passed, *blocks, threads)

    def bind(self, *given: Any, grid: Grid | None = None, threads: int = 1) -> Any:
        """A function without arguments that runs on *given*, checked once; it keeps the arrays alive."""
        arguments, blocks = checked(self.kernel, given, grid)
        passed = tuple(
            ctypes.c_void_p(a.ctypes.data) if isinstance(p, Array) else _scalar(p.type)(a.item())
            for p, a in zip(self.kernel.params, arguments, strict=True)
        )
        everything = (*passed, *map(ctypes.c_int, (*blocks, threads)))
        run, kept = self.compiled, arguments

        def bound() -> None:
            run(*everything)

        bound.arrays = kept  # type: ignore[attr-defined]
        return bound


def load(kernel: Kernel, flags: tuple[str, ...] = FLAGS) -> CKernel:
    """*kernel* compiled for this machine; the same kernel is compiled once, and kept across processes.

    Raises BackendError where there is no C compiler, or where it does not compile the text, with its words.
    """
    return _loaded(kernel, flags)


@lru_cache(maxsize=512)
def _loaded(kernel: Kernel, flags: tuple[str, ...]) -> CKernel:
    text = VECTORS + emit(kernel, "c")
    # A compiler without OpenMP makes a kernel that runs on one thread.
    alone = tuple(f for f in flags if f != "-fopenmp")
    file = compiled.c_library(text, *flags) or compiled.c_library(text, *alone)
    if file is None:
        said = compiled.c_complaint(text, *alone) or "it needs cc, gcc or clang, and a cache directory to write to"
        raise BackendError(f"kernel {kernel.name} is not compiled: {said}")
    library = ctypes.CDLL(str(file))
    function = library[entry(kernel)]
    function.restype = None
    function.argtypes = [
        *(ctypes.c_void_p if isinstance(p, Array) else _scalar(p.type) for p in kernel.params),
        *(ctypes.c_int,) * 4,
    ]
    return CKernel(kernel, text, function, library)


def _scalar(kind: Type) -> Any:
    named = {"bool": "uint8", "float32": "float", "float64": "double"}.get(repr(kind), repr(kind))
    return getattr(ctypes, f"c_{named}")
