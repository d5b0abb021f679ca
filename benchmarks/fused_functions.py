"""Times of ``ee.fuse`` and of NumPy at a million elements: ``python -m benchmarks.fused_functions``."""

from __future__ import annotations

import numpy as np

import einnet_explore as ee
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.measurement import time_calls, times_faster


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
    values: Array = (x - x.mean(axis=(0, 1), keepdims=True)) / np.sqrt(x.var(axis=(0, 1), keepdims=True) + 1e-5) * w
    return values


def main() -> None:
    """Print how many times as fast as NumPy each function is, on one thread."""
    source = np.random.default_rng(0)
    x: Array = source.standard_normal((1000, 10, 100)).astype("float32")
    w: Array = source.standard_normal(100).astype("float32")
    for function in (softmax, layer_norm, batch_norm):
        fused = ee.fuse(function)
        calls = {"numpy": lambda f=function: f(x, w), "fused": lambda f=fused: f(x, w)}
        times = time_calls(calls, rounds=9, min_seconds=0.05)
        print(f"{function.__name__:12} {times_faster(times['numpy'], times['fused']):.2f}")


if __name__ == "__main__":
    main()
