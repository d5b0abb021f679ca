"""Compare C element-wise kernels with NumPy and streaming: ``python -m benchmarks.elementwise``.

All run in turn; a figure is the median over the rounds of the time relative to the C kernel (above 1: C is faster).
*stream* is the time of the triad on the same number of bytes, divided by the time of the kernel: 1 is the memory
bandwidth.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np

from einnet_explore.codegen.elementwise import Functor, build_functor, elementwise_host_kernel, operand_read
from einnet_explore.codegen.language.values import F16, F32
from einnet_explore.ir import Const, Iterator, Scope, Tensor, add, mul, tensors
from einnet_explore.runtime import c_kernels
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.implementations import loop_nests
from einnet_explore.runtime.measurement import settle_seconds, time_calls, times_faster
from einnet_explore.syntax import parse

LENGTHS = (1 << 12, 1 << 16, 1 << 20, 1 << 23)

CASES = {
    "relu": "Y[i:{n}] = relu(A[i])",
    "residual, relu": "Y[i:{n}] = relu(A[i] + B[i])",
    "hard swish": "Y[i:{n}] = A[i] * minimum(maximum(A[i] / 6 + 0.5, 0), 1)",
    "swish": "Y[i:{n}] = A[i] * sigmoid(A[i])",
}
NUMPY: dict[str, Callable[..., object]] = {
    "relu": lambda y, a: np.maximum(a, 0, out=y),
    "residual, relu": lambda y, a, b: np.maximum(np.add(a, b, out=y), 0, out=y),
    "hard swish": lambda y, a: np.multiply(a, np.clip(a / 6 + np.float32(0.5), 0, 1), out=y),
    "swish": lambda y, a: np.divide(a, 1 + np.exp(-a), out=y),
}


def triad(count: int, threads: int) -> Callable[[], object]:
    """Return the call a = b + 2·c on *count* numbers in total."""
    i = Iterator("i", 0, max(1, count // 3))
    b, c = (Tensor(name, (i.extent,))[(i,)] for name in "bc")
    made = loop_nests(Scope((i,), (), add(b, mul(Const(2), c))), threads)
    return made.bind({name: aligned(np.ones(i.extent, np.float32)) for name in "bc"}, aligned_empty((i.extent,)))


def in_c(made: Functor, arrays: Sequence[np.ndarray], threads: int) -> Callable[[], object]:
    """Return the C kernel, bound to result and operands."""
    n = arrays[0].size
    loaded = c_kernels.load_c_kernel(elementwise_host_kernel(made))
    return loaded.bind(*arrays, n, -(-n // threads), grid=(threads, 1, 1), threads=threads)  # type: ignore[no-any-return]


def measured(name: str, n: int, threads: int, seconds: float) -> tuple[float, float]:
    """Return the times of NumPy and the triad, each divided by the time of the C kernel."""
    text = CASES[name].format(n=n)
    used = [t for t in "AB" if f"{t}[" in text]
    scope = parse("\n".join([*(f"tensor {t}[{n}]" for t in used), text])).equations[0].scope
    held = [aligned(np.random.default_rng(k).normal(size=n).astype(np.float32)) for k in range(len(used))]
    out, third = (aligned_empty((n,)) for _ in range(2))
    order = {t.name: a for t, a in zip(tensors(scope), held, strict=True)}
    made = build_functor(scope, name)
    calls: dict[str, Callable[[], object]] = {
        "c": in_c(made, [out, *(order[o] for o, _ in made.operands)], threads),
        "numpy": lambda: NUMPY[name](third, *held),
        "triad": triad(n * (1 + len(used)), threads),
    }
    for call in calls.values():
        call()
    np.testing.assert_allclose(out, third, rtol=1e-4, atol=1e-6)
    times = time_calls(calls, min_seconds=seconds, settle=settle_seconds(threads))
    return tuple(times_faster(times[k], times["c"]) for k in ("numpy", "triad"))  # type: ignore[return-value]


def cast(n: int, threads: int, seconds: float) -> float:
    """Return NumPy's time for casting float32 to half, divided by the time of the C kernel."""
    x = np.random.default_rng(0).normal(size=n).astype(np.float32)
    out, other = np.zeros(n, np.float16), np.zeros(n, np.float16)
    call = in_c(Functor(operand_read("x"), F16, (("x", F32),), name="cast"), [out, x], threads)
    times = time_calls(
        {"c": call, "numpy": lambda: np.copyto(other, x)}, min_seconds=seconds, settle=settle_seconds(threads)
    )
    assert (out == other).all()
    return times_faster(times["numpy"], times["c"])


def main(argv: Sequence[str] | None = None) -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2, help="seconds of measurement for each case")
    given = parser.parse_args(argv)
    print(f"{'':18}{'elements':>12}{'NumPy':>8}{'stream':>8}")
    for n in LENGTHS:
        for name in CASES:
            numpy, stream = measured(name, n, given.threads, given.seconds)
            print(f"{name:18}{n:12,}{numpy:8.2f}{stream:8.2f}", flush=True)
        print(f"{'float32 to half':18}{n:12,}{cast(n, given.threads, given.seconds):8.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
