"""Compare dilated window attention in every form and runtime: ``python -m benchmarks.longformer``.

``windows``, ``full`` and ``chunks`` are the usual ways to write it.  ``residues`` is the derived form, written by hand:
the rows of one residue are a separate sequence with a dense window.  ``ours`` is the derived kernel, ``ours in
onnxruntime`` its export.  All run in turn in one process; ratios are relative to ``ours``.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from numpy.lib.stride_tricks import as_strided
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.ir import Program
from einnet_explore.onnx_export.lowering import to_onnx
from einnet_explore.operators import expressions as ops
from einnet_explore.pipeline.model_sessions import open_session
from einnet_explore.runtime.program import compile_program
from einnet_explore.strategies.vertical_fusion import fuse_vertically
from einnet_explore.syntax import parse

Array = npt.NDArray[Any]

FAR = -1e9
"""Added to a score that does not count."""

SETTLE = 0.01
"""Seconds after which the threads of the engine before no longer spin."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows, features per head, heads, half of the window, and the dilation."""

    rows: int = 10000
    features: int = 64
    heads: int = 8
    half: int = 500
    dilation: int = 4

    @property
    def window(self) -> int:
        """Number of positions that a row sees."""
        return 2 * self.half + 1

    @property
    def reach(self) -> int:
        """Distance to the last position of the window on either side."""
        return self.half * self.dilation

    @property
    def columns(self) -> Array:
        """Positions that each row sees."""
        return np.arange(self.rows)[:, None] + self.dilation * np.arange(self.window)[None] - self.reach

    @property
    def outside(self) -> Array:
        """``FAR`` for positions that do not exist, else 0."""
        return np.where((self.columns >= 0) & (self.columns < self.rows), np.float32(0), np.float32(FAR))


def near(rows: Array, columns: Array, s: Sizes) -> Array:
    """Return 0 where a row sees a column, else ``FAR``."""
    d = columns[None, :] - rows[:, None]
    sees = (abs(d) <= s.reach) & (d % s.dilation == 0) & (columns[None, :] >= 0) & (columns[None, :] < s.rows)
    return np.where(sees, np.float32(0), np.float32(FAR))


def chunk_bias(s: Sizes, chunk: int) -> Array:
    """Return the bias (1, chunk, row, column): the columns around each chunk that its rows see."""
    firsts = range(0, s.rows, chunk)
    at = np.arange(chunk)
    return np.stack([near(n + at, n - s.reach + np.arange(chunk + 2 * s.reach), s) for n in firsts])[None]


@dataclass
class Graph:
    """Builder of an ONNX graph from q, k, v (heads, rows, features) to y."""

    sizes: Sizes
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        """Add a constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def shaped(self, x: str, *shape: int) -> str:
        """Reshape *x*."""
        return self.node("Reshape", x, self.weight(shape))

    def rows(self, x: str, first: int, last: int, axis: int = 1) -> str:
        """Slice rows."""
        return self.node("Slice", x, *(self.weight([n]) for n in (first, last, axis)))

    def padded(self, x: str, before: int, after: int) -> str:
        """Pad the rows of (heads, rows, features) with zeros on both sides."""
        return self.node("Pad", x, self.weight([0, before, 0, 0, after, 0]))

    def attend(self, q: str, k: str, v: str, bias: Array) -> str:
        """Add softmax(q·k/√n + bias)·v over the last two dimensions."""
        scaled = self.node("Mul", self.node("MatMul", q, k), self.weight(self.sizes.features**-0.5, np.float32))
        biased = self.node("Add", scaled, self.weight(bias, np.float32))
        return self.node("MatMul", self.node("Softmax", biased, axis=-1), v)

    def model(self, y: str) -> onnx.ModelProto:
        """Return the finished model."""
        s = self.sizes
        self.nodes.append(helper.make_node("Identity", [y], ["y"]))
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [s.heads, s.rows, s.features]) for n in "qkvy"]
        graph = helper.make_graph(self.nodes, "attention", infos[:3], infos[3:], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def full(s: Sizes) -> onnx.ModelProto:
    """Every row with every row, and a mask."""
    g = Graph(s)
    at = np.arange(s.rows)
    return g.model(g.attend("q", g.node("Transpose", "k", perm=[0, 2, 1]), "v", near(at, at, s)[None]))


def windows(s: Sizes) -> onnx.ModelProto:
    """Gather each row's window, head by head (the windows of all heads together exceed the memory)."""
    g = Graph(s)
    table = g.weight(s.columns + s.reach)
    out = []
    for n in range(s.heads):
        q, k, v = (g.rows(x, n, n + 1, axis=0) for x in "qkv")
        keys, values = (g.node("Gather", g.padded(x, s.reach, s.reach), table, axis=1) for x in (k, v))
        got = g.attend(
            g.shaped(q, 1, s.rows, 1, s.features), g.node("Transpose", keys, perm=[0, 1, 3, 2]), values,
            s.outside[None, :, None],
        )  # fmt: skip
        out.append(g.shaped(got, 1, s.rows, s.features))
    return g.model(g.node("Concat", *out, axis=0))


