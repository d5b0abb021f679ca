"""Compiled functions: TVM modules built for this processor and kept in the cache directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import tvm

from einnet_explore.backends import trial
from einnet_explore.backends.errors import BackendError
from einnet_explore.kernels.machine import cpu_flags
from einnet_explore.storage import cache_directory, write_aside

VECTORS = ("sse", "ssse", "avx", "fma", "f16c", "bmi", "abm", "popcnt", "movbe", "gfni", "xop", "amx", "sve")
"""How flags of a processor begin that compilers choose instructions by."""

# Else a pool of one thread ties the whole process to the first core, and all such processes of a machine to the same.
os.environ.setdefault("TVM_BIND_THREADS", "0")


def stored(key: str) -> Any:
    """The function kept under *key*; None where there is none, or a damaged one."""
    return _read(_path(key))


def build(function: Any, key: str, threads: int) -> Any:
    """Compile a PrimFunc, keep it under *key* where the disk allows it, and give the callable function.

    It has run once in another process when it is kept; raises BackendError where it crashed or hung there.
    """
    module = tvm.compile(tvm.IRModule({"main": function}), target=_target(threads)).mod
    path = _path(key)
    arrays = [(tuple(map(int, buffer.shape)), str(buffer.dtype)) for buffer in function.params]
    if write_aside(path, lambda new: _tried(module, new, arrays)) and (kept := _read(path)) is not None:
        return kept
    return module["main"]


def build_c(source: str, key: str, arrays: Sequence[tuple[tuple[int, ...], str]], flags: Sequence[str]) -> Any:
    """Compile *source*, in C with TVM's entry point, for *arrays* (shapes and dtypes); keep it under *key*.

    It has run once in another process when it is kept.  Raises BackendError where it crashed or hung there, where no C
    compiler or no place to keep it is there, and, with the compiler's words, where *source* is refused.
    """
    if _linker() is None:
        raise BackendError("no C compiler was found: it needs cc, gcc or clang")
    path, wrong = _path(key), ""

    def make(new: Path) -> None:
        nonlocal wrong
        try:
            _compile(source, new, *flags)
        except OSError as error:
            wrong = str(error).strip()
            raise
        trial.run(new, arrays)

    if not write_aside(path, make):
        raise BackendError(f"no kernel is kept as {path}: {wrong or 'it cannot be written'}")
    if (kept := _read(path)) is None:
        raise BackendError(f"the kernel kept as {path} cannot be loaded, or others may write there")
    return kept


def _path(key: str) -> Path:
    return cache_directory() / "kernels" / f"{key}{'.so' if _linker() else '.ll'}"


@cache
def _target(threads: int) -> Any:
    # A virtual machine may hide some of what a CPU of that name can do.
    flags = cpu_flags()
    lacks = [f"-{name}" for name in ("avx512f", "avx2", "fma") if flags and name not in flags]
    wanted = {"kind": "llvm", "num-cores": threads, "mcpu": cpu_name()}
    return tvm.target.Target({**wanted, "mattr": lacks} if lacks else wanted)


@cache
def platform() -> tuple[str, str, str]:
    """(TVM's version, the host's CPU as LLVM calls it, the vector instructions that it has): what code is made for."""
    has = sorted(flag for flag in cpu_flags() if flag.startswith(VECTORS))
    return tvm.__version__, str(tvm.target.codegen.llvm_get_system_cpu()), " ".join(has)


def c_compiler() -> str:
    """The C compiler's name and version as it says them; empty where there is none."""
    linker = _linker()
    return _first_line(linker) if linker else ""


@cache
def _first_line(command: str) -> str:
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    return said.partition("\n")[0]


def kernel_file(key: str) -> Path | None:
    """The shared library of the function kept under *key*; None where there is none."""
    path = _path(key)
    return path if path.suffix == ".so" and path.exists() and _own(path) else None


