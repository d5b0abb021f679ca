"""The library's operators, each one value.  Users pass a longer tuple: nothing is registered."""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.operators import calls
from einnet_explore.operators.operator import Operator

MATMUL = Operator(
    "Matmul",
    "C[b?, m, n] = sum[k] A[b?, m, k] or ta[b?, k, m] * B[b?, k, n] or tb[b?, n, k]",
    batched="BatchMatmul",
    strided=True,
    onnx=calls.matmul,
)
CONV1D = Operator(
    "Conv1d",
    "Y[n, g?, f, h] = sum[c, r] X[n, g?, c, sh*h + dh*r - ph : H] * K[g?, f, c, r]",
    onnx=calls.conv(("h", "r", "H")),
)
CONV2D = Operator(
    "Conv2d",
    "Y[n, g?, f, h, w] = sum[c, r, s] X[n, g?, c, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W] * K[g?, f, c, r, s]",
    onnx=calls.conv(("h", "r", "H"), ("w", "s", "W")),
)
CONV3D = Operator(
    "Conv3d",
    "Y[n, g?, f, d, h, w] = sum[c, q, r, s] "
    "X[n, g?, c, sd*d + dd*q - pd : D, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W] * K[g?, f, c, q, r, s]",
    onnx=calls.conv(("d", "q", "D"), ("h", "r", "H"), ("w", "s", "W")),
)
CONV_TRANSPOSE1D = Operator(
    "ConvTranspose1d",
    "Y[n, g?, f, y] = sum[c, h] X[n, g?, c, h] * K[g?, c, f, y - sh*h + ph : R]",
    onnx=calls.conv_transpose(("y", "h", "R")),
)
CONV_TRANSPOSE2D = Operator(
    "ConvTranspose2d",
    "Y[n, g?, f, y, x] = sum[c, h, w] X[n, g?, c, h, w] * K[g?, c, f, y - sh*h + ph : R, x - sw*w + pw : S]",
    onnx=calls.conv_transpose(("y", "h", "R"), ("x", "w", "S")),
)
MAX_POOL2D = Operator(
    "MaxPool2d",
    "Y[n, c, h, w] = max[r, s] X[n, c, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W]",
    onnx=calls.pool("MaxPool", ("h", "r", "H"), ("w", "s", "W")),
)
AVERAGE_POOL2D = Operator(
    "AveragePool2d",
    "Y[n, c, h, w] = sum[r, s] X[n, c, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W] / (|r|*|s|)",
    onnx=calls.pool("AveragePool", ("h", "r", "H"), ("w", "s", "W")),
)
G2BMM = Operator("G2BMM", "C[b?, m, w] = sum[k] A[b?, m, k] * B[b?, m + d*w - d*W : |m|, k] where |w| == 2*W + 1")
GBMM = Operator("GBMM", "C[b?, m, n] = sum[w] A[b?, m, w] * B[b?, m + d*w - d*W : |m|, n] where |w| == 2*W + 1")
ADD = Operator("Add", "Y[i] = A[i] + B[i]", onnx=calls.elementwise("Add"))
SUB = Operator("Sub", "Y[i] = A[i] - B[i]", onnx=calls.elementwise("Sub"))
MUL = Operator("Mul", "Y[i] = A[i] * B[i]", onnx=calls.elementwise("Mul"))
DIV = Operator("Div", "Y[i] = A[i] / B[i]", onnx=calls.elementwise("Div"))

OPERATORS: tuple[Operator, ...] = (
    MATMUL, CONV1D, CONV2D, CONV3D, CONV_TRANSPOSE1D, CONV_TRANSPOSE2D, MAX_POOL2D, AVERAGE_POOL2D, G2BMM, GBMM,
    ADD, SUB, MUL, DIV,
)  # fmt: skip


def find_operators(names: Iterable[str], operators: tuple[Operator, ...] = OPERATORS) -> tuple[Operator, ...]:
    """The operators with these names (case does not matter); raises ValueError that lists the known ones."""
    known = {o.name.lower(): o for o in operators}
    wanted = list(names)
    for name in wanted:
        if name.lower() not in known:
            raise ValueError(f"unknown target {name!r}, expected one of {', '.join(o.name for o in operators)}")
    return tuple(dict.fromkeys(known[name.lower()] for name in wanted)) or operators
