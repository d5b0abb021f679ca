"""Tiles for GPUs: two of them in turns, copied past the registers, and threads that hold square blocks of sums."""

from __future__ import annotations

import numpy as np
import pytest

from einnet_evaluation import gpu_emulation
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.statements import Barrier, Copy, Kernel, LocalArray, Store
from einnet_explore.codegen.language.values import F16, F32, Array, literal
from einnet_explore.codegen.tiling.cost import Hardware
from einnet_explore.codegen.tiling.kernel import TiledKernel, tile_contraction
from einnet_explore.codegen.tiling.shared_layout import square_thread_layout, thread_layout
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.runtime import c_kernels
from einnet_explore.runtime.cuda import nvrtc
from einnet_explore.runtime.cuda.plan import GPU
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.syntax import parse

PROGRAMS = {
    "product": "tensor A[40, 64]\ntensor B[64, 24]\nY[i:40, j:24] = sum[k:64] A[i, k] * B[k, j]",
    "band": (
        "tensor A[2, 40, 32]\ntensor B[2, 40, 32] pad [0, 8, 0]\n"
        "Y[b:2, m:40, j:9] = sum[k:32] A[b, m, k] * B[b, m + 2*j - 8, k]"
    ),
    "convolution": (
        "tensor A[1, 16, 9, 9] pad [0, 0, 1, 1]\ntensor K[8, 16, 3, 3]\n"
        "Y[n:1, f:8, h:9, w:9] = sum[c:16, r:3, s:3] A[n, c, h+r-1, w+s-1] * K[f, c, r, s]"
    ),
    "largest": "tensor A[30, 50]\ntensor B[50, 20]\nY[i:30, j:20] = max[k:50] A[i, k] + B[k, j]",
    "uneven": "tensor A[33, 37]\ntensor B[37, 19]\nY[i:33, j:19] = sum[k:37] A[i, k] * B[k, j]",
}
SMALL = Hardware(threads=64, memory=2048, registers=4096, groups=4, square=True, stages=2)


def run(made: TiledKernel, text: str, load: object) -> tuple[np.ndarray, np.ndarray]:
    program = parse(text)
    random = np.random.default_rng(2)
    feeds = {t.name: random.integers(-3, 4, t.shape).astype(np.float32) for t in program.inputs}
    exact = {n: a.astype(np.float64) for n, a in feeds.items()}
    (want,) = evaluate(program, exact, "float64", outputs_only=True).values()
    out = np.full(want.shape, 77, np.float32)
    load(made.kernel)(*(feeds[t.name] for t in made.inputs), out)  # type: ignore[operator]
    return want, out


CHECKED = ("-O1", "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error")
"""A place outside of an array of the block ends the process."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_double_buffered_tiles_are_correct(name: str) -> None:
    made = tile_contraction(parse(PROGRAMS[name]), SMALL)
    want, got = run(made, PROGRAMS[name], lambda kernel: c_kernels.load_c_kernel(kernel, CHECKED))
    assert (got == want).all()
    text = emit(made.kernel, "cuda")
    assert "copy_async<4>" in text and text.count("__syncthreads();") <= 1 + 2 * (made.kernel.threads.bit_length())
    plain = tile_contraction(parse(PROGRAMS[name]), Hardware(64, 32, 2048, 4096, groups=4))
    assert "copy_async" not in emit(plain.kernel, "cuda")
    if nvrtc.nvrtc_available():
        took = nvrtc.compile_cuda(made.kernel, "sm_90").resources
        assert took is not None and took.spills == took.stack == 0 and took.shared <= 48 << 10


def test_double_buffered_tiles_are_correct_by_opencl() -> None:
    pytest.importorskip("pyopencl")
    for text in (PROGRAMS["band"], PROGRAMS["uneven"]):
        try:
            want, got = run(tile_contraction(parse(text), SMALL), text, gpu_emulation.load_opencl_kernel)
        except BackendError as missing:
            pytest.skip(str(missing))
        assert (got == want).all()


def test_asynchronous_copies_are_plain_copies_before_sm_80() -> None:
    if not nvrtc.nvrtc_available():
        pytest.skip("NVRTC is not installed")
    made = tile_contraction(parse(PROGRAMS["product"]), SMALL).kernel
    texts = {a: nvrtc.compile_cuda(made, f"compute_{a}").code.decode() for a in ("75", "80")}
    assert "cp.async.ca.shared.global" in texts["80"] and "cp.async" not in texts["75"]


def test_threads_hold_square_blocks() -> None:
    made = tile_contraction(
        parse("tensor A[512, 64]\ntensor B[64, 512]\nY[i:512, j:512] = sum[k:64] A[i, k] * B[k, j]"), GPU
    )
    table, tile = made.contraction.table, made.cost.tile
    square, plain = (spread(table, tile, 256) for spread in (square_thread_layout, thread_layout))

    def reads(steps: tuple[int, ...]) -> int:
        """Elements that a thread reads for a product of every sum it holds."""
        return sum(s for s, r in zip(steps, table.rows, strict=True) if r.output)

    assert square.threads == plain.threads == 256
    assert reads(square.steps(tile)) < reads(plain.steps(tile))
    assert square.counts[1] >= 16  # neighbours write whole transactions
    assert made.kernel.shared_bytes <= 48 << 10


def test_unsupported_asynchronous_copies_are_refused() -> None:
    source, tile = Array("a", F32, 8, const=True), Array("t", F32, 8, "shared")
    out, half, own = Array("o", F32, 8), Array("h", F16, 8, const=True), Array("p", F32, 8, "private")
    for target, given, size in ((own, source, 1), (tile, source, 3), (Array("t", F16, 8, "shared"), half, 1)):
        body = (LocalArray(target), Copy(target, literal(0), given, literal(0), size, asynchronous=True))
        with pytest.raises(Refused, match="expected 4, 8 or 16 bytes from global to shared"):
            emit(Kernel("k", (given, out), body), "cuda")
    body = (
        LocalArray(tile), Copy(tile, literal(0), source, literal(4), 4, asynchronous=True), Barrier(copies=True),
        Store(out, literal(0), tile[0]),
    )  # fmt: skip
    kernel = Kernel("k", (source, out), body)
    given, got = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    c_kernels.load_c_kernel(kernel)(given, got)
    assert got[0] == 4 and "copy_async<16>(t, a + 4)" in emit(kernel, "cuda")
    with pytest.raises(ValueError, match="3 stages, expected 1 or 2"):
        Hardware(stages=3)
