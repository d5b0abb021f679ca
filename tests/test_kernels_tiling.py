"""Tiled contractions: the cost model and its search against PlaidML's document, and kernels against exact values."""

from __future__ import annotations

from math import prod
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from syrupy.assertion import SnapshotAssertion

from einnet_evaluation import gpu_emulation
from einnet_explore.analysis.flattening import AddressColumn, FlattenedScope, IteratorRow, flatten_scope
from einnet_explore.cli import main
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.statements import check_kernel
from einnet_explore.codegen.language.values import F32, I32, I64
from einnet_explore.codegen.tiling.cost import (
    Hardware,
    TilingProblem,
    as_contraction,
    search_best_first,
    tile_cost,
)
from einnet_explore.codegen.tiling.kernel import TiledKernel, tile_contraction
from einnet_explore.codegen.tiling.shared_layout import LocalLayout, local_layout, thread_layout
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Scope, program, tensors
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import parse
from einnet_explore.viz.kernels import kernel_texts, tile_figure, tiled_kernel
from tests import kernel_machine
from tests.strategies import inputs_for, scopes_
from tests.test_kernels_flattening import PLAIDML

needs_opencl = pytest.mark.skipif(not gpu_emulation.opencl_available(), reason="no OpenCL device")

CONV = flatten_scope(parse(PLAIDML).equations[0].scope)
RELU = TilingProblem(CONV, operations=4)
CHOSEN = (8, 32, 2, 3, 16, 2, 2)
LOG = """\
Computing cost for tile size: [8, 32, 1, 3, 16, 8, 2]
  Compute score: to=236760072192 wg=12544 il=24 sm=20656 or=32768 mr=19456 mw=32768 op=256 rp=0 tu=256
  over memory
Computing cost for tile size: [8, 32, 1, 3, 16, 4, 4]
  Compute score: to=236760072192 wg=12544 il=24 sm=16272 or=32768 mr=15360 mw=32768 op=256 rp=0 tu=256
  over regs
Computing cost for tile size: [16, 32, 1, 1, 16, 2, 2]
  Compute score: to=236760072192 wg=50176 il=36 sm=6488 or=8192 mr=6144 mw=8192 op=256 rp=0 tu=256
  flops_per_byte=20.5714 occupancy=20
  roof_ratio=1 occ_ratio=1 thread_ratio=1 score=1
Computing cost for tile size: [8, 32, 2, 1, 16, 2, 2]
  Compute score: to=236760072192 wg=50176 il=48 sm=5264 or=8192 mr=5120 mw=8192 op=256 rp=0 tu=256
  flops_per_byte=18.5806 occupancy=20
  roof_ratio=0.929032 occ_ratio=1 thread_ratio=1 score=0.929032"""

FUSED = """
tensor D[32, 224, 224, 64] pad [0, 1, 1, 0]
tensor K[3, 3, 64, 64] weight
R[n:32, x:224, y:224, co:64] = relu({[n:32, x:224, y:224, co:64] sum[ci:64, i:3, j:3]
  D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]}[n, x, y, co])
"""


# --- the document's numbers ------------------------------------------------------------------------------------------


def test_documented_number_of_multiply_accumulates_is_reproduced() -> None:
    assert RELU.products == 59_190_018_048


def test_log_of_tile_costs_is_that_of_the_document() -> None:
    sizes = ([8, 32, 1, 3, 16, 8, 2], [8, 32, 1, 3, 16, 4, 4], [16, 32, 1, 1, 16, 2, 2], [8, 32, 2, 1, 16, 2, 2])
    assert "\n".join(tile_cost(RELU, size, Hardware()).log() for size in sizes) == LOG


def test_a_relu_counts_as_a_comparison_and_a_choice() -> None:
    found = as_contraction(parse(FUSED.replace("\n  D", " D")).equations[0].scope)
    assert found.problem() == RELU


