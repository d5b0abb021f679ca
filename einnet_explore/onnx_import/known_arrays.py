r"""Known arrays as functions of indices: indices as quasi-affine functions, masks as conditions.

.. math::  T[\vec i] = c + \sum_d \sum_j k_{dj} \left(\lfloor i_d / r_{dj} \rfloor \bmod m_{dj}\right)
   \qquad  M[\vec i] \Leftrightarrow \bigwedge_l\; c_l + \sum_d k_{ld}\, i_d \ge 0

An index map splits each dimension into digits, whose radices are read off where the differences change.  A mask is a
set of intervals, a periodic one, a product of masks of one dimension each, or a convex set of integer points: half
spaces that separate it from the other points are solutions of a linear program (Bennett and Mangasarian).  Every
result is compared with all elements of the array.

Source: K. P. Bennett, O. L. Mangasarian, Robust linear programming discrimination of two linearly inseparable sets,
Optimization Methods and Software 1, 1992.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from math import lcm
from typing import TypeAlias

import numpy as np
from scipy.optimize import linprog

from einnet_explore.ir import Apply, Compare, Index, Scalar, as_index
from einnet_explore.onnx_import.model import Array
from einnet_explore.support.errors import Refused

MAX_PIECES = 4
"""Pieces of an index that is affine in pieces."""

MAX_RUNS = 8
"""Runs of equal elements in a mask of one dimension."""

MAX_HALF_SPACES = 4
"""Half spaces whose intersection is a mask."""

MAX_POINTS = 1 << 9
"""Points next to the border of a mask from which a half space is derived."""

MIN_COEFFICIENT = 1e-6
"""Smaller solutions of the linear program are 0."""

MAX_DENOMINATOR = 64
"""Largest denominator of the ratios of a half space's coefficients."""


MAX_LEFT_OUT = 3
"""First places of a line that may be another piece."""


def index_with_values(table: Array, at: Sequence[Index]) -> Index:
    """Return the index of the places *at* that has the integers in *table*, one place for each dimension.

    Raises Refused if they are not a sum of functions of one place each, affine in digits of the place.
    """
    if not table.size:
        raise Refused("it gathers no element")
    start = int(table.flat[0])
    out, grid = Index((), start), np.full(table.shape, start, np.int64)
    for d, place in enumerate(at):
        line = np.moveaxis(table, d, -1).reshape(-1, table.shape[d])[0].astype(np.int64) - start
        found = index_of_digits(line, place)
        if found is None:
            break
        out += found
        grid += along(line, d, table.ndim)
    else:
        if np.array_equal(grid, table):
            return out
    raise Refused("its indices are affine neither in digits of its places nor in pieces")


def select_by_index(table: Array, at: Sequence[Index], read: Callable[[Index], Scalar]) -> Scalar:
    """Return *read* at the index of the places *at* that has the integers in *table*.

    An index may be affine, also in digits of its places, in pieces, such as one that is clamped.  Raises Refused for
    others.
    """
    try:
        return read(index_with_values(table, at))
    except Refused:
        for along_line in (_affine_line, _digits_line) if table.size else ():
            made = _in_pieces(table, at, read, np.ones(table.shape, bool), MAX_PIECES, along_line)
            if made is not None:
                return made
        raise


Line: TypeAlias = "tuple[Index, Array, Array]"
"""An index of one place, its values, and at which places these hold."""


def _affine_line(values: Array, known: Array, d: int, place: Index) -> Line:
    """Return the line along dimension *d* whose step is the most frequent one between *known* values."""
    size = values.shape[d]
    ahead, behind = (known.take(range(n, n + size - 1), d) for n in (1, 0))
    step = _most_frequent(np.diff(values, axis=d)[ahead & behind])
    return place * step, np.arange(size) * step, np.ones(size, bool)


