"""Fused GPU kernels run on the host: blocks, barriers and shared memory by OpenCL, or as loops in C."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.codegen.fusion import check_served
from einnet_explore.codegen.fusion.gpu import FUSED_THREADS, gpu_blocks, gpu_kernel
from einnet_explore.codegen.fusion.memory_layout import FusedLayout, lay_out, slot_name, slot_sizes, uncollapsed_layout
from einnet_explore.codegen.fusion.plan import FusedKernel
from einnet_explore.codegen.language import Array as KernelArray
from einnet_explore.codegen.language import Kernel, Var, type_of
from einnet_explore.runtime import c_kernels, opencl
from einnet_explore.support.errors import BackendError

Array = npt.NDArray[Any]

ENGINES = ("opencl", "c blocks")


def gpu_launch(
    fused: FusedKernel,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: npt.DTypeLike = "float32",
    threads: int = FUSED_THREADS,
) -> tuple[FusedLayout, Kernel]:
    """*fused* for contiguous arrays of *shapes*, and its kernel; raises Refused where it does not serve them."""
    check_served(fused, shapes)
    plain = uncollapsed_layout(fused, shapes)
    whole = {t.name: tuple(shapes[t.name]) for t in fused.inputs} | {
        o.name: tuple(plain.sizes[x] for x in o.scope.traversals) for o in fused.operations if o.output
    }
    strides = {name: tuple(prod(shape[d + 1 :]) for d in range(len(shape))) for name, shape in whole.items()}
    flat = lay_out(fused, shapes, strides)
    return flat, gpu_kernel(flat, type_of(dtype), threads)


def run_blocks(
    fused: FusedKernel,
    arrays: Mapping[str, Array],
    engine: str = "opencl",
    threads: int = FUSED_THREADS,
) -> dict[str, Array]:
    """The outputs of *fused* for contiguous *arrays* of one dtype, by its kernel for GPUs, in blocks of *threads*.

    Raises BackendError for an unknown engine, and what compiling and running raise.
    """
    if engine not in ENGINES:
        raise BackendError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
    dtype = np.result_type(*(arrays[t.name] for t in fused.inputs)) if fused.inputs else np.dtype("float32")
    flat, kernel = gpu_launch(fused, {n: a.shape for n, a in arrays.items()}, dtype, threads)
    known = fused.known
    outs = {n: np.empty(tuple(flat.sizes[x] for x in known[n].scope.traversals), dtype) for n in fused.program.outputs}
    blocks = gpu_blocks(flat, threads)
    if blocks:
        loaded = opencl.load_opencl_kernel(kernel) if engine == "opencl" else c_kernels.load_c_kernel(kernel)
        loaded(*arguments(flat, kernel, arrays, outs, dtype), grid=(blocks, 1, 1))
    return outs


def arguments(
    flat: FusedLayout, kernel: Kernel, arrays: Mapping[str, Array], outs: Mapping[str, Array], dtype: np.dtype[Any]
) -> list[Any]:
    """What *kernel* is called with, in order; temporaries are allocated."""
    slots = {slot_name(n): size * max(1, flat.points) for n, size in enumerate(slot_sizes(flat))}
    made: list[Any] = []
    for p in kernel.params:
        match p:
            case KernelArray(name) if name in slots:
                made.append(np.empty(slots[name], dtype))
            case KernelArray(name):
                made.append(arrays[name] if name in arrays else outs[name])
            case Var(name, kind):
                number = flat.numbers[name]
                made.append(int(number) if kind.integer else number)
    return made
