r"""ONNX's quantised operators: integers :math:`q` that stand for the numbers :math:`s (q - z)`.

.. math::
   Q_{s,z}(x) = \min(\max(\mathrm{round}(x / s) + z,\; l),\; h), \qquad D_{s,z}(q) = s (q - z)

.. math::
   \mathrm{QLinearMatMul} = Q_{1,z_y}\Big(\frac{s_a s_b}{s_y} \sum_k (A - z_a)(B - z_b)\Big)

A scale *s* and a zero point *z* are one number, one for each index of an axis, or one for each block along it.
Rounding is to the nearest integer, ties to even; :math:`l` and :math:`h` are the ends of the result's type.  Sums of
products are exact in ``int32``; a node whose sums may leave it is refused.

The type of the scale determines the precision of :math:`x / s`.  That decides next to a tie, so the quotient is rounded
to it where *x* has this precision too: where it is an input of the model.  A computed *x* is the number that its
expression denotes, whose roundings no definition orders.
Source: the ONNX operator reference (QuantizeLinear-23).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import prod

from einnet_explore.ir import (
    ELEMENT_TYPES,
    FLOAT32,
    Access,
    Const,
    ElementType,
    Equation,
    Index,
    Scalar,
    Scope,
    add,
    mul,
    sub,
)
from einnet_explore.onnx_import.contraction import (
    CONVOLUTION_ATTRIBUTES,
    channel_equations,
    convolution,
    matrix_product,
    ungroup_channels,
)
from einnet_explore.onnx_import.elementwise import clamp_scalar, fn
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator, access, as_indices, broadcast, extent_iterators
from einnet_explore.support.errors import Refused


def _quantized(x: Scalar, zero_point: Scalar, kind: ElementType) -> Scalar:
    """Return the integer of *kind* that is nearest to *x*, shifted by *zero_point* and saturated."""
    return fn(kind.name, clamp_scalar(add(fn("round", x), zero_point), kind.low, kind.high))


def _quotient(call: NodeCall, at: tuple[Index, ...], scale: Scalar) -> Scalar:
    """Return element *at* of input 0 over *scale*, rounded to the scale's type if the model is given the element."""
    x = call.tensor(0)
    exact = fn("/", call.operand(0, at), scale)
    given = any(value.name == call.node.inputs[0] for value in call.model.inputs)
    return fn(FLOAT32, exact) if given and x.dtype == FLOAT32 else exact


def _shifted(x: Scalar, zero_point: Scalar) -> Scalar:
    return x if zero_point == Const(0) else sub(x, zero_point)


def _parameter(call: NodeCall, n: int, at: tuple[Index, ...] = (), axis: int = 0) -> Scalar:
    """Return input *n*, a scale or a zero point, for the element *at* of its tensor; an omitted zero point is 0.

    It is one number, has one for each index of *axis*, or is broadcast to the tensor.  Equal elements that are known
    are a constant.
    """
    if not call.has(n):
        return Const(0)
    known = call.model.weights.get(call.node.inputs[n])
    if known is not None and known.size and (known == known.flat[0]).all():
        return Const(float(known.flat[0]))
    source = call.tensor(n)
    if prod(source.shape) == 1:
        return source[tuple(0 for _ in source.shape)]
    if len(source.shape) > 1:
        return broadcast(source, at)
    if not -len(at) <= axis < len(at):
        raise Refused(f"{source.name} has {source.shape[0]} elements, expected one: its tensor has no axis {axis}")
    return access(source, at[axis])


def _result_type(call: NodeCall) -> ElementType:
    return ELEMENT_TYPES[call.out.dtype]


