r"""Bilinear algorithms: exact rational triples that compute a small bilinear form with fewer multiplications.

A triple (U, V, W) of rank *n* computes :math:`y_k = \sum_{i,j} T[k,i,j]\, x_i\, g_j` as

.. math::  y_k = \sum_{p<n} W[k,p] \Big(\sum_i U[p,i]\, x_i\Big) \Big(\sum_j V[p,j]\, g_j\Big),
           \qquad \sum_p W[k,p]\, U[p,i]\, V[p,j] = T[k,i,j].

``correlation(m, r)`` makes F(m, r), *m* outputs of a filter with *r* taps by :math:`m + r - 1` multiplications instead
of :math:`m r`: :math:`T[k,i,j] = [i = k + j]`.  It is the transposed Toom-Cook algorithm: the product of polynomials of
*m* and *r* coefficients is evaluated at :math:`m + r - 2` points and at infinity, and interpolated.

The known algorithms of small products (matrices, polynomials, complex numbers) are triples too; ``nest_algorithms``
composes them.  Matrices are numbered row by row: an (a, b, c) product :math:`C[i,k] = \sum_j A[i,j] B[j,k]` has `a·b`
data, `b·c` numbers in the other operand and `a·c` outputs.

Expressions read the triples as tables, at an index or expanded by cases.

Sources: S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast algorithms for
convolutional neural networks, CVPR 2016 (nesting, scaling); B. Barabasz et al., Error analysis and improving the
accuracy of Winograd convolution for deep neural networks, ACM TOMS 46(4), 2020 (points and their errors); V. Strassen,
Gaussian elimination is not optimal, 1969; J. Laderman, A noncommutative algorithm for multiplying 3×3 matrices using 23
multiplications, 1976; A. Karatsuba and Y. Ofman, 1962.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import lcm, prod

from einnet_explore.ir import Apply, Compare, Const, Index, Iterator, Scalar, Scope, Table, as_index
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import as_items, as_texts

Matrix = tuple[tuple[Fraction, ...], ...]
Form = Callable[[int, int, int], int]

POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2", "4", "-4", "1/4", "-1/4", "3", "-3")))
"""Interpolation points, those that cost least accuracy first: zero, one, and powers of two with both signs."""


@dataclass(frozen=True, slots=True)
class Bilinear:
    """An algorithm as a triple: U is n × i, V is n × j, W is k × n."""

    name: str
    u: Matrix
    v: Matrix
    w: Matrix

    @property
    def rank(self) -> int:
        """The number of multiplications."""
        return len(self.u)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of outputs *k*, data *i* and filter taps *j*."""
        return len(self.w), len(self.u[0]), len(self.v[0])


@lru_cache(256)
def check_bilinear(triple: Bilinear, form: Form) -> None:
    """Raise Refused at the first (k, i, j) at which *triple* does not compute *form*, with both numbers."""
    outputs, data, taps = triple.shape
    for k, i in product(range(outputs), range(data)):
        terms = [(p, w * triple.u[p][i]) for p, w in enumerate(triple.w[k]) if w and triple.u[p][i]]
        for j in range(taps):
            found = sum((c * triple.v[p][j] for p, c in terms if triple.v[p][j]), start=Fraction(0))
            if found != form(k, i, j):
                raise Refused(f"{triple.name} is {found} at (k, i, j) = ({k}, {i}, {j}), expected {form(k, i, j)}")


def correlates(k: int, i: int, j: int) -> int:
    """Return the form of a filter: 1 if tap *j* of output *k* meets datum i = k + j."""
    return int(i == k + j)


