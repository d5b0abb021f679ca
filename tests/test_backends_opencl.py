"""Kernels compiled and run: by OpenCL, by the machine's C compiler, and CUDA text compiled by NVRTC without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einnet_evaluation import gpu_emulation
from einnet_explore.codegen.language.statements import Kernel, LocalArray, Store, counted_loop
from einnet_explore.codegen.language.values import F32, F64, Array, LaunchIndex, Var, cast, literal
from einnet_explore.runtime import c_kernels, compiled
from einnet_explore.runtime.cuda import nvrtc
from einnet_explore.support.errors import BackendError
from tests import kernel_machine
from tests.test_kernels_source import everything, halves, sums

needs_opencl = pytest.mark.skipif(not gpu_emulation.opencl_available(), reason="no OpenCL device")
needs_nvrtc = pytest.mark.skipif(not nvrtc.nvrtc_available(), reason="no NVRTC")
needs_c = pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")

LOADERS = [
    pytest.param(gpu_emulation.load_opencl_kernel, marks=needs_opencl, id="opencl"),
    pytest.param(c_kernels.load_c_kernel, marks=needs_c, id="c"),
]
Loader = Callable[[Kernel], Any]

X, Y, N = Array("x", F32, const=True), Array("y", F32), Var("n")
T = LaunchIndex("thread")
DOUBLE = Kernel("double", (X, Y, N), (Store(Y, T, X[T] * cast(F32, N)),), (4, 1, 1))


def shifted(count: int, dtype: str, by: int) -> Any:
    """An array that begins *by* bytes after a multiple of 64."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 128, np.uint8)
    start = -raw.ctypes.data % 64 + by
    return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype)


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("length", [1, 7, 24, 29])
def test_block_sums_equal_those_of_the_interpreter(load: Loader, length: int) -> None:
    x = np.arange(length, dtype=np.float32)
    y = np.zeros(100, np.float32)
    grid = (-(-length // 8), 1, 1)
    load(sums())(x, y, length, grid=grid)
    expected = np.zeros(100, np.float32)
    kernel_machine.run(sums(), {"x": x, "y": expected, "n": length}, grid)
    assert (y == expected).all() and y[0] == x[:8].sum()


@pytest.mark.parametrize("load", LOADERS)
def test_half_precision_kernel_is_correct_in_every_backend(load: Loader) -> None:
    a = np.linspace(-2, 2, 64).astype(np.float16)
    h = np.zeros(65, np.float16)
    load(halves())(a, h)
    twice = (a + a).astype(np.float32)
    expected = np.stack([np.exp(twice[::2]), twice[1::2] * twice[::2]], 1).astype(np.float16).ravel()
    np.testing.assert_allclose(h[:64].astype(float), expected.astype(float), rtol=1e-3)
    assert h[64] == a[1]


@pytest.mark.parametrize("load", LOADERS)
def test_every_operator_of_the_kernel_language_is_correct(load: Loader) -> None:
    x, y = np.array([1.5, -0.25], np.float32), np.zeros(24, np.float32)
    d, i = np.array([0.7, *[0] * 7]), np.array([-9, 5, *[0] * 8])
    load(everything())(x, y, d, i, 0.0, True)
    a, b = 1.5, -0.25
    real = [np.exp(a), np.log(a), np.sqrt(a), 1 / np.sqrt(a), np.tanh(a), 0.9661051464753108, 1.0, 1 / (1 + np.exp(-a))]
    expected = [a - (b - a), a - b - a, 1 / b, a, -(a + b) * 2, np.inf, -np.inf, np.nan, 0.1, 1e30, 1.0, a * b + a, a]
    np.testing.assert_allclose(y, [*expected, *real, a**b, b if a < b else a, 1.0], rtol=1e-6)
    np.testing.assert_allclose(
        d[1:], [np.exp(0.7), 0.7**-0.5, 1 / (1 + np.exp(-0.7)), 0.7, 0.7, np.inf, 0.7 / 3], rtol=1e-14
    )
    # C's quotient and remainder truncate: -54 % 7 is -5 and -5 / 2 is -2.
    whole = [-(1 << 63), (1 << 63) - 1, -2, (-9 << 3) + (-9 & 5), -9 ^ 2, 14, -9, -(1 << 31)]
    assert list(i[2:]) == whole


@pytest.mark.parametrize("load", LOADERS)
def test_unaligned_arrays_are_computed_correctly(load: Loader) -> None:
    x, y = shifted(4, "float32", 4), shifted(4, "float32", 20)
    x[:] = [1, 2, 3, 4]
    load(DOUBLE)(x, y, 3)
    assert list(y) == [3, 6, 9, 12]


@pytest.mark.parametrize("load", LOADERS)
def test_kernel_runs_on_empty_arrays(load: Loader) -> None:
    i = Var("i")
    kernel = Kernel("none", (X, Y, N), (counted_loop(i, N, Store(Y, i, X[i])),))
    load(kernel)(np.empty(0, np.float32), np.empty(0, np.float32), 0)


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    ("arguments", "grid", "says"),
    [
        ((np.zeros(4, np.float32),), None, "1 arguments, expected 3"),
        ((np.zeros(4), np.zeros(4, np.float32), 1), None, "x holds float64, expected float32"),
        (([1.0], np.zeros(4, np.float32), 1), None, "x is a list, expected an array of float32"),
        ((np.zeros(8, np.float32)[::2], np.zeros(4, np.float32), 1), None, r"x has strides \(8,\)"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), 1.5), None, "n is 1.5, expected a number of type int32"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), 1 << 31), None, "n is 2147483648, expected a number"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), "1"), None, "n is '1', expected a number"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), 1), (0, 1, 1), r"a grid of \(0, 1, 1\)"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), 1), (1, 1 << 16, 1), r"a grid of \(1, 65536, 1\)"),
        ((np.zeros(4, np.float32), np.frombuffer(b"0" * 16, np.float32), 1), None, "y is written to"),
    ],
)
def test_wrong_arguments_are_refused(load: Loader, arguments: Any, grid: Any, says: str) -> None:
    with pytest.raises(BackendError, match=f"kernel double: .*{says}"):
        load(DOUBLE)(*arguments, grid=grid)