def _parameters(call: NodeCall, at: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
    """Return the scale and the zero point of element *at* of a tensor, which has them by axis or in blocks."""
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    if block:
        axis = call.axis(axis, len(at))
        at = (*at[:axis], at[axis] // block, *at[axis + 1 :])
    return _parameter(call, 1, at, axis), _parameter(call, 2, at, axis)


def _quantize_linear(call: NodeCall) -> Iterable[Equation]:
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    scale, zero_point = _parameters(call, at)
    yield call.equation(Scope(xs, (), _quantized(_quotient(call, at, scale), zero_point, _result_type(call))))


def _dequantize_linear(call: NodeCall) -> Iterable[Equation]:
    xs = extent_iterators(call.out.shape)
    scale, zero_point = _parameters(call, as_indices(xs))
    element = mul(scale, _shifted(call.tensor(0)[xs], zero_point))
    if isinstance(scale, Const) and scale.value == int(scale.value):  # the product would be one of integers
        element = fn(call.out.dtype, element)
    yield call.equation(Scope(xs, (), element))


def _dynamic_quantize_linear(call: NodeCall) -> Iterable[Equation]:
    """The scale, a number of float32, and the zero point follow from the largest and the smallest element, and 0."""
    x, kind = call.tensor(0), ELEMENT_TYPES["uint8"]
    ys = extent_iterators(x.shape)
    yield (high := call.equation(Scope((), ys, x[ys], reduce="max"), "high"))
    yield (low := call.equation(Scope((), ys, x[ys], reduce="min"), "low"))
    above, below = fn("relu", high.tensor[()]), fn("minimum", low.tensor[()], Const(0))
    width = fn("float32", fn("/", sub(above, below), Const(kind.high)))
    yield (scale := Equation(call.output(1).name, Scope((), (), width)))
    size = scale.tensor[()]
    middle = _quantized(fn("/", fn("neg", below), size), Const(0), kind)
    yield (zero_point := Equation(call.output(2).name, Scope((), (), middle)))
    yield call.equation(Scope(ys, (), _quantized(_quotient(call, as_indices(ys), size), zero_point.tensor[()], kind)))


def _difference(call: NodeCall, n: int, axis: int, read: Access) -> Scalar:
    """Return *read* less the zero point that input *n* is."""
    return _shifted(read, _parameter(call, n, read.index, axis))


def _matmul_integer(call: NodeCall) -> Iterable[Equation]:
    left, right = partial(_difference, call, 2, -2), partial(_difference, call, 3, -1)
    yield call.equation(matrix_product(call, call.tensor(0), call.tensor(1), left, right))


def _qlinear_matmul(call: NodeCall) -> Iterable[Equation]:
    a, b = call.tensor(0), call.tensor(3)
    left, right = partial(_difference, call, 2, -2), partial(_difference, call, 5, -1)
    yield (total := call.equation(matrix_product(call, a, b, left, right), "sum"))
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    rows = _parameter(call, 1, at if len(a.shape) > 1 else (), -2)
    columns = _parameter(call, 4, at if len(b.shape) > 1 else (), -1)
    yield call.equation(Scope(xs, (), _requantized(call, mul(rows, columns), total.tensor[xs], 6)))


def _requantized(call: NodeCall, scale: Scalar, total: Scalar, n: int) -> Scalar:
    """Return *scale* times the integer *total*, quantised with the scale and the zero point in the inputs from *n* on.

    The quotient of both scales is computed first, as in ONNX Runtime.
    """
    quotient = fn("/", scale, _parameter(call, n))
    return _quantized(mul(quotient, total), _parameter(call, n + 1), _result_type(call))


def _conv_integer(call: NodeCall) -> Iterable[Equation]:
    yield from ungroup_channels(call, _integer_convolution(call, (0, 2), (1, 3)))


def _qlinear_conv(call: NodeCall) -> Iterable[Equation]:
    *before, total = channel_equations(call, _integer_convolution(call, (0, 2), (3, 5)))
    yield from before
    yield total
    xs = total.scope.traversals
    if call.has(8):  # the sum of both need not fit into 32 bits
        biased = add(fn("int64", total.tensor[xs]), access(call.tensor(8), xs[1]))
        yield (total := call.equation(Scope(xs, (), biased), "biased"))
    scale = mul(_parameter(call, 1), _parameter(call, 4, as_indices(xs), 1))
    yield call.equation(Scope(xs, (), _requantized(call, scale, total.tensor[xs], 6)))


def _integer_convolution(call: NodeCall, image: tuple[int, int], kernel: tuple[int, int]) -> Scope:
    """Return the sum of products of two inputs, each less its zero point; around the image these differences are 0."""
    x, zero_point = call.tensor(image[0]), _parameter(call, image[1])
    right = partial(_difference, call, kernel[1], 0)
    if isinstance(zero_point, Const):
        left = partial(_difference, call, image[1], 0)
        return convolution(call, x, call.tensor(kernel[0]), left, right, zero_point.value)
    xs = extent_iterators(x.shape)
    inside = Scope(xs, (), sub(x[xs], zero_point))
    return convolution(
        call,
        x,
        call.tensor(kernel[0]),
        lambda read: Access(replace(inside, padding=read.source.padding), read.index),
        right,
    )


QUANTIZATION: tuple[OnnxOperator, ...] = (
    OnnxOperator(
        "QuantizeLinear",
        "activation",
        _quantize_linear,
        integers=True,
        attributes="axis block_size output_dtype saturate",
    ),
    OnnxOperator("DequantizeLinear", "elementwise", _dequantize_linear, attributes="axis block_size output_dtype"),
    OnnxOperator("DynamicQuantizeLinear", "reduction", _dynamic_quantize_linear, integers=True),
    OnnxOperator("MatMulInteger", "contraction", _matmul_integer, integers=True),
    OnnxOperator("QLinearMatMul", "contraction", _qlinear_matmul, integers=True),
    OnnxOperator("ConvInteger", "contraction", _conv_integer, integers=True, attributes=CONVOLUTION_ATTRIBUTES),
    OnnxOperator("QLinearConv", "contraction", _qlinear_conv, integers=True, attributes=CONVOLUTION_ATTRIBUTES),
)
"""``saturate`` concerns 8-bit floating point only, and ``output_dtype`` is the type of the result."""
