r"""Matrix products of 8-bit integers with sums in 32 bits, in C: on AVX512-VNNI where the processor has it.

Its instruction multiplies unsigned by signed bytes.  Other operands are shifted, by :math:`l, h \in \{0, 128\}`:

.. math::  \sum_k (a'_k - l)(b'_k + h) = \sum_k a'_k b'_k - l \sum_k b'_k + h \sum_k a'_k - K l h

The sums of rows and columns are by-products of packing.  All sums are exact: the type of the result has been checked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TypeAlias

import numpy as np

from einnet_explore.analysis.products import TensorContraction, match_matrix_product
from einnet_explore.ir import Scope, Tensor, element_type
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import Array, Arrays, aligned_empty
from einnet_explore.runtime.matrix_products import matrices

_FLAGS = ("-O3", "-march=native")
_COLUMNS, _GROUP = 32, 4
"""Columns of a panel, and neighbouring factors of a sum, as in the text in C."""

BYTES = ("int8", "uint8")

_Function: TypeAlias = "Callable[..., object]"


def match_integer_product(scope: Scope) -> TensorContraction | None:
    """Return *scope* as a product of matrices of bytes with sums in ``int32``; None if it is none."""
    product = match_matrix_product(scope) if element_type(scope) == "int32" else None
    if product is None:
        return None
    sides = (product.left.source, product.right.source)
    return product if all(isinstance(side, Tensor) and side.dtype in BYTES for side in sides) else None


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    source = files("einnet_explore.runtime").joinpath("integer_products.c").read_text(encoding="utf-8")
    return ctypes.CDLL(str(compiled.c_library(source, *_FLAGS)))


def bind_integer_product(
    product: TensorContraction, left: Array, right: Array, out: Array, constants: Arrays
) -> Callable[[], None] | None:
    """A call that writes the product of *left* and *right* to *out*; None for strides that are not those of matrices.

    An operand in *constants* is packed once.  Raises BackendError without a C compiler.
    """
    found = matrices(product, left, right, out)
    if found is None:
        return None
    library = _library()
    first, second, result = found
    fixed = [any(np.may_share_memory(side, c) for c in constants.values()) for side in (first, second)]
    calls: list[Callable[[], object]] = []
    for at in np.ndindex(result.shape[:-2]):
        rows, columns = _packed_rows(library, first[at]), _packed_columns(library, second[at])
        for packed, is_fixed in zip((rows, columns), fixed, strict=True):
            if is_fixed:
                packed.pack()
            else:
                calls.append(packed.pack)
        calls.append(_multiplication(library, rows, columns, first.shape[-1], result[at]))

    def run() -> None:
        for call in calls:
            call()

    return run


@dataclass(frozen=True)
class _PackedOperand:
    """An operand in the layout of the kernel, the sums along it, its shift, and the call that packs it."""

    array: Array
    sums: Array
    shift: int
    pack: Callable[[], object]


def _packed_rows(library: ctypes.CDLL, given: Array) -> _PackedOperand:
    m, k = given.shape
    return _packed(library.pack_rows, given, m * -(-k // _GROUP) * _GROUP, m, given.dtype == np.int8)


def _packed_columns(library: ctypes.CDLL, given: Array) -> _PackedOperand:
    k, n = given.shape
    wide = -(-n // _COLUMNS) * _COLUMNS
    return _packed(library.pack_columns, given, wide * -(-k // _GROUP) * _GROUP, wide, given.dtype == np.uint8)


def _packed(function: _Function, given: Array, size: int, sums: int, is_shifted: bool) -> _PackedOperand:
    array, totals, shift = aligned_empty((size,), np.uint8), aligned_empty((sums,), np.int32), 128 * is_shifted
    call = _call(function, given, *given.strides, *map(ctypes.c_int, (*given.shape, shift)), array, totals)
    return _PackedOperand(array, totals, shift, call)


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
