"""Values with the largest error that single precision may have left in them, and operations on them.

The operations of ``algebra/running_error.py``, element by element.  A monotone function has the larger of its changes
over what its argument may be, and an error of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf, expit

from einnet_explore.algebra.parts import Array
from einnet_explore.algebra.rounding import EXP, UNIT, gamma
from einnet_explore.ir import Const, Scalar

FUNCTION = 2.0**-21
"""The error of other functions of the usual libraries in single precision: relative, or absolute where they are ≤ 1."""

SLACK = 2.0**-50
"""What double precision itself may lose where two sums are subtracted."""


_MONOTONE: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "sigmoid": expit, "exp": np.exp, "log": np.log,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "erf": erf,
}  # fmt: skip


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
        case _, [a] if op in _MONOTONE:
            return _function(op, a, rescalings)
    raise ValueError(f"{op} of {len(near)} arguments has no error bound")


def _function(op: str, a: Near, rescalings: int) -> Near:
    """A monotone function: its change over what its argument may be, and its own error there."""
    f = _MONOTONE[op]
    value = f(a.value)
    ends = [f(a.value - a.error), f(a.value + a.error)]
    moved = reduce(np.maximum, [np.abs(end - value) for end in ends])
    moved = np.where(np.isnan(moved) & (a.error == 0), 0, moved)  # an infinity stays itself
    largest = np.abs(value) + moved
    match op:
        case "relu":
            own = np.zeros_like(value)
        case "exp":
            own = EXP + rescalings * (EXP + UNIT + np.expm1(2 * UNIT * np.abs(a.value)))
            own = np.where(largest == 0, 0, own * largest)
        case "tanh" | "sigmoid" | "erf":
            own = np.full_like(value, FUNCTION)
        case _:
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
