"""Compiled functions in the cache directory, and the sandbox that runs each of them for the first time.

A new kernel first runs in a child process, so that a crash, a hang or a write beyond its arrays ends only the child.  A
failure is stored by the kernel's content and the kernel is never run again, unless memory ran out or the child was
killed from outside.  The child lives as long as this process and is restarted after a crash; if it cannot be started,
kernels run without a sandbox.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import importlib.util
import json
import os
import platform
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TypeAlias

import tvm_ffi

from einnet_explore.codegen.register_tiles import cpu_flags
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.support.errors import BackendError
from einnet_explore.support.lazy_modules import LazyModule
from einnet_explore.support.storage import cache_directory, write_aside

tvm = LazyModule("tvm")

MAX_RUN_SECONDS = 60.0
"""Seconds after which a kernel's first run counts as hanging."""

MAX_START_SECONDS = 120.0
"""Seconds that the process may take to start."""

EXTERNAL_EXIT_CODES = frozenset(-s for s in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
"""Exit codes of a process that the system (out of memory) or the user ended: no fault of a kernel."""

ArraySpec: TypeAlias = "tuple[tuple[int, ...], str]"
"""The shape and the dtype of an argument."""

_lock = threading.Lock()
_children: dict[int, subprocess.Popen[str]] = {}
"""By the process that they belong to: a fork has none of its parent's."""
_unavailable: set[int] = set()


def run_in_sandbox(file: Path, arrays: Sequence[ArraySpec]) -> None:
    """Let the kernel in *file* run once on arrays of these shapes and dtypes.

    Raises BackendError where it crashes, hangs or writes beyond them, now or when it was tried before.
    """
    note = cache_directory() / "kernels" / f"refused-{hashlib.sha256(file.read_bytes()).hexdigest()[:40]}.txt"
    if note.exists():
        raise BackendError(f"the kernel is not run: {note.read_text().strip()}")
    with _lock:
        wrong, lasting = _ask({"file": str(file), "arrays": [list(each) for each in arrays]})
    if wrong and lasting:
        write_aside(note, lambda new: _write(new, wrong))
    if wrong:
        raise BackendError(f"the kernel is not run: {wrong}")


def _write(path: Path, wrong: str) -> None:
    path.write_text(f"{wrong}\n")


def _ask(question: dict[str, object]) -> tuple[str, bool]:
    """Return the kernel's fault, empty if there is none, and whether it would occur again."""
    child = _child()
    if child is None or child.stdin is None:
        return "", False
    try:
        child.stdin.write(json.dumps(question) + "\n")
        child.stdin.flush()
    except OSError:
        _stop(child)
        return "", False  # it was gone before: nothing is known of this kernel
    answer = _answer(child, MAX_RUN_SECONDS)
    if answer is not None:
        return answer
    code = child.poll()
    _stop(child)
    if code is None:
        return f"its first run, in a process of its own, had not ended after {MAX_RUN_SECONDS:.0f} seconds", True
    return f"its first run ended its process with {code}", code not in EXTERNAL_EXIT_CODES


def _answer(child: subprocess.Popen[str], seconds: float) -> tuple[str, bool] | None:
    """Return the fault that the process reports, and whether it would occur again; None if it reports nothing."""
    assert child.stdout is not None
    try:
        ready, _, _ = select.select([child.stdout], [], [], seconds)
        line = child.stdout.readline() if ready else ""
        if ready and not line:
            child.wait()
    except BaseException:
        _stop(child)  # an answer that nobody has waited for would be taken for the next kernel's
        raise
    if not line:
        return None
    said = json.loads(line)
    return str(said["wrong"]), bool(said["lasting"])


def _child() -> subprocess.Popen[str] | None:
    here = os.getpid()
    if here in _children or here in _unavailable:
        return _children.get(here)
    try:
        command = [sys.executable, str(Path(__file__).with_name("sandbox_child.py")), str(_runtime_library())]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except (OSError, BackendError):
        _unavailable.add(here)
        return None
    _children[here] = child
    if _answer(child, MAX_START_SECONDS) is None:
        _stop(child)
        _unavailable.add(here)
        return None
    return child


@lru_cache(maxsize=1)
def load_runtime() -> None:
    """Load what kernels call: TVM's runtime, or what stands for it where TVM is missing; raises BackendError."""
    ctypes.CDLL(str(_runtime_library()), ctypes.RTLD_GLOBAL)


@lru_cache(maxsize=1)
def _runtime_library() -> Path:
    folder = _tvm_folder()
    if folder is not None:
        library = folder / "lib" / f"libtvm_runtime{'.dylib' if sys.platform == 'darwin' else '.so'}"
        with suppress(OSError):  # it does not load, or is not there
            ctypes.CDLL(str(library))
            return library
    source = resources.files(__package__).joinpath("serial_runtime.c").read_text()
    return c_library(source, tvm_ffi.libinfo.find_libtvm_ffi())


def _tvm_folder() -> Path | None:
    """Return TVM's folder without importing it, which takes as long as reading a model; None if it is missing."""
    try:
        spec = importlib.util.find_spec("tvm")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _stop(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
    _children.pop(os.getpid(), None)


def _renew_lock() -> None:
    """Make a new lock in a fork: another thread of the parent may have held the old one."""
    global _lock  # noqa: PLW0603 - it is the process's
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


VECTOR_FLAG_PREFIXES = (
    "sse",
    "ssse",
    "avx",
    "fma",
    "f16c",
    "bmi",
    "abm",
    "popcnt",
    "movbe",
    "gfni",
    "xop",
    "amx",
    "sve",
)
"""Prefixes of the processor's flags by which compilers choose instructions."""

# Else a pool of one thread ties the whole process to the first core, and all such processes of a machine to the same.
os.environ.setdefault("TVM_BIND_THREADS", "0")

# A thread of TVM's pool that waits yields so often before it sleeps: for two milliseconds.  TVM's own 300,000 times
# take 0.2 seconds, in which it has a core that the next engine is measured on, also in the process that tries kernels.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "2500")


ENTRY_POINT_PREFIX = "__tvm_ffi_"
ENTRY_POINT = f"{ENTRY_POINT_PREFIX}main"
"""The function of a compiled kernel."""

CompiledFunction: TypeAlias = "Callable[..., object]"
"""A compiled function of TVM's or in C, which is called with its arrays, or their addresses, and numbers."""


def load_stored(key: str) -> CompiledFunction | None:
    """The function stored under *key*; None if there is none, or if it is damaged."""
    return _load(_path(key))


def build_tvm(function: TvmObject, key: str, threads: int) -> CompiledFunction:
    """Compile a PrimFunc, store it under *key* if the disk allows it, and return the callable function.

    Before it is stored it runs once in the sandbox; raises BackendError if it crashes or hangs there.
    """
    path, place = _path(key), Future[Path | None]()
    structure = tvm_ffi.StructuralKey(function)  # type: ignore[call-arg]  # TVM FFI's stub has its field
    known = _built.setdefault((structure, threads), place)
    if known is not place and (kept := _load_copy(known.result(), path)) is not None:
        return kept
    try:
        compiled = _build_tvm(function, path, threads)
    finally:
        if not place.done():
            place.set_result(path if path.exists() else None)
    return compiled


_built: dict[tuple[tvm_ffi.StructuralKey, int], Future[Path | None]] = {}
"""The files of this process's kernels by function and threads: equal functions of different scopes are built once."""


def _load_copy(built: Path | None, path: Path) -> CompiledFunction | None:
    """Return the function in *built*, copied to *path*; None if there is no such file."""
    if built is None:
        return None

    def write(new: Path) -> None:
        shutil.copy2(built, new)

    return _load(path) if write_aside(path, write) else None


def _build_tvm(function: TvmObject, path: Path, threads: int) -> CompiledFunction:
    module = _compile_tvm(tvm.IRModule({"main": function}), _target(threads))
    arrays = [(tuple(map(int, buffer.shape)), str(buffer.dtype)) for buffer in function.params]
    if write_aside(path, lambda new: _save_and_try(module, new, arrays)) and (kept := _load(path)) is not None:
        return kept
    compiled: CompiledFunction = module["main"]
    return compiled


def _compile_tvm(module: TvmObject, target: TvmObject) -> TvmObject:
    """Compile *module*; buffers do not share memory, or LLVM would not keep those of sums in registers."""
    with tvm.transform.PassContext(opt_level=2, config={"tirx.disable_storage_rewrite": True}):
        return tvm.compile(module, target=target).mod


def build_c(source: str, key: str, arrays: Sequence[ArraySpec], flags: Sequence[str]) -> CompiledFunction:
    """Compile *source*, in C with TVM's entry point, for *arrays* (shapes and dtypes); store it under *key*.

    Before it is stored it runs once in the sandbox.  Raises BackendError if it crashes or hangs there, if there is no C
    compiler or it cannot be stored, and, with the compiler's words, if *source* does not compile.
    """
    path = _path(key)

    def make(new: Path) -> None:
        _compile(source, new, *flags)
        run_in_sandbox(new, arrays)

    if not write_aside(path, make):
        raise BackendError(f"no kernel is kept as {path}: it cannot be written")
    if (kept := _load(path)) is None:
        raise BackendError(f"the kernel kept as {path} cannot be loaded, or others may write there")
    return kept


def _path(key: str) -> Path:
    return cache_directory() / "kernels" / f"{key}{'.so' if _linker() else '.ll'}"


@lru_cache(maxsize=16)
def _target(threads: int) -> TvmObject:
    # A virtual machine may hide some of what a CPU of that name can do.
    flags = cpu_flags()
    lacks = [f"-{name}" for name in ("avx512f", "avx2", "fma") if flags and name not in flags]
    wanted = {"kind": "llvm", "num-cores": threads, "mcpu": cpu_name()}
    return tvm.target.Target({**wanted, "mattr": lacks} if lacks else wanted)


@lru_cache(maxsize=1)
def compilation_target() -> tuple[str, str, str]:
    """The target of compilation: TVM's version, LLVM's name of the host's CPU, and its vector instructions.

    Without TVM the first is empty, and the CPU has the name of its architecture.  TVM is imported once for each
    installation and processor: the answer is remembered in the cache directory.
    """
    has = " ".join(sorted(flag for flag in cpu_flags() if flag.startswith(VECTOR_FLAG_PREFIXES)))
    note = _target_note()
    known = _read_target(note) if note is not None else None
    if known is not None:
        return *known, has
    try:
        version, name = tvm.__version__, str(tvm.target.codegen.llvm_get_system_cpu())
    except BackendError:
        return "", platform.machine(), has
    if note is not None:
        write_aside(note, lambda new: _write(new, json.dumps([version, name])))
    return version, name, has


def _target_note() -> Path | None:
    """Return the file that remembers the target of this installation of TVM on this processor.

    None where TVM is missing, or the system does not describe the processor.
    """
    folder = _tvm_folder()
    if folder is None:
        return None
    try:
        described = _CPU_INFO.read_text().split("\n\n")[0]
        installed = [(str(path), path.stat().st_mtime_ns) for path in sorted((folder / "lib").iterdir())]
    except OSError:
        return None
    lines = [line for line in described.splitlines() if line.partition("\t")[0] in _CPU_FIELDS]
    if not lines or not installed:
        return None
    digest = hashlib.sha256("\n".join((*lines, repr(installed))).encode()).hexdigest()[:40]
    return cache_directory() / "kernels" / f"target-{digest}.json"


def _read_target(note: Path) -> tuple[str, str] | None:
    """Return TVM's version and the CPU's name that *note* remembers; None if it has none, or others may write there."""
    try:
        found = json.loads(note.read_text()) if _is_owned(note) else None
    except (OSError, ValueError):
        return None
    match found:
        case [str(version), str(name)]:
            return version, name
    return None


_CPU_INFO = Path("/proc/cpuinfo")

_CPU_FIELDS = frozenset(("vendor_id", "cpu family", "model", "model name", "stepping", "flags"))
"""Fields of ``_CPU_INFO`` from which LLVM's name of a processor follows."""


def c_compiler() -> str:
    """The C compiler's name and version as it prints them; empty if there is none."""
    linker = _linker()
    return _first_line(linker) if linker else ""


@lru_cache(maxsize=8)
def _first_line(command: str) -> str:
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    return said.partition("\n")[0]


def kernel_file(key: str) -> Path | None:
    """The shared library of the function stored under *key*; None if there is none."""
    path = _path(key)
    return path if path.suffix == ".so" and path.exists() and _is_owned(path) else None


def c_library(source: str, *flags: str) -> Path:
    """*source*, in C, as a shared library in the cache directory.

    *flags* go to the compiler; a library made with flags is stored for this processor only.  Raises BackendError, with
    the compiler's words, if it does not compile, and if it cannot be stored.
    """
    own = "\0".join((source, *flags, *compilation_target()[1:])) if flags else source
    path = cache_directory() / "kernels" / f"c-{hashlib.sha256(own.encode()).hexdigest()[:40]}.so"
    if not _is_intact(path):
        written = write_aside(path, lambda new: _compile(source, new, *flags))
        if not written or not _is_intact(path):
            raise BackendError(f"no library is kept as {path}: it cannot be written, or others may write there")
    return path


def load_c_function(source: str, name: str, *flags: str) -> CompiledFunction:
    """The function *name* of *source*, in C, which returns nothing; raises as ``c_library`` does."""
    function = ctypes.CDLL(str(c_library(source, *flags)))[name]
    function.restype = None
    return function


def last_line(error: Exception) -> str:
    """The last line of *error*, in which TVM says what it refuses; its class if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def cpu_name() -> str:
    """The host's CPU as LLVM calls it."""
    return compilation_target()[1]


@lru_cache(maxsize=1)
def _linker() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


_pool = 1


def use_threads(threads: int) -> None:
    """Let TVM's pool have at least *threads* threads."""
    global _pool  # noqa: PLW0603 - the pool is the process's
    if threads > _pool:  # one thread needs no pool: made for one, it could be too small for ever
        # Without the variable TVM takes half of the cores; it reads it once, when the pool is made.
        os.environ.setdefault("TVM_NUM_THREADS", str(max(threads, os.cpu_count() or 1)))
        load_runtime()
        if (configure := tvm_ffi.get_global_func("runtime.config_threadpool", allow_missing=True)) is not None:
            configure(1, threads)
        _pool = threads


def write_c_object(source: str, path: Path, name: str, flags: Sequence[str]) -> None:
    """Compile *source*, in C with TVM's entry point, to an object file at *path* whose entry point is called *name*.

    Raises BackendError if there is no C compiler, and, with its words, if *source* does not compile.
    """
    text = path.with_suffix(".c")
    text.write_text(source)
    # Every kernel defines the variables for functions of the runtime; its library gives their values.
    run_c_compiler("-c", "-fPIC", "-fcommon", f"-D{ENTRY_POINT}={name}", *flags, str(text), "-o", str(path))


def write_tvm_object(function: TvmObject, path: Path, name: str, cpu: str, threads: int) -> None:
    """Compile a PrimFunc for processors like *cpu* to an object file at *path* with the entry point *name*."""
    # LLVM prefers vectors of half the width for this name, which the kernels that were measured have not.
    wide = {"mattr": ["-prefer-256-bit"]} if cpu == "x86-64-v4" else {}
    target = tvm.target.Target({"kind": "llvm", "num-cores": threads, "mcpu": cpu, **wide})
    stem = name.removeprefix(ENTRY_POINT_PREFIX)
    module = tvm.IRModule({stem: function.with_attr("global_symbol", stem)})
    _compile_tvm(module, target).write_to_file(str(path), "o")


def _save_and_try(module: TvmObject, path: Path, arrays: Sequence[ArraySpec]) -> None:
    _save(module, path)
    if path.suffix == ".so":
        run_in_sandbox(path, arrays)


MIN_FREE_BYTES = 4 << 20
"""Bytes that must be free for a kernel: where the disk is full LLVM ends the process instead of saying so.

Where the system cannot reserve them (macOS) its count of free bytes is taken.
"""


def _save(module: TvmObject, path: Path) -> None:
    if hasattr(os, "posix_fallocate"):
        reserve = path.with_suffix(".room")
        with reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, MIN_FREE_BYTES)
        reserve.unlink()
    elif shutil.disk_usage(path.parent).free < MIN_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if path.suffix == ".ll":
        module.write_to_file(str(path), "ll")
    else:
        compiled = path.with_suffix(".o")
        module.write_to_file(str(compiled), "o")
        _run_compiler("-shared", str(compiled), "-o", str(path))
    _seal_file(path)


def _compile(source: str, path: Path, *flags: str) -> None:
    """Write *source*, in C, to *path* as a shared library; raises BackendError with the compiler's words."""
    text = path.with_suffix(".c")
    text.write_text(source)
    run_c_compiler("-shared", "-O2", "-fPIC", *flags, str(text), "-o", str(path), *(("-lm",) if flags else ()))
    _seal_file(path)


def run_c_compiler(*arguments: str) -> None:
    """Run the C compiler; raises BackendError, with its words if it fails, or if there is none."""
    if _linker() is None:
        raise BackendError("no C compiler was found: it needs cc, gcc or clang")
    try:
        _run_compiler(*arguments)
    except OSError as error:
        raise BackendError(str(error).strip()) from None


def _run_compiler(*arguments: str) -> None:
    done = subprocess.run([str(_linker()), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr)


def _seal_file(path: Path) -> None:
    # A comment to LLVM, and beyond the end to the loader: half a library must not be loaded, it would crash.
    path.write_bytes((content := path.read_bytes()) + _seal(content))
    path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def _seal(content: bytes) -> bytes:
    return b"\n; sha256 " + hashlib.sha256(content).hexdigest().encode()


def _is_intact(path: Path) -> bool:
    """Return whether *path* exists unchanged, and nobody else can have written it: it is going to be run."""
    try:
        if not _is_owned(path):
            return False
        content = path.read_bytes()
    except OSError:
        return False
    length = len(_seal(b""))
    return content[-length:] == _seal(content[:-length])


def _is_owned(path: Path) -> bool:
    """Return whether *path* and its folder belong to this user or root, and nobody else may write there."""
    for held in (path.stat(), path.parent.stat()):
        ours = held.st_gid == os.getegid() or not held.st_mode & stat.S_IWGRP
        if held.st_uid not in (os.geteuid(), 0) or not ours or held.st_mode & stat.S_IWOTH:
            return False
    return True


def _load(path: Path) -> CompiledFunction | None:
    """The function in *path*; None if there is none, or if it is damaged."""
    if not _is_intact(path):
        return None
    try:
        load_runtime()
        function: CompiledFunction = tvm_ffi.load_module(str(path))["main"]
    except Exception:  # TVM fails in many ways, internal errors among them
        return None
    return function