def test_best_first_visits_505_sizes_and_picks_the_documented_one() -> None:
    search = search_best_first(RELU, Hardware())
    assert len(search.visited) == 505
    assert search.chosen.tile == CHOSEN
    said = "\n".join(c.log() for c in search.visited)
    parts = ["Computing" + part.rstrip() for part in LOG.split("Computing")[1:]]
    places = [said.index(part) for part in parts]
    assert places == sorted(places)  # the order of the document's log


def rows(layout: LocalLayout) -> list[tuple[str, int, int, int]]:
    return [(g.name, g.extent, g.stride, g.local) for g in layout.groups]


def test_tiles_in_shared_memory_have_the_documented_layout() -> None:
    image, weights = (local_layout(CONV, column, CHOSEN) for column in CONV.inputs)
    assert rows(image) == [("i_x", 3, 14336, 1), ("j_y", 4, 64, 393), ("ci", 8, 1, 49), ("n", 16, 3211264, 3)]
    assert rows(weights) == [("j_i", 6, 4096, 265), ("ci", 8, 1, 33), ("co", 32, 64, 1)]
    assert 4 * (image.size + weights.size) == tile_cost(RELU, CHOSEN, Hardware()).sm <= 16384


def test_every_thread_has_eight_sums() -> None:
    layout = thread_layout(CONV, CHOSEN, 256)
    results = [t if r.output else 1 for t, r in zip(CHOSEN, CONV.rows, strict=True)]
    assert prod(results) == 2 * 2 * 16 * 32 == 2048
    assert (layout.threads, layout.outputs, prod(layout.steps(results))) == (256, 256, 8)


def test_reads_of_the_chosen_size_are_eight_wide() -> None:
    cost = tile_cost(RELU, CHOSEN, Hardware())
    ci = next(g for g in local_layout(CONV, CONV.inputs[0], CHOSEN).groups if g.stride == 1)
    assert ci.extent == 8 and cost.mr == 4 * (3 * 4 * 8 * 16 + 6 * 8 * 32)


def test_emitted_kernel_of_the_documents_example_is_unchanged(snapshot: SnapshotAssertion) -> None:
    found = tile_contraction(parse(FUSED.replace("\n  D", " D")))
    assert found.cost.tile == CHOSEN
    assert found.kernel.block == (256, 1, 1) and found.kernel.grid == (50176, 1, 1)
    check_kernel(found.kernel)
    assert emit(found.kernel, "opencl") == snapshot


# --- the model beyond the document -----------------------------------------------------------------------------------


@given(st.data())
def test_layouts_put_every_element_at_a_place_of_its_own(data: st.DataObject) -> None:
    tile = tuple(data.draw(st.integers(1, min(n, 5))) for n in CONV.ranges)
    column = data.draw(st.sampled_from(CONV.inputs))
    layout = local_layout(CONV, column, tile)
    places = [0]
    for g in layout.groups:
        assert g.local % 2 == 1
        places = [p + g.local * i for p in places for i in range(g.extent)]
    assert len(set(places)) == len(places) and max(places) < layout.size


