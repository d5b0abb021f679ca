"""Kernels that move memory: right on every dialect that runs here, coalesced by their text, compiled for GPUs."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_evaluation import gpu_emulation
from einnet_explore.codegen.copies import MAX_PRODUCT_TERMS, MAX_SUM_TERMS, copy_kernel
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.statements import Kernel
from einnet_explore.codegen.language.values import F16, F64
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program
from einnet_explore.runtime import c_kernels
from einnet_explore.runtime.cuda import nvrtc, plan
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.syntax import parse

CASES = {
    "transposed": "tensor A[45, 70]\nY[i:70, j:45] = A[j, i]",
    "channels last": "tensor A[2, 9, 5, 40]\ntensor B[9]\nY[b:2, h:5, w:40, c:9] = relu(A[b, c, h, w] + B[c])",
    "along the diagonal": "tensor A[20, 24] pad [1, 1]\nY[i:20, j:24] = sum[r:3] A[i+r-1, j+r-1]",
    "packs": "tensor A[6, 8]\ntensor B[8]\nY[i:6, j:8] = A[i, j] * B[j]",
    "packs and sums": "tensor A[6, 8]\ntensor K[3]\nY[i:6, j:8] = sum[r:3] A[i, j] * K[r]",
    "backwards": "tensor A[6, 8]\ntensor B[6]\nY[i:6, j:8] = A[i, 7-j] * B[i]",
    "pairs": "tensor A[6, 16]\nY[i:6, j:8] = max[r:2] A[i, 2*j+r]",
    "both ways": "tensor A[3, 9, 9]\nY[k:3, i:9, j:9] = A[k, i, j] - A[k, j, i]",
    "beyond the edge": "tensor A[40, 33] pad [2, 1] value 3\nY[i:35, j:44] = A[j-2, i-1]",
    "one element": "tensor A[1]\nY[i:1] = A[i] + 1",
    "products": "tensor A[4, 9]\nY[i:3, j:7] = prod[r:2, s:3] A[i+r, j+s]",
    "divided": "tensor A[4, 6]\nY[i:24] = A[i//6, i%6] * 2",
}


def run(program: Program, made: Kernel, load: Any, kind: Any = np.float32) -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    feeds = {t.name: (random.integers(-9, 10, t.shape) / 4).astype(kind) for t in program.inputs}
    exact = {n: a.astype(np.float64) for n, a in feeds.items()}
    (want,) = evaluate(program, exact, "float64", outputs_only=True).values()
    out = np.full(want.shape, 77, kind)
    load(made)(*(feeds[name] for name in made.inputs), out)
    return want, out


@pytest.mark.parametrize("name", CASES)
def test_copy_kernels_are_correct(name: str) -> None:
    program = parse(CASES[name])
    made = copy_kernel(program.equations[0].scope)
    want, got = run(program, made, c_kernels.load_c_kernel)
    np.testing.assert_allclose(got, want, rtol=1e-6)  # quarters are exact in float32
    if nvrtc.nvrtc_available():
        for architecture in nvrtc.ARCHITECTURES:
            took = nvrtc.compile_cuda(made, architecture).resources
            assert took is not None and took.spills == took.stack == 0 and took.blocks(256) >= 2


def test_copy_kernels_are_correct_by_opencl() -> None:
    pytest.importorskip("pyopencl")
    for name in ("transposed", "packs", "both ways", "beyond the edge"):
        program = parse(CASES[name])
        try:
            want, got = run(program, copy_kernel(program.equations[0].scope), gpu_emulation.load_opencl_kernel)
        except BackendError as missing:
            pytest.skip(str(missing))
        np.testing.assert_allclose(got, want, rtol=1e-6)


@st.composite
def scopes(draw: st.DrawFn) -> str:
    """Up to three dimensions in any order, shifted, reversed, padded, with a second read and a small sum."""
    sizes = [draw(st.integers(1, 11)) for _ in range(draw(st.integers(1, 3)))]
    names = "ijk"[: len(sizes)]
    order = draw(st.permutations(range(len(sizes))))
    shift = [draw(st.integers(-1, 1)) for _ in sizes]
    back = [draw(st.booleans()) for _ in sizes]
    index = [
        f"{sizes[d] - 1}-{names[d]}+{s}" if b else f"{names[d]}+{s}" for d, s, b in zip(order, shift, back, strict=True)
    ]
    shape = ", ".join(str(sizes[d]) for d in order)
    summed = draw(st.booleans())
    if summed:
        index[-1] += "+r"
    pads = ", ".join("3" for _ in order)
    other = ", ".join(names)
    head = f"tensor A[{shape}] pad [{pads}]\ntensor B[{', '.join(map(str, sizes))}]\n"
    traversals = ", ".join(f"{n}:{s}" for n, s in zip(names, sizes, strict=True))
    body = f"A[{', '.join(index)}] + B[{other}]" if draw(st.booleans()) else f"A[{', '.join(index)}]"
    return head + f"Y[{traversals}] = " + (f"sum[r:2] ({body})" if summed else body)


@given(scopes())
def test_copy_kernels_of_any_order_are_correct(text: str) -> None:
    program = parse(text)
    made = copy_kernel(program.equations[0].scope)
    used = [t for t in program.inputs if t.name in made.inputs]
    want, got = run(Program(tuple(used), program.equations, program.outputs), made, c_kernels.load_c_kernel)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_neighbours_go_by_packs_or_through_tiles() -> None:
    packs = emit(copy_kernel(parse(CASES["packs"]).equations[0].scope), "cuda")
    assert packs.count("reinterpret_cast<const pack_16 *>") == 3 and "__shared__" not in packs
    tiles = copy_kernel(parse("tensor A[4096, 4096]\nY[i:4096, j:4096] = A[j, i]").equations[0].scope)
    text = emit(tiles, "cuda")
    # Thread by thread, both addresses go up by one: that of the load and that of the write.
    assert re.search(r"\] = A\[.*\+ column\)?\];", text) and re.search(r"O\[[^=]*\+ column\)?\] = tile", text)
    assert prod(tiles.grid) * 32 * 32 == 4096 * 4096 and tiles.shared_bytes == 4 * 32 * 33
    assert "if" not in text  # whole tiles ask nothing
    wide = copy_kernel(parse("tensor A[65536, 65536]\nY[i:65536, j:65536] = A[i, j] + 1").equations[0].scope)
    assert "long long" in emit(wide, "cuda")


def test_scopes_without_a_copy_kernel_are_refused() -> None:
    for text, says in (
        (
            f"tensor A[3, {MAX_SUM_TERMS + 1}]\nY[i:3] = sum[k:{MAX_SUM_TERMS + 1}] A[i, k]",
            f"sums of {MAX_SUM_TERMS + 1} terms",
        ),
        ("tensor A[3, 17]\ntensor B[17]\nY[i:3] = sum[k:17] A[i, k] * B[k]", f"expected at most {MAX_PRODUCT_TERMS}"),
        ("tensor A[4, 4]\nY[] = sum[i:4, j:4] A[i, j]", "sums of 16 terms over"),
    ):
        with pytest.raises(Refused, match=says):
            copy_kernel(parse(text).equations[0].scope)
    scope = parse("tensor A[4]\nY[i:4] = exp(A[i])").equations[0].scope
    assert copy_kernel(scope, kind=F64).params[0].kind == F64
    with pytest.raises(Refused):
        copy_kernel(scope, kind=F16)


def test_plan_copies_a_transposed_operand_through_shared_memory() -> None:
    program = parse("tensor A[64, 48]\ntensor B[48, 64]\nY[i:48, j:64] = A[j, i] + B[i, j]")
    (step,) = plan.cuda_plan(program).steps
    assert "__shared__" in step.text and step.block == (256, 1, 1)
