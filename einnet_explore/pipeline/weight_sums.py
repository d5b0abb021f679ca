r"""Weights of one program as sums of weights of another, found by matching pursuit.

.. math::  W'[\vec i] = \sum_j a_j\, [C_j(\vec i)]\, P_j[\vec i_{\sigma_j} - \vec o_j]

Parallel convolutions, skip connections and the normalisations behind them are one convolution: a smaller kernel lies
somewhere in the larger one, a vector or a constant on a diagonal of the channels.  All such places of the products of
weights :math:`P_j` are the columns of a system of linear equations, with one row for each element of a block of
:math:`W'`, of which a few columns with small rational coefficients are the solution (Pati, Rezaiifar, Krishnaprasad).
The sum is compared with all elements.

Source: Y. C. Pati, R. Rezaiifar, P. S. Krishnaprasad, Orthogonal matching pursuit: recursive function approximation
with applications to wavelet decomposition, Asilomar Conference on Signals, Systems and Computers, 1993.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, permutations, product
from math import inf

import numpy as np

from einnet_explore.ir import Access, Apply, Compare, Const, Index, Iterator, Scalar, Scope, add, as_index, mul
from einnet_explore.onnx_import.node_call import extent_iterators
from einnet_explore.runtime.arrays import Array

MAX_PLACEMENTS = 1024
"""Columns of the system."""

MAX_TERMS = 12
"""Columns that are added."""

BLOCK = 24
"""Extent of the block whose elements are the rows, in each dimension."""

MAX_ERROR = 1e-5
"""Largest difference, relative to the largest element."""

MAX_CHANGE = 1e-3
"""Largest difference of a coefficient from a small rational number."""

MAX_DENOMINATOR = 8
"""Largest denominator of a coefficient."""


@dataclass(frozen=True, slots=True)
class _Placement:
    """A *part*, a scope with elements *value*, whose long *axes* lie along dimensions, each from *first* on.

    Other dimensions are at a *fixed* place or *tied* to another one; along the rest the part is repeated.
    """

    part: Scope
    value: Array
    axes: tuple[int, ...]
    along: tuple[int, ...]
    first: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...]
    tied: tuple[tuple[int, int], ...]

    def elements(self, shape: Sequence[int]) -> Array:
        """Return the elements at the places before *shape*."""
        places = np.indices(shape, sparse=True)
        here = np.ones(shape, bool)
        at: list[Array | int] = [0] * self.value.ndim
        for axis, d, lo in zip(self.axes, self.along, self.first, strict=True):
            n = self.value.shape[axis]
            here &= (places[d] >= lo) & (places[d] < lo + n)
            at[axis] = np.clip(places[d] - lo, 0, n - 1)
        for d, n in self.fixed:
            here &= places[d] == n
        for d, e in self.tied:
            here &= places[d] == places[e]
        found: Array = np.where(here, self.value[tuple(at)], 0.0)
        return found

    def scalar(self, xs: Sequence[Iterator], shape: Sequence[int]) -> Scalar:
        """Return the elements at *xs*, of the extents *shape*."""
        at = [as_index(lo) for lo, _ in self.part.box]
        around = [(0, 0)] * self.value.ndim
        for axis, d, lo in zip(self.axes, self.along, self.first, strict=True):
            at[axis] = at[axis] + xs[d] - lo
            around[axis] = lo, shape[d] - lo - self.value.shape[axis]
        if self.value.ndim:
            part = Scope(self.part.traversals, self.part.summations, self.part.body, padding=tuple(around))
            body: Scalar = Access(part, tuple(at))
        else:
            body = self.part.body
        for d, n in self.fixed:
            body = _where_equal(as_index(xs[d]), Index((), n), body, (0, shape[d] - 1))
        for d, e in self.tied:
            body = _where_equal(xs[d] - xs[e], Index(), body, (1 - shape[e], shape[d] - 1))
        return body


def find_sum(array: Array, parts: Iterable[tuple[Scope, Array]]) -> tuple[Scope, float] | None:
    """Return *array* as a sum of placed *parts*, scopes with their elements, and the error; None if it is none.

    The error is relative to the largest element.  Vectors are no such sums, since too many would be by chance.
    """
    wanted = array.astype(np.float64)
    largest = float(np.abs(wanted).max(initial=0))
    if wanted.ndim < 2 or not 0 < largest < inf:
        return None
    shape = tuple(min(n, BLOCK) for n in array.shape)
    block = wanted[tuple(slice(n) for n in shape)].reshape(-1)
    columns: dict[bytes, tuple[_Placement, Array]] = {}
    finite = [part for part in parts if np.isfinite(part[1]).all()]
    ordered = sorted(finite, key=lambda part: -part[1].size)
    one: tuple[Scope, Array] = Scope((), (), Const(1)), np.ones((), np.float64)
    for each in islice((p for part in (*ordered, one) for p in _placements(part, array.shape)), MAX_PLACEMENTS):
        made = each.elements(shape).reshape(-1)
        if made.any():
            columns.setdefault(made.astype(np.float32).tobytes(), (each, made))
    taken = _pursuit(block, [made for _, made in columns.values()], MAX_ERROR * largest)
    if taken is None:
        return None
    placements = [each for each, _ in columns.values()]
    terms = [(placements[n], k) for n, k in taken]
    total = sum((float(k) * each.elements(array.shape) for each, k in terms), np.zeros(array.shape))
    error = float(np.abs(total - wanted).max()) / largest
    if not error <= MAX_ERROR:
        return None
    xs = extent_iterators(array.shape)
    summed = [mul(*(() if k == 1 else (Const(float(k)),)), each.scalar(xs, array.shape)) for each, k in terms]
    return Scope(xs, (), add(*summed)), error


def _pursuit(wanted: Array, columns: Sequence[Array], tolerance: float) -> list[tuple[int, Fraction]] | None:
    """Return a few columns, by number, with small rational coefficients and the sum *wanted*; None without.

    The column that is most like what is left is next (orthogonal matching pursuit).
    """
    if not columns:
        return None
    system = np.stack(columns, axis=1)
    sizes = np.linalg.norm(system, axis=0)
    rest, taken, solved = wanted, list[int](), np.zeros(0)
    while np.abs(rest).max() > tolerance:
        if len(taken) == MAX_TERMS:
            return None
        taken.append(int(np.argmax(np.abs(rest @ system) / sizes)))
        solved, *_ = np.linalg.lstsq(system[:, taken], wanted, rcond=None)
        rest = wanted - system[:, taken] @ solved
    ratios = [Fraction(number).limit_denominator(MAX_DENOMINATOR) for number in solved.tolist()]
    if any(abs(k - ratio) > MAX_CHANGE for k, ratio in zip(solved.tolist(), ratios, strict=True)):
        return None
    return [(n, ratio) for n, ratio in zip(taken, ratios, strict=True) if ratio]


def _placements(part: tuple[Scope, Array], shape: Sequence[int]) -> Iterable[_Placement]:
    """Yield the places of *part* in an array of *shape*: without repetition, then repeated along dimensions."""
    scope, value = part
    axes = tuple(n for n, size in enumerate(value.shape) if size > 1)
    kernel = set(sorted(range(len(shape)), key=lambda d: -shape[d])[2:])
    for along in permutations(range(len(shape)), len(axes)):
        sizes = [value.shape[axis] for axis in axes]
        if any(size > shape[d] or (size < shape[d] and d not in kernel) for size, d in zip(sizes, along, strict=True)):
            continue
        others = [d for d in range(len(shape)) if d not in along and shape[d] > 1]
        choices = [list(_conditions(d, shape, kernel)) for d in others]
        starts = [range(shape[d] - size + 1) for size, d in zip(sizes, along, strict=True)]
        for first, chosen in product(product(*starts), product(*choices)):
            named = list(zip(others, chosen, strict=True))
            yield _Placement(
                scope,
                value,
                axes,
                along,
                first,
                tuple((d, n) for d, (kind, n) in named if kind == "fixed"),
                tuple((d, e) for d, (kind, e) in named if kind == "tied"),
            )


def _conditions(d: int, shape: Sequence[int], kernel: Set[int]) -> Iterable[tuple[str, int]]:
    """Yield the conditions on dimension *d*: each place of a kernel; the place in another dimension, or none."""
    if d in kernel:
        yield from (("fixed", n) for n in range(shape[d]))
    else:
        yield from (("tied", e) for e in range(len(shape)) if e not in kernel and e != d and shape[e] == shape[d])
        yield "free", 0


def _where_equal(left: Index, right: Index, body: Scalar, bounds: tuple[int, int]) -> Scalar:
    """Return *body* where *left*, within *bounds*, is *right*, else 0."""
    if bounds[0] < right.const:
        body = Apply("where", (Compare(">=", left, right), body, Const(0)))
    return body if bounds[1] <= right.const else Apply("where", (Compare("<=", left, right), body, Const(0)))
