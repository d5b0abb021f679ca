r"""Running error analysis, and error bounds of bilinear algorithms and blocked softmax, in single precision by default.

Every value is a pair: the value in double precision and a bound on the error of the value in single precision.  The
roundings are those of the scopes as written (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.3).
With :math:`\tilde x = |x| + e_x`, unit roundoff `u`, and :math:`\gamma_t = t u / (1 - t u)`,

.. math::
   e\Big(\sum_{\vec y} \prod_k x_k\Big) = \sum_{\vec y} \Big(\prod_k \tilde x_k - \prod_k |x_k|\Big)
   + \gamma_t \sum_{\vec y} \prod_k \tilde x_k,

where `t` counts the products and the additions, in any order.  The error of a monotone function is its larger change
over :math:`[x - e_x, x + e_x]` plus the function's own error.  Cancellation in a bilinear algorithm is therefore part
of the bound, and bounds of two algorithms on the same inputs are comparable.

A bilinear algorithm over `C` channels with at most `t` roundings between an input and a result satisfies (Higham, §23)

.. math::
   |\hat y_k - y_k| \le \gamma_t \sum_c \sum_p |W[k,p]| \Big(\sum_i |U[p,i]|\,|x_{c,i}|\Big)
   \Big(\sum_j |V[p,j]|\,|g_{c,j}|\Big),

compared with :math:`\gamma_t \sum |x||g|` for a direct sum; ``bilinear_growth`` bounds the ratio.  A softmax computed
in blocks is rescaled by exponentials whose arguments telescope, so its error remains relative to the weights.

``DOUBLE_PRECISION`` bounds the errors of double precision instead; identities of real functions are sampled in it.
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
from einnet_explore.interpreter.evaluation import DerivedNumbers, Evaluation, NumberDomain
from einnet_explore.interpreter.exact_arrays import (
    ARRAYS,
    Array,
    Part,
    Value,
    absent_extent,
    contract_factors,
    sum_over,
)
from einnet_explore.ir import Apply, Const, Scalar, Scope, Table
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS, ScalarFunction

UNIT_ROUNDOFF = 2.0**-24
"""The unit roundoff of single precision."""

DOUBLE_ROUNDOFF = 2.0**-53
"""The unit roundoff of double precision."""

BFLOAT16_ROUNDOFF = 2.0**-8
"""The unit roundoff of bfloat16."""

SMALLEST_BFLOAT16 = 2.0**-126
"""The magnitude below which AVX512-BF16 takes numbers for 0."""

_EXP_ROUNDINGS = 4
"""The relative error of an exponential, in unit roundoffs: 2 units in the last place (Cephes, expf)."""


def gamma(roundings: int, unit: float = UNIT_ROUNDOFF) -> float:
    """Return :math:`\\gamma_t` for the unit roundoff *unit*; raises ValueError if no digit is left (t u ≥ 1)."""
    if roundings * unit >= 1:
        raise ValueError(f"{roundings} roundings of {unit:.0e} leave no digit")
    return roundings * unit / (1 - roundings * unit)


def bilinear_growth(triple: Bilinear) -> Fraction:
    """Return the largest :math:`\\sum_p |W[k,p]| \\|U_p\\|_1 \\|V_p\\|_1` of an output per term of a direct sum."""
    sums = [(sum(map(abs, u)), sum(map(abs, v))) for u, v in zip(triple.u, triple.v, strict=True)]
    worst = max(sum((abs(x) * a * b for x, (a, b) in zip(row, sums, strict=True)), Fraction(0)) for row in triple.w)
    return worst / _direct_products(triple)


def bilinear_roundings(triple: Bilinear, channels: int) -> int:
    """Count the roundings on the longest path: coefficients, products and sums of each transform and between them."""
    return channels + 1 + sum(_max_row_terms(m) + 2 for m in (triple.u, triple.v, triple.w))


def bilinear_error_bound(triple: Bilinear, data: Array, taps: Array) -> Array:
    """Bound the error of every output, for *data* (channels, i) and *taps* (channels, j)."""
    u, v, w = (np.abs(_float_matrix(m)) for m in (triple.u, triple.v, triple.w))
    products = (np.abs(data.astype(np.float64)) @ u.T) * (np.abs(taps.astype(np.float64)) @ v.T)
    bound: Array = gamma(bilinear_roundings(triple, len(data))) * (w @ products.sum(0))
    return bound


def run_bilinear(triple: Bilinear, data: Array, taps: Array, dtype: npt.DTypeLike = np.float32) -> Array:
    """Run the algorithm in *dtype*, for the measured error."""
    u, v, w = (_float_matrix(m).astype(dtype) for m in (triple.u, triple.v, triple.w))
    x, g = data.astype(dtype), taps.astype(dtype)
    out: Array = w @ ((x @ u.T) * (g @ v.T)).sum(0, dtype=dtype)
    return out


def _direct_products(triple: Bilinear) -> int:
    """Return the largest number of products of a direct sum at an output."""
    outputs, data, taps = triple.shape
    u, v, w = (_float_matrix(m) for m in (triple.u, triple.v, triple.w))
    form = np.einsum("kp,pi,pj->kij", w, u, v)
    return max(1, int(np.count_nonzero(np.abs(form.reshape(outputs, data * taps)) > 1 / 2, axis=1).max()))


def _max_row_terms(matrix: Matrix) -> int:
    return max(sum(bool(x) for x in row) for row in matrix)


def _float_matrix(matrix: Matrix) -> Array:
    return np.array([[float(x) for x in row] for row in matrix])


_FUNCTION_ROUNDINGS = 8
"""The error of other library functions, in unit roundoffs: relative, or absolute for functions bounded by 1."""

_DOUBLE_ERROR = 2.0**-50
"""The error of double precision itself when two sums are subtracted."""

SATURATED, SATURATED_ERROR = 1e-12, 1e-6
"""Distance from 1 at which a bounded function no longer depends on its argument, and the error that is then assumed."""

SMALLEST_PRECISE = 1e-290
"""Magnitude below which double precision loses digits."""


class BoundedValue(NamedTuple):
    """Values, and how far from them what is computed may be."""

    value: Array
    error: Array

    @property
    def magnitude(self) -> Array:
        """The largest magnitude within the bound."""
        return np.asarray(np.abs(self.value) + self.error)


def _apply(
    op: str, operands: Sequence[BoundedValue], args: tuple[Scalar, ...], rescalings: int, unit: float
) -> BoundedValue:
    """Apply one operation: propagate the arguments' errors and add the operation's rounding.

    *rescalings* and *unit* are as in ``RunningErrors``.  Raises ValueError for an operation without a bound.
    """
    values, errors = [n.value for n in operands], [n.error for n in operands]
    match op, operands:
        case (("+" | "-"), _):
            value = reduce(np.subtract if op == "-" else np.add, values)
            most = reduce(np.add, [n.magnitude for n in operands])
            return BoundedValue(value, _finite(value, reduce(np.add, errors) + gamma(len(operands) - 1, unit) * most))
        case "*", _:
            value, most = reduce(np.multiply, values), reduce(np.multiply, [n.magnitude for n in operands])
            return BoundedValue(
                value, _finite(value, most - np.abs(value) + (gamma(len(operands) - 1, unit) + _DOUBLE_ERROR) * most)
            )
        case "/", [a, b]:
            value, least = a.value / b.value, np.abs(b.value) - b.error
            error = (a.error + np.abs(value) * b.error) / least
            return BoundedValue(value, np.where(least > 0, error + unit * (np.abs(value) + error), np.inf))
        case "neg", [a]:
            return BoundedValue(-a.value, a.error)
        case "abs", [a]:
            return BoundedValue(np.abs(a.value), a.error)
        case (("maximum" | "minimum"), [a, b]):
            difference = a.value - b.value if op == "maximum" else b.value - a.value
            chosen = np.where(difference > 0, a.error, b.error)
            sure = np.abs(difference) > a.error + b.error
            value = (np.maximum if op == "maximum" else np.minimum)(*values)
            return BoundedValue(value, np.where(sure, chosen, np.maximum(a.error, b.error)))
        case (("less" | "less_equal" | "equal"), [a, b]):
            compared = np.asarray(SCALAR_FUNCTIONS[op].compute(ARRAYS, *values), np.float64)  # type: ignore[misc]
            sure = (np.abs(a.value - b.value) > a.error + b.error) | (a.error + b.error == 0)
            return BoundedValue(compared, np.where(sure, 0.0, 1.0))
        case "select", [c, a, b]:
            error = np.where(c.value != 0, a.error, b.error)
            sure = (np.abs(c.value) > c.error) | (c.error == 0)
            return BoundedValue(np.where(c.value != 0, a.value, b.value), np.where(sure, error, np.inf))
        case "pow", [a, b]:
            return _power(a, args[1], b, unit)
        case _, [a] if (function := SCALAR_FUNCTIONS.get(op)) and function.is_monotone:
            return _function(function, a, rescalings, unit)
        case _, _ if (function := SCALAR_FUNCTIONS.get(op)) and function.compute and function.arity == len(operands):
            return _any_function(function, operands, unit)
    raise ValueError(f"{op} of {len(operands)} arguments has no error bound")


def _function(function: ScalarFunction, a: BoundedValue, rescalings: int, unit: float) -> BoundedValue:
    """Apply a monotone function: its change over the argument's interval, plus its own error."""
    assert function.compute is not None
    f = partial(function.compute, ARRAYS)
    value = f(a.value)
    ends = [f(a.value - a.error), f(a.value + a.error)]
    change = reduce(np.maximum, [np.abs(end - value) for end in ends])
    change = np.where(np.isnan(change) & (a.error == 0), 0, change)  # an exact infinity has no error
    largest = np.abs(value) + change
    if function.is_integral:
        own_error = np.zeros_like(value)
    elif function.name == "exp":
        own_error = _EXP_ROUNDINGS * unit + rescalings * (
            (_EXP_ROUNDINGS + 1) * unit + np.expm1(2 * unit * np.abs(a.value))
        )
        own_error = np.where(largest == 0, 0, own_error * largest)
    elif function.is_bounded:
        zero = (value == 0) & (a.value == 0) & (a.error == 0)
        own_error = np.where(zero, 0, _FUNCTION_ROUNDINGS * unit)
    else:
        own_error = _FUNCTION_ROUNDINGS * unit * largest
    return BoundedValue(value, change + own_error)


