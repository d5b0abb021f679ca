r"""ONNX's reductions, pooling, softmax and normalisation operators.

.. math::  Y[\vec i] = g\Big( \bigoplus_{\vec r} f(X[\tau(\vec i, \vec r)]) \Big)

An average divides by the number of elements in its window, which is itself a sum of ones over the window.

.. math::  M = \max_r X, \quad E = e^{X - M}, \quad S = \sum_r E, \quad Y = E / S

.. math::  \mu = \tfrac1n \sum_r X, \quad \sigma^2 = \tfrac1n \sum_r (X - \mu)^2, \quad
           Y = (X - \mu)\,(\sigma^2 + \epsilon)^{-1/2}\, \gamma + \beta

Source: the ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from math import inf, prod, sqrt
from typing import Literal

from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
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
from einnet_explore.onnx_import.contraction import WINDOW_ATTRIBUTES, sliding_window
from einnet_explore.onnx_import.elementwise import clamp_scalar, fn
from einnet_explore.onnx_import.node_call import (
    Express,
    NodeCall,
    OnnxOperator,
    access,
    as_indices,
    broadcast,
    extent_iterators,
)
from einnet_explore.support.errors import Refused

Function = Callable[[Scalar], Scalar]


def reduction_scope(source: Tensor, axes: tuple[int, ...], reduce: str = "sum", f: Function = lambda x: x) -> Scope:
    """Return *source* reduced over *axes*, which remain as dimensions of extent 1."""
    dims = [Iterator(f"i{d}", 0, 1 if d in axes else n) for d, n in enumerate(source.shape)]
    sums = {d: Iterator(f"r{d}", 0, source.shape[d]) for d in axes}
    at = [sums.get(d, Index() if d in axes else x) for d, x in enumerate(dims)]
    return Scope(tuple(dims), tuple(sums.values()), f(access(source, *at)), reduce)


def prefix_sum(source: Tensor, axis: int, first: int = 0, step: int = -1) -> Scope:
    """Return the sums of *source* along *axis*: a window over the whole extent, 0 beyond it.

    The sum at a position begins *first* elements away and goes on by *step*: -1 to the start, 1 to the end.
    """
    xs = extent_iterators(source.shape)
    r = Iterator("r", 0, source.shape[axis])
    at = [x + (r + first) * step if d == axis else x for d, x in enumerate(xs)]
    return Scope(xs, (r,), access(source, *at))


def _cumulative_sum(call: NodeCall) -> Iterable[Equation]:
    source = call.tensor(0)
    axis = call.axis(int(call.constant(1, "axis").reshape(())), len(source.shape))
    first, step = int(call.get("exclusive", 0)), 1 if call.get("reverse", 0) else -1
    yield call.equation(prefix_sum(source, axis, first, step))


def _reduce(name: str, f: Function = lambda x: x, g: Function | None = None) -> Express:
    """Return the expression g(⊕ f(x)) of the monoid *name*, or of ``mean``: the sum of x over the count."""
    reduce = "sum" if name == "mean" else name

    def express(call: NodeCall) -> Iterable[Equation]:
        source = call.tensor(0)
        rank = len(source.shape)
        if call.has(1) or "axes" in call.node.attributes:
            axes = tuple(call.axis(a, rank) for a in call.integers(1, "axes") or ())
        else:
            axes = ()
        if not axes and not call.get("noop_with_empty_axes", 0):
            axes = tuple(range(rank))
        count = prod(source.shape[d] for d in axes)
        kept = reduction_scope(source, axes, reduce, (lambda x: mul(Const(1 / count), f(x))) if name == "mean" else f)
        drop = axes if not call.get("keepdims", 1) else ()
        xs = tuple(x for d, x in enumerate(kept.traversals) if d not in drop)
        scope = Scope(xs, kept.summations, kept.body, reduce)
        if g is None:
            yield call.equation(scope)
            return
        yield (inner := call.equation(scope, reduce))
        yield call.equation(Scope(xs, (), g(access(inner.tensor, *xs))))

    return express


def _global_pool(name: Literal["mean", "max"]) -> Express:
    def express(call: NodeCall) -> Iterable[Equation]:
        source = call.tensor(0)
        axes = tuple(range(2, len(source.shape)))
        count = prod(source.shape[2:])
        mean = reduction_scope(source, axes, "sum", lambda x: mul(Const(1 / count), x))
        yield call.equation(mean if name == "mean" else reduction_scope(source, axes, name))

    return express


def _window(
    call: NodeCall, value: float
) -> tuple[tuple[Iterator, ...], tuple[Iterator, ...], tuple[Index, ...], Access]:
    """Return (traversals, window iterators, spatial indices, access padded with *value*) of a pooling node."""
    call.require_single_output()
    source, out = call.tensor(0), call.out.shape
    kernel = call.get("kernel_shape", ())
    strides, dilations, begin = sliding_window(call, kernel, source.shape[2:], out[2:])
    xs = tuple(Iterator(f"i{d}", 0, n) for d, n in enumerate(out))
    rs = tuple(Iterator(f"r{d}", 0, n) for d, n in enumerate(kernel))
    at = tuple(x * s + r * d - p for x, r, s, d, p in zip(xs[2:], rs, strides, dilations, begin, strict=True))
    return xs, rs, at, access(source, *xs[:2], *at, value=value)


def _max_pool(call: NodeCall) -> Iterable[Equation]:
    xs, rs, _, element = _window(call, -inf)
    yield call.equation(Scope(xs, rs, element, "max"))


def _average_pool(call: NodeCall) -> Iterable[Equation]:
    xs, rs, at, element = _window(call, 0)
    shape, rank = call.shape(0)[2:], len(rs)
    begin, end = (0,) * rank, (0,) * rank
    if call.get("count_include_pad", 0):
        begin, end = _padding(call, at)
    limits = tuple((-b, n + e) for b, n, e in zip(begin, shape, end, strict=True))
    if is_inside_box(at, limits):
        yield call.equation(Scope(xs, rs, mul(Const(1 / prod(r.extent for r in rs)), element)))
        return
    counts = []
    for d, (x, r, i, (lo, hi)) in enumerate(zip(xs[2:], rs, at, limits, strict=True)):
        inside = _indicator(i, lo, hi)
        yield (count := call.equation(Scope((x,), (r,), inside), f"count{d}"))
        counts.append(access(count.tensor, x))
    yield (total := call.equation(Scope(xs, rs, element), "total"))
    yield call.equation(Scope(xs, (), fn("/", access(total.tensor, *xs), mul(*counts))))


def _indicator(i: Index, lo: int, hi: int) -> Scalar:
    """Return 1 where lo <= i < hi, else 0."""
    low = Compare(">=", i, Index((), lo))
    return Apply("where", (low, Apply("where", (Compare("<", i, Index((), hi)), Const(1), Const(0))), Const(0)))


def _padding(call: NodeCall, at: tuple[Index, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the declared padding; elements that only ``ceil_mode`` includes in a window are not counted."""
    rank, shape = len(at), call.shape(0)[2:]
    if call.get("auto_pad", "NOTSET") != "NOTSET":
        reach = [i.bounds for i in at]
        return tuple(max(0, -lo) for lo, _ in reach), tuple(
            max(0, hi + 1 - n) for (_, hi), n in zip(reach, shape, strict=True)
        )
    pads = call.get("pads", (0,) * (2 * rank))
    return pads[:rank], pads[rank:]


