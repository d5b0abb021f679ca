"""Child process of the sandbox: run one new kernel for each line of standard input.

It imports nothing of this package.  Its argument is TVM's runtime library.  A line is ``{"file", "arrays": [[shape,
dtype], …]}``.  The kernel is called once on arrays of ones with guards before and after each.  The answer is
``{"wrong": "…", "lasting": …}``: *wrong* is empty for a kernel that ran; *lasting* is false if memory ran out.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Ctrl-C goes to all processes of a terminal or a notebook, and is this one's parent's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

import ctypes
import json
import os
import sys
from math import prod

import numpy as np
import tvm_ffi

GUARD_BYTES = 4096
"""Bytes before and after each array that no kernel may write."""


def serve() -> None:
    """Answer until the input ends."""
    # What a kernel prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
    return_free_memory = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc would keep arrays that were freed
    print(json.dumps({"wrong": "", "lasting": False}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        lasting = True
        try:
            wrong = first_run_failure(asked["file"], asked["arrays"])
        except MemoryError:
            wrong, lasting = "there is no memory for the arrays of its first run", False
        except Exception as error:
            wrong = f"it raises {type(error).__name__}: {error}"
        if return_free_memory is not None:
            return_free_memory(0)
        print(json.dumps({"wrong": wrong, "lasting": lasting}), file=answers, flush=True)


def first_run_failure(file: str, specs: list[tuple[list[int], str]]) -> str:
    """Run the kernel in *file* on arrays of these shapes and dtypes; return its fault, empty if there is none."""
    function = tvm_ffi.load_module(file)["main"]
    held, arrays = [], []
    for shape, dtype in specs:
        kind = np.dtype(dtype)
        size = prod(shape) * kind.itemsize
        raw = np.full(size + 2 * GUARD_BYTES + 64, 0x5A, np.uint8)
        start = GUARD_BYTES + -(raw.ctypes.data + GUARD_BYTES) % 64
        array = raw[start : start + size].view(kind).reshape(shape)
        array[...] = 1
        held.append((raw, start, size))
        arrays.append(array)
    function(*map(tvm_ffi.from_dlpack, arrays))
    for n, (raw, start, size) in enumerate(held):
        if (raw[:start] != 0x5A).any() or (raw[start + size :] != 0x5A).any():
            return f"it writes beyond argument {n} of {len(held)}"
    return ""


if __name__ == "__main__":
    serve()
