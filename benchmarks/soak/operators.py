"""Proposals of each operator.  ONNX refuses those that are illegal for the operator set at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.soak.growing import Fruitless, Growing, Proposal

Made = tuple[str, Sequence[str], Mapping[str, Any]]


def _unary(op: str, **ranges: Sequence[Any]) -> Proposal:
    def propose(g: Growing) -> Made:
        return op, [g.pick()], {k: g.rng.choice(v) for k, v in ranges.items() if g.rng.random() < 0.6}

    return propose


def _of_positive(op: str) -> Proposal:
    return lambda g: (op, [g.positive()], {})


def _binary(op: str) -> Proposal:
    def propose(g: Growing) -> Made:
        x = g.pick()
        reads = [x, g.like(g.values[x])]
        return op, reads if g.rng.random() < 0.7 else reads[::-1], {}

    return propose


def _many(op: str) -> Proposal:
    def propose(g: Growing) -> Made:
        x = g.pick()
        return op, [x, *(g.like(g.values[x]) for _ in range(g.rng.choice([0, 1, 2])))], {}

    return propose


def _listed(g: Growing, numbers: Sequence[int], since: int, attribute: str, reads: list[str]) -> dict[str, Any]:
    """*numbers* as a second input from operator set *since* on, as *attribute* before."""
    if g.opset >= since:
        reads.append(g.known(numbers, np.int64))
        return {}
    return {attribute: list(numbers)}


def _axes(g: Growing, rank: int) -> list[int]:
    chosen = g.rng.sample(range(rank), g.rng.randint(1, rank)) if rank else []
    return [a - rank if g.rng.random() < 0.3 else a for a in chosen]


def _axis(g: Growing, rank: int) -> int:
    if not rank:
        raise Fruitless
    return g.rng.randrange(-rank, rank)


def _reduction(op: str, since: int) -> Proposal:
    def propose(g: Growing) -> Made:
        x = g.pick()
        reads, attributes = [x], {"keepdims": g.rng.choice([0, 1])}
        if op == "ReduceLogSum":
            x = reads[0] = g.positive()
        axes = _axes(g, len(g.values[x]))
        if axes and g.rng.random() < 0.85:
            attributes |= _listed(g, axes, since, "axes", reads)
        return op, reads, attributes

    return propose


def _matmul(g: Growing) -> Made:
    x = g.pick()
    shape = g.values[x]
    if not shape:
        raise Fruitless
    k, n = shape[-1], g.rng.randint(1, 7)
    fit = [v for v, s in g.values.items() if len(s) > 1 and s[-2] == k]
    if fit and g.rng.random() < 0.3:
        return "MatMul", [x, g.rng.choice(fit)], {}
    if g.rng.random() < 0.15:
        return "MatMul", [x, g.weight([k])], {}
    batch = [1 if g.rng.random() < 0.3 else d for d in shape[:-2]] if g.rng.random() < 0.4 else []
    if g.rng.random() < 0.2 and len(shape) > 1:
        return "MatMul", [g.weight([*batch, n, shape[-2]]), x], {}
    return "MatMul", [x, g.weight([*batch, k, n])], {}


def _gemm(g: Growing) -> Made:
    x = g.pick(2)
    m, k = g.values[x]
    a, b, n = g.rng.choice([0, 1]), g.rng.choice([0, 1]), g.rng.randint(1, 7)
    m, k = (k, m) if a else (m, k)
    reads = [x, g.weight([n, k] if b else [k, n])]
    if g.rng.random() < 0.7:
        reads.append(g.weight(g.rng.choice([[n], [1], [m, n], [m, 1], [1, n], []])))
    scale = {name: g.rng.choice([0.5, 1.0, 2.0, -1.0]) for name in ("alpha", "beta") if g.rng.random() < 0.3}
    return "Gemm", reads, {"transA": a, "transB": b, **scale}


def _einsum(g: Growing) -> Made:
    x = g.pick()
    rank = len(g.values[x])
    letters = "abcde"[:rank]
    kept = "".join(g.rng.sample(letters, g.rng.randint(0, rank)))
    if g.rng.random() < 0.4:
        return "Einsum", [x], {"equation": f"{letters}->{kept}"}
    other = g.rng.sample(letters, g.rng.randint(0, rank))
    size = dict(zip(letters, g.values[x], strict=True))
    new = g.rng.choice(["", "z"])
    weight = g.weight([*(size[c] for c in other), *([3] if new else [])])
    out = "".join(g.rng.sample(kept + new, len(kept + new)))
    return "Einsum", [x, weight], {"equation": f"{letters},{''.join(other)}{new}->{out}"}


def _window(g: Growing, sizes: Sequence[int], kernel: bool = True) -> tuple[list[int], dict[str, Any]]:
    window = [g.rng.randint(1, min(4, n + 1)) for n in sizes]
    attributes: dict[str, Any] = {"kernel_shape": window} if kernel and g.rng.random() < 0.6 else {}
    if g.rng.random() < 0.4:
        attributes["strides"] = [g.rng.randint(1, 3) for _ in sizes]
    if g.rng.random() < 0.3:
        attributes["dilations"] = [g.rng.randint(1, 2) for _ in sizes]
    if g.rng.random() < 0.2:
        attributes["auto_pad"] = g.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    elif g.rng.random() < 0.6:
        attributes["pads"] = [g.rng.randint(0, max(0, k - 1)) for k in (*window, *window)]
    return window, attributes


def _convolved(g: Growing) -> tuple[str, int, int, tuple[int, ...]]:
    x = g.pick(g.rng.choice([3, 4, 4, 4, 5]))
    c, *sizes = g.values[x][1:]
    groups = g.rng.choice([n for n in (1, 1, 1, 2, 3, c) if c % n == 0])
    return x, c, groups, tuple(sizes)


def _conv(g: Growing) -> Made:
    x, c, groups, sizes = _convolved(g)
    window, attributes = _window(g, sizes)
    f = groups * g.rng.randint(1, 3)
    reads = [x, g.weight([f, c // groups, *window]), *([g.weight([f])] if g.rng.random() < 0.5 else [])]
    return "Conv", reads, {**attributes, **({"group": groups} if groups > 1 or g.rng.random() < 0.2 else {})}


def _conv_transpose(g: Growing) -> Made:
    x, c, groups, sizes = _convolved(g)
    window, attributes = _window(g, sizes)
    f = g.rng.randint(1, 3)
    reads = [x, g.weight([c, f, *window]), *([g.weight([f * groups])] if g.rng.random() < 0.5 else [])]
    if g.rng.random() < 0.3:
        strides = attributes.get("strides", [1] * len(sizes))
        attributes["output_padding"] = [g.rng.randint(0, s - 1) for s in strides]
    elif g.rng.random() < 0.1:
        attributes["output_shape"] = [
            n * s + 1 for n, s in zip(sizes, attributes.get("strides", [1] * 9), strict=False)
        ]
        attributes.pop("pads", None)
    return "ConvTranspose", reads, {**attributes, "group": groups}


def _pool(op: str) -> Proposal:
    def propose(g: Growing) -> Made:
        x = g.pick(g.rng.choice([3, 4, 4, 5]))
        sizes = g.values[x][2:]
        window, attributes = _window(g, sizes, kernel=False)
        attributes["kernel_shape"] = window
        if "pads" in attributes:
            attributes["pads"] = [min(p, k - 1) for p, k in zip(attributes["pads"], window * 2, strict=True)]
        if g.rng.random() < 0.25:
            attributes["ceil_mode"] = 1
        if op == "AveragePool" and g.rng.random() < 0.5:
            attributes["count_include_pad"] = 1
        if op == "LpPool":
            attributes["p"] = g.rng.choice([1, 2])
        return op, [x], attributes

    return propose


def _normalised(op: str) -> Proposal:
    def propose(g: Growing) -> Made:
        x = g.pick(g.rng.choice([2, 3, 4]) if op == "BatchNormalization" else g.rng.choice([3, 4]))
        c = g.values[x][1]
        reads = [x, g.weight([c]), g.weight([c])]
        if op == "BatchNormalization":
            reads += [g.weight([c]), g.known(np.abs(g.weights[g.weight([c])]) + 0.5, np.float32)]
        return op, reads, {"epsilon": g.rng.choice([1e-5, 1e-3])}

    return propose


def _layer_norm(g: Growing) -> Made:
    x = g.pick()
    axis = _axis(g, len(g.values[x]))
    shape = g.values[x][axis:]
    reads = [x, g.weight(shape), *([g.weight(shape)] if g.rng.random() < 0.6 else [])]
    return "LayerNormalization", reads, {"axis": axis}


def _at_axis(op: str) -> Proposal:
    def propose(g: Growing) -> Made:
        x = g.pick()
        return op, [x], {"axis": _axis(g, len(g.values[x]))} if g.rng.random() < 0.8 else {}

    return propose


def _lp_norm(g: Growing) -> Made:
    x = g.pick()
    return "LpNormalization", [x], {"axis": _axis(g, len(g.values[x])), "p": g.rng.choice([1, 2])}


def _lrn(g: Growing) -> Made:
    return (
        "LRN",
        [g.pick(4)],
        {"size": g.rng.choice([1, 3, 2, 5]), "alpha": 0.1, "beta": 0.75, "bias": g.rng.choice([1.0, 2.0])},
    )


def _transpose(g: Growing) -> Made:
    x = g.pick()
    rank = len(g.values[x])
    return "Transpose", [x], {"perm": g.rng.sample(range(rank), rank)} if g.rng.random() < 0.8 else {}


def _reshape(g: Growing) -> Made:
    x = g.pick()
    shape = list(g.values[x])
    left, target = int(np.prod(shape)), []
    while left > 1 and len(target) < 4:
        size = g.rng.choice([d for d in range(1, left + 1) if left % d == 0])
        target.append(size)
        left //= size
    target.append(left)
    g.rng.shuffle(target)
    if g.rng.random() < 0.3:
        target[g.rng.randrange(len(target))] = -1
    for n in range(min(len(target), len(shape))):
        if target[n] == shape[n] and g.rng.random() < 0.3:
            target[n] = 0
    return "Reshape", [x, g.known(target, np.int64)], {}


def _squeeze(g: Growing) -> Made:
    x = g.pick()
    ones = [d for d, n in enumerate(g.values[x]) if n == 1]
    if not ones:
        raise Fruitless
    reads = [x]
    axes = g.rng.sample(ones, g.rng.randint(1, len(ones)))
    return "Squeeze", reads, _listed(g, axes, 13, "axes", reads) if g.rng.random() < 0.8 else {}


def _unsqueeze(g: Growing) -> Made:
    x = g.pick()
    rank, reads = len(g.values[x]), [x]
    new = g.rng.randint(1, 2)
    if rank + new > 5:
        raise Fruitless
    return "Unsqueeze", reads, _listed(g, g.rng.sample(range(rank + new), new), 13, "axes", reads)


def _flatten(g: Growing) -> Made:
    x = g.pick()
    rank = len(g.values[x])
    return "Flatten", [x], {"axis": g.rng.randint(-rank, rank)} if g.rng.random() < 0.7 else {}


def _slice(g: Growing) -> Made:
    x = g.pick()
    shape = g.values[x]
    axes = g.rng.sample(range(len(shape)), g.rng.randint(1, len(shape))) if shape else []
    if not axes:
        raise Fruitless
    starts = [g.rng.randint(-shape[a] - 1, shape[a]) for a in axes]
    ends = [g.rng.choice([g.rng.randint(-shape[a] - 1, shape[a] + 1), 2**31 - 1, -(2**31), 2**63 - 1]) for a in axes]
    steps = [g.rng.choice([1, 1, 1, 2, 3, -1, -2]) for _ in axes]
    return "Slice", [x, *(g.known(numbers, np.int64) for numbers in (starts, ends, axes, steps))], {}


def _split(g: Growing) -> Made:
    x = g.pick()
    axis = _axis(g, len(g.values[x]))
    size = g.values[x][axis]
    parts = g.rng.randint(1, min(3, size))
    cuts = sorted(g.rng.sample(range(1, size), parts - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    reads = [x]
    return "Split", reads, {"axis": axis, "_outputs": parts, **_listed(g, sizes, 13, "split", reads)}


def _concat(g: Growing) -> Made:
    x = g.pick()
    shape = g.values[x]
    axis = _axis(g, len(shape))
    fit = [v for v, s in g.values.items() if len(s) == len(shape) and all(
        a == b for d, (a, b) in enumerate(zip(s, shape, strict=True)) if d != axis % len(shape))]  # fmt: skip
    reads = [x, *(g.rng.choice(fit) for _ in range(g.rng.randint(0, 2)))]
    if g.rng.random() < 0.3:
        reads.append(g.weight([2 if d == axis % len(shape) else n for d, n in enumerate(shape)]))
    return "Concat", g.rng.sample(reads, len(reads)), {"axis": axis}


def _pad(g: Growing) -> Made:
    x = g.pick()
    rank = len(g.values[x])
    pads = [g.rng.choice([0, 0, 1, 2, -1]) for _ in range(2 * rank)]
    reads = [x, g.known(pads, np.int64)]
    mode = g.rng.choice(["constant", "constant", "constant", "edge", "reflect"])
    if mode == "constant" and g.rng.random() < 0.5:
        reads.append(g.known(g.rng.choice([0.0, 1.5, -2.0]), np.float32))
    return "Pad", reads, {"mode": mode} if mode != "constant" or g.rng.random() < 0.3 else {}


def _expand(g: Growing) -> Made:
    x = g.pick()
    shape = [g.rng.randint(1, 4) if n == 1 else g.rng.choice([n, 1]) for n in g.values[x]]
    return "Expand", [x, g.known([*([2] if g.rng.random() < 0.3 else []), *shape], np.int64)], {}


def _tile(g: Growing) -> Made:
    x = g.pick()
    return "Tile", [x, g.known([g.rng.choice([1, 1, 2, 3]) for _ in g.values[x]], np.int64)], {}


def _gather(g: Growing) -> Made:
    x = g.pick()
    axis = _axis(g, len(g.values[x]))
    n = g.values[x][axis]
    if g.rng.random() < 0.5:
        at = np.array([g.rng.randrange(-n, n) for _ in range(g.rng.randint(1, 3))])
    else:
        at = np.arange(n)[:: g.rng.choice([1, 2, -1])]
    return "Gather", [x, g.known(at[0] if g.rng.random() < 0.3 else at, np.int64)], {"axis": axis}


def _blocks(op: str) -> Proposal:
    def propose(g: Growing) -> Made:
        x = g.pick(4)
        _, c, h, w = g.values[x]
        b = g.rng.choice([2, 2, 3])
        if c % (b * b) if op == "DepthToSpace" else h % b or w % b:
            raise Fruitless
        mode = {"mode": g.rng.choice(["DCR", "CRD"])} if op == "DepthToSpace" and g.rng.random() < 0.7 else {}
        return op, [x], {"blocksize": b, **mode}

    return propose


def _resize(g: Growing) -> Made:
    x = g.pick(g.rng.choice([3, 4]))
    shape = g.values[x]
    attributes: dict[str, Any] = {"mode": g.rng.choice(["nearest", "nearest", "linear", "cubic"])}
    if g.rng.random() < 0.8:
        kinds = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
        attributes["coordinate_transformation_mode"] = g.rng.choice(kinds)
    if attributes["mode"] == "nearest" and g.rng.random() < 0.6:
        attributes["nearest_mode"] = g.rng.choice(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    empty = g.known([], np.float32)
    if g.rng.random() < 0.6:
        scales = [1.0, 1.0, *(g.rng.choice([1.0, 2.0, 2.0, 3.0, 0.5, 1.5]) for _ in shape[2:])]
        return "Resize", [x, "" if g.opset > 12 else empty, g.known(scales, np.float32)], attributes
    sizes = [*shape[:2], *(g.rng.choice([n, 2 * n, 3 * n, max(1, n // 2), n + 1]) for n in shape[2:])]
    return "Resize", [x, *(["", ""] if g.opset > 12 else [empty, empty]), g.known(sizes, np.int64)], attributes


def _clip(g: Growing) -> Made:
    limits = [g.known(-0.5, np.float32) if g.rng.random() < 0.7 else "", g.known(0.75, np.float32)]
    return "Clip", [g.pick(), *limits[: g.rng.choice([0, 1, 2, 2])]], {}


def _power(g: Growing) -> Made:
    return "Pow", [g.pick(), g.known(g.rng.choice([1.0, 2.0, 3.0]), np.float32)], {}


def _prelu(g: Growing) -> Made:
    x = g.pick()
    shape = g.values[x]
    return "PRelu", [x, g.weight([1 if g.rng.random() < 0.5 else n for n in shape[1:]])], {}


def _cast(g: Growing) -> Made:
    return "Cast", [g.pick()], {"to": 1}


def _cumsum(g: Growing) -> Made:
    x = g.pick()
    return "CumSum", [x, g.known(_axis(g, len(g.values[x])), np.int64)], {"reverse": g.rng.choice([0, 1])}


def _dropout(g: Growing) -> Made:
    return "Dropout", [g.pick()], {}


_SMOOTH = ("Neg", "Identity", "Abs", "Relu", "Tanh", "Sigmoid", "Erf", "Softplus", "Softsign", "Mish", "HardSwish")

PROPOSALS: Mapping[str, Proposal] = {
    **{op: _unary(op) for op in _SMOOTH},
    "Exp": _unary("Exp"),
    "Sqrt": _of_positive("Sqrt"),
    "Log": _of_positive("Log"),
    "Reciprocal": _of_positive("Reciprocal"),
    "LeakyRelu": _unary("LeakyRelu", alpha=(0.01, 0.2, 0.0)),
    "Elu": _unary("Elu", alpha=(1.0, 0.5)),
    "Celu": _unary("Celu", alpha=(1.0, 0.5)),
    "Selu": _unary("Selu", alpha=(1.5,), gamma=(1.1,)),
    "Gelu": _unary("Gelu", approximate=("none", "tanh")),
    "HardSigmoid": _unary("HardSigmoid", alpha=(0.2, 0.5), beta=(0.5, 0.3)),
    "Swish": _unary("Swish"),
    "Sin": _unary("Sin"),
    "ThresholdedRelu": _unary("ThresholdedRelu", alpha=(0.5, 1.0)),
    "Ceil": _unary("Ceil"),
    "MeanVarianceNormalization": _unary("MeanVarianceNormalization"),
    **{op: _binary(op) for op in ("Add", "Sub", "Mul", "Div")},
    **{op: _many(op) for op in ("Sum", "Mean", "Max", "Min")},
    **{op: _reduction(op, 13 if op == "ReduceSum" else 18) for op in (
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
        "ReduceLogSum", "ReduceLogSumExp")},
    **{op: _unary(op) for op in ("GlobalAveragePool", "GlobalMaxPool")},
    **{op: _pool(op) for op in ("MaxPool", "AveragePool", "LpPool")},
    **{f"{op} again": _pool(op) for op in ("MaxPool", "AveragePool")},
    "MatMul": _matmul, "MatMul again": _matmul, "MatMul still": _matmul,
    "Gemm": _gemm, "Gemm again": _gemm, "Einsum": _einsum,
    "Conv": _conv, "Conv again": _conv, "Conv still": _conv, "Conv more": _conv,
    "ConvTranspose": _conv_transpose, "ConvTranspose again": _conv_transpose,
    "BatchNormalization": _normalised("BatchNormalization"),
    "InstanceNormalization": _normalised("InstanceNormalization"),
    "LayerNormalization": _layer_norm, "LpNormalization": _lp_norm, "LRN": _lrn,
    "Softmax": _at_axis("Softmax"), "LogSoftmax": _at_axis("LogSoftmax"),
    "Transpose": _transpose, "Transpose again": _transpose, "Reshape": _reshape, "Reshape again": _reshape,
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Flatten": _flatten, "Slice": _slice, "Slice again": _slice,
    "Split": _split, "Concat": _concat, "Pad": _pad, "Expand": _expand, "Tile": _tile, "Gather": _gather,
    "DepthToSpace": _blocks("DepthToSpace"), "SpaceToDepth": _blocks("SpaceToDepth"), "Resize": _resize,
    "Clip": _clip, "Pow": _power, "PRelu": _prelu, "Cast": _cast, "CumSum": _cumsum, "Dropout": _dropout,
}  # fmt: skip
"""By name; an operator that stands there several times is proposed more often."""
