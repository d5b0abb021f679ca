"""Aligned arrays, compiled functions bound to them, and the errors of one implementation's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tvm_ffi

from einnet_explore.ir import Scope, tensors
from einnet_explore.runtime.compiled import CompiledFunction
from einnet_explore.support.errors import BackendError

Array: TypeAlias = np.ndarray
Arrays: TypeAlias = Mapping[str, Array]

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
    """*array* itself if a kernel takes it, else an aligned copy."""
    given = np.asarray(array)
    fits = given.dtype == np.dtype(dtype) and given.flags.c_contiguous and given.flags.writeable
    if fits and fits_kernel(given):
        return given
    copy = aligned_empty(given.shape, dtype)
    copy[...] = given
    return copy


def fits_kernel(array: Array) -> bool:
    """Return whether a compiled kernel takes *array* as it is: contiguous and aligned."""
    return array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0


def check_argument(name: str, array: Array, shape: tuple[int, ...], dtype: str = "float32") -> None:
    """Raise BackendError unless a kernel takes *array* as *name*, of *shape* and *dtype*."""
    if array.shape != shape or array.dtype != dtype:
        raise BackendError(f"{name} is {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}")
    if not fits_kernel(array):
        raise BackendError(f"{name} is not contiguous and aligned to {ALIGNMENT} bytes: use aligned_empty")


def require_elements(name: str, array: Array, dtype: np.dtype) -> Array:
    """Return *array*; raises BackendError if *dtype*, a type of integers, has not all its elements."""
    if dtype.kind in "iub" and not np.can_cast(array.dtype, dtype) and array.size:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        wrong = array[(array < low) | (array > high) | (array != np.trunc(array))]
        if wrong.size:
            raise BackendError(f"{name} holds {wrong.flat[0]}, expected elements of {dtype}")
    return array


class KernelSignature(Protocol):
    """Arguments of a compiled function of *scope*: the tensors *inputs* and the result, as arrays of *shapes*.

    *dtypes* are their element types.
    """

    @property
    def scope(self) -> Scope: ...

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def dtypes(self) -> tuple[str, ...]: ...

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...


def bind_function(
    source: KernelSignature, function: CompiledFunction, inputs: Sequence[Array], out: Array
) -> Callable[[], object]:
    """A call of *function* on *inputs* and *out*; raises as ``TvmKernel.bind`` does."""
    shapes = {t.name: t.shape for t in tensors(source.scope)}
    names = source.inputs
    if len(inputs) != len(names):
        raise BackendError(f"{len(inputs)} arrays for the {len(names)} inputs {', '.join(names)}")
    *dtypes, dtype = source.dtypes
    for name, array, kind in zip(names, inputs, dtypes, strict=True):
        check_argument(name, array, shapes[name], kind)
    check_argument("the result", out, source.scope.shape, dtype)
    if out.size == 0:
        return lambda: None
    return bind_arrays(function, (*inputs, out), source.shapes)


def bind_arrays(
    function: CompiledFunction, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]
) -> Callable[[], object]:
    """A call of *function* on contiguous *arrays*, seen in *shapes*."""
    given = zip(map(exchanged, arrays), shapes, strict=True)
    return partial(function, *(tvm_ffi.from_dlpack(array.reshape(shape)) for array, shape in given))


def exchanged(array: Array) -> Array:
    """Return *array* as DLPack takes it: bfloat16 by its bits."""
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


MAX_RELATIVE_ERROR = 1e-4
"""The largest error allowed, relative to the largest output."""

MAX_TIES = 1e-3
"""The part of an output of bytes that may differ by one: they were rounded from numbers next to a tie."""


def largest_error(want: Arrays, got: Arrays) -> float:
    """The largest difference over all outputs, relative to each output's largest magnitude.

    Elements of float16 count from one unit in the last place on, since each is rounded once, and so do bytes if few
    of them differ.
    """
    return max((_relative(want[name], got[name]) for name in want), default=0.0)


def _relative(want: Array, got: Array) -> float:
    if want.shape != got.shape:
        return float("inf")
    if not want.size:
        return 0.0
    if want.dtype.kind not in "fiub":  # strings are the same or they are not
        return 0.0 if np.array_equal(want, got) else float("inf")
    a, b = want.astype(np.float64), got.astype(np.float64)
    apart = (a != b) & ~(np.isnan(a) & np.isnan(b))  # infinities may be the same, as in what a mask leaves out
    unit: Array | int = 0
    with np.errstate(invalid="ignore"):
        if want.dtype == np.float16:
            unit = np.abs(a) * np.finfo(np.float16).eps
        elif want.dtype in (np.int8, np.uint8) and apart.mean() <= MAX_TIES:
            unit = 1
        difference = float(np.max(np.abs(a - b) - unit, where=apart, initial=0))
    largest = float(np.max(np.abs(a), where=np.isfinite(a), initial=0))
    if not np.isfinite(difference):
        return float("inf")
    return difference / largest if largest else difference


def differences(want: Arrays, got: Arrays) -> tuple[float, float]:
    """The largest absolute difference over all outputs, and ``largest_error``."""
    absolute = max((_difference(want[k], got[k]) for k in want if want[k].dtype.kind in "fiub"), default=0.0)
    return absolute, largest_error(want, got)


def _difference(want: Array, got: Array) -> float:
    """The largest difference of numbers, unsigned numbers and truth values; infinities are left out."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(want.astype(np.float64) - got.astype(np.float64))
    return float(np.max(apart, initial=0, where=~np.isnan(apart)))
