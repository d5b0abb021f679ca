r"""Sums of products of 8-bit integers in 32 bits, in C: on AVX512-VNNI where the processor has it.

Its instruction multiplies unsigned by signed bytes.  Other operands are shifted, by :math:`l, h \in \{0, 128\}`:

.. math::  \sum_k (a'_k - l)(b'_k + h) = \sum_k a'_k b'_k - l \sum_k b'_k + h \sum_k a'_k - K l h

The sums of rows and columns are by-products of packing.  All sums are exact: the type of the result has been checked.

Other sums of products than those of matrices, such as convolutions, are matrix products of elements that are read
several times: :math:`X[h + r, w + s]` is the element of column (h, w) and step (r, s), whose places add up to its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from einnet_explore.analysis.products import (
    TensorContraction,
    match_matrix_product,
    match_window_product,
    multiplies_bytes,
)
from einnet_explore.ir import Access, Iterator, Scope
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import Array, Arrays, aligned_empty
from einnet_explore.runtime.matrix_products import access_strides, from_start, matrices, merge_strides

_FLAGS = ("-O3", "-march=native")
_COLUMNS, _GROUP = 32, 4
"""Columns of a panel, and neighbouring factors of a sum, as in the text in C."""

_Function: TypeAlias = "Callable[..., object]"
Calls: TypeAlias = "list[Callable[[], object]]"


def match_integer_product(scope: Scope) -> TensorContraction | None:
    """Return *scope* as a sum of products of bytes in ``int32`` that this module computes; None if it is none."""
    return match_matrix_product(scope) or match_window_product(scope) if multiplies_bytes(scope) else None


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    source = files("einnet_explore.runtime").joinpath("integer_products.c").read_text(encoding="utf-8")
    return ctypes.CDLL(str(compiled.c_library(source, *_FLAGS)))


def bind_integer_product(
    product: TensorContraction, left: Array, right: Array, out: Array, constants: Arrays
) -> Callable[[], None] | None:
    """A call that writes the sums of products of *left* and *right* to *out*; None for strides that it cannot follow.

    An operand in *constants* is packed once.  Raises BackendError without a C compiler.
    """

    def is_fixed(array: Array) -> bool:
        return any(np.may_share_memory(array, constant) for constant in constants.values())

    found = matrices(product, left, right, out) if match_matrix_product(product.scope) is not None else None
    if found is not None:
        calls: Calls | None = _bind_matrices(*found, [is_fixed(found[0]), is_fixed(found[1])])
    elif match_window_product(product.scope) is not None:
        calls = _bind_windows(product, left, right, out, [is_fixed(left), is_fixed(right)])
    else:
        calls = None
    if calls is None:
        return None

    def run() -> None:
        for call in calls:
            call()

    return run


def _bind_matrices(first: Array, second: Array, result: Array, fixed: list[bool]) -> Calls:
    library, calls = _library(), list[Callable[[], object]]()
    for at in np.ndindex(result.shape[:-2]):
        rows, columns = _packed_rows(library, first[at]), _packed_columns(library, second[at])
        for packed, is_fixed in zip((rows, columns), fixed, strict=True):
            if is_fixed:
                packed.pack()
            else:
                calls.append(packed.pack)
        calls.append(_multiplication(library, rows, columns, first.shape[-1], result[at]))
    return calls


def _bind_windows(product: TensorContraction, left: Array, right: Array, out: Array, fixed: list[bool]) -> Calls | None:
    """The calls for sums of products that are no matrix product; None if the rows of *out* are not packed."""
    sides = [(product.left, left, product.m, fixed[0]), (product.right, right, product.n, fixed[1])]
    if product.scope.traversals[-1] in product.m:
        sides.reverse()
    (row_read, row_array, ms, is_fixed), (column_read, image, ns, _) = sides
    places = dict(zip(product.scope.traversals, out.strides, strict=True))
    outer_rows, _ = merge_strides(ms, (places,))
    outer, inner = merge_strides(ns, (places,))
    if outer_rows or places[inner[-1]] != out.itemsize:
        return None
    library, calls = _library(), list[Callable[[], object]]()
    by = access_strides(row_read, row_array)
    kept = (*ms, *product.k)
    elements = as_strided(
        from_start(row_array, row_read), tuple(x.extent for x in kept), tuple(by.get(x, 0) for x in kept)
    )
    matrix = np.empty((prod(x.extent for x in ms), prod(x.extent for x in product.k)), row_array.dtype)
    rows = _packed_rows(library, matrix)
    for call in (partial(np.copyto, matrix.reshape(elements.shape), elements), rows.pack):
        if is_fixed:
            call()
        else:
            calls.append(call)
    source, fill = _padded(column_read, image)
    calls += fill
    by = access_strides(column_read, source)
    columns, steps = _offsets(inner, by), _offsets(product.k, by)
    for at in np.ndindex(*(x.extent for x in outer)):
        where = dict(zip(outer, at, strict=True))
        shift = sum(n * by.get(x, 0) for x, n in where.items())
        packed = _packed_windows(library, source, columns + np.int32(shift), steps)
        here = out[tuple(where.get(x, slice(None)) for x in product.scope.traversals)]
        shape = (len(matrix), len(columns))
        result = as_strided(here, shape, (places[ms[-1]] if ms else here.nbytes, out.itemsize))
        calls += [packed.pack, _multiplication(library, rows, packed, matrix.shape[1], result)]
    return calls


def _padded(read: Access, array: Array) -> tuple[Array, Calls]:
    """A view of *array*, or of a copy with padding, from the first element that *read* reads on; the copy's call."""
    pads = [
        (max(0, lo - i.bounds[0]), max(0, i.bounds[1] + 1 - hi))
        for i, (lo, hi) in zip(read.index, read.source.box, strict=True)
    ]
    first = tuple(
        slice(i.evaluate(lambda x: x.lo) - lo + before, None)
        for i, (lo, _), (before, _) in zip(read.index, read.source.box, pads, strict=True)
    )
    if not any(map(any, pads)):
        return array[first], []
    sizes = [before + n + after for n, (before, after) in zip(array.shape, pads, strict=True)]
    copy = np.full(sizes, read.source.value, array.dtype)
    inside = copy[tuple(slice(before, before + n) for n, (before, _) in zip(array.shape, pads, strict=True))]
    return copy[first], [partial(np.copyto, inside, array)]


