"""Scalar functions as TVM expressions that vectorise: the exponential and its kin by polynomials, not by calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf
from typing import Any

from tvm import tirx

Expr = Any


def apply(op: str, args: tuple[Expr, ...], dtype: str) -> Expr:
    """The expression of an ``Apply``; raises ValueError for a function that is none of ``FUNCTIONS``."""
    single = dtype == "float32"
    match op, args:
        case "+", _:
            return reduce(lambda a, b: a + b, args)
        case "*", _:
            return reduce(lambda a, b: a * b, args)
        case "-", (a, b):
            return a - b
        case "/", (a, b):
            return tirx.floordiv(a, b) if dtype.startswith("int") else a / b
        case "neg", (a,):
            return -a
        case "relu", (a,):
            return tirx.max(a, tirx.const(0, dtype))
        case "tanh", (a,):
            return _tanh(a) if single else tirx.tanh(a)
        case "sigmoid", (a,):
            return 1 / (1 + _exp(-a)) if single else tirx.sigmoid(a)
        case "exp", (a,):
            return _exp(a) if single else tirx.exp(a)
        case "log", (a,):
            return tirx.log(a)
        case "sqrt", (a,):
            return tirx.sqrt(a)
        case "rsqrt", (a,):
            return 1 / tirx.sqrt(a)
        case "abs", (a,):
            return tirx.abs(a)
        case "erf", (a,):
            return tirx.erf(a)
        case "pow", (tirx.FloatImm(value=0.0), b):
            return _zero_to_the(b, dtype)
        case "pow", (a, b):
            return tirx.power(a, b)
        case "maximum", (a, b):
            return tirx.max(a, b)
        case "minimum", (a, b):
            return tirx.min(a, b)
        case "where", (condition, a, b):
            return tirx.if_then_else(condition, a, b)
    raise ValueError(f"{op} with {len(args)} arguments is no scalar function")


def _zero_to_the(exponent: Expr, dtype: str) -> Expr:
    """0 to the *exponent*, as gradients of kinks have it, without a call of pow: 1, 0 or ∞; NaN stays NaN."""
    one, zero, far = (tirx.const(v, dtype) for v in (1, 0, inf))

    def of(x: Expr) -> Expr:
        return tirx.Select(x == zero, one, tirx.Select(x > zero, zero, tirx.Select(x < zero, far, x)))

    # TVM takes no expression twice in which something is bound.
    return _let(exponent, of, dtype)


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def _exp(argument: Expr) -> Expr:
    """exp in single precision (2 ulp): 2ⁿ·p(r), n = ⌊x/ln 2 + ½⌋ (S. Moshier, Cephes, expf)."""
    return _let(argument, _exp_of)


def _exp_of(x: Expr) -> Expr:
    clamped = tirx.max(tirx.min(x, _f32(88.72)), _f32(-87.33))
    scaled = tirx.min(tirx.floor(clamped * _f32(1.44269504088896341) + _f32(0.5)), _f32(127))

    def power(n: Expr) -> Expr:
        two_to_n = tirx.reinterpret("float32", (n.astype("int32") + 127) * (1 << 23))
        rest = clamped - n * _f32(0.693359375) - n * _f32(-2.12194440e-4)
        return _let(rest, lambda r: (_horner(r, _EXP) * r * r + r + 1) * two_to_n)

    # Beyond the range of single precision, and for NaN, the limits are put in.
    far = tirx.Select(x > _f32(88.72), _f32(inf), tirx.Select(x < _f32(-87.33), _f32(0), _let(scaled, power)))
    return tirx.Select(tirx.isnan(x), x, far)


_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


def _tanh(argument: Expr) -> Expr:
    """tanh in single precision: a polynomial near 0, 1 - 2/(exp(2|x|) + 1) elsewhere (Cephes, tanhf)."""

    def of(x: Expr) -> Expr:
        a = tirx.abs(x)
        near = _let(x * x, lambda z: _horner(z, _TANH) * z * x + x)
        signed = _let(1 - 2 / (_exp(a + a) + 1), lambda far: tirx.Select(x < _f32(0), -far, far))
        return tirx.Select(a < _f32(0.625), near, signed)

    return _let(argument, of)


def _let(value: Expr, body: Callable[[Expr], Expr], dtype: str = "float32") -> Expr:
    """*body* of *value*, which is evaluated once."""
    x = tirx.Var("x", dtype)
    return tirx.Let(x, value, body(x))


def _horner(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    total = _f32(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + _f32(c)
    return total
