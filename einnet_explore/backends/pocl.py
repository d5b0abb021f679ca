"""pocl 3.0, the one that pyopencl brings, on processors newer than its LLVM 14.

That LLVM calls a processor it does not know ``generic``, which is a name its own compiler does not accept: every build
fails (pocl/pocl#1049).  There is no option for it, so the name is put right in the
device's record, where it follows the target's triple.  Only on Linux, and only where exactly that is found.
"""

from __future__ import annotations

import ctypes
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

_UNKNOWN = b"generic"
_RECORD = range(0, 1024, 8)
"""Where in the record names are looked for; it is larger."""

_NAMES = (
    ({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}, b"skylake-avx512"),
    ({"avx2", "fma"}, b"haswell"),
)
"""Names that LLVM 14 knows, of processors whose instructions this one has too."""


def name_processor(device: Any) -> bool:
    """Give the pyopencl *device* a processor's name if it is pocl's and has none; whether it was given one."""
    if sys.platform != "linux" or not str(device.version).endswith(f"-{_UNKNOWN.decode()}"):
        return False
    if not str(device.platform.name).startswith("Portable Computing Language"):
        return False
    readable = _readable()
    words = [w for w in _RECORD if _inside(device.int_ptr + w, 8, readable)]
    for before, here in pairwise(words):
        if _string(device.int_ptr + before, readable).startswith(b"x86_64-") and (
            _string(device.int_ptr + here, readable) == _UNKNOWN
        ):
            flags = _flags()
            name = next((n for needed, n in _NAMES if needed <= flags), b"x86-64")
            # A copy that lives as long as the process: the record keeps its address.
            copy = ctypes.CDLL(None).strdup
            copy.restype = ctypes.c_void_p
            ctypes.c_void_p.from_address(device.int_ptr + here).value = copy(name)
            return True
    return False


def _readable() -> list[tuple[int, int]]:
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, rights = line.split()[:2]
        if rights.startswith("r"):
            lo, hi = area.split("-")
            found.append((int(lo, 16), int(hi, 16)))
    return found


def _inside(address: int, size: int, areas: list[tuple[int, int]]) -> bool:
    return any(lo <= address and address + size <= hi for lo, hi in areas)


def _string(address: int, areas: list[tuple[int, int]]) -> bytes:
    """The first characters of the string that the word at *address* points to; empty where it points nowhere."""
    to = ctypes.c_void_p.from_address(address).value
    return ctypes.string_at(to, 16).split(b"\0")[0] if to and _inside(to, 16, areas) else b""


def _flags() -> frozenset[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return frozenset(next((line.split(":")[1] for line in lines if line.startswith("flags")), "").split())
