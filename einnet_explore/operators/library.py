"""The library's operators, each one value, their ONNX nodes, and the check of calls against them.

Users pass a longer tuple: nothing is registered.  Nothing of ONNX is imported: backends and exporters read
``OnnxNode``.  Operands have their canonical shapes, packed; ``shapes`` are those of ONNX, with the same elements in the
same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from einnet_explore.analysis.indices import with_iterators
from einnet_explore.ir import VIEW, Equation, Instance, Iterator, Scope, accesses
from einnet_explore.operators.layout import strides_of
from einnet_explore.operators.operator import Attributes, OnnxNode, Operator
from einnet_explore.support.errors import Refused

NodeWindow: TypeAlias = tuple[str, str, str]


def elementwise_node(op_type: str) -> Callable[[Attributes], OnnxNode]:
    """Return ``Add``, ``Sub``, … of two tensors of one shape."""

    def call(a: Attributes) -> OnnxNode:
        (i,) = _ints(a, "i")
        return OnnxNode(op_type, (), ((i,), (i,)), (None, None), (i,))

    return call


def matmul_node(a: Attributes) -> OnnxNode:
    """Return ``MatMul``; transposed operands are permuted first."""
    b, m, n, k = _ints(a, "b", "m", "n", "k")
    batch = (b,) if b != 1 else ()
    swap = (*range(len(batch)), len(batch) + 1, len(batch))
    left = (*batch, k, m) if a.get("ta") else (*batch, m, k)
    right = (*batch, n, k) if a.get("tb") else (*batch, k, n)
    turned = (swap if a.get("ta") else None, swap if a.get("tb") else None)
    return OnnxNode("MatMul", (), (left, right), turned, (*batch, m, n))


def conv_node(*windows: NodeWindow) -> Callable[[Attributes], OnnxNode | None]:
    """Return ``Conv``; a window is (output iterator h, tap, input extent) with attributes ``sh``, ``dh``, ``ph``."""

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


def conv_transpose_node(*windows: NodeWindow) -> Callable[[Attributes], OnnxNode | None]:
    """Return ``ConvTranspose``; a window ``("y", "h", "R")`` names output, input and kernel extent.

    The call is None if the output is longer than ONNX's output padding (below the stride) allows.
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


