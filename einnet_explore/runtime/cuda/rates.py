"""Rates of the GPU, measured, for the cost model of a search."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from einnet_explore.runtime.cuda.device import Call, capture_graph, cuda_device, cupy_package, event_seconds
from einnet_explore.runtime.cuda.execution import compile_plan
from einnet_explore.runtime.cuda.steps import CudaPlan, CudaProduct, View

SIDE = 4096
"""Rows and columns of the product that is timed."""

COPY_BYTES = 1 << 30
"""Bytes of the copy in memory that is timed."""


def measure_rates() -> dict[str, float]:
    """Measure the device: copies in memory and in its cache, a large product, a tiny kernel in a graph and by itself.

    Bytes, FLOP/s, bytes/s and seconds, by the names of ``runtime.profile_store.RATES``, and more.  Short calls are
    measured as graphs of many, so that they are not rates of Python.  It takes about a second.
    """
    cp = cupy_package()
    found: dict[str, float] = {}
    cache = int(cuda_device().l2_bytes)
    turn = [_copy(COPY_BYTES) for _ in range(2)]
    # Not as a graph: its copies are done by an engine that is slower than the multiprocessors.
    found["memory_bandwidth"] = 2 * COPY_BYTES / median(event_seconds(turn))
    a, b = cp.zeros(cache // 16, cp.float32), cp.empty(cache // 16, cp.float32)
    found["cache_bandwidth"] = 2 * a.nbytes / _seconds_in_graph([lambda: cp.multiply(a, 2, out=b)], 64)
    square = View("a", 0, (SIDE, SIDE), (SIDE, 1))
    step = CudaProduct(View("c", 0, (SIDE, SIDE), (SIDE, 1)), square, View("b", 0, (SIDE, SIDE), (SIDE, 1)))
    for label, precision in (("peak_flops", "float32"), ("peak_flops_tf32", "tf32")):
        plan = CudaPlan(dict.fromkeys("abc", (SIDE, SIDE)), ("a", "b"), (), ("c",), (step,), precision=precision)
        found[label] = 2 * SIDE**3 / median(event_seconds([compile_plan(plan).execute]))
    tiny = cp.zeros(1, cp.float32)
    found["call_seconds"] = _seconds_in_graph([lambda: cp.add(tiny, tiny, out=tiny)], 256)
    found["host_call_seconds"] = median(event_seconds([lambda: cp.add(tiny, tiny, out=tiny)]))
    found["cache_bytes"] = cache
    cp.get_default_memory_pool().free_all_blocks()  # other libraries need memory, too
    return found


def _copy(nbytes: int) -> Call:
    cp = cupy_package()
    a, b = cp.zeros(nbytes, cp.uint8), cp.empty(nbytes, cp.uint8)
    return lambda: cp.copyto(b, a)


def _seconds_in_graph(turn: Sequence[Call], count: int) -> float:
    """Return the seconds of a call in a graph of *count* calls, which takes those of *turn* in turn."""

    def calls() -> None:
        for n in range(count):
            turn[n % len(turn)]()

    return median(event_seconds([capture_graph(calls)])) / count
