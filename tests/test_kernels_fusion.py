"""Fused reductions: the plan of stages, sizes, memory; kernels for CPUs and GPUs against exact evaluation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from einnet_evaluation import fused_programs, gpu_emulation
from einnet_evaluation.gpu_emulation import run_blocks
from einnet_explore.cli import main
from einnet_explore.codegen.fusion import registers
from einnet_explore.codegen.fusion.cpu import ROW_POINTS
from einnet_explore.codegen.fusion.frame import lay_out
from einnet_explore.codegen.fusion.gpu import (
    A100_TARGET,
    CPU_CORE_TARGET,
    address_type,
    estimate_fusion,
    gpu_kernel,
    gpu_launch,
)
from einnet_explore.codegen.fusion.plan import fuse_program
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.values import F32, I32, I64
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program
from einnet_explore.runtime import compiled, fused
from einnet_explore.runtime.cuda import nvrtc
from einnet_explore.runtime.cuda.plan import one_kernel_plan
from einnet_explore.runtime.cuda.steps import CudaLaunch
from einnet_explore.runtime.fused import FusedProgram, bind_unfused, compare_with_unfused, split_operations
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.syntax import parse
from einnet_explore.viz.graph_figures import draw_graph
from einnet_explore.viz.kernels import stage_graph, stage_summary
from tests import kernel_machine
from tests.fusion_programs import (
    NORMS,
    batch_norm,
    chains,
    instance_norm,
    layer_norm,
    resize_program,
    softmax,
    strided,
    two_ways,
    variance,
)
from tests.gpu_kit import record_kernels
from tests.strategies import inputs_for, programs

needs_cc = pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
needs_opencl = pytest.mark.skipif(not gpu_emulation.opencl_available(), reason="no OpenCL device")
needs_nvrtc = pytest.mark.skipif(not nvrtc.nvrtc_available(), reason="no NVRTC")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many kernels that run once each: the compiler's time is what counts."""
    monkeypatch.setattr(fused, "FLAGS", ("-O1",))


def exactly(program: Program, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """The outputs by exact evaluation, as float64."""
    found = evaluate(program, arrays, outputs_only=True)
    return {name: np.asarray(a, dtype=np.float64) for name, a in found.items()}


def close(found: dict[str, np.ndarray], program: Program, arrays: dict[str, np.ndarray]) -> None:
    """*found* equals evaluation in double precision to 1e-5 of its largest element."""
    wanted = evaluate(program, {n: a.astype(np.float64) for n, a in arrays.items()}, "float64", outputs_only=True)
    assert set(found) == set(wanted)
    for name, a in wanted.items():
        np.testing.assert_allclose(found[name], a, rtol=1e-5, atol=1e-5 * np.abs(a).max(initial=0))


def normal(program: Program, dtype: str = "float32", seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape).astype(dtype) for t in program.inputs}


# The plan


@pytest.mark.parametrize("name", NORMS)
def test_fusion_plan_and_cuda_text_are_unchanged(name: str, snapshot: SnapshotAssertion) -> None:
    make, sizes = NORMS[name]
    made = fuse_program(make(*sizes))
    assert stage_summary(made) == snapshot
    assert emit(gpu_launch(made, {t.name: t.shape for t in made.inputs})[1], "cuda") == snapshot(name="cuda")


def test_two_launches_become_one_pass() -> None:
    made = fuse_program(parse("tensor x[9]\nm[i:9] = x[i] * x[i]\ny[i:9] = x[i] + m[i]\noutput y"))
    (stage,) = made.stages
    assert [s.name for s in stage.heads] == ["m", "y"] and not stage.nests
    assert [s.stores for s in stage.heads] == [False, True]  # tmp[tid] = a; b = tmp[tid] is b = a
    assert made.spaces["m"].kind == "register" and made.barriers == 0


def test_batch_norm_is_three_stages_and_stores_its_result_only() -> None:
    made = fuse_program(batch_norm(4, 3, 5, 6))
    assert len(made.stages) == 3 and made.barriers == 2
    assert [s.name for stage in made.stages for s in stage.steps if s.stores] == ["Y"]
    assert [x.extent for x in made.grid] == [3]


