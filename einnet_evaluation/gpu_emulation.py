"""GPU kernels run on this machine: by OpenCL through pyopencl, on a GPU or by pocl on the CPU, or in C as loops.

The LLVM 14 of pocl 3.0 names a processor that it does not know ``generic``, a name that its own compiler refuses, so
every build fails (pocl/pocl#1049).  No option changes the name, so ``set_processor_name`` overwrites it in the device's
record: on Linux only, and only where exactly that name is found.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Protocol

import numpy as np

from einnet_explore.codegen.elementwise import (
    A100,
    Functor,
    Gpu,
    grid_stride_kernel,
    plan_launch,
)
from einnet_explore.codegen.fusion.frame import FusedLayout, slot_name, slot_sizes
from einnet_explore.codegen.fusion.gpu import FUSED_THREADS, gpu_blocks, gpu_launch
from einnet_explore.codegen.fusion.plan import FusedKernel
from einnet_explore.codegen.language.printer import emit, entry_name
from einnet_explore.codegen.language.statements import Kernel
from einnet_explore.codegen.language.values import Array as KernelArray
from einnet_explore.codegen.language.values import Var, type_of
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.c_kernels import Argument, CKernel, Grid, checked_arguments, load_c_kernel
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.storage import cache_directory


class OpenCLDevice(Protocol):
    """A device of pyopencl's."""

    name: str
    version: str
    extensions: str
    int_ptr: int
    max_work_group_size: int
    local_mem_size: int

    @property
    def platform(self) -> OpenCLPlatform: ...


class OpenCLPlatform(Protocol):
    """The driver that a device belongs to."""

    name: str


class OpenCLQueue(Protocol):
    """A command queue of pyopencl's, for one device."""

    context: object
    device: OpenCLDevice

    def finish(self) -> None: ...


class LoadedKernel(Protocol):
    """A kernel of pyopencl's, whose arguments are set before it is enqueued."""

    def set_arg(self, index: int, argument: object) -> None: ...


_UNKNOWN_PROCESSOR = b"generic"
_RECORD_OFFSETS = range(0, 1024, 8)
"""Offsets in the device's record at which names are looked for; the record is larger."""

_PROCESSOR_NAMES = (
    ({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}, b"skylake-avx512"),
    ({"avx2", "fma"}, b"haswell"),
)
"""Names that LLVM 14 knows, of processors whose instructions this one has too."""


def set_processor_name(device: OpenCLDevice) -> bool:
    """Give *device* a processor's name if it is pocl's and has none; return whether it was given one."""
    if sys.platform != "linux" or not str(device.version).endswith(f"-{_UNKNOWN_PROCESSOR.decode()}"):
        return False
    if not str(device.platform.name).startswith("Portable Computing Language"):
        return False
    readable = _readable_areas()
    words = [w for w in _RECORD_OFFSETS if _lies_in(device.int_ptr + w, 8, readable)]
    for before, here in pairwise(words):
        if _string(device.int_ptr + before, readable).startswith(b"x86_64-") and (
            _string(device.int_ptr + here, readable) == _UNKNOWN_PROCESSOR
        ):
            flags = _flags()
            name = next((n for needed, n in _PROCESSOR_NAMES if needed <= flags), b"x86-64")
            # A copy that lives as long as the process: the record keeps its address.
            copy = ctypes.CDLL(None).strdup
            copy.restype = ctypes.c_void_p
            ctypes.c_void_p.from_address(device.int_ptr + here).value = copy(name)
            return True
    return False


def _readable_areas() -> list[tuple[int, int]]:
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, rights = line.split()[:2]
        if rights.startswith("r"):
            lo, hi = area.split("-")
            found.append((int(lo, 16), int(hi, 16)))
    return found


def _lies_in(address: int, size: int, areas: list[tuple[int, int]]) -> bool:
    return any(lo <= address and address + size <= hi for lo, hi in areas)


def _string(address: int, areas: list[tuple[int, int]]) -> bytes:
    """The first characters of the string that the pointer at *address* points to; empty if it points nowhere."""
    to = ctypes.c_void_p.from_address(address).value
    return ctypes.string_at(to, 16).split(b"\0")[0] if to and _lies_in(to, 16, areas) else b""