def pool_node(op_type: str, *windows: NodeWindow) -> Callable[[Attributes], OnnxNode | None]:
    """Return ``MaxPool`` or ``AveragePool`` (padding counts).

    The call is None if a padding is as wide as the window: ONNX refuses it.
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


def _windows(a: Attributes, windows: tuple[NodeWindow, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
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


MATMUL = Operator(
    "Matmul",
    "C[b?, m, n] = sum[k] A[b?, m, k] or ta[b?, k, m] * B[b?, k, n] or tb[b?, n, k]",
    batched="BatchMatmul",
    strided=True,
    onnx=matmul_node,
)
CONV1D = Operator(
    "Conv1d",
    "Y[n, g?, f, h] = sum[c, r] X[n, g?, c, sh*h + dh*r - ph : H] * K[g?, f, c, r]",
    onnx=conv_node(("h", "r", "H")),
)
CONV2D = Operator(
    "Conv2d",
    "Y[n, g?, f, h, w] = sum[c, r, s] X[n, g?, c, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W] * K[g?, f, c, r, s]",
    onnx=conv_node(("h", "r", "H"), ("w", "s", "W")),
)
CONV3D = Operator(
    "Conv3d",
    "Y[n, g?, f, d, h, w] = sum[c, q, r, s] "
    "X[n, g?, c, sd*d + dd*q - pd : D, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W] * K[g?, f, c, q, r, s]",
    onnx=conv_node(("d", "q", "D"), ("h", "r", "H"), ("w", "s", "W")),
)
CONV_TRANSPOSE1D = Operator(
    "ConvTranspose1d",
    "Y[n, g?, f, y] = sum[c, h] X[n, g?, c, h] * K[g?, c, f, y - sh*h + ph : R]",
    onnx=conv_transpose_node(("y", "h", "R")),
)
CONV_TRANSPOSE2D = Operator(
    "ConvTranspose2d",
    "Y[n, g?, f, y, x] = sum[c, h, w] X[n, g?, c, h, w] * K[g?, c, f, y - sh*h + ph : R, x - sw*w + pw : S]",
    onnx=conv_transpose_node(("y", "h", "R"), ("x", "w", "S")),
)
MAX_POOL2D = Operator(
    "MaxPool2d",
    "Y[n, c, h, w] = max[r, s] X[n, c, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W]",
    onnx=pool_node("MaxPool", ("h", "r", "H"), ("w", "s", "W")),
)
AVERAGE_POOL2D = Operator(
    "AveragePool2d",
    "Y[n, c, h, w] = sum[r, s] X[n, c, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W] / (|r|*|s|)",
    onnx=pool_node("AveragePool", ("h", "r", "H"), ("w", "s", "W")),
)
G2BMM = Operator("G2BMM", "C[b?, m, w] = sum[k] A[b?, m, k] * B[b?, m + d*w - d*W : |m|, k] where |w| == 2*W + 1")
GBMM = Operator("GBMM", "C[b?, m, n] = sum[w] A[b?, m, w] * B[b?, m + d*w - d*W : |m|, n] where |w| == 2*W + 1")
ADD = Operator("Add", "Y[i] = A[i] + B[i]", onnx=elementwise_node("Add"))
SUB = Operator("Sub", "Y[i] = A[i] - B[i]", onnx=elementwise_node("Sub"))
MUL = Operator("Mul", "Y[i] = A[i] * B[i]", onnx=elementwise_node("Mul"))
DIV = Operator("Div", "Y[i] = A[i] / B[i]", onnx=elementwise_node("Div"))

OPERATORS: tuple[Operator, ...] = (
    MATMUL, CONV1D, CONV2D, CONV3D, CONV_TRANSPOSE1D, CONV_TRANSPOSE2D, MAX_POOL2D, AVERAGE_POOL2D, G2BMM, GBMM,
    ADD, SUB, MUL, DIV,
)  # fmt: skip


def find_operators(
    given: Iterable[Operator | str], operators: tuple[Operator, ...] = OPERATORS
) -> tuple[Operator, ...]:
    """Return operators that are *given* as values or by name, in any case; without any, *operators*.

    Raises ValueError with the known names.
    """
    known = {o.name.lower(): o for o in operators}

    def find(each: Operator | str) -> Operator:
        if isinstance(each, Operator):
            return each
        if each.lower() not in known:
            raise ValueError(f"unknown target {each!r}, expected one of {', '.join(o.name for o in operators)}")
        return known[each.lower()]

    return tuple(dict.fromkeys(map(find, given))) or operators


def check_canonical(equation: Equation, operators: Sequence[Operator] = OPERATORS) -> None:
    """Raise Refused unless *equation* is exactly what its ``via`` runs.

    A library call computes its operator's canonical expression at the attributes; a view reads one tensor at an affine
    address inside its elements; an eOperator, and an equation not instantiated, may compute anything.  Names of
    iterators and padding of the result do not matter.
    """
    via = equation.via
    if via is None or via.is_eoperator:
        return
    try:
        if via.operator == VIEW:
            strides_of(equation.scope)
        else:
            _check_call(equation.scope, via, operators)
    except ValueError as reason:
        raise Refused(f"{equation.name}: {reason}") from None


def _check_call(scope: Scope, via: Instance, operators: Sequence[Operator]) -> None:
    operator = next((o for o in operators if via.operator in o.names), None)
    if operator is None:
        raise Refused(f"unknown operator {via.operator}, known are {', '.join(o.name for o in operators)}")
    if (call := operator.instance(dict(via.attributes))).operator != via.operator:
        raise Refused(f"{call!r} is called {via.operator}")
    sources = [access.source for access in accesses(scope.body)]
    wanted = len(operator.pattern.operands)
    if len(sources) != wanted:
        raise Refused(f"{via.operator} has {wanted} operands, the body reads {len(sources)}")
    expected, found = _plain(operator.instantiate(dict(via.attributes), sources)), _plain(scope)
    if found != expected:
        raise Refused(f"{via!r} means {expected!r}, found {found!r}")


def _plain(scope: Scope) -> Scope:
    """Return *scope* with iterators named by position, and without padding."""
    own = (*scope.traversals, *scope.summations)
    named = with_iterators(scope, {x: Iterator(f"x{n}", x.lo, x.hi) for n, x in enumerate(own)})
    return Scope(named.traversals, named.summations, named.body, named.reduce, named.domain)