def test_expensive_value_is_stored_in_the_memory_of_the_result() -> None:
    made = fuse_program(softmax(4, 9))
    assert made.spaces["E"].beside == "Y" and made.slots == 0
    # A cheap one is computed again instead.
    cheap = fuse_program(parse(str_of_softmax().replace("exp(X[i, j] - M[i])", "X[i, j] - M[i]")))
    assert cheap.spaces["E"].kind == "register"


def str_of_softmax() -> str:
    return """tensor X[4, 9]
        M[i:4] = max[j:9] X[i, j]
        E[i:4, j:9] = exp(X[i, j] - M[i])
        S[i:4] = sum[j:9] E[i, j]
        Y[i:4, j:9] = E[i, j] / S[i]
        output Y"""


def test_temporaries_share_memory_unless_they_live_together() -> None:
    made = fuse_program(
        parse("""tensor X[4, 6]
        A[i:4] = sum[j:6] X[i, j]
        B[j:6] = sum[i:4] X[i, j] * A[i]
        C[i:4] = sum[j:6] X[i, j] * B[j]
        D[j:6] = sum[i:4] X[i, j] * C[i]
        E[i:4] = sum[j:6] X[i, j] * D[j]""")
    )
    assert {n: made.spaces[n].slot for n in "ABCD"} == {"A": 0, "B": 1, "C": 0, "D": 1} and made.slots == 2
    assert [s.barrier for s in made.stages] == [True] * 4 + [False]
    flat = lay_out(made, {"X": (4, 6)}, {"X": (6, 1), "E": (1,)})
    assert gpu_emulation.slot_sizes(flat) == (4, 6)


def test_value_read_by_other_threads_needs_a_barrier() -> None:
    """A shifted read of an expensive value: other threads made it."""
    made = fuse_program(
        parse("""tensor X[3, 8]
        E[i:3, j:8] = exp(X[i, j])
        Y[i:3, j:7] = E[i, j+1] - E[i, j]
        output Y""")
    )
    assert [x.extent for x in made.grid] == [3]
    assert [s.barrier for s in made.stages] == [True, False] and made.slots == 1


def test_same_axes_in_the_same_order_need_no_barrier() -> None:
    made = fuse_program(softmax(4, 9))
    assert not any(stage.barrier for stage in made.stages)  # E is loaded by the thread that stored it


def test_diagram_shows_reads_and_stored_values() -> None:
    drawn = stage_graph(fuse_program(softmax(4, 9)))
    labels = {node.name: node.label for node in drawn.nodes}
    assert labels["E in memory"] == "E\nin the memory of Y"
    assert "max=" in labels["stage 0 nest"] and "S sum= E" in labels["stage 1 nest"]
    assert ("X", "stage 0 nest", "") in drawn.edges and ("stage 0 nest", "stage 1 nest", "M") in drawn.edges
    assert "<svg" in draw_graph(drawn, "softmax").svg


# Sizes


def test_broadcasting_records_equalities() -> None:
    made = fuse_program(parse("tensor x[2, 3, 4]\ntensor y[3, 4]\nz[i:2, j:3, k:4] = x[i, j, k] + y[j, k]"))
    assert made.sizes.equalities == ("x.1 == y.0", "x.2 == y.1")


def test_partial_dimension_is_recorded_as_a_number() -> None:
    made = fuse_program(parse("tensor x[9, 4]\nz[i:7, j:4] = sum[k:3] x[i+k, j]"))
    assert made.sizes.equalities == ("x.0 == 9",)
    with pytest.raises(Refused, match=r"x.0 == 9: x.0 is 10"):
        resize_program(made.program, {"x": (10, 4)})


@needs_cc
def test_one_analysis_serves_other_sizes() -> None:
    kernel = FusedProgram(two_ways(4, 6), "float64")
    for shape in ((4, 6), (9, 2), (1, 300), (5, 1), (300, 3)):
        x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape) % 7 - 3
        found = kernel({"X": x})
        for name, a in exactly(resize_program(two_ways(4, 6), {"X": shape}), {"X": x.astype(np.int64)}).items():
            np.testing.assert_array_equal(found[name], a)
    assert kernel.analyses == 1
    assert len({known.text for known, _ in kernel._known.values()}) == kernel.kernels <= 3  # rows, one row, one column


