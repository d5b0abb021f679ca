r"""Bilinear algorithms: exact rational triples that compute a small bilinear form with fewer multiplications.

A triple (U, V, W) of rank *n* computes :math:`y_k = \sum_{i,j} T[k,i,j]\, x_i\, g_j` as

.. math::  y_k = \sum_{p<n} W[k,p] \Big(\sum_i U[p,i]\, x_i\Big) \Big(\sum_j V[p,j]\, g_j\Big),
           \qquad \sum_p W[k,p]\, U[p,i]\, V[p,j] = T[k,i,j].

``correlation(m, r)`` makes F(m, r), *m* outputs of a filter with *r* taps by :math:`m + r - 1` multiplications instead
of :math:`m r`: :math:`T[k,i,j] = [i = k + j]`.  It is the transposed Toom-Cook algorithm: the product of polynomials of
*m* and *r* coefficients is evaluated at :math:`m + r - 2` points and at infinity, and interpolated.

Sources: S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast algorithms for
convolutional neural networks, CVPR 2016 (nesting, scaling); B. Barabasz et al., Error analysis and improving the
accuracy of Winograd convolution for deep neural networks, ACM TOMS 46(4), 2020 (points and their errors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import product
from math import lcm
from typing import Any

from einnet_explore.ir import Table

Matrix = tuple[tuple[Fraction, ...], ...]
Form = Callable[[int, int, int], int]

POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2", "4", "-4", "1/4", "-1/4", "3", "-3")))
"""Interpolation points, those that cost least accuracy first: zero, one, and powers of two with both signs."""


@dataclass(frozen=True, slots=True)
class Bilinear:
    """The triple of an algorithm: U is n × i, V is n × j, W is k × n."""

    name: str
    u: Matrix
    v: Matrix
    w: Matrix

    @property
    def rank(self) -> int:
        """How many multiplications it does."""
        return len(self.u)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of outputs *k*, data *i* and filter taps *j*."""
        return len(self.w), len(self.u[0]), len(self.v[0])


@lru_cache(256)
def wrong_entry(triple: Bilinear, form: Form) -> str | None:
    """The first (k, i, j) at which *triple* does not compute *form*, with both numbers; None where it does."""
    outputs, data, taps = triple.shape
    for k, i in product(range(outputs), range(data)):
        terms = [(p, w * triple.u[p][i]) for p, w in enumerate(triple.w[k]) if w and triple.u[p][i]]
        for j in range(taps):
            found = sum((c * triple.v[p][j] for p, c in terms if triple.v[p][j]), start=Fraction(0))
            if found != form(k, i, j):
                return f"{triple.name} is {found} at (k, i, j) = ({k}, {i}, {j}), expected {form(k, i, j)}"
    return None


def correlates(k: int, i: int, j: int) -> int:
    """The form of a filter: tap *j* of output *k* meets datum k + j."""
    return int(i == k + j)


@cache
def correlation(outputs: int, taps: int, points: tuple[Fraction, ...] = POINTS) -> Bilinear:
    """F(outputs, taps) at the first *outputs* + *taps* - 2 of *points* and at infinity.

    Raises ValueError where there are too few points, or two equal ones.
    """
    finite = outputs + taps - 2
    if outputs < 1 or taps < 1:
        raise ValueError(f"F({outputs}, {taps}): expected at least one output and one tap")
    if len(set(points[:finite])) < finite:
        raise ValueError(f"F({outputs}, {taps}) needs {finite} different points, found {len(set(points[:finite]))}")
    at = points[:finite]
    interpolation = _inverse(_vandermonde(at, finite + 1))
    u, v = [], []
    for column, taps_row in zip(zip(*interpolation, strict=True), _vandermonde(at, taps), strict=True):
        # Whole numbers on the side of the data, which is transformed at run time; the filter takes the denominators.
        scale = lcm(*(x.denominator for x in column))
        u.append(tuple(x * scale for x in column))
        v.append(tuple(x / scale for x in taps_row))
    w = tuple(zip(*_vandermonde(at, outputs), strict=True))
    return Bilinear(f"F({outputs},{taps})", tuple(u), tuple(v), w)


def as_table(matrix: Matrix) -> Table:
    """*matrix* as a table, row by row."""
    return Table((len(matrix), len(matrix[0])), tuple(x for row in matrix for x in row))


def to_json(triple: Bilinear) -> dict[str, list[list[str]]]:
    """``{"u": [["1", "-1/2"], ...], "v": ..., "w": ...}``."""
    return {n: [[str(x) for x in row] for row in getattr(triple, n)] for n in "uvw"}


def from_json(name: str, held: Mapping[str, Any]) -> Bilinear:
    """The algorithm *name* that ``to_json`` wrote; raises KeyError, and ValueError for rows of unequal length."""
    return Bilinear(name, *(_matrix(held[n]) for n in "uvw"))


def _matrix(rows: Iterable[Iterable[Any]]) -> Matrix:
    made = tuple(tuple(map(Fraction, row)) for row in rows)
    if not made or len({len(row) for row in made}) != 1 or not made[0]:
        raise ValueError(f"found a matrix with rows of {', '.join(str(len(row)) for row in made)} entries")
    return made


def _vandermonde(points: Iterable[Fraction], columns: int) -> Matrix:
    """The powers of each point, and of infinity: only the highest counts there."""
    rows = [tuple(x**n for n in range(columns)) for x in points]
    return (*rows, tuple(Fraction(n == columns - 1) for n in range(columns)))


def _inverse(matrix: Matrix) -> Matrix:
    """By Gauss and Jordan, exactly; *matrix* is regular."""
    n = len(matrix)
    rows = [[*row, *(Fraction(k == n_) for n_ in range(n))] for k, row in enumerate(matrix)]
    for c in range(n):
        pivot = next(r for r in range(c, n) if rows[r][c])
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [x / rows[c][c] for x in rows[c]]
        for r in range(n):
            if r != c and rows[r][c]:
                rows[r] = [x - rows[r][c] * y for x, y in zip(rows[r], rows[c], strict=True)]
    return tuple(tuple(row[n:]) for row in rows)
