"""Times of ``ee.fuse`` and of NumPy at a million elements: ``python -m benchmarks.fused_functions``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median
from time import thread_time

import numpy as np

import einnet_explore as ee
from einnet_explore.runtime.arrays import Array


def softmax(x: Array, w: Array) -> Array:
    """Softmax over the last axis."""
    e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    values: Array = e / e.sum(axis=-1, keepdims=True)
    return values


def layer_norm(x: Array, w: Array) -> Array:
    """Normalisation over the last axis."""
    values: Array = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * w
    return values


def batch_norm(x: Array, w: Array) -> Array:
    """Normalisation over all axes but the last."""
    axes = tuple(range(x.ndim - 1))
    values: Array = (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True) + 1e-5) * w
    return values


def main() -> None:
    """Print milliseconds of each function on one thread, and how many times as fast as NumPy it is, by shape and type.

    They are medians of processor time, since other processes may interrupt a call.
    """
    source = np.random.default_rng(0)
    for shape, dtype in product(((1000, 10, 100), (1024, 1024)), ("float32", "float64")):
        x: Array = source.standard_normal(shape).astype(dtype)
        w: Array = source.standard_normal(shape[-1]).astype(dtype)
        for function in (softmax, layer_norm, batch_norm):
            numpy, fused = _medians((partial(function, x, w), partial(ee.fuse(function), x, w)))
            print(f"{function.__name__:12} {dtype} {shape!s:16} {fused * 1e3:6.2f} ms {numpy / fused:5.2f}")


def _medians(calls: tuple[Callable[[], object], ...], rounds: int = 60) -> list[float]:
    """Return the median processor time of each call, called in turn."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, taken, strict=True):
            start = thread_time()
            call()
            times.append(thread_time() - start)
    return list(map(median, taken))


if __name__ == "__main__":
    main()