@needs_cc
def test_other_sizes_by_a_function_are_analysed_and_use_the_same_code() -> None:
    kernel = FusedProgram(lambda shapes: layer_norm(*shapes["X"]))
    for r, c in ((5, 7), (3, 11), (40, 64)):
        arrays = normal(layer_norm(r, c))
        close(kernel(arrays), layer_norm(r, c), arrays)
        kernel(arrays)
    assert kernel.analyses == 3 and kernel.kernels == 1


@needs_cc
def test_sizes_that_break_what_was_recorded_are_refused() -> None:
    kernel = FusedProgram(parse("tensor x[2, 3]\ntensor y[3]\nz[i:2] = sum[j:3] x[i, j] * y[j]"))
    x, y = np.ones((4, 5), np.float32), np.ones(5, np.float32)
    np.testing.assert_array_equal(kernel({"x": x, "y": y})["z"], np.full(4, 5, np.float32))
    with pytest.raises(Refused, match=r"x.1 == y.0: x.1 is 5, y.0 is 4"):
        kernel({"x": x, "y": y[:4]})
    with pytest.raises(Refused, match=r"x was analysed as \[2, 3\], given \(5,\)"):
        kernel({"x": y, "y": y})
    with pytest.raises(Refused, match=r"the constant 11, which may follow from 11 elements \(x.1\), now 12"):
        FusedProgram(parse("tensor x[2, 11]\nz[i:2] = sum[j:11] x[i, j] / 11"))({"x": np.ones((2, 12), np.float32)})
    for number in ("10", "0.0909090909", "3.31662479", "22 / 2 * 121"):  # an unbiased mean, 1 / 11, a root, a square
        other = FusedProgram(parse(f"tensor x[2, 11]\nz[i:2] = sum[j:11] x[i, j] * {number}"))
        with pytest.raises(Refused, match=r"now 1(2|44)"):
            other({"x": np.ones((2, 12), np.float32)})
    with pytest.raises(Refused, match=r"X has shape \[5, 7\], given \(5, 8\)"):
        FusedProgram(lambda shapes: layer_norm(5, 7))(normal(layer_norm(5, 8)))


@needs_cc
def test_an_empty_size_is_analysed_by_itself() -> None:
    program = parse("tensor x[4, 3]\nz[j:3] = max[i:4] x[i, j]\ny[i:4] = sum[j:3] x[i, j] + 5\noutput z, y")
    empty = resize_program(program, {"x": (0, 3)})
    assert fuse_program(empty).sizes.equalities == ("x.0 == 0",)
    x = np.zeros((0, 3), np.float32)
    for kernel in (FusedProgram(program), FusedProgram(empty)):
        found = kernel({"x": x})
        np.testing.assert_array_equal(found["z"], np.full(3, -np.inf, np.float32))
        assert found["y"].shape == (0,)
    with pytest.raises(Refused, match=r"x.0 == 0: x.0 is 4"):
        FusedProgram(empty)({"x": np.zeros((4, 3), np.float32)})


# Dimensions at call time


def test_neighbouring_dimensions_are_one_where_memory_allows_it() -> None:
    made = fuse_program(batch_norm(4, 3, 5, 6))
    shapes = {t.name: t.shape for t in made.inputs}
    plain = {"X": (90, 30, 6, 1), "Y": (90, 30, 6, 1), "g": (1,), "b": (1,)}
    packed = lay_out(made, shapes, plain)
    assert sorted(packed.extents[x] for x in packed.order) == [3, 4, 30]
    assert packed.lanes is None and packed.points == 3
    turned = lay_out(made, shapes, {**plain, "X": (90, 30, 1, 5)})
    assert sorted(turned.extents[x] for x in turned.order) == [3, 4, 5, 6]
    last = lay_out(made, shapes, {**plain, "X": (90, 1, 18, 3), "Y": (90, 1, 18, 3)})
    assert last.lanes in made.grid  # channels run along memory: points side by side


def test_everything_is_one_axis_in_an_elementwise_program() -> None:
    made = fuse_program(parse("tensor x[3, 4, 5]\ny[i:3, j:4, k:5] = relu(x[i, j, k])"))
    flat = lay_out(made, {"x": (3, 4, 5)}, {"x": (20, 5, 1), "y": (20, 5, 1)})
    assert [flat.extents[x] for x in flat.order] == [60]