def test_array_smaller_than_declared_is_refused() -> None:
    sized = Kernel("sized", (Array("x", F32, 10),), ())
    with pytest.raises(BackendError, match="x has 9 elements, expected 10"):
        c_kernels.load_c_kernel(sized)(np.zeros(9, np.float32))


@pytest.mark.parametrize("load", LOADERS)
def test_a_kernel_is_compiled_once(load: Loader) -> None:
    again = Kernel("double", (X, Y, N), DOUBLE.body, (4, 1, 1))
    assert load(again) is load(DOUBLE)


@needs_c
def test_c_kernels_are_cached_and_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel("kept", (X, Y, N), (Store(Y, literal(0), X[0] * 21.0),))
    c_kernels.load_c_kernel(kernel)
    c_kernels.load_c_kernel.cache_clear()
    monkeypatch.setattr(compiled, "_compile", None)  # nothing is compiled again
    x, y = np.full(1, 2, np.float32), np.zeros(1, np.float32)
    bound = c_kernels.load_c_kernel(kernel).bind(x, y, 0)
    bound()
    assert y[0] == 42
    x[0] = 1
    bound()
    assert y[0] == 21


@needs_c
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_are_shared_among_threads(threads: int) -> None:
    block = LaunchIndex("block") + LaunchIndex("block", 1) * 5 + LaunchIndex("block", 2) * 15
    kernel = Kernel("blocks", (Y,), (Store(Y, block, cast(F32, block)),))
    y = np.zeros(30, np.float32)
    c_kernels.load_c_kernel(kernel)(y, grid=(5, 3, 2), threads=threads)
    assert list(y) == list(range(30))


@needs_c
def test_message_of_the_c_compiler_is_in_the_error() -> None:
    with pytest.raises(BackendError, match=r"kernel double is not compiled: .*no-such-flag"):
        c_kernels.load_c_kernel(DOUBLE, ("-no-such-flag",))


def test_missing_c_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_linker", lambda: None)
    with pytest.raises(BackendError, match="it needs cc, gcc or clang"):
        c_kernels.load_c_kernel(Kernel("lonely", (Y,), ()))


@needs_opencl
def test_kernel_beyond_the_device_limits_is_refused() -> None:
    tile = Array("tile", F32, 1 << 28, "shared")
    with pytest.raises(BackendError, match=r"kernel big: 1073741824 bytes of shared memory, .* has "):
        gpu_emulation.load_opencl_kernel(Kernel("big", (Y,), (LocalArray(tile),)))


@needs_opencl
def test_kernel_in_double_precision_needs_the_device_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Array("d", F64)

    class Single:
        name, extensions, max_work_group_size, local_mem_size = "a phone", "", 1024, 1 << 15
        device: Any

    Single.device = Single
    monkeypatch.setattr(gpu_emulation, "_queue", lambda: Single)
    with pytest.raises(BackendError, match="kernel twice: double precision, which a phone lacks"):
        gpu_emulation.load_opencl_kernel(Kernel("twice", (d,), (Store(d, literal(0), d[0] * 2.0),)))
    Single.max_work_group_size = 256
    with pytest.raises(BackendError, match="kernel wide: blocks of 512 threads, a phone has 256"):
        gpu_emulation.load_opencl_kernel(Kernel("wide", (Y,), (), (512, 1, 1)))