def _chunked(g: Graph, q: str, k: str, v: str, s: Sizes, chunk: int) -> str:
    """Chunks of rows, each with the columns between the first and the last that any of its rows sees."""
    count = -(-s.rows // chunk)
    more = count * chunk - s.rows
    table = g.weight(chunk * np.arange(count)[:, None] + np.arange(chunk + 2 * s.reach)[None])
    keys, values = (g.node("Gather", g.padded(x, s.reach, s.reach + more), table, axis=1) for x in (k, v))
    rows = g.shaped(g.padded(q, 0, more), s.heads, count, chunk, s.features)
    got = g.attend(rows, g.node("Transpose", keys, perm=[0, 1, 3, 2]), values, chunk_bias(s, chunk))
    return g.rows(g.shaped(got, s.heads, count * chunk, s.features), 0, s.rows)


def chunks(s: Sizes) -> onnx.ModelProto:
    """Chunks of a quarter of a row's window; only one of `d` columns counts."""
    g = Graph(s)
    return g.model(_chunked(g, "q", "k", "v", s, s.reach // 2))


def residues(s: Sizes) -> onnx.ModelProto:
    """The derived form, written by hand."""
    g = Graph(s)
    d, rows = s.dilation, s.rows // s.dilation
    plain = Sizes(rows, s.features, s.heads * d, s.half, 1)

    def there(x: str) -> str:
        turned = g.node("Transpose", g.shaped(x, s.heads, rows, d, s.features), perm=[0, 2, 1, 3])
        return g.shaped(turned, s.heads * d, rows, s.features)

    got = _chunked(g, there("q"), there("k"), there("v"), plain, s.half // 2)
    back = g.node("Transpose", g.shaped(got, s.heads, d, rows, s.features), perm=[0, 2, 1, 3])
    return g.model(g.shaped(back, s.heads, s.rows, s.features))


FORMS: Mapping[str, Callable[[Sizes], onnx.ModelProto]] = {
    "windows": windows, "full": full, "chunks": chunks, "residues": residues,
}  # fmt: skip


def expression(s: Sizes) -> Program:
    """The block as equations."""
    b, m, k, x, p, d = s.heads, s.rows, s.features, s.window, s.reach, s.dilation
    return parse(f"""
        tensor q[{b}, {m}, {k}]
        tensor k[{b}, {m}, {k}] pad [0, {p}, 0]
        tensor v[{b}, {m}, {k}] pad [0, {p}, 0]
        tensor outside[{m + 2 * p}] weight
        S[b:{b}, m:{m}, w:{x}] = sum[c:{k}] q[b, m, c] * k[b, m+{d}*w-{p}, c]
        Z[b:{b}, m:{m}, w:{x}] = {k**-0.5} * S[b, m, w] + outside[m+{d}*w]
        M[b:{b}, m:{m}] = max[w:{x}] Z[b, m, w]
        E[b:{b}, m:{m}, w:{x}] = exp(Z[b, m, w] - M[b, m])
        T[b:{b}, m:{m}] = sum[w:{x}] E[b, m, w]
        P[b:{b}, m:{m}, w:{x}] = E[b, m, w] / T[b, m]
        y[b:{b}, m:{m}, n:{k}] = sum[w:{x}] P[b, m, w] * v[b, m+{d}*w-{p}, n]
        output y""")


def ours(s: Sizes, feeds: Mapping[str, Array], threads: int) -> dict[str, Callable[[], Array]]:
    """Return the derived kernel, and its export run by ONNX Runtime."""
    found = fuse_vertically(expression(s))
    assert found is not None
    constants = {"outside": np.pad(np.zeros(s.rows, np.float32), s.reach, constant_values=FAR)}
    compiled = compile_program(found.end, threads, constants=constants)
    made = to_onnx(found.end, {n: n for n in ("q", "k", "v", "y")}, constants)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [s.heads, s.rows, s.features]) for n in "qkvy"]
    graph = helper.make_graph(list(made.nodes), "attention", infos[:3], infos[3:], list(made.initialisers))
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(made.functions[0].domain, 1)]
    model = helper.make_model(graph, functions=list(made.functions), opset_imports=imports, ir_version=10)
    session = open_session(model, threads)
    return {
        "ours": lambda: compiled.run(feeds)["y"],
        "ours in onnxruntime": lambda: np.asarray(session.run(None, dict(feeds))[0]),
    }


def onnxruntime_calls(s: Sizes, feeds: Mapping[str, Array], threads: int) -> dict[str, Callable[[], Array]]:
    """Return a call for every form."""
    sessions = {name: open_session(form(s), threads) for name, form in FORMS.items()}

    def call(name: str) -> Callable[[], Array]:
        return lambda: np.asarray(sessions[name].run(None, dict(feeds))[0])

    return {f"onnxruntime {name}": call(name) for name in sessions}


def torch_calls(s: Sizes, feeds: Mapping[str, Array], threads: int) -> dict[str, Callable[[], Array]]:
    """PyTorch: the same forms, its attention with a mask, and block-sparse attention; the last two also compiled."""
    import torch
    from torch.nn import functional
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.set_num_threads(threads)
    q, k, v = (torch.from_numpy(feeds[n])[None] for n in "qkv")
    scale, d, heads, rows = s.features**-0.5, s.dilation, s.heads, s.rows // s.dilation
    at = np.arange(s.rows)
    mask = torch.from_numpy(near(at, at, s))
    chunk = s.half // 2
    count = -(-rows // chunk)
    more = count * chunk - rows
    bias = torch.from_numpy(chunk_bias(Sizes(rows, s.features, heads * d, s.half, 1), chunk))
    outside = torch.from_numpy(s.outside)

    def gathered(q: Any, k: Any, v: Any) -> Any:
        out = []
        for n in range(heads):
            keys, values = (
                functional.pad(x[0, n], (0, 0, s.reach, s.reach)).as_strided(
                    (s.rows, s.window, s.features), (s.features, d * s.features, 1)
                )
                for x in (k, v)
            )
            weights = torch.softmax(torch.einsum("mk,mwk->mw", q[0, n], keys) * scale + outside, -1)
            out.append(torch.einsum("mw,mwk->mk", weights, values))
        return torch.stack(out)[None]

    def masked(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2) * scale + mask, -1) @ v

    def own(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def by_hand(q: Any, k: Any, v: Any) -> Any:
        def there(x: Any) -> Any:
            turned = x[0].reshape(heads, rows, d, s.features).permute(0, 2, 1, 3)
            return turned.reshape(heads * d, rows, s.features)

        a, b, c = map(there, (q, k, v))
        a = functional.pad(a, (0, 0, 0, more)).reshape(heads * d, count, chunk, s.features)
        b, c = (functional.pad(x, (0, 0, s.half, s.half + more)).unfold(1, chunk + 2 * s.half, chunk) for x in (b, c))
        got = torch.softmax(a @ b * scale + bias, -1) @ c.transpose(-1, -2)
        got = got.reshape(heads, d, count * chunk, s.features)[:, :, :rows]
        return got.permute(0, 2, 1, 3).reshape(q.shape)

    sees = create_block_mask(
        lambda _b, _h, m, n: ((m - n).abs() <= s.reach) & ((m - n) % d == 0), None, None, s.rows, s.rows, device="cpu"
    )
    flex = torch.compile(flex_attention)
    forms: dict[str, Callable[..., Any]] = {
        "torch windows": gathered,
        "torch full": masked,
        "torch attention": own,
        "torch residues": by_hand,
        "torch.compile full": torch.compile(masked),
        "torch.compile attention": torch.compile(own),
        "torch.compile residues": torch.compile(by_hand),
        "torch.compile flex_attention": lambda q, k, v: flex(q, k, v, block_mask=sees),
    }

    def call(form: Callable[..., Any]) -> Callable[[], Array]:
        def run() -> Array:
            with torch.inference_mode():
                return np.asarray(form(q, k, v)[0].numpy())

        return run

    return {name: call(form) for name, form in forms.items()}


def bands(s: Sizes, threads: int) -> dict[str, Callable[[], Array]]:
    """Measure G2BMM and GBMM alone: with residues as a batch (dense), dilated, and by NumPy on strided windows."""
    rng = np.random.default_rng(0)
    b, d, rows, k = s.heads, s.dilation, s.rows // s.dilation, s.features
    plain, wide = (rng.standard_normal((b, s.rows, n)).astype(np.float32) for n in (k, s.window))
    padded = np.pad(plain, ((0, 0), (s.reach, s.reach), (0, 0)))
    steps = (padded.strides[0], padded.strides[1], d * padded.strides[1], padded.strides[2])
    seen = as_strided(padded, (b, s.rows, s.window, k), steps)

    def kernel(program: Program, left: Array) -> Callable[[], Array]:
        shapes = {t.name: t.shape for t in program.inputs}
        compiled = compile_program(program, threads)
        feeds = {"A": left.reshape(shapes["A"]), "B": plain.reshape(shapes["B"])}
        np.copyto(compiled.inputs["A"], feeds["A"])
        np.copyto(compiled.inputs["B"], feeds["B"])

        def run() -> Array:
            compiled.execute()
            return compiled.outputs["Y"]

        return run

    return {
        "ours": kernel(ops.g2bmm(b * d, rows, s.half, k), plain),
        "GBMM, residues": kernel(ops.gbmm(b * d, rows, s.half, k), wide),
        "G2BMM, dilated": kernel(ops.g2bmm(b, s.rows, s.half, k, d), plain),
        "GBMM, dilated": kernel(ops.gbmm(b, s.rows, s.half, k, d), wide),
        "G2BMM, NumPy": lambda: np.matmul(seen, plain[..., None])[..., 0],
        "GBMM, NumPy": lambda: np.matmul(wide[:, :, None], seen)[:, :, 0],
    }


def timed(calls: Mapping[str, Callable[[], Array]], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return the seconds of each call in every round, measured by *clock*."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            sleep(SETTLE)
            began = clock()
            call()
            found[name].append(clock() - began)
    return found


def main() -> None:
    """Print for each form: milliseconds, the speedup of ours (median of the rounds), and the largest error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=10000)
    parser.add_argument("--half", type=int, default=500)
    parser.add_argument("--dilation", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processor", action="store_true", help="processor time: one thread on a busy machine")
    parser.add_argument("--bands", action="store_true", help="only the band products; ours is G2BMM, residues")
    parser.add_argument("--only", default="", help="only forms whose name contains this, and ours")
    given = parser.parse_args()
    s = Sizes(given.rows, heads=given.heads, half=given.half, dilation=given.dilation)
    if given.bands:
        _say(s, given.threads, timed(bands(s, given.threads), given.rounds, _clock(given.processor)), {})
        return
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((s.heads, s.rows, s.features)).astype(np.float32) for n in "qkv"}
    calls = {**ours(s, feeds, given.threads), **onnxruntime_calls(s, feeds, given.threads)}
    if importlib.util.find_spec("torch"):
        calls |= torch_calls(s, feeds, given.threads)
    calls = {name: call for name, call in calls.items() if name == "ours" or given.only in name}
    want = calls["ours"]()
    errors = {name: float(np.abs(call() - want).max() / np.abs(want).max()) for name, call in calls.items()}
    _say(s, given.threads, timed(calls, given.rounds, _clock(given.processor)), errors)


def _clock(processor: bool) -> Callable[[], float]:
    return process_time if processor else perf_counter


def _say(s: Sizes, threads: int, samples: Mapping[str, list[float]], errors: Mapping[str, float]) -> None:
    print(f"{s}, {threads} threads\n{'':32}{'ms':>10}{'ratio':>8}{'error':>10}")
    for name, found in samples.items():
        ratio = median(one / other for one, other in zip(found, samples["ours"], strict=True))
        print(f"{name:32}{median(found) * 1e3:10.1f}{ratio:8.1f}{errors.get(name, 0):10.1e}")


if __name__ == "__main__":
    main()
