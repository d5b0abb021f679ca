"""One fused kernel on this CPU: compiled C, kept in memory and in the cache directory, and calls of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.backends.c_kernels import VECTORS
from einnet_explore.backends.compiled import c_complaint, c_library
from einnet_explore.backends.errors import BackendError
from einnet_explore.kernels.fusion.cpu import blocks, cpu_kernel
from einnet_explore.kernels.fusion.flat import Flat, slot_name, slot_sizes
from einnet_explore.kernels.fusion.lanes import LANES
from einnet_explore.kernels.places import FIRST
from einnet_explore.kernels.source import I64, Kernel, Var, emit, entry, type_of
from einnet_explore.kernels.source import Array as KernelArray

Array = npt.NDArray[Any]

FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math")

MOST_BLOCKS = 1 << 31
"""Blocks are counted in 32 bits."""

Code = tuple[Kernel, str, Any]
"""A kernel, its text, and the compiled function."""


@dataclass(frozen=True)
class Launch:
    """One kernel for one signature of arguments: ``bind`` makes calls of it."""

    flat: Flat
    kernel: Kernel
    text: str
    function: Any
    dtype: np.dtype[Any]

    def bind(self, arrays: Mapping[str, Array], outs: Mapping[str, Array], threads: int = 1) -> Callable[[], None]:
        """A call that reads *arrays* where they are now and writes *outs*.

        All must have the strides that this was made for; temporaries are allocated here, once for each thread.
        """
        total = blocks(self.flat)
        if total == 0:
            return lambda: None
        shares = max(1, min(threads, total))
        if total // shares >= MOST_BLOCKS:
            raise BackendError(f"{total} blocks for {shares} threads, expected less than {MOST_BLOCKS} for each")
        calls = []
        kept: list[object] = [arrays, outs]
        for n in range(shares):
            first, stop = total * n // shares, total * (n + 1) // shares
            slots = [np.empty(size, self.dtype) for size in self._slots()]
            kept.append(slots)
            arguments = self._arguments(arrays, outs, slots, first, stop - first)
            calls.append(_call(self.function, arguments, kept))
        return calls[0] if shares == 1 else _together(tuple(calls))

    def _slots(self) -> list[int]:
        """Elements of each slot, for all points that go side by side."""
        return [n * (LANES if self.flat.lanes is not None else 1) for n in slot_sizes(self.flat)]

    def _arguments(
        self, arrays: Mapping[str, Array], outs: Mapping[str, Array], slots: list[Array], first: int, number: int
    ) -> list[Any]:
        real = ctypes.c_float if self.dtype == np.float32 else ctypes.c_double
        held = {**arrays, **outs, **{slot_name(n): slot for n, slot in enumerate(slots)}}
        made: list[Any] = []
        for p in self.kernel.params:
            match p:
                case KernelArray(name):
                    made.append(ctypes.c_void_p(held[name].ctypes.data))
                case Var(name) if name == FIRST:
                    made.append(ctypes.c_longlong(first))
                case Var(name, kind):
                    value = self.flat.numbers[name]
                    made.append(ctypes.c_longlong(int(value)) if kind == I64 else real(value))
        return [*made, *(ctypes.c_int(n) for n in (number, 1, 1, 1))]


def _call(function: Any, arguments: list[Any], kept: list[object]) -> Callable[[], None]:
    def call(_held: object = kept) -> None:  # arrays live as long as the call
        function(*arguments)

    return call


def _together(calls: tuple[Callable[[], None], ...]) -> Callable[[], None]:
    def call() -> None:
        others = [_pool(len(calls) - 1).submit(c) for c in calls[1:]]
        calls[0]()
        wait(others)

    return call


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def code(flat: Flat, dtype: npt.DTypeLike) -> Code:
    """The kernel of *flat* for this CPU, its text, and the compiled function."""
    kernel = cpu_kernel(flat, type_of(dtype))
    text = emit(kernel, "c")
    return kernel, text, _function(text, entry(kernel))


@lru_cache(256)
def _function(text: str, name: str) -> Any:
    """The compiled function of *text*, from memory, from the cache directory, or new."""
    source = VECTORS + text
    path = c_library(source, *FLAGS)
    if path is None:
        said = (c_complaint(source, *FLAGS).strip().splitlines() or ["there is no C compiler"])[0]
        raise BackendError(f"the fused kernel was not compiled: {said}")
    found = getattr(ctypes.CDLL(str(path)), name)
    found.restype = None
    return found
