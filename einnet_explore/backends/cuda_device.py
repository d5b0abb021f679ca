"""The NVIDIA device that CuPy sees: what it is called, or all that is missing.  Nothing is imported before it is asked.

The device's settings are never touched.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from einnet_explore.backends.errors import BackendError


class DeviceMissing(BackendError):
    """There is no GPU to run on; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """The device in use: what figures from it are kept with."""

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
        """(device, libraries) as profiles are kept by."""
        return f"CUDA {self.name}", f"driver {self.driver} runtime {self.runtime} {self.libraries}"


def missing() -> tuple[str, ...]:
    """What is missing of CuPy, an NVIDIA driver and a device, each with how to get it; nothing where all is there."""
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
        return (f"an NVIDIA driver that CuPy {cupy.__version__} can use ({error})",)
    return () if count else ("a GPU that is visible to this process",)


def _no_driver() -> tuple[str, ...]:
    import ctypes

    for name in ("libcuda.so.1", "nvcuda.dll"):
        with suppress(OSError):
            ctypes.CDLL(name)
            return ()
    return ("an NVIDIA driver (libcuda)",)


def missing_for_products() -> tuple[str, ...]:
    """What is missing of cuBLAS, which CuPy 14 finds when it is first used."""
    try:
        cublas()
    except ImportError as error:
        return (f"cuBLAS (pip install nvidia-cublas; {str(error).splitlines()[0][:120]})",)
    return ()


def cublas() -> Any:
    """CuPy's thin layer over cuBLAS; raises ImportError where there is none."""
    # As an attribute, not as a module of that name: the package loads the library from its wheel first.
    return import_module("cupy_backends.cuda.libs").cublas


def missing_for_convolutions() -> tuple[str, ...]:
    """What is missing of a library for convolutions: the cuDNN frontend with cuDNN, or a torch that sees the device."""
    if frontend() is not None:
        return ()
    if find_spec("torch") is None:
        return ("the cuDNN frontend (pip install nvidia-cudnn-frontend nvidia-cudnn-cu13), or torch with CUDA",)
    torch = import_module("torch")
    return () if torch.cuda.is_available() else ("a torch with CUDA (this one is for CPUs)",)


@cache
def frontend() -> Any | None:
    """The cuDNN frontend, where it is installed and finds cuDNN; else None."""
    if find_spec("cudnn") is None:
        return None
    try:
        found = import_module("cudnn")
        found.backend_version()
    except Exception:  # it loads cuDNN when it is first asked, and says in many ways that there is none
        return None
    return found


def check() -> None:
    """Raise DeviceMissing, which says in one line what is missing, unless kernels can be run."""
    if lacking := missing():
        raise DeviceMissing(f"no CUDA backend can run here: missing {', and '.join(lacking)}")


@cache
def package() -> ModuleType:
    """CuPy, checked; raises DeviceMissing."""
    check()
    import cupy

    return cupy  # type: ignore[no-any-return]


@cache
def device() -> Cuda:
    """The current device; raises DeviceMissing."""
    cp = package()
    runtime = cp.cuda.runtime
    held = runtime.getDeviceProperties(runtime.getDevice())
    name = held["name"].decode() if isinstance(held["name"], bytes) else str(held["name"])
    versions = [f"cupy {cp.__version__}", f"cublas {_cublas_version(cp)}", f"cudnn {_cudnn_version()}"]
    return Cuda(
        name,
        f"{held['major']}{held['minor']}",
        int(held["multiProcessorCount"]),
        int(held["l2CacheSize"]),
        int(held["totalGlobalMem"]),
        str(runtime.driverGetVersion()),
        str(runtime.runtimeGetVersion()),
        " ".join(versions),
    )


def _cublas_version(cp: ModuleType) -> str:
    with suppress(Exception):  # a version that is not told must not stop a measurement
        return str(cublas().getVersion(cp.cuda.device.get_cublas_handle()))
    return "unknown"


def _cudnn_version() -> str:
    with suppress(Exception):
        if (found := frontend()) is not None:
            return f"{found.backend_version()} frontend {found.__version__}"
        if find_spec("torch") is not None:
            return f"{import_module('torch').backends.cudnn.version()} by torch"
    return "none"
