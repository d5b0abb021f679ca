r"""How far rounding may take a derivation that is more than a re-association, and how far it does.

With unit roundoff `u`, and :math:`\gamma_t = t u / (1 - t u)` for `t` roundings on the way from an input to a result
(N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3 and §23), a bilinear algorithm over `C` channels
has

.. math::
   |\hat y_k - y_k| \le \gamma_t \sum_c \sum_p |W[k,p]| \Big(\sum_i |U[p,i]|\,|x_{c,i}|\Big)
   \Big(\sum_j |V[p,j]|\,|g_{c,j}|\Big),

where :math:`\gamma_t \sum |x||g|` stands for a direct sum: `growth` is how many times more that may be.  A softmax met
in blocks is rescaled by exponentials whose arguments telescope, so its error stays one of relative weights.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.algebra.bilinear import Bilinear, Matrix

Array = npt.NDArray[Any]

UNIT = 2.0**-24
"""The unit roundoff of single precision."""

EXP = 2.0**-22
"""The relative error of an exponential in single precision: 2 units in the last place (Cephes, expf)."""


def gamma(roundings: int) -> float:
    """:math:`\\gamma_t` in single precision; raises ValueError where there are too many for any digit to be left."""
    if roundings * UNIT >= 1:
        raise ValueError(f"{roundings} roundings of {UNIT:.0e} leave no digit")
    return roundings * UNIT / (1 - roundings * UNIT)


def growth(triple: Bilinear) -> Fraction:
    """The largest :math:`\\sum_p |W[k,p]| \\|U_p\\|_1 \\|V_p\\|_1`, over the terms of a direct sum, at any output."""
    sums = [(sum(map(abs, u)), sum(map(abs, v))) for u, v in zip(triple.u, triple.v, strict=True)]
    worst = max(sum((abs(x) * a * b for x, (a, b) in zip(row, sums, strict=True)), Fraction(0)) for row in triple.w)
    return worst / _terms(triple)


def roundings(triple: Bilinear, channels: int) -> int:
    """Roundings on the longest way: a coefficient, its product and the sums, in each transform and between."""
    return channels + 1 + sum(_longest(m) + 2 for m in (triple.u, triple.v, triple.w))


def bilinear(triple: Bilinear, data: Array, taps: Array) -> Array:
    """The bound of every output, for *data* (channels, i) and *taps* (channels, j)."""
    u, v, w = (np.abs(_array(m)) for m in (triple.u, triple.v, triple.w))
    products = (np.abs(data.astype(np.float64)) @ u.T) * (np.abs(taps.astype(np.float64)) @ v.T)
    bound: Array = gamma(roundings(triple, len(data))) * (w @ products.sum(0))
    return bound


def computed(triple: Bilinear, data: Array, taps: Array, dtype: npt.DTypeLike = np.float32) -> Array:
    """What the algorithm gives where everything is of *dtype*: the measured side of the bound."""
    u, v, w = (_array(m).astype(dtype) for m in (triple.u, triple.v, triple.w))
    x, g = data.astype(dtype), taps.astype(dtype)
    found: Array = w @ ((x @ u.T) * (g @ v.T)).sum(0, dtype=dtype)
    return found


def softmax(columns: int, blocks: int, spread: float, largest: float, score: float = 0.0) -> float:
    """The bound of a softmax-weighted sum of values up to *largest*, met in *blocks*.

    *spread* is the largest difference of two scores and *score* the error of one.  Each weight carries the error of
    its exponential's argument, once within its block and once for all later ones, whose differences add up to no more
    than *spread*; numerator and denominator carry it both.
    """
    argument = 2 * (spread * UNIT + score)
    return 2 * (gamma(columns + 2 * blocks) + argument + (blocks + 1) * (EXP + UNIT)) * largest


def _terms(triple: Bilinear) -> int:
    """How many products a direct sum has at most at an output: those that the identity's form counts."""
    outputs, data, taps = triple.shape
    u, v, w = (_array(m) for m in (triple.u, triple.v, triple.w))
    form = np.einsum("kp,pi,pj->kij", w, u, v)
    return max(1, int(np.count_nonzero(np.abs(form.reshape(outputs, data * taps)) > 1 / 2, axis=1).max()))


def _longest(matrix: Matrix) -> int:
    return max(sum(bool(x) for x in row) for row in matrix)


def _array(matrix: Matrix) -> Array:
    return np.array([[float(x) for x in row] for row in matrix])
