"""Softmax-weighted sums in one pass, for GPUs: kernels run as loops in C and by OpenCL, and are compiled for sm_90."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks import attention, longformer
from benchmarks.longformer import Sizes
from einnet_evaluation import gpu_emulation
from einnet_explore.analysis.online_softmax import OnlineSoftmax, match_online_softmax
from einnet_explore.codegen.rows.online_gpu import OnlineTile, online_kernel, online_tile
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Equation, Program
from einnet_explore.runtime import c_kernels
from einnet_explore.runtime.cuda import nvrtc
from einnet_explore.runtime.cuda.plan import GPU, cuda_plan
from einnet_explore.runtime.cuda.steps import CudaLaunch
from einnet_explore.strategies.vertical_fusion import fuse_vertically
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import parse

Array = npt.NDArray[np.float32]

SMALL = OnlineTile(4, 2, 8, 8, 32)
BIASED = """
    tensor q[2, 13, 6]
    tensor k[2, 17, 6]
    tensor v[2, 17, 5]
    tensor bias[2, 13, 17]
    S[term:2, m:13, w:17] = sum[c:6] q[term, m, c] * k[term, w, c]
    Z[term:2, m:13, w:17] = relu(S[term, m, w]) * 0.5 + bias[term, m, w]
    M[term:2, m:13] = max[w:17] Z[term, m, w]
    E[term:2, m:13, w:17] = exp(Z[term, m, w] - M[term, m])
    T[term:2, m:13] = sum[w:17] E[term, m, w]
    y[m:13, term:2, n:5] = sum[w:17] E[term, m, w] / T[term, m] * v[term, w, n]
"""
PROGRAMS = {
    **{f"band, dilation {d}": longformer.expression(Sizes(13 * d, 8, 2, 4, d)) for d in (1, 3, 4)},
    "all columns": attention.expression(Sizes(19, 8, 2, 0, 1)),
    "biased, other extents": parse(BIASED),
}


def weighted_sum(program: Program) -> tuple[Program, OnlineSoftmax]:
    """Return the equation of *program* that is a softmax-weighted sum, as a program, and its match."""
    found = fuse_vertically(program)
    assert found is not None
    scope = found.end.equations[0].scope
    return Program(program.inputs, (Equation("y", scope),), ("y",)), match_online_softmax(scope)


def compare(program: Program, load: Callable[..., Callable[..., object]]) -> None:
    random = np.random.default_rng(1)
    feeds: Mapping[str, Array] = {t.name: random.standard_normal(t.shape).astype(np.float32) for t in program.inputs}
    if "outside" in feeds:
        feeds["outside"][:3] = -np.inf  # whole blocks of a row's columns do not count
    alone, online = weighted_sum(program)
    exact = {name: a.astype(np.float64) for name, a in feeds.items()}
    want = evaluate(alone, exact, "float64", outputs_only=True)["y"]
    kernel = online_kernel(online, "y", tile=SMALL)
    got = np.full(want.shape, 77, np.float32)
    load(kernel)(*(feeds[name] for name in kernel.inputs), got)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


# A place outside of an array of the block ends the process.
CHECKED = ("-O0", "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error")


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_pass_is_correct(name: str) -> None:
    compare(PROGRAMS[name], lambda kernel: c_kernels.load_c_kernel(kernel, CHECKED))


@pytest.mark.slow
@pytest.mark.skipif(not gpu_emulation.opencl_available(), reason="no OpenCL device")
def test_one_pass_is_correct_by_opencl() -> None:
    compare(PROGRAMS["band, dilation 3"], gpu_emulation.load_opencl_kernel)


def test_tiles_fill_the_multiprocessors_or_are_refused() -> None:
    sizes = {"eight heads": Sizes(), "one head": Sizes(heads=1)}
    tiles = {name: online_tile(weighted_sum(longformer.expression(s))[1], GPU.groups) for name, s in sizes.items()}
    assert tiles["eight heads"].rows == 64 and tiles["one head"].rows == 32  # two blocks for each multiprocessor
    for s, shape in ((Sizes(7, 8, 2, 1, 1), "7 rows of 8 products"), (Sizes(400, 1024, 1, 9, 1), "1024 values")):
        with pytest.raises(Refused, match=shape):
            online_tile(weighted_sum(longformer.expression(s))[1], 1)


def test_the_published_size_is_one_kernel_within_registers() -> None:
    first, *rest = cuda_plan(longformer.expression(Sizes())).steps
    assert isinstance(first, CudaLaunch) and first.grid == (8 * 4 * 40, 1, 1)
    assert len(rest) == 1  # the residues are put in order
    if nvrtc.nvrtc_available():
        took = nvrtc.compile_text(first.text, first.entry, "sm_90").resources
        assert took is not None and took.spills == took.stack == 0
        assert took.registers <= 128 and took.shared <= 48 << 10
