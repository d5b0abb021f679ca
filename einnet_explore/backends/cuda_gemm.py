r"""Strided matrix products as cuBLAS takes them: which matrix is transposed, leading dimensions, steps of a batch.

cuBLAS counts columns first, so a row-major :math:`Y = A B` is its :math:`Y^T = B^T A^T` without moving anything: the
right factor goes first.  Nothing here asks a device; ``cuda_calls`` makes the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from einnet_explore.backends.cuda_steps import Product, Shape, View

MOST_CALLS = 64
"""Batches that are no equal steps apart take a call each, at most so many."""

_LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """A factor or the result: rows *leading* elements apart (columns where *transposed*), batches *step* apart."""

    name: str
    offset: int
    transposed: bool
    leading: int
    step: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """*batch* products of *rows*x*depth* by *depth*x*columns*, one call of ``gemmStridedBatchedEx``."""

    out: Matrix
    left: Matrix
    right: Matrix
    rows: int
    columns: int
    depth: int
    batch: int


def gemms(step: Product) -> tuple[Gemm, ...] | None:
    """The calls that *step* is; None where a factor is not packed along either side, or too many would be needed.

    Windows that overlap are such: cuBLAS wants rows no shorter than their distance, so they have to be copied.
    """
    *outer, rows, columns = step.out.shape
    depth = step.left.shape[-1]
    views = (step.out, step.left, step.right)
    found = [_matrix(v) for v in views]
    if any(m is None for m in found) or found[0] is None or found[0][0]:
        return None  # the result cannot be transposed: the planner swaps the factors instead
    groups = _merged(outer, [v.strides[:-2] for v in views])
    if not groups:
        groups = [(1, (0, 0, 0))]
    inner = max(range(len(groups)), key=lambda n: groups[n][0])
    extent, steps = groups.pop(inner)
    if prod(n for n, _ in groups) > MOST_CALLS or max(rows, columns, depth, extent) > _LARGEST:
        return None
    calls = []
    for place in product(*(range(n) for n, _ in groups)):
        at = [sum(p * s[k] for p, (_, s) in zip(place, groups, strict=True)) for k in range(3)]
        out, left, right = (
            Matrix(v.name, v.offset + a, m[0], m[1], s)
            for v, m, a, s in zip(views, found, at, steps, strict=True)
            if m is not None
        )
        calls.append(Gemm(out, left, right, rows, columns, depth, extent))
    return tuple(calls)


def _matrix(view: View) -> tuple[bool, int] | None:
    """(transposed, leading dimension) of the last two dimensions of *view*; one of them has to be packed."""
    (rows, columns), (down, across) = view.shape[-2:], view.strides[-2:]
    if (across == 1 or columns == 1) and (rows == 1 or down >= columns):
        return False, columns if rows == 1 else down
    if (down == 1 or rows == 1) and (columns == 1 or across >= rows):
        return True, rows if columns == 1 else across
    return None


def _merged(shape: Sequence[int], strides: Iterable[Shape]) -> list[tuple[int, tuple[int, ...]]]:
    """(extent, step of each) of the batch's dimensions, neighbours that are one walk in all of them as one."""
    out: list[tuple[int, tuple[int, ...]]] = []
    for extent, steps in zip(shape, zip(*strides, strict=True), strict=True):
        if extent == 1:
            continue
        if out and all(before == extent * here for before, here in zip(out[-1][1], steps, strict=True)):
            out[-1] = out[-1][0] * extent, steps
        else:
            out.append((extent, steps))
    return out