@needs_opencl
def test_message_of_the_opencl_compiler_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_emulation, "emit", lambda *_: "__kernel void wrong() { nonsense }")
    with pytest.raises(BackendError, match=r"kernel wrong: OpenCL does not compile it: (?s:.*)nonsense"):
        gpu_emulation.load_opencl_kernel(Kernel("wrong", (Y,), ()))


def test_missing_opencl_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_emulation._package.cache_clear()
    gpu_emulation._queue.cache_clear()
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    try:
        with pytest.raises(BackendError, match=r"OpenCL kernels need pyopencl: pip install 'pyopencl\[pocl\]'"):
            gpu_emulation.load_opencl_kernel(Kernel("nowhere", (Y,), ()))
        assert not gpu_emulation.opencl_available()
    finally:
        gpu_emulation._package.cache_clear()
        gpu_emulation._queue.cache_clear()


class Platform:
    name = "Portable Computing Language"


class Device:
    platform = Platform
    int_ptr = 0
    version = "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-znver3"


def test_a_processor_that_has_a_name_keeps_it() -> None:
    assert not gpu_emulation.set_processor_name(Device)
    Device.version = "OpenCL 3.0 of somebody else, on what is called -generic"
    Platform.name = "Somebody Else"
    assert not gpu_emulation.set_processor_name(Device)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the processor's record")
@pytest.mark.parametrize(
    ("triple", "found"), [(b"x86_64-unknown-linux-gnu", True), (b"another-machine-altogether", False)]
)
def test_a_processor_without_a_name_gets_one(triple: bytes, found: bool) -> None:
    import ctypes

    strings = [ctypes.create_string_buffer(s, 32) for s in (b"pthread", triple, b"generic", b"generic")]
    record = (ctypes.c_void_p * 256)(*([None] * 100), *(ctypes.addressof(s) for s in strings))

    class Unnamed(Device):
        version = "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic"
        int_ptr = ctypes.addressof(record)

        class platform:  # noqa: N801 - as pyopencl calls it
            name = "Portable Computing Language"

    assert gpu_emulation.set_processor_name(Unnamed) is found
    named = ctypes.string_at(record[102] or 0)
    assert named in ((b"skylake-avx512", b"haswell", b"x86-64") if found else (b"generic",))
    assert ctypes.string_at(record[103] or 0) == b"generic"


@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("kernel", [sums(), halves(), everything()], ids=lambda k: k.name)
def test_cuda_text_compiles(kernel: Kernel, architecture: str) -> None:
    made = nvrtc.compile_cuda(kernel, architecture)
    assert made.code.startswith(b"\x7fELF") and made.entry.encode() in made.code
    assert "warning" not in made.log and "0 bytes spill stores" in made.log


@needs_nvrtc
def test_cuda_text_uses_paired_instructions() -> None:
    text = nvrtc.compile_cuda(halves(), "compute_90").code.decode()
    assert ".target sm_90" in text and "add.f16x2" in text and "cvt.rn.f16x2.f32" in text
    assert "ld.global.nc.v2" in text or "ld.global.v2" in text
    assert "bar.sync" in nvrtc.compile_cuda(sums(), "compute_80").code.decode()


@needs_nvrtc
def test_message_of_nvrtc_is_in_the_error() -> None:
    with pytest.raises(BackendError, match=r"kernel k is not compiled for sm_90: (?s:.*)nonsense"):
        nvrtc.compile_text('extern "C" __global__ void k() { nonsense }', "k", "sm_90")
    with pytest.raises(BackendError, match=r"sm_1.*gpu-architecture"):
        nvrtc.compile_text('extern "C" __global__ void k() { }', "k", "sm_1")
    with pytest.raises(BackendError, match="architecture 'hopper': expected a name such as sm_90"):
        nvrtc.compile_cuda(DOUBLE, "hopper")


def test_missing_nvrtc_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc._library.cache_clear()
    monkeypatch.setattr(nvrtc, "_NAMES", ())
    monkeypatch.setattr("ctypes.util.find_library", lambda _: None)
    try:
        with pytest.raises(BackendError, match="is not installed: pip install nvidia-cuda-nvrtc"):
            nvrtc.compile_cuda(DOUBLE)
        assert not nvrtc.nvrtc_available()
    finally:
        nvrtc._library.cache_clear()


@needs_nvrtc
def test_headers_that_cannot_be_unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(nvrtc, "cache_directory", lambda: tmp_path / "file")
    nvrtc._headers.cache_clear()
    try:
        with pytest.raises(BackendError, match="NVRTC does not unpack its headers"):
            nvrtc.compile_cuda(halves())
    finally:
        nvrtc._headers.cache_clear()