def _any_function(function: ScalarFunction, operands: Sequence[BoundedValue], unit: float) -> BoundedValue:
    """Apply a function that need not be monotone: only exact arguments, or its image, bound the error."""
    assert function.compute is not None
    value = np.asarray(function.compute(ARRAYS, *(n.value for n in operands)))
    exact = reduce(np.logical_and, [n.error == 0 for n in operands])
    change = np.where(exact, 0, function.image[1] - function.image[0])
    own_error = (
        0 if function.is_integral else _FUNCTION_ROUNDINGS * unit * (1 if function.is_bounded else np.abs(value))
    )
    return BoundedValue(value, change + own_error)


def _power(a: BoundedValue, exponent: Scalar, b: BoundedValue, unit: float) -> BoundedValue:
    """Raise to a power: monotone in the magnitude for whole constants, else in both arguments over positive numbers."""
    n = b.value
    value = np.power(a.value, n)
    match exponent:
        case Const(k) if k >= 0 and k == int(k):
            change = np.power(a.magnitude, n) - np.power(np.abs(a.value), n)
        case _:
            signs = [(i, j) for i in (-1, 1) for j in (-1, 1)]
            ends = [np.power(a.value + i * a.error, n + j * b.error) for i, j in signs]
            change = reduce(np.maximum, [np.abs(end - value) for end in ends])
            exact = (a.error == 0) & (b.error == 0)
            change = np.where((a.value > a.error) | exact, np.where(exact, 0, change), np.inf)
    error = change + _FUNCTION_ROUNDINGS * unit * (np.abs(value) + change)
    # A power of zero is a step, exact where the sign of the exponent is known.
    step = (a.value == 0) & (a.error == 0) & ((np.abs(n) > b.error) | (b.error == 0))
    return BoundedValue(value, np.where(step, 0, error))


