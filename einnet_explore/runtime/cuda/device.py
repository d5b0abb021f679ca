"""The NVIDIA device that CuPy sees, timing by events, and CUDA graphs; all imports are lazy.

The device's settings are never changed.  Memory that is allocated while a graph is captured belongs to the graph as
long as it lives: in a CuPy pool of its own, or in the private pool of torch's capture.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Protocol, Self, TypeAlias

import numpy as np

from einnet_explore.runtime.cuda.steps import View
from einnet_explore.support.errors import BackendError


class DevicePointer(Protocol):
    """An address on the device, as CuPy gives it."""

    ptr: int


class DeviceArray(Protocol):
    """A CuPy array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    itemsize: int
    data: DevicePointer

    def reshape(self, shape: int) -> Self: ...

    def __getitem__(self, where: slice) -> Self: ...

    def __setitem__(self, where: object, value: object) -> None: ...


DeviceArrays: TypeAlias = Mapping[str, DeviceArray]


def device_address(buffers: DeviceArrays, name: str, offset: int) -> int:
    """The address of element *offset* of the buffer *name*."""
    return int(buffers[name].data.ptr) + offset * buffers[name].itemsize


def device_view(buffers: DeviceArrays, view: View) -> DeviceArray:
    """The device array of *view*."""
    flat = buffers[view.name].reshape(-1)[view.offset :]
    strides = tuple(s * flat.itemsize for s in view.strides)
    seen: DeviceArray = cupy_package().lib.stride_tricks.as_strided(flat, view.shape, strides)
    return seen


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """The device in use, as measurements name it."""

    name: str
    capability: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    driver: str
    runtime: str
    libraries: str

    @property
    def key(self) -> tuple[str, str]:
        """(device, libraries) in the keys of profiles."""
        return f"CUDA {self.name}", f"driver {self.driver} runtime {self.runtime} {self.libraries}"


def missing_for_cuda() -> tuple[str, ...]:
    """The missing ones of CuPy, an NVIDIA driver and a device, each with a way to install it."""
    if find_spec("cupy") is None:
        # The driver can be looked for without CuPy, so that one message says all.
        return "CuPy (pip install cupy-cuda13x, or cupy-cuda12x)", *_no_driver()
    try:
        import cupy
    except Exception as error:  # a CuPy without its libraries fails in many ways
        said = " ".join(str(error).split())[:200]
        return f"a CuPy that can be imported ({type(error).__name__}: {said})", *_no_driver()
    if no_driver := _no_driver():
        return no_driver
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return (f"an NVIDIA driver that CuPy {cupy.__version__} can use ({describe_device_error(error)})",)
    return () if count else ("a GPU that is visible to this process",)


def _no_driver() -> tuple[str, ...]:
    for name in ("libcuda.so.1", "nvcuda.dll"):
        with suppress(OSError):
            ctypes.CDLL(name)
            return ()
    return ("an NVIDIA driver (libcuda)",)


def missing_for_products() -> tuple[str, ...]:
    """cuBLAS if it is missing."""
    return () if cublas_lt() is not None else ("cuBLAS (pip install nvidia-cublas, or nvidia-cublas-cu12)",)


CUBLAS_LT_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "cublasLt64_13.dll", "cublasLt64_12.dll")
CUBLAS_FOLDERS = ("nvidia/cu13/lib", "nvidia/cublas/lib", "nvidia/cu13/bin/x86_64", "nvidia/cublas/bin")


@lru_cache(maxsize=1)
def cublas_lt() -> ctypes.CDLL | None:
    """cuBLASLt: as CuPy or torch has loaded it, else from its wheel, else the system's; None if there is none."""
    tried = [(name, getattr(os, "RTLD_NOLOAD", 0)) for name in CUBLAS_LT_NAMES]
    tried += [(path, 0) for path in (*wheel_libraries(CUBLAS_FOLDERS, CUBLAS_LT_NAMES), *CUBLAS_LT_NAMES)]
    for name, mode in tried:
        with suppress(OSError):
            return ctypes.CDLL(name, mode=mode)
    return None


def wheel_libraries(folders: Sequence[str], names: Sequence[str]) -> list[str]:
    """The files of *names* in *folders* of NVIDIA's wheels."""
    spec = find_spec("nvidia")
    roots = [Path(p).parent for p in spec.submodule_search_locations or ()] if spec else []
    return [str(p) for root in roots for folder in folders for name in names if (p := root / folder / name).exists()]


def missing_for_convolutions() -> tuple[str, ...]:
    """A library for convolutions if none is there: the cuDNN frontend with cuDNN, or a torch that sees the device."""
    if cudnn_frontend() is not None:
        return ()
    if find_spec("torch") is None:
        return ("the cuDNN frontend (pip install nvidia-cudnn-frontend nvidia-cudnn-cu13), or torch with CUDA",)
    torch = import_module("torch")
    return () if torch.cuda.is_available() else ("a torch with CUDA (this one is for CPUs)",)


