"""How ONNX calls the library's operators.  Nothing of ONNX is imported here: backends and exporters read ``OnnxNode``.

Operands come in their canonical shapes, packed; ``shapes`` are what ONNX wants, the same elements in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from einnet_explore.operators.operator import Attributes, OnnxNode

Window: TypeAlias = tuple[str, str, str]


def elementwise(op_type: str) -> Callable[[Attributes], OnnxNode]:
    """``Add``, ``Sub``, … of two tensors of one shape."""

    def call(a: Attributes) -> OnnxNode:
        (i,) = _ints(a, "i")
        return OnnxNode(op_type, (), ((i,), (i,)), (None, None), (i,))

    return call


def matmul(a: Attributes) -> OnnxNode:
    """``MatMul``; operands that lie transposed are permuted first."""
    b, m, n, k = _ints(a, "b", "m", "n", "k")
    batch = (b,) if b != 1 else ()
    swap = (*range(len(batch)), len(batch) + 1, len(batch))
    left = (*batch, k, m) if a.get("ta") else (*batch, m, k)
    right = (*batch, n, k) if a.get("tb") else (*batch, k, n)
    turned = (swap if a.get("ta") else None, swap if a.get("tb") else None)
    return OnnxNode("MatMul", (), (left, right), turned, (*batch, m, n))


def conv(*windows: Window) -> Callable[[Attributes], OnnxNode | None]:
    """``Conv``; a window is (output iterator ``h``, tap, input extent); its attributes are ``sh``, ``dh``, ``ph``."""

    def call(a: Attributes) -> OnnxNode | None:
        n, g, f, c = _ints(a, "n", "g", "f", "c")
        found = _windows(a, windows)
        x = (n, g * c, *_ints(a, *(w[2] for w in windows)))
        taps = _ints(a, *(w[1] for w in windows))
        return OnnxNode(
            "Conv",
            (("group", g), ("kernel_shape", taps), *found),
            (x, (g * f, c, *taps)),
            (None, None),
            (n, g * f, *_ints(a, *(w[0] for w in windows))),
        )

    return call


def conv_transpose(*windows: Window) -> Callable[[Attributes], OnnxNode | None]:
    """``ConvTranspose``; a window ``("y", "h", "R")`` names output iterator, input iterator and kernel extent.

    None where the output is so long that ONNX's output padding (below the stride) does not reach.
    """

    def call(a: Attributes) -> OnnxNode | None:
        n, g, f, c = _ints(a, "n", "g", "f", "c")
        begin, end, extra, strides = list[int](), list[int](), list[int](), list[int]()
        for out, inner, taps in windows:
            y, h, r, stride, pad = _ints(a, out, inner, taps, f"s{inner}", f"p{inner}")
            rest = stride * (h - 1) + r - pad - y
            begin.append(pad)
            end.append(max(0, rest))
            extra.append(max(0, -rest))
            strides.append(stride)
        if any(e >= s for e, s in zip(extra, strides, strict=True)):
            return None
        kernel = _ints(a, *(w[2] for w in windows))
        return OnnxNode(
            "ConvTranspose",
            (
                ("group", g),
                ("kernel_shape", kernel),
                ("output_padding", tuple(extra)),
                ("pads", (*begin, *end)),
                ("strides", tuple(strides)),
            ),
            ((n, g * c, *_ints(a, *(w[1] for w in windows))), (g * c, f, *kernel)),
            (None, None),
            (n, g * f, *_ints(a, *(w[0] for w in windows))),
        )

    return call


def pool(op_type: str, *windows: Window) -> Callable[[Attributes], OnnxNode | None]:
    """``MaxPool`` or ``AveragePool`` (padding counts).

    None where a padding is as wide as the window: ONNX refuses it.
    """

    def call(a: Attributes) -> OnnxNode | None:
        n, c = _ints(a, "n", "c")
        found = _windows(a, windows)
        taps = _ints(a, *(w[1] for w in windows))
        pads = dict(found)["pads"]
        if any(pad >= tap for pad, tap in zip(pads, (*taps, *taps), strict=True)):
            return None
        counted = (("count_include_pad", 1),) if op_type == "AveragePool" else ()
        return OnnxNode(
            op_type,
            (*counted, ("kernel_shape", taps), *found),
            ((n, c, *_ints(a, *(w[2] for w in windows))),),
            (None,),
            (n, c, *_ints(a, *(w[0] for w in windows))),
        )

    return call


def _windows(a: Attributes, windows: tuple[Window, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    begin, end, strides, dilations = list[int](), list[int](), list[int](), list[int]()
    for out, tap, extent in windows:
        h, r, rows, stride, dilation, pad = _ints(a, out, tap, extent, f"s{out}", f"d{out}", f"p{out}")
        begin.append(pad)
        end.append(max(0, stride * (h - 1) + dilation * (r - 1) + 1 - pad - rows))
        strides.append(stride)
        dilations.append(dilation)
    return (("dilations", tuple(dilations)), ("pads", (*begin, *end)), ("strides", tuple(strides)))


def _ints(a: Attributes, *names: str) -> tuple[int, ...]:
    return tuple(int(a[name]) for name in names)  # type: ignore[arg-type]
