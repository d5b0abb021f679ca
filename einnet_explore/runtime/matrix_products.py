r"""Sums of products of two strided tensors as one (batched) matrix product.

.. math::  Y[\vec b, \vec m, \vec n] = \sum_{\vec k} A[\vec b, \vec m, \vec k]\, B[\vec b, \vec k, \vec n]

The form is read from the scope itself by flattened strides (EinNet §5.1), so that transposes, leading dimensions and
diagonals need no attributes: they are strides.
"""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType

import numpy as np
from numpy.lib.stride_tricks import as_strided

from einnet_explore.analysis.products import TensorContraction
from einnet_explore.ir import Access, Iterator
from einnet_explore.runtime.arrays import Array


def matrices(product: TensorContraction, left: Array, right: Array, out: Array) -> tuple[Array, Array, Array] | None:
    """Views (first, second, result) of which the last is the (batched) matrix product of the others.

    None if strides do not merge, or if the result's columns are not packed.  *left* and *right* hold the tensors
    that the accesses read and may be strided; *out* has the scope's shape.
    """
    a, b = access_strides(product.left, left), access_strides(product.right, right)
    y = dict(zip(product.scope.traversals, out.strides, strict=True))
    m_outer, m = merge_strides(product.m, (a, y))
    n_outer, n = merge_strides(product.n, (b, y))
    k_outer, k = merge_strides(tuple(sorted(product.k, key=lambda x: -abs(a[x]))), (a, b))
    if k_outer:
        return None
    batch = (*product.batch, *m_outer, *n_outer)
    views = []
    for array, access, at, rows, columns in ((left, product.left, a, m, k), (right, product.right, b, k, n)):
        views.append(_view(from_start(array, access), at, batch, rows, columns))
    result = _view(out, y, batch, m, n)
    if abs(result.strides[-2]) < abs(result.strides[-1]) and result.shape[-1] > 1:
        views, result = [v.swapaxes(-1, -2) for v in reversed(views)], result.swapaxes(-1, -2)
    if result.shape[-1] > 1 and result.strides[-1] != result.itemsize:
        return None
    first, second = views
    return first, second, result


def bind_matrix_product(
    product: TensorContraction, left: Array, right: Array, out: Array
) -> Callable[[], object] | None:
    """A call that writes the product of *left* and *right* to *out*; None if ``matrices`` is None."""
    found = matrices(product, left, right, out)
    if found is None:
        return None
    *views, result = found
    packed = [v if _is_blas_layout(v) else np.empty(v.shape, v.dtype) for v in views]
    copies = [(p, v) for p, v in zip(packed, views, strict=True) if p is not v]
    first, second = packed
    if not copies:
        return lambda: np.matmul(first, second, out=result)

    def call() -> None:
        for target, source in copies:
            np.copyto(target, source)
        np.matmul(first, second, out=result)

    return call


def access_strides(access: Access, array: Array) -> dict[Iterator, int]:
    """Bytes that one step of each iterator moves (0 for those that do not occur)."""
    out: dict[Iterator, int] = {}
    for i, stride in zip(access.index, array.strides, strict=True):
        for x in i.iterators:
            out[x] = out.get(x, 0) + i.coefficient(x) * stride
    return out


def from_start(array: Array, access: Access) -> Array:
    """*array* from the element on that *access* reads with every iterator at its start."""
    start = tuple(i.evaluate(lambda x: x.lo) - lo for i, (lo, _) in zip(access.index, access.source.box, strict=True))
    # The ellipsis makes it a view also where there are no dimensions.
    where: tuple[slice | EllipsisType, ...] = (*(slice(at, None) for at in start), ...)
    return array[where] if array.size else array


def merge_strides(
    group: tuple[Iterator, ...], tensors: tuple[dict[Iterator, int], ...]
) -> tuple[tuple[Iterator, ...], tuple[Iterator, ...]]:
    """(outer, inner): *inner* is the longest end of *group* that is one stride in every tensor, *outer* the rest."""
    cut = len(group)
    while cut > 0 and (
        cut == len(group) or all(t[group[cut - 1]] == t[group[cut]] * group[cut].extent for t in tensors)
    ):
        cut -= 1
    return group[:cut], group[cut:]


def _view(
    array: Array,
    strides: dict[Iterator, int],
    batch: tuple[Iterator, ...],
    rows: tuple[Iterator, ...],
    columns: tuple[Iterator, ...],
) -> Array:
    shape, steps = [x.extent for x in batch], [strides.get(x, 0) for x in batch]
    for group in (rows, columns):
        extent = 1
        for x in group:
            extent *= x.extent
        shape.append(extent)
        steps.append(strides[group[-1]] if group else 0)
    # A dimension of one element may claim any stride: the packed one is what BLAS accepts.
    for d in (-1, -2):
        if shape[d] == 1:
            steps[d] = array.itemsize if d == -1 else max(array.itemsize * shape[-1], abs(steps[-1]) * shape[-1])
    return as_strided(array, tuple(shape), tuple(steps))


def _is_blas_layout(view: Array) -> bool:
    """Return whether BLAS takes the matrices of *view* as they are: one dimension packed, the other no shorter."""
    (rows, columns), (by_row, by_column) = view.shape[-2:], view.strides[-2:]
    return (by_column == view.itemsize and by_row >= view.itemsize * columns) or (
        by_row == view.itemsize and by_column >= view.itemsize * rows
    )