def _rounded_constant(value: Array) -> BoundedValue:
    """Return constants with the errors of rounding them to single precision."""
    rounded = value.astype(np.float32).astype(np.float64)
    return BoundedValue(value, np.where(rounded == value, 0, np.abs(rounded - value)))


def _finite(value: Array, error: Array) -> Array:
    """Return *error*, with 0 at infinite values."""
    return np.where(np.isfinite(value), error, 0)


_MAX_ELEMENTS = 1 << 23
"""Elements of an intermediate array."""


def running_error(
    scope: Scope,
    inputs: Mapping[str, Array],
    rescalings: int = 0,
    unit: float = UNIT_ROUNDOFF,
    rounded_operands: bool = False,
) -> BoundedValue:
    """Return every element of *scope* with its error bound; *inputs* maps tensors to arrays without errors.

    With *rounded_operands*, casts to bfloat16 are roundings of their arguments, whose errors are part of the bound;
    else they are functions of their arguments.  *unit* is the unit roundoff of the arithmetic, that of single or of
    double precision.  *rescalings* counts further rescalings of each exponential (the blocks of a one-pass softmax),
    with arguments that add up to at most its own.  An element without a bound (a divisor that may be 0) has an infinite
    one.  Raises ValueError for a tensor without array and sums too long for the precision, IllegalRead for reads beyond
    the padding.
    """
    return evaluate_with_errors(RunningErrors(rescalings, unit, rounded_operands), scope, inputs)


