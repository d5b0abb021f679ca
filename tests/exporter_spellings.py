"""Pairs of small models as exporters write them, and near misses."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from einnet_explore.analysis.bilinear import correlation


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


ROWS = "float[3,10] x -> float[3,10] y"
COLUMN = "float[3,10] x -> float[3,1] y"
ONE_PASS = "u = ReduceMean(x, a); q = Mul(x, x); s = ReduceMean(q, a); p = Mul(u, u); "
"""The mean and its square, and the mean of the squares."""


def function_spellings() -> Iterable[tuple[str, Pair]]:
    """Yield spellings of single functions and of parallel convolutions, and near misses, by name."""
    yield from _variances()
    yield from _piecewise_linear()
    yield from _selections()
    yield from _masked_softmaxes()
    yield from _logarithms()
    yield from _parallel_convolutions()
    yield from _fast_convolutions()
    yield from _nested_filtering()


def _variances() -> Iterable[tuple[str, Pair]]:
    centred = "u = ReduceMean(x, a); d = Sub(x, u); q = Mul(d, d); y = ReduceMean(q, a)"
    two = model(COLUMN, centred, a=[-1])
    yield "variance in one pass", Pair(two, model(COLUMN, f"{ONE_PASS}y = Sub(s, p)", a=[-1]), "rounded")
    yield "second moment", Pair(two, model(COLUMN, f"{ONE_PASS}y = Sub(s, u)", a=[-1]), "different")
    norm = model(ROWS, "y = LayerNormalization<axis=-1>(x, g)", g=np.arange(10.0))
    tail = "e = Add(v, i); r = Sqrt(e); d = Sub(x, u); z = Div(d, r); y = Mul(z, g)"
    weights = {"a": [-1], "i": 1e-5, "g": np.arange(10.0)}
    yield "normalisation in one pass", Pair(norm, model(ROWS, f"{ONE_PASS}v = Sub(s, p); {tail}", **weights), "rounded")
    yield "sum of moments", Pair(norm, model(ROWS, f"{ONE_PASS}v = Add(s, p); {tail}", **weights), "different")


def _piecewise_linear() -> Iterable[tuple[str, Pair]]:
    def pair(first: str, second: str, kind: str = "proved", **numbers: float) -> Pair:
        return Pair(*(model(ROWS, f"{nodes}", **_read(numbers, nodes)) for nodes in (first, second)), kind)

    clip, relu, greater = "y = Clip(x, l, h)", "y = Relu(x)", "b = Greater(x, l); "
    low, high = "a = Max(x, l); y = Min(a, h)", "a = Min(x, h); y = Max(a, l)"
    yield "clip, minimum first", pair(clip, high, l=-1.5, h=2.0)
    yield "clip, maximum first", pair(clip, low, l=-1.5, h=2.0)
    yield "clip of a rectifier", pair(clip, "a = Relu(x); y = Min(a, h)", l=0.0, h=6.0)
    yield "clip, ends exchanged", pair(high, low, "different", l=3.0, h=1.0)
    steps = "a = Mul(x, k); c = Add(a, t); d = Min(c, h); y = Max(d, l)"
    yield "hard sigmoid", pair("y = HardSigmoid<alpha=0.2,beta=0.5>(x)", steps, k=0.2, t=0.5, h=1.0, l=0.0)
    yield "rectifier by where", pair(relu, f"{greater}y = Where(b, x, l)", l=0.0)
    yield "rectifier by the negation", pair(relu, f"{greater}n = Not(b); y = Where(n, l, x)", l=0.0)
    yield "rectifier with a threshold", pair(relu, f"{greater}y = Where(b, x, z)", "different", l=0.5, z=0.0)
    leaky = "y = LeakyRelu<alpha=0.1>(x)"
    yield "leaky rectifier by where", pair(leaky, f"{greater}a = Mul(x, k); y = Where(b, x, a)", l=0.0, k=0.1)
    yield (
        "leaky branches exchanged",
        pair(leaky, f"{greater}a = Mul(x, k); y = Where(b, a, x)", "different", l=0.0, k=0.1),
    )
    yield "absolute value by where", pair("y = Abs(x)", "b = Less(x, l); n = Neg(x); y = Where(b, n, x)", l=0.0)
    nested = f"{greater}a = Where(b, x, l); c = Less(a, h); y = Where(c, a, h)"
    yield "clip by where", pair(clip, nested, l=0.0, h=6.0)
    both = "float[3,10] x, float[3,10] w -> float[3,10] y"
    larger = [model(both, nodes) for nodes in ("y = Max(x, w)", "b = GreaterOrEqual(x, w); y = Where(b, x, w)")]
    yield "maximum by where", Pair(*larger, "proved")
    slopes = np.arange(10.0) / 7
    by_slope = model(ROWS, "b = GreaterOrEqual(x, z); a = Mul(x, s); y = Where(b, x, a)", z=0.0, s=slopes)
    yield "slopes by where", Pair(model(ROWS, "y = PRelu(x, s)", s=slopes), by_slope, "proved")


def _selections() -> Iterable[tuple[str, Pair]]:
    def pair(first: str, second: str, kind: str = "proved", **numbers: float) -> Pair:
        return Pair(*(model(ROWS, f"{nodes}", **_read(numbers, nodes)) for nodes in (first, second)), kind)

    relu, positive = "y = Relu(x)", "b = Greater(x, l); c = Cast<to=1>(b); "
    yield "rectifier by a product", pair(relu, f"{positive}y = Mul(x, c)", l=0.0)
    yield "rectifier by a product, 0 included", pair(relu, f"{positive}y = Mul(c, x)".replace("er", "erOrEqual"), l=0.0)
    yield (
        "rectifier by a product with the negation",
        pair(relu, "b = Less(x, l); n = Not(b); c = Cast<to=1>(n); y = Mul(x, c)", l=0.0),
    )
    yield "rectifier by a product with a threshold", pair(relu, f"{positive}y = Mul(x, c)", "different", l=0.5)
    yield (
        "soft threshold",
        pair(
            "d = Sub(x, l); e = Relu(d); y = Add(e, e)",
            "d = Sub(x, l); f = Add(d, d); b = Greater(x, l); c = Cast<to=1>(b); y = Mul(f, c)",
            l=0.5,
        ),
    )
    yield "squared rectifier", pair("a = Relu(x); y = Mul(a, x)", f"{positive}a = Mul(x, c); y = Mul(a, x)", l=0.0)
    both = "float[3,10] x, float[3,10] w -> float[3,10] y"
    greater = "b = Greater(x, w); c = Cast<to=1>(b); d = Sub(x, w); "
    gap = [model(both, nodes) for nodes in ("d = Sub(x, w); y = Relu(d)", f"{greater}y = Mul(d, c)")]
    yield "positive difference by a product", Pair(*gap, "proved")
    terms = model(both, f"{greater}a = Mul(x, c); f = Mul(w, c); y = Sub(a, f)")
    yield "positive difference by two products", Pair(gap[0], terms, "proved")
    yield (
        "negative difference by two products",
        Pair(gap[0], model(both, f"{greater}a = Mul(x, c); f = Mul(w, c); y = Sub(f, a)"), "different"),
    )
    blended = model(both, f"{greater}a = Mul(x, c); o = Sub(i, c); f = Mul(w, o); y = Add(a, f)", i=1.0)
    yield "maximum by a blend", Pair(model(both, "y = Max(x, w)"), blended, "proved")
    elu = "y = Elu<alpha=0.7>(x)"
    chosen = "b = Greater(x, l); e = Exp(x); d = Sub(e, o); a = Mul(d, k); "
    clamped = "b = Greater(x, l); m = Min(x, l); e = Exp(m); d = Sub(e, o); a = Mul(d, k); "
    numbers = {"l": 0.0, "o": 1.0, "k": 0.7}
    yield "exponential unit by where", pair(elu, f"{chosen}y = Where(b, x, a)", **numbers)
    yield "exponential unit by where of a minimum", pair(elu, f"{clamped}y = Where(b, x, a)", **numbers)
    yield (
        "exponential unit by a product",
        pair(elu, f"{clamped}c = Cast<to=1>(b); p = Mul(x, c); n = Sub(o, c); q = Mul(a, n); y = Add(p, q)", **numbers),
    )
    yield "exponential unit, branches exchanged", pair(elu, f"{chosen}y = Where(b, a, x)", "different", **numbers)
    yield (
        "exponential unit without the 1",
        pair(elu, "b = Greater(x, l); e = Exp(x); a = Mul(e, k); y = Where(b, x, a)", "different", **numbers),
    )
    yield (
        "exponential unit with a threshold",
        pair(elu, f"{chosen}y = Where(b, x, a)", "different", **numbers | {"l": 0.25}),
    )
    celu = "a = Div(x, k); b = Greater(x, l); e = Exp(a); d = Sub(e, o); f = Mul(d, k); y = Where(b, x, f)"
    yield "continuous exponential unit by where", pair("y = Celu<alpha=0.5>(x)", celu, l=0.0, o=1.0, k=0.5)


def _masked_softmaxes() -> Iterable[tuple[str, Pair]]:
    scores = "float[2,5,6] s, bool[5,6] m -> float[2,5,6] y"
    added = "a = Where(m, z, i); t = Add(s, a); y = Softmax(t)"
    chosen = "t = Where(m, s, i); y = Softmax(t)"
    numbers = {"z": 0.0, "i": -np.inf}
    first, second = model(scores, added, **numbers), model(scores, chosen, **numbers | {"z": 0.0})
    del second.graph.initializer[0]
    yield "added mask of scores", Pair(first, second, "proved")
    negated = model(scores, "n = Not(m); t = Where(n, i, s); y = Softmax(t)", i=-np.inf)
    yield "negated mask of scores", Pair(first, negated, "proved")
    other = model(scores, "n = Not(m); t = Where(n, s, i); y = Softmax(t)", i=-np.inf)
    yield "exchanged mask of scores", Pair(first, other, "different")
    doubled = model(
        scores, f"{added.replace('Softmax(t)', 'Softmax(u)').replace('y =', 'u = Add(t, s); y =')}", **numbers
    )
    yield "masked scores twice", Pair(first, doubled, "different")


def _logarithms() -> Iterable[tuple[str, Pair]]:
    shifted = "u = ReduceMax(x, a); d = Sub(x, u); e = Exp(d); t = ReduceSum(e, a); g = Log(t); "
    logarithm = model(ROWS, "y = LogSoftmax(x)")
    yield (
        "logarithm of a softmax",
        Pair(logarithm, model(ROWS, "g = ReduceLogSumExp(x, a); y = Sub(x, g)", a=[-1]), "proved"),
    )
    yield "logarithm of a softmax by parts", Pair(logarithm, model(ROWS, f"{shifted}y = Sub(d, g)", a=[-1]), "proved")
    yield "logarithm without the shift", Pair(logarithm, model(ROWS, f"{shifted}y = Sub(x, g)", a=[-1]), "different")
    total = model(COLUMN, "y = ReduceLogSumExp(x, a)", a=[-1])
    yield "logarithm of a sum", Pair(total, model(COLUMN, f"{shifted}y = Add(g, u)", a=[-1]), "proved")
    yield "logarithm less the shift", Pair(total, model(COLUMN, f"{shifted}y = Sub(g, u)", a=[-1]), "different")
    mish = model(ROWS, "y = Mish(x)")
    yield "mish by parts", Pair(mish, model(ROWS, "s = Softplus(x); t = Tanh(s); y = Mul(x, t)"), "proved")
    by_logarithm = "e = Exp(x); p = Add(e, o); g = Log(p); t = Tanh(g); y = Mul(x, t)"
    yield "mish by a logarithm", Pair(mish, model(ROWS, by_logarithm, o=1.0), "proved")
    yield "mish with another base", Pair(mish, model(ROWS, by_logarithm, o=1.5), "different")
    soft, reflected = model(ROWS, "y = Softplus(x)"), "n = Neg(x); s = Softplus(n); y = Add(x, s)"
    yield "softplus of the opposite", Pair(soft, model(ROWS, reflected), "proved")
    yield "softplus less the opposite", Pair(soft, model(ROWS, reflected.replace("Add", "Sub")), "different")
    yield "mish by a sigmoid", Pair(mish, model(ROWS, "s = Softplus(x); t = Sigmoid(s); y = Mul(x, t)"), "different")


def _parallel_convolutions() -> Iterable[tuple[str, Pair]]:
    rng = np.random.default_rng(8)
    image, rest = "float[1,4,6,6] x -> float[1,4,6,6] y", "c = Add(a, b); y = Add(c, x)"
    large, small = rng.standard_normal((4, 4, 3, 3)), rng.standard_normal((4, 4, 1, 1))
    inside = ((0, 0), (0, 0), (1, 1), (1, 1))
    identity = np.eye(4).reshape(4, 4, 1, 1)
    parallel = model(image, f"a = Conv<pads=[1,1,1,1]>(x, w); b = Conv(x, v); {rest}", w=large, v=small)
    for name, one, kind in (
        ("parallel convolutions", identity, "rounded"),
        ("a skip too many", 2 * identity, "different"),
    ):
        joined = large + np.pad(small + one, inside)
        yield name, Pair(parallel, model(image, "y = Conv<pads=[1,1,1,1]>(x, w)", w=joined), kind)
    moved = large + np.pad(small + identity, ((0, 0), (0, 0), (0, 2), (1, 1)))
    yield "a kernel off by one", Pair(parallel, model(image, "y = Conv<pads=[1,1,1,1]>(x, w)", w=moved), "different")
    given = {f"{letter}{n}": np.abs(rng.standard_normal(4)) + 0.5 for n in range(3) for letter in "shmv"}
    norms = [f"{o} = BatchNormalization({i}, s{n}, h{n}, m{n}, v{n}); " for n, (i, o) in enumerate(("ad", "be", "xf"))]
    nodes = f"a = Conv<pads=[1,1,1,1]>(x, w); b = Conv(x, v); {''.join(norms)}g = Add(d, e); y = Add(g, f)"
    scale = [given[f"s{n}"] / np.sqrt(given[f"v{n}"] + 1e-5) for n in range(3)]
    first, second, third = (each.reshape(4, 1, 1, 1) for each in scale)
    joined = large * first + np.pad(small * second + identity * third, inside)
    bias = sum(given[f"h{n}"] - given[f"m{n}"] * scale[n] for n in range(3))
    one = model(image, "y = Conv<pads=[1,1,1,1]>(x, w, b)", w=joined, b=bias)
    yield "normalised parallel convolutions", Pair(model(image, nodes, w=large, v=small, **given), one, "rounded")


def _fast_convolutions() -> Iterable[tuple[str, Pair]]:
    rng = np.random.default_rng(9)
    taps = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    data = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    outputs = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
    line = "float[1,3,10] x -> float[1,5,8] y"
    weight = rng.standard_normal((5, 3, 3))
    direct = model(line, "y = Conv(x, w)", w=weight)
    split = "".join(f"{to} = Slice(x, s{n}, e{n}, t, k); " for n, to in enumerate("abcd"))
    split += "p = Sub(a, c); q = Add(b, c); r = Sub(c, b); s = Sub(b, d); "
    split += "m0 = Conv(p, w0); m1 = Conv(q, w1); m2 = Conv(r, w2); m3 = Conv(s, w3); "
    split += "u = Add(m0, m1); y0 = Add(u, m2); v = Sub(m1, m2); y1 = Sub(v, m3); "
    split += "z0 = Unsqueeze(y0, l); z1 = Unsqueeze(y1, l); z = Concat<axis=-1>(z0, z1); y = Reshape(z, o)"
    places: dict[str, object] = {"t": [2], "k": [2], "l": [-1], "o": [1, 5, 8]}
    places |= {f"s{n}": [n] for n in range(4)} | {f"e{n}": [n + 7] for n in range(4)}

    def fast(nodes: str, by: np.ndarray) -> onnx.ModelProto:
        parts = {f"w{n}": np.einsum("r,fcr->fc", by[n], weight)[:, :, None] for n in range(4)}
        return model(line, nodes, **places, **parts)

    yield "minimal filtering", Pair(direct, fast(split, taps), "rounded")
    wrong = taps.copy()
    wrong[2, 1] = 0.5
    yield "minimal filtering by another transform", Pair(direct, fast(split, wrong), "different")
    signs = split.replace("y1 = Sub(v, m3)", "y1 = Add(v, m3)")
    yield "minimal filtering with another sign", Pair(direct, fast(signs, taps), "different")
    tiles = "g = Gather<axis=2>(x, i); h = MatMul(g, B); h4 = Transpose<perm=[3,0,1,2]>(h); hh = Reshape(h4, rs); "
    tiles += "m = MatMul(U, hh); n = Transpose<perm=[1,2,0]>(m); z = MatMul(n, A); y = Reshape(z, o)"
    index = np.arange(0, 8, 2)[:, None] + np.arange(4)

    def tiled(by: np.ndarray) -> onnx.ModelProto:
        matrices = {"B": data.T.astype(float), "A": outputs.T.astype(float)}
        whole = np.einsum("pr,fcr->pfc", by, weight)
        return model(line, tiles, i=index, rs=[4, 3, 4], o=[1, 5, 8], U=whole, **matrices)

    yield "minimal filtering by matrices", Pair(direct, tiled(taps), "rounded")
    yield "minimal filtering by other matrices", Pair(direct, tiled(wrong), "different")


def _nested_filtering() -> Iterable[tuple[str, Pair]]:
    rng = np.random.default_rng(10)
    for m in (2, 4):
        found = correlation(m, 3)
        data, taps, outputs = (np.array(table, np.float64) for table in (found.u, found.v, found.w))
        n, length, weight = m + 2, 2 * m, rng.standard_normal((5, 4, 3, 3))
        image = f"float[1,4,{length + 2},{length + 2}] x -> float[1,5,{length},{length}] y"
        # windows, transforms of both dimensions, one product for each place, and the inverse transforms
        nodes = (
            "g = Gather<axis=3>(x, i); h = Gather<axis=2>(g, i); a = MatMul(h, B); "
            "b = Transpose<perm=[0,1,2,4,5,3]>(a); c = MatMul(b, B); d = Transpose<perm=[5,4,1,0,2,3]>(c); "
            "e = Reshape(d, r1); f = MatMul(U, e); k = Reshape(f, r2); l = Transpose<perm=[2,3,4,1,0]>(k); "
            "o = MatMul(l, A); s = Transpose<perm=[0,1,2,4,3]>(o); u = MatMul(s, A); "
            "z = Transpose<perm=[0,1,3,2,4]>(u); y = Reshape(z, r3)"
        )
        shapes = {"r1": [n * n, 4, 4], "r2": [n, n, 5, 2, 2], "r3": [1, 5, length, length]}
        places = np.arange(0, length, m)[:, None] + np.arange(n)
        direct = model(image, "y = Conv(x, w)", w=weight)
        wrong = taps.copy()
        wrong[1, 1] = -wrong[1, 1]
        for name, by, kind in (("", taps, "rounded"), (" with a wrong entry", wrong, "different")):
            whole = np.einsum("pr,qs,fcrs->pqfc", taps, by, weight).reshape(n * n, 5, 4)
            fast = model(image, nodes, i=places, B=data.T, A=outputs.T, U=whole, **shapes)
            yield f"nested filtering of {m} outputs{name}", Pair(direct, fast, kind)


def _read(numbers: dict[str, float], nodes: str) -> dict[str, float]:
    """The *numbers* whose names *nodes* read."""
    return {name: number for name, number in numbers.items() if f" {name}," in nodes or f" {name})" in nodes}
