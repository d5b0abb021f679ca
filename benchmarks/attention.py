"""Compare the derived one-pass softmax attention (full or banded) with libraries: ``python -m benchmarks.attention``.

``ours`` is the kernel that ``einnet-explore optimize`` derives from the ONNX model of ``onnxruntime unfused`` (MatMul,
Mul, Softmax, MatMul).  All engines run in turn in one process; ratios are relative to ``ours``.  ``--memory`` runs each
engine in its own process and prints the growth of its peak resident memory during the call.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from benchmarks.longformer import SETTLE, Graph, Sizes, near
from benchmarks.longformer import expression as banded
from einnet_explore.ir import Program
from einnet_explore.pipeline.model_sessions import open_session
from einnet_explore.runtime.program import compile_program
from einnet_explore.strategies.vertical_fusion import fuse_vertically
from einnet_explore.syntax import parse

Array = npt.NDArray[Any]
Calls = Mapping[str, Callable[[], Callable[[], Array]]]
"""Engines by name, each opened only when it is asked for."""


def expression(s: Sizes) -> Program:
    """Full attention as equations."""
    b, m, k = s.heads, s.rows, s.features
    return parse(f"""
        tensor q[{b}, {m}, {k}]
        tensor k[{b}, {m}, {k}]
        tensor v[{b}, {m}, {k}]
        S[b:{b}, m:{m}, w:{m}] = sum[c:{k}] q[b, m, c] * k[b, w, c]
        Z[b:{b}, m:{m}, w:{m}] = {k**-0.5} * S[b, m, w]
        M[b:{b}, m:{m}] = max[w:{m}] Z[b, m, w]
        E[b:{b}, m:{m}, w:{m}] = exp(Z[b, m, w] - M[b, m])
        T[b:{b}, m:{m}] = sum[w:{m}] E[b, m, w]
        P[b:{b}, m:{m}, w:{m}] = E[b, m, w] / T[b, m]
        y[b:{b}, m:{m}, n:{k}] = sum[w:{m}] P[b, m, w] * v[b, w, n]
        output y""")


def unfused(s: Sizes, mask: Array | None) -> onnx.ModelProto:
    """ONNX model of MatMul, Mul, Add (if there is a mask), Softmax and MatMul."""
    g = Graph(s)
    scores = g.node("MatMul", "q", g.node("Transpose", "k", perm=[0, 2, 1]))
    scaled = g.node("Mul", scores, g.weight(s.features**-0.5, np.float32))
    scaled = scaled if mask is None else g.node("Add", scaled, g.weight(mask[None], np.float32))
    return g.model(g.node("MatMul", g.node("Softmax", scaled, axis=-1), "v"))


def contributed(s: Sizes) -> onnx.ModelProto:
    """ONNX model of ONNX Runtime's fused ``MultiHeadAttention``."""
    shape = [1, s.rows, s.heads * s.features]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkvy"]
    node = helper.make_node("MultiHeadAttention", list("qkv"), ["y"], domain="com.microsoft", num_heads=s.heads)
    graph = helper.make_graph([node], "attention", infos[:3], infos[3:])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def calls(s: Sizes, full: bool, threads: int) -> Calls:
    """Return a call for every engine."""
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((s.heads, s.rows, s.features)).astype(np.float32) for n in "qkv"}
    at = np.arange(s.rows)
    mask = None if full else near(at, at, s)

    def ours() -> Callable[[], Array]:
        found = fuse_vertically(expression(s) if full else banded(s))
        assert found is not None
        constants = {} if full else {"outside": np.pad(np.zeros(s.rows, np.float32), s.reach, constant_values=-1e9)}
        compiled = compile_program(found.end, threads, constants=constants)
        for name, array in feeds.items():
            np.copyto(compiled.inputs[name], array)

        def run() -> Array:
            compiled.execute()
            return compiled.outputs["y"]

        return run

    def ort() -> Callable[[], Array]:
        session = open_session(unfused(s, mask), threads)
        return lambda: np.asarray(session.run(None, dict(feeds))[0])

    def own() -> Callable[[], Array]:
        session = open_session(contributed(s), threads)
        flat = {n: np.ascontiguousarray(a.swapaxes(0, 1)).reshape(1, s.rows, -1) for n, a in feeds.items()}

        def run() -> Array:
            got = np.asarray(session.run(None, flat)[0])
            return got.reshape(s.rows, s.heads, s.features).swapaxes(0, 1)

        return run

    found: dict[str, Callable[[], Callable[[], Array]]] = {"ours": ours, "onnxruntime unfused": ort}
    if full:
        found["onnxruntime MultiHeadAttention"] = own
    if importlib.util.find_spec("torch"):
        found |= _torch(s, feeds, mask, threads)
    return found


