r"""ONNX's reduction and pooling operators.

.. math::  Y[\vec i] = g\Big( \bigoplus_{\vec r} f(X[\tau(\vec i, \vec r)]) \Big)

An average divides by the number of elements in its window, which is itself a sum of ones over the window.
Source: the ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf, prod
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
from einnet_explore.onnx_import.node_call import Express, NodeCall, OnnxOperator, access, extent_iterators

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
