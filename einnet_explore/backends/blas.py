"""How many threads NumPy's matrix products use."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads")


def set_threads(threads: int) -> bool:
    """Let NumPy's OpenBLAS use *threads* threads; False where NumPy was built with another library."""
    setter = _setter()
    if setter is None:
        return False
    setter(threads)
    return True


@cache
def _setter() -> Any:
    # NumPy's wheels bring OpenBLAS along; it is loaded already, so this opens no second copy.
    root = Path(np.__file__).parent
    for folder in (root.parent / "numpy.libs", root / ".dylibs"):
        for library in sorted(folder.glob("*openblas*")):
            try:
                loaded = ctypes.CDLL(str(library))
            except OSError:
                continue
            for name in _SETTERS:
                if hasattr(loaded, name):
                    return getattr(loaded, name)
    return None
