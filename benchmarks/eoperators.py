"""eOperators against streaming: how close generated kernels come to moving their bytes.

``python -m benchmarks.eoperators [--threads N] [--tune] [--seconds S]``.  A kernel's ratio is its time over that of the
triad a = b + 2·c on as many bytes, run in turn with it by as many threads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from einnet_explore.backends import aligned, aligned_empty, compare, compile_scope
from einnet_explore.ir import Const, Iterator, Scope, Tensor, add, mul, tensors
from einnet_explore.text import parse

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


def triad(elements: int, threads: int) -> Callable[[], None]:
    """The call a = b + 2·c on *elements* elements together."""
    lane = 256
    rows = max(1, elements // (3 * lane))
    i, j = Iterator("i", 0, rows), Iterator("j", 0, lane)
    b, c = (Tensor(name, (rows, lane))[i, j] for name in "bc")
    kernel = compile_scope(Scope((i, j), (), add(b, mul(Const(2), c))), threads=threads)
    return kernel.bind([aligned(np.ones((rows, lane))) for _ in range(2)], aligned_empty((rows, lane)))


def main(argv: Sequence[str] = ()) -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(prog="benchmarks.eoperators", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tune", action="store_true", help="measure the applicable schedules and keep the best")
    parser.add_argument("--seconds", type=float, default=0.2, help="of measurement a case")
    arguments = parser.parse_args(argv)
    print(
        f"{'eOperator':32} {'template':9} {'KB':>7} {'µs':>9} {'triad µs':>9} {'ratio':>6}   "
        f"threads: {arguments.threads}"
    )
    rng = np.random.default_rng(0)
    for name, text in CASES.items():
        scope = parse(text).equations[-1].scope
        kernel = compile_scope(scope, threads=arguments.threads, tune=arguments.tune)
        arrays = [aligned(rng.standard_normal(t.shape)) for t in tensors(scope)]
        elements = prod(scope.shape) + sum(a.size for a in arrays)
        calls = {
            "kernel": kernel.bind(arrays, aligned_empty(scope.shape)),
            "triad": triad(elements, arguments.threads),
        }
        found = compare(calls, rounds=15, min_seconds=arguments.seconds / 2)
        seconds, stream = found["kernel"].median, found["triad"].median
        print(
            f"{name:32} {kernel.source.template:9} {elements * 4 / 1e3:7.0f} {seconds * 1e6:9.1f} {stream * 1e6:9.1f} "
            f"{seconds / stream:6.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
