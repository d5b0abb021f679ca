"""Double precision with running error bounds: the numbers by which identities of real functions are sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einnet_explore.interpreter.evaluation import DerivedNumbers
from einnet_explore.interpreter.exact_arrays import Array, Part, Value
from einnet_explore.interpreter.running_error import BoundedValue, RunningErrors
from einnet_explore.ir import Const, Scalar
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS

SATURATED, SATURATED_ERROR = 1e-12, 1e-6
"""Distance from 1 at which a bounded function no longer depends on its argument, and the error that is then assumed."""

SMALLEST_PRECISE = 1e-290
"""Magnitude below which double precision loses digits."""


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


DOUBLE_PRECISION = DoublePrecision(RunningErrors(unit=2.0**-53))
"""The numbers of double precision."""
