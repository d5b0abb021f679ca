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
from itertools import combinations, islice, permutations, product
from math import inf, prod

import numpy as np

from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    add,
    as_index,
    mul,
)
from einnet_explore.onnx_import.node_call import as_indices, extent_iterators
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


MAX_TRANSFORM = 64
"""Places of a kernel that are transformed, and rows of the transform."""

MAX_FRACTION = 1024
"""Largest denominator of an entry of a transform."""


def find_transform(array: Array, name: str, source: Array) -> tuple[Scope, float] | None:
    r"""Return *array* as a transform T of the kernels of the weight *name*, *source*, and the error; None without.

    .. math::  W'[\vec p, \vec c] = \sum_{\vec r} T[\vec p, \vec r]\, W[\vec c, \vec r]

    Fast algorithms transform kernels so (Winograd).  Two dimensions of both are channels, in any order, and there are
    as many channels as are needed to determine T, a table of rational numbers.
    """
    if source.ndim < 3 or array.ndim < 2 or array.dtype.kind != "f" or source.dtype.kind != "f":
        return None
    largest = float(np.abs(array).max(initial=0))
    if not 0 < largest < inf or not np.isfinite(source).all():
        return None
    for c, d in permutations(range(source.ndim), 2):
        rest = [n for n in range(source.ndim) if n not in (c, d)]
        for e, f in combinations(range(array.ndim), 2):
            own = [n for n in range(array.ndim) if n not in (e, f)]
            channels, taps = source.shape[c] * source.shape[d], prod(source.shape[n] for n in rest)
            rows = prod(array.shape[n] for n in own)
            fits = (source.shape[c], source.shape[d]) == (array.shape[e], array.shape[f])
            if fits and 1 < taps <= min(channels, MAX_TRANSFORM) and rows <= MAX_TRANSFORM:
                kernels = source.transpose(c, d, *rest).reshape(channels, taps).astype(np.float64)
                wanted = array.transpose(e, f, *own).reshape(channels, rows).astype(np.float64)
                entries = _rational_solution(kernels, wanted, MAX_ERROR * largest)
                if entries is not None:
                    numbers = np.array([float(k) for k in entries]).reshape(taps, rows)
                    error = float(np.abs(kernels @ numbers - wanted).max()) / largest
                    return _transformed(array, Tensor(name, source.shape, weight=True), (c, d), (e, f), entries), error
    return None


def find_table(array: Array) -> tuple[Scope, float] | None:
    """Return *array* as a table of rational numbers, and the error relative to its largest; None if it is none."""
    largest = float(np.abs(array).max(initial=0))
    if not 1 < array.size <= MAX_TRANSFORM or array.dtype.kind != "f" or not 0 < largest < inf:
        return None
    entries = [_simple_fraction(k) for k in array.reshape(-1).astype(np.float64).tolist()]
    found = [k for k in entries if k is not None]
    if len(found) < len(entries) or len({*found}) == len(found) > 4:
        return None
    error = max(abs(float(k) - float(x)) for k, x in zip(found, array.reshape(-1), strict=True)) / largest
    xs = extent_iterators(array.shape)
    return Scope(xs, (), Table(array.shape, tuple(found))[as_indices(xs)]), error


def _rational_solution(system: Array, wanted: Array, tolerance: float) -> list[Fraction] | None:
    """Return rational entries, row by row, of a matrix whose product with *system* is *wanted*; None without."""
    solved, _, rank, _ = np.linalg.lstsq(system, wanted, rcond=None)
    if rank < system.shape[1] or not np.abs(system @ solved - wanted).max() <= tolerance:
        return None
    entries = [_simple_fraction(k) for k in solved.reshape(-1).tolist()]
    if None in entries:
        return None
    found = [k for k in entries if k is not None]
    numbers = np.array([float(k) for k in found]).reshape(solved.shape)
    return found if np.abs(system @ numbers - wanted).max() <= tolerance else None


def _simple_fraction(number: float) -> Fraction | None:
    """Return the fraction with the smallest denominator, a power of 2 as bound, near *number*; None without."""
    for bound in (1 << n for n in range(MAX_FRACTION.bit_length())):
        near = Fraction(number).limit_denominator(bound)
        if abs(near - Fraction(number)) <= MAX_ERROR / 4 / bound:
            return near
    return None


def _transformed(
    array: Array, weight: Tensor, channels: tuple[int, int], places: tuple[int, int], entries: Sequence[Fraction]
) -> Scope:
    """Return the transform of *weight*, whose *channels* are at *places* of *array*; *entries*: by taps, then rows."""
    xs = extent_iterators(array.shape)
    own = [x for n, x in enumerate(xs) if n not in places]
    taps = [n for n in range(len(weight.shape)) if n not in channels]
    ys = tuple(Iterator(f"r{n}", 0, weight.shape[n]) for n in taps)
    table = Table(tuple(x.extent for x in (*ys, *own)), tuple(entries))
    at = dict(zip((*channels, *taps), (*(xs[n] for n in places), *ys), strict=True))
    read = weight[tuple(as_index(at[n]) for n in range(len(weight.shape)))]
    return Scope(xs, ys, mul(table[tuple(map(as_index, (*ys, *own)))], read))


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
