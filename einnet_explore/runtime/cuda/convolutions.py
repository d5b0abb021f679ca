"""Convolutions and transposed convolutions on GPUs: cuDNN by its own frontend, else by torch.

With the frontend, workspace and result are our memory, so a CUDA graph of a whole plan can contain them.  A plan with
convolutions by torch is captured by torch (``capture_graph_by_torch``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from time import perf_counter
from types import ModuleType
from typing import Protocol

from einnet_explore.runtime.cuda.device import (
    Call,
    DeviceArray,
    DeviceArrays,
    cudnn_frontend,
    cupy_package,
    device_address,
    device_view,
    missing_for_convolutions,
)
from einnet_explore.runtime.cuda.steps import Convolution, Shape, View
from einnet_explore.support.errors import BackendError

CUDNN_ALIGNMENT_BYTES = 16
"""Bytes that cuDNN expects tensors to begin at a multiple of."""

MAX_WORKSPACE_BYTES = 256 << 20
"""Bytes of workspace, at most."""

MAX_TIMED_PLANS = 12
"""cuDNN's own ranking is by heuristics: so many of its first plans are timed."""

MAX_BUILD_SECONDS = 3.0
"""Seconds after which no further plan is built: some are compiled, which took over a minute for one convolution."""

X, W, Y = 1, 2, 3
"""The frontend's numbers of data, weights and result."""


class CudnnGraph(Protocol):
    """A graph of the frontend's, with the plans that run it."""

    def validate(self) -> None: ...

    def build_operation_graph(self) -> None: ...

    def create_execution_plans(self, heuristics: Sequence[object]) -> None: ...

    def deselect_workspace_greater_than(self, nbytes: int) -> object: ...

    def deselect_numeric_notes(self, notes: Sequence[object]) -> object: ...

    def check_support(self) -> None: ...

    def get_execution_plan_count(self) -> int: ...

    def build_plan_at_index(self, index: int) -> None: ...

    def get_workspace_size_plan_at_index(self, index: int) -> int: ...

    def execute_plan_at_index(
        self, pointers: dict[int, int], workspace: int, index: int, *, handle: object
    ) -> None: ...


def with_two_spatial_dimensions(step: Convolution) -> Convolution:
    """*step* in at least two spatial dimensions, as cuDNN takes it: a line is an image of one row."""
    half = len(step.strides)
    if half != 1:
        return step
    before, after = step.pads[:half], step.pads[half:]
    return Convolution(
        step.kind,
        _row(step.out),
        _row(step.data),
        _row(step.weights),
        (1, *step.strides),
        (1, *step.dilations),
        (0, *before, 0, *after),
        (0, *step.output_padding),
        step.group,
    )


def _row(view: View) -> View:
    n, c, length = view.shape
    a, b, d = view.strides
    return replace(view, shape=(n, c, 1, length), strides=(a, b, d * length, d))


def cudnn_graph(library: ModuleType, step: Convolution, handle: object = None) -> CudnnGraph:
    """The frontend's graph of *step*, not yet built, over tensors ``X``, ``W`` and ``Y`` with their strides in memory.

    A transposed convolution is the gradient of a convolution by its data; groups follow from the channels.
    """
    step = with_two_spatial_dimensions(step)
    half = len(step.strides)
    single = library.data_type.FLOAT
    made = library.pygraph(
        handle=handle, io_data_type=single, intermediate_data_type=single, compute_data_type=single, name=step.kind
    )
    x, w = (
        made.tensor(dim=list(v.shape), stride=list(v.strides), data_type=single, name=name, uid=uid)
        for name, uid, v in (("data", X, step.data), ("weights", W, step.weights))
    )
    how = {
        "pre_padding": list(step.pads[:half]),
        "post_padding": list(step.pads[half:]),
        "stride": list(step.strides),
        "dilation": list(step.dilations),
    }
    y = made.conv_fprop(image=x, weight=w, **how) if step.kind == "Conv" else made.conv_dgrad(loss=x, filter=w, **how)
    y.set_output(True).set_uid(Y).set_data_type(single)
    y.set_dim(list(step.out.shape)).set_stride(list(step.out.strides))
    graph: CudnnGraph = made
    return graph


def excluded_notes(library: ModuleType, precision: str) -> list[object]:
    """The numerical notes of plans to exclude: in float32 no factor is rounded before it is multiplied.

    cuDNN has TF32 on tensor cores for float32; half precisions for tensors of those types only, so they are TF32 here.
    """
    notes = library.numerical_note
    return [notes.DOWN_CONVERT_INPUTS, *([notes.TENSOR_CORE] if precision == "float32" else [])]


@dataclass(frozen=True)
class BuiltConvolution:
    """A graph, one of its plans by number, and the workspace that it needs, which is ours."""

    graph: CudnnGraph
    index: int
    workspace: DeviceArray
    handle: object

    def call(self, pointers: Mapping[int, int]) -> None:
        """Run on device addresses by number, in the stream that is current in CuPy."""
        _frontend().set_stream(self.handle, cupy_package().cuda.get_current_stream().ptr)
        self.graph.execute_plan_at_index(dict(pointers), int(self.workspace.data.ptr), self.index, handle=self.handle)


def _frontend() -> ModuleType:
    library = cudnn_frontend()
    assert library is not None, "convolutions that do not run on the frontend are bound by torch"
    return library


@lru_cache(maxsize=1)
def _handle() -> object:
    return _frontend().create_handle()


_BUILT: dict[tuple[object, ...], BuiltConvolution] = {}


