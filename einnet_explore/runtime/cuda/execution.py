"""Plans on NVIDIA GPUs through CuPy: kernels, products and convolutions, as calls or as one CUDA graph.

Without CuPy, a driver or a device every function raises ``BackendError``, which names all that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np

from einnet_explore.runtime.cuda import convolutions, products
from einnet_explore.runtime.cuda.device import (
    Call,
    CudaDevice,
    DeviceArrays,
    DeviceFailure,
    capture_graph,
    capture_graph_by_torch,
    cuda_device,
    cudnn_frontend,
    cupy_package,
    describe_device_error,
    device_view,
    event_seconds,
    missing_for_convolutions,
    missing_for_cuda,
    missing_for_products,
    require_cuda,
    rotation_copies,
    rough_seconds,
    short_call_seconds,
    single_call_seconds,
    time_in_rounds,
)
from einnet_explore.runtime.cuda.steps import Convolution, CudaLaunch, CudaPlan, CudaProduct, Step
from einnet_explore.support.errors import BackendError

NVRTC_OPTIONS = ("--std=c++17",)

LoadedKernel: TypeAlias = Callable[[tuple[int, int, int], tuple[int, int, int], tuple[object, ...]], object]
"""A kernel of CuPy's, called with its grid, its block and its arguments."""


def load_cuda_kernel(step: CudaLaunch, cubin: str | None = None) -> LoadedKernel:
    """The kernel of *step*, from the file *cubin* where that loads here, else compiled from its text.

    Raises BackendError; where the text does not compile, with the compiler's words.
    """
    kernel = load_cuda_text(step.entry, step.text, cubin)
    if not step.shared:
        return kernel
    try:
        kernel.max_dynamic_shared_size_bytes = step.shared  # type: ignore[attr-defined]
    except cupy_package().cuda.driver.CUDADriverError as error:
        most = f"{step.shared} bytes of shared memory, more than the device gives a block"
        raise BackendError(f"kernel {step.entry} takes {most}: {' '.join(str(error).split())}") from None
    return partial(kernel, shared_mem=step.shared)  # type: ignore[call-arg]


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
            return products.bind_product(step, buffers, precision, short_call_seconds)
        case Convolution():
            return _convolution(step, buffers, precision)


def _convolution(step: Convolution, buffers: DeviceArrays, precision: str) -> Call:
    if convolutions.runs_on_frontend(step, buffers):
        built = convolutions.build_convolution(step, precision, buffers, rough_seconds)
        places = convolutions.tensor_addresses(step, buffers)
        return lambda: built.call(places)
    return convolutions.bind_torch_convolution(step, buffers, precision)


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

    def run(self, inputs: Mapping[str, np.ndarray], launch: Call | None = None) -> dict[str, np.ndarray]:
        """The outputs for arrays *inputs*, as host arrays; raises BackendError for a missing or unfit one.

        Inputs may be on the host or, as arrays of CuPy, torch or another library, on the device.  *launch*, which
        ``capture`` made, runs in place of the steps one by one.
        """
        cp = cupy_package()
        for name in self.plan.inputs:
            shape = self.plan.buffers[name]
            if name not in inputs or tuple(inputs[name].shape) != shape:
                found = list(inputs[name].shape) if name in inputs else "missing"
                raise BackendError(f"input {name} is {found}, expected {list(shape)}")
            self.buffers[name][...] = cp.asarray(inputs[name], dtype=self.buffers[name].dtype)
        (launch or self.execute)()
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
    for name in {v.name for s in plan.steps if not isinstance(s, CudaLaunch) for v in s.factors}:
        # Algorithms are timed on numbers, not on whatever lay in memory: zeros and NaNs have a speed of their own.
        buffers[name][...] = cp.random.standard_normal(buffers[name].shape, dtype=cp.float32)
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
    "DeviceFailure",
    "bind_step",
    "capture_graph",
    "capture_graph_by_torch",
    "compile_plan",
    "cuda_device",
    "cudnn_frontend",
    "cupy_package",
    "describe_device_error",
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