def _lp_pool(call: NodeCall) -> Iterable[Equation]:
    p = call.get("p", 2)
    xs, rs, _, element = _window(call, 0)
    yield (total := call.equation(Scope(xs, rs, _absolute_power(element, p)), "total"))
    yield call.equation(Scope(xs, (), _root(access(total.tensor, *xs), p)))


def _absolute_power(x: Scalar, p: float) -> Scalar:
    match p:
        case 1:
            return fn("abs", x)
        case 2:
            return mul(x, x)
    return fn("pow", fn("abs", x), Const(p))


def _root(x: Scalar, p: float) -> Scalar:
    match p:
        case 1:
            return x
        case 2:
            return fn("sqrt", x)
    return fn("pow", x, Const(1 / p))


def _log_sum_exp(call: NodeCall) -> Iterable[Equation]:
    """m + log Σ exp(x - m) with m = max x, which does not overflow.

    An infinite maximum is clamped to the largest finite number, since ∞ - ∞ is undefined.
    """
    largest = next(iter(_reduce("max")(call)))
    xs, element = largest.scope.traversals, largest.scope.body
    yield (largest := call.equation(largest.scope, "max"))
    finite = clamp_scalar(access(largest.tensor, *xs), float(call.float_limits.min), float(call.float_limits.max))
    yield (middle := call.equation(Scope(xs, (), finite), "middle"))
    power = fn("exp", fn("-", element, access(middle.tensor, *xs)))
    yield (total := call.equation(Scope(xs, largest.scope.summations, power), "total"))
    yield call.equation(Scope(xs, (), add(access(middle.tensor, *xs), fn("log", access(total.tensor, *xs)))))