@lru_cache(maxsize=256)
def correlation(outputs: int, taps: int, points: tuple[Fraction, ...] = POINTS) -> Bilinear:
    """Return F(outputs, taps) at the first *outputs* + *taps* - 2 of *points* and at infinity.

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
    """Return *matrix* as a table, row by row."""
    return Table((len(matrix), len(matrix[0])), tuple(x for row in matrix for x in row))


def bilinear_to_json(triple: Bilinear) -> dict[str, list[list[str]]]:
    """``{"u": [["1", "-1/2"], ...], "v": ..., "w": ...}``."""
    return {n: [[str(x) for x in row] for row in getattr(triple, n)] for n in "uvw"}


def bilinear_from_json(name: str, held: Mapping[str, object]) -> Bilinear:
    """Return the algorithm *name* written by ``bilinear_to_json``; raises ValueError for ragged rows."""
    return Bilinear(name, *(_matrix(held[n]) for n in "uvw"))


def _matrix(rows: object) -> Matrix:
    made = tuple(tuple(map(Fraction, as_texts(row))) for row in as_items(rows))
    if not made or len({len(row) for row in made}) != 1 or not made[0]:
        raise ValueError(f"found a matrix with rows of {', '.join(str(len(row)) for row in made)} entries")
    return made


def _vandermonde(points: Iterable[Fraction], columns: int) -> Matrix:
    """Return the powers of each point, and of infinity: only the highest counts there."""
    rows = [tuple(x**n for n in range(columns)) for x in points]
    return (*rows, tuple(Fraction(n == columns - 1) for n in range(columns)))


def _inverse(matrix: Matrix) -> Matrix:
    """Invert the regular *matrix* exactly, by Gauss-Jordan elimination."""
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


Sizes = tuple[int, int, int]

_STRASSEN = (
    ("a00 a11", "b00 b11", "c00 c11"),
    ("a10 a11", "b00", "c10 -c11"),
    ("a00", "b01 -b11", "c01 c11"),
    ("a11", "-b00 b10", "c00 c10"),
    ("a00 a01", "b11", "-c00 c01"),
    ("-a00 a10", "b00 b01", "c11"),
    ("a01 -a11", "b10 b11", "c00"),
)
"""One product a line: the sums that are multiplied, and where the product is added."""

_LADERMAN = (
    ("a00 a01 a02 -a10 -a11 -a21 -a22", "b11", "c01"),
    ("a00 -a10", "-b01 b11", "c10 c11"),
    ("a11", "-b00 b01 b10 -b11 -b12 -b20 b22", "c10"),
    ("-a00 a10 a11", "b00 -b01 b11", "c01 c10 c11"),
    ("a10 a11", "-b00 b01", "c01 c11"),
    ("a00", "b00", "c00 c01 c02 c10 c11 c20 c22"),
    ("-a00 a20 a21", "b00 -b02 b12", "c02 c20 c22"),
    ("-a00 a20", "b02 -b12", "c20 c22"),
    ("a20 a21", "-b00 b02", "c02 c22"),
    ("a00 a01 a02 -a11 -a12 -a20 -a21", "b12", "c02"),
    ("a21", "-b00 b02 b10 -b11 -b12 -b20 b21", "c20"),
    ("-a02 a21 a22", "b11 b20 -b21", "c01 c20 c21"),
    ("a02 -a22", "b11 -b21", "c20 c21"),
    ("a02", "b20", "c00 c01 c02 c10 c12 c20 c21"),
    ("a21 a22", "-b20 b21", "c01 c21"),
    ("-a02 a11 a12", "b12 b20 -b22", "c02 c10 c12"),
    ("a02 -a12", "b12 -b22", "c10 c12"),
    ("a11 a12", "-b20 b22", "c02 c12"),
    ("a01", "b10", "c00"),
    ("a12", "b21", "c11"),
    ("a10", "b02", "c12"),
    ("a20", "b01", "c21"),
    ("a22", "b22", "c22"),
)


@lru_cache(maxsize=256)
def matrix_product_form(sizes: Sizes) -> Form:
    """Return the form of an (a, b, c) product of matrices; equal sizes share one value, so checks are cached."""
    _, b, c = sizes

    def form(k: int, i: int, j: int) -> int:
        return int(i // b == k // c and i % b == j // c and j % c == k % c)

    return form


@lru_cache(maxsize=1)
def strassen() -> Bilinear:
    """Return Strassen's algorithm: a (2, 2, 2) product of matrices by 7 multiplications."""
    return _parse_products("Strassen", (2, 2, 2), _STRASSEN)


