"""Compare eOperators with streaming: the fraction of memory bandwidth that generated kernels reach.

``python -m benchmarks.eoperators [--threads N] [--seconds S] [--case WORD]``.  *c* is the time of
the kernel, divided by the time of the triad a = b + 2·c on the same number of bytes and threads: the median over rounds
that run all of them in turn.  *stream* is the fraction of streaming bandwidth of the kernel; below 80 % on a megabyte
or more it is marked.  A dilated G2BMM is compared with NumPy's strided product.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from einnet_explore.analysis.row_nest import match_row_nest
from einnet_explore.ir import Const, Iterator, Program, Scope, Tensor, accesses, add, mul, tensors
from einnet_explore.operators import expressions as ops
from einnet_explore.rules import ROW_GENERATION, VARIABLE_SUBSTITUTION, Derivation
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.implementations import loop_nests
from einnet_explore.runtime.measurement import time_calls, times_faster
from einnet_explore.runtime.program import compile_program, set_blas_threads
from einnet_explore.syntax import parse

CASES = {
    "OffsetReduce 9x28x28x64": """
        tensor T[3, 3, 28, 28, 64] pad [0, 0, 1, 1, 0]
        Y[h:28, w:28, f:64] = sum[r:3, s:3] T[r, s, h+r-1, w+s-1, f]""",
    "OffsetReduce 9x112x112x64": """
        tensor T[3, 3, 112, 112, 64] pad [0, 0, 1, 1, 0]
        Y[h:112, w:112, f:64] = sum[r:3, s:3] T[r, s, h+r-1, w+s-1, f]""",
    "OffsetReduce, Matmul's layout": """
        tensor T[28, 28, 3, 3, 64] pad [1, 1, 0, 0, 0]
        Y[h:28, w:28, f:64] = sum[r:3, s:3] T[h+r-1, w+s-1, r, s, f]""",
    "OffsetReduce NCHW": """
        tensor T[3, 3, 64, 56, 56] pad [0, 0, 0, 1, 1]
        Y[f:64, h:56, w:56] = sum[r:3, s:3] T[r, s, f, h+r-1, w+s-1]""",
    "OffsetReduce 7x7": """
        tensor T[7, 7, 3, 3, 512] pad [1, 1, 0, 0, 0]
        Y[h:7, w:7, f:512] = sum[r:3, s:3] T[h+r-1, w+s-1, r, s, f]""",
    "OffsetReduce to NCHW": """
        tensor T[28, 28, 3, 3, 64] pad [1, 1, 0, 0, 0]
        Y[f:64, h:28, w:28] = sum[r:3, s:3] T[h+r-1, w+s-1, r, s, f]""",
    "NCHW to NHWC 64x224x224": "tensor A[64, 224, 224]\nY[h:224, w:224, c:64] = A[c, h, w]",
    "NHWC to NCHW 64x224x224": "tensor A[224, 224, 64]\nY[c:64, h:224, w:224] = A[h, w, c]",
    "NCHW to NHWC 64x56x56": "tensor A[64, 56, 56]\nY[h:56, w:56, c:64] = A[c, h, w]",
    "NHWC to NCHW 64x56x56": "tensor A[56, 56, 64]\nY[c:64, h:56, w:56] = A[h, w, c]",
    "NCHW to NHWC 256x56x56": "tensor A[256, 56, 56]\nY[h:56, w:56, c:256] = A[c, h, w]",
    "NHWC to NCHW 256x56x56": "tensor A[56, 56, 256]\nY[c:256, h:56, w:56] = A[h, w, c]",
    "NCHW to NHWC, bias, relu": """
        tensor A[64, 56, 56]
        tensor b[64]
        Y[h:56, w:56, c:64] = relu(A[c, h, w] + b[c])""",
    "NCHW to NHWC 128x28x28": "tensor A[128, 28, 28]\nY[h:28, w:28, c:128] = A[c, h, w]",
    "overlap-add NHWC": """
        tensor T[16, 8, 8, 4, 4, 64] pad [0, 0, 0, 16, 16, 0]
        Y[n:16, y:16, x:16, c:64] = sum[h:8, w:8] T[n, h, w, y+1-2*h, x+1-2*w, c]""",
    "overlap-add NCHW": """
        tensor T[32, 4, 4, 32, 32] pad [0, 64, 64, 0, 0]
        Y[c:32, y:64, x:64] = sum[h:32, w:32] T[c, y+1-2*h, x+1-2*w, h, w]""",
    "overlap-add, 3 channels": """
        tensor T[16, 32, 32, 4, 4, 3] pad [0, 0, 0, 64, 64, 0]
        Y[n:16, y:64, x:64, c:3] = sum[h:32, w:32] T[n, h, w, y+1-2*h, x+1-2*w, c]""",
    "parity split": """
        tensor A[64, 112, 112]
        Y[p:2, q:2, c:64, h:56, w:56] = A[c, 2*h + p, 2*w + q]""",
    "parity split NHWC": """
        tensor A[112, 112, 64]
        Y[p:2, q:2, h:56, w:56, c:64] = A[2*h + p, 2*w + q, c]""",
    "filters of taps as one matrix": """
        tensor K[3, 3, 512, 512]
        Y[b:512, k:3, n:1536] = K[n // 512, k, n % 512, b]""",
    "windows as a matrix": """
        tensor A[28, 28, 128] pad [2, 2, 0]
        Y[b:2, m:784, k:768] = A[m // 28+k // 256-1, 2*b+(k // 128) % 2+m % 28-1, k % 128]""",
    "Winograd's input, NHWC": """
        tensor X[6, 28, 28, 128] pad [0, 0, 1, 0]
        Y[z:36, m:196, c:128] = sum[i:6] table[6, 6] (
            4, 0, -5, 0, 1, 0, 0, -4, -4, 1, 1, 0, 0, 4, -4, -1, 1, 0,
            0, -2, -1, 2, 1, 0, 0, 2, -1, -2, 1, 0, 0, 4, 0, -5, 0, 1)[z // 6, i]
            * X[z % 6, m // 7, 4*(m % 7)+i-1, c]""",
    "Winograd's input, turned": """
        tensor X[28, 28, 128, 6] pad [0, 1, 0, 0]
        Y[p:6, z:6, h:28, t:7, c:128] = sum[i:6] table[6, 6] (
            4, 0, -5, 0, 1, 0, 0, -4, -4, 1, 1, 0, 0, 4, -4, -1, 1, 0,
            0, -2, -1, 2, 1, 0, 0, 2, -1, -2, 1, 0, 0, 4, 0, -5, 0, 1)[p, i] * X[h, 4*t+i-1, c, z]""",
    "Winograd's output": """
        tensor M[6, 28, 7, 128]
        Y[h:28, w:28, f:128] = sum[p:6] table[4, 6] (
            1, 1, 1, 1, 1, 0, 0, 1, -1, 2, -2, 0, 0, 1, 1, 4, 4, 0, 0, 1, -1, 8, -8, 1)[w % 4, p]
            * M[p, h, w // 4, f]""",
    "residual, bias, relu": """
        tensor A[64, 56, 56]
        tensor B[64, 56, 56]
        tensor b[64]
        Y[c:64, h:56, w:56] = relu(A[c, h, w] + B[c, h, w] + b[c])""",
    "hard swish": """
        tensor A[64, 56, 56]
        Y[c:64, h:56, w:56] = A[c, h, w] * minimum(maximum(A[c, h, w] / 6 + 0.5, 0), 1)""",
    "sum over channels": "tensor A[256, 56, 56]\nY[h:56, w:56] = sum[c:256] A[c, h, w]",
    "mean of images": "tensor A[512, 28, 28]\nY[c:512] = sum[h:28, w:28] A[c, h, w] / 784",
}


