"""Measured memory bandwidth and peak FLOP/s of the host."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from einnet_explore.ir import Const, Iterator, Scope, Tensor, add, mul
from einnet_explore.runtime import generated, tvm_cpu
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.measurement import time_calls


@lru_cache(maxsize=16)
def stream_bandwidth(threads: int = 1, nbytes: int = 1 << 26) -> float:
    """Bytes a second of the triad a = b + 2·c, reads and writes counted, over arrays of *nbytes* together."""
    lane = 1024
    rows = max(1, nbytes // (3 * 4 * lane))
    i, j = Iterator("i", 0, rows), Iterator("j", 0, lane)
    b, c = (Tensor(name, (rows, lane))[i, j] for name in "bc")
    kernel = tvm_cpu.compile_scope(Scope((i, j), (), add(b, mul(Const(2), c))), threads=threads)
    arrays = [aligned(np.ones((rows, lane), np.float32)) for _ in range(2)]
    call = kernel.bind(arrays, aligned_empty((rows, lane)))
    return 3 * 4 * rows * lane / time_calls({"triad": call}, rounds=5, min_seconds=0.05)["triad"].median


@lru_cache(maxsize=16)
def peak_flops(threads: int = 1) -> float:
    """Multiplications and additions a second of a product that stays in the first-level caches."""
    rows, depth, columns = 16 * threads, 256, 64
    m, n, k = Iterator("m", 0, rows), Iterator("n", 0, columns), Iterator("k", 0, depth)
    scope = Scope((m, n), (k,), mul(Tensor("A", (rows, depth))[m, k], Tensor("B", (depth, columns))[k, n]))
    arrays = {name: aligned(np.ones(s, np.float32)) for name, s in (("A", (rows, depth)), ("B", (depth, columns)))}
    made = generated.tiled_contraction(scope, {"A"}, 1)
    assert made is not None
    call = made.bind(arrays, aligned_empty((rows, columns)))
    samples = time_calls({"product": call}, rounds=15, min_seconds=0.02)["product"].samples
    return threads * 2 * rows * depth * columns / min(samples)