def test_addresses_beyond_31_bits_take_64() -> None:
    made = fuse_program(softmax(4, 9))
    for shape, kind in (((1000, 1000), I32), ((50_000, 50_000), I64)):
        strides = (shape[1], 1)
        flat = lay_out(made, {"X": shape}, {"X": strides, "Y": strides})
        assert address_type(flat) == kind
        assert ("long long" in emit(gpu_kernel(flat, F32), "cuda")) == (kind == I64)


# CPU


@needs_cc
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NORMS)
def test_cpu_kernels_agree_with_evaluation(name: str, dtype: str) -> None:
    make, sizes = NORMS[name]
    arrays = normal(make(*sizes), dtype)
    close(FusedProgram(make(*sizes), dtype)(arrays), make(*sizes), arrays)


@needs_cc
@pytest.mark.parametrize(
    "program",
    [
        batch_norm(3, 2, 70, 80),  # rows beyond what is summed up in single precision
        layer_norm(2, 5000),
        variance(100, 300),
        parse(f"tensor X[40, {ROW_POINTS + 3}]\nM[c:{ROW_POINTS + 3}] = sum[n:40] X[n, c]\n"
              f"Y[n:40, c:{ROW_POINTS + 3}] = exp(X[n, c] - M[c])"),
        two_ways(ROW_POINTS + 5, 3),
        two_ways(3, 2 * ROW_POINTS + 1),
    ],
    ids=["batch norm", "layer norm", "variance", "lanes", "columns", "rows"],
)  # fmt: skip
def test_cpu_kernels_beyond_one_chunk(program: Program) -> None:
    arrays = normal(program)
    for threads in (1, 2):
        close(FusedProgram(program, threads=threads)(arrays), program, arrays)


@needs_cc
@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 0, 2)])
def test_batch_norm_is_correct_in_every_layout(layout: tuple[int, ...]) -> None:
    program = batch_norm(4, 19, 5, 6)
    arrays = normal(program)
    order = tuple(np.argsort(layout))
    arrays["X"] = np.ascontiguousarray(arrays["X"].transpose(layout)).transpose(order)
    out = np.empty([(4, 19, 5, 6)[d] for d in layout], np.float32).transpose(order)
    FusedProgram(program).bind(arrays, {"Y": out})()
    close({"Y": out}, program, arrays)


@needs_cc
@pytest.mark.usefixtures("quick")
@settings(max_examples=12)
@given(programs())
def test_random_programs_are_exact(program: Program) -> None:
    arrays = inputs_for(program)
    found = FusedProgram(program, "float64")({n: a.astype(np.float64) for n, a in arrays.items()})
    for name, a in exactly(program, arrays).items():
        np.testing.assert_array_equal(found[name], a)


