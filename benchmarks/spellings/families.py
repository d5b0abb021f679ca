"""Families of spellings and traps, as ONNX models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Options: TypeAlias = "Mapping[str, str]"
"""The chosen way by option; ``trap`` is the wrong change, if any."""

EPSILON = 0.1
"""Of normalisations: large, so that its place matters."""

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"
"""The shapes of inputs by name."""


class Graph:
    """Nodes and weights of a model; ``graph("Add", a, b)`` adds a node and returns its result."""

    def __init__(self, seed: int, size: int) -> None:
        self.size = size
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.numbers = count()

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.several(op, 1, *inputs, **attributes)[0]

    def several(self, op: str, results: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with several results."""
        names = [f"v{next(self.numbers)}" for _ in range(results)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def weight(self, array: Any, kind: type = np.float32) -> str:
        """Add a weight; return its name."""
        name = f"w{next(self.numbers)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, kind), name))
        return name

    def whole(self, *numbers: int) -> str:
        """Add a list of integers."""
        return self.weight(numbers, np.int64)

    def swapped(self, op: str, a: str, b: str, way: str) -> str:
        """Apply a commutative *op*, its operands in the order of *way*."""
        return self(op, a, b) if way == "in order" else self(op, b, a)


@dataclass(frozen=True)
class Family:
    """A computation: its *inputs* at a size, its *options*, of which the first are usual, and its *traps*."""

    name: str
    inputs: Callable[[int], Shapes]
    options: Mapping[str, tuple[str, ...]]
    traps: tuple[str, ...]
    build: Callable[[Graph, Options], str] = field(repr=False)

    def usual(self) -> dict[str, str]:
        """Return the first way of each option."""
        return {name: ways[0] for name, ways in self.options.items()}

    def spellings(self, number: int, seed: int = 0) -> list[dict[str, str]]:
        """Return *number* different choices, drawn at random, the usual one left out."""
        rng, found = random.Random(f"{self.name} {seed}"), dict[tuple[str, ...], dict[str, str]]()
        total = int(np.prod([len(ways) for ways in self.options.values()])) - 1
        while len(found) < min(number, total):
            choice = {name: rng.choice(ways) for name, ways in self.options.items()}
            if choice != self.usual():
                found[tuple(choice.values())] = choice
        return list(found.values())

    def trapped(self, number: int, seed: int = 0) -> Iterable[dict[str, str]]:
        """Yield *number* choices with a trap each, all traps in turn."""
        for n, choice in enumerate(self.spellings(number, seed + 1)):
            yield {**choice, "trap": self.traps[n % len(self.traps)]}

    def model(self, options: Options, size: int = 1) -> onnx.ModelProto:
        """Return the model of a choice; its tensors are *size* times as long along each dimension that may be."""
        graph = Graph(len(self.name), size)
        result = self.build(graph, {"trap": "", **options})
        values = [helper.make_tensor_value_info(k, TensorProto.FLOAT, shape) for k, shape in self.inputs(size).items()]
        graph.nodes.append(helper.make_node("Identity", [result], ["y"]))
        made = helper.make_graph(
            graph.nodes, self.name.replace(" ", "_"), values, [onnx.ValueInfoProto(name="y")], graph.weights
        )
        proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True)


HEADS, LENGTH, DEPTH = 2, 6, 4
ORDER = ("in order", "swapped")


