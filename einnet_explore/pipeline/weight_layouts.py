r"""Weights of one program as layouts of weights of another, found by their elements.

.. math::  W'[\vec i] = W\Big[\vec c + \sum_d \sum_j \vec k_{dj}
   \left(\lfloor i_d / r_{dj} \rfloor \bmod m_{dj}\right)\Big], \qquad 0 \text{ outside } W

An offline layout permutes, splits, joins, flips, shifts, repeats or interleaves the dimensions of a weight, and may
write it as a sparse matrix of its products with all positions.  Elements that occur once in W tell where elements of W'
come from.  Along each dimension of W these positions are a sum of functions of one dimension of W' each, and each of
them is affine in digits.  The result is compared with all elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import ELEMENT_TYPES, Access, Index, Scope, Tensor
from einnet_explore.onnx_import.known_arrays import index_of_digits
from einnet_explore.onnx_import.node_call import access, as_indices, extent_iterators
from einnet_explore.runtime.arrays import Array

MAX_ELEMENTS = 1 << 24
"""Elements of a weight that is compared with layouts of others, at most."""

PROBES = 1 << 6
"""Elements that are looked up first."""


def find_layout(array: Array, name: str, source: Array) -> Scope | None:
    """Return *array* as a layout of all elements, but zeros, of the weight *name*, *source*; None if it is none."""
    if array.ndim == 0 or array.dtype != source.dtype or str(array.dtype) not in ELEMENT_TYPES:
        return None
    if max(array.size, source.size) > MAX_ELEMENTS:
        return None
    places = np.nonzero(array)
    if not len(places[0]):
        return None
    probes = np.linspace(0, len(places[0]) - 1, PROBES, dtype=int)
    wanted = array[tuple(at[probes] for at in places)]
    if not (source == wanted[0]).any() or not np.isin(wanted, source).all():
        return None
    first = [int(at.min()) for at in places]
    shape = tuple(n - lo for n, lo in zip(array.shape, first, strict=True))
    found = _sources(array, places, source)
    if found is None:
        return None
    xs, index = extent_iterators(shape), list[Index]()
    places = tuple(at - lo for at, lo in zip(found[0], first, strict=True))
    for positions, extent in zip(found[1], source.shape, strict=True):
        along = _as_index(as_indices(xs), places, positions, extent)
        if along is None:
            return None
        index.append(along)
    scope = Scope(xs, (), access(Tensor(name, source.shape, weight=True, dtype=str(source.dtype)), *index))
    if shape != array.shape:
        around = tuple((lo, 0) for lo in first)
        whole = extent_iterators(array.shape)
        at = tuple(x - lo for x, lo in zip(whole, first, strict=True))
        scope = Scope(whole, (), Access(Scope(xs, (), scope.body, padding=around), at))
    kind = source.dtype if source.dtype.kind == "f" else "exact"
    if not np.array_equal(evaluate(scope, {name: source}, kind), array):
        return None
    # Elements that the layout leaves out would be unrelated to it: a weight may consist of another one, twice.
    numbers = np.arange(1, source.size + 1, dtype=np.float64).reshape(source.shape)
    is_read = np.zeros(source.size + 1, bool)
    is_read[evaluate(scope, {name: numbers}, np.float64).astype(np.int64)] = True
    return scope if is_read[1:][source.reshape(-1) != 0].all() else None


def _sources(array: Array, places: Sequence[Array], source: Array) -> tuple[Sequence[Array], Sequence[Array]] | None:
    """Return those of *places* whose elements of *array* occur once in *source*, and where they do.

    None if an element does not occur, or if all occur several times.
    """
    values, first, counts = np.unique(source, return_index=True, return_counts=True)
    wanted = array[tuple(places)]
    at = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    once = counts[at] == 1
    if not np.array_equal(values[at], wanted) or not once.any():
        return None
    return [each[once] for each in places], np.unravel_index(first[at[once]], source.shape)


def _as_index(at: Sequence[Index], places: Sequence[Array], values: Array, beyond: int) -> Index | None:
    """Return the index of *at*, each from 0 on, that has the *values* at the *places*.

    None if it is no sum of functions of digits of one place each, or if the values do not determine it.  Places at
    which nothing is known may have an index *beyond* all values.
    """
    lines = [np.zeros(place.bounds[1] + 1, np.int64) for place in at]
    known = [np.zeros(line.shape, bool) for line in lines]
    for d, place in enumerate(places[:-1]):
        known[d][place[0]] = True
    count = -1
    while count != (count := sum(int(each.sum()) for each in known)):
        for d, place in enumerate(places):
            ready, rest = ~known[d][place], values.astype(np.int64)
            for e, other in enumerate(places):
                if e != d:
                    ready &= known[e][other]
                    rest -= lines[e][other]
            lines[d][place[ready]] = rest[ready]
            known[d][place[ready]] = True
    if not all(each[place].all() and each[0] for each, place in zip(known, places, strict=True)):
        return None
    if not np.array_equal(sum(line[place] for line, place in zip(lines, places, strict=True)), values):
        return None
    ways = zip(lines, at, known, strict=True)
    found = [index_of_digits(line, x, each, beyond) for line, x, each in ways]
    parts = [part for part in found if part is not None]
    return sum(parts, Index()) if len(parts) == len(found) else None
