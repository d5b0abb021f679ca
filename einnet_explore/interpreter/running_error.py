r"""Running error analysis: with every value the largest error that single precision may have left in it.

Every value is a pair, what it is in double precision and how far what is computed may be from it; roundings are those
of the scopes as they stand (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.3).  With
:math:`\tilde x = |x| + e_x`, unit roundoff `u`, and :math:`\gamma_t = t u / (1 - t u)`,

.. math::
   e\Big(\sum_{\vec y} \prod_k x_k\Big) = \sum_{\vec y} \Big(\prod_k \tilde x_k - \prod_k |x_k|\Big)
   + \gamma_t \sum_{\vec y} \prod_k \tilde x_k,

where `t` counts the products and the additions, taken in any order; a monotone function has the larger of its changes
over :math:`[x - e_x, x + e_x]`, and an error of its own.  So what a bilinear algorithm adds and takes away again is in
the bound, and a bound of one algorithm on the same numbers can be held against that of another.

Values with the largest error that single precision may have left in them, and operations on them.

The operations of ``algebra/running_error.py``, element by element.  A monotone function has the larger of its changes
over what its argument may be, and an error of its own.

How far rounding may take a derivation that is more than a re-association, and how far it does.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from einnet_explore.analysis.bilinear import Bilinear, Matrix
from einnet_explore.interpreter.evaluation import Evaluation
from einnet_explore.interpreter.exact_arrays import ARRAYS, Array, Part, Value, absent_extent, contract_factors, total
from einnet_explore.ir import SCALAR_FUNCTIONS, Apply, Const, Scalar, ScalarFunction, Scope, Table

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


FUNCTION = 2.0**-21
"""The error of other functions of the usual libraries in single precision: relative, or absolute where they are ≤ 1."""

SLACK = 2.0**-50
"""What double precision itself may lose where two sums are subtracted."""


class Near(NamedTuple):
    """Values, and how far from them what is computed may be."""

    value: Array
    error: Array

    @property
    def most(self) -> Array:
        """The largest magnitude that may be met."""
        return np.asarray(np.abs(self.value) + self.error)


def applied(op: str, near: Sequence[Near], args: tuple[Scalar, ...], rescalings: int) -> Near:
    """One operation: what its arguments' errors do, and its own rounding.

    *rescalings* is as in ``running_error``.  Raises ValueError for an operation without a bound.
    """
    values, errors = [n.value for n in near], [n.error for n in near]
    match op, near:
        case (("+" | "-"), _):
            value = reduce(np.subtract if op == "-" else np.add, values)
            most = reduce(np.add, [n.most for n in near])
            return Near(value, _finite(value, reduce(np.add, errors) + gamma(len(near) - 1) * most))
        case "*", _:
            value, most = reduce(np.multiply, values), reduce(np.multiply, [n.most for n in near])
            return Near(value, _finite(value, most - np.abs(value) + (gamma(len(near) - 1) + SLACK) * most))
        case "/", [a, b]:
            value, least = a.value / b.value, np.abs(b.value) - b.error
            error = (a.error + np.abs(value) * b.error) / least
            return Near(value, np.where(least > 0, error + UNIT * (np.abs(value) + error), np.inf))
        case "neg", [a]:
            return Near(-a.value, a.error)
        case "abs", [a]:
            return Near(np.abs(a.value), a.error)
        case (("maximum" | "minimum"), [a, b]):
            return Near((np.maximum if op == "maximum" else np.minimum)(*values), np.maximum(a.error, b.error))
        case "pow", [a, _]:
            return _power(a, args[1], values[1])
        case _, [a] if (function := SCALAR_FUNCTIONS.get(op)) and function.is_monotone:
            return _function(function, a, rescalings)
    raise ValueError(f"{op} of {len(near)} arguments has no error bound")


def _function(function: ScalarFunction, a: Near, rescalings: int) -> Near:
    """A monotone function: its change over what its argument may be, and its own error there."""
    assert function.compute is not None
    f = partial(function.compute, ARRAYS)
    value = f(a.value)
    ends = [f(a.value - a.error), f(a.value + a.error)]
    moved = reduce(np.maximum, [np.abs(end - value) for end in ends])
    moved = np.where(np.isnan(moved) & (a.error == 0), 0, moved)  # an infinity stays itself
    largest = np.abs(value) + moved
    if function.is_integral:
        own = np.zeros_like(value)
    elif function.name == "exp":
        own = EXP + rescalings * (EXP + UNIT + np.expm1(2 * UNIT * np.abs(a.value)))
        own = np.where(largest == 0, 0, own * largest)
    elif function.is_bounded:
        own = np.full_like(value, FUNCTION)
    else:
        own = FUNCTION * largest
    return Near(value, moved + own)


def _power(a: Near, exponent: Scalar, n: Array) -> Near:
    """a to a constant power: monotone in the magnitude for whole exponents, over positive numbers for all."""
    value = np.power(a.value, n)
    match exponent:
        case Const(k) if k >= 0 and k == int(k):
            moved = np.power(a.most, n) - np.power(np.abs(a.value), n)
        case Const():
            ends = [np.power(a.value + sign * a.error, n) for sign in (-1, 1)]
            moved = np.maximum(*(np.abs(end - value) for end in ends))
            moved = np.where((a.value > a.error) | (a.error == 0), moved, np.inf)
        case _:
            moved = np.full_like(value, np.inf)
    return Near(value, moved + FUNCTION * (np.abs(value) + moved))


def constant(value: Array) -> Near:
    """A number that single precision may not hold."""
    rounded = value.astype(np.float32).astype(np.float64)
    return Near(value, np.where(rounded == value, 0, np.abs(rounded - value)))


def _finite(value: Array, error: Array) -> Array:
    """*error* where *value* is a number; an infinity is what it is."""
    return np.where(np.isfinite(value), error, 0)


_LIMIT = 1 << 23
"""Elements of an intermediate array."""


def running_error(scope: Scope, inputs: Mapping[str, Array], rescalings: int = 0) -> Near:
    """Every element of *scope* and its error bound, for *inputs* that hold one array of single precision a tensor.

    Exponentials are rescaled so many times more (the blocks of a softmax in one pass), with arguments that add up to no
    more than their own.  Errors are infinite where nothing can be said (a divisor that may be 0).  Raises ValueError
    for a tensor without array and sums too long for single precision, IllegalRead for reads beyond the padding.
    """
    exact = {name: _value(Near(np.asarray(a, np.float64), np.zeros(np.shape(a)))) for name, a in inputs.items()}
    value, error = (part.array for part in Evaluation(RunningErrors(rescalings), exact, _LIMIT).scope(scope))
    return Near(value, np.where(np.isnan(error), np.inf, error))


def _value(arrays: Iterable[Array]) -> Value:
    return tuple(Part(a, 0) for a in arrays)


def _near(value: Value) -> Near:
    return Near(*(part.array for part in value))


@dataclass(frozen=True, slots=True)
class RunningErrors:
    """Numbers with running error bounds: the arrays of a value are the number and its bound.

    A sum has a third array, the sum of the magnitudes, until ``finish`` adds the bound of the sum's own roundings.
    """

    rescalings: int

    def constant(self, value: float) -> Value:
        return _value(constant(np.asarray(value, np.float64)))

    def table(self, table: Table) -> Value:
        return _value(constant(np.array([float(x) for x in table.entries]).reshape(table.shape)))

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        return _value(applied(op, [_near(v) for v in values], args, self.rescalings))

    def reduce(self, monoid: str, value: Value, axes: range, extents: Sequence[int]) -> Value:
        near = _near(value)
        over = tuple(i for i in axes if near.value.shape[i] != 1)
        if monoid in ("max", "min"):
            best = np.max if monoid == "max" else np.min
            error = np.broadcast_to(near.error, near.value.shape).max(axis=over, keepdims=True)
            return _value((np.asarray(best(near.value, axis=over, keepdims=True)), error))
        exponent = absent_extent(value[:1], axes, extents)
        product, most = (a.prod(axis=over, keepdims=True) ** exponent for a in (near.value, near.most))
        roundings = gamma(max(0, prod(extents[i] for i in axes) - 1)) + SLACK
        return _value((product, most - np.abs(product) + roundings * most))

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        near = [_near(f) for f in factors]
        value = _contracted([f.value for f in near], axes, extents)
        most = _contracted([f.most for f in near], axes, extents)
        error = np.zeros_like(most)
        if any(f.error.any() for f in near):
            error = np.maximum(most - _contracted([np.abs(f.value) for f in near], axes, extents), 0) + SLACK * most
        return _value((value, error, most))

    def add(self, a: Value, b: Value) -> Value:
        return _value(x.array + y.array for x, y in zip(a, b, strict=True))

    def negate(self, a: Value) -> Value:
        return (Part(-a[0].array, 0), *a[1:])

    def finish(self, scope: Scope, reduced: Value) -> Value:
        match reduced:
            case (value, error, most):
                count = _sum_roundings(scope.body, prod(y.extent for y in scope.summations))
                return value, Part(error.array + gamma(count) * most.array, 0)
        return reduced


def _sum_roundings(body: Scalar, points: int) -> int:
    """Return the roundings on the longest path to a sum of *body* over *points*, added in any order."""

    def count(body: Scalar) -> int:
        match body:
            case Apply("+" | "-", args):
                return sum(map(count, args)) + (len(args) - 1) * points
            case Apply("neg", (a,)):
                return count(a)
            case Apply("*", args):
                return len(args) - 1
        return 0

    return count(body) + max(0, points - 1)


def _contracted(factors: list[Array], axes: range, extents: Sequence[int]) -> Array:
    """Σ over *axes* of the product of *factors*."""
    parts = _value(factors)
    out = contract_factors(parts, axes)
    out = total(out, tuple(i for i in axes if out.array.shape[i] != 1))
    return np.asarray(out.array * absent_extent(parts, axes, extents))
