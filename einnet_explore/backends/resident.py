"""Weights of kernels in one piece of memory with large pages, which sessions read where it is.

A kernel that reads megabytes of weights once visits each page of 4 KiB once: what translates addresses has forgotten it
since the last run, and the processor's prefetching ends with the page.  Sessions put weights where they like.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

Array = npt.NDArray[Any]

LINE = 64
"""Bytes to which every array is aligned."""

PAGE = 2 << 20
"""Bytes of a large page; fewer weights are left where a session puts them."""


def resident(arrays: Mapping[str, Array]) -> Mapping[str, Array]:
    """Copies of *arrays*, one after the other in memory of large pages where the system has them.

    Nothing where they would not fill one.
    """
    sizes = {name: -(-array.nbytes // LINE) * LINE for name, array in arrays.items() if array.nbytes}
    if sum(sizes.values()) < PAGE:
        return {}
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return {}
    memory = mmap.mmap(-1, sum(sizes.values()) + PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared has none
    memory.madvise(mmap.MADV_HUGEPAGE)
    room = np.frombuffer(memory, np.uint8)
    start = -room.ctypes.data % PAGE
    out: dict[str, Array] = {}
    for name, size in sizes.items():
        array = arrays[name]
        out[name] = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        out[name][...] = array
        start += size
    return out


def lend(options: onnxruntime.SessionOptions, arrays: Mapping[str, Array]) -> list[Any]:
    """Let a session with *options* read *arrays*, its initializers of these names, where they are.

    What is given back has to live as long as the session.
    """
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    for name, value in values.items():
        options.add_initializer(name, value)
    return [*values.values()]
