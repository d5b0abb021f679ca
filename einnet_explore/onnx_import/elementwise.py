r"""ONNX's elementwise operators: :math:`Y[\vec i] = f(A[\vec i], B[\vec i], \dots)` with NumPy's broadcasting.

Source: the ONNX operator reference.  Piecewise functions are written with ``maximum`` and ``minimum``, so that they
need no comparison of values, and so that no branch overflows.

ONNX operators that choose by position: :math:`Y[\vec i] = c(\vec i) ? A[\vec i] : B[\vec i]`.

A mask that is known before the model runs becomes comparisons of indices (``known_arrays``): causal masks, windows of
attention, the padding at the end of a sequence.
Source: the ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from math import inf, pi, sqrt

from einnet_explore.ir import ELEMENT_TYPES, Apply, Compare, Const, Equation, Index, Scalar, Scope, add, mul, sub
from einnet_explore.ir.scalar_functions import ERF, FUNCTIONS, SCALAR_FUNCTIONS
from einnet_explore.onnx_import.known_arrays import select_by_mask
from einnet_explore.onnx_import.node_call import Express, NodeCall, OnnxOperator, as_indices, extent_iterators
from einnet_explore.support.errors import Refused

Function = Callable[[NodeCall, Scalar], Scalar]

MAX_DIVISOR = 2.0**100
"""The largest constant divisor that becomes a factor."""


def fn(op: str, *args: Scalar) -> Scalar:
    """Return op(args)."""
    return Apply(op, args)


def _operands(call: NodeCall, combine: Callable[[tuple[Scalar, ...]], Scalar]) -> Iterable[Equation]:
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    reals = [n for n in range(len(call.node.inputs)) if call.has(n)]
    yield call.equation(Scope(xs, (), combine(tuple(call.operand(n, at) for n in reals))))


def _all(combine: Callable[[tuple[Scalar, ...]], Scalar]) -> Express:
    return lambda call: _operands(call, combine)


def _binary(op: str) -> Express:
    return _all(lambda args: fn(op, args[0], args[1]))


def _unary(f: Function) -> Express:
    """Return the expression of an operator that applies *f* to its only input."""

    def express(call: NodeCall) -> Iterable[Equation]:
        call.require_single_output()
        xs = extent_iterators(call.out.shape)
        yield call.equation(Scope(xs, (), f(call, call.operand(0, as_indices(xs)))))

    return express


def _function(op: str) -> Express:
    return _unary(lambda _, x: fn(op, x))


def _positive_part(x: Scalar) -> Scalar:
    """Return max(x, 0)."""
    return fn("relu", x)


def _maximum(a: Scalar, b: Scalar) -> Scalar:
    """Return max(a, b); a positive part has one form."""
    if Const(0) in (a, b):
        return _positive_part(a if b == Const(0) else b)
    return fn("maximum", a, b)


def _quotient(a: Scalar, b: Scalar) -> Scalar:
    """Return a / b; a constant divisor has the form of a factor, unless its reciprocal is no normal float32."""
    match b:
        case Const(value) if 1 / MAX_DIVISOR <= abs(value) <= MAX_DIVISOR:
            return mul(Const(1 / value), a)
    return fn("/", a, b)


def _negative_part(x: Scalar) -> Scalar:
    """Return min(x, 0)."""
    return fn("minimum", x, Const(0))


def clamp_scalar(x: Scalar, lo: float, hi: float) -> Scalar:
    """Return min(max(x, lo), hi); an infinite limit is omitted."""
    x = _positive_part(x) if lo == 0 else fn("maximum", x, Const(lo)) if lo > -inf else x
    return fn("minimum", x, Const(hi)) if hi < inf else x


def _hard_sigmoid(call: NodeCall, x: Scalar) -> Scalar:
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    return clamp_scalar(add(mul(Const(alpha), x), Const(beta)), 0, 1)


def _hard_swish(_: NodeCall, x: Scalar) -> Scalar:
    return mul(x, clamp_scalar(add(mul(Const(1 / 6), x), Const(0.5)), 0, 1))


def _leaky(call: NodeCall, x: Scalar) -> Scalar:
    return add(_positive_part(x), mul(Const(call.get("alpha", 0.01)), _negative_part(x)))


def _elu(call: NodeCall, x: Scalar) -> Scalar:
    return add(_positive_part(x), mul(Const(call.get("alpha", 1.0)), fn("-", fn("exp", _negative_part(x)), Const(1))))


def _celu(call: NodeCall, x: Scalar) -> Scalar:
    alpha = call.get("alpha", 1.0)
    power = fn("exp", mul(Const(1 / alpha), _negative_part(x)))
    return add(_positive_part(x), mul(Const(alpha), fn("-", power, Const(1))))


def _selu(call: NodeCall, x: Scalar) -> Scalar:
    alpha, gamma = call.get("alpha", 1.67326319217681884765625), call.get("gamma", 1.05070102214813232421875)
    return mul(Const(gamma), add(_positive_part(x), mul(Const(alpha), fn("-", fn("exp", _negative_part(x)), Const(1)))))


def _softplus(_: NodeCall, x: Scalar) -> Scalar:
    # log(1 + e^x) = max(x, 0) + log(1 + e^-|x|); the right side does not overflow.
    return add(_positive_part(x), fn("log", add(fn("exp", fn("neg", fn("abs", x))), Const(1))))


def _gelu(call: NodeCall, x: Scalar) -> Scalar:
    match call.get("approximate", "none"):
        case "none":
            inner = fn(ERF.name, mul(Const(1 / sqrt(2)), x))
        case "tanh":
            inner = fn("tanh", mul(Const(sqrt(2 / pi)), add(x, mul(Const(0.044715), x, x, x))))
        case other:
            raise Refused(f"approximate is {other}, neither none nor tanh")
    return mul(Const(0.5), x, add(inner, Const(1)))


def _swish(call: NodeCall, x: Scalar) -> Scalar:
    return mul(x, fn("sigmoid", mul(Const(call.get("alpha", 1.0)), x)))


def _swiglu(call: NodeCall) -> Iterable[Equation]:
    yield from _operands(call, lambda args: mul(_swish(call, args[0]), args[1]))


def _clip(call: NodeCall) -> Iterable[Equation]:
    """An omitted limit is the smallest or the largest finite number (as ONNX defines); an infinite limit is dropped."""
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    body = call.operand(0, at)
    kind = ELEMENT_TYPES[call.out.dtype]
    for n, attribute, default, op, none in (
        (1, "min", kind.low, "maximum", -inf),
        (2, "max", kind.high, "minimum", inf),
    ):
        if kind.is_integer and not call.has(n):
            continue
        limit = call.operand(n, at) if call.has(n) else Const(call.get(attribute, float(default)))
        if limit == Const(none):
            continue
        body = _positive_part(body) if op == "maximum" and limit == Const(0) else fn(op, body, limit)
    yield call.equation(Scope(xs, (), body))


def _prelu(call: NodeCall) -> Iterable[Equation]:
    yield from _operands(call, lambda args: add(_positive_part(args[0]), mul(args[1], _negative_part(args[0]))))


def _mean(args: tuple[Scalar, ...]) -> Scalar:
    return mul(Const(1 / len(args)), add(*args)) if len(args) > 1 else args[0]


def _power(args: tuple[Scalar, ...]) -> Scalar:
    base, exponent = args
    match exponent:
        case Const(1):
            return base
        case Const(2 | 3 as n):  # a library computes other powers one by one
            return mul(*(base,) * int(n))
        case Const(value) if value == 1 / 2:
            return fn("sqrt", base)
    return fn("pow", base, exponent)


def _dropout(call: NodeCall) -> Iterable[Equation]:
    if call.has(2) and bool(call.constant(2, "training_mode").any()):
        raise Refused("it is in training mode")
    yield from _unary(lambda _, x: x)(call)


def _cast(call: NodeCall) -> Iterable[Equation]:
    found, wanted = (str(call.model.dtype(name)) for name in (call.node.inputs[0], call.node.outputs[0]))
    yield from _unary(lambda _, x: x if found == wanted else fn(wanted, x))(call)


ELEMENTWISE: tuple[OnnxOperator, ...] = (
    OnnxOperator("Add", "elementwise", _all(lambda args: add(*args)), integers=True),
    OnnxOperator("Sub", "elementwise", _binary("-"), integers=True),
    OnnxOperator("Mul", "elementwise", _all(lambda args: mul(*args)), integers=True),
    OnnxOperator("Div", "elementwise", _all(lambda args: _quotient(*args))),
    OnnxOperator("Sum", "elementwise", _all(lambda args: add(*args))),
    OnnxOperator("Mean", "elementwise", _all(_mean)),
    OnnxOperator("Neg", "elementwise", _function("neg"), integers=True),
    OnnxOperator("Reciprocal", "elementwise", _unary(lambda _, x: fn("/", Const(1), x))),
    OnnxOperator("Identity", "layout", _unary(lambda _, x: x), integers=True),
    OnnxOperator("Dropout", "layout", _dropout, attributes="ratio seed is_test"),
    OnnxOperator("Cast", "elementwise", _cast, integers=True, attributes="to saturate round_mode"),
    OnnxOperator("Max", "activation", _all(lambda args: reduce(_maximum, args)), integers=True),
    OnnxOperator("Min", "activation", _all(lambda args: reduce(lambda a, b: fn("minimum", a, b), args)), integers=True),
    OnnxOperator("Pow", "activation", _all(_power)),
    *(
        OnnxOperator(
            SCALAR_FUNCTIONS[name].onnx, "activation", _function(name), integers=SCALAR_FUNCTIONS[name].is_integral
        )
        for name, count in FUNCTIONS.items()
        if count == 1 and SCALAR_FUNCTIONS[name].onnx
    ),
    OnnxOperator("Clip", "activation", _clip, integers=True, attributes="min max"),
    OnnxOperator("PRelu", "activation", _prelu),
    OnnxOperator("LeakyRelu", "activation", _unary(_leaky), attributes="alpha"),
    OnnxOperator("Elu", "activation", _unary(_elu), attributes="alpha"),
    OnnxOperator("Celu", "activation", _unary(_celu), attributes="alpha"),
    OnnxOperator("Selu", "activation", _unary(_selu), attributes="alpha gamma"),
    OnnxOperator("Gelu", "activation", _unary(_gelu), attributes="approximate"),
    OnnxOperator("HardSigmoid", "activation", _unary(_hard_sigmoid), attributes="alpha beta"),
    OnnxOperator("HardSwish", "activation", _unary(_hard_swish)),
    OnnxOperator("Softplus", "activation", _unary(_softplus)),
    OnnxOperator("Softsign", "activation", _unary(lambda _, x: fn("/", x, add(fn("abs", x), Const(1))))),
    OnnxOperator("Mish", "activation", _unary(lambda call, x: mul(x, fn("tanh", _softplus(call, x))))),
    OnnxOperator(
        "Swish",
        "activation",
        _unary(_swish),
        attributes="alpha",
    ),
    OnnxOperator("SwiGLU", "activation", _swiglu, attributes="alpha"),
)
"""PRelu's slope is an ordinary operand; Max and Min are activations because they are not linear."""


