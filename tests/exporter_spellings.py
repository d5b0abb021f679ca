"""Pairs of small models as exporters write them, and near misses."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper


class Pair(NamedTuple):
    """Two models, and the kind of the verdict."""

    first: onnx.ModelProto
    second: onnx.ModelProto
    kind: str


def model(signature: str, nodes: str, opset: int = 21, **weights: object) -> onnx.ModelProto:
    """Return the model of *nodes* in ONNX's text form, separated by semicolons; numbers become float32 or int64."""
    inputs, outputs = signature.split("->")
    head = f'<ir_version: 9, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs})'
    made = onnx.parser.parse_model(f"{head} {{ {nodes.replace(';', ' ')} }}")
    for name, value in weights.items():
        array = np.asarray(value)
        made.graph.initializer.append(
            numpy_helper.from_array(array.astype(np.float32) if array.dtype.kind == "f" else array, name)
        )
    return made


def exporter_spellings() -> Iterable[tuple[str, Pair]]:
    """Yield the pairs by name."""
    rng = np.random.default_rng(7)
    heads = "float[1,2,6,8] q, float[1,2,6,8] k, float[1,2,6,8] v -> float[1,2,6,8] y"
    four = model(
        heads,
        "t = Transpose<perm=[0,1,3,2]>(k); s = MatMul(q, t); z = Div(s, d); p = Softmax(z); y = MatMul(p, v)",
        d=8**0.5,
    )
    three = model(
        heads,
        "a = Reshape(q, s3); b = Reshape(k, s3); c = Reshape(v, s3); t = Transpose<perm=[0,2,1]>(b); e = Mul(a, d); "
        "s = MatMul(e, t); p = Softmax<axis=2>(s); o = MatMul(p, c); y = Reshape(o, s4)",
        d=8**-0.5, s3=[2, 6, 8], s4=[1, 2, 6, 8],
    )  # fmt: skip
    yield "attention with heads in the batch", Pair(four, three, "rounded")

    groups = "float[1,4,6,8] q, float[1,2,6,8] k, float[1,2,6,8] v -> float[1,4,6,8] y"
    expanded = model(
        groups,
        "a = Unsqueeze(k, x); b = Expand(a, se); kk = Reshape(b, sr); c = Unsqueeze(v, x); e = Expand(c, se); "
        "vv = Reshape(e, sr); t = Transpose<perm=[0,1,3,2]>(kk); s = MatMul(q, t); p = Softmax(s); y = MatMul(p, vv)",
        x=[2], se=[1, 2, 2, 6, 8], sr=[1, 4, 6, 8],
    )  # fmt: skip
    grouped = model(
        groups,
        "g = Reshape(q, s5); a = Unsqueeze(k, x); t = Transpose<perm=[0,1,2,4,3]>(a); s = MatMul(g, t); "
        "p = Softmax(s); c = Unsqueeze(v, x); o = MatMul(p, c); y = Reshape(o, sr)",
        x=[2], s5=[1, 2, 2, 6, 8], sr=[1, 4, 6, 8],
    )  # fmt: skip
    tiled = model(
        groups,
        "kk = Tile(k, r); vv = Tile(v, r); t = Transpose<perm=[0,1,3,2]>(kk); s = MatMul(q, t); p = Softmax(s); "
        "y = MatMul(p, vv)",
        r=[1, 2, 1, 1],
    )
    yield "grouped queries", Pair(expanded, grouped, "proved")
    yield "grouped queries in another order", Pair(expanded, tiled, "different")

    image, scale, shift = "float[2,4,5,5] x -> float[2,4,5,5] y", rng.standard_normal(4), rng.standard_normal(4)
    norm = model(image, "y = GroupNormalization<num_groups=2>(x, s, b)", s=scale, b=shift)
    exported = model(
        image,
        "r = Reshape(x, s1); n = InstanceNormalization(r, o, z); u = Reshape(n, s2); t = Mul(u, s); y = Add(t, b)",
        s1=[0, 2, -1], s2=[2, 4, 5, 5], o=[1.0, 1.0], z=[0.0, 0.0], s=scale.reshape(4, 1, 1), b=shift.reshape(4, 1, 1),
    )  # fmt: skip
    yield "group normalisation by instance normalisation", Pair(norm, exported, "proved")

    angles = np.arange(24.0).reshape(6, 4)
    turned, sin, cos = "float[1,2,6,8] x -> float[1,2,6,8] y", np.sin(angles), np.cos(angles)
    whole = model(
        turned,
        "a, b = Split<axis=-1, num_outputs=2>(x); n = Neg(b); r = Concat<axis=-1>(n, a); p = Mul(x, c); q = Mul(r, s); "
        "y = Add(p, q)",
        c=np.concatenate([cos, cos], 1), s=np.concatenate([sin, sin], 1),
    )  # fmt: skip
    halves = model(
        turned,
        "a, b = Split<axis=-1, num_outputs=2>(x); ac = Mul(a, c); bs = Mul(b, s); u = Sub(ac, bs); t = Mul(a, s); "
        "bc = Mul(b, c); v = Add(bc, t); y = Concat<axis=-1>(u, v)",
        c=cos, s=sin,
    )  # fmt: skip
    yield "rotary embedding by halves", Pair(whole, halves, "proved")

    pooled = model("float[1,3,6,6] x -> float[1,3,1,1] y", "y = GlobalAveragePool(x)")
    mean = model("float[1,3,6,6] x -> float[1,3,1,1] y", "y = Conv<group=3>(x, w)", w=np.full((3, 1, 6, 6), 1 / 36))
    yield "mean as a convolution", Pair(pooled, mean, "rounded")

    rows, ten = "float[3,10] x -> float[3,10] y", rng.standard_normal(10)
    tanh = model(
        rows,
        "c = Mul(x, x); d = Mul(c, x); e = Mul(d, k); g = Add(x, e); t = Tanh(g); p = Add(t, o); q = Mul(x, p); "
        "y = Mul(q, h)",
        k=0.044715, o=1.0, h=0.5,
    )  # fmt: skip
    sigmoid = model(
        rows, "c = Pow(x, n); e = Mul(k, c); g = Add(e, x); d = Add(g, g); t = Sigmoid(d); y = Mul(x, t)",
        k=0.044715, n=3.0,
    )  # fmt: skip
    yield "GELU by tanh and by sigmoid", Pair(tanh, sigmoid, "proved")
    root = model(
        rows,
        "q = Mul(x, x); v = ReduceMean(q, a); e = Add(v, i); r = Sqrt(e); n = Div(x, r); y = Mul(n, s)",
        a=[-1], i=1e-6, s=ten,
    )  # fmt: skip
    power = model(
        rows,
        "q = ReduceSumSquare(x, a); v = Div(q, m); e = Add(i, v); r = Pow(e, h); n = Mul(r, s); y = Mul(n, x)",
        a=[-1], i=1e-6, m=10.0, h=-0.5, s=ten,
    )  # fmt: skip
    outside = model(
        rows,
        "q = Mul(x, x); v = ReduceMean(q, a); e = Sqrt(v); r = Add(e, i); n = Div(x, r); y = Mul(n, s)",
        a=[-1], i=1e-6, s=ten,
    )  # fmt: skip
    yield "root mean square by a power", Pair(root, power, "proved")
    yield "epsilon outside the root", Pair(root, outside, "different")
    safe = model(rows, "y = Softmax(x)")
    yield (
        "softmax without the maximum",
        Pair(safe, model(rows, "e = Exp(x); s = ReduceSum(e, a); y = Div(e, s)", a=[-1]), "different"),
    )
