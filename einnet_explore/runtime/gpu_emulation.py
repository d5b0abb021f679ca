"""GPU kernels, fused and element-wise, run on the host: blocks and shared memory by OpenCL, or as loops in C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from einnet_explore.codegen.elementwise import (
    A100,
    Functor,
    Gpu,
    elementwise_host_kernel,
    grid_stride_kernel,
    plan_launch,
)
from einnet_explore.codegen.fusion import check_served
from einnet_explore.codegen.fusion.frame import FusedLayout, lay_out, slot_name, slot_sizes, uncollapsed_layout
from einnet_explore.codegen.fusion.gpu import FUSED_THREADS, gpu_blocks, gpu_kernel
from einnet_explore.codegen.fusion.plan import FusedKernel
from einnet_explore.codegen.language import Array as KernelArray
from einnet_explore.codegen.language import Kernel, Var, type_of
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.c_kernels import Argument, CKernel, load_c_kernel
from einnet_explore.runtime.opencl import OpenCLKernel, load_opencl_kernel
from einnet_explore.support.errors import BackendError, Refused

ENGINES = ("opencl", "c blocks")
"""``c blocks`` runs the GPU's kernel with its blocks and threads as loops: for tests, and to look at."""


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
    fused: FusedKernel, arrays: Mapping[str, Array], engine: str = "opencl", threads: int = FUSED_THREADS
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
        _load(kernel, engine)(*arguments(flat, kernel, arrays, outs, dtype), grid=(blocks, 1, 1))
    return outs


def _load(kernel: Kernel, engine: str) -> OpenCLKernel | CKernel:
    return load_opencl_kernel(kernel) if engine == "opencl" else load_c_kernel(kernel)


def arguments(
    flat: FusedLayout, kernel: Kernel, arrays: Mapping[str, Array], outs: Mapping[str, Array], dtype: np.dtype
) -> list[Argument]:
    """The arguments of *kernel*, in order; temporaries are allocated."""
    slots = {slot_name(n): size * max(1, flat.points) for n, size in enumerate(slot_sizes(flat))}
    made: list[Argument] = []
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


ELEMENTWISE_ENGINES = ("opencl", "c", "c blocks")
"""``c`` is a kernel for the host's threads, planned by length, types and addresses like the GPU's."""

_PARTS = 1 << 15
"""Elements below which a CPU's threads are not woken for."""


@dataclass(frozen=True)
class Elementwise:
    """*functor* on arrays, by one of ``ELEMENTWISE_ENGINES``; *gpu* is whose number of blocks is launched."""

    functor: Functor
    engine: str = "opencl"
    gpu: Gpu = A100

    def __post_init__(self) -> None:
        if self.engine not in ELEMENTWISE_ENGINES:
            raise BackendError(f"engine {self.engine!r}: expected one of {', '.join(ELEMENTWISE_ENGINES)}")

    def __call__(self, result: Array, *operands: Array, threads: int = 1) -> None:
        """Fill *result* from *operands*: arrays of as many elements, then scalars as arrays of one.

        The result may be an operand.  Raises BackendError for arrays that do not fit, and what compiling raises.
        """
        f = self.functor
        walked = operands[: len(f.operands)]
        sizes = [a.size for a in (result, *walked)]
        if len(operands) != len(f.operands) + len(f.scalars) or len(set(sizes)) > 1:
            raise BackendError(
                f"functor {f.name}: {len(operands)} arrays of {sizes[1:]} elements into {sizes[0]}, expected "
                f"{len(f.operands)} of as many and {len(f.scalars)} of one"
            )
        if any(a.size != 1 for a in operands[len(walked) :]):
            raise BackendError(f"functor {f.name}: scalars of {[a.size for a in operands[len(walked) :]]} elements")
        if any(_crosses(result, a) for a in walked):
            raise BackendError(f"functor {f.name}: the result overlaps an operand and does not begin where it does")
        if any(np.may_share_memory(result, a) for a in operands[len(walked) :]):
            raise BackendError(f"functor {f.name}: the result overlaps a scalar, which every thread reads")
        try:
            self._run(result, operands, threads)
        except Refused as error:
            raise BackendError(str(error)) from None

    def _run(self, result: Array, operands: tuple[Array, ...], threads: int) -> None:
        f = self.functor
        if self.engine == "c":
            parts = max(1, min(threads, result.size // _PARTS))
            share = -(-result.size // parts)
            load_c_kernel(_host(f))(result, *operands, result.size, share, grid=(parts, 1, 1), threads=parts)
            return
        addresses = [a.ctypes.data for a in (result, *operands[: len(f.operands)])]
        launch = plan_launch(result.size, f.kinds, addresses, self.gpu)
        # What the text depends on, and no more: one kernel serves all lengths.
        made = _device(f, replace(launch, packs=0, tail=min(launch.tail, 1), blocks=1))
        grid = (launch.blocks, 1, 1)
        _load(made, self.engine)(result, *operands, launch.packs, launch.tail, grid=grid)


_host = lru_cache(maxsize=512)(elementwise_host_kernel)
_device = lru_cache(maxsize=512)(grid_stride_kernel)


def _crosses(a: Array, b: Array) -> bool:
    same = a.ctypes.data == b.ctypes.data and a.itemsize == b.itemsize
    return not same and bool(np.may_share_memory(a, b))