NUMPY: dict[str, Callable[..., Callable[[], object]]] = {
    "NCHW to NHWC 64x224x224": lambda a: lambda: np.ascontiguousarray(a.transpose(1, 2, 0)),
    "NHWC to NCHW 64x224x224": lambda a: lambda: np.ascontiguousarray(a.transpose(2, 0, 1)),
    "NCHW to NHWC 128x28x28": lambda a: lambda: np.ascontiguousarray(a.transpose(1, 2, 0)),
    "parity split": lambda a: lambda: np.ascontiguousarray(a.reshape(64, 56, 2, 56, 2).transpose(2, 4, 0, 1, 3)),
    "parity split NHWC": lambda a: lambda: np.ascontiguousarray(a.reshape(56, 2, 56, 2, 64).transpose(1, 3, 0, 2, 4)),
    "residual, bias, relu": lambda a, b, c: lambda: np.maximum(a + b + c[:, None, None], 0),
    "sum over channels": lambda a: lambda: a.sum(0),
    "mean of images": lambda a: lambda: a.mean((1, 2)),
}
"""The same in NumPy, where it is a call or two."""


def triad(elements: int, threads: int) -> Callable[[], None]:
    """Return the call a = b + 2·c on *elements* elements in total."""
    lane = 256
    rows = max(1, elements // (3 * lane))
    i, j = Iterator("i", 0, rows), Iterator("j", 0, lane)
    b, c = (Tensor(name, (rows, lane))[i, j] for name in "bc")
    kernel = loop_nests(Scope((i, j), (), add(b, mul(Const(2), c))), threads)
    return kernel.bind({name: aligned(np.ones((rows, lane))) for name in "bc"}, aligned_empty((rows, lane)))


def main(argv: Sequence[str] = ()) -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(prog="benchmarks.eoperators", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2, help="seconds of measurement for each case")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    arguments = parser.parse_args(argv)
    heads = f"{'eOperator':32} {'KB':>7} {'µs':>9} {'c':>6} {'numpy':>6} {'stream':>7}"
    print(f"{heads}   threads: {arguments.threads}")
    rng = np.random.default_rng(0)
    for name, text in CASES.items():
        if arguments.case not in name:
            continue
        scope = parse(text).equations[-1].scope
        arrays = {t.name: aligned(rng.standard_normal(t.shape)) for t in tensors(scope)}
        elements = prod(scope.shape) + sum(a.size for a in arrays.values())
        calls: dict[str, Callable[[], object]] = {
            "c": loop_nests(scope, arguments.threads).bind(arrays, aligned_empty(scope.shape)),
            "triad": triad(elements, arguments.threads),
        }
        if name in NUMPY and arguments.threads == 1:
            calls["numpy"] = NUMPY[name](*arrays.values())
        found = time_calls(calls, rounds=15, min_seconds=arguments.seconds / 2)
        ratios = {n: 1 / times_faster(found["triad"], t) for n, t in found.items() if n != "triad"}
        shown = "".join(f" {ratios[n]:6.2f}" if n in ratios else f" {'-':>6}" for n in ("c", "numpy"))
        short = " below 80 %" if elements * 4 >= 1 << 20 and ratios["c"] > 1.25 else ""
        print(
            f"{name:32} {elements * 4 / 1e3:7.0f} {found['c'].median * 1e6:9.1f}{shown}"
            f" {100 / ratios['c']:5.0f} %{short}",
            flush=True,
        )
    if arguments.case in "dilated G2BMM":
        banded(arguments.threads, arguments.seconds)


def residues(program: Program) -> Program:
    """Return *program*, a dilated band, with row residues as a batch, as ``strategies.vertical_fusion`` derives it."""
    for match in VARIABLE_SUBSTITUTION.matches(program, (0,)):
        longer = Derivation(program).then(match)
        inner = [a.source for a in accesses(longer.end.equations[0].scope.body)]
        if len(inner) == 1 and isinstance(inner[0], Scope) and match_row_nest(inner[0]) is not None:
            generated = next(iter(ROW_GENERATION.matches(longer.end, (0, 0))))
            return longer.then(generated).end
    raise ValueError(f"{program!r} has no residues")


def banded(threads: int, seconds: float) -> None:
    """Compare the planned dilated G2BMM (b 2, m 4096, k 64, w 128, d 4) with NumPy's strided batched product."""
    b, m, k, w, d = 2, 4096, 64, 128, 4
    program = ops.g2bmm(b=b, m=m, w=w, k=k, dilation=d)
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}
    first, second = (arrays[t.name] for t in program.inputs)
    padded = np.pad(second, ((0, 0), (w * d, w * d), (0, 0)))
    one, two, three = padded.strides
    windows = as_strided(padded, (b, m, 2 * w + 1, k), (one, two, d * two, three))

    def by_numpy() -> object:
        return np.matmul(windows, first[..., None])[..., 0]

    set_blas_threads(threads)
    calls: dict[str, Callable[[], object]] = {"numpy": by_numpy}
    for name, made in {"as it is": program, "residues as a batch": residues(program)}.items():
        context = compile_program(made, threads).contexts.context()
        for n, array in arrays.items():
            context.inputs[n][...] = array
        calls[name] = context.execute
        context.execute()
        (found,) = context.outputs.values()
        assert np.allclose(found, by_numpy(), rtol=1e-4, atol=1e-4)
    times = time_calls(calls, rounds=9, min_seconds=seconds)
    for name in list(calls)[1:]:
        faster = times_faster(times["numpy"], times[name])
        print(f"dilated G2BMM, {name:20} {times[name].median * 1e6:9.0f} µs, {faster:.2f} times as fast as NumPy")


if __name__ == "__main__":
    main(sys.argv[1:])
