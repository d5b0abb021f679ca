"""Products of halves on tensor cores: fragments as PTX lays them out, run thread by thread; no device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import cases
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.statements import (
    FragmentProduct,
    If,
    Kernel,
    LocalArray,
    all_statements,
    check_kernel,
)
from einnet_explore.codegen.language.values import F16, F32, I32, Array, LaunchIndex, Literal
from einnet_explore.codegen.tiling import fragments
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program
from einnet_explore.runtime.c_kernels import load_c_kernel
from einnet_explore.runtime.compiled import c_compiler
from einnet_explore.runtime.cuda import nvrtc
from einnet_explore.runtime.cuda.plan import cuda_plan
from einnet_explore.runtime.cuda.steps import CudaLaunch
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import parse
from tests import kernel_machine
from tests.gpu_kit import Kernels, record_kernels

PROGRAMS = {
    # Windows with padding, a residual and a cast as post-operations; no extent is whole tiles.
    "convolution": """
        tensor A[1, 3, 5, 5] pad [0, 0, 1, 1] float16
        tensor K[9, 3, 3, 3] float16
        tensor R[1, 9, 5, 5] float16
        P[n:1, f:9, h:5, w:5] = sum[c:3, r:3, s:3] A[n, c, h+r-1, w+s-1] * K[f, c, r, s]
        Y[n:1, f:9, h:5, w:5] = float16(relu(P[n, f, h, w]) + R[n, f, h, w])
        output Y""",
    # Eight neighbours at a time: of the left factor along the summation, of the right one along its columns.
    "packs": """
        tensor A[2, 20, 24] pad [0, 2, 0] float16
        tensor B[24, 16] float16
        Y[b:2, i:20, j:16] = sum[k:24] A[b, i+1, k] * B[k, j]""",
    "dilated band": """
        tensor A[1, 35, 16] float16
        tensor B[1, 35, 16] pad [0, 12, 0] float16
        Y[b:1, i:35, w:9] = sum[k:16] A[b, i, k] * B[b, i+3*w-12, k]""",
}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Kernels of a warp a block, so that small programs have many tiles."""
    small = {"SIDE": 16, "DEPTH": 16, "WARPS": 1, "WARP_SIDE": 16, "THREADS": 32, "STRIDE": 24}
    for name, value in small.items():
        monkeypatch.setattr(fragments, name, value)
    return record_kernels(monkeypatch)


def planned(program: Program, kernels: Kernels) -> tuple[CudaLaunch, Kernel]:
    (step,) = cuda_plan(program).steps
    assert isinstance(step, CudaLaunch)
    kernel = kernels[step.entry, step.text]
    assert any(isinstance(s, FragmentProduct) for s in all_statements(kernel.body))
    return step, kernel


def inputs(program: Program) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {t.name: (random.integers(-4, 5, t.shape) / 2).astype(np.float16) for t in program.inputs}


@pytest.mark.parametrize("name", PROGRAMS)
def test_fragments_compute_the_program_without_races(name: str, kernels: Kernels) -> None:
    program = parse("\n".join(line.strip() for line in PROGRAMS[name].splitlines()))
    step, kernel = planned(program, kernels)
    feeds = inputs(program)
    want = evaluate(program, {k: a.astype(np.float64) for k, a in feeds.items()}, "float64", outputs_only=True)["Y"]
    ends = cuda_plan(program)
    out = np.full(want.size, np.nan, ends.dtypes.get("Y", "float32"))
    given = [out if a == "Y" else feeds[str(a)].reshape(-1) for a in step.arguments]
    named = {p.name: a for p, a in zip(kernel.params, given, strict=True)}
    kernel_machine.run(kernel, named, kernel.grid)
    np.testing.assert_array_equal(out.reshape(want.shape), want.astype(out.dtype))
    assert "P" not in ends.buffers  # post-operations are in the kernel


@pytest.mark.slow
@pytest.mark.skipif(not c_compiler(), reason="no C compiler")
def test_fragments_are_loops_in_c(kernels: Kernels) -> None:
    program = parse("\n".join(line.strip() for line in PROGRAMS["dilated band"].splitlines()))
    step, kernel = planned(program, kernels)
    feeds, out = inputs(program), np.full((1, 35, 9), np.nan, np.float32)
    load_c_kernel(kernel)(*(out if a == "Y" else feeds[str(a)] for a in step.arguments), grid=step.grid)
    want = evaluate(program, feeds, "float64", outputs_only=True)["Y"]
    np.testing.assert_array_equal(out, want)


@pytest.mark.skipif(not nvrtc.nvrtc_available(), reason="no NVRTC")
@pytest.mark.parametrize(("case", "number"), [("convolution", 0), ("band", 1)])
def test_cuda_text_uses_tensor_cores_without_spills(case: str, number: int) -> None:
    made = cases.half_convolution(16, 64, 14, 64) if case == "convolution" else cases.half_band(2, 256, 64, 32, 4)
    (step,) = made.plans["ours"].steps
    assert isinstance(step, CudaLaunch) and "mma.sync.aligned.m16n8k16" in step.text
    took = nvrtc.compile_text(step.text, step.entry, nvrtc.ARCHITECTURES[number]).resources
    assert took is not None and took.spills == took.stack == 0 and took.blocks(128) >= 4


def test_products_that_are_none_of_halves_are_refused() -> None:
    kinds = dict.fromkeys("ABY", F32)
    program = parse("tensor A[9, 9]\ntensor B[9, 9]\nY[i:9, j:9] = sum[k:9] A[i, k] * B[k, j]")
    (equation,) = program.equations
    with pytest.raises(Refused, match="expected a tensor of halves"):
        fragments.fragment_contraction(equation.scope, "Y", kinds)
    small = parse("tensor A[9, 4] float16\ntensor B[4, 9] float16\nY[i:9, j:9] = sum[k:4] A[i, k] * B[k, j]")
    with pytest.raises(Refused, match="an extent of 4, expected at least 8"):
        fragments.fragment_contraction(small.equations[0].scope, "Y", {"A": F16, "B": F16, "Y": F32})


def test_fragments_of_other_arrays_or_in_branches_of_threads_are_refused() -> None:
    left, right = (Array(name, F16, 384, "shared") for name in ("left", "right"))
    sums, zero = Array("sums", F32, 4, "private"), Literal(0, I32)
    arrays = tuple(LocalArray(a) for a in (left, right, sums))
    product = FragmentProduct(sums, zero, left, zero, 24, right, zero, 24)
    check_kernel(Kernel("k", (), (*arrays, product), (32, 1, 1)))
    for wrong, said in (
        (FragmentProduct(sums, zero, left, zero, 25, right, zero, 24), "rows 25 and 24 apart: expected even"),
        (FragmentProduct(left, zero, left, zero, 24, right, zero, 24), "added to shared float16"),
        (If(LaunchIndex("thread").lt(7), (product,)), "a product of a warp under .*differ between its threads"),
    ):
        with pytest.raises(Refused, match=said):
            check_kernel(Kernel("k", (), (*arrays, wrong), (32, 1, 1)))
    assert "multiply_fragments" not in emit(Kernel("k", (), (*arrays, product), (32, 1, 1)), "opencl")
