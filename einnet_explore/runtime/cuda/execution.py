"""Plans on NVIDIA GPUs through CuPy: kernels, products and convolutions, as calls or as one CUDA graph.

Without CuPy, a driver or a device every function raises ``BackendError``, which names all that is missing.  cuBLAS is
column-major, so a row-major :math:`Y = A B` is computed as :math:`Y^T = B^T A^T` without moving data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from einnet_explore.runtime.cuda import convolutions
from einnet_explore.runtime.cuda.device import (
    Call,
    CudaDevice,
    DeviceArray,
    DeviceArrays,
    capture_graph,
    capture_graph_by_torch,
    cublas,
    cuda_device,
    cudnn_frontend,
    cupy_package,
    event_seconds,
    missing_for_convolutions,
    missing_for_cuda,
    missing_for_products,
    require_cuda,
    rotation_copies,
    rough_seconds,
    single_call_seconds,
    time_in_rounds,
)
from einnet_explore.runtime.cuda.steps import Convolution, CudaLaunch, CudaPlan, CudaProduct, Shape, Step, View
from einnet_explore.support.errors import BackendError

MAX_GEMM_CALLS = 64
"""Batches that are no equal steps apart take a call each, at most so many."""

_MAX_CUBLAS_SIZE = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """A factor or the result: rows *leading* elements apart (columns where *transposed*), batches *step* apart."""

    name: str
    offset: int
    transposed: bool
    leading: int
    step: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """*batch* products of *rows*x*depth* by *depth*x*columns*, one call of ``gemmStridedBatchedEx``."""

    out: Matrix
    left: Matrix
    right: Matrix
    rows: int
    columns: int
    depth: int
    batch: int


def gemms(step: CudaProduct) -> tuple[Gemm, ...] | None:
    """The calls of *step*; None if a factor is not packed along either side, or if too many calls are needed.

    Overlapping windows are not packed: cuBLAS needs rows no longer than their distance, so they are copied.
    """
    *outer, rows, columns = step.out.shape
    depth = step.left.shape[-1]
    views = (step.out, step.left, step.right)
    found = [_matrix(v) for v in views]
    if any(m is None for m in found) or found[0] is None or found[0][0]:
        return None  # the result cannot be transposed: the planner swaps the factors instead
    groups = _merge_batches(outer, [v.strides[:-2] for v in views])
    if not groups:
        groups = [(1, (0, 0, 0))]
    inner = max(range(len(groups)), key=lambda n: groups[n][0])
    extent, steps = groups.pop(inner)
    if prod(n for n, _ in groups) > MAX_GEMM_CALLS or max(rows, columns, depth, extent) > _MAX_CUBLAS_SIZE:
        return None
    calls = []
    for place in product(*(range(n) for n, _ in groups)):
        at = [sum(p * s[k] for p, (_, s) in zip(place, groups, strict=True)) for k in range(3)]
        out, left, right = (
            Matrix(v.name, v.offset + a, m[0], m[1], s)
            for v, m, a, s in zip(views, found, at, steps, strict=True)
            if m is not None
        )
        calls.append(Gemm(out, left, right, rows, columns, depth, extent))
    return tuple(calls)


def _matrix(view: View) -> tuple[bool, int] | None:
    """(transposed, leading dimension) of the last two dimensions of *view*; one of them has to be packed."""
    (rows, columns), (down, across) = view.shape[-2:], view.strides[-2:]
    if (across == 1 or columns == 1) and (rows == 1 or down >= columns):
        return False, columns if rows == 1 else down
    if (down == 1 or rows == 1) and (columns == 1 or across >= rows):
        return True, rows if columns == 1 else across
    return None


def _merge_batches(shape: Sequence[int], strides: Iterable[Shape]) -> list[tuple[int, tuple[int, ...]]]:
    """(extent, steps) of the batch's dimensions; neighbours with one common stride are merged."""
    out: list[tuple[int, tuple[int, ...]]] = []
    for extent, steps in zip(shape, zip(*strides, strict=True), strict=True):
        if extent == 1:
            continue
        if out and all(before == extent * here for before, here in zip(out[-1][1], steps, strict=True)):
            out[-1] = out[-1][0] * extent, steps
        else:
            out.append((extent, steps))
    return out


NVRTC_OPTIONS = ("--std=c++17",)

CUBLAS_COMPUTE_TYPES = {
    "float32": "CUBLAS_COMPUTE_32F",
    "tf32": "CUBLAS_COMPUTE_32F_FAST_TF32",
    "float16": "CUBLAS_COMPUTE_32F_FAST_16F",
    "bfloat16": "CUBLAS_COMPUTE_32F_FAST_16BF",
}
"""cuBLAS's name of every precision of a plan."""