def evaluate_with_errors(numbers: NumberDomain, scope: Scope, inputs: Mapping[str, Array]) -> BoundedValue:
    """Return every element of *scope* with its error bound in *numbers*, which are those of ``RunningErrors``."""
    exact = {name: _value(BoundedValue(np.asarray(a, np.float64), np.zeros(np.shape(a)))) for name, a in inputs.items()}
    value, error = (part.array for part in Evaluation(numbers, exact, _MAX_ELEMENTS).scope(scope))
    return BoundedValue(value, np.where(np.isnan(error), np.inf, error))


def _value(arrays: Iterable[Array]) -> Value:
    return tuple(Part(a, 0) for a in arrays)


def _bounded(value: Value) -> BoundedValue:
    return BoundedValue(*(part.array for part in value))


@dataclass(frozen=True, slots=True)
class RunningErrors:
    """Numbers with running error bounds: the arrays of a value are the number and its bound.

    A sum has a third array, the sum of the magnitudes, until ``finish`` adds the bound of the sum's own roundings.
    *rescalings* and *rounded_operands* are as in ``running_error``; *unit* is the unit roundoff, that of single or of
    double precision.
    """

    rescalings: int = 0
    unit: float = UNIT_ROUNDOFF
    rounded_operands: bool = False

    def constant(self, value: float) -> Value:
        number = np.asarray(value, np.float64)
        return _value(_rounded_constant(number) if self.unit == UNIT_ROUNDOFF else (number, np.zeros_like(number)))

    def table(self, table: Table) -> Value:
        entries = np.array([float(x) for x in table.entries]).reshape(table.shape)
        if self.unit == UNIT_ROUNDOFF:
            return _value(_rounded_constant(entries))
        inexact = np.array([Fraction(float(x)) != x for x in table.entries]).reshape(table.shape)
        return _value(BoundedValue(entries, inexact * self.unit * np.abs(entries)))

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        if op == "bfloat16" and self.rounded_operands:
            operand = _bounded(values[0])
            size = operand.magnitude
            own = BFLOAT16_ROUNDOFF * size + SMALLEST_BFLOAT16 * (size != 0)
            return _value(BoundedValue(operand.value, _finite(operand.value, operand.error + own)))
        return _value(_apply(op, [_bounded(v) for v in values], args, self.rescalings, self.unit))

    def reduce(self, monoid: str, value: Value, axes: range, extents: Sequence[int]) -> Value:
        bounded = _bounded(value)
        over = tuple(i for i in axes if bounded.value.shape[i] != 1)
        if monoid in ("max", "min"):
            best = np.max if monoid == "max" else np.min
            error = np.broadcast_to(bounded.error, bounded.value.shape).max(axis=over, keepdims=True)
            return _value((np.asarray(best(bounded.value, axis=over, keepdims=True)), error))
        exponent = absent_extent(value[:1], axes, extents)
        product, most = (a.prod(axis=over, keepdims=True) ** exponent for a in (bounded.value, bounded.magnitude))
        roundings = gamma(max(0, prod(extents[i] for i in axes) - 1), self.unit) + _DOUBLE_ERROR
        return _value((product, most - np.abs(product) + roundings * most))

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        bounded = [_bounded(f) for f in factors]
        value = _contracted([f.value for f in bounded], axes, extents)
        most = _contracted([f.magnitude for f in bounded], axes, extents)
        error = np.zeros_like(most)
        if any(f.error.any() for f in bounded):
            error = (
                np.maximum(most - _contracted([np.abs(f.value) for f in bounded], axes, extents), 0)
                + _DOUBLE_ERROR * most
            )
        return _value((value, error, most))

    def add(self, a: Value, b: Value) -> Value:
        return _value(x.array + y.array for x, y in zip(a, b, strict=True))

    def negate(self, a: Value) -> Value:
        return (Part(-a[0].array, 0), *a[1:])

    def finish(self, scope: Scope, reduced: Value) -> Value:
        match reduced:
            case (value, error, most):
                count = _sum_roundings(scope.body, prod(y.extent for y in scope.summations))
                return value, Part(error.array + gamma(count, self.unit) * most.array, 0)
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
    """Return the sum over *axes* of the product of *factors*."""
    parts = _value(factors)
    out = contract_factors(parts, axes)
    out = sum_over(out, tuple(i for i in axes if out.array.shape[i] != 1))
    return np.asarray(out.array * absent_extent(parts, axes, extents))


