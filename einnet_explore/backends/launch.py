"""What every way to run a kernel of ``kernels.source`` checks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.backends.errors import BackendError
from einnet_explore.kernels.source import Array, Kernel, Literal, Var

Grid = tuple[int, int, int]

_MOST_BLOCKS = (1 << 31) - 1
_MOST_BLOCKS_ACROSS = (1 << 16) - 1


def checked(kernel: Kernel, given: Sequence[Any], grid: Grid | None) -> tuple[list[Any], Grid]:
    """*given* as arrays and typed scalars in the order of the kernel's parameters, and the grid.

    Raises BackendError, with what was found and what is expected, for a wrong number of arguments, an array of another
    dtype, not contiguous, too small or read-only, a scalar beyond its type, and an impossible grid.
    """
    if len(given) != len(kernel.params):
        raise _refused(kernel, f"{len(given)} arguments, expected {len(kernel.params)}")
    blocks = kernel.grid if grid is None else grid
    most = (_MOST_BLOCKS, _MOST_BLOCKS_ACROSS, _MOST_BLOCKS_ACROSS)
    if len(blocks) != 3 or not all(1 <= n <= m for n, m in zip(blocks, most, strict=True)):
        raise _refused(kernel, f"a grid of {blocks}, expected three numbers from 1, at most {most}")
    pairs = zip(kernel.params, given, strict=True)
    return [_array(kernel, p, g) if isinstance(p, Array) else _scalar(kernel, p, g) for p, g in pairs], blocks


def _array(kernel: Kernel, p: Array, given: Any) -> npt.NDArray[Any]:
    if not isinstance(given, np.ndarray):
        raise _refused(kernel, f"{p.name} is a {type(given).__name__}, expected an array of {p.kind!r}")
    if given.dtype != p.kind.dtype:
        raise _refused(kernel, f"{p.name} holds {given.dtype}, expected {p.kind!r}")
    if not given.flags.c_contiguous:
        raise _refused(kernel, f"{p.name} has strides {given.strides}, expected a contiguous array")
    if given.size < p.size:
        raise _refused(kernel, f"{p.name} has {given.size} elements, expected {p.size}")
    if not p.const and not given.flags.writeable:
        raise _refused(kernel, f"{p.name} is written to, and the array is read-only")
    return given


def _scalar(kernel: Kernel, p: Var, given: Any) -> Any:
    try:
        value = given.item() if isinstance(given, np.generic) else given
        return p.kind.dtype.type(Literal(value, p.kind).value)
    except (TypeError, ValueError, OverflowError):
        raise _refused(kernel, f"{p.name} is {given!r}, expected a number of type {p.kind!r}") from None


def _refused(kernel: Kernel, what: str) -> BackendError:
    return BackendError(f"kernel {kernel.name}: {what}")
