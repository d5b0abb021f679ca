"""Compile CUDA text without a GPU by NVIDIA's run-time compiler (wheel ``nvidia-cuda-nvrtc``)."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from einnet_explore.codegen.language.printer import emit, entry_name
from einnet_explore.codegen.language.statements import Kernel
from einnet_explore.runtime.cuda.device import wheel_libraries
from einnet_explore.support.errors import BackendError
from einnet_explore.support.storage import cache_directory

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""A100, H100 and H200, B200; a name ``compute_NN`` gives PTX instead."""

_FOLDERS = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cu13/bin/x86_64")
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll")


@dataclass(frozen=True, slots=True)
class KernelResources:
    """Resources of a kernel: *registers* a thread, bytes of *shared* memory a block, bytes of local memory a thread.

    *stack* is an array that is not in registers, *spills* are registers that did not fit: both go through memory.
    """

    registers: int
    shared: int
    stack: int
    spills: int

    def blocks(self, threads: int, registers: int = 1 << 16, shared: int = 100 << 10, most: int = 2048) -> int:
        """Blocks of *threads* threads that are resident on a multiprocessor of so many registers and bytes at a time.

        Registers are allocated in units of eight a thread, to warps of 32 threads.
        """
        warps = -(-threads // 32)
        by_registers = registers // (max(1, -(-self.registers // 8) * 8) * 32 * warps)
        by_shared = shared // (self.shared + 1024)  # a block's own kilobyte
        return min(by_registers, by_shared, most // (32 * warps), 32)


_ASSEMBLER_LINE = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def kernel_resources(log: str) -> KernelResources | None:
    """The resources of a kernel in the assembler's *log*; None if it has none."""
    found = _ASSEMBLER_LINE.search(log)
    if found is None:
        return None
    shared = re.search(r"(\d+) bytes smem", found["rest"])
    spills = int(found["stores"]) + int(found["loads"])
    return KernelResources(int(found["registers"]), int(shared[1]) if shared else 0, int(found["stack"]), spills)


@dataclass(frozen=True)
class CompiledCuda:
    """Machine code (``sm_NN``, an ELF file that drivers load) or PTX (``compute_NN``, text) of one kernel."""

    entry: str
    architecture: str
    code: bytes
    log: str
    resources: KernelResources | None = None
    """Of machine code, by the assembler's log."""


def compile_cuda(kernel: Kernel, architecture: str = ARCHITECTURES[0]) -> CompiledCuda:
    """*kernel* as CUDA C, compiled for *architecture*.

    Raises BackendError where the compiler is missing or does not know the architecture, and where the text does not
    compile, with the compiler's words.
    """
    return compile_text(emit(kernel, "cuda"), entry_name(kernel), architecture)


def compile_text(text: str, name: str, architecture: str = ARCHITECTURES[0]) -> CompiledCuda:
    """CUDA C *text* that defines the kernel *name*; see ``compile_cuda``."""
    nvrtc = _library()
    kind, _, number = architecture.partition("_")
    if kind not in ("sm", "compute") or not number.rstrip("af").isdecimal():
        raise BackendError(f"architecture {architecture!r}: expected a name such as sm_90 or compute_90")
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    if kind == "sm":
        options.append("--ptxas-options=-v")  # what the assembler has to say goes into the log
    if "#include" in text:
        options.append(f"-I{_headers()}")
    given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    program = ctypes.c_void_p()
    _check_result(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), f"{name}.cu".encode(), 0, None, None))
    try:
        result = nvrtc.nvrtcCompileProgram(program, len(options), given)
        log = _text(program, "nvrtcGetProgramLog").decode(errors="replace").strip("\0\n")
        if result:
            said = log or nvrtc.nvrtcGetErrorString(result).decode()
            raise BackendError(f"kernel {name} is not compiled for {architecture}: {said}")
        code = _text(program, "nvrtcGetCUBIN" if kind == "sm" else "nvrtcGetPTX")
        return CompiledCuda(name, architecture, code, log, kernel_resources(log) if kind == "sm" else None)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def nvrtc_available() -> bool:
    """Return whether the compiler is installed."""
    try:
        _library()
    except BackendError:
        return False
    return True


def nvrtc_version() -> str:
    """The compiler's version, such as ``13.5``; raises BackendError where there is none."""
    nvrtc = _library()
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check_result(nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    nvrtc = _library()
    size = ctypes.c_size_t()
    _check_result(nvrtc[f"{what}Size"](program, ctypes.byref(size)))
    out = ctypes.create_string_buffer(size.value)
    _check_result(nvrtc[what](program, out))
    return out.raw


def _check_result(result: int) -> None:
    if result:
        raise BackendError(f"NVRTC says {_library().nvrtcGetErrorString(result).decode()}")


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    for place in (*wheel_libraries(_FOLDERS, _NAMES), *filter(None, [ctypes.util.find_library("nvrtc")])):
        try:
            library = ctypes.CDLL(place)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    raise BackendError("NVRTC, which compiles CUDA text, is not installed: pip install nvidia-cuda-nvrtc")


@lru_cache(maxsize=1)
def _headers() -> Path:
    """The folder of CUDA's own headers, such as half precision's, which the compiler unpacks once."""
    nvrtc = _library()
    for name in ("CUDA_HOME", "CUDA_PATH"):
        folder = Path(os.environ.get(name, "-")) / "include"
        if (folder / "cuda_fp16.h").exists():
            return folder
    if not hasattr(nvrtc, "nvrtcInstallBundledHeaders"):
        raise BackendError(
            f"NVRTC {nvrtc_version()} carries no headers: set CUDA_HOME, or install nvidia-cuda-nvrtc 13.5"
        )
    folder = cache_directory() / f"nvrtc-{nvrtc_version()}"
    said = ctypes.c_char_p()
    with suppress(OSError):  # the next line says why not
        folder.parent.mkdir(parents=True, exist_ok=True)
    if nvrtc.nvrtcInstallBundledHeaders(str(folder).encode(), 0, ctypes.byref(said)):
        raise BackendError(f"NVRTC does not unpack its headers into {folder}: {(said.value or b'').decode()}")
    return folder