class DoublePrecision(DerivedNumbers):
    """Double precision with running error bounds; results that overflowed or may be undefined have no bound.

    At a pole, such as that of 1/0, a result is certainly undefined, so that NaN is exact.
    """

    __slots__ = ()

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        operands = [BoundedValue(value[0].array, value[1].array) for value in values]
        value, error = (part.array for part in self.numbers.apply(op, values, args))
        unsure: Array = np.zeros((), np.bool_)
        for operand in operands:
            unsure = unsure | ~np.isfinite(operand.error)
        defined = np.logical_and.reduce(np.broadcast_arrays(*(np.isfinite(operand.value) for operand in operands)))
        pole = _at_pole(op, operands)
        error = error + SMALLEST_PRECISE * _may_underflow(op, operands, value)
        lost = unsure | (defined & ~np.isfinite(value) & ~pole)
        exact = np.where(np.isfinite(value), error, 0)
        if (function := SCALAR_FUNCTIONS.get(op)) is not None and function.is_bounded:
            saturated = (np.abs(np.abs(value) - 1) < SATURATED) & defined
            exact = np.where(saturated, np.maximum(exact, SATURATED_ERROR), exact)
        if args[1:] != (Const(0),):  # division by the constant 0 is how an infinite constant is written
            value = np.where(pole, np.nan, value)
        return Part(value, 0), Part(np.where(lost | np.isnan(exact), np.inf, exact), 0)


def _may_underflow(op: str, operands: Sequence[BoundedValue], value: Array) -> Array:
    """Return where *value* is too small for double precision, and not the exact result of a zero."""
    if (function := SCALAR_FUNCTIONS.get(op)) is None or not function.may_underflow:
        return np.zeros((), np.bool_)
    small: Array = np.abs(value) < SMALLEST_PRECISE
    for operand in operands if op in ("*", "/", "pow") else ():
        small = small & ((operand.value != 0) | (operand.error != 0))
    return small


def _at_pole(op: str, operands: Sequence[BoundedValue]) -> Array:
    """Return where *op* certainly has no finite value."""
    match op, operands:
        case "/", [_, b]:
            return np.asarray((b.value == 0) & (b.error == 0))
        case "sqrt", [a]:
            return np.asarray(a.value + a.error < 0)
        case (("log" | "rsqrt"), [a]):
            return np.asarray((a.value + a.error < 0) | ((a.value == 0) & (a.error == 0)))
        case "pow", [a, b]:
            root = (a.value + a.error < 0) & (b.value != np.floor(b.value))
            return np.asarray(root | ((a.value == 0) & (a.error == 0) & (b.value < 0)))
    return np.zeros((), np.bool_)


DOUBLE_PRECISION = DoublePrecision(RunningErrors(unit=DOUBLE_ROUNDOFF))
"""The numbers of double precision."""


def compare_bounded(left: BoundedValue, right: BoundedValue) -> tuple[Array, Array]:
    """Return where the values agree or nothing is known, and where their agreement has at least nine digits."""
    error = left.error + right.error
    known = np.isfinite(error)
    largest = np.maximum(np.abs(left.value), np.abs(right.value))
    with np.errstate(all="ignore"):
        same = (left.value == right.value) | (np.abs(left.value - right.value) <= 4 * error + SMALLEST_PRECISE)
    undefined = np.isnan(left.value) & np.isnan(right.value)
    decisive = (
        known & same & np.isfinite(largest) & ((error <= 1e-9 * largest) & (largest > SMALLEST_PRECISE) | (error == 0))
    )
    return ~known | undefined | same, decisive