def _digits_line(values: Array, known: Array, d: int, place: Index) -> Line:
    """Return the line along dimension *d* with the most frequent step at each place, affine in digits of the place.

    The first places may be left out; without such a line it is affine.
    """
    size = values.shape[d]
    steps = [0]
    for n in range(size - 1):
        one, two = (np.moveaxis(each, d, 0)[n : n + 2] for each in (values, known))
        steps.append(_most_frequent((one[1] - one[0])[two[0] & two[1]]))
    line = np.cumsum(steps)
    for first in range(min(MAX_LEFT_OUT, size - 1)):
        found = index_of_digits(line[first:] - line[first], place - first)
        if found is not None:
            return found + int(line[first]), line, np.arange(size) >= first
    return _affine_line(values, known, d, place)


def _in_pieces(
    table: Array,
    at: Sequence[Index],
    read: Callable[[Index], Scalar],
    left: Array,
    most: int,
    along_line: Callable[[Array, Array, int, Index], Line],
) -> Scalar | None:
    """Return *read* at an index that has the values of *table* where *left*, of at *most* pieces; None without.

    A piece is a sum of lines, *along_line* of each dimension.
    """
    rest, index, valid = table.astype(np.int64), Index(), np.ones(table.shape, bool)
    for d, place in enumerate(at):
        line, values, holds = along_line(rest, left & valid, d, as_index(place))
        index += line
        rest = rest - along(values, d, table.ndim)
        valid = valid & along(holds, d, table.ndim)
    start = _most_frequent(rest[left & valid])
    piece, fits = read(index + start), valid & (rest == start)
    if not bool((left & ~fits).any()):
        return piece
    others = _in_pieces(table, at, read, left & ~fits, most - 1, along_line) if most > 1 else None
    if others is None:
        return None
    try:
        return select_by_mask(fits, at, piece, others)
    except Refused:
        return None


def _most_frequent(values: Array) -> int:
    """Return the most frequent of *values*; 0 if there are none."""
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts.argmax()]) if found.size else 0