def _flags() -> frozenset[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return frozenset(next((line.split(":")[1] for line in lines if line.startswith("flags")), "").split())


_enqueue_lock = Lock()


@dataclass(frozen=True)
class OpenCLKernel:
    """A compiled kernel; a call runs it on arrays of this process and waits for the end."""

    kernel: Kernel
    text: str
    compiled: LoadedKernel

    def __call__(self, *given: Argument, grid: Grid | None = None) -> None:
        """Run on *given*, in the order of the kernel's parameters: arrays, which are written in place, and numbers.

        Raises BackendError for arguments that do not fit, see ``checked_arguments``, and where the device fails.
        """
        cl = _package()
        arguments, blocks = checked_arguments(self.kernel, given, grid)
        try:
            # A compiled kernel holds its arguments from when they are set until it is enqueued.
            with _enqueue_lock:
                self._run(_queue(), arguments, blocks)
        except cl.Error as error:
            raise BackendError(f"kernel {self.kernel.name}: OpenCL says {error}") from None

    def _run(self, queue: OpenCLQueue, arguments: Sequence[np.ndarray | np.generic], blocks: Grid) -> None:
        cl = _package()
        buffers: list[tuple[object, np.ndarray | np.generic, bool]] = []  # they live until the kernel has run
        for n, (p, argument) in enumerate(zip(self.kernel.params, arguments, strict=True)):
            if not isinstance(p, KernelArray) or argument.size == 0:
                self.compiled.set_arg(n, None if isinstance(p, KernelArray) else argument)
                continue
            # The device reads and writes where the array lies: on a CPU nothing is copied, and what is not aligned
            # stays so.
            access = cl.mem_flags.READ_ONLY if p.const else cl.mem_flags.READ_WRITE
            buffer = cl.Buffer(queue.context, access | cl.mem_flags.USE_HOST_PTR, hostbuf=argument)
            self.compiled.set_arg(n, buffer)
            buffers.append((buffer, argument, p.const))
        size = tuple(b * g for b, g in zip(self.kernel.block, blocks, strict=True))
        cl.enqueue_nd_range_kernel(queue, self.compiled, size, self.kernel.block)
        for buffer, argument, const in buffers:
            if not const:
                mapped, _ = cl.enqueue_map_buffer(queue, buffer, cl.map_flags.READ, 0, argument.shape, argument.dtype)
                mapped.base.release(queue)
        queue.finish()


@lru_cache(maxsize=512)
def load_opencl_kernel(kernel: Kernel) -> OpenCLKernel:
    """*kernel* compiled for the device; equal kernels are compiled once, and cached across processes.

    Raises BackendError where pyopencl or a device is missing, where the device cannot hold the kernel's shared memory
    or lacks double precision, and where the text does not compile, with the compiler's words.
    """
    text = emit(kernel, "opencl")
    found = _queue().device
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
    cl = _package()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compilers remark on what they found to be slow
            program = cl.Program(_queue().context, text).build(
                options=["-w"], cache_dir=str(cache_directory() / "opencl")
            )
        return OpenCLKernel(kernel, text, cl.Kernel(program, entry_name(kernel)))
    except cl.Error as error:
        raise BackendError(f"kernel {kernel.name}: OpenCL does not compile it: {error}") from None


def opencl_available() -> bool:
    """Return whether pyopencl is installed and finds a device."""
    try:
        _queue()
    except BackendError:
        return False
    return True


@lru_cache(maxsize=1)
def _package() -> ModuleType:
    os.environ.setdefault("POCL_CACHE_DIR", str(cache_directory() / "pocl"))
    try:
        import pyopencl
    except ImportError as error:
        raise BackendError(f"OpenCL kernels need pyopencl: pip install 'pyopencl[pocl]' ({error})") from None
    return pyopencl


@lru_cache(maxsize=1)
def _queue() -> OpenCLQueue:
    """A queue of the first device: a GPU where there is one."""
    cl = _package()
    try:
        devices = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error as error:
        raise BackendError(f"OpenCL finds no platform: pip install 'pyopencl[pocl]' ({error})") from None
    if not devices:
        raise BackendError("OpenCL finds no device: pip install 'pyopencl[pocl]' adds the CPU as one")
    chosen = min(devices, key=lambda d: not d.type & cl.device_type.GPU)
    set_processor_name(chosen)
    queue: OpenCLQueue = cl.CommandQueue(cl.Context([chosen]))
    return queue


ENGINES = ("opencl", "c blocks")
"""``c blocks`` runs the GPU's kernel with its blocks and threads as loops: for tests, and to look at."""


def run_blocks(
    fused: FusedKernel, arrays: Mapping[str, Array], engine: str = "opencl", threads: int = FUSED_THREADS
) -> dict[str, Array]:
    """The outputs of *fused* for contiguous *arrays*, by its kernel for GPUs, in blocks of *threads*.

    Raises BackendError for an unknown engine, and what compiling and running raise.
    """
    if engine not in ENGINES:
        raise BackendError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
    dtype = np.result_type(*(arrays[t.name] for t in fused.inputs)) if fused.inputs else np.dtype("float32")
    dtype = np.dtype("float64") if fused.types else dtype
    arrays = {**fused.tables, **arrays}
    flat, kernel = gpu_launch(fused, {n: a.shape for n, a in arrays.items()}, dtype, threads)
    known = fused.known
    kinds = {n: fused.type_of(n, type_of(dtype)).stored.dtype for n in fused.program.outputs}
    outs = {n: np.empty(tuple(flat.sizes[x] for x in known[n].scope.traversals), k) for n, k in kinds.items()}
    blocks = gpu_blocks(flat, threads)
    if blocks:
        _load(kernel, engine)(*arguments(flat, kernel, arrays, outs), grid=(blocks, 1, 1))
    return outs


def _load(kernel: Kernel, engine: str) -> OpenCLKernel | CKernel:
    return load_opencl_kernel(kernel) if engine == "opencl" else load_c_kernel(kernel)


def arguments(
    flat: FusedLayout, kernel: Kernel, arrays: Mapping[str, Array], outs: Mapping[str, Array]
) -> list[Argument]:
    """The arguments of *kernel*, in order; temporaries are allocated."""
    slots = {slot_name(n): size * max(1, flat.points) for n, size in enumerate(slot_sizes(flat))}
    made: list[Argument] = []
    for p in kernel.params:
        match p:
            case KernelArray(name) as array if name in slots:
                made.append(np.empty(slots[name], array.kind.dtype))
            case KernelArray(name):
                made.append(arrays[name] if name in arrays else outs[name])
            case Var(name, kind):
                number = flat.numbers[name]
                made.append(int(number) if kind.integer else number)
    return made


@dataclass(frozen=True)
class Elementwise:
    """*functor* on arrays, by one of ``ENGINES``, with as many blocks as *gpu* runs."""

    functor: Functor
    engine: str = "opencl"
    gpu: Gpu = A100

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise BackendError(f"engine {self.engine!r}: expected one of {', '.join(ENGINES)}")

    def __call__(self, result: Array, *operands: Array) -> None:
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
            self._run(result, operands)
        except Refused as error:
            raise BackendError(str(error)) from None

    def _run(self, result: Array, operands: tuple[Array, ...]) -> None:
        f = self.functor
        addresses = [a.ctypes.data for a in (result, *operands[: len(f.operands)])]
        launch = plan_launch(result.size, f.kinds, addresses, self.gpu)
        # What the text depends on, and no more: one kernel serves all lengths.
        made = _device(f, replace(launch, packs=0, tail=min(launch.tail, 1), blocks=1))
        grid = (launch.blocks, 1, 1)
        _load(made, self.engine)(result, *operands, launch.packs, launch.tail, grid=grid)


_device = lru_cache(maxsize=512)(grid_stride_kernel)


def _crosses(a: Array, b: Array) -> bool:
    same = a.ctypes.data == b.ctypes.data and a.itemsize == b.itemsize
    return not same and bool(np.may_share_memory(a, b))