LoadedKernel: TypeAlias = Callable[[tuple[int, int, int], tuple[int, int, int], tuple[object, ...]], object]
"""A kernel of CuPy's, called with its grid, its block and its arguments."""


def load_cuda_kernel(step: CudaLaunch, cubin: str | None = None) -> LoadedKernel:
    """The kernel of *step*, from the file *cubin* where that loads here, else compiled from its text.

    Raises BackendError; where the text does not compile, with the compiler's words.
    """
    return load_cuda_text(step.entry, step.text, cubin)


@lru_cache(maxsize=512)
def load_cuda_text(name: str, text: str, cubin: str | None = None) -> LoadedKernel:
    """The kernel *name* of *text*; see ``load_cuda_kernel``."""
    cp = cupy_package()
    if cubin is not None:
        with suppress(cp.cuda.driver.CUDADriverError):  # made for another device or a newer driver
            loaded: LoadedKernel = cp.RawModule(path=cubin).get_function(name)
            return loaded
    try:
        compiled: LoadedKernel = cp.RawModule(code=text, options=NVRTC_OPTIONS, backend="nvrtc").get_function(name)
        return compiled
    except (cp.cuda.compiler.CompileException, cp.cuda.driver.CUDADriverError) as error:
        raise BackendError(f"kernel {name} is not compiled: {' '.join(str(error).split())[:600]}") from None


def bind_step(
    step: Step,
    buffers: DeviceArrays,
    cubin: Callable[[CudaLaunch], str | None] = lambda _: None,
    precision: str = "float32",
) -> Call:
    """A call of *step* on device arrays *buffers* in the current stream; raises as ``load_cuda_kernel`` does.

    Libraries multiply in *precision*.  Raises BackendError if there is no library, or if cuDNN has no plan.
    """
    cp = cupy_package()
    match step:
        case CudaLaunch(grid=grid, block=block, arguments=given):
            kernel = load_cuda_kernel(step, cubin(step))
            typed = tuple(buffers[a] if isinstance(a, str) else cp.dtype(a[1]).type(a[0]) for a in given)
            return lambda: kernel(grid, block, typed)
        case CudaProduct():
            if lacking := missing_for_products():
                raise BackendError(f"no library for matrix products: missing {', and '.join(lacking)}")
            return _product(step, buffers, precision)
        case Convolution():
            return _convolution(step, buffers, precision)


def device_view(buffers: DeviceArrays, view: View) -> DeviceArray:
    """The device array of *view*."""
    flat = buffers[view.name].reshape(-1)[view.offset :]
    strides = tuple(s * flat.itemsize for s in view.strides)
    seen: DeviceArray = cupy_package().lib.stride_tricks.as_strided(flat, view.shape, strides)
    return seen


def _product(step: CudaProduct, buffers: DeviceArrays, precision: str) -> Call:
    """A product by cuBLAS; factors that it does not take are copied first."""
    cp, library = cupy_package(), cublas()
    calls = gemms(step)
    if calls is None:
        y, a, b = (device_view(buffers, v) for v in (step.out, step.left, step.right))
        packed = CudaProduct(_packed_view(step.out, "y"), _packed_view(step.left, "a"), _packed_view(step.right, "b"))
        own = {"y": cp.empty(y.shape, y.dtype), "a": cp.empty(a.shape, a.dtype), "b": cp.empty(b.shape, b.dtype)}
        inner = _product(packed, own, precision)

        def copied() -> None:
            cp.copyto(own["a"], a)
            cp.copyto(own["b"], b)
            inner()
            cp.copyto(y, own["y"])

        return copied
    handle = cp.cuda.device.get_cublas_handle()
    one, zero = np.ones((), np.float32), np.zeros((), np.float32)
    single, compute_type = cp.cuda.runtime.CUDA_R_32F, getattr(library, CUBLAS_COMPUTE_TYPES[precision])
    algorithm = library.CUBLAS_GEMM_DEFAULT
    prepared = [_gemm_arguments(g, buffers) for g in calls]

    def call() -> None:
        for transposed, sizes, right, left, out, batch in prepared:
            library.gemmStridedBatchedEx(
                handle, *transposed, *sizes, one.ctypes.data, right[0], single, *right[1:], left[0], single, *left[1:],
                zero.ctypes.data, out[0], single, *out[1:], batch, compute_type, algorithm,
            )  # fmt: skip

    return call


def _packed_view(view: View, name: str) -> View:
    """*view* as an array of its own called *name*."""
    strides = tuple(int(np.prod(view.shape[d + 1 :])) for d in range(len(view.shape)))
    return View(name, 0, view.shape, strides)


MatrixAddress: TypeAlias = tuple[int, int, int]
"""The address of a matrix on the device, its leading dimension, and the distance of batches in elements."""


