r"""ONNX's contractions: sums of products of two operands, MatMul to ConvTranspose.

.. math::  Y[n, f, \vec h] = \sum_{c, \vec r} X[n, c, s \vec h + d \vec r - p]\, K[f, c, \vec r], \qquad
           Y[n, f, \vec y] = \sum_{c, \vec h} X[n, c, \vec h]\, K[c, f, (\vec y + p - s \vec h) / d]

A grouped convolution has a traversal for its group, :math:`P[n, g, f, \vec h]`, which is then viewed as
:math:`Y[n, g F + f, \vec h]`, so that all indices are affine.  The bias is added by a separate equation.
Source: the ONNX operator reference.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from einnet_explore.ir import Access, Apply, Compare, Const, Equation, Index, Iterator, Scalar, Scope, Tensor, add, mul
from einnet_explore.onnx_import.model import Shape
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator, access, as_indices, broadcast, extent_iterators
from einnet_explore.support.errors import Refused

Factor: TypeAlias = "Callable[[Access], Scalar]"
"""Returns the factor of a product that is computed of a read."""


def _read(read: Access) -> Scalar:
    return read


def _matmul(call: NodeCall) -> Iterable[Equation]:
    yield call.equation(matrix_product(call, call.tensor(0), call.tensor(1)))


def matrix_product(call: NodeCall, a: Tensor, b: Tensor, left: Factor = _read, right: Factor = _read) -> Scope:
    """Return the result of *call*: the sum of products of *left* of elements of *a* and *right* of elements of *b*."""
    k = Iterator("k", 0, a.shape[-1])
    xs = list(extent_iterators(call.out.shape, "b"))
    if len(b.shape) > 1:
        xs[-1] = Iterator("n", 0, b.shape[-1])
    if len(a.shape) > 1:
        xs[-1 if len(b.shape) == 1 else -2] = Iterator("m", 0, a.shape[-2])
    at = as_indices(xs)
    columns = at[-1:] if len(b.shape) > 1 else ()
    rest = at[: len(at) - len(columns)]
    rows = rest[-1:] if len(a.shape) > 1 else ()
    batch = rest[: len(rest) - len(rows)]
    first = _batch_access(a, batch, (*rows, Index(((k, 1),))))
    second = _batch_access(b, batch, (Index(((k, 1),)), *columns))
    return Scope(tuple(xs), (k,), mul(left(first), right(second)))


def _batch_access(source: Tensor, batch: tuple[Index, ...], matrix: tuple[Index, ...]) -> Access:
    """Access *source* at batch × matrix; only batch dimensions are broadcast, m, n and k keep iterators of extent 1."""
    own = len(source.shape) - len(matrix)
    over = broadcast(Tensor(source.name, source.shape[:own]), batch)
    return access(source, *over.index, *matrix)


def _gemm(call: NodeCall) -> Iterable[Equation]:
    a, b = call.tensor(0), call.tensor(1)
    m, n = Iterator("m", 0, call.out.shape[0]), Iterator("n", 0, call.out.shape[1])
    k = Iterator("k", 0, a.shape[0 if call.get("transA", 0) else 1])
    left = access(a, k, m) if call.get("transA", 0) else access(a, m, k)
    right = access(b, n, k) if call.get("transB", 0) else access(b, k, n)
    product = Scope((m, n), (k,), mul(left, right))
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    if alpha == 1 and (not call.has(2) or beta == 0):
        yield call.equation(product)
        return
    yield (first := call.equation(product, "product"))
    body = mul(Const(alpha), access(first.tensor, m, n))
    if call.has(2) and beta != 0:
        body = add(body, mul(Const(beta), call.operand(2, as_indices((m, n)))))
    yield call.equation(Scope((m, n), (), body))


def _einsum(call: NodeCall) -> Iterable[Equation]:
    formula = call.get("equation", "").replace(" ", "")
    shapes = [call.shape(n) for n in range(len(call.node.inputs))]
    terms, output, ellipsis = _terms(formula, tuple(map(len, shapes)))
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            if sizes.setdefault(letter, size) == size or (letter in ellipsis and size == 1):
                continue
            if letter not in ellipsis or sizes[letter] != 1:
                raise Refused(f"equation {formula}: {letter} is {sizes[letter]} and {size}")
            sizes[letter] = size
    xs = {letter: Iterator(letter, 0, size) for letter, size in sizes.items()}
    reads = []
    for n, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        at = (xs[letter] if size == xs[letter].extent else 0 for letter, size in zip(term, shape, strict=True))
        reads.append(access(call.tensor(n), *at))
    summed = tuple(x for letter, x in xs.items() if letter not in output)
    yield call.equation(Scope(tuple(xs[letter] for letter in output), summed, mul(*reads)))


def _terms(formula: str, ranks: Shape) -> tuple[tuple[str, ...], str, str]:
    """Return the letters of the operands' dimensions, of the result's dimensions, and of the ellipsis' dimensions.

    Dimensions of an ellipsis are broadcast; without an arrow they come first in the result.
    """
    inputs, arrow, output = formula.partition("->")
    terms = inputs.split(",")
    letters = formula.replace("->", "").replace("...", "").replace(",", "")
    spans = {rank + 3 - len(term) for term, rank in zip(terms, ranks, strict=False) if "..." in term}
    if not set(letters) <= set(string.ascii_letters) or len(terms) != len(ranks) or len(spans) > 1:
        raise Refused(f"equation {formula} is not an equation of letters")
    wide = max(spans, default=0)
    many = "".join(x for x in string.ascii_letters if x not in letters)[:wide]
    if len(many) < wide or (arrow and wide and "..." not in output):
        raise Refused(f"equation {formula} has an ellipsis but its result has none")
    if not arrow:
        output = "..." + "".join(sorted(x for x in set(letters) if inputs.count(x) == 1))
    return tuple(term.replace("...", many) for term in terms), output.replace("...", many), many


WINDOW_ATTRIBUTES = "auto_pad kernel_shape strides dilations pads"
"""Attributes of operators with a sliding window; the weights, if any, determine the kernel's shape."""