def _attention(g: Graph, o: Options) -> str:
    q, k, v, trap = "q", "k", "v", o["trap"]
    length = LENGTH * g.size
    scale = {"wrong scale": 1 / (DEPTH * g.size), "no scale": 1.0}.get(trap, (DEPTH * g.size) ** -0.5)
    root = scale**0.5
    reverse = g.whole(*reversed(range(length)))
    if trap == "keys permuted":
        k = g("Gather", k, reverse, axis=1)
    if trap == "values permuted":
        v = g("Gather", v, reverse, axis=1)
    if trap == "queries and keys exchanged":
        q, k = k, q
    match o["scale"]:
        case "queries times":
            q = g("Mul", q, g.weight(scale))
        case "keys divided":
            k = g("Div", k, g.weight(1 / scale))
        case "both times":
            q, k = g("Mul", q, g.weight(root)), g("Mul", g.weight(root), k)
    match o["scores"]:
        case "q k transposed":
            s = g("MatMul", q, g("Transpose", k, perm=[0, 2, 1]))
        case "einsum":
            s = g("Einsum", q, k, equation="hid,hjd->hij")
        case _:
            s = g("Transpose", g("MatMul", k, g("Transpose", q, perm=[0, 2, 1])), perm=[0, 2, 1])
    match o["scale"]:
        case "scores times":
            s = g("Mul", s, g.weight(scale))
        case "scores divided":
            s = g("Div", s, g.weight(1 / scale))
    shift = {"mask one later": 1, "mask one earlier": -1}.get(trap, 0)
    seen = np.tri(length, k=shift, dtype=bool)
    seen[0, 0] = True
    if trap == "mask transposed":
        seen = seen.T
    match o["mask"]:
        case "where":
            s = g("Where", g.weight(seen, np.bool_), s, g.weight(-np.inf))
        case way:
            s = g.swapped(
                "Add", s, g.weight(np.where(seen, 0, -np.inf)), "swapped" if way == "added first" else ORDER[0]
            )
    axis = 1 if trap == "softmax over queries" else -1
    match o["softmax"]:
        case "operator":
            p = g("Softmax", s, axis=axis)
        case _:
            e = g("Exp", g("Sub", s, g("ReduceMax", s, g.whole(axis))))
            p = g("Div", e, g("ReduceSum", e, g.whole(axis)))
    match o["result"]:
        case "p v":
            return g("MatMul", p, v)
        case "einsum":
            return g("Einsum", p, v, equation="hij,hjd->hid")
    turned = [g("Transpose", x, perm=[0, 2, 1]) for x in (v, p)]
    return g("Transpose", g("MatMul", *turned), perm=[0, 2, 1])


ATTENTION = Family(
    "attention",
    lambda size: dict.fromkeys("qkv", (HEADS, LENGTH * size, DEPTH * size)),
    {
        "scale": ("scores times", "scores divided", "queries times", "keys divided", "both times"),
        "scores": ("q k transposed", "einsum", "k q transposed"),
        "mask": ("added", "added first", "where"),
        "softmax": ("operator", "by parts"),
        "result": ("p v", "einsum", "transposed"),
    },
    (
        "wrong scale", "no scale", "keys permuted", "values permuted", "queries and keys exchanged", "mask one later",
        "mask one earlier", "mask transposed", "softmax over queries",
    ),
    _attention,
)  # fmt: skip

ROWS, WIDTH = 3, 8


def _normalisation(g: Graph, o: Options) -> str:
    trap, width = o["trap"], WIDTH * g.size
    scale, bias = g.rng.normal(size=(2, width))

    def mean(x: str, of: int = width, axis: int = -1) -> str:
        match o["mean"]:
            case "operator" if of == width and axis == -1:
                return g("ReduceMean", x, g.whole(-1))
            case "product":
                return g("Mul", g("ReduceSum", x, g.whole(axis)), g.weight(1 / of))
        return g("Div", g("ReduceSum", x, g.whole(axis)), g.weight(of))

    m = mean("x", ROWS * g.size, 0) if trap == "mean of columns" else mean("x")
    c = g("Sub", "x", m) if o["centre"] == "minus" else g("Add", g("Neg", m), "x")
    of = "x" if trap == "second moment" else c
    square = g("Pow", of, g.weight(2.0)) if o["square"] == "power" else g("Mul", of, of)
    v = mean(square, width - 1 if trap == "unbiased variance" else width)
    if trap == "epsilon outside":
        d = g("Add", g("Sqrt", v), g.weight(EPSILON))
    else:
        d = g.swapped("Add", v, g.weight(EPSILON), o["epsilon"])
        d = d if trap == "no root" else g("Sqrt", d)
    first = o["scale"] == "before the quotient" and trap not in ("bias before scale", "no bias")
    c = g("Mul", c, g.weight(scale)) if first else c
    n = g("Div", c, d) if o["quotient"] == "divided" else g("Mul", c, g("Reciprocal", d))
    if trap == "bias before scale":
        return g("Mul", g("Add", n, g.weight(bias)), g.weight(scale))
    n = n if first else g.swapped("Mul", n, g.weight(scale), o["order"])
    return n if trap == "no bias" else g.swapped("Add", n, g.weight(bias), o["order"])