def build_convolution(
    step: Convolution, precision: str, buffers: DeviceArrays, timer: Callable[[Call], float]
) -> BuiltConvolution:
    """cuDNN's fastest plan for *step* by *timer* (seconds of a call); raises BackendError if cuDNN has none.

    Timing overwrites the result.  Equal convolutions share a plan and its workspace,
    so they may not run in two streams at once.
    """
    places = [(v.shape, v.strides) for v in (step.out, step.data, step.weights)]
    key = (step.kind, *places, step.strides, step.dilations, step.pads, step.output_padding, step.group, precision)
    if key not in _BUILT:
        _BUILT[key] = _fastest(step, precision, buffers, timer)
    return _BUILT[key]


def _fastest(
    step: Convolution, precision: str, buffers: DeviceArrays, timer: Callable[[Call], float]
) -> BuiltConvolution:
    library, cp, handle = _frontend(), cupy_package(), _handle()
    made = cudnn_graph(library, step, handle)
    try:
        made.validate()
        made.build_operation_graph()
        made.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
        made.deselect_workspace_greater_than(MAX_WORKSPACE_BYTES)
        made.deselect_numeric_notes(excluded_notes(library, precision))
        made.check_support()
    except Exception as error:  # the frontend has several kinds, by version
        raise BackendError(f"cuDNN has no plan for {step.kind}: {' '.join(str(error).split())[:300]}") from None
    best: tuple[float, BuiltConvolution] | None = None
    count, built, places = made.get_execution_plan_count(), 0, tensor_addresses(step, buffers)
    begun = perf_counter()
    for index in range(count):
        if built == MAX_TIMED_PLANS or (built and perf_counter() - begun > MAX_BUILD_SECONDS):
            break
        with suppress(Exception):  # one that is barred, or is not supported after all, says so here
            made.build_plan_at_index(index)
            space = cp.empty(max(1, made.get_workspace_size_plan_at_index(index)), cp.uint8)
            one = BuiltConvolution(made, index, space, handle)
            seconds = timer(partial(one.call, places))
            built += 1
            if best is None or seconds < best[0]:
                best = seconds, one
    if best is None:
        raise BackendError(f"cuDNN runs none of its {count} plans for {step.kind} in {precision}")
    return best[1]


def tensor_addresses(step: Convolution, buffers: DeviceArrays) -> dict[int, int]:
    """Device addresses by the frontend's numbers."""
    places = {X: step.data, W: step.weights, Y: step.out}
    return {n: device_address(buffers, v.name, v.offset) for n, v in places.items()}


def runs_on_frontend(step: Convolution, buffers: DeviceArrays) -> bool:
    """Return whether the frontend is installed and takes *step*: every tensor is aligned as cuDNN expects."""
    return cudnn_frontend() is not None and all(
        p % CUDNN_ALIGNMENT_BYTES == 0 for p in tensor_addresses(step, buffers).values()
    )


def bind_torch_convolution(step: Convolution, buffers: DeviceArrays, precision: str) -> Call:
    """A call of cuDNN through torch on the same memory, in the stream that is current in CuPy.

    Raises BackendError without a torch that sees the device.
    """
    if lacking := missing_for_convolutions():
        raise BackendError(f"no library for convolutions: missing {', and '.join(lacking)}")
    torch = import_module("torch")
    step = with_two_spatial_dimensions(step)
    x, w, y = (torch.from_dlpack(device_view(buffers, v)) for v in (*step.factors, step.out))
    half = len(step.strides)
    before, after = step.pads[:half], step.pads[half:]
    where = {"stride": list(step.strides), "dilation": list(step.dilations), "groups": step.group}
    how = {"benchmark": True, "deterministic": False, "allow_tf32": precision != "float32"}
    aten = torch.ops.aten
    if step.kind != "Conv":
        extra = {"padding": list(before), "output_padding": list(torch_output_padding(step))}
        call: Call = lambda: y.copy_(aten.cudnn_convolution_transpose(x, w, **extra, **where, **how))  # noqa: E731
    elif before == after:
        call = lambda: aten.cudnn_convolution.out(x, w, padding=list(before), **where, **how, out=y)  # noqa: E731
    else:
        wider = _torch_padding(before, after)
        pad, none = torch.nn.functional.pad, [0] * half
        call = lambda: aten.cudnn_convolution.out(pad(x, wider), w, padding=none, **where, **how, out=y)  # noqa: E731
    return lambda: run_on_cupy_stream(torch, call)


def torch_output_padding(step: Convolution) -> Shape:
    """Torch's output padding of a transposed convolution: less padding after than before is more output.

    Raises BackendError where it is negative, or as large as both stride and dilation: torch takes neither.
    """
    half = len(step.strides)
    before, after = step.pads[:half], step.pads[half:]
    found = tuple(o + b - a for o, b, a in zip(step.output_padding, before, after, strict=True))
    most = [max(s, d) for s, d in zip(step.strides, step.dilations, strict=True)]
    if any(not 0 <= n < m for n, m in zip(found, most, strict=True)):
        raise BackendError(f"a transposed convolution with paddings {before} and {after}: torch takes no {found}")
    return found


def _torch_padding(before: Shape, after: Shape) -> list[int]:
    """Paddings as torch lists them: the last dimension first."""
    return [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]


def run_on_cupy_stream(torch: ModuleType, call: Call) -> object:
    """*call* in CuPy's current stream: torch has one of its own."""
    stream = cupy_package().cuda.get_current_stream()
    if stream.ptr in (0, 1, 2) or stream.ptr == torch.cuda.current_stream().cuda_stream:
        return call()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        return call()
