"""NVIDIA GPUs through CuPy: kernels, cuBLAS, streams, graphs, times.  Nothing is imported before it is asked for.

Without CuPy, a driver or a device every function here raises ``DeviceMissing``, which names all that is missing.  The
device's settings are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from statistics import median
from types import ModuleType
from typing import Any

from einnet_explore.backends.cuda_steps import Convolution, CudaPlan, Launch, Product, Step, View
from einnet_explore.backends.errors import BackendError

OPTIONS = ("--std=c++17",)
PAST_L2 = 4
"""So many times the L2's size is what inputs in rotation take together."""

Call = Callable[[], object]


class DeviceMissing(BackendError):
    """There is no GPU to run on; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """The device in use: what figures from it are kept with."""

    name: str
    capability: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    driver: str
    runtime: str
    libraries: str

    @property
    def key(self) -> tuple[str, str]:
        """(device, libraries) as profiles are kept by."""
        return f"CUDA {self.name}", f"driver {self.driver} runtime {self.runtime} {self.libraries}"


def missing() -> tuple[str, ...]:
    """What is missing of CuPy, an NVIDIA driver and a device, each with how to get it; nothing where all is there."""
    if find_spec("cupy") is None:
        # The driver can be looked for without CuPy, so that one message says all.
        return "CuPy (pip install cupy-cuda13x, or cupy-cuda12x)", *_no_driver()
    try:
        import cupy
    except Exception as error:  # a CuPy without its libraries fails in many ways
        said = " ".join(str(error).split())[:200]
        return f"a CuPy that can be imported ({type(error).__name__}: {said})", *_no_driver()
    if no_driver := _no_driver():
        return no_driver
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return (f"an NVIDIA driver that CuPy {cupy.__version__} can use ({error})",)
    return () if count else ("a GPU that is visible to this process",)


def _no_driver() -> tuple[str, ...]:
    import ctypes

    for name in ("libcuda.so.1", "nvcuda.dll"):
        with suppress(OSError):
            ctypes.CDLL(name)
            return ()
    return ("an NVIDIA driver (libcuda)",)


def missing_for_products() -> tuple[str, ...]:
    """What is missing of cuBLAS, which CuPy 14 finds when it is first used."""
    try:
        import_module("cupy_backends.cuda.libs.cublas")
    except ImportError as error:
        return (f"cuBLAS (pip install nvidia-cublas; {str(error).splitlines()[0][:120]})",)
    return ()


def missing_for_convolutions() -> tuple[str, ...]:
    """What is missing of a library for convolutions: the cuDNN frontend, or a torch that sees the device."""
    if find_spec("cudnn") is not None and find_spec("torch") is not None:
        return ()
    if find_spec("torch") is None:
        return ("the cuDNN frontend (pip install nvidia-cudnn-frontend) with torch",)
    torch = import_module("torch")
    return () if torch.cuda.is_available() else ("a torch with CUDA (this one is for CPUs)",)


def check() -> None:
    """Raise DeviceMissing, which says in one line what is missing, unless kernels can be run."""
    if lacking := missing():
        raise DeviceMissing(f"no CUDA backend can run here: missing {', and '.join(lacking)}")


@cache
def package() -> ModuleType:
    """CuPy, checked; raises DeviceMissing."""
    check()
    import cupy

    return cupy  # type: ignore[no-any-return]


@cache
def device() -> Cuda:
    """The current device; raises DeviceMissing."""
    cp = package()
    runtime = cp.cuda.runtime
    held = runtime.getDeviceProperties(runtime.getDevice())
    name = held["name"].decode() if isinstance(held["name"], bytes) else str(held["name"])
    versions = [f"cupy {cp.__version__}", f"cublas {_cublas_version(cp)}"]
    return Cuda(
        name,
        f"{held['major']}{held['minor']}",
        int(held["multiProcessorCount"]),
        int(held["l2CacheSize"]),
        int(held["totalGlobalMem"]),
        str(runtime.driverGetVersion()),
        str(runtime.runtimeGetVersion()),
        " ".join(versions),
    )


def _cublas_version(cp: ModuleType) -> str:
    with suppress(Exception):  # a version that is not told must not stop a measurement
        return str(cp.cuda.cublas.getVersion(cp.cuda.device.get_cublas_handle()))
    return "unknown"


def load(step: Launch, cubin: str | None = None) -> Any:
    """The kernel of *step*, from the file *cubin* where that loads here, else compiled from its text.

    Raises DeviceMissing, and BackendError, with the compiler's words, where the text does not compile.
    """
    cp = package()
    if cubin is not None:
        with suppress(cp.cuda.driver.CUDADriverError):  # made for another device or a newer driver
            return cp.RawModule(path=cubin).get_function(step.entry)
    try:
        return cp.RawModule(code=step.text, options=OPTIONS, backend="nvrtc").get_function(step.entry)
    except (cp.cuda.compiler.CompileException, cp.cuda.driver.CUDADriverError) as error:
        raise BackendError(f"kernel {step.entry} is not compiled: {' '.join(str(error).split())[:600]}") from None


def bind(step: Step, buffers: Mapping[str, Any], cubin: Callable[[Launch], str | None] = lambda _: None) -> Call:
    """A call that does *step* on device arrays *buffers* in the current stream; raises as ``load`` does."""
    cp = package()
    match step:
        case Launch(grid=grid, block=block, arguments=given):
            kernel = load(step, cubin(step))
            typed = tuple(buffers[a] if isinstance(a, str) else cp.dtype(a[1]).type(a[0]) for a in given)
            return lambda: kernel(grid, block, typed)
        case Product(out, left, right):
            if lacking := missing_for_products():
                raise DeviceMissing(f"no library for matrix products: missing {', and '.join(lacking)}")
            y, a, b = (shown(buffers, v) for v in (out, left, right))
            return lambda: cp.matmul(a, b, out=y)
        case Convolution():
            return _convolution(step, buffers)


def shown(buffers: Mapping[str, Any], view: View) -> Any:
    """The device array that *view* means."""
    flat = buffers[view.name].reshape(-1)[view.offset :]
    strides = tuple(s * flat.itemsize for s in view.strides)
    return package().lib.stride_tricks.as_strided(flat, view.shape, strides)


def _convolution(step: Convolution, buffers: Mapping[str, Any]) -> Call:
    """By cuDNN through torch, which shares the memory (DLPack)."""
    if lacking := missing_for_convolutions():
        raise DeviceMissing(f"no library for convolutions: missing {', and '.join(lacking)}")
    torch = import_module("torch")  # its annotations do not say what it exports
    x, w, y = (torch.from_dlpack(shown(buffers, v)) for v in (step.data, step.weights, step.out))
    half = len(step.strides)
    before, after = step.pads[:half], step.pads[half:]
    if before != after and step.kind != "Conv":
        raise BackendError(f"a transposed convolution with paddings {before} and {after}: expected equal ones")
    call = getattr(torch.nn.functional, f"{'conv' if step.kind == 'Conv' else 'conv_transpose'}{half}d")
    settings: dict[str, Any] = {"stride": step.strides, "dilation": step.dilations, "groups": step.group}
    if step.kind != "Conv":
        settings["output_padding"] = step.output_padding
    if before == after:
        settings["padding"] = before
        return lambda: _on_stream(lambda: y.copy_(call(x, w, **settings)))
    wider = [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]
    pad = torch.nn.functional.pad
    return lambda: _on_stream(lambda: y.copy_(call(pad(x, wider), w, **settings)))


def _on_stream(call: Callable[[], Any]) -> Any:
    """*call* on CuPy's current stream: torch has one of its own."""
    torch = import_module("torch")
    stream = package().cuda.get_current_stream()
    if stream.ptr in (0, 1, 2):
        return call()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        return call()