def index_of_digits(values: Array, place: Index, known: Array | None = None, beyond: int = 0) -> Index | None:
    """Return the index of *place* = 0, 1, … that has *values*, affine in digits of the place; None if there is none.

    Only the *known* values count, the first among them; *beyond* is the step to a digit of which none is known.
    """
    known = np.ones(len(values), bool) if known is None else known
    places, first = np.arange(len(values)), int(values[0])
    step = beyond if len(values) < 2 or not known[1] else int(values[1]) - first
    wrong = np.flatnonzero(known & (values != first + step * places))
    if not wrong.size:
        return place * step + first
    for radix in range(int(wrong[0]), int(np.flatnonzero(known[: wrong[0]])[-1]), -1):
        heads, is_known = np.zeros(-(-len(values) // radix), np.int64), np.zeros(-(-len(values) // radix), bool)
        own = values - step * (places % radix)
        heads[places[known] // radix] = own[known]
        is_known[places[known] // radix] = True
        if radix > 1 and np.array_equal(heads[places[known] // radix], own[known]):
            rest = index_of_digits(heads, place // radix, is_known, beyond)
            if rest is not None:
                return place % radix * step + rest
    return _index_of_two_digits(values, place, known, beyond)


def _index_of_two_digits(values: Array, place: Index, known: Array, beyond: int) -> Index | None:
    """Return the index that has *values* as the sum of functions of two digits of *place*; see ``index_of_digits``."""
    for radix in range(len(values) // 2, 2, -1):
        if len(values) % radix:
            continue
        rows, are_known = values.reshape(-1, radix), known.reshape(-1, radix)
        low, is_low = np.where(are_known[0], rows[0], 0), are_known[0].copy()
        high = np.zeros(len(rows), np.int64)
        for n, (row, is_known) in enumerate(zip(rows, are_known, strict=True)):
            differences = np.unique((row - low)[is_low & is_known])
            if len(differences) != 1:
                break
            high[n] = differences[0]
            new = is_known & ~is_low
            low[new], is_low = row[new] - high[n], is_low | is_known
        else:
            first, second = place % radix, place // radix
            parts = index_of_digits(low, first, is_low, beyond), index_of_digits(high, second, None, beyond)
            if parts[0] is not None and parts[1] is not None:
                return parts[0] + parts[1]
    return None


def select_by_mask(mask: Array, at: Sequence[Index], one: Scalar, other: Scalar) -> Scalar:
    """Return *one* where *mask* is true at the last places of *at*, else *other*.

    Raises Refused if the mask is neither a product of intervals and periods, nor a convex set or the complement of one.
    """
    if mask.all() or not mask.any():
        return one if mask.all() else other
    used = [d for d in range(mask.ndim) if not bool((mask == mask.take([0], d)).all())]
    places = [at[len(at) - mask.ndim + d] for d in used]
    small = mask[tuple(slice(None) if d in used else 0 for d in range(mask.ndim))]
    for wanted, yes, no in ((small, one, other), (~small, other, one)):
        found = _band(wanted, places, yes, no) or _by_dimensions(wanted, places, yes, no)
        if found is not None:
            return found
    for wanted, yes, no in ((small, one, other), (~small, other, one)):
        found = _in_half_spaces(wanted, places, yes, no)
        if found is not None:
            return found
    raise Refused(f"its condition of shape {list(mask.shape)} is no band, no product of periods and no convex set")


def _band(mask: Array, at: Sequence[Index], yes: Scalar, no: Scalar) -> Scalar | None:
    """Return the selection by a *mask* of one dimension that is an interval, or of two that is a diagonal band."""
    if mask.ndim > 2:
        return None
    places = np.arange(mask.shape[-1]) - (np.arange(mask.shape[0])[:, None] if mask.ndim == 2 else 0)
    first, last = int(places[mask].min()), int(places[mask].max())
    if not np.array_equal(mask, (places >= first) & (places <= last)):
        return None
    place = at[1] - at[0] if mask.ndim == 2 else as_index(at[0])
    return _in_interval(place, (first, last), (int(places.min()), int(places.max())), yes, no)


def _in_interval(place: Index, ends: tuple[int, int], bounds: tuple[int, int], yes: Scalar, no: Scalar) -> Scalar:
    """Return *yes* between the *ends*, else *no*; omit comparisons that the *bounds* of *place* imply."""
    if ends[1] < bounds[1]:
        yes = _where(Compare("<=", place, Index((), ends[1])), yes, no)
    return yes if ends[0] <= bounds[0] else _where(Compare(">=", place, Index((), ends[0])), yes, no)


def _by_dimensions(mask: Array, at: Sequence[Index], yes: Scalar, no: Scalar) -> Scalar | None:
    """Return the selection by a *mask* that is a product of masks of one dimension each; None if it is none."""
    lines = [mask.any(axis=tuple(e for e in range(mask.ndim) if e != d), keepdims=True) for d in range(mask.ndim)]
    if not np.array_equal(mask, reduce(np.logical_and, lines)):
        return None
    for line, place in zip(lines, at, strict=True):
        found = _by_period(line.reshape(-1), place, yes, no)
        if found is None:
            return None
        yes = found
    return yes


def _by_period(line: Array, place: Index, yes: Scalar, no: Scalar) -> Scalar | None:
    """Return the selection by a mask of one dimension: a few intervals, or a period of them; None for others."""
    places = np.arange(len(line))
    starts = [0, *(np.flatnonzero(np.diff(line)) + 1).tolist()]
    distances = (start - starts[1] for start in starts[3:])
    period = next((p for p in distances if 2 * p <= len(line) and np.array_equal(line, line[places % p])), None)
    if period is not None:
        return _by_period(line[:period], place % period, yes, no)
    if len(starts) > MAX_RUNS:
        return None
    out = yes if line[starts[-1]] else no
    for start, end in zip(starts[-2::-1], starts[:0:-1], strict=True):
        out = _where(Compare("<", place, Index((), end)), yes if line[start] else no, out)
    return out


def _in_half_spaces(mask: Array, at: Sequence[Index], yes: Scalar, no: Scalar) -> Scalar | None:
    """Return the selection by a *mask* that is the intersection of half spaces; None if that is not found."""
    inside = np.ones(mask.shape, bool)
    for d, (n, place) in enumerate(zip(mask.shape, at, strict=True)):
        line = np.asarray(mask.any(axis=tuple(e for e in range(mask.ndim) if e != d)))
        first, last = int(line.argmax()), n - 1 - int(np.flip(line).argmax())
        within = (np.arange(n) >= first) & (np.arange(n) <= last)
        inside &= along(within, d, mask.ndim)
        yes = _in_interval(place, (first, last), (0, n - 1), yes, no)
    for _ in range(MAX_HALF_SPACES):
        if np.array_equal(inside, mask):
            return yes
        found = _half_space(mask, inside & ~mask)
        if found is None:
            return None
        normal, least = found
        inside &= _heights(mask.shape, normal) >= least
        height = sum((place * k for place, k in zip(at, normal, strict=True)), Index())
        yes = _where(Compare(">=", height, Index((), least)), yes, no)
    return yes if np.array_equal(inside, mask) else None


def _half_space(mask: Array, outside: Array) -> tuple[tuple[int, ...], int] | None:
    """Return k and c with k·x >= c in *mask*, but not at some of the points *outside*: many, or those near one."""
    border = np.zeros(mask.shape, bool)
    for d in range(mask.ndim):
        changes = np.diff(mask, axis=d)
        border[(slice(None),) * d + (slice(None, -1),)] |= changes
        border[(slice(None),) * d + (slice(1, None),)] |= changes
    within, beyond = (np.argwhere(each & border)[:MAX_POINTS] for each in (mask, outside))
    if not len(beyond):
        return None
    beyond = beyond[np.abs(beyond - beyond[0]).sum(axis=1).argsort()]
    count = len(beyond)
    while count:
        normal = _separating_normal(within, beyond[:count])
        if normal is not None:
            heights = _heights(mask.shape, normal)
            least = int(heights[mask].min())
            if (heights[outside] < least).any():
                return normal, least
        count //= 2
    return None


def _heights(shape: tuple[int, ...], normal: tuple[int, ...]) -> Array:
    """Return the product of *normal* with each point of an array of *shape*."""
    heights = np.zeros(shape, np.int64)
    for d, (n, k) in enumerate(zip(shape, normal, strict=True)):
        heights += along(np.arange(n) * k, d, len(shape))
    return heights


def _separating_normal(within: Array, beyond: Array) -> tuple[int, ...] | None:
    """Return integers k for which k·x is larger at all points *within* than at most points *beyond*; None without."""
    slack, rank = beyond.shape
    # The variables are k in two parts, both at least 0, the threshold, and how far each point beyond is above it.
    above = np.hstack([-within, within, np.ones((len(within), 1)), np.zeros((len(within), slack))])
    below = np.hstack([beyond, -beyond, -np.ones((slack, 1)), -np.eye(slack)])
    bounds = [(0, None)] * (2 * rank) + [(None, None)] + [(0, None)] * slack
    cost = [1e-6] * (2 * rank) + [0.0] + [1.0] * slack
    limits = np.concatenate([np.zeros(len(within)), -np.ones(slack)])
    solved = linprog(cost, np.vstack([above, below]), limits, bounds=bounds)
    if solved.x is None:
        return None
    real = solved.x[:rank] - solved.x[rank : 2 * rank]
    largest = float(np.abs(real).max())
    if largest < MIN_COEFFICIENT:
        return None
    ratios = [Fraction(float(k) / largest).limit_denominator(MAX_DENOMINATOR) for k in real]
    scale = lcm(*(ratio.denominator for ratio in ratios))
    return tuple(int(ratio * scale) for ratio in ratios)


def along(line: Array, d: int, rank: int) -> Array:
    """Return *line* as an array of *rank* dimensions, all but *d* of extent 1."""
    return line.reshape([-1 if e == d else 1 for e in range(rank)])


def _where(condition: Compare, yes: Scalar, no: Scalar) -> Scalar:
    return Apply("where", (condition, yes, no))