@given(st.data())
def test_costs_are_sums_over_the_tiles(data: st.DataObject) -> None:
    """Fields counted the slow way: what is read is what the groups say, tiles cover the ranges."""
    tile = tuple(data.draw(st.sampled_from([t for t in (1, 2, 3, 4, 8, 16) if t <= n])) for n in CONV.ranges)
    cost = tile_cost(RELU, tile, Hardware())
    blocks = [len(range(0, n, t)) for n, t in zip(CONV.ranges, tile, strict=True)]
    assert cost.wg * cost.il == prod(blocks)
    lines = 0
    for column in CONV.inputs:
        groups = local_layout(CONV, column, tile).groups
        addresses = {0}
        for g in groups:
            addresses = {a + g.stride * i for a in addresses for i in range(g.extent)}
        lines += len({a // 8 for a in addresses})
    assert cost.mr == 32 * lines


def test_threads_are_rolled_up_where_results_are_few() -> None:
    table = flatten_scope(parse("tensor A[512]\ntensor B[512]\nY[o:1] = sum[k:512] A[k] * B[k]").equations[0].scope)
    cost = tile_cost(TilingProblem(table), (512, 1), Hardware())
    assert (cost.op, cost.rp, cost.tu) == (256, 8, 256)
    layout = thread_layout(table, (512, 1), 256)
    assert (layout.outputs, layout.lanes) == (1, 256)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"threads": 0}, "0 threads, expected a power of two"),
        ({"threads": 48}, "48 threads, expected a power of two"),
        ({"memory": 0}, "expected positive numbers, found 0"),
        ({"goal": -1.0}, "expected positive numbers, found -1"),
    ],
)
def test_impossible_hardware_is_refused(bad: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Hardware(**bad)  # type: ignore[arg-type]


def test_refusals_show_numbers() -> None:
    with pytest.raises(ValueError, match=r"tile size \[1, 2\]: expected one for each"):
        tile_cost(RELU, [1, 2], Hardware())
    with pytest.raises(ValueError, match=r"\[65, 1, 1, 1, 1, 1, 1\]: expected .* ranges \[64, 64, 3"):
        tile_cost(RELU, [65, 1, 1, 1, 1, 1, 1], Hardware())
    with pytest.raises(ValueError, match=r"single elements are over memory: they take 8 bytes .* there are 4"):
        search_best_first(RELU, Hardware(memory=4))
    with pytest.raises(ValueError, match=r"single elements are over regs: .* and 1024 of sums"):
        search_best_first(RELU, Hardware(registers=512))
    empty = FlattenedScope(
        (IteratorRow("k", 0, False), IteratorRow("x", 3, True)),
        (AddressColumn("O", (0, 1)), AddressColumn("A", (1, 1))),
    )
    with pytest.raises(ValueError, match=r"ranges \[0, 3\]: there is nothing to cut"):
        search_best_first(TilingProblem(empty), Hardware())
    with pytest.raises(ValueError, match="is over memory: 20656 bytes"):
        tile_contraction(parse(PLAIDML), tile=(8, 32, 1, 3, 16, 8, 2))
    with pytest.raises(ValueError, match="a program of 2 equations, expected one"):
        tile_contraction(parse("tensor A[3]\nY[x:3] = A[x]\nZ[x:3] = Y[x] + A[x]"))
    with pytest.raises(ValueError, match="reads no tensor"):
        as_contraction(parse("tensor A[3]\nY[x:3] = sum[k:2] {[i:3] relu(A[i])}[x] * A[x]").equations[0].scope)
    with pytest.raises(ValueError, match="0 traversals is not tiled"):
        as_contraction(parse("tensor A[3]\nY[] = sum[k:3] A[k]").equations[0].scope)
    with pytest.raises(Refused, match="exp of int32"):
        tile_contraction(parse("tensor A[3]\nY[x:3] = exp(A[x])"), kind=I32)


# --- kernels ---------------------------------------------------------------------------------------------------------

KERNELS = {
    "convolution": """
        tensor D[3, 9, 7, 5] pad [0, 1, 1, 0]
        tensor K[3, 3, 6, 5] weight
        O[n:3, x:9, y:7, co:6] = sum[ci:5, i:3, j:3] D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]""",
    "bias, residual and ReLU": """
        tensor D[2, 5, 6, 5] pad [0, 1, 1, 0]
        tensor K[3, 3, 7, 5] weight
        tensor b[7]
        tensor r[2, 5, 6, 7]
        O[n:2, x:5, y:6, co:7] = relu({[n:2, x:5, y:6, co:7] sum[ci:5, i:3, j:3] D[n, x+i-1, y+j-1, ci] *
        K[i, j, co, ci]}[n, x, y, co] + b[co] + r[n, x, y, co])""",
    "backwards": """
        tensor D[11] pad [6]
        tensor K[5]
        O[x:13] = sum[i:5] D[2 - i + x] * K[i]""",
    "dilated band": """
        tensor D[2, 20, 5] pad [0, 8, 0]
        tensor A[2, 20, 5]
        O[b:2, m:20, w:5] = sum[k:5] A[b, m, k] * D[b, m+4*w-8, k]""",
    "strided maximum": """
        tensor D[5, 17, 13] pad [0, 1, 1] value -100
        O[c:5, x:8, y:7] = max[i:3, j:3] D[c, 2*x+i-1, 2*y+j-1]""",
    "scalar product": """
        tensor A[777]
        tensor B[777]
        O[o:1] = sum[k:777] A[k] * B[k]""",
    "one tensor twice": """
        tensor A[37, 41]
        O[m:37, n:37] = sum[k:41] A[m, k] * A[n, k]""",
}
DEVICES = {
    "the document's": Hardware(),
    "small": Hardware(threads=16, memory=2048, registers=2048, groups=2),
}


def case(name: str) -> str:
    return KERNELS[name].replace("*\n        K", "* K").replace("\n        ", "\n")


def values(found: TiledKernel, dtype: type, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(-4, 5, t.shape).astype(dtype) for t in found.inputs}


RUNS = [*((name, "small") for name in KERNELS), ("convolution", "the document's")]


@needs_opencl
@pytest.mark.parametrize(("name", "device"), RUNS)
def test_kernels_are_exact_through_opencl(name: str, device: str) -> None:
    whole = parse(case(name))
    found = tile_contraction(whole, DEVICES[device], kind=I32)
    inputs = values(found, np.int32)
    want = evaluate(whole, inputs)[whole.outputs[0]]
    got = np.full(want.shape, 77, np.int32)
    gpu_emulation.load_opencl_kernel(found.kernel)(*inputs.values(), got)
    assert np.array_equal(got, want)


@needs_opencl
def test_float_kernels_agree_with_evaluation_through_opencl() -> None:
    whole = parse(case("bias, residual and ReLU"))
    found = tile_contraction(whole, DEVICES["small"], kind=F32)
    rng = np.random.default_rng(1)
    inputs = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in found.inputs}
    want = evaluate(whole, inputs, np.float64)["O"]
    got = np.empty(want.shape, np.float32)
    gpu_emulation.load_opencl_kernel(found.kernel)(*inputs.values(), got)
    assert np.allclose(got, want, rtol=1e-5, atol=1e-5)