@lru_cache(maxsize=1)
def cudnn_frontend() -> ModuleType | None:
    """The cuDNN frontend, where it is installed and finds cuDNN; else None."""
    if find_spec("cudnn") is None:
        return None
    try:
        found = import_module("cudnn")
        found.backend_version()
    except Exception:  # it loads cuDNN when it is first asked, and says in many ways that there is none
        return None
    return found


def require_cuda() -> None:
    """Raise BackendError, which names everything missing in one line, unless kernels can run."""
    if lacking := missing_for_cuda():
        raise BackendError(f"no CUDA backend can run here: missing {', and '.join(lacking)}")


@lru_cache(maxsize=1)
def cupy_package() -> ModuleType:
    """CuPy, checked; raises BackendError."""
    require_cuda()
    import cupy

    return cupy  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def cuda_device() -> CudaDevice:
    """The current device; raises BackendError."""
    cp = cupy_package()
    runtime = cp.cuda.runtime
    held = runtime.getDeviceProperties(runtime.getDevice())
    name = held["name"].decode() if isinstance(held["name"], bytes) else str(held["name"])
    versions = [f"cupy {cp.__version__}", f"cublas {_cublas_version()}", f"cudnn {_cudnn_version()}"]
    return CudaDevice(
        name,
        f"{held['major']}{held['minor']}",
        int(held["multiProcessorCount"]),
        int(held["l2CacheSize"]),
        int(held["totalGlobalMem"]),
        str(runtime.driverGetVersion()),
        str(runtime.runtimeGetVersion()),
        " ".join(versions),
    )


def _cublas_version() -> str:
    with suppress(Exception):  # a version that is not told must not stop a measurement
        if (library := cublas_lt()) is not None:
            library.cublasLtGetVersion.restype = ctypes.c_size_t
            return str(library.cublasLtGetVersion())
    return "unknown"


def _cudnn_version() -> str:
    with suppress(Exception):
        if (found := cudnn_frontend()) is not None:
            return f"{found.backend_version()} frontend {found.__version__}"
        if find_spec("torch") is not None:
            return f"{import_module('torch').backends.cudnn.version()} by torch"
    return "none"


class DeviceFailure(BackendError):
    """The device runs nothing more in this process: a kernel timed out or failed, and its context is lost."""


_TIMEOUT = "launch timed out"
_LOST = ("illegal memory access", "misaligned address", "launch failure", "device-side assert", "uncorrectable ECC")
_OLD_DRIVER = (
    "driver version is insufficient",
    "unsupported toolchain",
    "UNSUPPORTED_PTX_VERSION",
    "NO_BINARY_FOR_GPU",
)


def describe_device_error(error: Exception, needed_bytes: int = 0) -> BackendError:
    """Return *error*, of CuPy, torch or a library, as one line that says what to do.

    *needed_bytes* are those of the plan that was to run.  An error after which the device runs nothing more becomes a
    ``DeviceFailure``.
    """
    message = " ".join(str(error).split())[:400]
    name = "" if isinstance(error, BackendError) else f"{type(error).__name__}: "
    if isinstance(error, MemoryError) or "out of memory" in message.lower():
        needed = f"{_gib(needed_bytes)} are needed, " if needed_bytes else ""
        return BackendError(
            f"the GPU has not enough memory: {needed}{_free_memory()}; expected a smaller batch, or a GPU that no "
            f"other process uses ({message})"
        )
    if _TIMEOUT in message:
        return DeviceFailure(
            "a kernel ran longer than the driver allows, which ends kernels after some seconds on a GPU with a "
            f"display: expected a smaller model, or a GPU without a display ({message})"
        )
    if any(part in message for part in _LOST):
        return DeviceFailure(f"a kernel failed, and this process can no longer use the GPU: {name}{message}")
    if any(part in message for part in _OLD_DRIVER):
        return BackendError(f"{_versions()}: expected a newer driver, or a CuPy for this one ({name}{message})")
    return error if isinstance(error, BackendError) else BackendError(f"{name}{message}")


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB"


def _free_memory() -> str:
    with suppress(Exception):  # the device may be lost
        free, total = cupy_package().cuda.runtime.memGetInfo()
        return f"{_gib(free)} of {_gib(total)} are free"
    return "it is not known how much is free"


def _versions() -> str:
    with suppress(Exception):  # an old driver answers little
        runtime = import_module("cupy").cuda.runtime
        driver, own = (
            f"{v // 1000}.{v % 1000 // 10}" for v in (runtime.driverGetVersion(), runtime.runtimeGetVersion())
        )
        return f"the NVIDIA driver is for CUDA {driver}, the runtime is CUDA {own}"
    return "the NVIDIA driver does not fit the CUDA runtime"


L2_MULTIPLE = 4
"""The size of all inputs in rotation, relative to the L2."""

SLOW_CALL_SECONDS = 0.02
"""Calls that take at least so long are timed once: neither events nor cold caches matter to them."""