CONVOLUTION_ATTRIBUTES = f"{WINDOW_ATTRIBUTES} group"


def sliding_window(call: NodeCall, kernel: Shape, spatial: Shape, out: Shape) -> tuple[Shape, Shape, Shape]:
    """Return (strides, dilations, leading padding) of a node that slides a window of *kernel* over *spatial*."""
    rank = len(kernel)
    strides = call.get("strides", (1,) * rank)
    dilations = call.get("dilations", (1,) * rank)
    match call.get("auto_pad", "NOTSET"):
        case "NOTSET":
            begin = call.get("pads", (0,) * (2 * rank))[:rank]
            _require_fit(kernel, dilations, spatial, begin, call.get("pads", (0,) * (2 * rank))[rank:])
        case "VALID":
            begin = (0,) * rank
            _require_fit(kernel, dilations, spatial, begin, begin)
        case side:
            spans = ((n - 1) * s + (r - 1) * d + 1 for n, s, r, d in zip(out, strides, kernel, dilations, strict=True))
            total = (max(0, span - size) for span, size in zip(spans, spatial, strict=True))
            begin = tuple(t // 2 if side == "SAME_UPPER" else t - t // 2 for t in total)
    return strides, dilations, begin


def _require_fit(kernel: Shape, dilations: Shape, spatial: Shape, begin: Shape, end: Shape) -> None:
    """Refuse a window larger than its padded input: runtimes round the size of the result differently."""
    for r, d, n, b, e in zip(kernel, dilations, spatial, begin, end, strict=True):
        if (r - 1) * d + 1 > n + b + e:
            raise Refused(f"its window spans {(r - 1) * d + 1} elements, its padded input has {n + b + e}")


_SPATIAL = {1: ("h", "r"), 2: ("hw", "rs"), 3: ("dhw", "qrs")}


def _names(rank: int) -> tuple[str, str]:
    if rank not in _SPATIAL:
        raise Refused(f"it has {rank} spatial dimensions, expected 1 to 3")
    return _SPATIAL[rank]


def _conv(call: NodeCall) -> Iterable[Equation]:
    yield from ungroup_channels(call, convolution(call, call.tensor(0), call.tensor(1)), _bias(call))


def _bias(call: NodeCall) -> Factor | None:
    """Return the addition of the bias to an element of the result; None without a bias."""
    return (lambda total: add(total, access(call.tensor(2), total.index[1]))) if call.has(2) else None


def convolution(
    call: NodeCall, x: Tensor, k: Tensor, left: Factor = _read, right: Factor = _read, value: float = 0
) -> Scope:
    """Return the sum of products of *left* of the elements of *x*, *value* around it, and *right* of those of *k*.

    Groups are a traversal of their own, the second one.
    """
    out, groups = call.out.shape, call.get("group", 1)
    kernel = k.shape[2:]
    names = _names(len(kernel))
    strides, dilations, begin = sliding_window(call, kernel, x.shape[2:], out[2:])
    n, c = Iterator("n", 0, out[0]), Iterator("c", 0, k.shape[1])
    g, f = Iterator("g", 0, groups), Iterator("f", 0, out[1] // groups)
    hs = tuple(Iterator(name, 0, size) for name, size in zip(names[0], out[2:], strict=True))
    rs = tuple(Iterator(name, 0, size) for name, size in zip(names[1], kernel, strict=True))
    at = tuple(h * s + r * d - p for h, r, s, d, p in zip(hs, rs, strides, dilations, begin, strict=True))
    one = groups == 1
    first = access(x, n, c if one else g * k.shape[1] + c, *at, value=value)
    second = access(k, f if one else g * f.extent + f, c, *rs)
    return Scope((n, *(() if one else (g,)), f, *hs), (c, *rs), mul(left(first), right(second)))


def _conv_transpose(call: NodeCall) -> Iterable[Equation]:
    x, k, out = call.tensor(0), call.tensor(1), call.out.shape
    groups = call.get("group", 1)
    kernel, spatial = k.shape[2:], x.shape[2:]
    names = _names(len(kernel))
    strides = call.get("strides", (1,) * len(kernel))
    dilations = call.get("dilations", (1,) * len(kernel))
    begin = _transposed_padding(call, strides, dilations)
    n, c = Iterator("n", 0, out[0]), Iterator("c", 0, x.shape[1] // groups)
    g, f = Iterator("g", 0, groups), Iterator("f", 0, k.shape[1])
    hs = tuple(Iterator(name, 0, size) for name, size in zip(names[0], spatial, strict=True))
    ys = tuple(Iterator(f"{name}o", 0, size) for name, size in zip(names[0], out[2:], strict=True))
    shifted = tuple(y + p - h * s for y, h, s, p in zip(ys, hs, strides, begin, strict=True))
    one = groups == 1
    left = access(x, n, c if one else g * c.extent + c, *hs)
    at = tuple(i // d for i, d in zip(shifted, dilations, strict=True))
    right: Scalar = access(k, c if one else g * c.extent + c, f, *at)
    for i, d in zip(shifted, dilations, strict=True):
        if d > 1:  # a dilated kernel is 0 between its taps
            right = Apply("where", (Compare("==", i % d, Index()), right, Const(0)))
    yield from ungroup_channels(
        call, Scope((n, *(() if one else (g,)), f, *ys), (c, *hs), mul(left, right)), _bias(call)
    )


def _transposed_padding(call: NodeCall, strides: Shape, dilations: Shape) -> Shape:
    """Return the leading elements that each spatial dimension of the result omits."""
    kernel, spatial, out = call.shape(1)[2:], call.shape(0)[2:], call.out.shape[2:]
    extra = call.get("output_padding", (0,) * len(kernel))
    mode = call.get("auto_pad", "NOTSET")
    if mode == "VALID":
        return (0,) * len(kernel)
    if mode == "NOTSET" and not call.get("output_shape", ()):
        begin: Shape = call.get("pads", (0,) * (2 * len(kernel)))[: len(kernel)]
        return begin
    if mode.startswith("SAME") and not call.get("output_shape", ()):
        fixed = tuple(s * n for s, n in zip(strides, spatial, strict=True))
        if out != fixed:  # ONNX's shape inference adds output_padding, unlike its specification and runtimes
            raise Refused(f"its result has the shape {out} by shape inference, {fixed} by {mode}")
    total = (
        max(0, s * (n - 1) + e + (r - 1) * d + 1 - m)
        for n, s, e, r, d, m in zip(spatial, strides, extra, kernel, dilations, out, strict=True)
    )
    return tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total)


def ungroup_channels(call: NodeCall, scope: Scope, finish: Factor | None = None) -> Iterable[Equation]:
    """Yield the equations of the result from *scope*: groups viewed as channels, then *finish* of each element."""
    if finish is None and len(scope.traversals) == len(call.out.shape):
        yield call.equation(scope)
        return
    *before, last = channel_equations(call, scope)
    yield from before
    if finish is None:
        yield call.equation(last.scope)
        return
    yield last
    xs = last.scope.traversals
    yield call.equation(Scope(xs, (), finish(last.tensor[xs])))


def channel_equations(call: NodeCall, scope: Scope) -> tuple[Equation, ...]:
    """Return the equations of *scope*, which may have a traversal for groups; the last has the result's shape."""
    summed = call.equation(scope, "product")
    if len(scope.traversals) == len(call.out.shape):
        return (summed,)
    names = [x for x in scope.traversals if x is not scope.traversals[1]]
    xs = tuple(replace(x, hi=size) for x, size in zip(names, call.out.shape, strict=True))
    n, f, *rest = as_indices(xs)
    per_group = scope.traversals[2].extent
    element = access(summed.tensor, n, f // per_group, f % per_group, *rest)
    return summed, call.equation(Scope(xs, (), element), "view")


CONTRACTIONS: tuple[OnnxOperator, ...] = (
    OnnxOperator("MatMul", "contraction", _matmul),
    OnnxOperator("Gemm", "contraction", _gemm, attributes="alpha beta transA transB"),
    OnnxOperator("Einsum", "contraction", _einsum, attributes="equation"),
    OnnxOperator("Conv", "contraction", _conv, attributes=CONVOLUTION_ATTRIBUTES),
    OnnxOperator(
        "ConvTranspose",
        "contraction",
        _conv_transpose,
        attributes=f"{WINDOW_ATTRIBUTES} group output_padding output_shape",
    ),
)
"""All sums of products; Matmul and Conv have these names in the paper."""