NORMALISATION = Family(
    "layer normalisation",
    lambda size: {"x": (ROWS * size, WIDTH * size)},
    {
        "mean": ("operator", "quotient", "product"),
        "centre": ("minus", "plus the negative"),
        "square": ("product", "power"),
        "epsilon": ORDER,
        "quotient": ("divided", "reciprocal"),
        "scale": ("after", "before the quotient"),
        "order": ORDER,
    },
    (
        "mean of columns", "second moment", "unbiased variance", "epsilon outside", "no root", "bias before scale",
        "no bias",
    ),
    _normalisation,
)  # fmt: skip

CHANNELS, SIDE = 4, 5


def _convolution(g: Graph, o: Options) -> str:
    trap = o["trap"]
    channels = CHANNELS * g.size
    weight = g.rng.normal(size=(channels, channels, 3, 3))
    bias, scale, shift, mean = g.rng.normal(size=(4, channels))
    var = g.rng.uniform(0.5, 2, channels)
    eps = EPSILON
    if trap == "kernel flipped":
        weight = weight[..., ::-1]
    if trap == "channels permuted":
        weight = weight[:, ::-1]
    if trap == "mean added":
        mean = -mean
    root = np.sqrt(var) + eps if trap == "epsilon outside" else np.sqrt(var + eps)
    folded = o["norm"] == "in the weights"
    if folded:
        weight = weight * (scale / root)[:, None, None, None]
        bias = (bias - mean) * (scale / root) + shift
    pads = [1, 0, 1, 2] if trap == "padding to one side" else [1] * 4
    x = "x"
    if o["padding"] == "pad":
        x = g("Pad", x, g.whole(0, 0, *pads[:2], 0, 0, *pads[2:]))
        pads = [0] * 4
    if trap == "parts exchanged":
        weight, bias = (np.roll(a, channels // 2, 0) for a in (weight, bias))
    inside = o["bias"] == "in the convolution"
    number = 2 if o["channels"] == "in two parts" else 1
    parts = [
        g("Conv", x, g.weight(w), *([g.weight(b)] if inside else []), pads=pads)
        for w, b in zip(np.split(weight, number), np.split(bias, number), strict=True)
    ]
    y = g("Concat", *parts, axis=1) if number > 1 else parts[0]
    column = [a.reshape(-1, 1, 1) for a in (bias, scale, shift, mean, root)]
    if not inside:
        y = g("Add", y, g.weight(column[0]))
    if trap == "relu before the normalisation":
        y = g("Relu", y)
    match o["norm"]:
        case "operator":
            square = np.square(root) - eps
            y = g("BatchNormalization", y, *(g.weight(a) for a in (scale, shift, mean, square)), epsilon=eps)
        case "by parts":
            y = g("Div", g("Sub", y, g.weight(column[3])), g.weight(column[4]))
            y = g("Add", g("Mul", y, g.weight(column[1])), g.weight(column[2]))
        case "scale and shift":
            a = column[1] / column[4]
            y = g("Add", g("Mul", g.weight(a), y), g.weight(column[2] - column[3] * a))
    y = g.swapped("Add", y, "r", o["residual"])
    if trap == "no relu":
        return y
    return g("Relu", y) if o["relu"] == "operator" else g("Max", y, g.weight(0.0))


CONVOLUTION = Family(
    "convolution block",
    lambda size: dict.fromkeys("xr", (1, CHANNELS * size, SIDE * size, SIDE * size)),
    {
        "norm": ("operator", "by parts", "scale and shift", "in the weights"),
        "bias": ("in the convolution", "added"),
        "padding": ("attribute", "pad"),
        "channels": ("together", "in two parts"),
        "residual": ORDER,
        "relu": ("operator", "maximum"),
    },
    (
        "kernel flipped", "channels permuted", "mean added", "epsilon outside", "padding to one side",
        "parts exchanged", "relu before the normalisation", "no relu",
    ),
    _convolution,
)  # fmt: skip


def _rotary(g: Graph, o: Options) -> str:
    trap, width = o["trap"], WIDTH * g.size
    half = width // 2
    angle = np.arange(LENGTH * g.size)[:, None] / 10.0 ** (np.arange(half) / half)
    if trap == "one position later":
        angle = angle + 1 / 10.0 ** (np.arange(half) / half)
    cosine, sine = np.cos(angle), np.sin(angle)
    if trap == "cosine and sine exchanged":
        cosine, sine = sine, cosine
    if trap == "sine negated":
        sine = -sine
    if o["halves"] == "split":
        a, b = g.several("Split", 2, "x", g.whole(half, half), axis=-1)
    else:
        a, b = (g("Slice", "x", g.whole(i), g.whole(j), g.whole(2)) for i, j in ((0, half), (half, width)))
    if trap == "halves exchanged":
        a, b = b, a
    if trap == "interleaved":
        a, b = (g("Slice", "x", g.whole(i), g.whole(width), g.whole(2), g.whole(2)) for i in (0, 1))

    def times(x: str, table: np.ndarray[Any, Any]) -> str:
        shaped = table if o["tables"] == "of two dimensions" else table[None]
        return g.swapped("Mul", x, g.weight(shaped), o["order"])

    def negative(x: str) -> str:
        if trap == "no minus":
            return x
        return g("Neg", x) if o["negative"] == "operator" else g("Mul", x, g.weight(-1.0))

    if o["form"] == "by halves":
        if o["difference"] == "minus" and trap != "no minus":
            first = g("Sub", times(a, cosine), times(b, sine))
        else:
            first = g("Add", times(a, cosine), negative(times(b, sine)))
        return g("Concat", first, g.swapped("Add", times(b, cosine), times(a, sine), o["sum"]), axis=-1)
    whole = g("Concat", a, b, axis=-1)
    turned = g("Concat", negative(b), a, axis=-1)
    tables = [np.concatenate([t, t], -1) for t in (cosine, sine)]
    return g.swapped("Add", times(whole, tables[0]), times(turned, tables[1]), o["sum"])


ROTARY = Family(
    "rotary embedding",
    lambda size: {"x": (HEADS, LENGTH * size, WIDTH * size)},
    {
        "form": ("by halves", "rotated"),
        "halves": ("split", "slices"),
        "order": ORDER,
        "negative": ("operator", "product"),
        "difference": ("minus", "plus the negative"),
        "sum": ORDER,
        "tables": ("of two dimensions", "of three"),
    },
    (
        "one position later", "cosine and sine exchanged", "sine negated", "halves exchanged", "interleaved",
        "no minus",
    ),
    _rotary,
)  # fmt: skip


def _gated(g: Graph, o: Options) -> str:
    trap, width = o["trap"], WIDTH * g.size
    gate, up, down = g.rng.normal(size=(3, width, width))
    if trap == "gate and up exchanged":
        gate, up = up, gate
    if trap == "gate transposed":
        gate = gate.T
    if trap == "down transposed":
        down = down.T

    def product(x: str, w: np.ndarray[Any, Any], way: str) -> str:
        match way:
            case "gemm":
                return g("Gemm", x, g.weight(w.T), transB=1)
            case "einsum":
                return g("Einsum", x, g.weight(w), equation="ik,kj->ij")
        return g("MatMul", x, g.weight(w))

    match o["projections"]:
        case "two":
            a, b = product("x", gate, o["product"]), product("x", up, o["product"])
        case way:
            both = product("x", np.concatenate([gate, up], 1), o["product"])
            if way == "split":
                a, b = g.several("Split", 2, both, g.whole(width, width), axis=1)
            else:
                a, b = (g("Slice", both, g.whole(i), g.whole(i + width), g.whole(1)) for i in (0, width))
    if trap == "sigmoid of up":
        s = g("Sigmoid", b)
    elif trap == "tanh":
        s = g("Tanh", a)
    else:
        one = g.weight(1.0)
        s = g("Sigmoid", a) if o["sigmoid"] == "operator" else g("Div", one, g("Add", one, g("Exp", g("Neg", a))))
    s = g.swapped("Mul", a, s, o["silu"]) if trap != "only sigmoid" else s
    return product(g.swapped("Mul", s, b, o["gate"]), down, o["down"])


GATED = Family(
    "gated layer",
    lambda size: {"x": (ROWS * size, WIDTH * size)},
    {
        "projections": ("two", "split", "slices"),
        "product": ("matmul", "gemm", "einsum"),
        "sigmoid": ("operator", "by parts"),
        "silu": ORDER,
        "gate": ORDER,
        "down": ("matmul", "gemm", "einsum"),
    },
    ("gate and up exchanged", "gate transposed", "down transposed", "sigmoid of up", "tanh", "only sigmoid"),
    _gated,
)

FAMILIES = {family.name: family for family in (ATTENTION, NORMALISATION, CONVOLUTION, ROTARY, GATED)}