def _gemm_arguments(
    g: Gemm, buffers: DeviceArrays
) -> tuple[tuple[int, int], tuple[int, int, int], MatrixAddress, MatrixAddress, MatrixAddress, int]:
    """The arguments of cuBLAS, which counts columns first: the right factor goes before the left one."""

    def at(matrix: Matrix) -> MatrixAddress:
        held = buffers[matrix.name]
        return int(held.data.ptr) + matrix.offset * held.itemsize, matrix.leading, matrix.step

    transposed = int(g.right.transposed), int(g.left.transposed)
    return transposed, (g.columns, g.rows, g.depth), at(g.right), at(g.left), at(g.out), g.batch


def _convolution(step: Convolution, buffers: DeviceArrays, precision: str) -> Call:
    if convolutions.runs_on_frontend(step, buffers):
        built = convolutions.build_convolution(step, precision, buffers, rough_seconds)
        places = convolutions.device_addresses(step, buffers)
        return lambda: built.call(places)
    return convolutions.bind_torch_convolution(step, buffers, precision, lambda view: device_view(buffers, view))


@dataclass(frozen=True, eq=False)
class CudaProgram:
    """A plan compiled for the device: every ``execute`` reads ``inputs`` and writes ``outputs``.

    ``capture`` makes one CUDA graph of it, so that no time passes between kernels.
    """

    plan: CudaPlan
    buffers: DeviceArrays = field(repr=False)
    calls: Sequence[Call] = field(repr=False)
    with_torch: bool = False

    def execute(self) -> None:
        """Enqueue all steps in the current stream; returns before they are done."""
        for call in self.calls:
            call()

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for host arrays *inputs*, as host arrays; raises BackendError for a missing or unfit one."""
        cp = cupy_package()
        for name in self.plan.inputs:
            shape = self.plan.buffers[name]
            if name not in inputs or tuple(inputs[name].shape) != shape:
                found = list(inputs[name].shape) if name in inputs else "missing"
                raise BackendError(f"input {name} is {found}, expected {list(shape)}")
            self.buffers[name][...] = cp.asarray(inputs[name], dtype=self.buffers[name].dtype)
        self.execute()
        return {name: cp.asnumpy(self.buffers[name]) for name in self.plan.outputs}

    def capture(self) -> Call:
        """A call that launches the whole program as one CUDA graph, in the current stream.

        Convolutions by torch are captured by torch, so that the graph owns their memory.
        """
        return capture_graph_by_torch(self.execute) if self.with_torch else capture_graph(self.execute)


def compile_plan(
    plan: CudaPlan,
    weights: Mapping[str, np.ndarray] | None = None,
    cubin: Callable[[CudaLaunch], str | None] = lambda _: None,
) -> CudaProgram:
    """*plan* on the device: allocate buffers, copy *weights* (host arrays), and run the steps that only read weights.

    *cubin* gives a file with a kernel's machine code, or None.  Raises BackendError without a device, for a
    missing weight, and for kernels that do not compile.
    """
    cp = cupy_package()
    buffers = {n: cp.empty(shape, plan.dtypes.get(n, plan.dtype)) for n, shape in plan.buffers.items()}
    held = [s for s in plan.steps if isinstance(s, Convolution)]
    for step in held:
        # Algorithms are timed on numbers, not on whatever lay in memory: zeros and NaNs have a speed of their own.
        buffers[step.data.name][...] = cp.random.standard_normal(buffers[step.data.name].shape, dtype=cp.float32)
        buffers[step.weights.name][...] = cp.random.standard_normal(buffers[step.weights.name].shape, dtype=cp.float32)
    for name in plan.weights:
        if name not in (weights or {}):
            raise BackendError(f"weight {name} is missing, expected {list(plan.buffers[name])}")
        buffers[name][...] = cp.asarray((weights or {})[name], dtype=buffers[name].dtype)
    calls = [bind_step(s, buffers, cubin, plan.precision) for s in plan.steps]
    for call in calls[: plan.once]:
        call()
    by_torch = any(
        not convolutions.runs_on_frontend(s, buffers) for s in plan.steps[plan.once :] if isinstance(s, Convolution)
    )
    return CudaProgram(plan, buffers, tuple(calls[plan.once :]), by_torch)


__all__ = [
    "BackendError",
    "CudaDevice",
    "CudaProgram",
    "bind_step",
    "capture_graph",
    "capture_graph_by_torch",
    "compile_plan",
    "cuda_device",
    "cudnn_frontend",
    "cupy_package",
    "device_view",
    "event_seconds",
    "load_cuda_kernel",
    "missing_for_convolutions",
    "missing_for_cuda",
    "missing_for_products",
    "require_cuda",
    "rotation_copies",
    "single_call_seconds",
    "time_in_rounds",
]