Call = Callable[[], object]


def single_call_seconds(call: Call) -> float:
    """Return the seconds of one call by events; a slow one is repeated once, since the first call may load code."""
    cp = cupy_package()

    def seconds() -> float:
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(cp.cuda.get_elapsed_time(start, end)) * 1e-3

    first = seconds()
    return first if first < SLOW_CALL_SECONDS else min(first, seconds())


def event_seconds(calls: Sequence[Call], samples: int = 15, least: float = 1e-3) -> list[float]:
    """Seconds of a call by events, one for each sample; *calls* do the same on different memory, in rotation.

    A sample repeats them for at least *least* seconds, so that the cost of events is negligible.  There is one sample
    only of calls that take ``SLOW_CALL_SECONDS`` or more.
    """
    cp = cupy_package()
    start, end = cp.cuda.Event(), cp.cuda.Event()
    turn = cycle(calls)

    def sample(repeats: int) -> float:
        start.record()
        for _ in range(repeats):
            next(turn)()
        end.record()
        end.synchronize()
        return float(cp.cuda.get_elapsed_time(start, end)) * 1e-3 / repeats

    for call in calls:
        call()
    once = max(sample(len(calls)), 1e-7)
    if once >= SLOW_CALL_SECONDS:
        return [once]
    repeats = max(1, min(1000, int(least / once) + 1))
    sample(repeats)
    return [sample(repeats) for _ in range(samples)]


def rough_seconds(call: Call) -> float:
    """Seconds of a call, precise enough to choose among a library's algorithms."""
    return median(event_seconds([call], samples=3, least=2e-4))


SHORT_CALL_SECONDS, CALLS_IN_GRAPH = 2e-5, 16
"""Calls that are shorter are timed in a graph of so many."""


def short_call_seconds(call: Call) -> float:
    """``rough_seconds`` of a *call* that can be captured; a short one is repeated in a CUDA graph.

    Otherwise the time that the host takes to launch it would be measured.
    """
    seconds = rough_seconds(call)
    if seconds < SHORT_CALL_SECONDS:
        seconds = rough_seconds(capture_graph(lambda: [call() for _ in range(CALLS_IN_GRAPH)])) / CALLS_IN_GRAPH
    return seconds


def rotation_copies(nbytes: int, memory: float = 0.25) -> int:
    """The number of copies of *nbytes* that exceed the L2; at most the fraction *memory* of the device's memory."""
    held = cuda_device()
    wanted = -(-L2_MULTIPLE * held.l2_bytes // max(1, nbytes))
    return max(1, min(wanted, 64, int(memory * held.memory_bytes / max(1, nbytes))))


def time_in_rounds(calls: Mapping[str, Sequence[Call]], rounds: int = 5) -> dict[str, list[float]]:
    """Seconds of each, in interleaved rounds, so that a change of the clock affects all of them."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, turn in calls.items():
            found[name].append(median(event_seconds(turn, samples=3)))
    return found


def capture_graph(call: Call) -> Call:
    """*call*, which does not call torch, as one CUDA graph that is launched in CuPy's current stream."""
    cp = cupy_package()
    pool = cp.cuda.MemoryPool()
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.get_current_stream().synchronize()
    with stream, cp.cuda.using_allocator(pool.malloc):
        call()  # handles and workspaces are made, and the pool filled
        stream.synchronize()
        stream.begin_capture()
        try:
            call()
        except BaseException:
            # A capture that is not ended makes other calls fail: an interrupt must not cost the whole device.
            with suppress(Exception):
                stream.end_capture()
            raise
        graph = stream.end_capture()

    # The graph has the addresses of buffers that only *call* may refer to.
    def launch(_held: object = (pool, stream, call)) -> None:
        graph.launch(cp.cuda.get_current_stream())

    return launch


def capture_graph_by_torch(call: Call) -> Call:
    """*call*, which may call torch and CuPy, as one graph; its result lives as long as the graph.

    Torch captures, so that torch's memory is the graph's; CuPy works in the stream that torch captures.
    """
    cp = cupy_package()
    torch = import_module("torch")
    pool = cp.cuda.MemoryPool()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side), cp.cuda.ExternalStream(side.cuda_stream), cp.cuda.using_allocator(pool.malloc):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Relaxed: CuPy may ask the driver for memory, which in the strictest mode ends the capture.
    with (
        torch.cuda.graph(graph, stream=side, capture_error_mode="relaxed"),
        cp.cuda.ExternalStream(side.cuda_stream),
        cp.cuda.using_allocator(pool.malloc),
    ):
        held = call()
    torch.cuda.synchronize()

    def replay(_held: object = (held, pool, side, call)) -> None:
        # Torch replays in its current stream: CuPy's, if it has one of its own now.
        stream = cp.cuda.get_current_stream()
        if stream.ptr in (0, 1, 2):
            graph.replay()
            return
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            graph.replay()

    return replay
