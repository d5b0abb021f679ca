r"""ONNX's softmax and normalisation operators, as several equations each.

.. math::  M = \max_r X, \quad E = e^{X - M}, \quad S = \sum_r E, \quad Y = E / S

.. math::  \mu = \tfrac1n \sum_r X, \quad \sigma^2 = \tfrac1n \sum_r (X - \mu)^2, \quad
           Y = (X - \mu)\,(\sigma^2 + \epsilon)^{-1/2}\, \gamma + \beta
Source: the ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace
from math import prod, sqrt

from einnet_explore.ir import (
    Const,
    Equation,
    Index,
    Iterator,
    Scalar,
    Scope,
    Tensor,
    add,
    mul,
)
from einnet_explore.onnx_import.elementwise import fn
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator, access, as_indices, broadcast, extent_iterators
from einnet_explore.onnx_import.reduction import reduction_scope
from einnet_explore.support.errors import Refused


def _softmax_axes(call: NodeCall) -> tuple[int, ...]:
    rank = len(call.out.shape)
    coerced = call.opset < 13  # up to opset 12 all dimensions from the axis on are one
    axis = call.axis(call.get("axis", 1 if coerced else -1), rank)
    return tuple(range(axis, rank)) if coerced else (axis,)


def _softmax(call: NodeCall) -> Iterable[Equation]:
    power, total, xs = yield from _powers(call)
    at = as_indices(xs)
    yield call.equation(Scope(xs, (), fn("/", broadcast(power, at), broadcast(total, at))))


def _log_softmax(call: NodeCall) -> Iterable[Equation]:
    _, total, xs = yield from _powers(call)
    at = as_indices(xs)
    largest = replace(total, name=call.intermediate_name("max"))
    shifted = fn("-", call.operand(0, at), broadcast(largest, at))
    yield call.equation(Scope(xs, (), fn("-", shifted, fn("log", broadcast(total, at)))))


def _powers(call: NodeCall) -> Generator[Equation, None, tuple[Tensor, Tensor, tuple[Iterator, ...]]]:
    axes = _softmax_axes(call)
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    yield (largest := call.equation(reduction_scope(call.tensor(0), axes, "max"), "max"))
    body = fn("exp", fn("-", call.operand(0, at), broadcast(largest.tensor, at)))
    yield (power := call.equation(Scope(xs, (), body), "exp"))
    yield (total := call.equation(reduction_scope(power.tensor, axes), "total"))
    return power.tensor, total.tensor, xs


def _batch_normalization(call: NodeCall) -> Iterable[Equation]:
    """BatchNormalization in inference: an affine function with two coefficients computed from weights only."""
    if call.get("training_mode", 0):
        raise Refused("it is in training mode")
    call.require_single_output()
    if not call.get("spatial", 1):
        raise Refused("it has separate statistics for every element (spatial = 0)")
    c = Iterator("c", 0, call.shape(1)[0])
    epsilon = Const(call.get("epsilon", 1e-5))
    scale, bias, mean, variance = (access(call.tensor(n), c) for n in (1, 2, 3, 4))
    yield (a := call.equation(Scope((c,), (), mul(scale, fn("rsqrt", add(variance, epsilon)))), "scale"))
    yield (b := call.equation(Scope((c,), (), fn("-", bias, mul(mean, access(a.tensor, c)))), "shift"))
    xs = extent_iterators(call.out.shape)
    at = xs[1] if len(xs) > 1 else Index()
    yield call.equation(
        Scope(xs, (), add(mul(call.operand(0, as_indices(xs)), access(a.tensor, at)), access(b.tensor, at)))
    )


def _moments(call: NodeCall, source: Tensor, axes: tuple[int, ...], epsilon: float) -> Iterable[Equation]:
    """Yield the equations of *source* - μ (``centred``) and (σ² + ε)^(-1/2) (``scale``)."""
    part = Const(1 / prod(source.shape[d] for d in axes))
    xs = extent_iterators(source.shape)
    at = as_indices(xs)
    yield (mean := call.equation(reduction_scope(source, axes, f=lambda x: mul(part, x)), "mean"))
    yield (centred := call.equation(Scope(xs, (), fn("-", access(source, *at), broadcast(mean.tensor, at))), "centred"))
    yield from _scale(call, centred.tensor, axes, epsilon)


def _scale(call: NodeCall, centred: Tensor, axes: tuple[int, ...], epsilon: float) -> Iterable[Equation]:
    part = Const(1 / prod(centred.shape[d] for d in axes))
    yield (variance := call.equation(reduction_scope(centred, axes, f=lambda x: mul(part, x, x)), "variance"))
    ys = variance.scope.traversals
    yield call.equation(Scope(ys, (), fn("rsqrt", add(access(variance.tensor, *ys), Const(epsilon)))), "scale")


def _scale_and_shift(call: NodeCall, centred: Tensor, scale: Tensor, gamma: Scalar, beta: Scalar) -> Equation:
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    return call.equation(Scope(xs, (), add(mul(broadcast(centred, at), broadcast(scale, at), gamma), beta)))


def _layer_normalization(call: NodeCall) -> Iterable[Equation]:
    """Also compute the optional outputs: mean and (σ² + ε)^(-1/2)."""
    rank = len(call.out.shape)
    axes = tuple(range(call.axis(call.get("axis", -1), rank), rank))
    *before, scale = _moments(call, call.tensor(0), axes, call.get("epsilon", 1e-5))
    yield from (*before, scale)
    for n, inner in ((1, before[0]), (2, scale)):
        if n < len(call.node.outputs) and call.node.outputs[n]:
            xs = inner.scope.traversals
            yield Equation(call.output(n).name, Scope(xs, (), access(inner.tensor, *xs)))
    at = as_indices(extent_iterators(call.out.shape))
    beta = call.operand(2, at) if call.has(2) else Const(0)
    yield _scale_and_shift(call, before[1].tensor, scale.tensor, call.operand(1, at), beta)


def _rms_normalization(call: NodeCall) -> Iterable[Equation]:
    rank = len(call.out.shape)
    axes = tuple(range(call.axis(call.get("axis", -1), rank), rank))
    *before, scale = _scale(call, call.tensor(0), axes, call.get("epsilon", 1e-5))
    yield from (*before, scale)
    at = as_indices(extent_iterators(call.out.shape))
    yield _scale_and_shift(call, call.tensor(0), scale.tensor, call.operand(1, at), Const(0))


def _instance_normalization(call: NodeCall) -> Iterable[Equation]:
    axes = tuple(range(2, len(call.out.shape)))
    *before, scale = _moments(call, call.tensor(0), axes, call.get("epsilon", 1e-5))
    yield from (*before, scale)
    c = as_indices(extent_iterators(call.out.shape))[1]
    yield _scale_and_shift(call, before[1].tensor, scale.tensor, access(call.tensor(1), c), access(call.tensor(2), c))


def _group_normalization(call: NodeCall) -> Iterable[Equation]:
    """View channels as groups, normalise, and view the groups as channels again.

    ONNX deprecates and refuses the older operator of this name, which has a scale for each group.
    """
    n, c, *rest = extent_iterators(call.out.shape)
    groups = call.get("num_groups", 1)
    size = c.extent // groups
    g, k = Iterator("g", 0, groups), Iterator("k", 0, size)
    yield (view := call.equation(Scope((n, g, k, *rest), (), access(call.tensor(0), n, g * size + k, *rest)), "view"))
    axes = tuple(range(2, len(view.scope.shape)))
    *before, scale = _moments(call, view.tensor, axes, call.get("epsilon", 1e-5))
    yield from (*before, scale)
    at = as_indices((n, c // size, c % size, *rest))
    gamma, beta = access(call.tensor(1), c), access(call.tensor(2), c)
    body = add(mul(broadcast(before[1].tensor, at), broadcast(scale.tensor, at), gamma), beta)
    yield call.equation(Scope((n, c, *rest), (), body))


def _mean_variance(call: NodeCall) -> Iterable[Equation]:
    """Y = (X - μ) / (σ + 10⁻⁹); without the 10⁻⁹, as in ONNX Runtime, a constant X would be 0/0."""
    rank = len(call.out.shape)
    axes = tuple(call.axis(a, rank) for a in call.get("axes", (0, 2, 3)))
    *before, variance, _ = _moments(call, call.tensor(0), axes, 0.0)
    yield from (*before, variance)
    ys = variance.scope.traversals
    deviation = fn("sqrt", access(variance.tensor, *ys))
    yield (scale := call.equation(Scope(ys, (), fn("/", Const(1), add(deviation, Const(1e-9)))), "scale"))
    yield _scale_and_shift(call, before[1].tensor, scale.tensor, Const(1), Const(0))


def _lp_normalization(call: NodeCall) -> Iterable[Equation]:
    """Y = X / |X|, and 0 where the norm is 0.

    A Euclidean norm underflows to 0 for small nonzero elements; min(*scale* · norm, 1) is 0 for a zero norm and 1 for
    the smallest nonzero norm.
    """
    axis = call.axis(call.get("axis", -1), len(call.out.shape))
    match call.get("p", 2):
        case 1:
            inner = reduction_scope(call.tensor(0), (axis,), f=lambda x: fn("abs", x))
        case 2:
            inner = reduction_scope(call.tensor(0), (axis,), f=lambda x: mul(x, x))
        case other:
            raise Refused(f"p is {other}, neither 1 nor 2")
    yield (total := call.equation(inner, "total"))
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    element: Scalar = call.operand(0, at)
    norm: Scalar = broadcast(total.tensor, at)
    if call.get("p", 2) == 2:
        norm = fn("sqrt", norm)
        scale = 2 / sqrt(call.float_limits.smallest_subnormal)
        element = mul(element, fn("minimum", mul(Const(scale), norm), Const(1)))
    yield call.equation(Scope(xs, (), fn("/", element, fn("maximum", norm, Const(float(call.float_limits.tiny))))))


def _lrn(call: NodeCall) -> Iterable[Equation]:
    """Y = X / (k + α/size · Σ X²)^β over a window of channels."""
    size = call.get("size", 1)
    xs = extent_iterators(call.out.shape)
    r = Iterator("r", 0, size)
    n, c, *rest = as_indices(xs)
    neighbour = access(call.tensor(0), n, c + r - (size - 1) // 2, *rest)
    yield (square := call.equation(Scope(xs, (r,), mul(neighbour, neighbour)), "squares"))
    base = add(Const(call.get("bias", 1.0)), mul(Const(call.get("alpha", 1e-4) / size), access(square.tensor, *xs)))
    divisor = fn("pow", base, Const(call.get("beta", 0.75)))
    yield call.equation(Scope(xs, (), fn("/", call.operand(0, as_indices(xs)), divisor)))


NORMALIZATION: tuple[OnnxOperator, ...] = (
    OnnxOperator("Softmax", "reduction", _softmax, attributes="axis"),
    OnnxOperator("LogSoftmax", "reduction", _log_softmax, attributes="axis"),
    OnnxOperator(
        "BatchNormalization",
        "elementwise",
        _batch_normalization,
        attributes="epsilon momentum is_test spatial training_mode",
    ),
    OnnxOperator("LayerNormalization", "reduction", _layer_normalization, attributes="axis epsilon stash_type"),
    OnnxOperator("RMSNormalization", "reduction", _rms_normalization, attributes="axis epsilon stash_type"),
    OnnxOperator("InstanceNormalization", "reduction", _instance_normalization, attributes="epsilon"),
    OnnxOperator("GroupNormalization", "reduction", _group_normalization, attributes="epsilon num_groups stash_type"),
    OnnxOperator("MeanVarianceNormalization", "reduction", _mean_variance, attributes="axes"),
    OnnxOperator("LpNormalization", "reduction", _lp_normalization, attributes="axis p"),
    OnnxOperator("LRN", "reduction", _lrn, attributes="alpha beta bias size"),
)