def c_library(source: str, *flags: str) -> Path | None:
    """*source*, in C, as a shared library in the cache directory; None where nothing here compiles it.

    *flags* go to the compiler; a library made with some is kept for this processor only.
    """
    if _linker() is None:
        return None
    own = "\0".join((source, *flags, *platform()[1:])) if flags else source
    path = cache_directory() / "kernels" / f"c-{hashlib.sha256(own.encode()).hexdigest()[:40]}.so"
    if _whole(path):
        return path
    return path if write_aside(path, lambda new: _compile(source, new, *flags)) and _whole(path) else None


def c_complaint(source: str, *flags: str) -> str:
    """What the C compiler says of *source*: empty where it compiles it, or where there is no compiler."""
    if _linker() is None:
        return ""
    try:
        with tempfile.TemporaryDirectory(prefix="einnet-explore-") as folder:
            _compile(source, Path(folder) / "kernel.so", *flags)
    except OSError as error:
        return str(error)
    return ""


def cpu_name() -> str:
    """The host's CPU as LLVM calls it."""
    return platform()[1]


@cache
def _linker() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


_pool = 1


def use_threads(threads: int) -> None:
    """TVM's pool grows to the largest number of threads that a kernel asks for."""
    global _pool  # noqa: PLW0603 - the pool is the process's
    if threads > _pool:  # one thread needs no pool: made for one, it could be too small for ever
        # Without the variable TVM takes half of the cores; it reads it once, when the pool is made.
        os.environ.setdefault("TVM_NUM_THREADS", str(max(threads, os.cpu_count() or 1)))
        tvm.get_global_func("runtime.config_threadpool")(1, threads)
        _pool = threads


def _tried(module: Any, path: Path, arrays: Sequence[tuple[tuple[int, ...], str]]) -> None:
    _save(module, path)
    if path.suffix == ".so":
        trial.run(path, arrays)


ROOM = 4 << 20
"""Bytes that must be free for a kernel: where the disk is full LLVM ends the process instead of saying so."""


def _save(module: Any, path: Path) -> None:
    reserve = path.with_suffix(".room")
    with reserve.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, ROOM)
    reserve.unlink()
    if path.suffix == ".ll":
        module.write_to_file(str(path), "ll")
    else:
        compiled = path.with_suffix(".o")
        module.write_to_file(str(compiled), "o")
        _link(str(compiled), "-o", str(path))
    _close(path)


def _compile(source: str, path: Path, *flags: str) -> None:
    text = path.with_suffix(".c")
    text.write_text(source)
    _link("-O2", "-fPIC", *flags, str(text), "-o", str(path), *(("-lm",) if flags else ()))
    _close(path)


def _link(*arguments: str) -> None:
    done = subprocess.run([str(_linker()), "-shared", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr)


def _close(path: Path) -> None:
    # A comment to LLVM, and beyond the end to the loader: half a library must not be loaded, it would crash.
    path.write_bytes((content := path.read_bytes()) + _seal(content))
    path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def _seal(content: bytes) -> bytes:
    return b"\n; sha256 " + hashlib.sha256(content).hexdigest().encode()


def _whole(path: Path) -> bool:
    """Whether *path* is there and as it was written, where nobody else can have written it: it is going to be run."""
    try:
        if not _own(path):
            return False
        content = path.read_bytes()
    except OSError:
        return False
    length = len(_seal(b""))
    return content[-length:] == _seal(content[:-length])


def _own(path: Path) -> bool:
    """Whether *path* and its folder belong to this user, or to root, and nobody else may write there."""
    for held in (path.stat(), path.parent.stat()):
        ours = held.st_gid == os.getegid() or not held.st_mode & stat.S_IWGRP
        if held.st_uid not in (os.geteuid(), 0) or not ours or held.st_mode & stat.S_IWOTH:
            return False
    return True


def _read(path: Path) -> Any:
    """The function in *path*; None where there is none, or a damaged one."""
    if not _whole(path):
        return None
    try:
        return tvm.runtime.load_module(str(path))["main"]
    except Exception:
        return None
