"""Calls as one CUDA graph, so that no time passes between kernels.

What is allocated while a graph is captured is the graph's as long as it lives: CuPy's in a pool of its own, torch's in
torch's private pool, which torch's own capture makes.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from einnet_explore.backends.cuda_device import package

Call = Callable[[], object]


def captured(call: Call) -> Call:
    """*call*, which does not call torch, as one CUDA graph that is launched in CuPy's current stream."""
    cp = package()
    pool = cp.cuda.MemoryPool()
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.get_current_stream().synchronize()
    with stream, cp.cuda.using_allocator(pool.malloc):
        call()  # handles and workspaces are made, and the pool filled
        stream.synchronize()
        stream.begin_capture()
        call()
        graph = stream.end_capture()

    def launch(_held: object = (pool, stream)) -> None:
        graph.launch(cp.cuda.get_current_stream())

    return launch


def captured_by_torch(call: Callable[[], Any]) -> Call:
    """*call*, which may call torch and CuPy, as one graph; what it returns is kept alive with it.

    Torch captures, so that torch's memory is the graph's; CuPy works in the stream that torch captures.
    """
    cp = package()
    torch: Any = import_module("torch")
    pool = cp.cuda.MemoryPool()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side), cp.cuda.ExternalStream(side.cuda_stream), cp.cuda.using_allocator(pool.malloc):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Relaxed: CuPy may ask the driver for memory, which in the strictest mode ends the capture.
    with (
        torch.cuda.graph(graph, stream=side, capture_error_mode="relaxed"),
        cp.cuda.ExternalStream(side.cuda_stream),
        cp.cuda.using_allocator(pool.malloc),
    ):
        held = call()
    torch.cuda.synchronize()

    def replay(_held: object = (held, pool, side)) -> None:
        # Torch replays in its current stream: CuPy's, if it has one of its own now.
        stream = cp.cuda.get_current_stream()
        if stream.ptr in (0, 1, 2):
            graph.replay()
            return
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            graph.replay()

    return replay
