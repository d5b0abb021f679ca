"""Compiled kernels as nodes of an ONNX graph: a whole program in one ONNX Runtime session.

A custom operator (``hosted.c``) calls the kernel by its address and hands it the session's threads.  Between a library
call and a kernel nothing happens then: no Python, no copy, no second pool of threads that takes the first one's cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import onnx
import onnxruntime
from onnx import helper

from einnet_explore.backends import compiled

DOMAIN = "einnet"
"""The custom operator's; models with it are never written to a file, since they hold addresses."""

_LAUNCH, _SPACE = "__TVMBackendParallelLaunch", "__TVMBackendAllocWorkspace"
"""Where a compiled kernel keeps the runtime's functions that it calls; TVM fills them in when it loads the kernel."""


def available() -> bool:
    """Whether sessions can run kernels here: a C compiler built the operator, and this ONNX Runtime takes it."""
    return _operator() is not None


def register(options: onnxruntime.SessionOptions) -> None:
    """Let sessions made with *options* run kernels."""
    options.register_custom_ops_library(str(_operator()))


def node(
    key: str, shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...], threads: int, reads: Sequence[str], makes: str
) -> onnx.NodeProto | None:
    """The function kept under *key* on the values *reads*, giving *makes* in *shape*; None where no session can run it.

    *shapes* are those of its arguments, the result last, as the function sees them.  It was loaded before.  The node
    holds an address; the library that it points into is never unloaded.
    """
    file = compiled.kernel_file(key)
    if file is None or not available():
        return None
    library = ctypes.CDLL(str(file))
    if not all(slot.value for name in (_LAUNCH, _SPACE) if (slot := _slot(library, name)) is not None):
        return None  # loaded a second time, from a file that was replaced: nobody filled these in
    _take_over(library)
    entry = ctypes.cast(library["__tvm_ffi_main"], ctypes.c_void_p).value
    numbers = [len(shapes), *map(len, shapes), *(n for seen in shapes for n in seen), *shape]
    return helper.make_node("Kernel", list(reads), [makes], domain=DOMAIN, entry=entry, threads=threads, shapes=numbers)


def _take_over(library: ctypes.CDLL) -> None:
    """Let the kernel in *library* ask ours for threads, which asks the session, or TVM's pool outside of one."""
    path = _operator()
    assert path is not None
    ours = ctypes.CDLL(str(path))
    launch = ctypes.cast(ours["einnet_launch"], ctypes.c_void_p).value
    slot = _slot(library, _LAUNCH)
    if slot is not None and slot.value != launch:
        ours["einnet_pool"](ctypes.c_void_p(slot.value))
        slot.value = launch


def _slot(library: ctypes.CDLL, name: str) -> ctypes.c_void_p | None:
    try:
        return ctypes.c_void_p.in_dll(library, name)
    except ValueError:
        return None


@cache
def _operator() -> Path | None:
    source = resources.files(__package__).joinpath("hosted.c").read_text()
    path = compiled.c_library(source)
    if path is None:
        return None
    try:
        onnxruntime.SessionOptions().register_custom_ops_library(str(path))
    except Exception:  # ONNX Runtime has a class of its own for every kind of failure
        return None
    return path