def _torch(s: Sizes, feeds: Mapping[str, Array], mask: Array | None, threads: int) -> Calls:
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    q, k, v = (torch.from_numpy(feeds[n])[None] for n in "qkv")
    bias = None if mask is None else torch.from_numpy(mask.astype(np.float32))[None, None]

    def run(form: Callable[[], Any]) -> Callable[[], Callable[[], Array]]:
        def opened() -> Callable[[], Array]:
            def call() -> Array:
                with torch.inference_mode():
                    return np.asarray(form()[0].numpy())

            return call

        return opened

    def plain() -> Any:
        scores = q @ k.transpose(-1, -2) * s.features**-0.5
        return torch.softmax(scores if bias is None else scores + bias, -1) @ v

    own = run(lambda: functional.scaled_dot_product_attention(q, k, v, attn_mask=bias))
    return {"torch unfused": run(plain), "torch scaled_dot_product_attention": own}


def grown(call: Callable[[], Array]) -> int:
    """Return the growth in bytes of the peak resident memory while *call* runs (Linux)."""
    ctypes.CDLL(None).malloc_trim(0)  # what opening left behind is not to be found free
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def _status(word: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(word))
    return int(line.split()[1]) << 10


def main() -> None:
    """Print for each engine: milliseconds, the speedup of ours (median of the rounds), and the largest error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--half", type=int, default=0, help="half of the window; 0: every row sees every column")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processor", action="store_true", help="processor time: one thread on a busy machine")
    parser.add_argument("--memory", action="store_true", help="print the memory of each, in its own process")
    parser.add_argument("--grown", help="print the memory of the engine with this name, in bytes")
    given = parser.parse_args()
    s = Sizes(given.rows, given.features, given.heads, given.half, 1)
    every = calls(s, not given.half, given.threads)
    if given.grown:
        print(grown(every[given.grown]()))
    elif given.memory:
        _memory(list(every))
    else:
        _times(s, every, given.rounds, process_time if given.processor else perf_counter, given.threads)


def _memory(names: list[str]) -> None:
    arguments = [x for x in sys.argv[1:] if x != "--memory"]
    taken = {}
    for name in names:
        command = [sys.executable, "-m", "benchmarks.attention", *arguments, "--grown", name]
        taken[name] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    whole = taken["onnxruntime unfused"]
    for name, size in taken.items():
        print(f"{name:36}{size / 2**20:10.1f} MiB{size / whole:10.1%}")


def _times(s: Sizes, every: Calls, rounds: int, clock: Callable[[], float], threads: int) -> None:
    opened = {name: open_() for name, open_ in every.items()}
    want = opened["ours"]().copy()
    errors = {name: float(np.abs(call() - want).max() / np.abs(want).max()) for name, call in opened.items()}
    samples: dict[str, list[float]] = {name: [] for name in opened}
    for _ in range(rounds):
        for name, call in opened.items():
            sleep(SETTLE)
            began = clock()
            call()
            samples[name].append(clock() - began)
    print(f"{s}, {threads} threads\n{'':36}{'ms':>10}{'ratio':>8}{'error':>10}")
    for name, found in samples.items():
        ratio = median(one / other for one, other in zip(found, samples["ours"], strict=True))
        print(f"{name:36}{median(found) * 1e3:10.1f}{ratio:8.2f}{errors[name]:10.1e}")


if __name__ == "__main__":
    main()