def interpreted(found: TiledKernel, inputs: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Interpret the kernel thread by thread; a race between barriers raises."""
    check_kernel(found.kernel)
    got = np.full(prod(shape), 77, np.int64)
    arrays = [inputs[t.name].ravel() for t in found.inputs] + [got]
    kernel_machine.run(
        found.kernel, dict(zip((p.name for p in found.kernel.params), arrays, strict=True)), found.kernel.grid
    )
    return got.reshape(shape)


@st.composite
def cuts(draw: DrawFn) -> tuple[Scope, TiledKernel]:
    """A scope, and its kernel for tiles of any size on a device of few threads."""
    scope = draw(scopes_(depth=1, quotients=False, domains=False))
    assume(scope.traversals and prod(scope.shape))
    ranges = as_contraction(scope).table.ranges
    tile = tuple(draw(st.integers(1, n)) for n in ranges)
    hardware = Hardware(threads=draw(st.sampled_from([1, 2, 4, 16])), memory=1 << 20, registers=1 << 20)
    return scope, tile_contraction(scope, hardware, tile, I64)


@given(cuts())
@settings(max_examples=30)
def test_kernels_are_exact_for_any_tile(cut: tuple[Scope, TiledKernel]) -> None:
    scope, found = cut
    inputs = inputs_for(scope)
    assert np.array_equal(interpreted(found, inputs, scope.shape), evaluate(scope, inputs))


@pytest.mark.slow
@given(cuts())
@settings(max_examples=600)
def test_many_kernels_are_exact(cut: tuple[Scope, TiledKernel]) -> None:
    scope, found = cut
    inputs = inputs_for(scope)
    assert np.array_equal(interpreted(found, inputs, scope.shape), evaluate(scope, inputs))


@pytest.mark.slow
@needs_opencl
@given(cuts())
@settings(max_examples=60)
def test_many_kernels_are_exact_through_opencl(cut: tuple[Scope, TiledKernel]) -> None:
    scope, found = cut
    inputs = inputs_for(scope)
    got = np.full(scope.shape, 77, np.int64)
    gpu_emulation.load_opencl_kernel(found.kernel)(*(inputs[t.name] for t in found.inputs), got)
    assert np.array_equal(got, evaluate(scope, inputs))


@pytest.mark.parametrize("tile", [(1, 1, 1), (2, 2, 3), (1, 2, 1)])
def test_iterators_that_leave_the_address_alone_may_leave_the_tensor(tile: tuple[int, ...]) -> None:
    whole = parse("tensor B[3, 1] pad [0, 1]\nO[h:2, n:3] = sum[c:2] B[c+h, -h]")
    found = tile_contraction(whole, Hardware(threads=2), tile, I64)
    assert [r.name for r in found.contraction.table.rows] == ["c", "h", "n"]
    assert found.contraction.table.inputs[0].coefficients == (1, 0, 0)
    inputs = {"B": np.array([[2], [3], [5]])}
    assert np.array_equal(interpreted(found, inputs, (2, 3)), evaluate(whole, inputs)["O"])


def test_post_operations_read_where_the_result_is_written() -> None:
    text = case("bias, residual and ReLU").replace("n:2, x:5, y:6", "n:1, x:2, y:3").replace("2, 5, 6", "1, 2, 3")
    whole = parse(text)
    found = tile_contraction(whole, Hardware(threads=4, memory=4096, registers=4096), kind=I64)
    inputs = values(found, np.int64)
    assert [t.name for t in found.inputs] == ["D", "K", "b", "r"]
    assert np.array_equal(interpreted(found, inputs, (1, 2, 3, 7)), evaluate(whole, inputs)["O"])


def test_addresses_beyond_32_bits_are_64_wide() -> None:
    text = "tensor A[70000, 70000]\ntensor B[70000]\nO[m:70000] = sum[k:70000] A[m, k] * B[k]"
    assert "(long)" in emit(tile_contraction(parse(text)).kernel, "opencl")
    assert "(long)" not in emit(tile_contraction(parse(text.replace("70000", "7000"))).kernel, "opencl")


def test_tensors_are_those_of_the_scope() -> None:
    scope = parse(case("dilated band")).equations[0].scope
    assert set(tile_contraction(scope).inputs) == set(tensors(scope)) == set(program(scope).inputs)


# --- shown -----------------------------------------------------------------------------------------------------------


def test_the_searchs_figure_marks_what_was_rejected() -> None:
    figure = tile_figure(search_best_first(RELU, Hardware()))
    assert repr(figure) == "505 tile sizes (189 over memory, 65 over regs); chosen: [8, 32, 2, 3, 16, 2, 2]"
    assert ElementTree.fromstring(figure.svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_kernels_of_contractions_are_shown_in_every_dialect() -> None:
    whole = parse(case("convolution"))
    for dialect, sign in (("cuda", "__syncthreads();"), ("opencl", "barrier("), ("c", "#pragma GCC ivdep")):
        (shown,) = kernel_texts(whole, dialect)
        assert sign in shown.text
    nested = parse("tensor A[3]\nY[x:3] = sum[k:2] {[i:3] relu(A[i])}[x] * A[x]")
    with pytest.raises(Refused, match="reads no tensor"):
        tiled_kernel(nested.equations[0], F32, "cuda")
    (shown,) = kernel_texts(nested, "cuda")  # in stages instead
    assert "__global__" in shown.text


def test_show_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "conv.ein"
    path.write_text(PLAIDML + "R[x:4] = O[0, x // 2, 0, 0]\n")
    assert main(["show", str(path), "--table"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("O:\n" + repr(CONV))
    assert "R has no table: 14336*(x // 2), where O is read, is no polynomial" in shown.err