def _offsets(iterators: Iterable[Iterator], by: Mapping[Iterator, int]) -> Array:
    """The offset of each point of *iterators* in bytes, in the order of writing."""
    total = np.zeros(1, np.int32)
    for x in iterators:
        total = (total[:, None] + np.arange(x.extent, dtype=np.int32) * np.int32(by.get(x, 0))).reshape(-1)
    return total


@dataclass(frozen=True)
class _PackedOperand:
    """An operand in the layout of the kernel, the sums along it, its shift, and the call that packs it."""

    array: Array
    sums: Array
    shift: int
    pack: Callable[[], object]


def _packed_rows(library: ctypes.CDLL, given: Array) -> _PackedOperand:
    m, k = given.shape
    numbers: tuple[int | ctypes.c_int, ...] = (*given.strides, *(ctypes.c_int(size) for size in given.shape))
    return _packed(library.pack_rows, (given, *numbers), m * _padded_steps(k), m, given.dtype == np.int8)


def _packed_columns(library: ctypes.CDLL, given: Array) -> _PackedOperand:
    k, n = given.shape
    wide = -(-n // _COLUMNS) * _COLUMNS
    numbers: tuple[int | ctypes.c_int, ...] = (*given.strides, *(ctypes.c_int(size) for size in given.shape))
    return _packed(library.pack_columns, (given, *numbers), wide * _padded_steps(k), wide, given.dtype == np.uint8)


def _packed_windows(library: ctypes.CDLL, given: Array, columns: Array, steps: Array) -> _PackedOperand:
    wide = -(-len(columns) // _COLUMNS) * _COLUMNS
    passed = (given, columns, steps, ctypes.c_int(len(steps)), ctypes.c_int(len(columns)))
    return _packed(library.pack_windows, passed, wide * _padded_steps(len(steps)), wide, given.dtype == np.uint8)


def _padded_steps(k: int) -> int:
    return -(-k // _GROUP) * _GROUP


def _packed(
    function: _Function, given: tuple[Array | int | ctypes.c_int, ...], size: int, sums: int, is_shifted: bool
) -> _PackedOperand:
    array, totals, shift = aligned_empty((size,), np.uint8), aligned_empty((sums,), np.int32), 128 * is_shifted
    return _PackedOperand(array, totals, shift, _call(function, *given, ctypes.c_int(shift), array, totals))


def _multiplication(
    library: ctypes.CDLL, rows: _PackedOperand, columns: _PackedOperand, k: int, out: Array
) -> Callable[[], object]:
    numbers = map(ctypes.c_int, (*out.shape, k, rows.shift, columns.shift))
    by_row = out.strides[0] // out.itemsize
    return _call(library.multiply, rows.array, rows.sums, columns.array, columns.sums, *numbers, out, by_row)


def _call(function: _Function, *given: Array | int | ctypes.c_int) -> Callable[[], object]:
    """A call of *function* with the addresses of arrays, which it keeps alive, and with numbers of 64 bits."""

    def passed(value: Array | int | ctypes.c_int) -> object:
        match value:
            case np.ndarray():
                return ctypes.c_void_p(value.ctypes.data)
            case int():
                return ctypes.c_int64(value)
        return value

    arguments = [passed(value) for value in given]
    return lambda _held=given: function(*arguments)  # type: ignore[misc]
