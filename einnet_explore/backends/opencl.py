"""OpenCL kernels through pyopencl, on any device it finds; pocl makes one of the CPU."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from threading import Lock
from types import ModuleType
from typing import Any

from einnet_explore.backends.errors import BackendError
from einnet_explore.backends.launch import Grid, checked
from einnet_explore.backends.pocl import name_processor
from einnet_explore.kernels.source import Array, Kernel, emit, entry
from einnet_explore.storage import cache_directory

_one_at_a_time = Lock()


@dataclass(frozen=True)
class OpenCLKernel:
    """A compiled kernel; a call runs it on arrays of this process and waits for the end."""

    kernel: Kernel
    text: str
    compiled: Any

    def __call__(self, *given: Any, grid: Grid | None = None) -> None:
        """Run on *given*, in the order of the kernel's parameters: arrays, which are written in place, and numbers.

        Raises BackendError for arguments that do not fit, see ``launch.checked``, and where the device fails.
        """
        cl = _package()
        arguments, blocks = checked(self.kernel, given, grid)
        try:
            # A compiled kernel holds its arguments from when they are set until it is enqueued.
            with _one_at_a_time:
                self._run(_device(), arguments, blocks)
        except cl.Error as error:
            raise BackendError(f"kernel {self.kernel.name}: OpenCL says {error}") from None

    def _run(self, device: Any, arguments: list[Any], blocks: Grid) -> None:
        cl = _package()
        places: list[tuple[Any, Any, bool]] = []
        for n, (p, argument) in enumerate(zip(self.kernel.params, arguments, strict=True)):
            if not isinstance(p, Array) or argument.size == 0:
                self.compiled.set_arg(n, None if isinstance(p, Array) else argument)
                continue
            # The device reads and writes where the array lies: on a CPU nothing is copied, and what is not aligned
            # stays so.
            access = cl.mem_flags.READ_ONLY if p.const else cl.mem_flags.READ_WRITE
            place = cl.Buffer(device.context, access | cl.mem_flags.USE_HOST_PTR, hostbuf=argument)
            self.compiled.set_arg(n, place)
            places.append((place, argument, p.const))
        size = tuple(b * g for b, g in zip(self.kernel.block, blocks, strict=True))
        cl.enqueue_nd_range_kernel(device, self.compiled, size, self.kernel.block)
        for place, argument, const in places:
            if not const:
                mapped, _ = cl.enqueue_map_buffer(device, place, cl.map_flags.READ, 0, argument.shape, argument.dtype)
                mapped.base.release(device)
        device.finish()


def load(kernel: Kernel) -> OpenCLKernel:
    """*kernel* compiled for the device; the same kernel is compiled once, and kept across processes.

    Raises BackendError where pyopencl or a device is missing, where the device cannot hold the kernel's shared memory
    or lacks double precision, and where the text does not compile, with the compiler's words.
    """
    return _loaded(kernel)


@lru_cache(maxsize=512)
def _loaded(kernel: Kernel) -> OpenCLKernel:
    text = emit(kernel, "opencl")
    found = _device().device
    if kernel.threads > found.max_work_group_size:
        raise BackendError(
            f"kernel {kernel.name}: blocks of {kernel.threads} threads, {found.name} has {found.max_work_group_size}"
        )
    if kernel.shared_bytes > found.local_mem_size:
        raise BackendError(
            f"kernel {kernel.name}: {kernel.shared_bytes} bytes of shared memory, {found.name} has "
            f"{found.local_mem_size}"
        )
    if "cl_khr_fp64" in text and "cl_khr_fp64" not in found.extensions:
        raise BackendError(f"kernel {kernel.name}: double precision, which {found.name} lacks")
    return OpenCLKernel(kernel, text, _compiled(text, entry(kernel), kernel.name))


@lru_cache(maxsize=512)
def _compiled(text: str, name: str, said: str) -> Any:
    cl, device = _package(), _device()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compilers remark on what they found to be slow
            program = cl.Program(device.context, text).build(
                options=["-w"], cache_dir=str(cache_directory() / "opencl")
            )
        return cl.Kernel(program, name)
    except cl.Error as error:
        raise BackendError(f"kernel {said}: OpenCL does not compile it: {error}") from None


def available() -> str | None:
    """The device's name; None where there is none."""
    try:
        return str(_device().device.name)
    except BackendError:
        return None


@cache
def _package() -> ModuleType:
    os.environ.setdefault("POCL_CACHE_DIR", str(cache_directory() / "pocl"))
    try:
        import pyopencl
    except ImportError as error:
        raise BackendError(f"OpenCL kernels need pyopencl: pip install 'pyopencl[pocl]' ({error})") from None
    return pyopencl


@cache
def _device() -> Any:
    """A queue of the first device: a GPU where there is one."""
    cl = _package()
    try:
        devices = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error as error:
        raise BackendError(f"OpenCL finds no platform: pip install 'pyopencl[pocl]' ({error})") from None
    if not devices:
        raise BackendError("OpenCL finds no device: pip install 'pyopencl[pocl]' makes one of the CPU")
    chosen = min(devices, key=lambda d: not d.type & cl.device_type.GPU)
    name_processor(chosen)
    return cl.CommandQueue(cl.Context([chosen]))