_AXES_ATTRIBUTES = "axes keepdims noop_with_empty_axes"

REDUCTIONS_ONNX: tuple[OnnxOperator, ...] = (
    OnnxOperator("ReduceSum", "reduction", _reduce("sum"), attributes=_AXES_ATTRIBUTES),
    OnnxOperator("ReduceMean", "reduction", _reduce("mean"), attributes=_AXES_ATTRIBUTES),
    OnnxOperator("ReduceMax", "reduction", _reduce("max"), attributes=_AXES_ATTRIBUTES),
    OnnxOperator("ReduceMin", "reduction", _reduce("min"), attributes=_AXES_ATTRIBUTES),
    OnnxOperator("ReduceProd", "reduction", _reduce("prod"), attributes=_AXES_ATTRIBUTES),
    OnnxOperator("ReduceL1", "reduction", _reduce("sum", lambda x: fn("abs", x)), attributes=_AXES_ATTRIBUTES),
    OnnxOperator(
        "ReduceL2",
        "reduction",
        _reduce("sum", lambda x: mul(x, x), lambda x: fn("sqrt", x)),
        attributes=_AXES_ATTRIBUTES,
    ),
    OnnxOperator("ReduceSumSquare", "reduction", _reduce("sum", lambda x: mul(x, x)), attributes=_AXES_ATTRIBUTES),
    OnnxOperator("ReduceLogSum", "reduction", _reduce("sum", g=lambda x: fn("log", x)), attributes=_AXES_ATTRIBUTES),
    OnnxOperator("ReduceLogSumExp", "reduction", _log_sum_exp, attributes=_AXES_ATTRIBUTES),
    OnnxOperator("CumSum", "reduction", _cumulative_sum, attributes="exclusive reverse"),
    OnnxOperator("GlobalAveragePool", "reduction", _global_pool("mean")),
    OnnxOperator("GlobalMaxPool", "reduction", _global_pool("max")),
    OnnxOperator("MaxPool", "reduction", _max_pool, attributes=f"{WINDOW_ATTRIBUTES} ceil_mode storage_order"),
    OnnxOperator(
        "AveragePool", "reduction", _average_pool, attributes=f"{WINDOW_ATTRIBUTES} ceil_mode count_include_pad"
    ),
    OnnxOperator("LpPool", "reduction", _lp_pool, attributes=f"{WINDOW_ATTRIBUTES} ceil_mode p"),
)
"""A mean multiplies each term by the reciprocal of the count, so that it is one linear scope."""


def _softmax_axes(call: NodeCall) -> tuple[int, ...]:
    rank = len(call.out.shape)
    coerced = call.opset < 13  # up to opset 12 all dimensions from the axis on are one
    axis = call.axis(call.get("axis", 1 if coerced else -1), rank)
    return tuple(range(axis, rank)) if coerced else (axis,)


def _softmax(call: NodeCall) -> Iterable[Equation]:
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    power, total = yield from softmax_parts(call, call.tensor(0), call.operand(0, at), xs, _softmax_axes(call))
    yield call.equation(Scope(xs, (), fn("/", broadcast(power, at), broadcast(total, at))))


def _log_softmax(call: NodeCall) -> Iterable[Equation]:
    xs = extent_iterators(call.out.shape)
    at = as_indices(xs)
    _, total = yield from softmax_parts(call, call.tensor(0), call.operand(0, at), xs, _softmax_axes(call))
    largest = replace(total, name=call.intermediate_name("max"))
    shifted = fn("-", call.operand(0, at), broadcast(largest, at))
    yield call.equation(Scope(xs, (), fn("-", shifted, fn("log", broadcast(total, at)))))


def softmax_parts(
    call: NodeCall, source: Tensor, element: Scalar, xs: tuple[Iterator, ...], axes: tuple[int, ...]
) -> Generator[Equation, None, tuple[Tensor, Tensor]]:
    """Yield the equations of M, E and S for *source*, which is *element* at *xs*; return E and S."""
    yield (largest := call.equation(reduction_scope(source, axes, "max"), "max"))
    body = fn("exp", fn("-", element, broadcast(largest.tensor, as_indices(xs))))
    yield (power := call.equation(Scope(xs, (), body), "exp"))
    yield (total := call.equation(reduction_scope(power.tensor, axes), "total"))
    return power.tensor, total.tensor


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
