r"""Known bilinear algorithms of small products: matrices, polynomials, complex numbers; and their composition.

Each is a triple of exact numbers for a form `T` (``algebra/bilinear.py``), guarded by
:math:`\sum_p W[k,p]\,U[p,i]\,V[p,j] = T[k,i,j]`.  Matrices are read row by row: of an (a, b, c) product
:math:`C[i,k] = \sum_j A[i,j] B[j,k]` the data are `a·b` numbers, the other operand `b·c`, the outputs `a·c`.

Sources: V. Strassen, Gaussian elimination is not optimal, 1969; J. Laderman, A noncommutative algorithm for multiplying
3×3 matrices using 23 multiplications, 1976; A. Karatsuba and Y. Ofman, 1962.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product

from einnet_explore.algebra.bilinear import Bilinear, Form, Matrix

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


@cache
def matrix_product(sizes: Sizes) -> Form:
    """The form of an (a, b, c) product of matrices, row by row; one value a size, so an algorithm is checked once."""
    _, b, c = sizes

    def form(k: int, i: int, j: int) -> int:
        return int(i // b == k // c and i % b == j // c and j % c == k % c)

    return form


@cache
def strassen() -> Bilinear:
    """The (2, 2, 2) product of matrices by 7 multiplications."""
    return _read("Strassen", (2, 2, 2), _STRASSEN)


@cache
def laderman() -> Bilinear:
    """The (3, 3, 3) product of matrices by 23 multiplications."""
    return _read("Laderman", (3, 3, 3), _LADERMAN)


@cache
def karatsuba() -> Bilinear:
    """The product of two polynomials of two coefficients by 3 multiplications: at 0, at 1 and at infinity."""
    one = Fraction(1)
    ends: Matrix = ((one, Fraction(0)), (one, one), (Fraction(0), one))
    w = tuple(tuple(map(Fraction, row)) for row in ((1, 0, 0), (-1, 1, -1), (0, 0, 1)))
    return Bilinear("Karatsuba", ends, ends, w)


@cache
def gauss() -> Bilinear:
    """The product of two complex numbers by 3 multiplications: Karatsuba's, where the square of i is -1."""
    u = karatsuba().u
    return Bilinear("Gauss", u, u, tuple(tuple(map(Fraction, row)) for row in ((1, 0, -1), (-1, 1, -1))))


def nested(outer: Bilinear, inner: Bilinear) -> Bilinear:
    """*outer*, whose numbers are what *inner* works on: the outputs, data and products of both in pairs.

    The form is the product of the forms.  Of matrices: blocks of blocks, whose rows stand block by block.
    """
    u, v, w = ((_kronecker(a, b)) for a, b in zip(_matrices(outer), _matrices(inner), strict=True))
    return Bilinear(f"{outer.name} of {inner.name}", u, v, w)


def _matrices(triple: Bilinear) -> tuple[Matrix, Matrix, Matrix]:
    return triple.u, triple.v, triple.w


def _kronecker(a: Matrix, b: Matrix) -> Matrix:
    return tuple(tuple(x * y for x, y in product(row, other)) for row, other in product(a, b))


def _read(name: str, sizes: Sizes, lines: tuple[tuple[str, str, str], ...]) -> Bilinear:
    """The triple that *lines* write: ``a01`` is row 0, column 1 of the first matrix."""
    m, n, q = sizes
    shapes = ((m, n), (n, q), (m, q))
    sides = []
    for side, (rows, columns) in enumerate(shapes):
        sides.append(tuple(_row(line[side], rows * columns, columns) for line in lines))
    u, v, w = sides
    return Bilinear(name, u, v, tuple(zip(*w, strict=True)))


def _row(text: str, size: int, columns: int) -> tuple[Fraction, ...]:
    out = [Fraction(0)] * size
    for word in text.split():
        row, column = map(int, word[-2:])
        out[row * columns + column] += -1 if word.startswith("-") else 1
    return tuple(out)