@lru_cache(maxsize=1)
def laderman() -> Bilinear:
    """Return Laderman's algorithm: a (3, 3, 3) product of matrices by 23 multiplications."""
    return _parse_products("Laderman", (3, 3, 3), _LADERMAN)


@lru_cache(maxsize=1)
def karatsuba() -> Bilinear:
    """Return Karatsuba's algorithm: two linear polynomials by 3 multiplications, at 0, at 1 and at infinity."""
    one = Fraction(1)
    ends: Matrix = ((one, Fraction(0)), (one, one), (Fraction(0), one))
    w = tuple(tuple(map(Fraction, row)) for row in ((1, 0, 0), (-1, 1, -1), (0, 0, 1)))
    return Bilinear("Karatsuba", ends, ends, w)


@lru_cache(maxsize=1)
def gauss() -> Bilinear:
    """Return the product of two complex numbers by 3 multiplications: Karatsuba's with i² = -1."""
    u = karatsuba().u
    return Bilinear("Gauss", u, u, tuple(tuple(map(Fraction, row)) for row in ((1, 0, -1), (-1, 1, -1))))


def nest_algorithms(outer: Bilinear, inner: Bilinear) -> Bilinear:
    """Compose two algorithms: the numbers of *outer* are the operands of *inner*.

    The form is the product of the forms. For matrices, these are blocks of blocks, in block order.
    """
    u, v, w = ((_kronecker(a, b)) for a, b in zip(_matrices(outer), _matrices(inner), strict=True))
    return Bilinear(f"{outer.name} of {inner.name}", u, v, w)


def _matrices(triple: Bilinear) -> tuple[Matrix, Matrix, Matrix]:
    return triple.u, triple.v, triple.w


def _kronecker(a: Matrix, b: Matrix) -> Matrix:
    return tuple(tuple(x * y for x, y in product(row, other)) for row, other in product(a, b))


def _parse_products(name: str, sizes: Sizes, lines: tuple[tuple[str, str, str], ...]) -> Bilinear:
    """Parse the triple in *lines*: ``a01`` is row 0, column 1 of the first matrix."""
    m, n, q = sizes
    shapes = ((m, n), (n, q), (m, q))
    sides = []
    for side, (rows, columns) in enumerate(shapes):
        sides.append(tuple(_parse_sum(line[side], rows * columns, columns) for line in lines))
    u, v, w = sides
    return Bilinear(name, u, v, tuple(zip(*w, strict=True)))


def _parse_sum(text: str, size: int, columns: int) -> tuple[Fraction, ...]:
    out = [Fraction(0)] * size
    for word in text.split():
        row, column = map(int, word[-2:])
        out[row * columns + column] += -1 if word.startswith("-") else 1
    return tuple(out)


def select_entry(table: Table, index: tuple[Index, ...]) -> Scalar:
    """Expand ``table[index]`` to nested ``where`` over the unknown parts of *index*; equal branches are merged."""
    if not table.shape:
        return Const(_as_number(table.entries[0]))
    first, *rest = index
    lo, hi = first.bounds
    rows = _rows(table)
    found = [select_entry(rows[n], tuple(rest)) for n in range(lo, hi + 1)]
    out = found[-1]
    for n, value in reversed(list(enumerate(found[:-1], lo))):
        if value != out:
            out = Apply("where", (Compare("==", first, as_index(n)), value, out))
    return out


def table_scope(table: Table) -> Scope:
    """Return the scope that lists *table*."""
    at = tuple(Iterator(f"z{n + 1}", 0, extent) for n, extent in enumerate(table.shape))
    return Scope(at, (), table[at])


def table_entries(table: Table) -> dict[tuple[int, ...], Fraction]:
    """Return the entries of *table* by their indices."""
    return dict(zip(product(*map(range, table.shape)), table.entries, strict=True))


def _rows(table: Table) -> tuple[Table, ...]:
    count, *rest = table.shape
    size = prod(rest)
    return tuple(Table(tuple(rest), table.entries[n * size : (n + 1) * size]) for n in range(count))


def _as_number(x: Fraction) -> float:
    return int(x) if x.denominator == 1 else float(x)