def _where(call: NodeCall) -> Iterable[Equation]:
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    mask = call.constant(0, "condition")
    one, other = call.operand(1, at), call.operand(2, at)
    yield call.equation(Scope(xs, (), select_by_mask(mask, at, one, other)))


def _trilu(call: NodeCall) -> Iterable[Equation]:
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    k = int(call.constant(1, "k").reshape(())) if call.has(1) else 0
    test = Compare(">=" if call.get("upper", 1) else "<=", at[-1] - at[-2], Index((), k))
    yield call.equation(Scope(xs, (), fn("where", test, call.operand(0, at), Const(0))))


SELECTION: tuple[OnnxOperator, ...] = (
    OnnxOperator("Where", "elementwise", _where, integers=True),
    OnnxOperator("Trilu", "elementwise", _trilu, integers=True, attributes="upper"),
)
"""A computed condition is boolean and subprograms compute numbers only, so such a Where is refused."""


def _comparison(op: str, swapped: bool = False) -> Express:
    return lambda call: _operands(call, lambda parts: fn(op, *(parts[::-1] if swapped else parts)))


def _select(call: NodeCall) -> Iterable[Equation]:
    if call.node.inputs[0] in call.model.weights:
        return _where(call)
    return _operands(call, lambda parts: fn("select", *parts))


def _logical(combine: Callable[..., Scalar]) -> Express:
    """Return the expression of an operator on truth values, as numbers that are 0 or 1."""
    return lambda call: _operands(call, lambda parts: fn("bool", combine(*parts)))


CONDITIONS: tuple[OnnxOperator, ...] = (
    OnnxOperator("Where", "elementwise", _select, integers=True),
    OnnxOperator("Less", "elementwise", _comparison("less"), integers=True),
    OnnxOperator("LessOrEqual", "elementwise", _comparison("less_equal"), integers=True),
    OnnxOperator("Greater", "elementwise", _comparison("less", swapped=True), integers=True),
    OnnxOperator("GreaterOrEqual", "elementwise", _comparison("less_equal", swapped=True), integers=True),
    OnnxOperator("Equal", "elementwise", _comparison("equal"), integers=True),
    OnnxOperator("Not", "elementwise", _logical(lambda a: sub(Const(1), a)), integers=True),
    OnnxOperator("And", "elementwise", _logical(mul), integers=True),
    OnnxOperator("Or", "elementwise", _logical(lambda a, b: sub(add(a, b), mul(a, b))), integers=True),
)
"""Comparisons of values, and selections by them, for proofs only: kernels of subprograms compute no truth values."""
