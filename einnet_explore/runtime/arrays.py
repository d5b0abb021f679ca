"""Aligned arrays, and compiled functions bound to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import tvm_ffi

from einnet_explore.ir import Scope, tensors
from einnet_explore.support.errors import BackendError

Array: TypeAlias = npt.NDArray[Any]

ALIGNMENT = 64
"""Bytes; compiled kernels assume it of every array (TVM 0.27 does not check raw arrays)."""


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike = "float32") -> Array:
    """An uninitialised array whose first element lies at a multiple of ``ALIGNMENT`` bytes."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(kind).reshape(shape)


def aligned(array: npt.ArrayLike, dtype: npt.DTypeLike = "float32") -> Array:
    """*array* as it is where a kernel can take it, else an aligned copy."""
    given = np.asarray(array)
    fits = given.dtype == np.dtype(dtype) and given.flags.c_contiguous and given.flags.writeable
    if fits and given.ctypes.data % ALIGNMENT == 0:
        return given
    copy = aligned_empty(given.shape, dtype)
    copy[...] = given
    return copy


class KernelSignature(Protocol):
    """What a compiled function of *scope* takes: the tensors *inputs*, and the result, as arrays of *shapes*."""

    @property
    def scope(self) -> Scope: ...

    @property
    def dtype(self) -> str: ...

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...


def bind_function(source: KernelSignature, function: Any, inputs: Sequence[Array], out: Array) -> Callable[[], None]:
    """A call of *function* on *inputs* and *out*; raises as ``Kernel.bind`` does."""
    shapes = {t.name: t.shape for t in tensors(source.scope)}
    names = source.inputs
    if len(inputs) != len(names):
        raise BackendError(f"{len(inputs)} arrays for the {len(names)} inputs {', '.join(names)}")
    for name, array in (*zip(names, inputs, strict=True), ("the result", out)):
        shape = shapes.get(name, source.scope.shape)
        if array.shape != shape or array.dtype != source.dtype:
            raise BackendError(f"{name} is {array.dtype}{list(array.shape)}, expected {source.dtype}{list(shape)}")
        if not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT:
            raise BackendError(f"{name} is not contiguous and aligned to {ALIGNMENT} bytes: use aligned_empty")
    if out.size == 0:
        return lambda: None
    given = zip((*inputs, out), source.shapes, strict=True)
    held = tuple(tvm_ffi.from_dlpack(a.reshape(shape)) for a, shape in given)
    return lambda: function(*held)
