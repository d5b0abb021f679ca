r"""Canonical expressions of the usual operators as programs: ``ee.ops``.

Inputs are called ``A`` and ``K`` (weights) or ``A`` and ``B``, results ``Y``.  Convolutions and pools are in the
paper's layout ``NHWC`` with kernel ``RSFC`` unless ``layout="NCHW"`` (kernel ``FCRS``, as in ONNX).  Defaults are those
of ONNX: stride 1, dilation 1, no padding.  (In torch, the stride of a pool is its window.)  Elements are float32.
Every function raises ValueError, with the numbers, for an extent below 1, an output without points, and another layout.
Source: EinNet §3 and Table 3.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TypeAlias

from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Apply,
    Const,
    Index,
    Iterator,
    Padding,
    Program,
    Scalar,
    Scope,
    Tensor,
    as_index,
    mul,
    program,
)
from einnet_explore.ir.scalar_functions import FUNCTIONS

Pair: TypeAlias = "int | tuple[int, int]"
Pads: TypeAlias = "int | tuple[int, int] | tuple[int, int, int, int] | str"


def conv2d(
    *, H: int, W: int, C: int | None = None, F: int | None = None, R: int, S: int, N: int = 1,
    in_channels: int | None = None, out_channels: int | None = None,
    stride: Pair = 1, dilation: Pair = 1, padding: Pads = 0, groups: int = 1, layout: str = "NHWC",
) -> Program:  # fmt: skip
    """Y[n,h,w,f] = Σ_crs A[n, s·h+d·r-p, s·w+d·s-p, c]·K[r,s,f,c]; H and W are the input's.

    A has the shape [N, H, W, C], K [R, S, F, C / groups]; with the *layout* ``"NCHW"`` [N, C, H, W] and [F, C / groups,
    R, S].  *stride* s and *dilation* d are one number or (height, width).  C, or *in_channels*, and F, or
    *out_channels*, are all channels, also with *groups*.  *padding* is, as in torch, one number, (height, width),
    ``"valid"`` (0, the default) or ``"same"`` (the output of stride 1 is as large as the input), or as in ONNX (top,
    left, bottom, right).  Raises ValueError where sizes do not fit, TypeError for missing channels.
    """
    C, F = _one_of(C=C, in_channels=in_channels), _one_of(F=F, out_channels=out_channels)
    if groups < 1 or C % groups or F % groups:
        raise ValueError(f"{groups} groups do not divide {C} input and {F} output channels")
    n, f, c, r, s = _all(n=N, f=F, c=C // groups, r=R, s=S)
    h, w, y, x, pads = _windows((H, W), (r, s), stride, dilation, padding)
    channel = (f // (F // groups)) * (C // groups) + c
    if layout == "NHWC":
        A = _tensor("A", (N, H, W, C), ((0, 0), *pads, (0, 0)))
        K = Tensor("K", (R, S, F, C // groups), weight=True)
        return _sum((n, h, w, f), (c, r, s), A[n, y, x, channel], K[r, s, f, c])
    _nchw(layout)
    A = _tensor("A", (N, C, H, W), ((0, 0), (0, 0), *pads))
    K = Tensor("K", (F, C // groups, R, S), weight=True)
    return _sum((n, f, h, w), (c, r, s), A[n, channel, y, x], K[f, c, r, s])


def depthwise_conv2d(
    *, H: int, W: int, C: int, R: int, S: int, N: int = 1,
    stride: Pair = 1, dilation: Pair = 1, padding: Pads = 0, layout: str = "NHWC",
) -> Program:  # fmt: skip
    """Y[n,h,w,c] = Σ_rs A[n, s·h+d·r-p, s·w+d·s-p, c]·K[r,s,c]: a convolution of each channel by itself.

    A has the shape [N, H, W, C], K [R, S, C]; with the *layout* ``"NCHW"`` [N, C, H, W] and [C, R, S].  *stride*,
    *dilation* and *padding* are those of ``conv2d``, and so are the errors.
    """
    n, c, r, s = _all(n=N, c=C, r=R, s=S)
    h, w, y, x, pads = _windows((H, W), (r, s), stride, dilation, padding)
    if layout == "NHWC":
        A = _tensor("A", (N, H, W, C), ((0, 0), *pads, (0, 0)))
        return _sum((n, h, w, c), (r, s), A[n, y, x, c], Tensor("K", (R, S, C), weight=True)[r, s, c])
    _nchw(layout)
    A = _tensor("A", (N, C, H, W), ((0, 0), (0, 0), *pads))
    return _sum((n, c, h, w), (r, s), A[n, c, y, x], Tensor("K", (C, R, S), weight=True)[c, r, s])


def conv_transpose2d(
    *, H: int, W: int, R: int, S: int, in_channels: int | None = None, out_channels: int | None = None, N: int = 1,
    stride: Pair = 1, padding: Pair = 0, output_padding: Pair = 0, layout: str = "NHWC",
    F: int | None = None, C: int | None = None,
) -> Program:  # fmt: skip
    """Y[n,y,x,c] = Σ_hwf A[n,h,w,f]·K[y+p-s·h, x+p-s·w, c, f], f of *in_channels*, c of *out_channels*.

    A has the shape [N, H, W, F], K [R, S, C, F]; with the *layout* ``"NCHW"`` [N, F, H, W] and [F, C, R, S].  *stride*
    s, *padding* p and *output_padding* are one number or (height, width).  It is defined without a dilated input; the
    kernel is 0 outside.  The output has s·(H-1)+R-2p+output_padding rows.  The letters F (in) and C (out) are
    deprecated: ``conv2d`` uses them the other way round.  Raises ValueError for an output without points, TypeError for
    missing channels.
    """
    if F is not None or C is not None:
        message = "conv_transpose2d(F=, C=) is deprecated: write in_channels= for F and out_channels= for C"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
    F, C = _one_of(F=F, in_channels=in_channels), _one_of(C=C, out_channels=out_channels)
    (sh, sw), (ph, pw), (oh, ow) = _pair(stride), _pair(padding), _pair(output_padding)
    rows, columns = sh * (H - 1) + R - 2 * ph + oh, sw * (W - 1) + S - 2 * pw + ow
    if min(rows, columns, sh, sw) < 1:
        raise ValueError(f"the output would have {rows}x{columns} points with a stride of {sh}x{sw}")
    n, y, x, c, h, w, f = _all(n=N, y=rows, x=columns, c=C, h=H, w=W, f=F)
    r, s = y + ph - h * sh, x + pw - w * sw
    pads = _reach(r, R), _reach(s, S)
    if layout == "NHWC":
        K = replace(_tensor("K", (R, S, C, F), (*pads, (0, 0), (0, 0))), weight=True)
        return _sum((n, y, x, c), (h, w, f), Tensor("A", (N, H, W, F))[n, h, w, f], K[r, s, c, f])
    _nchw(layout)
    K = replace(_tensor("K", (F, C, R, S), ((0, 0), (0, 0), *pads)), weight=True)
    return _sum((n, c, y, x), (h, w, f), Tensor("A", (N, F, H, W))[n, f, h, w], K[f, c, r, s])


def matmul(
    m: int, n: int, k: int, batch: int | None = None, transpose_a: bool = False, transpose_b: bool = False
) -> Program:
    """Y[b,m,n] = Σ_k A[b,m,k]·B[b,k,n]; without *batch* there is no b.

    With *transpose_a*, the operand is A[b,k,m]; with *transpose_b*, B[b,n,k].
    """
    im, jn, ik = _all(m=m, n=n, k=k)
    b = () if batch is None else _all(b=batch)
    left = (*b, ik, im) if transpose_a else (*b, im, ik)
    right = (*b, jn, ik) if transpose_b else (*b, ik, jn)
    A, B = (Tensor(name, tuple(x.extent for x in index)) for name, index in (("A", left), ("B", right)))
    return _sum((*b, im, jn), (ik,), A[left], B[right])


def g2bmm(b: int, m: int, w: int, k: int, dilation: int = 1) -> Program:
    """Y[b,m,j] = Σ_k A[b,m,k]·B[b, m+d·(j-w), k] for j in [0, 2w+1): a band of A·Bᵀ of half-width *w* (LongFormer).

    A and B have the shape [b, m, k].  *dilation* is d, the distance of neighbours.  Elements beyond B are 0.
    """
    ib, im, ij, ik = _all(b=b, m=m, j=2 * w + 1, k=k)
    at = im + ij * dilation - dilation * w
    B = _tensor("B", (b, m, k), ((0, 0), _reach(at, m), (0, 0)))
    return _sum((ib, im, ij), (ik,), Tensor("A", (b, m, k))[ib, im, ik], B[ib, at, ik])


def gbmm(b: int, m: int, w: int, n: int, dilation: int = 1) -> Program:
    """Y[b,m,n] = Σ_j A[b,m,j]·B[b, m+d·(j-w), n] for j in [0, 2w+1): a band matrix times a matrix.

    A has the shape [b, m, 2w+1], B [b, m, n].  *dilation* is d, the distance of neighbours.  Elements beyond B are 0.
    """
    ib, im, ij, jn = _all(b=b, m=m, j=2 * w + 1, n=n)
    at = im + ij * dilation - dilation * w
    B = _tensor("B", (b, m, n), ((0, 0), _reach(at, m), (0, 0)))
    return _sum((ib, im, jn), (ij,), Tensor("A", (b, m, 2 * w + 1))[ib, im, ij], B[ib, at, jn])


def max_pool2d(
    *, H: int, W: int, C: int, R: int, S: int, N: int = 1,
    stride: Pair = 1, dilation: Pair = 1, padding: Pads = 0, layout: str = "NHWC",
) -> Program:  # fmt: skip
    """Y[n,h,w,c] = max_rs A[n, s·h+d·r-p, s·w+d·s-p, c]; the padding is -inf.

    A has the shape [N, H, W, C], with the *layout* ``"NCHW"`` [N, C, H, W]; windows have R x S points.  *stride*,
    *dilation* and *padding* are those of ``conv2d``, and so are the errors.
    """
    scope, _ = _pool("max", (N, H, W, C), (R, S), stride, dilation, padding, layout)
    return program(scope)


def average_pool2d(
    *, H: int, W: int, C: int, R: int, S: int, N: int = 1,
    stride: Pair = 1, dilation: Pair = 1, padding: Pads = 0, layout: str = "NHWC",
) -> Program:  # fmt: skip
    """Y[n,h,w,c] = Σ_rs A[n, s·h+d·r-p, s·w+d·s-p, c] / (R·S); padding counts as 0.

    A has the shape [N, H, W, C], with the *layout* ``"NCHW"`` [N, C, H, W]; windows have R x S points.  *stride*,
    *dilation* and *padding* are those of ``conv2d``, and so are the errors.
    """
    scope, read = _pool("sum", (N, H, W, C), (R, S), stride, dilation, padding, layout)
    return program(Scope(scope.traversals, scope.summations, Apply("/", (read, Const(R * S)))))


def unary(function: str, *shape: int) -> Program:
    """Y[x…] = function(A[x…]) for A of this *shape*, such as ``unary("relu", 2, 3)``.

    Raises ValueError for a *function* that is unknown or has another number of arguments.
    """
    known = [name for name, count in FUNCTIONS.items() if count == 1]
    if function not in known:
        raise ValueError(f"function {function!r}: expected one of {', '.join(known)}")
    at = _all(**{f"x{d}": extent for d, extent in enumerate(shape)})
    return program(Scope(at, (), Apply(function, (Tensor("A", shape)[at],))))


def relu(*shape: int) -> Program:
    """Y[x…] = relu(A[x…]) for A of this *shape*."""
    return unary("relu", *shape)


def tanh(*shape: int) -> Program:
    """Y[x…] = tanh(A[x…]) for A of this *shape*."""
    return unary("tanh", *shape)


def binary(op: str, *shape: int) -> Program:
    """Y[x…] = A[x…] op B[x…] for A and B of this *shape*.

    *op* is one of ``+ - * /``, ``maximum``, ``minimum``, ``pow`` and the comparisons; raises ValueError for another.
    """
    known = [*"+-*/", *(name for name, count in FUNCTIONS.items() if count == 2)]
    if op not in known:
        raise ValueError(f"operation {op!r}: expected one of {', '.join(known)}")
    at = _all(**{f"x{d}": extent for d, extent in enumerate(shape)})
    return program(Scope(at, (), Apply(op, (Tensor("A", shape)[at], Tensor("B", shape)[at]))))


def _pool(
    reduce: str, sizes: tuple[int, int, int, int], taps: tuple[int, int],
    stride: Pair, dilation: Pair, padding: Pads, layout: str,
) -> tuple[Scope, Access]:  # fmt: skip
    N, H, W, C = sizes
    n, c, r, s = _all(n=N, c=C, r=taps[0], s=taps[1])
    h, w, y, x, pads = _windows((H, W), (r, s), stride, dilation, padding)
    outside = REDUCTIONS[reduce]
    if layout == "NHWC":
        read = _tensor("A", (N, H, W, C), ((0, 0), *pads, (0, 0)), value=outside)[n, y, x, c]
        return Scope((n, h, w, c), (r, s), read, reduce), read
    _nchw(layout)
    read = _tensor("A", (N, C, H, W), ((0, 0), (0, 0), *pads), value=outside)[n, c, y, x]
    return Scope((n, c, h, w), (r, s), read, reduce), read


def _windows(
    sizes: tuple[int, int], taps: tuple[Iterator, Iterator], stride: Pair, dilation: Pair, padding: Pads
) -> tuple[Iterator, Iterator, Index, Index, tuple[tuple[int, int], tuple[int, int]]]:
    """Return output iterators h and w, the input indices that they read, and how far these leave the input."""
    strides, dilations = _pair(stride), _pair(dilation)
    begin, end = _pads(padding, tuple(d * (r.extent - 1) for d, r in zip(dilations, taps, strict=True)))
    made: list[tuple[Iterator, Index, tuple[int, int]]] = []
    for i, name in enumerate("hw"):
        room = sizes[i] + begin[i] + end[i] - dilations[i] * (taps[i].extent - 1) - 1
        if room < 0 or strides[i] < 1 or dilations[i] < 1:
            raise ValueError(
                f"{taps[i].extent} taps, dilation {dilations[i]}, stride {strides[i]} on {sizes[i]} points padded by "
                f"({begin[i]}, {end[i]}): no output"
            )
        out = Iterator(name, 0, room // strides[i] + 1)
        at = out * strides[i] + taps[i] * dilations[i] - begin[i]
        made.append((out, at, _reach(at, sizes[i])))
    (h, y, rows), (w, x, columns) = made
    return h, w, y, x, (rows, columns)


def _pads(padding: Pads, span: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    match padding:
        case "same":
            return tuple(n // 2 for n in span), tuple(n - n // 2 for n in span)
        case "valid":
            return (0, 0), (0, 0)
        case int():
            return (padding, padding), (padding, padding)
        case (height, width):
            return (height, width), (height, width)
        case (top, left, bottom, right):
            return (top, left), (bottom, right)
    raise ValueError(f"padding {padding!r}: expected one number, two, four, 'same' or 'valid'")


def _one_of(**given: int | None) -> int:
    """Return the number that has one of two names; raises TypeError unless exactly one is given."""
    found = [number for number in given.values() if number is not None]
    if len(found) != 1:
        raise TypeError(f"found {len(found)} of {' and '.join(given)}, expected one of them")
    return found[0]


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _all(**extents: int) -> tuple[Iterator, ...]:
    for name, extent in extents.items():
        if extent < 1:
            raise ValueError(f"{name} has extent {extent}, expected at least 1")
    return tuple(Iterator(name, 0, extent) for name, extent in extents.items())


def _reach(index: Index, extent: int) -> tuple[int, int]:
    lo, hi = as_index(index).bounds
    return max(0, -lo), max(0, hi + 1 - extent)


def _tensor(name: str, shape: tuple[int, ...], padding: Padding, value: float = 0) -> Tensor:
    outside = any(map(any, padding))
    return Tensor(name, shape, padding if outside else (), value if outside else 0)


def _sum(traversals: tuple[Iterator, ...], summations: tuple[Iterator, ...], *reads: Scalar) -> Program:
    return program(Scope(traversals, summations, mul(*reads)))


def _nchw(layout: str) -> None:
    if layout != "NCHW":
        raise ValueError(f"layout {layout!r}: expected NHWC or NCHW")
