r"""The scalar functions and operators: one entry each, read by every layer.

To add a function, add an entry: the text form, evaluation, error bounds, gradients, kernels in C, CUDA, OpenCL and TVM,
LaTeX and ONNX follow from its fields.  ``tests/test_scalar_functions.py`` tests every entry in every layer.

Where a function has a kink its derivative is a *subgradient*: 0 for ``relu`` and ``abs`` at 0, one half for both
arguments of ``maximum`` and ``minimum`` where they are equal.  ``where`` compares indices; ``less``, ``less_equal`` and
``equal`` compare values, and are 1 or 0; ``select`` chooses by such a value; derivatives are those between steps.
Gradients of kinks compare values by a power of zero: :math:`0^u` is 1 where :math:`u = 0` and 0 where :math:`u > 0`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import isfinite, isqrt, prod
from types import SimpleNamespace
from typing import Any, TypeVar

from einnet_explore.ir.element_types import ELEMENT_TYPES, ElementType
from einnet_explore.ir.expression import Apply, Const, Scalar, add, is_zero, mul, sub

N = TypeVar("N", bound="float | Fraction")


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """An elementwise function or operator; *arity* is None for ``+`` and ``*``, which take two or more arguments.

    *compute* evaluates it with a library's functions, named as in NumPy and ``scipy.special``: ``compute(lib, x)``;
    error bounds take it to be accurate to 8 units in the last place.
    *derivative* maps its value and arguments to one derivative an argument: ``derivative(y, x)``; None: it has none.
    *latex* has a ``%s`` an argument.  *onnx* is ONNX's operator.  *c_name* is its name in C's ``math.h``, for double;
    *gpu_name* the same where only CUDA and OpenCL have it.  *c_definition* defines it for element types without a
    built-in: ``T`` stands for the type, ``_N`` for the suffix of the name, ``ONE`` for the constant, ``EXP`` and
    ``SQRT`` for these functions.  Without *derivative*, *onnx* or a name in C, ``grad``, the export and kernels in C
    refuse the function; the other layers still have it.
    """

    name: str
    arity: int | None
    compute: Callable[..., Any] | None = None
    derivative: Callable[..., tuple[Scalar, ...]] | None = None
    latex: str = ""
    onnx: str = ""
    c_name: str = ""
    gpu_name: str = ""
    c_definition: str = ""
    additions: int = 1
    """Estimated cost, in additions."""
    is_integral: bool = False
    """Integers map to integers, and no rounding happens."""
    is_rounding: bool = False
    """A step function: its values are those that a type or the integers have, and it is the identity on these."""
    is_monotone: bool = False
    """Monotone wherever it is defined: the ends of an interval bound its values there, else only its image does."""
    image: tuple[float, float] = (-math.inf, math.inf)
    """An interval that holds every value."""
    is_positive: bool = False
    """No value is 0 or less."""
    has_kink: bool = False
    """Analytic on two pieces, which meet where the argument, or the difference of the two arguments, is 0; the first
    of three arguments is compared with 0."""
    has_step: bool = False
    """A function with a kink that is not continuous there: its value at 0 is a piece of its own."""
    is_commutative: bool = False
    has_pole: bool = False
    """Some number has no value: constants are not folded."""
    may_underflow: bool = False
    """Values other than 0 may be smaller than any number in double precision."""
    assumed_finite: bool = False
    """Proofs take its values to be finite, also those of infinite arguments."""
    is_increasing: bool = False
    """Increasing on all real numbers: it commutes with maxima and minima."""
    at_zero: float | None = None
    """Its value at 0, if that is rational and no other field implies it: padding by 0 commutes with the function."""
    at_minus_infinity: float | None = None
    """Its limit for arguments that fall without bound: the value where a mask puts minus infinity."""
    degree: Fraction | None = None
    """f(k·x, k·y) = k^degree · f(x, y) for every constant k > 0 (Euler's degree of homogeneity)."""
    homomorphism: tuple[str, str] | None = None
    """(∘, •) with f(a ∘ b) = f(a) • f(b) for all real a and b."""

    def scaled_by(self, k: Fraction) -> Fraction | None:
        """Return k^degree for k > 0; None without a degree, or if the power is irrational."""
        if self.degree is None:
            return None
        roots = [isqrt(n) if self.degree.denominator == 2 else n for n in (k.numerator, k.denominator)]
        root = Fraction(*roots)
        exact = root == k if self.degree.denominator == 1 else root * root == k
        return root**self.degree.numerator if exact else None

    @property
    def is_bounded(self) -> bool:
        """Whether no magnitude exceeds 1."""
        return max(map(abs, self.image)) <= 1

    @property
    def finite_on_finite(self) -> bool:
        """Whether finite arguments never give an infinite value."""
        return self.is_integral or self.is_bounded

    def of_numbers(self, *values: N) -> N:
        """Return its value at Python numbers."""
        assert self.compute is not None
        value: N = self.compute(_NUMBERS, *values)
        return value


def _if_finite(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda v: function(v) if isfinite(v) else v


_NUMBERS = SimpleNamespace(
    **{
        **vars(math),
        "maximum": max,
        "minimum": min,
        "abs": abs,
        "expit": lambda v: 1 / (1 + math.exp(-v)),
        "rint": _if_finite(round),
        "trunc": _if_finite(math.trunc),
        "where": lambda condition, a, b: a if condition else b,
    }
)

_ONE = Const(1)


def _positive(x: Scalar) -> Scalar:
    """Return [x > 0]."""
    return sub(_ONE, is_zero(Apply("relu", (x,))))


def _larger(a: Scalar, b: Scalar) -> Scalar:
    """Return [a > b] + ½·[a = b], as 1 - ½·[a <= b] - ½·[a < b]."""
    above = is_zero(Apply("relu", (sub(b, a),)))  # a >= b
    below = is_zero(Apply("relu", (sub(a, b),)))  # a <= b
    return mul(Const(0.5), add(_ONE, above, mul(Const(-1), below)))


def _power_derivatives(y: Scalar, a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """Return the derivatives of a^b: b·a^(b-1) and a^b·ln a; a power of zero is a step, whose slope is 0."""
    match a, b:
        case Const(base), _ if base < 0 and not isinstance(b, Const):
            raise ValueError(f"pow of the constant {base:g} is real at integers only, expected a base that is not < 0")
        case Const(base), _:
            return Const(0), Const(0) if base == 0 else mul(Const(math.log(base)), y)
        case _, Const(n):
            lower: Scalar = Apply("pow", (a, Const(n - 1))) if n not in (1, 2) else (_ONE, a)[int(n) - 1]
            return mul(b, lower) if n else Const(0), Const(0)
    return mul(b, Apply("pow", (a, sub(b, _ONE)))), mul(y, Apply("log", (a,)))


def _quotient_derivatives(y: Scalar, _: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """Return 1/b and -a/b², in parts shared with the quotient and with one another."""
    return (inverse := Apply("/", (_ONE, b))), mul(Const(-1), y, inverse)


def _comparison(name: str, sign: str, latex: str, compare: Callable[[Any, Any], Any]) -> ScalarFunction:
    """Return a function that is 1 where *compare* holds for its two arguments and 0 elsewhere, also for NaN."""
    return ScalarFunction(
        name, 2, lambda lib, x, y: lib.where(compare(x, y), 1, 0), latex=rf"\left[%s {latex} %s\right]",
        c_definition=f"T {name}_N(T a, T b) {{ return a {sign} b; }}",
        is_integral=True, image=(0, 1), has_kink=True, has_step=True, is_commutative=sign == "==",
        derivative=lambda y, a, b: (Const(0), Const(0)),
    )  # fmt: skip


ERF = ScalarFunction(
    "erf", 1, lambda lib, x: lib.erf(x), onnx="Erf", c_name="erf", additions=24, is_monotone=True, image=(-1, 1),
    is_increasing=True, at_zero=0,
    derivative=lambda y, x: (
        mul(Const(2 / math.sqrt(math.pi)), Apply("exp", (Apply("neg", (mul(x, x),)),))),
    ),
)  # fmt: skip

_FUNCTIONS = (
    ScalarFunction(
        "relu", 1, lambda lib, x: lib.maximum(x, 0), onnx="Relu", is_integral=True, is_monotone=True,
        image=(0, math.inf), has_kink=True, is_increasing=True, degree=Fraction(1),
        derivative=lambda y, x: (_positive(x),),
    ),
    ScalarFunction(
        "tanh", 1, lambda lib, x: lib.tanh(x), latex=r"\tanh\left(%s\right)", onnx="Tanh", c_name="tanh", additions=24,
        is_monotone=True, image=(-1, 1), is_increasing=True, at_zero=0,
        derivative=lambda y, x: (sub(_ONE, mul(y, y)),),
    ),
    ScalarFunction(
        "sigmoid", 1, lambda lib, x: lib.expit(x), latex=r"\sigma\left(%s\right)", onnx="Sigmoid", additions=20,
        c_definition="T sigmoid_N(T a) { return ONE / (ONE + EXP(-a)); }",
        is_monotone=True, image=(0, 1), is_positive=True, may_underflow=True, is_increasing=True, at_zero=0.5,
        derivative=lambda y, x: (mul(y, sub(_ONE, y)),),
    ),
    ScalarFunction(
        "exp", 1, lambda lib, x: lib.exp(x), latex=r"\exp\left(%s\right)", onnx="Exp", c_name="exp", additions=16,
        is_monotone=True, image=(0, math.inf), is_positive=True, assumed_finite=True, may_underflow=True,
        is_increasing=True, at_zero=1, at_minus_infinity=0, homomorphism=("+", "*"), derivative=lambda y, x: (y,),
    ),
    ScalarFunction(
        "log", 1, lambda lib, x: lib.log(x), latex=r"\log\left(%s\right)", onnx="Log", c_name="log", additions=16,
        is_monotone=True, has_pole=True, derivative=lambda y, x: (Apply("/", (_ONE, x)),),
    ),
    ScalarFunction(
        "sqrt", 1, lambda lib, x: lib.sqrt(x), latex=r"\sqrt{%s}", onnx="Sqrt", c_name="sqrt", additions=4,
        is_monotone=True, image=(0, math.inf), at_zero=0, degree=Fraction(1, 2),
        derivative=lambda y, x: (Apply("/", (Const(0.5), y)),),
    ),
    ScalarFunction(
        "rsqrt", 1, lambda lib, x: 1 / lib.sqrt(x), latex=r"\frac{1}{\sqrt{%s}}", gpu_name="rsqrt", additions=6,
        c_definition="T rsqrt_N(T a) { return ONE / SQRT(a); }",
        is_monotone=True, image=(0, math.inf), is_positive=True, has_pole=True, assumed_finite=True,
        degree=Fraction(-1, 2), derivative=lambda y, x: (mul(Const(-0.5), y, y, y),),
    ),
    ScalarFunction(
        "abs", 1, lambda lib, x: lib.abs(x), latex=r"\left|%s\right|", onnx="Abs", c_name="fabs",
        c_definition="T abs_N(T a) { return a < 0 ? -a : a; }",
        is_integral=True, image=(0, math.inf), has_kink=True,
        degree=Fraction(1), homomorphism=("*", "*"),
        derivative=lambda y, x: (sub(_positive(x), _positive(Apply("neg", (x,)))),),
    ),
    ERF,
    ScalarFunction(
        "pow", 2, lambda lib, x, y: lib.power(x, y), latex=r"\left(%s\right)^{%s}", onnx="Pow", c_name="pow",
        additions=40, has_pole=True, may_underflow=True, derivative=_power_derivatives,
    ),
    ScalarFunction(
        "maximum", 2, lambda lib, x, y: lib.maximum(x, y), latex=r"\max\left(%s, %s\right)", onnx="Max",
        c_definition="T maximum_N(T a, T b) { T most = b > a ? b : a; return b != b ? b : most; }",
        is_integral=True, is_commutative=True, has_kink=True, degree=Fraction(1),
        derivative=lambda y, a, b: (_larger(a, b), _larger(b, a)),
    ),
    ScalarFunction(
        "minimum", 2, lambda lib, x, y: lib.minimum(x, y), latex=r"\min\left(%s, %s\right)", onnx="Min",
        c_definition="T minimum_N(T a, T b) { T least = b < a ? b : a; return b != b ? b : least; }",
        is_integral=True, is_commutative=True, has_kink=True, degree=Fraction(1),
        derivative=lambda y, a, b: (_larger(b, a), _larger(a, b)),
    ),
    _comparison("less", "<", "<", operator.lt),
    _comparison("less_equal", "<=", r"\le", operator.le),
    _comparison("equal", "==", "=", operator.eq),
    ScalarFunction(
        "select", 3, lambda lib, c, x, y: lib.where(c != 0, x, y), latex=r"\left(%s\,?\,%s : %s\right)",
        c_definition="T select_N(T c, T a, T b) { return c != 0 ? a : b; }", is_integral=True, has_kink=True,
        has_step=True,
        derivative=lambda y, c, a, b: (
            Const(0), Apply("select", (c, _ONE, Const(0))), Apply("select", (c, Const(0), _ONE)),
        ),
    ),
    ScalarFunction("where", 3, onnx="Where", is_integral=True),
)  # fmt: skip

_OPERATORS = (
    ScalarFunction("+", None, onnx="Add", is_integral=True, is_commutative=True),
    ScalarFunction(
        "-", 2, lambda lib, x, y: x - y, onnx="Sub", is_integral=True, derivative=lambda y, a, b: (_ONE, Const(-1))
    ),
    ScalarFunction("*", None, onnx="Mul", is_integral=True, is_commutative=True, may_underflow=True),
    ScalarFunction(
        "/",
        2,
        lambda lib, x, y: x / y,
        onnx="Div",
        additions=4,
        has_pole=True,
        may_underflow=True,
        derivative=_quotient_derivatives,
    ),
    ScalarFunction("neg", 1, lambda lib, x: -x, onnx="Neg", is_integral=True, derivative=lambda y, x: (Const(-1),)),
)


def _rounded(kind: ElementType, lib: Any, x: Any) -> Any:
    """Return the number of the floating type *kind* that is nearest to *x*; of two, the one with the even digit."""
    exponent = lib.maximum(lib.frexp(x)[1] - kind.digits, kind.exponent)
    near = lib.ldexp(lib.rint(lib.ldexp(x, -exponent)), exponent)
    return lib.where(lib.abs(near) <= float(kind.high), near, x * math.inf)


def _wrapped(kind: ElementType, lib: Any, x: Any) -> Any:
    """Return the integer part of *x*, modulo 2^bits if it is beyond *kind*."""
    whole = lib.trunc(x)
    return lib.where(
        (kind.low <= whole) & (whole <= kind.high), whole, (whole - kind.low) % (1 << kind.bits) + kind.low
    )


_HALF_SOURCE = """T float16_N(T a) {
    const union { float f; unsigned i; } x = {a};
    const unsigned size = x.i & 0x7fffffffu;
    const unsigned normal = (size + 0xfffu + (size >> 13 & 1u)) & 0xffffe000u;
    const union { unsigned i; float f; } magnitude = {size};
    const union { float f; unsigned i; } small = {(magnitude.f + 0.5f) - 0.5f};
    const unsigned large = normal < 0x47800000u ? normal : 0x7f800000u;
    const union { unsigned i; float f; } made = {(size < 0x38800000u ? small.i : large) | (x.i & 0x80000000u)};
    return a == a ? made.f : a;
}"""
"""A float32 rounded to half precision: to 11 bits by its integer, and below 2^-14 to multiples of 2^-24, which are the
steps of float32 around 0.5."""


_BFLOAT16_SOURCE = """T bfloat16_N(T a) {
    const union { float f; unsigned i; } x = {a};
    const union { unsigned i; float f; } made = {x.i + (0x7fffu + (x.i >> 16 & 1u)) & 0xffff0000u};
    return a == a ? made.f : a;
}"""
"""A float32 rounded to bfloat16, whose bits are the first half of those of float32."""


def _cast(kind: ElementType) -> ScalarFunction:
    """Return the cast to *kind*.

    To integers, fractions are truncated, and what is beyond the type wraps modulo :math:`2^{bits}`; infinities have no
    value.  To ``bool``, every number but 0 is 1.  To floating point, the nearest number, ties to even.
    """
    compute: Callable[..., Any]
    if kind.name == "bool":
        compute = lambda lib, x: lib.minimum(lib.ceil(lib.abs(x)), 1)  # noqa: E731
    elif kind.is_integer:
        compute = partial(_wrapped, kind)
    else:
        compute = partial(_rounded, kind)
    return ScalarFunction(
        kind.name, 1, compute, at_zero=0, is_rounding=True, is_monotone=not kind.is_integer,
        c_definition={"float16": _HALF_SOURCE, "bfloat16": _BFLOAT16_SOURCE}.get(kind.name, ""),
        image=(kind.low, kind.high) if kind.is_integer else (-math.inf, math.inf),
    )  # fmt: skip


_ROUNDINGS = (
    ScalarFunction(
        "round", 1, lambda lib, x: lib.rint(x), onnx="Round", c_name="rint", is_monotone=True, is_increasing=True,
        at_zero=0, is_rounding=True,
    ),
    *map(_cast, ELEMENT_TYPES.values()),
)  # fmt: skip
"""``round`` to the nearest integer, ties to even, and the casts; they jump, so that they have no derivative."""

SCALAR_FUNCTIONS: dict[str, ScalarFunction] = {f.name: f for f in (*_FUNCTIONS, *_OPERATORS, *_ROUNDINGS)}
"""The functions of the text form and the operators, by name."""

FUNCTIONS: dict[str, int] = {f.name: f.arity for f in (*_FUNCTIONS, *_ROUNDINGS) if f.arity is not None}
"""The scalar functions of the text form and how many arguments each takes."""

REAL_FUNCTIONS: tuple[str, ...] = tuple(f.name for f in SCALAR_FUNCTIONS.values() if not f.is_integral)
"""Functions and operators whose values at integers may not be integers."""

ASSUMED_FINITE = frozenset(f.name for f in SCALAR_FUNCTIONS.values() if f.is_bounded or f.assumed_finite)
"""Functions whose values proofs take to be finite, also those of infinite arguments."""


def monotonicity(body: Apply, n: int) -> int:
    """Return 1 if *body* increases in argument *n* on all real numbers, -1 if it decreases, 0 if neither is known."""
    match body.op, body.args:
        case (("+" | "maximum" | "minimum"), _):
            return 1
        case "-", _:
            return (1, -1)[n]
        case "neg", _:
            return -1
        case "*", args:
            others = [a.value for k, a in enumerate(args) if k != n and isinstance(a, Const)]
            sign = prod(others)
            return (sign > 0) - (sign < 0) if len(others) == len(args) - 1 and isfinite(sign) else 0
        case "/", (_, Const(k)) if n == 0 and isfinite(k):
            return (k > 0) - (k < 0)
    return int((function := SCALAR_FUNCTIONS.get(body.op)) is not None and function.is_increasing)