@dataclass(frozen=True, eq=False)
class CudaProgram:
    """A plan made ready on the device: ``inputs`` are read and ``outputs`` written by every ``execute``.

    ``capture`` makes one CUDA graph of it, so that no time passes between kernels.
    """

    plan: CudaPlan
    buffers: Mapping[str, Any] = field(repr=False)
    calls: Sequence[Call] = field(repr=False)

    def execute(self) -> None:
        """Put everything into the current stream; returns before it is done."""
        for call in self.calls:
            call()

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs for host arrays *inputs*, as host arrays; raises BackendError for a missing or unfit one."""
        cp = package()
        for name in self.plan.inputs:
            shape = self.plan.buffers[name]
            if name not in inputs or tuple(inputs[name].shape) != shape:
                found = list(inputs[name].shape) if name in inputs else "missing"
                raise BackendError(f"input {name} is {found}, expected {list(shape)}")
            self.buffers[name][...] = cp.asarray(inputs[name], dtype=self.buffers[name].dtype)
        self.execute()
        return {name: cp.asnumpy(self.buffers[name]) for name in self.plan.outputs}

    def capture(self) -> Call:
        """A call that launches the whole program as one CUDA graph, in the current stream.

        Raises BackendError where a convolution is in it: torch would give its memory to others.
        """
        if kinds := [s.kind for s in self.plan.steps[self.plan.once :] if isinstance(s, Convolution)]:
            raise BackendError(f"a program with {', '.join(kinds)} by torch is not captured: its memory is torch's")
        return captured(self.execute)


def compile_plan(
    plan: CudaPlan, weights: Mapping[str, Any] | None = None, cubin: Callable[[Launch], str | None] = lambda _: None
) -> CudaProgram:
    """*plan* on the device: buffers allocated, *weights* (host arrays) copied, what depends on them alone computed.

    *cubin* gives a file with a kernel's machine code, or None.  Raises DeviceMissing; BackendError for a weight that is
    missing and for kernels that do not compile.
    """
    cp = package()
    buffers = {n: cp.empty(shape, plan.dtypes.get(n, plan.dtype)) for n, shape in plan.buffers.items()}
    for name in plan.weights:
        if name not in (weights or {}):
            raise BackendError(f"weight {name} is missing, expected {list(plan.buffers[name])}")
        buffers[name][...] = cp.asarray((weights or {})[name], dtype=buffers[name].dtype)
    calls = [bind(s, buffers, cubin) for s in plan.steps]
    for call in calls[: plan.once]:
        call()
    return CudaProgram(plan, buffers, tuple(calls[plan.once :]))


def captured(call: Call) -> Call:
    """*call* as one CUDA graph, with a memory pool of its own: what it allocates stays the graph's.

    Not for calls into torch, whose memory is not in that pool.
    """
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

    def launch(_held: object = pool) -> None:
        graph.launch(cp.cuda.get_current_stream())

    return launch


def seconds(calls: Sequence[Call], samples: int = 15, least: float = 1e-3) -> list[float]:
    """Seconds a call by events, one for each of *samples*; *calls* do the same on different memory, in rotation.

    A sample repeats them for at least *least* seconds, so that what events cost does not count.
    """
    cp = package()
    start, end = cp.cuda.Event(), cp.cuda.Event()
    turn = cycle(calls)

    def sample(repeats: int) -> float:
        start.record()
        for _ in range(repeats):
            next(turn)()
        end.record()
        end.synchronize()
        return float(cp.cuda.get_elapsed_time(start, end)) * 1e-3 / repeats

    for call in calls:
        call()
    once = max(sample(len(calls)), 1e-7)
    repeats = max(1, min(1000, int(least / once) + 1))
    sample(repeats)
    return [sample(repeats) for _ in range(samples)]


def rotations(nbytes: int, memory: float = 0.25) -> int:
    """How many copies of *nbytes* together are past the L2; at most the part *memory* of the device's."""
    held = device()
    wanted = -(-PAST_L2 * held.l2_bytes // max(1, nbytes))
    return max(1, min(wanted, 64, int(memory * held.memory_bytes / max(1, nbytes))))


def timed(calls: Mapping[str, Sequence[Call]], rounds: int = 5) -> dict[str, list[float]]:
    """Seconds of each, in interleaved rounds: a clock that changes meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, turn in calls.items():
            found[name].append(median(seconds(turn, samples=3)))
    return found