@needs_cc
@pytest.mark.usefixtures("quick")
@settings(max_examples=15)
@given(chains(), st.integers(0, 1 << 30))
def test_chains_of_reductions_exactly_wherever_they_lie(program: Program, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = inputs_for(program, rng)
    wanted = exactly(program, arrays)
    outs = {n: strided(np.full(a.shape, np.nan), rng) for n, a in wanted.items()}
    kernel = FusedProgram(program, "float64", threads=int(rng.integers(1, 3)))
    kernel.bind({n: strided(a.astype(np.float64), rng) for n, a in arrays.items()}, outs)()
    for name, a in wanted.items():
        np.testing.assert_array_equal(outs[name], a)


@pytest.mark.slow
@needs_cc
@pytest.mark.usefixtures("quick")
@settings(max_examples=300)
@given(st.one_of(programs(), chains()))
def test_many_random_programs_are_exact(program: Program) -> None:
    test_random_programs_are_exact.hypothesis.inner_test(program)


@needs_cc
def test_nan_propagates_through_a_softmax() -> None:
    x = np.array([[1, np.nan, 2], [0, 1, 2]], np.float32)
    found = FusedProgram(softmax(4, 9))({"X": x})["Y"]
    assert np.isnan(found[0]).all() and not np.isnan(found[1]).any()


@needs_cc
def test_a_kernel_is_compiled_once_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = normal(softmax(5, 13))
    first = FusedProgram(softmax(5, 13))(arrays)["Y"]
    fused._function.cache_clear()

    def forbidden(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiled, "_compile", forbidden)
    np.testing.assert_array_equal(FusedProgram(softmax(5, 13))(arrays)["Y"], first)


@needs_cc
def test_bad_arrays_are_refused() -> None:
    kernel = FusedProgram(softmax(4, 9))
    x = np.zeros((4, 9), np.float32)
    out = np.empty((4, 9), np.float32)
    with pytest.raises(BackendError, match="X is float64, expected float32"):
        kernel({"X": x.astype(np.float64)})
    with pytest.raises(BackendError, match=r"output Y has shape \[4, 9\], given is \[4, 8\]"):
        kernel.bind({"X": x}, {"Y": out[:, :8]})
    with pytest.raises(BackendError, match=r"output Y has shape \[4, 9\], given is none"):
        kernel.bind({"X": x}, {})
    with pytest.raises(BackendError, match="output Y overlaps X"):
        kernel.bind({"X": x}, {"Y": x})
    with pytest.raises(BackendError, match="X lies between elements"):
        kernel({"X": np.zeros(4 * 9 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 9)})
    with pytest.raises(Refused, match="X was analysed as"):
        kernel({})
    out.flags.writeable = False
    with pytest.raises(BackendError, match="output Y cannot be written"):
        kernel.bind({"X": x}, {"Y": out})
    with pytest.raises(BackendError, match="dtype int32: a fused kernel computes in float32 or float64"):
        FusedProgram(softmax(4, 9), "int32")


def test_tables_and_empty_programs_are_refused() -> None:
    with pytest.raises(Refused, match="a table of known numbers is read"):
        fuse_program(parse("tensor x[2]\ny[i:2] = sum[j:2] table[2, 2] (1, 0, 0, 1) [i, j] * x[j]"))
    with pytest.raises(Refused, match="nothing to compute"):
        fuse_program(Program((), (), ()))


@needs_cc
def test_a_compiler_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "VECTOR_MATH_DECLARATIONS", "#error no such thing\n")
    monkeypatch.setattr(fused, "_function", fused._function.__wrapped__)
    with pytest.raises(BackendError, match=r"not compiled: .*no such thing"):
        FusedProgram(softmax(4, 9))({"X": np.zeros((4, 9), np.float32)})


@needs_cc
def test_unfused_operations_compute_equal_results() -> None:
    program = two_ways(ROW_POINTS + 5, 30)
    assert [p.outputs for p in split_operations(program)] == [("A",), ("B",), ("Y",), ("Z",)]
    arrays = normal(program)
    outs = {n: np.empty(a.shape, np.float32) for n, a in FusedProgram(program)(arrays).items()}
    bind_unfused(program, arrays, outs)()
    close(outs, program, arrays)
    assert set(compare_with_unfused(program, arrays, rounds=1, seconds=0)) == {"fused", "apart"}


@needs_cc
def test_a_bound_call_reads_what_is_there_now() -> None:
    program = softmax(4, 9)
    arrays, out = normal(program), {"Y": np.empty((4, 9), np.float32)}
    call = FusedProgram(program).bind(arrays, out)
    for seed in (1, 2):
        arrays["X"][...] = normal(program, seed=seed)["X"]
        call()
        close(out, program, arrays)


# GPU


def few_threads(
    threads: int, held: int, shared: int, draw: Any, packs: int, pack: int, points: int, memories: int, *_: int
) -> registers.Share:
    """A share by *threads* threads, so that small programs have all cases: held, missing and streamed packs."""
    together = draw(st.sampled_from([n for n in (1, 2, 3) if points % n == 0]))
    held, shared = (held, shared) if memories else (0, 0)
    return registers.Share(min(threads, packs), pack, packs, held, 1 if shared else together, shared)


@settings(max_examples=40)
@given(st.one_of(programs(), chains()), st.sampled_from([0, 1, 3, 4]), st.data())
def test_blocks_exactly_and_without_races(program: Program, threads: int, data: st.DataObject) -> None:
    """With 0 threads, elements are held in registers and shared memory, by as many threads as are drawn."""
    arrays = inputs_for(program)
    made, shapes = fuse_program(program), {n: a.shape for n, a in arrays.items()}
    if threads:
        flat, kernel = gpu_launch(made, shapes, "float64", threads)
    else:
        numbers = (data.draw(st.integers(low, high)) for low, high in ((1, 5), (0, 2), (0, 2)))
        sharing = partial(few_threads, *numbers, data.draw)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registers, "choose_share", sharing)
            flat, kernel = registers.held_launch(made, shapes, "float64")
    wanted = exactly(program, arrays)
    outs = {n: np.full(a.shape, np.nan).reshape(-1) for n, a in wanted.items()}
    given_arrays = {n: a.astype(np.float64).reshape(-1) for n, a in arrays.items()}
    passed = gpu_emulation.arguments(flat, kernel, given_arrays, outs)
    named = {p.name: a for p, a in zip(kernel.params, passed, strict=True)}
    if flat.points:
        kernel_machine.run(kernel, named, kernel.grid)
    for name, a in wanted.items():
        np.testing.assert_array_equal(outs[name].reshape(a.shape), a)


@needs_cc
@pytest.mark.parametrize("name", NORMS)
def test_gpu_blocks_run_as_c_loops_agree_with_evaluation(name: str) -> None:
    make, sizes = NORMS[name]
    arrays = normal(make(*sizes))
    close(run_blocks(fuse_program(make(*sizes)), arrays, "c blocks", threads=8), make(*sizes), arrays)


@needs_opencl
@pytest.mark.parametrize("name", NORMS)
def test_gpu_blocks_run_by_opencl_agree_with_evaluation(name: str) -> None:
    make, sizes = NORMS[name]
    arrays = normal(make(*sizes))
    close(run_blocks(fuse_program(make(*sizes)), arrays, "opencl", threads=16), make(*sizes), arrays)


LONG = {  # a point of each, and whether all of it fits the shared memory and the registers of half a multiprocessor
    "softmax": (softmax, (4096, 20000), True),
    "group norm": (fused_programs.group_norm, (32, 32, 8, 56, 56), True),
    "batch norm": (batch_norm, (32, 256, 56, 56), False),
    "rows of odd length": (softmax, (4096, 50257), False),
}


@pytest.mark.parametrize("name", LONG)
def test_two_blocks_of_long_points_fit_a_multiprocessor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = record_kernels(monkeypatch)
    make, sizes, is_whole = LONG[name]
    (step,) = one_kernel_plan(make(*sizes)).steps
    assert isinstance(step, CudaLaunch) and 48 << 10 < step.shared <= registers.MAX_SHARED_BYTES
    kernel = kernels[step.entry, step.text]
    assert kernel.resident == 2 and step.text.count("extern __shared__") == 1
    assert ("v_pack" not in step.text) == is_whole  # nothing is loaded twice
    if nvrtc.nvrtc_available():
        took = nvrtc.compile_cuda(kernel, nvrtc.ARCHITECTURES[len(step.text) % 3]).resources
        assert took is not None and took.shared == 0 and took.spills <= 64
        full = replace(took, shared=step.shared)
        assert full.blocks(kernel.threads, shared=registers.MULTIPROCESSOR_SHARED_BYTES) == 2


@needs_opencl
def test_points_in_shared_memory_are_right_by_opencl(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = record_kernels(monkeypatch)
    # Smaller blocks, since the device is a CPU: packs in registers, in shared memory, and in neither.
    monkeypatch.setattr(registers, "LONG_POINT_THREADS", 32)
    monkeypatch.setattr(registers, "HELD_ELEMENTS", 20)
    by_two = partial(registers._long_share, resident=2)
    monkeypatch.setattr(registers, "choose_share", lambda packs, pack, points, *rest: by_two(packs, pack, *rest))
    columns = 3000
    (step,) = one_kernel_plan(softmax(4096, columns), 16 << 10).steps
    assert isinstance(step, CudaLaunch)
    kernel = kernels[step.entry, step.text]
    assert 2 << 10 < kernel.shared_bytes <= 16 << 10 and "v_pack" in step.text
    x, y = np.zeros((4096, columns), np.float32), np.full((4096, columns), np.nan, np.float32)
    x[:3] = np.random.default_rng(0).standard_normal((3, columns))
    gpu_emulation.load_opencl_kernel(kernel)(x, y, grid=(3, 1, 1))
    want = np.exp(x[:3] - x[:3].max(1, keepdims=True))
    np.testing.assert_allclose(y[:3], want / want.sum(1, keepdims=True), rtol=1e-4)


@needs_opencl
def test_kernels_with_one_thread_for_each_point_are_correct_by_opencl() -> None:
    program = parse("tensor X[9, 300]\nM[c:300] = max[n:9] X[n, c]\nY[n:9, c:300] = X[n, c] - M[c]\noutput Y")
    arrays = normal(program)
    flat, _ = gpu_launch(fuse_program(program), {"X": (9, 300)})
    assert flat.lanes is not None
    close(run_blocks(fuse_program(program), arrays), program, arrays)


@needs_nvrtc
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_cuda_text_of_fused_kernels_compiles(name: str, architecture: str) -> None:
    make, sizes = NORMS[name]
    made = make(*sizes)
    _, kernel = gpu_launch(fuse_program(made), {t.name: t.shape for t in made.inputs})
    assert nvrtc.compile_cuda(kernel, architecture).code[1:4] == b"ELF"


def test_unsupported_engines_threads_and_shapes_are_refused() -> None:
    with pytest.raises(BackendError, match="engine 'cuda': expected one of opencl, c blocks"):
        run_blocks(fuse_program(softmax(4, 9)), normal(softmax(4, 9)), "cuda")
    with pytest.raises(Refused, match="X was analysed as"):
        gpu_launch(fuse_program(softmax(4, 9)), {"X": (4,)})


# Cost


def test_tiny_grid_is_estimated_as_slower_on_a_gpu() -> None:
    def asked(n: int, c: int, h: int, w: int, target: Any) -> Any:
        program = batch_norm(n, c, h, w)
        return estimate_fusion(gpu_launch(fuse_program(program), {t.name: t.shape for t in program.inputs})[0], target)

    assert asked(32, 256, 56, 56, A100_TARGET).pays
    small = asked(32, 2, 512, 512, A100_TARGET)
    assert small.blocks == 2 and not small.pays and "do not fuse" in str(small)
    assert asked(32, 2, 512, 512, CPU_CORE_TARGET).pays and asked(32, 256, 56, 56, CPU_CORE_TARGET).pays
    assert asked(1, 64, 7, 7, A100_TARGET).pays  # launches cost more than all the work


def test_instance_norm_has_a_point_for_each_image_and_channel() -> None:
    made = fuse_program(instance_norm(3, 2, 5, 7))
    assert [x.extent for x in made.grid] == [3, 2]


# Show


def test_fuse_prints_the_plan_and_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = tmp_path / "softmax.ein"
    case.write_text(str_of_softmax())
    assert main(["fuse", str(case)]) == 0
    said = capsys.readouterr().out
    assert "grid: i0:4; waits: 2" in said and "-> memory of Y" in said and "A100: 4 blocks on 108 units" in said
    for dialect, word in (("cuda", "__shared__"), ("opencl", "__kernel"), ("c", "#pragma omp simd")):
        assert main(["fuse", str(case), "--kernel", dialect]) == 0
        assert word in capsys.readouterr().out
    assert main(["fuse", str(case), "--svg", str(tmp_path / "stages.svg")]) == 0
    assert "in the memory of Y" in (tmp_path / "stages.svg").read_text()
    assert main(["fuse", str(case), "--kernel", "c", "--dtype", "float31"]) != 0
    assert "float31" in capsys.readouterr().err


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("n", [3, 16, 33, 257])
def test_a_nan_in_a_row_is_its_extremum(reduce: str, n: int) -> None:
    program = parse(f"tensor odd_acc[3, {n}]\nY[i:3] = {reduce}[j:{n}] odd_acc[i, j]")
    kernel = FusedProgram(program)
    for at in {0, 1, n // 2, n - 1}:
        given = {"odd_acc": np.linspace(-1, 1, 3 * n, dtype=np.float32).reshape(3, n)}
        given["odd_acc"][1, at] = np.nan
        np.testing.assert_array_equal(kernel(given)["Y"], evaluate(program, given, "float32")["Y"])
